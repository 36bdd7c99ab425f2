"""Reinforcement learning: rollout, score, filter, advantage, update, log.

The algorithm is the config: which advantage, which clip, which reduction,
whether batches are refilled. This loop is the same for all of them.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

from rl_reason import (
    advantages,
    config as config_lib,
    data,
    dynamic_sampling,
    evaluate,
    model,
    rewards,
    sharding,
    step,
    tokenizer,
)
from rl_reason.stages import Once, Run, Stopped
from rl_reason.structs import Array, Batch, Experience, Rollouts, RunError, Tree


def run(run: Run, sft_params: Tree) -> Tree:
  """Runs or resumes RL.

  Args:
    run: everything that the stages share.
    sft_params: where RL starts, and the reference of a KL.

  Returns:
    the parameters after config.rl.steps steps.

  Raises:
    dynamic_sampling.Shortfall: the data cannot fill a batch, by config.
    Stopped: SIGTERM; everything is saved.
  """
  c = run.config
  group = c.rollout.group_size
  tx, shardings = _optimizer(run)
  # A copy: updates donate their state, and the reference model must stay.
  state = step.new_state(jax.tree.map(jnp.copy, sft_params), tx, shardings)
  kept = _no_rows(run) if _keeps(run) else None
  source = data.Problems(run.task, run.levels, run.seed("prompts"))
  stream = data.prompts(source, c.rollout.prompts)
  at, generated, evaluated = 0, 0, False

  checkpoints = run.checkpoints(
      "rl",
      keep_last=c.checkpoint.keep_last,
      keep_best=c.checkpoint.keep_best,
  )
  found = run.resume(checkpoints)
  if found:
    at, host = found
    if at > c.rl.steps:
      raise RunError(
          f"rl.steps = {c.rl.steps}: this run is at step {at} already; ask for"
          " more steps, or choose another --workdir"
      )
    restored = checkpoints.restore(at, _everything(run, state, kept))
    state = restored["train"]
    kept = sharding.fetch(restored["kept"]) if kept is not None else None
    stream.set_state(host["data"])
    generated, evaluated = host["generated"], host["evaluated"]
    if at == c.rl.steps and evaluated:
      run.display.say(f"this run is complete: {at} of {c.rl.steps} RL steps")
      checkpoints.close()
      return state.params
    run.display.say(f"RL: goes on at step {at} of {c.rl.steps}")
  run.begin()

  update = Once("update of RL", _update(run, tx, shardings), run.display)
  score = Once("log-probabilities", _score(run), run.display)
  assess = Once("rewards and advantages", _assess(run), run.display)
  key, heat = run.key("rollout"), run.put(np.float32(c.rollout.temperature))
  late, clock = None, {}  # the update that is under way: metrics, times

  def flush() -> None:
    """Logs the step whose update was dispatched last, once it is done."""
    nonlocal late
    if late is None:
      return
    metrics, late = late, None
    metrics |= jax.device_get(metrics.pop("device"))
    now = time.monotonic()
    metrics["timing_s/update_actor"] = now - clock["update"]
    metrics["timing_s/step"] = now - clock["step"]
    metrics["perf/throughput"] = metrics["tokens/step"] / (now - clock["step"])
    clock["step"] = clock["free"] = now
    run.log.metrics("rl", at, metrics)
    run.display.step(
        at,
        accuracy=f"{metrics['train/accuracy']:.1%}",
        length=float(metrics["response_length/mean"]),
        tokens_s=f"{metrics['perf/throughput']:.0f}",
    )

  def generate() -> Experience:
    """Samples and scores one round of prompts."""
    ids, rows = zip(*next(stream), strict=True)
    prompts = data.pack_prompts(
        run.tok, [row.prompt for row in rows], ids, c.rollout.max_prompt
    )
    rollouts = run.sample(
        state.params,
        run.put(prompts, "batch"),
        key,
        heat,
        group_size=group,
        top_p=c.rollout.top_p,
    )
    flush()  # the last update ends before these responses begin
    rollouts = sharding.fetch(rollouts)
    began = time.monotonic()
    times["gen"] += began - clock["free"]
    _, correct_B, failures = evaluate.judge(run.task, run.tok, rollouts, rows)
    if c.reward.shuffle:
      rng = np.random.default_rng((run.seed("shuffle"), ids[0]))
      correct_B = rng.permutation(correct_B)
    counts["train/verifier_failures"] += failures
    clock["free"] = time.monotonic()
    times["score"] += clock["free"] - began
    zeros_B = np.zeros(len(correct_B), np.int32)
    return Experience(
        rollouts, correct_B, np.zeros_like(rollouts.logps_BT), zeros_B
    )

  def save(score: float | None = None) -> None:
    host = run.host_state(
        data=stream.get_state(), generated=generated, evaluated=evaluated
    )
    checkpoints.save(at, _everything(run, state, kept), host, score)

  run.display.stage("RL", c.rl.steps, at)
  clock["step"] = clock["free"] = time.monotonic()
  try:
    while True:
      every = c.evaluate.every
      due = at in (0, c.rl.steps) or (every and at % every == 0)
      if due and not evaluated:
        flush()
        value = _evaluate(run, state.params, at)
        evaluated = True
        save(value)
        clock["step"] = clock["free"] = time.monotonic()
      elif at % c.checkpoint.every == 0 and checkpoints.saved != at:
        flush()
        save()
      run.check_stop()
      if at == c.rl.steps:
        break

      times, counts = dict(gen=0.0, score=0.0), {"train/verifier_failures": 0}
      rows, left, metrics = dynamic_sampling.collect(
          generate,
          kept,
          prompts=c.rollout.prompts,
          group_size=group,
          **c.dynamic_sampling,
      )
      began = time.monotonic()
      rows, entropy_BT = _with_old_logps(run, score, state.params, rows)
      if left is not None:
        left, _ = _with_old_logps(run, score, state.params, left)
      kept = left
      ref_BT = np.zeros_like(rows.old_logps_BT)
      if c.loss.kl != "none":
        ref_BT = _logps(run, score, sft_params, rows)[0]
      times["old_log_prob"] = time.monotonic() - began

      began = time.monotonic()
      small = (
          rows.correct_B,
          rows.rollouts.lengths_B,
          rows.rollouts.truncated_B,
          rows.rollouts.ids_B,
          rows.age_B,
      )
      reward_B, advantage_B = sharding.fetch(assess(run.put(small)))
      batch = _batch(run, rows, advantage_B, ref_BT)
      times["adv"] = time.monotonic() - began
      tokens = int(metrics.pop("tokens/generated"))
      generated += tokens
      metrics |= counts | _rollout_metrics(run, rows, reward_B, batch)
      metrics |= {f"timing_s/{k}": v for k, v in times.items()}
      metrics |= {"tokens/step": tokens, "tokens/generated": generated}

      batch_MA = _minibatches(run, batch, at)
      clock["update"] = time.monotonic()
      state, metrics["device"] = update(
          state, run.put(batch_MA, None, None, "batch")
      )
      at, evaluated, late = at + 1, False, metrics
      if at % c.log.samples_every == 0 or at == 1:
        _keep_samples(run, source, at, rows, reward_B, batch, entropy_BT)
  except (Stopped, RunError):
    if checkpoints.saved != at:
      flush()
      save()
    raise
  finally:
    run.display.end_stage()
    checkpoints.close()
  return state.params


def load(run: Run, which: str) -> tuple[Tree, int]:
  """Parameters of a finished checkpoint of RL.

  Args:
    run: everything that the stages share.
    which: 'newest', 'best', or a step.

  Returns:
    the parameters, and their step.

  Raises:
    RunError: there is no such checkpoint; lists those that there are.
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
  # Only the parameters matter here, but a pytree is restored whole.
  tx, shardings = _optimizer(run)
  like = step.abstract_state(run.cfg, tx, shardings)
  kept = _no_rows(run) if _keeps(run) else None
  whole_state = checkpoints.restore(at, _everything(run, like, kept))
  return whole_state["train"].params, at


