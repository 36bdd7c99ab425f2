"""What the files, the hub and the devices of this machine allow."""

import math

import ml_collections

from rl_reason import tasks
from rl_reason.base import config
from rl_reason.base.errors import ConfigError
from rl_reason.checks import (
    of_experts as experts,
)
from rl_reason.checks.checked import _error, _sft_steps
from rl_reason.checks.combinations import Fault
from rl_reason.checks.facts import mesh_sizes
from rl_reason.data import datasets
from rl_reason.verifiers import sandbox


def files(c) -> None:
  """Checks that a task of files has all that training and evaluation need.

  Raises:
    ConfigError: a source is missing, or nothing on this machine can contain the
      programs that it judges; --stage=prepare does without.
  """
  trains = c.rl.steps or c.sft.skill.steps or c.sft.habits.steps
  if c.task.name != tasks.FILES:
    return
  for name, needed in (("train", trains), ("evaluate", True)):
    if needed and not c.data[name]:
      raise ConfigError(f"data.{name} = '': name at least one source")
    use = dict(train="train", evaluate="test")[name]
    for source, _ in datasets.parse_all(c.data[name], use):
      known = datasets.KNOWN.get(source.name)
      kind = known.kind if known else datasets.kind_of(c.data.kind, source)
      if kind == "code":
        _contained(f"data.{name} = {c.data[name]!r}")


def _contained(field: str) -> None:
  """Refuses programs where nothing can contain them: all would be incorrect."""
  try:
    sandbox.tier()
  except RuntimeError as e:
    raise ConfigError(f"{field}: its rows are judged by code, and {e}") from e


def hub(c) -> None:
  """Checks that this machine can push to the hub: before anything is loaded.

  Raises:
    ConfigError: there is no token.
  """
  if c.export.push_to:
    import huggingface_hub

    if huggingface_hub.get_token() is None:
      raise ConfigError(
          f"export.push_to = {c.export.push_to!r}: there is no token of the hub"
          " on this machine: run `hf auth login`, or set HF_TOKEN to one that"
          " may write"
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
    ConfigError: a batch or a parameter cannot be split over the mesh, or the
      layers into groups.
  """
  try:
    experts.check(c)
  except Fault as e:
    raise _error(config.flat(c), *e.args) from None
  sizes = mesh_sizes(c, devices)
  shape = " x ".join(f"{k} {v}" for k, v in sizes.items())
  r, values, samplers = c.rollout, config.flat(c), c.mesh.rollout
  if samplers >= devices:
    remedy = f"of {devices} devices, some must learn"
    raise _error(values, "mesh.rollout", remedy)
  if math.prod(sizes.values()) != devices - samplers:
    beside = f" beside the {samplers} of mesh.rollout" if samplers else ""
    raise ConfigError(
        f"mesh = {shape}: does not cover {devices - samplers} devices{beside};"
        " set one axis to -1"
    )
  tensor, widths = sizes["tensor"], sizes["fsdp"] * sizes["sequence"]
  shards = sizes["data"] * sizes["expert"] * widths
  if samplers % tensor:
    raise _error(values, "mesh.rollout", f"must be a multiple of {tensor=}")
  sampled = {
      "rollout.batch": r.batch // r.group_size,
      "rollout.slots": r.slots,
      "rollout.partial_groups": r.partial_groups,
  }
  learned = {
      "sft.batch": c.sft.batch if _sft_steps(c) else 0,
      "reward_model.batch": (
          2 * c.reward_model.batch if stage == "reward_model" else 0
      ),
      "updates.minibatches": r.batch // c.updates.minibatches,
      "evaluate.batch": c.evaluate.batch,
      "generate.batch": c.generate.batch,
  }
  # Value pretraining and evaluations sample with the devices that learn.
  extra = [f" x {x}" for x in ("expert", "sequence") if sizes[x] > 1]
  axes = "".join(["data x fsdp", *extra])
  by_count = (shards, sampled | learned), (samplers // tensor or 1, sampled)
  for count, batches in by_count:
    for name, rows in batches.items():
      if rows % count:
        remedy = f"{rows} rows cannot be split over {count} shards"
        raise _error(values, name, f"{remedy} ({axes})")
  m = c.model
  prime = m.layers > 3 and all(m.layers % n for n in range(2, m.layers))
  if m.remat == "sqrt" and prime:
    remedy = f"{m.layers} layers cannot be split into groups; use 'full'"
    raise _error(values, "model.remat", remedy)
  for name, parts in {
      "model.kv_heads": tensor,
      "model.mlp": tensor,
      "model.width": widths,
  }.items():
    if config.at(c, name) % parts:
      remedy = f"cannot be split over {parts} devices of the mesh ({shape})"
      raise _error(values, name, remedy)
