"""What an ablation found: its data, paired statistics, table, figure, page.

A seed fixes the problems, the noise and the model that RL starts from, so rows
are compared seed by seed. With a few seeds the mean of the differences follows
Student's t: its interval says how far chance alone could have moved it.
"""

import functools
import itertools
import json
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rl_reason import config as config_lib
from rl_reason.ablate.jobs import Job
from rl_reason.monitoring import metrics
from rl_reason.report import page

POINTS = 50  # of a series
AXES = {"step": "steps", "tokens": "generated tokens", "flops": "FLOPs"}
COLORS = {  # names as in head.html.in
    "ref": "#000000",
    **{"0": "#0b66b8", "1": "#d2570a", "2": "#12805c"},
    **{"3": "#a3418a", "4": "#8a6d00", "5": "#7b8491"},
}
DASHES = ("none", "7 3", "2 2")

# 97.5% quantiles of Student's t with 1, 2, ... 30 degrees of freedom.
T975 = [float(x) for x in """
    12.706 4.303 3.182 2.776 2.571 2.447 2.365 2.306 2.262 2.228 2.201 2.179
    2.160 2.145 2.131 2.120 2.110 2.101 2.093 2.086 2.080 2.074 2.069 2.064
    2.060 2.056 2.052 2.048 2.045 2.042
""".split()]


def collect(c, jobs: Sequence[Job], measures: dict[str, Any]) -> dict[str, Any]:
  """What the finished runs of an ablation say.

  Args:
    c: the ablation.
    jobs: all of it.
    measures: {name: ablate.Measure} that it is about.

  Returns:
    the ablation's fields; `environment` of the first run, and the names in it
    that differ in others (`mixed`); and `runs`: row, seed, seconds, `differs`
    from the reference's config, columns `evaluate` and `rl` (step, tokens,
    flops, then accuracy and measures), scores `before` and `after`.
  """
  reference = {x.seed: x.fields for x in jobs if x.row == c.reference}
  runs, environments, mean = [], [], ""
  for job in jobs:
    if not job.row or not job.finished():
      continue
    lines = metrics.read_jsonl(job.workdir / "metrics.jsonl")
    rl = [x | page.derived(x) for x in page.of_stage(lines, "rl")]
    held_out = page.thin(page.of_stage(lines, "evaluate"), POINTS)
    scores = [page.numbers(x) for x in held_out]
    steps = [x["step"] for x in held_out]
    ends = [
        {k: _short(x.value) for k, x in page.scores(held_out[i]).items()}
        for i in (0, -1)
    ]
    mean, _ = page.headline(ends[0])
    names = {"accuracy": mean, "ci95": f"{mean}/ci95"}
    names |= {k: m.key for k, m in measures.items() if m.stage == "evaluate"}
    series = {k: m.key for k, m in measures.items() if m.stage == "rl"}
    thin = page.thin(rl, POINTS)
    spent = {kind: page.spent(lines, kind) for kind in page.COSTS}
    columns = functools.partial(_columns, spent)
    differs = {
        k: v
        for k, v in job.fields.items()
        if v != reference[job.seed].get(k) and not k.endswith(".reuse")
    }
    runs.append(
        dict(
            row=job.row,
            seed=job.seed,
            seconds=round(job.record()["seconds"], 1),
            differs=differs,
            evaluate=columns(steps, scores, names),
            rl=columns([x["step"] for x in thin], thin, series),
            before=ends[0],
            after=ends[1],
        )
    )
    path = job.workdir / "environment.json"
    environments.append(json.loads(path.read_text()))
  first = environments[0] if environments else {}
  mixed = [k for k in first if len({x.get(k) for x in environments}) > 1]
  return dict(
      title=c.title,
      question=c.question,
      seeds=list(c.seeds),
      reference=c.reference,
      common=config_lib.flat(c.common),
      rows=[list(row) for row in c.rows],
      measures={name: m._asdict() for name, m in measures.items()},
      accuracy=mean,
      environment=first,
      mixed=mixed,
      runs=runs,
  )


def _columns(spent, steps, lines, names) -> dict[str, list]:
  """Some lines by name, behind their steps and what was spent by then."""
  out = {"step": steps}
  for kind, known in spent.items():
    out[kind] = [_short(known.get(step), 9) for step in steps]
  for name, key in names.items():
    out[name] = [_short(line.get(key)) for line in lines]
  return out


