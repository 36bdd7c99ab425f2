"""Dynamic sampling: draw prompts until the batch is full of groups with signal.

DAPO (arXiv:2503.14476, sec 3.2): responses have no advantage if their group is
all correct or all incorrect. Dynamic sampling discards these groups and samples
further prompts. Host code on NumPy rows. Groups enter the batch in the order of
their prompts, not of completion, which would favour short responses.
"""

from collections.abc import Callable

import numpy as np

from rl_reason.base.errors import RunError
from rl_reason.base.structs import Array, Experience
from rl_reason.collect.experience import (
    concatenate,
    credit_inputs,
    groups,
    pad,
    take,
    without_padding,
)


class Shortfall(RunError):
  """Too few groups had signal to fill a batch within the allowed rounds."""


def first_fit(
    found: list[np.ndarray], room: int
) -> tuple[list[np.ndarray], int]:
  """The groups that fit into `room` rows, and the free rows.

  A group that does not fit leaves the room to later, smaller groups.
  """
  chosen = []
  for group in found:
    if len(group) <= room:
      chosen.append(group)
      room -= len(group)
  return chosen, room


def accuracy(rows: Experience) -> np.ndarray:
  """Share of correct responses among the verified ones of each group: [N].

  NaN of a group without a verdict: its pass rate is not known.
  """
  return _accuracy(rows, rows.correct_B >= 0)  # -1: the verifier failed


def _accuracy(rows: Experience, known_B: np.ndarray) -> np.ndarray:
  found = groups(rows.rollouts.ids_B)
  known = [rows.correct_B[group][known_B[group]] for group in found]
  return np.array([x.mean() if len(x) else np.nan for x in known])


def partly_correct(rows: Experience) -> np.ndarray:
  """Whether some but not all responses of each group are correct: [N].

  Responses that leave the loss, since a score of theirs is NaN, do not count.
  """
  accuracy_N = _accuracy(rows, _in_loss(rows))
  return (accuracy_N > 0) & (accuracy_N < 1)


def _in_loss(rows: Experience) -> np.ndarray:
  """Whether the verdict and all scores of each response are known: [B]."""
  lost_EB = [np.isnan(score_B) for score_B in rows.scores_EB]
  return (rows.correct_B >= 0) & ~np.any(lost_EB, 0)


def finished_partly_correct(rows: Experience) -> np.ndarray:
  """Whether the finished responses of each group are partly correct: [N].

  With reward.truncated = "bootstrap", truncated responses get the mean reward
  of the finished ones. If these are all correct or all incorrect, no response
  has an advantage.
  """
  known_B = _in_loss(rows) & ~rows.rollouts.truncated_B
  accuracy_N = _accuracy(rows, known_B)
  return (accuracy_N > 0) & (accuracy_N < 1)


def rewards_differ(
    step: int, *, reward: Callable[[dict], Array], steps: int
) -> Callable[[Experience], np.ndarray]:
  """Returns a signal: whether the total rewards of a group differ, [N].

  The total includes penalties of length. Used without a verifier, and with
  dynamic_sampling.signal = "reward".

  Args:
    step: completed RL steps, on which the weights of the terms depend.
    reward: `credit.outcome`, its keywords bound.
    steps: of the run.
  """

  def differ(rows: Experience) -> np.ndarray:
    inputs = credit_inputs(rows, progress=np.float32(step / steps))
    rewards_B = np.asarray(reward(inputs))
    found = groups(rows.rollouts.ids_B)
    # Unknown rewards (NaN) do not count.
    known = [rewards_B[group][np.isfinite(rewards_B[group])] for group in found]
    return np.array([len(set(x.tolist())) > 1 for x in known])

  return differ


def in_every_step(signal: Callable[[Experience], np.ndarray]):
  """Returns step -> signal, for a signal that does not depend on the step."""
  return lambda step: signal


