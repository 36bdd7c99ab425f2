"""Sandbox: what a program may not do, in each tier that this machine has."""

import os
import pathlib
import re
import shutil
import socket
import subprocess
import threading
import time

import pytest

from rl_reason.verifiers import code, sandbox

ROOT = pathlib.Path(__file__).parents[1]
LIMITS = sandbox.Limits(cpu=2, wall=20.0)
BWRAP = shutil.which("bwrap")
PROBLEMS = {name: sandbox.probe(name) for name in sandbox.TIERS}
CONTAINED = [
    pytest.param(
        name,
        # A tier that leaks is not skipped: its tests are to fail.
        marks=pytest.mark.skipif(
            bool(problem) and "leaks" not in problem, reason=problem
        ),
    )
    for name, problem in PROBLEMS.items()
    if name != "rlimits"
]
every_tier = pytest.mark.parametrize("tier", CONTAINED)


def output(program, tier, limits=LIMITS, stdin=b""):
  """Output of a script in a sandbox, and how it ends.

  A tier that leaks is an error: the tests are not for a leaking one.
  """
  found = sandbox.tier(tier, allow_unsafe=True)
  job = {"program": program}
  with sandbox.running(
      "candidate.script", job, found, limits, stdin=stdin
  ) as process:
    out, ended = sandbox.read(process, limits)
    return out.decode(), ended or sandbox.death(process, limits)


# --- what must not work ------------------------------------------------------

