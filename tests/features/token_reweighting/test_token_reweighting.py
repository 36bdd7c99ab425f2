"""Reweighting of tokens: by hand, against NumPy, and in a config."""

import numpy as np
import pytest
import reference
import tiny_session
from by_hand import (
    DTYPES,
    NEAR,
    QUICK,
    bools,
    call,
    close,
    floats,
    public,
    same,
)
from hypothesis import given, strategies as st

from rl_reason.algorithms import reductions
from rl_reason.base import feature
from rl_reason.checks import config_facts
from rl_reason.features.token_reweighting import token_factors


def variant(name, *inputs, **keywords):
  return call(getattr(token_factors, name), *inputs, **keywords)


def test_every_function_has_numbers_by_hand():
  tested = {x[5:-8] for x in globals() if x.endswith("_by_hand")}
  assert public(token_factors) <= tested


@pytest.mark.parametrize(
    ("share", "wanted"),
    [
        # Of 7 tokens: 0 is still one; 2/7 and less are two; .4 * 7 = 2.8 is
        # three, and so is the fourth, for it ties with the third.
        (0.0, [[9, 0, 0, 0], [0, 0, 0, 0]]),
        (0.1, [[9, 0, 0, 0], [0, 0, 0, 0]]),
        (0.25, [[9, 0, 0, 0], [0, 8, 0, 0]]),
        (0.4, [[9, 0, 3, 0], [0, 8, 3, 0]]),
        (1.0, [[9, -1, 3, 0], [-2, 8, 3, -5]]),
    ],
)
def test_top_share_by_hand(share, wanted):
  values = np.array([[9.0, -1, 3, 99], [-2, 8, 3, -5]])
  mask = np.array([[1, 1, 1, 0], [1, 1, 1, 1]]) > 0
  got = variant("top_share", values, mask, share)
  assert (values * got).tolist() == wanted


def test_top_share_of_a_hundred_is_not_rounded_up():
  """.3 * 100 is 30.000001 in fp32."""
  got = variant("top_share", [np.arange(100.0)], np.ones((1, 100)) > 0, 0.3)
  assert got.sum() == 30


@given(
    values_BT=floats(4, 5),
    mask_BT=bools(4, 5),
    share=st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0]),
)
@QUICK
def test_top_share_matches_numpy(values_BT, mask_BT, share):
  got = variant("top_share", values_BT, mask_BT, share)
  same(got, reference.top_share(values_BT, mask_BT, share))
  hidden_BT = np.where(mask_BT, values_BT, np.nan)
  same(variant("top_share", hidden_BT, mask_BT, share), got)


@DTYPES
def test_length_factor_by_hand(dtype):
  """Lengths 4, 1, 2 and an empty row: median 2, factors (l / 2)^-1/2.

  Of 4 and 1 alone the median is 2.5.
  """
  mask = np.arange(4) < np.array([4, 1, 2, 0])[:, None]
  got = variant("length_factor", mask * 1.0, 0.5, dtype=dtype)
  close(got, [2**-0.5, 2**0.5, 1, 1], **NEAR[dtype])
  got = variant("length_factor", mask[[0, 1, 3]] * 1.0, 1.0, dtype=dtype)
  close(got, [2.5 / 4, 2.5, 1], **NEAR[dtype])
  got = variant("length_factor", mask * 1.0, 0.0, dtype=dtype)
  assert got.tolist() == [1, 1, 1, 1]


@given(mask_BT=bools(4, 5))
@QUICK
def test_length_factor_matches_numpy(mask_BT):
  got = variant("length_factor", mask_BT * 1.0, 0.25)
  close(got, reference.length_factor(mask_BT, 0.25), **NEAR["float32"])


def test_by_length_by_hand():
  """Lengths 2 and 1, median 1.5: factors .75 and 1.5 with alpha 1."""
  mask_BT = np.array([[1, 1], [1, 0]], np.float32)
  got = token_factors.by_length(
      mask_BT, np.arange(2), reduction=reductions.token_mean, alpha=1.0
  )
  close(got, np.array([[0.75, 0.75], [1.5, 0]]) / 3)


def test_of_high_entropy_by_hand():
  """A third of nine tokens; where the mask is 0 nothing is undecided."""
  entropy_BT = [[0.1, 0.9, 0.2], [0.3, 0.8, 9], [0.7, 9, 9], [0.1, 0.2, 0.3]]
  mask_BT = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]) > 0
  advantages_BT = np.array([[1.0], [-1], [-1], [1]]) * mask_BT
  got = token_factors.of_high_entropy(
      advantages_BT, np.array(entropy_BT), mask_BT, share=1 / 3
  )
  close(got, [[0, 1, 0], [0, -1, 0], [-1, 0, 0], [0, 0, 0]])


def of(**changes):
  c = tiny_session.tiny_config()
  c.loss.update(changes)
  return c


def test_a_config_asks_for_each():
  assert not feature.used(of())
  (one,) = feature.used(of(length_alpha=0.5))
  reduction = one.reduction(of(length_alpha=0.5), reductions.token_mean)
  assert reduction.keywords["alpha"] == 0.5
  assert one.reduction(of(top_entropy=0.5), len) is len
  assert one.adjustment(of(length_alpha=0.5)) is None
  assert one.adjustment(of(top_entropy=0.5)).keywords == dict(share=0.5)


def test_the_entropy_is_computed_before_the_update():
  assert config_facts.on_policy(of(length_alpha=0.5))
  assert not config_facts.on_policy(of(top_entropy=0.5))
