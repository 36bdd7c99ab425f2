"""The rights that a sandboxed process gives up before it runs a program.

Runs inside the sandbox in a fresh interpreter. It limits resources first, then
identity, files and system calls; no step can be undone. No remaining system
call starts a process, so that a limit of the process is a limit of the sandbox,
and killing the process ends the sandbox.
"""

import ctypes
import os
import resource
import signal
import struct

# System calls for files, memory, time and threads, and none that reaches
# another process, the network or the machine. Other calls fail with ENOSYS, as
# on an older kernel, so that the C library uses its fallbacks (clone3). There
# is no chmod, chown, utime or truncate by path, since Landlock does not check
# these. The only sockets are connected pairs, which asyncio needs; without
# sendmsg they cannot pass descriptors.
_ALLOWED = """
  read 0 write 1 open 2 close 3 stat 4 fstat 5 lstat 6 poll 7 lseek 8 mmap 9
  mprotect 10 munmap 11 brk 12 rt_sigaction 13 rt_sigprocmask 14
  rt_sigreturn 15 pread64 17 pwrite64 18 readv 19 writev 20 access 21
  pipe 22 select 23 sched_yield 24 mremap 25 madvise 28 dup 32 dup2 33 pause 34
  nanosleep 35 getitimer 36 alarm 37 setitimer 38 getpid 39 sendfile 40
  sendto 44 recvfrom 45 exit 60
  wait4 61 uname 63 fsync 74 fdatasync 75 ftruncate 77 getdents 78 getcwd 79
  chdir 80 fchdir 81 rename 82 mkdir 83 rmdir 84 creat 85 link 86 unlink 87
  symlink 88 readlink 89 umask 95 gettimeofday 96 getrlimit 97 getrusage 98
  sysinfo 99 times 100 getuid 102 getgid 104 geteuid 107 getegid 108
  getppid 110 getpgrp 111 getgroups 115 getresuid 118 getresgid 120
  getpgid 121 getsid 124 rt_sigpending 127 rt_sigtimedwait 128
  rt_sigsuspend 130 sigaltstack 131 statfs 137 fstatfs 138 arch_prctl 158
  gettid 186 time 201 futex 202 sched_getaffinity 204 epoll_create 213
  getdents64 217 set_tid_address 218 restart_syscall 219 fadvise64 221
  clock_gettime 228 clock_getres 229 clock_nanosleep 230 exit_group 231
  epoll_wait 232 epoll_ctl 233 waitid 247 openat 257 mkdirat 258
  newfstatat 262 unlinkat 263 renameat 264 readlinkat 267 faccessat 269
  pselect6 270 ppoll 271 set_robust_list 273 epoll_pwait 281 eventfd2 290
  epoll_create1 291 dup3 292 pipe2 293 preadv 295 pwritev 296 getcpu 309
  renameat2 316 getrandom 318 membarrier 324 copy_file_range 326 statx 332
  rseq 334 close_range 436 openat2 437 faccessat2 439
"""
_CLONE, _KILL, _FCNTL, _TGKILL, _PRLIMIT = 56, 62, 72, 234, 302
_SOCKETPAIR, _AF_UNIX, _STREAM = 53, 1, 0x80001  # closed on exec
_CLONE_THREAD = 0x10000
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15  # aim a signal at a process
# Requests about terminals, available bytes, blocking, and closing on exec.
# Requests about sockets could direct signals and reveal the network.
_IOCTL, _IOCTLS = 16, [0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451]
_X86_64 = 0xC000003E
_ALLOW, _REFUSE, _DIE = 0x7FFF0000, 0x00050000 | 38, 0x80000000  # ENOSYS
# Opcodes of classic BPF: load a word; jump if equal, if a bit is set; return.
_LOAD, _JEQ, _JSET, _RETURN = 0x20, 0x15, 0x45, 0x06
_NR, _ARCH, _ARGS = 0, 4, 16  # offsets in struct seccomp_data

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_CAPSET, _CAPABILITY_VERSION_3 = 126, 0x20080522
# The access rights of the first version of Landlock, all of them handled.
_EVERYTHING = (1 << 13) - 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_LIBC = ctypes.CDLL(None, use_errno=True)


def _call(function, *args) -> int:
  words = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
  result = function(*words)
  if result < 0:
    number = ctypes.get_errno()
    raise OSError(number, f"{os.strerror(number)} in the sandbox's lockdown")
  return result


