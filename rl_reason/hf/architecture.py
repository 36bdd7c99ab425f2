"""Converts config.json of transformers to `decoder.ModelConfig`, and back."""

import contextlib
import dataclasses
import math
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn, TypeGuard

from rl_reason.base.errors import ConfigError
from rl_reason.hf.model_files import CheckpointError
from rl_reason.models import decoder

CONFIG = "config.json"
# Heads of a model, by the suffix of the class in transformers: ForCausalLM ...
CAUSAL_LM, TOKEN_CLASSIFIER = "CausalLM", "TokenClassification"
SEQUENCE_CLASSIFIER = "SequenceClassification"
CRITICS = (TOKEN_CLASSIFIER, SEQUENCE_CLASSIFIER)


class Family(NamedTuple):
  """Properties of a model_type that its config.json does not contain.

  A row of `FAMILIES`; `model.family` adds rows of the user.

  Attributes:
    name: prefix of the classes of transformers.
    qkv_bias, o_bias, mlp_bias, window: whether there are biases and a sliding
      window: a constant, or the name of a boolean field.
    qk_norm: whether queries and keys are normalized.
    head_dim: default value; None for hidden_size / num_attention_heads.
    even: whether the number of heads must divide hidden_size.
    experts: whether feed-forward layers are mixtures of experts.
    mlp: field with the width of the feed-forward layer, or of an expert.
    norm_topk: whether the weights of a token's experts sum to 1: as above.
    modules: parameters of `decoder.table` -> modules of transformers, where
      they are not those of `tensor_names`; {} stands for the expert.
  """

  name: str
  qkv_bias: str | bool = False
  o_bias: str | bool = False
  mlp_bias: str | bool = False
  window: str | bool = False
  qk_norm: bool = False
  head_dim: int | None = None
  even: bool = False
  experts: bool = False
  mlp: str = "intermediate_size"
  norm_topk: str | bool = "norm_topk_prob"
  modules: Mapping[str, str] = {}


# The number of experts in transformers 4 and 5.
NUM = "num_experts", "num_local_experts"
BIAS, WINDOW = "attention_bias", "use_sliding_window"
FAMILIES = {
    "llama": Family("Llama", BIAS, BIAS, "mlp_bias", even=True),
    "qwen2": Family("Qwen2", qkv_bias=True, window=WINDOW),
    "qwen3": Family(
        "Qwen3", BIAS, BIAS, window=WINDOW, qk_norm=True, head_dim=128
    ),
    "mistral": Family("Mistral", window=True),
    "qwen3_moe": Family(
        "Qwen3Moe",
        BIAS,
        BIAS,
        window=WINDOW,
        qk_norm=True,
        experts=True,
        mlp="moe_intermediate_size",
    ),
}
_OWN = frozenset(FAMILIES)
# Fields that change the computation -> supported values.
SUPPORTED = {
    "hidden_act": ("silu", None),
    "partial_rotary_factor": (1, None),
    "auto_map": (None, {}),  # code of the checkpoint
    "decoder_sparse_step": (None, 1),  # layers without experts
    "mlp_only_layers": (None, []),
}
# Rope type -> fields of its scaling -> fields of ModelConfig.
FACTOR = {"factor": "rope_factor"}
ORIGINAL = "original_max_position_embeddings"
ROPE = {
    "llama3": FACTOR
    | {
        "low_freq_factor": "rope_low",
        "high_freq_factor": "rope_high",
        ORIGINAL: "rope_context",
    },
    "yarn": FACTOR
    | {
        "beta_slow": "rope_low",
        "beta_fast": "rope_high",
        ORIGINAL: "rope_context",
        "attention_factor": "rope_scale",
        "truncate": "rope_truncate",
    },
    "linear": FACTOR,
    "dynamic": FACTOR,
}
# Of YaRN in some checkpoints; they are part of attention_factor.
MSCALES = "mscale", "mscale_all_dim"
ROPE_FIELDS = ("rope_type", "type", "rope_theta", "partial_rotary_factor")


