"""Rounds that train: killed anywhere, they end with the same bits."""

import json
import types

import jax
import pytest
import tiny_session
from tiny_session import half_correct  # noqa: F401, fixtures

from rl_reason import run
from rl_reason.base import config as config_lib
from rl_reason.base.errors import Stopped
from rl_reason.checks import config_checks
from rl_reason.monitoring import display
from rl_reason.stages import demonstrations, supervised

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("half_correct"),
]


class Stop:
  """Counts the steps of all stages; one of them is the last."""

  def __init__(self, stop_at=None, die_at=None):
    self.calls, self.stop_at, self.die_at = 0, stop_at, die_at

  def is_set(self):
    self.calls += 1
    if self.calls == self.die_at:
      raise KeyboardInterrupt
    return self.calls == self.stop_at


def make(workdir, stop, **changes):
  c = tiny_session.tiny_config()
  c.dynamic_sampling.enabled = False
  c.dynamic_sampling.max_rounds = 10
  c.sft.habits.steps = 0
  c.rounds.count, c.generate.keep = 2, "correct"
  c.generate.update(prompts=12, samples=4, batch=8)
  c.rounds.steps = 3 if changes.get("generate.keep") != "pairs" else 200
  c.rl.steps = 0
  config_lib.override(c, changes)
  config_checks.fields(c)
  _, params = run.stages(
      config_lib.with_defaults(c),
      workdir,
      display.Display(False),
      stop,
      devices=jax.devices()[:1],
  )
  return tiny_session.digest(params)


PAIRS = {
    "generate.keep": "pairs",
    "rounds.replay": 0.1,
    "rl.steps": 2,
    "kl.kind": "k3",
    "kl.coef": 0.04,
}


@pytest.mark.parametrize("changes", [{}, PAIRS], ids=["sft", "reward model"])
def test_rounds_end_with_the_same_bits(changes, tmp_path):
  whole = Stop()
  want = make(tmp_path / "whole", whole, **changes)
  logged = tiny_session.logged(tmp_path / "whole")
  assert [x["step"] for x in logged] == [0, 1, 2]
  cases = (0.35, "stop_at", Stopped), (0.8, "die_at", KeyboardInterrupt)
  for part, kind, error in cases:
    workdir = tmp_path / kind
    with pytest.raises(error):
      make(workdir, Stop(**{kind: int(part * whole.calls)}), **changes)
    done = tiny_session.logged(workdir)
    assert done == logged[: len(done)] and len(done) < 3
    assert make(workdir, Stop(), **changes) == want, kind
    assert tiny_session.logged(workdir) == logged


def test_a_stopped_loop_goes_on_in_another_place(tmp_path):
  """Its reward models, samples and policies are named by their directories."""
  whole = Stop()
  want = make(tmp_path / "whole", whole, **PAIRS)
  lines = tiny_session.logged(tmp_path / "whole")
  workdir = tmp_path / "here"
  with pytest.raises(Stopped):
    # In RL of the second round, with the second reward model.
    make(workdir, Stop(whole.calls - 4), **PAIRS)
  assert len(tiny_session.logged(workdir)) == 2
  there = workdir.rename(tmp_path / "there")
  assert make(there, Stop(), **PAIRS) == want
  assert tiny_session.logged(there) == lines


def test_a_round_imitates_what_was_kept(tmp_path, monkeypatch):
  seen, packed, train = [], demonstrations.pack, supervised.train

  def pack(tok, pairs, **slots):
    seen[-1][1].extend(pairs)
    return packed(tok, pairs, **slots)

  def watched(c, name, *, output, **rest):
    seen.append((output.workdir.name, []))
    return train(c, name, output=output, **rest)

  monkeypatch.setattr(demonstrations, "pack", pack)
  monkeypatch.setattr(supervised, "train", watched)
  make(tmp_path, Stop())
  texts = types.SimpleNamespace(
      **{f"r{i}": set(x) for i, (_, x) in enumerate(seen)}
  )
  assert [name for name, _ in seen] == ["round-0", "round-1", "round-2"]
  for number, found in ((1, texts.r1), (2, texts.r2)):
    place = tmp_path / f"round-{number - 1}" / "generated" / "0"
    rows = [
        json.loads(line)
        for path in place.iterdir()
        for line in path.read_text().splitlines()
    ]
    assert rows and all(x["correct"] for x in rows)
    assert found <= {(x["prompt"], x["response"]) for x in rows}


def test_a_reward_model_goes_on_with_replay(tmp_path):
  make(tmp_path, Stop(), **PAIRS)
  fields = config_lib.load(
      tmp_path / "round-2" / "reward_model" / "config.json"
  )
  assert fields["reward_model.init"].endswith(
      "round-1/reward_model/export/reward_model"
  )
  assert fields["reward_model.samples"].split("*")[1].startswith("0.1,")
  c = config_lib.load(tmp_path / "round-2" / "config.json")
  assert c["reward.functions"].endswith(
      "round-2/reward_model/export/reward_model*1.0"
  )
  lines = tiny_session.logged(tmp_path / "round-2")
  first = next(x for x in lines if x["stage"] == "rl")
  assert first["actor/kl_loss"] == pytest.approx(0, abs=1e-6)  # to this round
  assert first["reward/reward_model/std"] > 0