def fill_batch(
    sample_round: Callable[[], Experience],
    kept: Experience | None,
    *,
    batch: int,
    group_size: int,
    enabled: bool,
    max_rounds: int,
    shortfall: str,
    signal: Callable[[Experience], np.ndarray] = partly_correct,
) -> tuple[Experience, dict[str, float]]:
  """Samples rounds of prompts until a training batch is full.

  Args:
    sample_round: samples and grades the next round of prompts.
    kept: groups of earlier steps for this batch (padding allowed), or None.
    batch: rows of the batch.
    group_size: of padding, and of groups that are equal.
    enabled: if False, one round is the batch, with or without signal.
    max_rounds: of generation.
    shortfall: 'pad' the batch with empty rows, or 'raise'.
    signal: whether each group of a round has signal: [N] bool.

  Returns:
    `batch` rows of whole groups, padded if no other group fits; and metrics.

  Raises:
    Shortfall: shortfall = 'raise', and too few groups have signal.
  """
  parts, accuracies, signals, tokens = [], [], [], 0
  count = with_signal = num_kept = rounds = 0
  # Kept groups of earlier steps come first.
  if kept is not None:
    old = without_padding(kept)
    parts.append(old.replace(age_B=old.age_B + 1))
    count = len(old.age_B)
    with_signal = num_kept = len(groups(old.rollouts.ids_B))

  # Sample rounds until enough groups have signal (usually 0 < accuracy < 1).
  while count < batch and rounds < (max_rounds if enabled else 1):
    rows = sample_round()
    rounds += 1
    tokens += int(rows.rollouts.mask_BT.sum())
    accuracy_N = accuracy(rows)
    accuracies.append(accuracy_N)
    signal_N = signal(rows)
    signals.append(signal_N)
    with_signal += int(signal_N.sum())
    wanted_N = signal_N if enabled else np.ones_like(signal_N)
    found = zip(groups(rows.rollouts.ids_B), wanted_N, strict=True)
    parts.append(take(rows, [group for group, wanted in found if wanted]))
    count += len(parts[-1].age_B)

  # Fill the batch with groups: older ones, then in the order of their prompts.
  accuracy_N = np.concatenate(accuracies or [accuracy(parts[0])])
  accuracy_N = accuracy_N[np.isfinite(accuracy_N)]  # without a verdict: NaN
  everything = concatenate(parts)
  ids_B = everything.rollouts.ids_B
  age_B = everything.age_B
  by_prompt = sorted(
      groups(ids_B), key=lambda group: (-age_B[group[0]], ids_B[group[0]])
  )
  chosen, missing = first_fit(by_prompt, batch)
  metrics: dict[str, float] = {}
  if accuracy_N.size:
    metrics = {
        "train/accuracy": accuracy_N.mean(),
        "train/all_correct": (accuracy_N == 1).mean(),
        "train/all_incorrect": (accuracy_N == 0).mean(),
    }
  metrics |= {
      "train/generation_rounds": rounds,
      "train/groups_with_signal": min(with_signal, batch // group_size),
      "train/groups_kept": num_kept,
      "train/groups_missing": missing / group_size,
      "tokens/generated": tokens,
  }
  if signal is not partly_correct and signals:
    metrics["train/no_signal"] = 1 - np.concatenate(signals).mean()
  if count < batch and shortfall == "raise":
    accuracy_text = "no group has a verdict"
    if accuracy_N.size:
      accuracy_text = f"accuracy {accuracy_N.mean():.1%}"
    raise Shortfall(
        f"dynamic sampling: {count // group_size} of {batch // group_size}"
        f" groups have signal after {rounds} rounds ({accuracy_text})."
        " Raise dynamic_sampling.max_rounds, choose data of another difficulty,"
        " or set dynamic_sampling.shortfall = 'pad'"
    )
  like = everything if count else rows
  return pad(take(everything, chosen), batch, like, group_size), metrics