def seccomp_filter(pid: int) -> bytes:
  """The filter that the kernel runs before each system call (x86-64).

  The process with the id `pid` may send signals only to itself.
  """

  def returns(value):
    return [(_RETURN, 0, 0, value)]

  def choose(arg, jump, values, then, otherwise):
    """`then` if a jump on an argument is taken for one of the values."""
    body = [(_LOAD, 0, 0, _ARGS + 8 * arg)]  # the low word; the high word is 0
    for index, value in enumerate(values, 1):
      body.append((jump, len(values) - index + len(otherwise), 0, value))
    return [*body, *otherwise, *then]

  allow, refuse = returns(_ALLOW), returns(_REFUSE)
  streams = choose(1, _JEQ, [_STREAM], allow, refuse)
  aims = [_F_SETOWN, _F_SETSIG, _F_SETOWN_EX]
  program = [(_LOAD, 0, 0, _ARCH), (_JEQ, 1, 0, _X86_64), *returns(_DIE)]
  program += [(_LOAD, 0, 0, _NR)]
  for number in map(int, _ALLOWED.split()[1::2]):
    program += [(_JEQ, 0, 1, number), *allow]
  for number, body in (
      (_CLONE, choose(0, _JSET, [_CLONE_THREAD], allow, refuse)),
      (_SOCKETPAIR, choose(0, _JEQ, [_AF_UNIX], streams, refuse)),
      (_KILL, choose(0, _JEQ, [pid], allow, refuse)),
      (_TGKILL, choose(0, _JEQ, [pid], allow, refuse)),
      (_IOCTL, choose(1, _JEQ, _IOCTLS, allow, refuse)),
      (_PRLIMIT, choose(0, _JEQ, [0], allow, refuse)),
      (_FCNTL, choose(1, _JEQ, aims, refuse, allow)),
  ):
    program += [(_JEQ, 0, len(body), number), *body]
  program += refuse
  return b"".join(struct.pack("=HBBI", *row) for row in program)


def _seccomp() -> None:
  program = ctypes.create_string_buffer(seccomp_filter(os.getpid()))
  length = (len(program) - 1) // 8
  header = struct.pack("@HP", length, ctypes.addressof(program))
  _call(_LIBC.prctl, _PR_SET_SECCOMP, 2, ctypes.create_string_buffer(header))


def _landlock(paths: list[str]) -> None:
  """Leaves only `paths` readable and /dev/null writable."""
  attributes = ctypes.create_string_buffer(struct.pack("=Q", _EVERYTHING))
  rules = _call(_LIBC.syscall, _LANDLOCK_CREATE, attributes, 8, 0)
  for path in ["/dev/null", *paths]:
    if not os.path.exists(path):
      continue
    rights = _READ_FILE | (_WRITE_FILE if path == "/dev/null" else _EXECUTE)
    if os.path.isdir(path):
      rights |= _READ_DIR
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, fd))
    _call(_LIBC.syscall, _LANDLOCK_ADD, rules, 1, rule, 0)
    os.close(fd)
  _call(_LIBC.syscall, _LANDLOCK_RESTRICT, rules, 0)
  os.close(rules)


def _drop_capabilities() -> None:
  """Drops all capabilities, of root and of root in a container."""
  header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
  none = ctypes.create_string_buffer(24)
  _call(_LIBC.syscall, _CAPSET, ctypes.create_string_buffer(header), none)


def apply(
    *,
    cpu: int,
    memory: int,
    threads: int | None,
    files: int,
    file_bytes: int,
    uid: int | None,
    landlock: list[str] | None,
    seccomp: bool,
    parent: int | None,
) -> None:
  """Applies all limits irrevocably.

  Args:
    cpu: seconds of CPU time; one second later SIGKILL follows SIGXCPU.
    memory: bytes of address space.
    threads: maximum number of threads of the user; None for no limit.
    files: maximum number of open files.
    file_bytes: maximum size of a file that is written.
    uid: real user id to take, if the process is root.
    landlock: paths that stay readable; None if mounts limit the files.
    seccomp: whether system calls are filtered.
    parent: process id; the process ends with this process. None if bubblewrap
      takes care of that.

  Raises:
    OSError: the kernel refuses.
  """
  for limit, soft, hard in (
      (resource.RLIMIT_CPU, cpu, cpu + 1),
      (resource.RLIMIT_AS, memory, memory),
      (resource.RLIMIT_NOFILE, files, files),
      (resource.RLIMIT_FSIZE, file_bytes, file_bytes),
      (resource.RLIMIT_CORE, 0, 0),
      (resource.RLIMIT_MEMLOCK, 0, 0),
  ):
    resource.setrlimit(limit, (soft, hard))
  signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an OSError instead
  if threads is not None:
    resource.setrlimit(resource.RLIMIT_NPROC, (threads, threads))
  if uid is not None:
    # The kernel does not count root's processes against RLIMIT_NPROC. Root
    # stays the effective user, since only root may be able to read Python.
    os.setresuid(uid, 0, 0)
  _drop_capabilities()
  _call(_LIBC.prctl, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
  if parent is not None:
    _call(_LIBC.prctl, _PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
      raise OSError("the parent is gone")
  if landlock is not None:
    _landlock(landlock)
  if seccomp:
    _seccomp()
