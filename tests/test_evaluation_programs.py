"""An evaluation beside training: its programs, its slots, its progress."""

import re

import jax
import numpy as np
import pytest
import test_stages
import tiny_session
from tiny_session import call

from rl_reason.base.errors import Stopped
from rl_reason.checks import config_facts
from rl_reason.stages import evaluate, parts


def session_of(path, **changes):
  """A session with a silent screen that keeps its lines."""
  session = tiny_session.make_session(
      path, evaluate__samples=3, evaluate__batch=8, **changes
  )
  screen = test_stages.Lines()
  engine = parts.engine(
      session.c, session.tok, session.cfg, session.mesh, screen
  )
  output = session.output._replace(display=screen)
  return session.replace(output=output, engine=engine, rollout_engine=engine)


def compiled(session):
  """Programs of the sampler that have compiled, by name."""
  text = "\n".join(session.display.lines)
  return sorted(re.findall(r"compiled sampler: (\w+)", text))


def test_training_and_evaluation_share_their_programs(tmp_path, monkeypatch):
  """8 prompts x 4 responses in both; 3 prompts; SIGTERM ends a batch."""
  session = session_of(tmp_path)
  params = tiny_session.random_params(session)
  with jax.set_mesh(session.mesh):
    weights = session.engine.weights(params)
    collector = tiny_session.collector(
        session, "rollout", engine=session.engine
    )
    collector.collect(weights)
    assert compiled(session) == ["decode", "finish", "start"]
    given, limit = [], session.c.rollout.max_tokens
    stream = session.engine.stream
    monkeypatch.setattr(
        session.engine,
        "stream",
        lambda *args, limits_B, **kwargs: (
            given.append(limits_B) or stream(*args, limits_B=limits_B, **kwargs)
        ),
    )
    evaluated = call(evaluate.evaluate, session, params, 8, "evaluating")
    (all_of_them,) = evaluated[1]
    assert compiled(session) == ["decode", "finish", "start"]
    _, (found,) = call(evaluate.evaluate, session, params, 3, "evaluating")
    np.testing.assert_array_equal(found.lengths_NG, all_of_them.lengths_NG[:3])
    assert given[0].tolist() == [limit] * 32
    assert given[1].tolist() == [limit] * 12 + [1] * 20  # fill up the batch
    # The first question is before the batch, the next ones are within it.
    for at in (1, 2):
      stopped = tiny_session.interrupted(session, stop_at=at)
      with pytest.raises(Stopped):
        call(evaluate.evaluate, stopped, params, 8, "evaluating")


def test_an_evaluation_needs_no_more_slots_than_training():
  c = tiny_session.tiny_config()
  assert evaluate.slots(c, 32) == {}  # all rows, as in training
  assert evaluate.slots(c, 33) == dict(slots=32, least=32)
  c.dynamic_sampling.batches = 2
  assert evaluate.slots(c, 99) == dict(slots=64, least=64)
  c.rollout.slots = 8  # the engine has them
  assert evaluate.slots(c, 99) == {} and config_facts.most_slots(c) == 8
  c.rollout.slots, c.task.name = 0, "guess"
  assert evaluate.slots(c, 99) == {}  # turns share a cache
