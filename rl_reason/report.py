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
from typing import Any

import jax

import rl_reason
from rl_reason import metrics

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
VIEWER_BYTES = 1_000_000
PAIRS_BYTES = 300_000

TIMES = {
    "timing_s/gen": "sampling",
    "timing_s/score": "scoring",
    "timing_s/old_log_prob": "log-probs",
    "timing_s/adv": "advantages",
    "timing_s/update_actor": "update",
}


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
    text = pathlib.Path("/proc/cpuinfo").read_text()
  except OSError:
    text = ""
  for line in text.splitlines():
    if line.startswith("model name"):
      return line.partition(":")[2].strip()
  return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None


def _commit(folder: pathlib.Path) -> str | None:
  """The commit of the code in a folder, '-dirty' if it was edited since."""
  # Naming a file of ours rules out a repository that only surrounds us.
  asked = (
      ["rev-parse", "HEAD:./report.py"],
      ["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"],
  )
  out = ""
  try:
    for arguments in asked:
      out = subprocess.run(
          ["git", "-C", str(folder), *arguments],
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
    return ["held-out accuracy: there is no evaluation to report"]
  old = _scores(before)
  mean, best = _headline(old)
  if after is None:
    return [
        f"held-out accuracy ({mean}) at step {before['step']}:"
        f" {_score(old[mean])} (95% interval); there is only one evaluation,"
        " hence no before and after",
        f"greedy {_score(old['greedy'])}, {best} {_score(old[best])}",
        f"response length {_length(before)}",
    ]
  new = _scores(after)

  def change(name):
    return f"{_score(old[name])} -> {_score(new[name])}"

  return [
      f"held-out accuracy ({mean}), 95% intervals: {change(mean)}"
      f" after {after['step']} steps",
      f"greedy: {change('greedy')}",
      f"{best}: {change(best)} ({_exploration(old[best], new[best])})",
      f"response length: {_length(before)} -> {_length(after)}",
  ]


def write(workdir: pathlib.Path) -> pathlib.Path:
  """Writes workdir/report.html from whatever the run has logged so far.

  Args:
    workdir: of a run, finished or not; every file in it may be missing.

  Returns:
    the path of the page.
  """
  template = pathlib.Path(__file__).with_name("report.html.in").read_text()
  page = template.replace("@DATA@", _embed(_page(workdir)))
  path = workdir / "report.html"
  temporary = path.with_name(path.name + ".tmp")
  temporary.write_text(page)
  temporary.replace(path)
  return path


def _embed(data) -> str:
  """JSON in ASCII that cannot end, or begin, anything in HTML."""
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
      notes=_notes(lines, config),
      tiles=_tiles(lines),
      scores=_score_table(lines),
      axes=axes,
      charts=charts,
      pairs=pairs,
      pairs_note=pairs_note,
      viewer=viewer,
      viewer_note=viewer_note,
      config=_flat_table(config),
      environment=_flat_table(_load(workdir / "environment.json")),
  )


def _load(path: pathlib.Path) -> dict[str, Any]:
  return json.loads(path.read_text()) if path.exists() else {}


def _flat_table(values: dict[str, Any]) -> list[tuple[str, str]]:
  return [
      (name, x if isinstance(x, str) else json.dumps(x))
      for name, x in values.items()
  ]


def _features(c: dict[str, Any]) -> list[str]:
  """The algorithm in a few words each; [] without a config."""
  if not c:
    return []
  levels = c["task.difficulties"]
  out = [f"task {c['task.name']}"]
  if levels:
    out[0] += f", difficulties {', '.join(map(str, levels))}"
  out.append(f"seed {c['seed']}")
  if not c["rl.steps"]:
    return [*out, "SFT only"]
  low, high = c["loss.clip_low"], c["loss.clip_high"]
  out += [
      f"{c['rl.steps']} steps of {c['rollout.prompts']} prompts x"
      f" {c['rollout.group_size']} responses",
      f"advantage {c['advantage.name']}",
      f"clip {low} below, {high} above"
      + (" (clip-higher)" if high > low else ""),
      f"loss {c['loss.reduction']}",
  ]
  if c["loss.dual_clip"]:
    out.append(f"dual clip {c['loss.dual_clip']}")
  if c["dynamic_sampling.enabled"]:
    out.append(
        f"dynamic sampling, at most {c['dynamic_sampling.max_rounds']} rounds"
    )
  if c["reward.overlong_buffer"] and c["reward.overlong_coef"]:
    out.append(f"overlong penalty over {c['reward.overlong_buffer']} tokens")
  if c["loss.mask_truncated"]:
    out.append("truncated responses masked")
  kl = c["loss.kl"]
  out.append("no KL" if kl == "none" else f"KL {kl} x {c['loss.kl_coef']}")
  if c["reward.shuffle"]:
    out.append("CONTROL: rewards shuffled")
  return out


