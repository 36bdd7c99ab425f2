"""Four switches: every combination of DAPO's four techniques, on eight seeds.

  python -m studies.four_switches.run            # resumable; about a CPU-hour
  python -m studies.four_switches.run --seeds 2  # only the first seeds
  python -m studies.four_switches.run --collect  # of the runs made so far
  python -m studies.four_switches.run --table    # only the pages, from JSON
  python -m studies.four_switches.run --develop 7  # all on, all off, seed 7

Clip-Higher, Dynamic Sampling, Token-Level Loss and Overlong Shaping, on GRPO.
Writes four_switches.{json,md,html}; plan.md is the plan.
"""

import collections
import functools
import itertools
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from scipy import stats

from bench import results
from rl_reason.lab import ablate, comparison, jobs
from rl_reason.monitoring import run_log
from rl_reason.report import charts, rendering, scores
from studies.verdicts import decided, within

NAME = "four_switches"
SEEDS = ablate.fresh_seeds("rl_reason four switches", 8)
# Each switch: what the config has with it, and without it.
SWITCHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Clip-Higher": (
        {"surrogate.args.clip_high": 0.28},
        {"surrogate.args.clip_high": 0.2},
    ),
    "Dynamic Sampling": (
        {"dynamic_sampling.enabled": True},
        {"dynamic_sampling.enabled": False},
    ),
    "Token-Level Loss": (
        {"reduction.name": "token_mean"},
        {"reduction.name": "seq_mean_token_mean"},
    ),
    "Overlong Shaping": (
        {"reward.overlong_buffer": 16},
        {"reward.overlong_buffer": 0},
    ),
}
STEPS, EVERY = 30, 6
COMMON = {
    "rl.steps": STEPS,
    "rollout.max_tokens": 64,
    "updates.minibatches": 16,  # so that the policy moves as far as the clip
    "evaluate.prompts": 300,
    "evaluate.interim_prompts": 150,
    "evaluate.batch": 150,
    "evaluate.samples": 4,
    "evaluate.mean_of": 4,
    "evaluate.every": EVERY,
    "checkpoint.every": STEPS,
    "log.samples_every": STEPS,
    "log.loggers": "",
}
RUNS_PER_PROCESS = 16  # compiled programs stay in memory
ACCURACY = "val-core/countdown/acc/mean@4"
# Measures of RL: key of the metric.
MEASURES = {
    "reward": "critic/rewards/mean",
    "entropy": "actor/entropy",
    "length": "response_length/mean",
    "truncated": "response_length/clip_ratio",
}
# Alerts about the entropy (docs/alerts.md), as the page calls them.
HEALTH = {
    "alert/entropy_collapse": "collapsed",
    "alert/entropy_explosion": "exploded",
}

Cell = tuple[int, ...]  # 1 is on; in the order of SWITCHES


def cells() -> Iterator[Cell]:
  """All combinations; the first has all switches off."""
  return itertools.product((0, 1), repeat=len(SWITCHES))


def title(cell: Sequence[int]) -> str:
  """'Clip-Higher, Overlong Shaping', or 'all off'."""
  on = [name for name, x in zip(SWITCHES, cell, strict=True) if x]
  return ", ".join(on) or "all off"


def fields_of(cell: Sequence[int]) -> dict[str, Any]:
  """What the config has with these switches."""
  out: dict[str, Any] = {}
  for (on, off), x in zip(SWITCHES.values(), cell, strict=True):
    out |= on if x else off
  return out


def plan(
    seeds: Iterable[int] = SEEDS, wanted: Sequence[Cell] | None = None
) -> list[jobs.Job]:
  """SFT of each seed, which its cells share, and then its cells."""
  known = [*cells()] if wanted is None else wanted
  c = ablate.ladder(
      title="Four switches",
      question="",
      seeds=tuple(seeds),
      reference=title(known[0]),
      rows=[(title(x), "configs/countdown.py", fields_of(x)) for x in known],
      common=COMMON,
  )
  return ablate.plan(c, results.RUNS / NAME, "cells")


# --- data --------------------------------------------------------------------


