"""Many more programs that cheat, and verdicts under load."""

import concurrent.futures
import os

import pytest
from test_verify_code import CORRECT, LIMITS, SUM, SUMS, grade, programs

from rl_reason.verifiers import lockdown, sandbox

pytestmark = pytest.mark.slow
CHEATS = r"""
# says it is an int
class Liar:
  __class__ = int
  def __index__(self): return 9
  def __eq__(self, other): return True
def f(x): return Liar()
# a list in itself
def f(x):
  a = []
  a.append(a)
  return a
# an iterator of the tests' own
def f(x):
  everywhere(frame_of({"number": request()["number"], "iterator": ["f"]}))
# no assertions
import builtins
builtins.AssertionError = ValueError
def f(x): raise AssertionError
# snoops on other processes
import glob
def f(x):
  for path in glob.glob("/proc/*/cmdline") + glob.glob("/proc/*/environ"):
    if f"f({x}) ==" in open(path).read(): return x * x
  for path in glob.glob("/proc/*/mem"):
    open(path, "rb").read(1)
    return x * x
# leaves at once
import sys; sys.exit(0)
# leaves in the call
import sys
def f(x): sys.exit(0)
# leaves for good
import os; os._exit(0)
# quits
def f(x): quit()
# interrupts
def f(x): raise KeyboardInterrupt
# ends the generator
def f(x): raise GeneratorExit
# aborts
import os
def f(x): os.abort()
# segfaults
import ctypes
def f(x): ctypes.string_at(0)
# always equal
class Equal:
  def __eq__(self, other): return True
  def __ne__(self, other): return False
  def __hash__(self): return 0
  def __bool__(self): return True
def f(x): return Equal()
# always equal int
class Equal(int):
  def __eq__(self, other): return True
  def __ne__(self, other): return False
  def __hash__(self): return 0
  def __bool__(self): return True
def f(x): return Equal(7)
# always equal float
class Equal(float):
  def __eq__(self, other): return True
  def __ne__(self, other): return False
  def __hash__(self): return 0
  def __bool__(self): return True
def f(x): return Equal(7)
# always equal inside
class Equal:
  def __eq__(self, other): return True
  def __ne__(self, other): return False
  def __hash__(self): return 0
  def __bool__(self): return True
def f(x): return [Equal()]
# a mock
import unittest.mock
def f(x): return unittest.mock.ANY
# a generator
def f(x): yield x * x
# itself
def f(x): return f
# not a number
def f(x): return float('nan')
# a deep list
def f(x):
  a = []
  for _ in range(10**5): a = [a]
  return a
# an endless generator
def f(x):
  while True: yield x * x
# an endless list
class Endless(list):
  def __iter__(self):
    while True: yield 9
def f(x): return Endless()
# a made value with an evil argument
def f(x):
  value = {"decimal.Decimal": [{"os.system": ["true"]}]}
  everywhere(frame_of({"number": request()["number"], "value": value}))
# a long text
def f(x): return 'a' * 10**8
# a large number
def f(x): return 1 << 10**7
# a fake line
print('OK\n1 passed\n["correct", ""]')
def f(x): pass
# another assertion error
import builtins
class AssertionError(BaseException): pass
builtins.AssertionError = AssertionError
def f(x): raise AssertionError("correct")
# patched json
import json
json.dumps = lambda *a, **k: '{"number": 1, "value": 9}'
def f(x): return 0
# patched equality
import operator, builtins
operator.eq = lambda a, b: True
builtins.all = builtins.bool = lambda *a: True
def f(x): return 0
# snoops on descriptors
import os
def f(x):
  for fd in range(64):
    try:
      if b"assert" in os.pread(fd, 10**6, 0): return x * x
    except OSError:
      pass
# calls the tests
from rl_reason.verifiers import tester
def f(x): tester._Tests(0, 1).end("correct", "")
# says raised right
def f(x):
  everywhere(frame_of({"number": request()["number"], "raised": ["", ""]}))
# answers without a number
def f(x): everywhere(frame_of({"value": x * x}))
# answers with two things
def f(x):
  number = request()["number"]
  everywhere(frame_of({"number": number, "value": x * x, "truth": True}))
# answers with a number equal to all
def f(x): everywhere(frame_of({"number": [True], "value": x * x}))
# answers with an unknown tag
def f(x):
  number = request()["number"]
  everywhere(frame_of({"number": number, "value": {"eval": "9"}}))
# answers with a wrong tag
def f(x):
  number = request()["number"]
  everywhere(frame_of({"number": number, "value": {"set": [{"set": []}]}}))
# answers in pieces
def f(x): everywhere(b"\0\0\0")
# answers with no JSON
def f(x): everywhere(b"\0\0\0\2{]")
# answers with deep JSON
def f(x): everywhere((10**6).to_bytes(4, "big") + b"[" * 10**6)
# answers from a thread
import threading
def shout():
  while True: everywhere(frame_of({"number": "", "value": 9}))
threading.Thread(target=shout, daemon=True).start()
def f(x): return 0
# answers itself
import os
def f(x):
  a, b = os.pipe()
  for fd in range(3, 60):
    try: os.dup2(a, fd)
    except OSError: pass
  return 0
# kills its parent
import os, signal
def f(x): os.kill(os.getppid(), signal.SIGKILL)
# ends others by a broken pipe
import os
def f(x): os.close(0)
# an error with an evil text
class Evil(Exception):
  def __str__(self): raise SystemExit(0)
def f(x): raise Evil
# an error with a false name
Evil = type("SystemExit", (Exception,), {})
def f(x): raise Evil
# an error called right
def f(x): raise type("correct", (Exception,), {})("correct")
# traces
import sys
sys.settrace(lambda *a: None)
sys.setprofile(lambda *a: None)
sys.excepthook = lambda *a: None
def f(x): raise ValueError
# leaves when it is collected
import os
class Bomb:
  def __del__(self): os._exit(0)
def f(x): Bomb()
# leaves when others do
import atexit, os, sys
atexit.register(os._exit, 0)
def f(x): sys.exit()
# no modules
import sys
sys.modules.clear()
def f(x): return 0
# collisions
def f(x): return {n * (2**61 - 1) for n in range(40_000)}
# forks to answer
import os
def f(x): return x * x if os.fork() else 0
# writes the answer down
import json
def f(x):
  with open("/tmp/right", "w") as f: json.dump(["correct", ""], f)
"""


