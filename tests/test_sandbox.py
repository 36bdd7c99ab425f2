"""Sandbox: what a program may not do, in each tier that this machine has."""

import concurrent.futures
import functools
import json
import os
import pathlib
import platform
import socket
import subprocess
import sys
import threading
import time

import pytest

from rl_reason.verifiers import candidate, code, lockdown, sandbox

ROOT = pathlib.Path(__file__).parents[1]
LIMITS = sandbox.Limits(cpu=2, wall=20.0)
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
  """What a script prints in a sandbox, and how it ends.

  A tier that leaks is an error: what follows is not for a leaking one.
  """
  with sandbox.running(
      "candidate.script",
      {"program": program},
      sandbox.tier(tier, allow_unsafe=True),
      limits,
      stdin=stdin,
      stdout=subprocess.PIPE,
  ) as process:
    out, ended = sandbox.read(process, limits)
    return out.decode(), ended or sandbox.death(process, limits.wall)


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
# Each must raise in a sandbox; those above the line succeed outside of it, to
# show that they do what they say. {file} and {folder} are writable by all,
# {port} is listened on, {pid} is a process of the same user.
HARMLESS = {
    "reads a file": "open('{file}').read()",
    "reads /etc/passwd": "open('/etc/passwd').read()",
    "lists the home of users": "os.listdir('/home')",
    "lists the root": "assert 'home' in os.listdir('/')",
    "reads the repository": "open('{root}/README.md').read()",
    "lists the repository": "assert 'README.md' in os.listdir('{root}')",
    "reads its process's memory": "open('/proc/self/mem', 'rb')",
    "lists processes": "assert '{pid}' in os.listdir('/proc')",
    "reads the environment of another": "open('/proc/{pid}/environ').read()",
    "has a secret in its environment": "os.environ['SECRET']",
    "reads /sys": "os.listdir('/sys/class')",
    "writes a file": "open('{file}', 'a').write('harm')",
    "creates a file": "open('{folder}/new', 'w').write('harm')",
    "creates a folder": "os.mkdir('{folder}/new_folder')",
    "creates a link": "os.symlink('/', '{folder}/new_link')",
    "renames a file": "os.rename('{file}', '{file}'); assert open('{file}')",
    "cuts a file": "os.truncate('{file}', 7)",
    "changes a file's mode": "os.chmod('{file}', 0o666)",
    "changes a file's owner": "os.chown('{file}', -1, os.getgid())",
    "changes a file's times": "os.utime('{file}')",
    "shares memory": "open('/dev/shm/{pid}', 'w').write('harm')",
    "starts a process": "ends(os.fork())",
    "starts a shell": "assert os.system('true') == 0",
    "starts a program": "subprocess.run(['true'], check=True)",
    "spawns": "ends(os.posix_spawn('/bin/true', ['true'], dict()))",
    "forks by number": "ends(call(57))",
    "clones": "ends(call(56, 17, 0, 0, 0, 0))",
    "connects to this machine": (
        "socket.create_connection(('127.0.0.1', {port}), 5)"
    ),
    "listens": "socket.create_server(('127.0.0.1', 0))",
    "sends a datagram": (
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'', ('127.0.0.1', 9))"
    ),
    "has a Unix socket": "socket.socket(socket.AF_UNIX)",
    "has a netlink socket": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "finds another process": "os.kill({pid}, 0)",
    "stops and continues another": "os.kill({pid}, signal.SIGCONT)",
    "limits another": ("resource.prlimit({pid}, resource.RLIMIT_CORE, (0, 0))"),
    "moves another": "os.setpriority(os.PRIO_PROCESS, {pid}, 19)",
    "pins another": "os.sched_setaffinity({pid}, os.sched_getaffinity(0))",
    "aims a signal": (
        "import fcntl; fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, {pid})"
    ),
    "aims a signal through a socket": (
        "import fcntl, struct; a, b = socket.socketpair();"
        "fcntl.ioctl(a, 0x8901, struct.pack('i', {pid}))"
    ),
    "asks for the network": (
        "import fcntl; a, b = socket.socketpair();"
        "fcntl.ioctl(a, 0x8912, bytes(64))"
    ),
    "pairs datagrams": "socket.socketpair(type=socket.SOCK_DGRAM)",
    "passes descriptors": (
        "a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [0])"
    ),
    "opens a process": "os.pidfd_open({pid})",
    "has nameless files": "os.memfd_create('x')",
    "leaves shared memory behind": (
        "n = libc.shmget(0, 4096, 0o1600); assert n >= 0; libc.shmctl(n, 0, 0)"
    ),
    "raises its limit of time": (
        "resource.setrlimit(resource.RLIMIT_CPU, (1000, 1000));"
        "assert resource.getrlimit(resource.RLIMIT_CPU)[0] == 1000"
    ),
    "raises its limit of memory": (
        "resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))"
    ),
    "changes its name": "assert libc.prctl(15, b'harm', 0, 0, 0) == 0",
    "survives its parent": "assert libc.prctl(1, 0, 0, 0, 0) == 0",
    "reads another's memory": (
        "b = ctypes.create_string_buffer(8);"
        "v = (ctypes.c_void_p * 2)(ctypes.addressof(b), 8);"
        "call(310, os.getpid(), v, 1, v, 1, 0)"
    ),
    "has rings": "b = ctypes.create_string_buffer(256); call(425, 4, b)",
    "imports packages": "import {package}",
}
HARMFUL = {
    "kills its parent": "os.kill(os.getppid(), signal.SIGKILL)",
    "kills another": "os.kill({pid}, signal.SIGKILL)",
    "kills everybody": "os.kill(-1, signal.SIGKILL)",
    "kills its group": "os.killpg(0, signal.SIGTERM)",
    "queues a signal": "call(129, {pid}, 9, ctypes.create_string_buffer(128))",
    "traces another": "call(101, 16, {pid}, 0, 0)",
    "becomes root": "os.setuid(0)",
    "becomes another": "os.setresuid(12345, 12345, 12345)",
    "mounts": "call(165, b'none', b'/tmp', b'tmpfs', 0, 0)",
    "unmounts": "call(166, b'/', 2)",
    "changes its root": "os.chroot('/tmp')",
    "leaves its namespaces": "call(272, 0x20000)",
    "becomes root of a namespace": "call(272, 0x10000000)",
    "clones into a namespace": "call(56, 0x10000000 | 17, 0, 0, 0, 0)",
    "clones the new way": "call(435, ctypes.create_string_buffer(88), 88)",
    "loads a BPF program": "call(321, 0, ctypes.create_string_buffer(99), 99)",
    "keeps keys": "call(248, b'user', b'harm', b'x', 1, -3)",
    "sets the clock": "call(227, 0, ctypes.create_string_buffer(16))",
    "names the machine": "socket.sethostname('harm')",
    "restarts": "call(169, 0, 0, 0, 0)",
    "reads the kernel's log": "call(103, 3, ctypes.create_string_buffer(9), 9)",
    "makes a device": "os.mknod('/tmp/sda', 0o60600, os.makedev(8, 0))",
    "writes to a disk": "open('/dev/vda', 'r+b')",
    "reads all memory": "open('/dev/mem', 'rb')",
    "is in a hurry": "os.nice(-20)",
    "is in real time": (
        "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))"
    ),
    "speaks 32 bits": "call(0x40000000 + 57)",
    "writes to the standard library": "open(os.__file__, 'a')",
    "writes to the verifier": (
        "import rl_reason.verifiers.wire as w; open(w.__file__, 'a')"
    ),
    "writes beside the verifier": "open('{root}/rl_reason/verifiers/x', 'w')",
    "writes to /": "open('/harm', 'w')",
    "writes to /dev": "open('/dev/harm', 'w')",
    "writes to the kernel": "open('/proc/sys/kernel/hostname', 'a')",
    "loads a ruleset": "call(317, 1, 0, 0)",
    "has capabilities": (
        "h = (ctypes.c_uint32 * 2)(0x20080522, 0);"
        "d = (ctypes.c_uint32 * 6)(); call(125, h, d); assert any(d[:3])"
    ),
}
ATTEMPTS = HARMLESS | HARMFUL


