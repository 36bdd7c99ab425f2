"""The machine and the versions of a run: machine.json."""

import importlib.metadata
import os
import pathlib
import platform
import subprocess
from typing import Any

import jax

import rl_reason
from rl_reason.base import json_files

PACKAGES = (
    *("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain"),
    *("transformers", "numpy"),
)
FILE, OLD_FILE = "machine.json", "environment.json"


def read(workdir: pathlib.Path) -> dict[str, Any]:
  """The machine of the last start of a run, as `describe`; {} if unknown.

  Earlier versions wrote the file environment.json.
  """
  for path in (workdir / FILE, workdir / OLD_FILE):
    if found := json_files.read_object(path):
      return found
  return {}


def describe(model: pathlib.Path | None = None) -> dict[str, Any]:
  """The machine, devices, versions and git commit, by name.

  Args:
    model: the local directory of model.path, whose commit is added if it is of
      the hub.
  """
  devices = jax.devices()
  return {
      "python": platform.python_version(),
      "platform": platform.platform(),
      "cpu model": _cpu_model(),
      "cpu count": os.cpu_count(),
      "backend": jax.default_backend(),
      "device kind": devices[0].device_kind,
      "device count": len(devices),
      "process count": jax.process_count(),
      "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
      "rl_reason": rl_reason.__version__,
      "git commit": commit(pathlib.Path(__file__).parent),
      "model commit": hub_commit(model),
  } | {name: importlib.metadata.version(name) for name in PACKAGES}


def hub_commit(directory: pathlib.Path | None) -> str | None:
  """The commit of a directory in the cache of the hub; None of others."""
  if directory is None or directory.parent.name != "snapshots":
    return None
  return directory.name


def _cpu_model() -> str:
  cpuinfo = pathlib.Path("/proc/cpuinfo")  # only Linux has it
  lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
  names = [x.partition(":")[2] for x in lines if x.startswith("model name")]
  return names[0].strip() if names else platform.machine()


def commit(folder: pathlib.Path) -> str | None:
  """The git commit of a package, with '-dirty' if it was edited since.

  Data and pages that studies write are no edits.
  """
  git = ["git", "--no-optional-locks", "-C", str(folder)]
  edits = ["status", "--porcelain", "--untracked-files=no", "--", ":/"]
  written = [
      f":(top,exclude,glob)studies/*/*.{x}" for x in ("json", "md", "png")
  ]
  out = []
  for command in (
      ["rev-parse", "HEAD:./__init__.py"],  # fails outside of the repository
      ["rev-parse", "HEAD"],
      [*edits, ":(top,exclude)results", *written],
  ):
    try:
      done = subprocess.run(
          [*git, *command],
          capture_output=True,
          check=True,
          text=True,
          timeout=5,
      )
    except (OSError, subprocess.SubprocessError):
      return None
    out.append(done.stdout.strip())
  return out[1] + "-dirty" * bool(out[2])
