"""config.json and the shape of a model: one in the words of the other."""

import contextlib
import dataclasses
import functools
import sys
from typing import Any, NamedTuple, TypeGuard

from rl_reason.config import ConfigError
from rl_reason.hf.tensors import Fault
from rl_reason.models import decoder

CONFIG = "config.json"
# What the head of a model says; classes of transformers end so.
NEXT, EACH, WHOLE = "CausalLM", "TokenClassification", "SequenceClassification"


class Family(NamedTuple):
  """What a model_type means beyond what its config.json says.

  Attributes:
    name: of the classes of transformers: name + 'ForCausalLM'.
    qkv_bias, o_bias, mlp_bias: the field that says so, or what always holds.
    window: likewise, whether sliding_window counts.
    qk_norm: always or never.
    head_dim: where config.json names none; None: hidden_size / heads.
    even: hidden_size must be a multiple of the heads, by transformers.
  """

  name: str
  qkv_bias: str | bool = False
  o_bias: str | bool = False
  mlp_bias: str | bool = False
  window: str | bool = False
  qk_norm: bool = False
  head_dim: int | None = None
  even: bool = False


FAMILIES = {
    "llama": Family(
        "Llama",
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        mlp_bias="mlp_bias",
        even=True,
    ),
    "qwen2": Family("Qwen2", qkv_bias=True, window="use_sliding_window"),
    "qwen3": Family(
        "Qwen3",
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        window="use_sliding_window",
        qk_norm=True,
        head_dim=128,
    ),
    "mistral": Family("Mistral", window=True),
}

# Fields that would change what a model computes, and the values that do not.
IDLE = {
    "hidden_act": ("silu",),
    "hidden_activation": ("silu",),
    "partial_rotary_factor": (1, None),
    "quantization_config": (None,),
    "num_experts": (0, None),
    "num_local_experts": (0, None),
    "n_routed_experts": (0, None),
    "attn_logit_softcapping": (0, None),
    "final_logit_softcapping": (0, None),
    "query_pre_attn_scalar": (None,),
    "logit_scale": (1, None),
    "attention_multiplier": (1, None),
    "embedding_multiplier": (1, None),
    "residual_multiplier": (1, None),
    "clip_qkv": (None,),
    "auto_map": (None, {}),
    "is_encoder_decoder": (False, None),
    "use_cross_attention": (False, None),
    "add_cross_attention": (False, None),
}
LLAMA3 = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)
# Fields of the rope dictionary that mean nothing with one of our two types.
ROPE = ("rope_type", "type", "rope_theta", "partial_rotary_factor", *LLAMA3)


def _family(config: dict[str, Any]) -> Family:
  kind = config.get("model_type")
  if not isinstance(kind, str) or kind not in FAMILIES:
    raise Fault(
        f"{CONFIG}: model_type = {kind!r}: must be one of {', '.join(FAMILIES)}"
    )
  return FAMILIES[kind]


def class_name(config: dict[str, Any], head: str) -> str:
  """Of transformers: of a model with that head."""
  return f"{_family(config).name}For{head}"


def check(config: dict[str, Any], heads: tuple[str, ...]) -> str:
  """Refuses what would compute something else from the same tensors.

  Args:
    config: a config.json.
    heads: that will do; the first one if the config says nothing.

  Returns:
    the head that it has.

  Raises:
    Fault: names the field.
  """
  classes = {class_name(config, head): head for head in heads}
  said = config.get("architectures") or list(classes)[:1]
  if said not in [[name] for name in classes]:
    wanted = " or ".join(repr([name]) for name in classes)
    raise Fault(f"{CONFIG}: architectures = {said!r}: must be {wanted}")
  family = _family(config)
  read_here = (family.qkv_bias, family.o_bias, family.mlp_bias)
  idle = IDLE | {
      name: (False, None)
      for name in ("attention_bias", "mlp_bias")
      if name not in read_here
  }
  for name, values_of in idle.items():
    if name in config and config[name] not in values_of:
      raise Fault(f"{CONFIG}: {name} = {config[name]!r}: is not supported")
  return classes[said[0]]