def _short(x: float | None, digits: int = 5) -> float | None:
  """Fewer digits: the data are kept in the repository."""
  return None if x is None else metrics.number(f"{x:.{digits}g}")


def save(data: dict[str, Any], path: pathlib.Path) -> None:
  """Writes the data, one line a run, whole or not at all."""
  rest = {k: v for k, v in data.items() if k != "runs"}
  head = json.dumps(rest, indent=1).removesuffix("\n}")
  runs = ",\n".join(json.dumps(x) for x in data["runs"])
  path.parent.mkdir(parents=True, exist_ok=True)
  page.put(path, f'{head},\n "runs": [\n{runs}\n]}}\n')


def interval(values_N: Sequence[float]) -> tuple[float, float | None]:
  """Mean over seeds, and half of its 95% interval by Student's t.

  mean +- t(0.975, N - 1) s / sqrt(N), s with N - 1 in the denominator.

  Args:
    values_N: one a seed.

  Returns:
    the half is None for a single seed. (Beyond 31 seeds it is a bit wide.)
  """
  count = len(values_N)
  mean = float(np.mean(values_N))
  if count < 2:
    return mean, None
  t = T975[min(count - 1, len(T975)) - 1]
  return mean, t * float(np.std(values_N, ddof=1)) / count**0.5


def verdict(mean: float, half: float | None) -> str:
  """What an interval of a difference says."""
  if half is None:
    return "one seed"
  if abs(mean) <= half:
    return "no difference seen"
  return "higher" if mean > 0 else "lower"


def value_at(
    run: dict[str, Any], name: str, at: float, axis: str = "step"
) -> float | None:
  """A number of the evaluations, linear between them and level outside.

  Args:
    run: of the data.
    name: 'accuracy', or a measure.
    at: where on the axis.
    axis: 'step', 'tokens' or 'flops'.
  """
  columns = run["evaluate"]
  pairs = zip(columns[axis], columns[name], strict=True)
  known = [(x, y) for x, y in pairs if x is not None and y is not None]
  if not known:
    return None
  xs, ys = np.array(known, float).T
  return float(np.interp(at, xs, ys))


def late_mean(run: dict[str, Any], name: str, at: float) -> float | None:
  """Mean of a measure over the last quarter of the RL steps up to `at`."""
  pairs = zip(run["rl"]["step"], run["rl"][name], strict=True)
  late = [y for x, y in pairs if 0.75 * at < x <= at and y is not None]
  return float(np.mean(late)) if late else None


def common_end(runs: list[dict[str, Any]], axis: str) -> float | None:
  """How far on an axis every run came that trained; None if not all say."""
  some = [x["evaluate"] for x in runs if x["evaluate"]["step"][-1]]
  ends = [x[axis][-1] for x in some]
  return None if None in ends else min(ends, default=0)


def paired(
    runs: list[dict[str, Any]],
    row: str,
    reference: str,
    read: Callable[[dict[str, Any]], float | None],
) -> dict[int, float]:
  """{seed: row - reference} over the seeds that both have a number of."""
  read_all = {(x["row"], x["seed"]): read(x) for x in runs}
  out = {}
  for (name, seed), value in read_all.items():
    other = read_all.get((reference, seed))
    if name == row and value is not None and other is not None:
      out[seed] = value - other
  return out


def differences(
    data: dict[str, Any], axis: str, end: float
) -> dict[str, dict[int, float]]:
  """{row: {seed: its accuracy - the reference's}}, both at `end`."""

  def read(run):
    return value_at(run, "accuracy", end, axis)

  runs, reference = data["runs"], data["reference"]
  return {row: paired(runs, row, reference, read) for row, *_ in data["rows"]}


def begun(data: dict[str, Any], row: str, axis: str, end: float) -> bool:
  """Whether a row or the reference has taken an RL step before `end`."""
  return any(
      run["evaluate"][axis][0] < end
      for run in data["runs"]
      if run["row"] in (row, data["reference"])
  )


def ends(data: dict[str, Any]) -> dict[str, float]:
  """Where rows are compared, by axis; FLOPs only if all runs know them."""
  found = {axis: common_end(data["runs"], axis) for axis in AXES}
  return {axis: end for axis, end in found.items() if end is not None}


