"""The named algorithms by their papers, and one RL step of each config.

`step_of` runs a config's programs on eight responses, from their grades to the
next parameters, and computes by NumPy what they should have been.
"""

import dataclasses
import functools
import importlib
import pathlib
import types
from collections.abc import Callable
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import padded
import reference
import reference_model
from conftest import example
from golden import OPTIONS, P, T, on_device, random_leaves, random_rows
from tiny_session import programs

from rl_reason.base import config
from rl_reason.base.structs import Experience, Rollouts
from rl_reason.checks import config_checks, config_facts
from rl_reason.collect import experience
from rl_reason.devices import device_mesh, sharding
from rl_reason.stages import build_step
from rl_reason.stages.model import Model, critic_config
from rl_reason.training import optimizer, packing, step

# Eight responses: two groups of four, or eight prompts with one response each.
LENGTHS = np.array([5, 5, 2, 3, 1, 4, 2, 5])
CORRECT = np.array([0.0, 1, 0, 1, 0, 0, 0, 0])  # the second group: no variance
TRUNCATED = np.array([1, 0, 0, 0, 0, 0, 0, 1], bool)
# Log-ratios of tokens: 1, inside of every clip, outside on both sides, beyond
# CISPO's bound and the dual clip. GSPO looks at means of rows: the same there.
RATIOS = np.array([0, 0.1, -0.15, 0.5, -0.5, 1.8, 2.6])
ROW_RATIOS = np.array([0.3, 0.01, -0.2, 0.2, 0.0, 0.1, -0.1, 0.02])


@dataclasses.dataclass
class Known:
  """What an advantage is computed from, of the eight rows, by NumPy alone."""

  rewards_B: np.ndarray  # a KL in the reward included
  rewards_BT: np.ndarray
  groups_B: np.ndarray
  mask_BT: np.ndarray
  values_BT: np.ndarray
  old_logps_BT: np.ndarray
  sampler_logps_BT: np.ndarray
  squares_BT: np.ndarray  # of probabilities, summed over the vocabulary


def clipped(low, high, dual=0.0):
  def loss(logps_BT, _, old_BT, advantages_BT, mask_BT):
    out_BT = np.zeros(mask_BT.shape)
    for at in zip(*np.nonzero(mask_BT), strict=True):
      out_BT[at] = reference.policy_loss(
          logps_BT[at] - old_BT[at], advantages_BT[at], low, high, dual
      )
    return out_BT

  return loss


def gspo(logps_BT, _, old_BT, advantages_BT, mask_BT):
  """One number a response, for each of its tokens."""
  out_BT = np.zeros(mask_BT.shape)
  for b, mask in enumerate(mask_BT):
    (advantage,) = set(advantages_BT[b, mask])
    out_BT[b, mask] = reference.gspo(
        logps_BT[b, mask], old_BT[b, mask], advantage, 0.03, 0.04
    )
  return out_BT


def cispo(logps_BT, here_BT, old_BT, advantages_BT, mask_BT):
  """The weights stay where they are, at `here_BT`: no gradient."""
  out_BT = np.zeros(mask_BT.shape)
  for at in zip(*np.nonzero(mask_BT), strict=True):
    out_BT[at] = reference.cispo(
        logps_BT[at], old_BT[at], advantages_BT[at], 1.0, 4.0, here_BT[at]
    )
  return out_BT


def sapo(logps_BT, _, old_BT, advantages_BT, mask_BT):
  out_BT = np.zeros(mask_BT.shape)
  for at in zip(*np.nonzero(mask_BT), strict=True):
    out_BT[at] = reference.sapo(
        logps_BT[at] - old_BT[at], advantages_BT[at], 1.0, 1.05
    )
  return out_BT


def gmpo(logps_BT, _, old_BT, advantages_BT, mask_BT):
  """One number a response, for each of its tokens."""
  out_BT = np.zeros(mask_BT.shape)
  for b, mask in enumerate(mask_BT):
    (advantage,) = set(advantages_BT[b, mask])
    out_BT[b, mask] = reference.gmpo(
        logps_BT[b, mask], old_BT[b, mask], advantage, 0.4
    )
  return out_BT


