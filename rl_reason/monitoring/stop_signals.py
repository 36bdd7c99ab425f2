"""SIGTERM, SIGHUP and Ctrl-C: answered at once, and obeyed after the step.

Python runs the handler of a signal in the main thread, between two lines of
Python: a compilation or a step on a device delays it for minutes. The number of
a signal arrives at once in a pipe (`signal.set_wakeup_fd`), which a thread
reads. The thread says what will happen, and a second signal ends the process.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator

# The signals, by their names for the user.
NAMES: dict[int, str] = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "SIGHUP",
}
# Seconds in which several signals are one: `timeout` and launchers send a
# signal to the process and to its group.
SAME = 0.3


@contextlib.contextmanager
def stopping(what: str) -> Iterator[threading.Event]:
  """An event that the first signal sets; a second signal ends the process.

  Signals reach the main thread only; in other threads nothing sets the event. A
  SIGHUP that is ignored already, as under nohup, stays ignored.

  Args:
    what: stops, as in 'the run stops after this step'; '': nothing waits for
      the event, and the first signal ends the process.
  """
  stop = threading.Event()
  if threading.current_thread() is not threading.main_thread():
    yield stop
    return
  before = {}
  for number in NAMES:
    ignored = signal.getsignal(number) is signal.SIG_IGN
    if not (number == signal.SIGHUP and ignored):
      before[number] = signal.signal(number, lambda *_: stop.set())
  theirs, ours = os.pipe()
  os.set_blocking(ours, False)
  other = signal.set_wakeup_fd(ours, warn_on_full_buffer=False)
  reader = threading.Thread(
      target=_answer, args=(theirs, stop, what), daemon=True
  )
  reader.start()
  try:
    yield stop
  finally:
    signal.set_wakeup_fd(other)
    os.close(ours)  # ends the thread
    for number, handler in before.items():
      signal.signal(number, handler)
    reader.join()
    os.close(theirs)


def _answer(pipe: int, stop: threading.Event, what: str) -> None:
  """Answers the signals whose numbers arrive in a pipe, until it is closed."""
  asked = not what
  while numbers := os.read(pipe, 64):
    number = next(filter(NAMES.__contains__, numbers), None)
    if number is None:
      continue
    if asked:
      say(f"{NAMES[number]}: ended")
      end(number)
    asked = True
    stop.set()
    say(f"{NAMES[number]}: {what}; a second one ends it at once")
    # What arrives meanwhile is the same request, also if this thread is slow.
    time.sleep(SAME)
    if select.select([pipe], [], [], 0)[0]:
      os.read(pipe, 64)


def say(text: str) -> None:
  """Prints a line, whatever has become of the screen."""
  with contextlib.suppress(Exception):
    print(text, file=sys.stderr, flush=True)


def end(number: int) -> None:
  """Ends the process as the signal does by default: a shell sees 128 + number.

  From any thread, and while the main thread is outside of Python.
  """
  with contextlib.suppress(Exception):
    sys.stdout.flush()
  libc = ctypes.CDLL(None)
  libc.signal(number, None)  # SIG_DFL
  os.kill(os.getpid(), number)
  time.sleep(1)
  os._exit(128 + number)  # the signal is blocked