def _of_stage(lines: list[dict], stage: str) -> list[dict]:
  return [line for line in lines if line["stage"] == stage]


def _before_after(lines: list[dict]) -> tuple[dict | None, dict | None]:
  """The first evaluation and the last one, None where there is none."""
  evaluations = [x for x in _of_stage(lines, "evaluate") if _scores(x)]
  if not evaluations:
    return None, None
  return evaluations[0], evaluations[-1] if len(evaluations) > 1 else None


def _scores(line: dict) -> dict[str, tuple[float, float]]:
  """{'mean@4': (accuracy, half-width of its 95% interval), ...}."""
  return {
      name.rpartition("/acc/")[2]: (value, line.get(name + "/ci95") or 0.0)
      for name, value in line.items()
      if name.startswith("val-core/")
      and not name.endswith("/ci95")
      and value is not None
  }


def _levels(line: dict) -> dict[str, float]:
  """{'2': accuracy, ...} by difficulty."""
  return {
      name.rpartition("/difficulty_")[2].partition("/")[0]: value
      for name, value in line.items()
      if "/difficulty_" in name and value is not None
  }


def _headline(scores) -> tuple[str, str]:
  """The names of the mean@k, and of the pass@k with the largest k."""
  mean = next(name for name in scores if name.startswith("mean@"))
  passes = [name for name in scores if name.startswith("pass@")]
  return mean, max(passes, key=lambda name: int(name.partition("@")[2]))


def _score(score: tuple[float, float]) -> str:
  return f"{score[0]:.1%} +- {score[1] * 100:.1f}"


def _length(line: dict) -> str:
  name = "val-aux/response_length/"
  mean, cut = line.get(name + "mean"), line.get(name + "clip_ratio")
  tokens = "unknown" if mean is None else f"{mean:.1f} tokens"
  return tokens + ("" if cut is None else f" ({cut:.1%} cut off)")


def _exploration(old: tuple[float, float], new: tuple[float, float]) -> str:
  """What a pass@k, before and after, says of exploration."""
  change, noise = new[0] - old[0], (old[1] ** 2 + new[1] ** 2) ** 0.5
  points = f"{change * 100:+.1f} points"
  if change < -noise:
    return f"{points}: exploration shrank"
  if change <= noise:
    return f"{points}: no clear change of exploration"
  return f"{points}: exploration did not shrink"


def _tiles(lines: list[dict]) -> list[dict[str, str]]:
  """The headline: a few numbers, before and after."""
  before, after = _before_after(lines)
  if before is None:
    return []
  old, new = _scores(before), _scores(after or {})
  mean, best = _headline(old)
  tiles = []
  for name, label in (
      (mean, "held-out accuracy"),
      ("greedy", "greedy accuracy"),
      (best, "at least one right"),
  ):
    first, last = old[name], new.get(name)
    tiles.append(
        dict(
            label=f"{label} ({name})" if label.split()[0] != name else label,
            before=f"{first[0]:.1%}",
            after=f"{last[0]:.1%}" if last else "",
            note="± "
            + " → ± ".join(f"{x[1] * 100:.1f}" for x in (first, last) if x),
        )
    )
  if new:
    tiles[-1]["note"] = _exploration(old[best], new[best])
  return tiles


ABOUT = {
    "mean": "accuracy of a sampled response",
    "greedy": "accuracy at temperature 0",
    "maj": "the most frequent answer is right",
    "pass": "at least one of k responses is right",
}


