"""Reinforcement learning: rollout, score, filter, advantage, update, log.

The algorithm is the config: which advantage, which surrogate, which reduction,
whether batches are refilled, whether there is a critic. This loop is the same
for all of them.
"""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl_reason import config as config_lib
from rl_reason.algorithms import objective, reductions, schedules, surrogates
from rl_reason.data import tokenizer
from rl_reason.evaluation import evaluate
from rl_reason.models import critic, decoder, lora
from rl_reason.monitoring import alarms, metrics as metrics_lib
from rl_reason.scale import linear, sharding
from rl_reason.structs import Array, Batch, Experience, RunError, Tree
from rl_reason.training import (
    dynamic_sampling,
    experience,
    packing,
    sft,
    step,
    value,
)
from rl_reason.training.session import Once, Run, Stopped


def run(
    run: Run,
    sft_params: Tree,
    critic_params: Tree | None = None,
    spent: dict[str, float] | None = None,
) -> Tree:
  """Runs or resumes RL.

  Args:
    run: everything that the stages share.
    sft_params: where RL starts, and the reference of a KL; the base of factors,
      which may have come through `base` already.
    critic_params: where the critic starts, if the advantage has one.
    spent: what value pretraining cost: generated tokens, FLOPs.

  Returns:
    the parameters after config.rl.steps steps.

  Raises:
    dynamic_sampling.Shortfall: the data cannot fill a batch, by config.
    Stopped: SIGTERM; everything is saved.
  """
  c = run.config
  tx, shardings = _optimizer(run)
  # Copies: updates donate their state, and the first models must stay.
  if c.lora.rank:
    fixed = base(run, sft_params)
    digest = lora.digest(fixed)
    state = step.init_state(table(run), tx, shardings, run.key("factors"))
    first = jax.tree.map(jnp.copy, state.params)
  else:
    fixed, digest, first = None, 0, sft_params
    state = step.new_state(jax.tree.map(jnp.copy, first), tx, shardings)
  policy = functools.partial(lora.join, fixed, scale=_lora_scale(run))
  kept = experience.no_rows(run) if _keeps(run) else None
  past = experience.no_past(run) if config_lib.has_history(c) else None
  critic_state: Any = None
  critic_update: Any = None
  if config_lib.has_critic(c):
    critic_tx, critic_shardings = value.optimizer(run, c.rl.steps)
    critic_state = step.new_state(
        jax.tree.map(jnp.copy, critic_params), critic_tx, critic_shardings
    )
    critic_update = Once(
        "update of the critic",
        value.make_update(run, critic_tx, critic_shardings),
        run.display,
    )
  rounds = dict(c.dynamic_sampling)
  batches = rounds.pop("batches")
  maker = experience.Maker(run, "rollout", batches, c.rollout.stragglers)
  passes = experience.passes(run)
  coefs = dict(kl=c.kl.coef, entropy=c.loss.entropy_coef)
  at, evaluated = 0, False
  spent = dict(spent or dict(tokens=0, flops=0.0))

  checkpoints = run.checkpoints(
      "rl",
      keep_last=c.checkpoint.keep_last,
      keep_best=c.checkpoint.keep_best,
  )
  found = run.resume(checkpoints)
  if found:
    at, host = found
    _require_base(host, digest)
    if at > c.rl.steps:
      raise RunError(
          f"rl.steps = {c.rl.steps}: this run is at step {at} already; ask for"
          " more steps, or choose another --workdir"
      )
    like = _everything(run, state, critic_state, kept, past, maker.carried)
    restored = checkpoints.restore(at, like)
    state, critic_state = restored["train"], restored["critic"]
    kept, past, carried = sharding.fetch(
        (restored["kept"], restored["past"], restored["carried"])
    )
    maker.carried = maker.carried if carried is None else carried
    maker.set_state(host["maker"])
    coefs, spent, evaluated = host["coefs"], host["spent"], host["evaluated"]
    if at == c.rl.steps and evaluated:
      run.display.say(f"this run is complete: {at} of {c.rl.steps} RL steps")
      checkpoints.close()
      return policy(state.params)
    run.display.say(f"RL: goes on at step {at} of {c.rl.steps}")
  run.begin()

  update = Once("update of RL", _update(run, tx, shardings), run.display)
  late, clock = None, maker.clock  # metrics of the update that is under way

  def flush() -> None:
    """Logs the step whose update was dispatched last, once it is done."""
    nonlocal late
    if late is None:
      return
    metrics, late = late, None
    metrics |= jax.device_get(metrics.pop("device"))
    clock.lap("update_actor")
    metrics |= _times(clock.take())
    metrics["perf/throughput"] = (
        metrics["tokens/step"] / metrics["timing_s/step"]
    )
    run.log.metrics("rl", at, metrics)
    run.display.step(
        at,
        accuracy=f"{metrics['train/accuracy']:.1%}",
        length=float(metrics["response_length/mean"]),
        tokens_s=f"{metrics['perf/throughput']:.0f}",
    )

  def save(score: float | None = None) -> None:
    host = run.host_state(
        maker=maker.get_state(),
        coefs=coefs,
        spent=spent,
        evaluated=evaluated,
        base=digest,
    )
    everything = _everything(
        run, state, critic_state, kept, past, maker.carried
    )
    checkpoints.save(at, everything, host, score)

  _warn(run)
  run.display.stage("RL", c.rl.steps, at)
  clock.skip()
  try:
    while True:
      every = c.evaluate.every
      due = at in (0, c.rl.steps) or (every and at % every == 0)
      if due and not evaluated:
        flush()
        reached = _evaluate(run, policy(state.params), at, spent)
        evaluated = True
        save(reached)
        clock.skip()
      elif at % c.checkpoint.every == 0 and checkpoints.saved != at:
        flush()
        save()
        clock.lap("host")
      run.check_stop()
      if at == c.rl.steps:
        break

      maker.reset()
      params = policy(state.params)
      rows, left, metrics = dynamic_sampling.collect(
          # Nothing else holds these weights: they go before the update.
          functools.partial(maker.generate, maker.weights(params), flush),
          kept,
          batch=c.rollout.batch,
          group_size=c.rollout.group_size,
          **rounds,
      )
      cut = maker.layout(rows.rollouts, at)
      clock.lap("host")
      entropy_BT = None
      if config_lib.on_policy(c):
        rows = rows.replace(old_logps_BT=rows.rollouts.logps_BT)
      else:
        rows, entropy_BT = maker.with_old_logps(params, rows, cut)
      if left is not None:
        others = maker.layout(left.rollouts)
        left, _ = maker.with_old_logps(params, left, others)
      kept = left
      more = {}
      if c.kl.kind != "none":
        more["ref_logps_BT"], _ = maker.logps(policy(first), cut)
      clock.lap("old_log_prob")

      if critic_state is not None:
        more["values_BT"] = maker.values(critic_state.params, cut)
      pretrained = maker.values(critic_params, cut) if c.critic.mix else None
      clock.lap("values")

      assigned = maker.assign(
          rows,
          **more,
          **maker.past(params, past),
          pretrained_BT=pretrained,
          entropy_BT=entropy_BT,
          progress=np.float32(at / c.rl.steps),
          kl_coef=np.float32(coefs["kl"]),
      )
      rewards_B = assigned["rewards_B"]
      if past is not None:
        past = experience.remember(past, rows, rewards_B)
      batch = experience.batch(run, rows, assigned, **more)
      clock.lap("adv")
      learnt = experience.minibatches(run, batch, cut)
      factors = run.put({k: np.float32(x) for k, x in coefs.items()})
      clock.lap("host")
      state, device = update(state, *learnt, factors, fixed)
      if critic_state is not None:
        critic_state, more_device = critic_update(critic_state, *learnt)
        device |= more_device

      # The device learns; what the host still has to count, it counts now.
      tokens = int(metrics.pop("tokens/generated"))
      drawn = int(metrics["train/generation_rounds"]) * maker.batch
      operations = experience.flops(run, rows, tokens, drawn, passes)
      spent = dict(
          tokens=spent["tokens"] + tokens, flops=spent["flops"] + operations
      )
      metrics |= _rollout_metrics(run, rows, rewards_B, batch)
      metrics |= assigned["metrics"] | _totals(spent)
      metrics |= {f"coef/{k}": v for k, v in coefs.items()}
      metrics |= {
          "tokens/step": tokens,
          "tokens/trained": int((cut.packed_M.segments_RL > 0).sum()),
          "perf/pack_fill": packing.fill(cut.packed_M),
          "train/verifier_failures": maker.failures,
      }
      coefs = _steer(run, coefs, rows, entropy_BT, assigned["metrics"])
      at, evaluated, late = at + 1, False, metrics | dict(device=device)
      if at % c.log.samples_every == 0 or at == 1:
        _keep_samples(run, maker, at, rows, rewards_B, batch, entropy_BT)
  except (Stopped, RunError):
    if checkpoints.saved != at:
      flush()
      save()
    raise
  finally:
    run.display.end_stage()
    checkpoints.close()
  return policy(state.params)