def program_of(attempt, victim):
  body = attempt.format(**victim)
  return (
      f"{HEAD}\ntry:\n  {body}\nexcept (Exception, SystemExit) as e:\n"
      "  print('refused', type(e).__name__)\nelse:\n  print('done')\n"
  )


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


@pytest.mark.parametrize("name", HARMLESS)
def test_attempts_succeed_outside(name, victim):
  """A control: each attempt is one, and it is the sandbox that refuses it."""
  if os.geteuid() and name == "moves another":
    pytest.skip("not root")
  done = subprocess.run(
      [sys.executable, "-c", program_of(HARMLESS[name], victim)],
      capture_output=True,
      text=True,
      env=os.environ | {"SECRET": "secret"},
      cwd=victim["folder"],
  )
  pathlib.Path(f"/dev/shm/{victim['pid']}").unlink(missing_ok=True)
  for path in victim["folder"].glob("new*"):
    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
  victim["file"].write_text("content")
  assert done.stdout == "done\n", done


@every_tier
@pytest.mark.parametrize("name", ATTEMPTS)
def test_attempts(name, tier, victim, monkeypatch):
  monkeypatch.setenv("SECRET", "secret")
  before = victim["file"].stat()
  out, ended = output(program_of(ATTEMPTS[name], victim), tier)
  assert out.startswith("refused") and not ended, (out, ended)
  assert victim["file"].read_text() == "content"
  assert victim["file"].stat()[:6] == before[:6]
  assert list(victim["folder"].iterdir()) == [victim["file"]]
  os.kill(victim["pid"], 0)


