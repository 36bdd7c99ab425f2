"""Checkpoints in and out, bit by bit; damaged ones are named."""

import dataclasses
import importlib
import json
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import safetensors
import safetensors.numpy
import tiny
from conftest import ROOT, child_env

from rl_reason import hf
from rl_reason.config import ConfigError
from rl_reason.data import tokenizer
from rl_reason.hf import architecture, export, files
from rl_reason.models import critic, decoder, parameters
from rl_reason.monitoring import display
from rl_reason.rollout import sampler
from rl_reason.scale import sharding
from rl_reason.training import rl, session, sft, step, value

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
}


def config_of(kind, **change):
  config = dict(model_type=kind) | SIZES | CONFIGS[kind] | change
  return {name: x for name, x in config.items() if x is not ...}


def weights_of(config, seed=0, dtype=np.float32, name_of=lambda x: x):
  """Random tensors by name, as in a file: shapes spelled out by hand."""
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
    for x in "qkv" if biased else "":
      size = layer[f"self_attn.{x}_proj.weight"][0]
      layer[f"self_attn.{x}_proj.bias"] = (size,)
    if biased and kind != "qwen2":
      layer["self_attn.o_proj.bias"] = (d,)
    if config.get("mlp_bias"):
      layer |= {f"mlp.{x}_proj.bias": (f,) for x in ("gate", "up")}
      layer["mlp.down_proj.bias"] = (d,)
    if kind == "qwen3":
      layer |= {f"self_attn.{x}_norm.weight": (c,) for x in "qk"}
    shapes |= {f"model.layers.{i}.{name}": x for name, x in layer.items()}
  return {
      name: rng.normal(0, 0.3, shape).astype(dtype)
      for name, shape in shapes.items()
  }


def write(directory, config, weights, shards=1):
  """A checkpoint, written by the library of the format."""
  directory.mkdir(parents=True, exist_ok=True)
  (directory / "config.json").write_text(json.dumps(config))
  names = list(weights)
  parts = {"model.safetensors": names}
  if shards > 1:
    parts = {f"part-{i}.safetensors": names[i::shards] for i in range(shards)}
    where = {name: file for file, part in parts.items() for name in part}
    (directory / files.INDEX).write_text(json.dumps(dict(weight_map=where)))
  for file, part in parts.items():
    some = {name: weights[name] for name in part}
    safetensors.numpy.save_file(some, directory / file, {"format": "pt"})
  return directory


def checkpoint(directory, kind="qwen2", dtype=np.float32, shards=1, **change):
  config = config_of(kind, **change)
  return write(directory, config, weights_of(config, dtype=dtype), shards)


def bits(directory):
  """{name: dtype, shape and bytes} of every tensor of a directory."""
  return {
      name: (x.dtype, x.shape, x.read().tobytes())
      for name, x in files.headers(directory).items()
  }


def load(directory, mesh=None, table=decoder.table):
  source = hf.find(str(directory), table=table)
  mesh = mesh or sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  return source, hf.load(source, table(source.cfg), mesh)


@pytest.fixture(scope="module")
def mesh():
  return sharding.make_mesh(2, 2, 2)


# --- in and out --------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "dtype", "shards"),
    [
        ("qwen2", jnp.bfloat16, 3),
        ("qwen3", np.float32, 2),
        ("llama", np.float16, 1),
        ("llama-5", jnp.bfloat16, 1),
        ("mistral", np.float32, 1),
    ],
)
def test_in_and_out_is_bit_exact(kind, dtype, shards, tmp_path, mesh):
  path = checkpoint(tmp_path / "in", kind, dtype, shards)
  source, params = load(path, mesh)
  table = decoder.table(source.cfg)
  for x in jax.tree.leaves(params):
    assert x.dtype == np.float32
  out = tmp_path / "out"
  hf.save(
      out, params, table, source.cfg, source=source, shard_bytes=4000 * shards
  )
  assert bits(out) == bits(path)
  written = sorted(out.glob("*.safetensors"))
  assert len(written) > 1 and (out / files.INDEX).exists()
  listed = json.loads((out / files.INDEX).read_text())["weight_map"]
  for file in written:  # the library of the format reads them too
    with safetensors.safe_open(file, "np") as f:
      assert f.metadata() == {"format": "pt"}
      assert {listed[name] for name in f.keys()} == {file.name}
  before, after = (
      json.loads((x / "config.json").read_text()) for x in (path, out)
  )
  for name in before.keys() - {"rope_scaling", "rope_parameters"}:
    assert after[name] == before[name]
  again = hf.find(str(out))
  assert again.cfg == source.cfg and again.context == source.context


