"""What the files, the hub and the devices of this machine allow."""

import math
from collections.abc import Iterator, Mapping, Set

import ml_collections

from rl_reason import tasks
from rl_reason.base import feature
from rl_reason.base.config import at
from rl_reason.base.errors import ConfigError
from rl_reason.checks import config_facts, model_rules, relations, rules
from rl_reason.checks.config_facts import (
    kind_of_rows,
    learns,
    mesh_sizes,
    sft_steps,
    sources,
)
from rl_reason.devices import axes
from rl_reason.verifiers import sandbox


def files(c, unknown: Set[str] = frozenset()) -> list[str]:
  """What a task of files lacks for training and evaluation, a line for each.

  Args:
    c: the config.
    unknown: fields with faults, which have their defaults in the config.

  Returns:
    lines for sources that are missing, or that have programs to judge, which
    nothing on this machine can contain; --stage=prepare does without.
  """
  if c.task.name != tasks.FILES or "task.name" in unknown:
    return []
  return list(rules.broken(c, _files(c, unknown)))


def _files(c, unknown: Set[str]) -> Iterator[rules.Rule]:
  for name, needed in (("train", learns(c)), ("evaluate", True)):
    if f"data.{name}" in unknown:
      continue
    if needed and not c.data[name]:
      yield f"data.{name}", "name at least one source"
    for source, _ in sources(c, name):
      if kind_of_rows(c, source) == "code" and (why := _uncontained()):
        yield f"data.{name}", why


def contains_programs(c, field: str) -> None:
  """Checks that this machine can contain programs, for rows of a field.

  Raises:
    ConfigError: it cannot: all programs would be incorrect.
  """
  if why := _uncontained():
    rules.refuse(c, field, why)


def _uncontained() -> str:
  """Why this machine cannot contain programs; '' if it can."""
  try:
    sandbox.tier()
    return ""
  except RuntimeError as e:
    return f"its rows are judged by code, and {e}"


def hub(c) -> None:
  """Checks that this machine can push to the hub: before anything is loaded.

  Raises:
    ConfigError: there is no token.
  """
  if c.export.push_to:
    import huggingface_hub

    if huggingface_hub.get_token() is None:
      rules.refuse(
          c,
          "export.push_to",
          "there is no token of the hub on this machine: run `hf auth login`,"
          " or set HF_TOKEN to one that may write",
      )


def devices(
    c: ml_collections.ConfigDict, devices: int, stage: str = "all"
) -> None:
  """Checks what depends on the devices and on the shape of a checkpoint.

  Args:
    c: the whole config.
    devices: how many the run uses.
    stage: of `main.STAGES`; batches of stages that do not run are left alone.

  Raises:
    ConfigError: a batch or a parameter cannot be split over the mesh, the
      layers into groups, or the inputs of a matrix into groups of int4.
  """
  from rl_reason.hf import quantization  # imports JAX

  quantization.scheme(c.model, c.export.precision)
  rules.check(c, relations.of_experts(c))
  rules.check(c, model_rules.of_shape(c))
  sizes, samplers = mesh_sizes(c, devices), config_facts.samplers(c)
  covered = math.prod(sizes.values()) == devices - samplers
  if samplers < devices and not covered:
    more = f" besides the {samplers} that only sample" if samplers else ""
    raise ConfigError(
        f"mesh = {axes.text(sizes)}: does not cover {devices - samplers}"
        f" devices{more}; set one axis to -1"
    )
  for one in feature.used(c):
    rules.check(c, one.devices(c, devices, sizes))
  # Value pretraining and evaluations sample with the devices that learn.
  shards = axes.num_shards(sizes, "batch")
  rules.check(c, uneven(c, sampled(c) | _learned(c, stage), shards, sizes))
  rules.check(c, model_rules.split(c, sizes))


def sampled(c) -> dict[str, int]:
  """Numbers that the devices that sample share evenly, by field."""
  r = c.rollout
  out = {"rollout.batch": r.batch // r.group_size, "rollout.slots": r.slots}
  return out | feature.set_fields(c, "older_groups")


def _learned(c, stage: str) -> dict[str, int]:
  """Numbers of rows that the devices that learn share evenly, by field."""
  out = {
      "sft.batch": c.sft.batch if sft_steps(c) else 0,
      "updates.minibatches": c.rollout.batch // c.updates.minibatches,
      "evaluate.batch": c.evaluate.batch,
      "generate.batch": c.generate.batch,
  }
  for name, switch in feature.marked("learned_rows").items():
    out[name] = at(c, name) if at(c, switch) else 0
  further = feature.stages()
  for name in [stage] if stage in further else feature.before_rl(c):
    out |= further[name].rows(c)
  return out


def uneven(
    c, numbers: Mapping[str, int], shards: int, sizes: Mapping[str, int]
) -> Iterator[rules.Rule]:
  """Numbers that shards cannot share evenly.

  Args:
    c: the config.
    numbers: of rows or groups, by field.
    shards: how many share them.
    sizes: of the axes of the mesh.
  """
  split, groups = axes.of_batch(sizes), {*sampled(c)} - {"rollout.slots"}
  for name, number in numbers.items():
    if number % shards:
      unit = "groups" if name in groups else "rows"
      yield name, (
          f"{number} {unit} cannot be split over {shards} shards ({split}):"
          f" make their number a multiple of {shards}"
      )