def dppo(logps_BT, here_BT, old_BT, advantages_BT, mask_BT):
  """Masks and weights stay where they are, at `here_BT`: no gradient."""
  out_BT = np.zeros(mask_BT.shape)
  for at in zip(*np.nonzero(mask_BT), strict=True):
    out_BT[at] = reference.dppo(
        logps_BT[at], old_BT[at], advantages_BT[at], 0.2, 20.0, here_BT[at]
    )
  return out_BT


def vespo(logps_BT, here_BT, old_BT, advantages_BT, mask_BT):
  """The weights stay where they are, at `here_BT`: no gradient."""
  out_BT = np.zeros(mask_BT.shape)
  for b, mask in enumerate(mask_BT):
    (advantage,) = set(advantages_BT[b, mask])
    ratio = np.exp(here_BT[b, mask].sum() - old_BT[b, mask].sum())
    weight = reference.vespo(ratio, advantage)
    out_BT[b, mask] = -weight * advantage * logps_BT[b, mask]
  return out_BT


def sequence_mask(logps_BT, here_BT, old_BT, advantages_BT, mask_BT):
  """PPO's loss; rows with A < 0 that have drifted at `here_BT` have none."""
  drift_B = reference.row_mean(old_BT - here_BT, mask_BT)
  far_BT = (advantages_BT < 0) & (drift_B > 0.5)[:, None]
  return np.where(
      far_BT,
      0,
      clipped(0.2, 0.2)(logps_BT, here_BT, old_BT, advantages_BT, mask_BT),
  )


def free(logps_BT, _, old_BT, advantages_BT, mask_BT):
  """The ratio without a clip."""
  return -np.exp((logps_BT - old_BT) * mask_BT) * advantages_BT * mask_BT


def log_likelihood(logps_BT, _, old_BT, advantages_BT, mask_BT):
  return -advantages_BT * logps_BT * mask_BT


@dataclasses.dataclass
class Paper:
  """An algorithm by its paper; the config has to say the same.

  Attributes:
    advantage: of a `Known`: one number a response or a token.
    loss: per token, of log-probs (twice: the second are constants), old ones,
      advantages and mask.
    reduction: by its name in `reference`.
    correct: reward of a correct answer.
    incorrect: reward of an incorrect answer.
    overlong: whether DAPO's soft overlong punishment is on.
    kl: estimator and place of a KL to the reference.
    nll: coefficient of the NLL of the correct responses.
    whiten: whether advantages are whitened over all tokens.
    targets: lambda of the critic's targets; None: there is no critic.
    group: whether there are several responses to a prompt.
    fields: of the config that show only outside of an update.
    scores: of functions of the reward, with their weights.
    baseline: whether rewards are compared; equal ones then have no signal.
  """

  advantage: Callable
  loss: Callable = clipped(0.2, 0.2)
  reduction: str = "seq_mean_token_mean"
  correct: float = 1.0
  incorrect: float = -1.0
  overlong: bool = False
  kl: tuple[str, str] = ("none", "loss")
  nll: float = 0.0
  whiten: bool = False
  targets: float | None = None
  group: bool = True
  fields: dict = dataclasses.field(default_factory=dict)
  scores: tuple[tuple[np.ndarray, float], ...] = ()
  baseline: bool = True


def of_group(function, *more):
  """An advantage from rewards and groups."""
  return lambda x: getattr(reference, function)(x.rewards_B, x.groups_B, *more)


