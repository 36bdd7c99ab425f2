"""Runs of mixtures of experts with routing replay, interrupted and resumed."""

import pytest
import test_resume
import tiny_session
from feature_fields import there

from rl_reason.base.errors import Stopped

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("shared_programs", "half_correct"),
]
shared_programs = tiny_session.shared_programs
half_correct = tiny_session.half_correct
REPLAY = dict(
    model__experts=4,
    model__experts_per_token=2,
    rollout__replay_routing=True,
    rollout__weights="int8",
    loss__router_aux=0.01,
    evaluate__every=0,
    rl__steps=4,
)


@pytest.mark.parametrize(
    "changes",
    [
        dict(rl__staleness=1),
        dict(
            **there(rollout__replay=1, correction__name="truncate"),
            kl__kind="k3",
            kl__coef=0.1,
        ),
        dict(lora__rank=2, lora__targets="q,v"),
    ],
    ids=["ahead", "kept", "lora"],
)
def test_recorded_routes_are_part_of_the_state(tmp_path, changes):
  """Metrics and parameters are those of a run that was not interrupted."""
  args = REPLAY | changes, dict(stop_at=2), Stopped
  _, (lines, _) = test_resume.assert_same(
      tmp_path, test_resume.run_rl, "rl", *args
  )
  lines = [line for line in lines if line["stage"] == "rl"]
  assert len(lines) == 4
  # A step without a group with signal has no metrics of an update.
  agreement = max(x["actor/router_agreement"] for x in lines)
  assert 0.9 < agreement < 1 + 1e-5  # weights sum to 1 up to rounding
  assert max(x["actor/router_aux_loss"] for x in lines) > 1