def read(job: jobs.Job) -> dict[str, Any]:
  """The curves of a run: evaluations every `EVERY` steps, measures of RL."""
  lines = run_log.read_metrics(job.workdir)
  evaluations = scores.of_stage(lines, "evaluate")
  rl = scores.of_stage(lines, "rl")
  spent = charts.spent(lines, "tokens")
  by_title = {title(x): x for x in cells()}
  out: dict[str, Any] = dict(
      cell=list(by_title[job.row]),
      seed=job.seed,
      seconds=round(job.record()["seconds"], 1),
      accuracy=[_short(x[ACCURACY]) for x in evaluations],
      health=[x for name, x in HEALTH.items() if any(y.get(name) for y in rl)],
  )
  for kind, points in (("evaluate", evaluations), ("rl", rl)):
    out[f"{kind} tokens"] = [spent[x["step"]] for x in points]
  return out | {
      name: [_short(x[metric]) for x in rl] for name, metric in MEASURES.items()
  }


def _short(x: float) -> float:
  """Four digits: the data are kept in the repository."""
  return float(f"{x:.4g}")


def flags(parser) -> None:
  """The flags."""
  parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
  parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many")
  parser.add_argument("--collect", action="store_true", help="run nothing")
  parser.add_argument("--develop", type=int, help="a seed that is not reported")


def measure(given) -> dict:
  """Runs what is missing; returns the data."""
  if given.develop is not None:
    _run(plan([given.develop], [(0,) * 4, (1,) * 4]), given.jobs)
    raise SystemExit
  todo = plan()
  if not given.collect:
    _run(plan(SEEDS[: given.seeds]), given.jobs)
  done = [job for job in todo if job.row and job.finished()]
  found = [results.run_environment(job.workdir) for job in done]
  names = found[0] if found else ()
  return dict(
      command=f"python -m studies.{NAME}.run",
      seeds=list(SEEDS),
      switches={name: list(x) for name, x in SWITCHES.items()},
      common=COMMON,
      environment=found[0] if found else {},
      mixed=[x for x in names if len({str(y.get(x)) for y in found}) > 1],
      runs=[read(job) for job in done],
  )


def _run(todo: list[jobs.Job], parallel: int) -> None:
  stop = jobs.stop_on_signals()
  failed = jobs.run(
      todo, stop, parallel=parallel, runs_per_process=RUNS_PER_PROCESS
  )
  if failed:
    raise SystemExit(f"failed: {', '.join(failed)}")


# --- effects -----------------------------------------------------------------


class Outcome(NamedTuple):
  """A number of a run: the mean of a slice of a curve."""

  name: str
  measure: str
  last: int  # points of the curve, from its end
  unit: str  # of differences
  scale: float = 1
  digits: int = 1


OUTCOMES = (
    Outcome("held-out accuracy, %", "accuracy", 1, "points", 100),
    Outcome("reward", "reward", EVERY, "", digits=2),
    Outcome("entropy, nats per token", "entropy", EVERY, "nats", digits=3),
    Outcome("response length, tokens", "length", EVERY, "tokens"),
    Outcome("truncated, %", "truncated", EVERY, "points", 100),
)
FINAL, _, ENTROPY, LENGTH, _ = OUTCOMES
Values = dict[int, float]  # by seed


def value(run: dict[str, Any], outcome: Outcome) -> float:
  """The outcome of a run, in its units."""
  part = run[outcome.measure][-outcome.last :]
  return outcome.scale * sum(part) / len(part)


