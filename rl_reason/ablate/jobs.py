"""Runs in processes of their own: a few at a time, resumable, pinned to cores.

`job.json` in a work directory says how far its job is, and `config.json`, which
`main` writes, of which config that is.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rl_reason import config as config_lib

MAIN = (sys.executable, "-m", "rl_reason.main")
HEARTBEAT = 60.0  # seconds between two lines about what is running


class Job(NamedTuple):
  """A row on a seed, or a base: a model that rows start from."""

  name: str
  workdir: pathlib.Path
  args: list[str]
  fields: dict[str, Any]  # its flat config; of a base, what it depends on
  needs: tuple[pathlib.Path, ...] = ()  # work directories of its bases
  row: str = ""  # '' of a base
  seed: int = 0

  def record(self) -> dict[str, Any]:
    """args, seconds and done; {} before the first start."""
    return self._json("job.json")

  def note(self, **known) -> None:
    """Changes parts of the record."""
    text = json.dumps(self.record() | known, indent=1)
    temporary = self.workdir / "job.json.tmp"
    temporary.write_text(text)
    temporary.replace(self.workdir / "job.json")

  def differs(self) -> list[str]:
    """What the config that ran has otherwise, as 'field: old -> new'."""
    new = json.loads(json.dumps(self.fields))
    old = self._json("config.json")
    old = {k: v for k, v in old.items() if self.row or k in new}
    steps = [x.get("rl.steps") for x in (old, new)]
    longer = [f"rl.steps: {steps[0]} -> {steps[1]}"] * (steps[0] != steps[1])
    return config_lib.differences(old, new) + longer

  def finished(self) -> bool:
    """Whether it has run to its end, and with this config."""
    return self.record().get("done", False) and not self.differs()

  def _json(self, name: str) -> dict[str, Any]:
    path = self.workdir / name
    return json.loads(path.read_text()) if path.exists() else {}

  def tail(self, count: int) -> list[str]:
    """The last lines of its output."""
    text = (self.workdir / "output.txt").read_text(errors="replace")
    return text.splitlines()[-count:]


class Child(NamedTuple):
  """A job under way."""

  job: Job
  process: subprocess.Popen
  cores: list[int]
  began: float


def run(
    jobs: list[Job],
    stop: threading.Event,
    *,
    at_once: int,
    cache: pathlib.Path,
    main: Sequence[str] = MAIN,
    landed: Callable[[], Any] = lambda: None,
) -> list[str]:
  """Runs the rows that are not finished, in order, and the bases they need.

  Args:
    jobs: bases before the rows that need them.
    stop: set it to end the children; they save.
    at_once: processes at a time, each on its own share of the cores.
    cache: of compiled programs, for all.
    main: the command that takes the arguments.
    landed: called after each row that ended well.

  Returns:
    names of the jobs that failed, or that want for a base that did.
  """
  rows = [x for x in jobs if x.row and not x.finished()]
  wanted = {base for row in rows for base in row.needs}
  bases = [x for x in jobs if x.workdir in wanted and not x.finished()]
  todo = [x for x in jobs if x in rows or x in bases]
  count = sum(bool(x.row) for x in jobs)
  say(
      f"{count} runs: {count - len(rows)} are done, {len(rows)} to do, with"
      f" {len(bases)} models to start from; {at_once} at a time"
  )
  environment = {
      "JAX_COMPILATION_CACHE_DIR": str(cache.absolute()),
      "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
      "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / at_once:.2f}",  # of a GPU
  } | os.environ
  cores = _cores()
  free = [cores[i::at_once] or cores for i in range(at_once)]
  running: list[Child] = []
  failed: dict[pathlib.Path, str] = {}
  spoke, stopping = time.monotonic(), False
  try:
    while todo or running:
      if stop.is_set() and not stopping:
        say("stopping: runs save their state")
        todo, stopping = [], True
        for child in running:
          child.process.terminate()
      for job in [x for x in todo if failed.keys() & set(x.needs)]:
        say(f"{job.name}: not run, for want of its base")
        failed[job.workdir] = job.name
        todo.remove(job)
      ahead = {x.workdir for x in [*todo, *(child.job for child in running)]}
      ready = [x for x in todo if not ahead & set(x.needs)]
      while free and ready:
        job = ready.pop(0)
        todo.remove(job)
        running.append(_start(job, free.pop(0), environment, main))
      time.sleep(0.1)
      for child in [x for x in running if x.process.poll() is not None]:
        running.remove(child)
        free.append(child.cores)
        good = _ended(child, stopping)
        if good and child.job.row:
          landed()
        elif not good and not stopping:
          failed[child.job.workdir] = child.job.name
      if time.monotonic() - spoke > HEARTBEAT:
        spoke = time.monotonic()
        for child in running:
          say(f"{child.job.name}: {''.join(child.job.tail(1))}")
  finally:
    for child in running:
      child.process.terminate()
    for child in running:
      child.process.wait()
  return list(failed.values())


def say(text: str) -> None:
  """A line, with the time of day."""
  print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def _cores() -> list[int]:
  """Those that this process may use; [] where processes cannot be pinned."""
  if not hasattr(os, "sched_getaffinity"):
    return []
  return sorted(os.sched_getaffinity(0))


@contextlib.contextmanager
def _pinned(cores: list[int]):
  """Processes that are started meanwhile stay on these cores."""
  before = _cores()
  if before:
    os.sched_setaffinity(0, cores)
  try:
    yield
  finally:
    if before:
      os.sched_setaffinity(0, before)


def _start(job: Job, cores: list[int], environment, main) -> Child:
  job.workdir.mkdir(parents=True, exist_ok=True)
  # Any row may have begun this base; it goes on with the config of that row.
  args = job.args if job.row else job.record().get("args", job.args)
  job.note(args=args, done=False)
  say(f"{job.name}: started")
  with _pinned(cores), (job.workdir / "output.txt").open("a") as out:
    process = subprocess.Popen(
        [*main, *args],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        env=environment,
        process_group=0,  # Ctrl-C reaches it once, through `run`
    )
  return Child(job, process, cores, time.monotonic())


def _ended(child: Child, stopping: bool) -> bool:
  """Notes and says how a job ended; True if well."""
  job, code = child.job, child.process.returncode
  took = time.monotonic() - child.began
  seconds = job.record().get("seconds", 0.0) + took  # over all its starts
  job.note(seconds=seconds, done=code == 0)
  if job.finished() or stopping:
    say(f"{job.name}: {'stopped' if code else 'done'} after {took:.0f} s")
    return code == 0
  if code == 0:
    what = "; ".join(job.differs())
    say(f"{job.name}: FAILED, a file was changed meanwhile ({what})")
    return False
  say(f"{job.name}: FAILED, exit code {code}; {job.workdir}/output.txt ends")
  for line in job.tail(6):
    print(f"  | {line}", flush=True)
  return False
