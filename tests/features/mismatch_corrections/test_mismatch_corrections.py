"""Corrections in the credit of a step, and in a config."""

import functools

import jax
import numpy as np
import tiny_session
from by_hand import close

from rl_reason.algorithms import advantages, credit
from rl_reason.base import config, feature
from rl_reason.checks import cautions, config_facts
from rl_reason.features.mismatch_corrections import corrections
from rl_reason.monitoring import alerts
from rl_reason.report import head

F = np.float32
MASK_BT = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]], bool)


def assign(correction, *, logps_BT=0, sampler_logps_BT=0, **keywords):
  """Of two groups, whose advantages are 1, -1, -1 and 1."""
  zeros_B, zeros_BT = np.zeros(4, np.int32), np.zeros((4, 3), F)
  rows = dict(
      rewards_B=np.array([1, -1, 0, 2], F),
      groups_B=np.array([4, 4, 6, 6]),
      age_B=zeros_B,
      types_B=zeros_B,
      problems_B=zeros_B,
      mask_BT=MASK_BT,
      logps_BT=zeros_BT + logps_BT,
      sampler_logps_BT=zeros_BT + sampler_logps_BT,
      kl_coef=F(0),
  )
  adjust = functools.partial(corrections.corrected, correction=correction)
  return jax.device_get(
      credit.assign(
          rows,
          advantage=advantages.group_mean,
          adjustments=[*keywords.pop("before", []), adjust],
      )
  )


def test_a_correction_for_the_sampler():
  """Ratios 1/2, 4 (cut at 2) and 1; 0 where there is no token."""
  ratio_BT = np.ones((4, 3), F)
  ratio_BT[0] = [0.5, 4, 1]
  correction = functools.partial(corrections.truncate, high=2.0)
  got = assign(correction, logps_BT=np.log(ratio_BT))
  close(got["advantages_BT"][:2], [[0.5, 2, 1], [-1, -1, 0]], 1e-6)
  mean = got["metrics"]["rollout/correction_mean"]
  close(mean, (0.5 + 2 + 7) / 9, 1e-6)


def test_a_correction_that_reads_the_advantages():
  """log r = .5 in all tokens: far, and A of rows 0 and 3 is above 0.

  It sees what is left by earlier adjustments.
  """
  far = dict(sampler_logps_BT=F(-0.5))
  got = assign(corrections.second_moment, **far)
  wanted_BT = np.array([[0], [-1], [-1], [0]]) * MASK_BT
  close(got["advantages_BT"], np.exp(0.5) * wanted_BT, 1e-6)
  negate = lambda advantages_BT: -advantages_BT  # noqa: E731
  got = assign(corrections.second_moment, before=[negate], **far)
  wanted_BT = np.array([[-1], [0], [0], [-1]]) * MASK_BT
  close(got["advantages_BT"], np.exp(0.5) * wanted_BT, 1e-6)


def test_a_factor_of_each_response():
  def half(mask_BT):
    return 0.5 * mask_BT.any(1, keepdims=True)

  got = assign(half)
  close(got["advantages_BT"][:2], [[0.5] * 3, [-0.5, -0.5, 0]], 1e-6)
  close(got["metrics"]["rollout/correction_mean"], 0.5, 1e-6)


def of(name, **args):
  c = tiny_session.tiny_config()
  c.updates.update(minibatches=1, epochs=1)
  c.correction.name, c.correction.args = name, args
  return c


def test_a_config_asks_for_it():
  """And the log-probs of the trainer are then computed before the update."""
  assert not feature.used(of("none")) and config_facts.on_policy(of("none"))
  c = of("two_sided", low=0.25)
  (one,) = feature.used(c)
  correction = one.adjustment(c).keywords["correction"]
  assert correction.func is corrections.two_sided
  assert correction.keywords == dict(low=0.25)
  assert not config_facts.on_policy(c)


def test_a_sampler_of_lower_precision_is_warned_of_without_it():
  for name, count in (("none", 1), ("truncate", 0)):
    c = of(name)
    c.rollout.weights = "int8"
    lines = [why for _, why in cautions.off_policy(c)]
    assert len(lines) == count
    assert all("correction.name = 'truncate' corrects" in x for x in lines)


def test_an_alert_and_the_report_name_it():
  (rule,) = (x for x in alerts.RULES if x.name == "Sampler-trainer mismatch")
  assert rule.remedy.endswith("correction.name 'truncate' or 'two_sided'")
  fields = config.flat(of("truncate", high=3.0))
  text = head._algorithm(head._Fields(fields))  # pylint: disable=W0212
  assert "; correction truncate (high 3)" in text
  text = head._algorithm(head._Fields(config.flat(of("none"))))
  assert "correction" not in text
