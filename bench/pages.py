"""All pages and figures, and README's table, from committed data.

  python -m bench.pages            # writes what differs; measures nothing
  python -m bench.pages --check    # writes nothing; exit code 1 if any differs
  python -m bench.pages --interactive  # and the pages of the ablations
  python -m bench.pages --figures=pdf  # all figures as PDF or SVG, for papers

Figures need matplotlib; whether one differs is known without it, by the digest
in the file. docs/report.png, the picture of a report, needs chromium.
"""

import argparse
import functools
import importlib
import json
import pathlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from bench import results, tables
from bench.tools import cards, report_picture
from bench.training import seeds
from rl_reason.lab import ablation_pages
from rl_reason.report import figures, rendering

# Commands by `results.main`, which names the data.
_MAIN = re.compile(r"results\.main\(\s*__doc__,\s*(?:\"(\w+)\"|(\w+))")
# Modules that have a page, and its data.
OTHERS = {
    "bench.serving.attacks": "bench_attacks",
    "bench.training.bands": "band_runs",
    "bench.real": "bench_real",
    "studies.table.run": "table",
}
TABLES = ("memory", "rl_step", "rollout", "update")  # of `bench.tables`


class Page(NamedTuple):
  """A page, and what is drawn from the same data.

  Attributes:
    name: of its data, its page and its figure.
    lines: data -> Markdown.
    figure: data -> a figure; None where a page has none.
    interactive: data -> a page of HTML that is kept; None where there is none.
  """

  name: str
  lines: Callable[[dict], list[str]]
  figure: Callable[[dict], dict[str, Any]] | None = None
  interactive: Callable[[dict], str] | None = None


def pages() -> Iterator[Page]:
  """The pages of all benchmarks and ablations."""
  commands = dict(OTHERS)
  for pattern in (
      "bench/*.py",
      "bench/*/*.py",
      "conformance/run.py",
      "studies/*/run.py",
  ):
    for path in sorted(results.ROOT.glob(pattern)):
      if found := _MAIN.search(path.read_text()):
        parts = path.relative_to(results.ROOT).with_suffix("").parts
        commands[".".join(parts)] = found[1] or ""
  for command, name in commands.items():
    module = importlib.import_module(command)
    name = name or module.NAME
    if (results.folder(name) / f"{name}.json").exists():
      more = (getattr(module, x, None) for x in ("figure", "interactive"))
      yield Page(name, module.page, *more)
  for module in TABLES:
    found = importlib.import_module(f"bench.libraries.{module}")
    columns = getattr(found, "COLUMNS", tables.COLUMNS)
    page = functools.partial(tables.page, found.TABLE, columns=columns)
    yield Page(f"bench_{module}", page)
  yield Page(tables.SWEEP, tables.sweep_page)
  for path in results.files():
    if "measures" in json.loads(path.read_text()):  # an ablation
      lines = functools.partial(_ablation, path.stem)
      yield Page(path.stem, lines, ablation_pages.figure)


def _ablation(name: str, data: dict) -> list[str]:
  """The lines of the page of an ablation."""
  return ablation_pages.markdown(data, name).removesuffix("\n").split("\n")


def readme(text: str) -> str:
  """README with its table made again from the data."""
  table = seeds.readme_table(results.read(seeds.NAME))
  before, head, rest = text.partition(table[0].split(":")[0])
  _, blank, after = rest.partition("\n\n")
  if not head:
    raise SystemExit(f"README.md: there is no table that begins {table[0]!r}")
  return before + "\n".join(table) + blank + after


def differences(write: bool) -> list[str]:
  """The files that are not what their data give; writes them if asked to."""
  out = []
  path = results.ROOT / "README.md"
  if (wanted := readme(path.read_text())) != path.read_text():
    out.append(path.name)
    if write:
      path.write_text(wanted)
  for page in pages():
    data = results.read(page.name)
    path = results.folder(page.name) / f"{page.name}.md"
    wanted = "\n".join(page.lines(data)) + "\n"
    if not path.exists() or path.read_text() != wanted:
      out.append(path.name)
      if write:
        path.write_text(wanted)
    if page.interactive is not None:
      path, wanted = path.with_suffix(".html"), page.interactive(data)
      if not path.exists() or path.read_text() != wanted:
        out.append(path.name)
        if write:
          path.write_text(wanted)
    if page.figure is None:
      continue
    path, figure = path.with_suffix(".png"), page.figure(data)
    carried = figures.read_digest(path) if path.exists() else ""
    if carried != figures.digest(figure):
      out.append(path.name)
      if write:
        figures.draw(figure, path)
  path = results.folder(cards.NAME) / f"{cards.NAME}.html"
  if not path.exists() or path.read_text() != cards.page():
    out.append(path.name)
    if write:
      path.write_text(cards.page())
  if figures.read_digest(report_picture.PICTURE) != report_picture.digest(
      results.read(report_picture.NAME)
  ):
    out.append(report_picture.PICTURE.name)
    if write:
      report_picture.photograph(
          results.read(report_picture.NAME), report_picture.PICTURE
      )
  return out


def interactive() -> list[pathlib.Path]:
  """Writes NAME.html of all ablations; returns the paths."""
  out = []
  for path in results.files():
    data = results.read(path.stem)
    if "measures" in data:
      out.append(path.with_suffix(".html"))
      page = rendering.render("ablation", ablation_pages.page_data(data))
      out[-1].write_text(page)
  return out


def for_papers(form: str) -> list[pathlib.Path]:
  """Writes NAME.svg or NAME.pdf of all figures; returns the paths."""
  out = []
  for page in pages():
    if page.figure is not None:
      out.append(results.folder(page.name) / f"{page.name}.{form}")
      figures.draw(page.figure(results.read(page.name)), out[-1])
  return out


def main() -> None:
  """Runs the command."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  one = parser.add_mutually_exclusive_group()
  one.add_argument("--check", action="store_true", help="write nothing")
  one.add_argument(
      "--interactive",
      action="store_true",
      help="write the interactive pages of the ablations, which git ignores",
  )
  parser.add_argument(
      "--figures",
      choices=("svg", "pdf"),
      help="write all figures in this format, too, which git ignores",
  )
  flags = parser.parse_args()
  if flags.check and flags.figures:
    parser.error("--check writes nothing: omit --figures")
  if flags.figures:
    for path in for_papers(flags.figures):
      print(f"{path.name}: written")
  if flags.interactive:
    for path in interactive():
      print(f"{path.name}: written")
  found = differences(write=not flags.check)
  for name in found:
    print(f"{name}: {'differs' if flags.check else 'written'}")
  sys.exit(int(flags.check and bool(found)))


if __name__ == "__main__":
  main()