def _score_table(lines: list[dict]) -> dict[str, Any]:
  """Every held-out number: after the skill stage, before RL, after RL."""
  before, after = _before_after(lines)
  skill = next((x for x in _of_stage(lines, "skill") if _scores(x)), None)
  columns = {
      "after SFT of the skill": skill,
      "before RL": before,
      f"after {after['step']} RL steps" if after else "": after,
  }
  shown = {head: line for head, line in columns.items() if line}
  if not shown:
    return dict(head=[], rows=[])

  def row(name, about, read, text, factor=100):
    values = [read(line) for line in shown.values()]
    change = ""
    if before and after and None not in values[-2:]:
      last, first = values[-1], values[-2]
      change = f"{(_first(last) - _first(first)) * factor:+.1f}"
    return dict(
        name=name,
        about=about,
        cells=["–" if x is None else text(x) for x in values],
        shares=[None if x is None else _first(x) for x in values]
        if factor == 100
        else [],
        change=change,
    )

  names = list(dict.fromkeys(k for x in shown.values() for k in _scores(x)))
  rows = [
      row(
          name,
          ABOUT.get(name.partition("@")[0], ""),
          lambda line, name=name: _scores(line).get(name),
          lambda x: _score(x).replace("+-", "±"),
      )
      for name in names
  ]
  levels = dict.fromkeys(k for x in shown.values() for k in _levels(x))
  rows += [
      row(
          f"difficulty {level}",
          "accuracy of a sampled response",
          lambda line, level=level: _levels(line).get(level),
          lambda x: f"{x:.1%}",
      )
      for level in levels
  ]
  length = "val-aux/response_length/"
  rows += [
      row(
          "response length",
          "mean, in tokens",
          lambda line: line.get(length + "mean"),
          lambda x: f"{x:.1f}",
          factor=1,
      ),
      row(
          "cut off",
          "responses longer than allowed",
          lambda line: line.get(length + "clip_ratio"),
          lambda x: f"{x:.1%}",
      ),
  ]
  return dict(head=["", *shown, *(["change"] if after else [])], rows=rows)


def _first(x) -> float:
  return x[0] if isinstance(x, tuple) else x


def _notes(lines: list[dict], config: dict[str, Any]) -> list[str]:
  """What a reader should know before believing the rest."""
  rl = _of_stage(lines, "rl")
  at, steps = (rl[-1]["step"] if rl else 0), config.get("rl.steps", 0)
  before, after = _before_after(lines)
  notes = []
  if at < steps:
    notes.append(
        f"RL is at step {at} of {steps}: unfinished, or still running."
    )
  if before is None:
    notes.append("There is no evaluation around RL yet.")
  elif after is None:
    notes.append("There is only one evaluation, hence no before and after.")
  elif after["step"] < steps:
    notes.append(
        f"The last evaluation is of step {after['step']}; evaluations between"
        f" the ends use {config.get('evaluate.interim_prompts')} prompts."
    )
  for name, text in {
      "actor/update_skipped": "optimizer steps skipped: gradient not finite",
      "train/groups_missing": "groups missing from batches (padded)",
      "train/verifier_failures": "failures of the verifier in training",
  }.items():
    total = sum(line.get(name) or 0 for line in rl)
    if total:
      notes.append(f"{total:g} {text}.")
  if len(rl) > POINTS:
    notes.append(
        f"Curves show {POINTS} of {len(rl)} RL steps, evenly spaced;"
        " metrics.jsonl has them all."
    )
  return notes


def _thin(items: list, most: int = POINTS) -> list:
  """At most `most` of the items, evenly spaced, with the first and the last."""
  if len(items) <= most:
    return items
  last = len(items) - 1
  return [items[round(i * last / (most - 1))] for i in range(most)]


def _charts(lines: list[dict]) -> tuple[dict[str, Any], list[dict]]:
  """Curves as columns.

  Returns:
    axes {name: {'step': [...], 'tokens': [...]}}, and charts whose series
    refer to an axis by its name.
  """
  rl = _of_stage(lines, "rl")
  tokens = {x["step"]: x.get("tokens/generated") for x in rl} | {0: 0}
  skill, habits = (
      [x for x in _of_stage(lines, s) if "sft/loss" in x]
      for s in ("skill", "habits")
  )
  evaluations = _of_stage(lines, "evaluate")
  points = {
      "rl": [x | _shares(x) | _rest_of_time(x) for x in _thin(rl)],
      "evaluate": [x | _short(x) for x in _thin(evaluations)],
      "skill": _thin(skill),
      "habits": _thin(habits),
  }
  axes = {
      name: {"step": [x["step"] for x in points[name]]} for name in points
  }
  for name in ("rl", "evaluate"):
    axes[name]["tokens"] = [tokens.get(x) for x in axes[name]["step"]]
  done = skill[-1]["step"] if skill else 0  # habits follow the skill
  axes["habits"]["step"] = [done + x for x in axes["habits"]["step"]]

  charts = []
  for chart in _chart_list(points["evaluate"], rl):
    series = []
    for label, (axis, name) in chart["series"].items():
      y = [x.get(name) for x in points[axis]]
      half = [x.get(f"{name}/ci95") for x in points[axis]]
      if any(value is not None for value in y):
        series.append(dict(label=label, name=name, axis=axis, y=y))
      if any(half):
        series[-1]["half"] = half
    if series:
      charts.append(chart | dict(series=series))
  return axes, charts


