"""The example of DAPO on one screen against the real loop."""

import dataclasses
import sys

import jax
import numpy as np
import pytest
import tiny_session
from conftest import ROOT
from tiny_session import (
    call,
    half_correct,  # noqa: F401, a fixture
)

from rl_reason.base import json_files
from rl_reason.stages import rl, sft

pytestmark = pytest.mark.slow
sys.path.append(str(ROOT / "examples"))


def test_dapo_on_one_screen_has_the_losses_of_the_real_loop(
    tmp_path, half_correct, monkeypatch  # noqa: F811
):
  """SFT and two steps of DAPO, of which the second follows an update."""
  import dapo_on_one_screen as screen

  from configs import dapo

  c = dapo.get_config()
  tiny = dict(layers=1, width=16, heads=2, kv_heads=1, head_dim=8, mlp=16)
  c.model.update(tiny)
  small = dataclasses.replace(screen.cfg, **tiny)
  monkeypatch.setattr(screen, "cfg", small)
  # Evaluations would compile a sampler of their own.
  monkeypatch.setattr(sft, "_evaluate", lambda *_: None)
  monkeypatch.setattr(rl.interim, "run", lambda *_: 0.0)
  c.sft.update(steps=4, threshold=0.0)
  c.sft.habits.steps = 0
  c.rollout.batch, c.updates.minibatches, c.rl.steps = 32, 2, 2
  c.rollout.group_size = 4
  c.evaluate.update(prompts=8, interim_prompts=8, batch=8, samples=1)
  c.evaluate.update(mean_of=1, every=0)
  c.log.update(sft_every=1, loggers="")
  session = tiny_session.make_session(tmp_path, c)
  with jax.set_mesh(session.mesh):
    call(rl.train, session, call(sft.run, session))
  session.log.close()
  lines = json_files.read_jsonl(tmp_path / "metrics.jsonl")

  params = screen.decoder.init(
      screen.cfg, screen.key(None, screen.SEED, "parameters")
  )
  trained = list(screen.sft(params, "skill", screen.SKILL, steps=4, lr=4e-3))
  losses = dict(sft=[loss for _, loss in trained])
  params = trained[-1][0]
  steps = screen.dapo(params, steps=2, batch=32, group=4, minibatches=2)
  losses["rl"] = [step["loss"] for _, step in steps]
  for stage, found in losses.items():
    name = "actor/loss" if stage == "rl" else "sft/loss"
    wanted = [x[name] for x in lines if x["stage"] == stage and name in x]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)
  assert abs(losses["rl"][1]) > 1e-3
