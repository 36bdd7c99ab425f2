"""The sandbox of programs that models write.

It has three tiers, and uses the best one that this machine supports:

  bubblewrap  its own namespaces for mounts, processes, network and IPC; the
              only files are the standard library, numpy if it is installed,
              and their shared libraries, read-only, and a small /tmp; ends
              with its parent
  landlock    the same files by Linux's Landlock, none of them writable
  rlimits     resource limits only: files and, except on x86-64, processes and
              network are accessible; needs `allow_unsafe`

All tiers have the limits of `Limits`, an empty environment and, on x86-64, the
filter of system calls in lockdown.py, which the first two tiers require. A tier
is used only if a probe could not escape from it.
"""

import contextlib
import fcntl
import functools
import importlib.util
import itertools
import json
import os
import pathlib
import platform
import re
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from typing import NamedTuple

from rl_reason.verifiers import candidate, progress

_ROOT = pathlib.Path(__file__).parents[2]
_PYTHON = os.path.realpath(sys.executable)
# Like -I, but with an environment, which fixes the seed of hashes: the order of
# a set must not decide a verdict. Large numbers may be printed, since the time
# is limited.
_FLAGS = ["-P", "-s", "-S", "-B", "-X", "utf8", "-X", "int_max_str_digits=0"]
# One malloc arena a thread would exhaust the address space, and so would the
# buffers of the threads of numpy's linear algebra.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "1"}
_ENVIRONMENT |= {
    f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")
}
_ENTER = f"""
import importlib, importlib.util, json, sys
sys.path.append({str(_ROOT)!r})
from rl_reason.verifiers import lockdown
with open(int(sys.argv[1])) as f:
  job = json.load(f)
sys.argv[:] = ["program.py"]
module, name = job["role"].split(".")
role = importlib.import_module("rl_reason.verifiers." + module)
sys.path.pop()
class Packages:
  def find_spec(name, path=None, target=None):
    if folder := job["packages"].get(name):
      return importlib.util.spec_from_file_location(
          name, folder + "/__init__.py", submodule_search_locations=[folder])
sys.meta_path.append(Packages)
lockdown.apply(**job["lockdown"])
getattr(role, name)(job)
"""
REMEDY = "install bubblewrap (apt-get install bubblewrap)"


class Limits(NamedTuple):
  """Resource limits of one process.

  Time is CPU time, so that a loaded machine changes no verdict. A process
  sleeps if none of its threads runs or waits for a processor or a disk.

  Attributes:
    cpu: seconds of CPU time of all threads; an integer.
    wall: seconds of wall-clock time, for cases that the next limit misses.
    idle: seconds of sleep beyond `progress.PAYS` times the CPU time. The total
      sleep is limited to `progress.IN_ALL` times this number. Programs that
      sleep run concurrently, see `progress.Places`.
    memory: bytes of address space.
    threads: maximum number of threads.
    files: maximum number of open files.
    disk: bytes of /tmp, and of one file.
    output: bytes of standard output.
  """

  cpu: int = 10
  wall: float = 120.0
  idle: float = 2.0
  memory: int = 1 << 30
  threads: int = 64
  files: int = 64
  disk: int = 16 << 20
  output: int = 16 << 20


TIERS = ("bubblewrap", "landlock", "rlimits")


@functools.cache
def packages() -> dict[str, str]:
  """Packages that programs may import, with their folders; only numpy."""
  spec = importlib.util.find_spec("numpy")
  if spec is None or not spec.origin:
    return {}
  return {"numpy": os.path.dirname(os.path.realpath(spec.origin))}


def _package_files() -> list[str]:
  """The folders of packages and of their shared libraries."""
  folders = [x for path in packages().values() for x in (path, f"{path}.libs")]
  return list(filter(os.path.isdir, folders))


def _readable() -> list[str]:
  """Files and folders that Python needs, without programs, data and /etc."""
  here = pathlib.Path(__file__).parent
  paths = [_PYTHON, *map(sysconfig.get_path, ("stdlib", "platstdlib"))]
  paths += [os.path.join(sys.base_prefix, "lib"), "/lib", "/lib64", "/usr/lib"]
  paths += ["/usr/lib64", "/etc/ld.so.cache", str(here)]
  paths += [str(here.parent / "__init__.py"), *_package_files()]
  return [path for path in dict.fromkeys(paths) if os.path.exists(path)]


@functools.cache
def _is_root() -> bool:
  """Whether the user is root of the machine, not of a user namespace."""
  uid_map = pathlib.Path("/proc/self/uid_map").read_text().split()
  return os.geteuid() == 0 and uid_map == ["0", "0", str(2**32 - 1)]


_numbers = itertools.count()


