"""Inputs of every advantage function: strategies, examples and calls."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import reference
from by_hand import quick_jit
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rl_reason.algorithms import advantage_variants, advantages

OF_RESPONSES = [
    "group_mean",
    "group_norm",
    "group_mean_batch_std",
    "leave_one_out",
    "max_rl",
    "opo",
    "rank",
    "length_weighted",
    "quality_weighted",
    "confidence_weighted",
    "hierarchical",
    "temporal",
    "explore",
]
OF_TOKENS = [
    "returns_to_go",
    "gae",
    "gae_length_adaptive",
    "gae_exp_complexity",
    "hybrid",
    "optimal_token_baseline",
]
# The baseline is a mean over the OTHERS of the group.
OF_OTHERS = [
    "leave_one_out",
    "length_weighted",
    "quality_weighted",
    "confidence_weighted",
    "temporal",
]
B, T, H = 8, 6, 5


def function(name):
  place = advantages if hasattr(advantages, name) else advantage_variants
  return getattr(place, name)


# --- every array that an advantage may ask for -------------------------------


def eighths(low, high, shape):
  """Multiples of 1/8: exact in fp32, so equal means are equal to the bit."""
  ints = hnp.arrays(np.int8, shape, elements=st.integers(8 * low, 8 * high))
  return ints.map(lambda x: x / 8)


def dense(low, high):
  """The same for tokens, from a seed: quicker than number by number."""
  return st.integers(0, 10**6).map(
      lambda seed: np.random.default_rng(seed).integers(
          8 * low, 8 * high + 1, (B, T)
      )
      / 8
  )


def ids(shape, *some):
  return hnp.arrays(np.int32, shape, elements=st.sampled_from(some))


ARRAYS = dict(
    rewards_B=eighths(-2, 2, B),
    # Few ids, so that groups repeat; negative and extreme ones, in any order.
    groups_B=ids(B, 0, 5, -1, -7, 2**31 - 1, -(2**31)),
    types_B=ids(B, 0, 1, 3),
    problems_B=ids(B, 7, -8, 9),
    valid_B=hnp.arrays(bool, B),
    mask_BT=hnp.arrays(bool, (B, T)),  # with holes; may be empty
    logps_BT=dense(-3, 0),
    squares_BT=dense(0, 1),
    rewards_BT=dense(-1, 1),
    values_BT=dense(-2, 2),
    progress=st.sampled_from([0.0, 0.25, 1.0]).map(np.float64),
    past_rewards_H=eighths(-2, 2, H),
    past_problems_H=ids(H, 7, -8, 10),
    past_weights_H=eighths(0, 2, H),
)
GROUPS = {"groups_B", "types_B", "problems_B"}


def needs(name):
  """Names of the arrays of an advantage, as the loop reads them."""
  parameters = inspect.signature(function(name)).parameters.values()
  return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


@functools.cache
def strategy(name):
  some = needs(name)
  rows = st.fixed_dictionaries({k: ARRAYS[k] for k in some})
  return rows.map(functools.partial(tidy, name))


def tidy(name, rows):
  """Padding is a group of its own; MaxRL is for rewards of 0 and 1."""
  if "valid_B" in rows and "groups_B" in rows:
    rows["groups_B"] = np.where(rows["valid_B"], rows["groups_B"], 3)
  if name == "max_rl":
    rows["rewards_B"] = (rows["rewards_B"] > 0) * 1.0
  return rows


def example(name, seed=0):
  """Seven rows of one group (and type) and one alone; nothing remembered."""
  rng = np.random.default_rng(seed)
  group_B = np.int32([9, 9, 9, 9, 9, 9, -2, 9])
  some = dict(
      rewards_B=rng.normal(size=B),
      groups_B=group_B,
      types_B=group_B,
      problems_B=group_B,
      valid_B=np.ones(B, bool),
      mask_BT=np.arange(T) < 1 + np.arange(B)[:, None] % T,
      logps_BT=-rng.exponential(size=(B, T)),
      squares_BT=rng.uniform(size=(B, T)),
      progress=np.float64(0.5),
      past_rewards_H=np.zeros(H),
      past_problems_H=np.full(H, -1, np.int32),
      past_weights_H=np.zeros(H),
  )
  return {k: some[k] for k in needs(name)}


def padded(key, x):
  """[B], [B, T] or [H] from fewer rows: one shape, one program to compile."""
  x = np.asarray(x)
  sizes = dict(B=B, T=T, H=H)
  shape = [sizes[letter] for letter in key.rpartition("_")[2]] if x.ndim else []
  out = np.zeros(np.maximum(shape, x.shape).astype(int), x.dtype)
  if x.dtype.kind == "i":  # everything else is alone
    out += 1000 + np.arange(len(out))
  out[tuple(map(slice, x.shape))] = x
  return out


@functools.cache
def program(name):
  return quick_jit(function(name))


def call(name, rows, dtype="float32", **keywords):
  """One advantage under jit, in one precision, on B rows of T or less."""
  parameters = inspect.signature(function(name)).parameters.values()
  keywords = {
      p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY
  } | keywords
  with jax.enable_x64(dtype == "float64"):
    arrays = [padded(k, rows[k]) for k in needs(name)]
    out = program(name)(
        *(jnp.array(x, dtype) if x.dtype.kind == "f" else x for x in arrays),
        **keywords,
    )
  assert out.dtype == dtype
  like = rows["mask_BT" if out.ndim == 2 else "rewards_B"]
  return np.asarray(out)[tuple(map(slice, np.shape(like)))]


def expect(name, rows, **keywords):
  """The same by `reference`."""
  arrays = [rows[k] for k in needs(name)]
  return np.asarray(getattr(reference, name)(*arrays, **keywords))


def real(rows):
  """Rows whose advantage means something."""
  return rows.get("valid_B", np.ones(B, bool))
