"""Tables of the benchmarks: cases, sweeps of options, results in Markdown."""

import argparse
import dataclasses
import datetime
import itertools
import pathlib
import statistics
from collections.abc import Sequence

from bench import harness, results
from bench.harness import PEERS, Size

SWEEP = "bench_sweep"


@dataclasses.dataclass(frozen=True)
class Table:
  """One table: a task of the workers at some sizes.

  Attributes:
    name: of the module in `package`, and of the files in results/ after
      'bench_'.
    title: title of the page.
    about: what is compared, and how.
    task: task of the workers.
    cases: sizes by name.
    options: by system, the options that a sweep tries, the likely best first.
    package: of the module.
  """

  name: str
  title: str
  about: str
  task: str
  cases: dict[str, Size]
  options: dict[str, list[dict]]
  package: str = "bench.libraries"

  def options_of(self, case: str, name: str) -> list[dict]:
    """Returns the options of a system whose batches do not exceed the rows."""
    rows = self.cases[case].rows
    return [
        x
        for x in self.options[name]
        if max(x.get("batch", 1), x.get("micro", 1)) <= rows
    ]

  def key(self, case: str, name: str, flags: argparse.Namespace) -> str:
    """Returns the key of a sweep in its file."""
    return f"{self.task}/{case}/{flags.dims}/{flags.dtype}/{name}"

  def job(self, case: str, flags: argparse.Namespace, options: dict) -> dict:
    """Returns the job of a worker."""
    size = self.cases[case]
    return harness.job(self.task, size, flags.dims, flags.dtype, options)


def arguments(table: Table, argv: list[str] | None = None, dims: str = "4m"):
  """Returns the flags that all tables share; `dims` is the default shape."""
  parser = argparse.ArgumentParser(description=table.title)
  parser.add_argument("--peer", action="append", choices=PEERS, default=[])
  parser.add_argument("--case", action="append", choices=table.cases)
  parser.add_argument("--dims", choices=harness.DIMS, default=dims)
  parser.add_argument("--dtype", default="float32")
  parser.add_argument("--repeats", type=int, default=5)
  parser.add_argument("--sweep", action="store_true", help="try all options")
  parser.add_argument(
      "--environments",
      type=pathlib.Path,
      default=harness.ENVIRONMENTS,
      help="directory of the peers' virtual environments",
  )
  flags = parser.parse_args(argv)
  flags.case = flags.case or list(table.cases)
  return flags


def best(key: str, options: list[dict]) -> dict:
  """Returns the fastest options of the sweep; without one, the first."""
  runs = results.read(SWEEP).get(key, {}).get("runs", [])
  known = [x for x in runs if x["options"] in options and "died" not in x]
  if not known:
    return options[0]
  return min(known, key=lambda x: statistics.median(x["seconds"]))["options"]


def sweep(table: Table, names: list[str], flags: argparse.Namespace) -> None:
  """Times all options of each system; adds to results/bench_sweep.json."""
  result = results.read(SWEEP)
  for case, name in itertools.product(flags.case, names):
    key = table.key(case, name, flags)
    runs, before = [], results.load()
    for options in table.options_of(case, name):
      job = table.job(case, flags, options)
      print(key, options, flush=True)
      try:
        answers = harness.race({name: job}, flags.environments, 3, warmups=1)
        harness.check(job, answers)
      except RuntimeError as e:  # out of memory, or not supported
        runs.append(dict(options=options, died=str(e)))
        continue
      runs.append(dict(options=options, **answers[name]))
    result[key] = dict(environment=results.environment(before), runs=runs)
    results.write(SWEEP, result, sweep_page(result))


def sweep_page(result: dict) -> list[str]:
  """Returns the lines of results/bench_sweep.md."""
  lines = ["| | options | seconds | minimum to maximum | peak MiB |"]
  lines += ["|---|---|---|---|---|"]
  for key, entry in sorted(result.items()):
    for x in entry["runs"]:
      cells = "did not run | | "
      if "died" not in x:
        seconds = f"{statistics.median(x['seconds']):.3f} | {extremes(x)}"
        cells = f"{seconds} | {x['peak_mib']:.0f}"
      lines.append(f"| {key} | {options_text(x['options'])} | {cells} |")
  return results.document(
      "Options of the sweep",
      _sweep_finding(result),
      "How fast is each system with each of its options, at each case? Each"
      " table of this folder uses the fastest of them. Seconds are medians.",
      lines,
      made="Made by `python -m bench.libraries.TABLE --sweep`.",
  )


def _sweep_finding(result: dict) -> str:
  """How much the options matter."""
  spans = {}
  for key, entry in result.items():
    seconds = [
        (statistics.median(x["seconds"]), options_text(x["options"]))
        for x in entry["runs"]
        if "died" not in x
    ]
    if seconds:
      spans[key] = min(seconds), max(seconds)
  if not spans:
    return "No option ran."
  ratios = {key: most[0] / least[0] for key, (least, most) in spans.items()}
  key = max(ratios, key=ratios.__getitem__)
  (fast, best), (slow, worst) = spans[key]
  return (
      f"The slowest options take {min(ratios.values()):.2f} to"
      f" {ratios[key]:.2f} times the time of the fastest, by system and case,"
      f" most in `{key}`: {slow:.3f} s with {worst}, {fast:.3f} s with {best}."
  )


