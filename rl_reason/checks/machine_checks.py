"""What the files, the hub and the devices of this machine allow."""

import math
from collections.abc import Iterator, Set

import ml_collections

from rl_reason import tasks
from rl_reason.base import feature
from rl_reason.base.errors import ConfigError
from rl_reason.checks import model_rules, relations, rules
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
  rules.check(c, model_rules.experts(c))
  sizes, samplers = mesh_sizes(c, devices), c.mesh.rollout
  covered = math.prod(sizes.values()) == devices - samplers
  if samplers < devices and not covered:
    more = f" besides the {samplers} of mesh.rollout" if samplers else ""
    raise ConfigError(
        f"mesh = {axes.text(sizes)}: does not cover {devices - samplers}"
        f" devices{more}; set one axis to -1"
    )
  rules.check(c, _batches(c, sizes, devices, stage))
  rules.check(c, model_rules.split(c, sizes))


def _batches(c, sizes, devices: int, stage: str) -> Iterator[rules.Rule]:
  """Batches that the devices cannot share evenly."""
  r, samplers, tensor = c.rollout, c.mesh.rollout, sizes["tensor"]
  some = f"of {devices} devices, some must learn"
  if samplers >= devices:
    yield "mesh.rollout", some
  if samplers % tensor:
    yield "mesh.rollout", f"must be a multiple of {tensor=}"
  sampled = {
      "rollout.batch": r.batch // r.group_size,
      "rollout.slots": r.slots,
  }
  groups = {"rollout.batch"}
  for one in feature.used(c):
    sampled |= one.shared(c)
    groups |= one.shared(c).keys()
  learned = {
      "sft.batch": c.sft.batch if sft_steps(c) else 0,
      "updates.minibatches": r.batch // c.updates.minibatches,
      "evaluate.batch": c.evaluate.batch,
      "generate.batch": c.generate.batch,
  }
  for one in feature.used(c):
    learned |= one.learned(c)
  if of_feature := feature.stages().get(stage):
    learned |= of_feature.rows(c)
  # Value pretraining and evaluations sample with the devices that learn.
  shards = axes.num_shards(sizes, "batch")
  by_count = (shards, sampled | learned), (samplers // tensor or 1, sampled)
  split = axes.of_batch(sizes)
  for count, batches in by_count:
    for name, rows in batches.items():
      if rows % count:
        unit = "groups" if name in groups else "rows"
        yield name, (
            f"{rows} {unit} cannot be split over {count} shards ({split}): make"
            f" their number a multiple of {count}"
        )
