"""Rules of the model: its shape, experts, the mesh, LoRA and the optimizer."""

from collections.abc import Iterator

from rl_reason.base.config import at
from rl_reason.checks import facts
from rl_reason.checks.rules import Rule
from rl_reason.devices import axes


def shape(c) -> Iterator[Rule]:
  """The shape of the model."""
  m = c.model
  yield (
      "model.heads",
      m.heads % m.kv_heads,
      f"must be a multiple of model.kv_heads = {m.kv_heads}",
  )
  yield "model.head_dim", m.head_dim % 2, "must be even (rotary embeddings)"
  yield (
      "model.rope_low",
      m.rope_low >= m.rope_high,
      f"must be below model.rope_high = {m.rope_high}",
  )
  yield (
      "sft.skill.steps",
      not (m.path or c.sft.reuse or c.sft.skill.steps),
      "an untrained model solves nothing: train it, or give model.path or"
      " sft.reuse",
  )


def mesh(c) -> Iterator[Rule]:
  """The axes of the mesh."""
  sizes = facts.mesh_axes(c)
  for axis, size in sizes.items():
    wrong = size != -1 and size < 1
    yield f"mesh.{axis}", wrong, "must be positive, or -1"
  free = [size for size in sizes.values() if size == -1]
  yield "mesh.data", len(free) > 1, "only one axis of the mesh may be -1"
  length = c.rollout.max_prompt + c.rollout.max_tokens
  yield (
      "mesh.sequence",
      length % c.mesh.sequence,
      "must divide the length of packed rows, rollout.max_prompt +"
      f" rollout.max_tokens = {length}",
  )


def optimizer(c) -> Iterator[Rule]:
  """LoRA, and the optimizers of the policy and of the critic."""
  from rl_reason.models.decoder import MATRICES

  m, o = c.model, c.optimizer
  known = ", ".join(MATRICES)
  for name in facts.lora_targets(c):
    yield "lora.targets", name not in MATRICES, f"{name!r} is none of {known}"
  yield (
      "optimizer.freeze",
      o.freeze and not (m.path or round(o.freeze * m.layers)),
      f"is not one layer of model.layers = {m.layers}",
  )
  yield (
      "optimizer.offload",
      o.offload and o.name != "adamw",
      f"{o.name!r} keeps no moments: leave it out",
  )
  for section in ("optimizer", "critic"):
    yield (
        f"{section}.warmup_steps",
        c[section].warmup_steps >= max(c.rl.steps, 1),
        f"must be less than rl.steps = {c.rl.steps}",
    )


def experts(c) -> Iterator[Rule]:
  """A mixture of experts, once the shape of the model is known."""
  m, r = c.model, c.rollout
  if not m.experts:
    return
  count = f"model.experts = {m.experts}"
  yield (
      "model.experts_per_token",
      m.experts_per_token > m.experts,
      f"must not exceed {count}",
  )
  yield "model.mlp_bias", m.mlp_bias, "experts have no biases: leave it out"
  yield "mesh.expert", m.experts % c.mesh.expert, f"must divide {count}"
  yield (
      "model.remat",
      m.remat == "auto",
      "no formula counts the memory of experts: name one",
  )
  yield (
      "lora.targets",
      c.lora.rank and {"gate", "up", "down"} & {*facts.lora_targets(c)},
      "experts have no factors: use 'q,k,v,o'",
  )
  if not r.replay_routing:
    return
  remedy = "leave it out, or set rollout.replay_routing = False"
  yield (
      "rollout.partial_groups",
      r.partial_groups,
      "the choices of an older policy in a response are not kept: " + remedy,
  )
  yield (
      "rollout.engine.name",
      r.engine.name != "own",
      f"engines return no routes: {remedy}",
  )
  yield (
      "rollout.replay_routing",
      facts.environment(c),
      "not recorded over several turns: leave it out for environments",
  )
  yield (
      "advantage.name",
      facts.has_history(c),
      f"no routes are kept of earlier steps: {remedy}",
  )


def split(c, sizes: dict[str, int]) -> Iterator[Rule]:
  """What the axes of the mesh cannot split.

  Args:
    c: the config, with the shape of the model.
    sizes: of `facts.mesh_sizes`.
  """
  m = c.model
  prime = m.layers > 3 and all(m.layers % n for n in range(2, m.layers))
  yield (
      "model.remat",
      m.remat == "sqrt" and prime,
      f"{m.layers} layers cannot be split into groups; use 'full'",
  )
  for logical, name in axes.SIZES.items():
    parts = axes.num_shards(sizes, logical)
    yield (
        name,
        at(c, name) % parts,
        f"cannot be split over {parts} devices of the mesh"
        f" ({axes.text(sizes)})",
    )
