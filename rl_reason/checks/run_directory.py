"""The work directory of a run: its name, the run that it holds, its lock."""

import fcntl
import hashlib
import os
import pathlib
import re
import socket
import time
from collections.abc import Callable
from typing import IO, Any

from rl_reason.base import config as config_lib, errors, resume_rules
from rl_reason.checks import config_files
from rl_reason.checks.path_contents import content

# Of the model that the run starts from; see `stages.starting_model`.
MODEL, TOKENIZER = "origin/model", "origin/tokenizer"
MAX_NAME = 80  # characters
ENDS_SOURCE = ","  # what the path of a source never has


def default(path: str, config, given: dict[str, Any]) -> pathlib.Path:
  """`runs/<config>[-variant][,field=value ...]`: one run, one directory.

  The name leaves out fields that keep the value of the config file and fields
  that change no number. If the fields do not fit, the first ones are followed
  by the number of the others and a hash of all.

  Args:
    path: of the config, as given.
    config: with the overrides.
    given: full names of the overridden fields.
  """
  file, *variants = path.split(":")
  found = config_files.find_file(file)[0].resolve()
  presets, folder = config_files.PRESETS.resolve(), [found.stem]
  if found.is_relative_to(presets):
    folder = list(found.relative_to(presets).with_suffix("").parts)
  name, before = "-".join([*folder, *variants]), config_files.read(path)
  changed = []
  for field in sorted(given):
    value = config_lib.at(config, field)
    try:
      same = config_lib.at(before, field) == value
    except (KeyError, AttributeError):  # an argument that the file leaves out
      same = False
    if not same and not field.startswith(resume_rules.free_fields()):
      changed.append(f",{field}={text(value)}")
  full = name + "".join(changed)
  if len(full) <= MAX_NAME:
    return pathlib.Path("runs") / full
  digest, left = hashlib.sha256(full.encode()).hexdigest()[:8], len(changed)
  room = MAX_NAME - len(f",+{left}-{digest}")
  name = name[:room]
  for part in changed:
    if len(name) + len(part) <= room:
      name, left = name + part, left - 1
  return pathlib.Path("runs") / f"{name},+{left}-{digest}"


def text(value: Any) -> str:
  """A value without characters that a shell or a file system misreads."""
  if isinstance(value, (list, tuple)):
    return "+".join(map(text, value))
  shown = str(value).lower() if isinstance(value, bool) else str(value)
  return re.sub(r"[^\w.:+*@-]+", "_", shown)


def several(text: str) -> list[pathlib.Path]:
  """The work directories of 'a,b,c'; a name may contain commas.

  Raises:
    ConfigError: one of them holds no run.
  """
  fault = "--workdir = {}: holds no run (metrics.jsonl is missing)"
  return split_paths(text, lambda x: (x / "metrics.jsonl").exists(), fault)


def evaluated(text: str) -> list[pathlib.Path]:
  """The work directories that one --stage=evaluate evaluates: 'a,b,c'.

  Raises:
    ConfigError: there are several, and one of them holds no run.
  """
  if "," not in text or pathlib.Path(text).exists():
    return [pathlib.Path(text)]
  fault = "--workdir = {}: holds no run (config.json is missing)"
  paths = split_paths(text, lambda x: (x / "config.json").exists(), fault)
  return [*dict.fromkeys(paths)]


def split_paths(
    text: str, good: Callable[[pathlib.Path], bool], fault: str
) -> list[pathlib.Path]:
  """Splits a text at commas into paths that are good."""
  words, out = text.split(",") if text else [], []
  while words:
    joined = [",".join(words[:n]) for n in range(len(words), 0, -1)]
    holds = [x for x in joined if good(pathlib.Path(x))]
    if not holds:
      raise errors.ConfigError(fault.format(words[0]))
    out.append(pathlib.Path(holds[0]))
    words = words[holds[0].count(",") + 1 :]
  return out


