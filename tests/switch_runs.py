"""Runs of the grid of four switches, made up: additive but for one pair."""

from studies.four_switches import run as study

STEPS = study.STEPS
POINTS = STEPS // study.EVERY + 1


def accuracy(cell, seed: int) -> float:
  """Dynamic Sampling adds 6 points, Token-Level Loss 4 without shaping."""
  _, dynamic, token, shaping = cell
  return 0.2 + 0.06 * dynamic + 0.04 * token * (1 - shaping) + seed / 100


def result(seeds: int = 3, left_out: int = 0) -> dict:
  """The data of `seeds` seeds, without the last runs."""
  runs = []
  for seed in range(seeds):
    for cell in study.cells():
      higher, dynamic, _, shaping = cell
      end = accuracy(cell, seed)
      runs.append(
          {
              "cell": list(cell),
              "seed": study.SEEDS[seed],
              "seconds": 9.0,
              "health": [] if higher else ["collapsed"],
              "accuracy": [0.1] * (POINTS - 1) + [end],
              "evaluate tokens": [2000 * i for i in range(POINTS)],
              "rl tokens": [400 * (i + 1) for i in range(STEPS)],
              "reward": [end] * STEPS,
              "entropy": [0.2 + 0.1 * higher] * STEPS,
              "length": [40.0 - 10 * shaping + dynamic] * STEPS,
              "truncated": [0.2 * (1 - shaping)] * STEPS,
          }
      )
  return dict(
      command="python -m studies.four_switches.run",
      seeds=list(study.SEEDS[:seeds]),
      switches={name: list(x) for name, x in study.SWITCHES.items()},
      common=study.COMMON,
      environment={"python": "3.11"},
      mixed=[],
      runs=runs[: len(runs) - left_out],
  )
