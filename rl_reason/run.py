"""The stages of a run in one work directory, for `main` and `api.train`.

`main` and `api.train` check the config first, and import jax only then.
"""

import contextlib
import pathlib
import pkgutil
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import ml_collections

from rl_reason import tasks
from rl_reason.base import config as config_lib, feature
from rl_reason.checks import (
    config_facts,
    machine_checks,
    path_contents,
    run_directory,
)
from rl_reason.monitoring import stop_signals

if TYPE_CHECKING:
  from rl_reason.stages.session import Session

# Stages by name, so that nothing imports a wing. A stage is a function of the
# config, a `Session`, and the stages to train or the checkpoint; 'prepare' and
# 'size' open no session.
STAGES = {
    "all": "rl_reason.stages.learn:run",
    "sft": "rl_reason.stages.learn:run",
    "value": "rl_reason.stages.learn:run",
    **dict.fromkeys(feature.stages(), "rl_reason.stages.learn:run"),
    "prepare": "rl_reason.stages.prepare:run",
    "evaluate": "rl_reason.stages.evaluate:run",
    "export": "rl_reason.stages.export:run",
    "generate": "rl_reason.lab.generate:run",
    "replay": "rl_reason.lab.replay:run",
    "serve": "rl_reason.serve.server:run",
    "size": "rl_reason.lab.size:run",
}
# What a stage needs of the machine and the user; called before a device is used
CHECKS = {
    "export": "rl_reason.checks.machine_checks:hub",
    "serve": "rl_reason.serve.requirements:check",
}
AUTOMATIC_REMAT = "rl_reason.lab.automatic_remat:fill_in"
TRAINS = ("all", "sft", "value", *feature.stages())
# These need only a work directory.
FINISHED = ("evaluate", "export", "serve", "replay")
# Stage -> the folder of the work directory that it writes to. A run may be
# trained while samples of its checkpoints are written, or a step is replayed.
FOLDERS = {"generate": "generated", "replay": "replay"}


# Stage -> what it does after a signal; the others are ended by it.
_LAST = "the run stops after this step or these tokens, and its state is saved"
ENDS = dict.fromkeys(TRAINS, _LAST) | {
    "prepare": "preparation stops after these rows",
    "evaluate": "the evaluation stops after these tokens",
    "generate": "sampling stops after these prompts, whose file is kept",
    "serve": "the server stops when its responses have ended",
}


def stopping(stage: str = "all"):
  """An event that SIGTERM, SIGHUP and Ctrl-C set; see `stop_signals`."""
  return stop_signals.stopping(ENDS.get(stage, ""))


def stages(
    config: ml_collections.ConfigDict,
    workdir: pathlib.Path,
    screen: Any,
    stop: threading.Event,
    *,
    stage: str = "all",
    step: str = "newest",
    logger: Sequence[Any] = (),
    devices: list | None = None,
    from_record: bool = False,
    earlier: Sequence[Any] = (),
) -> tuple["Session | None", Any]:
  """Runs a stage, or all of them.

  Args:
    config: checked; what a checkpoint decides is filled in.
    workdir: everything that the run writes.
    screen: a `Display`.
    stop: set by SIGTERM.
    stage: of `STAGES`.
    step: which checkpoint 'evaluate', 'export', 'generate' and 'serve' take,
      'evaluate' also several; the step that 'replay' repeats.
    logger: further loggers; see `monitoring.loggers`.
    devices: of jax that the run uses; None for all.
    from_record: the config is of the work directory, and what the run recorded
      there replaces model.path and its tokenizer; see `stages.starting_model`.
    earlier: evaluations of other work directories, to compare with.

  Returns:
    the session, and the parameters that training ended with, or all
    evaluations; None where a stage has none.

  Raises:
    ConfigError, RunError, DataError: what the user can mend, in one line.
    Stopped: by a signal; the state is saved.
  """
  import jax

  from rl_reason.checks import traced_functions
  from rl_reason.devices import compilation_cache
  from rl_reason.monitoring import watchdog
  from rl_reason.stages.session import Session

  with contextlib.ExitStack() as cleanup:
    cleanup.enter_context(compilation_cache.kept(screen.say))
    dog = watchdog.Watchdog(
        screen, config.log.stall_seconds, config.log.stall_ends
    )
    cleanup.callback(dog.close)
    recorded = workdir if from_record and stage in FINISHED else None
    place = None if recorded else _resolve(config, screen.say)
    mesh, sampling = _meshes(config, screen.say, stage, devices)
    if stage in TRAINS:
      traced_functions.check(config)
    if config.model.remat == "auto":
      fill_in = pkgutil.resolve_name(AUTOMATIC_REMAT)
      fill_in(config, workdir, mesh, screen.say)
    cleanup.enter_context(_locked_directory(workdir, screen.say, stage))
    if stage in (*TRAINS, "generate"):
      path_contents.record(config, place)
    files = _prepared(config, workdir, screen, stop, stage, recorded)
    if stage == "prepare":
      return None, None
    if stage not in TRAINS:
      config.log.loggers = ""  # nothing is trained that they could show
    session = Session(
        config,
        workdir,
        mesh,
        sampling,
        screen,
        stop,
        files,
        logger,
        recorded=recorded,
    )
    cleanup.callback(session.close)
    if stage in TRAINS:
      session.open()
      _begin(config, session, place)
    asked = dict(earlier=earlier) if stage == "evaluate" else {}
    with jax.set_mesh(mesh):
      run = pkgutil.resolve_name(STAGES[stage])
      found = run(config, session, stage if stage in TRAINS else step, **asked)
    if stage in TRAINS:
      _summarize(config, workdir, screen, stage)
    return session, found if stage in (*TRAINS, "evaluate") else None