@pytest.mark.parametrize("kind", ["qwen3", "llama"])  # llama's q is square
def test_parameters_are_the_tensors_turned_and_stacked(kind, tmp_path, mesh):
  path = checkpoint(tmp_path, kind, np.float32, 2)
  weights = weights_of(config_of(kind))
  source, params = load(path, mesh)
  where = parameters.shardings(decoder.table(source.cfg), mesh)
  assert [x.sharding for x in jax.tree.leaves(params)] == jax.tree.leaves(where)
  for ours, theirs in dict(q="self_attn.q_proj", down="mlp.down_proj").items():
    want = [weights[f"model.layers.{i}.{theirs}.weight"].T for i in range(3)]
    np.testing.assert_array_equal(params["layers"][ours], np.stack(want))
  np.testing.assert_array_equal(params["head"], weights["lm_head.weight"].T)
  np.testing.assert_array_equal(
      params["embed"], weights["model.embed_tokens.weight"]
  )


def test_a_device_reads_its_shard_alone(tmp_path, mesh, monkeypatch):
  path = checkpoint(tmp_path, "llama")
  read, make = [], jax.make_array_from_callback

  def noted(shape, where, callback):
    def counted(index):
      part = callback(index)
      read.append((shape, part.shape))
      return part

    return make(shape, where, counted)

  monkeypatch.setattr(jax, "make_array_from_callback", noted)
  load(path, mesh)
  matrices = [x for x in read if len(x[0]) == 2]
  assert matrices
  for whole, part in matrices:
    assert part[0] * 2 == whole[0] and part[1] * 2 == whole[1]


def test_a_tied_head_may_be_there_twice(tmp_path):
  config = config_of("qwen2")
  weights = weights_of(config)
  weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()
  path = write(tmp_path / "in", config, weights)
  source, params = load(path)
  assert "head" not in params
  table = decoder.table(source.cfg)
  hf.save(tmp_path / "out", params, table, source.cfg, source=source)
  assert bits(tmp_path / "out") == bits(path)
  weights["lm_head.weight"][0, 0] += 1
  write(path, config, weights)
  with pytest.raises(ConfigError, match="tie_word_embeddings = True: lm_head"):
    hf.find(str(path))


def test_buffers_of_old_checkpoints_are_ignored(tmp_path):
  config = config_of("llama")
  buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(3)}
  buffer = {k: x.astype(np.float32) for k, x in buffer.items()}
  path = write(tmp_path, config, weights_of(config) | buffer)
  assert not buffer.keys() & hf.find(str(path)).tensors.keys()


