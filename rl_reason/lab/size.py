"""--stage=size: memory of a run per device, and the largest sizes that fit."""

import dataclasses

import jax

from rl_reason.base.errors import ConfigError
from rl_reason.checks import facts, machine_checks
from rl_reason.devices import axes, device_mesh, sharding
from rl_reason.lab import (
    automatic_remat,
    compiled_memory,
    memory_formula,
    model_shapes,
)
from rl_reason.lab.automatic_remat import device_bytes, largest
from rl_reason.models import kernels
from rl_reason.monitoring.display import Display
from rl_reason.stages.model import Model, critic_config

GIB = 1 << 30


def run(config, display: Display, memory: float | None, devices: int) -> None:
  """Shows whether a run fits, and the largest token budget and slots that fit.

  Args:
    config: checked.
    display: the screen.
    memory: GiB per device; None: the memory of the devices of this machine.
    devices: number of devices of another machine, which are estimated by
      formula; 0: the devices of this machine, for which the programs compile.

  Raises:
    ConfigError: there is no such model, or the mesh does not fit.
  """
  cfg = model_shapes.shape(config)
  value = critic_config(config, cfg)
  machine_checks.devices(config, devices or jax.device_count())
  mesh = _mesh(config, devices)
  limit = int(memory * GIB) if memory else device_bytes()
  if config.model.remat == "auto":
    try:
      display.say(automatic_remat.choose(config, cfg, value, mesh, limit))
    except ConfigError as e:  # the table then shows why
      display.say(str(e))
    cfg = model_shapes.shape(config)
    value = critic_config(config, cfg)
  size = memory_formula.estimate(config, cfg, value, mesh)
  update, rollout, source = size.update_peak, size.rollout_peak, "formula"
  padded = kernels.cached("tpu", cfg.head_dim)
  if devices and padded != kernels.cached(cfg.attention, cfg.head_dim):
    on_tpu = dataclasses.replace(cfg, attention="tpu")
    peak = memory_formula.estimate(config, on_tpu, value, mesh).rollout_peak
    display.say(
        f"on TPUs the key/value cache has heads of {padded} instead of"
        f" {cfg.head_dim}: rollout {peak / GIB:.3g} GiB instead of"
        f" {rollout / GIB:.3g}"
    )
  if not devices:
    source = f"compiled for {jax.default_backend()}"
    model = Model(cfg, value, mesh)
    update, rollout = measured(config, model, size, display)
  _show(display, size, update, rollout, source)

  # The formula, scaled to what was compiled.
  resident = sum(size.resident.values())

  def scaled(peak: int, total: int, part: int) -> float:
    return resident + (peak - resident) * part / total

  def budget_fits(rows: int) -> bool:
    budget = rows * (config.rollout.max_prompt + config.rollout.max_tokens)
    x = memory_formula.estimate(
        config, cfg, value, mesh, token_budget=budget
    ).update
    extra = sum(size.update.values())
    return scaled(update, extra, sum(x.values())) <= limit

  shards = sharding.num_shards(mesh, "batch")
  row_shards = sharding.num_shards(mesh, "rows")

  def slots_fit(rows: int) -> bool:
    x = memory_formula.estimate(
        config, cfg, value, mesh, slots=rows * shards
    ).rollout
    extra = sum(size.rollout.values())
    return scaled(rollout, extra, sum(x.values())) <= limit

  c = config
  length = c.rollout.max_prompt + c.rollout.max_tokens
  in_minibatch = c.rollout.batch // c.updates.minibatches
  rows = largest(budget_fits, -(-in_minibatch // row_shards))
  responses = c.dynamic_sampling.batches * c.rollout.batch
  slots = largest(slots_fit, responses // shards) * shards
  fits = max(update, rollout) <= limit
  display.say(
      f"{'fits' if fits else 'does not fit'} into {limit / GIB:.1f} GiB;"
      f" the largest that do: updates.token_budget = {rows * length}"
      f" ({rows} rows of {length}), rollout.slots = {slots}"
      f"{' (all)' if slots == responses else ''}"
  )
  if config.mesh.rollout:
    display.say(
        f"mesh.rollout = {config.mesh.rollout}: the table is for the devices"
        " that learn, as if they sampled, too; the devices that only sample are"
        " not counted"
    )
  if not rows or not slots:
    display.say(
        "nothing is small enough: spread the model over more devices"
        f" ({axes.fields('embed', 'or')}), offload the optimizer state"
        " (optimizer.offload), or use LoRA (lora.rank)"
    )


def measured(
    config, model: Model, size: memory_formula.Size, display: Display
) -> tuple[int, int]:
  """Peak bytes of update and rollout, each with all resident arrays."""
  display.doing("compiling the update")
  program, (state, *rest) = compiled_memory.update(config, model, display)
  other = sum(size.resident.values()) - size.resident["parameters"]
  other -= size.resident["optimizer state"]
  update = compiled_memory.peak(program) + other
  display.doing("compiling the sampler")
  peaks = [
      compiled_memory.peak(x) for x, _ in compiled_memory.rollout(config, model)
  ]
  resident = sum(size.resident.values())
  if not size.rollout["weights of the sampler"]:
    resident -= size.resident[
        "parameters"
    ]  # the sampler reads them as they are
  return update, resident + max(peaks)


def _mesh(config, devices: int):
  if not devices:
    return device_mesh.make_meshes(**config.mesh)[0]
  return sharding.abstract_mesh(**facts.mesh_sizes(config, devices))


def _show(display, size, update: int, rollout: int, source: str) -> None:
  rows = []
  for phase, parts in (
      ("always", size.resident),
      ("update", size.update),
      ("rollout", size.rollout),
  ):
    for name, count in parts.items():
      if count:
        rows.append([phase, name, f"{count / GIB:.3g}", "formula"])
  for phase, count in ("update", update), ("rollout", rollout):
    rows.append([phase, "peak", f"{count / GIB:.3g}", source])
  display.table("GiB per device", ["when", "what", "GiB", "from"], rows)