def _keeps(run: Run) -> bool:
  return run.config.dynamic_sampling.surplus == "keep"


def _no_rows(run: Run) -> Experience:
  """A batch of nothing but padding: the first `kept`."""
  c = run.config
  rows = c.rollout.prompts * c.rollout.group_size
  length = c.rollout.max_tokens
  zeros_BT = np.zeros((rows, length), np.float32)
  zeros_B = np.zeros(rows, np.int32)
  return Experience(
      rollouts=Rollouts(
          tokens_BL=np.zeros((rows, c.rollout.max_prompt + length), np.int32),
          start_B=zeros_B,
          ids_B=zeros_B - 1,
          mask_BT=zeros_BT > 0,
          logps_BT=zeros_BT,
          lengths_B=zeros_B,
          truncated_B=zeros_B > 0,
      ),
      correct_B=zeros_B.astype(np.float32),
      old_logps_BT=zeros_BT,
      age_B=zeros_B - 1,
  )


def _everything(run: Run, state, kept) -> Tree:
  """The pytree of a checkpoint."""
  return dict(train=state, kept=None if kept is None else run.put(kept))


def _optimizer(run: Run):
  """The optimizer of RL and the shardings of its state."""
  c = run.config
  per_step = c.updates.minibatches * c.updates.epochs
  tx = run.optimizer(
      lr=c.optimizer.lr,
      schedule=c.optimizer.schedule,
      warmup=c.optimizer.warmup_steps * per_step,
      total=c.rl.steps * per_step,
  )
  return tx, step.state_shardings(run.cfg, tx, run.mesh)


