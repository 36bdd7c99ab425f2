"""Runs training commands in processes: several at a time, resumable, pinned.

`job.json` in a work directory records the progress of its job; `config.json`,
which `rl_reason.main` writes, records the config of the run.
"""

import atexit
import contextlib
import functools
import itertools
import json
import os
import pathlib
import queue
import select
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import IO, Any, NamedTuple

from rl_reason.base import errors, resume_rules
from rl_reason.monitoring import stop_signals

MAIN = (sys.executable, "-m", "rl_reason.main")
WORKER = (sys.executable, "-m", "rl_reason.worker")
# Replaces itself by a command that gets SIGTERM when its parent, the process of
# the given id, is killed. PR_SET_PDEATHSIG survives exec.
WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
  os.execvp(sys.argv[2], sys.argv[2:])
"""


class Job(NamedTuple):
  """One run: a row on one seed, or a base that rows share.

  Attributes:
    name: for messages.
    workdir: work directory.
    args: of `rl_reason.main`.
    fields: flat config; for a base, the fields that it depends on.
    bases: work directories of the jobs that this job needs.
    row: name of the row; '' for a base.
    seed: of the run.
  """

  name: str
  workdir: pathlib.Path
  args: list[str]
  fields: dict[str, Any]
  bases: tuple[pathlib.Path, ...] = ()
  row: str = ""
  seed: int = 0

  def record(self) -> dict[str, Any]:
    """Returns args, seconds and done; {} before the first start."""
    return self._json("job.json")

  def update_record(self, **changes) -> None:
    """Changes entries of the record atomically."""
    temporary = self.workdir / "job.json.tmp"
    temporary.write_text(json.dumps(self.record() | changes, indent=1))
    temporary.replace(self.workdir / "job.json")

  def differences(self) -> list[str]:
    """Fields that differ from the config of the run: 'field: old -> new'."""
    new = json.loads(json.dumps(self.fields))
    old = self._json("config.json")
    old = {k: v for k, v in old.items() if self.row or k in new}
    found = resume_rules.differences(old, new)
    steps = "rl.steps"  # a finished run may be made longer
    if steps in old and old[steps] != new.get(steps):
      found.append(f"{steps}: {old[steps]} -> {new.get(steps)}")
    return found

  def finished(self) -> bool:
    """Whether the job has run to its end with this config."""
    return self.record().get("done", False) and not self.differences()

  def _json(self, name: str) -> dict[str, Any]:
    path = self.workdir / name
    return json.loads(path.read_text()) if path.exists() else {}


def run(
    jobs: list[Job],
    stop: threading.Event,
    *,
    parallel: int,
    main: Sequence[str] = MAIN,
    on_finished: Callable[[], Any] = lambda: None,
    devices: Sequence[str] = (),
    held: IO[str] | None = None,
    environment: Mapping[str, str] = types.MappingProxyType({}),
    runs_per_process: int = 1,
) -> list[str]:
  """Runs the unfinished rows in order, and the bases that they need.

  Bases precede the rows that need them; a base may itself be a row.

  Args:
    jobs: rows, and bases that they may need.
    stop: ends the runs, which save their state.
    parallel: number of processes at a time, each on its share of the cores and
      of the devices.
    main: the command that makes a run of its arguments.
    on_finished: called after each row that ended without an error.
    devices: indices of GPUs or TPU chips; see `divide`. () shows all of them to
      every process.
    held: a lock that runs inherit: it is released when the last run has ended.
    environment: environment variables of the runs.
    runs_per_process: with more than 1, a process (`worker`) makes so many runs,
      one after another, with the same numbers: it imports JAX once, and traces
      and loads a program once where runs share it. `main` has no effect then.

  Returns:
    names of the jobs that failed or whose base failed.
  """
  rows = [x for x in jobs if x.row and not x.finished()]
  todo = len(rows)
  needed = {base for row in rows for base in row.bases}
  bases = [x for x in jobs if x.workdir in needed and not x.finished()]
  models = sum(not x.row for x in bases)
  rows = [x for x in rows if x not in bases]
  count = sum(bool(x.row) for x in jobs)
  say(
      f"{count} runs: {count - todo} are done, {todo} to do"
      + (f", with {models} base models" if models else "")
      + f"; {parallel} at a time"
  )
  shared = -(-parallel // len(devices)) if devices else parallel
  variables = {
      "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / shared:.2f}",  # of a GPU
      **os.environ,
      **environment,
  }
  affinity = getattr(os, "sched_getaffinity", None)  # Linux has it
  cores = sorted(affinity(0)) if affinity else []
  groups = divide(devices, parallel) if devices else [()] * parallel
  local, shares = threading.local(), queue.SimpleQueue()
  workers: list[_Worker] = []
  for i, group in enumerate(groups):
    shares.put((cores[i::parallel] or cores, visible(group, i)))
  lock = threading.Lock()

  def pin() -> None:
    # Processes inherit the affinity of the thread that starts them.
    own, seen = shares.get()
    seen = variables | seen
    if cores:
      os.sched_setaffinity(0, own)
    local.make = functools.partial(_run_alone, main, seen, held)
    if runs_per_process > 1:
      workers.append(_Worker(seen, held, runs_per_process))
      local.make = workers[-1].make

  def work(job: Job) -> bool:
    if not all(results[x].result() for x in job.bases if x in results):
      if not stop.is_set():
        say(f"{job.name}: not run, because its base failed")
      return False
    good = not stop.is_set() and _run(job, stop, local.make)
    if good and job.row:
      with lock:
        on_finished()
    return good

  # The pool is first in, first out: a base has started before a thread waits
  # for it.
  order = ordered(bases, rows, parallel)
  results: dict[pathlib.Path, futures.Future] = {}
  with futures.ThreadPoolExecutor(parallel, initializer=pin) as pool:
    for job in order:
      results[job.workdir] = pool.submit(work, job)
  for worker in workers:
    worker.close()
  if stop.is_set():
    return []
  return [x.name for x in order if not results[x.workdir].result()]


def ordered(bases: Sequence[Job], rows: Sequence[Job], ahead: int) -> list[Job]:
  """Bases and rows in the order in which they start.

  The rows of a seed start after its bases and those of the next `ahead` - 1
  seeds. Bases of bases start one seed earlier still. So few processes wait for
  a base, and a study that is cut short has whole seeds.

  Args:
    bases: jobs that rows, or other bases, need.
    rows: the other jobs.
    ahead: number of seeds, at least 1.
  """
  places = {x.workdir: x for x in bases}
  seeds: dict[int, list[Job]] = {}
  for row in rows:
    seeds.setdefault(row.seed, []).append(row)

  def needed(job: Job) -> list[Job]:
    return [places[x] for x in job.bases if x in places]

  def depth(job: Job) -> int:
    return max((1 + depth(x) for x in needed(job)), default=0)

  deepest = max(map(depth, bases), default=0)
  order: dict[pathlib.Path, Job] = {}
  of_seeds = list(seeds.values())
  for n, group in enumerate(of_seeds):
    for level in range(deepest + 1):
      window = of_seeds[n : n + ahead + deepest - level]
      found = [x for row in itertools.chain(*window) for x in needed(row)]
      for job in found:  # grows by the bases of bases
        found += needed(job)
      for job in found:
        if depth(job) == level:
          order.setdefault(job.workdir, job)
    for job in group:
      order.setdefault(job.workdir, job)
  for base in sorted(bases, key=depth):  # of no row: they are rows themselves
    order.setdefault(base.workdir, base)
  return [*order.values()]


# Topology of the chips of a TPU process by their number, for libtpu.
BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1"}


def divide(devices: Sequence[str], parallel: int) -> list[tuple[str, ...]]:
  """Divides accelerators among processes, which share them if they are few.

  Args:
    devices: indices of GPUs or TPU chips.
    parallel: number of processes.

  Returns:
    the accelerators of each process: adjacent, and the same number for each.

  Raises:
    ConfigError: the accelerators cannot be divided evenly.
  """
  count, rest = divmod(len(devices), parallel)
  if not count and parallel % len(devices) == 0:
    return [(devices[i % len(devices)],) for i in range(parallel)]
  if rest or not count:
    raise errors.ConfigError(
        f"--devices = {','.join(devices)}: {len(devices)} devices cannot be"
        f" divided evenly among --jobs = {parallel}"
    )
  return [tuple(devices[i : i + count]) for i in range(0, len(devices), count)]


def visible(devices: Sequence[str], index: int = 0) -> dict[str, str]:
  """Variables of CUDA and libtpu that limit a process to some accelerators.

  `devices` are indices of GPUs or TPU chips, () for all; `index` is the number
  of the process on this machine.
  """
  if not devices:
    return {}
  names, port = ",".join(devices), str(8476 + index)
  tpu = dict(
      TPU_VISIBLE_CHIPS=names,
      TPU_CHIPS_PER_PROCESS_BOUNDS=BOUNDS.get(len(devices), ""),
      TPU_PROCESS_BOUNDS="1,1,1",
      TPU_PROCESS_ADDRESSES=f"localhost:{port}",
      TPU_PROCESS_PORT=port,
      CLOUD_TPU_TASK_ID="0",
      ALLOW_MULTIPLE_LIBTPU_LOAD="1",
  )
  return dict(CUDA_VISIBLE_DEVICES=names) | (
      tpu if len(devices) in BOUNDS else {}
  )


def arguments(
    config: str, fields: Mapping[str, Any], workdir: pathlib.Path, *flags: str
) -> list[str]:
  """Returns the arguments of `rl_reason.main` for a run.

  Args:
    config: file of the config.
    fields: {field: value} that differ from it.
    workdir: of the run.
    *flags: further ones.
  """
  changes = [
      f"--config.{name}={tuple(x) if isinstance(x, list) else x}"
      for name, x in fields.items()
  ]
  return [f"--config={config}", *changes, f"--workdir={workdir}", *flags]


def stop_on_signals() -> threading.Event:
  """Returns an event that SIGTERM and Ctrl-C set; a second one ends at once."""
  until_the_end = stop_signals.stopping(
      "no further run starts, and running ones stop after their steps"
  )
  atexit.register(until_the_end.__exit__, None, None, None)
  return until_the_end.__enter__()


def say(text: str) -> None:
  """Prints a line with the time of day."""
  print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def _run(
    job: Job,
    stop: threading.Event,
    make: Callable[
        [list[str], pathlib.Path, threading.Event], tuple[int, bool]
    ],
) -> bool:
  """Runs one job to its end; returns whether it succeeded.

  `make` takes arguments, a file for the output, and `stop`; it returns the exit
  code, and whether `stop` ended the run.
  """
  job.workdir.mkdir(parents=True, exist_ok=True)
  # A base that was started for another row resumes with its own arguments.
  args = job.args if job.row else job.record().get("args", job.args)
  job.update_record(args=args, done=False)
  say(f"{job.name}: started")
  start, output = time.monotonic(), job.workdir / "output.txt"
  code, stopped = make(args, output, stop)
  took = time.monotonic() - start
  seconds = job.record().get("seconds", 0.0) + took  # of all starts
  job.update_record(seconds=seconds, done=code == 0)
  if job.finished() or stopped:
    say(f"{job.name}: {'stopped' if code else 'done'} after {took:.0f} s")
  elif code == 0:
    what = "; ".join(job.differences())
    say(f"{job.name}: FAILED, its config changed during the run ({what})")
  else:
    say(f"{job.name}: FAILED, exit code {code}; {output} ends")
    for line in output.read_text(errors="replace").splitlines()[-6:]:
      print(f"  | {line}", flush=True)
  return code == 0 and (job.finished() or stopped)


def _start(command: Sequence[str], environment, held, **streams):
  """Starts a process that ends with this one."""
  guard = [sys.executable, "-IS", "-c", WITH_PARENT, str(os.getpid())]
  return subprocess.Popen(
      [*(guard if sys.platform == "linux" else []), *command],
      env=environment,
      pass_fds=[held.fileno()] if held else [],
      process_group=0,  # Ctrl-C reaches the run only through `stop`
      **streams,
  )


def _run_alone(
    main, environment, held, args: list[str], output: pathlib.Path, stop
) -> tuple[int, bool]:
  """Makes a run in a process of its own; see `_run`."""
  with output.open("a") as out:
    process = _start(
        [*main, *args],
        environment,
        held,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
    )
  while process.poll() is None and not stop.wait(0.1):
    pass
  if stopped := process.poll() is None:
    process.terminate()
  return process.wait(), stopped


class _Worker:
  """A process of `worker`, which makes several runs, one after another.

  Args:
    environment: environment variables.
    held: a lock that the process inherits.
    most: number of runs after which another process takes over, since compiled
      programs stay in memory.
  """

  def __init__(self, environment, held, most: int):
    self._start = functools.partial(_start, WORKER, environment, held)
    self._most, self._left, self._process = most, 0, None

  def make(
      self, args: list[str], output: pathlib.Path, stop: threading.Event
  ) -> tuple[int, bool]:
    """Makes a run; see `_run`."""
    if not self._left:
      self.close()
      self._process = self._start(
          stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
      )
      self._left = self._most
    self._left -= 1
    process = self._process
    job = json.dumps(dict(args=args, output=str(output))) + "\n"
    with contextlib.suppress(BrokenPipeError):  # `wait` has its exit code
      process.stdin.write(job.encode())
      process.stdin.flush()
    answered, stopped = [], False
    while not answered and not stopped:
      answered, *_ = select.select([process.stdout], [], [], 0.1)
      stopped = stop.is_set() and not answered
    if stopped:
      process.terminate()
    answer = process.stdout.readline()
    if not answer or stopped:  # the process has ended, or will
      self._left = 0
    return int(answer) if answer else process.wait(), stopped

  def close(self) -> None:
    """Ends the process."""
    if self._process is not None:
      self._process.stdin.close()
      self._process.wait()
      self._process.stdout.close()
