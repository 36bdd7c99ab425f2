"""Groups of unequal sizes: how many responses each prompt gets."""

import functools

import golden
import jax
import numpy as np
import pytest
import tiny

from rl_reason.features.unequal_groups import group_sizes
from rl_reason.rollout import sampler


@pytest.mark.parametrize(
    "need, batch, wanted",
    [
        ([1, 1, 1], 12, [4, 4, 4]),
        ([1, 1, 2], 10, [3, 2, 5]),  # 2.5, 2.5, 5; the first gets the half
        ([10, 1], 16, [14, 2]),  # 14.5 and 1.5: the least, and the rest
        ([1, 10, 10, 10], 14, [2, 4, 4, 4]),  # 12 as 1 : 1 : 1
        ([0.1, 0.1, 0.1], 6, [2, 2, 2]),  # 1.9999999999999998 is not less
        ([1, 1, 1], 8, [3, 3, 2]),  # the first get what is left
        ([1, 100], 8, [2, 6]),  # never below the least
        ([5, 5], 4, [2, 2]),
    ],
)
def test_proportional_by_hand(need, batch, wanted):
  sizes = group_sizes.proportional(np.array(need, float), batch, 2)
  assert sizes.tolist() == wanted and sizes.sum() == batch


def test_too_few_rows_for_groups():
  with pytest.raises(ValueError, match="5 rows for 3 groups of 2"):
    group_sizes.proportional(np.ones(3), 5, 2)


@pytest.mark.slow
def test_a_response_does_not_depend_on_the_size_of_its_group():
  """Sample s of prompt n has the same tokens among 2 responses as among 6."""
  prompts, sizes_N = tiny.prompts(4), np.array([2, 6, 3, 5])
  params = golden.quick_jit(tiny.params)()

  def sample(group_size, *sizes_N):
    draw = functools.partial(
        sampler.sample, group_size=group_size, max_tokens=12, **tiny.SAMPLER
    )
    args = params, prompts, jax.random.key(3), np.float32(0.8), *sizes_N
    return jax.device_get(draw(*args))

  unequal, equal = sample(4, sizes_N), sample(6)
  rows = np.concatenate([6 * n + np.arange(s) for n, s in enumerate(sizes_N)])
  for name in ("tokens_BL", "start_B", "lengths_B"):
    wanted = getattr(equal, name)[rows]
    np.testing.assert_array_equal(getattr(unequal, name), wanted, name)
  np.testing.assert_array_equal(unequal.ids_B, np.repeat(np.arange(4), sizes_N))
  np.testing.assert_allclose(unequal.logps_BT, equal.logps_BT[rows], atol=1e-4)
  assert len({row.tobytes() for row in unequal.tokens_BL}) > 8
