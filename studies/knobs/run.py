"""Four knobs: every combination of three settings each, on three seeds.

  python -m studies.knobs.run            # resumable; about 25 CPU-minutes
  python -m studies.knobs.run --collect  # of the runs made so far
  python -m studies.knobs.run --table    # only the pages, from JSON

Reward shape, clip bound, group size and length punishment of GRPO on the
default task. Writes knobs.{json,md}; plan.md is the plan.
"""

import collections
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bench import results
from rl_reason.lab import ablate, comparison, jobs
from rl_reason.monitoring import run_log
from rl_reason.report import charts, scores

NAME = "knobs"
SEEDS = ablate.fresh_seeds("rl_reason four knobs", 3)
# The settings of each knob, and the fields of each setting.
KNOBS: dict[str, dict[str, dict[str, Any]]] = {
    "group size": {f"{n}": {"rollout.group_size": n} for n in (2, 8, 32)},
    "clip bound": {
        f"{e:g}": {f"surrogate.args.clip_{x}": e for x in ("low", "high")}
        for e in (0.005, 0.02, 0.2)
    },
    "reward shape": {
        "verdict": {},
        "verdict + steps": {"reward.functions": "steps"},
        "steps alone": {
            "reward.functions": "steps",
            "reward.correct": 0.0,
            "reward.incorrect": 0.0,
        },
    },
    "length punishment": {
        "none": {},
        "coefficient 1": {"reward.overlong_buffer": 44},
        "coefficient 2": {
            "reward.overlong_buffer": 44,
            "reward.overlong_coef": 2.0,
        },
    },
}
COMMON = {
    "rl.steps": 24,
    "rollout.batch": 128,
    "updates.minibatches": 4,
    "evaluate.prompts": 192,
    "evaluate.interim_prompts": 96,
    "evaluate.batch": 96,
    "evaluate.samples": 2,
    "evaluate.mean_of": 2,
    "evaluate.every": 6,
    "checkpoint.every": 24,
    "log.samples_every": 24,
    "log.loggers": "",
}
RUNS_PER_PROCESS = 30  # compiled programs stay in memory: about 1 GB
ACCURACY = "val-core/arithmetic/acc/mean@2"
# Measures of RL: key of the metric.
MEASURES = {
    "length": "response_length/mean",
    "entropy": "actor/entropy",
    "training accuracy": "train/accuracy",
    "clipped": "actor/pg_clipfrac",
}


def cells() -> Iterator[tuple[str, ...]]:
  """The settings of each cell, in the order of `KNOBS`."""
  return itertools.product(*KNOBS.values())


def plan() -> list[jobs.Job]:
  """SFT of each seed, then the runs by `fraction` and by seed."""
  rows = []
  for cell in cells():
    fields: dict[str, Any] = {}
    for knob, setting in zip(KNOBS.values(), cell, strict=True):
      fields |= knob[setting]
    rows.append((", ".join(cell), "configs/grpo.py", fields))
  c = ablate.ladder(
      title="Four knobs",
      question="",
      seeds=SEEDS,
      reference=rows[0][0],
      rows=rows,
      common=COMMON,
  )
  found = ablate.plan(c, results.RUNS / NAME, "cells")
  return sorted(found, key=lambda job: (bool(job.row), fraction(job)))


def fraction(job: jobs.Job) -> int:
  """Which third of the grid a run belongs to; 0 for SFT.

  The settings of a third are balanced: each pair of settings of two knobs
  occurs three times, so main effects can be read from one third.
  """
  return sum(indices(job)) % 3 if job.row else 0


def indices(job: jobs.Job) -> list[int]:
  """The number of each knob's setting."""
  settings = job.row.split(", ")
  knobs = zip(KNOBS.values(), settings, strict=True)
  return [list(knob).index(x) for knob, x in knobs]


def read(job: jobs.Job) -> dict[str, Any]:
  """The curves of a run: evaluations by `steps`, measures of each RL step."""
  lines = run_log.read_metrics(job.workdir)
  evaluations = scores.of_stage(lines, "evaluate")
  spent = charts.spent(lines, "tokens")
  out: dict[str, Any] = dict(
      cell=indices(job),
      seed=job.seed,
      seconds=round(job.record()["seconds"], 1),
      accuracy=[_short(x[ACCURACY]) for x in evaluations],
  )
  rl = scores.of_stage(lines, "rl")
  # Tokens that were generated up to a point, for the axes of the page.
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
  parser.add_argument(
      "--seeds", type=int, default=len(SEEDS), help="run only the first ones"
  )
  parser.add_argument("--collect", action="store_true")