def base(run: Run, sft_params: Tree) -> Tree:
  """Where RL starts; the base of factors in the dtype of the products.

  They are its only readers, so this changes no number.
  """
  if not run.config.lora.rank:
    return sft_params
  return linear.cast(sft_params, run.cfg.dtype)


def table(run: Run) -> Tree:
  """What learns: all parameters, or factors."""
  c = run.config
  if not c.lora.rank:
    return decoder.table(run.cfg)
  return lora.table(run.cfg, c.lora.rank, config_lib.lora_targets(c))


def _lora_scale(run: Run) -> float:
  c = run.config.lora
  return c.alpha / max(c.rank, 1)


def _require_base(host: dict, digest: int) -> None:
  if host["base"] != digest:
    raise RunError(
        "the factors of this run's checkpoint belong to another model: what"
        " model.path or sft.reuse names has changed; choose another --workdir"
    )


def _warn(run: Run) -> None:
  """Of rollouts that are off-policy, if nothing makes up for it."""
  c = run.config
  same = dict(weights=("same", c.model.dtype), cache=("same",))
  for name, exact in same.items():
    value = c.rollout[name]
    if value not in exact and c.loss.correction == "none":
      run.display.say(
          f"warning: rollout.{name} = {value!r} samples from another policy"
          " than the one that learns (rollout/sampler_trainer_kl);"
          " loss.correction = 'truncate' makes up for it"
      )
  if c.rollout.across_steps:
    run.display.say(
        "warning: rollout.across_steps fills batches with the responses that"
        " end first: a bias to short ones, and the long ones are partly of an"
        " older policy"
    )


