"""Groups that a round leaves unfinished: to the next one, or the next step."""

import types
import zlib

import jax
import numpy as np
import pytest
import test_config
import test_credit
import test_value

from rl_reason.monitoring import metrics
from rl_reason.rollout import decode_loop, sampler
from rl_reason.tasks import arithmetic
from rl_reason.training import dynamic_sampling, experience, rl
from rl_reason.training.session import Stopped

FIELDS = dict(rollout__slots=8, dynamic_sampling__max_rounds=9)
BATCH = dict(batch=32, group_size=4, surplus="discard", shortfall="pad")


@pytest.fixture(autouse=True)
def verdicts(monkeypatch):
  """A third of the prompts have signal; the others are always wrong."""

  def verify(text, row):
    return zlib.crc32(row.prompt.encode()) % 3 == 0 and len(text) % 2 == 0

  monkeypatch.setattr(arithmetic, "verify", verify)


def collected(tmp_path, stragglers):
  """A batch, and how it came about."""
  groups = dict(rollout__partial_groups=stragglers)
  run = test_credit.make_run(tmp_path, **groups, **FIELDS)
  programs, left, made = [], [], run._sampler

  def counting(form, static, name, shape):
    programs.append(name)
    return made(form, static, name, shape)

  run._sampler = counting
  with jax.set_mesh(run.mesh):
    params = test_config.run_params(run)
    maker = experience.Maker(run, "rollout", stragglers=stragglers)

    def generate(goes_on):
      rows = maker.generate(params, goes_on=goes_on)
      left.append(len(dynamic_sampling.real(maker.carried).age_B) // 4)
      return rows

    batch, _, metrics = dynamic_sampling.collect(
        generate, None, enabled=True, max_rounds=9, **BATCH
    )
  return types.SimpleNamespace(
      batch=batch,
      metrics=metrics,
      chunks=programs.count("decode"),
      left=left,
      drawn=maker.get_state()["data"],
  )


def test_rounds_overlap_and_the_batch_is_the_same(tmp_path):
  """The next prompts start while stragglers finish; fewer steps are idle."""
  alone, beside = (collected(tmp_path, count) for count in (0, 2))
  assert not any(alone.left) and sum(x > 0 for x in beside.left) >= 2
  assert max(beside.left) <= 2 and beside.left[-1] == 0
  assert beside.chunks < alone.chunks
  assert beside.drawn == alone.drawn
  a, b = alone.batch, beside.batch
  for name in ("tokens_BL", "ids_B", "mask_BT", "lengths_B", "truncated_B"):
    np.testing.assert_array_equal(
        getattr(a.rollouts, name), getattr(b.rollouts, name), err_msg=name
    )
  np.testing.assert_allclose(
      a.rollouts.logps_BT, b.rollouts.logps_BT, atol=1e-5
  )
  for name in ("correct_B", "known_B", "age_B", "types_B", "problems_B"):
    np.testing.assert_array_equal(getattr(a, name), getattr(b, name), name)
  assert not b.known_B.any() and not b.age_B.max()
  for name in ("generation_rounds", "accuracy", "groups_with_signal"):
    name = f"train/{name}"
    assert alone.metrics[name] == pytest.approx(beside.metrics[name])


ACROSS = FIELDS | dict(
    rollout__partial_groups=2,
    rollout__partial_across_steps=True,
    dynamic_sampling__enabled=False,
)


@pytest.fixture
def often(monkeypatch):
  """The host looks every two steps: what it leaves is in the middle."""
  monkeypatch.setattr(decode_loop, "CHUNK", 1)
  monkeypatch.setattr(decode_loop, "BURST", 2)
  sampler.program.cache_clear()
  yield
  sampler.program.cache_clear()


def test_responses_go_on_with_the_policy_of_the_next_step(tmp_path, often):
  """What there was stays, and its log-probs count as the behaviour's."""
  run = test_credit.make_run(tmp_path, **ACROSS)
  with jax.set_mesh(run.mesh):
    params = test_config.run_params(run)
    other = jax.tree.map(lambda x: x * 1.1, params)
    maker = experience.Maker(run, "rollout", stragglers=2)
    maker.reset()
    first = maker.generate(params)
    held = maker.carried
    assert (
        len(first.age_B) == 32 and len(dynamic_sampling.real(held).age_B) == 8
    )
    maker.reset()
    second = maker.generate(other)
    cut = maker.layout(second.rollouts)
    scored, _ = maker.with_old_logps(other, second, cut)
    trainer_BT, _ = maker.logps(other, cut)
  assert len(second.age_B) == 32
  where = {int(i): n for n, i in enumerate(second.rollouts.ids_B[::4])}
  seen = 0
  for n, at in enumerate(held.rollouts.ids_B[::4].tolist()):
    if at not in where:  # still not whole
      continue
    old, new = np.arange(4) + 4 * n, np.arange(4) + 4 * where[at]
    np.testing.assert_array_equal(second.age_B[new], 1)
    np.testing.assert_array_equal(
        second.known_B[new], held.rollouts.lengths_B[old]
    )
    for a, b in zip(old, new, strict=True):
      t, end = held.rollouts.lengths_B[a], second.rollouts.lengths_B[b]
      seen += 0 < t < end
      slots = run.config.rollout.max_prompt
      np.testing.assert_array_equal(
          held.rollouts.tokens_BL[a, : slots + t],
          second.rollouts.tokens_BL[b, : slots + t],
      )
      kept, rest = slice(0, t), slice(t, end)
      np.testing.assert_array_equal(
          scored.old_logps_BT[b, kept], held.rollouts.logps_BT[a, kept]
      )
      gap = np.abs(trainer_BT[b] - scored.old_logps_BT[b])
      assert gap[rest].max(initial=0) == 0
      assert not t or gap[kept].max() > 1e-3, "of another policy"
  assert seen, "a response that was in the middle"
  fresh_B = second.age_B == 0
  assert fresh_B.any() and not second.known_B[fresh_B].any()
  assert (scored.known_B == scored.rollouts.lengths_B).all()


def lines(workdir):
  return [x for x in test_value.lines(workdir) if x["stage"] == "rl"]


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [2])
def test_a_run_with_stragglers_goes_on_to_the_bit(tmp_path, often, stop_at):
  """Also what its rounds had left unfinished is in a checkpoint."""
  ended = []
  for name, stops in (("whole", [None]), ("parts", [stop_at, None])):
    workdir = tmp_path / name
    workdir.mkdir()
    for stop in stops:
      run = test_credit.make_run(workdir, rl__steps=4, **ACROSS)
      test_credit.interrupted(run, stop)
      with jax.set_mesh(run.mesh):
        params = test_config.run_params(run)
        if stop is None:
          ended.append(jax.device_get(rl.run(run, params)))
        else:
          with pytest.raises(Stopped):
            rl.run(run, params)
      run.log.close()
  jax.tree.map(np.testing.assert_array_equal, *ended)
  for line in metrics.read_jsonl(tmp_path / "whole" / "metrics.jsonl"):
    if line["stage"] == "rl":
      times = {
          k.removeprefix("timing_s/"): x
          for k, x in line.items()
          if k.startswith("timing_s/")
      }
      idle, step = times.pop("idle"), times.pop("step")
      assert sum(times.values()) == pytest.approx(step), "no moment is left out"
      assert idle == pytest.approx(times["score"] + times["host"]) and idle > 0
  logged = [lines(tmp_path / name) for name in ("whole", "parts")]
  assert logged[0] == logged[1]
  assert [x["train/age_max"] for x in logged[0]] == [0, 1, 1, 1]
