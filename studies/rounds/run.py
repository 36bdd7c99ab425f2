"""Rounds on five seeds: rejection-sampled SFT, and GRPO with a reward model.

  python -m studies.rounds.run  # resumable; CPU-minutes: 3 a run of SFT
  python -m studies.rounds.run --count 2  # fewer rounds; a larger count goes on
  python -m studies.rounds.run --collect  # of the runs made so far
  python -m studies.rounds.run --table    # only the tables, from JSON

The runs were made with the field rounds.count, which commit 655fb56c is the
last one to have; examples/rejection_sampling.py and examples/iterative_grpo.py
make the same rounds. Writes rounds.json and .md. The seeds are the default one
and 4 of a hash. GRPO starts from the SFT of rejection sampling of the same
seed.
"""

import functools
import itertools
import pathlib

from bench import results, runs
from bench.training import seeds
from rl_reason.lab import ablate, jobs
from rl_reason.monitoring import run_log
from rl_reason.report import scores

SEEDS = (0, *ablate.fresh_seeds("rl_reason rounds", 4))
ROWS = ("rejection_sampling", "iterative_grpo")
NAME = "rounds"
CORE = "val-core/arithmetic/acc/"
COLUMNS = ("mean@4", "greedy", "pass@8")


def directory(name: str, seed: int) -> pathlib.Path:
  """The work directory of all rounds."""
  return results.RUNS / NAME / f"{name}-{seed}"


def finished(name: str, seed: int) -> int:
  """The rounds of a run that have ended, round 0 among them."""
  path = directory(name, seed) / "metrics.jsonl"
  return path.read_text().count("\n") if path.exists() else 0


def job(name: str, seed: int, count: int) -> jobs.Job:
  """A run of `count` rounds."""
  fields: dict = {"seed": seed, "rounds.count": count}
  if name != ROWS[0]:
    base = directory(ROWS[0], seed) / "round-0"
    fields["sft.reuse"] = str(base.relative_to(results.ROOT))
  return runs.run(f"configs/{name}.py", directory(name, seed), fields)


def read(name: str, seed: int) -> dict:
  """The evaluation after each round, and what the round learned from."""
  lines = run_log.read_metrics(directory(name, seed))
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
    place = directory(name, seed) / f"round-{number}"
    steps += [
        dict(
            round=number,
            score=x["reward/reward_model/mean"],
            accuracy=x["train/accuracy"],
        )
        for x in scores.of_stage(run_log.read_metrics(place), "rl")
    ]
  return out | dict(steps=steps)


def page(result: dict) -> list[str]:
  """The tables in Markdown."""
  numbers = functools.partial(seeds.spread, share=False)
  about = (
      "How much does each round of training on the policy's own samples add?"
      " Data in `rounds.json`. Held-out"
      " accuracy after each round on 1,000 prompts, 4 samples each at"
      " temperature 1: mean over seeds ± half the width of its 95% interval,"
      " and least to most. Round 0 is the SFT that all rounds start from."
  )
  out, words = [], []
  for name in ROWS:
    every = [x for x in result["runs"] if x["name"] == name]
    if not every:
      continue
    pairs = every[0]["steps"]
    more = "pairs that the model predicts" if pairs else "correct samples"
    of_seeds = ", ".join(str(x["seed"]) for x in every)
    last = min(len(x["rows"]) for x in every) - 1
    first, end = (
        seeds.spread([x[COLUMNS[0]][i] for x in every]).partition(" (")[0]
        for i in (0, last)
    )
    plural = "s" * (len(every) > 1)
    words.append(
        f"{name} from {first} to {end} in {last} round{'s' * (last > 1)}"
        f" ({len(every)} seed{plural})"
    )
    out += [
        *([""] if out else []),
        f"## `configs/{name}.py`, seeds {of_seeds}",
        "",
        f"| round | seeds | {' | '.join(COLUMNS)} | length | rows | {more} |",
        "|---" * (len(COLUMNS) + 5) + "|",
    ]
    for i in range(max(len(x["rows"]) for x in every)):
      made = [x for x in every if len(x["rows"]) > i]
      cells = [seeds.spread([x[k][i] for x in made]) for k in COLUMNS]
      cells = [str(len(made)), *cells, numbers([x["length"][i] for x in made])]
      if i:
        cells.append(f"{sum(x['rows'][i] for x in made) / len(made):,.0f}")
        share = [
            x["preferences/accuracy"][i]
            if pairs
            else x["correct"][i] / x["responses"][i]
            for x in made
        ]
        cells.append(seeds.spread(share))
      else:
        cells += ["", ""]
      out.append(results.row(i, *cells))
  return results.document(
      "Rounds: learning from the policy's own samples",
      f"Held-out accuracy ({COLUMNS[0]}) of all seeds goes with"
      f" {results.joined(words)}.",
      about,
      out,
      made="Made by `python -m studies.rounds.run`.",
      versions=results.footer(result),
  )


def flags(parser) -> None:
  """The flags."""
  parser.add_argument("--collect", action="store_true")
  parser.add_argument("--seeds", type=int, default=len(SEEDS))
  parser.add_argument("--count", type=int, default=4)
  parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)


def measure(given) -> dict:
  """Runs what is missing; returns the data."""
  order = list(itertools.product(ROWS, SEEDS))
  if not given.collect:
    runs.make(
        [
            job(name, seed, given.count)
            for name, seed in order
            if name in given.rows and seed in SEEDS[: given.seeds]
            if finished(name, seed) <= given.count
        ],
        JAX_COMPILATION_CACHE_DIR=str(results.RUNS / NAME / "compiled"),
    )
  made = [x for x in order if finished(*x)]
  return dict(
      command="python -m studies.rounds.run",
      environment=results.run_environment(directory(*made[0]) / "round-0"),
      runs=[read(*x) for x in made],
  )


if __name__ == "__main__":
  results.main(__doc__, NAME, measure, page, flags=flags)
