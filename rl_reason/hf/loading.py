"""Finds, validates and loads checkpoints in the layout of transformers."""

import functools
import pathlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_reason.base.errors import ConfigError, did_you_mean, one_line
from rl_reason.base.structs import Array, Tree
from rl_reason.devices import sharding
from rl_reason.hf import architecture, model_files
from rl_reason.hf.architecture import CONFIG
from rl_reason.hf.model_files import CheckpointError, Tensor
from rl_reason.hf.tensor_names import (
    SCORE,
    SCORE_BIAS,
    Placement,
    outer,
    placements,
)
from rl_reason.models import decoder, parameters

MAX_MESSAGE = 1000  # maximum characters of an error that quotes a file
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
# Files besides config and weights: no code, pickles or model cards.
COMPANIONS = (
    "generation_config.json",
    *TOKENIZERS,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
# Buffers of old checkpoints, which config.json determines.
IGNORED = re.compile(r"(^|\.)rotary_emb\.(inv_freq|cos_cached|sin_cached)$")


class Source(NamedTuple):
  """A checkpoint with validated config and headers.

  Attributes:
    label: config field and its value, for error messages.
    path: local directory.
    config: contents of config.json.
    cfg: model shape of config.json; other fields have their defaults.
    context: maximum number of tokens (positions, sliding window).
    tensors: header entries of the tensors to load, by name.
    head: CAUSAL_LM, TOKEN_CLASSIFIER or SEQUENCE_CLASSIFIER.
  """

  label: str
  path: pathlib.Path
  config: dict[str, Any]
  cfg: decoder.ModelConfig
  context: int
  tensors: dict[str, Tensor]
  head: str


def find(
    name: str,
    field: str = "model.path",
    table: Callable[[decoder.ModelConfig], Tree] = decoder.table,
    revision: str | None = None,
) -> Source:
  """Validates a checkpoint, except for the values of its weights.

  Args:
    name: a local directory or a hub id. Only config, tokenizer and safetensors
      files are downloaded from the hub.
    field: config field with the name, for error messages.
    table: maps a model shape to a table of parameters, such as `decoder.table`.
    revision: commit, tag or branch on the hub; None for the newest commit.

  Raises:
    ConfigError: names the damaged file, field or tensor, and the remedy.
  """
  label = f"{field} = {name!r}"
  path = _directory(name, label, revision)
  try:
    config = model_files.read_json(path / CONFIG)
    cfg, context = architecture.read(config), architecture.context(config)
    found = model_files.headers(path)
    # Checked first, since `table` has an entry for each of them.
    least = cfg.layers * max(cfg.experts, 1)
    if least > len(found):
      counted = "num_hidden_layers" + " x num_experts" * bool(cfg.experts)
      raise CheckpointError(
          f"{CONFIG}: {counted} = {least}: the files have only"
          f" {len(found)} tensors; does the config belong to these files?"
      )
    modules = architecture.family_of(config).modules
    expected = placements(table(cfg), modules)
    is_critic = SCORE in expected
    heads = architecture.CRITICS if is_critic else (architecture.CAUSAL_LM,)
    head = architecture.check(config, heads)
    if head == architecture.SEQUENCE_CLASSIFIER:
      del expected[SCORE_BIAS]  # absent in transformers; here it stays 0
    copy = outer("head", modules), outer("embed", modules)
    tensors = _match(found, expected, copy if cfg.tied else ())
  except (CheckpointError, OSError) as e:
    raise ConfigError(f"{label}: {one_line(e)[:MAX_MESSAGE]}") from None
  return Source(label, path, config, cfg, context, tensors, head)


def is_hub_id(name: str) -> bool:
  """Whether a name that is no local path may be a model on the hub."""
  return re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name) is not None


def _directory(name: str, label: str, revision: str | None) -> pathlib.Path:
  """Returns the local directory, which is downloaded for a hub id."""
  path = pathlib.Path(name)
  if path.is_dir():
    return path
  if path.exists():
    raise ConfigError(f"{label}: is a file; give the directory")
  if not is_hub_id(name):
    parent = path.parent
    there = [str(x) for x in sorted(parent.glob("[!.]*")) if x.is_dir()]
    raise ConfigError(
        f"{label}: there is no such directory, and the id of a hub looks like"
        f" OWNER/NAME{did_you_mean(name, there)}"
    )
  import huggingface_hub  # imported late: takes seconds

  fetch = functools.partial(
      huggingface_hub.snapshot_download, name, revision=revision
  )
  patterns = [*model_files.PATTERNS, CONFIG, *COMPANIONS]
  try:
    fetched = pathlib.Path(fetch(allow_patterns=patterns))
    if names := model_files.missing(fetched):  # that have names of their own
      fetch(allow_patterns=names)
  except CheckpointError:
    return fetched  # `find` names the fault
  except (OSError, ValueError, RuntimeError) as e:
    raise ConfigError(
        f"{label}: there is no such directory, and downloading it from the hub"
        f" failed ({one_line(e)[:MAX_MESSAGE]}); check the name and the"
        " connection, and for a model with restricted access run hf auth login"
    ) from None
  return fetched