def _times(seconds: dict[str, float]) -> dict[str, float]:
  """The laps of a step, their sum, and how long the device had no work."""
  out = {f"timing_s/{k}": v for k, v in seconds.items()}
  idle = seconds.get("score", 0) + seconds.get("host", 0)
  step_s = sum(seconds.values())
  return out | {"timing_s/idle": idle, "timing_s/step": step_s}


def _totals(spent: dict[str, float]) -> dict[str, float]:
  return {"tokens/generated": spent["tokens"], "flops/total": spent["flops"]}


def _steer(run: Run, coefs, rows, entropy_BT, metrics) -> dict[str, float]:
  """The coefficients of the next step, from what this one measured."""
  c = run.config
  mask_BT = rows.rollouts.mask_BT
  out = dict(coefs)
  if c.kl.target:
    out["kl"] = schedules.adaptive_kl(
        coefs["kl"],
        float(metrics["kl/reference"]),
        target=c.kl.target,
        horizon=c.kl.horizon,
        rows=c.rollout.batch,
    )
  if c.loss.entropy_target and mask_BT.any():
    out["entropy"] = schedules.adaptive_entropy(
        coefs["entropy"],
        float(entropy_BT[mask_BT].mean()),
        target=c.loss.entropy_target,
        step=c.loss.entropy_step,
    )
  return out


