"""Health checks: injected faults are named, with the field to change."""

import types

import jax
import numpy as np
import pytest
import tiny_session
from test_alerts import FIELDS, HARD, IDLE, NAN, line
from tiny_session import call

from rl_reason.base.errors import RunError
from rl_reason.models import parameters
from rl_reason.monitoring import alerts, health, step_metrics, updates
from rl_reason.stages import interim, rl, supervised
from rl_reason.tasks import arithmetic
from rl_reason.training import step


@pytest.mark.parametrize(
    ("x", "wanted"),
    [
        ({}, (4, 0, 0, 0)),
        (IDLE, (0, 0, 4, 0)),
        (dict(actor__updates=3, actor__update_skipped=1), (3, 0, 1, 0)),
        (NAN, (1, 3, 0, 0)),
        (NAN | dict(actor__updates=3, actor__update_skipped=2), (2, 1, 1, 0)),
        (dict(actor__grad_norm=0.0), (0, 0, 0, 4)),
        # An early stop by updates.max_kl skips nothing.
        (dict(actor__updates=2), (2, 0, 0, 0)),
    ],
)
def test_updates_are_counted(x, wanted):
  assert updates.count(line(**x), 4) == wanted


LIMIT = "rl.max_steps_without_update"


def limited(steps):
  """Fields that end a run after so many consecutive steps without an update."""
  return FIELDS | {LIMIT: steps}


def test_it_speaks_once_when_an_alert_begins_and_ends():
  said, spoken = [], {}
  one = health.HealthMonitor(FIELDS, said.append)
  shares = [0.0, 0.6, 0.6, 0.9, *[0.1] * 4, 0.6, *[0.0] * 6, 0.6]
  for t, share in enumerate(shares, 1):
    found = one.check(t, line(health__truncated=np.float32(share)))
    assert found == ({"alert/truncated_responses": 1} if share > 0.5 else {})
    spoken[t] = [x for x in said if "signal" not in x]
    assert len(said) - len(spoken[t]) == (t <= health.FIRST)
    said.clear()
  assert [t for t, x in spoken.items() if x] == [2, 14, 16]
  assert "step 2: Truncated responses: 60% of the responses" in spoken[2][0]
  assert spoken[14] == ["step 14: resolved since step 10: Truncated responses"]


def test_a_group_of_one_response_has_no_share_of_groups_with_signal():
  """Neither in the first lines nor as an alert, with a verifier or without."""
  said, fields = [], FIELDS | {"rollout.group_size": 1}
  one = health.HealthMonitor(fields, said.append)
  x = line(train__all_correct=0.3, train__all_incorrect=0.7)
  assert one.check(1, x) == {}
  x = line(train__no_signal=1.0, train__groups_with_signal=0)
  del x["train/all_correct"], x["train/all_incorrect"]
  assert one.check(2, x) == {}
  assert "groups of one response, 30% correct; " in said[0]
  assert "groups of one response; " in said[1]


def test_a_summary_counts_what_the_verifier_may_not_have_read():
  for count in (0, 7, None):
    x = line(train__all_incorrect=1.0, train__perhaps_right=count)
    shown = health.step_summary(x, FIELDS)
    assert ("; 7 rejected responses are perhaps right; " in shown) == (
        count == 7
    )
    assert ("perhaps" in shown) == (count == 7)


def test_steps_in_a_row_without_an_update_end_a_run():
  """The step that may be one too many is waited for."""
  one, waits = health.HealthMonitor(FIELDS, lambda _: None), []

  def wait():
    waits.append(1)
    one.check(4, line(**HARD, **IDLE))

  for t, x in enumerate((IDLE, {}, IDLE), 1):
    one.enforce(waits.clear)
    one.check(t, line(**x))
  with pytest.raises(RunError, match="in 2 consecutive steps. Step 4,"):
    one.enforce(wait)
  assert waits == [1]
  with pytest.raises(RunError, match="prompts 8 to 15: Few groups with"):
    one.enforce(wait)
  never = health.HealthMonitor(limited(0), lambda _: None)
  for t in range(99):
    never.check(t, line(**IDLE))
    never.enforce(wait)


