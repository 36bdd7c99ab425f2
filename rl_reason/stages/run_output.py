"""What a run writes and shows: its work directory, its logs and the screen."""

import pathlib
import threading
from typing import NamedTuple

from rl_reason.base import config as config_lib
from rl_reason.checkpointing.resumable import ResumableStage
from rl_reason.monitoring import run_log
from rl_reason.monitoring.display import Display
from rl_reason.report import page


class Output(NamedTuple):
  """Where the stages of a run write, and what can stop them.

  Attributes:
    workdir: everything that the run writes.
    log: metrics and samples.
    display: the screen.
    stop: set by SIGTERM.
  """

  workdir: pathlib.Path
  log: run_log.Log
  display: Display
  stop: threading.Event


def open_stage(c, output: Output, name: str, **keep: int) -> ResumableStage:
  """The resumable stage of a name, with keywords of `Checkpoints`."""
  return ResumableStage(
      name,
      output.workdir,
      fields=config_lib.flat(c),
      log=output.log,
      display=output.display,
      stop=output.stop,
      on_save=page.refresher(output.workdir, output.display.say),
      **keep,
  )
