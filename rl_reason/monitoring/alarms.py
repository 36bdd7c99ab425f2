"""Signs in the evaluations of a run: reward hacking, and a policy unlearned."""

import re
import statistics

_MEAN = re.compile(r"val-core/[^/]+/acc/mean@\d+")
_REWARD, _SCORE = "critic/rewards/mean", "critic/score/mean"
_LENGTH = "val-aux/response_length/mean"
_REPETITION = "val-aux/repetition/mean"


def alarms(
    lines: list[dict],
    *,
    window: int = 5,
    longer: float = 2.0,
    repeats: float = 0.2,
) -> list[str]:
  """Returns the signs of reward hacking, and of unlearning, so far.

  Accuracy has changed if two held-out evaluations differ by more than the
  half-widths of their 95% intervals together; a reward has risen if the means
  of `window` steps differ by more than two standard errors of the difference.

  Args:
    lines: lines of metrics.jsonl.
    window: number of RL steps in a mean.
    longer: factor of the length before RL from which responses are too long.
    repeats: increase of the fraction of repetitive responses that is too much.

  Returns:
    one line per sign; [] if there is none.
  """
  evaluations = [x for x in lines if x["stage"] == "evaluate"]
  steps = [x for x in lines if x["stage"] == "rl"]
  out = []
  for name in sorted({k for x in evaluations for k in x if _MEAN.fullmatch(k)}):
    known = [x for x in evaluations if name in x]
    if len(known) < 2:
      continue
    first, last = known[0], known[-1]
    best = max(known, key=lambda x: x[name])
    task = name.split("/")[1]
    before, after = (
        [x for x in steps if x["step"] <= at["step"]][-window:]
        or steps[:window]  # it was best before RL
        for at in (best, last)
    )
    if _change(best, last, name) < 0 and _rose(before, after, _REWARD):
      out.append(
          f"the reward rises, but accuracy on {task} falls since step"
          f" {best['step']} ({best[name]:.1%} to {last[name]:.1%}): the reward"
          " pays for something else; read the samples"
      )
    elif _change(best, last, name) < 0 and last[name] <= best[name] / 2:
      out.append(
          f"accuracy on {task} has fallen to half of step {best['step']}'s or"
          f" less ({best[name]:.1%} to {last[name]:.1%}): the policy unlearns"
          " the task; export a checkpoint before the fall, and begin again with"
          " a lower optimizer.lr"
      )
    if _change(first, last, name) > 0:
      continue
    if last.get(_LENGTH, 0) > longer * first.get(_LENGTH, float("inf")):
      out.append(
          f"responses are {last[_LENGTH] / first[_LENGTH]:.1f} times as long as"
          f" before RL without higher accuracy on {task}: penalize length, or"
          " mask truncated responses"
      )
    if last.get(_REPETITION, 0) > first.get(_REPETITION, 1) + repeats:
      out.append(
          f"{last[_REPETITION]:.0%} of the responses are repetitive, before RL"
          f" {first[_REPETITION]:.0%}, without higher accuracy on {task}: look"
          " for loops"
      )
  start, now = steps[:window], steps[-window:]
  verified = any(_SCORE in x for x in steps)
  if verified and _rose(start, now, _REWARD) and not _rose(start, now, _SCORE):
    names = {k for x in steps for k in x if re.fullmatch(r"reward/.+/mean", k)}
    risen = sorted(k for k in names if _rose(start, now, k))
    if risen:
      sources = (x.removeprefix("reward/").removesuffix("/mean") for x in risen)
      out.append(
          f"the whole gain of the reward comes from {', '.join(sources)}, while"
          " responses are not more often correct; lower its weight"
      )
  return out


def _change(old: dict, new: dict, name: str) -> float:
  """Returns the change of a score; 0 if it is within the intervals."""
  change = new[name] - old[name]
  both = old.get(f"{name}/ci95", 0) + new.get(f"{name}/ci95", 0)
  return change if abs(change) > both else 0.0


def _rose(old: list[dict], new: list[dict], name: str) -> bool:
  """Whether a mean over steps rose by more than two standard errors."""
  a, b = (
      [x[name] for x in rows if x.get(name) is not None] for rows in (old, new)
  )
  if min(len(a), len(b)) < 2:
    return False
  error = statistics.variance(a) / len(a) + statistics.variance(b) / len(b)
  return statistics.mean(b) - statistics.mean(a) > 2 * error**0.5