def test_a_resumed_run_counts_the_steps_before():
  """Else one that is preempted every other step would never end."""
  said = []
  first = health.HealthMonitor(limited(3), said.append)
  lines = [
      dict(stage="rl", step=t) | line(**x) | first.check(t, line(**x))
      for t, x in ((1, IDLE), (2, {}), (3, IDLE), (4, IDLE))
  ]
  resumed = health.HealthMonitor(limited(3), said.append, lambda: lines)
  resumed.check(5, line(**IDLE))
  with pytest.raises(RunError, match="in 3 consecutive steps. Step 5,"):
    resumed.enforce(lambda: None)
  lines.append(dict(stage="rl", step=5) | line())
  resumed = health.HealthMonitor(limited(3), said.append, lambda: lines)
  resumed.check(6, line(**IDLE))
  assert resumed.limits[LIMIT].count == 1


def test_the_summary_and_the_check_of_a_run():
  lines = [dict(stage="rl", step=t) | line(**IDLE) for t in (1, 2, 3)]
  with pytest.raises(RunError, match="no update in 3 steps.*Step 3: Few g"):
    health.check_run([*lines[:2], lines[2] | line(**HARD, **IDLE)], FIELDS)
  lines[1] |= line(**NAN)
  health.check_run(lines, FIELDS)
  assert health.summary(lines, FIELDS) == [
      "updates of the policy: 1 made, 11 skipped (3 gradient not finite, 8 no"
      " token to learn from); 2 of 3 steps without an update"
  ]
  assert health.summary([], FIELDS) == []
  health.check_run([], FIELDS)
  with pytest.raises(RunError, match="policy. Step 4: Broken policy: 100%"):
    last = dict(stage="rl", step=4) | line() | {alerts.BROKEN: 1.0}
    health.check_run([*lines, last], FIELDS)


def test_a_broken_policy_is_said_by_its_evaluation():
  lines = [dict(stage="rl", step=1) | line()]
  health.check_run([*lines, dict(stage="evaluate", step=1)], FIELDS)
  last = {"stage": "evaluate", "step": 1, alerts.BROKEN_HELD_OUT: 4}
  with pytest.raises(RunError, match="Broken policy: 4 responses of the eval"):
    health.check_run([*lines, last], FIELDS)


def test_updates_too_large_in_a_row_end_a_run():
  """As steps without an update do; one good step between them, and not."""
  one = health.HealthMonitor(FIELDS, lambda _: None)
  large = dict(actor__ppo_kl=3.0)
  for t, x in enumerate((large, {}, large, large), 1):
    one.enforce(lambda: None)
    one.check(t, line(**x))
  with pytest.raises(RunError, match="Step 4,.*3 nats per token.*tenth"):
    one.enforce(lambda: None)


@pytest.mark.parametrize(
    ("logps", "broken"),
    [
        (np.full(64, -np.log(17)), 8),  # huge weights: any token is as probable
        (np.zeros(64), 0),  # a task with one response may be learned
        (np.linspace(-1, 0, 64), 0),
        (np.full(8, -np.log(17)), 0),  # too few to tell
        (np.r_[np.nan, np.linspace(-1, 0, 63)], 1),
    ],
)
def test_finite_parameters_that_are_broken(logps, broken):
  logps_BT = logps.reshape(8, -1).astype(np.float32)
  rollouts = types.SimpleNamespace(
      logps_BT=logps_BT, mask_BT=np.ones_like(logps_BT, bool)
  )
  assert step_metrics.broken_responses(rollouts) == broken


def test_statistics_of_all_responses():
  """Of three finished responses one is correct, and one has no answer."""
  logps_BT = np.zeros((4, 2), np.float32)
  logps_BT[3, 0] = logps_BT[0, 1] = np.nan  # the latter is padding
  rows = types.SimpleNamespace(
      rollouts=types.SimpleNamespace(
          truncated_B=np.array([False, False, False, True]),
          mask_BT=np.array([[True, False]] * 4),
          ids_B=np.array([4, 4, 5, 5]),
          logps_BT=logps_BT,
      ),
      correct_B=np.array([1, 0, 0, 0], np.float32),
  )
  one = step_metrics.ResponseStats(
      lambda text, row: text if text == row else ""
  )
  one.add(rows, ["1", "2", "3", "4"], ["-", "2", "-", "-"])
  counts = one.metrics()
  assert counts.pop("health/no_answer") == pytest.approx(1 / 3)
  assert counts == {
      "health/truncated": 0.25,
      "health/first_prompt": 4,
      "health/last_prompt": 5,
      alerts.BROKEN: 0.25,
  }
  one.clear()
  assert one.metrics()["health/no_answer"] == 0  # a step without a round


# --- through the loops -------------------------------------------------------


