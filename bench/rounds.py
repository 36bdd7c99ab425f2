"""Rounds on five seeds: rejection-sampled SFT, and GRPO with a reward model.

  python -m bench.rounds            # resumable; CPU-minutes: 3 a run of SFT
  python -m bench.rounds --count 2  # fewer rounds; a larger count continues
  python -m bench.rounds --collect  # of the runs made so far
  python -m bench.rounds --table    # only the tables, from JSON

Writes results/rounds.json and .md. The seeds are the default one and 4 of a
hash. GRPO starts from the SFT of rejection sampling of the same seed.
"""

import argparse
import functools
import itertools
import json
import os
import pathlib

from bench import harness, seeds, tables
from rl_reason.lab import ablate, rounds
from rl_reason.report import machine, scores

SEEDS = (0, *ablate.fresh_seeds("rl_reason rounds", 4))
ROWS = ("rejection_sampling", "iterative_grpo")
NAME = "rounds"
CORE = "val-core/arithmetic/acc/"
COLUMNS = ("mean@4", "greedy", "pass@8")


def directory(name: str, seed: int) -> pathlib.Path:
  """The work directory of all rounds."""
  return harness.RUNS / NAME / f"{name}-{seed}"


def finished(name: str, seed: int) -> int:
  """The rounds of a run that have ended, round 0 among them."""
  path = directory(name, seed) / "metrics.jsonl"
  return path.read_text().count("\n") if path.exists() else 0


def run(name: str, seed: int, count: int) -> None:
  """Makes a run of so many rounds, or the rest of it."""
  workdir = directory(name, seed)
  options = [f"--config.seed={seed}", f"--config.rounds.count={count}"]
  if name != ROWS[0]:
    base = rounds.directory(directory(ROWS[0], seed), 0)
    base = base.relative_to(harness.ROOT)
    options.append(f"--config.sft.reuse={base}")
  if finished(name, seed) <= count:
    seeds.train(f"configs/{name}.py", workdir, *options)


def read(name: str, seed: int) -> dict:
  """The evaluation after each round, and what the round learned from."""
  text = (directory(name, seed) / "metrics.jsonl").read_text()
  lines = [json.loads(line) for line in text.splitlines()]
  out = dict(name=name, seed=seed)
  out |= {x: [line[CORE + x] for line in lines] for x in COLUMNS}
  out |= {
      x: [line.get(f"rounds/{x}") for line in lines]
      for x in ("rows", "responses", "correct", "preferences/accuracy")
  }
  out["length"] = [line["val-aux/response_length/mean"] for line in lines]
  # The score of the reward model and the verdicts, by step of RL.
  steps = []
  for number in range(len(lines)):
    path = rounds.directory(directory(name, seed), number) / "metrics.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()]
    steps += [
        dict(
            round=number,
            score=x["reward/reward_model/mean"],
            accuracy=x["train/accuracy"],
        )
        for x in scores.of_stage(found, "rl")
    ]
  return out | dict(steps=steps)


def page(result: dict) -> list[str]:
  """The tables in Markdown."""
  numbers = functools.partial(seeds.spread, share=False)
  out = [
      "# Rounds: learning from the policy's own samples",
      "",
      "Made by `python -m bench.rounds`; data in `rounds.json`. Held-out"
      " accuracy after each round on 1,000 prompts, 4 samples each at"
      " temperature 1: mean over seeds ± half the width of its 95% interval,"
      " and least to most. Round 0 is the SFT that all rounds start from.",
  ]
  for name in ROWS:
    runs = [x for x in result["runs"] if x["name"] == name]
    if not runs:
      continue
    pairs = runs[0]["steps"]
    more = "pairs that the model predicts" if pairs else "correct samples"
    made = ", ".join(str(x["seed"]) for x in runs)
    out += [
        "",
        f"## `configs/{name}.py`, seeds {made}",
        "",
        f"| round | seeds | {' | '.join(COLUMNS)} | length | rows | {more} |",
        "|---" * (len(COLUMNS) + 5) + "|",
    ]
    every = runs
    for i in range(max(len(x["rows"]) for x in every)):
      runs = [x for x in every if len(x["rows"]) > i]
      cells = [seeds.spread([x[k][i] for x in runs]) for k in COLUMNS]
      cells = [str(len(runs)), *cells, numbers([x["length"][i] for x in runs])]
      if i:
        cells.append(f"{sum(x['rows'][i] for x in runs) / len(runs):,.0f}")
        share = [
            x["preferences/accuracy"][i]
            if pairs
            else x["correct"][i] / x["responses"][i]
            for x in runs
        ]
        cells.append(seeds.spread(share))
      else:
        cells += ["", ""]
      out.append(f"| {i} | " + " | ".join(cells) + " |")
  return [*out, "", *tables.footer(result)]


def main() -> None:
  """Runs what is missing, then writes data and tables."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--collect", action="store_true")
  parser.add_argument("--table", action="store_true")
  parser.add_argument("--seeds", type=int, default=len(SEEDS))
  parser.add_argument("--count", type=int, default=4)
  parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
  args = parser.parse_args()
  jobs = list(itertools.product(ROWS, SEEDS))
  cache = harness.RUNS / NAME / "compiled"  # shared by the seeds
  os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
  if not args.table:
    for name, seed in jobs:
      wanted = name in args.rows and seed in SEEDS[: args.seeds]
      if wanted and not args.collect:
        run(name, seed, args.count)
    made = [x for x in jobs if finished(*x)]
    place = rounds.directory(directory(*made[0]), 0)
    harness.write_data(
        NAME,
        dict(
            command="python -m bench.rounds",
            environment=machine.read(place),
            runs=[read(*x) for x in made],
        ),
    )
  result = harness.read(NAME)
  harness.write(NAME, result, page(result))


if __name__ == "__main__":
  main()
