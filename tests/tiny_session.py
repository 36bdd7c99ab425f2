"""A tiny session: every stage in seconds, shared by tests of stages."""

import hashlib
import importlib
import json
import threading
import types

import jax
import numpy as np
import pytest

from rl_reason.checks import checked
from rl_reason.devices import device_mesh
from rl_reason.devices.compiled import CompiledOnce
from rl_reason.devices.randomness import key
from rl_reason.models import decoder
from rl_reason.monitoring import display
from rl_reason.stages.session import open_session
from rl_reason.tasks import arithmetic
from rl_reason.training import optimizer


def tiny_config():
  """Every stage in seconds, on a model of one layer."""
  c = importlib.import_module("configs.base").get_config()
  c.model.update(layers=1, width=16, heads=2, kv_heads=1, head_dim=8, mlp=16)
  c.sft.batch = 16
  c.sft.skill.update(steps=3, threshold=0.0)
  c.sft.habits.update(steps=3)
  c.reward_model.update(steps=2, batch=8, evaluate_pairs=8)
  c.rollout.update(batch=32, group_size=4)
  c.updates.update(minibatches=1)
  c.dynamic_sampling.update(enabled=True, max_rounds=2)
  c.rl.steps = 2
  c.evaluate.update(
      prompts=16, interim_prompts=8, batch=16, samples=2, mean_of=1, every=1
  )
  c.evaluate.validation = False
  c.checkpoint.update(every=1, sft_every=2, keep_last=9)
  c.log.update(sft_every=1, samples_every=1, samples=2, loggers="")
  return c


def set_field(c, name, value):
  *path, last = name.split(".")
  for part in path:
    c = c[part]
  with c.unlocked():
    c[last] = value


def make_session(workdir, c=None, **changes):
  """A session on one device; `rollout__batch=8` changes a field."""
  c = tiny_config() if c is None else c
  for name, value in changes.items():
    set_field(c, name.replace("__", "."), value)
  checked.fields(c)
  workdir.mkdir(parents=True, exist_ok=True)
  return open_session(
      c,
      workdir,
      device_mesh.make_mesh(1, 1, 1, jax.devices()[:1]),
      display.Display(False),
      threading.Event(),
  )


def random_params(session):
  """The random parameters that a run of this config starts from."""
  table = decoder.table(session.cfg)
  tx = optimizer.from_config(
      session.config.optimizer, lr=1e-3, schedule="constant", total=1
  )
  where = optimizer.state_shardings(table, tx, session.mesh)
  random_key = key(session.mesh, session.config.seed, "parameters")
  return optimizer.init_state(table, tx, where, random_key).params


def digest(tree):
  """Equal for trees whose leaves have the same bits."""
  leaves = [np.asarray(x) for x in jax.tree.leaves(jax.device_get(tree))]
  return hashlib.sha256(b"".join(x.tobytes() for x in leaves)).hexdigest()


def logged(workdir, name="metrics.jsonl"):
  """The lines of a log, without times."""
  return [
      {
          key: value
          for key, value in json.loads(line).items()
          if not key.startswith(("timing_s/", "perf/"))
      }
      for line in (workdir / name).read_text().splitlines()
  ]


def interrupted(session, stop_at=None, die_at=None):
  """SIGTERM or SIGKILL comes to the session after so many of its steps."""
  calls = iter(range(10**6))

  def is_set():
    call = next(calls)
    if call == die_at:
      raise KeyboardInterrupt
    return call == stop_at

  return session._replace(stop=types.SimpleNamespace(is_set=is_set))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
  """Programs of a module's tests are compiled once."""
  directory = str(tmp_path_factory.mktemp("compiled"))
  jax.config.update("jax_compilation_cache_dir", directory)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
  yield
  jax.config.update("jax_compilation_cache_dir", None)


@pytest.fixture
def shared_programs(monkeypatch):
  """Sessions of one test, whose configs are equal, share their programs."""
  executables = {}

  def call(program, *args):
    shapes = jax.tree.map(lambda x: (x.shape, str(x.dtype)), args)
    signature = program._name, str(shapes)
    if signature not in executables:
      executables[signature] = program._fn.lower(*args).compile()
    return executables[signature](*args)

  monkeypatch.setattr(CompiledOnce, "__call__", call)


@pytest.fixture
def half_correct(monkeypatch):
  """A verifier by which an untrained model is correct half of the time."""
  monkeypatch.setattr(arithmetic, "verify", lambda text, row: len(text) % 2)
