"""Rules of the model: its shape, experts, the mesh and the optimizer."""

from collections.abc import Iterator

from rl_reason.base import feature
from rl_reason.base.config import at
from rl_reason.base.fields import FIELDS, RATES
from rl_reason.checks import config_facts
from rl_reason.checks.rules import Rule
from rl_reason.devices import axes

MOST_OF_ADAMW = 0.5  # a learning rate; of SGD, the bounds of its field


def shape(c) -> Iterator[Rule]:
  """The shape of the model."""
  m = c.model
  if m.heads % m.kv_heads:
    yield "model.heads", f"must be a multiple of model.kv_heads = {m.kv_heads}"
  if m.head_dim % 2:
    yield "model.head_dim", "must be even (rotary embeddings)"
  if m.rope_low >= m.rope_high:
    yield "model.rope_low", f"must be below model.rope_high = {m.rope_high}"
  for field, least in ("rope_low", 0), ("rope_theta", 1):
    if m.rope_type == "yarn" and m[field] <= least:
      yield f"model.{field}", f"must be above {least} with rope_type = 'yarn'"
  if not (m.path or c.sft.reuse or c.sft.steps):
    yield "sft.steps", (
        "an untrained model solves nothing: train it, or give model.path or"
        " sft.reuse"
    )


def mesh(c) -> Iterator[Rule]:
  """The axes of the mesh."""
  sizes = config_facts.mesh_axes(c)
  for axis, size in sizes.items():
    if size != -1 and size < 1:
      yield f"mesh.{axis}", "must be positive, or -1"
  if [*sizes.values()].count(-1) > 1:
    yield "mesh.data", "only one axis of the mesh may be -1"
  # Rows of SFT have the prompts of rollouts, and those of RL the longest ones.
  for name, prompt in config_facts.longest_prompts(c).items():
    length = prompt + c.rollout.max_tokens
    if length % c.mesh.sequence:
      yield "mesh.sequence", (
          f"must divide the length of packed rows, {name} +"
          f" rollout.max_tokens = {length}"
      )
      break


def optimizer(c) -> Iterator[Rule]:
  """The optimizers of the policy and of the critic."""
  m, o, sft = c.model, c.optimizer, c.sft
  if o.freeze and not (m.path or round(o.freeze * m.layers)):
    yield "optimizer.freeze", (
        f"freezes no layer of model.layers = {m.layers}: raise it, or set 0"
    )
  if o.offload and o.name != "adamw":
    yield "optimizer.offload", f"not with {o.name!r}, only with 'adamw'"
  if sft.warmup_steps >= max(sft.steps, 1):
    yield "sft.warmup_steps", f"must be less than sft.steps = {sft.steps}"
  for section in ("optimizer", "critic"):
    if c[section].warmup_steps >= max(c.rl.steps, 1):
      yield f"{section}.warmup_steps", (
          f"must be less than rl.steps = {c.rl.steps}"
      )


def rates(c) -> Iterator[Rule]:
  """Learning rates of steps whose size does not depend on the gradient."""
  for name in FIELDS:
    if name.endswith(".lr") and (kind := c.optimizer.name) != "sgd":
      if at(c, name) > MOST_OF_ADAMW:
        yield name, f"must be at most {MOST_OF_ADAMW} with {kind!r}: {RATES}"


def of_shape(c) -> Iterator[Rule]:
  """What the shape of the model decides, once it is known."""
  yield from experts(c)
  for one in feature.used(c):
    yield from one.rules_of_model(c)


def experts(c) -> Iterator[Rule]:
  """A mixture of experts."""
  m = c.model
  if not m.experts:
    return
  count = f"model.experts = {m.experts}"
  if m.experts_per_token > m.experts:
    yield "model.experts_per_token", f"must not exceed {count}"
  if m.mlp_bias:
    yield "model.mlp_bias", "experts have no biases: leave it out"
  if m.experts % c.mesh.expert:
    yield "mesh.expert", f"must divide {count}"
  if m.remat == "auto":
    yield "model.remat", (
        "no formula counts the memory of experts: use 'none', 'dots', 'sqrt' or"
        " 'full'"
    )


def split(c, sizes: dict[str, int]) -> Iterator[Rule]:
  """What the axes of the mesh, `config_facts.mesh_sizes`, cannot split."""
  m = c.model
  prime = m.layers > 3 and all(m.layers % n for n in range(2, m.layers))
  if m.remat == "sqrt" and prime:
    yield "model.remat", (
        f"{m.layers} layers cannot be split into groups; use 'full'"
    )
  for logical, name in axes.SIZES.items():
    parts = axes.num_shards(sizes, logical)
    if at(c, name) % parts:
      yield name, (
          f"cannot be split over {parts} devices of the mesh"
          f" ({axes.text(sizes)})"
      )