def _shares(line: dict) -> dict[str, float]:
  """The share of prompts between all right and all wrong."""
  right, wrong = line.get("train/all_right"), line.get("train/all_wrong")
  if right is None or wrong is None:
    return {}
  return {"train/mixed": 1 - right - wrong}


def _rest_of_time(line: dict) -> dict[str, float]:
  """What a step took beyond its named parts."""
  total = line.get("timing_s/step")
  if total is None:
    return {}
  named = sum(line.get(name) or 0 for name in TIMES)
  return {"timing_s/other": max(total - named, 0)}


def _short(line: dict) -> dict[str, float]:
  """An evaluation's scores under 'mean@4', 'mean@4/ci95' and so on."""
  out = {}
  for name, (value, half) in _scores(line).items():
    out |= {name: value, f"{name}/ci95": half}
  return out


def _chart_list(evaluations: list[dict], rl: list[dict]) -> list[dict]:
  """Every chart there can be; series are {label: (axis, name)}."""
  names = [k for k in _short(evaluations[-1])] if evaluations else []
  names = [k for k in names if not k.endswith("/ci95")]
  mean, best = _headline(names) if names else ("", "")
  others = [k for k in names if k[:4] in ("gree", "maj@")] + [best]

  def rl_series(**series):
    return {k.replace("_", " "): ("rl", v) for k, v in series.items()}

  def chart(title, about, unit, series, **more):
    return dict(title=title, about=about, unit=unit, series=series, **more)

  times = dict(TIMES) | {"timing_s/other": "other"}
  return [
      chart(
          "Accuracy",
          "Right responses among all that were sampled for training, and on"
          " held-out prompts with 95% intervals.",
          "% of responses",
          rl_series(training="train/accuracy")
          | {f"held out ({mean})": ("evaluate", mean)},
          percent=True,
      ),
      chart(
          "Held out, asked in other ways",
          "Greedy, majority vote, and at least one of k right (what sampling"
          " can still find).",
          "% of prompts",
          {name: ("evaluate", name) for name in others},
          percent=True,
      ),
      chart(
          "Reward",
          "Mean over the responses that were trained on, penalties included.",
          "reward",
          rl_series(mean="critic/rewards/mean"),
      ),
      chart(
          "Response length",
          "Mean tokens of a response, the end mark included.",
          "tokens",
          rl_series(training="response_length/mean")
          | {"held out": ("evaluate", "val-aux/response_length/mean")},
      ),
      chart(
          "Cut off",
          "Responses that reached the longest length allowed; they count as"
          " wrong.",
          "% of responses",
          rl_series(training="response_length/clip_ratio")
          | {"held out": ("evaluate", "val-aux/response_length/clip_ratio")},
          percent=True,
      ),
      chart(
          "Entropy",
          "How undecided the policy is about the next token; near 0 it no"
          " longer explores.",
          "nats per token",
          rl_series(policy="actor/entropy"),
      ),
      chart(
          "Clipping",
          "Tokens whose loss was decided by the clip of the ratio, and by the"
          " lower bound of dual clip.",
          "% of tokens",
          rl_series(
              clip="actor/pg_clipfrac", dual_clip="actor/pg_clipfrac_lower"
          ),
          percent=True,
      ),
      chart(
          "Prompts by outcome",
          "Only prompts with both right and wrong responses have an"
          " advantage.",
          "% of prompts sampled",
          rl_series(
              all_right="train/all_right",
              mixed="train/mixed",
              all_wrong="train/all_wrong",
          ),
          percent=True,
          stack=True,
      ),
      chart(
          "Effective prompts",
          "Prompts of the batch that the update learns from, and those carried"
          " over or missing.",
          "prompts a step",
          rl_series(
              with_signal="train/groups_with_signal",
              kept_from_before="train/groups_kept",
              missing="train/groups_missing",
          ),
      ),
      chart(
          "Generation rounds",
          "Rounds of sampling that it took to fill a batch.",
          "rounds a step",
          rl_series(rounds="train/generation_rounds"),
      ),
      chart(
          "KL of the update",
          "How far the policy moved from the one that sampled, and from the"
          " reference if there is one.",
          "nats per token",
          rl_series(update="actor/ppo_kl", reference="actor/kl_loss"),
      ),
      chart(
          "Sampler against trainer",
          "Mean difference of their log-probs for the same tokens; rounding"
          " only, if both are right.",
          "nats per token",
          rl_series(difference="rollout/sampler_trainer_kl"),
      ),
      chart(
          "Gradient norm",
          "Before clipping, mean over the updates of a step.",
          "norm",
          rl_series(norm="actor/grad_norm"),
      ),
      chart(
          "Time of a step",
          "Cut at three times the median, since steps that compile go far"
          f" beyond. {_time_totals(rl)}",
          "seconds",
          {label: ("rl", name) for name, label in times.items()},
          stack=True,
          cap=True,
      ),
      chart(
          "SFT loss",
          "Negative log-likelihood of the demonstrations: first the skill,"
          " then the habits.",
          "nats per token",
          {
              "skill": ("skill", "sft/loss"),
              "habits": ("habits", "sft/loss"),
          },
          steps="SFT step",
      ),
  ]


