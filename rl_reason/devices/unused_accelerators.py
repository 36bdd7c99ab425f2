"""Detects accelerators that JAX does not use, and says what to install."""

import importlib.util
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Mapping
from typing import Any

PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
CUDA13 = 580  # the oldest driver of CUDA 13


def unused_accelerator(
    backend: str,
    root: pathlib.Path = pathlib.Path("/"),
    *,
    environ: Mapping[str, str] = os.environ,
    which: Callable[[str], Any] = shutil.which,
    installed: Callable[[str], Any] = importlib.util.find_spec,
) -> str:
  """A warning if a run on the CPU could use an accelerator, or ''.

  Args:
    backend: `jax.default_backend()`.
    root: root of the file system.
    environ: environment variables.
    which: finds a program.
    installed: finds a Python package.
  """
  if backend != "cpu":
    return ""
  driver = root / "proc" / "driver" / "nvidia" / "version"
  tpu = [*root.glob("dev/accel[0-9]*"), *root.glob("dev/vfio/[0-9]*")]
  if list(root.glob("dev/nvidia[0-9]*")) or driver.exists():
    device = "an NVIDIA GPU"
  elif which("nvidia-smi"):
    device = "nvidia-smi, so probably an NVIDIA GPU"
  elif tpu:
    device = "a TPU"
  else:
    return ""
  if "cpu" in environ.get("JAX_PLATFORMS", ""):
    remedy = "unset the environment variable JAX_PLATFORMS to use it"
  elif device == "a TPU":
    remedy = "pip install 'jax[tpu]'"
    if installed("libtpu"):
      remedy = "JAX could not open it: another process may hold it"
  elif any(map(installed, PLUGINS)):
    remedy = "JAX could not open it: see its message above, and nvidia-smi"
  else:
    text = driver.read_text() if driver.exists() else ""
    version = re.search(r"\b(\d{3})\.\d+", text)
    old = version and int(version[1]) < CUDA13
    remedy = f"pip install 'jax[cuda{12 if old else 13}]'"
    if not version:
      remedy += " ([cuda12] for a driver before 580)"
  return f"this run is on the CPU, and the machine has {device}: {remedy}"
