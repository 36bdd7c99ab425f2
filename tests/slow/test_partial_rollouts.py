"""Partial rollouts: groups that a round leaves unfinished to the next one."""

import functools
import types
import zlib

import jax
import numpy as np
import pytest
import tiny_session

from rl_reason.collect import dynamic_sampling, experience
from rl_reason.rollout import decode_loop, sampler
from rl_reason.rollout.sampler import RolloutEngine
from rl_reason.stages import build_step
from rl_reason.tasks import arithmetic
from rl_reason.training import step

pytestmark = pytest.mark.slow

GROUP, BATCH = 4, 32
FIELDS = dict(rollout__slots=8, dynamic_sampling__max_rounds=9)
ACROSS_STEPS = FIELDS | dict(
    rollout__partial_groups=2,
    rollout__partial_across_steps=True,
    dynamic_sampling__enabled=False,
)


@pytest.fixture(autouse=True)
def one_third_has_signal(monkeypatch):
  """A third of the prompts have signal; the others are always incorrect."""

  def verify(text, row):
    return zlib.crc32(row.prompt.encode()) % 3 == 0 and len(text) % 2 == 0

  monkeypatch.setattr(arithmetic, "verify", verify)


def num_unfinished(collector):
  rows = experience.without_padding(collector.unfinished)
  return len(rows.age_B) // GROUP


def filled(tmp_path, monkeypatch, partial_groups):
  """A batch of dynamic sampling, and how it was filled."""
  session = tiny_session.make_session(
      tmp_path, rollout__partial_groups=partial_groups, **FIELDS
  )
  calls, unfinished, program = [], [], RolloutEngine._program

  def counting(engine, signature, static, name, shape):
    calls.append(name)
    return program(engine, signature, static, name, shape)

  monkeypatch.setattr(RolloutEngine, "_program", counting)
  with jax.set_mesh(session.mesh):
    params = tiny_session.random_params(session)
    collector = tiny_session.collector(
        session, "rollout", partial_groups=partial_groups
    )

    def sample_round(another_round_follows):
      rows = collector.collect(
          params, another_round_follows=another_round_follows
      )
      unfinished.append(partial_groups and num_unfinished(collector))
      return rows

    batch, _, metrics = dynamic_sampling.fill_batch(
        sample_round,
        None,
        enabled=True,
        max_rounds=9,
        batch=BATCH,
        group_size=GROUP,
        surplus="discard",
        shortfall="pad",
    )
  monkeypatch.setattr(RolloutEngine, "_program", program)
  return types.SimpleNamespace(
      batch=batch,
      metrics=metrics,
      decode_calls=calls.count("decode"),
      unfinished=unfinished,
      drawn=collector.prompts.get_state()["iterator"],
  )


def test_rounds_overlap_and_the_batch_is_the_same(tmp_path, monkeypatch):
  """New prompts start while the last groups finish: fewer steps are idle."""
  alone = filled(tmp_path, monkeypatch, 0)
  overlapping = filled(tmp_path, monkeypatch, 2)
  left = overlapping.unfinished
  assert sum(x > 0 for x in left) >= 2 and max(left) <= 2 and left[-1] == 0
  assert overlapping.decode_calls < alone.decode_calls
  assert overlapping.drawn == alone.drawn
  a, b = alone.batch, overlapping.batch
  for name in ("tokens_BL", "ids_B", "mask_BT", "lengths_B", "truncated_B"):
    wanted = getattr(a.rollouts, name)
    np.testing.assert_array_equal(getattr(b.rollouts, name), wanted, name)
  np.testing.assert_allclose(
      a.rollouts.logps_BT, b.rollouts.logps_BT, atol=1e-5
  )
  names = ("correct_B", "stale_lengths_B", "age_B", "types_B", "problems_B")
  for name in names:
    np.testing.assert_array_equal(getattr(a, name), getattr(b, name), name)
  assert not b.stale_lengths_B.any() and not b.age_B.max()
  for name in ("generation_rounds", "accuracy", "groups_with_signal"):
    wanted = alone.metrics[f"train/{name}"]
    assert overlapping.metrics[f"train/{name}"] == pytest.approx(wanted)


@pytest.fixture
def frequent_reads(monkeypatch):
  """The host looks every two decode steps: it finds partial responses."""
  monkeypatch.setattr(decode_loop, "CHUNK", 1)
  monkeypatch.setattr(decode_loop, "BURST", 2)
  sampler.program.cache_clear()
  yield
  sampler.program.cache_clear()


def test_responses_continue_with_the_policy_of_the_next_step(
    tmp_path, frequent_reads
):
  """Tokens of the older policy stay, and keep its log-probs."""
  session = tiny_session.make_session(tmp_path, **ACROSS_STEPS)
  with jax.set_mesh(session.mesh):
    params = tiny_session.random_params(session)
    next_params = jax.tree.map(lambda x: x * 1.1, params)
    collector = tiny_session.collector(session, "rollout", partial_groups=2)
    collector.start_step()
    first = collector.collect(params)
    old = collector.unfinished
    assert len(first.age_B) == BATCH and num_unfinished(collector) == 2
    collector.start_step()
    second = collector.collect(next_params)
    plan = build_step.planner(session.config, session.mesh)(second.rollouts)
    logps_program = step.logps_program(session.cfg, temperature=1.0)
    logps = functools.partial(step.forward, session.mesh, logps_program)
    trainer_BT, _ = logps(next_params, plan)
  scored = experience.with_old_logps(second, trainer_BT)
  assert len(second.age_B) == BATCH

  group_of = {int(i): n for n, i in enumerate(second.rollouts.ids_B[::GROUP])}
  continued = 0
  for n, prompt_id in enumerate(old.rollouts.ids_B[::GROUP].tolist()):
    if prompt_id not in group_of:  # still unfinished
      continue
    old_rows = GROUP * n + np.arange(GROUP)
    new_rows = GROUP * group_of[prompt_id] + np.arange(GROUP)
    old_lengths = old.rollouts.lengths_B[old_rows]
    np.testing.assert_array_equal(second.age_B[new_rows], 1)
    np.testing.assert_array_equal(second.stale_lengths_B[new_rows], old_lengths)
    for a, b, t in zip(old_rows, new_rows, old_lengths, strict=True):
      end = second.rollouts.lengths_B[b]
      continued += 0 < t < end
      slots = session.config.rollout.max_prompt
      np.testing.assert_array_equal(
          old.rollouts.tokens_BL[a, : slots + t],
          second.rollouts.tokens_BL[b, : slots + t],
      )
      np.testing.assert_array_equal(
          scored.old_logps_BT[b, :t], old.rollouts.logps_BT[a, :t]
      )
      gap = np.abs(trainer_BT[b] - scored.old_logps_BT[b])
      assert gap[t:end].max(initial=0) == 0
      assert not t or gap[:t].max() > 1e-3, "log-probs of another policy"
  assert continued, "a response that was partial"
  fresh_B = second.age_B == 0
  assert fresh_B.any() and not second.stale_lengths_B[fresh_B].any()
  assert (scored.stale_lengths_B == scored.rollouts.lengths_B).all()
