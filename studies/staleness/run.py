"""Simulates the time of a step against rl.staleness and the split of devices.

  python -m studies.staleness.run            # a minute; nothing is measured
  python -m studies.staleness.run --table    # only table and figure, from JSON

Costs come from results/bench_rollout.json and results/bench_update.json. Each
device decodes its part of a batch as the sampler does, with log-normal lengths;
batches follow the schedule of `rl_reason/collect/ahead.py`. Writes
staleness_time.json, .md and .png (the figure needs matplotlib).
"""

import dataclasses
import heapq
import itertools
import statistics

import numpy as np

from bench import harness, results
from rl_reason.report import figures

DEVICES = (8, 16, 32, 64, 128, 256, 512)
STALENESS = (0, 1, 2, 4, 8)
SHARES = tuple(n / 8 for n in range(1, 8))  # of the devices: they sample
ROWS, LIMIT, MEAN, PROMPT = 4096, 20480, 1000, 256  # of a step; tokens
SLOTS = 64  # of a device
STEPS, WARMUP = 60, 12
# S, and a mark where batches overlap, which is not implemented.
COLUMNS = ((1, ""), (2, ""), (8, ""), (2, "*"), (4, "*"), (8, "*"))
FORWARD = 1 / 3  # of an update: the pass for old log-probs


@dataclasses.dataclass(frozen=True)
class Costs:
  """Seconds of one device of the machine that was measured.

  Attributes:
    decode: seconds of a decode step with any number of rows.
    update: seconds of an update without its tokens.
    token: seconds of each token of an update.
  """

  decode: float
  update: float
  token: float


def costs() -> Costs:
  """The costs that the committed measurements imply.

  A decode step costs the same with 64 rows as with 128: with a second cost per
  token, least squares make that cost negative. Updates are a line through their
  two sizes.
  """
  steps, seconds = [], []
  for case, median in _medians("rollout").values():
    size = harness.Size(**case["size"])
    mean = size.response * 100 / 512
    lengths = [size.response] * size.rows
    if size.tail:
      lengths = harness.lengths(size.rows, size.response, mean)
    slots = case["systems"]["ours"]["options"]["slots"]
    steps.append(decode_steps(lengths, slots))
    seconds.append(median)
  decode = np.dot(steps, seconds) / np.dot(steps, steps)
  (x0, y0), (x1, y1) = sorted(
      (case["tokens"] + case["size"]["rows"] * case["size"]["prompt"], median)
      for case, median in _medians("update").values()
  )
  token = (y1 - y0) / (x1 - x0)
  return Costs(float(decode), y0 - token * x0, token)


def _medians(name: str) -> dict[str, tuple[dict, float]]:
  cases = results.read(f"bench_{name}")["cases"]
  return {
      key: (case, statistics.median(case["systems"]["ours"]["seconds"]))
      for key, case in cases.items()
  }


def decode_steps(lengths: list[int], slots: int) -> int:
  """Decode steps until all responses have ended; the longest start first."""
  busy: list[int] = []
  for length in sorted(lengths, reverse=True):
    start = heapq.heappop(busy) if len(busy) == slots else 0
    heapq.heappush(busy, start + length)
  return max(busy)


def schedule(
    sampling: list[float],
    occupied: list[float],
    learning: list[float],
    staleness: int,
) -> list[float]:
  """When each step ends, in seconds.

  Args:
    sampling: seconds from the first to the last token of each batch.
    occupied: seconds after which the next batch may begin: all of `sampling`,
      or fewer if batches overlap.
    learning: seconds of each step on the devices that learn.
    staleness: S; 0: the devices do one after the other.
  """
  ends: list[float] = []
  done: list[float] = []
  free = 0.0
  for step, seconds in enumerate(learning):
    begins = ends[-1] if ends else 0.0
    # Batches up to S steps later may begin: this step's weights are there.
    while len(done) <= min(step + staleness, len(learning) - 1):
      start = max(free, begins)
      free = start + occupied[len(done)]
      done.append(start + sampling[len(done)])
    ends.append(max(begins, done[step]) + seconds)
  return ends


def batches(devices: int, cost: Costs) -> tuple[list, list, list]:
  """Of each batch: its seconds, those of full slots, and its tokens."""
  seconds, full, tokens = [], [], []
  for step in range(STEPS):
    lengths = harness.lengths(ROWS, LIMIT, MEAN, seed=step)
    parts = [lengths[n::devices] for n in range(devices)]
    slowest = max(decode_steps(x, SLOTS) for x in parts)
    seconds.append(slowest * cost.decode)
    full.append(max(sum(x) for x in parts) / SLOTS * cost.decode)
    tokens.append(sum(lengths) + ROWS * PROMPT)
  return seconds, full, tokens


def run() -> dict:
  """Simulates all numbers of devices, splits and S."""
  cost, points = costs(), []
  for devices in DEVICES:
    for share in (1.0, *SHARES):
      samplers = round(devices * share)
      learners = devices if share == 1 else devices - samplers
      sampling, full, tokens = batches(samplers, cost)
      factor = 1 + FORWARD
      learning = [
          factor * (cost.update + cost.token * n / learners) for n in tokens
      ]
      for staleness, overlap in itertools.product(STALENESS, (False, True)):
        if (staleness == 0) != (share == 1) or overlap > (staleness > 1):
          continue  # devices are shared, or they work at the same time
        occupied = full if overlap else sampling
        ends = schedule(sampling, occupied, learning, staleness)
        step = (ends[-1] - ends[WARMUP]) / (len(ends) - 1 - WARMUP)
        points.append(
            dict(devices=devices, share=share, staleness=staleness, step=step)
            | dict(
                overlap=overlap,
                sampling=statistics.mean(sampling),
                learning=statistics.mean(learning),
            )
        )
    print(devices, flush=True)
  return dict(
      command="python -m studies.staleness.run",
      costs=dataclasses.asdict(cost),
      batch=dict(rows=ROWS, limit=LIMIT, mean=MEAN, prompt=PROMPT, slots=SLOTS),
      points=points,
  )


