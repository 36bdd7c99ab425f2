"""A run on a CPU beside an unused accelerator says so, with the remedy."""

import re

import pytest
import tiny_session

from rl_reason.devices import unused_accelerators
from rl_reason.monitoring import display
from rl_reason.stages import model

DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}.54.15  Tue Mar\n"


@pytest.mark.parametrize(
    ("files", "found", "words"),
    [
        ({}, [], ""),
        ({"dev/null": ""}, [], ""),
        (
            {"dev/nvidia0": ""},
            [],
            r"NVIDIA GPU: pip install 'jax\[cuda13\]'",
        ),
        ({"proc/driver/nvidia/version": DRIVER.format(550)}, [], "cuda12"),
        ({"proc/driver/nvidia/version": DRIVER.format(580)}, [], "cuda13"),
        ({"dev/nvidia0": ""}, ["jax_cuda12_plugin"], "could not open it"),
        ({}, ["nvidia-smi"], "nvidia-smi, so probably an NVIDIA GPU"),
        ({"dev/accel0": ""}, [], r"a TPU: pip install 'jax\[tpu\]'"),
        ({"dev/vfio/0": ""}, ["libtpu"], "a TPU: .*another process"),
    ],
)
def test_an_unused_accelerator_is_named(tmp_path, files, found, words):
  for name, text in files.items():
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
  how = dict(which=found.__contains__, installed=found.__contains__)

  def line(backend, **environ):
    return unused_accelerators.unused_accelerator(
        backend, tmp_path, environ=environ, **how
    )

  assert line("gpu") == line("tpu") == ""
  if not words:
    assert line("cpu") == ""
    return
  assert line("cpu").startswith("this run is on the CPU, and the machine has")
  assert re.search(words, line("cpu"))
  assert "unset" in line("cpu", JAX_PLATFORMS="cpu")


def test_a_session_says_it(tmp_path, monkeypatch):
  lines = []
  monkeypatch.setattr(display.Display, "say", lambda _, x: lines.append(x))
  monkeypatch.setattr(
      model.unused_accelerators,
      "unused_accelerator",
      lambda backend: f"{backend}: a GPU",
  )
  tiny_session.make_session(tmp_path)
  assert "warning: cpu: a GPU" in lines
