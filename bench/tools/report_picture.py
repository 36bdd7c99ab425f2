"""The picture of a report in the README: a real run of the default command.

  python -m bench.tools.report_picture  # minutes; a finished run is reused
  python -m bench.tools.report_picture --table  # from the data; needs chromium

Trains configs/dapo.py in runs/report, keeps what the picture shows of its
report in results/report.json, and writes docs/report.png: the templates of the
package with these data, in a headless chromium.
"""

import argparse
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any

from bench import results, runs
from rl_reason.report import figures, page, rendering

NAME, CONFIG = "report", "configs/dapo.py"
PICTURE = results.ROOT / "docs" / "report.png"
WIDTH, HEIGHT, SCALE = 1180, 1860, 1.25
# What fits into a picture.
SCORES = ("mean@4", "greedy", "maj@8", "pass@8")
CHARTS = ("Accuracy", "Entropy", "Response length")
EMPTY = ("pairs", "doubtful", "run", "changed", "config", "machine")
STYLE = """<style>
  #section-pairs, #section-rejected, #section-run, #section-config,
  #section-machine, .notes, #viewer > .controls, #more, #count,
  .controls .soft { display: none }
  body { padding-top: 1rem } h2 { margin-top: 1.6rem }
</style>
<script>
  document.querySelector("#list details").ontoggle();
  document.querySelector("input[name=shade][value=entropy]").click();
  document.querySelectorAll(".token")[1].focus({preventScroll: true});
</script>
"""


def shown(workdir: pathlib.Path) -> dict[str, Any]:
  """What the picture shows of the report of a run."""
  data = page.data_of(workdir)
  out = data | dict.fromkeys(EMPTY, []) | dict(running=False, notes=[])
  out["environment"] = results.run_environment(workdir)  # not shown
  rows = [x for x in data["scores"]["rows"] if x["name"] in SCORES]
  # Columns of other prompts have no such scores.
  kept = [
      i
      for i in range(len(rows[0]["cells"]))
      if any(row["cells"][i][0] != "–" for row in rows)
  ]
  head, *columns = data["scores"]["head"]
  out["scores"] = dict(
      head=[head, *(columns[i] for i in kept)],
      rows=[row | dict(cells=[row["cells"][i] for i in kept]) for row in rows],
  )
  out["charts"] = [x for x in data["charts"] if x["title"] in CHARTS]
  mixed = [
      x
      for x in data["groups"]
      if x["stage"] == "rl"
      and 0 < sum(bool(y["correct"]) for y in x["responses"]) < 8
  ]
  # Of an early step, so that responses differ.
  out["groups"] = [max(mixed[: len(mixed) // 2], key=_even)]
  return out


def _even(group: dict[str, Any]) -> int:
  """How many responses of a group are correct, or incorrect: the fewer."""
  correct = sum(bool(x["correct"]) for x in group["responses"])
  return min(correct, len(group["responses"]) - correct)


def readme_numbers(data: dict[str, Any]) -> list[str]:
  """Returns the phrase of README's text with the numbers of the picture."""
  before, after = (x.split(" ± ")[0] for x in data["tiles"][0]["values"])
  return [f"held-out accuracy rises from {before} to {after}."]


def text(data: dict[str, Any]) -> str:
  """The page that is photographed."""
  return rendering.render("report", data) + STYLE


def digest(data: dict[str, Any]) -> str:
  """What the picture carries: a hash of data, templates and size."""
  size = f"{WIDTH} {HEIGHT} {SCALE}"
  return hashlib.sha256((text(data) + size).encode()).hexdigest()


def photograph(data: dict[str, Any], path: pathlib.Path) -> None:
  """Writes the picture, with its digest.

  Raises:
    SystemExit: chromium is not installed, or does not start; a script of the
      page fails.
  """
  browser = shutil.which("chromium") or shutil.which("google-chrome")
  if not browser:
    raise SystemExit("chromium is not installed: apt-get install chromium")
  with tempfile.TemporaryDirectory() as scratch:
    source = pathlib.Path(scratch) / "report.html"
    source.write_text(text(data), encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu"]
    command += ["--disable-quic", "--no-first-run", "--hide-scrollbars"]
    command += ["--enable-logging=stderr"]  # with the console of the page
    command += [f"--user-data-dir={scratch}/profile"]
    command += [f"--window-size={WIDTH},{HEIGHT}"]
    command += [f"--force-device-scale-factor={SCALE}"]
    command += [f"--screenshot={scratch}/report.png", source.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    taken = pathlib.Path(scratch) / "report.png"
    if not taken.exists():
      raise SystemExit(f"{browser} took no picture: {done.stderr[-400:]}")
    if "Uncaught" in done.stderr:
      raise SystemExit(f"the page fails: {done.stderr}")
    path.write_bytes(taken.read_bytes())
  figures.write_digest(path, digest(data))


def main() -> None:
  """Runs the command."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
      "--table", action="store_true", help="train nothing: from the data"
  )
  if not parser.parse_args().table:
    workdir = results.RUNS / NAME / "dapo"
    runs.make([runs.run(CONFIG, workdir, {})])
    path = results.RESULTS / f"{NAME}.json"
    path.write_text(json.dumps(shown(workdir)) + "\n")
  data = results.read(NAME)
  if not data:
    sys.exit(f"results/{NAME}.json: there are no data; omit --table")
  photograph(data, PICTURE)
  print(f"wrote {PICTURE}")


if __name__ == "__main__":
  main()
