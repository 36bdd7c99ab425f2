"""Runs that are interrupted end with the same bits as runs that are not.

Processes are killed for real in tests/slow/test_killed.py.
"""

import json
import shutil
import types

import jax
import pytest
import tiny_session
from feature_fields import there
from test_alerts import HEALTHY
from tiny_session import call

from rl_reason.base import resume_rules
from rl_reason.base.errors import RunError, Stopped
from rl_reason.checkpointing.checkpoint import Checkpoints
from rl_reason.monitoring import run_log
from rl_reason.stages import interim, learn, rl, sft, supervised
from rl_reason.stages.run_output import open_stage

pytestmark = pytest.mark.usefixtures("shared_programs", "half_correct")
shared_programs = tiny_session.shared_programs
half_correct = tiny_session.half_correct
# Saves that are rarer than steps.
RARE = dict(
    checkpoint__every=3,
    evaluate__every=0,
    dynamic_sampling__batches=2,
    rl__steps=5,
)
# Everything that a run may carry from one step to the next.
ALL_STATE = RARE | dict(
    rollout__retire_after=1,
    task__difficulties=(2,),
    updates__minibatches=2,
    updates__epochs=2,
    kl__kind="k2",
    kl__coef=0.1,
)
MOVED = bool(there(kl__controller__name="adaptive"))
if MOVED:
  target = dict(target=1.0, horizon=100)
  ALL_STATE["kl__controller"] = dict(name="adaptive", args=target)
if there(advantage__history=2):
  ALL_STATE["advantage__name"] = "temporal"


def outcome(workdir, stage):
  """All that must not depend on how often a run was interrupted."""
  checkpoints = (workdir / "checkpoints" / stage).iterdir()
  newest = max(checkpoints, key=lambda path: int(path.name))
  host = json.loads((newest / "host.json").read_text())
  host.pop("logs")
  logs = [
      tiny_session.logged(workdir, name)
      for name in ("metrics.jsonl", "samples.jsonl")
      if (workdir / name).exists()
  ]
  return host, logs


def run_rl(workdir, changes, **interruption):
  session = tiny_session.make_session(workdir, **changes)
  session = tiny_session.interrupted(session, **interruption)
  with jax.set_mesh(session.mesh):
    return call(rl.train, session, tiny_session.random_params(session))


def run_sft(workdir, changes, **interruption):
  session = tiny_session.make_session(workdir, **changes)
  session = tiny_session.interrupted(session, **interruption)
  with jax.set_mesh(session.mesh):
    return call(sft.run, session)


def assert_same(tmp_path, run, stage, changes, interruption, error):
  """Compares a run in one piece with one that is interrupted."""
  whole = run(tmp_path / "whole", changes)
  with pytest.raises(error):
    run(tmp_path / "parts", changes, **interruption)
  parts = run(tmp_path / "parts", changes)
  assert tiny_session.digest(parts) == tiny_session.digest(whole)
  got, wanted = (outcome(tmp_path / x, stage) for x in ("parts", "whole"))
  assert got == wanted
  # A complete run does nothing.
  again = run(tmp_path / "parts", changes, die_at=0)
  assert tiny_session.digest(again) == tiny_session.digest(whole)
  return wanted


@pytest.fixture(autouse=True)
def no_evaluation(monkeypatch):
  """Evaluations have no state, and take most of the time."""
  monkeypatch.setattr(interim, "run", lambda *_: 0.0)
  monkeypatch.setattr(sft, "_evaluate", lambda *_: None)


def test_rl_resumes_with_all_of_its_state(tmp_path):
  host, (metrics, _) = assert_same(
      tmp_path, run_rl, "rl", ALL_STATE, dict(die_at=4), KeyboardInterrupt
  )
  # Alert rules read these: a metric of another name would silence them.
  of_critic = {"critic/vf_explained_var", "critic/grad_norm"}
  missing = HEALTHY.keys() - metrics[0].keys() - of_critic
  assert all(name.startswith("health/") for name in missing)  # not written
  assert (host["coefs"]["kl"] != ALL_STATE["kl__coef"]) == MOVED
  assert host["prompts"]["solved"] is not None
  assert [line["step"] for line in metrics] == [1, 2, 3, 4, 5]