def _time_totals(rl: list[dict]) -> str:
  """Where the time of RL went, in one sentence."""
  total = sum(line.get("timing_s/step") or 0 for line in rl)
  if not total:
    return ""
  parts = []
  for name, label in TIMES.items():
    part = sum(line.get(name) or 0 for line in rl)
    parts.append(f"{label} {part / total:.0%}")
  return f"All {len(rl)} steps: {total:.0f} s; {', '.join(parts)}."


def _cut(text: str) -> str:
  return text if len(text) <= LETTERS else text[:LETTERS] + " […]"


def _pairs(rows: list[dict]) -> tuple[list[dict], str]:
  """The same held-out prompts at the first and at the last evaluation."""
  rows = [row for row in rows if row["stage"] == "evaluate"]
  steps = [row["step"] for row in rows]
  last = {r["prompt"]: r for r in rows if r["step"] == max(steps)}

  def said(row):
    return dict(
        step=row["step"],
        response=_cut(row["response"]),
        correct=row["correct"],
        truncated=row["truncated"],
    )

  pairs = []
  for row in rows:
    if row["step"] == min(steps):
      after = last.get(row["prompt"], row)
      sides = [row] if after["step"] == row["step"] else [row, after]
      pairs.append(
          dict(
              prompt=_cut(row["prompt"]),
              answer=_cut(row["answer"]),
              sides=[said(side) for side in sides],
          )
      )
  kept = _fit([[pair] for pair in pairs], PAIRS_BYTES)
  note = ""
  if len(kept) < len(pairs):
    note = f"{len(kept)} of {len(pairs)} prompts; samples.jsonl has them all."
  return [pair for [pair] in kept], note


def _viewer(rows: list[dict]) -> tuple[list[dict], str]:
  """Responses token by token, grouped by stage and step."""
  groups: dict[tuple[str, int], list[dict]] = {}
  longest = 0
  for row in rows:
    longest = max(longest, len(row["tokens"]))
    one = {
        name: row.get(name) for name in ("correct", "truncated", "reward")
    } | {name: _cut(row[name]) for name in ("prompt", "answer")}
    for name in ("tokens", "logp", "advantage", "entropy"):
      one[name] = row[name][:TOKENS] if row.get(name) else None
    one["count"] = len(row["tokens"])
    groups.setdefault((row["stage"], row["step"]), []).append(one)
  kept = _fit(
      [
          [dict(stage=stage, step=step) | one for one in some]
          for (stage, step), some in groups.items()
      ],
      VIEWER_BYTES,
  )
  count, notes = sum(len(group) for group in kept), []
  if count < len(rows):
    notes.append(f"{count} of {len(rows)} responses")
  if longest > TOKENS:
    notes.append(f"the first {TOKENS} tokens of each")
  note = f"{', '.join(notes)}; samples.jsonl has them all." if notes else ""
  return [row for group in kept for row in group], note


def _fit(groups: list[list[dict]], budget: int) -> list[list[dict]]:
  """Every other group, again and again, until their JSON fits in the page.

  The first and the last group are given up last, after their own rows.
  """
  sizes = {id(row): len(_embed(row)) + 1 for group in groups for row in group}
  while sum(sizes[id(row)] for group in groups for row in group) > budget:
    if len(groups) > 2:
      groups = [groups[0], *groups[1:-1][1::2], groups[-1]]
    else:
      groups = [group[1::2] for group in groups]
  return [group for group in groups if group]
