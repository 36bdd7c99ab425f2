"""Held-out scores of a run, read from its metrics.jsonl."""

import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rl_reason import features
from rl_reason.monitoring import alerts, run_log

VALIDATION = "validation"  # as `tasks.VALIDATION`: no score of a run
REWARD = "reward "  # before the name of a reward function or a reward model
# Metrics of a set besides its scores: label, whether it is a share, and unit.
_MEASURES: dict[str, tuple[str, bool, str]] = {
    "response_length/mean": ("response length", False, "tokens"),
    "response_length/clip_ratio": ("truncated", True, ""),
    "turns/mean": ("turns", False, "turns"),
    "returns/mean": ("sum of rewards", False, "reward"),
}
MEANINGS = {
    "mean": "a sampled response is correct",
    "greedy": "the response at temperature 0 is correct",
    "maj": "the most frequent answer is correct",
    "pass": "at least one of k responses is correct",
    "pass@1": "a response is correct, mean of all samples",
    "bon": "of k responses the one with the highest score is correct",
    "truncated": "responses that reached the maximum length",
    "response length": "tokens, mean",
    "turns": "of a trajectory in an environment, mean",
    "sum of rewards": "over the turns of a trajectory, mean",
}


class Score(NamedTuple):
  """A number of an evaluation."""

  value: float
  half: float | None = None  # half-width of its 95% interval
  share: bool = True  # a fraction of 1; otherwise a number of `unit`
  unit: str = "tokens"

  def text(self, plus_minus: str = " +- ") -> str:
    """For instance '83.5% +- 1.7'."""
    if self.unit == "reward":
      half = "" if self.half is None else f"{plus_minus}{self.half:.2g}"
      return f"{self.value:.4g}{half}"
    if not self.share:
      half = "" if self.half is None else f"{plus_minus}{self.half:.1f}"
      return f"{self.value:.1f}{half}"
    if self.half is None:
      return f"{self.value:.1%}"
    return f"{self.value:.1%}{plus_minus}{self.half * 100:.1f}"


def of_stage(lines: list[dict], stage: str) -> list[dict]:
  """The lines of one stage, in order."""
  return [line for line in lines if line["stage"] == stage]


def rewarded(line: Mapping[str, Any], of_set: str) -> bool:
  """Whether the score of a set is a reward, and not an accuracy."""
  return f"val-core/{of_set}/reward/greedy" in line


def by_set(line: dict) -> dict[str, dict[str, Score]]:
  """The scores of an evaluation by set, held-out sets before validation sets.

  Names of scores: 'mean@4', 'greedy', 'maj@8', 'pass@8', 'bon@8:judge',
  'reward judge', 'difficulty 2', 'response length', 'truncated', 'turns', 'sum
  of rewards'. Earlier versions logged the last four over all sets together:
  they count for the first set.
  """
  sets = dict.fromkeys(x.split("/")[1] for x in line if x[:9] == "val-core/")
  out: dict[str, dict[str, Score]] = {
      name: {} for name in sorted(sets, key=lambda x: x.startswith(VALIDATION))
  }
  first = next(iter(out), "")
  pooled: dict[str, Score] = {}
  of_features = _of_features()
  for name, value in line.items():
    room, *parts = name.split("/")
    # An interval is read together with its mean.
    if value is None or parts[-1:] == ["ci95"]:
      continue
    half = line.get(f"{name}/ci95")
    if room == "val-core":
      out[parts[0]][parts[-1]] = _score(parts[1], value, half)
    elif room != "val-aux":
      continue
    elif "/".join(parts) in _MEASURES:
      label, share, unit = _MEASURES["/".join(parts)]
      pooled[label] = Score(value, half, share, unit)
    elif "/".join(parts[1:]) in _MEASURES and parts[0] in out:
      label, share, unit = _MEASURES["/".join(parts[1:])]
      out[parts[0]][label] = Score(value, half, share, unit)
    elif "/".join(parts[1:]) in of_features and parts[0] in out:
      label, _ = of_features["/".join(parts[1:])]
      unit = "reward" if rewarded(line, parts[0]) else ""
      out[parts[0]][label] = Score(value, half, not unit, unit)
    elif parts[1:2] == ["reward"] and parts[-1] == "mean" and parts[0] in out:
      label = REWARD + "/".join(parts[2:-1])
      out[parts[0]][label] = Score(value, half, False, "reward")
    # Difficulties of games are also measured in turns.
    elif parts[1:] and parts[1].startswith("difficulty_") and parts[0] in out:
      level = parts[1].replace("_", " ")
      if parts[2] == "turns":
        turns = Score(value, None, False, "turns")
        out[parts[0]][f"{level}, turns"] = turns
      else:
        out[parts[0]][level] = _score(parts[2], value)
  if first:
    out[first] |= {k: x for k, x in pooled.items() if k not in out[first]}
  return out