GRPO = Paper(of_group("group_norm", 1e-6, 1))
DAPO = dataclasses.replace(
    GRPO,
    loss=clipped(0.2, 0.28, 10.0),
    reduction="token_mean",
    overlong=True,
    fields={"dynamic_sampling.enabled": True},
)
PPO = Paper(
    lambda x: reference.gae(x.rewards_BT, x.values_BT, x.mask_BT, 1.0, 0.95),
    whiten=True,
    targets=0.95,
    group=False,
)
REINFORCE = Paper(
    lambda x: x.rewards_B - x.rewards_B.mean(),
    loss=log_likelihood,
    reduction="seq_mean_token_sum",
    group=False,
    fields={"updates.minibatches": 1, "updates.epochs": 1},  # on-policy
)
SCORES = (  # of eight responses, with the weights of configs/gdpo.py
    (np.array([0.5, 1, 0.25, 1, 0, 0.75, 0.75, 0.5]), 0.5),
    (np.array([1, 1, 0.4, 0.6, 0.2, 0.8, 0.4, 1]), -0.1),
)


def gdpo(x):
  """The verdict and the functions, each normalised in its group."""
  parts = ((np.where(CORRECT > 0, 1.0, -1.0), 1.0), *SCORES)
  return sum(
      weight * reference.group_norm(part_B, x.groups_B)
      for part_B, weight in parts
  )


def m2po(x):
  """GRPO's, times the ratio to the sampler, or 0 for the furthest tokens."""
  advantages_B = reference.group_norm(x.rewards_B, x.groups_B)
  advantages_BT = np.where(x.mask_BT, advantages_B[:, None], 0)
  return advantages_BT * reference.second_moment(
      x.old_logps_BT, x.sampler_logps_BT, x.mask_BT, advantages_BT, 0.04
  )


LITE_PPO = Paper(
    lambda x: reference.group_mean_batch_std(
        x.rewards_B, x.groups_B, np.ones(8), 1e-6, 1
    ),
    reduction="token_mean",
)
PAPERS = {
    "ppo": PPO,
    "ppo_reward_model": dataclasses.replace(
        PPO,
        correct=0.0,
        incorrect=0.0,  # the score of the reward model is the reward
        scores=((np.array([0.5, -1, 2, 1.5, -3, 0, 0.25, 4]), 1.0),),
        kl=("k1", "reward"),
    ),
    "grpo": GRPO,
    "dr_grpo": Paper(
        of_group("group_mean"), reduction="constant", incorrect=0.0
    ),
    "reinforce": REINFORCE,
    "rloo": dataclasses.replace(
        REINFORCE,
        advantage=of_group("leave_one_out"),
        kl=("k1", "reward"),
        group=True,
    ),
    "reinforce_pp": Paper(
        lambda x: reference.returns_to_go(x.rewards_BT, x.mask_BT),
        kl=("k1", "reward"),
        whiten=True,
        group=False,
    ),
    "reinforce_pp_baseline": Paper(
        of_group("group_mean"), kl=("k2", "loss"), whiten=True
    ),
    "dapo": DAPO,
    "countdown": DAPO,
    "xor": dataclasses.replace(DAPO, overlong=False),
    "vapo": dataclasses.replace(
        PPO,
        advantage=lambda x: reference.gae_length_adaptive(
            x.rewards_BT, x.values_BT, x.mask_BT, 1.0, 1.0
        ),
        loss=clipped(0.2, 0.28),
        reduction="token_mean",
        nll=0.1,
        targets=1.0,
        group=True,
    ),
    "gspo": dataclasses.replace(GRPO, loss=gspo),
    "cispo": dataclasses.replace(GRPO, loss=cispo, reduction="token_mean"),
    "max_rl": Paper(of_group("max_rl"), incorrect=0.0),
    "sapo": dataclasses.replace(GRPO, loss=sapo),
    "gmpo": dataclasses.replace(GRPO, loss=gmpo),
    "luspo": dataclasses.replace(
        GRPO, loss=gspo, reduction="seq_mean_token_sum"
    ),
    "dppo": dataclasses.replace(GRPO, loss=dppo, reduction="token_mean"),
    "vespo": dataclasses.replace(GRPO, loss=vespo, reduction="token_mean"),
    "opo": dataclasses.replace(
        REINFORCE,
        advantage=lambda x: reference.opo(
            x.rewards_B, x.groups_B, x.mask_BT.sum(1)
        ),
        group=True,
    ),
    "otb": Paper(
        lambda x: reference.optimal_token_baseline(
            x.rewards_B,
            x.rewards_BT,
            x.groups_B,
            x.old_logps_BT,
            x.squares_BT,
            x.mask_BT,
        ),
        loss=log_likelihood,
        reduction="token_mean",
        fields={"updates.minibatches": 1, "updates.epochs": 1},  # on-policy
    ),
    "pass_at_k": Paper(of_group("pass_at_k", 2)),
    "w_reinforce": dataclasses.replace(
        REINFORCE,
        advantage=lambda x: np.where(x.rewards_B > 0, 0.1, -1.0),
        group=True,
        baseline=False,
    ),
    "deepseek_v3_2": Paper(
        of_group("group_mean"), loss=sequence_mask, kl=("k3_unbiased", "loss")
    ),
    "token_sum": dataclasses.replace(GRPO, reduction="token_sum"),
    "abs_kl": dataclasses.replace(GRPO, kl=("abs", "loss")),
    "m2po": Paper(
        m2po,
        loss=free,
        reduction="token_mean",
        fields={"rl.staleness": 8, "rl.old_logps": "trainer"},
    ),
    "gdpo": Paper(gdpo, whiten=True, scores=SCORES),
    "lite_ppo": LITE_PPO,
    "scale_rl": dataclasses.replace(
        LITE_PPO,
        loss=cispo,
        reduction="prompt_token_mean",
        fields={
            "model.logits_dtype": "float32",
            "dynamic_sampling.enabled": True,
            "dynamic_sampling.shortfall": "pad",  # dropped, not replaced
            "rollout.retire_rate": 0.9,
        },
    ),
}