def measure(given) -> dict:
  """Runs what is missing; returns the data."""
  todo = plan()
  if not given.collect:
    stop = jobs.stop_on_signals()
    wanted = [job for job in todo if job.seed in (0, *SEEDS[: given.seeds])]
    failed = jobs.run(
        wanted, stop, parallel=given.jobs, runs_per_process=RUNS_PER_PROCESS
    )
    if failed:
      raise SystemExit(f"failed: {', '.join(failed)}")
  done = [job for job in todo if job.row and job.finished()]
  return dict(
      command="python -m studies.knobs.run",
      seeds=list(SEEDS),
      knobs={name: list(settings) for name, settings in KNOBS.items()},
      fields={name: list(x.values()) for name, x in KNOBS.items()},
      common=COMMON,
      steps=[0, 6, 12, 18, 24],
      environment=results.run_environment(done[0].workdir) if done else {},
      mixed=mixed(done),
      runs=[read(job) for job in done],
  )


def mixed(done: list[jobs.Job]) -> list[str]:
  """The entries of machine and versions in which runs differ."""
  found = [results.run_environment(job.workdir) for job in done]
  names = found[0] if found else ()
  return [x for x in names if len({str(y.get(x)) for y in found}) > 1]


# --- effects ------------------------------------------------------------------


class Outcome(NamedTuple):
  """A number of a run: the mean of a slice of a curve."""

  name: str
  measure: str
  first: int
  last: int
  share: bool = True
  digits: int = 1  # after the point, of percent for a share


OUTCOMES = (
    Outcome("accuracy at step 24, %", "accuracy", 4, 5),
    Outcome("accuracy at step 6, %", "accuracy", 1, 2),
    Outcome("response length, last 6 steps, tokens", "length", 18, 24, False),
    Outcome("entropy, last 6 steps, nats", "entropy", 18, 24, False, 3),
)
FINAL, EARLY, *_ = OUTCOMES
DEFAULTS = (1, 2, 0, 0)  # the setting of each knob that others are compared to


def value(run: dict[str, Any], outcome: Outcome) -> float:
  """The outcome of a run."""
  part = run[outcome.measure][outcome.first : outcome.last]
  return sum(part) / len(part)


