"""Phases that train: the carried state, and resuming with the same bits."""

import contextlib
import functools

import jax
import numpy as np
import optax
import pytest
import tiny_session
from conftest import example
from tiny_session import Stop, half_correct  # noqa: F401, fixtures

import rl_reason
from rl_reason import api, run
from rl_reason.base import config as config_lib
from rl_reason.base.errors import RunError, Stopped
from rl_reason.features.continual_learning import continued_run
from rl_reason.monitoring import display
from rl_reason.stages import rl

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("half_correct"),
]
PLAN = (
    (2, (2, 3), {}, ()),
    (1, (4,), {"optimizer.lr": 0.001}, ("reference",)),
    (2, (2, 3, 4, 5, 6), {}, ("optimizer",)),
)


@pytest.fixture
def make(monkeypatch):
  """Runs the script on a tiny config, with a signal at some step."""
  script = example("phases")
  here = dict(devices=jax.devices()[:1], show=False)
  train = functools.partial(api.train, **here)
  ends = []

  def kept(*args, **rest):
    ends.append(train(*args, **rest))

  monkeypatch.setattr(rl_reason, "train", kept, raising=False)

  def made(workdir, stop, plan=PLAN, **changes):
    c = tiny_session.tiny_config()
    c.dynamic_sampling.enabled = False
    c.dynamic_sampling.max_rounds = 10
    c.sft.habits.steps = 0
    c.optimizer.lr = 0.01
    c.kl.kind, c.kl.coef = "k3", 0.1
    config_lib.override(c, changes)
    monkeypatch.setattr(script, "PHASES", plan)
    monkeypatch.setattr(
        run, "stopping", lambda *_: contextlib.nullcontext(stop)
    )
    script.main(workdir, c)
    return tiny_session.digest(ends[-1].params)

  return made


def count(state, kind):
  """The count of a part of the optimizer's state."""
  leaves = jax.tree.leaves(
      state.opt_state, is_leaf=lambda x: isinstance(x, kind)
  )
  (found,) = [x for x in leaves if isinstance(x, kind)]
  return int(found.count)


@pytest.mark.parametrize(
    "changes", [{}, {"advantage.name": "gae"}, {"lora.rank": 2}], ids=str
)
def test_phases_end_with_the_same_bits(changes, make, tmp_path, monkeypatch):
  seen = []
  carry = continued_run.carry_over

  def watched(c, state, frozen, **rest):
    before = state.policy
    carry(c, state, frozen, **rest)
    seen.append((c, before, *jax.device_get((state.policy, state.critic))))

  monkeypatch.setattr(continued_run, "carry_over", watched)
  ends = []
  train = rl.train

  def trained(c, *args, **rest):
    ends.append(tiny_session.digest(found := train(c, *args, **rest)))
    return found

  monkeypatch.setattr(rl, "train", trained)
  whole = Stop()
  want = make(tmp_path / "whole", whole, **changes)
  assert len(seen) == 2 and ends[-1] == want and len(set(ends)) == 3
  (_, _, one, critic), (_, fresh, two, _) = seen
  if "lora.rank" not in changes:
    digests = [tiny_session.digest(x.params) for x in (one, two)]
    assert digests == ends[:2]
  # Moments go on in the first of them, and are new in the second.
  assert count(one, optax.ScaleByAdamState) > 0 == int(one.step)
  assert count(one, optax.ScaleByScheduleState) == 0
  assert count(two, optax.ScaleByAdamState) == 0
  assert (critic is not None) == ("advantage.name" in changes)
  if critic is not None:
    assert count(critic, optax.ScaleByAdamState) > 0
  logs = [
      tiny_session.logged(tmp_path / "whole" / f"phase-{n}") for n in range(3)
  ]
  # The reference is the policy that a phase starts from, if renewed.
  kl = [
      [x["kl/reference"] for x in lines if x["stage"] == "rl"] for lines in logs
  ]
  assert list(map(len, kl)) == [2, 1, 2]
  assert abs(kl[0][0]) < 1e-6 and abs(kl[1][0]) < 1e-6
  assert min(kl[0][1], kl[2][0]) > 1e-6
  last = [x for x in logs[2] if x["stage"] == "evaluate"][-1]
  means = {k.split("/")[1] for k in last if k.startswith("val-core/")}
  assert means == {"arithmetic-2+3", "arithmetic-4", "arithmetic-2+3+4+5+6"}
  lost = {k for k in last if "forgetting" in k}
  assert len(lost) == 3  # of two sets, and their mean
  cases = (0.5, "stop_at", Stopped), (0.85, "die_at", KeyboardInterrupt)
  for part, kind, error in cases[: None if not changes else 1]:
    workdir = tmp_path / kind
    with pytest.raises(error):
      make(workdir, Stop(**{kind: int(part * whole.calls)}), **changes)
    assert make(workdir, Stop(), **changes) == want, kind
    for number, lines in enumerate(logs):
      assert tiny_session.logged(workdir / f"phase-{number}") == lines
  there = workdir.rename(tmp_path / "there")  # paths may move
  assert make(there, Stop(), **changes) == want


def test_another_optimizer_needs_no_state_of_the_one_before(make, tmp_path):
  sgd = {"optimizer.name": "sgd"}
  plan = (1, (2, 3), {}, ()), (1, (2, 3), sgd, ("optimizer",))
  assert make(tmp_path, Stop(), plan)


def test_what_cannot_be_continued_is_refused(make, tmp_path):
  make(tmp_path, Stop(), PLAN[:2])
  c = config_lib.unflat(config_lib.load(tmp_path / "phase-1" / "config.json"))
  for changes, words in (
      ({"optimizer.name": "sgd"}, "rl.init_optimizer = False"),
      ({"model.width": 32}, "model.width is 16|sft.reuse"),
  ):
    other = c.copy_and_resolve_references()
    config_lib.override(other, changes)
    with pytest.raises(RunError, match=words):
      run.stages(
          config_lib.with_defaults(other),
          tmp_path / str(len(words)),
          display.Display(False),
          Stop(),
          devices=jax.devices()[:1],
      )
  np.testing.assert_equal(c.rl.init, str(tmp_path / "phase-0"))