def test_what_a_dtype_cannot_hold_is_not_written(tmp_path):
  source, params = load(checkpoint(tmp_path / "in", "mistral", np.float16))
  params["norm"] = params["norm"].at[0].set(1e5)
  table = decoder.table(source.cfg)
  (tmp_path / "out").mkdir()
  with pytest.raises(ConfigError, match="model.norm.weight .* in float16"):
    hf.save(tmp_path / "out", params, table, source.cfg, source=source)
  assert not list((tmp_path / "out").iterdir())  # the half is elsewhere


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, "llama"),
        (dict(qkv_bias=True), "qwen2"),
        (dict(qkv_bias=True, o_bias=True, mlp_bias=True), "llama"),
        (dict(qk_norm=True, head_dim=6), "qwen3"),
        (dict(width=30, tied=False), "mistral"),  # no multiple of the heads
        (dict(rope_factor=4.0, rope_context=32, rope_theta=5e5), "llama"),
    ],
)
def test_a_fresh_model_goes_out_and_in(change, kind, tmp_path, mesh):
  cfg = dataclasses.replace(tiny.CFG, **change)
  table = decoder.table(cfg)
  params = decoder.init(cfg, jax.random.key(0))
  card = "a card"
  hf.save(tmp_path / "x", params, table, cfg, tokenizer=tiny.TOK, card=card)
  source, again = load(tmp_path / "x", mesh)
  assert source.config["model_type"] == kind
  assert architecture.fields(source.cfg) == architecture.fields(cfg)
  jax.tree.map(np.testing.assert_array_equal, params, again)
  tok = tokenizer.load(str(tmp_path / "x"), tiny.TASK.ALPHABET)
  assert tok.get_vocab() == tiny.TOK.get_vocab()
  said = json.loads((tmp_path / "x" / "generation_config.json").read_text())
  assert said["eos_token_id"] == source.config["eos_token_id"] == 1
  said = json.loads((tmp_path / "x" / "tokenizer_config.json").read_text())
  assert said["tokenizer_class"] == "PreTrainedTokenizerFast"
  assert (tmp_path / "x" / "README.md").read_text() == card


def test_a_shape_that_no_family_has_cannot_go_out(tmp_path):
  cfg = dataclasses.replace(tiny.CFG, qk_norm=True, qkv_bias=True)
  with pytest.raises(ConfigError, match="model.qk_norm = True: no architect"):
    hf.save(tmp_path / "x", None, decoder.table(cfg), cfg)


@pytest.mark.parametrize("head", ["scalar", "gated", "categorical"])
def test_a_value_head_goes_out_and_in(head, tmp_path, mesh):
  def table(cfg):
    return critic.table(critic.CriticConfig(cfg, head, heads=3, bins=5))

  rows = table(tiny.CFG)
  params = parameters.init_table(rows, jax.random.key(0))
  hf.save(tmp_path / "x", params, rows, tiny.CFG)
  source, again = load(tmp_path / "x", mesh, table)
  jax.tree.map(np.testing.assert_array_equal, params, again)
  assert source.config["architectures"] == ["LlamaForTokenClassification"]
  outputs = dict(scalar=1, gated=3, categorical=5)[head]
  assert len(source.config["id2label"]) == outputs
  with pytest.raises(ConfigError, match="must be .'LlamaForCausalLM'"):
    hf.find(str(tmp_path / "x"))


# --- config.json -------------------------------------------------------------


def test_the_shape_is_that_of_config_json():
  cfg = architecture.read(config_of("llama"))
  assert cfg == decoder.ModelConfig(
      vocab=40,
      layers=3,
      width=24,
      heads=4,
      kv_heads=2,
      head_dim=6,
      mlp=20,
      rope_theta=5e5,
      rope_factor=8.0,
      rope_low=1.0,
      rope_high=4.0,
      rope_context=64,
      qkv_bias=True,
      o_bias=True,
      mlp_bias=True,
      tied=False,
  )
  assert architecture.read(config_of("qwen3", head_dim=...)).head_dim == 128
  five = architecture.read(config_of("llama-5", model_type="llama"))
  assert five.rope_theta == 5e5 and five.rope_factor == 8 and not five.qkv_bias
  assert architecture.read(config_of("mistral")).kv_heads == 4


def test_llama3_frequencies_by_hand():
  cfg = architecture.read(config_of("llama", head_dim=8))
  got = decoder.frequencies(cfg)
  plain = [5e5 ** (-i / 4) for i in range(4)]
  # 64 tokens: 10.19 turns, 0.38, 0.014, 0.0005: the first stays, the others,
  # below one turn, are slowed down 8 times.
  np.testing.assert_allclose(got, [plain[0]] + [x / 8 for x in plain[1:]])
  cfg = dataclasses.replace(cfg, rope_context=512)
  turns = 512 * plain[1] / (2 * np.pi)  # 3.06 of 1..4: between the two
  share = (turns - 1) / 3
  want = share * plain[1] + (1 - share) * plain[1] / 8
  np.testing.assert_allclose(decoder.frequencies(cfg)[1], want)