class Stream:
  """Batches that are all the same."""

  def __next__(self):
    return None

  def get_state(self):
    return 0

  def set_state(self, state):
    pass


def nothing_is_learned(state, packed, mask_BT, *, tx):
  """In place of an update of SFT: its gradient is not finite."""
  del packed
  grads = jax.tree.map(lambda x: x * np.nan, state.params)
  state, metrics = step.optimize(state, tx, grads, mask_BT)
  return state.replace(step=state.step + 1), metrics | dict(loss=0.0)


@pytest.mark.parametrize("limit, steps", [(2, 2), (0, 3)])
def test_sft_whose_updates_are_all_skipped(tmp_path, limit, steps):
  """Too many in a row end it, or the last step; so does the same command."""
  table = dict(w=parameters.Param((3,), (None,), "ones"))
  batch = (
      np.ones((4, 6), np.int32),
      np.zeros(4, np.int32),
      np.ones((4, 3), bool),
  )

  def run():
    session = tiny_session.make_session(
        tmp_path, rl__max_steps_without_update=limit, model__dtype="float16"
    )
    with jax.set_mesh(session.mesh):
      return call(
          supervised.train,
          session,
          "sft",
          title="SFT",
          prefix="sft",
          table=table,
          first=None,
          stream=Stream(),
          rows=lambda _: batch,
          update=supervised.program(
              session.c,
              nothing_is_learned,
              title="SFT",
              table=table,
              mesh=session.mesh,
              display=session.display,
          ),
          steps=3,
          lr=0.1,
          schedule="constant",
      )

  for at in (steps, 3):
    with pytest.raises(RunError, match="SFT.*float16 overflows") as e:
      run()
    assert "sft.lr" in str(e.value)
    checkpoints = tmp_path / "checkpoints" / "sft"
    assert max(int(x.name) for x in checkpoints.iterdir()) == at
    assert (tmp_path / "report.html").exists()  # written with the state


class Fault:
  """What is wrong at the moment."""

  now = ""


def score(response, row):
  if Fault.now == "function raises":
    raise RuntimeError("no score")
  return float(not Fault.now and len(response.text) % 3)


def verify(text, row):
  if Fault.now == "verifier raises":
    raise RuntimeError("no verdict")
  return not Fault.now and len(text) % 2


FAULTS = {
    "all incorrect": "the gradient is exactly 0",
    "verifier raises": "the verifier failed on",
    "function raises": "score failed 32 times on 32 responses",
    "broken policy": "log-probs that are not finite",
    "no group with signal": "8 of 8 groups of the batch are missing",
}
shared_programs = tiny_session.shared_programs


@pytest.mark.slow
def test_a_run_that_learns_nothing_stops(
    tmp_path, monkeypatch, shared_programs
):
  """It names the cause, keeps its parameters, and goes on when mended."""
  monkeypatch.setattr(interim, "run", lambda *_: 0.0)
  monkeypatch.setattr(arithmetic, "verify", verify)

  first: list = []  # compiled once, and the same for all

  def run(name):
    session = tiny_session.make_session(
        tmp_path / name,
        reward__functions=f"{__name__}:score*0.1",
        dynamic_sampling__enabled=name == "no group with signal",
        dynamic_sampling__max_rounds=1,
        rl__steps=4,
        rl__max_steps_without_update=2,
        evaluate__every=0,
        checkpoint__every=9,
    )
    session.reward_runner._proved = True  # it is not the first batch that fails
    with jax.set_mesh(session.mesh):
      if not first:
        first.append(jax.device_get(tiny_session.random_params(session)))
      broken = np.float32(1e12 if Fault.now == "broken policy" else 1)
      params = jax.tree.map(lambda x: jax.numpy.asarray(x * broken), first[0])
      return tiny_session.digest(call(rl.train, session, params))

  for name, words in FAULTS.items():
    Fault.now = name
    with pytest.raises(RunError, match="max_steps_without_update = 2") as e:
      run(name)
    assert words in str(e.value) and "Step 2, prompts 8 to 15: " in str(e.value)
    assert (tmp_path / name / "checkpoints" / "rl" / "2").exists(), name
    lines = tiny_session.logged(tmp_path / name)
    assert [x["step"] for x in lines if x["stage"] == "rl"] == [1, 2]
  Fault.now = ""
  after = run("function raises")
  lines = tiny_session.logged(tmp_path / "function raises")
  assert [x["actor/updates"] for x in lines] == [0, 0, 1, 1]
  assert after != tiny_session.digest(first[0])
