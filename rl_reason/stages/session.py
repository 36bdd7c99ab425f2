"""A session: what a run has opened, for its stages.

A stage is a function of the checked config and of a session, in which it reads
the parts that it uses. A part opens when it is read first, so that a stage
opens and imports no part that it does not use.
"""

import copy
import functools
import pathlib
import threading
from collections.abc import Sequence
from typing import Any

import jax

from rl_reason.base import feature
from rl_reason.checks import model_directory
from rl_reason.collect.reward_runner import RewardRunner
from rl_reason.data.pipelines import RowSource
from rl_reason.monitoring.display import Display
from rl_reason.rollout.external import ExternalEngine
from rl_reason.rollout.sampler import RolloutEngine
from rl_reason.stages import model, parts, prompt_start, starting_model
from rl_reason.stages.run_output import Output


class Session:
  """The parts of a run in one process.

  Args:
    c: the checked config; its tokenizer and its prompts' start are filled in.
    workdir: everything that the run writes.
    mesh: the devices that learn.
    sampling: the devices that sample in RL, often the same.
    screen: a `Display`.
    stop: set by SIGTERM.
    files: what --stage=prepare wrote, if the config names data.
    logger: further loggers.
    recorded: the work directory whose record replaces model.path and its
      tokenizer; None: they are read.

  Attributes:
    source: the checkpoint of transformers in model.path; None without.
    tok: the tokenizer.
    model: shapes of the networks, and the devices that learn.
    engine: samples responses on the devices that learn.

  Raises:
    ConfigError: the tokenizer, the checkpoint or the devices do not fit.
  """

  def __init__(
      self,
      c,
      workdir: pathlib.Path,
      mesh: jax.sharding.Mesh,
      sampling: jax.sharding.Mesh,
      screen: Display,
      stop: threading.Event,
      files: pathlib.Path | None = None,
      logger: Sequence[Any] = (),
      *,
      recorded: pathlib.Path | None = None,
  ):
    parts.check_machine(c)
    self._c, self._workdir, self._sampling = c, workdir, sampling
    self._screen, self._stop, self._files = screen, stop, files
    self._logger, self._show = logger, parts.show(screen)
    self.source = starting_model.source(recorded) or model_directory.resolve(c)
    if self.source and c.model.path:  # an evaluation may sample more tokens
      model_directory.require_context(c, self.source)
    c.tokenizer = starting_model.tokenizer(recorded) or c.tokenizer
    alphabet = "" if self.source or c.tokenizer else self._task.ALPHABET
    self.tok = model_directory.load_tokenizer(c, self.source, alphabet)
    parts.show_idle_template_args(c, self.tok, screen.say)
    keep = bool(recorded)
    prompt_start.settle(c, self.tok, workdir, screen.say, keep=keep)
    parts.show_chat_template(c, self.tok, screen.say)
    cfg = model.policy_shape(c, self.source, self.tok, screen.say)
    self.model = model.Model(cfg, model.critic_config(c, cfg), mesh)
    self.engine = parts.engine(c, self.tok, cfg, mesh, screen)

  @functools.cached_property
  def _task(self) -> Any:
    return parts.task(self._c, self._show)

  @functools.cached_property
  def row_source(self) -> RowSource:
    """The rows of the task by purpose."""
    return parts.row_source(self._c, self._task, self.tok, self._files)

  @functools.cached_property
  def output(self) -> Output:
    """Work directory, logs and screen."""
    return parts.output(
        self._c, self._workdir, self._screen, self._stop, self._logger
    )

  @functools.cached_property
  def rollout_engine(self) -> RolloutEngine | ExternalEngine:
    """Samples responses in RL: `engine`, one on other devices, or external."""
    return parts.rollout_engine(
        self._c,
        self.engine,
        self.tok,
        self.model.cfg,
        self._sampling,
        self._screen,
    )

  @functools.cached_property
  def reward_runner(self) -> RewardRunner:
    """Calls the reward functions."""
    return parts.reward_runner(self._c, self._show)

  @functools.cached_property
  def opened(self) -> dict[feature.Declaration, Any]:
    """What features have opened."""
    return feature.opened(self._c, self)

  def open(self) -> None:
    """Opens all parts, so that a run that trains fails before it begins."""
    for name, x in vars(Session).items():
      if isinstance(x, functools.cached_property):
        getattr(self, name)

  def replace(self, **changes: Any) -> "Session":
    """A session with other parts, by name."""
    new = copy.copy(self)
    vars(new).update(changes)
    return new

  def close(self) -> None:
    """Ends the parts that are open, and have threads, processes or files."""
    for one in vars(self).get("opened", {}).values():
      one.close()
    if "reward_runner" in vars(self):
      self.reward_runner.close()
    if "output" in vars(self):
      self.output.log.close()
