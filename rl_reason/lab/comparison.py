"""Data, paired statistics and table of an ablation.

A seed fixes the prompts, the sampling noise and the initial model of RL, so
rows are compared seed by seed. The mean of the differences has a 95% confidence
interval by Student's t-distribution.

Shapes here: N seeds; S evaluations of a run.
"""

import json
import math
import pathlib
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from rl_reason.base import config as config_lib, json_files
from rl_reason.base.errors import ConfigError
from rl_reason.lab.jobs import Job
from rl_reason.monitoring import run_log
from rl_reason.report import charts, machine, scores

POINTS = 50  # largest number of points of a series
AXES = {"step": "steps", "tokens": "generated tokens", "flops": "FLOPs"}


def collect(
    c,
    jobs: Sequence[Job],
    measures: dict[str, Any],
    command: str,
    ended: Mapping[str, str],
    kept: Mapping[str, Any] = types.MappingProxyType({}),
) -> dict[str, Any]:
  """Gathers the data of all finished runs of an ablation.

  `ended` has the rows that successive halving has ended, and why; `kept` the
  data of runs that were made elsewhere, see below.

  Returns:
    the fields of the ablation; `ended`, if any; `environment` of the first run;
    `mixed`, its entries that differ in other runs; and `runs`: row, seed,
    seconds, `differs` (fields that differ from the reference), columns
    `evaluate` and `rl` (step, tokens, flops, then accuracy and measures).
  """
  reference = {x.seed: x.fields for x in jobs if x.row == c.reference}
  known = {(x["row"], x["seed"]) for x in kept.get("runs", ())}
  runs, environments, accuracy = [], [], ""
  for job in jobs:
    if not job.row or (job.row, job.seed) in known or not job.finished():
      continue
    lines, place = run_log.read_metrics(job.workdir), job.workdir
    first, _ = scores.before_after(lines)  # of those that have a score
    accuracy, _ = scores.headline(scores.scores(first or {}))
    columns: dict[str, dict] = {"evaluate": {"accuracy": accuracy}, "rl": {}}
    for name, measure in measures.items():
      columns[measure.stage][name] = measure.key
    spent = {kind: charts.spent(lines, kind) for kind in charts.COSTS}
    series = {
        stage: _columns(
            charts.thin(charts.points(lines, stage), POINTS), spent, names
        )
        for stage, names in columns.items()
    }
    differs = {  # {} stands for arguments that are all defaults
        k: v
        for k, v in job.fields.items()
        if v not in (reference[job.seed].get(k), {}) and k[-6:] != ".reuse"
    }
    run = dict(row=job.row, seed=job.seed, differs=differs)
    run["seconds"] = round(job.record()["seconds"], 1)
    runs.append(run | series)
    environments.append(machine.read(place))
  mixed: Sequence[str] = ()
  seeds = [*c.seeds]
  if known:
    environments = [kept["environment"], *environments]
    accuracy, mixed = kept["accuracy"], kept["mixed"]
    seeds = [*dict.fromkeys((*(x["seed"] for x in kept["runs"]), *seeds))]
    if set(seeds) == set(c.seeds):
      seeds = [*c.seeds]
    order = [(seed, row) for seed in seeds for row, *_ in c.rows]
    runs += kept["runs"]
    runs.sort(key=lambda x: order.index((x["seed"], x["row"])))
  common = environments[0] if environments else {}
  return ({"ended": dict(ended)} if ended else {}) | dict(
      title=c.title,
      question=c.question,
      seeds=seeds,
      reference=c.reference,
      common=config_lib.flat(c.common),
      rows=[list(row) for row in c.rows],
      measures={name: m._asdict() for name, m in measures.items()},
      accuracy=accuracy,
      environment=common,
      command=command,
      mixed=[
          k
          for k in common
          if k in mixed or len({x.get(k) for x in environments}) > 1
      ],
      runs=runs,
  )


def kept(c, path: pathlib.Path) -> dict[str, Any]:
  """The data of a file, with the runs of all seeds that stay part of a study.

  A run counts if its row, and the fields that all rows share, are part of the
  ablation.

  Raises:
    ConfigError: the file is of another reference or of other shared fields.
  """
  if not path.exists():
    return {}
  data = json.loads(path.read_text())
  now = json.loads(
      json.dumps(
          dict(
              reference=c.reference,
              common=config_lib.flat(c.common),
              rows=[list(row) for row in c.rows],
          )
      )
  )
  for name in ("reference", "common"):
    if data[name] != now[name]:
      raise ConfigError(
          f"--keep_data: {path}: {name} = {data[name]}, and {now[name]} in the"
          " ablation; give another --out"
      )
  rows = [row[0] for row in data["rows"] if row in now["rows"]]
  return data | dict(runs=[x for x in data["runs"] if x["row"] in rows])


