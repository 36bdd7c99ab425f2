"""Tiny random checkpoints of transformers, as safetensors writes them."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
import tiny
import tiny_session

from rl_reason import hf
from rl_reason.data import tokenizer
from rl_reason.devices import device_mesh
from rl_reason.hf import model_files
from rl_reason.models import decoder

LLAMA3 = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
SIZES = dict(
    vocab_size=40,
    hidden_size=24,
    intermediate_size=20,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
)
# As transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters) write it.
CONFIGS = {
    "qwen2": dict(rope_theta=1e6, tie_word_embeddings=True, head_dim=None),
    "qwen3": dict(head_dim=10, attention_bias=True, rope_theta=1e4),
    "llama": dict(
        rope_scaling=LLAMA3, rope_theta=5e5, attention_bias=True, mlp_bias=True
    ),
    "llama-5": dict(
        model_type="llama", rope_parameters=LLAMA3 | dict(rope_theta=5e5)
    ),
    "mistral": dict(head_dim=8, sliding_window=None, num_key_value_heads=None),
    "qwen3_moe": dict(
        head_dim=10,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=6,
        norm_topk_prob=True,
        mlp_only_layers=[],
    ),
}


def config_of(kind, **change):
  """A config.json; a field of `...` is left out."""
  config = dict(model_type=kind) | SIZES | CONFIGS[kind] | change
  return {name: x for name, x in config.items() if x is not ...}


def weights_of(config, seed=0, dtype=np.float32):
  """Random tensors by name, with shapes spelled out by hand."""
  rng = np.random.default_rng(seed)
  d, f, v = (
      config[x] for x in ("hidden_size", "intermediate_size", "vocab_size")
  )
  heads = config["num_attention_heads"]
  kv_heads = config.get("num_key_value_heads") or heads
  c = config.get("head_dim") or d // heads
  kind = config["model_type"]
  biased = config.get("attention_bias", kind == "qwen2")
  shapes = {"model.embed_tokens.weight": (v, d), "model.norm.weight": (d,)}
  if not config.get("tie_word_embeddings", False):
    shapes["lm_head.weight"] = (v, d)
  for i in range(config["num_hidden_layers"]):
    layer = {
        "input_layernorm.weight": (d,),
        "post_attention_layernorm.weight": (d,),
        "self_attn.q_proj.weight": (heads * c, d),
        "self_attn.k_proj.weight": (kv_heads * c, d),
        "self_attn.v_proj.weight": (kv_heads * c, d),
        "self_attn.o_proj.weight": (d, heads * c),
        "mlp.gate_proj.weight": (f, d),
        "mlp.up_proj.weight": (f, d),
        "mlp.down_proj.weight": (d, f),
    }
    for x in ("gate", "up", "down") * ("num_experts" in config):
      shape = layer.pop(f"mlp.{x}_proj.weight")
      narrow = [config["moe_intermediate_size"] if n == f else n for n in shape]
      for e in range(config["num_experts"]):
        layer[f"mlp.experts.{e}.{x}_proj.weight"] = tuple(narrow)
      layer["mlp.gate.weight"] = config["num_experts"], d
    for x in "qkv" if biased else "":
      size = layer[f"self_attn.{x}_proj.weight"][0]
      layer[f"self_attn.{x}_proj.bias"] = (size,)
    if biased and kind != "qwen2":
      layer["self_attn.o_proj.bias"] = (d,)
    if config.get("mlp_bias"):
      layer |= {f"mlp.{x}_proj.bias": (f,) for x in ("gate", "up")}
      layer["mlp.down_proj.bias"] = (d,)
    if kind.startswith("qwen3"):
      layer |= {f"self_attn.{x}_norm.weight": (c,) for x in "qk"}
    shapes |= {f"model.layers.{i}.{name}": x for name, x in layer.items()}
  return {
      name: rng.normal(0, 0.3, shape).astype(dtype)
      for name, shape in shapes.items()
  }


def write(directory, config, weights, shards=1):
  directory.mkdir(parents=True, exist_ok=True)
  (directory / "config.json").write_text(json.dumps(config))
  names = list(weights)
  parts = {"model.safetensors": names}
  if shards > 1:
    parts = {f"part-{i}.safetensors": names[i::shards] for i in range(shards)}
    weight_map = {name: file for file, part in parts.items() for name in part}
    index = json.dumps(dict(weight_map=weight_map))
    (directory / model_files.INDEX).write_text(index)
  for file, part in parts.items():
    tensors = {name: weights[name] for name in part}
    safetensors.numpy.save_file(tensors, directory / file, {"format": "pt"})
  return directory


def checkpoint(directory, kind="qwen2", dtype=np.float32, shards=1, **change):
  config = config_of(kind, **change)
  return write(directory, config, weights_of(config, dtype=dtype), shards)


def with_tokenizer(path, alphabet=tiny.TASK.ALPHABET):
  tokenizer.characters(alphabet).save_pretrained(path)
  return path


def bits(directory):
  """{name: dtype, shape and bytes} of every tensor of a directory."""
  return {
      name: (x.dtype, x.shape, x.read().tobytes())
      for name, x in model_files.headers(directory).items()
  }


def load(directory, mesh=None, table=decoder.table):
  source = hf.find(str(directory), table=table)
  mesh = mesh or device_mesh.make_mesh(1, 1, 1, jax.devices()[:1])
  return source, hf.load(source, table(source.cfg), mesh)


def random_params(table, seed=0):
  """Random parameters of a table, without compiling their initializers."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(
      lambda row: jnp.asarray(rng.normal(0, 0.3, row.shape), jnp.float32),
      table,
      is_leaf=lambda x: hasattr(x, "axes"),
  )


def session_of(path, workdir, **changes):
  """A session on one device whose policy starts from a checkpoint, no SFT."""
  changes = {
      "model__path": str(path),
      "sft__steps": 0,
      "sft__habits__steps": 0,
      "rl__steps": 1,
  } | changes
  return tiny_session.make_session(workdir, **changes)
