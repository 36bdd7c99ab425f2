"""The self-contained HTML page of a run.

Names, numbers and model text go into the page as JSON; `report.html.in` draws
tables, curves and the token viewer from it, so that no text of a model is ever
parsed as HTML. The page stays under 2 MB however long the run was: curves and
samples are thinned, and the page says so.
"""

import json
import pathlib
import tomllib
from typing import Any

from rl_reason.monitoring import metrics
from rl_reason.report import scores as scores_lib
from rl_reason.report.scores import COSTS, of_stage, scores, thin

HERE = pathlib.Path(__file__).parent
CHARTS: list[dict[str, Any]] = tomllib.loads(
    (HERE / "charts.toml").read_text(encoding="utf-8")
)["chart"]

MAX_POINTS = 500  # of a curve
MAX_TOKENS = 1000  # of a response in the token viewer
MAX_CHARACTERS = 4000  # of a prompt, an answer or a response
VIEWER_BYTES = 1_200_000
PAIRS_BYTES = 250_000

# Fields, or prefixes of fields, that the head of the page shows.
FEATURES = (
    *("task.name", "task.difficulties", "seed", "rl.steps"),
    *("rollout.batch", "rollout.group_size", "advantage.name", "surrogate."),
    *("reduction.name", "correction.name", "kl.kind", "dynamic_sampling."),
)

MEANINGS = {
    "mean": "a sampled response is correct",
    "greedy": "the response at temperature 0 is correct",
    "maj": "the most frequent answer is correct",
    "pass": "at least one of k responses is correct",
    "truncated": "responses that reached the maximum length",
    "response length": "tokens, mean",
}

# Metrics of RL steps whose sum a reader should know.
TOTALS = {
    "actor/update_skipped": (
        "updates skipped: gradient not finite, or no token in the loss"
    ),
    "train/groups_missing": "groups missing from batches",
    "train/verifier_failures": "failures of the verifier in training",
}


def write(workdir: pathlib.Path) -> pathlib.Path:
  """Writes workdir/report.html from what the run has logged so far.

  Args:
    workdir: of a run, finished or not; every file in it may be missing.

  Returns:
    the path of the page.
  """
  path = workdir / "report.html"
  metrics.write_text(path, render("report", _data(workdir)))
  return path


def render(name: str, data: dict[str, Any]) -> str:
  """Returns the page NAME.html.in with the common head and its data."""
  page, head = (
      (HERE / f"{x}.html.in").read_text(encoding="utf-8")
      for x in (name, "head")
  )
  return page.replace("@HEAD@\n", head).replace("@DATA@", embed(data))


def embed(data) -> str:
  """Returns JSON in ASCII without any character that is special in HTML."""
  text = json.dumps(data, separators=(",", ":"))
  for letter in "<>&":
    text = text.replace(letter, f"\\u{ord(letter):04x}")
  return text


def as_text(values: dict[str, Any]) -> list[tuple[str, str]]:
  """Returns the rows of a table of names and values."""
  return [
      (name, x if isinstance(x, str) else json.dumps(x))
      for name, x in values.items()
  ]


def _data(workdir: pathlib.Path) -> dict[str, Any]:
  """Returns everything that report.html.in shows."""
  lines = metrics.read_jsonl(workdir / "metrics.jsonl")
  samples = metrics.read_jsonl(workdir / "samples.jsonl")
  config, environment = (
      json.loads(path.read_text()) if path.exists() else {}
      for path in (workdir / "config.json", workdir / "environment.json")
  )
  axes, charts = _charts(lines)
  pairs, pairs_note = _pairs(samples)
  viewer, viewer_note = _viewer(samples)
  features = {
      k: v for k, v in config.items() if k.startswith(FEATURES) and v != {}
  }
  return dict(
      title=workdir.resolve().name,
      features=[f"{name} {value}" for name, value in as_text(features)],
      notes=_notes(lines, config) + scores_lib.warnings(lines),
      tiles=_tiles(lines),
      scores=_score_table(lines),
      x=["step", *[x for x in COSTS if any(axes["rl"][x])]],
      axes=axes,
      charts=charts,
      pairs=pairs,
      pairs_note=pairs_note,
      viewer=viewer,
      viewer_note=viewer_note,
      config=as_text(config),
      environment=as_text(environment),
  )


