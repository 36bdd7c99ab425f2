"""Models in the layout of Hugging Face: a directory in, a directory out.

  config.json                    the shape, by the names of transformers
  model.safetensors              or several, with model.safetensors.index.json
  tokenizer.json, ...            the tokenizer, its chat template
  generation_config.json         how to sample

`find` reads headers only and refuses what it does not understand before any
array is made; `load` then streams the weights, one tensor at a time, into
sharded arrays; `save` is the way back. Nothing here unpickles, or runs code
that comes with a model.
"""

import functools
import json
import pathlib
import re
import shutil
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_reason.config import ConfigError, one_line
from rl_reason.hf import architecture, tensors
from rl_reason.hf.architecture import CONFIG, EACH, NEXT, WHOLE
from rl_reason.hf.tensors import DTYPES, Fault, Tensor
from rl_reason.models import decoder, parameters
from rl_reason.scale import sharding
from rl_reason.structs import Array, Tree

SHARD = 5_000_000_000  # bytes of a file
LONGEST = 1000  # characters of what is said of a file, which may quote it
TORCH = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
GENERATION = "generation_config.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
# What travels with the weights; code, pickles and cards do not.
BESIDE = (
    GENERATION,
    *TOKENIZERS,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)

# Our parameter -> the tensor of a layer.
LAYER = {
    "norm_attn": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o_bias": "self_attn.o_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "norm_mlp": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "gate_bias": "mlp.gate_proj.bias",
    "up_bias": "mlp.up_proj.bias",
    "down_bias": "mlp.down_proj.bias",
}
EMBED, HEAD, VALUES, BIAS = (
    "model.embed_tokens.weight",
    "lm_head.weight",
    "score.weight",
    "score.bias",
)
# The same for the rest. A value head is that of token classification, a label
# a number; the gates of a gated one have no name in transformers. That of
# sequence classification, one label, has no bias: ours is then 0.
REST = {
    "embed": EMBED,
    "norm": "model.norm.weight",
    "head": HEAD,
    "value_head.value": VALUES,
    "value_head.bias": BIAS,
    "value_head.gate": "score_gate.weight",
}
# Buffers that old checkpoints hold and that follow from the config.
IGNORED = re.compile(r"(^|\.)rotary_emb\.(inv_freq|cos_cached|sin_cached)$")


class Source(NamedTuple):
  """A checkpoint whose config and headers are in order.

  Attributes:
    where: the field and the directory or hub id in it, for errors.
    path: the local directory.
    config: config.json.
    cfg: the shape that it says, all else at its default.
    context: tokens up to which every token sees all before it.
    tensors: of the files, by name; those that nothing needs left out.
    head: NEXT, EACH or WHOLE of `architecture`.
  """

  where: str
  path: pathlib.Path
  config: dict[str, Any]
  cfg: decoder.ModelConfig
  context: int
  tensors: dict[str, Tensor]
  head: str


class Place(NamedTuple):
  """Which part of which parameter a tensor of the files is."""

  leaf: int  # of the table, flattened
  layer: int | None  # of a stacked parameter
  shape: tuple[int, ...]  # in the file
  axes: tuple[str | None, ...]  # logical, in the file
  turned: bool  # a matrix that is [out, in] there and [in, out] here


def _rows(table: Tree) -> list[parameters.Param]:
  return jax.tree.leaves(table, is_leaf=parameters.is_param)


def places(table: Tree) -> dict[str, Place]:
  """The tensors that hold the parameters of a table, by name, layer by layer.

  Args:
    table: of `model` or of `critic`: a pytree of `parameters.Param`.
  """
  rows, _ = jax.tree_util.tree_flatten_with_path(
      table, is_leaf=parameters.is_param
  )
  first, layers, last = {}, {}, {}
  for leaf, (path, row) in enumerate(rows):
    name = ".".join(k.key for k in path).removeprefix("trunk.")
    stacked = name.startswith("layers.")
    shape, axes = row.shape[stacked:], row.axes[stacked:]
    turned = len(shape) == 2 and name != "embed"
    if turned:
      shape, axes = shape[::-1], axes[::-1]
    if stacked:
      tail = LAYER[name.removeprefix("layers.")]
      for i in range(row.shape[0]):
        layers[i, tail] = Place(leaf, i, shape, axes, turned)
    else:
      part = first if name == "embed" else last
      part[REST[name]] = Place(leaf, None, shape, axes, turned)
  order = sorted(layers, key=lambda x: x[0])
  middle = {f"model.layers.{i}.{tail}": layers[i, tail] for i, tail in order}
  return first | middle | last


