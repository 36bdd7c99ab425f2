"""Sandbox: controls of the attempts, each attempt alone, and more bombs."""

import concurrent.futures
import functools
import os
import pathlib
import subprocess
import sys

import pytest
from test_sandbox import (
    HARMFUL,
    HARMLESS,
    LIMITS,
    ROOT,
    attempts,
    children,
    every_tier,
    output,
    program_of,
    victim,  # noqa: F401  a fixture
    wait_for,
)

pytestmark = pytest.mark.slow
FIELDS = dict.fromkeys("file folder port pid root package".split(), "")
NAMES = list(attempts(HARMLESS, FIELDS))
ALL = list(attempts(HARMLESS + HARMFUL, FIELDS))


@pytest.mark.parametrize("name", NAMES)
def test_attempts_succeed_outside(name, victim):  # noqa: F811
  """A control: each attempt is one, and it is the sandbox that refuses it."""
  if os.geteuid() and name == "moves another":
    pytest.skip("not root")
  program = program_of({name: attempts(HARMLESS, victim)[name]})
  done = subprocess.run(
      [sys.executable, "-c", program],
      capture_output=True,
      text=True,
      env=os.environ | {"SECRET": "secret"},
      cwd=victim["folder"],
  )
  pathlib.Path(f"/dev/shm/{victim['pid']}").unlink(missing_ok=True)
  for path in victim["folder"].glob("new*"):
    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
  victim["file"].write_text("content")
  assert done.stdout == f"{name}\ndone\n", done


@every_tier
@pytest.mark.parametrize("name", ALL)
def test_each_attempt_fails_alone(name, tier, victim):  # noqa: F811
  program = program_of({name: attempts(HARMLESS + HARMFUL, victim)[name]})
  assert output(program, tier) == ("done\n", "")
  assert victim["file"].read_text() == "content"
  os.kill(victim["pid"], 0)


BOMBS = {
    "processes": "import os\nwhile True: os.fork()",
    "processes, patiently": """
import os
while True:
  try: os.fork()
  except OSError: pass
""",
    "600 MB": "x = bytearray(600 * 10**6)",  # which the machine may have
    "50 GB": "x = bytearray(50 * 10**9)",
    "50 GB in pieces": "x = []\nwhile True: x.append(bytearray(10**7))",
    "50 GB mapped": "import mmap\nx = mmap.mmap(-1, 50 * 10**9)",
    "time": "while True: pass",
    "time in C": "sum(range(10**12))",
    "time in threads": """
import threading
def spin():
  while True: pass
for _ in range(8): threading.Thread(target=spin).start()
""",
    "time without signals": """
import signal
for n in signal.valid_signals():
  try: signal.signal(n, signal.SIG_IGN)
  except OSError: pass  # SIGKILL, SIGSTOP
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
while True: pass
""",
    "output": "while True: print('x' * 10**6)",
    "a power": "x = 9**9**9**9",
    "a text": "x = 'x' * 10**11",
    "a syntax tree": "eval('(' * 10**6 + ')' * 10**6)",
    "a pattern": "import re\nre.match('(a+)+$', 'a' * 40 + 'b')",
    "sleep": "import time\ntime.sleep(1000)",
    "waiting for nobody": "import threading\nthreading.Event().wait()",
    "a stack": "import sys\nsys.setrecursionlimit(10**9)\n"
    "class A:\n  def __getattr__(self, n): return getattr(self, n)\nA().x",
}


# How they end, where it is not for lack of time.
ENDS = {
    "processes": "error",
    "600 MB": "memory",
    "50 GB": "memory",
    "50 GB in pieces": "memory",
    "50 GB mapped": "error",
    "output": "output",
    "a text": "memory",
    "a syntax tree": "error",
    "a stack": "crash or error",  # by version of Python
}


@pytest.fixture(scope="module")
def exploded():
  """How each bomb ends in a tier; all at once, which takes no longer."""

  @functools.cache
  def explode(tier):
    limits = LIMITS._replace(cpu=1, wall=8.0, output=10**7, memory=1 << 28)
    with concurrent.futures.ThreadPoolExecutor(len(BOMBS)) as pool:
      jobs = {
          name: pool.submit(output, program, tier, limits)
          for name, program in BOMBS.items()
      }
      return {name: job.result() for name, job in jobs.items()}

  return explode


@every_tier
@pytest.mark.parametrize("name", BOMBS)
def test_bombs(name, tier, exploded):
  out, ended = exploded(tier)[name]
  assert ended and ended in ENDS.get(name, "timeout"), (ended, out[:100])
  assert name != "output" or len(out) < 11 * 10**6


@every_tier
def test_a_file_has_a_limit(tier):
  """RLIMIT_FSIZE, seen where something can be written at all."""
  program = """
import os
try:
  with open("/tmp/x", "wb") as f:
    f.seek(10**8)
    f.write(b"x")
except OSError as e:
  print("refused")
"""
  assert output(program, tier) == ("refused\n", "")


def busy(child):
  """Whether it has used half a second: it is in its loop, then."""
  try:
    stat = pathlib.Path(f"/proc/{child[0]}/stat").read_text()
  except OSError:
    return False
  ticks = sum(map(int, stat.rpartition(")")[2].split()[11:13]))
  return ticks > 0.5 * os.sysconf("SC_CLK_TCK")


def alive(pid, started):
  try:
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
  except OSError:
    return False
  fields = stat.rpartition(")")[2].split()
  return fields[19] == started and fields[0] != "Z"


@every_tier
def test_nothing_outlives_its_parent(tier):
  script = """
import sys
from rl_reason.verifiers import code, sandbox
sandbox.tier(sys.argv[1])  # its probe is not what is looked at
print("ready", flush=True)
limits = sandbox.Limits(cpu=100, wall=300.0)
problem = code.Calls("assert f(1) == 1")
code.grade("def f(x):\\n  while True: pass", problem, tier=sys.argv[1],
           limits=limits)
"""
  parent = subprocess.Popen(
      [sys.executable, "-c", script, tier], cwd=ROOT, stdout=subprocess.PIPE
  )
  with parent:
    assert parent.stdout.readline() == b"ready\n"
    assert wait_for(lambda: any(map(busy, children(parent.pid))), 60.0)
    below = children(parent.pid)
    parent.kill()
  assert wait_for(lambda: not any(alive(*child) for child in below))
