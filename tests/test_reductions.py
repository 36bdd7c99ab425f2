"""Reductions: by hand, against definitions, and invariances."""

import inspect

import jax.numpy as jnp
import numpy as np
import pytest
import reference
from by_hand import (
    DTYPES,
    NEAR,
    QUICK,
    bools,
    call,
    close,
    floats,
    ids,
    public,
    same,
)
from hypothesis import given, strategies as st

from rl_reason.algorithms import reductions

OF_GROUPS = ["group_sum", "group_max", "group_constant"]
OF_TOKENS = ["row_mean", "masked_mean", "varies", "whiten"]
AGGREGATIONS = [
    "token_mean",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "token_sum",
    "constant",
    "prompt_token_mean",
]
MEANS = ["token_mean", "seq_mean_token_mean", "prompt_token_mean"]


def reduce(name, *inputs, dtype="float32", **keywords):
  return call(getattr(reductions, name), *inputs, dtype=dtype, **keywords)


# Group 7 is rows 0, 2, 3 (1, 5, -2); group -4 is row 1 alone; group 0 is rows
# 4 and 5, which are equal.
VALUES_B, IDS_B = [1.0, 8, 5, -2, 0.7, 0.7], [7, -4, 7, 7, 0, 0]
# Row means 2 (of 1 and 3), 8 and, of nothing, 0; (1 + 3 + 8) / 3 = 4; squares
# 9 + 1 + 16 = 26, unbiased variance 13; with an eps of 3 the divisor is 4.
VALUES_BT = [[1.0, 99, 3], [8, 99, 99], [99, 99, 99]]
SOME_BT = np.array([[1, 0, 1], [1, 0, 0], [0, 0, 0]]) > 0
# Lengths 3, 1, 0, 2 (with a hole), 6 tokens in all; T = 4. Row 2 is empty: it
# counts nowhere, so there are 3 responses. Rows 0 to 2 are one prompt (4
# tokens), row 3 another (2 tokens).
MASK_BT = np.array(
    [[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0]], float
)
PROMPTS_B = np.array([5, 5, 5, -5])


def weights(first, second, last):
  """MASK_BT with the weights of the tokens of rows 0, 1 and 3."""
  return MASK_BT * np.array([first, second, 0, last])[:, None]


BY_HAND = [  # (name, inputs, keywords, wanted)
    ("group_sum", (VALUES_B, IDS_B), {}, [4, 8, 4, 4, 1.4, 1.4]),
    (
        "group_sum",
        (VALUES_B, IDS_B),
        dict(exclude_self=True),
        [3, 0, -1, 6, 0.7, 0.7],
    ),
    ("group_max", (VALUES_B, IDS_B), {}, [5, 8, 5, 5, 0.7, 0.7]),
    ("group_constant", (VALUES_B, IDS_B), {}, [0, 1, 0, 0, 1, 1]),
    ("row_mean", (VALUES_BT, SOME_BT), {}, [2, 8, 0]),
    ("masked_mean", (VALUES_BT, SOME_BT), {}, 4),
    ("masked_mean", (VALUES_BT, 0 * SOME_BT), {}, 0),
    ("varies", (VALUES_BT, SOME_BT), {}, 1),
    ("varies", (VALUES_BT, np.eye(3)[[1, 1, 2]] > 0), {}, 0),  # 99, 99, 99
    ("varies", (VALUES_BT, 0 * SOME_BT), {}, 0),
    (
        "whiten",
        (VALUES_BT, SOME_BT),
        {},
        np.array([[-3, 0, -1], [4, 0, 0], [0, 0, 0]]) / np.sqrt(13 + 1e-8),
    ),
    (
        "whiten",
        (VALUES_BT, SOME_BT),
        dict(eps=3.0),
        [[-0.75, 0, -0.25], [1, 0, 0], [0, 0, 0]],
    ),
    ("token_mean", (MASK_BT, PROMPTS_B), {}, weights(1 / 6, 1 / 6, 1 / 6)),
    (
        "seq_mean_token_mean",
        (MASK_BT, PROMPTS_B),
        {},
        weights(1 / 9, 1 / 3, 1 / 6),
    ),
    (
        "seq_mean_token_sum",
        (MASK_BT, PROMPTS_B),
        {},
        weights(1 / 3, 1 / 3, 1 / 3),
    ),
    ("token_sum", (MASK_BT, PROMPTS_B), {}, weights(1, 1, 1)),
    ("constant", (MASK_BT, PROMPTS_B), {}, weights(1 / 12, 1 / 12, 1 / 12)),
    (
        "prompt_token_mean",
        (MASK_BT, PROMPTS_B),
        {},
        weights(1 / 8, 1 / 8, 1 / 4),
    ),
]


