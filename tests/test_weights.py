"""Reductions: weights by hand, against definitions, and invariances."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given, settings, strategies as st

from rl_reason.algorithms import reductions

NAMES = [
    "token_mean",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "constant",
    "prompt_token_mean",
]
MEANS = ["token_mean", "seq_mean_token_mean", "prompt_token_mean"]
JITTED = {
    name: jax.jit(
        getattr(reductions, name),
        compiler_options={"xla_backend_optimization_level": 0},
    )
    for name in NAMES
}
QUICK = settings(max_examples=20, deadline=None, derandomize=True)
# Six rows of four tokens; a mask may have holes (a tool's turn) or be empty.
MASKS = st.lists(
    st.lists(st.booleans(), min_size=4, max_size=4), min_size=6, max_size=6
)
GROUPS = st.lists(st.sampled_from([0, 9, -1, -3]), min_size=6, max_size=6)
LOSSES_BT = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
  with jax.enable_x64(request.param == "float64"):
    yield np.dtype(request.param)


def call(name, mask, groups, dtype=np.float32):
  """One reduction under jit: few shapes, so few programs."""
  mask_BT, groups_B = jnp.array(mask, dtype), jnp.array(groups, jnp.int32)
  out_BT = np.asarray(JITTED[name](mask_BT, groups_B))
  assert out_BT.dtype == dtype
  return out_BT


# Lengths 3, 1, 0, 2 (with a hole), 6 tokens in all; T = 4. Row 2 is empty: it
# counts nowhere, so there are 3 responses. Rows 0 to 2 are one prompt (4
# tokens), row 3 another (2 tokens).
MASK_BT = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0]])
GROUPS_B = np.array([5, 5, 5, -5])
BY_HAND = {  # the weight of each token of row 0, row 1 and row 3
    "token_mean": (1 / 6, 1 / 6, 1 / 6),
    "seq_mean_token_mean": (1 / 3 / 3, 1 / 3 / 1, 1 / 3 / 2),
    "seq_mean_token_sum": (1 / 3, 1 / 3, 1 / 3),
    "constant": (1 / (3 * 4), 1 / (3 * 4), 1 / (3 * 4)),
    "prompt_token_mean": (1 / 2 / 4, 1 / 2 / 4, 1 / 2 / 2),
}


@pytest.mark.parametrize("name", NAMES)
def test_by_hand(name, dtype):
  got = call(name, MASK_BT, GROUPS_B, dtype)
  first, second, last = BY_HAND[name]
  wanted = MASK_BT * np.array([first, second, 0, last])[:, None]
  np.testing.assert_allclose(got, wanted, rtol=2e-7)


@pytest.mark.parametrize("name", NAMES)
def test_empty_mask(name, dtype):
  """A step without any token is a loss of 0, not NaN."""
  got = call(name, np.zeros((6, 4)), [0] * 6, dtype)
  np.testing.assert_array_equal(got, np.zeros((6, 4)))


@pytest.mark.parametrize("name", NAMES)
@given(mask=MASKS, groups=GROUPS)
@QUICK
def test_matches_definition(name, mask, groups):
  """sum(w * loss) is the reduction, written as nested means of lists."""
  wanted = reference.reduce(name, LOSSES_BT.astype(float), mask, groups)
  got = (call(name, mask, groups) * LOSSES_BT).sum()
  np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
  with jax.enable_x64(True):
    got = (call(name, mask, groups, np.float64) * LOSSES_BT).sum()
  np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
@given(mask=MASKS, groups=GROUPS, data=st.data())
@QUICK
def test_invariances(name, mask, groups, data):
  mask, groups = np.array(mask), np.array(groups)
  got = call(name, mask, groups)
  assert (got >= 0).all()
  assert (got[~mask] == 0).all(), "a masked token weighs nothing"
  if name in MEANS and mask.any():
    np.testing.assert_allclose(got.sum(), 1, rtol=1e-6)

  order = np.array(data.draw(st.permutations(range(6))))
  np.testing.assert_allclose(
      call(name, mask[order], groups[order]), got[order], rtol=1e-6
  )
  # Every group keeps its rows, so a step may be cut anywhere.
  relabel = {g: 40 + n for n, g in enumerate(sorted(set(groups)))}
  np.testing.assert_allclose(
      call(name, mask, [relabel[g] for g in groups]), got, rtol=1e-6
  )
  parts = [(got[b : b + 2] * LOSSES_BT[b : b + 2]).sum() for b in (0, 2, 4)]
  np.testing.assert_allclose(
      sum(parts), (got * LOSSES_BT).sum(), rtol=1e-5, atol=1e-6
  )


@pytest.mark.parametrize("name", NAMES)
def test_padding_rows_change_nothing(name):
  """Empty rows, in a group of their own or in another's, leave all counts."""
  mask_BT = np.concatenate([MASK_BT, np.zeros((2, 4))])
  got = call(name, mask_BT, [*GROUPS_B, -1, -5])
  alone = call(name, MASK_BT, GROUPS_B)
  np.testing.assert_allclose(got[:4], alone, rtol=1e-6)
  np.testing.assert_array_equal(got[4:], 0)


def test_what_each_reduction_does_to_length():
  """A long answer beside a short one: whose tokens weigh more."""
  mask = [[1, 1, 1, 1], [1, 0, 0, 0], *[[0, 0, 0, 0]] * 4]
  for name, ratio in {
      "seq_mean_token_mean": 4,  # GRPO's length bias: 1 token against 4
      "prompt_token_mean": 4,  # here each row is a prompt
      "token_mean": 1,
      "seq_mean_token_sum": 1,
      "constant": 1,
  }.items():
    long_, short = call(name, mask, range(6))[:2, 0]
    np.testing.assert_allclose(short / long_, ratio)


def test_constant_divides_by_the_longest_response_allowed():
  """Dr.GRPO: N x L_max; a token's weight is the same beside longer rows."""
  short = call("constant", [[1, 0, 0, 0]] * 6, [0] * 6)
  full = call("constant", [[1, 1, 1, 1]] * 6, [0] * 6)
  assert short[0, 0] == full[0, 0] == np.float32(1 / 24)
