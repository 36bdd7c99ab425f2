"""Standard output and standard error cannot stop a run.

The reader of standard output may end (`| head -1`) or stop reading, its disk
may be full, its terminal may be closed, or the stream may not be open (`>&-`).
Inside `guarded`, `sys.stdout` and `sys.stderr` neither raise exceptions nor
block for long. Lost text goes to WORKDIR/screen.txt, after a line with the
reason. Code of the user may close these streams, or put others in their places:
what this package writes goes to `stream`, as before.
"""

import contextlib
import io
import os
import pathlib
import select
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

FILE = "screen.txt"
PATIENCE = 10.0  # seconds without a reader before text is lost
KEPT = 1 << 16  # bytes kept while the directory is missing or full


class Lost:
  """Text that could not be written to the screen.

  Attributes:
    directory: of the file `FILE`, to which the text is appended; None: not
      known yet.
  """

  def __init__(self, directory: pathlib.Path | None = None):
    self.directory = directory
    self._text, self._lock = b"", threading.Lock()

  def add(self, text: bytes) -> None:
    """Appends text to the file; keeps the end of what cannot be written."""
    with self._lock:
      self._text = (self._text + text)[-KEPT:]
      if self.directory is not None:
        with contextlib.suppress(OSError):
          with (self.directory / FILE).open("ab", buffering=0) as f:
            f.write(self._text)
          self._text = b""


class _Stream(io.RawIOBase):
  """A stream of bytes whose writes always succeed.

  Args:
    name: as the user knows it.
    number: the file descriptor; None: the stream was closed at the start.
    lost: receives the text that cannot be written.
  """

  def __init__(self, name: str, number: int | None, lost: Lost):
    self._name, self._number, self._lost = name, number, lost
    self._why = ""  # why the last write failed

  def writable(self) -> bool:
    return True

  def fileno(self) -> int:
    if self._number is None:
      raise io.UnsupportedOperation("fileno")
    return self._number

  def isatty(self) -> bool:
    return (
        self._number is not None and not self._why and os.isatty(self._number)
    )

  def write(self, data) -> int:
    # A pipe that is ready has space for PIPE_BUF bytes: no write blocks.
    part = bytes(data[: select.PIPE_BUF])
    written, why = self._write(part)
    if why:
      if why != self._why:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        line = f"[{stamp}] {self._name} takes no text ({why}). It follows here:"
        self._lost.add(f"{line}\n".encode())
      self._lost.add(part)
    self._why = why
    return written

  def _write(self, part: bytes) -> tuple[int, str]:
    """The number of bytes handled, and why they were lost; '' if written."""
    if self._number is None:
      return len(part), "it is closed"
    try:
      patience = 0.0 if self._why else PATIENCE
      if select.select([], [self._number], [], patience)[1]:
        return os.write(self._number, part), ""
      return len(part), "its reader has stopped reading"
    except OSError as e:
      return len(part), e.strerror or type(e).__name__


class _Bytes(io.BufferedWriter):
  """A buffer that stays open, whatever the code of the user closes."""

  def close(self) -> None:
    self.flush()


class _Text(io.TextIOWrapper):
  """As `_Bytes`, for text: `sys.stdout.close()` ends nothing."""

  def close(self) -> None:
    self.flush()


@contextlib.contextmanager
def guarded(directory: pathlib.Path | None = None) -> Iterator[Lost]:
  """Guards `sys.stdout` and `sys.stderr`, unless they were replaced.

  Args:
    directory: of the file; None: to be set later.

  Yields:
    the receiver of lost text.
  """
  # A file of the run would take the descriptor of a closed stream, and receive
  # what libraries write to standard error.
  while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
    os.set_inheritable(number, True)
  os.close(number)
  lost, before = Lost(directory), (sys.stdout, sys.stderr)
  sys.stdout = _guard("standard output", sys.stdout, sys.__stdout__, lost)
  sys.stderr = _guard("standard error", sys.stderr, sys.__stderr__, lost)
  own = dict(stdout=sys.stdout, stderr=sys.stderr)
  _streams.append(own)
  try:
    yield lost
  finally:
    for one in own.values():
      with contextlib.suppress(OSError, ValueError):
        one.flush()
    _streams.pop()
    sys.stdout, sys.stderr = before


_streams: list[dict[str, TextIO]] = []  # of each `guarded` that is open


def stream(name: str) -> TextIO:
  """'stdout' or 'stderr' as it was when `guarded` began, if it is open."""
  return _streams[-1][name] if _streams else getattr(sys, name)


def _guard(name: str, now, first, lost: Lost) -> TextIO:
  """The stream, guarded if it is the original stream of the process."""
  if now is not first:
    return now
  number = None
  if now is not None:
    try:
      number = now.fileno()
      now.flush()
    except ValueError:  # it has no descriptor
      return now
    except OSError:
      pass
  return _Text(
      _Bytes(_Stream(name, number, lost)),
      encoding=now.encoding if now is not None else "utf-8",
      errors="backslashreplace",  # so that no character raises
      line_buffering=now is None or now.line_buffering,
      write_through=now is not None and now.write_through,
  )


def say(line: str, name: str = "stdout") -> None:
  """Prints a line to `stream`."""
  print(line, file=stream(name), flush=True)
