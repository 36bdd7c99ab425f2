"""Sampling ahead of learning: the schedule, the old log-probs, the state.

Complete runs are in test_ahead_runs.py.
"""

import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_reason.base.errors import RunError
from rl_reason.collect import experience
from rl_reason.collect.experience import no_rows, with_old_logps
from rl_reason.devices import device_mesh, sharding
from rl_reason.features.mismatch_corrections import corrections
from rl_reason.features.sampling_ahead import ahead
from rl_reason.monitoring import resources
from rl_reason.monitoring.samples import SampleLog
from rl_reason.training.step import train_batch

ROWS, T, STEPS = 4, 3, 6
FIRST = "health/first_prompt"


def batch_of(step):
  """Two groups of two responses; the log-probs of step s are -1 - s / 10."""
  rows = no_rows(ROWS, 2, T, 0)
  lengths_B = np.array([1, 2, 3, 3], np.int32)
  mask_BT = np.arange(T) < lengths_B[:, None]
  logps_BT = np.where(mask_BT, -1 - step / 10, 0).astype(np.float32)
  rollouts = rows.rollouts.replace(
      ids_B=2 * step + np.array([0, 0, 1, 1], np.int32),
      mask_BT=mask_BT,
      logps_BT=logps_BT,
      lengths_B=lengths_B,
  )
  return rows.replace(
      rollouts=rollouts, old_logps_BT=logps_BT, age_B=rows.age_B + 1
  )


class Run:
  """A run of `Ahead` without a model: weights are the number of the step.

  One device learns, another one samples.
  """

  def __init__(self, staleness, fails_at=None, sampler_logps=True):
    self.sampled, self.fails_at = [], fails_at
    learners, self.mesh = device_mesh.make_meshes(
        1, devices=jax.devices()[:2], data=1, fsdp=1, tensor=1
    )
    where = sharding.sharding(learners)
    self.weights = lambda step: jax.device_put(jnp.float32(step), where)
    self.samples = SampleLog.__new__(SampleLog)
    self.samples._extremes, self.samples._every = {}, 2
    self.samples._steps, self.samples._by_reward = STEPS, False
    self.samples._reward = lambda inputs: inputs["correct_B"]
    empty = no_rows(ROWS, 2, T, 0), no_rows(6, 2, T, 0)
    self.ahead = ahead.Ahead(
        types.SimpleNamespace(clock=resources.Clock()),
        staleness=staleness,
        steps=STEPS,
        sampler_logps=sampler_logps,
        mesh=self.mesh,
        empty=(empty,) * staleness,
    )
    self.batch = self.ahead.collecting(self.collect, self.samples)

  def collect(self, step, weights, on_dispatch):
    if step == self.fails_at:
      raise RunError("no prompts")
    assert weights.devices() == set(self.mesh.devices.flat)
    self.sampled.append((step, int(weights)))
    rows = batch_of(step)
    self.samples.keep_extremes(step, rows)
    found = {"train/accuracy": np.float32(0.1), "tokens/generated": 9}
    return rows, found, dict(responses={FIRST: np.int32(step)})

  def steps(self, first, last):
    """Learns some steps; the update donates the weights."""
    out = []
    for step in range(first, last):
      weights = self.weights(step)
      out.append(self.batch(step, weights, lambda: None))
      weights.delete()
    return out


