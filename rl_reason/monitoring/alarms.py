"""Signs that a run games its reward: from its metrics, in a line each."""

import re
import statistics

_MEAN = re.compile(r"val-core/[^/]+/acc/mean@\d+")


def alarms(
    lines: list[dict],
    *,
    window: int = 5,
    longer: float = 2.0,
    repeats: float = 0.2,
) -> list[str]:
  """What looks like reward hacking by now.

  Accuracy counts as moved where two held-out evaluations differ by more than
  the half-widths of their 95% intervals together; a reward, where the means of
  `window` steps differ by more than twice the standard error of the difference.

  Args:
    lines: of metrics.jsonl.
    window: RL steps whose mean is compared.
    longer: length explodes beyond so many times what it was before RL.
    repeats: repetition does, when it has risen by such a share.

  Returns:
    one line for each sign; [] if there is none.
  """
  tests = [x for x in lines if x["stage"] == "evaluate"]
  steps = [x for x in lines if x["stage"] == "rl"]
  out = []
  for name in _accuracies(tests):
    some = [x for x in tests if name in x]
    first, last = some[0], some[-1]
    best = max(some, key=lambda x: x[name])
    task = name.split("/")[1]
    before, after = (
        [x for x in steps if x["step"] <= at["step"]][-window:]
        or steps[:window]  # it was best before RL
        for at in (best, last)
    )
    fell = _moved(best, last, name) < 0
    if fell and _rose(before, after, "critic/rewards/mean"):
      out.append(
          f"reward up, held-out accuracy of {task} down since step"
          f" {best['step']} ({best[name]:.1%} to {last[name]:.1%}): the reward"
          " pays for something else; read the samples"
      )
    if _moved(first, last, name) > 0:
      continue
    length = "val-aux/response_length/mean"
    if last.get(length, 0) > longer * first.get(length, float("inf")):
      out.append(
          f"responses are {last[length] / first[length]:.1f} times as long as"
          f" before RL, and {task} no better: punish length, or mask what is"
          " cut off"
      )
    again = "val-aux/repetition/mean"
    if last.get(again, 0) > first.get(again, 1) + repeats:
      out.append(
          f"{last[again]:.0%} of the responses repeat themselves, before RL"
          f" {first[again]:.0%}, and {task} is no better: look for loops"
      )
  begun, now = steps[:window], steps[-window:]
  right = "critic/score/mean"
  if _rose(begun, now, "critic/rewards/mean") and not _rose(begun, now, right):
    names = {k for x in steps for k in x if re.fullmatch(r"reward/.+/mean", k)}
    risen = sorted(k for k in names if _rose(begun, now, k))
    if risen:
      sources = ", ".join(
          k.removeprefix("reward/")[: -len("/mean")] for k in risen
      )
      out.append(
          f"all that the reward gained came from {sources}: responses are no"
          " more often right; lower its weight"
      )
  return out


def _accuracies(tests: list[dict]) -> list[str]:
  """Names of the headline accuracies that two evaluations or more have."""
  names = sorted({k for x in tests for k in x if _MEAN.fullmatch(k)})
  return [k for k in names if sum(k in x for x in tests) > 1]


def _moved(old: dict, new: dict, name: str) -> float:
  """By how much, or 0 if the intervals allow that it did not."""
  change = new[name] - old[name]
  both = old.get(f"{name}/ci95", 0) + new.get(f"{name}/ci95", 0)
  return change if abs(change) > both else 0.0


def _rose(old: list[dict], new: list[dict], name: str) -> bool:
  """Whether a mean over steps rose by more than chance."""
  a, b = (
      [x[name] for x in some if x.get(name) is not None] for some in (old, new)
  )
  if min(len(a), len(b)) < 2:
    return False
  error = statistics.variance(a) / len(a) + statistics.variance(b) / len(b)
  return statistics.mean(b) - statistics.mean(a) > 2 * error**0.5
