"""One loop a stage, each read from top to bottom; what they share is here."""

import dataclasses
import functools
import pathlib
import threading
import time
import zlib
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from rl_reason import config as config_lib, hf, tasks
from rl_reason.checkpointing import checkpoint
from rl_reason.data import pipelines, tokenizer
from rl_reason.models import critic, decoder, parameters
from rl_reason.monitoring import display as display_lib, metrics
from rl_reason.rollout import sampler, sampler_weights
from rl_reason.scale import pallas, sharding
from rl_reason.structs import Array, Packed, RunError, Tree
from rl_reason.training import packing, step


class Stopped(Exception):
  """SIGTERM: the state is saved, the process may end."""


class Once:
  """A jit-ed function compiled at its first call, and never again.

  The executable is kept, not the function: arguments of another shape, dtype
  or sharding raise a TypeError instead of compiling again in the loop.
  """

  def __init__(self, name: str, fn, display: display_lib.Display):
    self._name, self._fn, self._display = name, fn, display
    self._compiled: Any = None

  def __call__(self, *args):
    """The function's own arguments and result."""
    if self._compiled is None:
      self._display.doing(f"compiling {self._name}")
      began = time.monotonic()
      self._compiled = self._fn.lower(*args).compile()
      took = time.monotonic() - began
      self._display.say(f"compiled {self._name} in {took:.1f} s")
    return self._compiled(*args)


def over_micro_batches(fn):
  """jit: (params, Packed of minibatches) -> `fn` of all rows, [M, B, ...].

  Args:
    fn: (params, Packed of a micro-batch) -> arrays [B, ...].
  """

  def program(params, packed_M):
    def one(micro, here_B):
      return packing.only(here_B, fn(params, micro))

    return jax.lax.map(functools.partial(packing.fold, one), packed_M)

  return jax.jit(program)