def _flag(config: dict[str, Any], name: str | bool) -> bool:
  """The value of a field, false if it is not there; or what always holds."""
  value = config.get(name, False) if isinstance(name, str) else name
  if not isinstance(value, bool):
    raise Fault(f"{CONFIG}: {name} = {value!r}: must be true or false")
  return value


def _count(config: dict[str, Any], name: str, default=None) -> int:
  """A whole number, 1 or more; null is like not being there."""
  value = config.get(name)
  value = default if value is None else value
  if type(value) is not int or not 1 <= value <= sys.maxsize:
    raise Fault(
        f"{CONFIG}: {name} = {value!r}: must be a whole number, 1 or more"
    )
  return value


def read(config: dict[str, Any]) -> decoder.ModelConfig:
  """The shape that a config.json says.

  Raises:
    Fault: a field is missing, has the wrong type, or does not fit.
  """
  family = _family(config)

  def refuse(name, remedy):
    raise Fault(f"{CONFIG}: {name} = {config.get(name)!r}: {remedy}")

  count = functools.partial(_count, config)
  width, heads = count("hidden_size"), count("num_attention_heads")
  kv_heads = count("num_key_value_heads", heads)
  head_dim = count("head_dim", family.head_dim or width // heads)
  if heads % kv_heads:
    refuse("num_key_value_heads", f"must divide num_attention_heads = {heads}")
  if family.even and width % heads:
    refuse("num_attention_heads", f"must divide hidden_size = {width}")
  if head_dim % 2:
    refuse("head_dim", f"must be even (rotary), and is {head_dim}")
  eps = config.get("rms_norm_eps", 1e-6)
  if not _is_number(eps) or eps < 0:
    refuse("rms_norm_eps", "must be a number, 0 or more")
  return decoder.ModelConfig(
      vocab=count("vocab_size"),
      layers=count("num_hidden_layers"),
      width=width,
      heads=heads,
      kv_heads=kv_heads,
      head_dim=head_dim,
      mlp=count("intermediate_size"),
      norm_eps=float(eps),
      qkv_bias=_flag(config, family.qkv_bias),
      o_bias=_flag(config, family.o_bias),
      mlp_bias=_flag(config, family.mlp_bias),
      qk_norm=family.qk_norm,
      tied=_flag(config, "tie_word_embeddings"),
      **_rope(config),
  )


def _is_number(x: Any) -> TypeGuard[float]:
  return type(x) in (int, float) and abs(x) <= sys.float_info.max


def _rope(config: dict[str, Any]) -> dict[str, Any]:
  """The fields rope_* of the shape.

  transformers 5 writes rope_parameters; before, it was rope_theta, and
  rope_scaling with what is not the default.
  """
  absent = config.get("rope_scaling") in (None, {})
  name = "rope_parameters" if absent else "rope_scaling"
  rope = {} if config.get(name) is None else config[name]
  if not isinstance(rope, dict):
    raise Fault(f"{CONFIG}: {name} = {rope!r}: must be an object")

  def refuse(key, remedy):
    raise Fault(f"{CONFIG}: {name}.{key} = {rope.get(key)!r}: {remedy}")

  for key, value in rope.items():
    if key not in ROPE and value is not None:
      refuse(key, "is not supported")
  if rope.get("partial_rotary_factor", 1) not in (1, None):
    refuse("partial_rotary_factor", "is not supported")
  kind_key = "rope_type" if "rope_type" in rope else "type"
  kind = rope.get(kind_key)
  theta = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
  if not _is_number(theta) or theta < 1:
    raise Fault(f"{CONFIG}: rope_theta = {theta!r}: must be 1 or more")
  if kind in (None, "default"):
    return dict(rope_theta=float(theta))
  if kind != "llama3":
    refuse(kind_key, "must be 'default' or 'llama3'")
  rope = {LLAMA3[-1]: config.get("max_position_embeddings")} | rope
  numbers: list[float] = []
  for key in LLAMA3:
    value = rope.get(key)
    if not _is_number(value) or value <= 0:
      refuse(key, "must be a number above 0")
    numbers.append(value)
  factor, low, high, context = numbers
  if low >= high:
    refuse("low_freq_factor", f"must be below high_freq_factor = {high}")
  if context != int(context):
    refuse(LLAMA3[-1], "must be a whole number")
  return dict(
      rope_theta=float(theta),
      rope_factor=float(factor),
      rope_low=float(low),
      rope_high=float(high),
      rope_context=int(context),
  )


def context(config: dict[str, Any]) -> int:
  """Tokens up to which positions are known and no sliding window binds."""
  kinds = config.get("layer_types")
  kinds = [] if kinds is None else kinds
  known = {"full_attention", "sliding_attention"}
  if not isinstance(kinds, list) or not set(map(str, kinds)) <= known:
    raise Fault(f"{CONFIG}: layer_types = {kinds!r}: is not supported")
  most = _count(config, "max_position_embeddings", sys.maxsize)
  window = _family(config).window
  if not _flag(config, window):
    return most
  slides = "sliding_attention" in kinds
  if window is not True and not kinds:  # by depth: the first see everything
    whole = _count(config, "max_window_layers", sys.maxsize)
    slides = whole < config["num_hidden_layers"]
  if window is True or slides:
    return min(most, _count(config, "sliding_window", sys.maxsize))
  return most


def fields(cfg: decoder.ModelConfig) -> dict[str, Any]:
  """The fields of a ModelConfig that a checkpoint decides."""
  out = dataclasses.asdict(cfg)
  for name in ("dtype", "remat", "logprob_chunk", "attention", "tokens"):
    del out[name]
  return out


def write(cfg: decoder.ModelConfig, context: int) -> dict[str, Any]:
  """The config.json of a shape: of the first family that can say it all.

  Args:
    cfg: the shape.
    context: the most tokens that the model was made for.

  Raises:
    ConfigError: there is no such family.
  """
  for kind, family in FAMILIES.items():
    config = dict(
        model_type=kind,
        vocab_size=cfg.vocab,
        num_hidden_layers=cfg.layers,
        hidden_size=cfg.width,
        num_attention_heads=cfg.heads,
        num_key_value_heads=cfg.kv_heads,
        head_dim=cfg.head_dim,
        intermediate_size=cfg.mlp,
        hidden_act="silu",
        rms_norm_eps=cfg.norm_eps,
        tie_word_embeddings=cfg.tied,
        max_position_embeddings=context,
        sliding_window=None,
        **rope_fields(cfg),
    )
    for name in ("qkv_bias", "o_bias", "mlp_bias"):
      field = getattr(family, name)
      if isinstance(field, str):
        config[field] = getattr(cfg, name)
    with contextlib.suppress(Fault):
      if fields(read(config)) == fields(cfg):  # it says all there is to say
        return config
  flags = ("qkv_bias", "o_bias", "mlp_bias", "qk_norm")
  raise ConfigError(
      ", ".join(f"model.{name} = {getattr(cfg, name)}" for name in flags)
      + f": no architecture of {', '.join(FAMILIES)} is like that; it cannot be"
      " exported"
  )


def rope_fields(cfg: decoder.ModelConfig) -> dict[str, Any]:
  """Rotary positions for transformers 5 and, twice, for those before."""
  values = (cfg.rope_factor, cfg.rope_low, cfg.rope_high, cfg.rope_context)
  plain = decoder.ModelConfig
  if values == (
      plain.rope_factor,
      plain.rope_low,
      plain.rope_high,
      plain.rope_context,
  ):
    scaling = None
  else:
    scaling = dict(rope_type="llama3", **dict(zip(LLAMA3, values, strict=True)))
  theta = dict(rope_theta=cfg.rope_theta)
  rope = (scaling or dict(rope_type="default")) | theta
  return dict(rope_scaling=scaling, rope_parameters=rope, **theta)