# --- limits ------------------------------------------------------------------

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
@pytest.mark.parametrize("name", ["time", "time in C", "time without signals"])
def test_it_is_cpu_time_that_ends_a_loop(name, tier):
  """Long before the wall, even where everything that can be is ignored."""
  start = time.monotonic()
  limits = LIMITS._replace(cpu=1, wall=300.0)
  assert output(BOMBS[name], tier, limits)[1] == "timeout"
  assert time.monotonic() - start < 150


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
def test_threads_find_room(tier):
  """A stack and a place of malloc's for each, in the address space there is."""
  program = """
import concurrent.futures, time
def work(n):
  x = [bytearray(10**5) for _ in range(10)]
  time.sleep(0.05)
  return len(x)
with concurrent.futures.ThreadPoolExecutor(40) as pool:
  print(sum(pool.map(work, range(80))))
"""
  assert output(program, tier) == ("800\n", "")


@every_tier
def test_asyncio_runs(tier):
  program = """
import asyncio
async def main():
  print(await asyncio.wait_for(asyncio.to_thread(input), 10))
asyncio.run(main())
print(open("/dev/stdin").read())
"""
  assert output(program, tier, stdin=b"ok") == ("ok\nok\n", "")


@every_tier
def test_files_are_counted(tier):
  program = """
files = []
try:
  while True: files.append(open("/dev/null"))
except OSError:
  print(len(files))
"""
  out, ended = output(program, tier)
  assert not ended and LIMITS.files - 16 < int(out) <= LIMITS.files


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


# --- tiers -------------------------------------------------------------------


def test_the_lowest_tier_has_to_be_allowed(monkeypatch):
  monkeypatch.setattr(
      sandbox, "probe", lambda name: "" if name == "rlimits" else "broken"
  )
  with pytest.raises(RuntimeError, match="install bubblewrap"):
    sandbox.tier()
  with pytest.raises(RuntimeError, match="rlimits: needs allow_unsafe"):
    sandbox.tier("rlimits")
  with pytest.raises(RuntimeError, match="bubblewrap: broken"):
    code.judge("def f(): return 1", code.mbpp(["assert f() == 1"]))
  got = sandbox.tier(allow_unsafe=True)
  assert got.name == "rlimits"
  assert "bubblewrap: broken; landlock: broken" in got.why


def test_the_best_tier_is_taken(monkeypatch):
  monkeypatch.setattr(sandbox, "probe", lambda name: "")
  assert sandbox.tier() == ("bubblewrap", "")
  assert sandbox.tier("landlock").name == "landlock"
  missing = {"bubblewrap": "bwrap is not here"}
  monkeypatch.setattr(sandbox, "probe", lambda name: missing.get(name, ""))
  assert sandbox.tier() == ("landlock", "bubblewrap: bwrap is not here")
  with pytest.raises(RuntimeError, match="bwrap is not here"):
    sandbox.tier("bubblewrap")