@pytest.mark.parametrize(
    ("kind", "change", "tokens"),
    [
        ("llama", {}, 128),
        ("llama", dict(sliding_window=16), 128),
        ("mistral", dict(sliding_window=16), 16),
        ("mistral", dict(sliding_window=4096), 128),
        ("qwen2", dict(sliding_window=16, use_sliding_window=False), 128),
        ("qwen2", dict(sliding_window=16, max_window_layers=2), 128),
        (
            "qwen2",
            dict(
                sliding_window=16, use_sliding_window=True, max_window_layers=2
            ),
            16,
        ),
        (
            "qwen3",
            dict(
                sliding_window=16, use_sliding_window=True, max_window_layers=3
            ),
            128,
        ),
        (
            "qwen3",
            dict(
                sliding_window=16,
                use_sliding_window=True,
                layer_types=["full_attention", "sliding_attention"],
            ),
            16,
        ),
    ],
)
def test_where_a_window_would_bind(kind, change, tokens):
  assert architecture.context(config_of(kind, **change)) == tokens


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("llama", dict(model_type="gemma2"), "model_type = 'gemma2': must be"),
        ("llama", dict(model_type=...), "model_type = None"),
        ("llama", dict(architectures=["LlamaModel"]), "architectures = "),
        ("llama", dict(hidden_act="gelu"), "hidden_act = 'gelu'"),
        ("llama", dict(partial_rotary_factor=0.5), "partial_rotary_factor"),
        ("llama", dict(quantization_config={"bits": 4}), "quantization_config"),
        ("llama", dict(auto_map={"AutoModel": "x.Y"}), "auto_map"),
        (
            "llama",
            dict(hidden_size="24"),
            "hidden_size = '24': must be a whole",
        ),
        ("llama", dict(hidden_size=...), "hidden_size = None: must be a whole"),
        ("llama", dict(num_hidden_layers=0), "num_hidden_layers = 0"),
        ("llama", dict(vocab_size=True), "vocab_size = True"),
        ("llama", dict(num_key_value_heads=3), "num_key_value_heads = 3"),
        ("llama", dict(head_dim=7), "head_dim = 7: must be even"),
        ("llama", dict(hidden_size=26), "num_attention_heads = 4: must divide"),
        ("llama", dict(rms_norm_eps="small"), "rms_norm_eps = 'small'"),
        ("llama", dict(tie_word_embeddings="no"), "tie_word_embeddings = 'no'"),
        ("llama", dict(rope_theta="big"), "rope_theta = 'big'"),
        ("llama", dict(rope_scaling="llama3"), "rope_scaling = 'llama3'"),
        ("llama", dict(rope_scaling=[]), "rope_scaling = []: must be an obj"),
        ("llama-5", dict(rope_parameters=0), "rope_parameters = 0: must be"),
        (
            "llama",
            dict(rope_scaling=dict(type="yarn", factor=4.0)),
            "rope_scaling.type = 'yarn'",
        ),
        (
            "llama",
            dict(rope_scaling=LLAMA3 | dict(factor="8")),
            "rope_scaling.factor = '8'",
        ),
        (
            "llama",
            dict(rope_scaling=LLAMA3 | dict(low_freq_factor=4.0)),
            "must be below high_freq_factor",
        ),
        (
            "llama",
            dict(rope_scaling=LLAMA3 | dict(mrope_section=[1, 2])),
            "rope_scaling.mrope_section",
        ),
        (
            "qwen3",
            dict(rope_parameters=dict(rope_type="linear", factor=2.0)),
            "rope_parameters.rope_type = 'linear'",
        ),
        ("qwen2", dict(layer_types=["linear_attention"]), "layer_types = "),
        ("qwen2", dict(layer_types=0), "layer_types = 0"),
        # Numbers that no machine has: named before anything is made of them.
        ("qwen2", dict(num_hidden_layers=2**40), "files have only 38 tensors"),
        ("llama", dict(vocab_size=2**70), "must be a whole number"),
        ("llama", dict(rope_theta=10**400), "must be 1 or more"),
        ("llama", dict(hidden_act="gelu" * 1000), "hidden_act = 'gelugelu"),
        ("mistral", dict(sliding_window=-1), "sliding_window = -1"),
        # What config.json says, and the files do not.
        ("llama", dict(attention_bias=False), "bias is a tensor that nothing"),
        ("qwen2", dict(tie_word_embeddings=False), "lm_head.weight is missing"),
        (
            "qwen2",
            dict(vocab_size=41),
            "embed_tokens.weight has shape [40, 24]",
        ),
        ("qwen2", dict(num_hidden_layers=2), "model.layers.2."),
        ("qwen2", dict(num_hidden_layers=4), "model.layers.3."),
        ("qwen2", dict(head_dim=8), "and config.json asks for ["),
    ],
)
def test_what_config_json_may_not_say(kind, change, words, tmp_path):
  path = checkpoint(tmp_path / "x", kind)
  (path / "config.json").write_text(json.dumps(config_of(kind, **change)))
  with pytest.raises(ConfigError) as e:
    hf.find(str(path))
  text = str(e.value)
  assert text.startswith(f"model.path = {str(path)!r}: ")
  assert words in text and "\n" not in text and len(text) < 1500