def _refuse(name: str, value: Any, remedy: str) -> NoReturn:
  raise CheckpointError(f"{CONFIG}: {name} = {value!r}: {remedy}")


def add(name: str, families: Any) -> None:
  """Adds rows of the user to `FAMILIES`, for this process.

  Args:
    name: of the table, for errors.
    families: model_type -> `Family`.

  Raises:
    ValueError: it is another object, or changes a row of the package.
  """
  rows = families if isinstance(families, Mapping) and families else {"": None}
  for kind, row in rows.items():
    if not isinstance(kind, str) or not isinstance(row, Family):
      raise ValueError(
          f"{name} must be a dict: model_type of config.json ->"
          " rl_reason.hf.architecture.Family"
      )
    if kind in _OWN:
      raise ValueError(
          f"{name}: the package reads model_type {kind!r} itself: remove it"
      )
  FAMILIES.update(families)


def family_of(config: dict[str, Any]) -> Family:
  """The row of `FAMILIES` of a config.json."""
  kind = config.get("model_type")
  if not isinstance(kind, str) or kind not in FAMILIES:
    known = ", ".join(FAMILIES)
    _refuse(
        "model_type", kind, f"must be one of {known}; model.family adds one"
    )
  return FAMILIES[kind]


def class_name(config: dict[str, Any], head: str) -> str:
  """Returns the class of transformers for a config.json and a head."""
  return f"{family_of(config).name}For{head}"


def check(config: dict[str, Any], heads: tuple[str, ...]) -> str:
  """Refuses unsupported fields; returns the head.

  The head is one of `heads`, by default the first one.

  Raises:
    CheckpointError: names the field.
  """
  classes = {class_name(config, head): head for head in heads}
  names = config.get("architectures") or list(classes)[:1]
  if names not in [[name] for name in classes]:
    wanted = " or ".join(repr([name]) for name in classes)
    _refuse("architectures", names, f"must be {wanted}")
  for name, values in SUPPORTED.items():
    if config.get(name) not in values:
      _refuse(name, config[name], "is not supported")
  return classes[names[0]]


def _flag(config: dict[str, Any], name: str | bool) -> bool:
  """Reads a boolean field, false by default; returns constants unchanged."""
  value = config.get(name, False) if isinstance(name, str) else name
  if not isinstance(value, bool):
    _refuse(str(name), value, "must be true or false")
  return value


def _count(config: dict[str, Any], name: str, default=None) -> int:
  """Reads a positive integer; null is the default."""
  value = config.get(name)
  value = default if value is None else value
  if type(value) is not int or not 1 <= value <= sys.maxsize:
    _refuse(name, value, "must be a whole number, 1 or more")
  return value


def _is_number(x: Any) -> TypeGuard[float]:
  return type(x) in (int, float) and abs(x) <= sys.float_info.max


