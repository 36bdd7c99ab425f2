"""What the user sees while it works: nothing is silent for long.

In a terminal a progress line that renews itself; elsewhere plain lines. A
thread writes a heartbeat while the main thread is busy (compiling, say).
"""

import sys
import threading
import time

import rich.console
import rich.markup
import rich.progress
import rich.table

HEARTBEAT = 8.0  # seconds of silence before a plain line is written


def clock(seconds: float) -> str:
  """m:ss."""
  return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Display:
  """Progress of the stages; `active=False` (other processes) is silent."""

  def __init__(self, active: bool = True):
    self._console = rich.console.Console(
        quiet=not active, highlight=False, soft_wrap=True
    )
    self._live = active and self._console.is_terminal
    self._active = active
    self._began = self._spoke = time.monotonic()
    self._doing, self._fields = "starting", ""
    self._stage, self._step, self._total = "", 0, 0
    self._stage_began, self._stage_first = self._began, 0
    self._bar: rich.progress.Progress | None = None
    self._end = threading.Event()
    threading.Thread(target=self._heartbeat, daemon=True).start()

  def say(self, text: str) -> None:
    """A line of its own."""
    self._spoke = time.monotonic()
    stamp = clock(self._spoke - self._began)
    self._console.print(f"[{stamp}] {text}", markup=False)
    sys.stdout.flush()

  def doing(self, text: str) -> None:
    """What the main thread is about to be busy with."""
    self._doing = text
    self._render()

  def stage(self, name: str, total: int, first: int = 0) -> None:
    """A stage of `total` steps begins, at step `first`."""
    self.end_stage()
    self._stage, self._step, self._total = name, first, total
    self._stage_began, self._stage_first = time.monotonic(), first
    self._fields = ""
    if self._live:
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
      self._task = self._bar.add_task(self._text(), total=total)

  def step(self, step: int, **fields) -> None:
    """A step is done; fields are shown beside it."""
    self._step, self._doing = step, ""
    done = step - self._stage_first
    spent = time.monotonic() - self._stage_began
    if done > 0:
      fields["left"] = clock(spent / done * (self._total - step))
    self._fields = "  ".join(
        f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}"
        for k, v in fields.items()
    )
    self._render()

  def table(self, title: str, columns: list[str], rows: list[list[str]]):
    """A small table, model text shown as it is."""
    table = rich.table.Table(title=title, title_justify="left")
    for name in columns:
      table.add_column(name, overflow="fold")
    for row in rows:
      table.add_row(*(rich.markup.escape(cell) for cell in row))
    self._spoke = time.monotonic()
    self._console.print(table)

  def end_stage(self) -> None:
    """Takes the progress line away."""
    if self._bar:
      self._bar.stop()
      self._bar = None

  def close(self) -> None:
    """Ends the heartbeat."""
    self.end_stage()
    self._end.set()

  def _text(self) -> str:
    at = f"{self._stage} {self._step}/{self._total}" if self._stage else ""
    return "  ".join(x for x in (at, self._fields, self._doing) if x)

  def _render(self) -> None:
    if self._bar:
      self._bar.update(
          self._task, completed=self._step, description=self._text()
      )
    elif time.monotonic() - self._spoke > HEARTBEAT:
      self._beat()

  def _beat(self) -> None:
    self.say(self._text())

  def _heartbeat(self) -> None:
    while not self._end.wait(1):
      if not self._bar and time.monotonic() - self._spoke > HEARTBEAT:
        if self._active:
          self._beat()