# --- damaged files -----------------------------------------------------------


def header(path):
  data = path.read_bytes()
  size = int.from_bytes(data[:8], "little")
  return json.loads(data[8 : 8 + size]), data[8 + size :]


def rewrite(path, change):
  """A file with another header, of any length, and the same bytes."""
  entries, rest = header(path)
  change(entries)
  text = json.dumps(entries).encode()
  path.write_bytes(len(text).to_bytes(8, "little") + text + rest)


NORM = "model.norm.weight"
ONE = "model.safetensors"


def entry(**change):
  return lambda path: rewrite(path / ONE, lambda x: x[NORM].update(change))


def moved(by):
  def change(entries):
    at = entries[NORM]["data_offsets"]
    entries[NORM]["data_offsets"] = [at[0] + by, at[1] + by]

  return lambda path: rewrite(path / ONE, change)


def cut(size):
  return lambda path: (path / ONE).write_bytes((path / ONE).read_bytes()[:size])


def poked(at, data):
  def do(path):
    old = bytearray((path / ONE).read_bytes())
    old[at : at + len(data)] = data
    (path / ONE).write_bytes(old)

  return do


def pickled(path):
  (path / ONE).unlink()
  (path / "pytorch_model.bin").write_bytes(b"\x80\x04.")


def emptied(path):
  for file in path.iterdir():
    file.unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut(0), "model.safetensors: Error while deserializing header: head"),
        (cut(300), "cut off or damaged; fetch it again"),
        (cut(-7), "file not fully covered: cut off or damaged"),
        (poked(0, b"\xff" * 8), "header too large"),
        (poked(0, bytes(8)), "invalid JSON in header"),
        (poked(8, b"\xff\xfe"), "invalid UTF-8 in header"),
        (poked(9, b"}"), "invalid JSON in header"),
        (moved(4), "invalid offset for tensor `model.norm.weight`"),
        (moved(10**9), "invalid offset for tensor `model.norm.weight`"),
        (entry(data_offsets=[-96, 0]), "integer `-96`, expected usize"),
        (entry(shape="24"), 'string "24", expected a sequence'),
        (entry(shape=[2] * 20_000), "overflow computing buffer size"),
        (entry(shape=[25]), "invalid shape, data type, or offset"),
        (entry(shape=[2, 12]), "model.norm.weight has shape [2, 12]"),
        (entry(dtype="I32"), "model.norm.weight is I32: must be one of F32"),
        (entry(dtype="F7"), "unknown variant `F7`"),
        (pickled, "pickles (*.bin, *.pt) can run code and are not read"),
        (emptied, "has no config.json (it has nothing)"),
        (
            lambda path: (path / "config.json").write_text("{'a': 1}"),
            "config.json: is no JSON: ",
        ),
        (
            lambda path: (path / "config.json").write_text("[]"),
            "config.json: is no JSON object",
        ),
        (
            lambda path: (path / "config.json").write_bytes(b"\xff\x00{"),
            "config.json: is no JSON: ",
        ),
    ],
)
def test_a_damaged_file_is_named(damage, words, tmp_path):
  path = checkpoint(tmp_path / "x")
  hf.find(str(path))
  damage(path)
  with pytest.raises(ConfigError) as e:
    hf.find(str(path))
  assert str(e.value).startswith(f"model.path = {str(path)!r}: ")
  assert words in str(e.value) and "\n" not in str(e.value)


