"""Dynamic sampling: draw prompts until the batch is full of groups with signal.

DAPO (arXiv:2503.14476, sec 3.2): groups that are all right or all wrong have no
advantage; they leave the batch and others take their place. Host code on numpy
rows; groups are taken in the order of their prompts, never of completion.
"""

from collections.abc import Callable

import jax
import numpy as np

from rl_reason.structs import Experience, RunError


class Shortfall(RunError):
  """The data could not fill a batch within the rounds allowed."""


def take(rows: Experience, groups_N, group_size: int) -> Experience:
  """The rows of some groups, in the order given."""

  def pick(x):
    return x.reshape(-1, group_size, *x.shape[1:])[groups_N].reshape(
        -1, *x.shape[1:]
    )

  return jax.tree.map(pick, rows)


def concatenate(parts: list[Experience]) -> Experience:
  """Rows of all parts, in order."""
  return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def padding(like: Experience, groups: int, group_size: int) -> Experience:
  """Groups of empty rows: no mask, age -1; they weigh nothing anywhere."""
  rows = take(like, np.zeros(groups, int), group_size)
  rollouts = rows.rollouts
  return rows.replace(
      rollouts=rollouts.replace(
          mask_BT=np.zeros_like(rollouts.mask_BT),
          ids_B=np.repeat(-1 - np.arange(groups, dtype=np.int32), group_size),
      ),
      age_B=np.full_like(rows.age_B, -1),
  )


def accuracy(rows: Experience, group_size: int) -> np.ndarray:
  """Share of right responses in each group: [N]."""
  return rows.correct_B.reshape(-1, group_size).mean(1)


def collect(
    generate: Callable[[], Experience],
    kept: Experience | None,
    *,
    prompts: int,
    group_size: int,
    enabled: bool,
    max_rounds: int,
    surplus: str,
    shortfall: str,
) -> tuple[Experience, Experience | None, dict[str, float]]:
  """One training batch.

  Args:
    generate: samples and scores the next round of prompts.
    kept: groups left over from the step before (padding allowed), or None.
    prompts: groups the batch needs.
    group_size: G.
    enabled: if not, one round is taken as it is.
    max_rounds: of generation.
    surplus: 'discard' or 'keep' the groups that did not fit.
    shortfall: 'pad' the batch with empty rows, or 'raise'.

  Returns:
    `prompts` groups of rows; the surplus to pass as `kept` next time, padded to
    `prompts` groups (None if discarded); and metrics.

  Raises:
    Shortfall: 'raise', and too few groups with signal in max_rounds.
  """
  ready, shares, tokens = [], [], 0
  count = informative = 0
  if kept is not None:
    real = np.flatnonzero(kept.age_B[::group_size] >= 0)
    informative += len(real)
    old = take(kept, real, group_size)
    ready.append(old.replace(age_B=old.age_B + 1))
    count = len(real)
  from_kept, rounds = count, 0
  while count < prompts and rounds < (max_rounds if enabled else 1):
    rows = generate()
    rounds += 1
    share_N = accuracy(rows, group_size)
    shares.append(share_N)
    tokens += int(rows.rollouts.lengths_B.sum())
    signal_N = (share_N > 0) & (share_N < 1)
    informative += int(signal_N.sum())
    wanted_N = signal_N if enabled else np.ones_like(signal_N)
    ready.append(take(rows, np.flatnonzero(wanted_N), group_size))
    count += int(wanted_N.sum())
  share_N = np.concatenate(shares or [accuracy(ready[0], group_size)])
  metrics = {
      "train/accuracy": share_N.mean(),
      "train/all_right": (share_N == 1).mean(),
      "train/all_wrong": (share_N == 0).mean(),
      "train/generation_rounds": rounds,
      "train/groups_with_signal": min(informative, prompts),
      "train/groups_kept": from_kept,
      "train/groups_missing": max(prompts - count, 0),
      "tokens/generated": tokens,
  }
  if count < prompts and shortfall == "raise":
    raise Shortfall(
        f"dynamic sampling: {count} of {prompts} groups have signal after"
        f" {rounds} rounds (accuracy {share_N.mean():.1%}). Raise"
        " dynamic_sampling.max_rounds, choose data of another difficulty, or"
        " set dynamic_sampling.shortfall = 'pad'"
    )
  everything = concatenate(ready)
  batch = take(everything, np.arange(min(count, prompts)), group_size)
  if count < prompts:
    like = batch if count else rows
    batch = concatenate(
        [batch, padding(like, prompts - count, group_size)]
    )
  left = None
  if surplus == "keep" and enabled:
    last = min(max(count, prompts), 2 * prompts)  # one batch of them at most
    rest = take(everything, np.arange(prompts, last), group_size)
    missing = prompts - len(rest.age_B) // group_size
    left = concatenate([rest, padding(batch, missing, group_size)])
  return batch, left, metrics