FREE = dict(
    rollout__slots=8,
    updates__token_budget=60,
    model__remat="none",
    model__logprob_chunk=16,
    reward__workers=1,
)


@pytest.mark.slow
def test_what_changes_no_number_may_change_on_resume(tmp_path):
  """Equal but for rounding, whose sums are in another order."""
  run_rl(tmp_path / "whole", {})
  with pytest.raises(KeyboardInterrupt):
    run_rl(tmp_path / "parts", {}, die_at=1)
  run_rl(tmp_path / "parts", FREE)
  whole, parts = (tiny_session.logged(tmp_path / x) for x in ("whole", "parts"))
  assert [line["step"] for line in parts] == [1, 2]
  for got, wanted in zip(parts, whole, strict=True):
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
      if not isinstance(value, str):
        value = pytest.approx(value, rel=1e-4, abs=1e-6)
      assert got[name] == value, name
  fields = {name.replace("__", ".") for name in FREE}
  assert fields <= set(resume_rules.FREE)


@pytest.mark.parametrize(
    "name", ["adamw", pytest.param("muon", marks=pytest.mark.slow)]
)
def test_sft_resumes(tmp_path, name):
  changes = dict(sft__habits__steps=0, optimizer__name=name)
  interruption = dict(stop_at=1)
  assert_same(tmp_path, run_sft, "sft", changes, interruption, Stopped)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
  """A run whose SFT is complete, and whose RL was stopped at once."""
  workdir = tmp_path_factory.mktemp("stopped")
  session = tiny_session.make_session(workdir, sft__habits__steps=0)
  session = tiny_session.interrupted(session, stop_at=3)
  with pytest.MonkeyPatch.context() as m, jax.set_mesh(session.mesh):
    m.setattr(sft, "_evaluate", lambda *_: None)
    m.setattr(interim, "run", lambda *_: 0.0)
    params = call(sft.run, session)
    with pytest.raises(Stopped):
      call(rl.train, session, params)
  return workdir, tiny_session.digest(params)


@pytest.mark.parametrize("kl", ["none", "k2"])
def test_a_finished_stage_is_not_entered_again(
    tmp_path, monkeypatch, stopped, kl
):
  """Its checkpoint is damaged after RL has one: said, and nothing is cut."""
  workdir = tmp_path / "run"
  shutil.copytree(stopped[0], workdir)
  session = tiny_session.make_session(
      workdir, sft__habits__steps=0, kl__kind=kl, kl__coef=0.1 * (kl != "none")
  )
  said = []
  monkeypatch.setattr(session.display, "say", said.append)

  def resume():
    return call(learn.resumed, session, None)

  with jax.set_mesh(session.mesh):
    found = resume()
    assert tiny_session.digest(found[0]) == stopped[1] and not said
    for file in (workdir / "checkpoints" / "sft").rglob("host.json"):
      file.write_text("{}")
    if kl != "none":
      with pytest.raises(RunError, match="stage as the reference of kl"):
        resume()
      # Nothing needs it any more once RL is complete.
      host = Checkpoints.host
      monkeypatch.setattr(
          Checkpoints, "host", lambda *x: host(*x) | dict(evaluated=True)
      )
      tiny_session.set_field(session.config, "rl.steps", 0)
      params, *_ = resume()
      assert tiny_session.digest(params) == stopped[1]
      assert "RL at step 0 is complete" in said[-1]
      tiny_session.set_field(session.config, "lora.rank", 4)
      assert resume() == (None, None, None)
      return
    params, *_ = resume()
  assert tiny_session.digest(params) == stopped[1]  # RL is at step 0
  assert "sft/3 is damaged" in said[0] and "RL at step 0 goes on" in said[-1]


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [True, False])
def test_no_stage_is_trained_again_behind_its_followers(
    tmp_path, stopped, damaged
):
  """--stage=sft, its checkpoint damaged or gone, RL's there: refused."""
  workdir = tmp_path / "run"
  shutil.copytree(stopped[0], workdir)
  whole = (workdir / "metrics.jsonl").read_bytes()
  sft_dir = workdir / "checkpoints" / "sft"
  (sft_dir / "3" / "host.json").write_text("{}") if damaged else shutil.rmtree(
      sft_dir
  )
  words = "checkpoints/sft is lost, and checkpoints/rl has since reached step 0"
  for _ in range(2):
    with pytest.raises(RunError, match=words):
      run_sft(workdir, dict(sft__habits__steps=0))
    assert (workdir / "metrics.jsonl").read_bytes() == whole
  shutil.rmtree(workdir / "checkpoints" / "rl")
  params = run_sft(workdir, dict(sft__habits__steps=0))
  assert tiny_session.digest(params) == stopped[1]