def test_every_batch_is_as_old_as_the_schedule_says():
  """Its weights are those of two steps before, whoever is faster."""
  run = Run(2)
  found = run.steps(0, STEPS)
  run.ahead.close()
  wanted = [(t, max(t - 2, 0)) for t in range(STEPS)]
  assert run.sampled == wanted
  for (rows, found_metrics, _), (step, of) in zip(found, wanted, strict=True):
    assert (rows.rollouts.ids_B // 2 == step).all()
    assert (rows.age_B == step - of).all()
    assert found_metrics["tokens/generated"] == 9
    assert ("perf/overlap" in found_metrics) == (step > 0)


def test_the_state_holds_the_batches_in_flight():
  """A resumed run samples only what the other one had not begun."""
  whole, killed, resumed = (Run(2) for _ in range(3))
  wanted = whole.steps(0, STEPS)
  killed.steps(0, 3)
  for _ in range(2):  # saved, resumed, and at once saved again
    saved = killed.ahead.arrays(), killed.ahead.host()
    killed = Run(2)
    killed.ahead.restore(saved[0], json.loads(json.dumps(saved[1])))
  resumed.ahead.restore(*saved)
  assert [x["step"] for x in saved[1]["ahead"]] == [3, 4]
  # Step 4 is one of those whose groups are logged (every two steps).
  assert [len(resumed.samples.extremes(x)) for x in (3, 4)] == [1, 0]
  got = resumed.steps(3, STEPS)
  assert resumed.sampled == [(5, 3)]
  for (rows, _, counts), (like, _, like_counts) in zip(
      got, wanted[3:], strict=True
  ):
    jax.tree.map(np.testing.assert_array_equal, rows, like)
    assert counts == like_counts
  for run in (whole, killed, resumed):
    run.ahead.close()


def test_batches_in_flight_that_an_earlier_version_saved():
  """Their statistics of responses have other names in host.json."""
  killed, resumed = Run(2), Run(2)
  killed.steps(0, 1)
  arrays = killed.ahead.arrays()
  host = json.loads(json.dumps(killed.ahead.host()))
  for batch in host["ahead"]:
    found = batch["counts"].pop("responses")
    batch["counts"]["signs"] = {"sign/first_prompt": found[FIRST]}
  resumed.ahead.restore(arrays, host)
  for run in (killed, resumed):
    (_, _, counts), *_ = run.steps(1, 2)
    assert counts["responses"] == {FIRST: 1}
    run.ahead.close()


def test_a_batch_that_fails_is_an_error_of_its_own_step():
  run = Run(2, fails_at=2)
  run.steps(0, 1)
  assert [x["step"] for x in run.ahead.host()["ahead"]] == [1]
  rows, extremes = run.ahead.arrays()["ahead"][1]
  assert not len(experience.without_padding(rows).age_B)
  assert not len(experience.without_padding(extremes).age_B)
  run.steps(1, 2)
  with pytest.raises(RunError, match="no prompts"):
    run.steps(2, 3)
  run.ahead.close()


@pytest.mark.parametrize("sampler_logps", [True, False])
def test_the_ratio_of_a_stale_batch(sampler_logps):
  """Step 3 of S = 2: sampled at -1.3, and the trainer now says -1.1.

  Either the ratio of the surrogate starts at exp(.2), or it starts at 1 and the
  correction is exp(.2). With 4 updates a step the rows are 8 updates old.
  """
  run = Run(2, sampler_logps=sampler_logps)
  rows = run.steps(0, 4)[3][0]
  run.ahead.close()
  mask_BT = rows.rollouts.mask_BT
  trainer_BT = np.full(mask_BT.shape, -1.1, np.float32)
  rows = with_old_logps(rows, trainer_BT)
  ratio_BT = np.exp(trainer_BT - rows.old_logps_BT)
  factor_BT = corrections.truncate(
      rows.old_logps_BT, rows.rollouts.logps_BT, mask_BT, high=2.0
  )
  moved, same = np.exp(np.float32(0.2)), 1.0
  wanted = (moved, same) if sampler_logps else (same, moved)
  for x_BT, value in zip((ratio_BT, factor_BT), wanted, strict=True):
    np.testing.assert_allclose(np.asarray(x_BT)[mask_BT], value, rtol=1e-5)
  credit = dict(advantages_BT=np.ones_like(trainer_BT))
  assert (train_batch(rows, credit, updates=4).staleness_B == 8).all()
