"""One self-contained page about a run, and the last lines on the screen.

Names, numbers and model text go into the page as JSON; `report.html.in` makes
tables, curves and the token viewer of it, so that nothing that a model wrote
is ever parsed as HTML. The page stays under 2 MB however long the run was:
curves and samples are thinned, and the page says so.
"""

import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
from typing import Any, NamedTuple

import jax

import rl_reason
from rl_reason.monitoring import alarms, metrics
from rl_reason.report.charts import CHARTS, TIMES

PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "grain",
    "transformers",
    "numpy",
)

POINTS = 500  # of a curve
TOKENS = 1000  # of a response in the token viewer
LETTERS = 4000  # of a prompt, an answer or a response
VIEWER_BYTES = 1_200_000
PAIRS_BYTES = 250_000

COSTS = {"tokens": "tokens/generated", "flops": "flops/total"}

MEANINGS = {
    "mean": "a sampled response is right",
    "greedy": "the response at temperature 0 is right",
    "maj": "the most frequent answer is right",
    "pass": "at least one of k responses is right",
    "cut off": "responses longer than allowed",
    "response length": "tokens, mean",
}


class Score(NamedTuple):
  """A number of an evaluation."""

  value: float
  half: float | None = None  # half-width of its 95% interval
  share: bool = True  # of 1; otherwise tokens

  def text(self, plus_minus: str = " +- ") -> str:
    """'83.5% +- 1.7'."""
    if not self.share:
      return f"{self.value:.1f}"
    if self.half is None:
      return f"{self.value:.1%}"
    return f"{self.value:.1%}{plus_minus}{self.half * 100:.1f}"


def environment() -> dict[str, Any]:
  """Where a run runs, for environment.json."""
  devices = jax.devices()
  return {
      "python": platform.python_version(),
      "platform": platform.platform(),
      "cpu model": _cpu_model(),
      "cpu count": os.cpu_count(),
      "backend": jax.default_backend(),
      "device kind": devices[0].device_kind,
      "device count": len(devices),
      "process count": jax.process_count(),
      "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
      "rl_reason": rl_reason.__version__,
      "git commit": _commit(pathlib.Path(__file__).parent),
  } | {name: _version(name) for name in PACKAGES}


def _cpu_model() -> str:
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
  except OSError:
    lines = []
  names = [x.partition(":")[2] for x in lines if x.startswith("model name")]
  return names[0].strip() if names else platform.machine()


def _version(package: str) -> str | None:
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None


