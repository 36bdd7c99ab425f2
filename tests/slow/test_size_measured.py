"""Estimates of --stage=size beside the memory that programs take on a CPU."""

import json
import subprocess
import sys

import pytest
from conftest import child_env

pytestmark = pytest.mark.slow

# Compiles as the stage does, then runs the programs on arrays of ones.
CHILD = """
import ctypes, gc, json, sys
import jax, jax.numpy as jnp
from rl_reason.checks import config_checks
from rl_reason.configs import grpo
from rl_reason.monitoring.display import Display
from rl_reason.devices import device_mesh
from rl_reason.stages.model import Model, critic_config
from rl_reason.lab import (
    compiled_memory, memory_formula, model_shapes, size as size_stage
)

part, option = sys.argv[1:]
c = grpo.get_config()
c.model.update(layers=4, width=512, heads=8, kv_heads=4, head_dim=64, mlp=1536)
c.model.update(logprob_chunk=256)
c.rollout.update(batch=32, group_size=4, max_prompt=12, max_tokens=500)
c.updates.update(minibatches=2, token_budget=4096)
if part == "update":
  c.model.remat = option
else:  # long rows, so that the cache is most of the memory
  c.rollout.update(batch=128, max_tokens=1000, cache=option)
config_checks.fields(c)
cfg = model_shapes.shape(c)
value = critic_config(c, cfg)
mesh = device_mesh.make_meshes(**c.mesh)[0]
size = memory_formula.estimate(c, cfg, value, mesh, backend="cpu")
model = Model(cfg, value, mesh)

def status(name):
  lines = open("/proc/self/status").read().splitlines()
  [line] = [x for x in lines if x.startswith(name)]
  return 1024 * int(line.split()[1])

def one(x):
  if not hasattr(x, "dtype"):
    return x
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    return jax.random.key(0)
  return jax.device_put(jnp.ones(x.shape, x.dtype), x.sharding)

def made(args):
  out = jax.block_until_ready(jax.tree.map(one, args))
  open("/proc/self/clear_refs", "w").write("5")
  return out

def fresh():
  gc.collect()
  ctypes.CDLL("libc.so.6").malloc_trim(0)
  return status("VmRSS")

resident = size.resident["initial parameters"]
if part == "update":
  program, args = compiled_memory.update(c, model, Display(False))
  before = fresh()
  args = made(args)
  jax.block_until_ready(program(*args))
  estimate = size.update_peak - resident
  peak = compiled_memory.peak(program)
else:
  programs = list(compiled_memory.rollout(c, model))
  start, decode, finish = programs
  before = fresh()
  args = made(start[1])
  queue, slots = jax.block_until_ready(start[0](*args))
  queue, slots, _ = jax.block_until_ready(decode[0](args[0], queue, slots))
  jax.block_until_ready(finish[0](args[1], None, queue))
  estimate = size.rollout_peak - resident - size.resident["optimizer state"]
  peak = compiled_memory.sampler_peak(programs)
print(json.dumps(dict(
    measured=status("VmHWM") - before, compiled=peak, formula=estimate,
)))
"""


@pytest.mark.parametrize(
    ("part", "option"),
    [
        ("update", "full"),
        ("update", "dots"),
        ("update", "none"),
        ("update", "sqrt"),
        ("rollout", "same"),
        ("rollout", "int8"),
    ],
)
def test_estimates_are_within_15_percent_of_what_is_measured(part, option):
  done = subprocess.run(
      [sys.executable, "-c", CHILD, part, option],
      env=child_env() | {"XLA_FLAGS": ""},
      capture_output=True,
      check=False,
      text=True,
  )
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout.splitlines()[-1])
  for name in ("compiled", "formula"):
    assert found[name] == pytest.approx(found["measured"], rel=0.15), found
  assert found["measured"] > 200 << 20
