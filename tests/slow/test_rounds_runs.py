"""Rounds that train: killed anywhere, they end with the same bits."""

import contextlib
import functools
import json
import types

import jax
import pytest
import tiny_session
from conftest import example
from tiny_session import Stop, half_correct  # noqa: F401, fixtures

import rl_reason
from rl_reason import api, run
from rl_reason.base import config as config_lib
from rl_reason.base.errors import Stopped
from rl_reason.stages import demonstrations, supervised

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("half_correct"),
]


@pytest.fixture
def make(monkeypatch):
  """Runs a script on a tiny config, with a signal at some step."""
  train = functools.partial(api.train, devices=jax.devices()[:1], show=False)
  ends = []

  def kept(*args, **rest):
    ends.append(train(*args, **rest))

  monkeypatch.setattr(rl_reason, "train", kept, raising=False)

  def made(workdir, stop, **changes):
    pairs = changes.get("generate.keep") == "pairs"
    script = example("iterative_grpo" if pairs else "rejection_sampling")
    c = tiny_session.tiny_config()
    c.dynamic_sampling.enabled = False
    c.dynamic_sampling.max_rounds = 10
    c.sft.habits.steps = 0
    c.generate.keep = "correct"
    c.generate.update(prompts=12, samples=4, batch=8)
    c.rl.steps = 0
    config_lib.override(c, changes)
    monkeypatch.setattr(
        run, "stopping", lambda *_: contextlib.nullcontext(stop)
    )
    script.main(workdir, c, 2)
    return tiny_session.digest(ends[-1].params)

  return made


PAIRS = {
    "generate.keep": "pairs",
    "rl.steps": 2,
    "kl.kind": "k3",
    "kl.coef": 0.04,
}


def logs(workdir):
  """The lines of all rounds."""
  return [tiny_session.logged(x) for x in sorted(workdir.glob("round-*"))]


@pytest.mark.parametrize("changes", [{}, PAIRS], ids=["sft", "reward model"])
def test_rounds_end_with_the_same_bits(changes, make, tmp_path):
  whole = Stop()
  want = make(tmp_path / "whole", whole, **changes)
  logged = logs(tmp_path / "whole")
  assert len(logged) == 3
  cases = (0.35, "stop_at", Stopped), (0.8, "die_at", KeyboardInterrupt)
  for part, kind, error in cases:
    workdir = tmp_path / kind
    with pytest.raises(error):
      make(workdir, Stop(**{kind: int(part * whole.calls)}), **changes)
    assert make(workdir, Stop(), **changes) == want, kind
    assert logs(workdir) == logged


def test_a_stopped_loop_goes_on_in_another_place(make, tmp_path):
  """Its reward models, samples and policies are named by their directories."""
  whole = Stop()
  want = make(tmp_path / "whole", whole, **PAIRS)
  lines = logs(tmp_path / "whole")
  workdir = tmp_path / "here"
  with pytest.raises(Stopped):
    # In RL of the second round, with the second reward model.
    make(workdir, Stop(whole.calls - 4), **PAIRS)
  there = workdir.rename(tmp_path / "there")
  assert make(there, Stop(), **PAIRS) == want
  assert logs(there) == lines


def test_a_round_imitates_what_was_kept(make, tmp_path, monkeypatch):
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


def test_a_reward_model_goes_on_with_replay(make, tmp_path):
  make(tmp_path, Stop(), **PAIRS)
  fields = config_lib.load(tmp_path / "reward_model-2" / "config.json")
  assert fields["reward_model.init"].endswith(
      "reward_model-1/export/reward_model"
  )
  assert fields["reward_model.samples"].split("*")[1].startswith("0.1,")
  c = config_lib.load(tmp_path / "round-2" / "config.json")
  assert c["reward.functions"].endswith(
      "reward_model-2/export/reward_model*1.0"
  )
  lines = tiny_session.logged(tmp_path / "round-2")
  first = next(x for x in lines if x["stage"] == "rl")
  assert first["actor/kl_loss"] == pytest.approx(0, abs=1e-6)  # to this round
  assert first["reward/reward_model/std"] > 0
