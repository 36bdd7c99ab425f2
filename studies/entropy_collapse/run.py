"""Entropy collapse under a symmetric clip, and under clip-higher.

  python -m studies.entropy_collapse.run            # resumable; 5 minutes each
  python -m studies.entropy_collapse.run --collect  # of the runs made so far
  python -m studies.entropy_collapse.run --table    # only the pages, from JSON

GRPO on the parities of the study `xor`, whose SFT models it begins from, with
three upper clip bounds and one or four epochs. plan.md has the hypotheses.
Writes entropy_collapse.{json,md,png}.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from bench import results, runs
from rl_reason.lab import ablate, comparison, jobs
from rl_reason.monitoring import run_log
from rl_reason.report import figures, scores
from studies.xor import run as xor

NAME = "entropy_collapse"
SEEDS = xor.SEEDS[:8]
BOUNDS = (0.2, 0.28, 0.5)  # upper, of the ratio minus 1
EPOCHS = {"one epoch": 1, "four epochs": 4}
FIELDS = {"optimizer.b1": 0.0, "updates.minibatches": 16}
ROWS = tuple(itertools.product(EPOCHS, BOUNDS))
ACCURACY = xor.CORE + "mean@4"
CURVES = {"entropy": "actor/entropy", "clipped": "actor/pg_clipfrac"}
OPEN = "open: seeds are missing"
LOST, SHARE, MOST, ENOUGH = 25, 0.2, 0.7, 6  # of the first hypothesis


# --- runs --------------------------------------------------------------------


def job(epochs: str, bound: float, seed: int) -> jobs.Job:
  """A run, from the SFT model of this seed."""
  base = xor.directory("SFT", seed)
  fields = FIELDS | runs.HELD_OUT | {"seed": seed, "sft.reuse": str(base)}
  fields["updates.epochs"] = EPOCHS[epochs]
  fields["surrogate.args.clip_high"] = bound
  place = results.RUNS / NAME / ablate.slug(f"{epochs} {bound} {seed}")
  return runs.run("configs/xor.py:grpo", place, fields, (base,))


def read(epochs: str, bound: float, seed: int) -> dict[str, Any]:
  """Held-out accuracy by step, and entropy and clipped share of each step."""
  lines = run_log.read_metrics(job(epochs, bound, seed).workdir)
  evaluations = scores.of_stage(lines, "evaluate")
  rl = scores.of_stage(lines, "rl")
  return dict(
      epochs=epochs,
      bound=bound,
      seed=seed,
      steps=[x["step"] for x in evaluations],
      accuracy=[x[ACCURACY] for x in evaluations],
      **{
          name: [float(f"{x[key]:.4g}") for x in rl]
          for name, key in CURVES.items()
      },
  )


def flags(parser) -> None:
  """The flags."""
  parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
  parser.add_argument("--seeds", type=int, default=len(SEEDS))
  parser.add_argument("--collect", action="store_true", help="run nothing")


def measure(given) -> dict:
  """Runs what is missing, seed by seed; returns the data."""
  every = [(*row, seed) for seed, row in itertools.product(SEEDS, ROWS)]
  if not given.collect:
    for seed in SEEDS[: given.seeds]:
      wanted = [job(*x) for x in every if x[-1] == seed]
      runs.make([xor.base(seed), *wanted], given.jobs)
  made = [x for x in every if job(*x).finished()]
  return dict(
      command=f"python -m studies.{NAME}.run",
      environment=results.run_environment(job(*made[-1]).workdir),
      runs=[read(*x) for x in made],
  )


# --- page and figure ---------------------------------------------------------


def accuracy(run: dict, step: int) -> float:
  """Held-out accuracy after a step."""
  return run["accuracy"][run["steps"].index(step)]


def entropy(run: dict, step: int) -> float:
  """Entropy of the training responses of a step."""
  return run["entropy"][step - 1]


def collapsed(run: dict) -> bool:
  """Whether the entropy of a run is gone before the skill is learned."""
  gone = entropy(run, LOST) < SHARE * entropy(run, 1)
  return gone and accuracy(run, LOST) <= MOST


def of_row(result: dict, epochs: str, bound: float) -> dict[int, dict]:
  """The runs of a row by seed."""
  return {
      x["seed"]: x
      for x in result["runs"]
      if (x["epochs"], x["bound"]) == (epochs, bound)
  }


def difference(
    result: dict, epochs: str, bound: float, value: Callable[[dict], float]
) -> tuple[float, float | None] | None:
  """(mean, half width) of a bound minus 0.2, paired by seed; None: no data."""
  one = of_row(result, epochs, bound)
  other = of_row(result, epochs, BOUNDS[0])
  both = [value(one[x]) - value(other[x]) for x in one if x in other]
  return comparison.interval(both) if both else None


def verdicts(result: dict) -> list[tuple[str, str, str]]:
  """(hypothesis, verdict, numbers) of the plan."""
  runs_of = of_row(result, "four epochs", BOUNDS[0]).values()
  count = sum(map(collapsed, runs_of))
  needed = ENOUGH / len(SEEDS) * len(runs_of)
  out = [
      (
          "four epochs, bound .2: the entropy collapses before the skill is"
          " learned",
          "holds" if count >= needed else "**refuted**",
          f"in {count} of {len(runs_of)} seeds",
      )
  ]
  for text, epochs, step in (
      ("clip-higher rescues it: accuracy at step 25", "four epochs", 25),
      ("clip-higher is faster: accuracy at step 15", "one epoch", 15),
  ):
    found = difference(
        result, epochs, 0.28, lambda x, step=step: accuracy(x, step)
    )
    if found and found[1] is not None:
      mean, half = found
      verdict = "holds" if mean > half else "**refuted**"
      shown = f"{100 * mean:+.1f} ± {100 * half:.1f} points"
      out.append((f"{text}, {epochs}", verdict, shown))
  changes = {
      x: difference(result, x, 0.28, lambda run: entropy(run, 10))
      for x in EPOCHS
  }
  known = {k: x for k, x in changes.items() if x and x[1] is not None}
  if known:
    above = [x for x, (mean, half) in known.items() if mean > half]
    shown = "; ".join(
        f"{k} {mean:+.3f} ± {half:.3f}" for k, (mean, half) in known.items()
    )
    text = "the entropy at step 10 is not higher with clip-higher"
    out.append((text, "**refuted**" if above else "holds", f"{shown} nats"))
  return out


def page(result: dict) -> list[str]:
  """Returns the page."""
  seeds = {x["seed"] for x in result["runs"]}
  about = (
      "Does the entropy collapse under a symmetric clip, and does clip-higher"
      f" prevent it? Data in `{NAME}.json`, hypotheses in [plan.md](plan.md)."
      " GRPO on the parities of"
      " [xor.md](../xor/xor.md), 25 steps, where the upper clip bound acts: no"
      " momentum, 16 optimizer steps a rollout and epoch. Held-out accuracy is"
      " mean@4 on 1,000 prompts at the end, and on"
      " `evaluate.interim_prompts` before; entropy is of training responses,"
      f" in nats per token. {len(seeds)} of {len(SEEDS)} seeds. Means ± half"
      " the width of the 95% interval (Student's t); differences from the"
      " bound of 1.2 are paired by seed, in points. Bands of the figure: least"
      " to most of the seeds."
  )
  out = [
      "| epochs | bound | accuracy at step 15 | difference | at step 25 |"
      " difference | entropy at step 10 | at step 25 | collapsed |",
      "|---" * 9 + "|",
  ]
  for epochs, bound in ROWS:
    found = list(of_row(result, epochs, bound).values())
    if not found:
      continue
    cells: list[str] = []
    for step in (15, 25):
      values = [accuracy(x, step) for x in found]
      cells.append(_number(comparison.interval(values), 100, ".1f", "%"))
      gap = difference(
          result, epochs, bound, lambda x, step=step: accuracy(x, step)
      )
      cells.append(
          _number(gap, 100, "+.1f") if gap and bound != BOUNDS[0] else ""
      )
    for step in (10, 25):
      values = [entropy(x, step) for x in found]
      cells.append(_number(comparison.interval(values), 1, ".3f"))
    count = sum(map(collapsed, found))
    out.append(
        results.row(
            epochs, f"{1 + bound:g}", *cells, f"{count} of {len(found)}"
        )
    )
  out += [
      "",
      f"Collapsed: the entropy at step {LOST} is below {SHARE:.0%} of that at"
      f" step 1, and the accuracy is at most {MOST:.0%}.",
      "",
      "| hypothesis | verdict | |",
      "|---|---|---|",
      *(
          results.row(text, verdict if len(seeds) == len(SEEDS) else OPEN, now)
          for text, verdict, now in verdicts(result)
      ),
  ]
  return results.document(
      "Entropy under a symmetric clip, and with clip-higher",
      _finding(result),
      about,
      f"![accuracy and entropy by step]({NAME}.png)",
      out,
      made=f"Made by `{result['command']}`.",
      versions=results.footer(result),
  )


def _finding(result: dict) -> str:
  """How many runs collapse at each bound, and what clip-higher changes."""
  words = []
  for epochs in EPOCHS:
    counts = []
    for bound in BOUNDS:
      if found := of_row(result, epochs, bound).values():
        count = sum(map(collapsed, found))
        counts.append(f"{count} of {len(found)} at {1 + bound:g}")
    gap = difference(result, epochs, BOUNDS[1], lambda x: accuracy(x, LOST))
    text = _number(gap, 100, "+.1f") if gap else "not measured"
    words.append(
        f"with {epochs} runs collapse in {results.joined(counts)}, and"
        f" {1 + BOUNDS[1]:g} is {text} points from {1 + BOUNDS[0]:g} at step"
        f" {LOST}"
    )
  return f"By the upper clip bound: {'; '.join(words)}."


def _number(interval, factor: float, form: str, unit: str = "") -> str:
  """Mean and half width of an interval."""
  mean, half = interval
  text = f"{factor * mean:{form}}{unit}"
  if half is None:
    return text
  return f"{text} ± {factor * half:{form.removeprefix('+')}}"


def figure(result: dict) -> dict:
  """Accuracy and entropy by step, for one and for four epochs."""
  panels = []
  for epochs in EPOCHS:
    accuracies, entropies = [], []
    for color, bound in enumerate(BOUNDS):
      found = list(of_row(result, epochs, bound).values())
      if not found:
        continue
      for lines, x, y_SE in (
          (accuracies, found[0]["steps"], [x["accuracy"] for x in found]),
          (
              entropies,
              range(1, LOST + 1),
              [x["entropy"][:LOST] for x in found],
          ),
      ):
        y = np.array(y_SE)
        lines.append(
            figures.series(
                f"bound {1 + bound:g}",
                np.array(x),
                y=y.mean(0),
                low=y.min(0),
                high=y.max(0),
                color=color,
            )
        )
    panels += [
        figures.lines(
            accuracies,
            x=f"RL steps, {epochs}",
            y="held-out accuracy (mean@4)",
            percent=True,
        ),
        figures.lines(
            entropies, x=f"RL steps, {epochs}", y="entropy, nats per token"
        ),
    ]
  return figures.figure(
      figures.block(panels, columns=2, height=3.0), legend=True
  )


if __name__ == "__main__":
  results.main(__doc__, NAME, measure, page, figure=figure, flags=flags)
