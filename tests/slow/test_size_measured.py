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
from rl_reason import checks
from rl_reason.configs import grpo
from rl_reason.monitoring.display import Display
from rl_reason.scale import sharding
from rl_reason.session import critic_config
from rl_reason.size import command, compiled, formula, shapes

c = grpo.get_config()
c.model.update(layers=4, width=512, heads=8, kv_heads=4, head_dim=64, mlp=1536)
c.model.update(remat=sys.argv[1], logprob_chunk=256)
c.rollout.update(batch=32, group_size=4, max_prompt=12, max_tokens=500)
c.updates.update(minibatches=2, token_budget=4096)
checks.fields(c)
cfg = shapes.shape(c)
value = critic_config(c, cfg)
mesh = sharding.make_mesh(**c.mesh)
size = formula.estimate(c, cfg, value, mesh)
session = command._session(c, cfg, value, mesh, Display(False))
program, args = compiled.update(session)

def status(name):
  lines = open("/proc/self/status").read().splitlines()
  [line] = [x for x in lines if x.startswith(name)]
  return 1024 * int(line.split()[1])

gc.collect()
ctypes.CDLL("libc.so.6").malloc_trim(0)
before = status("VmRSS")
made = jax.tree.map(
    lambda x: jax.device_put(jnp.ones(x.shape, x.dtype), x.sharding), args
)
jax.block_until_ready(made)
open("/proc/self/clear_refs", "w").write("5")
jax.block_until_ready(program(*made))
held = size.held["initial parameters"]
print(json.dumps(dict(
    measured=status("VmHWM") - before,
    compiled=compiled.peak(program),
    formula=size.update_peak - held,
)))
"""


@pytest.mark.parametrize("remat", ["full", "dots"])
def test_estimates_are_within_15_percent_of_what_is_measured(remat):
  done = subprocess.run(
      [sys.executable, "-c", CHILD, remat],
      env=child_env() | {"XLA_FLAGS": ""},
      capture_output=True,
      check=True,
      text=True,
  )
  found = json.loads(done.stdout.splitlines()[-1])
  for name in ("compiled", "formula"):
    assert found[name] == pytest.approx(found["measured"], rel=0.15), found
  assert found["measured"] > 200 << 20
