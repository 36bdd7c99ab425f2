"""Host memory of a process that loads a checkpoint."""

import subprocess
import sys

import jax.numpy as jnp
import pytest
from checkpoints import checkpoint
from conftest import ROOT, child_env

pytestmark = pytest.mark.slow


def test_loading_holds_few_tensors_at_a_time(tmp_path):
  """Peak memory for 24 layers, beyond the parameters themselves.

  Measured at 3 to 7 tensors; a whole stacked parameter would be 24.
  """
  width, layers = 1024, 24
  change = dict(
      hidden_size=width,
      intermediate_size=4 * width,
      num_hidden_layers=layers,
      attention_bias=False,
      mlp_bias=False,
      tie_word_embeddings=True,
  )
  path = checkpoint(tmp_path / "x", "llama", jnp.bfloat16, 2, **change)
  code = f"""
import pathlib, jax
from rl_reason import hf
from rl_reason.models import decoder
from rl_reason.devices import device_mesh
def peak():  # of this process alone: getrusage includes its parent's
  lines = pathlib.Path("/proc/self/status").read_text().splitlines()
  return 1024 * int(next(x for x in lines if "VmHWM" in x).split()[1])
def load(path):
  source = hf.find(path)
  return hf.load(source, decoder.table(source.cfg), device_mesh.make_mesh())
load({str(checkpoint(tmp_path / "small", "llama"))!r})
before = peak()
params = load({str(path)!r})
print(peak() - before, sum(x.nbytes for x in jax.tree.leaves(params)))
"""
  process = subprocess.run(
      [sys.executable, "-c", code],
      cwd=ROOT,
      env=child_env(),
      capture_output=True,
      text=True,
      check=True,
  )
  growth, parameters = map(int, process.stdout.split())
  tensor = 4 * 4 * width * width  # the largest, in fp32
  assert parameters > 60 * tensor
  assert growth - parameters < 12 * tensor, (growth - parameters) / tensor