def _score(run: Run):
  """jit: (params, tokens, start) -> log-probs and entropy, [A, B, T] each.

  In micro-batches of the update's size: no more memory than the update takes,
  and the same matrix products, so that the first update starts at a ratio of 1.
  """
  c = run.config.rollout

  def fn(params, tokens_ABL, start_AB):
    def one(rows):
      return model.response_logps(
          params, run.cfg, *rows, c.max_tokens, c.temperature
      )

    return jax.lax.map(one, (tokens_ABL, start_AB))

  return jax.jit(fn)


def _logps(run: Run, score, params, rows: Experience):
  u, r = run.config.updates, rows.rollouts
  micro = step.split((r.tokens_BL, r.start_B), u.minibatches * u.micro_batches)
  placed = run.put(micro, None, "batch")
  scored = sharding.fetch(score(params, *placed))
  return jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), scored)


def _with_old_logps(run: Run, score, params, rows: Experience):
  """Fresh rows get the trainer's log-probs; kept ones bring theirs along."""
  logps_BT, entropy_BT = _logps(run, score, params, rows)
  kept_B1 = (rows.age_B > 0)[:, None]
  old_BT = np.where(kept_B1, rows.old_logps_BT, logps_BT)
  return rows.replace(old_logps_BT=old_BT), entropy_BT


def _assess(run: Run):
  """jit: verdicts and lengths of all rows -> rewards [B], advantages [B]."""
  c = run.config
  keywords = config_lib.advantage_keywords(c)

  def fn(small):
    correct_B, lengths_B, truncated_B, groups_B, age_B = small
    reward_B = rewards.correctness(
        correct_B, right=c.reward.right, wrong=c.reward.wrong
    )
    reward_B += c.reward.overlong_coef * rewards.soft_overlong(
        lengths_B,
        max_tokens=c.rollout.max_tokens,
        buffer=c.reward.overlong_buffer,
    )
    if c.reward.truncated == "bootstrap":
      reward_B = rewards.bootstrap_truncated(reward_B, truncated_B, groups_B)
    advantage = getattr(advantages, c.advantage.name)
    return reward_B, advantage(reward_B, groups_B, **keywords) * (age_B >= 0)

  return jax.jit(fn)


def _batch(run: Run, rows: Experience, advantage_B, ref_BT) -> Batch:
  """What the update reads, rows in the order of `rows`, on the host."""
  mask_BT = rows.rollouts.mask_BT
  if run.config.loss.mask_truncated:
    mask_BT = mask_BT & ~rows.rollouts.truncated_B[:, None]
  return Batch(
      tokens_BL=rows.rollouts.tokens_BL,
      start_B=rows.rollouts.start_B,
      groups_B=rows.rollouts.ids_B,
      mask_BT=mask_BT,
      advantages_BT=advantage_B[:, None] * mask_BT,
      old_logps_BT=rows.old_logps_BT,
      ref_logps_BT=ref_BT,
  )


