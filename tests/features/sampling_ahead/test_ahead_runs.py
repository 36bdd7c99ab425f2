"""Runs that sample ahead of learning: equal to the bit, interrupted or not."""

import jax
import pytest
import test_resume
import tiny_session
from tiny_session import call

from rl_reason.base.errors import Stopped
from rl_reason.stages import interim, rl

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("shared_programs", "half_correct"),
]
shared_programs = tiny_session.shared_programs
half_correct = tiny_session.half_correct
AHEAD = dict(rl__staleness=2, rl__steps=6)
# Saves that are rarer than steps, unequal groups, and prompts that retire.
RARE = AHEAD | dict(
    checkpoint__every=4,
    evaluate__every=0,
    log__samples_every=2,
    rl__old_logps="trainer",
    correction__name="truncate",
    rollout__retire_after=1,
    rollout__group_sizes__name="by_variance",
)


@pytest.fixture(autouse=True)
def no_evaluation(monkeypatch):
  def run(*args):
    args[-1].parts.wait()
    return 0.0

  monkeypatch.setattr(interim, "run", run)


@pytest.mark.parametrize(
    ("changes", "interruption", "error"),
    [
        (AHEAD, dict(stop_at=3), Stopped),
        (RARE, dict(die_at=5), KeyboardInterrupt),
    ],
    ids=["stopped", "killed"],
)
def test_a_run_resumes_with_its_batches_in_flight(
    tmp_path, changes, interruption, error
):
  """Metrics, samples, prompts and parameters are those of a whole run."""
  host, (lines, samples) = test_resume.assert_same(
      tmp_path, test_resume.run_rl, "rl", changes, interruption, error
  )
  ages = [line["train/age_max"] for line in lines]
  assert ages == [0, 1, 2, 2, 2, 2] and not host["ahead"]
  assert any(line["discarded"] for line in samples)
  # Another run of the same config is equal, and S = 0 is another run.
  again = test_resume.run_rl(tmp_path / "again", changes)
  got = test_resume.outcome(tmp_path / "again", "rl")
  assert got == (host, [lines, samples])
  synchronous = dict(rl__staleness=0, rl__old_logps="sampler")
  other = test_resume.run_rl(tmp_path / "other", changes | synchronous)
  assert tiny_session.digest(other) != tiny_session.digest(again)


def test_sampling_goes_on_while_a_step_is_learned(tmp_path):
  """Each step but the last ones has a batch in flight."""
  session = tiny_session.make_session(tmp_path, **AHEAD)
  with jax.set_mesh(session.mesh):
    call(rl.train, session, tiny_session.random_params(session))
  lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
  shares = [test_resume.json.loads(x).get("perf/overlap") for x in lines]
  assert shares[0] is None and max(shares[1:]) > 0