def _uid() -> int | None:
  """A user id that no other sandbox of this machine has; None unless root."""
  if not _is_root():
    return None
  return (1 << 30) + (os.getpid() % 2**22 << 7) + next(_numbers) % 2**7


def _bubblewrap(limits: Limits, stdin: int) -> list[str]:
  """Prefix of the command; `stdin` is a descriptor of the input to copy."""
  # The environment of the process has no PATH.
  program = shutil.which("bwrap") or "bwrap"
  argv = [program, "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
  if _is_root():
    # In a user namespace the process would be root's, without a thread limit.
    argv += ["--unshare-ipc", "--unshare-pid", "--unshare-net"]
    argv += ["--unshare-uts", "--unshare-cgroup-try"]
    argv += ["--cap-add", "CAP_SETUID"]
  else:
    argv += ["--unshare-all"]
  # Before all other mounts: a readable folder may be in /tmp.
  argv += ["--perms", "1777", "--size", str(limits.disk), "--tmpfs", "/tmp"]
  for path in _readable():
    argv += ["--ro-bind", path, path]
  site = pathlib.Path(sysconfig.get_path("stdlib"), "site-packages")
  if site.is_dir():
    argv += ["--tmpfs", str(site)]
    for path in _package_files():
      argv += ["--ro-bind", path, path]
    argv += ["--remount-ro", str(site)]
  argv += ["--dev-bind", "/dev/null", "/dev/null"]
  # Usually /dev/stdin is a link into /proc, which does not exist here.
  argv += ["--ro-bind-data", str(stdin), "/dev/stdin"]
  return [*argv, "--remount-ro", "/", "--chdir", "/tmp"]


def _lockdown(tier: str, limits: Limits) -> dict:
  uid = _uid()
  # Before Linux 5.14 a namespace's processes were not counted on their own.
  release = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
  counted = uid is not None or (tier == "bubblewrap" and release >= (5, 14))
  return dict(
      cpu=limits.cpu,
      memory=limits.memory,
      threads=limits.threads if counted else None,
      files=limits.files,
      file_bytes=limits.disk,
      uid=uid,
      landlock=_readable() if tier == "landlock" else None,
      seccomp=tier != "rlimits" or platform.machine() == "x86_64",
      parent=None if tier == "bubblewrap" else os.getpid(),
  )


def memory_file(content: bytes) -> int:
  """Descriptor of an anonymous read-only file; the caller closes it."""
  fd = os.memfd_create("job", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
  with open(fd, "wb", closefd=False) as f:
    f.write(content)
  seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
  fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)
  os.lseek(fd, 0, os.SEEK_SET)
  return fd


@contextlib.contextmanager
def running(
    role: str,
    job: dict,
    tier: str,
    limits: Limits,
    *,
    stdin: bytes = b"",
    errors: int = subprocess.DEVNULL,
) -> Iterator[subprocess.Popen]:
  """A process in a sandbox, which ends with the context.

  Args:
    role: `candidate.calls`, `candidate.script` or `tester.tests`. The standard
      output of `candidate.calls` is discarded; the others have a pipe.
    job: argument of the role's function, as JSON; the process inherits the file
      descriptors `read` and `write` in it.
    tier: one of TIERS.
    limits: limits of the process.
    stdin: standard input of the process.
    errors: DEVNULL, PIPE or STDOUT of subprocess, for standard error.
  """
  job = job | {"role": role, "lockdown": _lockdown(tier, limits)}
  job["packages"] = packages()
  pipe, discard = subprocess.PIPE, subprocess.DEVNULL
  fds = [job[end] for end in ("read", "write") if end in job]
  prefix: list[str] = []
  with contextlib.ExitStack() as stack:
    files = [memory_file(json.dumps(job).encode()), memory_file(stdin)]
    if tier == "bubblewrap":
      files.append(memory_file(stdin))  # with a read position of its own
      prefix = _bubblewrap(limits, files[-1])
    for fd in files:
      stack.callback(os.close, fd)
    process = subprocess.Popen(
        [*prefix, _PYTHON, *_FLAGS, "-c", _ENTER, str(files[0])],
        stdin=files[1],
        stdout=discard if role == "candidate.calls" else pipe,
        stderr=errors,
        pass_fds=(files[0], *files[2:], *fds),
        env=_ENVIRONMENT,
        cwd="/",
        start_new_session=True,
    )
  try:
    yield process
  finally:
    with contextlib.suppress(ProcessLookupError):
      # In the lowest tier the process may have started others.
      os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdout, process.stderr):
      if stream:
        stream.close()