def table(data: dict[str, Any]) -> dict[str, Any]:
  """Head and rows, for Markdown and for the page: [text, share of 1] a cell."""
  where = ends(data)
  head = ["", "seeds", f"{data['accuracy']} at step {where['step']:g}"]
  for axis, end in where.items():
    head.append(f"difference at {amount(end)} {AXES[axis]}")
  for name, measure in data["measures"].items():
    head.append(f"{name}, {measure['unit']}")
  by_axis = {axis: differences(data, axis, end) for axis, end in where.items()}
  rows = []
  for name, *_ in data["rows"]:
    runs = [x for x in data["runs"] if x["row"] == name]
    row = dict(name=name, about="has not run", cells=[])
    rows.append(row)
    if not runs:
      continue
    row["about"] = ", ".join(f"{k} {v}" for k, v in runs[0]["differs"].items())
    accuracy = [value_at(x, "accuracy", where["step"]) for x in runs]
    mean = float(np.mean([x for x in accuracy if x is not None]))
    cells = [[str(len(runs)), None], [f"{mean:.1%}", mean]]
    for axis in where:
      values = [*by_axis[axis][name].values()]
      started = begun(data, name, axis, where[axis])
      text = finding(values, started) if values else "–"
      text = "the reference" if name == data["reference"] else text
      cells.append([text, None])
    for measure in data["measures"]:
      cells.append([_cell(data, name, measure, where["step"]), None])
    seconds = [x["seconds"] for x in runs]
    cells.append([f"{min(seconds):.0f} to {max(seconds):.0f}", None])
    row["cells"] = cells
  return dict(head=[*head, "seconds"], rows=rows)


def _cell(data: dict[str, Any], row: str, name: str, end: float) -> str:
  """A measure of a row, and its difference to the reference."""
  measure = data["measures"][name]

  def read(run):
    late = measure["stage"] == "rl"
    return (late_mean if late else value_at)(run, name, end)

  runs = data["runs"]
  values = [read(x) for x in runs if x["row"] == row]
  known = [x for x in values if x is not None]
  if not known:
    return "–"
  text = f"{np.mean(known):{'.1%' if measure['share'] else '.3g'}}"
  change = [*paired(runs, row, data["reference"], read).values()]
  if not change or row == data["reference"]:
    return text
  return f"{text} ({signed(change, measure['share'])})"


def signed(values: Sequence[float], share: bool) -> str:
  """'+3.2 ± 1.1', in points if they are shares; '' of nothing."""
  if not values:
    return ""
  mean, half = interval([100 * x if share else x for x in values])
  scale = half or abs(mean) or 1.0
  places = 1 if share else max(0, 1 - math.floor(math.log10(scale)))
  text = f"{mean:+.{places}f}"
  # No line break beside the sign.
  return text if half is None else f"{text}\xa0±\xa0{half:.{places}f}"


def finding(values: Sequence[float], begun: bool) -> str:
  """'+3.2 ± 1.1, higher', of differences of accuracy by seed."""
  if not begun:
    return "neither has begun"
  return f"{signed(values, True)}, {verdict(*interval(values))}"


def amount(x: float) -> str:
  """'40', '1.26 M'."""
  for unit, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
    if x >= unit:
      return f"{x / unit:.3g} {letter}"
  return f"{x:,.0f}"


def notes(data: dict[str, Any]) -> list[str]:
  """What a reader should know before believing the rest."""
  there = {(x["row"], x["seed"]) for x in data["runs"]}
  out = []
  for seed in data["seeds"]:
    rows = [row for row, *_ in data["rows"] if (row, seed) not in there]
    if rows:
      out.append(f"Missing, seed {seed}: {', '.join(rows)}.")
  if len({seed for _, seed in there}) == 1:
    out.append("One seed: differences have no interval.")
  if data["mixed"]:
    out.append(f"Runs differ in: {', '.join(data['mixed'])}.")
  return out


def reading(data: dict[str, Any]) -> str:
  """How to read the table."""
  return (
      f"Accuracy is {data['accuracy']} on held-out prompts, its mean over seeds"
      f" {', '.join(map(str, data['seeds']))}. Differences to"
      f" '{data['reference']}' are paired by seed, in points, ± half a 95%"
      " interval (Student's t over seeds). 'No difference seen': the interval"
      " holds 0. Of twenty rows that do not differ, one is 'higher' or 'lower'"
      " by chance. At equal tokens and FLOPs accuracy is linear between"
      " evaluations; while its critic is pretrained, a row stays where SFT left"
      " it. Measures of training are means over the last quarter of the steps,"
      " in brackets their difference to the reference. Seconds are those of a"
      " row's own command: rows of a seed share their SFT model, and the first"
      " that needs a program compiles it."
  )


