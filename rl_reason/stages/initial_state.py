"""The state that RL starts from, and the parameters that it ended with."""

import jax
import jax.numpy as jnp

from rl_reason.base.errors import RunError
from rl_reason.base.structs import Experience, Tree
from rl_reason.checkpointing.rl_state import RLState, require_base
from rl_reason.checks import facts
from rl_reason.collect import history as history_lib
from rl_reason.devices import sharding
from rl_reason.devices.randomness import key
from rl_reason.models import checksums, critic, linear, lora
from rl_reason.monitoring import rl_metrics
from rl_reason.stages import build_step
from rl_reason.stages.session import Session, open_stage
from rl_reason.training.optimizer import abstract_state, init_state, new_state


def initial_state(
    session: Session,
    sft_params: Tree,
    critic_params: Tree | None,
    counters: dict[str, float] | None,
) -> tuple[RLState, Tree | None]:
  """The state of step 0, and the frozen base beside LoRA factors (or None).

  Arguments as in `rl.train`.
  """
  c = session.config
  tx, shardings = build_step.policy_optimizer(session)
  # Parameters are copied: updates donate their state, and the initial ones are
  # still read, as the reference of a KL or by a mixture of values.
  base, digest = None, 0
  if c.lora.rank:
    base = frozen_base(sft_params, session.cfg.dtype)
    digest = checksums.digest(base)
    policy = init_state(
        build_step.learned_table(c, session.cfg),
        tx,
        shardings,
        key(session.mesh, c.seed, "factors"),
    )
  else:
    policy = new_state(jax.tree.map(jnp.copy, sft_params), tx, shardings)
  critic_state = None
  if facts.has_critic(c):
    critic_state = new_state(
        jax.tree.map(jnp.copy, critic_params),
        *build_step.critic_optimizer(session, c.rl.steps),
    )
  # The collector lives on the devices that sample.
  engine = session.rollout_engine
  with jax.set_mesh(engine.mesh):
    collector = build_step.make_collector(
        session._replace(mesh=engine.mesh, engine=engine),
        "rollout",
        c.dynamic_sampling.batches,
        c.rollout.partial_groups,
    )
  kept, history = _no_rows(c)
  state = RLState(
      policy=policy,
      critic=critic_state,
      collector=collector,
      kept=kept,
      history=history,
      coefs=dict(kl=c.kl.coef, entropy=c.loss.entropy_coef),
      counters=dict(counters or rl_metrics.no_counters()),
      base_digest=digest,
      mesh=session.mesh,
  )
  return state, base


def abstract_arrays(session: Session) -> Tree:
  """Shapes and shardings of all arrays in a checkpoint of RL."""
  c = session.config
  policy = abstract_state(
      build_step.learned_table(c, session.cfg),
      *build_step.policy_optimizer(session),
  )
  critic_state = None
  if facts.has_critic(c):
    critic_state = abstract_state(
        critic.table(session.critic_cfg),
        *build_step.critic_optimizer(session, c.rl.steps),
    )
  unfinished = None
  if c.rollout.partial_groups:
    rows = c.rollout.partial_groups * c.rollout.group_size
    unfinished = build_step.empty_rows(c, rows)
  kept, history = _no_rows(c)
  on_host: dict[str, Tree] = dict(
      kept=kept, history=history, unfinished=unfinished
  )
  if c.rl.staleness:
    on_host["ahead"] = build_step.no_batches(c)
  return dict(
      policy=policy, critic=critic_state, **sharding.put(session.mesh, on_host)
  )


def frozen_base(sft_params: Tree, dtype: str) -> Tree:
  """The frozen parameters beside LoRA factors, in the dtype of the products.

  Matrix products are their only readers, so the cast changes no number.
  """
  return linear.cast(sft_params, dtype)


def load(
    session: Session, which: str, sft_params
) -> tuple[Tree, Tree | None, int]:
  """Parameters of a finished checkpoint of RL.

  Args:
    session: of the run.
    which: 'newest', 'best', or a step.
    sft_params: () -> the parameters that SFT ended with; read with LoRA only.

  Returns:
    the parameters, those of the critic (None without one), and their step.
    LoRA factors come joined with their base.

  Raises:
    RunError: there is no such checkpoint; lists the available ones. Or the
      base of its LoRA factors has changed.
  """
  checkpoints = open_stage(session, "rl").checkpoints
  if which == "best":
    step = checkpoints.best()
  elif which == "newest":
    step = checkpoints.newest(session.display.say)
  else:
    step = int(which) if which.isdigit() else None
  if step is None or checkpoints.fault(step):
    complete = [s for s in checkpoints.steps() if not checkpoints.fault(s)]
    raise RunError(
        f"--step = {which}: no such checkpoint of RL in {session.workdir}"
        f" (there are {complete}; or 'newest', 'best', 'sft')"
    )
  arrays = checkpoints.restore(step, abstract_arrays(session))
  params, critic_state = arrays["policy"].params, arrays["critic"]
  if session.config.lora.rank:
    base = frozen_base(sft_params(), session.cfg.dtype)
    require_base(checkpoints.host(step), checksums.digest(base))
    scale = build_step.lora_scale(session.config)
    params = lora.join(base, params, scale)
  return params, critic_state and critic_state.params, step


def _no_rows(c) -> tuple[Experience | None, history_lib.History | None]:
  """Kept groups and history at step 0; None if the config has none."""
  no_rows = build_step.empty_rows(c, c.rollout.batch)
  kept = no_rows if c.dynamic_sampling.surplus == "keep" else None
  if not facts.has_history(c):
    return kept, None
  return kept, history_lib.empty(no_rows, c.advantage.history)