def _tiles(lines: list[dict]) -> list[dict[str, Any]]:
  """Returns the headline: a few numbers before and after RL."""
  before, after = scores_lib.before_after(lines)
  if before is None:
    return []
  old, new = scores(before), scores(after or {})
  mean, best = scores_lib.headline(old)
  labels = {
      mean: f"held-out accuracy, {mean}",
      "greedy": "held-out accuracy, greedy",
      best: f"{best}, at least one correct",
      "response length": "tokens per response",
  }
  tiles = []
  for name in [x for x in labels if x in old]:
    values, note = [old[name].text(" ± ")], ""
    if name in new:
      values.append(new[name].text(" ± "))
      note = scores_lib.difference(old[name], new[name])
      if name == best:
        note = scores_lib.exploration(old[name], new[name])
    tiles.append(dict(label=labels[name], values=values, note=note))
  return tiles


def _score_table(lines: list[dict]) -> dict[str, Any]:
  """Returns all held-out numbers before RL, after it, and after the skill."""
  before, after = scores_lib.before_after(lines)
  skill = [x for x in of_stage(lines, "skill") if scores(x)]
  old, new = scores(before or {}), scores(after or {})
  columns: dict[str, dict] = {}
  if before:
    columns["after SFT, before RL"] = old
  if after:
    columns[f"after {after['step']} steps"] = new
    columns["change"] = {}
  if skill:
    columns["after SFT on the skill alone"] = scores(skill[-1])

  def cell(head, name):
    if head == "change" and name in old and name in new:
      return scores_lib.difference(old[name], new[name]), None
    if name not in columns[head]:
      return "–", None
    score = columns[head][name]
    return score.text(" ± "), score.value if score.share else None

  rows = [
      dict(
          name=name,
          about=MEANINGS.get(name.split("@")[0], ""),
          cells=[cell(head, name) for head in columns],
      )
      for name in dict.fromkeys(name for x in columns.values() for name in x)
  ]
  return dict(head=["", *columns], rows=rows)


def _notes(lines: list[dict], config: dict[str, Any]) -> list[str]:
  """Returns caveats: an unfinished run, skipped updates, thinned curves."""
  rl = of_stage(lines, "rl")
  at, steps = (rl[-1]["step"] if rl else 0), config.get("rl.steps", 0)
  before, after = scores_lib.before_after(lines)
  notes = []
  if config.get("reward.shuffle"):
    notes.append("Control experiment: the verdicts are shuffled.")
  if at < steps:
    notes.append(f"RL is at step {at} of {steps}: stopped or still running.")
  if before is None:
    notes.append("There is no evaluation yet.")
  elif after is None:
    notes.append("There is only one evaluation, hence no before and after.")
  elif after["step"] < steps:
    notes.append(
        f"The last evaluation is an interim one, at step {after['step']} and on"
        f" {config['evaluate.interim_prompts']} prompts."
    )
  for name, words in TOTALS.items():
    total = sum(line.get(name) or 0 for line in rl)
    if total:
      notes.append(f"{total:g} {words}.")
  if len(rl) > MAX_POINTS:
    notes.append(
        f"Curves show {MAX_POINTS} of {len(rl)} steps, evenly spaced;"
        " metrics.jsonl has all."
    )
  return notes


def _charts(lines: list[dict]) -> tuple[dict[str, Any], list[dict]]:
  """Returns the curves as columns.

  Returns:
    axes {name: {'step': [...], 'tokens': [...], 'flops': [...]}}, and those of
    CHARTS that have numbers, each series as label, name, axis (a name), y and
    perhaps half.
  """
  points = {
      stage: thin(scores_lib.points(lines, stage), MAX_POINTS)
      for stage in ("rl", "evaluate", "value")
  }
  for stage in ("skill", "habits"):
    losses = [x for x in of_stage(lines, stage) if "sft/loss" in x]
    points[stage] = thin(losses, MAX_POINTS)
  axes = {k: {"step": [x["step"] for x in v]} for k, v in points.items()}
  for kind, key in COSTS.items():
    known = scores_lib.spent(lines, kind)
    for name in ("rl", "evaluate"):
      axes[name][kind] = [known.get(x) for x in axes[name]["step"]]
    axes["value"][kind] = [x.get(key) for x in points["value"]]
  if axes["skill"]["step"]:  # the habits follow the skill
    last = axes["skill"]["step"][-1]
    axes["habits"]["step"] = [last + x for x in axes["habits"]["step"]]

  names = dict.fromkeys(k for x in points["evaluate"] for k in scores(x))
  mean, best = scores_lib.headline(names)
  maj = "".join([name for name in names if name.startswith("maj@")][:1])
  words = dict(mean=mean, best=best, maj=maj, totals=_time_totals(lines))
  charts = []
  for chart in CHARTS:
    series = []
    for color, (label, source) in enumerate(chart["series"].items()):
      axis, _, name = source.format(**words).partition(" ")
      y = [x.get(name) for x in points[axis]]
      half = [x.get(f"{name}/ci95") for x in points[axis]]
      label = label.format(**words)
      one = dict(label=label, name=name, axis=axis, color=color, y=y)
      if any(x is not None for x in half):
        one["half"] = half
      if any(x is not None for x in y):
        series.append(one)
    if series:
      about = chart["about"].format(**words)
      percent = chart["unit"].startswith("%")
      charts.append(chart | dict(about=about, percent=percent, series=series))
  return axes, charts


