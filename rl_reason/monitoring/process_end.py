"""The end of a command: it is said, its exit code is right, and it comes.

Code of the user may call `os._exit`, also in a thread, or leave threads that
never end, which Python waits for at its own end.
"""

import contextlib
import functools
import os
import pathlib
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import NoReturn

from rl_reason.base import own_code
from rl_reason.monitoring import output_guard

PATIENCE = 5.0  # seconds until a line says what the process waits for
LIMIT = 30.0  # seconds until the process ends without it
_PACKAGE = pathlib.Path(__file__).parents[1]


@contextlib.contextmanager
def said() -> Iterator[None]:
  """Inside, `os._exit` of others says its place, and its exit code is 1.

  Processes that are forked off, and this package, end as they always do.
  """
  leave, process = os._exit, os.getpid()

  def exit_aloud(status: int) -> NoReturn:
    caller = sys._getframe(1)
    file = pathlib.Path(caller.f_code.co_filename).resolve()
    if os.getpid() == process and not file.is_relative_to(_PACKAGE):
      where = own_code.place_of(traceback.extract_stack(caller)) or file
      _say(
          f"error: {where}: os._exit({status}) ended the process, and nothing"
          " of its step is saved: raise an exception instead; the same command"
          " resumes the run"
      )
      status = 1
    leave(status)

  os._exit = exit_aloud
  try:
    yield
  finally:
    os._exit = leave


def leave(code: int) -> NoReturn:
  """Ends the process with an exit code; waits `LIMIT` seconds for threads.

  The process goes on where `SystemExit` is caught, as in a notebook.
  """
  ends = threading.Event()

  def begins():
    # A function of atexit may end the process: its status is still ours.
    os._exit = functools.partial(_end_as, os._exit, os.getpid(), code)
    ends.set()

  # What is registered last is called first, before the interpreter waits for
  # thread pools. The module atexit is too late: it comes after all threads.
  threading._register_atexit(begins)
  threading.Thread(target=_insist, args=(code, ends), daemon=True).start()
  raise SystemExit(code)  # code of the user may have replaced sys.exit


def _end_as(
    end: Callable[[int], NoReturn], process: int, code: int, status: int
) -> NoReturn:
  end(code if os.getpid() == process else status)


def _insist(code: int, ends: threading.Event) -> None:
  ends.wait()
  time.sleep(PATIENCE)
  _say(
      f"the command has ended with exit code {code}, and {_waits_for()}: the"
      f" process ends in {LIMIT - PATIENCE:g} s without it"
  )
  time.sleep(LIMIT - PATIENCE)
  os._exit(code)


def _waits_for() -> str:
  """The threads that keep the process, with the lines that they are at."""
  frames, found = sys._current_frames(), []
  for thread in threading.enumerate():
    if thread is threading.main_thread():
      continue
    frame = frames.get(thread.ident or 0)
    where = own_code.place_of(traceback.extract_stack(frame)) if frame else ""
    # The threads of a pool are waited for even if they are daemons.
    if where or not thread.daemon:
      found.append(f"{thread.name} ({where})" if where else thread.name)
  if found:
    return f"waits for threads that have not ended, {', '.join(found)}"
  return "a function of atexit has not ended"


def _say(text: str) -> None:
  with contextlib.suppress(OSError, ValueError):  # closed by the user's code
    print(text, file=output_guard.stream("stderr"), flush=True)
