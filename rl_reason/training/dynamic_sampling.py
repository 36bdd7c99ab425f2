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


def groups(ids_B: np.ndarray) -> list[np.ndarray]:
  """Row numbers of each group: adjacent rows that share an id."""
  if not len(ids_B):
    return []
  return np.split(np.arange(len(ids_B)), np.flatnonzero(np.diff(ids_B)) + 1)


def take(rows: Experience, which: list[np.ndarray]) -> Experience:
  """The rows of some groups, in the order given."""
  index = np.concatenate([np.zeros(0, int), *which])
  return jax.tree.map(lambda x: x[index], rows)


def concatenate(parts: list[Experience]) -> Experience:
  """Rows of all parts, in order."""
  return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def padding(like: Experience, count: int, group_size: int) -> Experience:
  """Groups of empty rows: no mask, age -1; they weigh nothing anywhere."""
  rows = take(like, [np.zeros(count, int)])
  rollouts = rows.rollouts
  ids_B = -1 - np.arange(count, dtype=np.int32) // group_size
  return rows.replace(
      rollouts=rollouts.replace(
          mask_BT=np.zeros_like(rollouts.mask_BT), ids_B=ids_B
      ),
      age_B=np.full_like(rows.age_B, -1),
  )


def real(rows: Experience) -> Experience:
  """Without padding."""
  each = groups(rows.rollouts.ids_B)
  return take(rows, [g for g in each if rows.age_B[g[0]] >= 0])


def fill(
    rows: Experience, count: int, like: Experience, group_size: int
) -> Experience:
  """Up to `count` rows: groups of padding behind, made like some rows."""
  missing = count - len(rows.age_B)
  return concatenate([rows, padding(like, missing, group_size)])


def by_prompt(rows: Experience) -> Experience:
  """The groups in the order of their prompts."""
  each = groups(rows.rollouts.ids_B)
  return take(rows, sorted(each, key=lambda g: rows.rollouts.ids_B[g[0]]))


def accuracy(rows: Experience) -> np.ndarray:
  """Share of right responses in each group: [N]."""
  each = groups(rows.rollouts.ids_B)
  return np.array([rows.correct_B[g].mean() for g in each])


def group_sizes(need_N: np.ndarray, batch: int, least: int) -> np.ndarray:
  """Shares the rows of a batch among prompts in proportion to their need.

  Need 1 / expected length: each prompt gets about as many tokens, G = G_base
  L_ref / l. Need p (1 - p) at accuracy p: the variance of a group's mean
  reward, p (1 - p) / G, is about the same for all. A prompt whose share would
  be less than `least` gets that many, and the others share what is left.

  Args:
    need_N: [N] float, positive.
    batch: rows to share out.
    least: of a group; 2, since a group of one has no signal.

  Returns:
    [N] int that sum to `batch`; the remainders go to the largest fractions.

  Raises:
    ValueError: the batch is too small for N groups of `least`.
  """
  if batch < least * len(need_N):
    raise ValueError(f"{batch} rows for {len(need_N)} groups of {least}")
  floor_N = np.zeros(len(need_N), bool)  # prompts that get the least
  while True:
    rest = batch - least * floor_N.sum()
    open_N = np.where(floor_N, 0, need_N)
    share_N = np.where(floor_N, least, rest * open_N / max(open_N.sum(), 1e-30))
    if (share_N >= least).all():
      break
    floor_N |= share_N < least
  size_N = np.floor(share_N).astype(int)
  order_N = np.argsort(size_N - share_N, kind="stable")
  size_N[order_N[: batch - size_N.sum()]] += 1
  return size_N


def collect(
    generate: Callable[[Callable[[int, int], bool]], Experience],
    kept: Experience | None,
    *,
    batch: int,
    group_size: int,
    enabled: bool,
    max_rounds: int,
    surplus: str,
    shortfall: str,
) -> tuple[Experience, Experience | None, dict[str, float]]:
  """One training batch.

  Args:
    generate: samples and scores the next round of prompts. Given (groups with
      signal, groups unfinished) -> whether another round follows for sure: it
      may then leave those that are unfinished to that round.
    kept: groups left over from the step before (padding allowed), or None.
    batch: rows that the batch needs.
    group_size: of padding, and of groups that are equal.
    enabled: if not, one round is taken as it is.
    max_rounds: of generation.
    surplus: 'discard' or 'keep' the groups that did not fit.
    shortfall: 'pad' the batch with empty rows, or 'raise'.

  Returns:
    `batch` rows of whole groups, padded if no other fits; the surplus to pass
    as `kept` next time, padded to `batch` rows (None if discarded); metrics.

  Raises:
    Shortfall: 'raise', and too few groups with signal in max_rounds.
  """
  ready, shares, tokens = [], [], 0
  count = informative = from_kept = rounds = 0
  if kept is not None:
    old = real(kept)
    ready.append(old.replace(age_B=old.age_B + 1))
    count = len(old.age_B)
    informative = from_kept = len(groups(old.rollouts.ids_B))

  def goes_on(known: int, unknown: int) -> bool:
    most = count + (known + unknown) * group_size
    return enabled and most < batch and rounds + 1 < max_rounds

  while count < batch and rounds < (max_rounds if enabled else 1):
    rows = generate(goes_on)
    rounds += 1
    share_N = accuracy(rows)
    shares.append(share_N)
    tokens += int(rows.rollouts.lengths_B.sum())
    signal_N = (share_N > 0) & (share_N < 1)
    informative += int(signal_N.sum())
    wanted_N = signal_N if enabled else np.ones_like(signal_N)
    pairs = zip(groups(rows.rollouts.ids_B), wanted_N, strict=True)
    found = take(rows, [group for group, wanted in pairs if wanted])
    ready.append(found)
    count += len(found.age_B)
  share_N = np.concatenate(shares or [accuracy(ready[0])])
  everything = by_prompt(concatenate(ready))
  each = groups(everything.rollouts.ids_B)
  ends = np.cumsum([len(g) for g in each])
  fits = int(np.searchsorted(ends, batch, "right"))  # whole groups
  missing = batch - (int(ends[fits - 1]) if fits else 0)
  metrics = {
      "train/accuracy": share_N.mean(),
      "train/all_right": (share_N == 1).mean(),
      "train/all_wrong": (share_N == 0).mean(),
      "train/generation_rounds": rounds,
      "train/groups_with_signal": min(informative, batch // group_size),
      "train/groups_kept": from_kept,
      "train/groups_missing": missing / group_size,
      "tokens/generated": tokens,
  }
  if count < batch and shortfall == "raise":
    raise Shortfall(
        f"dynamic sampling: {count // group_size} of {batch // group_size}"
        f" groups have signal after {rounds} rounds (accuracy"
        f" {share_N.mean():.1%}). Raise"
        " dynamic_sampling.max_rounds, choose data of another difficulty, or"
        " set dynamic_sampling.shortfall = 'pad'"
    )
  like = everything if count else rows
  out = fill(take(everything, each[:fits]), batch, like, group_size)
  left = None
  if surplus == "keep" and enabled:
    last = int(np.searchsorted(ends, batch - missing + batch, "right"))
    rest = take(everything, each[fits:last])  # one batch of them at most
    left = fill(rest, batch, out, group_size)
  return out, left, metrics
