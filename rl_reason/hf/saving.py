"""Writes checkpoints in the layout of transformers."""

import functools
import json
import math
import pathlib
import shutil
from collections.abc import Sequence

import jax
import numpy as np

from rl_reason.base.errors import ConfigError
from rl_reason.base.structs import Array, Tree
from rl_reason.devices import sharding
from rl_reason.hf import architecture, loading, model_files, quantization
from rl_reason.hf.architecture import SEQUENCE_CLASSIFIER
from rl_reason.hf.tensor_names import (
    SCORE,
    SCORE_BIAS,
    Placement,
    outer,
    placements,
)
from rl_reason.models import decoder

GENERATION = "generation_config.json"


def save(
    directory: pathlib.Path,
    params: Tree,
    table: Tree,
    cfg: decoder.ModelConfig,
    *,
    head: str = "",
    source: loading.Source | None = None,
    tokenizer=None,
    card: str = "",
    stop_ids: Sequence[int] = (),
    stop_strings: Sequence[str] = (),
    context: int = 2048,
    precision: str = "same",
    shard_bytes: int = 5_000_000_000,
) -> None:
  """Atomically writes a directory that transformers and vLLM can load.

  Every process must call this: gathering sharded parameters is a collective.

  Args:
    directory: replaced if it exists.
    params: parameters on the mesh.
    table: table of a language model or a critic.
    cfg: shape of the model, or of the critic's trunk.
    head: SEQUENCE_CLASSIFIER for a scalar value head without a bias; '' for the
      head of the table: a language model or a token classifier.
    source: original checkpoint, whose config.json, dtypes, tokenizer and
      generation config are copied. None: fp32.
    tokenizer: tokenizer to write; None for the tokenizer of the source.
    card: text of README.md; '' for none.
    stop_ids: tokens that end a response, for generation_config.json.
    stop_strings: texts that end a response, for the same file.
    context: maximum number of tokens, without a source.
    precision: 'same' for the dtypes of the source; 'bfloat16', or 'int8' and
      'int4' of `quantization`, of a language model.
    shard_bytes: maximum bytes of a file.

  Raises:
    ConfigError: transformers has no matching architecture, a weight is not
      finite in its dtype, or the shape has no groups of 'int4'.
  """
  scheme = quantization.scheme(cfg, precision)
  config = source.config if source else architecture.write(cfg, context)
  modules = architecture.family_of(config).modules
  places, leaves = placements(table, modules), jax.tree.leaves(params)
  embed, lm_head = outer("embed", modules), outer("head", modules)
  if not head:
    is_critic = SCORE in places
    head = architecture.CRITICS[0] if is_critic else architecture.CAUSAL_LM
  if head == SEQUENCE_CLASSIFIER:
    _drop_bias(leaves, places)
  tensors = source.tensors if source else {}
  if lm_head in tensors and cfg.tied and SCORE not in places:
    places[lm_head] = places[embed]  # as in the source
  same = precision == "same"
  dtypes = dict.fromkeys(places, np.dtype("float32" if same else "bfloat16"))
  for name in places.keys() & tensors.keys() if same else ():
    dtypes[name] = np.dtype(model_files.DTYPES[tensors[name].dtype])
  sizes, parts = dict[str, int](), dict[str, tuple[str, str]]()
  for name, place in places.items():
    if scheme and name.endswith(quantization.MATRIX):
      dtypes[name] = np.dtype("float32")  # as it is read
      for tensor, (part, size) in quantization.sizes(
          name, place.shape, scheme
      ).items():
        sizes[tensor], parts[tensor] = size, (name, part)
    else:
      sizes[name] = math.prod(place.shape) * dtypes[name].itemsize

  dtype = config.get("dtype") or config.get("torch_dtype")
  dtype = (same and dtype) or dtypes[embed].name
  config = config | architecture.rope_fields(cfg)
  config |= dict(dtype=dtype, torch_dtype=dtype)  # transformers 5 and 4
  config["architectures"] = [architecture.class_name(config, head)]
  if SCORE in places:
    labels = [f"LABEL_{i}" for i in range(places[SCORE].shape[0])]
    config["id2label"] = dict(enumerate(labels))
    config["label2id"] = {label: i for i, label in enumerate(labels)}
  if scheme:
    config["quantization_config"] = quantization.config(scheme)
  if tokenizer is not None:
    config |= _token_ids(tokenizer)
    shared = tokenizer.pad_token_id == tokenizer.eos_token_id
    if head == SEQUENCE_CLASSIFIER and shared:
      # transformers scores the last token that is not padding, and would skip
      # EOS. Without a padding token it refuses to pad.
      config["pad_token_id"] = None

  # A temporary directory replaces the old one when it is complete.
  work = directory.with_name(directory.name + ".tmp")
  is_writer = jax.process_index() == 0
  if is_writer:
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)

  def whole(name: str) -> np.ndarray:
    return _fetch(leaves, name, places[name], dtypes[name])

  @functools.lru_cache(maxsize=1)  # the tensors of a matrix are adjacent
  def quantized(
      name: str, scheme: quantization.Scheme
  ) -> dict[str, np.ndarray]:
    return quantization.tensors(whole(name), scheme)

  def fetch(name: str) -> np.ndarray:
    if scheme is None or name not in parts:
      return whole(name)
    matrix, part = parts[name]
    return quantized(matrix, scheme)[part]

  model_files.write(work, sizes, fetch, shard_bytes)
  if is_writer:
    model_files.write_json(work / architecture.CONFIG, config)
    if tokenizer is not None:
      _save_tokenizer(work, tokenizer)
    elif source:
      for name in loading.COMPANIONS:
        if (source.path / name).is_file():
          shutil.copyfile(source.path / name, work / name)
    if stop_ids:
      _stop_at(work / GENERATION, stop_ids, stop_strings)
    if card:
      (work / "README.md").write_text(card)
    shutil.rmtree(directory, ignore_errors=True)
    work.replace(directory)