def select(
    data: dict[str, Any], rows: Sequence[str], reference: str, at: int | None
) -> dict[str, Any]:
  """The data of some rows, against another one, as of an earlier step.

  Args:
    data: of `collect`.
    rows: names to keep, besides the reference; all if empty.
    reference: name of the row to compare with.
    at: evaluations after this step are left out; None keeps all.
  """
  keep = {*(rows or [row[0] for row in data["rows"]]), reference}

  def until(run):
    lines = run["evaluate"]
    count = sum(at is None or step <= at for step in lines["step"])
    return run | dict(evaluate={k: x[:count] for k, x in lines.items()})

  return data | dict(
      reference=reference,
      rows=[row for row in data["rows"] if row[0] in keep],
      runs=[until(run) for run in data["runs"] if run["row"] in keep],
  )


def markdown_table(data: dict[str, Any]) -> str:
  """The table of the results."""

  def line(cells):
    return f"| {' | '.join(x.replace('|', '/') for x in cells)} |"

  found = table(data)
  head = [found["head"][0], "changes", *found["head"][1:]]
  rows = [
      [row["name"], row["about"], *(text for text, _ in row["cells"])]
      for row in found["rows"]
  ]
  return "\n".join([line(head), "|---" * len(head) + "|", *map(line, rows)])


def markdown(data: dict[str, Any], name: str) -> str:
  """NAME.md."""
  versions = [f"{k} {v}" for k, v in data["environment"].items() if v]
  return "\n".join(
      [
          *(f"# {data['title']}", "", data["question"], ""),
          *(markdown_table(data), ""),
          *(reading(data), "", *(f"- {x}" for x in notes(data)), ""),
          *(f"![curves]({name}.png)", "", f"Made by `{data['command']}`; data"),
          f"in `{name}.json`, with curves to point at in `{name}.html`.",
          *("", f"Versions: {', '.join(versions)}.", ""),
      ]
  )


def styles(data: dict[str, Any]) -> dict[str, tuple[str, str]]:
  """Color and dashes of each row; the reference stands out."""
  colors = [color for color in COLORS if color != "ref"]
  looks = [(color, dash) for dash in DASHES for color in colors]
  rows = [row for row, *_ in data["rows"] if row != data["reference"]]
  found = dict(zip(rows, itertools.cycle(looks), strict=False))
  return found | {data["reference"]: ("ref", "none")}


def curve(
    data: dict[str, Any], row: str, stage: str, name: str
) -> dict[str, list]:
  """Mean and extent over the seeds of a row, at the steps that all have.

  Returns:
    columns step, tokens and flops (means, too), y, low, high; {} of nothing.
  """
  points = []
  for run in data["runs"]:
    if run["row"] == row:
      columns = [run[stage][x] for x in (*AXES, name)]
      lines = zip(*columns, strict=True)
      points.append({x[0]: x for x in lines if x[-1] is not None})
  steps = sorted(set.intersection(*map(set, points))) if points else []
  if not steps:
    return {}
  x_SNC = np.array([[p[step] for p in points] for step in steps], float)
  *costs, y = x_SNC.mean(1).T
  out = dict(zip(AXES, costs, strict=True)) | dict(y=y)
  out |= dict(low=x_SNC[..., -1].min(1), high=x_SNC[..., -1].max(1))
  return {k: [_short(v, 6) for v in vs.tolist()] for k, vs in out.items()}


