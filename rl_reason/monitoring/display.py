"""Progress on the screen: a progress bar in a terminal, else plain lines.

A thread writes a heartbeat while the main thread is busy, for instance with
compilation, so that no wait is silent. With `output_guard.guarded`, a lost
screen does not stop the run.
"""

import contextlib
import re
import threading
import time
from collections.abc import Iterator

import rich.console
import rich.markup
import rich.progress
import rich.table

from rl_reason.monitoring import output_guard

HEARTBEAT = 8.0  # seconds without output before a plain line is written


def clock(seconds: float) -> str:
  """Seconds as m:ss."""
  return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


# Control characters, which could move the cursor, clear the screen or set the
# title; marks that reverse the direction of text; surrogates.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
  """A text with escaped control characters, which no terminal executes."""
  return _CONTROL.sub(
      lambda found: found[0].encode("unicode_escape").decode(), text
  )


def excerpt(text: str, size: int = 160, lines: int = 4) -> str:
  """The head and the tail of a long text, and the size of the gap.

  Head and tail have at most `size` characters and `lines` lines each.
  """
  rows = text.split("\n")
  head, tail = "\n".join(rows[:lines])[:size], "\n".join(rows[-lines:])[-size:]
  left_out = len(text) - len(head) - len(tail)
  if left_out <= 0:
    return text
  return f"{head}\n[... {left_out:,} characters ...]\n{tail}"


class Display:
  """Progress of the stages; silent unless `active`, as in other processes."""

  def __init__(self, active: bool = True):
    self._console = rich.console.Console(
        file=output_guard.stream("stdout"),
        quiet=not active,
        highlight=False,
        soft_wrap=True,
    )
    self._active = active
    self._start = self._last_line = time.monotonic()
    self._activity, self._fields = "starting", ""
    self.progressed = self._start  # the last time that the run made progress
    self._stage, self._step, self._total = "", 0, 0
    self._stage_start, self._stage_first = self._start, 0
    self._compiling: list[str] = []  # programs, of several threads
    self._compiled = 0.0  # seconds of the stage in which programs compiled
    self._bar: rich.progress.Progress | None = None
    self._end = threading.Event()
    if active:
      threading.Thread(target=self._heartbeat, daemon=True).start()

  def say(self, text: str) -> None:
    """Prints a line with the time since the start."""
    self._last_line = time.monotonic()
    stamp = clock(self._last_line - self._start)
    self._console.print(f"[{stamp}] {printable(text)}", markup=False)

  def doing(self, text: str) -> None:
    """Shows what the main thread is about to do."""
    self._activity, self.progressed = text, time.monotonic()
    self._render()

  def progress(self) -> None:
    """Notes that the run made progress; the screen stays as it is."""
    self.progressed = time.monotonic()

  @property
  def compiles(self) -> bool:
    """Whether a program compiles."""
    return bool(self._compiling)

  @contextlib.contextmanager
  def compiling(self, name: str) -> Iterator[None]:
    """Shows a program while it compiles, which is no part of a step."""
    start, others = time.monotonic(), self.compiles
    self._compiling.append(name)
    self.progress()
    self._render()
    try:
      yield
    finally:
      self._compiling.remove(name)
      self.progress()
      if not others:  # what compiles at the same time counts once
        self._compiled += self.progressed - start

  def stage(self, name: str, total: int, first: int = 0) -> None:
    """Starts a stage of `total` steps at step `first`."""
    self.end_stage()
    self._stage, self._step, self._total = name, first, total
    self._stage_first = first
    self.steps_begin(first)
    self._fields = ""
    if self._active and self._console.is_terminal:
      rest = rich.table.Column(no_wrap=True, overflow="ellipsis", ratio=1)
      self._bar = rich.progress.Progress(
          rich.progress.BarColumn(12),
          rich.progress.TextColumn(
              "{task.description}", table_column=rest, markup=False
          ),
          console=self._console,
          expand=True,
      )
      self._bar.start()
      self._task = self._bar.add_task(self.where(), total=total)

  def steps_begin(self, step: int) -> None:
    """The steps take their time from now on, if the stage has done none yet."""
    if step == self._stage_first:
      self._stage_start, self._compiled = time.monotonic(), 0.0

  def step(self, step: int, **fields) -> None:
    """Shows a finished step with its fields and the remaining time."""
    self._step, self._activity = step, ""
    self.progress()
    done = step - self._stage_first
    spent = self.progressed - self._stage_start - self._compiled
    if done > 0:
      fields["left"] = clock(spent / done * (self._total - step))
    self._fields = "  ".join(
        f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}"
        for k, v in fields.items()
    )
    self._render()

  def table(self, title: str, columns: list[str], rows: list[list[str]]):
    """Prints a small table, with the head and the tail of long texts.

    Text of a model is never interpreted as markup.
    """
    table = rich.table.Table(title=title, title_justify="left")
    for name in columns:
      table.add_column(name, overflow="fold")
    for row in rows:
      cells = (excerpt(printable(cell)) for cell in row)
      table.add_row(*map(rich.markup.escape, cells))
    self._last_line = time.monotonic()
    self._console.print(table)

  def end_stage(self) -> None:
    """Removes the progress bar."""
    bar, self._bar = self._bar, None
    if bar:
      bar.stop()

  def close(self) -> None:
    """Ends the heartbeat."""
    self.end_stage()
    self._end.set()

  def where(self) -> str:
    """The stage, its step, and what the main thread does."""
    at = f"{self._stage} {self._step}/{self._total}" if self._stage else ""
    compiling = [f"compiling {name}" for name in self._compiling[-1:]]
    parts = (at, self._fields, *(compiling or [self._activity]))
    return printable("  ".join(x for x in parts if x))

  def _render(self) -> None:
    if bar := self._bar:
      bar.update(self._task, completed=self._step, description=self.where())
    elif time.monotonic() - self._last_line > HEARTBEAT:
      self.say(self.where())

  def _heartbeat(self) -> None:
    while not self._end.wait(1):
      if not self._console.is_terminal:  # it was closed
        self.end_stage()
      if not self._bar and time.monotonic() - self._last_line > HEARTBEAT:
        self.say(self.where())
