"""The doctor: why a run learns nothing, or soon will not, and what to change.

`findings` reads one RL step, `Doctor` says on the screen what is new, `verdict`
refuses a run that learned nothing. docs/playbook.md is the table of all signs;
those of reward hacking, which take a whole run to see, are in `alarms.py`.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from rl_reason.monitoring import updates as updates_lib
from rl_reason.monitoring.metrics import number
from rl_reason.structs import Experience, Rollouts, RunError

SIGN = "sign/"  # names of what only the doctor reads; it is not logged
ASKED = 64  # incorrect responses of a round that are searched for an answer
FIRST = 3  # steps of which the vital signs are said in any case
QUIET = 5  # steps without a finding after which it is over
CHANGED = 0.25  # of a share, to speak of a finding again
CLIPPED = "critic/vf_targets_clipped"  # share; only of a categorical critic
FAULT = 1e-9  # bound of a sign that no healthy run has
BROKEN = "rollout/logps_not_finite"  # share of responses; not in healthy runs
BROKEN_HELD_OUT = "val-aux/logps_not_finite"  # responses; likewise
NO_UPDATE = "No update"  # what the other signs are causes of


class Seen:
  """Counts of the responses of an RL step that only the doctor reads.

  Args:
    answer: (text, row) -> the final answer of a response; '' if it has none.
  """

  def __init__(self, answer: Callable[[str, Any], str]):
    self._answer = answer
    self.clear()

  def clear(self) -> None:
    """Begins the next step."""
    self._ids: list[int] = []
    self._total = self._finished = self._incorrect = 0
    self._asked = self._no_answer = self._broken = 0

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
    return out


def broken(rollouts: Rollouts) -> int:
  """Responses with a log-probability that is not finite; 0 of a sound policy.

  Args:
    rollouts: on the host.
  """
  bad_BT = ~np.isfinite(rollouts.logps_BT) & rollouts.mask_BT
  return int(bad_BT.any(1).sum())


class Finding(NamedTuple):
  """One sign in one step.

  Attributes:
    sign: the symptom, as docs/playbook.md calls it.
    level: how strong, in [0, 1].
    bound: the level from which on it is said.
    text: what is seen, the likely cause, and the field to change.
  """

  sign: str
  level: float
  bound: float
  text: str


def clipped_targets(x: dict[str, Any], fields: dict[str, Any]) -> str:
  """How many targets of a categorical critic its support clips.

  Args:
    x: a line of metrics.jsonl of RL or of value pretraining.
    fields: the flat config.
  """
  head = "critic.head.args."
  ends = [f"{head}{k} (now {fields.get(head + k)})" for k in ("low", "high")]
  return (
      f"{x.get(CLIPPED) or 0:.1%} of the critic's targets lie outside of"
      f" {' to '.join(ends)} and are clipped: widen the support, or shrink the"
      " rewards"
  )


def findings(x: dict[str, Any], fields: dict[str, Any]) -> list[Finding]:
  """All signs in the metrics of one RL step, causes before effects.

  Args:
    x: a line of metrics.jsonl of stage 'rl', with the numbers under `SIGN` if
      they are known.
    fields: the flat config.
  """

  def share(name):
    return x.get(name) or 0.0

  from_files = fields["task.name"] == "files"
  prompts = "data.train" if from_files else "task.difficulties"
  responses = (x.get("train/generation_rounds") or 1) * (
      fields["rollout.batch"] * fields["dynamic_sampling.batches"]
  )
  failed = {
      name.removeprefix("reward/").removesuffix("/failures"): int(x[name])
      for name in x
      if name.startswith("reward/") and name.endswith("/failures") and x[name]
  }
  of_functions = sum(failed.values())
  of_verifier = int(share("train/verifier_failures")) - of_functions
  lost = 0
  if not failed and of_verifier <= 0:
    lost = int(share("train/rewards_not_finite"))
  half = fields["model.dtype"] == "float16"
  wanted = updates_lib.per_step(fields)
  done = updates_lib.count(x, wanted)
  out: list[Finding] = []

  def sign(name, level, bound, text):
    out.append(Finding(name, min(level, 1.0), bound, text))

  remedy = (
      "for time-outs raise reward.seconds, else mend the function of data.kind"
      if from_files
      else f"mend verify of task.name = {fields['task.name']}"
  )
  sign(
      "Failures of the verifier",
      of_verifier / responses,
      FAULT,
      f"the verifier failed on {of_verifier:,} of {responses:,} responses,"
      " which are then not learned from; the first traceback is above:"
      f" {remedy}",
  )
  sign(
      "Failures of reward functions",
      of_functions / responses,
      FAULT,
      f"{', '.join(failed)} failed {of_functions:,} times on {responses:,}"
      " responses, which are then not learned from; the first traceback is"
      " above: mend the function, raise reward.timeout if it was late, or leave"
      " it out of reward.functions",
  )
  sign(
      "Rewards that are not finite",
      lost / fields["rollout.batch"],
      FAULT,
      f"the rewards of {lost:,} of {fields['rollout.batch']:,} responses are"
      " NaN or infinite, and these responses are not learned from: look at"
      " reward.outcome.name, reward.length_penalty.name and the reward models"
      " of reward.functions",
  )
  sign(
      "Clipped targets of the critic",
      share(CLIPPED),
      FAULT,
      clipped_targets(x, fields),
  )
  sign(
      "Broken policy",
      share(BROKEN),
      FAULT,
      f"{share(BROKEN):.0%} of the responses have log-probabilities that are"
      " not finite: the parameters of the policy are broken, and no later"
      " update will mend them: begin again in another --workdir with a lower"
      f" optimizer.lr (now {fields['optimizer.lr']:g})"
      + (" and model.dtype = 'bfloat16'" if half else ""),
  )
  sign(
      "NaN, skipped updates",
      done.not_finite / wanted,
      FAULT,
      f"{done.not_finite} of {wanted} updates skipped, gradients not"
      f" finite: {updates_lib.why_not_finite(fields, x=x)}",
  )
  sign(
      "No recognisable answer",
      share(SIGN + "no_answer"),
      0.25,
      f"{share(SIGN + 'no_answer'):.0%} of the finished responses have no"
      " recognisable final answer, so that they cannot be correct: read"
      " samples.jsonl; "
      + (
          "choose data.template or data.system, or"
          if from_files
          else "raise sft.skill.steps, or"
      )
      + " reward the format by reward.functions",
  )
  sign(
      "Truncated responses",
      share(SIGN + "truncated"),
      0.25,
      f"{share(SIGN + 'truncated'):.0%} of the responses are truncated: raise"
      f" rollout.max_tokens (now {fields['rollout.max_tokens']}), or set"
      " reward.overlong_buffer, or loss.mask_truncated",
  )
  incorrect, correct = share("train/all_incorrect"), share("train/all_correct")
  same = share("train/no_signal")
  sign(
      "Few groups with signal",
      same if "train/no_signal" in x else incorrect + correct,
      0.9,
      f"{same:.0%} of the groups have responses of equal rewards: read"
      " samples.jsonl, make reward.functions finer, or raise"
      f" rollout.group_size (now {fields['rollout.group_size']})"
      if "train/no_signal" in x
      else f"{incorrect:.0%} of the groups are all incorrect: prompts too hard,"
      " or a verifier that does not accept what the model writes; read"
      f" samples.jsonl, then choose easier {prompts}, or raise"
      f" rollout.group_size (now {fields['rollout.group_size']})"
      if incorrect >= correct
      else f"{correct:.0%} of the groups are all correct: prompts too easy;"
      f" choose harder {prompts}, or set rollout.retire_after",
  )
  groups = fields["rollout.batch"] / fields["rollout.group_size"]
  missing = share("train/groups_missing")
  sign(
      "Incomplete batches",
      missing / groups,
      0.5,
      f"{missing:g} of {groups:g} groups of the batch are missing after"
      f" {share('train/generation_rounds'):g} rounds: raise"
      " dynamic_sampling.max_rounds (now"
      f" {fields['dynamic_sampling.max_rounds']}), or choose other {prompts}",
  )
  small = " (or below the smallest float16: set model.dtype = 'bfloat16')"
  sign(
      "Gradient of 0",
      float(done.constant > 0),
      1.0,
      "the gradient is exactly 0: the responses of every group have the same"
      f" reward{small if half else ''}; choose"
      f" other {prompts}, or set dynamic_sampling.enabled",
  )
  limit = fields["rl.max_steps_without_update"]
  sign(
      NO_UPDATE,
      float(not done.made),
      1.0,
      "this step made no update"
      + (f"; {limit} in a row end the run" if limit else "")
      + " (rl.max_steps_without_update)",
  )
  return out


def causes(found: Iterable[Finding]) -> str:
  """The findings that explain a missing update, in one line.

  Where a fault touches half of a step, other signs are its effects.
  """
  seen = [x for x in found if x.level >= x.bound and x.sign != NO_UPDATE]
  faults = [x for x in seen if x.bound == FAULT and x.level >= 0.5]
  return "; ".join(x.text for x in faults or seen)


def vital_signs(x: dict[str, Any], fields: dict[str, Any]) -> str:
  """The state of a step in one line, whether or not something is wrong."""
  wanted = updates_lib.per_step(fields)
  if "train/no_signal" in x:
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
  """Says what is wrong with the steps of RL when it begins, changes or ends.

  Args:
    fields: the flat config.
    say: writes a line to the screen.
    limit: steps in a row without an update that are too many; 0: never.

  Attributes:
    streak: steps in a row without an update.
  """

  def __init__(
      self, fields: dict[str, Any], say: Callable[[str], None], limit: int
  ):
    self.streak = updates_lib.Streak("RL", limit)
    self._fields, self._say, self._steps = fields, say, 0
    self._said: dict[str, tuple[float, int]] = {}  # level, last step seen

  def examine(self, step: int, metrics: dict[str, Any]) -> None:
    """Looks at a step, and says what is new.

    Args:
      step: RL steps that are done.
      metrics: of the step, those under `SIGN` included.
    """
    x = {name: number(value) for name, value in metrics.items()}
    found, self._steps = findings(x, self._fields), self._steps + 1
    if self._steps <= FIRST:
      self._say(f"step {step}: {vital_signs(x, self._fields)}")
    for line in self._news(step, found):
      self._say(line)
    made = updates_lib.count(x, updates_lib.per_step(self._fields)).made
    ids = [x.get(f"{SIGN}{name}_prompt") for name in ("first", "last")]
    self.streak.add(
        made > 0,
        f"Step {step}, prompts {ids[0]} to {ids[1]}: {causes(found)}",
    )

  def _news(self, step: int, found: list[Finding]) -> list[str]:
    """Findings that are new, stronger or weaker than said, or over."""
    out = []
    for sign, level, bound, text in found:
      said, seen = self._said.get(sign, (None, 0))
      if level >= bound:
        if said is None or abs(level - said) >= CHANGED:
          out.append(f"warning: step {step}: {text}")
          said = level
        self._said[sign] = said, step
      elif said is not None and step - seen >= QUIET:
        out.append(f"step {step}: over since step {seen + 1}: {sign.lower()}")
        del self._said[sign]
    return out


def verdict(lines: list[dict], fields: dict[str, Any]) -> None:
  """Refuses a run whose RL is worth nothing.

  Args:
    lines: of metrics.jsonl.
    fields: the flat config.

  Raises:
    RunError: it made no update at all, or its policy is broken at the end.
  """
  done = updates_lib.of_run(lines, fields)
  if not done:
    return
  last = [x for x in lines if x["stage"] == "rl"][-1]
  why = causes(findings(last, fields))
  if not any(x.made for x in done):
    raise RunError(
        f"RL made no update in {len(done)} steps: the policy is the one that it"
        f" began with. Step {last['step']}: {why}"
    )
  if last.get(BROKEN):
    raise RunError(f"RL ended with a broken policy. Step {last['step']}: {why}")
  held_out = [x for x in lines if x["stage"] == "evaluate"][-1:]
  for line in of_evaluation(held_out[0] if held_out else {}):
    raise RunError(f"RL ended with a broken policy: {line}")


def of_evaluation(values: dict) -> list[str]:
  """What an evaluation says of a broken policy; [] of a sound one."""
  if not values.get(BROKEN_HELD_OUT):
    return []
  return [
      f"{values[BROKEN_HELD_OUT]:,} responses to held-out prompts have"
      " log-probabilities that are not finite: the policy is broken; go back"
      " to an earlier checkpoint (--step), or begin again in another --workdir"
      " with a lower optimizer.lr"
  ]
