"""Value pretraining with a limit on the loss; RL that resumes with a critic."""

import jax
import pytest
import tiny_session
from test_value import (
    STEPS,
    first_step,
    lines,
    make_session,
    pretrain,
    trained,
    verdicts,
)
from tiny_session import call, digest

from rl_reason.checkpointing import checkpoint
from rl_reason.checkpointing.resumable import Stopped
from rl_reason.stages import rl, trained_parameters as trained_lib, value

pytestmark = pytest.mark.slow
__all__ = ["trained", "verdicts"]  # fixtures


def test_it_ends_when_its_loss_is_small_enough(trained, tmp_path):
  """And it explains enough: the later of the two decides."""
  losses = sorted(x["critic/vf_loss"] for x in trained.lines)
  limit = (losses[STEPS // 3] + losses[STEPS // 3 + 1]) / 2
  limits = dict(critic__pretrain_ev=-9.0, critic__pretrain_loss=limit)
  result = pretrain(tmp_path / "a", **limits)
  end = first_step(trained.lines, lambda x: x["critic/vf_loss"] <= limit)
  assert 1 < end < STEPS and len(result.lines) == end
  limits["critic__pretrain_ev"] = 2.0  # more than everything
  assert len(pretrain(tmp_path / "b", **limits).lines) == STEPS


def reinforce(workdir, **changes):
  """Value pretraining and RL in one process: digests of policy and critic."""
  session = make_session(
      workdir,
      critic__pretrain_steps=2,
      critic__value_mixture__name="mixture",
      loss__positive_nll=0.1,
      rl__steps=3,
      evaluate__every=0,
      **changes,
  )
  with jax.set_mesh(session.mesh):
    policy = tiny_session.random_params(session)
    params, counters = call(value.run, session, policy)
    call(rl.train, session, policy, params, counters)
    session.log.close()
    policy, params, at = call(
        trained_lib.rl, session, "newest", base=lambda: None
    )
  assert at == 3
  return digest(policy), digest(params), lines(workdir)


def test_rl_resumes_with_policy_and_critic(tmp_path):
  """VAPO stopped, killed, and never stopped: the same bits."""
  expected = reinforce(tmp_path / "whole")
  saved = checkpoint.Checkpoints(tmp_path / "a" / "checkpoints" / "rl")
  # Asked in 2 steps, three times in an evaluation, in 1 step.
  with pytest.raises(Stopped):
    reinforce(tmp_path / "a", stop_at=6)
  assert saved.steps() == [0, 1]
  with pytest.raises(KeyboardInterrupt):
    reinforce(tmp_path / "a", die_at=1)
  assert saved.steps() == [0, 1, 2]
  assert reinforce(tmp_path / "a") == expected
  steps = [x for x in expected[2] if x["stage"] == "rl"]
  assert len(steps) == 3 and len({expected[0], expected[1]}) == 2
  for line in steps:
    assert line["critic/vf_explained_var"] not in (None, 0)
    assert line["critic/grad_norm"] > 0 and line["actor/nll_loss"] > 0
