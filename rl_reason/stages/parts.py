"""The parts of a session, one function each; see `session.Session`."""

import functools
import pathlib
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax

from rl_reason import features, tasks
from rl_reason.base import config as config_lib, errors, feature, functions
from rl_reason.base.fields import FIELDS
from rl_reason.checks import config_facts, prompt_lengths
from rl_reason.collect.reward_runner import RewardRunner
from rl_reason.data import templates, tokenizer
from rl_reason.data.pipelines import RowSource
from rl_reason.devices import sharding
from rl_reason.hf import tensor_names
from rl_reason.models import decoder
from rl_reason.monitoring import loggers, run_log
from rl_reason.monitoring.display import Display, printable
from rl_reason.rollout.external import ExternalEngine
from rl_reason.rollout.sampler import RolloutEngine
from rl_reason.rollout.stop_strings import StopStrings
from rl_reason.stages.run_output import Output
from rl_reason.tasks import evaluation_tasks, reward_terms


def check_machine(c) -> None:
  """Refuses what this machine cannot do, before anything is loaded.

  Raises:
    ConfigError: names the field and the remedy.
  """
  if c.optimizer.offload and sharding.PINNED not in sharding.memories():
    raise errors.ConfigError(
        f"optimizer.offload = True: devices of kind {jax.default_backend()!r}"
        f" have no {sharding.PINNED!r} memory on this machine; leave it out"
    )
  if jax.process_count() > 1:
    alone = {"rollout.engine.name": "each process would send all requests"}
    alone |= feature.marked("one_process")
    for name, reason in alone.items():
      value, off = config_lib.at(c, name), FIELDS[name].default
      if value != off:
        raise errors.ConfigError(
            f"{name} = {value!r}: not with several processes, since {reason}:"
            f" set it to {off!r}, or start one process"
        )


def show(display: Display) -> tasks.Show:
  """Shows failures of verifiers and rewards, from any process of the run."""
  process = jax.process_index()
  if process == 0:
    return display.say
  return lambda text: print(
      f"process {process}: {printable(text)}", file=sys.stderr, flush=True
  )


def task(c, show: tasks.Show) -> Any:
  """The task with its verifier."""
  found = tasks.get(c.task.name, show)
  r = c.reward
  return found.in_workers(r.workers, r.seconds, show)


def show_idle_template_args(c, tok: Any, say: Callable[[str], None]) -> None:
  """Says which keywords of data.template_args the chat template ignores."""
  args = templates.arguments(c.data.template_args)
  if names := ", ".join(templates.unread(tok, args)):
    say(
        f"warning: data.template_args = {c.data.template_args!r}: the chat"
        f" template of the tokenizer does not read {names}"
    )


def show_chat_template(c, tok: Any, say: Callable[[str], None]) -> None:
  """Says how prompts and the chat template of a checkpoint do not fit."""
  show_end_of_turn(c, tok, say)
  args = templates.arguments(c.data.template_args)
  if c.data.chat and templates.is_dated(tok, args):
    field = not templates.unread(tok, ["date_string"])
    remedy = (
        "--config.data.template_args=\"date_string='26 Jul 2024'\""
        if field
        else "a date in chat_template.jinja next to tokenizer.json"
    )
    say(
        "warning: data.chat: the chat template writes the date of today, so"
        f" that prompts of another day are other prompts: set {remedy}"
    )
  if c.model.path and not c.data.chat and getattr(tok, "chat_template", None):
    say(
        "data.chat = False: the tokenizer has a chat template, and prompts are"
        " plain text, as a base model reads them; for a model that was tuned to"
        " follow instructions set --config.data.chat=True"
    )