@pytest.mark.parametrize("program", programs(CHEATS))
def test_cheats_are_incorrect(program):
  verdict = grade(program, limits=LIMITS._replace(cpu=1))
  assert not verdict.correct and verdict.reason != "correct", verdict


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        *[
            ("def f(x):\n  pass\n1 / 0", "error"),
            ("", "error"),
            ("\0", "error"),
        ],
        *[("while True: pass", "timeout"), ("f = 9", "error")],
    ],
)
def test_reasons(program, reason):
  assert grade(program, limits=LIMITS._replace(cpu=1)).reason == reason


@pytest.mark.parametrize(
    "program",
    [
        "print(sum(map(int, input().split())))",
        "import sys\nprint(*[sum(map(int, sys.stdin.read().split()))])",
        "import os, sys\nif os.path.exists(os.path.join(os.path.dirname("
        "__file__), 'input.txt')): sys.stdin = open('input.txt')\n" + SUM,
        "import sys\nsys.stdin = open(0)\n" + SUM,
        "import fileinput\nprint(sum(int(x) for line in fileinput.input()"
        " for x in line.split()))",
    ],
)
def test_ways_to_read(program):
  assert grade(program, SUMS).correct


def test_output_of_a_candidate_is_not_the_protocol():
  program = """
import os, sys
print("x" * 10**6, flush=True)
os.write(1, b"[" * 100); os.write(2, b"[" * 100)
def f(x):
  print(x, file=sys.stderr)
  return x * x
"""
  assert grade(program).correct
  assert grade(CORRECT).correct


def test_load_changes_no_verdict():
  """Eight at once on few cores: limits are in CPU time."""
  program = """
import time
def f(x):
  while time.process_time() < 0.7: pass
  return x * x
"""
  limits = sandbox.Limits(cpu=1, wall=60.0)
  count = 4 * (os.cpu_count() or 1)
  with concurrent.futures.ThreadPoolExecutor(count) as pool:
    jobs = [pool.submit(grade, program, limits=limits) for _ in range(count)]
    assert all(job.result().correct for job in jobs)


def test_the_filter_names_the_system_calls_that_it_means():
  """Against the kernel's own list, where its headers are installed."""
  header = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"
  if not os.path.exists(header):
    pytest.skip("no kernel headers")
  with open(header) as f:
    lines = [line.split()[1:] for line in f if line.startswith("#define __NR_")]
  numbers = {name.removeprefix("__NR_"): int(n) for name, n in lines}
  words = lockdown._ALLOWED.split()
  allowed = dict(zip(words[::2], map(int, words[1::2]), strict=True))
  assert allowed == {name: numbers[name] for name in allowed}
  assert lockdown._CLONE == numbers["clone"]
  assert lockdown._SOCKETPAIR == numbers["socketpair"]
  assert lockdown._IOCTL == numbers["ioctl"]
  assert lockdown._PRLIMIT == numbers["prlimit64"]
  for name in ("fork", "socket", "execve", "ptrace", "chmod", "io_uring_setup"):
    assert name not in allowed
