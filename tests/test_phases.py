"""examples/phases.py: the config of each phase, and going on after a kill."""

import json

import pytest
from conftest import example
from tiny_session import tiny_config

import rl_reason
from rl_reason.base import config
from rl_reason.base.errors import ConfigError, Stopped

PHASES = (
    (2, (2, 3), {}, ()),
    (1, (4,), {"optimizer.lr": 0.5}, ("reference",)),
    (2, (2, 3), {}, ("optimizer",)),
)


@pytest.fixture
def phases(monkeypatch):
  script = example("phases")
  monkeypatch.setattr(script, "PHASES", PHASES)
  return script


def small():
  c = tiny_config()
  c.kl.kind, c.kl.coef = "k3", 0.1
  return c


def test_a_phase_starts_from_the_one_before(phases, tmp_path):
  c = small()
  one, two, three = (phases.of_phase(c, i, tmp_path) for i in range(3))
  first, second = (str(tmp_path / f"phase-{i}") for i in range(2))
  assert [x.rl.steps for x in (one, two, three)] == [2, 1, 2]
  assert (one.seed, one.sft.reuse, one.rl.init) == (c.seed, "", "")
  assert (two.sft.reuse, two.rl.init) == (first, first)
  assert (three.sft.reuse, three.rl.init) == (first, second)
  assert two.rl.init_optimizer and not three.rl.init_optimizer
  # A reference stays until it is renewed.
  references = [x.kl.reference for x in (one, two, three)]
  assert references == ["", first, first]
  assert len({x.seed for x in (one, two, three)}) == 3
  # A change is of one phase alone.
  assert (two.optimizer.lr, three.optimizer.lr) == (0.5, c.optimizer.lr)
  assert one.evaluate.tasks == "arithmetic(2+3)"
  assert two.evaluate.tasks == three.evaluate.tasks
  assert two.evaluate.tasks == "arithmetic(2+3),arithmetic(4)"
  assert c == small()


def test_a_phase_that_cannot_work_is_refused_before_the_first(
    phases, tmp_path, monkeypatch
):
  monkeypatch.setattr(rl_reason, "train", None, raising=False)
  broken = (*PHASES[:2], (1, (4,), {"rollout.batch": 7}, ()))
  monkeypatch.setattr(phases, "PHASES", broken)
  with pytest.raises(ConfigError, match="must divide rollout.batch = 7"):
    phases.main(tmp_path, small())


def test_the_script_goes_on_where_it_was_stopped(
    phases, tmp_path, monkeypatch, capsys
):
  calls, die_at = [], None

  def train(c, *, workdir):
    workdir.mkdir(parents=True, exist_ok=True)
    calls.append((workdir.name, c.rl.steps))
    if len(calls) == die_at:
      raise Stopped

  monkeypatch.setattr(rl_reason, "train", train, raising=False)
  monkeypatch.setattr(phases.compare, "write", lambda places: places[0])
  whole = [("phase-0", 2), ("phase-1", 1), ("phase-2", 2)]
  for at in (1, 2, 3):
    calls, die_at = [], at
    with pytest.raises(Stopped):
      phases.main(tmp_path / str(at), small())
    die_at = None
    phases.main(tmp_path / str(at), small())
    assert calls == [*whole[:at], *whole[at - 1 :]]
  out = capsys.readouterr().out
  assert "phase 1: 1 steps, sums of (4,) operands, new at its start: ref" in out
  assert "phase 1 is finished: " in out


def test_a_finished_phase_of_another_config_is_refused(phases, tmp_path):
  c = small()
  c.optimizer.lr = 0.25
  fields = config.flat(config.with_defaults(phases.of_phase(c, 0, tmp_path)))
  for name in ("phase-0", "phase-1"):
    (tmp_path / name).mkdir()
  (tmp_path / "phase-0" / "config.json").write_text(json.dumps(fields))
  with pytest.raises(ConfigError, match="another config .optimizer.lr: 0.25"):
    phases.main(tmp_path, small())


def test_the_plan_of_the_script_fits_its_config(tmp_path):
  script = example("phases")
  for c in (
      script.get_config(),
      script.config_files.smoke(script.get_config()),
  ):
    for number in range(len(script.PHASES)):
      script.of_phase(c, number, tmp_path)