def show_end_of_turn(c, tok: Any, say: Callable[[str], None]) -> None:
  """Says if the chat template ends a turn with a token that ends no response.

  SFT teaches EOS; without SFT a checkpoint ends turns as its template does.
  """
  if not c.data.chat or config_facts.sft_steps(c):
    return
  args = templates.arguments(c.data.template_args)
  end = templates.end_of_turn(tok, args)
  ends = tokenizer.response_ends(tok)
  if end and tok.convert_tokens_to_ids(end) not in ends.ids:
    say(
        f"warning: data.chat: the chat template ends a turn with {end!r},"
        f" and responses end with EOS, {tok.eos_token!r}: a response that ends"
        f" with {end!r} goes on until rollout.max_tokens; set"
        f' --config.rollout.stop_tokens="({end!r},)"'
    )


def row_source(c, task: Any, tok: Any, files: pathlib.Path | None) -> RowSource:
  """The rows of the task by purpose.

  `files` is the directory that --stage=prepare wrote, if the config names data.

  Raises:
    ConfigError: a prompt is too long, or the tokenizer cannot spell it, or the
      characters of the task.
  """
  encode = functools.partial(tokenizer.encode_prompts, tok)
  tokenizer.require_spelled(tok, tok.name_or_path, task.ALPHABET)
  prompt_lengths.check_prompts(c, task, lambda x: list(map(len, encode(x))))
  levels = prompt_lengths.difficulties(c, task)
  own, sets = evaluation_tasks.of_run(c.evaluate.tasks, c.task.name, levels)
  others = tuple((x.label, tasks.get(x.task), x.levels) for x in sets)
  if others:
    task = evaluation_tasks.Several(
        task, {label: other for label, other, _ in others}
    )
  name = own.label if own else c.task.name
  return RowSource(task, name, levels, c.seed, files, others)


def output(
    c,
    workdir: pathlib.Path,
    display: Display,
    stop: threading.Event,
    logger: Sequence[Any] = (),
) -> Output:
  """The logs of the run; `logger` adds to the loggers of config.log.loggers."""
  writers = []
  if jax.process_index() == 0:
    writers = loggers.writers(
        c.log.loggers, tuple(logger), workdir, config_lib.flat(c), display.say
    )
  log = run_log.Log(workdir, writers, display.say)
  return Output(workdir, log, display, stop)


def engine(
    c, tok: Any, cfg: decoder.ModelConfig, mesh, display: Display
) -> RolloutEngine:
  """The engine of this package, on a mesh."""
  ends = tokenizer.response_ends(tok)
  eos: tuple[int, ...] | StopStrings = ends.ids
  of_features = (x.stop_strings(c) for x in features.declared())
  if strings := next(filter(None, of_features), ends.strings):
    eos = StopStrings(tok, cfg.vocab, strings, ends.ids)
  return RolloutEngine(
      cfg,
      mesh,
      eos=eos,
      pad=tok.pad_token_id,
      max_tokens=c.rollout.max_tokens,
      slots=c.rollout.slots,
      display=display,
  )


def rollout_engine(
    c, own: RolloutEngine, tok: Any, cfg: decoder.ModelConfig, mesh, display
) -> RolloutEngine | ExternalEngine:
  """The engine that samples in RL, on the devices of `mesh`.

  Returns:
    `own`, an engine on devices that only sample, or the one that
    config.rollout.engine names.
  """
  if factory := functions.bind("engine", c.rollout.engine):
    return ExternalEngine(
        factory(),
        own.mesh,
        names=tensor_names.names(cfg),
        tensors=functools.partial(tensor_names.named_tensors, cfg=cfg),
        eos=tokenizer.response_ends(tok).ids,
        pad=tok.pad_token_id,
        max_tokens=c.rollout.max_tokens,
        vocab=cfg.tokens or cfg.vocab,
    )
  return own if mesh == own.mesh else engine(c, tok, cfg, mesh, display)


def reward_runner(c, show: tasks.Show) -> RewardRunner:
  """Calls the reward functions."""
  return RewardRunner(
      reward_terms.terms(c.reward.functions),
      executor=c.reward.executor,
      workers=c.reward.workers,
      seconds=c.reward.timeout,
      max_tokens=c.rollout.max_tokens,
      show=show,
  )