# --- in -----------------------------------------------------------------------


def find(
    given: str,
    field: str = "model.path",
    table: Callable[[decoder.ModelConfig], Tree] = decoder.table,
) -> Source:
  """Checks everything about a checkpoint but the values of its weights.

  Args:
    given: a local directory or a hub id. Of a hub id only config, tokenizer
      and safetensors are fetched.
    field: of the config, named in errors.
    table: the parameters of a shape: `decoder.table`, or that of a critic.

  Raises:
    ConfigError: names the file, field or tensor that is wrong, and the remedy.
  """
  where = f"{field} = {given!r}"
  path = _local(given, where)
  try:
    config = tensors.read_json(path / CONFIG)
    cfg, context = architecture.read(config), architecture.context(config)
    there = tensors.find(path)
    if cfg.layers > len(there):  # before anything is made for each of them
      raise Fault(
          f"{CONFIG}: num_hidden_layers = {cfg.layers}: the files have"
          f" {len(there)} tensors; is it that of these files?"
      )
    wanted = places(table(cfg))
    heads = (EACH, WHOLE) if VALUES in wanted else (NEXT,)
    head = architecture.check(config, heads)
    if head == WHOLE:
      del wanted[BIAS]
    found = _match(there, wanted, cfg.tied)
  except (Fault, OSError) as e:
    raise ConfigError(f"{where}: {one_line(e)[:LONGEST]}") from None
  return Source(where, path, config, cfg, context, found, head)


def _local(given: str, where: str) -> pathlib.Path:
  """The directory, fetched first if it is a hub id."""
  path = pathlib.Path(given)
  if path.is_dir():
    return path
  if path.exists():
    raise ConfigError(f"{where}: is a file; give its directory")
  if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", given):
    raise ConfigError(f"{where}: there is no such directory")
  import huggingface_hub  # seconds; most runs do not need it

  try:
    fetched = huggingface_hub.snapshot_download(
        given,
        allow_patterns=["*.safetensors", tensors.INDEX, CONFIG, *BESIDE],
    )
  except (OSError, ValueError, RuntimeError) as e:
    raise ConfigError(
        f"{where}: no such directory, and the hub did not give it"
        f" ({one_line(e)}); check the name and the network"
    ) from None
  return pathlib.Path(fetched)


def _match(
    found: dict[str, Tensor], wanted: dict[str, Place], tied: bool
) -> dict[str, Tensor]:
  """The tensors that are wanted, with their shapes; refuses any other."""
  missing = [name for name in wanted if name not in found]
  if missing:
    raise Fault(
        f"{missing[0]} is missing"
        + (f", and {len(missing) - 1} more" if missing[1:] else "")
        + "; is config.json that of these files?"
    )
  kept = {}
  for name, tensor in found.items():
    if name in wanted:
      if tensor.shape != wanted[name].shape:
        by = "the value head" if name == VALUES else CONFIG
        raise Fault(
            f"{name} has shape {list(tensor.shape)}, and {by} asks for"
            f" {list(wanted[name].shape)}"
        )
    elif name == HEAD and tied:
      _require_equal(tensor, found[EMBED])
    elif IGNORED.search(name):
      continue
    else:
      raise Fault(f"{name} is a tensor that nothing uses: another model?")
    kept[name] = tensor
  return kept