def load(run: Run, which: str) -> tuple[Tree, Tree | None, int]:
  """Parameters of a finished checkpoint of RL.

  Args:
    run: everything that the stages share.
    which: 'newest', 'best', or a step.

  Returns:
    the parameters, those of the critic (None without one), and their step.
    Factors stand beside their base.

  Raises:
    RunError: there is no such checkpoint; lists those that there are. Or the
      base of its factors has changed.
  """
  checkpoints = run.checkpoints("rl")
  if which == "best":
    at = checkpoints.best()
  elif which == "newest":
    at = checkpoints.newest(run.display.say)
  else:
    at = int(which) if which.isdigit() else None
  if at is None or checkpoints.fault(at):
    whole = [s for s in checkpoints.steps() if not checkpoints.fault(s)]
    raise RunError(
        f"--step = {which}: no such checkpoint of RL in {run.workdir}"
        f" (there are {whole}; or 'newest', 'best', 'sft')"
    )
  like = abstract(run)
  whole_state = checkpoints.restore(at, like)
  params, critic_state = whole_state["train"].params, whole_state["critic"]
  if run.config.lora.rank:
    fixed = base(run, sft.load(run))
    _require_base(checkpoints.host(at), lora.digest(fixed))
    params = lora.join(fixed, params, _lora_scale(run))
  return params, critic_state and critic_state.params, at


def abstract(run: Run) -> Tree:
  """Shapes and shardings of everything in a checkpoint of RL."""
  c = run.config
  tx, shardings = _optimizer(run)
  state, critic_state = step.abstract_state(table(run), tx, shardings), None
  if config_lib.has_critic(c):
    critic_tx, critic_shardings = value.optimizer(run, c.rl.steps)
    critic_state = step.abstract_state(
        critic.table(run.critic_cfg), critic_tx, critic_shardings
    )
  kept = experience.no_rows(run) if _keeps(run) else None
  past = experience.no_past(run) if config_lib.has_history(c) else None
  carried = experience.no_rows(run, c.rollout.stragglers * c.rollout.group_size)
  return _everything(run, state, critic_state, kept, past, carried)


def _keeps(run: Run) -> bool:
  return run.config.dynamic_sampling.surplus == "keep"


def _everything(run: Run, state, critic_state, kept, past, carried) -> Tree:
  """The pytree of a checkpoint."""
  carried = carried if run.config.rollout.stragglers else None
  kept, past, carried = run.put((kept, past, carried))
  return dict(
      train=state, critic=critic_state, kept=kept, past=past, carried=carried
  )


def _optimizer(run: Run):
  """The optimizer of RL and the shardings of its state."""
  c = run.config
  per_step = c.updates.minibatches * c.updates.epochs
  tx = run.optimizer(
      lr=c.optimizer.lr,
      schedule=c.optimizer.schedule,
      warmup=c.optimizer.warmup_steps * per_step,
      total=c.rl.steps * per_step,
      freeze=c.optimizer.freeze,
  )
  return tx, step.state_shardings(table(run), tx, run.mesh)


def _update(run: Run, tx, shardings):
  """jit: `step.rl_update`, metrics under 'actor/'."""
  c = run.config
  terms = objective.Objective(
      surrogate=functools.partial(
          getattr(surrogates, c.loss.surrogate),
          **config_lib.keywords(c, "loss.surrogate"),
      ),
      reduction=getattr(reductions, c.loss.reduction),
      kl=c.kl.kind if c.kl.place == "loss" else "none",
      entropy=bool(c.loss.entropy_coef or c.loss.entropy_target),
      positive_nll=c.loss.positive_nll,
      on_policy=config_lib.on_policy(c),
      length_alpha=c.loss.length_alpha,
      cov=c.loss.cov,
      cov_share=c.loss.cov_share,
      cov_low=c.loss.cov_low,
      cov_high=c.loss.cov_high,
      cov_coef=c.loss.cov_coef,
  )
  options = functools.partial(
      step.rl_update,
      cfg=run.cfg,
      tx=tx,
      temperature=c.rollout.temperature,
      objective=terms,
      max_kl=c.updates.max_kl,
      lora_scale=_lora_scale(run),
  )

  def fn(state, *args) -> tuple[Tree, dict[str, Array]]:
    state, metrics = options(state, *args)
    return state, {
        k if "/" in k else f"actor/{k}": v for k, v in metrics.items()
    }

  return jax.jit(fn, donate_argnums=0, out_shardings=(shardings, None))


