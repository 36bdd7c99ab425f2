"""DPO as a stage of runs: what it learns, and that RL starts from it."""

import shutil
import subprocess
import sys
import types

import jax
import numpy as np
import pytest
import tiny_session
from conftest import ROOT, child_env
from tiny_session import call, digest, interrupted

from rl_reason.base import config
from rl_reason.base.errors import RunError
from rl_reason.checkpointing.checkpoint import Checkpoints
from rl_reason.checkpointing.resumable import Stopped
from rl_reason.configs import base
from rl_reason.devices import device_mesh
from rl_reason.features.preference_optimization import dpo
from rl_reason.report import charts, head, page
from rl_reason.stages import learn, rl, trained_parameters

STEPS = 40
FIELDS = dict(
    task__difficulties=(2,),
    rollout__max_tokens=24,
    updates__token_budget=32 * 36,
    dpo__steps=STEPS,
    dpo__batch=16,
    dpo__lr=0.01,
    dpo__evaluate_pairs=40,  # not a multiple of the batch
    # Learnable without arithmetic: only sloppy responses show steps.
    dpo__chosen="direct:1",
    dpo__rejected="sloppy:1",
    checkpoint__sft_every=15,
)


def make_session(workdir, mesh=None, **changes):
  return tiny_session.make_session(workdir, mesh=mesh, **FIELDS | changes)


def train(workdir, stop_at=None, **options):
  session = make_session(workdir, **options)
  with jax.set_mesh(session.mesh):
    policy = tiny_session.random_params(session)
    try:
      params = call(dpo.run, interrupted(session, stop_at), policy)
    finally:
      session.log.close()
  return types.SimpleNamespace(
      session=session,
      policy=policy,
      params=params,
      lines=tiny_session.logged(workdir),
  )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  return train(tmp_path_factory.mktemp("dpo") / "a")


@pytest.mark.slow
def test_it_learns_which_response_is_preferred(trained):
  """On held-out prompts; its first step has a ratio of 1."""
  first, *training, last = trained.lines
  assert first["dpo/loss"] == pytest.approx(np.log(2), abs=1e-6)
  for name in ("chosen", "rejected", "margins"):
    assert abs(first[f"dpo/rewards/{name}"]) < 1e-5
  assert training[-1]["dpo/loss"] < 0.1
  assert training[-1]["dpo/rewards/accuracies"] == 1
  assert last["val-core/preferences/accuracy"] > 0.9
  assert last["val-aux/preferences/margin"] > 1
  assert last["step"] == STEPS
  assert all(x.is_deleted() for x in jax.tree.leaves(trained.policy))


@pytest.mark.slow
def test_its_metrics_are_consistent(trained):
  for line in trained.lines[:-1]:
    margin = line["dpo/rewards/chosen"] - line["dpo/rewards/rejected"]
    assert line["dpo/rewards/margins"] == pytest.approx(margin, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [10, 70])
def test_a_stopped_stage_ends_with_the_same_bits(trained, tmp_path, stop_at):
  """Stopped among the log-probs of SFT, and among the steps."""
  with pytest.raises(Stopped):
    train(tmp_path / "a", stop_at=stop_at)
  again = train(tmp_path / "a")
  assert digest(again.params) == digest(trained.params)
  assert again.lines == trained.lines


@pytest.mark.slow
def test_devices_change_only_rounding(trained, tmp_path):
  mesh = device_mesh.make_mesh(2, 2, 1, jax.devices()[:4])
  with pytest.raises(Stopped):
    train(tmp_path / "a", stop_at=45, mesh=mesh)  # 40 batches of log-probs
  split = tiny_session.logged(tmp_path / "a")
  assert len(split) == 5
  for here, there in zip(split, trained.lines, strict=False):
    assert here.keys() == there.keys()
    for name in set(here) - {"stage", "step"}:
      np.testing.assert_allclose(
          here[name], there[name], rtol=1e-3, atol=1e-4, err_msg=name
      )


@pytest.mark.slow
def test_rl_starts_from_its_policy(tmp_path, monkeypatch):
  """In one command, which resumes; SFT is kept."""
  started = []

  def of_rl(c, session, params, *rest, **more):
    started.append(digest(params))
    return params

  monkeypatch.setattr(rl, "train", of_rl)
  session = make_session(tmp_path, dpo__steps=3)
  with jax.set_mesh(session.mesh):
    call(learn.run, session, "all")
    read = lambda which: digest(  # noqa: E731
        call(trained_parameters.policy, session, which)[0]
    )
    assert started == [read("dpo")] == [read("newest")] != [read("sft")]
    call(learn.run, session, "all")
    assert started[0] == started[1]
    # An incomplete stage is no start of RL.
    found = Checkpoints(tmp_path / "checkpoints" / "dpo")
    for step in found.steps():
      host = found.host(step)
      if host["complete"]:
        shutil.rmtree(tmp_path / "checkpoints" / "dpo" / str(step))
    with pytest.raises(RunError, match="run --stage=dpo there"):
      call(trained_parameters.start, session)


@pytest.mark.slow
def test_one_command_has_all_three_stages(tmp_path):
  workdir = tmp_path / "run"
  args = "--config=configs/preferences.py:smoke", f"--workdir={workdir}"
  done = subprocess.run(
      [sys.executable, "-m", "rl_reason.main", *args],
      cwd=ROOT,
      env=child_env(),
      capture_output=True,
      text=True,
  )
  assert not done.returncode, done.stderr
  stages = [x["stage"] for x in tiny_session.logged(workdir)]
  order = [x for x in dict.fromkeys(stages) if x in ("sft", "dpo", "rl")]
  assert order == ["sft", "dpo", "rl"]
  report = (workdir / "report.html").read_text()
  assert "after SFT and dpo, before RL" in report
  assert "DPO loss" in report and "--stage=dpo, 10 steps" in report


def test_its_report(tmp_path):
  """Charts, and what came before RL."""
  lines = [
      {
          "stage": "dpo",
          "step": n,
          "dpo/loss": 0.5,
          "dpo/rewards/chosen": 0.1,
          "dpo/rewards/accuracies": 0.9,
      }
      for n in (1, 2)
  ]
  axes, found = charts.charts_of(lines)
  assert axes["dpo"]["step"] == [1, 2]
  assert [x["title"] for x in found] == [
      "DPO loss",
      "Implicit rewards of DPO",
      "Pairs that DPO ranks correctly",
  ]
  c = base.arithmetic()
  c.dpo.update(steps=5, lr=1e-4)
  facts = dict(head.describe(tmp_path, config.flat(c)))
  assert "--stage=dpo, 5 steps, learning rate 0.0001" in facts["before RL"]
  score = {"val-core/arithmetic/acc/mean@4": 0.5}
  table = page._score_table(
      [
          {"stage": "sft", "step": 1, "sft/loss": 1.0} | score,
          *lines,
          {"stage": "evaluate", "step": 0} | score,
      ],
      {},
  )
  assert table["head"] == ["", "after SFT and dpo, before RL", "after SFT"]