def _require_equal(head: Tensor, embed: Tensor, rows: int = 4096) -> None:
  """Refuses a head that is said to be the embedding, and is not."""
  same = head[1:3] == embed[1:3]
  for i in range(0, embed.shape[0] if same else 0, rows):
    a, b = head.bits()[i : i + rows], embed.bits()[i : i + rows]
    same = same and a.tobytes() == b.tobytes()
  if not same:
    raise Fault(
        f"{CONFIG}: tie_word_embeddings = True: {HEAD} is not"
        f" {REST['embed']}; set it to false"
    )


def load(source: Source, table: Tree, mesh: jax.sharding.Mesh) -> Tree:
  """fp32 parameters on a mesh, streamed tensor by tensor.

  A device's shard is read for that device alone, and nothing is read before
  the tensor before it is in its place.

  Args:
    source: as `find` returns it, for the same table.
    table: of the parameters.
    mesh: where they go.

  Raises:
    ConfigError: a weight is NaN or infinite; names its tensor.
  """
  rows, where = _rows(table), jax.tree.leaves(parameters.shardings(table, mesh))
  insert = [
      jax.jit(
          _insert, donate_argnums=0, static_argnames="turned", out_shardings=at
      )
      for at in where
  ]
  leaves = [
      jax.jit(functools.partial(jnp.zeros, row.shape), out_shardings=at)()
      for row, at in zip(rows, where, strict=True)
  ]
  for name, place in places(table).items():
    if name == BIAS and source.head == WHOLE:
      continue
    i, layer = place.leaf, np.int32(place.layer or 0)
    # No name for what is read: it would live on beside the tensor after it.
    leaves[i] = insert[i](
        leaves[i], _put(source, name, place, mesh), layer, turned=place.turned
    )
    leaves[i].block_until_ready()  # else the host reads far ahead
  return jax.tree.structure(parameters.shardings(table, mesh)).unflatten(leaves)


def _insert(whole: Array, x: Array, layer: Array, turned: bool) -> Array:
  """A tensor of the files into its place."""
  x = x.T if turned else x
  x = x.reshape((1,) * (whole.ndim - x.ndim) + x.shape)
  at = (layer,) + (0,) * (whole.ndim - 1)
  return jax.lax.dynamic_update_slice(whole, x, at)


def _put(source: Source, name: str, place: Place, mesh) -> Array:
  """One tensor in fp32, split like the parameter that it will be part of."""

  def read(index):
    x = np.asarray(source.tensors[name].bits()[index], np.float32)
    if not np.isfinite(x).all():
      raise ConfigError(
          f"{source.where}: {name} has weights that are NaN or infinite; the"
          " checkpoint is damaged"
      )
    return x

  where = sharding.fit(mesh, place.shape, place.axes)
  return jax.make_array_from_callback(place.shape, where, read)


# --- out ----------------------------------------------------------------------