def figure(data: dict[str, Any], path: pathlib.Path) -> None:
  """NAME.png: accuracy against what it costs, and the differences."""
  import matplotlib

  matplotlib.use("Agg")
  import matplotlib.pyplot as plt
  from matplotlib.ticker import EngFormatter

  rows, where = [row for row, *_ in data["rows"]], ends(data)
  by_row = differences(data, "step", where["step"])
  height = 3.2 + 0.14 * len(rows)
  fig, (*curves, forest) = plt.subplots(
      1,
      len(where) + 1,
      figsize=(4 * len(where) + 5, height),
      layout="constrained",
  )
  for i, row in enumerate(rows):
    color, dash = styles(data)[row]
    style = dict(
        color=COLORS[color],
        ls="-" if dash == "none" else (0, [float(x) for x in dash.split()]),
        lw=2 if color == "ref" else 1.3,
    )
    line = curve(data, row, "evaluate", "accuracy")
    for panel, axis in zip(curves, where, strict=True):
      if len(line.get("step", ())) == 1:  # SFT only: a level
        panel.axhline(line["y"][0], **style)
      elif line:
        panel.plot(line[axis], line["y"], **style)
        band = line["low"], line["high"]
        panel.fill_between(line[axis], *band, color=style["color"], alpha=0.1)
    forest.axhline(-i, **style | dict(lw=0.8), alpha=0.4)
    values = [100 * x for x in by_row[row].values()]
    if values:
      mean, half = interval(values)
      dots = dict(color=style["color"], zorder=3)
      forest.plot(values, [-i] * len(values), ".", alpha=0.4, **dots)
      forest.errorbar(mean, -i, xerr=half, fmt="o", capsize=3, **dots)
  for panel, axis in zip(curves, where, strict=True):
    panel.set(xlabel=AXES[axis])
    if axis != "step":
      panel.xaxis.set_major_formatter(EngFormatter())
  curves[0].set(ylabel=f"accuracy ({data['accuracy']})")
  forest.set(xlabel=f"difference at step {where['step']:g}, points")
  forest.set_yticks([-i for i in range(len(rows))], rows)
  forest.axvline(0, color="black", lw=0.8)
  for panel in (*curves, forest):
    panel.grid(alpha=0.2)
    panel.spines[["top", "right"]].set_visible(False)
  fig.savefig(path, dpi=120)
  plt.close(fig)


def page_data(data: dict[str, Any]) -> dict[str, Any]:
  """What ablation.html.in shows."""
  look = styles(data)
  rows = [
      dict(label=row, color=look[row][0], dash=look[row][1])
      for row, *_ in data["rows"]
  ]
  axes, charts = _charts(data, rows)
  where = ends(data)
  return dict(
      title=data["title"],
      question=data["question"],
      notes=notes(data),
      reading=reading(data),
      reference=data["reference"],
      x=list(where),
      rows=rows,
      axes=axes,
      charts=charts,
      forest={x: _forest(data, rows, x, end) for x, end in where.items()},
      scores=table(data),
      config=page.as_text(dict(command=data["command"]) | data["common"]),
      environment=page.as_text(data["environment"]),
  )


def _charts(data, rows) -> tuple[dict[str, Any], list[dict]]:
  """Axes and charts as the run's report has them, a series a row."""
  accuracy = dict(stage="evaluate", unit="% of responses", share=True)
  axes, charts = {}, []
  for name, measure in (dict(accuracy=accuracy) | data["measures"]).items():
    stage, series = measure["stage"], []
    for row in rows:
      line = curve(data, row["label"], stage, name)
      if line:
        axis = f"{stage} {name} {row['label']}"
        axes[axis] = {x: line.pop(x) for x in AXES}
        series.append(row | line | dict(axis=axis))
    where = "held out" if stage == "evaluate" else "in training"
    chart = dict(
        title=name.capitalize(),
        about=f"{where.capitalize()}: mean over seeds, and least to most.",
        unit=measure["unit"],
        percent=measure["share"],
        wide=not charts,
        between=True,
        series=series,
    )
    if series:
      charts.append(chart)
  return axes, charts


def _forest(data, rows, axis: str, end: float) -> dict[str, Any]:
  """Differences to the reference at one end, with their intervals."""
  by_row = differences(data, axis, end)
  lines = []
  for row in rows:
    values = [*by_row[row["label"]].values()]
    if values and row["label"] != data["reference"]:
      mean, half = interval(values)
      text = finding(values, begun(data, row["label"], axis, end))
      found = dict(mean=mean, half=half, seeds=values, text=text)
      lines.append(row | found)
  return dict(where=f"at {amount(end)} {AXES[axis]}", rows=lines)


def write(data: dict[str, Any], path: pathlib.Path) -> list[pathlib.Path]:
  """Writes .md, .html and, if matplotlib is there, .png beside the data."""
  out = [path.with_suffix(x) for x in (".md", ".html", ".png")]
  page.put(out[0], markdown(data, path.stem))
  text = page.template("ablation")
  page.put(out[1], text.replace("@DATA@", page.embed(page_data(data))))
  try:
    figure(data, out[2])
  except ModuleNotFoundError as e:
    return [*out[:2], pathlib.Path(f"no {out[2]}: {e.name} is not installed")]
  return out
