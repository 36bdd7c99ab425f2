"""--stage=size: memory and traffic of a run, and the largest sizes that fit."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax

from rl_reason.base.errors import ConfigError
from rl_reason.checks import config_facts, machine_checks
from rl_reason.devices import axes, device_mesh, sharding
from rl_reason.lab import (
    automatic_remat,
    compiled_memory,
    disk_formula,
    fewest_devices,
    measured_memory,
    memory_formula,
    model_shapes,
    traffic_formula,
)
from rl_reason.lab.automatic_remat import device_bytes, largest
from rl_reason.models import kernels
from rl_reason.monitoring.display import Display
from rl_reason.stages.model import Model, critic_config, slow_dtype

GIB = 1 << 30


def run(config, display: Display, memory: float | None, devices: int) -> None:
  """Shows whether a run fits, and the largest token budget and slots that fit.

  Args:
    config: checked.
    display: the screen.
    memory: GiB per device; None: the memory of the devices of this machine.
    devices: number of devices of another machine, which are estimated by
      formula; 0: the devices of this machine, for which the programs compile;
      -1: the smallest number of devices of `memory` GiB on which the run fits.

  Raises:
    ConfigError: there is no such model, the mesh does not fit, or `memory` is
      no size.
  """
  if memory is not None and not 0 < memory < math.inf:  # or NaN
    raise ConfigError(f"--memory = {memory}: must be a positive number of GiB")
  cfg = model_shapes.shape(config)
  value = critic_config(config, cfg)
  limit = int(memory * GIB) if memory else device_bytes()
  if devices < 0:
    devices = fewest_devices.search(config, cfg, value, limit)
    found = axes.text(config_facts.mesh_sizes(config, devices))
    display.say(
        f"the smallest number of devices of {limit / GIB:.1f} GiB: {devices},"
        f" with mesh = {found} (powers of two were tried)"
    )
  machine_checks.devices(config, devices or jax.device_count())
  mesh = _mesh(config, devices)
  backend = "" if devices else jax.default_backend()
  if config.model.remat == "auto":
    try:
      display.say(
          automatic_remat.choose(config, cfg, value, mesh, limit, backend)
      )
    except ConfigError as e:  # the table then shows why
      display.say(str(e))
    cfg = model_shapes.shape(config)
    value = critic_config(config, cfg)
  estimate = functools.partial(
      memory_formula.estimate, config, cfg, value, mesh, backend=backend
  )
  size = estimate()
  update, rollout = size.update_peak, size.rollout_peak
  evaluation = size.evaluation_peak
  padded = kernels.cached("tpu", cfg.head_dim)
  if devices and padded != kernels.cached(cfg.attention, cfg.head_dim):
    on_tpu = dataclasses.replace(cfg, attention="tpu")
    peak = memory_formula.estimate(config, on_tpu, value, mesh).rollout_peak
    display.say(
        f"on TPUs the key/value cache has heads of {padded} instead of"
        f" {cfg.head_dim}: rollout {peak / GIB:.3g} GiB instead of"
        f" {rollout / GIB:.3g}"
    )
  peaks = None
  if not devices:
    if line := slow_dtype(cfg):
      display.say(f"warning: {line}")
    model = Model(cfg, value, mesh)
    peaks = of_programs(config, model, size, limit, display)
    (update, _), (rollout, _), (evaluation, _) = peaks
  _show(display, size, peaks)
  _show_hosts(display, *disk_formula.estimate(config, cfg, value))
  _show_traffic(display, config, cfg, value, mesh)

  # The formula, scaled to what was compiled.
  resident = sum(size.resident.values())

  def scaled(peak: int, total: int, part: int) -> float:
    return resident + (peak - resident) * part / total

  def budget_fits(rows: int) -> bool:
    budget = rows * (config.rollout.max_prompt + config.rollout.max_tokens)
    x = estimate(token_budget=budget).update
    extra = sum(size.update.values())
    return scaled(update, extra, sum(x.values())) <= limit

  shards = sharding.num_shards(mesh, "batch")
  row_shards = sharding.num_shards(mesh, "rows")

  one_slot = estimate(slots=shards)

  def slots_fit(rows: int) -> bool:
    x = estimate(slots=rows * shards)
    extra = sum(size.rollout.values())
    fits = scaled(rollout, extra, sum(x.rollout.values())) <= limit
    # Fewer slots do not help an evaluation whose prompts alone are too many.
    return fits and (evaluation_fits(x) or not evaluation_fits(one_slot))

  def batch_fits(prompts: int) -> bool:
    return evaluation_fits(estimate(evaluated=prompts * shards))

  def evaluation_fits(x: memory_formula.Size) -> bool:
    extra = sum(size.evaluation.values())
    return scaled(evaluation, extra, sum(x.evaluation.values())) <= limit

  c = config
  length = c.rollout.max_prompt + c.rollout.max_tokens
  in_minibatch = c.rollout.batch // c.updates.minibatches
  rows = largest(budget_fits, -(-in_minibatch // row_shards))
  responses = c.dynamic_sampling.batches * c.rollout.batch
  slots = largest(slots_fit, responses // shards) * shards
  prompts = largest(batch_fits, c.evaluate.batch // shards) * shards
  fits = max(update, rollout, evaluation) <= limit
  display.say(
      f"{'fits' if fits else 'does not fit'} into {limit / GIB:.1f} GiB;"
      f" the largest that do: updates.token_budget = {rows * length}"
      f" ({rows} rows of {length}), rollout.slots = {slots}"
      f"{' (all)' if slots == responses else ''},"
      f" evaluate.batch = {prompts}"
      f"{' (as it is)' if prompts == c.evaluate.batch else ''}"
  )
  if count := config_facts.samplers(config):
    display.say(
        "the table is for the devices that learn, as if they sampled, too; the"
        f" {count} devices that only sample are not counted"
    )
  if not (rows and slots and prompts):
    display.say(
        "nothing is small enough: spread the model over more devices"
        f" ({axes.fields('embed', 'or')}), or set"
        f" {memory_formula.smaller_state()}"
    )


# A peak of memory: by XLA's analysis, and measured (None: not measured).
Peak = tuple[int, int | None]


def of_programs(
    config,
    model: Model,
    size: memory_formula.Size,
    limit: int,
    display: Display,
) -> tuple[Peak, ...]:
  """The peaks of update, rollout and evaluation, with all resident arrays.

  Args:
    config: checked.
    model: shapes, and the devices of this machine.
    size: by formula; its resident arrays are held by the run, and are no
      arguments of the programs.
    limit: bytes of a device; programs that need more do not run.
    display: the screen.
  """
  with display.compiling("the update"):
    program = compiled_memory.update(config, model, display)
  held = sum(size.resident.values()) - size.resident["parameters"]
  held -= size.resident["optimizer state"]
  update = compiled_memory.peak(program[0]) + held
  jobs = [(update, held, functools.partial(measured_memory.update, program))]
  for make, parts in (
      (compiled_memory.rollout, size.rollout),
      (compiled_memory.evaluation, size.evaluation),
  ):
    with display.compiling("the sampler"):
      programs = list(make(config, model))
    beside = sum(size.resident.values())
    if not parts["weights of the sampler"]:
      beside -= size.resident["parameters"]  # it reads them as they are
    peak = compiled_memory.sampler_peak(programs) + beside
    measure = functools.partial(measured_memory.rollout, programs)
    jobs.append((peak, beside, measure))
  measured: dict[int, int | None] = {}
  if max(peak for peak, *_ in jobs) <= limit:
    if measured_memory.is_cheap(config, model):
      display.doing("running the programs once")
      # An accelerator tells its highest peak so far: lower ones come first.
      for peak, other, run in sorted(jobs, key=lambda x: x[0]):
        measured[peak] = None if (x := run()) is None else x + other
    else:
      display.say("not measured: it would take minutes on a CPU")
  return tuple((peak, measured.get(peak)) for peak, *_ in jobs)


def _mesh(config, devices: int):
  if not devices:
    return device_mesh.make_meshes(**config.mesh)[0]
  return sharding.abstract_mesh(**config_facts.mesh_sizes(config, devices))


def _show(display, size, peaks: Sequence[Peak] | None) -> None:
  """A row for each part and peak; without `peaks` by formula only."""
  rows = []

  def add(*cells: Any) -> None:
    when, what, *counts = cells
    shown = ["-" if x is None else f"{x / GIB:.3g}" for x in counts]
    rows.append([when, what, *shown][: 5 if peaks else 3])

  for when, parts in (
      ("always", size.resident),
      ("update", size.update),
      ("rollout", size.rollout),
      ("evaluation", size.evaluation),
  ):
    for name, count in parts.items():
      if count:
        add(when, name, count, None, None)
  compiled: Sequence = peaks or [(None, None)] * 3
  add("update", "peak", size.update_peak, *compiled[0])
  add("rollout", "peak", size.rollout_peak, *compiled[1])
  add("evaluation", "peak", size.evaluation_peak, *compiled[2])
  columns = ["when", "what", "formula"]
  if peaks:
    columns += ["XLA", "measured"]
    display.say(
        "formula: from the shapes of the arrays; XLA: its analysis of the"
        f" programs compiled for {jax.default_backend()}; measured: these"
        " programs, run once on this machine with arrays of ones"
    )
  display.table("GiB per device", columns, rows)


def _show_hosts(
    display: Display, host: dict[str, int], disk: dict[str, int]
) -> None:
  """A row for each part of the memory of hosts and of the work directory."""
  rows = [
      [where, name, _gib(count)]
      for where, parts in (("host memory", host), ("disk", disk))
      for name, count in (*parts.items(), ("sum", sum(parts.values())))
  ]
  display.table("GiB of all hosts together", ["where", "what", "formula"], rows)


def _show_traffic(display: Display, config, cfg, value, mesh) -> None:
  """A row for what each device sends in a step of RL, and the sum."""
  sent = traffic_formula.estimate(config, cfg, value, mesh)
  if not sent:  # there is one device
    return
  micro, minibatches = traffic_formula.micro_batches(config, mesh)
  display.say(
      "traffic: by formula, without activations;"
      f" {minibatches * config.updates.epochs} x {micro} micro-batches, of"
      " which each gathers the weights for the forward and the backward pass,"
      " and reduces its gradient in float32"
  )
  rows = [
      [name, _gib(count)]
      for name, count in (*sent.items(), ("sum", sum(sent.values())))
  ]
  title = "GiB that each device sends in a step of RL"
  display.table(title, ["what", "formula"], rows)


def _gib(count: int) -> str:
  gib = count / GIB
  return f"{gib:.3g}" if gib < 999 else f"{gib:,.0f}"
