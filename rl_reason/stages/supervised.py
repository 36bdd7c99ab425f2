"""Supervised training on an endless stream: SFT, and losses of pairs.

Metrics are read one step late, while the device works on the next step.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import optax

from rl_reason.base import config as config_lib
from rl_reason.base.structs import Array, Packed, TrainState, Tree
from rl_reason.checkpointing.resumable import NetworkState
from rl_reason.devices import sharding
from rl_reason.devices.compiled import CompiledOnce
from rl_reason.devices.randomness import key
from rl_reason.models import decoder
from rl_reason.monitoring import health, resources
from rl_reason.monitoring.display import Display
from rl_reason.stages.build_step import packed_rows
from rl_reason.stages.optimizers import of_stage
from rl_reason.stages.run_output import Output, open_stage
from rl_reason.training import imitation, packing
from rl_reason.training.optimizer import (
    abstract_state,
    init_state,
    learning_rates,
    new_state,
    state_shardings,
)
from rl_reason.training.step import optimize


def sft_update(
    state: TrainState,
    packed: Packed,
    mask_BT: Array,
    *,
    cfg: decoder.ModelConfig,
    tx: optax.GradientTransformation,
) -> tuple[TrainState, dict[str, Array]]:
  """One step of supervised fine-tuning: mean NLL of the response tokens.

  cfg and tx are static; the caller's jit donates the state. Returns the next
  state, and metrics: loss, grad_norm, update_skipped, and with experts those of
  `experts.loss`.
  """
  grads, metrics = imitation.gradient(state.params, packed, mask_BT, cfg=cfg)
  state, step_metrics = optimize(state, tx, grads, mask_BT, at=state.step)
  return state.replace(step=state.step + 1), metrics | step_metrics


def program(
    c,
    update: Callable,
    *,
    title: str,
    table: Tree,
    mesh: jax.sharding.Mesh,
    display: Display,
) -> CompiledOnce:
  """An update on the mesh, which serves every learning rate and schedule.

  Args:
    c: the checked config.
    update: (state, Packed, mask [B, T], further arrays of rows, tx=) -> state
      and metrics.
    title: of the stage on the screen.
    table: of the network's parameters.
    mesh: the devices.
    display: where the compile time is reported.

  Returns:
    (state, Packed, mask [B, T], further arrays, learning rates [S]) -> state
    and metrics. The state is donated.
  """
  # The rates are an argument, and the state is that of any schedule.
  optimizer = functools.partial(
      of_stage, c.optimizer, lr=0.0, schedule="constant", total=0
  )

  def supervised_update(state, packed, mask_BT, *others):
    *rows, rates_S = others
    tx = optimizer(rates_S=rates_S)
    return update(state, packed, mask_BT, *rows, tx=tx)

  fn = jax.jit(
      supervised_update,
      donate_argnums=0,
      out_shardings=(state_shardings(table, optimizer(), mesh), None),
  )
  return CompiledOnce(f"update of {title}", fn, display)


def train(
    c,
    name: str,
    *,
    mesh: jax.sharding.Mesh,
    output: Output,
    title: str,
    prefix: str,
    table: Tree,
    first: Callable[[Tree], Tree] | None,
    stream: Any,
    rows: Callable[[Any], tuple[Array, ...]],
    update: Callable,
    steps: int,
    lr: float,
    schedule: str,
    warmup: int = 0,
    rates: int = 0,
    unit: int = 1,
    final_check: Callable[[Tree], None] | None = None,
) -> Tree:
  """Trains for `steps` optimizer steps, or resumes; returns the parameters.

  Args:
    c: the checked config.
    name: of the stage in checkpoints and metrics.
    mesh: the devices.
    output: work directory, logs and screen.
    title: of the stage on the screen.
    prefix: of its metrics.
    table: of the network's parameters.
    first: shardings of the parameters -> initial parameters; None: random.
    stream: a checkpointable iterator over batches.
    rows: a batch -> tokens [B, L], start [B], mask [B, T], and further arrays
      [B, ...] that the update reads.
    update: a `program`.
    steps: optimizer steps.
    lr: peak learning rate.
    schedule: of the learning rate.
    warmup: optimizer steps of linear warm-up.
    rates: learning rates that the program gets, if more than `steps`: equal in
      all stages that share the program.
    unit: adjacent rows that must share a micro-batch.
    final_check: called once with the parameters after the last step. What it
      raises ends the run; a resumed run calls it again.

  Raises:
    RunError: too many successive updates were skipped, or all; it is saved.
    Stopped: SIGTERM; everything is saved.
  """
  # The config is read here.
  save_every = c.checkpoint.sft_every
  rate: dict[str, Any] = dict(
      lr=lr, schedule=schedule, warmup=warmup, total=steps
  )
  tx = of_stage(c.optimizer, **rate)
  shardings = state_shardings(table, tx, mesh)
  stage = open_stage(c, output, name)
  skips = health.SkippedUpdates(
      title,
      config_lib.flat(c),
      ".".join(dict.fromkeys((prefix, name, "lr"))),
      c.rl.max_steps_without_update,
  )
  state = NetworkState(abstract_state(table, tx, shardings), stream)

  # Resume from the newest checkpoint, or begin.
  if stage.restore(state):
    if state.complete:
      stage.checkpoints.close()
      skips.require_any(int(state.train.skipped), steps)
      return state.train.params
  elif first is None:
    random_key = key(mesh, c.seed, "parameters")
    state.train = init_state(table, tx, shardings, random_key)
  else:
    state.train = new_state(first(shardings.params), tx, shardings)

  rates_S = sharding.put(mesh, learning_rates(max(rates, steps), **rate))
  micro_batch_rows = max(packed_rows(c, mesh), unit)
  pending = None  # step and metrics of the update that is under way
  clock = resources.Clock()

  log = functools.partial(
      _log,
      log=output.log,
      display=output.display,
      every=c.log.sft_every,
      name=name,
      prefix=prefix,
      clock=clock,
  )

  def flush() -> None:
    nonlocal pending
    if pending is not None:
      step, values = pending[0], jax.device_get(pending[1])
      clock.lap("steps")
      log(step, values)
      skips.add(step, not values["update_skipped"], values["grad_norm"])
    pending = None

  with stage.running(title, steps, state, flush):
    while state.step < steps:
      stage.check_stop()
      skips.enforce(flush)
      # Pack the next batch and dispatch its update.
      tokens_BL, start_B, mask_BT, *others = rows(next(stream))
      packed = packing.pack(tokens_BL, start_B, mask_BT, micro_batch_rows, unit)
      placed = sharding.put_packed(mesh, packed), *(
          sharding.put(mesh, x, "batch") for x in (mask_BT, *others)
      )
      state.train, metrics = update(state.train, *placed, rates_S)
      # Log the step before, while the device works.
      flush()
      state.step += 1
      pending = state.step, metrics
      state.complete = state.step == steps and final_check is None
      if state.step == steps or stage.due(state.step, save_every):
        stage.save(state)
        clock.skip()
    skips.require_any(int(state.train.skipped), steps)
    if final_check is not None:
      final_check(state.train.params)
      state.complete = True
      stage.save(state)
  return state.train.params


def _log(step, values, *, log, display, every, name, prefix, clock) -> None:
  display.step(step, loss=float(values["loss"]))
  if step % every == 0:
    times = {f"timing_s/{k}": x for k, x in clock.take().items()}
    log.metrics(
        name, step, {f"{prefix}/{k}": v for k, v in values.items()} | times
    )