HEAD = """
import ctypes, os, resource, signal, socket, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(*args):
  words = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
  result = libc.syscall(*words)
  if result < 0:
    raise OSError(ctypes.get_errno(), "refused")
  return result
def ends(pid):
  if pid == 0: os._exit(0)
  os.waitpid(pid, 0)
"""
# Each must raise in a sandbox. HARMLESS ones succeed outside of it, as
# tests/slow/test_sandbox_slow.py shows. {file} and {folder} are writable,
# {port} has a listener, {pid} is a process of the same user.
HARMLESS = r"""
reads a file: open('{file}').read()
reads /etc/passwd: open('/etc/passwd').read()
lists the home of users: os.listdir('/home')
lists the root: assert 'home' in os.listdir('/')
reads the repository: open('{root}/README.md').read()
lists the repository: assert 'README.md' in os.listdir('{root}')
reads its process's memory: open('/proc/self/mem', 'rb')
lists processes: assert '{pid}' in os.listdir('/proc')
reads the environment of another: open('/proc/{pid}/environ').read()
has a secret in its environment: os.environ['SECRET']
reads /sys: os.listdir('/sys/class')
writes a file: open('{file}', 'a').write('harm')
creates a file: open('{folder}/new', 'w').write('harm')
creates a folder: os.mkdir('{folder}/new_folder')
creates a link: os.symlink('/', '{folder}/new_link')
renames a file: os.rename('{file}', '{file}'); assert open('{file}')
cuts a file: os.truncate('{file}', 7)
changes a file's mode: os.chmod('{file}', 0o666)
changes a file's owner: os.chown('{file}', -1, os.getgid())
changes a file's times: os.utime('{file}')
shares memory: open('/dev/shm/{pid}', 'w').write('harm')
starts a process: ends(os.fork())
starts a shell: assert os.system('true') == 0
starts a program: subprocess.run(['true'], check=True)
spawns: ends(os.posix_spawn('/bin/true', ['true'], dict()))
forks by number: ends(call(57))
clones: ends(call(56, 17, 0, 0, 0, 0))
connects to this machine: socket.create_connection(('127.0.0.1', {port}), 5)
listens: socket.create_server(('127.0.0.1', 0))
sends a datagram:
  socket.socket(type=socket.SOCK_DGRAM).sendto(b'', ('127.0.0.1', 9))
has a Unix socket: socket.socket(socket.AF_UNIX)
has a netlink socket: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
finds another process: os.kill({pid}, 0)
stops and continues another: os.kill({pid}, signal.SIGCONT)
limits another: resource.prlimit({pid}, resource.RLIMIT_CORE, (0, 0))
moves another: os.setpriority(os.PRIO_PROCESS, {pid}, 19)
pins another: os.sched_setaffinity({pid}, os.sched_getaffinity(0))
aims a signal: import fcntl; fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, {pid})
aims a signal through a socket:
  import fcntl, struct
  a, b = socket.socketpair()
  fcntl.ioctl(a, 0x8901, struct.pack('i', {pid}))
asks for the network:
  import fcntl
  a, b = socket.socketpair()
  fcntl.ioctl(a, 0x8912, bytes(64))
pairs datagrams: socket.socketpair(type=socket.SOCK_DGRAM)
passes descriptors: a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [0])
opens a process: os.pidfd_open({pid})
has nameless files: os.memfd_create('x')
leaves shared memory behind:
  n = libc.shmget(0, 4096, 0o1600)
  assert n >= 0
  libc.shmctl(n, 0, 0)
raises its limit of time:
  resource.setrlimit(resource.RLIMIT_CPU, (1000, 1000))
  assert resource.getrlimit(resource.RLIMIT_CPU)[0] == 1000
raises its limit of memory:
  resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))
changes its name: assert libc.prctl(15, b'harm', 0, 0, 0) == 0
survives its parent: assert libc.prctl(1, 0, 0, 0, 0) == 0
reads another's memory:
  b = ctypes.create_string_buffer(8)
  v = (ctypes.c_void_p * 2)(ctypes.addressof(b), 8)
  call(310, os.getpid(), v, 1, v, 1, 0)
has rings: b = ctypes.create_string_buffer(256); call(425, 4, b)
imports packages: import {package}
"""
HARMFUL = r"""
kills its parent: os.kill(os.getppid(), signal.SIGKILL)
kills another: os.kill({pid}, signal.SIGKILL)
kills everybody: os.kill(-1, signal.SIGKILL)
kills its group: os.killpg(0, signal.SIGTERM)
queues a signal: call(129, {pid}, 9, ctypes.create_string_buffer(128))
traces another: call(101, 16, {pid}, 0, 0)
becomes root: os.setuid(0)
becomes another: os.setresuid(12345, 12345, 12345)
mounts: call(165, b'none', b'/tmp', b'tmpfs', 0, 0)
unmounts: call(166, b'/', 2)
changes its root: os.chroot('/tmp')
leaves its namespaces: call(272, 0x20000)
becomes root of a namespace: call(272, 0x10000000)
clones into a namespace: call(56, 0x10000000 | 17, 0, 0, 0, 0)
clones the new way: call(435, ctypes.create_string_buffer(88), 88)
loads a BPF program: call(321, 0, ctypes.create_string_buffer(99), 99)
keeps keys: call(248, b'user', b'harm', b'x', 1, -3)
sets the clock: call(227, 0, ctypes.create_string_buffer(16))
names the machine: socket.sethostname('harm')
restarts: call(169, 0, 0, 0, 0)
reads the kernel's log: call(103, 3, ctypes.create_string_buffer(9), 9)
makes a device: os.mknod('/tmp/sda', 0o60600, os.makedev(8, 0))
writes to a disk: open('/dev/vda', 'r+b')
reads all memory: open('/dev/mem', 'rb')
is in a hurry: os.nice(-20)
is in real time: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
speaks 32 bits: call(0x40000000 + 57)
writes to the standard library: open(os.__file__, 'a')
writes to the verifier:
  import rl_reason.verifiers.wire as w
  open(w.__file__, 'a')
writes beside the verifier: open('{root}/rl_reason/verifiers/x', 'w')
writes to /: open('/harm', 'w')
writes to /dev: open('/dev/harm', 'w')
writes to the kernel: open('/proc/sys/kernel/hostname', 'a')
loads a ruleset: call(317, 1, 0, 0)
has capabilities:
  h = (ctypes.c_uint32 * 2)(0x20080522, 0)
  d = (ctypes.c_uint32 * 6)()
  call(125, h, d)
  assert any(d[:3])
"""


def attempts(text, victim):
  """Name -> source of a table of `name: source`, perhaps indented below it."""
  found = re.findall(r"^(\w.*?):((?: .*)?(?:\n  .*)*)$", text, re.MULTILINE)
  return {
      name: ";".join(map(str.strip, body.strip().splitlines())).format(**victim)
      for name, body in found
  }


def program_of(bodies):
  """A program that prints the names of the attempts that succeed."""
  return f"""{HEAD}
for name, body in {bodies!r}.items():
  try:
    exec(body, dict(globals()))
  except (Exception, SystemExit):
    continue
  print(name)
print("done")
"""


