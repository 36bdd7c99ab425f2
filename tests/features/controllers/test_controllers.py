"""Controllers of coefficients: by hand, and what they are refused with."""

import functools

import numpy as np
import pytest
from test_checks import with_fields

from rl_reason.base import functions
from rl_reason.base.errors import ConfigError
from rl_reason.checks import config_checks, config_facts
from rl_reason.features.controllers import adaptive, steering

KL = {
    "kl.kind": "k3",
    "kl.coef": 0.1,
    "kl.controller.name": "adaptive",
    "kl.controller.args.target": 0.1,
}
ENTROPY = {
    "loss.entropy_controller.name": "adaptive",
    "loss.entropy_controller.args.target": 1.0,
}


@pytest.mark.parametrize(
    ("kl", "wanted"),
    [
        # rows / horizon = 1/4; errors 1.1 - 1 = .1, .9 - 1 = -.1, then +-.2.
        (5.5, 2 * 1.025),
        (4.5, 2 * 0.975),
        (5.0, 2),
        (500.0, 2 * 1.05),
        (0.0, 2 * 0.95),
        (-3.0, 2 * 0.95),  # an estimate may be negative
    ],
)
def test_adaptive_kl_by_hand(kl, wanted):
  got = adaptive.adaptive_kl(2.0, kl, 100, target=5.0, horizon=400)
  assert got == pytest.approx(wanted, rel=1e-12)
  slow = adaptive.adaptive_kl(2.0, 6.0, 100, target=5.0)  # horizon 10,000
  assert slow == pytest.approx(2 * 1.002, rel=1e-12)


def test_adaptive_entropy_by_hand():
  """.5 +- .2: up to the target of 1, down above it, not below 0.

  Above the target the loss has no bonus (TRL: `use_adaptive_entropy`).
  """
  after = [
      adaptive.adaptive_entropy(coef, entropy, target=1.0, step=0.2)
      for coef, entropy in [(0.5, 0.9), (0.5, 1.0), (0.5, 3.0), (0.1, 3.0)]
  ]
  np.testing.assert_allclose(after, [[0.7] * 2, [0.7] * 2, [0.3, 0], [0, 0]])
  assert adaptive.adaptive_entropy(0.5, 0.0, target=1.0)[0] == 0.501


@pytest.mark.parametrize("case", ["padding", "failed", "real"])
def test_controllers_wait_for_a_response_that_measures_something(case):
  """Padding has a KL of 0, which says nothing: it must not lower the target."""
  mask_BT = np.array([[case != "padding", False]] * 2)
  rewards_B = np.full(2, np.nan if case == "failed" else 1.0)
  credit = dict(rewards_B=rewards_B, metrics={"kl/reference": 0.0})
  coefs = dict(kl=0.1, entropy=0.2)
  found = steering.steer(
      coefs,
      mask_BT,
      np.ones((2, 2)),
      credit,
      rows=2,
      kl_controller=lambda coef, kl, rows: coef / 2,
      entropy_controller=lambda coef, entropy: coef + entropy,
  )
  moved = dict(kl=0.05, entropy=1.2, entropy_controlled=1.2)
  assert found == (moved if case == "real" else coefs)


def test_an_entropy_bonus_may_be_out_of_the_loss():
  """The coefficient goes on while the entropy is above the target."""
  credit, coefs = dict(rewards_B=np.ones(1)), dict(kl=0.1, entropy=0.2)
  adapt = functools.partial(
      steering.steer, rows=1, kl_controller=None, mask_BT=np.ones((1, 1)) > 0
  )
  controller = functools.partial(
      adaptive.adaptive_entropy, target=1.0, step=0.05
  )
  wanted = [(3.0, 0.15, 0.0), (2.0, 0.10, 0.0), (0.5, 0.15, 0.15)]
  for entropy, coef, in_loss in wanted:
    coefs = adapt(
        coefs,
        entropy_BT=np.full((1, 1), entropy),
        credit=credit,
        entropy_controller=controller,
    )
    assert coefs["entropy_controlled"] == pytest.approx(coef)
    assert coefs["entropy"] == pytest.approx(in_loss)


def test_controllers_read_the_entropy_and_the_kl_before_the_update():
  assert functions.names("kl_controller") == ("fixed", "adaptive")
  one = {"updates.minibatches": 1}
  config_checks.fields(with_fields(one | KL | ENTROPY))
  assert config_facts.on_policy(with_fields(one | {"kl.kind": "k3"}))
  assert not config_facts.on_policy(with_fields(one | KL))
  assert not config_facts.on_policy(with_fields(one | ENTROPY))


@pytest.mark.parametrize(
    "changes, words",
    [
        (KL | {"kl.kind": "none", "kl.coef": 0.0}, "nothing without kl.kind"),
        (KL | {"kl.kind": "full"}, "computed in it: use 'fixed'"),
        (
            KL | {"kl.controller.args.target": -1.0},
            "kl.controller.args.target = -1.0: must be at least",
        ),
    ],
)
def test_controllers_that_cannot_work_are_refused(changes, words):
  with pytest.raises(ConfigError, match=words):
    config_checks.fields(with_fields(changes))


def test_a_controller_needs_a_target():
  c = with_fields({"kl.kind": "k3", "kl.coef": 0.1})
  c.kl.controller.name = "adaptive"
  with pytest.raises(ConfigError, match="args.target: adaptive needs it"):
    config_checks.fields(c)
