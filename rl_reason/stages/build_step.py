"""What a config makes of a training step: its collector and its programs.

Everything is built once, before the loop; the config is read here and not in
the programs.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from rl_reason.algorithms import credit, objective, rewards, turns
from rl_reason.base import functions
from rl_reason.base.structs import Array, Experience, Rollouts, Tree
from rl_reason.checkpointing.rl_state import RLState
from rl_reason.checks import facts
from rl_reason.collect import dynamic_sampling, history, reward_spread
from rl_reason.collect.ahead import Ahead
from rl_reason.collect.collector import RolloutCollector
from rl_reason.collect.experience import no_rows
from rl_reason.collect.partial_rollouts import PartialRolloutCollector
from rl_reason.collect.reward_runner import Model, Rewards
from rl_reason.collect.trajectories import TurnsCollector
from rl_reason.data.prompt_stream import PromptStream
from rl_reason.devices import sharding
from rl_reason.devices.compiled import CompiledOnce
from rl_reason.devices.randomness import host_seed, key
from rl_reason.models import critic, decoder, experts, lora, parameters
from rl_reason.monitoring import rl_metrics
from rl_reason.monitoring.samples import EXTREMES, SampleLog
from rl_reason.stages import build_step, scorer
from rl_reason.stages.session import Session, packed_rows
from rl_reason.tasks import reward_terms
from rl_reason.training import (
    certificate,
    critic_step,
    optimizer,
    packing,
    step,
)


class Programs(NamedTuple):
  """The functions of an RL step; each compiles at its first call.

  Attributes:
    plan: (rollouts, step) -> PackingPlan.
    logps: (params, plan) -> log-probs and entropy, [B, T] each.
    values: (critic's params, plan) -> values [B, T].
    credit: credit_inputs -> rewards, advantages, returns, metrics.
    update: `step.rl_update`, on the mesh, with `make_objective`'s terms.
    update_critic: `critic_step.critic_update`, on the mesh; None without a
      critic.
    history_inputs: (history, params) -> inputs of credit; see `history`.
    step_metrics: `rl_metrics.step_metrics`.
    steer: `steer`, with the adaptive controllers; None if there is none.
    on_policy: the update computes the old log-probs itself.
    signal: step -> the `signal` of `dynamic_sampling.fill_batch`.
  """

  plan: Callable[..., packing.PackingPlan]
  logps: Callable[..., tuple[Array, Array]]
  values: Callable[..., Array]
  credit: Callable[[dict], dict]
  update: Callable
  update_critic: Any
  history_inputs: Callable[..., dict[str, Array]]
  step_metrics: Callable
  steer: Callable[..., dict[str, float]] | None
  on_policy: bool
  signal: Callable[..., Callable[[Experience], Array]]


def build(session: Session) -> Programs:
  """The programs of RL."""
  c, mesh, display = session.config, session.mesh, session.display
  tx, shardings = policy_optimizer(session)
  on_policy = facts.on_policy(c)
  update = jax.jit(
      functools.partial(
          step.rl_update,
          cfg=session.cfg,
          tx=tx,
          temperature=c.rollout.temperature,
          objective=make_objective(c),
          max_kl=c.updates.max_kl,
          lora_scale=lora_scale(c),
          seed=host_seed(c.seed, "covariance") % 2**31,
          router_aux=c.loss.router_aux,
      ),
      donate_argnums=0,
      out_shardings=(shardings, None),
  )

  def compiled(title, fn):
    return CompiledOnce(title, fn, display)

  controllers = dict(
      kl_controller=functions.bind("kl_controller", c.kl.controller),
      entropy_controller=functions.bind(
          "entropy_controller", c.loss.entropy_controller
      ),
  )
  plan = make_planner(c, mesh)
  logps_program = step.logps_program(session.cfg, c.rollout.temperature)
  logps = functools.partial(
      step.forward, mesh, compiled("log-probabilities", logps_program)
  )
  values = compiled("values", values_program(session.critic_cfg))
  credit_step = compiled("rewards and advantages", credit_program(c))
  update_critic: Any = None
  if facts.has_critic(c):
    program = critic_update_program(
        session.critic_cfg,
        *critic_optimizer(session, c.rl.steps),
        clip=c.critic.clip,
    )
    update_critic = rl_metrics.with_rate(
        compiled("update of the critic", program),
        **optimizer.critic_rate(c, c.rl.steps),
    )
  return Programs(
      plan=plan,
      logps=logps,
      values=functools.partial(step.forward, mesh, values),
      credit=functools.partial(step.on_mesh, mesh, credit_step),
      update=rl_metrics.with_rate(
          compiled("update of the policy", update), **optimizer.policy_rate(c)
      ),
      update_critic=update_critic,
      history_inputs=functools.partial(
          history.credit_inputs,
          logps=lambda params, past: logps(params, plan(past))[0],
          batch=c.rollout.batch,
          ratio_limit=c.advantage.history_ratio,
      ),
      step_metrics=functools.partial(
          rl_metrics.step_metrics,
          counter=make_counter(c, session.cfg, passes=forward_passes(c)),
          terms=tuple(term.label for term in terms(c)),
          on_policy=on_policy,
          gamma=facts.discount(c),
          verified=not facts.no_verifier(c),
          stale=c.rl.staleness > 0,
      ),
      steer=functools.partial(steer, rows=c.rollout.batch, **controllers)
      if any(controllers.values())
      else None,
      on_policy=on_policy,
      signal=make_signal(c),
  )


def make_signal(c) -> Callable[[int], Callable[[Experience], Array]]:
  """Step -> which groups of a round have signal."""
  if facts.by_reward(c):
    return functools.partial(
        reward_spread.signal, reward=make_reward(c), steps=c.rl.steps
    )
  if c.dynamic_sampling.enabled and c.reward.truncated == "bootstrap":
    return dynamic_sampling.in_every_step(reward_spread.of_finished)
  return dynamic_sampling.in_every_step(dynamic_sampling.partly_correct)


def policy_optimizer(session: Session):
  """The optimizer of RL, and the shardings of the policy's training state."""
  c = session.config
  o, rate = c.optimizer, optimizer.policy_rate(c)
  tx = optimizer.from_config(o, freeze=o.freeze, **rate)
  table = learned_table(c, session.cfg)
  return tx, optimizer.state_shardings(table, tx, session.mesh)


def critic_optimizer(session: Session, steps: int):
  """The critic's optimizer over `steps` rollouts, and its state's shardings."""
  c = session.config
  tx = optimizer.from_config(c.optimizer, **optimizer.critic_rate(c, steps))
  table = critic.table(session.critic_cfg)
  return tx, optimizer.state_shardings(table, tx, session.mesh)


def learned_table(c, cfg: decoder.ModelConfig) -> Tree:
  """What RL learns: all parameters, or LoRA factors."""
  if not c.lora.rank:
    return decoder.table(cfg)
  return lora.table(cfg, c.lora.rank, facts.lora_targets(c))


def forward_passes(c) -> int:
  """Forward passes over the batch of an RL step; a backward pass counts two."""
  learning = 3 * c.updates.epochs
  # A frozen base takes no gradients of its weights.
  policy = 2 * c.updates.epochs if c.lora.rank else learning
  count = policy + (not facts.on_policy(c)) + (c.kl.kind != "none")
  if facts.has_critic(c):
    count += 1 + learning + (c.critic.value_mixture.name != "none")
  return count + facts.has_history(c) * c.advantage.history


def make_counter(
    c, cfg: decoder.ModelConfig, passes: int
) -> rl_metrics.Counter:
  """The counter of tokens and FLOPs."""
  r = c.rollout
  context = (r.max_prompt + r.max_tokens) / 2  # tokens attended to on average
  share = cfg.experts_per_token / max(cfg.experts, 1)
  flops = parameters.flops_per_token(decoder.table(cfg), context, share)
  return rl_metrics.Counter(flops, passes, r.max_prompt, r.group_size)


def steer(
    coefs: dict[str, float],
    mask_BT: Array,
    entropy_BT: Any,
    credit: dict[str, Any],
    *,
    rows: int,
    kl_controller: Callable[..., float] | None,
    entropy_controller: Callable[..., float] | None,
) -> dict[str, float]:
  """The coefficients of the next step, from what this step measured.

  Entropies are those of the policy before the update, credit has rewards_B and
  the metrics of `credit.assign`. A step without a response whose reward is
  known measured nothing, and moves nothing. Controllers are
  `variants.adaptive_kl` and `variants.adaptive_entropy`, their keywords bound,
  or None.
  """
  out = dict(coefs)
  mask_BT = mask_BT & np.isfinite(credit["rewards_B"])[:, None]
  if not mask_BT.any():
    return out
  if kl_controller is not None:
    kl = float(credit["metrics"]["kl/reference"])
    out["kl"] = kl_controller(coefs["kl"], kl, rows)
  if entropy_controller is not None:
    entropy = float(entropy_BT[mask_BT].mean())
    out["entropy"] = entropy_controller(coefs["entropy"], entropy)
  return out


def critic_update_program(
    cfg: critic.CriticConfig, tx, shardings, *, clip: float
) -> Callable:
  """jit: `critic_step.critic_update`."""
  update = functools.partial(
      critic_step.critic_update, cfg=cfg, tx=tx, clip=clip
  )
  return jax.jit(update, donate_argnums=0, out_shardings=(shardings, None))


def lora_scale(c) -> float:
  """alpha / rank of the LoRA factors."""
  return c.lora.alpha / max(c.lora.rank, 1)


def make_objective(c) -> objective.Objective:
  """The terms of the loss."""
  controlled = c.loss.entropy_controller.name != "fixed"
  return objective.Objective(
      surrogate=functions.bind("surrogate", c.surrogate),
      reduction=functions.bind("reduction", c.reduction),
      kl=c.kl.kind if c.kl.place == "loss" else "none",
      entropy=c.loss.entropy_coef > 0 or controlled,
      positive_nll=c.loss.positive_nll,
      on_policy=facts.on_policy(c),
      length_alpha=c.loss.length_alpha,
      covariance=functions.bind("covariance", c.covariance),
  )


def values_program(cfg: critic.CriticConfig) -> Callable:
  """jit: values of response tokens, [M, B, T]."""
  return step.map_micro_batches(
      lambda params, packed: critic.values(params, cfg, packed)[0]
  )


def credit_program(c) -> Callable:
  """jit: arrays of `step.credit_inputs` -> rewards and advantages."""
  return _reward_and(
      c,
      functools.partial(
          credit.assign,
          advantage=functions.bind("advantage", c.advantage),
          groups=c.advantage.groups,
          whiten=c.advantage.whiten,
          gamma=facts.discount(c),
          critic_lam=c.critic.lam,
          fallback=c.critic.fallback,
          value_mixture=functions.bind("value_mixture", c.critic.value_mixture),
          kl="none" if facts.on_policy(c) else c.kl.kind,
          kl_in_reward=c.kl.place == "reward",
          top_entropy=c.loss.top_entropy,
          correction=functions.bind("correction", c.correction),
      ),
  )


def returns_program(c) -> Callable:
  """jit: the same arrays and values_BT -> rewards and Monte-Carlo returns."""
  return _reward_and(
      c, functools.partial(credit.monte_carlo, gamma=facts.discount(c))
  )


def _reward_and(c, assign: Callable) -> Callable:
  program = functools.partial(
      credit.rewards_and_advantages, reward=make_reward(c), assign=assign
  )
  return jax.jit(program)


def make_reward(c) -> Callable[[dict], Array]:
  """`credit.outcome` with the keywords of the config bound.

  Without a verifier the reward is that of the functions alone; in an
  environment it is the sum over the turns.
  """
  r, nothing = c.reward, facts.no_verifier(c)
  outcome = functions.bind("outcome", r.outcome)
  if nothing:
    outcome = rewards.correctness
  elif facts.environment(c):
    outcome = turns.total
  return functools.partial(
      credit.outcome,
      max_tokens=c.rollout.max_tokens,
      outcome=outcome,
      correct=0.0 if nothing else r.correct,
      incorrect=0.0 if nothing else r.incorrect,
      term_weights=tuple((x.first, x.last) for x in terms(c)),
      overlong_buffer=r.overlong_buffer,
      overlong_coef=r.overlong_coef,
      length_penalty=functions.bind("length_penalty", r.length_penalty),
      bootstrap=r.truncated == "bootstrap",
  )


def terms(c) -> tuple[reward_terms.Term, ...]:
  """The functions and models of the reward, with their weights."""
  return reward_terms.terms(c.reward.functions)


def empty_rows(c, rows: int) -> Experience:
  """`no_rows` in the shapes of a config."""
  m, routes = c.model, None
  if c.rollout.replay_routing:
    routes = m.layers * m.experts_per_token, experts.dtype(m.experts)
  return no_rows(
      rows,
      c.rollout.max_prompt,
      c.rollout.max_tokens,
      len(terms(c)),
      turns=bool(facts.environment(c)),
      routes=routes,
  )


def make_collector(
    session: Session, purpose: str, batches: int = 1, partial_groups: int = 0
) -> RolloutCollector:
  """The rollout collector of a stage.

  Its purpose names the randomness of prompts and of sampling. A round generates
  so many batches of responses, and may leave so many partial groups unfinished.
  """
  c, seed = session.config, session.config.seed
  prompts = PromptStream(
      *session.rows.prompts(f"{purpose} prompts"),
      retire_after=c.rollout.retire_after,
  )
  options: dict[str, Any] = dict(
      task=session.task,
      tok=session.tok,
      rewards=make_rewards(session),
      key=key(session.mesh, seed, purpose),
      num_responses=batches * c.rollout.batch,
      group_size=c.rollout.group_size,
      group_sizes=functions.bind("group_sizes", c.rollout.group_sizes),
      max_prompt=c.rollout.max_prompt,
      temperature=c.rollout.temperature,
      top_p=c.rollout.top_p,
      cache=c.rollout.cache,
      record=c.rollout.replay_routing,
      shuffle_seed=host_seed(seed, "shuffle") if c.reward.shuffle else None,
  )
  if session.environments is not None:
    return TurnsCollector(
        prompts,
        session.engine,
        environments=session.environments,
        environment_seed=host_seed(seed, f"environments of {purpose}"),
        **options,
    )
  if not partial_groups:
    return RolloutCollector(prompts, session.engine, **options)
  return PartialRolloutCollector(
      prompts,
      session.engine,
      unfinished=empty_rows(c, partial_groups * c.rollout.group_size),
      max_tokens=c.rollout.max_tokens,
      across_steps=c.rollout.partial_across_steps,
      num_shards=sharding.num_shards(session.mesh, "batch"),
      **options,
  )


def make_planner(c, mesh) -> Callable[..., packing.PackingPlan]:
  """`packing.plan` with the keywords of the config bound."""
  return functools.partial(
      packing.plan,
      packed_rows=packed_rows(c, mesh),
      minibatches=c.updates.minibatches,
      epochs=c.updates.epochs,
      seed=host_seed(c.seed, "epochs"),
  )


def make_rewards(session: Session) -> Rewards:
  """The terms of the reward; loads the reward models among them."""
  names = [x.name for x in terms(session.config)]
  models = {
      x: make_model(session, x) for x in names if reward_terms.is_model(x)
  }
  return Rewards(terms(session.config), session.rewards, models)


def make_model(session: Session, name: str) -> Model:
  """A reward model, as a term of the reward calls it."""
  params, cfg = scorer.load(session, name)
  c, mesh = session.config, session.mesh

  @functools.cache
  def programs_of(rows: int):
    """The plan and the program for so many responses."""
    program = scorer.scores_program(cfg)
    title = "scores of the reward model"
    plan = make_planner(c, mesh)
    if rows != c.rollout.batch:  # those of an evaluation
      plan = functools.partial(
          packing.plan, packed_rows=packed_rows(c, mesh), minibatches=1
      )
    return plan, CompiledOnce(title, program, session.display)

  def scores(rollouts: Rollouts) -> Array:
    plan, program = programs_of(len(rollouts.ids_B))
    return step.forward(mesh, program, params, plan(rollouts))

  return scores


def sample_ahead(
    session: Session,
    state: RLState,
    samples: SampleLog,
    collect: Callable[..., tuple],
) -> Ahead:
  """What samples ahead as the config asks for it; arguments as of `Ahead`."""
  c = session.config
  return Ahead(
      collect,
      state.collector,
      samples,
      staleness=c.rl.staleness,
      steps=c.rl.steps,
      sampler_logps=c.rl.old_logps == "sampler",
      mesh=session.rollout_engine.mesh,
      empty=no_batches(c),
      replay=certificate.replayer(session),
  )


def no_batches(c) -> tuple[tuple[Experience, Experience], ...]:
  """Padding in the shapes of S batches in flight, and of their extreme groups.

  An extreme group may be as large as a whole round if groups are unequal.
  """
  group = c.rollout.group_size
  if c.rollout.group_sizes.name != "equal":
    group = c.dynamic_sampling.batches * c.rollout.batch
  rows = build_step.empty_rows(c, c.rollout.batch)
  extremes = build_step.empty_rows(c, len(EXTREMES) * group)
  return ((rows, extremes),) * c.rl.staleness