def scores(line: dict) -> dict[str, Score]:
  """The scores of an evaluation in one dict, as `by_set`.

  Names are for the first held-out set. Names for other sets have a prefix, as
  in 'aime25 mean@4' and 'validation mean@4'.
  """
  found = by_set(line)
  held_out = [name for name in found if not name.startswith(VALIDATION)][:1]
  return {
      label if name in held_out else f"{name} {label}": score
      for name, of_set in found.items()
      for label, score in of_set.items()
  }


def _score(measure: str, value: float, half: float | None = None) -> Score:
  """A score of accuracy, or of the reward without a verifier."""
  if measure == "reward":
    return Score(value, half, share=False, unit="reward")
  return Score(value, half)


def _of_features() -> dict[str, tuple[str, str]]:
  """Measures of features: the name in the report, and the meaning."""
  found = (x for one in features.declared() for x in one.measures.items())
  return dict(found)


def meaning(name: str) -> str:
  """What a score measures, in a few words; '' for a difficulty."""
  if name.startswith(REWARD):
    return "of sampled responses, without its weight, mean"
  known = MEANINGS | dict(_of_features().values())
  return known.get(name, known.get(name.split("@")[0], ""))


def shown(names: Iterable[str]) -> list[str]:
  """The names in order; of pass@k and bon@k, the smallest and largest k."""
  names, hidden = list(names), set()
  found = [re.fullmatch(r"(pass|bon)@(\d+)(.*)", name) for name in names]
  series: dict[tuple[str, str], dict[int, str]] = {}
  for x in filter(None, found):
    series.setdefault((x[1], x[3]), {})[int(x[2])] = x[0]
  for of_k in series.values():
    hidden |= {of_k[k] for k in sorted(of_k)[1:-1]}
  return [name for name in names if name not in hidden]


def headline(names) -> tuple[str, str]:
  """The mean@k, and the pass@k of the largest k, among names of scores."""
  mean = [name for name in names if name.startswith("mean@")]
  best = [name for name in names if name.startswith("pass@")]
  best.sort(key=lambda name: int(name[5:]))
  return "".join(mean[:1]), "".join(best[-1:]) or "pass@k"


def before_after(lines: list[dict]) -> tuple[dict | None, dict | None]:
  """The first and the last evaluation; None if there is none."""
  found = [x for x in of_stage(lines, "evaluate") if headline(scores(x))[0]]
  return found[0] if found else None, found[-1] if found[1:] else None


def difference(old: Score, new: Score) -> str:
  """For instance '+75.7 points' or '+3.0 tokens'."""
  change = new.value - old.value
  if old.share:
    return f"{change * 100:+.1f} points"
  if old.unit == "reward":
    return f"{change:+.4g}"
  return f"{change:+.1f} {old.unit}"


def coverage(old: Score | None, new: Score | None) -> str:
  """The change of pass@k: of the prompts that any of k responses solves."""
  if old is None or new is None:
    return "coverage: unknown"
  change = new.value - old.value
  found = "coverage shrank" if change < 0 else "coverage did not shrink"
  if abs(change) <= ((old.half or 0) ** 2 + (new.half or 0) ** 2) ** 0.5:
    found = "no clear change of coverage"
  return f"{difference(old, new)}: {found}"


def warnings(lines: list[dict]) -> list[str]:
  """The alerts of a run, one line each."""
  return [f"warning: {line}" for line in alerts.of_run(lines)]


def summary(workdir: pathlib.Path) -> list[str]:
  """The result of a run in a few lines of plain text."""
  lines = run_log.read_metrics(workdir)
  before, after = before_after(lines)
  if before is None:
    return ["held-out accuracy: no evaluation yet, nothing to report"]
  old, new = scores(before), scores(after or {})
  mean, best = headline(old)

  def change(name):
    sides = [old, new] if after else [old]
    return " -> ".join(
        x[name].text() if name in x else "unknown" for x in sides
    )

  verified = old[mean].unit != "reward"
  out = [
      f"held-out {'accuracy' if verified else 'reward'} ({mean}, 95%"
      f" intervals): {change(mean)}",
      f"greedy: {change('greedy')}",
      *([f"{best}: {change(best)}"] if verified else []),
      f"response length in tokens: {change('response length')}",
      *([f"turns: {change('turns')}"] if "turns" in old else []),
  ]
  if after is None:
    out[0] += f" at step {before['step']}"
    return [*out, "evaluated only once: there is no comparison"]
  out[0] += f" after {after['step']} steps"
  if verified:
    out[2] += f" ({coverage(old.get(best), new.get(best))})"
  return out + warnings(lines)