@dataclasses.dataclass
class Run:
  """What every stage needs; made once, from a config that is checked.

  Attributes:
    config: the ConfigDict; read here and in the stages, nowhere below.
    workdir: everything that the run writes.
    mesh: the ambient mesh.
    task, levels: the task's module and its difficulties.
    files: what --stage=prepare wrote; None if the task makes its problems.
    tok: the tokenizer.
    cfg, critic_cfg: static shapes of the model and of a critic.
    log, display: where numbers and words go.
    stop: set by SIGTERM.
    log_sizes: of the logs, at the newest checkpoint made or found so far.
  """

  config: Any
  workdir: pathlib.Path
  mesh: jax.sharding.Mesh
  task: Any
  levels: tuple[int, ...]
  files: pathlib.Path | None
  tok: Any
  cfg: decoder.ModelConfig
  critic_cfg: critic.CriticConfig
  log: metrics.Log
  display: display_lib.Display
  stop: threading.Event
  log_sizes: list[int] = dataclasses.field(
      default_factory=lambda: [0] * len(metrics.FILES)
  )
  _samplers: dict = dataclasses.field(default_factory=dict)

  def put(self, tree: Tree, *logical: str | None) -> Tree:
    """Host arrays onto the mesh."""
    return sharding.put(self.mesh, tree, *logical)

  def put_packed(self, packed: Packed) -> Packed:
    """Packed rows of minibatches, [M, A, R, L] and [M, B, T], onto the mesh."""
    return sharding.put_packed(self.mesh, packed)

  @property
  def packed_rows(self) -> int:
    """Packed rows of a micro-batch."""
    return config_lib.packed_rows(self.config, self.ways)

  @property
  def ways(self) -> int:
    """Shards that the rows of a batch are split over."""
    return sharding.num_shards(self.mesh, "batch")

  def key(self, purpose: str) -> Array:
    """A random key for one purpose, replicated."""
    seed = self.put(np.uint32(zlib.crc32(purpose.encode())))
    return _key(self.put(np.int64(self.config.seed).astype(np.int32)), seed)

  def seed(self, purpose: str) -> int:
    """A host seed for one purpose."""
    return zlib.crc32(f"{purpose} {self.config.seed}".encode())

  def init_critic(
      self, purpose: str, shardings: Tree, trunk: Tree | None
  ) -> Tree:
    """A critic on the mesh, its trunk copied from a policy, or random."""

    def make(key, trunk):
      return critic.init(self.critic_cfg, key, trunk)

    # Copied, not shared: updates donate their state.
    return jax.jit(make, out_shardings=shardings)(self.key(purpose), trunk)

  def stream(self, params, *args, group_size: int, top_p: float, **more):
    """`rollout.stream` with this run's model, tokenizer and programs."""
    return sampler.stream(
        params,
        *args,
        program=functools.partial(self._sampler, _form(params)),
        cfg=self.cfg,
        group_size=group_size,
        max_tokens=self.config.rollout.max_tokens,
        eos=tokenizer.ends(self.tok, self.config.rollout.stop_tokens),
        pad=self.tok.pad_token_id,
        top_p=top_p,
        slots=self.config.rollout.slots,
        **more,
    )

  def weights(self, params: Tree, kind: str = "same") -> Tree:
    """What a policy is sampled with (`rollout_weights`); maybe its own."""
    if kind == "same" and self.cfg.dtype == "float32":
      if self.mesh.shape["fsdp"] == 1:
        return params
    form = kind, _form(params)
    if form not in self._samplers:
      make = functools.partial(sampler_weights.make, cfg=self.cfg, weights=kind)
      table = sampler_weights.table(self.cfg, kind)
      where = parameters.shardings(table, self.mesh)
      fn = jax.jit(make, out_shardings=where)
      self._samplers[form] = Once("weights of the sampler", fn, self.display)
    return self._samplers[form](params)

  def sample(self, *args, **more):
    """What `stream` yields last: whole rollouts."""
    *_, (rollouts, _) = self.stream(*args, **more)
    return rollouts

  def _sampler(self, form, static: sampler.Sampler, name, shape) -> Once:
    kind = form, static, name, shape
    if kind not in self._samplers:
      fn = sampler.program(*kind[1:])
      self._samplers[kind] = Once(f"sampler: {name}", fn, self.display)
    return self._samplers[kind]

  def checkpoints(self, stage: str, **keep: int) -> checkpoint.Checkpoints:
    """The checkpoints of a stage."""
    return checkpoint.Checkpoints(self.workdir / "checkpoints" / stage, **keep)

  def resume(self, checkpoints: checkpoint.Checkpoints):
    """(step, host state) of the newest whole checkpoint, or None.

    Raises:
      RunError: it was made by a config that gives other numbers.
    """
    at = checkpoints.newest(self.display.say)
    if at is None:
      return None
    host = checkpoints.host(at)
    differ = config_lib.differences(
        host["config"], config_lib.flat(self.config)
    )
    if differ:
      raise RunError(
          f"checkpoint {checkpoints.name}/{at} of {self.workdir} was made by"
          f" another config ({'; '.join(differ)}); choose another --workdir"
      )
    self.log_sizes = host["log_sizes"]
    return at, host

  def begin(self) -> None:
    """Cuts off what a killed process logged behind the newest checkpoint."""
    self.log.cut(self.log_sizes)

  def host_state(self, **more) -> dict:
    """The JSON beside a checkpoint: sizes of the logs, config, and more."""
    self.log_sizes = self.log.sizes()
    return dict(
        log_sizes=self.log_sizes,
        config=config_lib.flat(self.config),
        **more,
    )

  def problems(self, purpose: str, batch: int):
    """A source of training rows by id, and an endless stream of batches."""
    seed = self.seed(purpose)
    source: pipelines.Problems | pipelines.Mixed
    if self.files is None:
      source = pipelines.Problems(self.task, self.levels, seed)
    else:
      source = pipelines.Mixed(*pipelines.prepared(self.files, "train"), seed)
    return source, pipelines.prompts(source, batch)

  def demonstrations(self, purpose: str, batch: int, mixture: dict):
    """An endless stream of batches of (prompt, response) to imitate."""
    seed = self.seed(purpose)
    if self.files is None:
      return pipelines.demonstrations(
          self.task, self.levels, seed, batch, mixture
      )
    parts, weights = pipelines.prepared(self.files, "train")
    return pipelines.prepared_pairs(parts, weights, seed, batch)

  def preferences(self, batch: int, chosen, rejected, *, evaluation: bool):
    """An endless stream of batches of (prompt, better, worse response)."""
    seed = self.seed(f"preferences {evaluation}")
    if self.files is None:
      return pipelines.preferences(
          self.task,
          self.levels,
          seed,
          batch,
          chosen,
          rejected,
          evaluation=evaluation,
      )
    use = "evaluate" if evaluation else "train"
    parts, weights = pipelines.prepared(self.files, use)
    return pipelines.prepared_pairs(parts, weights, seed, batch, rejected=True)

  def evaluation_sets(self) -> dict[str, list[tasks.Row]]:
    """Held-out rows by the name of their set; the first is the headline."""
    count = self.config.evaluate.prompts
    if self.files is None:
      rows = tasks.evaluation_rows(self.task, self.levels, count)
      return {self.config.task.name: list(rows)}
    return pipelines.evaluation_sets(self.files, count)

  def optimizer(self, *, lr, schedule, warmup, total, freeze=0.0):
    """The optax optimizer of a stage, `total` optimizer steps long."""
    o = self.config.optimizer
    return step.make_optimizer(
        name=o.name,
        lr=lr,
        schedule=schedule,
        warmup=warmup,
        total=total,
        b1=o.b1,
        b2=o.b2,
        eps=o.eps,
        weight_decay=o.weight_decay,
        clip_norm=o.clip_norm,
        freeze=freeze,
        offload=o.offload,
    )

  def check_stop(self) -> None:
    """Raises Stopped after SIGTERM, on all processes at the same step."""
    stop = self.stop.is_set()
    if jax.process_count() > 1:
      stop = bool(np.any(multihost_utils.process_allgather(np.array(stop))))
    if stop:
      raise Stopped

  def sample_rows(
      self, rollouts, rows: list[tasks.Row], texts, correct_B, which, **more
  ) -> list[dict]:
    """Some responses as lines for samples.jsonl.

    Args:
      rollouts: B rows on the host.
      rows: the tasks.Row of each group, B / len(rows) responses each.
      texts: of the B responses.
      correct_B: verdicts.
      which: indices of the rows wanted.
      **more: [B] or [B, T] arrays, kept under their names.
    """
    group = len(texts) // len(rows)
    slots = rollouts.tokens_BL.shape[1] - rollouts.mask_BT.shape[1]
    out = []
    for b in which:
      n = int(rollouts.lengths_B[b])
      ids = rollouts.tokens_BL[b, slots : slots + n].tolist()
      row = rows[b // group]
      line = dict(
          prompt=row.prompt,
          answer=row.answer,
          response=texts[b],
          correct=int(correct_B[b]),
          truncated=bool(rollouts.truncated_B[b]),
          tokens=self.tok.convert_ids_to_tokens(ids),
          logp=[metrics.number(x) for x in rollouts.logps_BT[b, :n]],
      )
      for name, x in more.items():
        line[name] = (
            metrics.number(x[b])
            if x.ndim == 1
            else [metrics.number(y) for y in x[b, :n]]
        )
      out.append(line)
    return out


def _form(params: Tree):
  """Equal for parameters that one program may take."""
  return jax.tree.structure(params), *(x.dtype for x in jax.tree.leaves(params))


@jax.jit
def _key(seed, purpose):
  return jax.random.fold_in(jax.random.key(seed), purpose)


def resolve(config) -> hf.Source | None:
  """The checkpoint of config.model.path, whose shape config.model then has.

  Args:
    config: the shape is filled in; twice changes nothing more.

  Returns:
    the checkpoint, or None if the model is a fresh one.

  Raises:
    ConfigError: it is damaged, not supported, or too short for the rollouts.
  """
  m, r = config.model, config.rollout
  if not m.path:
    return None
  source = hf.find(m.path)
  shape = hf.architecture.fields(source.cfg)
  del shape["vocab"]  # no field: it follows from the tokenizer
  m.update(shape)
  slots = r.max_prompt + r.max_tokens
  if slots > source.context:
    raise config_lib.ConfigError(
        f"rollout.max_tokens = {r.max_tokens}: with rollout.max_prompt it makes"
        f" {slots} tokens, and {source.where} takes {source.context}"
        " (max_position_embeddings, sliding_window)"
    )
  return source


def tokenizer_path(config, source: hf.Source | None) -> str:
  """Where the tokenizer is: as given, or beside the checkpoint.

  Raises:
    ConfigError: there is none.
  """
  if config.tokenizer or not source:
    return config.tokenizer
  if not any((source.path / name).is_file() for name in hf.TOKENIZERS):
    raise config_lib.ConfigError(
        f"tokenizer = '': {source.where} has none beside it; give one"
    )
  return str(source.path)


def model_config(
    config, *, vocab: int, tokens: int | None
) -> decoder.ModelConfig:
  """The static shape that a whole config gives a model.

  Args:
    config: of a run, this one or another.
    vocab: rows of the embedding.
    tokens: how many of them the tokenizer has.
  """
  shape = {k: x for k, x in config.model.items() if k != "path"}
  shape["attention"], _ = attend_by(config)
  return decoder.ModelConfig(vocab=vocab, tokens=tokens, **shape)


def attend_by(config) -> tuple[str, str]:
  """Who computes attention on this machine, and why."""
  m = config.model
  return pallas.choose(m.attention, jax.default_backend(), m.dtype, m.head_dim)


def critic_config(config, trunk: decoder.ModelConfig) -> critic.CriticConfig:
  """The static shape that a whole config gives a critic."""
  v = config.critic
  return critic.CriticConfig(trunk, v.head, v.heads, v.bins, v.low, v.high)


def require_equal(
    where: str,
    here: dict[str, Any],
    there: dict[str, Any],
    names: tuple[str, ...] = ("",),
) -> None:
  """Refuses what another config made, if fields that matter differ.

  Args:
    where: the field that names it, and its value.
    here: fields of this run.
    there: fields of the run that made it.
    names: what a field that matters begins with; all of them if not given.

  Raises:
    RunError: names the first field, and both values.
  """
  for name, value in here.items():
    if name.startswith(names) and there.get(name) != value:
      raise RunError(
          f"{where}: {name} is {there.get(name)!r} there and {value!r} here;"
          " make them equal"
      )


def make_run(config, workdir: pathlib.Path, display, stop, files=None) -> Run:
  """Opens everything that the stages share.

  Args:
    config: checked.
    workdir: everything that the run writes.
    display: where words go.
    stop: set by SIGTERM.
    files: what --stage=prepare wrote, if the config names data.

  Raises:
    ValueError: the tokenizer, the checkpoint, the mesh or the devices do not
      fit; the text names the field.
  """
  if config.optimizer.offload and sharding.PINNED not in sharding.memories():
    raise config_lib.ConfigError(
        f"optimizer.offload = True: devices of kind {jax.default_backend()!r}"
        f" have no {sharding.PINNED!r} memory here; leave it out"
    )
  task = tasks.get(config.task.name)
  if config.task.name == tasks.FILES:
    task = task.Verifier(config.reward.workers, config.reward.seconds)
  source = resolve(config)
  path = tokenizer_path(config, source)
  tok = tokenizer.load(path, task.ALPHABET)
  tokens = 1 + max(tok.get_vocab().values())
  if source and tokens > source.cfg.vocab:
    raise config_lib.ConfigError(
        f"tokenizer = {path!r}: has {tokens} tokens, and {source.where} has a"
        f" vocab_size of {source.cfg.vocab}; give the tokenizer of that model"
    )
  tokenizer.ends(tok, config.rollout.stop_tokens)
  levels = tuple(config.task.difficulties) or task.DIFFICULTIES
  _check_prompts(config, task, levels, tok)
  vocab = source.cfg.vocab if source else tokens
  cfg = model_config(config, vocab=vocab, tokens=tokens)
  kernels = pallas.KERNELS.get(cfg.attention)
  if config.rollout.cache == "int8" and kernels and not kernels.int8:
    raise config_lib.ConfigError(
        "rollout.cache = 'int8': the paged attention of"
        f" {cfg.attention} does not read it; use 'same'"
    )
  display.say(f"attention: {cfg.attention} ({attend_by(config)[1]})")
  return Run(
      config=config,
      workdir=workdir,
      mesh=sharding.make_mesh(**config.mesh),
      task=task,
      levels=levels,
      files=files,
      tok=tok,
      cfg=cfg,
      critic_cfg=critic_config(config, cfg),
      log=metrics.Log(workdir, config.log.tensorboard),
      display=display,
      stop=stop,
  )


def _check_prompts(config, task, levels: tuple[int, ...], tok) -> None:
  """Refuses a level whose prompts do not fit; preparation looks at files."""
  if config.task.name == tasks.FILES:
    return
  slots = config.rollout.max_prompt
  texts = [task.longest(level) for level in levels]
  sizes = list(map(len, tokenizer.encode(tok, texts)))
  if max(sizes) > slots:
    longest = texts[sizes.index(max(sizes))]
    out = [level for level, n in zip(levels, sizes, strict=True) if n > slots]
    raise config_lib.ConfigError(
        f"rollout.max_prompt = {slots}: {longest!r} has {max(sizes)} tokens;"
        f" raise it, or leave {', '.join(map(str, out))} out of"
        " task.difficulties"
    )