def indexed(change):
  def do(path):
    index = json.loads((path / files.INDEX).read_text())
    change(index, index.get("weight_map"))
    (path / files.INDEX).write_text(json.dumps(index))

  return do


def in_both(path):
  some = safetensors.numpy.load_file(path / "part-0.safetensors")
  name = min(some)
  other = safetensors.numpy.load_file(path / "part-1.safetensors")
  safetensors.numpy.save_file(
      other | {name: some[name]}, path / "part-1.safetensors"
  )


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            lambda path: (path / "part-1.safetensors").unlink(),
            "part-1.safetensors is missing",
        ),
        (
            lambda path: (path / files.INDEX).write_text("weights"),
            "model.safetensors.index.json: is no JSON: ",
        ),
        (indexed(lambda x, _: x.pop("weight_map")), "weight_map must map"),
        (indexed(lambda _, m: m.update({NORM: 3})), "weight_map must map"),
        (
            indexed(lambda _, m: m.update({NORM: "../part-0.safetensors"})),
            "weight_map must map",
        ),
        (
            indexed(lambda _, m: m.update(x="part-0.safetensors")),
            "x is in none of the files",
        ),
        (in_both, " is in part-1.safetensors; the index differs"),
    ],
)
def test_an_index_that_does_not_fit_is_named(damage, words, tmp_path):
  path = checkpoint(tmp_path / "x", shards=2)
  hf.find(str(path))
  damage(path)
  with pytest.raises(ConfigError) as e:
    hf.find(str(path))
  assert words in str(e.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_is_named(bad, tmp_path, mesh):
  config = config_of("qwen2")
  weights = weights_of(config)
  weights["model.layers.1.mlp.up_proj.weight"][-1, -1] = bad
  write(tmp_path / "x", config, weights)
  with pytest.raises(ConfigError, match="layers.1.mlp.up_proj.weight has weig"):
    load(tmp_path / "x", mesh)


def test_a_path_that_is_none(tmp_path):
  (tmp_path / "file").write_text("")
  for given in (str(tmp_path / "nowhere"), "./nowhere", "a/b/c"):
    with pytest.raises(ConfigError, match="there is no such directory"):
      hf.find(given)
  with pytest.raises(ConfigError, match="is a file"):
    hf.find(str(tmp_path / "file"))


def test_a_hub_id_is_fetched_without_code_or_pickles(tmp_path, monkeypatch):
  import fnmatch

  import huggingface_hub

  path, asked = checkpoint(tmp_path / "x"), []

  def fetch(name, *, allow_patterns):
    asked.append((name, allow_patterns))
    return str(path)

  monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
  assert hf.find("some-one/a.model").path == path
  ((name, patterns),) = asked
  assert name == "some-one/a.model"

  def wanted(file):
    return any(fnmatch.fnmatch(file, p) for p in patterns)

  for file in ("config.json", "model-1.safetensors", "tokenizer.json"):
    assert wanted(file)
  for file in ("pytorch_model.bin", "modeling_x.py", "x.pkl", "x.pt", "x.gguf"):
    assert not wanted(file)

  def refuse(name, **_):
    raise OSError("no\nnetwork")

  monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
  with pytest.raises(ConfigError, match="from the hub failed .no network."):
    hf.find("some-one/a.model")


@pytest.mark.slow
def test_reading_takes_a_few_tensors_of_memory(tmp_path):
  """Peak of a process that reads 24 layers, beyond the parameters it ends with.

  Measured at 3 to 7 tensors; the whole stack of one parameter would be 24.
  """
  wide, layers = 1024, 24
  config = config_of(
      "llama",
      hidden_size=wide,
      intermediate_size=4 * wide,
      num_hidden_layers=layers,
      attention_bias=False,
      mlp_bias=False,
      tie_word_embeddings=True,
  )
  path = checkpoint(tmp_path / "x", "llama", jnp.bfloat16, 2, **config)
  code = f"""
import pathlib, jax
from rl_reason import hf
from rl_reason.models import decoder
from rl_reason.scale import sharding
def peak():  # of this process alone: getrusage has that of its parent, too
  lines = pathlib.Path("/proc/self/status").read_text().splitlines()
  return 1024 * int(next(x for x in lines if "VmHWM" in x).split()[1])
def load(path):
  source = hf.find(path)
  return hf.load(source, decoder.table(source.cfg), sharding.make_mesh())
load({str(checkpoint(tmp_path / "small", "llama"))!r})
before = peak()
params = load({str(path)!r})
print(peak() - before, sum(x.nbytes for x in jax.tree.leaves(params)))
"""
  done = subprocess.run(
      [sys.executable, "-c", code],
      cwd=ROOT,
      env=child_env(),
      capture_output=True,
      text=True,
      check=True,
  )
  grown, kept = map(int, done.stdout.split())
  tensor = 4 * 4 * wide * wide  # the largest, in fp32
  assert kept > 60 * tensor
  assert grown - kept < 12 * tensor, (grown - kept) / tensor


# --- stages ------------------------------------------------------------------


def tiny_config(path, **change):
  c = importlib.import_module("tiny_session").tiny_config()
  c.model.path = str(path)
  c.sft.skill.steps = c.sft.habits.steps = 0
  c.rl.steps = 1
  for name, x in change.items():
    section, (*path, field) = c, name.split("__")
    for part in path:
      section = section[part]
    section[field] = x
  return c


def make_run(c, workdir):
  workdir.mkdir(exist_ok=True)
  return session.make_run(c, workdir, display.Display(False), threading.Event())


def with_tokenizer(path, alphabet=tiny.TASK.ALPHABET):
  tokenizer.characters(alphabet).save_pretrained(path)
  return path


def test_a_run_has_the_shape_of_its_checkpoint(tmp_path):
  path = with_tokenizer(checkpoint(tmp_path / "x", "qwen3"))
  c = tiny_config(path)
  run = make_run(c, tmp_path / "run")
  source = hf.find(str(path))
  assert architecture.fields(run.cfg) == architecture.fields(source.cfg)
  assert (run.cfg.vocab, run.cfg.tokens) == (40, len(tiny.TOK))
  assert run.cfg.remat == c.model.remat and c.model.qk_norm
  assert run.tok.get_vocab() == tiny.TOK.get_vocab()


def test_what_does_not_fit_a_run(tmp_path):
  path = checkpoint(tmp_path / "x", "mistral", sliding_window=59)
  c = tiny_config(path)
  with pytest.raises(ConfigError, match="makes 60 tokens, and .* takes 59"):
    make_run(c, tmp_path / "run")
  c.rollout.max_tokens = 47
  with pytest.raises(ConfigError, match="tokenizer = '': .* has none beside"):
    make_run(c, tmp_path / "run")
  large = with_tokenizer(
      tmp_path / "large", tiny.TASK.ALPHABET + "abcdefghijkl" "mnopqrstuvwxyz"
  )
  c.tokenizer = str(large)
  with pytest.raises(ConfigError, match="43 tokens, and model.path .* of 40"):
    make_run(c, tmp_path / "run")
  fits = with_tokenizer(tmp_path / "fits")
  c.tokenizer = str(fits)
  assert make_run(c, tmp_path / "run").cfg.tokens == 17
  for damage in ("{}", "[", ""):
    (fits / "tokenizer.json").write_text(damage)
    with pytest.raises(ConfigError, match="tokenizer = .* cannot be loaded"):
      make_run(c, tmp_path / "run")


def test_rows_behind_the_tokenizer_are_never_sampled():
  """The others' probabilities, and the log-probs of training, know of it."""
  cfg = dataclasses.replace(tiny.CFG, vocab=40, tokens=17)
  params = decoder.init(cfg, jax.random.key(0))
  small = dataclasses.replace(tiny.CFG, vocab=17)
  less = params | dict(embed=params["embed"][:17])
  out = []
  for p, c in ((params, cfg), (less, small)):
    how = tiny.SAMPLER | dict(cfg=c, group_size=8, max_tokens=8)
    out.append(
        sampler.sample(p, tiny.prompts(32), jax.random.key(1), 2.0, **how)
    )
  assert out[0].tokens_BL.max() < 17
  np.testing.assert_array_equal(out[0].tokens_BL, out[1].tokens_BL)
  rows = out[0].tokens_BL, out[0].start_B, 8
  got = padded.response_logps(params, cfg, *rows)
  want = padded.response_logps(less, small, *rows)
  for a, b in zip(got, want, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)


def test_rl_starts_from_a_checkpoint_and_goes_out_again(tmp_path):
  """The policy is the file's, and so is its export; a card; the critic."""
  path = with_tokenizer(checkpoint(tmp_path / "x", "qwen2", jnp.bfloat16))
  c = tiny_config(path, advantage__name="gae", critic__head__name="gated")
  run = make_run(c, tmp_path / "run")
  with jax.set_mesh(run.mesh):
    params = sft.run(run)
    assert not (run.workdir / "checkpoints").exists()
    _, want = load(path, run.mesh)
    jax.tree.map(np.testing.assert_array_equal, params, want)
    jax.tree.map(np.testing.assert_array_equal, sft.load(run), want)
    judge, _ = value.run(run, params)
    tx, where = rl._optimizer(run)
    state = step.new_state(params, tx, where)
    critic_tx, critic_where = value.optimizer(run, c.rl.steps)
    critic_state = step.new_state(judge, critic_tx, critic_where)
    saved = run.checkpoints("rl")
    everything = rl._everything(run, state, critic_state, None, None, None)
    saved.save(7, everything, {})
    saved.close()
    score = {"val-core/arithmetic/acc/greedy": 0.25}
    run.log.metrics("evaluate", 0, score)
    run.log.metrics("evaluate", 7, dict.fromkeys(score, 0.75))
    export.run(run, "newest")
  out = run.workdir / "export"
  assert bits(out / "policy") == bits(path)
  for name in ("tokenizer.json", "tokenizer_config.json"):
    assert (out / "policy" / name).read_text() == (path / name).read_text()
  card = (out / "policy" / "README.md").read_text()
  assert "| val-core/arithmetic/acc/greedy | 0.25 | 0.75 |" in card
  assert '    advantage.name = "gae"' in card and "step 7" in card

  def table(cfg):
    v = c.critic
    return critic.table(critic.CriticConfig(cfg, v.head, v.heads))

  judge = jax.device_get(judge)
  source, again = load(out / "critic", None, table)
  assert source.tensors["score.weight"].dtype == "F32"
  jax.tree.map(np.testing.assert_array_equal, judge, jax.device_get(again))


def test_sft_goes_on_from_a_checkpoint(tmp_path):
  path = with_tokenizer(checkpoint(tmp_path / "x"))
  ends = []
  for seed in (0, 1):
    weights = weights_of(config_of("qwen2"), seed)
    write(path, config_of("qwen2"), weights)
    c = tiny_config(path, optimizer__name="sgd")
    c.sft.habits.update(steps=1, lr=1e-6)
    run = make_run(c, tmp_path / f"run{seed}")
    with jax.set_mesh(run.mesh):
      params = sft.run(run)
      again = sft.load(run)
    jax.tree.map(np.testing.assert_array_equal, params, again)
    ends.append(np.asarray(params["embed"]))
    near = weights["model.embed_tokens.weight"]
    assert 0 < np.abs(ends[-1] - near).max() < 1e-3
  assert np.abs(ends[0] - ends[1]).max() > 0.1
