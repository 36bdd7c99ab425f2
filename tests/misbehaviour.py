"""Functions that harm their process, for workers only; imports little."""

import os
import signal
import time


def behave(how):
  """Does `how` and returns, which most of `_TABLE` does not; echoes others."""
  return _TABLE[how]() if how in _TABLE else how


def _spin():
  while True:
    pass


def _write_everywhere(data):
  """Writes on every open descriptor, the socket to the pool among them."""
  for descriptor in range(3, 1024):
    try:
      os.write(descriptor, data)
    except OSError:
      pass


def _stop():
  os.kill(os.getpid(), signal.SIGSTOP)


def _ignore_signals():
  for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
  _spin()


def _fork():
  """A child in a session of its own, which outlives its parent."""
  if os.fork() == 0:
    os.setsid()
    time.sleep(3600)
  _spin()


def _fail():
  raise KeyError("no such thing")


_TABLE = {
    "spin": _spin,
    "stop": _stop,
    "ignore signals": _ignore_signals,
    "fork": _fork,
    "spin in C": lambda: sum(range(10**12)),
    "sleep": lambda: time.sleep(3600),
    "nap": lambda: time.sleep(1.0),
    "exit": lambda: os._exit(0),
    "die": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "allocate": lambda: len(bytearray(10**10)),
    "lie": lambda: _write_everywhere(b"[7, true, null]\n"),
    "babble": lambda: _write_everywhere(b"all is well\n"),
    "fail": _fail,
    "flood": lambda: "x" * 3_000_000,
    "print": lambda: print("[1, true, null]"),
    "no JSON": object,
    "pid": os.getpid,
}
