"""A tiny session: every stage in seconds, shared by tests of stages."""

import hashlib
import importlib
import inspect
import json
import threading
import types

import jax
import numpy as np
import pytest

from rl_reason.base import feature
from rl_reason.checks import config_checks, config_facts
from rl_reason.devices import device_mesh
from rl_reason.devices.compiled import CompiledOnce
from rl_reason.devices.randomness import key
from rl_reason.models import decoder
from rl_reason.monitoring import display
from rl_reason.stages import (
    build_step,
    collectors,
    initial_state as initial_state_lib,
    optimizers,
    scorer,
    session as session_lib,
)
from rl_reason.tasks import arithmetic
from rl_reason.training import optimizer


def tiny_config():
  """Every stage in seconds, on a model of one layer."""
  c = importlib.import_module("configs.base").arithmetic()
  c.model.update(layers=1, width=16, heads=2, kv_heads=1, head_dim=8, mlp=16)
  c.sft.batch = 16
  c.sft.update(steps=3, threshold=0.0)
  c.sft.habits.update(steps=3)
  if "reward_model" in c:  # a feature
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


class Stop:
  """Counts the steps of all stages; one of them is the last."""

  def __init__(self, stop_at=None, die_at=None):
    self.calls, self.stop_at, self.die_at = 0, stop_at, die_at

  def is_set(self):
    self.calls += 1
    if self.calls == self.die_at:
      raise KeyboardInterrupt
    return self.calls == self.stop_at


def set_field(c, name, value):
  *path, last = name.split(".")
  for part in path:
    c = c[part]
  with c.unlocked():
    c[last] = value


class Session(session_lib.Session):
  """A session that also has its config, and what its parts consist of."""

  def __init__(self, c, *args):
    super().__init__(c, *args)
    self.c = c
    self.open()

  config = property(lambda self: self.c)
  session = property(lambda self: self)
  task = property(lambda self: self.row_source.task)
  cfg = property(lambda self: self.model.cfg)
  critic_cfg = property(lambda self: self.model.critic_cfg)
  mesh = property(lambda self: self.model.mesh)
  workdir = property(lambda self: self.output.workdir)
  log = property(lambda self: self.output.log)
  display = property(lambda self: self.output.display)
  stop = property(lambda self: self.output.stop)
  say = property(lambda self: self.display.say)

  @property
  def rewards(self):
    """The terms of the reward; reward models are loaded each time."""
    return scorer.rewards(self.c, self, self.mesh)


# Parameters of functions that `call` finds in a session.
PARTS = (
    *("c", "session", "model", "output", "row_source", "tok", "engine"),
    *("rollout_engine", "reward_runner", "source", "config"),
    *("task", "cfg", "critic_cfg", "mesh", "workdir", "log", "display", "stop"),
)


def call(function, session, *args, **keywords):
  """Calls a function with the parts of a session that its parameters name.

  Further arguments are those of the other positional parameters, in order.
  """
  parameters = inspect.signature(function).parameters.values()
  positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
  free = [
      x.name
      for x in parameters
      if x.kind is positional
      and x.name not in (*PARTS, "rewards", "say")
      and x.name not in keywords
  ]
  given = dict(zip(free, args, strict=False)) | keywords
  assert len(args) <= len(free), f"{function}: takes {free}"
  for x in parameters:
    if x.name not in given and (
        x.name in PARTS
        or x.name in ("rewards", "say")
        and x.default is inspect.Parameter.empty
    ):
      given[x.name] = getattr(session, x.name)
  return function(**given)


def programs(c, model, screen=None, on_policy=None):
  """The functions of an RL step, as `rl.train` builds them."""
  cfg, critic_cfg, mesh = model
  screen = screen or display.Display(False)
  on_policy = config_facts.on_policy(c) if on_policy is None else on_policy
  reward = build_step.reward(c)
  critic_optimizer = optimizers.of_critic(c, critic_cfg, mesh, c.rl.steps)
  objective = build_step.objective(c, on_policy=on_policy)
  optimizer = optimizers.of_policy(c, cfg, mesh)
  return types.SimpleNamespace(
      optimizer=optimizer,
      critic_optimizer=critic_optimizer,
      plan=build_step.planner(c, mesh),
      logps=build_step.logps(c, cfg, mesh, screen),
      values=build_step.values(critic_cfg, mesh, screen),
      credit=build_step.credit(c, reward, mesh, screen, on_policy=on_policy),
      update=build_step.policy_update(c, objective, cfg, optimizer, screen),
      update_critic=build_step.critic_update(
          c, critic_cfg, critic_optimizer, screen
      ),
  )


def initial_state(session, params, critic_params, counters):
  """`initial_state.initial_state` of a session, as `rl.train` calls it."""
  c = session.config
  critic = config_facts.has_critic(c)
  return call(
      initial_state_lib.initial_state,
      session,
      params,
      critic_params,
      counters,
      parts=feature.Part(),
      collector=collector(
          session,
          "rollout",
          engine=session.rollout_engine,
          batches=c.dynamic_sampling.batches,
      ),
      policy_optimizer=call(optimizers.of_policy, session),
      critic_optimizer=call(optimizers.of_critic, session, c.rl.steps)
      if critic
      else None,
  )


def collector(session, purpose, **options):
  """`collectors.collector` of a session."""
  return call(collectors.collector, session, purpose, **options)


def make_session(workdir, c=None, mesh=None, sampling=None, **changes):
  """A session on one device; `rollout__batch=8` changes a field."""
  c = tiny_config() if c is None else c
  for name, value in changes.items():
    set_field(c, name.replace("__", "."), value)
  config_checks.fields(c)
  workdir.mkdir(parents=True, exist_ok=True)
  mesh = mesh or device_mesh.make_mesh(1, 1, 1, jax.devices()[:1])
  screen, stop = display.Display(False), threading.Event()
  return Session(c, workdir, mesh, sampling or mesh, screen, stop)


def random_params(session):
  """The random parameters that a run of this config starts from."""
  table = decoder.table(session.cfg)
  tx = optimizers.of_stage(
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

  stop = types.SimpleNamespace(is_set=is_set)
  return session.replace(output=session.output._replace(stop=stop))


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