def _time_totals(lines: list[dict]) -> str:
  """Returns one sentence about where the time of RL went."""
  (chart,) = (x for x in CHARTS if x.get("cap"))
  sums = {
      label: sum(x.get(name) or 0 for x in of_stage(lines, "rl"))
      for label, name in {
          **{k: v.removeprefix("rl ") for k, v in chart["series"].items()},
          **{"total": "timing_s/step", "idle": "timing_s/idle"},
      }.items()
  }
  total, idle = sums.pop("total"), sums.pop("idle")
  if not total:
    return ""
  shares = ", ".join(f"{label} {x / total:.0%}" for label, x in sums.items())
  return (
      f"In total {total:.0f} s: {shares}. The device was idle for"
      f" {idle / total:.0%}, waiting for verification and the host."
  )


def _truncate(text: str) -> str:
  return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + " …"


def _pairs(rows: list[dict]) -> tuple[list[dict], str]:
  """Returns the responses to the same held-out prompts before and after RL.

  Returns:
    the pairs, and a remark if some do not fit.
  """
  rows = of_stage(rows, "evaluate")
  pairs: dict[str, dict] = {}
  for row in rows:
    names = ("step", "correct", "truncated")
    side = {k: row[k] for k in names} | {"response": _truncate(row["response"])}
    if row["step"] == rows[0]["step"]:
      prompt, answer = _truncate(row["prompt"]), _truncate(row["answer"])
      pairs[row["prompt"]] = dict(prompt=prompt, answer=answer, sides=[side])
    elif row["step"] == rows[-1]["step"] and row["prompt"] in pairs:
      pairs[row["prompt"]]["sides"][1:] = [side]
  shown = _fit(list(pairs.values()), PAIRS_BYTES)
  note = f"{len(shown)} of {len(pairs)} prompts; samples.jsonl has all."
  return shown, note if len(shown) < len(pairs) else ""


def _viewer(rows: list[dict]) -> tuple[list[dict], str]:
  """Returns responses token by token, and a remark if some do not fit."""
  responses = []
  for row in rows:
    names = ("stage", "step", "correct", "truncated", "reward")
    one = {name: row.get(name) for name in names}
    one |= {name: _truncate(row[name]) for name in ("prompt", "answer")}
    for name in ("tokens", "logp", "advantage", "entropy"):
      one[name] = row[name][:MAX_TOKENS] if row.get(name) else None
    responses.append(one | dict(length=len(row["tokens"])))
  shown, left_out = _fit(responses, VIEWER_BYTES), []
  if len(shown) < len(rows):
    left_out.append(f"{len(shown)} of {len(rows)} responses")
  if any(row["length"] > MAX_TOKENS for row in shown):
    left_out.append(f"at most {MAX_TOKENS} tokens of each")
  note = f"{', '.join(left_out)}; samples.jsonl has all."
  return shown, note if left_out else ""


def _fit(rows: list[dict], budget: int) -> list[dict]:
  """Drops every other row, repeatedly, until the JSON is within the budget.

  The last row is dropped last.
  """
  sizes = [len(embed(row)) + 1 for row in rows]
  while sum(sizes) > budget:
    half = slice(1 - len(rows) % 2, None, 2) if rows[1:] else slice(0)
    rows, sizes = rows[half], sizes[half]
  return rows
