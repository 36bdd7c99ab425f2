"""The doctor: why a run learns nothing, or soon will not, and what to change.

`Doctor` asks the table of signs (`signs.toml`) at every step of RL, says on the
screen when a sign begins and ends, and ends a run that is worth nothing;
`verdict.py` refuses one that was.
"""

import re
import types
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rl_reason.base.json_files import number
from rl_reason.base.structs import Experience, Rollouts
from rl_reason.monitoring import signs, updates as updates_lib
from rl_reason.monitoring.signs import BROKEN, SIGN

ASKED = 64  # responses of a round that are searched, more or less
ENOUGH = 32  # tokens that a sound policy does not find all equally probable
FIRST = 3  # steps of which the vital signs are said in any case
BROKEN_POLICY, NO_UPDATE = "Broken policy", "No update"  # of the table
ENDS = "rl.max_steps_without_update", "rl.max_steps_uncertified"
QUIET = 5  # steps without a sign after which it is over


class Seen:
  """Counts of the responses of an RL step that only the doctor reads.

  Args:
    answer: (text, row) -> the final answer of a response; '' if it has none.
    behaviours: patterns of the task by the name of what they show.
  """

  def __init__(
      self,
      answer: Callable[[str, Any], str],
      behaviours: Mapping[str, str] = types.MappingProxyType({}),
  ):
    self._answer = answer
    self._behaviours = {k: re.compile(x) for k, x in behaviours.items()}
    self.clear()

  def clear(self) -> None:
    """Begins the next step."""
    self._ids: list[int] = []
    self._total = self._finished = self._incorrect = 0
    self._asked = self._no_answer = self._broken = self._read = 0
    self._shown = dict.fromkeys(self._behaviours, 0)

  def responses(self, rows: Experience, texts: list[str], rows_B: list) -> None:
    """Counts a round of graded responses.

    Args:
      rows: of the round.
      texts: of the responses.
      rows_B: the row that each response answers.
    """
    rollouts = rows.rollouts
    finished_B = ~rollouts.truncated_B
    incorrect = np.flatnonzero(finished_B & (rows.correct_B == 0))
    self._ids += [int(rollouts.ids_B[i]) for i in (0, -1)]
    self._broken += broken(rollouts)
    self._total += len(texts)
    self._finished += int(finished_B.sum())
    self._incorrect += len(incorrect)
    # Evenly spaced ones stand for all: to find an answer takes time.
    asked = incorrect[:: max(len(incorrect) // ASKED, 1)]
    self._asked += len(asked)
    self._no_answer += sum(not self._answer(texts[b], rows_B[b]) for b in asked)
    for text in texts[:: max(len(texts) // ASKED, 1)] if self._shown else ():
      self._read += 1
      for name, pattern in self._behaviours.items():
        self._shown[name] += sum(1 for _ in pattern.finditer(text))

  def signs(self) -> dict[str, float]:
    """The counts as `findings` reads them; faults are there only if any."""
    share = self._no_answer / max(self._asked, 1)
    out: dict[str, float] = {
        SIGN + "truncated": 1 - self._finished / max(self._total, 1),
        SIGN + "no_answer": share * self._incorrect / max(self._finished, 1),
        SIGN + "first_prompt": min(self._ids, default=-1),
        SIGN + "last_prompt": max(self._ids, default=-1),
    }
    if self._broken:
      out[BROKEN] = self._broken / self._total
    for name, count in self._shown.items() if self._read else ():
      out[f"behaviour/{name}"] = count / self._read
    return out


def broken(rollouts: Rollouts) -> int:
  """Responses that only broken parameters give; 0 of a sound policy.

  These are responses with a log-probability that is not finite; and all, if all
  their tokens have the same below 0: parameters that are finite but huge leave
  every token as probable as any other. (Where all tokens are certain, a policy
  may have learned a task with one correct response.)

  Args:
    rollouts: on the host.
  """
  bad_BT = ~np.isfinite(rollouts.logps_BT) & rollouts.mask_BT
  logps = rollouts.logps_BT[rollouts.mask_BT & ~bad_BT]
  if logps.size >= ENOUGH and logps.max() < -0.1 and np.ptp(logps) < 1e-4:
    return len(bad_BT)
  return int(bad_BT.any(1).sum())


def vital_signs(x: dict[str, Any], fields: dict[str, Any]) -> str:
  """The state of a step in one line, whether or not something is wrong."""
  wanted = updates_lib.per_step(fields)
  if fields["rollout.group_size"] == 1:
    groups = "groups of one response"
    if "train/all_correct" in x:
      groups += f", {x['train/all_correct']:.0%} correct"
  elif "train/no_signal" in x:
    groups = f"{1 - x['train/no_signal']:.0%} of the groups have signal"
  else:
    incorrect, correct = x["train/all_incorrect"], x["train/all_correct"]
    groups = (
        f"{1 - incorrect - correct:.0%} of the groups have signal"
        f" ({incorrect:.0%} all incorrect, {correct:.0%} all correct)"
    )
  return (
      f"{groups};"
      f" {x[SIGN + 'truncated']:.0%} of the responses truncated,"
      f" {x[SIGN + 'no_answer']:.0%} without an answer; verifier and rewards"
      f" failed {x['train/verifier_failures']} times;"
      f" {updates_lib.count(x, wanted).made} of {wanted} updates made"
  )


class Doctor:
  """Says what is wrong with the steps of RL, once when it begins and ends.

  Args:
    fields: the flat config.
    say: writes a line to the screen.
    limit: steps in a row without an update, or with another sign that ends
      runs, that are too many; 0: never.
    before: the lines of metrics.jsonl of the steps before a resumed one.
    uncertified: steps in a row that another policy sampled, as `limit`.

  Attributes:
    streak: counts steps without an update.
    uncertified: counts steps that another policy sampled.
  """

  def __init__(
      self,
      fields: dict[str, Any],
      say: Callable[[str], None],
      limit: int,
      before: Callable[[], list[dict]] = list,
      uncertified: int = 0,
  ):
    self.streak = updates_lib.Streak("RL", limit)
    self.uncertified = updates_lib.Streak(
        "RL", uncertified, ENDS[1], "learned from another policy"
    )
    self._fields, self._say, self._before = fields, say, before
    self._steps: deque[dict] = deque(maxlen=signs.WINDOW)
    self._said: dict[str, int] = {}  # last step of each sign that is not over
    self._examined = 0

  def examine(self, step: int, metrics: dict[str, Any]) -> dict[str, int]:
    """Looks at a step, and says what is new.

    Args:
      step: RL steps that are done.
      metrics: of the step, those under `SIGN` included.

    Returns:
      the signs of the step as metrics; {} of a healthy one.
    """
    if not self._steps and step > 1:  # of a resumed run
      for line in self._before():
        if line["stage"] == "rl":
          self._steps.append(line)
          self._count([x for x in signs.TABLE if x.metric in line], "")
    self._steps.append(
        {k: x if isinstance(x, str) else number(x) for k, x in metrics.items()}
    )
    found = signs.found(list(self._steps), self._fields)
    self._examined += 1
    if self._examined <= FIRST:
      self._say(f"step {step}: {vital_signs(self._steps[-1], self._fields)}")
    for sign, text in found:
      if sign.name not in self._said:
        self._say(f"warning: step {step}: {text}")
      self._said[sign.name] = step
    for name, last in list(self._said.items()):
      if step - last >= QUIET:
        self._say(f"step {step}: over since step {last + 1}: {name}")
        del self._said[name]
    ids = [metrics.get(f"{SIGN}{name}_prompt") for name in ("first", "last")]
    self._count(
        [sign for sign, _ in found],
        f"Step {step}, prompts {ids[0]} to {ids[1]}: {causes(found)}",
    )
    return {sign.metric: 1 for sign, _ in found}

  def _count(self, found: list[signs.Sign], last: str) -> None:
    ends = {sign.ends for sign in found}
    for field, streak in zip(
        ENDS, (self.streak, self.uncertified), strict=True
    ):
      streak.add(field not in ends, last)

  def check(self, flush: Callable[[], None]) -> None:
    """`Streak.check`, of all that ends a run."""
    self.streak.check(flush)
    self.uncertified.check(flush)


def causes(found: list[tuple[signs.Sign, str]]) -> str:
  """The signs that explain why a step is worth nothing, in one line."""
  texts = [text for sign, text in found if sign.name != NO_UPDATE]
  return "; ".join(texts[:3])  # the table has causes before effects
