"""One RL step of a config against NumPy, from its grades to its parameters."""

import golden
import golden_papers
import jax
import numpy as np
import pytest
import reference
import reference_model
from conftest import ROOT
from golden import T

wide = golden.wide  # a fixture
DEFAULT = ("dapo", "vapo")
SMOOTH = (  # losses without a clip
    golden_papers.log_likelihood,
    golden_papers.sapo,
    golden_papers.vespo,
    golden_papers.free,
)
near = dict(rtol=1e-9, atol=1e-9)


def param(name):
  marks = () if name in DEFAULT else pytest.mark.slow
  return pytest.param(name, marks=marks)


def test_every_config_has_a_golden_step():
  """Except the configs that change data and models, not the algorithm."""
  names = {path.stem for path in ROOT.glob("configs/*.py")}
  others = {
      "__init__",
      "base",
      "variants",
      "sft",
      "sft_control",
      "reward_model",
  }
  others |= {"dapo_qwen", "gsm8k_scratch", "guess", "calculator", "serve"}
  others |= {"lines", "python", "reasoning_gym"}
  others |= {"chain"}  # PPO and VAPO as they are, on another task
  others |= {"preferences"}  # DAPO after DPO
  others |= {"speedrun"}  # DAPO, with other sizes
  others |= {"distill"}  # tests/features/distillation
  others |= {"smollm2"}  # DAPO of a pretrained model
  others |= {"trl_grpo"}  # tests/test_trl_defaults.py compares it with TRL
  scripts = {"ppo_reward_model"}  # examples/iterative_grpo.py --ppo
  assert names - others | scripts == golden_papers.PAPERS.keys()


@pytest.fixture(params=map(param, golden_papers.PAPERS))
def one(request, wide):
  return golden_papers.step_of(request.param, wide)


def test_rewards_and_advantages_of_a_config(one):
  """Padding gets none, and the NaN that it holds reaches no other row."""
  got = one.credit
  np.testing.assert_allclose(got["rewards_B"][:8], one.known.rewards_B, **near)
  np.testing.assert_allclose(
      got["advantages_BT"][:8], one.advantages_BT, **near
  )
  assert not got["advantages_BT"][8:].any()
  constant = np.ptp(one.known.rewards_B[4:]) == 0
  paper = one.paper
  if constant and paper.group and paper.baseline and not paper.whiten:
    assert not one.advantages_BT[4:].any() and one.advantages_BT[:4].any()


def test_loss_and_gradient_of_a_config(one):
  paper, r = one.paper, one.rows.rollouts

  def logps(leaves):
    return reference_model.response_logps(
        reference_model.nested(leaves), one.cfg, r.tokens_BL, r.start_B, T
    )

  here_BT = logps(one.leaves)

  def loss(leaves):
    logps_BT = logps(leaves)
    loss_BT = paper.loss(
        logps_BT, here_BT, one.rows.old_logps_BT, one.advantages_BT, r.mask_BT
    )
    if paper.kl == ("k2", "loss"):
      loss_BT += one.kl_coef * (logps_BT - one.ref_BT) ** 2 / 2
    if paper.kl == ("abs", "loss"):
      loss_BT += one.kl_coef * abs(logps_BT - one.ref_BT)
    if paper.kl == ("k3_unbiased", "loss"):  # r k3; the gradient is that of r d
      ratio_BT = np.exp(np.where(r.mask_BT, here_BT - one.rows.old_logps_BT, 0))
      d_BT = np.where(r.mask_BT, here_BT - one.ref_BT, 0)
      k3_BT = np.exp(-d_BT) - 1 + d_BT
      loss_BT += one.kl_coef * ratio_BT * (k3_BT + d_BT * (logps_BT - here_BT))
    out = reference.reduce(paper.reduction, loss_BT, r.mask_BT, r.ids_B)
    correct_BT = r.mask_BT * (golden_papers.CORRECT > 0)[:, None]
    return out - paper.nll * reference.masked_mean(logps_BT, correct_BT)

  state, metrics = one.updated[0]
  np.testing.assert_allclose(metrics["loss"], loss(one.leaves), rtol=1e-9)
  assert metrics["staleness_max"] == 0
  if paper.loss not in SMOOTH:
    assert 0 < metrics["pg_clipfrac"] < 1
  assert (metrics["pg_clipfrac_lower"] > 0) == (
      paper.loss is golden_papers.DAPO.loss
  )
  golden.assert_gradient(golden.moved(one.leaves, state), loss, one.leaves)


def test_micro_batches_change_no_config(one):
  """Rows and padding in another order, other rows in a micro-batch."""
  updates = [x for x in (one.updated, one.critic_updated) if x]
  for (state, metrics), (mixed, other) in updates:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11),
        state.params,
        mixed.params,
    )
    for name in metrics:
      np.testing.assert_allclose(
          other[name], metrics[name], rtol=1e-9, atol=1e-12, err_msg=name
      )


@pytest.mark.parametrize("name", [param("ppo"), param("vapo")])
def test_the_critic_of_a_config(name, wide):
  """Values, targets, and the update: values are clipped at .5 from the old."""
  x = golden_papers.step_of(name, wide)
  r, lam = x.rows.rollouts, x.paper.targets
  old_BT = x.known.values_BT
  np.testing.assert_allclose(
      x.values_BT[:8][r.mask_BT], old_BT[r.mask_BT], **near
  )
  targets_BT = old_BT + reference.gae(
      x.known.rewards_BT, old_BT, r.mask_BT, 1.0, lam
  )
  np.testing.assert_allclose(
      x.credit["returns_BT"][:8][r.mask_BT], targets_BT[r.mask_BT], **near
  )
  moved_far = []

  def loss(leaves):
    values_BT = golden_papers.numpy_values(leaves, x.cfg, r)
    moved_far.append(np.abs(values_BT - old_BT)[r.mask_BT] > 0.5)
    losses = [
        reference.value_loss(values_BT[at], old_BT[at], targets_BT[at], 0.5)
        for at in zip(*np.nonzero(r.mask_BT), strict=True)
    ]
    return sum(losses) / len(losses)

  state, metrics = x.critic_updated[0]
  leaves = x.critics[1]
  np.testing.assert_allclose(metrics["vf_loss"], loss(leaves), rtol=1e-9)
  assert 0 < np.mean(moved_far) < 1
  golden.assert_gradient(golden.moved(leaves, state), loss, leaves)