def _drop_bias(leaves: list[Array], places: dict[str, Placement]) -> None:
  """Drops the bias of a scalar head, which a sequence classifier lacks."""
  outputs, place = places[SCORE].shape[0], places.pop(SCORE_BIAS)
  bias = sharding.fetch(leaves[place.param])
  if outputs > 1 or np.any(bias):
    raise ConfigError(
        f"value_head: {outputs} outputs and a bias of {bias.tolist()}: a"
        " sequence classifier has one output and no bias; export it as a critic"
    )


def _fetch(leaves: list[Array], name: str, place: Placement, dtype: np.dtype):
  """Gathers one tensor on every process, in the dtype of the file."""
  x = leaves[place.param]
  x = sharding.fetch(x[place.at])
  with np.errstate(over="ignore"):  # reported below, with the tensor's name
    x = np.ascontiguousarray(x.T if place.transposed else x, dtype)
  if not np.isfinite(x).all():
    raise ConfigError(
        f"{name} has weights that are not finite in {dtype}: export an earlier"
        " checkpoint"
    )
  return x


def _token_ids(tokenizer) -> dict[str, int | None]:
  names = [f"{x}_token_id" for x in ("bos", "eos", "pad")]
  return {name: getattr(tokenizer, name) for name in names}


def _save_tokenizer(directory: pathlib.Path, tokenizer) -> None:
  """Writes a tokenizer and a generation config with its token ids."""
  tokenizer.save_pretrained(directory)
  path = directory / "tokenizer_config.json"
  fields = json.loads(path.read_text())
  if fields["tokenizer_class"] == "TokenizersBackend":  # unknown before 5
    fields["tokenizer_class"] = "PreTrainedTokenizerFast"
  # For a qwen2 model transformers 5 uses its own tokenizer class, which adds an
  # unknown token if there is none.
  fields["unk_token"] = fields.get("unk_token") or tokenizer.pad_token
  model_files.write_json(path, fields)
  generation = dict(do_sample=True) | _token_ids(tokenizer)
  model_files.write_json(directory / GENERATION, generation)


def _stop_at(
    path: pathlib.Path, stop_ids: Sequence[int], stop_strings: Sequence[str]
) -> None:
  """Adds what ends a response to a generation config."""
  fields = model_files.read_json(path) if path.is_file() else {}
  old, before = dict(fields), fields.get("eos_token_id")
  known = before if isinstance(before, list) else [before]
  ids = [*dict.fromkeys(x for x in (*stop_ids, *known) if x is not None)]
  if {*ids} != {*known}:
    fields["eos_token_id"] = ids if len(ids) > 1 else ids[0]
  if stop_strings:
    fields["stop_strings"] = [*stop_strings]
  if fields != old:
    model_files.write_json(path, fields)