def _minibatches(run: Run, batch: Batch, at: int) -> Batch:
  """Cuts rows as [M, A, B, ...]; whole groups, shuffled after epoch one.

  Groups are dealt out like cards, so that padding (it comes last) is shared
  evenly by the minibatches.
  """
  c = run.config
  groups, count = c.rollout.prompts, c.updates.minibatches
  orders = [np.arange(groups)]
  for epoch in range(1, c.updates.epochs):
    rng = np.random.default_rng((run.seed("epochs"), at, epoch))
    orders.append(rng.permutation(groups))
  order = np.concatenate([o.reshape(-1, count).T.reshape(-1) for o in orders])

  def cut(x):
    by_group = x.reshape(groups, c.rollout.group_size, *x.shape[1:])
    return by_group[order].reshape(-1, *x.shape[1:])

  micro = c.updates.micro_batches
  return step.split(jax.tree.map(cut, batch), count * c.updates.epochs, micro)


def _update(run: Run, tx, shardings):
  c = run.config

  def fn(state, batch_MA) -> tuple[Tree, dict[str, Array]]:
    state, metrics = step.rl_update(
        state,
        batch_MA,
        cfg=run.cfg,
        tx=tx,
        temperature=c.rollout.temperature,
        reduction=c.loss.reduction,
        kl=c.loss.kl,
        kl_coef=c.loss.kl_coef,
        clip_low=c.loss.clip_low,
        clip_high=c.loss.clip_high,
        dual_clip=c.loss.dual_clip,
        log_ratio_max=c.loss.log_ratio_max,
    )
    return state, {f"actor/{k}": v for k, v in metrics.items()}

  return jax.jit(fn, donate_argnums=0, out_shardings=(shardings, None))


def _rollout_metrics(run: Run, rows: Experience, reward_B, batch: Batch):
  """What the rows of a batch say; padding left out."""
  r = rows.rollouts
  real_B, fresh_B = rows.age_B >= 0, rows.age_B == 0
  out = {"train/rows_kept": (rows.age_B > 0).sum()}
  if real_B.any():
    gap = np.abs(np.where(r.mask_BT, r.logps_BT - rows.old_logps_BT, 0))
    fresh_BT = r.mask_BT & fresh_B[:, None]
    diff = (r.logps_BT - rows.old_logps_BT)[fresh_BT]
    lengths, reward_B = r.lengths_B[real_B], reward_B[real_B]
    advantage = batch.advantages_BT[batch.mask_BT]
    out |= {
        "critic/score/mean": rows.correct_B[real_B].mean(),
        "critic/rewards/mean": reward_B.mean(),
        "critic/rewards/max": reward_B.max(),
        "critic/rewards/min": reward_B.min(),
        "critic/advantages/mean": advantage.mean() if advantage.size else 0,
        "response_length/mean": lengths.mean(),
        "response_length/max": lengths.max(),
        "response_length/min": lengths.min(),
        "response_length/clip_ratio": r.truncated_B[real_B].mean(),
        "rollout/logp_gap_max": gap[fresh_B].max() if fresh_B.any() else 0,
        "rollout/sampler_trainer_kl": diff.mean() if diff.size else 0,
    }
  else:
    out |= {"response_length/mean": 0.0}
  return out


def _evaluate(run: Run, params: Tree, at: int) -> float:
  """Logs an evaluation; returns the score by which checkpoints compete."""
  c = run.config
  ends = at in (0, c.rl.steps)
  count = c.evaluate.prompts if ends else c.evaluate.interim_prompts
  began = time.monotonic()
  values, rows = evaluate.evaluate(run, params, count, "evaluating")
  values["timing_s/testing"] = time.monotonic() - began
  run.log.metrics("evaluate", at, values)
  if ends:
    some = rows[: c.log.samples]
    run.log.samples([dict(stage="evaluate", step=at) | row for row in some])
  name = f"val-core/{c.task.name}/acc/mean@{c.evaluate.mean_of}"
  mean, half = values[name], values[name + "/ci95"]
  run.display.say(
      f"held-out accuracy at step {at}: {mean:.1%} +- {half:.1%}"
  )
  return values["val-aux/score"]


def _keep_samples(run, source, at, rows, reward_B, batch, entropy_BT) -> None:
  """Some responses of the batch, for samples.jsonl and the screen."""
  c = run.config
  real = np.flatnonzero(rows.age_B >= 0)
  if not len(real):
    return
  which = real[np.linspace(0, len(real) - 1, c.log.samples).astype(int)]
  some = jax.tree.map(lambda x: x[which], rows)
  problems = [source[i][1] for i in some.rollouts.ids_B]
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
      entropy=entropy_BT[which],
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
