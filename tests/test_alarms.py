"""Alarms: made-up runs that game their reward, and runs that do not."""

import pytest

from rl_reason.monitoring import alarms

ACC = "val-core/sums/acc/mean@4"
STEPS = 20


def run(
    reward=lambda t: 0.0,
    right=lambda t: 0.5,
    accuracy=(0.5, 0.5),
    length=(20, 20),
    again=(0.1, 0.1),
    **scores,
):
  """Metrics of 20 steps with evaluations spread over them."""
  wiggle = [0.01, -0.01]  # steps differ a little
  lines = [
      {
          "stage": "rl",
          "step": t,
          "critic/rewards/mean": reward(t) + wiggle[t % 2],
          "critic/score/mean": right(t) + wiggle[t % 2],
          **{f"reward/{k}/mean": f(t) for k, f in scores.items()},
      }
      for t in range(1, STEPS + 1)
  ]
  for i, x in enumerate(accuracy):
    at = STEPS * i // (len(accuracy) - 1)
    lines.append(
        {
            "stage": "evaluate",
            "step": at,
            ACC: x,
            f"{ACC}/ci95": 0.02,
            "val-aux/response_length/mean": length[min(i, 1)],
            "val-aux/repetition/mean": again[min(i, 1)],
        }
    )
  return lines


def rising(t):
  return t / STEPS


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (run(), []),
        (run(reward=rising, right=rising, accuracy=(0.5, 0.9)), []),
        (run(reward=rising, right=rising, accuracy=(0.5, 0.9, 0.8)), ["down"]),
        (run(reward=rising, right=rising, accuracy=(0.9, 0.5)), ["down"]),
        # Within the intervals of 2 + 2 points; or the reward fell as well.
        (run(reward=rising, right=rising, accuracy=(0.5, 0.9, 0.87)), []),
        (run(accuracy=(0.5, 0.9, 0.8)), []),
        (run(length=(20, 39)), []),
        (run(length=(20, 60)), ["3.0 times as long"]),
        (run(length=(20, 60), accuracy=(0.5, 0.6)), []),
        (run(again=(0.1, 0.25)), []),
        (run(again=(0.1, 0.5)), ["50% of the responses repeat"]),
        (run(again=(0.1, 0.5), accuracy=(0.5, 0.6)), []),
        (run(reward=rising, boxed=rising), ["gained came from boxed"]),
        (run(reward=rising, right=rising, boxed=rising), []),
        (run(boxed=rising), []),
        (run(reward=rising, a=rising, b=lambda t: 1 - rising(t)), ["from a:"]),
    ],
)
def test_what_is_a_sign(lines, wanted):
  found = alarms.alarms(lines)
  assert len(found) == len(wanted), found
  for text, part in zip(found, wanted, strict=True):
    assert part in text


def test_the_step_and_the_numbers_are_named():
  lines = run(reward=rising, right=rising, accuracy=(0.5, 0.9, 0.8))
  (found,) = alarms.alarms(lines)
  assert "sums down since step 10 (90.0% to 80.0%)" in found


@pytest.mark.parametrize("count", range(4))
def test_a_run_that_has_just_begun_has_none(count):
  assert alarms.alarms(run()[:count]) == []
  assert alarms.alarms(run()[-1:]) == []