def read(
    process: subprocess.Popen,
    limits: Limits,
    helpers: tuple[subprocess.Popen, ...] = (),
) -> tuple[bytes, str]:
  """Reads standard output up to its end.

  Args:
    process: process with a pipe for its standard output.
    limits: limits of the process.
    helpers: processes that the process may wait for.

  Returns:
    The bytes, and why reading stopped before their end: '', 'output' (too many)
    or 'timeout' (no progress).
  """
  assert process.stdout is not None
  fd, out = process.stdout.fileno(), bytearray()
  poll = select.poll()  # select.select takes no descriptor beyond 1023
  poll.register(fd, select.POLLIN)
  pids = [x.pid for x in (process, *helpers)]
  tracker = progress.Progress(pids, limits.idle, limits.wall)
  while len(out) <= limits.output:
    if not poll.poll(tracker.POLL * 1000):
      if tracker.late():
        return bytes(out), "timeout"
      continue
    part = os.read(fd, 1 << 16)
    if not part:
      return bytes(out), ""
    out += part
  return bytes(out), "output"


def death(process: subprocess.Popen, limits: Limits) -> str:
  """Why a process ended, '' if normally; the process is not reaped.

  The process has closed its output, and may still compute. Reasons other than
  '' and 'timeout' are information only, since a candidate chooses its exit
  status.
  """
  tracker = progress.Progress([process.pid], limits.idle, limits.wall)
  options = os.WEXITED | os.WNOWAIT | os.WNOHANG
  while not (end := os.waitid(os.P_PID, process.pid, options)):
    if tracker.late():
      return "timeout"
    time.sleep(0.002)
  code = end.si_status
  # bubblewrap reports a signal as 128 + its number.
  number = code - 128 if end.si_code == os.CLD_EXITED else code
  if number in (signal.SIGXCPU, signal.SIGKILL):
    return "timeout"
  if end.si_code == os.CLD_EXITED and code <= 128:
    return candidate.EXITS.get(code, "error")
  return "crash"


# Attempts that must fail in a sandbox; an attempt that succeeds is printed.
_PROBE = """
import os, socket
def attempt(name, function, *args):
  try:
    function(*args)
  except OSError:
    return
  print(name, flush=True)
attempt("reads files", os.listdir, "/home")
attempt("reads files", open, "/etc/passwd")
attempt("writes files", open, {here!r}, "a")
attempt("opens sockets", socket.socket)
attempt("signals others", os.kill, os.getppid(), 0)
attempt("starts processes", lambda: os.fork() or os._exit(0))
print("done")
"""


@functools.cache
def probe(name: str) -> str:
  """Why a tier cannot be used on this machine; '' if it can."""
  if not sys.platform.startswith("linux"):
    return "not Linux"
  if name != "rlimits" and platform.machine() != "x86_64":
    return f"no filter of system calls for {platform.machine()}"
  if name == "bubblewrap" and not shutil.which("bwrap"):
    return f"bwrap is not installed: {REMEDY}"
  job, limits = {"program": _PROBE.format(here=__file__)}, Limits()
  pipe = subprocess.PIPE
  try:
    with running("candidate.script", job, name, limits, errors=pipe) as process:
      out, ended = read(process, limits)
      assert process.stderr is not None
      error = process.stderr.read(10_000) if not ended else b""
  except OSError as e:  # it cannot be started at all
    return str(e)
  *leaks, last = out.decode().split("\n")[:-1] or [""]
  if last != "done":
    lines = error.decode(errors="replace").strip().splitlines()
    return (lines or [ended or "it does not start"])[-1]
  if name == "rlimits" or not leaks:
    return ""
  return f"leaks: {', '.join(dict.fromkeys(leaks))}"


def tier(name: str | None = None, *, allow_unsafe: bool = False) -> str:
  """Returns the best tier of this machine.

  Args:
    name: the only acceptable one of TIERS; None accepts any.
    allow_unsafe: whether resource limits alone are acceptable.

  Raises:
    RuntimeError: this machine supports no acceptable tier.
  """
  why = []
  for each in TIERS:
    if each == "rlimits" and not allow_unsafe:
      problem = "needs allow_unsafe=True of code.grade, which no run gives"
    else:
      problem = probe(each)
    if not problem and name in (None, each):
      return each
    why.append(f"{each}: {problem or 'not asked for'}")
  raise RuntimeError(
      f"nothing on this machine can contain untrusted code ({'; '.join(why)}):"
      f" {_remedy()}"
  )


def _remedy() -> str:
  """What makes a tier other than rlimits work on this machine."""
  if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
    return "use Linux on x86-64"
  if not shutil.which("bwrap"):
    return REMEDY
  return (
      "allow user namespaces to this user, which bubblewrap needs, or use a"
      " kernel with Landlock (Linux 5.13 or later)"
  )