def _columns(lines, spent, names) -> dict[str, list]:
  """Returns columns by name, after the steps and the costs up to each step."""
  steps = [x["step"] for x in lines]
  costs = {
      k: [_short(x.get(step), 9) for step in steps] for k, x in spent.items()
  }
  values = {k: [_short(x.get(key)) for x in lines] for k, key in names.items()}
  return {"step": steps} | costs | values


def _short(x: float | None, digits: int = 5) -> float | None:
  """Rounds to a few digits: the data are kept in the repository."""
  return None if x is None else json_files.number(f"{x:.{digits}g}")


def save(data: dict[str, Any], path: pathlib.Path) -> None:
  """Writes the data atomically, one line per run."""
  rest = {k: v for k, v in data.items() if k != "runs"}
  head = json.dumps(rest, indent=1).removesuffix("\n}")
  runs = ",\n".join(json.dumps(x) for x in data["runs"])
  path.parent.mkdir(parents=True, exist_ok=True)
  json_files.write_text(path, f'{head},\n "runs": [\n{runs}\n]}}\n')


def select(
    data: dict[str, Any], rows: Sequence[str], reference: str, at: int | None
) -> dict[str, Any]:
  """Returns the data of some rows (empty: all) with another reference.

  No evaluation after the step `at` counts; None: all do.
  """
  names = {*(rows or [row[0] for row in data["rows"]]), reference}

  def until(run):
    columns = run["evaluate"]
    count = sum(at is None or step <= at for step in columns["step"])
    return run | dict(evaluate={k: x[:count] for k, x in columns.items()})

  return data | dict(
      reference=reference,
      rows=[row for row in data["rows"] if row[0] in names],
      runs=[until(run) for run in data["runs"] if run["row"] in names],
  )


def interval(values_N: Sequence[float]) -> tuple[float, float | None]:
  """Returns the mean over seeds, and half the width of its 95% interval.

  mean +- t(0.975, N - 1) s / sqrt(N), s with N - 1 in the denominator. For a
  single seed the width is None.
  """
  mean, count = float(np.mean(values_N)), len(values_N)
  if count < 2:
    return mean, None
  return mean, float(stats.t.ppf(0.975, count - 1) * stats.sem(values_N))


def value_at(
    run: dict[str, Any], name: str, at: float, axis: str, stage: str
) -> float | None:
  """Returns a measure of a run at a position of an axis.

  Measures of evaluations are interpolated linearly, and constant outside their
  range. Measures of RL (stage 'rl', axis 'step') are means over the last
  quarter of the steps up to `at`.
  """
  pairs = zip(run[stage][axis], column(run[stage], name), strict=True)
  known = [(x, y) for x, y in pairs if x is not None and y is not None]
  if stage == "rl":
    known = [(x, y) for x, y in known if 0.75 * at < x <= at]
  if not known:
    return None
  x_S, y_S = np.array(known, float).T
  return float(y_S.mean() if stage == "rl" else np.interp(at, x_S, y_S))


def column(columns: Mapping[str, Any], name: str) -> list[float | None]:
  """A measure by step; None where it is unknown.

  Earlier versions logged a length and an entropy of 0 for a step without rows.
  """
  values, lengths = columns[name], columns.get("length")
  if name not in ("length", "entropy") or lengths is None:
    return values
  pairs = zip(values, lengths, strict=True)
  return [None if length == 0 else x for x, length in pairs]


def ends(data: dict[str, Any]) -> dict[str, float]:
  """Returns, for each axis, the last point that every training run reaches.

  An axis that is missing in a run (FLOPs of an old run) is left out.
  """
  trained = [x["evaluate"] for x in data["runs"] if x["evaluate"]["step"][-1]]
  last = {axis: [x[axis][-1] for x in trained] for axis in AXES}
  return {k: min(x, default=0) for k, x in last.items() if None not in x}


def differences(
    data: dict[str, Any],
    name: str = "accuracy",
    *,
    at: float,
    axis: str = "step",
    stage: str = "evaluate",
) -> dict[str, dict[int, float]]:
  """Returns {row: {seed: difference from the reference}} of `value_at`."""
  values = {
      (x["row"], x["seed"]): value_at(x, name, at, axis, stage)
      for x in data["runs"]
  }
  out: dict[str, dict[int, float]] = {row: {} for row, *_ in data["rows"]}
  for (row, seed), value in values.items():
    reference = values.get((data["reference"], seed))
    if value is not None and reference is not None:
      out[row][seed] = value - reference
  return out


def started(data: dict[str, Any], row: str, axis: str, end: float) -> bool:
  """Whether a row or the reference has taken an RL step before `end`."""
  return any(
      run["evaluate"][axis][0] < end
      for run in data["runs"]
      if run["row"] in (row, data["reference"])
  )


