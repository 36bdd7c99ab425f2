"""The session of a run: what `main` opens once and every stage unpacks.

A stage reads the config and the session before its loop. What builds the parts
of a stage takes a session, too: programs, state, reward models, evaluation. The
rooms that compute never do (algorithms, models, rollout, scale, data, tasks,
checkpointing, monitoring): imports point the other way.
"""

import functools
import pathlib
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from rl_reason import environments, hf, tasks
from rl_reason.base import config as config_lib, errors, functions
from rl_reason.base.structs import Tree
from rl_reason.checkpointing.checkpoint import Checkpoints
from rl_reason.checkpointing.resumable import ResumableStage
from rl_reason.checks import facts
from rl_reason.collect.episodes import Environments, stop_candidates
from rl_reason.collect.reward_runner import RewardRunner
from rl_reason.data import tokenizer
from rl_reason.data.row_source import RowSource
from rl_reason.devices import sharding, unused_accelerators
from rl_reason.hf import tensor_names
from rl_reason.models import critic, cudnn, decoder, kernels, pallas
from rl_reason.monitoring import loggers, metrics
from rl_reason.monitoring.display import Display, printable
from rl_reason.report import page
from rl_reason.rollout.external import ExternalEngine
from rl_reason.rollout.sampler import RolloutEngine
from rl_reason.tasks import reward_terms

# Kernels that are tried before a run chooses them: head_dim -> why they fail.
TRIED: dict[str, Callable[[int], str]] = {
    "cudnn": cudnn.failure,
    "triton": pallas.failure,
}


class Session(NamedTuple):
  """What the stages of a run share.

  Attributes:
    config: the checked ConfigDict.
    workdir: everything that the run writes.
    mesh: the devices.
    task: the task, with its verifier.
    tok: the tokenizer.
    cfg: static shape of the policy.
    critic_cfg: static shape of a critic.
    rows: the rows of the task by purpose.
    engine: samples responses.
    rollout_engine: samples those of RL: `engine`, or one on devices of its
      own, or one of others.
    rewards: calls the reward functions.
    environments: makes and calls environments; None without.
    log: metrics and samples.
    display: the screen.
    stop: set by SIGTERM.
  """

  config: Any
  workdir: pathlib.Path
  mesh: jax.sharding.Mesh
  task: Any
  tok: Any
  cfg: decoder.ModelConfig
  critic_cfg: critic.CriticConfig
  rows: RowSource
  engine: RolloutEngine
  rollout_engine: Any  # RolloutEngine or ExternalEngine
  rewards: RewardRunner
  environments: Environments | None
  log: metrics.Log
  display: Display
  stop: threading.Event