def _match(
    found: dict[str, Tensor],
    expected: dict[str, Placement],
    copy: tuple[str, ...],
) -> dict[str, Tensor]:
  """Returns the expected tensors; refuses missing and unused ones.

  `copy` are the names of the LM head and the embedding if they are one.
  """
  missing = [name for name in expected if name not in found]
  if missing:
    rest = f", and {len(missing) - 1} more" if missing[1:] else ""
    raise CheckpointError(
        f"{missing[0]} is missing{rest}; does {CONFIG} belong to these files?"
    )
  tensors = {}
  for name, tensor in found.items():
    if name in expected:
      if tensor.shape != expected[name].shape:
        by = "the value head" if name == SCORE else CONFIG
        raise CheckpointError(
            f"{name} has shape {list(tensor.shape)}, and {by} requires"
            f" {list(expected[name].shape)}; does {CONFIG} belong to these"
            " files?"
        )
    elif name in copy:  # the LM head, a second copy of the embedding
      if not np.array_equal(tensor.read(), found[copy[1]].read()):
        raise CheckpointError(
            f"{CONFIG}: tie_word_embeddings = True: {name} differs from"
            f" {copy[1]}; set it to false"
        )
    elif IGNORED.search(name):
      continue
    else:
      raise CheckpointError(
          f"{name} is not a tensor of this model; does {CONFIG} belong to these"
          " files?"
      )
    tensors[name] = tensor
  return tensors


def load(source: Source, table: Tree, mesh: jax.sharding.Mesh) -> Tree:
  """Streams the weights into fp32 parameters on a mesh, tensor by tensor.

  Each device reads only its shard, and a tensor is on the devices before the
  next one is read, so few tensors are in host memory at a time.

  Args:
    source: result of `find` for the same table.
    table: pytree of `parameters.Param`.
    mesh: the mesh to shard over.

  Raises:
    ConfigError: a weight is NaN or infinite; names its tensor.
  """
  shardings, treedef = jax.tree.flatten(parameters.shardings(table, mesh))
  rows = jax.tree.leaves(table, is_leaf=parameters.is_param)
  jit = functools.partial(jax.jit, static_argnames="transposed")
  inserts = [
      jit(_insert, donate_argnums=0, out_shardings=where) for where in shardings
  ]
  zeros = lambda: [jnp.zeros(row.shape) for row in rows]  # noqa: E731
  params = jax.jit(zeros, out_shardings=shardings)()
  modules = architecture.family_of(source.config).modules
  for name, place in placements(table, modules).items():
    if name not in source.tensors:
      continue  # the bias of a sequence classifier, which has none
    i, index = place.param, tuple(map(np.int32, place.at))
    # A name would keep the tensor alive while the next one is read.
    params[i] = inserts[i](
        params[i],
        _read(source, name, place, mesh),
        index,
        transposed=place.transposed,
    )
    params[i].block_until_ready()  # otherwise the host reads far ahead
  return treedef.unflatten(params)


def _insert(param: Array, x: Array, index: tuple, transposed: bool) -> Array:
  """Writes a tensor of the files into its parameter."""
  x = x.T if transposed else x
  x = x.reshape((1,) * (param.ndim - x.ndim) + x.shape)
  start = index + (0,) * (param.ndim - len(index))
  return jax.lax.dynamic_update_slice(param, x, start)


def _read(source: Source, name: str, place: Placement, mesh) -> Array:
  """Reads a tensor in fp32, sharded like its parameter."""

  def read_slice(index):
    x = source.tensors[name].read(index).astype(np.float32)
    if not np.isfinite(x).all():
      raise ConfigError(
          f"{source.label}: {name} has weights that are NaN or infinite; the"
          " checkpoint is damaged"
      )
    return x

  where = sharding.fit(mesh, place.shape, place.axes)
  return jax.make_array_from_callback(place.shape, where, read_slice)
