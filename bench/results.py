"""Data and pages of benchmarks and studies: FOLDER/NAME.json, .md and .png.

FOLDER is results/, or that of the study (`folder`). A benchmark measures, keeps
its data as JSON, and makes a page of them; with
`--table` it measures nothing and makes the page again.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from rl_reason.report import figures

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "results"
CONFORMANCE = ROOT / "conformance"
STUDIES = ROOT / "studies"
RUNS = ROOT / "runs"


# --- files -------------------------------------------------------------------


def folder(name: str) -> pathlib.Path:
  """The folder of the files of a name.

  Those of a study begin with the name of its folder: `chain-128` is of
  studies/chain/. conformance/ is such a folder, too.
  """
  studies = [CONFORMANCE, *STUDIES.glob("*/")]
  found = [x for x in studies if re.match(rf"{x.name}(?![a-z0-9])", name)]
  return max(found, key=lambda x: len(x.name), default=RESULTS)


def files() -> list[pathlib.Path]:
  """All files of data, by name."""
  folders = [RESULTS, CONFORMANCE, *STUDIES.glob("*/")]
  found = (path for place in folders for path in place.glob("*.json"))
  return sorted(
      (x for x in found if folder(x.stem) == x.parent), key=lambda x: x.stem
  )


def read(name: str) -> dict[str, Any]:
  """Returns the data of a name; {} if there are none."""
  path = folder(name) / f"{name}.json"
  return json.loads(path.read_text()) if path.exists() else {}


def write_data(name: str, result: dict) -> None:
  """Writes the data of a name."""
  place = folder(name)
  place.mkdir(exist_ok=True)
  text = json.dumps(result, indent=1)
  (place / f"{name}.json").write_text(text + "\n")


def write_page(name: str, lines: list[str]) -> None:
  """Writes the page of a name."""
  (folder(name) / f"{name}.md").write_text("\n".join(lines) + "\n")


def write(name: str, result: dict, lines: list[str]) -> None:
  """Writes the data and the page of a name."""
  write_data(name, result)
  write_page(name, lines)


def main(
    about: str,
    name: str,
    measure: Callable[[argparse.Namespace], dict],
    page: Callable[[dict], list[str]],
    *,
    figure: Callable[[dict], dict] | None = None,
    interactive: Callable[[dict], str] | None = None,
    flags: Callable[[argparse.ArgumentParser], Any] = lambda parser: None,
) -> None:
  """The command of a benchmark: measures, then writes data, page and figure.

  Args:
    about: the docstring of the benchmark.
    name: of its files.
    measure: flags -> data.
    page: data -> lines of Markdown.
    figure: data -> what NAME.png shows, see `report.figures`.
    interactive: data -> NAME.html.
    flags: adds the benchmark's own flags to the parser.
  """
  parser = argparse.ArgumentParser(description=about.splitlines()[0])
  parser.add_argument(
      "--table", action="store_true", help="measure nothing: from the data"
  )
  flags(parser)
  given = parser.parse_args()
  if not given.table:
    write_data(name, measure(given))
  result, path = read(name), folder(name) / name
  if not result:
    parser.error(f"{path}.json: there are no data; omit --table")
  write_page(name, page(result))
  if interactive:
    path.with_suffix(".html").write_text(interactive(result))
  try:
    if figure:
      figures.draw(figure(result), path.with_suffix(".png"))
  except ModuleNotFoundError as e:
    print(f"no {path}.png: {e.name} is not installed")


# --- what a page says of its measurement -------------------------------------


def load() -> float:
  """Returns the load average of the last minute."""
  return round(os.getloadavg()[0], 1)


def environment(load: float | None = None) -> dict[str, Any]:
  """Returns machine, versions and commit of a measurement, with the load.

  Initializes the device: call this function after the workers have ended.
  """
  from rl_reason.report import machine

  found = machine.describe()
  return found if load is None else found | dict(load=load)


def commit() -> str:
  """Returns the commit of this repository."""
  return environment()["git commit"]


def run_environment(workdir: pathlib.Path) -> dict[str, Any]:
  """Returns machine and versions of a run of rl_reason."""
  from rl_reason.report import machine

  return machine.read(workdir)


def busy(environment: dict) -> list[str]:
  """Returns a warning if a quarter of the cores was busy before."""
  load, cores = environment["load"], environment["cpu count"]
  if load < cores / 4:
    return []
  return [
      f"**Preliminary: the machine was busy (load {load} on {cores} cores).**",
      "",
  ]


def footer(result: dict) -> list[str]:
  """Returns machine and versions."""
  known = [f"{k} {v}" for k, v in result["environment"].items() if v]
  out = ["Ours: " + ", ".join(known) + "."]
  for name, versions in result.get("peers", {}).items():
    text = ", ".join(f"{k} {v}" for k, v in versions.items())
    out += ["", f"{name}: {text}."]
  return out


def document(
    title: str,
    finding: str,
    *parts: str | Sequence[str],
    made: str,
    versions: Sequence[str] = (),
) -> list[str]:
  """The lines of a page, whose parts have the same order on all pages.

  Args:
    title: of the page.
    finding: what was found, with its numbers: the first sentence.
    *parts: the question and how it was measured, figure, tables: a paragraph,
      or lines; an empty part is left out.
    made: the command that makes the page, 'Made by `...`'.
    versions: machine and versions, or commits.
  """
  out = [f"# {title}", "", finding, ""]
  for part in parts:
    lines = [part] if isinstance(part, str) else [*part]
    while lines and not lines[-1]:
      lines.pop()
    while lines and not lines[0]:
      del lines[0]
    if lines:
      out += [*lines, ""]
  return [*out, made, *(["", *versions] if versions else [])]


# --- numbers and tables ------------------------------------------------------


def row(*cells: Any) -> str:
  """Returns a line of a table in Markdown."""
  return f"| {' | '.join(map(str, cells))} |"


def joined(words: Sequence[str], last: str = "and") -> str:
  """Returns 'a, b and c'; 'none' without words."""
  if not words:
    return "none"
  *first, end = words
  return f"{', '.join(first)} {last} {end}" if first else end


def mean(values: Sequence[float], form: str) -> str:
  """'mean ± half of the width of its 95% interval'; '-' without values."""
  from rl_reason.lab import comparison  # slow: imports SciPy

  if len(values) == 0:  # an array, too
    return "-"
  middle, half = comparison.interval(values)
  margin = "" if half is None else f" ± {half:{form.removeprefix('+')}}"
  return f"{middle:{form}}{margin}"


def spread(values: Sequence[float], form: str) -> str:
  """Returns 'mean (minimum to maximum)'."""
  low, mean, high = min(values), statistics.mean(values), max(values)
  return f"{mean:{form}} ({low:{form}} to {high:{form}})"