def test_no_bubblewrap_is_seen(monkeypatch):
  monkeypatch.setenv("PATH", "/nowhere")
  assert "apt-get install bubblewrap" in sandbox.probe.__wrapped__("bubblewrap")


def test_a_machine_without_filter_is_seen(monkeypatch):
  monkeypatch.setattr(platform, "machine", lambda: "riscv64")
  assert "riscv64" in sandbox.probe.__wrapped__("landlock")


@pytest.mark.skipif(bool(PROBLEMS["rlimits"]), reason=PROBLEMS["rlimits"])
def test_a_probe_tells_what_leaks(monkeypatch):
  """Limits alone, said to be Landlock: the probe gets at files."""
  real = sandbox._lockdown
  monkeypatch.setattr(
      sandbox, "_lockdown", lambda tier, limits: real("rlimits", limits)
  )
  if platform.machine() == "x86_64":
    assert sandbox.probe.__wrapped__("landlock") == (
        "leaks: reads files, writes files"
    )


@pytest.mark.skipif(not sandbox._is_root(), reason="not root")
def test_root_keeps_no_powers(monkeypatch):
  """Nor gets them back; looked at without the filter, which hides it."""
  real = sandbox._lockdown
  monkeypatch.setattr(
      sandbox,
      "_lockdown",
      lambda tier, limits: real(tier, limits) | dict(seccomp=False),
  )
  program = """
import os
def powers():
  with open("/proc/self/status") as f:
    return [line.split()[1] for line in f if line.startswith("Cap")][:3]
print(*powers(), os.getuid() > 1 << 30)
os.setresuid(0, 0, 0)
print(*powers())
"""
  none = " ".join(3 * ["0" * 16])
  assert output(program, "rlimits")[0] == f"{none} True\n{none}\n"


def test_a_lockdown_that_fails_is_the_end(monkeypatch):
  """No program runs in less than what was asked for."""
  real = sandbox._lockdown
  broken = dict(files=1 << 40)  # more than the kernel allows
  monkeypatch.setattr(
      sandbox, "_lockdown", lambda tier, limits: real(tier, limits) | broken
  )
  name = sandbox.tier(allow_unsafe=True).name
  assert output("print('ran')", name) == ("", "error")


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
  problem = code.mbpp(["assert f(1) == 1"])
  before, start = children(os.getpid()), time.monotonic()
  assert code.judge(program, problem, tier=tier, limits=LIMITS).right
  assert wait_for(lambda: children(os.getpid()) <= before)
  assert time.monotonic() - start < 150


@every_tier
def test_nothing_outlives_its_parent(tier):
  script = """
import sys
from rl_reason.verifiers import code, sandbox
sandbox.tier(sys.argv[1])  # its probe is not what is looked at
print("ready", flush=True)
limits = sandbox.Limits(cpu=100, wall=300.0)
problem = code.mbpp(["assert f(1) == 1"])
code.judge("def f(x):\\n  while True: pass", problem, tier=sys.argv[1],
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


@every_tier
def test_no_descriptor_is_left(tier):
  """In the parent, after all kinds of ends."""
  problem = code.mbpp(["assert f(1) == 1"])
  threads = threading.active_count()
  before = sorted(os.listdir("/proc/self/fd"))
  for program in (
      "def f(x): return x",
      "import os\nos._exit(1)",
      "1 / 0",
      "```",
  ):
    code.judge(program, problem, tier=tier, limits=LIMITS)
  code.judge("print(1)", code.Streams((("", "1"),)), tier=tier)
  assert sorted(os.listdir("/proc/self/fd")) == before
  assert threading.active_count() == threads


def test_a_job_cannot_be_changed():
  fd = sandbox.memory_file(b"job")
  try:
    assert os.read(fd, 9) == b"job"
    with pytest.raises(OSError):
      os.write(fd, b"x")
    with pytest.raises(OSError):
      os.ftruncate(fd, 0)
  finally:
    os.close(fd)


def test_roles_and_limits_are_what_the_inside_takes():
  """The two sides of the sandbox agree; JSON carries all of it."""
  for name in sandbox.TIERS:
    lock = sandbox._lockdown(name, sandbox.Limits())
    assert json.loads(json.dumps(lock)) == lock
    assert set(lock) == set(lockdown.apply.__kwdefaults__ or lock)
  assert candidate.EXITS[0] == ""