def save(
    directory: pathlib.Path,
    params: Tree,
    table: Tree,
    cfg: decoder.ModelConfig,
    *,
    head: str = "",
    source: Source | None = None,
    tok=None,
    card: str = "",
    dtype: str | None = None,
    context: int = 2048,
    shard_bytes: int = SHARD,
) -> None:
  """Writes a directory that transformers and vLLM load; whole, or not at all.

  Tensors are fetched and written one by one. All processes must call this.

  Args:
    directory: replaced if it is there.
    params: on the mesh.
    table: of the parameters, of a model or of a critic.
    cfg: shape of the model, or of the critic's trunk.
    head: '' as the table has it, a language model or a token classifier; or
      WHOLE, one score a response, for a scalar value head without a bias.
    source: the checkpoint that the parameters come from: its config.json,
      dtypes, tokenizer and generation config go on.
    tok: the tokenizer; None: that of the source.
    card: text of README.md; '' for none.
    dtype: 'float32', 'bfloat16' or 'float16'; None: of each tensor in the
      source, else float32.
    context: the most tokens that the model was made for, if there is no source.
    shard_bytes: the most in one file, unless a tensor is larger.

  Raises:
    ConfigError: transformers has no such architecture, or a weight is not
      finite in that dtype.
  """
  wanted, leaves = places(table), jax.tree.leaves(params)
  head = head or (EACH if VALUES in wanted else NEXT)
  if head == WHOLE:
    _drop_bias(leaves, wanted)
  before = source.tensors if source else {}
  if HEAD in before and cfg.tied and VALUES not in wanted:
    wanted[HEAD] = wanted[EMBED]  # twice there, so twice here
  given = {torch: kind for kind, torch in TORCH.items()}.get(dtype or "")
  plan = {}
  for name, place in wanted.items():
    kind = given or (before[name].dtype if name in before else "F32")
    plan[name] = kind, place.shape

  config = source.config if source else architecture.write(cfg, context)
  said = dtype or config.get("dtype") or config.get("torch_dtype")
  said = said or TORCH[plan[EMBED][0]]
  config = config | architecture.rope_fields(cfg)
  config |= dict(dtype=said, torch_dtype=said)  # as 5 calls it, and 4
  config["architectures"] = [architecture.class_name(config, head)]
  if VALUES in wanted:
    labels = [f"LABEL_{i}" for i in range(wanted[VALUES].shape[0])]
    config["id2label"] = dict(enumerate(labels))
    config["label2id"] = {label: i for i, label in enumerate(labels)}
  if tok is not None:
    config |= _ids(tok)
    if head == WHOLE and tok.pad_token_id == tok.eos_token_id:
      # Else transformers takes the end of a response for padding, and scores
      # the token before it; so it refuses to pad.
      config["pad_token_id"] = None

  work = directory.with_name(directory.name + ".tmp")
  writes = jax.process_index() == 0
  if writes:
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)

  def read(name):
    return _fetched(leaves, name, wanted[name], plan[name][0])

  tensors.save(work, plan, read, shard_bytes)
  if writes:
    tensors.write_json(work / CONFIG, config)
    if tok is not None:
      _save_tokenizer(work, tok)
    elif source:
      for name in BESIDE:
        if (source.path / name).is_file():
          shutil.copyfile(source.path / name, work / name)
    if card:
      (work / "README.md").write_text(card)
    shutil.rmtree(directory, ignore_errors=True)
    work.replace(directory)


def _drop_bias(leaves, wanted: dict[str, Place]) -> None:
  """Leaves out the bias of one score, which transformers has no place for."""
  outputs, bias = wanted[VALUES].shape[0], wanted.pop(BIAS)
  value = sharding.fetch(leaves[bias.leaf])
  if outputs > 1 or np.any(value):
    raise ConfigError(
        f"value_head: {outputs} outputs and a bias of {value.tolist()}: a"
        " sequence classifier has one, and none; export it as a critic"
    )


def _fetched(leaves, name: str, place: Place, kind: str) -> np.ndarray:
  """One tensor as it will be in the file; the same on every process."""
  x = leaves[place.leaf]
  x = sharding.fetch(x if place.layer is None else x[place.layer])
  with np.errstate(over="ignore"):  # found below, by name
    x = np.ascontiguousarray(x.T if place.turned else x, DTYPES[kind])
  if not np.isfinite(x).all():
    raise ConfigError(
        f"{name} has weights that are not finite in {TORCH[kind]}: export in"
        " another dtype, or from an earlier checkpoint"
    )
  return x


def _ids(tok) -> dict[str, int | None]:
  names = [f"{x}_token_id" for x in ("bos", "eos", "pad")]
  return {name: getattr(tok, name) for name in names}


def _save_tokenizer(directory: pathlib.Path, tok) -> None:
  """A tokenizer, its chat template, and a generation config with its ids."""
  tok.save_pretrained(directory)
  path = directory / "tokenizer_config.json"
  said = json.loads(path.read_text())
  if said["tokenizer_class"] == "TokenizersBackend":  # unknown before 5
    said["tokenizer_class"] = "PreTrainedTokenizerFast"
  # Beside a qwen2 transformers 5 takes its own class, and that would add the
  # unknown token that it misses.
  said["unk_token"] = said.get("unk_token") or tok.pad_token
  tensors.write_json(path, said)
  tensors.write_json(directory / GENERATION, dict(do_sample=True) | _ids(tok))