def waits(data: dict[str, Any], row: str, axis: str, end: float) -> bool:
  """Whether a row takes no RL step before `end`: its critic is pretrained."""
  runs = [run for run in data["runs"] if run["row"] == row]
  return all(run["evaluate"][axis][0] >= end for run in runs)


def table(data: dict[str, Any]) -> dict[str, Any]:
  """Returns head and rows; a cell is [text, fraction of a bar or None]."""
  where = ends(data)
  by_axis = {k: differences(data, at=x, axis=k) for k, x in where.items()}
  head = ["", "seeds", f"{data['accuracy']} at step {where['step']:g}"]
  head += [f"difference at {amount(x)} {AXES[k]}" for k, x in where.items()]
  head += [f"{k}, {x['unit']}" for k, x in data["measures"].items()]
  rows = []
  for name, *_ in data["rows"]:
    runs = [x for x in data["runs"] if x["row"] == name]
    # A ladder may be shown while rows are still to run.
    if not runs:
      about = data.get("ended", {}).get(name, "has not run")
      rows.append(dict(name=name, about=about, cells=[]))
      continue
    mean = _mean(runs, "accuracy", where["step"], "evaluate")
    cells = [[str(len(runs)), None], [f"{mean:.1%}", mean]]
    # Paired by seed: effects of the seed on all rows cancel.
    for axis, end in where.items():
      text = "the reference"
      if name != data["reference"]:
        values = [*by_axis[axis][name].values()]
        begun = started(data, name, axis, end)
        text = finding(values, begun)
        if values and begun and waits(data, name, axis, end):
          text = f"{signed(values, True)}, has not started RL"
      cells.append([text, None])
    # A run may lack other measures.
    for measure, m in data["measures"].items():
      mean = _mean(runs, measure, where["step"], m["stage"])
      text = "–" if mean is None else f"{mean:{'.1%' if m['share'] else '.3g'}}"
      by_row = differences(data, measure, at=where["step"], stage=m["stage"])
      if by_row[name] and name != data["reference"]:
        text += f" ({signed([*by_row[name].values()], m['share'])})"
      cells.append([text, None])
    seconds = [x["seconds"] for x in runs]
    cells.append([f"{min(seconds):.0f} to {max(seconds):.0f}", None])
    about = ", ".join(f"{k} {v}" for k, v in runs[0]["differs"].items())
    rows.append(dict(name=name, about=about, cells=cells))
  return dict(head=[*head, "seconds"], rows=rows)


def _mean(runs, name: str, at: float, stage: str) -> float | None:
  """Returns the mean of a measure over the runs that logged it."""
  values = [value_at(x, name, at, "step", stage) for x in runs]
  known = [x for x in values if x is not None]
  return float(np.mean(known)) if known else None


def signed(values: Sequence[float], share: bool) -> str:
  """Returns mean and interval as '+3.2 ± 1.1', in points for fractions."""
  mean, half = interval([100 * x if share else x for x in values])
  scale = half or abs(mean) or 1.0
  places = 1 if share else max(0, 1 - math.floor(math.log10(scale)))
  text = f"{mean:+.{places}f}"
  # Non-breaking spaces keep the interval with its mean.
  return text if half is None else f"{text}\xa0±\xa0{half:.{places}f}"


def finding(values: Sequence[float], begun: bool) -> str:
  """Returns '+3.2 ± 1.1, higher' for differences of accuracy over seeds."""
  if not values:
    return "–"
  if not begun:
    return "neither has started RL"
  mean, half = interval(values)
  if half is None:
    verdict = "one seed"
  elif abs(mean) <= half:
    verdict = "no significant difference"
  else:
    verdict = "higher" if mean > 0 else "lower"
  return f"{signed(values, True)}, {verdict}"


def amount(x: float) -> str:
  """Returns a number as '40' or '1.26 M'."""
  for unit, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
    if x >= unit:
      return f"{x / unit:.3g} {letter}"
  return f"{x:,.0f}"


def notes(data: dict[str, Any]) -> list[str]:
  """Returns caveats: missing runs, a single seed, mixed environments."""
  finished = {(x["row"], x["seed"]) for x in data["runs"]}
  awaited = [x for x, *_ in data["rows"] if x not in data.get("ended", ())]
  out = []
  for seed in data["seeds"]:
    rows = [row for row in awaited if (row, seed) not in finished]
    if rows:
      out.append(f"Missing, seed {seed}: {', '.join(rows)}.")
  if len({seed for _, seed in finished}) == 1:
    out.append("One seed: differences have no interval.")
  if data["mixed"]:
    out.append(f"Runs differ in: {', '.join(data['mixed'])}.")
  return out