def open_session(
    config,
    workdir: pathlib.Path,
    mesh: jax.sharding.Mesh,
    display: Display,
    stop: threading.Event,
    files: pathlib.Path | None = None,
    logger: Sequence[Any] = (),
    rollout_mesh: jax.sharding.Mesh | None = None,
) -> Session:
  """Opens everything that the stages share.

  Args:
    config: checked.
    workdir: everything that the run writes.
    mesh: the devices.
    display: the screen.
    stop: set by SIGTERM.
    files: what --stage=prepare wrote, if the config names data.
    logger: loggers beside those of config.log.loggers; see
      `monitoring.loggers`.
    rollout_mesh: the devices that sample in RL; None: those of the mesh.

  Raises:
    ValueError: the tokenizer, the checkpoint or the devices do not fit; the
      text names the field.
  """
  # What this machine cannot do is refused before anything is loaded.
  if config.optimizer.offload and sharding.PINNED not in sharding.memories():
    raise errors.ConfigError(
        f"optimizer.offload = True: devices of kind {jax.default_backend()!r}"
        f" have no {sharding.PINNED!r} memory on this machine; leave it out"
    )
  if jax.process_count() > 1:
    for name, off, reason in (
        ("rl.staleness", 0, "threads would start programs in different orders"),
        ("rollout.engine.name", "own", "each of them would send all requests"),
    ):
      if (value := config_lib.at(config, name)) != off:
        raise errors.ConfigError(
            f"{name} = {value!r}: not with several processes: {reason}"
        )
  # The task and its verifier.
  show = _shower(display)
  task = tasks.get(config.task.name, show)
  environment = environments.find(config.environment.name, task)
  r = config.reward
  task = task.in_workers(r.workers, r.seconds, show)

  # The tokenizer, which must be that of the checkpoint.
  source = resolve(config)
  path = tokenizer_path(config, source)
  revision = facts.revision(config, path)
  tok = tokenizer.load(path, task.ALPHABET, revision)
  tokens = 1 + max(tok.get_vocab().values())
  if source and tokens > source.cfg.vocab:
    raise errors.ConfigError(
        f"tokenizer = {path!r}: has {tokens} tokens, and {source.label} has a"
        f" vocab_size of {source.cfg.vocab}; use the tokenizer of that model"
    )
  eos = tokenizer.ends(tok, config.rollout.stop_tokens)
  e = config.environment
  difficulties = tuple(config.task.difficulties) or task.DIFFICULTIES or (0,)
  _check_prompts(config, task, difficulties, tok)

  # The static shape of the model, and who computes its attention.
  vocab = source.cfg.vocab if source else tokens
  cfg = model_config(config, vocab=vocab, tokens=tokens)
  chosen = kernels.KERNELS.get(cfg.attention)
  if config.rollout.cache == "int8" and chosen and not chosen.int8:
    raise errors.ConfigError(
        "rollout.cache = 'int8': the paged attention of"
        f" {cfg.attention} does not read int8; use 'same'"
    )
  display.say(f"attention: {cfg.attention} ({attention_backend(config)[1]})")
  if line := unused_accelerators.unused_accelerator(jax.default_backend()):
    display.say(f"warning: {line}")

  writers = []
  if jax.process_index() == 0:
    writers = loggers.writers(
        config.log.loggers,
        tuple(logger),
        workdir,
        config_lib.flat(config),
        display.say,
    )

  def make_engine(mesh):
    return RolloutEngine(
        cfg,
        mesh,
        eos=(*eos, *stop_candidates(tok, e.stop_strings)),
        pad=tok.pad_token_id,
        max_tokens=config.rollout.max_tokens,
        slots=config.rollout.slots,
        display=display,
    )

  engine = rollout_engine = make_engine(mesh)
  if rollout_mesh not in (None, mesh):
    rollout_engine = make_engine(rollout_mesh)
  if factory := functions.bind("engine", config.rollout.engine):
    rollout_engine = ExternalEngine(
        factory(),
        mesh,
        names=tensor_names.names(cfg),
        tensors=functools.partial(tensor_names.named_tensors, cfg=cfg),
        eos=eos,
        pad=tok.pad_token_id,
        max_tokens=config.rollout.max_tokens,
    )
  return Session(
      config=config,
      workdir=workdir,
      mesh=mesh,
      task=task,
      tok=tok,
      cfg=cfg,
      critic_cfg=critic_config(config, cfg),
      rows=RowSource(task, config.task.name, difficulties, config.seed, files),
      engine=engine,
      rollout_engine=rollout_engine,
      rewards=RewardRunner(
          reward_terms.terms(config.reward.functions),
          executor=config.reward.executor,
          workers=config.reward.workers,
          seconds=config.reward.timeout,
          max_tokens=config.rollout.max_tokens,
          show=show,
      ),
      environments=Environments(
          e.name or config.task.name,
          environment,
          tok,
          ends=eos,
          stop_strings=e.stop_strings,
          max_turns=e.max_turns,
          slots=config.rollout.slots,
          shards=sharding.num_shards(mesh, "batch"),
          executor=e.executor,
          workers=e.workers,
          seconds=e.timeout,
          special_tokens=e.special_tokens,
          show=display.say,
      )
      if environment
      else None,
      log=metrics.Log(workdir, writers, display.say),
      display=display,
      stop=stop,
  )


def _shower(display: Display) -> tasks.Show:
  """Shows failures of verifiers and rewards, of whichever process has them."""
  process = jax.process_index()
  if process == 0:
    return display.say
  return lambda text: print(
      f"process {process}: {printable(text)}", file=sys.stderr, flush=True
  )


def open_stage(session: Session, name: str, **keep: int) -> ResumableStage:
  """The resumable stage of this name in the session's work directory."""
  return ResumableStage(
      name,
      session.workdir,
      fields=config_lib.flat(session.config),
      log=session.log,
      display=session.display,
      stop=session.stop,
      on_save=page.refresher(session.workdir, session.display.say),
      **keep,
  )


def packed_rows(config, mesh: jax.sharding.Mesh) -> int:
  """Packed rows of a micro-batch, over all their shards: data x fsdp."""
  return facts.packed_rows(config, sharding.num_shards(mesh, "rows"))