def complete(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
  """The runs of seeds on which all cells have run."""
  count = collections.Counter(x["seed"] for x in runs)
  return [x for x in runs if count[x["seed"]] == 2 ** len(SWITCHES)]


def contrast(
    runs: Sequence[dict[str, Any]], outcome: Outcome, *switches: str
) -> Values:
  """What a switch does, or two do together, by seed.

  A main effect is the mean difference of on and off over all settings of the
  other switches. An interaction of two is the effect of one with the other on,
  minus its effect with the other off; of a balanced grid, both are sums with
  signs.

  Args:
    runs: see `complete`.
    outcome: what differs.
    *switches: one, or two of them.
  """
  columns = [list(SWITCHES).index(x) for x in switches]
  sums: dict[int, float] = collections.defaultdict(float)
  for run in runs:
    sign = 1
    for i in columns:
      sign *= 1 if run["cell"][i] else -1
    sums[run["seed"]] += sign * value(run, outcome)
  pairs = 2 ** (len(SWITCHES) - len(switches))
  return {seed: x / pairs for seed, x in sums.items()}


def gap(
    runs: Sequence[dict[str, Any]], outcome: Outcome, one: Cell, other: Cell
) -> Values:
  """One cell minus another, by seed."""
  of = {(tuple(x["cell"]), x["seed"]): value(x, outcome) for x in runs}
  return {
      seed: x - of[other, seed]
      for (cell, seed), x in of.items()
      if cell == one and (other, seed) in of
  }


def interval(values: Values) -> tuple[float, float | None]:
  """Mean, and half the width of the 95% interval."""
  return comparison.interval([*values.values()])


def text(values: Values, outcome: Outcome) -> str:
  """'+3.2 ± 1.1 points'."""
  if not values:
    return "–"
  mean = results.mean([*values.values()], f"+.{outcome.digits}f")
  return f"{mean} {outcome.unit}".rstrip()


def clear(values: Values) -> int:
  """1 or -1 where the interval excludes 0, else 0."""
  mean, half = interval(values)
  if half is None or abs(mean) <= half:
    return 0
  return 1 if mean > 0 else -1


def verdicts(result: dict) -> list[list[str]]:
  """Each hypothesis of plan.md: what was found, the verdict."""
  runs = complete(result["runs"])
  main = functools.partial(contrast, runs)
  rows = (
      ("Clip-Higher raises the entropy", ENTROPY, "Clip-Higher", 1),
      ("Dynamic Sampling raises the accuracy", FINAL, "Dynamic Sampling", 1),
      ("Token-Level Loss shortens responses", LENGTH, "Token-Level Loss", -1),
      ("Overlong Shaping shortens responses", LENGTH, "Overlong Shaping", -1),
      ("Overlong Shaping lowers the accuracy", FINAL, "Overlong Shaping", -1),
  )
  out = []
  for words, outcome, switch, sign in rows:
    found = main(outcome, switch)
    out.append([words, text(found, outcome), _verdict(found, sign)])
  together = gap(runs, FINAL, (1,) * 4, (0,) * 4)
  words = "All four together do not differ from none by 5 points of accuracy"
  out.append([words, text(together, FINAL), _within(together, 5)])
  return out


def _verdict(values: Values, sign: int) -> str:
  if len(values) < 2:
    return "open: fewer than two seeds"
  return decided([*values.values()], sign)


def _within(values: Values, bound: float) -> str:
  if len(values) < 2:
    return "open: fewer than two seeds"
  return within([*values.values()], bound)


# --- pages -------------------------------------------------------------------


def notes(result: dict) -> list[str]:
  """What is missing."""
  total, made = 2 ** len(SWITCHES) * len(result["seeds"]), len(result["runs"])
  out = []
  if made < total:
    seeds = len({x["seed"] for x in complete(result["runs"])})
    out.append(
        f"{made} of {total} runs have been made; effects are of the {seeds}"
        " seeds whose cells have all run. The same command makes the others."
    )
  if result["mixed"]:
    out.append(f"Runs differ in: {', '.join(result['mixed'])}.")
  return out


def about(result: dict) -> str:
  """What was run."""
  return (
      f"GRPO on countdown, {STEPS} steps of 256 responses of at most 64 tokens"
      " in 16 minibatches, after SFT on searching and then on giving up early."
      " Clip-Higher: the upper clip bound is .28 and not .2. Dynamic Sampling:"
      " groups whose responses are all correct or all incorrect are replaced."
      " Token-Level Loss: the mean over all tokens of a batch, and not over"
      " responses. Overlong Shaping: the soft punishment over the last 16"
      f" tokens. {len(result['seeds'])} seeds a combination; those of a seed"
      " share its SFT model. Accuracy is mean@4 of 300 held-out prompts at the"
      f" last step; all others are means of the last {EVERY} steps."
  )


def headline(result: dict) -> str:
  """What to turn, and what to see: the largest clear effects."""
  runs, found = complete(result["runs"]), []
  for outcome in (FINAL, ENTROPY, LENGTH):
    known = [
        (switch, values)
        for switch in SWITCHES
        if len(values := contrast(runs, outcome, switch)) > 1 and clear(values)
    ]
    if known:
      switch, values = max(known, key=lambda x: abs(interval(x[1])[0]))
      name = outcome.name.partition(",")[0]
      found.append(f"{switch} moves the {name} most ({text(values, outcome)})")
    else:
      found.append(f"no switch clearly moves the {outcome.name.split(',')[0]}")
  *first, last = found
  return f"Turn one switch at a time: {', '.join(first)}, and {last}."


def page(result: dict) -> list[str]:
  """The page in Markdown."""
  runs, known = complete(result["runs"]), verdicts(result)
  shown = [x.name for x in OUTCOMES]
  out = [
      "Every curve is on the interactive page"
      f" [{NAME}.html]({NAME}.html), which needs no network; data in"
      f" `{NAME}.json`. The plan is [plan.md](plan.md).",
      "",
      *(f"- {x}" for x in notes(result)),
      "",
      "Main effects: on minus off, the mean over all settings of the other"
      " switches, ± half the width of a 95% interval (Student's t over seeds).",
      "",
      results.row("switch", *shown),
      "|---" * (len(shown) + 1) + "|",
  ]
  for switch in SWITCHES:
    effects = (text(contrast(runs, x, switch), x) for x in OUTCOMES)
    out.append(results.row(switch, *effects))
  out.append(
      results.row(
          "all four, against none",
          *(text(gap(runs, x, (1,) * 4, (0,) * 4), x) for x in OUTCOMES),
      )
  )
  out += ["", *_interactions(runs)]
  out += ["", results.row("cell", *shown, "entropy is"), "|---" * 7 + "|"]
  for cell in cells():
    of_cell = [x for x in runs if tuple(x["cell"]) == cell]
    numbers = (
        results.mean([value(x, y) for x in of_cell], f".{y.digits}f")
        for y in OUTCOMES
    )
    out.append(results.row(title(cell), *numbers, health(of_cell)))
  out += ["", "| expectation | found | verdict |", "|---|---|---|"]
  out += [results.row(*x) for x in known]
  versions = results.footer(result) if result["environment"] else ()
  return results.document(
      "Four switches",
      headline(result),
      f"What does each technique of DAPO do? {about(result)}",
      out,
      made=f"Made by `{result['command']}`.",
      versions=versions,
  )


def health(runs: Sequence[dict[str, Any]]) -> str:
  """What the package's alerts say of the entropy, over seeds."""
  count = collections.Counter(x for run in runs for x in run["health"])
  found = [f"{x} on {n} of {len(runs)} seeds" for x, n in count.items()]
  return ", ".join(found) or "healthy"


def _interactions(runs) -> list[str]:
  pairs, rows, seen = [*itertools.combinations(SWITCHES, 2)], [], []
  for one, other in pairs:
    found = contrast(runs, FINAL, one, other)
    rows.append(results.row(one, other, text(found, FINAL)))
    if len(found) > 1 and clear(found):
      seen.append(f"{one} and {other}")
  return [
      "Interactions in held-out accuracy: the effect of one with the other on,"
      " minus its effect with the other off. The interval excludes 0 for"
      f" {len(seen)} of {len(pairs)}: {results.joined(seen)}.",
      "",
      "| one | other | interaction |",
      "|---|---|---|",
      *rows,
  ]


CHARTS = (
    ("Held-out accuracy", "accuracy", "evaluate", "% of responses", True),
    ("Reward", "reward", "rl", "mean of a response", False),
    ("Entropy", "entropy", "rl", "nats per token", False),
    ("Response length", "length", "rl", "tokens", False),
    ("Truncated", "truncated", "rl", "% of responses", True),
)


def interactive(result: dict) -> str:
  """four_switches.html."""
  runs, count = complete(result["runs"]), range(2, len(result["seeds"]) + 1)
  data = dict(
      title="Four switches",
      about=about(result),
      finding=headline(result),
      notes=notes(result),
      x=["step", "tokens"],
      steps=[*range(0, STEPS + 1, EVERY)],
      t={n: float(stats.t.ppf(0.975, n - 1)) for n in count},
      outcomes=[x._asdict() for x in OUTCOMES],
      effects={
          x.name: {
              switch: interval(contrast(runs, x, switch)) for switch in SWITCHES
          }
          for x in OUTCOMES
          if runs
      },
      verdicts=verdicts(result),
      charts=[
          dict(
              title=name,
              measure=curve,
              kind=kind,
              unit=unit,
              percent=percent,
              wide=not i,
              between=True,
              about="Mean over seeds, minimum and maximum as a band.",
          )
          for i, (name, curve, kind, unit, percent) in enumerate(CHARTS)
      ],
      config=rendering.as_text(
          dict(command=result["command"]) | result["common"]
      ),
      environment=rendering.as_text(result["environment"]),
  )
  kept = {name: result[name] for name in ("seeds", "switches")}
  return rendering.render(
      NAME, kept | data | dict(runs=runs), pathlib.Path(__file__).parent
  )


if __name__ == "__main__":
  results.main(
      __doc__, NAME, measure, page, interactive=interactive, flags=flags
  )