def options_text(options: dict) -> str:
  """Returns options as the text of a cell."""
  return ", ".join(f"{name} {value}" for name, value in options.items())


def extremes(x: dict) -> str:
  """Returns '1.234 to 2.345' seconds."""
  return f"{min(x['seconds']):.3f} to {max(x['seconds']):.3f}"


def ratios(ours: list[float], peer: list[float]) -> list[float]:
  """Returns the ratio of medians, and minimum and maximum of paired ratios."""
  pairs = [b / a for a, b in zip(ours, peer, strict=True)]
  middle = statistics.median(peer) / statistics.median(ours)
  return [middle, min(pairs), max(pairs)]


def compare(
    table: Table,
    flags: argparse.Namespace,
    warmups: int = 2,
    load: float | None = None,
) -> dict:
  """Runs the cases; returns the result as it goes to JSON.

  `load` is that of the machine before the command began; None: it begins here.
  """
  before = results.load() if load is None else load
  names = ["ours", *dict.fromkeys(flags.peer)]
  cases = {}
  for case in flags.case:
    jobs = {}
    for name in names:
      key = table.key(case, name, flags)
      options = best(key, table.options_of(case, name))
      jobs[name] = table.job(case, flags, options)
    answers = harness.race(jobs, flags.environments, flags.repeats, warmups)
    harness.check(jobs["ours"], answers)
    systems = {}
    for name in names:
      systems[name] = answers[name] | dict(options=jobs[name]["options"])
      if flags.repeats:
        seconds = answers["ours"]["seconds"], answers[name]["seconds"]
        systems[name]["ratio"] = ratios(*seconds)
    cases[case] = dict(
        size=dataclasses.asdict(table.cases[case]),
        tokens=sum(jobs["ours"]["limits"]),
        systems=systems,
    )
  command = [f"python -m {table.package}.{table.name}"]
  command += [f"--peer={name}" for name in flags.peer]
  command += [f"--dims={flags.dims}", f"--dtype={flags.dtype}"]
  return dict(
      command=" ".join(command),
      date=str(datetime.date.today()),
      environment=results.environment(before),
      peers={
          x: harness.peer_versions(x, flags.environments) for x in names[1:]
      },
      cases=cases,
  )


COLUMNS = {
    "median s": lambda case, x: f"{statistics.median(x['seconds']):.3f}",
    "minimum to maximum": lambda case, x: extremes(x),
    "tokens/s": lambda case, x: (
        f"{case['tokens'] / statistics.median(x['seconds']):,.0f}"
    ),
    "speedup of ours": lambda case, x: (
        "{:.2f} ({:.2f} to {:.2f})".format(*x["ratio"])
    ),
    "first s": lambda case, x: f"{x['first']:.1f}",
    "peak MiB": lambda case, x: f"{x['peak_mib']:,.0f}",
}


def page(
    table: Table,
    result: dict,
    columns: dict = COLUMNS,
    more: Sequence[Sequence[str]] = (),
) -> list[str]:
  """Returns lines of Markdown.

  Args:
    table: the table.
    result: result of `compare`.
    columns: functions of a case and a system, by the column's head.
    more: further parts of the page, below the table.
  """
  lines = ["| case | system | options | " + " | ".join(columns) + " |"]
  lines += ["|---" * (3 + len(columns)) + "|"]
  for name, case in result["cases"].items():
    for system, x in case["systems"].items():
      cells = [name, system, options_text(x["options"])]
      cells += [text(case, x) for text in columns.values()]
      lines.append("| " + " | ".join(cells) + " |")
  return results.document(
      table.title,
      finding(result),
      results.busy(result["environment"]),
      table.about,
      lines,
      *more,
      made=f"Made by `{result['command']}`.",
      versions=results.footer(result),
  )


def finding(result: dict) -> str:
  """The speed of this package relative to each peer; untimed, its memory."""
  timed, found = True, []
  for case, x in result["cases"].items():
    ours = x["systems"]["ours"]
    timed = "ratio" in ours
    words = [
        "{:.2f} ({:.2f} to {:.2f}) times {}'s".format(*peer["ratio"], name)
        if timed
        else f"{ours['peak_mib'] / peer['peak_mib']:.0%} of {name}'s"
        for name, peer in x["systems"].items()
        if name != "ours"
    ]
    alone = COLUMNS["median s"](x, ours) + " s" if timed else ""
    alone = alone or COLUMNS["peak MiB"](x, ours) + " MiB"
    found.append(f"{results.joined(words) if words else alone} ({case})")
  what = "speed" if timed else "peak memory"
  return f"The {what} of rl_reason is {'; '.join(found)}."


def main(table: Table) -> None:
  """Runs the measurement that the flags describe, then writes the table."""
  flags = arguments(table)
  if flags.sweep:
    sweep(table, ["ours", *flags.peer], flags)
    return
  result = compare(table, flags)
  lines = page(table, result)
  results.write(f"bench_{table.name}", result, lines)
  print("\n".join(lines))