def _rollout_metrics(run: Run, rows: Experience, reward_B, batch: Batch):
  """What the rows of a batch say; padding left out."""
  r = rows.rollouts
  real_B, fresh_B = rows.age_B >= 0, rows.age_B == 0
  out = {
      "train/rows_kept": (rows.age_B > 0).sum(),
      "train/age_max": max(rows.age_B.max(), 0),
  }
  if real_B.any():
    lengths, reward_B = r.lengths_B[real_B], reward_B[real_B]
    advantage = batch.advantages_BT[batch.mask_BT]
    out |= {
        "critic/score/mean": rows.correct_B[real_B].mean(),
        "critic/rewards/mean": reward_B.mean(),
        "critic/rewards/max": reward_B.max(),
        "critic/rewards/min": reward_B.min(),
        **{
            f"reward/{x.label}/mean": score_B[real_B].mean()
            for x, score_B in zip(
                experience.terms(run), rows.scores_NB, strict=True
            )
        },
        "critic/advantages/mean": advantage.mean() if advantage.size else 0,
        "response_length/mean": lengths.mean(),
        "response_length/max": lengths.max(),
        "response_length/min": lengths.min(),
        "response_length/clip_ratio": r.truncated_B[real_B].mean(),
    }
    if not config_lib.on_policy(run.config):  # else the update says it
      fresh_BT = r.mask_BT & fresh_B[:, None]
      diff = (r.logps_BT - rows.old_logps_BT)[fresh_BT]
      out["rollout/logp_gap_max"] = np.abs(diff).max(initial=0)
      out["rollout/sampler_trainer_kl"] = diff.mean() if diff.size else 0
  else:
    out |= {"response_length/mean": 0.0}
  return out


def _evaluate(run: Run, params: Tree, at: int, spent) -> float:
  """Logs an evaluation; returns the score by which checkpoints compete."""
  c = run.config
  ends = at in (0, c.rl.steps)
  count = c.evaluate.prompts if ends else c.evaluate.interim_prompts
  began = time.monotonic()
  values, told = evaluate.evaluate(run, params, count, "evaluating")
  values |= _totals(spent) | {"timing_s/testing": time.monotonic() - began}
  run.log.metrics("evaluate", at, values)
  if ends:
    some = [row for said in told for row in said.samples[: c.log.samples]]
    run.log.samples([dict(stage="evaluate", step=at) | row for row in some])
  for said in told:
    name = f"val-core/{said.name}/acc/mean@{c.evaluate.mean_of}"
    mean, half = values[name], values[name + "/ci95"]
    of = f" of {said.name}" if told[1:] else ""
    run.display.say(
        f"held-out accuracy{of} at step {at}: {mean:.1%} +- {half:.1%}"
    )
  lines = metrics_lib.read_jsonl(run.workdir / metrics_lib.FILES[0])
  for line in alarms.alarms(lines):
    run.display.say(f"warning: {line}")
  return values["val-aux/score"]


def _keep_samples(run, maker, at, rows, reward_B, batch, entropy_BT) -> None:
  """Some responses of the batch, for samples.jsonl and the screen."""
  c = run.config
  real = np.flatnonzero(rows.age_B >= 0)
  if not len(real):
    return
  which = real[np.linspace(0, len(real) - 1, c.log.samples).astype(int)]
  some = jax.tree.map(lambda x: x[which], rows)
  problems = [maker.problems[i][1] for i in some.rollouts.ids_B]
  slots = c.rollout.max_prompt
  texts = tokenizer.decode(
      run.tok, some.rollouts.tokens_BL[:, slots:], some.rollouts.lengths_B
  )
  lines = run.sample_rows(
      some.rollouts,
      problems,
      texts,
      some.correct_B,
      range(len(which)),
      reward=reward_B[which],
      advantage=batch.advantages_BT[which],
      **{} if entropy_BT is None else dict(entropy=entropy_BT[which]),
  )
  run.log.samples([dict(stage="rl", step=at) | line for line in lines])
  run.display.table(
      f"responses at step {at}",
      ["prompt", "response", "right", "reward"],
      [
          [
              line["prompt"],
              line["response"],
              "yes" if line["correct"] else "no",
              f"{line['reward']:+.2f}",
          ]
          for line in lines[:3]
      ],
  )