def _commit(folder: pathlib.Path) -> str | None:
  """The commit of the code in a folder, '-dirty' if it was edited since."""
  out = None
  for command in (
      # Rules out a repository that surrounds us, but does not hold us.
      ["rev-parse", "HEAD:./__init__.py"],
      ["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"],
  ):
    try:
      out = subprocess.run(
          ["git", "--no-optional-locks", "-C", str(folder), *command],
          capture_output=True,
          check=True,
          text=True,
          timeout=5,
      ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
      return None
  return out


def summary(workdir: pathlib.Path) -> list[str]:
  """What the run came to, in a few lines of plain text."""
  lines = metrics.read_jsonl(workdir / "metrics.jsonl")
  before, after = _before_after(lines)
  if before is None:
    return ["held-out accuracy: no evaluation yet, nothing to report"]
  old, new = scores(before), scores(after or {})
  mean, best = headline(old)
  out = [
      f"held-out accuracy ({mean}, 95% intervals): {_change(old, new, mean)}",
      f"greedy: {_change(old, new, 'greedy')}",
      f"{best}: {_change(old, new, best)}",
      f"response length in tokens: {_change(old, new, 'response length')}",
  ]
  if after is None:
    out[0] += f" at step {before['step']}"
    return [*out, "only one evaluation, hence no before and after"]
  out[0] += f" after {after['step']} steps"
  out[2] += f" ({_exploration(old.get(best), new.get(best))})"
  return out + _warnings(lines)


def write(workdir: pathlib.Path) -> pathlib.Path:
  """Writes workdir/report.html from whatever the run has logged so far.

  Args:
    workdir: of a run, finished or not; every file in it may be missing.

  Returns:
    the path of the page.
  """
  path = workdir / "report.html"
  put(path, template("report").replace("@DATA@", embed(_page(workdir))))
  return path


def template(name: str) -> str:
  """The page NAME.html.in with the head of all pages, its @DATA@ to fill."""
  here = pathlib.Path(__file__)
  page, head = (
      here.with_name(f"{x}.html.in").read_text(encoding="utf-8")
      for x in (name, "head")
  )
  return page.replace("@HEAD@\n", head)


def put(path: pathlib.Path, text: str) -> None:
  """Writes a whole file or nothing."""
  temporary = path.with_name(path.name + ".tmp")
  temporary.write_text(text, encoding="utf-8")
  temporary.replace(path)


def embed(data) -> str:
  """JSON in ASCII that neither ends nor begins anything in HTML."""
  text = json.dumps(data, separators=(",", ":"))
  for letter in "<>&":
    text = text.replace(letter, f"\\u{ord(letter):04x}")
  return text


def _page(workdir: pathlib.Path) -> dict[str, Any]:
  """All that the template shows."""
  lines = metrics.read_jsonl(workdir / "metrics.jsonl")
  rows = metrics.read_jsonl(workdir / "samples.jsonl")
  config = _load(workdir / "config.json")
  axes, charts = _charts(lines)
  pairs, pairs_note = _pairs(rows)
  viewer, viewer_note = _viewer(rows)
  return dict(
      title=workdir.resolve().name,
      features=_features(config),
      notes=_notes(lines, config) + _warnings(lines),
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
      environment=as_text(_load(workdir / "environment.json")),
  )


def _warnings(lines: list[dict]) -> list[str]:
  return [f"warning: {line}" for line in alarms.alarms(lines)]


def _load(path: pathlib.Path) -> dict[str, Any]:
  return json.loads(path.read_text()) if path.exists() else {}


def as_text(values: dict[str, Any]) -> list[tuple[str, str]]:
  """Names and values for a table."""
  return [
      (name, x if isinstance(x, str) else json.dumps(x))
      for name, x in values.items()
  ]


def _features(c: dict[str, Any]) -> list[str]:
  """The task and the algorithm, a few words each; [] without a config."""
  if not c:
    return []
  levels = ", ".join(str(x) for x in c["task.difficulties"]) or "all"
  out = [f"{c['task.name']}, difficulties {levels}", f"seed {c['seed']}"]
  if not c["rl.steps"]:
    return [*out, "SFT only"]
  low, high = c["loss.clip_low"], c["loss.clip_high"]
  kl = f"KL {c['kl.kind']} × {c['kl.coef']:g} in the {c['kl.place']}"
  rounds, buffer = c["dynamic_sampling.max_rounds"], c["reward.overlong_buffer"]
  group = c["rollout.group_size"]
  size = f"{c['rollout.batch'] // group} prompts × {group} responses"
  told = {
      f"{c['rl.steps']} steps of {size}": True,
      f"advantage {c['advantage.name']}": True,
      f"loss {c['loss.surrogate']}, {c['loss.reduction']}": True,
      f"ratio clipped to {1 - low:g} … {1 + high:g}": True,
      "clip-higher": high > low,
      f"dual clip {c['loss.dual_clip']:g}": c["loss.dual_clip"],
      f"dynamic sampling, {rounds} rounds at most": (
          c["dynamic_sampling.enabled"]
      ),
      f"overlong penalty over {buffer} tokens": (
          buffer and c["reward.overlong_coef"]
      ),
      "cut-off responses masked": c["loss.mask_truncated"],
      "no KL" if c["kl.kind"] == "none" else kl: True,
      "CONTROL: verdicts shuffled": c["reward.shuffle"],
  }
  return out + [words for words, holds in told.items() if holds]


def of_stage(lines: list[dict], stage: str) -> list[dict]:
  """The lines of one stage, in order."""
  return [line for line in lines if line["stage"] == stage]


def scores(line: dict) -> dict[str, Score]:
  """An evaluation under short names: 'mean@4', 'greedy', 'difficulty 2', ...

  The first of several sets has these; 'aime25 mean@4' is of another one.
  """
  out = {}
  sets = [x.split("/")[1] for x in line if x.startswith("val-core/")]
  others = {x for x in sets if x != sets[0]}
  for name, value in line.items():
    parts = name.split("/")
    if value is None or parts[-1] == "ci95":
      continue
    of = f"{parts[1]} " if others & {*parts[1:2]} else ""
    if parts[0] == "val-core":
      out[of + parts[-1]] = Score(value, line.get(f"{name}/ci95"))
    elif "/difficulty_" in name:
      out[of + parts[-3].replace("_", " ")] = Score(value)
    elif name == "val-aux/response_length/mean":
      out["response length"] = Score(value, share=False)
    elif name == "val-aux/response_length/clip_ratio":
      out["cut off"] = Score(value)
  return out


def headline(names) -> tuple[str, str]:
  """Of names of scores the mean@k, and the pass@k with the largest k."""
  mean = [name for name in names if name.startswith("mean@")]
  best = [name for name in names if name.startswith("pass@")]
  best.sort(key=lambda name: int(name[5:]))
  return "".join(mean[:1]), "".join(best[-1:]) or "pass@k"


def _before_after(lines: list[dict]) -> tuple[dict | None, dict | None]:
  """The first evaluation and the last one, None where there is none."""
  found = [x for x in of_stage(lines, "evaluate") if headline(scores(x))[0]]
  return found[0] if found else None, found[-1] if found[1:] else None


def _change(old: dict[str, Score], new: dict[str, Score], name: str) -> str:
  """'7.8% +- 0.9 -> 83.5% +- 1.7'; only the former if `new` is empty."""
  sides = [old, new] if new else [old]
  return " -> ".join(x[name].text() if name in x else "unknown" for x in sides)


def _exploration(old: Score | None, new: Score | None) -> str:
  """What a pass@k, before and after, says of exploration."""
  if old is None or new is None:
    return "exploration: unknown"
  change = new.value - old.value
  verdict = "exploration shrank" if change < 0 else "exploration did not shrink"
  if abs(change) <= ((old.half or 0) ** 2 + (new.half or 0) ** 2) ** 0.5:
    verdict = "no clear change of exploration"
  return f"{_difference(old, new)}: {verdict}"


def _difference(old: Score, new: Score) -> str:
  """'+75.7 points'."""
  change = new.value - old.value
  if old.share:
    return f"{change * 100:+.1f} points"
  return f"{change:+.1f} tokens"


def _tiles(lines: list[dict]) -> list[dict[str, Any]]:
  """The headline: a few numbers, before and after."""
  before, after = _before_after(lines)
  if before is None:
    return []
  old, new = scores(before), scores(after or {})
  mean, best = headline(old)
  tiles = []
  for name, label in {
      mean: f"held-out accuracy, {mean}",
      "greedy": "held-out accuracy, greedy",
      best: f"{best}, at least one is right",
      "response length": "tokens of a response",
  }.items():
    if name in old:
      sides = [x[name] for x in (old, new) if name in x]
      halves = [f"± {x.half * 100:.1f}" for x in sides if x.half is not None]
      note = " → ".join(halves) + (" (95%)" if halves else "")
      if name == best and new:
        note = _exploration(old[best], new.get(best))
      values = [x._replace(half=None).text() for x in sides]
      tiles.append(dict(label=label, values=values, note=note))
  return tiles


def _score_table(lines: list[dict]) -> dict[str, Any]:
  """Every held-out number: before RL, after it, and after the skill stage."""
  before, after = _before_after(lines)
  skill = [x for x in of_stage(lines, "skill") if scores(x)]
  columns = {}
  if before:
    columns["after SFT, before RL"] = scores(before)
  if after:
    columns[f"after {after['step']} steps"] = scores(after)
    columns["change"] = {}
  if skill:
    columns["after SFT of the skill alone"] = scores(skill[-1])

  def cell(head, name):
    if head == "change":
      old, new = scores(before).get(name), scores(after).get(name)
      return _difference(old, new) if old and new else "–", None
    score = columns[head].get(name)
    if score is None:
      return "–", None
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
  """What a reader should know before believing the rest."""
  rl = of_stage(lines, "rl")
  at, steps = (rl[-1]["step"] if rl else 0), config.get("rl.steps", 0)
  before, after = _before_after(lines)
  notes = []
  if at < steps:
    notes.append(f"RL is at step {at} of {steps}: cut short, or still running.")
  if before is None:
    notes.append("There is no evaluation yet.")
  elif after is None:
    notes.append("There is only one evaluation, hence no before and after.")
  elif after["step"] < steps:
    notes.append(
        f"The last evaluation is an interim one, at step {after['step']} and on"
        f" {config['evaluate.interim_prompts']} prompts."
    )
  for name, words in {
      "actor/update_skipped": (
          "updates skipped: gradient not finite, or no token that counts"
      ),
      "train/groups_missing": "prompts missing from batches",
      "train/verifier_failures": "failures of the verifier in training",
  }.items():
    total = sum(line.get(name) or 0 for line in rl)
    if total:
      notes.append(f"{total:g} {words}.")
  if len(rl) > POINTS:
    notes.append(
        f"Curves show {POINTS} of {len(rl)} steps, evenly spaced;"
        " metrics.jsonl has them all."
    )
  return notes


def thin(items: list, points: int = POINTS) -> list:
  """At most `points` of the items, evenly spaced, both ends included."""
  last = len(items) - 1
  if last < points:
    return items
  return [items[round(i * last / (points - 1))] for i in range(points)]


def spent(lines: list[dict], kind: str) -> dict[int, float]:
  """What a run had spent by each step of RL; {} if it did not log that.

  Step 0 may have a cost, too: value pretraining.

  Args:
    lines: of all stages.
    kind: of COSTS.
  """
  rl = of_stage(lines, "rl")
  known = {
      x["step"]: x[COSTS[kind]]
      for x in [*rl, *of_stage(lines, "evaluate")]
      if x.get(COSTS[kind]) is not None
  }
  return {0: 0} | known if known or not rl else {}


def _charts(lines: list[dict]) -> tuple[dict[str, Any], list[dict]]:
  """Curves as columns.

  Returns:
    axes {name: {'step': [...], 'tokens': [...], 'flops': [...]}}, and those of
    CHARTS that have numbers, each series as label, name, axis (a name), y and
    perhaps half.
  """
  rl = of_stage(lines, "rl")
  points = {
      "rl": [x | derived(x) for x in thin(rl)],
      "evaluate": [x | numbers(x) for x in thin(of_stage(lines, "evaluate"))],
      "value": thin(of_stage(lines, "value")),
  }
  for stage in ("skill", "habits"):
    some = [x for x in of_stage(lines, stage) if "sft/loss" in x]
    points[stage] = thin(some)
  axes = {k: {"step": [x["step"] for x in v]} for k, v in points.items()}
  for kind in COSTS:
    known = spent(lines, kind)
    for name in ("rl", "evaluate"):
      axes[name][kind] = [known.get(x) for x in axes[name]["step"]]
    axes["value"][kind] = [x.get(COSTS[kind]) for x in points["value"]]
  if axes["skill"]["step"]:  # habits follow the skill
    done = axes["skill"]["step"][-1]
    axes["habits"]["step"] = [done + x for x in axes["habits"]["step"]]

  names = dict.fromkeys(k for x in points["evaluate"] for k in scores(x))
  mean, best = headline(names)
  maj = "".join([name for name in names if name.startswith("maj@")][:1])
  fill = dict(mean=mean, best=best, maj=maj, totals=_time_totals(rl))
  charts = []
  for chart in CHARTS:
    series = []
    for color, (label, source) in enumerate(chart["series"].items()):
      axis, _, name = source.format(**fill).partition(" ")
      y = [x.get(name) for x in points[axis]]
      half = [x.get(f"{name}/ci95") for x in points[axis]]
      label = label.format(**fill)
      one = dict(label=label, name=name, axis=axis, color=color, y=y)
      if any(x is not None for x in half):
        one["half"] = half
      if any(x is not None for x in y):
        series.append(one)
    if series:
      about = chart["about"].format(**fill)
      charts.append(chart | dict(about=about, series=series))
  return axes, charts


def numbers(line: dict) -> dict[str, float | None]:
  """The scores of an evaluation as {'mean@4': ..., 'mean@4/ci95': ...}."""
  out = {}
  for name, score in scores(line).items():
    out |= {name: score.value, f"{name}/ci95": score.half}
  return out


def derived(line: dict) -> dict[str, float | None]:
  """What is left of an RL line's prompts."""
  out = {}
  right, wrong = line.get("train/all_right"), line.get("train/all_wrong")
  if right is not None and wrong is not None:
    out["train/mixed"] = metrics.number(1 - right - wrong)
  return out


def _time_totals(rl: list[dict]) -> str:
  """Where the time of RL went, in one sentence."""
  total = sum(line.get("timing_s/step") or 0 for line in rl)
  if not total:
    return ""
  parts = {
      label: sum(line.get(name) or 0 for line in rl) / total
      for label, name in TIMES.items()
  }
  shares = ", ".join(f"{label} {part:.0%}" for label, part in parts.items())
  idle = sum(line.get("timing_s/idle") or 0 for line in rl) / total
  return (
      f"In all {total:.0f} s: {shares}. The device had nothing to do for"
      f" {idle:.0%}: scoring, and work of the host."
  )


def _cut(text: str) -> str:
  return text if len(text) <= LETTERS else text[:LETTERS] + " …"


def _pairs(rows: list[dict]) -> tuple[list[dict], str]:
  """The same held-out prompts at the first and at the last evaluation.

  Returns:
    the pairs, and a remark if some had to be left out.
  """
  rows = of_stage(rows, "evaluate")
  ends = [rows[0]["step"], rows[-1]["step"]] if rows else []
  last = {row["prompt"]: row for row in rows if row["step"] == ends[1]}
  pairs = []
  for row in rows:
    if row["step"] == ends[0]:
      after = last.get(row["prompt"])
      sides = [row] if ends[0] == ends[1] or after is None else [row, after]
      names = ("step", "correct", "truncated")
      pairs.append(
          dict(
              prompt=_cut(row["prompt"]),
              answer=_cut(row["answer"]),
              sides=[
                  {k: x[k] for k in names} | {"response": _cut(x["response"])}
                  for x in sides
              ],
          )
      )
  kept = _fit([[pair] for pair in pairs], PAIRS_BYTES)
  note = f"{len(kept)} of {len(pairs)} prompts; samples.jsonl has them all."
  return [pair for [pair] in kept], note if len(kept) < len(pairs) else ""


def _viewer(rows: list[dict]) -> tuple[list[dict], str]:
  """Responses token by token, and a remark if some had to be left out."""
  groups: dict[tuple[str, int], list[dict]] = {}
  for row in rows:
    names = ("stage", "step", "correct", "truncated", "reward")
    one = {name: row.get(name) for name in names}
    one |= {name: _cut(row[name]) for name in ("prompt", "answer")}
    for name in ("tokens", "logp", "advantage", "entropy"):
      one[name] = row[name][:TOKENS] if row.get(name) else None
    one["length"] = len(row["tokens"])
    groups.setdefault((row["stage"], row["step"]), []).append(one)
  fit = _fit(list(groups.values()), VIEWER_BYTES)
  kept = [row for group in fit for row in group]
  left_out = []
  if len(kept) < len(rows):
    left_out.append(f"{len(kept)} of {len(rows)} responses")
  if any(row["length"] > TOKENS for row in kept):
    left_out.append(f"at most {TOKENS} tokens of each")
  note = f"{', '.join(left_out)}; samples.jsonl has them all."
  return kept, note if left_out else ""


def _fit(groups: list[list[dict]], budget: int) -> list[list[dict]]:
  """Drops every other group, again and again, until the JSON is in budget.

  The first and the last group go last, and then row by row.
  """
  sizes = {id(row): len(embed(row)) + 1 for group in groups for row in group}
  while sum(sizes[id(row)] for group in groups for row in group) > budget:
    if len(groups) > 2:
      groups = [groups[0], *groups[1:-1][1::2], groups[-1]]
    else:
      groups = [group[1::2] for group in groups]
  return [group for group in groups if group]
