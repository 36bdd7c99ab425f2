"""Tiny runs and their replays, shared by tests."""

import json
import threading

import jax
import numpy as np
import pytest
import tiny_session
from tiny_session import call

from rl_reason import run
from rl_reason.base import config as config_lib, json_files
from rl_reason.checks import config_checks, saved_config
from rl_reason.lab import replay
from rl_reason.monitoring import display
from rl_reason.stages import interim, rl, sft
from rl_reason.training import update_metrics

# Dr. GRPO's advantage and reduction are linear in the rewards.
DR_GRPO = dict(
    advantage__name="group_mean",
    reduction__name="constant",
    dynamic_sampling__batches=2,
    updates__minibatches=2,
    updates__epochs=2,
    optimizer__lr=0.003,
    rl__steps=3,
    evaluate__every=0,
)


def config(**changes):
  c = tiny_session.tiny_config()
  for name, value in changes.items():
    tiny_session.set_field(c, name.replace("__", "."), value)
  return config_checks.checked(c, {})[0]


def quick(patch):
  """Evaluations take most of the time of a tiny run."""
  patch.setattr(interim, "run", lambda *_: 0.0)
  patch.setattr(sft, "_evaluate", lambda *_: None)


def reinforced(workdir, **changes):
  """RL of random parameters, without the stages before it."""
  session = tiny_session.make_session(workdir, config(**changes))
  fields = config_lib.flat(session.config)
  json_files.write_json(workdir / "config.json", fields)
  with pytest.MonkeyPatch.context() as patch, jax.set_mesh(session.mesh):
    quick(patch)
    call(rl.train, session, tiny_session.random_params(session))
  return workdir


def stages(c, workdir, **keywords):
  run.stages(
      c,
      workdir,
      display.Display(False),
      threading.Event(),
      devices=jax.devices()[:1],
      **keywords,
  )


def trained(workdir, **changes):
  """A run of all stages, without evaluations."""
  workdir.mkdir()
  with pytest.MonkeyPatch.context() as patch:
    quick(patch)
    stages(config(**changes), workdir)
  return workdir


def read(place):
  """The record and the arrays of a replay."""
  record = json.loads((place / "replay.json").read_text())
  return record, dict(np.load(place / "arrays.npz"))


def replayed(workdir, step, **given):
  """A replay by the work directory alone: its folder."""
  given = {name.replace("__", "."): str(x) for name, x in given.items()}
  c, _ = saved_config.read(workdir, "replay", given)
  before = files(workdir)
  stages(c, workdir, stage="replay", step=str(step), from_record=True)
  assert files(workdir) == before, "the run itself is left alone"
  folders = (workdir / "replay").glob(f"step-{step}*")
  return max(folders, key=lambda x: x.stat().st_mtime_ns)


def replayed_session(workdir, step, **given):
  """As `replayed`, of a run by `reinforced`."""
  given = {name.replace("__", "."): str(x) for name, x in given.items()}
  c, _ = saved_config.read(workdir, "replay", given)
  before = files(workdir)
  session = tiny_session.make_session(workdir, c)
  with jax.set_mesh(session.mesh):
    place = call(replay.run, session, str(step))
  assert files(workdir) == before, "the run itself is left alone"
  return place


def files(workdir):
  """Size and time of each file of a run."""
  return {
      path: (path.stat().st_size, path.stat().st_mtime_ns)
      for path in workdir.rglob("*")
      if path.is_file() and "replay" not in path.parts
  }


def logged(workdir, step):
  """The metrics of a step of RL."""
  lines = tiny_session.logged(workdir)
  (line,) = [x for x in lines if (x["stage"], x["step"]) == ("rl", step)]
  return line


def clip_fraction(arrays, m, low, high):
  """The share of clipped tokens in optimizer step m, by NumPy."""
  rows = arrays["order_MB"][m]
  mask, advantages = (arrays[x][rows] for x in ("mask_BT", "advantages_BT"))
  ratio = arrays["ratio_MBT"][m]
  above = (advantages > 0) & (ratio > 1 + high)
  below = (advantages < 0) & (ratio < 1 - low)
  return (above | below)[mask].mean()


def check(place, workdir):
  """Asserts that a replay is the step of the run; returns record and arrays."""
  record, arrays = read(place)
  step = record["step"]
  assert record["recorded"]["equal"] is True, record["recorded"]
  assert record["recorded"]["metrics"] > 40
  line, steps = logged(workdir, step), record["optimizer_steps"]
  updated = [x for x in steps if x["updated"]]
  assert len(updated) == line["actor/updates"] > 0
  # The gradient is the update's: its norms and its clip fractions are.
  tokens_M = arrays["mask_BT"][arrays["order_MB"]].sum((1, 2))
  tokens = [n for n, x in zip(tokens_M, steps, strict=True) if x["updated"]]
  for name in ("grad_norm", "pg_clipfrac", "pg_loss"):
    weights = tokens if name in update_metrics.TOKEN_MEANS else None
    mean = np.average([x["metrics"][name] for x in updated], weights=weights)
    np.testing.assert_allclose(
        mean, line[f"actor/{name}"], rtol=1e-5, atol=1e-7
    )
  for m, one in enumerate(steps, 1):
    with np.load(place / f"gradient-{m}.npz") as gradient:
      square = sum(np.vdot(x, x) for x in gradient.values())
    norm = one["metrics"]["grad_norm"]
    np.testing.assert_allclose(square**0.5, norm, rtol=1e-4)
    of_layers = sum(x**2 for x in one["norms"].values())
    np.testing.assert_allclose(of_layers, square, rtol=1e-4)
  return record, arrays