@pytest.fixture(scope="module")
def victim(tmp_path_factory):
  """A file, a folder, a listener and a process that may all be harmed."""
  folder = tmp_path_factory.mktemp("victim")
  folder.chmod(0o777)
  file = folder / "file"
  file.write_text("content")
  file.chmod(0o666)
  process = subprocess.Popen(["sleep", "600"], env={"SECRET": "victim"})
  with socket.create_server(("127.0.0.1", 0)) as server:
    yield dict(
        file=file,
        folder=folder,
        port=server.getsockname()[1],
        pid=process.pid,
        root=ROOT,
        package="pytest",
    )
  process.kill()
  process.wait()


@every_tier
def test_numpy_is_the_only_package(tier):
  """With one thread, within the usual limits."""
  program = """
import numpy as np
x = np.random.default_rng(0).normal(size=(300, 300))
print(np.linalg.svd(x)[1].shape, np.fft.fft(np.ones(4)).real[0])
for name in ("jax", "pytest", "pyarrow"):
  try: __import__(name)
  except ImportError: print(name)
"""
  out, ended = output(program, tier)
  assert (out, ended) == ("(300,) 4.0\njax\npytest\npyarrow\n", "")


@every_tier
def test_all_attempts_fail(tier, victim, monkeypatch):
  monkeypatch.setenv("SECRET", "secret")
  before = victim["file"].stat()
  bodies = attempts(HARMLESS + HARMFUL, victim)
  assert len(bodies) > 80
  out, ended = output(program_of(bodies), tier, LIMITS._replace(cpu=10))
  assert (out, ended) == ("done\n", "")
  assert victim["file"].read_text() == "content"
  assert victim["file"].stat()[:6] == before[:6]
  assert list(victim["folder"].iterdir()) == [victim["file"]]
  os.kill(victim["pid"], 0)


# --- limits ------------------------------------------------------------------


@every_tier
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os\nwhile True: os.fork()", "error"),
        ("x = bytearray(600 * 10**6)", "memory"),  # the machine may have it
        ("while True: print('x' * 10**6)", "output"),
        ("import time\ntime.sleep(1000)", "timeout"),
        (
            "import signal\nfor n in signal.valid_signals():\n"
            "  try: signal.signal(n, signal.SIG_IGN)\n"
            "  except OSError: pass  # SIGKILL, SIGSTOP\n"
            "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
            "while True: pass",
            "timeout",
        ),
    ],
)
def test_bombs(program, reason, tier):
  """tests/slow/test_sandbox_slow.py has many more."""
  # CPU time ends a loop long before the wall clock, and idleness a sleep.
  limits = LIMITS._replace(cpu=1, wall=300.0, output=10**7, memory=1 << 28)
  out, ended = output(program, tier, limits)
  assert ended == reason and len(out) < 11 * 10**6


@every_tier
def test_threads_are_counted(tier):
  program = """
import threading
stop, count = threading.Event(), 1
threading.stack_size(1 << 15)
try:
  while True:
    threading.Thread(target=stop.wait).start()
    count += 1
except RuntimeError:
  print(count)
stop.set()
"""
  if sandbox._lockdown(tier, LIMITS)["threads"] is None:
    pytest.skip("threads are not counted for this user in this tier")
  out, ended = output(program, tier)
  assert not ended and 32 <= int(out) <= LIMITS.threads


@every_tier
def test_threads_files_and_asyncio_work(tier):
  """A stack and an arena of malloc for each of many threads; open files."""
  program = """
import asyncio, concurrent.futures, time
def work(n):
  x = [bytearray(10**5) for _ in range(10)]
  time.sleep(0.05)
  return len(x)
with concurrent.futures.ThreadPoolExecutor(40) as pool:
  print(sum(pool.map(work, range(80))))
async def main():
  print(await asyncio.wait_for(asyncio.to_thread(input), 10))
asyncio.run(main())
print(open("/dev/stdin").read())
files = []
try:
  while True: files.append(open("/dev/null"))
except OSError:
  print(len(files))
"""
  out, ended = output(program, tier, stdin=b"ok")
  *lines, files = out.splitlines()
  assert (lines, ended) == (["800", "ok", "ok"], "")
  assert LIMITS.files - 16 < int(files) <= LIMITS.files


