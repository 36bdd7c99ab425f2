"""Runs of the grid of four knobs, made up: additive effects and a threshold."""

import itertools

from studies.knobs import run as knobs


def accuracy(cell: tuple[int, ...], step: int, seed: int) -> float:
  """Additive but for steps alone with a punishment, which ends at 0.1."""
  group, clip, reward, length = cell
  if reward == 2 and length:
    return 0.2 - 0.1 * (step > 0)
  slow = (0.1 * (group == 2) + 0.05 * (2 - clip)) * (step == 1)
  return min(step, 2) * 0.3 + 0.2 - slow - 0.1 * (reward == 2) + seed / 100


def result(count: int | None = None, seeds: int = 3) -> dict:
  """The data of the first `count` runs in the order of the command."""
  order = sorted(
      itertools.product(range(seeds), itertools.product(range(3), repeat=4)),
      key=lambda x: (sum(x[1]) % 3, x[0]),
  )
  runs = []
  for seed, cell in order[:count]:
    run = dict(cell=list(cell), seed=knobs.SEEDS[seed], seconds=5.0)
    run["accuracy"] = [accuracy(cell, step, seed) for step in range(5)]
    run["evaluate tokens"] = [1000 * step for step in range(5)]
    run["rl tokens"] = [200 * step for step in range(1, 25)]
    run |= {name: [float(cell[3]) + 1] * 24 for name in knobs.MEASURES}
    runs.append(run)
  return dict(
      command="python -m studies.knobs.run",
      seeds=list(knobs.SEEDS),
      knobs={name: list(settings) for name, settings in knobs.KNOBS.items()},
      common=knobs.COMMON,
      steps=[0, 6, 12, 18, 24],
      environment={"python": "3.11"},
      mixed=[],
      runs=runs,
  )