def config_of(name):
  """The config of a preset, or of a run that a script makes."""
  if name == "ppo_reward_model":  # its reward is a model's score
    script = example("iterative_grpo")
    c = script.get_config(critic=True)
    return script.of_round(c, 1, pathlib.Path("rounds"), "rounds/model")
  return importlib.import_module(f"configs.{name}").get_config()


def small(name):
  """A config cut down to these rows; its algorithm stays."""
  c = config_of(name)
  config_checks.fields(c)
  fields = config.flat(c)
  for field, wanted in PAPERS[name].fields.items():
    assert fields[field] == wanted, field
  assert (c.rollout.group_size > 1) == PAPERS[name].group
  assert (c.reward.overlong_buffer > 0) == PAPERS[name].overlong
  assert (c.critic.pretrain_steps > 0) == (name == "vapo")
  group = 4 if PAPERS[name].group else 1
  c.rollout.update(batch=16, group_size=group, max_prompt=P, max_tokens=T)
  if name == "pass_at_k":
    c.advantage.args.k = 2  # of groups of 4
  c.updates.update(minibatches=1, token_budget=2 * (P + T))
  c.optimizer.update(name="sgd", lr=1.0, clip_norm=0.0)
  c.critic.lr = 1.0
  c.reward.overlong_buffer = min(c.reward.overlong_buffer, 3)
  config_checks.fields(c)
  return c


def eight_rows(group_size, loss, leaves, cfg, scores=()):
  """The responses, and the reference's log-probs."""
  rng = np.random.default_rng(5)
  tokens_BL, start_B, _ = random_rows(8)
  mask_BT = np.arange(T) < LENGTHS[:, None]
  mask_BT[1, 2] = False
  logps_BT = reference_model.response_logps(
      reference_model.nested(leaves), cfg, tokens_BL, start_B, T
  )
  ratios_BT = np.zeros((8, T))
  for correct in (0, 1):  # every ratio with both signs of the advantage
    rows_BT = mask_BT & (correct == CORRECT)[:, None]
    ratios_BT[rows_BT] = np.resize(RATIOS, rows_BT.sum())
  if loss is gspo:
    means_B = reference.row_mean(ratios_BT, mask_BT)
    ratios_BT += (ROW_RATIOS - means_B)[:, None]
  if loss is sequence_mask:
    ratios_BT[0] -= 1  # an incorrect response, beyond the threshold
  group_B = np.arange(8, dtype=np.int32) // group_size
  rows = Experience(
      rollouts=Rollouts(
          tokens_BL=tokens_BL,
          start_B=start_B,
          ids_B=group_B,
          mask_BT=mask_BT,
          logps_BT=logps_BT,
          lengths_B=LENGTHS,  # int64: else the punishment is in float32
          truncated_B=TRUNCATED,
      ),
      correct_B=CORRECT,
      scores_EB=tuple(score_B for score_B, _ in scores),
      old_logps_BT=logps_BT - ratios_BT,
      stale_lengths_B=np.zeros(8, np.int32),
      age_B=np.zeros(8, np.int32),
      types_B=np.full(8, 3, np.int32),
      problems_B=group_B,
  )
  return rows, rows.old_logps_BT + rng.choice([0.3, -0.4, 1.0], (8, T))


