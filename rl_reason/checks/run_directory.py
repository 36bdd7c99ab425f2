"""The work directory of a run: its name, its lock, and what may move.

Nothing here imports jax, so that an error appears within half a second.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from typing import IO, Any

import ml_collections

from rl_reason import tasks
from rl_reason.base import config as config_lib, dependencies, functions
from rl_reason.data import datasets

MAX_NAME = 80  # characters
NO_SOURCE = ",*(@"  # not in paths that are a source of rows, or a reward
# Files of a model or a tokenizer that decide a number.
MODEL_FILES = (".safetensors", ".json", ".jinja", ".txt", ".model")
# A larger file is compared by this many blocks, spread evenly over it.
BLOCK, BLOCKS = 1 << 20, 64


def default(path: str, config, given: dict[str, Any]) -> pathlib.Path:
  """`runs/<config>[-variant][,field=value ...]`: one run, one directory.

  Fields with the value that the config file sets anyway, and those that change
  no number, are left out; of many fields, those that fit are followed by the
  number of the others and a hash of all.

  Args:
    path: of the config, as given.
    config: with the overrides.
    given: full names of the overridden fields.
  """
  file, *variants = path.split(":")
  found, installed = config_lib.find_file(file)[0].resolve(), config_lib.PRESETS
  folder = [found.stem]
  if found.is_relative_to(installed.resolve()):
    folder = list(found.relative_to(installed.resolve()).with_suffix("").parts)
  name, before = "-".join([*folder, *variants]), config_lib.read(path)
  changed = []
  for field in sorted(given):
    value = config_lib.at(config, field)
    try:
      same = config_lib.at(before, field) == value
    except (KeyError, AttributeError):  # an argument that the file leaves out
      same = False
    if not same and not field.startswith(dependencies.FREE):
      changed.append(f",{field}={_text(value)}")
  full = name + "".join(changed)
  if config.rounds.count:  # names of their files stand in data.train and such
    full = full.translate(dict.fromkeys(map(ord, NO_SOURCE), "+"))
  if len(full) <= MAX_NAME:
    return pathlib.Path("runs") / full
  digest, left = hashlib.sha256(full.encode()).hexdigest()[:8], len(changed)
  if config.rounds.count:
    return pathlib.Path("runs") / f"{name}+{digest}"
  room = MAX_NAME - len(f",+{left}-{digest}")
  name = name[:room]
  for part in changed:
    if len(name) + len(part) <= room:
      name, left = name + part, left - 1
  return pathlib.Path("runs") / f"{name},+{left}-{digest}"


def _text(value: Any) -> str:
  """A value without what a shell or a file system would misread."""
  if isinstance(value, tuple):
    return "+".join(map(_text, value))
  text = str(value).lower() if isinstance(value, bool) else str(value)
  return re.sub(r"[^\w.:+*@-]+", "_", text)


def several(text: str) -> list[pathlib.Path]:
  """The work directories of 'a,b,c'; a name may have commas of its own.

  Raises:
    ConfigError: one of them holds no run.
  """
  words, out = text.split(","), []
  while words:
    joined = [",".join(words[:n]) for n in range(len(words), 0, -1)]
    holds = [x for x in joined if (pathlib.Path(x) / "metrics.jsonl").exists()]
    if not holds:
      raise config_lib.ConfigError(
          f"--workdir = {words[0]}: holds no run (metrics.jsonl is missing)"
      )
    out.append(pathlib.Path(holds[0]))
    words = words[holds[0].count(",") + 1 :]
  return out


def check(workdir: pathlib.Path, config, *, evaluates: bool = False) -> None:
  """Checks that a work directory holds no run, or one with the same numbers.

  Args:
    workdir: as given.
    config: of the run that is to begin, or to be resumed.
    evaluates: the run is only evaluated, on other sets or with other sampling.

  Raises:
    ConfigError: it holds a run of another config.
  """
  saved = workdir / "config.json"
  if not saved.exists():
    return
  old, new = config_lib.load(saved), config_lib.flat(config)
  for name in dependencies.MOVABLE:
    if old.get(name) != new[name] and f"content.{name}" in old:
      new[f"content.{name}"] = content(config, name)
  differ = dependencies.differences(old, new)
  if evaluates:
    differ = [x for x in differ if not x.startswith(("data.", "evaluate."))]
  if differ:
    raise config_lib.ConfigError(
        f"--workdir = {workdir}: holds a run of another config"
        f" ({'; '.join(differ)}); choose another --workdir or remove it"
    )


def refuse_code(where: str, fields: Mapping[str, Any]) -> None:
  """Refuses a config that comes with files and names code to import.

  Work directories and checkpoints are passed on. What a stranger's file names
  is not run, unless the user's own config names it, too.

  Args:
    where: the file, for the error.
    fields: flat, as read from it.

  Raises:
    ConfigError: a field names a module.
  """
  names = [f"{known.field}.name" for known in functions.KINDS.values()]
  names += ["log.loggers", "reward.functions", "serve.filter"]
  found = [x for x in names if ":" in str(fields.get(x, ""))]
  # Their keys are files, whose names may have a colon.
  for name in ("data.kind", "data.template"):
    values = [x.rpartition("=")[2] for x in str(fields.get(name)).split(",")]
    found += [name] * any(":" in x for x in values)
  if fields.get("rollout.engine.args.transfer"):  # a module, or a part of it
    found.append("rollout.engine.args.transfer")
  rules = re.findall(r"[^,]*\.json", str(fields.get("reward.functions", "")))
  if any(_names_functions(pathlib.Path(x.strip())) for x in rules):
    found.append("reward.functions")
  if fields.get("task.name", tasks.FILES) not in (*tasks.NAMES, tasks.FILES):
    found.append("task.name")
  if fields.get("environment.name", "") not in ("", *tasks.NAMES):
    found.append("environment.name")
  if found:
    shown = "; ".join(f"{name} = {fields[name]!r}" for name in found)
    raise config_lib.ConfigError(
        f"{where}: names code to import ({shown}), which only a config of your"
        " own may do: give --config and its overrides, too"
    )


def _names_functions(path: pathlib.Path) -> bool:
  """Whether a constitution has rules that are functions."""
  try:
    rules = json.loads(path.read_text(encoding="utf-8"))
  except (OSError, ValueError):  # refused where it is read
    return False
  return '"function":' in json.dumps(rules)


# --- what is behind a path ---------------------------------------------------


def record(config: ml_collections.ConfigDict, model: Any = None) -> None:
  """Adds to the config what its paths contain, so that they may move.

  Args:
    config: gets fields such as content.model.path.
    model: the local directory of model.path, if that is the id of a hub.
  """
  found = {
      f"content.{name}": digest
      for name in dependencies.MOVABLE
      if (digest := content(config, name))
  }
  if config.model.path and model:
    found["content.model.path"] = _digest([model], MODEL_FILES)
  with config.unlocked():
    config.update(config_lib.unflat(found))


def content(config, name: str) -> str:
  """A hash of the local files that a field names; '' if there are none."""
  value = config_lib.at(config, name)
  if name.startswith("data.") or name.endswith(".samples"):
    use = "test" if name == "data.evaluate" else "train"
    parsed, parts = datasets.parse_all(value, use), []
    for source, weight in parsed:
      if not pathlib.Path(source.place).exists():
        return ""
      files = [path for _, path in datasets.files(source)]
      parts.append(f"{source.name}:{source.split}*{weight} {_digest(files)}")
    return " ".join(parts)
  root = pathlib.Path(value)
  if not value or not root.exists():
    return ""
  if name.endswith(".reuse"):  # a work directory, in which more may happen
    stages = ("value",) if name == "critic.reuse" else ("skill", "habits")
    return _digest([root / "checkpoints" / stage for stage in stages])
  return _digest([root], () if name == "critic.path" else MODEL_FILES)


def _digest(roots: list[pathlib.Path], suffixes: tuple[str, ...] = ()) -> str:
  """A hash of files: of each its name, its size, and (blocks of) its bytes.

  It is '' if there are none.

  Args:
    roots: files and directories, which may be missing.
    suffixes: of the files of directories that count; () for all.
  """
  digest, count = hashlib.sha256(), 0
  for root in roots:
    inside = sorted(x for x in root.rglob("*") if x.is_file())
    files = [x for x in inside if not suffixes or x.suffix in suffixes]
    for path in [root] if root.is_file() else files:
      count += 1
      size = path.stat().st_size
      relative = path.relative_to(root) if path != root else path.name
      digest.update(f"{relative} {size}\n".encode())
      step = max(BLOCK, (size - BLOCK) // (BLOCKS - 1))
      with path.open("rb") as f:
        for start in range(0, size, step):
          f.seek(start)
          digest.update(f.read(BLOCK))
  return digest.hexdigest()[:16] if count else ""


# --- how a run ends ----------------------------------------------------------

# Libraries that write checkpoints raise types of their own, with these words.
_FULL = {
    errno.ENOSPC: "No space left on device",
    errno.EDQUOT: "Disk quota exceeded",
    errno.EFBIG: "File too large",
}


def ending(
    error: BaseException, workdir: pathlib.Path | None
) -> tuple[int, str, bool]:
  """How a run ends that was ended by an exception.

  Args:
    error: with its causes.
    workdir: of the run; None: it is not known yet.

  Returns:
    the exit code, the line to show ('': its traceback), and whether the run
    stopped by itself; otherwise threads may still wait for what is broken.
  """
  if isinstance(error, config_lib.ConfigError):
    return 2, f"config error: {error}", True
  from rl_reason.base.errors import RunError, Stopped  # with jax

  if isinstance(error, Stopped):
    return 143, "stopped by a signal; the same command resumes the run", True
  if isinstance(error, RunError | datasets.DataError):
    return 1, f"error: {error}", True
  causes: list[BaseException | None] = [error]
  while (last := causes[-1]) is not None:
    causes.append(last.__cause__ or last.__context__)
  for cause in causes[:-1]:
    for number, words in _FULL.items():
      if getattr(cause, "errno", None) == number or words in str(cause):
        free = shutil.disk_usage(workdir or ".").free / 2**20
        return (
            1,
            f"error: {workdir}: cannot be written ({words}; {free:.0f} MiB are"
            " free). Older checkpoints are whole: free some space, and the same"
            " command resumes the run",
            False,
        )
  if isinstance(error, OSError) and error.strerror:
    what = f"{error.filename or workdir}: {error.strerror}"
  elif "RESOURCE_EXHAUSTED" in str(error):
    what = (
        "out of memory: the same command with --stage=size says what takes how"
        f" much, and docs/start.md which field helps ({_first_line(error)})"
    )
  elif type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError"):
    what = f"the device or its program failed: {_first_line(error)}"
  else:
    return 1, "", False
  if workdir:
    with contextlib.suppress(OSError):
      path = workdir / "traceback.txt"
      path.write_text("".join(traceback.format_exception(error)))
      what += f"; the traceback is in {path}"
    what += ". After a remedy the same command resumes the run"
  return 1, f"error: {what}", False


def _first_line(error: BaseException) -> str:
  return str(error).strip().partition("\n")[0][:300]


# --- one run at a time -------------------------------------------------------


def lock(workdir: pathlib.Path, say: Callable[[str], None]) -> IO[str]:
  """Locks a work directory until the returned file is closed.

  The kernel releases the lock of a process that has ended, however it ended.

  Args:
    workdir: an existing directory.
    say: gets a line if the file system has no locks.

  Raises:
    ConfigError: another process holds the lock.
  """
  file = (workdir / "lock").open("a+")
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    file.seek(0)
    owner = file.read().strip() or "unknown"
    file.close()
    raise config_lib.ConfigError(
        f"--workdir = {workdir}: another run writes to it ({owner}); wait for"
        " its end, or choose another --workdir"
    ) from None
  except OSError as e:  # some network file systems
    say(f"{workdir} cannot be locked ({e}): start no second run in it")
    return file
  file.truncate(0)
  stamp = time.strftime("%Y-%m-%d %H:%M:%S")
  file.write(f"pid {os.getpid()} on {socket.gethostname()} since {stamp}\n")
  file.flush()
  return file