def resolve(config) -> hf.Source | None:
  """The checkpoint of config.model.path; its shape is filled into the config.

  Args:
    config: config.model gets the shape of the checkpoint; to resolve it twice
      has no further effect.

  Returns:
    the checkpoint, or None if the model is a fresh one.

  Raises:
    ConfigError: it is damaged, not supported, or too short for the rollouts.
  """
  if not config.model.path:
    return None
  name = config.model.path
  source = hf.find(name, revision=facts.revision(config, name))
  shape = hf.architecture.fields(source.cfg)
  del shape["vocab"]  # no field: it follows from the tokenizer
  config.model.update(shape)
  length = config.rollout.max_prompt + config.rollout.max_tokens
  if length > source.context:
    raise errors.ConfigError(
        f"rollout.max_tokens = {config.rollout.max_tokens}: with"
        f" rollout.max_prompt it makes {length} tokens, and {source.label}"
        f" takes {source.context} (max_position_embeddings, sliding_window)"
    )
  return source


def tokenizer_path(config, source: hf.Source | None) -> str:
  """The path of the tokenizer: as configured, or that of the checkpoint.

  Raises:
    ConfigError: there is none.
  """
  if config.tokenizer or not source:
    return config.tokenizer
  if not any((source.path / name).is_file() for name in hf.TOKENIZERS):
    raise errors.ConfigError(
        f"tokenizer = '': {source.label} has no tokenizer beside it; name one"
    )
  return str(source.path)


def model_config(
    config, *, vocab: int, tokens: int | None
) -> decoder.ModelConfig:
  """The static shape of the model of a config.

  Args:
    config: of a run, this one or another.
    vocab: rows of the embedding.
    tokens: how many of them the tokenizer has.
  """
  shape = {k: x for k, x in config.model.items() if k != "path"}
  shape["attention"], _ = attention_backend(config)
  return decoder.ModelConfig(vocab=vocab, tokens=tokens, **shape)


def attention_backend(config, backend: str = "") -> tuple[str, str]:
  """Who computes attention on a backend, by default this one, and why."""
  m, sizes = config.model, facts.mesh_sizes(config, jax.device_count())
  parts = sizes["sequence"] * sizes["tensor"] if sizes["sequence"] > 1 else 1
  args = m.attention, backend or jax.default_backend(), m.dtype, m.head_dim
  name, reason = kernels.choose(*args, whole_rows=m.kv_heads % parts == 0)
  if name in TRIED and not backend and (failure := TRIED[name](m.head_dim)):
    return "xla", f"{name}: {failure}"
  return name, reason


def critic_config(config, trunk: decoder.ModelConfig) -> critic.CriticConfig:
  """The static shape of the critic of a config."""
  return functions.bind("critic_head", config.critic.head)(trunk)


def save_network(
    session: Session,
    path: pathlib.Path,
    params: Tree,
    table: Tree,
    cfg: decoder.ModelConfig,
    **options: Any,
) -> None:
  """`hf.save` with the dtypes and the tokenizer that the run started from."""
  c = session.config
  source = resolve(c)
  hf.save(
      path,
      params,
      table,
      cfg,
      source=source,
      tokenizer=session.tok if c.tokenizer or not source else None,
      context=c.rollout.max_prompt + c.rollout.max_tokens,
      **options,
  )


def save_checkpoint(
    session: Session, path: pathlib.Path, step: int, params: Tree
) -> None:
  """Writes a checkpoint of parameters from which another run can start."""
  checkpoints = Checkpoints(path)
  checkpoints.save(step, params, dict(config=config_lib.flat(session.config)))
  checkpoints.close()


def _check_prompts(config, task, difficulties: tuple[int, ...], tok) -> None:
  """Refuses difficulties whose prompts are too long, or cannot be spelled."""
  if config.task.name == tasks.FILES:
    return
  slots = config.rollout.max_prompt
  texts = [task.longest(difficulty) for difficulty in difficulties]
  lacking = sorted(set("".join(texts)) - set(task.ALPHABET))
  if lacking and not (config.tokenizer or config.model.path):
    raise errors.ConfigError(
        f"tokenizer = '': the ALPHABET of {config.task.name} lacks the"
        f" characters {''.join(lacking)!r} of its prompts: name a tokenizer"
    )
  sizes = list(map(len, tokenizer.encode(tok, texts)))
  if max(sizes) > slots:
    longest = texts[sizes.index(max(sizes))]
    too_long = [
        str(difficulty)
        for difficulty, size in zip(difficulties, sizes, strict=True)
        if size > slots
    ]
    raise errors.ConfigError(
        f"rollout.max_prompt = {slots}: {longest!r} has {max(sizes)} tokens;"
        f" raise it, or leave {', '.join(too_long)} out of task.difficulties"
    )
