"""Runs that replay older groups: learned, measured, and resumed bit by bit."""

import jax
import numpy as np
import pytest
import tiny_session
from tiny_session import call, half_correct  # noqa: F401, fixtures

from rl_reason.base.errors import Stopped
from rl_reason.lab import generate
from rl_reason.stages import rl, sft
from rl_reason.training import step as step_lib

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("half_correct"),
]
FIELDS = dict(
    rollout__replay=3,
    rollout__replay_age=2,
    correction__name="truncate",
    rl__steps=5,
    optimizer__lr=0.01,
)


def train(workdir, stop_at=None, **changes):
  session = tiny_session.make_session(workdir, **FIELDS | changes)
  if stop_at:
    session = tiny_session.interrupted(session, stop_at=stop_at)
  with jax.set_mesh(session.mesh):
    params = tiny_session.random_params(session)
    return tiny_session.digest(call(rl.train, session, params))


@pytest.mark.parametrize("enabled", [False, True])
def test_a_stopped_run_ends_with_the_same_bits(enabled, tmp_path, monkeypatch):
  seen, made = [], step_lib.train_batch

  def watched(rows, credit, **rest):
    seen.append((rows, credit))
    return made(rows, credit, **rest)

  monkeypatch.setattr(rl, "train_batch", watched)
  rounds = {} if enabled else dict(dynamic_sampling__max_rounds=10)
  changes = rounds | dict(dynamic_sampling__enabled=enabled)
  want = train(tmp_path / "whole", **changes)
  lines = tiny_session.logged(tmp_path / "whole")
  found = [x for x in lines if x["stage"] == "rl"]
  # The first step has no older groups; later ones have up to three.
  assert [x["replay/share"] > 0 for x in found] == [False, *[True] * 4]
  assert all(1 <= x["replay/age_mean"] <= 2 for x in found[1:])
  assert any(x["replay/dropped_by_age"] > 0 for x in found)
  assert all(0.1 < x["replay/weight_mean"] < 10 for x in found[1:])
  assert not any(x["replay/weight_mean"] == 1 for x in found[1:])
  assert all("rollout/logp_gap_mean" in x for x in found)
  assert max(x["rollout/logp_gap_mean"] for x in found) < 1e-4
  for rows, _ in seen:
    assert rows.age_B.max() <= 2 and (rows.age_B > 0).sum() <= 3 * 4
    old_B = rows.age_B > 0
    gap_BT = np.abs(rows.old_logps_BT - rows.rollouts.logps_BT)
    gap_BT = np.where(rows.rollouts.mask_BT, gap_BT, 0)
    assert (gap_BT[old_B].max(1, initial=0) > 1e-4).all()
    assert gap_BT[rows.age_B == 0].max(initial=0) < 1e-3
  for stop_at in (2, 4):
    workdir = tmp_path / str(stop_at)
    with pytest.raises(Stopped):
      train(workdir, stop_at, **changes)
    assert train(workdir, **changes) == want
    assert tiny_session.logged(workdir) == lines


def test_a_run_begins_with_groups_of_a_file(tmp_path):
  """Of another run's policy; they are replayed until they are too old."""
  session = tiny_session.make_session(
      tmp_path / "there", generate__prompts=32, generate__samples=4
  )
  with jax.set_mesh(session.mesh):
    call(sft.run, session)
    place = call(generate.run, session, "newest")
  changes = dict(rollout__replay_from=str(place), rl__steps=3)
  want = train(tmp_path / "whole", **changes)
  lines = [
      x for x in tiny_session.logged(tmp_path / "whole") if x["stage"] == "rl"
  ]
  assert lines[0]["replay/share"] > 0 and lines[0]["replay/age_mean"] == 1
  # The policy is another one than theirs.
  assert lines[0]["replay/weight_mean"] != 1
  assert lines[0]["rollout/logp_gap_mean"] < 1e-4
  with pytest.raises(Stopped):
    train(tmp_path / "stopped", 2, **changes)
  assert train(tmp_path / "stopped", **changes) == want


def test_without_replay_nothing_changes(tmp_path):
  off = dict(rollout__replay=0, rl__steps=2)
  plain = train(tmp_path / "a", **off)
  age = train(tmp_path / "b", **off, rollout__replay_age=4)
  assert plain == age
  for line in tiny_session.logged(tmp_path / "a"):
    assert not [x for x in line if x.startswith("replay/")]