def balanced(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
  """The runs of complete thirds of the grid, see `fraction`, of each seed."""
  count = collections.Counter((x["seed"], sum(x["cell"]) % 3) for x in runs)
  return [x for x in runs if count[x["seed"], sum(x["cell"]) % 3] == 27]


def by_seed(
    runs: Sequence[dict[str, Any]],
    outcome: Outcome,
    knob: str,
    setting: str,
    **where: str,
) -> dict[int, float]:
  """The mean difference of a setting from the default setting, by seed.

  Args:
    runs: see `balanced`.
    outcome: what differs.
    knob: which knob is turned.
    setting: to which setting.
    **where: other knobs, '_' for a space, and their settings; the remaining
      knobs have all settings.
  """
  names = list(KNOBS)
  fixed = {
      names.index(name.replace("_", " ")): list(
          KNOBS[name.replace("_", " ")]
      ).index(x)
      for name, x in where.items()
  }
  k = names.index(knob)
  one, other = list(KNOBS[knob]).index(setting), DEFAULTS[k]
  values: dict[tuple[int, int], list[float]] = {}
  for run in runs:
    if all(run["cell"][i] == x for i, x in fixed.items()):
      place = values.setdefault((run["seed"], run["cell"][k]), [])
      place.append(value(run, outcome))
  means = {at: sum(x) / len(x) for at, x in values.items()}
  return {
      seed: mean - means[seed, other]
      for (seed, at), mean in means.items()
      if at == one and (seed, other) in means
  }


def difference(
    one: dict[int, float], other: dict[int, float]
) -> dict[int, float]:
  """One minus the other, of the seeds that both have."""
  return {seed: one[seed] - other[seed] for seed in one if seed in other}


def effect(values: dict[int, float]) -> list[float | None] | None:
  """Mean and half the width of the 95% interval; None without a seed."""
  return list(comparison.interval([*values.values()])) if values else None


def main_effects(result: dict) -> dict[str, dict[str, list]]:
  """By outcome and knob: the `effect` of each setting."""
  runs = balanced(result["runs"])
  return {
      outcome.name: {
          knob: [effect(by_seed(runs, outcome, knob, x)) for x in settings]
          for knob, settings in KNOBS.items()
      }
      for outcome in OUTCOMES
  }


def verdicts(result: dict) -> list[list[str]]:
  """Each hypothesis of plan.md: what was found, the verdict."""
  runs = balanced(result["runs"])
  of = functools.partial(by_seed, runs)
  proxy = of(FINAL, "reward shape", "steps alone", length_punishment="none")
  partial = of(FINAL, "reward shape", "verdict + steps")
  early = of(EARLY, "clip bound", "0.005")
  late = of(FINAL, "clip bound", "0.005")
  shrinks = difference(early, late)
  large = of(EARLY, "group size", "32")
  punished = functools.partial(of, FINAL, "length punishment", "coefficient 1")
  mild, harsh = (punished(reward_shape=x) for x in ("verdict", "steps alone"))

  def below(values: dict[int, float], bound: float) -> bool | None:
    """Whether an interval is below a bound: None where it contains it."""
    mean, half = comparison.interval([*values.values()])
    if half is None or abs(mean - bound) <= half:
      return None
    return mean < bound

  def both(*found: bool | None) -> bool | None:
    return False if False in found else None if None in found else True

  def negated(found: bool | None) -> bool | None:
    return None if found is None else not found

  rows = (
      (
          "Steps alone end lower than the verdict, without a length punishment",
          [proxy],
          lambda: below(proxy, 0) is True,
      ),
      (
          "The verdict plus steps ends within 5 points of the verdict",
          [partial],
          lambda: both(below(partial, 0.05), negated(below(partial, -0.05))),
      ),
      (
          "A clip bound of 0.005 is behind 0.2 at step 6, less so at step 24",
          [early, late],
          lambda: below(early, 0) is True and below(shrinks, 0) is True,
      ),
      (
          "Groups of 32 are behind groups of 8 at step 6",
          [large],
          lambda: below(large, 0) is True,
      ),
      (
          "A length punishment of coefficient 1 costs less than 5 points with"
          " the verdict, more than 20 with steps alone",
          [mild, harsh],
          lambda: both(negated(below(mild, -0.05)), below(harsh, -0.2)),
      ),
  )
  out = []
  for text, found, holds in rows:
    if min(map(len, found)) < 2:
      shown, verdict = "–", "open: fewer than two seeds"
    else:
      shown = "; ".join(comparison.signed([*x.values()], True) for x in found)
      verdict = {True: "held", False: "refuted", None: "open"}[holds()]
    out.append([text, shown, verdict])
  return out


# --- pages --------------------------------------------------------------------


def notes(result: dict) -> list[str]:
  """What is missing, and what the effects are computed from."""
  total, made = 81 * len(result["seeds"]), result["runs"]
  out = []
  if len(made) < total:
    count = collections.Counter(x["seed"] for x in made)
    each = ", ".join(f"seed {seed}: {count[seed]}" for seed in result["seeds"])
    out.append(
        f"{len(made)} of {total} runs have been made ({each} of 81 cells); the"
        f" same command makes the others."
    )
    out.append(
        f"Main effects are of the {len(balanced(made))} runs that complete a"
        " balanced third of the grid on their seed."
    )
  if result["mixed"]:
    out.append(f"Runs differ in: {', '.join(result['mixed'])}.")
  return out


def about(result: dict) -> str:
  """What was run, in a sentence."""
  settings = "; ".join(
      f"{knob} {', '.join(x)}" for knob, x in result["knobs"].items()
  )
  return (
      "GRPO on the default task, chains of additions and subtractions: 24 steps"
      " of 128 responses after SFT on a skill and on bad habits. Every"
      f" combination of four knobs ({settings}) on"
      f" {len(result['seeds'])} seeds. The verdict is a reward of 1 or -1;"
      " steps are the share of the written steps that are correct; the length"
      " punishment is DAPO's soft overlong punishment over the last 44 of 48"
      " tokens, times the coefficient. Held-out accuracy is the mean of 2"
      " samples of 192 prompts, of 96 prompts at steps 6, 12 and 18."
  )


def page(result: dict) -> list[str]:
  """The page in Markdown."""
  known = verdicts(result)
  counts = collections.Counter(x[-1].partition(":")[0] for x in known)
  words = (f"{count} {verdict}" for verdict, count in counts.items())
  out = [
      "Data in `knobs.json`. The plan is [plan.md](plan.md).",
      "",
      *(f"- {x}" for x in notes(result)),
      "",
      "Main effects: the mean difference from the setting in brackets over all"
      " settings of the other knobs, ± half the width of a 95% interval"
      " (Student's t over seeds).",
      "",
      results.row("knob", "setting", *(x.name for x in OUTCOMES)),
      "|---" * (len(OUTCOMES) + 2) + "|",
  ]
  found = main_effects(result)
  for k, (knob, settings) in enumerate(result["knobs"].items()):
    for i, setting in enumerate(settings):
      if i == DEFAULTS[k]:
        continue
      cells = [
          _text(found[outcome.name][knob][i], outcome) for outcome in OUTCOMES
      ]
      out.append(
          results.row(f"{knob} ({settings[DEFAULTS[k]]})", setting, *cells)
      )
  out += ["", *_by_punishment(result)]
  out += ["", "| expectation | found, points | verdict |", "|---|---|---|"]
  out += [results.row(*x) for x in known]
  out += [
      "",
      "The rules of the verdicts were fixed in the plan: an expected difference"
      " whose interval reaches 0 counts as refuted, although a small one"
      " remains possible.",
  ]
  versions = results.footer(result) if result["environment"] else ()
  return results.document(
      "Four knobs",
      f"Of {len(known)} expectations {', '.join(words)}.",
      f"What does each knob do? {about(result)}",
      out,
      made=f"Made by `{result['command']}`.",
      versions=versions,
  )


def _by_punishment(result: dict) -> list[str]:
  """The effects on the last accuracy at each setting of the punishment."""
  runs, where = balanced(result["runs"]), "length punishment"
  none, *coefficients = wheres = result["knobs"][where]
  rows, total, clear = [], 0, []
  for (knob, settings), k in zip(
      result["knobs"].items(), DEFAULTS, strict=True
  ):
    for setting in settings:
      if knob == where or setting == settings[k]:
        continue
      found = {
          x: by_seed(runs, FINAL, knob, setting, length_punishment=x)
          for x in wheres
      }
      interactions = {
          x: effect(difference(found[x], found[none])) for x in coefficients
      }
      effects = (*map(effect, found.values()), *interactions.values())
      cells = (_text(x, FINAL) for x in effects)
      rows.append(results.row(f"{knob} ({settings[k]})", setting, *cells))
      total += len(interactions)
      clear += [
          f"{knob} {setting} at {x}"
          for x, each in interactions.items()
          if each and each[1] is not None and abs(each[0]) > each[1]
      ]
  named = f" ({', '.join(clear)})" if clear else ""
  columns = (*wheres, *(f"interaction with {x}" for x in coefficients))
  return [
      "A main effect is a mean over cells that may differ much. The differences"
      f" in {FINAL.name.removesuffix(', %')}, in points, at each {where}, and"
      " their interactions with it: the difference at a coefficient minus the"
      " difference without a punishment, paired by seed. The interval excludes"
      f" 0 for {len(clear)} of the {total} interactions{named}.",
      "",
      results.row("knob", "setting", *columns),
      "|---" * (len(columns) + 2) + "|",
      *rows,
  ]


def _text(found: list[float | None] | None, outcome: Outcome) -> str:
  """'+3.2 ± 1.1'; '–' without runs."""
  if found is None or found[0] is None:
    return "–"
  scale = 100 if outcome.share else 1
  text = f"{scale * found[0]:+.{outcome.digits}f}"
  if found[1] is None:
    return f"{text}, one seed"
  return f"{text} ± {scale * found[1]:.{outcome.digits}f}"


if __name__ == "__main__":
  results.main(__doc__, NAME, measure, page, flags=flags)