@DTYPES
@pytest.mark.parametrize(
    ("name", "inputs", "keywords", "wanted"),
    BY_HAND,
    ids=[x[0] for x in BY_HAND],
)
def test_by_hand(name, inputs, keywords, wanted, dtype):
  close(reduce(name, *inputs, dtype=dtype, **keywords), wanted, **NEAR[dtype])


def test_every_reduction_has_numbers_by_hand():
  assert {x[0] for x in BY_HAND} == public(reductions)
  assert {*OF_GROUPS, *OF_TOKENS, *AGGREGATIONS} == public(reductions)
  for name in AGGREGATIONS:
    parameters = inspect.signature(getattr(reductions, name)).parameters
    assert list(parameters) == ["mask_BT", "groups_B"]


# --- groups ------------------------------------------------------------------


@pytest.mark.parametrize("name", OF_GROUPS)
@given(values_B=floats(6), ids_B=ids(6), data=st.data())
@QUICK
def test_groups_match_numpy(name, values_B, ids_B, data):
  got = reduce(name, values_B, ids_B)
  same(got, getattr(reference, name)(values_B, ids_B))
  order = np.array(data.draw(st.permutations(range(6))))
  same(reduce(name, values_B[order], ids_B[order]), got[order])
  # Names of groups mean nothing, nor does the sign of an id.
  _, other_B = np.unique(-ids_B.astype(np.int64), return_inverse=True)
  same(reduce(name, values_B, np.int32(50 - other_B)), got)


def test_the_sum_of_the_others_keeps_their_digits():
  """1 + 1e9 - 1e9 is 0 in fp32; bf16 cannot count beyond 256."""
  got = reduce("group_sum", [1e9, 0.5, 0.25], [3, 3, 3], exclude_self=True)
  assert got[0] == 0.75
  ones_B = jnp.ones(1024, "bfloat16")
  assert (reductions.group_sum(ones_B, jnp.zeros(1024, int)) == 1024).all()


# --- tokens ------------------------------------------------------------------


@given(values_BT=floats(4, 5), mask_BT=bools(4, 5), data=st.data())
@QUICK
def test_tokens_match_numpy(values_BT, mask_BT, data):
  order = np.array(data.draw(st.permutations(range(4))))
  for name in ("row_mean", "masked_mean", "whiten"):
    got = reduce(name, values_BT, mask_BT)
    wanted = getattr(reference, name)(values_BT, mask_BT)
    close(got, wanted, **NEAR["float32"], err_msg=name)
    moved = reduce(name, values_BT[order], mask_BT[order])
    wanted = got if name == "masked_mean" else got[order]
    close(moved, wanted, **NEAR["float32"], err_msg=name)
    # A masked position may hold anything.
    same(reduce(name, np.where(mask_BT, values_BT, np.nan), mask_BT), got)


@DTYPES
@pytest.mark.parametrize("value", [0.7, 0.1, -1e10])
def test_whitening_equal_tokens_makes_no_signal(value, dtype):
  """The mean of seven float32 0.7 is not 0.7."""
  mask = np.arange(10).reshape(2, 5) < 7
  got = reduce("whiten", np.full((2, 5), value), mask, dtype=dtype)
  assert (got == 0).all()


# --- aggregations of the loss ------------------------------------------------

# Six rows of four tokens; a mask may have holes (a tool's output) or be empty.
LOSSES_BT = np.random.default_rng(0).normal(size=(6, 4))


@pytest.mark.parametrize("name", AGGREGATIONS)
@given(mask_BT=bools(6, 4), prompts_B=ids(6), data=st.data())
@QUICK
def test_matches_definition(name, mask_BT, prompts_B, data):
  """sum(w * loss) is the aggregation, written as nested means of lists."""
  got = reduce(name, 1.0 * mask_BT, prompts_B)
  wanted = reference.reduce(name, LOSSES_BT, mask_BT, prompts_B)
  close((got * LOSSES_BT).sum(), wanted, rtol=1e-5, atol=1e-6)
  assert (got >= 0).all() and (got[~mask_BT] == 0).all()
  if name in MEANS and mask_BT.any():
    close(got.sum(), 1, rtol=1e-6)
  order = np.array(data.draw(st.permutations(range(6))))
  moved = 1.0 * mask_BT[order], prompts_B[order]
  close(reduce(name, *moved), got[order], rtol=1e-6)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_empty_masks(name):
  """A step without any token is a loss of 0; empty rows leave all counts."""
  assert (reduce(name, np.zeros((6, 4)), [0] * 6) == 0).all()
  mask_BT = np.concatenate([MASK_BT, np.zeros((2, 4))])
  got = reduce(name, mask_BT, [*PROMPTS_B, -1, -5])
  close(got[:4], reduce(name, MASK_BT, PROMPTS_B), rtol=1e-6)
  same(got[4:], 0)