def read(config: dict[str, Any]) -> decoder.ModelConfig:
  """Returns the model shape of a config.json.

  Raises:
    CheckpointError: a field is missing, has the wrong type, or is inconsistent.
  """
  if (quantized := config.get("quantization_config")) is not None:
    method = isinstance(quantized, dict) and quantized.get("quant_method")
    _refuse(
        "quantization_config",
        method or quantized,
        "quantized weights are not read: give the model before quantization"
        " (--stage=export writes it with export.precision = 'same')",
    )
  family = family_of(config)
  width = _count(config, "hidden_size")
  num_heads = _count(config, "num_attention_heads")
  kv_heads = _count(config, "num_key_value_heads", num_heads)
  head_dim = _count(config, "head_dim", family.head_dim or width // num_heads)
  eps = config.get("rms_norm_eps", 1e-6)
  if num_heads % kv_heads:
    remedy = f"must divide num_attention_heads = {num_heads}"
    _refuse("num_key_value_heads", kv_heads, remedy)
  if family.even and width % num_heads:
    remedy = f"must divide hidden_size = {width}"
    _refuse("num_attention_heads", num_heads, remedy)
  if head_dim % 2:
    _refuse("head_dim", head_dim, "must be even, for rotary positions")
  if not _is_number(eps) or eps < 0:
    _refuse("rms_norm_eps", eps, "must be a number, 0 or more")
  mixture = dict[str, Any]()
  if family.experts:
    mixture = dict(
        experts=_count(config, NUM[NUM[0] not in config]),
        experts_per_token=_count(config, "num_experts_per_tok"),
        norm_topk=_flag(config, family.norm_topk),
    )
    if mixture["experts_per_token"] > mixture["experts"]:
      remedy = f"must not exceed num_experts = {mixture['experts']}"
      _refuse("num_experts_per_tok", mixture["experts_per_token"], remedy)
  return decoder.ModelConfig(
      vocab=_count(config, "vocab_size"),
      layers=_count(config, "num_hidden_layers"),
      width=width,
      heads=num_heads,
      kv_heads=kv_heads,
      head_dim=head_dim,
      mlp=_count(config, family.mlp),
      norm_eps=float(eps),
      qkv_bias=_flag(config, family.qkv_bias),
      o_bias=_flag(config, family.o_bias),
      mlp_bias=_flag(config, family.mlp_bias),
      qk_norm=family.qk_norm,
      tied=_flag(config, "tie_word_embeddings"),
      **mixture,
      **_rope(config),
  )


def _rope(config: dict[str, Any]) -> dict[str, Any]:
  """Returns the fields rope_* of the shape.

  transformers 5 writes rope_parameters; earlier versions write rope_theta and
  rope_scaling.
  """
  absent = config.get("rope_scaling") in (None, {})
  name = "rope_parameters" if absent else "rope_scaling"
  rope = {} if config.get(name) is None else config[name]
  if not isinstance(rope, dict):
    _refuse(name, rope, "must be an object")
  key = "rope_type" if "rope_type" in rope else "type"
  kind = rope.get(key) or "default"
  if kind != "default" and kind not in ROPE:
    kinds = ", ".join(map(repr, ("default", *ROPE)))
    _refuse(f"{name}.{key}", kind, f"must be one of {kinds}")
  known = set().union(*ROPE.values(), MSCALES, ROPE_FIELDS)
  for field, value in rope.items():
    if field not in known and value is not None:
      _refuse(f"{name}.{field}", value, "is not supported")
  if rope.get("partial_rotary_factor", 1) not in (1, None):
    value = rope["partial_rotary_factor"]
    _refuse(f"{name}.partial_rotary_factor", value, "is not supported")
  theta = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
  if not _is_number(theta) or theta < 1:
    _refuse("rope_theta", theta, "must be 1 or more")
  out = dict[str, Any](rope_theta=float(theta))
  if kind == "default":
    return out
  rope = {k: x for k, x in rope.items() if x is not None}
  rope = {ORIGINAL: config.get("max_position_embeddings")} | rope
  if ORIGINAL in config:  # transformers prefers this place
    rope[ORIGINAL] = config[ORIGINAL]
  if kind == "yarn":
    rope = _yarn(name, rope, config)
  for key in ROPE[kind].keys() - {"truncate"}:
    if not _is_number(rope.get(key)) or rope[key] <= 0:
      _refuse(f"{name}.{key}", rope.get(key), "must be a number above 0")
  if rope["factor"] < 1:
    _refuse(f"{name}.factor", rope["factor"], "must be 1 or more")
  for key, field in ROPE[kind].items():
    out[field] = rope[key] if key == "truncate" else float(rope[key])
  names = {field: key for key, field in ROPE[kind].items()}
  if "rope_context" in out:
    if out["rope_context"] != int(out["rope_context"]):
      _refuse(f"{name}.{ORIGINAL}", rope[ORIGINAL], "must be an integer")
    out["rope_context"] = int(out["rope_context"])
    low, high = names["rope_low"], names["rope_high"]
    if out["rope_low"] >= out["rope_high"]:
      remedy = f"must be below {high} = {rope[high]}"
      _refuse(f"{name}.{low}", rope[low], remedy)
  return out | dict(rope_type=kind)


def _yarn(name: str, rope: dict[str, Any], config: dict[str, Any]) -> dict:
  """Fills in what transformers computes of a YaRN scaling.

  The attention factor is 0.1 ln(factor) + 1 (arXiv:2309.00071, equation 22); in
  checkpoints with both mscales (DeepSeek), the ratio of two such numbers.
  """
  rope = dict(beta_slow=1.0, beta_fast=32.0, truncate=True) | rope
  for key in (ORIGINAL, *MSCALES):
    if not _is_number(rope.get(key, 1)) or rope.get(key, 1) < 0:
      _refuse(f"{name}.{key}", rope[key], "must be a number, 0 or more")
  if type(rope["truncate"]) is not bool:
    _refuse(f"{name}.truncate", rope["truncate"], "must be true or false")
  positions = _count(config, "max_position_embeddings", sys.maxsize)
  factor = rope.setdefault("factor", positions / (rope[ORIGINAL] or 1))
  if not _is_number(factor) or factor <= 0:
    _refuse(f"{name}.factor", factor, "must be a number above 0")

  def attention(mscale: float) -> float:
    return 0.1 * mscale * math.log(max(factor, 1)) + 1

  first, second = (rope.get(key, 0) for key in MSCALES)
  both = first and second
  ratio = attention(first) / attention(second) if both else attention(1)
  return dict(attention_factor=ratio) | rope


def context(config: dict[str, Any]) -> int:
  """Returns the maximum number of tokens, by positions and sliding window.

  An enabled window counts even if only some layers use it. YaRN multiplies the
  original context: Qwen's instructions for long texts add the scaling to
  config.json and leave max_position_embeddings.
  """
  positions = _count(config, "max_position_embeddings", sys.maxsize)
  rope = _rope(config)
  if rope.get("rope_type") == "yarn":
    extended = int(rope["rope_context"] * rope["rope_factor"])
    positions = max(positions, extended)
  if not _flag(config, family_of(config).window):
    return positions
  return min(positions, _count(config, "sliding_window", sys.maxsize))


def fields(cfg: decoder.ModelConfig) -> dict[str, Any]:
  """Returns the fields of a ModelConfig that a checkpoint determines."""
  out = dataclasses.asdict(cfg)
  ours = "dtype", "logits_dtype", "remat", "logprob_chunk", "attention"
  for name in (*ours, "tokens", "router_aux"):
    del out[name]
  return out


def write(cfg: decoder.ModelConfig, context: int) -> dict[str, Any]:
  """Returns a config.json of the first family that can represent a shape.

  Raises:
    ConfigError: no family can represent the shape.
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
    if family.experts:
      config |= dict(
          num_experts=cfg.experts, num_experts_per_tok=cfg.experts_per_token
      )
      config[family.mlp] = cfg.mlp
      if isinstance(family.norm_topk, str):
        config[family.norm_topk] = cfg.norm_topk
    with contextlib.suppress(CheckpointError):
      if fields(read(config)) == fields(cfg):  # the family represents it
        return config
  flags = ("qkv_bias", "o_bias", "mlp_bias", "qk_norm")
  raise ConfigError(
      ", ".join(f"model.{name} = {getattr(cfg, name)}" for name in flags)
      + f": none of {', '.join(FAMILIES)} has these: change them to export the"
      " model"
  )


def rope_fields(cfg: decoder.ModelConfig) -> dict[str, Any]:
  """Returns the fields of rotary positions of transformers 4 and 5."""
  names = ROPE[cfg.rope_type]
  values = {key: getattr(cfg, field) for key, field in names.items()}
  defaults = {k: getattr(decoder.ModelConfig, x) for k, x in names.items()}
  plain = cfg.rope_type == "llama3" and values == defaults
  scaling = None if plain else dict(rope_type=cfg.rope_type) | values
  parameters = scaling or dict(rope_type="default")
  theta = dict(rope_theta=cfg.rope_theta)
  return dict(rope_scaling=scaling, rope_parameters=parameters | theta, **theta)