@every_tier
def test_a_tmp_of_its_own(tier):
  """With bubblewrap a small one, with Landlock none; never the machine's."""
  program = """
import os
print(os.listdir("/tmp") if os.access("/tmp", os.R_OK) else [], flush=True)
written = 0
try:
  for n in range(100):  # none of them over the limit of a file
    with open(f"/tmp/{n}", "wb") as f: f.write(bytes(10**6))
    written += 10**6
except OSError:
  pass
print(written)
"""
  if tier == "landlock":
    program = program.replace("print(os.listdir", "0 and print(os.listdir")
  out, ended = output(program, tier, LIMITS._replace(disk=5 * 10**6))
  *listing, written = out.split("\n")[:-1]
  assert not ended
  if tier == "bubblewrap":
    assert "pytest" not in "".join(listing)
    assert 3 * 10**6 <= int(written) <= 6 * 10**6
  else:
    assert written == "0"


@every_tier
def test_the_standard_library_is_there(tier):
  names = (
      "array ast bisect cmath collections copy dataclasses datetime decimal"
      " enum fractions functools hashlib heapq io itertools json math operator"
      " queue random re statistics string struct sys textwrap threading time"
      " typing unicodedata uuid zlib"
  )
  program = f"import {', '.join(names.split())}\nprint(random.random() < 1)"
  program += "\nprint(datetime.datetime.now().year > 2000, input())"
  assert output(program, tier, stdin=b"ok\n") == ("True\nTrue ok\n", "")


# --- the end -----------------------------------------------------------------


def children(pid):
  """All processes below one: (pid, start time) pairs."""
  parents = {}
  for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
    try:
      fields = path.read_text().rpartition(")")[2].split()
    except OSError:
      continue
    parents[int(path.parent.name)] = (int(fields[1]), fields[19])
  found, todo = set(), [pid]
  while todo:
    now = todo.pop()
    below = [p for p, (parent, _) in parents.items() if parent == now]
    found |= {(p, parents[p][1]) for p in below}
    todo += below
  return found


def wait_for(condition, seconds=20.0):
  deadline = time.monotonic() + seconds
  while not condition() and time.monotonic() < deadline:
    time.sleep(0.02)
  return condition()


@every_tier
def test_nothing_outlives_a_verdict(tier):
  """Nor a process that has answered already, but would go on in a thread."""
  program = """
import threading, time
threading.Thread(target=time.sleep, args=[300]).start()
def f(x): return x
"""
  problem = code.Calls("assert f(1) == 1")
  before, start = children(os.getpid()), time.monotonic()
  assert code.grade(program, problem, tier=tier, limits=LIMITS).correct
  assert wait_for(lambda: children(os.getpid()) <= before)
  assert time.monotonic() - start < 150


@every_tier
def test_no_descriptor_is_left(tier):
  """In the parent, after all kinds of ends."""
  problem = code.Calls("assert f(1) == 1")
  threads = threading.active_count()
  before = sorted(os.listdir("/proc/self/fd"))
  for program in (
      "def f(x): return x",
      "import os\nos._exit(1)",
      "1 / 0",
      "```",
  ):
    code.grade(program, problem, tier=tier, limits=LIMITS)
  code.grade("print(1)", code.Streams((("", "1"),)), tier=tier)
  assert sorted(os.listdir("/proc/self/fd")) == before
  assert threading.active_count() == threads


def test_bubblewrap_is_found_where_path_says(tmp_path, monkeypatch):
  """The process has no PATH; what cannot be started is no tier."""
  wrap = tmp_path / "bwrap"
  wrap.write_text(f"#!/bin/sh\necho here > {tmp_path}/asked\nexit 1\n")
  wrap.chmod(0o755)
  monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
  assert sandbox.probe.__wrapped__("bubblewrap")  # it does not contain
  assert (tmp_path / "asked").read_text() == "here\n"
  wrap.write_text("no program")
  assert "bwrap" in sandbox.probe.__wrapped__("bubblewrap")


@pytest.mark.skipif(not BWRAP, reason="bwrap is not installed")
def test_bubblewrap_works_from_another_folder(tmp_path, monkeypatch):
  shutil.copy(BWRAP, tmp_path)
  monkeypatch.setenv("PATH", str(tmp_path))
  assert sandbox.probe.__wrapped__("bubblewrap") == PROBLEMS["bubblewrap"]