def critic_leaves(leaves, seed):
  """Another trunk and a head. Flat tree."""
  rng = np.random.default_rng(seed)
  out = {
      f"trunk/{name}": x + rng.normal(0, 0.1, x.shape)
      for name, x in leaves.items()
      if name != "head"
  }
  width = len(leaves["norm"])
  return out | {
      "value_head/value": rng.normal(0, 0.5, (width, 1)),
      "value_head/bias": np.array([0.3]),
  }


def numpy_values(leaves, cfg, rows):
  """V of the prefix before each token; heads as in `critic`."""
  params = reference_model.nested(leaves)
  trunk = params["trunk"] | dict(head=np.eye(cfg.width))  # logits: its states
  cfg = dataclasses.replace(cfg, tied=False)
  out_BT = []
  for tokens_L, start in zip(rows.tokens_BL, rows.start_B, strict=True):
    hidden_LD = reference_model.row_logits(trunk, cfg, tokens_L[start:])
    head = params["value_head"]
    out_BT.append((hidden_LD @ head["value"] + head["bias"])[-T - 1 : -1, 0])
  return np.array(out_BT)


def numpy_squares(leaves, cfg, rows):
  """sum_v p_v^2 of the distribution that each response token comes from."""
  out_BT = []
  for tokens_L, start in zip(rows.tokens_BL, rows.start_B, strict=True):
    params = reference_model.nested(leaves)
    probs_LV = reference.softmax(
        reference_model.row_logits(params, cfg, tokens_L[start:])
    )
    out_BT.append((probs_LV**2).sum(1)[-T - 1 : -1])
  return np.array(out_BT)


def model_of(c, cfg) -> Model:
  """The networks of a config on one device."""
  mesh = device_mesh.make_mesh(1, 1, 1, jax.devices()[:1])
  return Model(cfg, critic_config(c, cfg), mesh)


class Quick:
  """`CompiledOnce`, compiled as `golden.quick_jit` does."""

  def __init__(self, name, fn, display):
    del name, display
    self._fn, self._compiled = fn, None

  def __call__(self, *args):
    self._compiled = self._compiled or self._fn.lower(*args).compile(OPTIONS)
    return self._compiled(*args)


