"""The stages of a run in one work directory, whoever starts it.

`main` and `api.train` check the config first, and import jax only then.
"""

import contextlib
import functools
import os
import pathlib
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_collections

from rl_reason import tasks
from rl_reason.base import config as config_lib
from rl_reason.checks import (
    content,
    facts,
    machine_checks,
    run_directory,
)

TRAINS = ("all", "sft", "value", "reward_model")


@contextlib.contextmanager
def stopping() -> Iterator[threading.Event]:
  """An event that SIGTERM, SIGHUP and Ctrl-C set; the second time means it.

  Signals reach the main thread only, elsewhere nothing sets the event. A
  SIGHUP that is ignored already, as under nohup, stays ignored.
  """
  stop, before = threading.Event(), {}

  def ask(number, _):
    stop.set()
    signal.signal(number, signal.SIG_DFL)

  if threading.current_thread() is threading.main_thread():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
      ignored = signal.getsignal(number) is signal.SIG_IGN
      if not (number == signal.SIGHUP and ignored):
        before[number] = signal.signal(number, ask)
  try:
    yield stop
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


@contextlib.contextmanager
def compilation_cache(say: Callable[[str], None]) -> Iterator[None]:
  """Caches programs beside those of the user: another run starts in seconds.

  They are native code, so that none is taken from a work directory, which may
  be a stranger's. A cache that the user names to JAX is left alone.
  """
  import jax
  from jax.experimental.compilation_cache import compilation_cache as cache

  if jax.config.jax_compilation_cache_dir:
    yield
    return
  try:
    place = pathlib.Path(os.environ.get("XDG_CACHE_HOME", ""))
    place = place if place.is_absolute() else pathlib.Path.home() / ".cache"
    place = place / "rl_reason" / "compiled"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=place).close()
    if place.stat().st_uid != os.geteuid():
      raise OSError(f"{place} is another user's")
  except (OSError, RuntimeError) as e:
    say(
        f"compiled programs are not kept ({e}): every start compiles them; set"
        " JAX_COMPILATION_CACHE_DIR to a directory of your own"
    )
    yield
    return
  fields = dict(
      jax_compilation_cache_dir=str(place),
      jax_persistent_cache_min_compile_time_secs=0.2,
  )
  before = {name: getattr(jax.config, name) for name in fields}
  for name, value in fields.items():
    jax.config.update(name, value)
  try:
    yield
  finally:
    for name, value in before.items():
      jax.config.update(name, value)
    cache.reset_cache()


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
) -> tuple[Any, Any]:
  """Runs a stage, or all of them.

  Args:
    config: checked; what a checkpoint decides is filled in.
    workdir: everything that the run writes.
    screen: a `Display`.
    stop: set by SIGTERM.
    stage: of `main.STAGES`.
    step: which checkpoint 'evaluate', 'export', 'generate' and
      'serve' take.
    logger: further loggers; see `monitoring.loggers`.
    devices: of jax that the run uses; None for all.

  Returns:
    the session, and the parameters that training ended with; None where a
    stage has none.

  Raises:
    ConfigError, RunError, DataError: what the user can mend, in one line.
    Stopped: by a signal; the state is saved.
  """
  import jax

  if config.rounds.count:
    from rl_reason.lab import rounds

    each = functools.partial(stages, logger=logger, devices=devices)
    with compilation_cache(screen.say):
      return rounds.run(config, workdir, screen, stop, each, stage)

  from rl_reason.base import json_files
  from rl_reason.checks import traced_functions
  from rl_reason.devices import device_mesh, topology
  from rl_reason.lab import automatic_remat, generate
  from rl_reason.monitoring import metrics, verdict, watchdog
  from rl_reason.report import machine_record, page, scores
  from rl_reason.stages import (
      classifier,
      evaluate,
      export,
      initial_state,
      prepare,
      resumed,
      reward_model,
      rl,
      sft,
      value,
  )
  from rl_reason.stages.session import open_session, resolve

  with contextlib.ExitStack() as cleanup:
    cleanup.enter_context(compilation_cache(screen.say))
    dog = watchdog.Watchdog(
        screen, config.log.stall_seconds, config.log.stall_ends
    )
    cleanup.callback(dog.close)
    # Fill in the shape of the checkpoint, check it, and prepare data files.
    source = resolve(config)
    name, place = config.model.path, source.path if source else None
    commit = machine_record.hub_commit(place)
    if commit and not facts.revision(config, name):
      screen.say(
          f"model.path = {name!r}: the newest version on the hub;"
          f" hub.revisions = '{name}={commit}' keeps it"
      )
    machine_checks.devices(config, len(devices or jax.devices()), stage)
    mesh, sampling = device_mesh.make_meshes(**config.mesh, devices=devices)
    if mesh.size > 1:
      screen.say(topology.describe(mesh.axis_names, mesh.devices))
    if sampling != mesh:
      what = topology.describe(sampling.axis_names, sampling.devices)
      screen.say(f"rollout {what}")
    if config.model.remat == "auto":
      automatic_remat.fill_in(config, workdir, mesh, screen.say)
    # A run may be trained while samples of its checkpoints are written.
    written = workdir / "generated" if stage == "generate" else workdir
    written.mkdir(parents=True, exist_ok=True)
    if jax.process_index() == 0 and stage in (*TRAINS, "prepare", "generate"):
      lock = run_directory.lock(written, screen.say)
      cleanup.callback(lock.close)
    content.record(config, place)
    if stage == "prepare":
      prepare.run(config, workdir, screen, stop)
      return None, None
    files = None
    if config.task.name == tasks.FILES and stage != "serve":
      directory = workdir
      if stage == "evaluate":  # the training data of the run stay as they are
        config.data.train, directory = "", workdir / "evaluation"
      files = prepare.run(config, directory, screen, stop)
    if stage in ("generate", "serve"):
      config.log.loggers = ""  # nothing is trained that they could show
    session = open_session(
        config, workdir, mesh, screen, stop, files, logger, sampling
    )
    cleanup.callback(session.log.close)
    cleanup.callback(session.rewards.close)
    if session.environments is not None:
      cleanup.callback(session.environments.close)
    if stage in TRAINS:
      classifier.check(session)
      traced_functions.check(config)
    # Written only now: a run that cannot begin leaves the directory free.
    if jax.process_index() == 0 and stage in TRAINS:
      json_files.write_json(workdir / "config.json", config_lib.flat(config))
      about = machine_record.describe(place)
      json_files.write_json(workdir / "environment.json", about)
      machine_record.record_start(workdir)

    params = None
    with jax.set_mesh(session.mesh):
      if stage == "evaluate":
        evaluate.run(session, step)
      elif stage == "export":
        export.run(session, step)
      elif stage == "generate":
        generate.run(session, step)
        return session, None
      elif stage == "serve":
        from rl_reason.serve import server as serve  # of an extra

        serve.run(session, step)
        return session, None
      else:
        # SFT, then a reward model; or value pretraining, then RL.
        found = resumed.start(session) if stage == "all" else None
        params, critic_params, counters = found or (None, None, None)
        if found is None:
          params = sft.run(session)
          if stage == "reward_model":
            reward_model.run(session, params)
          elif stage != "sft" and facts.has_critic(config):
            critic_params, counters = value.run(session, params)
        if stage == "all" and params is not None:
          if config.lora.rank:  # under the same name, to free the fp32 copy
            params = initial_state.frozen_base(params, session.cfg.dtype)
          params = rl.train(session, params, critic_params, counters)
    screen.end_stage()
    if jax.process_index() == 0:
      lines = metrics.read_metrics(workdir)
      fields = config_lib.flat(config)
      for line in [*scores.summary(workdir), *verdict.summary(lines, fields)]:
        screen.say(line)
      for line in page.doubtful_summary(workdir):
        screen.say(line)
      screen.say(f"report: {page.write(workdir)}")
      if stage == "all":
        verdict.of_run(lines, fields)
    return session, params