def why_no_name(text: str) -> str:
  """Why a text is hardly meant as a work directory; '' if it may be."""
  if not text.strip():
    return (
        "is empty, perhaps an unset variable of the shell: name a directory, or"
        " leave --workdir out"
    )
  if re.match(r"[A-Za-z][\w+.-]+://", text):
    return (
        "is an address: name a directory of this machine, which may be a"
        " mounted one"
    )
  if found := re.search(r"\$(\w+|\{\w+\})", text):
    return f"the shell has not replaced {found[0]}: use double quotes, or none"
  if text[:2] == "--":
    return "is a flag: --workdir has no value"
  if re.search(r"[\x00-\x1f\x7f]", text):
    return "has characters such as an end of line: name a directory without"
  return ""


def _why_no_place(workdir: pathlib.Path) -> str:
  """Why a directory without a run takes none; '' if it may.

  A variable of the shell that is not set leaves '/', the home directory, or the
  folder of all runs.
  """
  try:
    runs = [x.parent.name for x in workdir.glob("*/metrics.jsonl")]
    runs = [x for x in runs if (workdir / x / "config.json").is_file()]
    place, home = workdir.resolve(), pathlib.Path.home().resolve()
  except (OSError, RuntimeError):  # said where it is created
    return ""
  of_others = {
      "the root of the file system": place == place.parent,
      "the home directory": place == home,
      f"the folder of other runs ({', '.join(runs[:3])})": bool(runs),
  }
  what = next((x for x, is_it in of_others.items() if is_it), "")
  hint = "perhaps a variable of the shell is not set: name a directory of its"
  return what and f"is {what}; {hint} own for the run"


# Stage -> fields that it may have other than the run: an evaluation has other
# sets, difficulties, lengths, sampling or reward functions; samples are graded
# with other rewards.
OTHERS = {
    "evaluate": (
        *("data.", "evaluate.", "reward.functions"),
        *resume_rules.elsewhere(),
    ),
    "generate": ("reward.",),
}


def check(workdir: pathlib.Path, config, stage: str = "all") -> None:
  """Checks that a work directory holds no run, or one with the same numbers.

  Args:
    workdir: as given.
    config: of the run that is about to begin or to resume.
    stage: of `run.STAGES`.

  Raises:
    ConfigError: it holds a run of another config.
  """
  saved = workdir / "config.json"
  if workdir.exists() and not workdir.is_dir():
    raise errors.ConfigError(
        f"--workdir = {workdir}: is a file; name a directory, which may be new"
    )
  if not saved.exists():
    if why := _why_no_place(workdir):
      raise errors.ConfigError(f"--workdir = {workdir}: {why}")
    return
  old, new = config_lib.load(saved), config_lib.flat(config)
  for name in resume_rules.movable():
    if old.get(name) != new[name] and f"content.{name}" in old:
      new[f"content.{name}"] = content(config, name)
  differ = resume_rules.differences(old, new)
  differ = [x for x in differ if not x.startswith(OTHERS.get(stage, ()))]
  if differ:
    raise errors.ConfigError(
        f"--workdir = {workdir}: holds a run of another config"
        f" ({'; '.join(differ)}); choose another --workdir or remove it"
    )


# Fields that decide the rows of `--stage=prepare`, besides the tokenizer.
ROWS = ("data.", "rollout.max_prompt", "rollout.max_tokens")
NOT_EVALUATED = ("data.train", "data.limit", "data.max_corrupt")


def has_rows(workdir: pathlib.Path, config) -> bool:
  """Whether a work directory has the evaluation rows that a config asks for.

  They are the rows of its run, where data.evaluate is as it was or is gone.
  """
  saved, name = workdir / "config.json", "data.evaluate"
  if not saved.exists() or not (workdir / "data" / "data.json").exists():
    return False
  old, new = config_lib.load(saved), config_lib.flat(config)
  same = all(
      old.get(x) == value
      for x, value in new.items()
      if x.startswith(ROWS) and x not in NOT_EVALUATED
  )
  return same and content(config, name) in ("", old.get(f"content.{name}", ""))


def lock(workdir: pathlib.Path, say: Callable[[str], None]) -> IO[str]:
  """Locks a work directory until the returned file is closed.

  The kernel releases the lock when the process ends, also if it is killed.

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
    raise errors.ConfigError(
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