def best(
    result: dict, devices: int, staleness: int, overlap: bool = False
) -> dict:
  """The split with the shortest step."""
  found = [
      x
      for x in result["points"]
      if (x["devices"], x["staleness"]) == (devices, staleness)
      if x["overlap"] == overlap
  ]
  return min(found, key=lambda x: x["step"])


def page(result: dict) -> list[str]:
  """Returns lines of Markdown."""
  cost, batch = result["costs"], result["batch"]
  head = " | ".join(f"S = {s}{mark}" for s, mark in COLUMNS)
  about = (
      "How much faster is a step if sampling goes on while the policy learns?"
      " **A simulation.** One device is the machine of bench_rollout.md and"
      f" bench_update.md: {cost['decode'] * 1e3:.1f} ms for a decode step of up"
      f" to {batch['slots']} rows, {cost['update']:.2f} s for an update and"
      f" {cost['token'] * 1e3:.3f} ms for each of its tokens;"
      " the pass for old log-probs is a third of an update. A step has"
      f" {batch['rows']:,} responses, log-normal lengths of mean"
      f" {batch['mean']:,} (sigma 1), at most {batch['limit']:,} tokens, split"
      " over the devices that sample. Left out: communication, verifiers, the"
      " hand-over of weights, dynamic sampling. S = 0: all devices sample, then"
      " all learn. S > 0: the best of seven splits, the share of devices that"
      " sample in parentheses. *: what batches would gain that overlap, the"
      " first rows of one in the slots that the last rows of another leave;"
      " that is not implemented: a batch begins when the one before it is"
      f" complete. Seconds of a step, mean of {STEPS - WARMUP - 1}."
  )
  words = []
  lines = [
      f"| devices | S = 0: sampling + learning | S = 0 | {head} |",
      "|---" * (3 + len(COLUMNS)) + "|",
  ]
  for devices in DEVICES:
    shared = best(result, devices, 0)
    cells = [
        str(devices),
        f"{shared['sampling']:.0f} + {shared['learning']:.0f}",
        f"{shared['step']:.0f}",
    ]
    for staleness, mark in COLUMNS:
      found = best(result, devices, staleness, bool(mark))
      cells.append(f"{found['step']:.0f} ({found['share']:.3g})")
    lines.append(f"| {' | '.join(cells)} |")
    if devices in (DEVICES[0], DEVICES[-1]):
      gain = shared["step"] / best(result, devices, 1)["step"]
      words.append(f"{gain:.1f} times as fast on {devices} devices")
  return results.document(
      "Time of a step against staleness",
      f"With batches one step old a step is {results.joined(words)} as with"
      " sampling and learning in turn, in a simulation.",
      about,
      "![gain and split](staleness_time.png)",
      lines,
      made=f"Made by `{result['command']}`.",
      versions=["Versions: those of bench_rollout.md and bench_update.md."],
  )


def figure(result: dict) -> dict:
  """The gain over S = 0, and the cost of another split."""
  few = DEVICES[0]
  gains: dict[tuple, list[str]] = {}
  splits: dict[tuple, list[str]] = {}
  for staleness, mark in COLUMNS:
    gain = [
        best(result, n, 0)["step"]
        / best(result, n, staleness, bool(mark))["step"]
        for n in DEVICES
    ]
    split = [
        (x["share"], x["step"])
        for x in result["points"]
        if (x["devices"], x["staleness"]) == (few, staleness)
        if x["overlap"] == bool(mark)
    ]
    # Curves that coincide are one curve with all their names.
    for found, points in (
        (gains, zip(DEVICES, gain, strict=True)),
        (splits, split),
    ):
      key = tuple((x, float(f"{y:.2g}")) for x, y in points)
      found.setdefault(key, []).append(f"{staleness}{mark}")

  def curves(found):
    return [
        figures.series(
            f"S = {', '.join(names)}",
            *zip(*key, strict=True),
            color=i,
            marker=True,
        )
        for i, (key, names) in enumerate(found.items())
    ]

  base = best(result, few, 0)["step"]
  panels = [
      figures.lines(
          [
              figures.series(
                  "S = 0", DEVICES, [1] * len(DEVICES), color=figures.REFERENCE
              ),
              *curves(gains),
          ],
          x="devices",
          y="speed relative to S = 0",
          labels=True,
          ticks=DEVICES,
      ),
      figures.lines(
          [
              figures.series(
                  "S = 0", SHARES, [base] * len(SHARES), color=figures.REFERENCE
              ),
              *curves(splits),
          ],
          x=f"share of {few} devices that sample",
          y="seconds of a step",
          labels=True,
          from_zero=True,
      ),
  ]
  return figures.figure(
      figures.block(panels, columns=2, height=3.4),
      note="* batches overlap, which is not implemented",
  )


if __name__ == "__main__":
  results.main(__doc__, "staleness_time", lambda _: run(), page, figure=figure)