@pytest.mark.slow
def test_sft_that_is_lost_is_not_trained_again_for_its_habits(
    tmp_path, monkeypatch
):
  traced, update = [], supervised.sft_update

  def watched(*args, **static):
    traced.append(1)
    return update(*args, **static)

  monkeypatch.setattr(supervised, "sft_update", watched)
  whole = tiny_session.digest(run_sft(tmp_path, {}))
  assert len(traced) == 1, "SFT and habits share a program"
  shutil.rmtree(tmp_path / "checkpoints" / "sft")
  assert tiny_session.digest(run_sft(tmp_path, {}, die_at=0)) == whole


LINES = b'{"stage": "rl", "step": 1}\n{"stage": "rl", "step": 2}\n'


@pytest.mark.parametrize(
    ("found", "said", "left"),
    [
        (LINES + b'{"st', [], LINES),
        (LINES[:30], ["was cut or removed"], LINES[:27]),
        (LINES.replace(b"1", b"7") + b'{"x": 3}\n{', ["edited"], ...),
        (None, ["was cut or removed"], b""),
    ],
)
def test_a_log_is_cut_only_where_a_checkpoint_ended(
    tmp_path, found, said, left
):
  """Lines that are not those that were noted are said, and stay."""
  path, log = tmp_path / "metrics.jsonl", run_log.Log(tmp_path)
  log.close()
  path.write_bytes(LINES)
  log = run_log.Log(tmp_path)
  noted = log.note()
  log.close()
  path.unlink() if found is None else path.write_bytes(found)
  lines = []
  log = run_log.Log(tmp_path, say=lines.append)
  log.remember(json.loads(json.dumps(noted)))
  log.remember(noted)  # a later stage
  log.truncate()
  for line, word in zip(lines, said, strict=True):
    assert word in line and str(path) in line
  wanted = found[:-1] if left is ... else left
  assert path.read_bytes() == wanted
  # The next line is one of its own, and the next note is of what is there.
  log.metrics("rl", 3, {})
  log.remember(log.note())
  assert len(lines) == len(said)
  assert path.read_bytes() == wanted + b'{"stage": "rl", "step": 3}\n'
  path.unlink()  # while the run writes
  log.note()
  assert "was removed or replaced during the run" in lines[-1]
  log.metrics("rl", 4, {})
  assert path.read_bytes() == b'{"stage": "rl", "step": 4}\n'
  log.close()


def test_another_stage_cuts_no_line_of_rl(tmp_path, stopped):
  """A reward model that is trained after RL in its directory."""
  workdir = tmp_path / "run"
  shutil.copytree(stopped[0], workdir)
  whole = (workdir / "samples.jsonl").read_bytes()
  whole += b'{"stage": "rl"}\n'
  (workdir / "samples.jsonl").write_bytes(whole)
  session = tiny_session.make_session(workdir, sft__habits__steps=0)
  host = workdir / "checkpoints" / "rl" / "0" / "host.json"
  logs = session.log.note()
  host.write_text(json.dumps(json.loads(host.read_text()) | dict(logs=logs)))
  session.log.metrics("reward_model", 1, {})  # before its first checkpoint
  session.log.samples([{}])
  stage = call(open_stage, session, "reward_model")
  with stage.running("reward model", 9, types.SimpleNamespace(step=0)):
    assert (workdir / "samples.jsonl").read_bytes() == whole
