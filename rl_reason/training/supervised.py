"""Supervised training on an endless stream: the loop of SFT and reward model.

Runs, resumes or skips; saves on the way; reads metrics one step behind, while
the device works.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from rl_reason.structs import Array, Tree
from rl_reason.training import packing, step
from rl_reason.training.session import Once, Run, Stopped


def optimizer(run: Run, table: Tree, *, lr, schedule, steps: int):
  """The optimizer of a stage, and the shardings of its state."""
  tx = run.optimizer(lr=lr, schedule=schedule, warmup=0, total=steps)
  return tx, step.state_shardings(table, tx, run.mesh)


def fit(
    run: Run,
    name: str,
    *,
    title: str,
    prefix: str,
    table: Tree,
    first: Callable[[Tree], Tree] | None,
    stream: Any,
    rows: Callable[[Any], tuple[Array, Array, Array]],
    update: Callable,
    steps: int,
    lr: float,
    schedule: str,
    together: int = 1,
    finish: Callable[[Tree], None] | None = None,
) -> Tree:
  """Trains for `steps` steps; returns the parameters.

  Args:
    run: everything that the stages share.
    name: of the stage in checkpoints and metrics.
    title: of the stage on the screen.
    prefix: of its metrics.
    table: of the network's parameters.
    first: shardings of the parameters -> where they start; None: at random.
    stream: a checkpointable iterator of batches.
    rows: a batch -> tokens [B, L], start [B], mask [B, T].
    update: (state, Packed, mask [B, T], tx=) -> state and metrics.
    steps: optimizer steps.
    lr: highest learning rate.
    schedule: of the learning rate.
    together: adjacent rows that belong together.
    finish: told the parameters once, after the last step; what it raises ends
      the run, and it is told them again when the run goes on.

  Raises:
    Stopped: SIGTERM; everything is saved.
  """
  checkpoints = run.checkpoints(name)
  tx, shardings = optimizer(run, table, lr=lr, schedule=schedule, steps=steps)
  checked = finish is None
  found = run.resume(checkpoints)
  if found:
    at, host = found
    like = step.abstract_state(table, tx, shardings)
    state = checkpoints.restore(at, like)
    stream.set_state(host["data"])
    checked = host["checked"]
    if at == steps and checked:
      checkpoints.close()
      return state.params
    run.display.say(f"{title}: goes on at step {at} of {steps}")
  elif first is None:
    at = 0
    state = step.init_state(table, tx, shardings, run.key("parameters"))
  else:
    at, state = 0, step.new_state(first(shardings.params), tx, shardings)

  run.begin()
  packed_rows = max(run.packed_rows, together)

  def fn(state, packed, mask_BT):
    return update(state, packed, mask_BT, tx=tx)

  program = Once(
      f"update of {title}",
      jax.jit(fn, donate_argnums=0, out_shardings=(shardings, None)),
      run.display,
  )
  late = None

  def flush() -> None:
    nonlocal late
    if late is not None:
      _log(run, name, prefix, *late)
    late = None

  def save() -> None:
    flush()
    host = run.host_state(data=stream.get_state(), checked=checked)
    checkpoints.save(at, state, host)

  run.display.stage(title, steps, at)
  try:
    while at < steps:
      run.check_stop()
      tokens_BL, start_B, mask_BT = rows(next(stream))
      packed = packing.pack(tokens_BL, start_B, mask_BT, packed_rows, together)
      placed = run.put_packed(packed), run.put(mask_BT, "batch")
      state, metrics = program(state, *placed)
      flush()
      at += 1
      late = at, metrics
      if at % run.config.checkpoint.sft_every == 0 or at == steps:
        save()
    if not checked and finish is not None:
      finish(state.params)
      checked = True
      save()
  except Stopped:
    if checkpoints.saved != at:
      save()
    raise
  finally:
    run.display.end_stage()
    checkpoints.close()
  return state.params


def _log(run: Run, name: str, prefix: str, now: int, metrics) -> None:
  values = {k: np.asarray(v) for k, v in jax.device_get(metrics).items()}
  run.display.step(now, loss=float(values["loss"]))
  if now % run.config.log.sft_every == 0:
    run.log.metrics(name, now, {f"{prefix}/{k}": v for k, v in values.items()})