def plan_of(rows, order_B) -> packing.PackingPlan:
  """One minibatch in several micro-batches of two packed rows."""
  order_MB = order_B[None]
  rollouts_MB = jax.tree.map(lambda x: x[order_MB], rows.rollouts)
  packed_M = padded.packed(rollouts_MB, len(order_B) // 2)
  assert packed_M.segments_RL.any((-2, -1)).sum() > 1
  return packing.PackingPlan(order_MB, packed_M)


@functools.cache
def step_of(name, cfg):
  """One RL step of a config by the package, and what NumPy knows of it.

  Eight rows and eight of padding, in several micro-batches; then the same rows
  in another order, in other micro-batches.
  """
  c, paper = small(name), PAPERS[name]
  leaves = random_leaves(cfg)
  rows, ref_BT = eight_rows(
      c.rollout.group_size, paper.loss, leaves, cfg, paper.scores
  )
  mask_BT = rows.rollouts.mask_BT
  critics = [critic_leaves(leaves, seed) for seed in (0, 1)]

  # NumPy: rewards, values and advantages.
  rewards_B = np.where(CORRECT > 0, paper.correct, paper.incorrect)
  if paper.overlong:
    rewards_B += [
        reference.soft_overlong(n, T, c.reward.overlong_buffer)
        for n in mask_BT.sum(1)
    ]
  rewards_B += sum(weight * score_B for score_B, weight in paper.scores)
  kl_BT = (rows.old_logps_BT - ref_BT) * mask_BT
  coef = c.kl.coef * (paper.kl == ("k1", "reward"))
  known = Known(
      rewards_B=rewards_B - coef * kl_BT.sum(1),
      rewards_BT=reference.per_token(rewards_B, mask_BT, kl_BT, coef),
      groups_B=rows.rollouts.ids_B,
      mask_BT=mask_BT,
      values_BT=numpy_values(critics[0], cfg, rows.rollouts),
      old_logps_BT=rows.old_logps_BT,
      sampler_logps_BT=rows.rollouts.logps_BT,
      squares_BT=numpy_squares(leaves, cfg, rows.rollouts),
  )
  advantages_BT = np.asarray(paper.advantage(known))
  if advantages_BT.ndim == 1:
    advantages_BT = np.repeat(advantages_BT[:, None], T, 1)
  if paper.whiten:
    advantages_BT = reference.whiten(advantages_BT, mask_BT)

  # The package. One update is cut out of many: it stays off-policy.
  padded_rows = experience.pad(rows, 16, rows, c.rollout.group_size)
  padded_ref_BT = np.concatenate([ref_BT, np.full((8, T), np.nan)])
  orders = np.arange(16), np.random.default_rng(6).permutation(16)
  plans = [plan_of(padded_rows, order_B) for order_B in orders]
  model = model_of(c, cfg)
  on_policy = config_facts.on_policy(config_of(name))
  with (
      jax.set_mesh(model.mesh),
      mock.patch.object(build_step, "CompiledOnce", Quick),
  ):
    run = programs(c, model, on_policy=on_policy)
    values_BT = squares_BT = None
    if config_facts.reads_squares(c):
      params = on_device(leaves, jnp.float64)
      squares_BT = run.logps(params, plans[0])[2]
    if config_facts.has_critic(c):
      first = on_device(critics[0], jnp.float64)
      values_BT = run.values(first, plans[0])
    inputs = experience.credit_inputs(
        padded_rows,
        ref_logps_BT=padded_ref_BT,
        values_BT=values_BT,
        entropy_BT=np.zeros((16, T)),
        squares_BT=squares_BT,
        progress=np.float64(0),
        kl_coef=np.float64(c.kl.coef),
    )
    credit = run.credit(inputs)
    batch = step.train_batch(
        padded_rows,
        credit,
        mask_truncated=c.loss.mask_truncated,
        updates=1,
        ref_logps_BT=padded_ref_BT,
        values_BT=values_BT,
    )
    coefs = dict(kl=c.kl.coef, entropy=c.loss.entropy_coef)
    coefs = sharding.put(model.mesh, jax.tree.map(np.float64, coefs))
    updated, critic_updated = [], []
    for plan in plans:
      minibatches = step.minibatches(model.mesh, batch, plan)
      params = on_device(leaves, jnp.float64)
      state = optimizer.new_state(params, *run.optimizer)
      updated.append(jax.device_get(run.update(state, *minibatches, coefs)))
      if config_facts.has_critic(c):
        params = on_device(critics[1], jnp.float64)
        state = optimizer.new_state(params, *run.critic_optimizer)
        done = run.update_critic(state, *minibatches)
        critic_updated.append(jax.device_get(done))
  return types.SimpleNamespace(
      cfg=cfg,
      paper=paper,
      kl_coef=c.kl.coef,
      leaves=leaves,
      rows=rows,
      ref_BT=ref_BT,
      known=known,
      advantages_BT=advantages_BT * mask_BT,
      critics=critics,
      values_BT=values_BT,
      credit=credit,
      updated=updated,
      critic_updated=critic_updated,
  )
