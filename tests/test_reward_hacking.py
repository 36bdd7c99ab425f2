"""Made-up runs with and without reward hacking."""

import pytest

from rl_reason.monitoring import alerts

ACC = "val-core/sums/acc/mean@4"
STEPS = 20


def run(
    reward=lambda t: 0.0,
    correct=lambda t: 0.5,
    accuracy=(0.5, 0.5),
    length=(20, 20),
    repetition=(0.1, 0.1),
    **scores,
):
  """Metrics of 20 steps with evaluations spread over them."""
  noise = [0.01, -0.01]  # steps differ a little
  lines = [
      {
          "stage": "rl",
          "step": t,
          "critic/rewards/mean": reward(t) + noise[t % 2],
          "critic/score/mean": correct(t) + noise[t % 2],
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
            "val-aux/repetition/mean": repetition[min(i, 1)],
        }
    )
  return lines


def rising(t):
  return t / STEPS


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (run(), []),
        (run(reward=rising, correct=rising, accuracy=(0.5, 0.9)), []),
        (
            run(reward=rising, correct=rising, accuracy=(0.5, 0.9, 0.8)),
            ["falls"],
        ),
        (run(reward=rising, correct=rising, accuracy=(0.9, 0.5)), ["falls"]),
        (run(reward=rising, correct=rising, accuracy=(0.9, 0.1)), ["falls"]),
        # Within the intervals of 2 + 2 points; or the reward fell as well.
        (run(reward=rising, correct=rising, accuracy=(0.5, 0.9, 0.87)), []),
        (run(accuracy=(0.5, 0.9, 0.8)), []),
        (run(accuracy=(0.5, 0.9, 0.46)), []),
        (
            run(accuracy=(0.5, 0.9, 0.44), reward=lambda t: -rising(t)),
            ["fallen to half of step 10's or less (90.0% to 44.0%)"],
        ),
        (run(length=(20, 39)), []),
        (run(length=(20, 60)), ["3.0 times as long"]),
        (run(length=(20, 60), accuracy=(0.5, 0.6)), []),
        (run(repetition=(0.1, 0.25)), []),
        (run(repetition=(0.1, 0.5)), ["50% of the responses are rep"]),
        (run(repetition=(0.1, 0.5), accuracy=(0.5, 0.6)), []),
        (
            run(reward=rising, boxed=rising),
            ["gain of the reward comes from boxed"],
        ),
        (run(reward=rising, correct=rising, boxed=rising), []),
        (run(boxed=rising), []),
        (
            run(reward=rising, a=rising, b=lambda t: 1 - rising(t)),
            ["comes from a,"],
        ),
    ],
)
def test_reward_hacking(lines, wanted):
  found = alerts.of_evaluations(lines)
  assert len(found) == len(wanted), found
  for text, part in zip(found, wanted, strict=True):
    assert part in text


def test_an_alert_names_step_and_numbers():
  lines = run(reward=rising, correct=rising, accuracy=(0.5, 0.9, 0.8))
  (found,) = alerts.of_evaluations(lines)
  assert "sums falls since step 10 (90.0% to 80.0%)" in found


@pytest.mark.parametrize("count", range(4))
def test_a_run_that_has_just_started_has_none(count):
  assert alerts.of_evaluations(run()[:count]) == []
  assert alerts.of_evaluations(run()[-1:]) == []
