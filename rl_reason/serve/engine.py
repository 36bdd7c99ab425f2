"""Continuous batching over requests, in one thread that owns the device.

Other threads submit jobs, one for each response, and receive tokens by a
callback. The engine assigns rows of the device's queue to jobs in the order of
submission, prefills a prompt once as long as it is cached, and reads the
results of a call while the next call runs.

Shapes here: R rows; U decode steps of one call; P tokens of a prefill; L tokens
of a text; K most likely tokens of a position.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from rl_reason.base.structs import Tree
from rl_reason.devices import sharding
from rl_reason.devices.compiled import CompiledOnce, Display
from rl_reason.rollout.sampling_filters import NONE, Filters
from rl_reason.serve import device_programs as programs_lib
from rl_reason.serve.device_programs import Programs, Rows

PREFILLS = 8  # maximum number of prefills between two bursts
IDLE = 0.1  # seconds between two calls of `alive` while idle
# Programs whose memory is quadratic in the length of a prompt. XLA on a CPU
# would compute all tiles of attention at once and keep their scores: a prefill
# of 2,048 tokens with 8 heads takes 181 MB, and 56 MB tile by tile.
LONG = ("prefill", "score")
FRUGAL = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
RATE_SECONDS = 10.0  # window of the mean token rate

# Deliver(ids, logps, finish): new tokens of a response, and the reason of its
# end: 'stop', 'length', 'error', or None if it continues.
Deliver = Callable[[list[int], list[float], str | None], None]


class Full(Exception):
  """The queue has no room for these jobs."""


class Closed(Exception):
  """The engine accepts no new jobs."""


@dataclasses.dataclass(eq=False)
class Job:
  """A response to sample.

  Attributes:
    prompt: ids of the prompt.
    deliver: receives the tokens, in the thread of the engine.
    seed: seed of the noise, along with prompt and sample.
    sample: number of the response among the responses to the prompt.
    temperature: 0 is greedy.
    filters: top-k, top-p, min-p and the repetition penalty.
    max_tokens: maximum tokens of the response, including EOS.
    own: whether the server itself asks; such jobs are not counted.
    cancelled: set by the submitter to stop sampling.
    length: number of tokens delivered.
  """

  prompt: tuple[int, ...]
  deliver: Deliver
  seed: int = 0
  sample: int = 0
  temperature: float = 1.0
  filters: Filters = NONE
  max_tokens: int = 1
  own: bool = False
  cancelled: bool = False
  length: int = 0


class Scores(NamedTuple):
  """Log-probs of a text of L tokens; row l is for token l + 1.

  Attributes:
    logps_L: log-prob of the token.
    top_logps_LK, top_ids_LK: log-probs and ids of the most likely tokens.
  """

  logps_L: np.ndarray
  top_logps_LK: np.ndarray
  top_ids_LK: np.ndarray


def prompt_id(prompt: tuple[int, ...]) -> int:
  """The id of a prompt for the noise, a hash of its tokens."""
  return zlib.crc32(np.asarray(prompt, np.int32).tobytes()) & 0x7FFFFFFF


class Engine:
  """Samples responses to requests.

  Attributes:
    programs: the device programs, with the limits of prompts and responses.
    max_waiting: maximum number of waiting jobs; further jobs are refused.
    prefills, hits: numbers of prompts that were prefilled, and found in cache.
    progressed: `time.monotonic()` of the last tokens from the device.

  Args:
    params: weights of the sampler.
    programs: see Attributes.
    mesh: the devices: one shard of the batch.
    display: where compile times are reported.
    max_waiting: see Attributes.
    beside: an engine with the same programs and other weights, which runs in
      the same thread; see `run`.
  """

  def __init__(
      self,
      params: Tree,
      programs: Programs,
      mesh: jax.sharding.Mesh,
      display: Display,
      max_waiting: int,
      beside: "Engine | None" = None,
  ):
    self.programs = programs
    self.prefills = self.hits = 0
    self._params, self._mesh, self._display = params, mesh, display
    self.max_waiting, self._closed = max_waiting, False
    self._compiled: dict[Any, CompiledOnce] = {}
    if beside and _form(beside._params) == _form(params):
      self._compiled = beside._compiled
    self._queue: Any = None  # on the device, as the slots
    self._slots: Any = None
    self._pending: Any = None  # the burst that was dispatched and not read
    # Shared with other threads.
    self._wake: threading.Condition
    self._wake = beside._wake if beside else threading.Condition()
    self._waiting: collections.deque[Job] = collections.deque()
    self._texts: collections.deque = collections.deque()  # to score
    # Used by the thread of the engine only.
    count, rows = programs.prompts, programs.rows
    self._jobs: dict[int, Job] = {}  # by row
    self._reach = 0  # number of slots up to the last that may be occupied
    self._free = list(range(rows))
    self._prompts: collections.OrderedDict[tuple[int, ...], int]
    self._prompts = collections.OrderedDict()  # -> number; least recent first
    self._pins = [0] * count  # rows that must still copy the prompt's cache
    self._rows = Rows(
        prompt_R=np.zeros(rows, np.int32),
        seed_R=np.zeros(rows, np.int32),
        id_R=np.zeros(rows, np.int32),
        sample_R=np.zeros(rows, np.int32),
        temperature_R=np.zeros(rows, np.float32),
        filters=Filters(
            np.zeros(rows, np.int32),
            *(np.zeros(rows, np.float32) for _ in NONE[1:]),
        ),
        limit_R=np.zeros(rows, np.int32),
    )
    self._tokens = 0
    self.progressed = time.monotonic()
    self._rates: collections.deque = collections.deque([(time.monotonic(), 0)])

  # --- for other threads -----------------------------------------------------

  def submit(self, jobs: list[Job]) -> None:
    """Queues all jobs, or none of them.

    Raises:
      Full: the queue has no room for the jobs.
      Closed: the engine has ended.
    """
    with self._wake:
      if self._closed:
        raise Closed
      if len(self._waiting) + len(jobs) > self.max_waiting:
        raise Full
      self._waiting.extend(jobs)
      self._wake.notify()

  def score(
      self, ids: tuple[int, ...], temperature: float
  ) -> concurrent.futures.Future:
    """The `Scores` of a text, computed between two bursts.

    Raises:
      Closed: the engine has ended.
    """
    future: concurrent.futures.Future = concurrent.futures.Future()
    with self._wake:
      if self._closed:
        raise Closed
      self._texts.append((ids, temperature, future))
      self._wake.notify()
    return future

  @property
  def weight_bytes(self) -> int:
    """Bytes of the weights."""
    return sum(x.nbytes for x in jax.tree.leaves(self._params))

  @property
  def waiting(self) -> int:
    """Number of jobs without a row."""
    return len(self._waiting)

  @property
  def running(self) -> int:
    """Number of jobs with a row."""
    return sum(not job.own for job in list(self._jobs.values()))

  @property
  def tokens(self) -> int:
    """Tokens sampled since the start."""
    return self._tokens

  def rate(self) -> float:
    """Tokens per second, over the last RATE_SECONDS."""
    then, before = self._rates[0]
    return (self._tokens - before) / max(time.monotonic() - then, 1e-3)

  # --- the engine's thread ---------------------------------------------------

  def run(self, alive: Callable[[], bool]) -> None:
    """As the function `run`, alone."""
    run([self], alive)

  @property
  def _idle(self) -> bool:
    busy = self._waiting or self._texts or self._jobs or self._pending
    return not busy

  def _turn(self) -> None:
    """Dispatches the next burst, then reads the last one while it runs."""
    with self._wake:
      texts = list(self._texts)
      self._texts.clear()
    for text in texts:
      self._score(*text)
    new = self._admit()
    dispatched = self._dispatch(new) if self._jobs else None
    if self._pending is not None:
      self._read(*self._pending)
    self._pending = dispatched
    self._note_rate()

  def _close(self) -> None:
    """Refuses new jobs; remaining ones end with 'error'."""
    with self._wake:
      self._closed = True
      texts, left = list(self._texts), [*self._jobs.values(), *self._waiting]
      self._waiting.clear()
      self._jobs.clear()
    for *_, future in texts:
      with contextlib.suppress(concurrent.futures.InvalidStateError):
        future.set_exception(Closed())
    for job in left:
      self._deliver(job, [], [], "error")

  def compile(self) -> None:
    """Compiles every program that a request may need, except `score`."""
    with jax.set_mesh(self._mesh):
      self._queue, self._slots = self._call("empty")
      for width in programs_lib.widths(self.programs.max_prompt):
        self._prefill((0,) * width, 0)
      self._prompts.clear()
      for width in (*self.programs.widths, self.programs.slots):
        jax.block_until_ready(self._decode([], width))

  def _call(self, name: str, *args, kind: Any = None, donated=(), **static):
    """Calls a program, which compiles at the first call of each kind."""
    if (name, kind) not in self._compiled:
      program = functools.partial(getattr(self.programs, name), **static)
      frugal = name in LONG and jax.default_backend() == "cpu"
      fn = jax.jit(
          program,
          donate_argnums=donated,
          compiler_options=FRUGAL if frugal else None,
      )
      label = f"server: {name}" + (f" of {kind}" if kind else "")
      self._compiled[name, kind] = CompiledOnce(label, fn, self._display)
    return self._compiled[name, kind](*args)

  def _put(self, tree: Tree) -> Tree:
    # Copies, since a device may read the arrays of the host in place, and
    # later.
    return sharding.put(self._mesh, jax.tree.map(np.array, tree))

  def _admit(self) -> list[int]:
    """Assigns free rows to waiting jobs; returns the rows in order."""
    new: list[int] = []
    budget = PREFILLS
    for row, job in self._jobs.items():
      if job.cancelled:
        self._rows.limit_R[row] = 0
    while self._free and self._waiting:
      job = self._waiting[0]
      if not job.cancelled:
        if job.prompt in self._prompts:
          self._prompts.move_to_end(job.prompt)
          self.hits += not job.own
        elif not budget or not self._prefill_new(job.prompt):
          break
        else:
          budget -= 1
          self.prefills += not job.own
        new.append(self._free.pop())
        self._set_row(new[-1], job)
      with self._wake:
        self._waiting.popleft()
    return new

  def _set_row(self, row: int, job: Job) -> None:
    rows = self._rows
    rows.prompt_R[row] = self._prompts[job.prompt]
    rows.seed_R[row] = np.int64(job.seed).astype(np.int32)
    rows.id_R[row] = prompt_id(job.prompt)
    rows.sample_R[row] = job.sample
    rows.temperature_R[row] = job.temperature
    for x_R, x in zip(rows.filters, job.filters, strict=True):
      x_R[row] = x
    rows.limit_R[row] = job.max_tokens
    self._jobs[row] = job
    self._pins[rows.prompt_R[row]] += 1

  def _prefill_new(self, prompt: tuple[int, ...]) -> bool:
    """Prefills a prompt in place of the least recently used one.

    Returns:
      whether a place was free: waiting rows may need all cached prompts.
    """
    if len(self._prompts) < self.programs.prompts:
      number = len(self._prompts)
    else:
      free = (x for x, n in self._prompts.items() if not self._pins[n])
      if (old := next(free, None)) is None:
        return False
      number = self._prompts.pop(old)
    self._prefill(prompt, number)
    self._prompts[prompt] = number
    return True

  def _prefill(self, prompt: tuple[int, ...], number: int) -> None:
    args = *self._padded(prompt, self.programs.max_prompt), np.int32(number)
    self._queue = self._call(
        "prefill",
        self._params,
        self._queue,
        *self._put(args),
        kind=f"{len(args[0])} tokens",
        donated=(1,),
    )

  def _padded(
      self, ids: tuple[int, ...], limit: int
  ) -> tuple[np.ndarray, np.int32]:
    """The ids, padded to the next of `widths`, and their number."""
    width = min(x for x in programs_lib.widths(limit) if x >= len(ids))
    tokens_P = np.full(width, self.programs.pad, np.int32)
    tokens_P[: len(ids)] = ids
    return tokens_P, np.int32(len(ids))

  def _dispatch(self, new: list[int]) -> tuple[Any, dict[int, Job]]:
    """Starts one burst; returns its `Progress` and the jobs that it decodes."""
    # Rows take the first free slots: while at most W rows run, all of them are
    # in the first W slots.
    self._reach = max(self._reach, len(self._jobs))
    widths = (*self.programs.widths, self.programs.slots)
    width = next((x for x in widths if x >= self._reach), widths[-1])
    progress = self._decode(new, width)
    return progress, dict(self._jobs)

  def _decode(self, new: list[int], width: int) -> Any:
    new_R = np.full(self.programs.rows, self.programs.rows, np.int32)
    new_R[: len(new)] = new
    self._queue, self._slots, progress = self._call(
        "decode",
        self._params,
        self._queue,
        self._slots,
        *self._put((self._rows, new_R, np.int32(len(new)))),
        kind=f"{width} slots",
        donated=(1, 2),
        width=width,
    )
    return progress

  def _read(self, progress, jobs: dict[int, Job]) -> None:
    """Delivers the tokens of one burst, and frees rows that ended."""
    p = jax.device_get(progress)
    self.progressed = time.monotonic()
    # The next burst, which already runs, has started the current rows.
    self._reach = max(int(p.occupied), len(self._jobs))
    for row, job in jobs.items():
      if self._jobs.get(row) is not job:
        continue  # it ended in the last burst
      count = int(p.lengths_R[row]) - job.length
      if count and not job.length:  # it has started, and copied its prompt
        self._pins[self._rows.prompt_R[row]] -= 1
      job.length += count
      self._tokens += 0 if job.own else count
      finish = None
      if p.ended_R[row]:
        finish = "length" if p.truncated_R[row] else "stop"
        del self._jobs[row]
        self._free.append(row)
      if count and not job.cancelled:
        ids = p.tokens_RU[row, :count].tolist()
        self._deliver(job, ids, p.logps_RU[row, :count].tolist(), finish)

  def _deliver(self, job: Job, ids, logps, finish) -> None:
    with contextlib.suppress(RuntimeError):  # the event loop has ended
      job.deliver(ids, logps, finish)

  def _score(self, ids: tuple[int, ...], temperature: float, future) -> None:
    if future.cancelled():
      return
    limit = self.programs.max_prompt + self.programs.max_tokens
    args = *self._padded(ids, limit), np.float32(temperature or 1)
    scores = self._call(
        "score", self._params, *self._put(args), kind=f"{len(args[0])} tokens"
    )
    with contextlib.suppress(concurrent.futures.InvalidStateError):
      future.set_result(
          Scores(*(x[: len(ids) - 1] for x in jax.device_get(scores)))
      )

  def _note_rate(self) -> None:
    now = time.monotonic()
    if now - self._rates[-1][0] > 1:
      self._rates.append((now, self._tokens))
      while now - self._rates[1][0] > RATE_SECONDS:
        self._rates.popleft()


def _form(params: Tree) -> tuple:
  """What a compiled program fixes of its weights."""
  leaves, structure = jax.tree.flatten(params)
  return structure, [(x.shape, x.dtype) for x in leaves]


def run(engines: Sequence[Engine], alive: Callable[[], bool]) -> None:
  """Serves until `alive`, which is called before each burst, returns False.

  Engines take turns in this thread, so that several devices always get their
  programs in one order. Remaining jobs, also after an exception, end with
  'error'.
  """
  first = engines[0]
  try:
    with jax.set_mesh(first._mesh):
      for engine in engines:
        if engine._queue is None:
          engine.compile()
      while alive():
        with first._wake:
          if all(engine._idle for engine in engines):
            first._wake.wait(IDLE)
        for engine in engines:
          engine._turn()
  finally:
    for engine in engines:
      engine._close()