def _resolve(c, say: Callable[[str], None]) -> pathlib.Path | None:
  """Fills the checkpoint's shape into the config; returns its directory."""
  from rl_reason.checks import model_directory
  from rl_reason.report import machine

  source = model_directory.resolve(c)
  name, place = c.model.path, source.path if source else None
  commit = machine.hub_commit(place)
  if commit and not config_facts.revision(c, name):
    say(
        f"model.path = {name!r}: the newest version on the hub;"
        f" hub.revisions = '{name}={commit}' keeps it"
    )
  return place


def _meshes(c, say: Callable[[str], None], stage: str, devices: list | None):
  """The devices that learn, and the devices that sample in RL."""
  import jax

  from rl_reason.devices import device_mesh

  machine_checks.devices(c, len(devices or jax.devices()), stage)
  mesh, sampling = device_mesh.make_meshes(**c.mesh, devices=devices)
  if mesh.size > 1:
    say(device_mesh.describe(mesh.axis_names, mesh.devices))
  if sampling != mesh:
    what = device_mesh.describe(sampling.axis_names, sampling.devices)
    say(f"rollout {what}")
  return mesh, sampling


def _locked_directory(
    workdir: pathlib.Path, say: Callable[[str], None], stage: str
) -> Any:
  """Makes the directory that a stage writes to; locks it while a run writes."""
  import jax

  written = workdir / FOLDERS.get(stage, "")
  written.mkdir(parents=True, exist_ok=True)
  writes = stage in (*TRAINS, "prepare", *FOLDERS)
  if jax.process_index() == 0 and writes:
    return contextlib.closing(run_directory.lock(written, say))
  return contextlib.nullcontext()


def _prepared(
    c,
    workdir: pathlib.Path,
    screen: Any,
    stop: threading.Event,
    stage: str,
    recorded: pathlib.Path | None,
) -> pathlib.Path | None:
  """Prepares the data files that the config names; returns their directory."""
  from rl_reason.stages import prepare, starting_model

  if stage == "prepare":
    return prepare.run(c, workdir, screen, stop)
  if c.task.name != tasks.FILES or stage in ("serve", "export"):
    return None
  if stage == "replay" and (workdir / "data" / "data.json").exists():
    return prepare.again(c, workdir, screen)
  if stage != "evaluate":
    return prepare.run(c, workdir, screen, stop)
  if run_directory.has_rows(workdir, c):
    return prepare.again(c, workdir, screen)
  c.data.train = ""  # the training data of the run stay as they are
  path = starting_model.tokenizer(recorded) or starting_model.model(recorded)
  return prepare.run(c, workdir / "evaluation", screen, stop, path)


def _begin(c, session: "Session", place: pathlib.Path | None) -> None:
  """The last checks of a run that trains, then the record of its start."""
  import jax

  from rl_reason.base import json_files
  from rl_reason.monitoring import run_log
  from rl_reason.report import head, machine
  from rl_reason.stages import observers, starting_model, trained_parameters

  source, tok, model = session.source, session.tok, session.model
  trained_parameters.check_classifiers(c, model=model, tok=tok)
  workdir, _, display, _ = session.output
  # Written only now: a run that cannot begin leaves the directory free.
  if jax.process_index() == 0:
    json_files.write_json(workdir / "config.json", config_lib.flat(c))
    own = tok if c.tokenizer or not source else None
    starting_model.record(workdir, source, own)
    about = machine.describe(place)
    json_files.write_json(workdir / machine.FILE, about)
    sizes = observers.model_sizes(c, model)
    json_files.write_json(workdir / head.FILE, sizes)
    for name in run_log.record_start(workdir):
      display.say(
          f"warning: {name} has changed since this run was started last: steps"
          " from here on use the new code, and earlier ones used the old; to"
          " train anew, name another --workdir"
      )


def _summarize(c, workdir: pathlib.Path, screen: Any, stage: str) -> None:
  """Says how the run ended, and writes its report.

  Raises:
    RunError: the run has learned nothing.
  """
  import jax

  from rl_reason.monitoring import health, run_log
  from rl_reason.report import page, scores

  screen.end_stage()
  if jax.process_index() != 0:
    return
  lines = run_log.read_metrics(workdir)
  fields = config_lib.flat(c)
  said = *scores.summary(workdir), *health.summary(lines, fields)
  for line in (*said, *page.doubtful_summary(workdir)):
    screen.say(line)
  screen.say(f"report: {page.write(workdir, screen.say)}")
  if stage == "all":
    screen.say(page.to_talk(workdir))
    health.check_run(lines, fields)
