"""The screen cannot stop a run: text that it does not take goes to a file.

The reader of standard output may end (`| head -1`) or stop reading, its disk
may be full, its terminal may be closed, or nobody has opened it (`>&-`). Inside
`guarded` neither of Python's two streams raises or waits for long; the lost
text follows in WORKDIR/screen.txt, after a line that says why.
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
PATIENCE = 10.0  # seconds that a reader may read nothing before text is lost
KEPT = 1 << 16  # bytes kept while there is no directory, or no space in it


class Lost:
  """The text that the screen has not taken.

  Attributes:
    directory: where the text is appended to `FILE`; None: not known yet.
  """

  def __init__(self, directory: pathlib.Path | None = None):
    self.directory = directory
    self._text, self._lock = b"", threading.Lock()

  def add(self, text: bytes) -> None:
    """Appends text to the file, or else keeps its end for the next time."""
    with self._lock:
      self._text = (self._text + text)[-KEPT:]
      if self.directory is not None:
        with contextlib.suppress(OSError):
          with (self.directory / FILE).open("ab", buffering=0) as f:
            f.write(self._text)
          self._text = b""


class _Stream(io.RawIOBase):
  """A stream of bytes whose writes succeed, whether or not anybody reads.

  Args:
    name: as the user knows it.
    number: the file descriptor; None: the stream was closed at the start.
    lost: gets what is not written.
  """

  def __init__(self, name: str, number: int | None, lost: Lost):
    self._name, self._number, self._lost = name, number, lost
    self._why = ""  # the last write has failed

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
    # A pipe that is ready has space for this many bytes: no write waits.
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
    """The number of bytes that are done with, and why they are lost."""
    if self._number is None:
      return len(part), "it is closed"
    try:
      patience = 0.0 if self._why else PATIENCE
      if select.select([], [self._number], [], patience)[1]:
        return os.write(self._number, part), ""
      return len(part), "its reader has stopped reading"
    except OSError as e:
      return len(part), e.strerror or type(e).__name__


@contextlib.contextmanager
def guarded(directory: pathlib.Path | None = None) -> Iterator[Lost]:
  """Guards `sys.stdout` and `sys.stderr`; leaves streams of others alone.

  Args:
    directory: of the file; None: it is set later.

  Yields:
    what gets the text that is lost.
  """
  # A file of the run would take the number of a stream that is closed, and what
  # libraries write on standard error.
  while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
    os.set_inheritable(number, True)
  os.close(number)
  lost, before = Lost(directory), (sys.stdout, sys.stderr)
  sys.stdout = _guard("standard output", sys.stdout, sys.__stdout__, lost)
  sys.stderr = _guard("standard error", sys.stderr, sys.__stderr__, lost)
  try:
    yield lost
  finally:
    for stream in (sys.stdout, sys.stderr):
      with contextlib.suppress(OSError, ValueError):
        stream.flush()
    sys.stdout, sys.stderr = before


def _guard(name: str, now, first, lost: Lost) -> TextIO:
  """The stream, guarded if it is the one that the process began with."""
  if now is not first:
    return now
  number = None
  if now is not None:
    try:
      number = now.fileno()
      now.flush()
    except ValueError:  # it has no file
      return now
    except OSError:
      pass
  return io.TextIOWrapper(
      io.BufferedWriter(_Stream(name, number, lost)),
      encoding=now.encoding if now is not None else "utf-8",
      errors="backslashreplace",  # no character is refused, either
      line_buffering=now is None or now.line_buffering,
      write_through=now is not None and now.write_through,
  )
