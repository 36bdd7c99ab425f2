"""Clip-higher as a law: the rollouts that a rare token needs, by its clip.

  python -m studies.clip_law.run            # resumable; 42 CPU-minutes
  python -m studies.clip_law.run --collect  # bandit, and the runs made so far
  python -m studies.clip_law.run --seeds 1  # fewer seeds; more of them go on
  python -m studies.clip_law.run --table    # only page and figure, from JSON

Writes clip_law.json, .md and .png (the figure needs matplotlib). Runs
are made in this process, one after another, in runs/clip_law; runs that the
JSON file has from a clean commit are not made again.
plan.md has the hypotheses.
"""

import argparse
import collections
import functools
import json
import math
import pathlib
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bench import results
from rl_reason.lab import ablate
from rl_reason.monitoring import run_log
from rl_reason.report import figures
from studies.clip_law import bandit as clip_bandit
from studies.clip_law.bandit import FREE, Bandit

NAME = "clip_law"
BOUNDS = (0.1, 0.2, 0.28, 0.5, 1.0)  # e
STARTS = (0.005, 0.01, 0.02, 0.05, 0.1)  # p0
TARGET = 0.5  # p*
E, P0 = 0.2, 0.01  # of the tables of the bandit
FIRST = STARTS[0]  # of the runs that all starts are read off
SEEDS = ablate.fresh_seeds("rl_reason clip law", 3)
DRAWS = range(4)  # seeds of the bandit


# --- the law -----------------------------------------------------------------


def line(clip_high: float, p0: float, target: float = TARGET) -> float:
  """Rollouts from p0 to the target if each multiplies p by 1 + clip_high."""
  return math.log(target / p0) / math.log1p(clip_high)


def crossing(log_p: Sequence[float], target: float = TARGET) -> float | None:
  """Rollouts until p reaches the target, interpolated in ln p; None: never."""
  wanted = math.log(target)
  for i, (before, after) in enumerate(zip(log_p, log_p[1:], strict=False)):
    if after >= wanted:
      return i + (wanted - before) / (after - before)
  return None


def parts(
    ratio_RN: np.ndarray, clip_high: float, rollouts: int
) -> tuple[float, float, float]:
  """What the growth of ln p in a rollout is made of, in units of ln(1 + e).

  Args:
    ratio_RN: log-ratio of the token after each optimizer step.
    clip_high: e.
    rollouts: that count, from the first on.

  Returns:
    means over the rollouts: growth within the bound; what the step that crosses
    the bound adds; what later steps add.
  """
  bound, found = math.log1p(clip_high), []
  for ratio_N in ratio_RN[:rollouts]:
    beyond = np.flatnonzero(ratio_N > bound)
    if len(beyond):
      crossed = ratio_N[beyond[0]]
      found.append((bound, crossed - bound, ratio_N[-1] - crossed))
    else:
      found.append((ratio_N[-1], 0.0, 0.0))
  within, step, later = np.mean(found, 0) / bound
  return float(within), float(step), float(later)


# --- the bandit --------------------------------------------------------------

# ln p moves by 1 / 3.1 of the learning rate in a step of SGD while p is small,
# and by twice the learning rate in a step of Adam.
SGD, ADAM = 3.1, 0.5
REAL_STEP = 0.124  # of ln p by a free step of runs at the default settings
SMALL_STEPS = dict(minibatches=16, epochs=4)
BANDITS: dict[str, tuple[str, dict]] = {
    "small steps of SGD, positive samples": (
        "sgd",
        SMALL_STEPS | dict(positive=True),
    ),
    "small steps of SGD": ("sgd", SMALL_STEPS),
    "8 steps of Adam without momentum, positive samples": (
        "adamw",
        dict(b1=0.0, positive=True),
    ),
    "8 steps of Adam without momentum": ("adamw", dict(b1=0.0)),
    "8 steps of Adam, positive samples": ("adamw", dict(positive=True)),
    "8 steps of Adam": ("adamw", {}),
}
LIKE_REAL = "8 steps of Adam"
ROLLOUTS = 60  # of each bandit
STEPS = (1, 2, 4, 8, 16, 32, 64)  # N of the table of steps
SIZES = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0)  # u / ln(1 + e)
SHARING = (1.0, 0.9, 0.5, 0.1, 0.0)


def bandits() -> dict[tuple, tuple[str, Bandit]]:
  """All bandits and their optimizers, by table and place in the table."""
  out, bound = {}, math.log1p(E)
  for name, (rule, own) in BANDITS.items():
    for e in BOUNDS:
      lr = SGD * math.log1p(e) / 16 if rule == "sgd" else ADAM * REAL_STEP
      for p0 in STARTS:
        out["grids", name, e, p0] = rule, Bandit(e, p0, lr, **own)
  for e in (E, FREE):
    for n in STEPS:
      split = dict(minibatches=min(n, 16), epochs=max(n // 16, 1))
      for u in SIZES:
        b = Bandit(e, P0, SGD * u * bound, positive=True, **split)
        out["steps", n, u, e] = "sgd", b
    for sharing in SHARING:
      for epochs in (1, 4):
        b = Bandit(
            e, P0, SGD * bound, epochs=epochs, positive=True, sharing=sharing
        )
        out["sharing", sharing, epochs, e] = "sgd", b
  return out


def rollouts_of(log_p_R: np.ndarray) -> float | None:
  """Mean over seeds of the rollouts to the target; None if one never does."""
  found = [crossing(x) for x in log_p_R]
  known = [x for x in found if x is not None]
  return statistics.mean(known) if len(known) == len(found) else None


def measure_bandit() -> dict[str, Any]:
  """All tables of the bandit."""
  every, log_p, ratio = bandits(), {}, {}
  for rule in ("sgd", "adamw"):
    own = {k: b for k, (x, b) in every.items() if x == rule}
    found = clip_bandit.curves(
        list(own.values()), DRAWS, rule=rule, rollouts=ROLLOUTS
    )
    log_p |= dict(zip(own, found["log_p"], strict=True))
    ratio |= dict(zip(own, found["ratio"], strict=True))
  out: dict[str, Any] = dict(grids={}, parts={}, steps=[], sharing=[])
  for name in BANDITS:
    out["grids"][name] = [
        dict(e=e, p0=p0, rollouts=rollouts_of(log_p["grids", name, e, p0]))
        for e in BOUNDS
        for p0 in STARTS
    ]
    at = "grids", name, E, P0
    of_seeds = [
        parts(ratio_RN, E, math.ceil(crossing(log_p_R) or ROLLOUTS))
        for log_p_R, ratio_RN in zip(log_p[at], ratio[at], strict=True)
    ]
    out["parts"][name] = np.mean(of_seeds, 0).tolist()
  for n in STEPS:
    for u in SIZES:
      clipped, free = (rollouts_of(log_p["steps", n, u, e]) for e in (E, FREE))
      out["steps"].append(dict(steps=n, size=u, rollouts=clipped, free=free))
  bound = math.log1p(E)
  for sharing in SHARING:
    for epochs in (1, 4):  # growth in the first rollout
      both = [("sharing", sharing, epochs, e) for e in (E, FREE)]
      out["sharing"].append(
          dict(
              sharing=sharing,
              epochs=epochs,
              trained=[ratio[x][:, 0, -1].mean() / bound for x in both],
              fresh=[
                  (log_p[x][:, 1] - math.log(P0)).mean() / bound for x in both
              ],
          )
      )
  return out


# --- runs --------------------------------------------------------------------

COMMON = {
    "task.name": "studies.clip_law.task",
    "sft.batch": 256,
    "sft.steps": 100,
    "sft.threshold": 0.0,
    "sft.habits.steps": 0,
    "rollout.batch": 256,
    "rollout.max_prompt": 8,
    "rollout.max_tokens": 2,
    "rollout.group_size": 16,
    "reward.overlong_buffer": 0,
    "dynamic_sampling.max_rounds": 40,
    "evaluate.every": 0,
    "evaluate.prompts": 64,
    "evaluate.interim_prompts": 64,
    "evaluate.samples": 1,
    "evaluate.mean_of": 1,
    "evaluate.batch": 64,
    "log.samples_every": 1,
    "log.groups": 64,
    "log.ratios": True,
    "log.loggers": "",
    "checkpoint.every": 1000,
}
DEFAULT, ONE_STEP = "default", "one step, rate 1e-3"
KINDS, SMALL = "8 kinds of prompts", "small steps"
LAW = "small steps, positive samples"
POSITIVE = {"advantage.name": "studies.clip_law.task:positive"}
STILL = {"optimizer.b1": 0.0}
SIXTEEN = {"updates.minibatches": 16}
# Fields of each setting; DEFAULT has 8 minibatches, AdamW at 2e-4, b1 of .9.
SETTINGS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "positive samples": POSITIVE,
    "no momentum": STILL,
    "no momentum, positive samples": STILL | POSITIVE,
    "2 minibatches": {"updates.minibatches": 2},
    "16 minibatches": SIXTEEN,
    "4 epochs": {"updates.epochs": 4},
    KINDS: {"task.difficulties": (8,)},
    ONE_STEP: {"updates.minibatches": 1, "optimizer.lr": 1e-3},
    SMALL: SIXTEEN | STILL,
    LAW: SIXTEEN | STILL | POSITIVE,
}
SMALL_RATE = 2.2e-4  # x ln(1 + e): steps of an eighth of the bound
# Rollouts at the default settings in units of the line, from development runs.
EXPECTED = {0.1: 0.25, 0.2: 0.35, 0.28: 0.45, 0.5: 0.65, 1.0: 1.1}


class Run(NamedTuple):
  """A run; `steps` are its RL steps."""

  setting: str
  e: float
  p0: float
  seed: int
  steps: int

  @property
  def key(self) -> tuple:
    """What names a run in the data."""
    return self.setting, self.e, self.p0, self.seed


def wanted(seeds: Iterable[int]) -> list[Run]:
  """All runs: seed by seed the runs from the first start, then the others.

  A run from .5% passes the other starts, too; runs whose SFT ends there tell
  whether it matters how a policy came to its probability.
  """
  out, others = [], []
  for seed in seeds:
    for p0 in STARTS:
      found = out if p0 == FIRST else others
      for e in BOUNDS:
        steps = math.ceil(EXPECTED[e] * line(e, p0)) + 4
        found.append(Run(DEFAULT, e, p0, seed, steps))
      for e in BOUNDS:
        steps = math.ceil(1.1 * line(e, p0)) + 2
        found.append(Run(LAW, e, p0, seed, steps))
    for setting in SETTINGS:
      if setting not in (DEFAULT, LAW):
        out.append(Run(setting, E, FIRST, seed, 14))
      if setting not in (SMALL, LAW):
        out.append(Run(setting, FREE, FIRST, seed, 14))
  return out + others


def fields(run: Run) -> dict[str, Any]:
  """The fields of a run that differ from configs/dapo.py."""
  found = COMMON | {"task.difficulties": (1,)} | SETTINGS[run.setting]
  if run.setting in (SMALL, LAW):
    found["optimizer.lr"] = SMALL_RATE * math.log1p(run.e)
  slots = found["rollout.max_prompt"] + found["rollout.max_tokens"]
  minibatches = found.get("updates.minibatches", 8)
  base = sft(run.p0, found["task.difficulties"][0])
  return found | {
      "seed": run.seed,
      "rl.steps": run.steps,
      "surrogate.args.clip_high": run.e,
      "updates.token_budget": slots * found["rollout.batch"] // minibatches,
      "sft.reuse": str(base),
  }


def sft(p0: float, kinds: int) -> pathlib.Path:
  """The work directory of the SFT that runs share."""
  return results.RUNS / NAME / f"sft-{kinds}-{p0:g}"


def directory(run: Run) -> pathlib.Path:
  """The work directory of a run."""
  name = f"{run.setting}-{run.e:g}-{run.p0:g}-{run.seed}"
  return results.RUNS / NAME / name.replace(" ", "_").replace(",", "")


def train(run: Run) -> dict[str, Any]:
  """Makes a run, and its SFT if it is missing; returns its data."""
  import jax

  import rl_reason

  own = fields(run)
  base, kinds = pathlib.Path(own["sft.reuse"]), own["task.difficulties"]
  if not (base / "metrics.jsonl").exists():
    mixture = f"rare:{run.p0:g},common:{1 - run.p0:g}"
    first = {"task.difficulties": kinds, "sft.mixture": mixture}
    rl_reason.train(
        "dapo",
        overrides=COMMON | first | {"seed": SEEDS[0]},
        workdir=base,
        stage="sft",
        show=False,
    )
  rl_reason.train("dapo", overrides=own, workdir=directory(run), show=False)
  jax.clear_caches()  # programs of another run are compiled anew anyway
  return read(run)


def read(run: Run) -> dict[str, Any]:
  """The probability of the right token before each step, and what moved it.

  Prompts of a batch are new to the policy. Their groups have signal, and their
  right samples count: both prefer prompts of a higher probability, which
  matters little where the probability is nearly the same for all prompts
  (`spread`).
  """
  by_step = collections.defaultdict(list)
  with (directory(run) / "samples.jsonl").open() as f:
    for text in f:
      sample = json.loads(text)
      if sample["stage"] == "rl" and sample["correct"] == 1:
        if "ratio" in sample:  # a row of the batch
          by_step[sample["step"]].append(sample)
  log_p, growth, spread = [], [], []
  for step in sorted(by_step):
    before = [x["logp"][0] for x in by_step[step]]
    ratios = [math.log(x["ratio"][0]) for x in by_step[step]]
    log_p.append(round(statistics.mean(before), 5))
    growth.append(round(statistics.mean(ratios), 5))
    spread.append(round(statistics.pstdev(before), 4))
  lines = [
      x for x in run_log.read_metrics(directory(run)) if x["stage"] == "rl"
  ]
  return dict(
      **run._asdict(),
      log_p=log_p,
      growth=growth,
      spread=spread,
      sampled=[round(x["train/accuracy"], 5) for x in lines],
      missing=[x["train/groups_missing"] for x in lines],
      commit=results.run_environment(directory(run))["git commit"],
  )


def finished(run: Run) -> bool:
  """Whether a run has been made to its end."""
  lines = run_log.read_metrics(directory(run))
  ends = [x["step"] for x in lines if x["stage"] == "evaluate"]
  return bool(ends) and ends[-1] == run.steps


def measure(given: argparse.Namespace) -> dict[str, Any]:
  """Measures what is missing, and again what names a changed checkout.

  A command that was interrupted finds its runs in their work directories.
  """
  data = results.read(NAME) or dict(
      command="python -m studies.clip_law.run", runs=[]
  )
  found = {(x["setting"], x["e"], x["p0"], x["seed"]): x for x in data["runs"]}
  for run in wanted(SEEDS[: given.seeds]):
    known = found.get(run.key)
    missing = known is None or known["commit"].endswith("-dirty")
    if missing and (given.runs or finished(run)):
      found[run.key] = read(run) if finished(run) else train(run)
      print(*run, flush=True)
  runs = [found[x.key] for x in wanted(SEEDS) if x.key in found]
  bandit = data.get("bandit") or measure_bandit() | dict(
      commit=results.commit()
  )
  environment = results.environment()
  return data | dict(runs=runs, bandit=bandit, environment=environment)


def flags(parser: argparse.ArgumentParser) -> None:
  """The flags."""
  parser.add_argument(
      "--collect",
      action="store_false",
      dest="runs",
      help="make no runs: the bandit, and the runs made so far",
  )
  parser.add_argument("--seeds", type=int, default=len(SEEDS))


# --- page --------------------------------------------------------------------


def speed(run: dict, p0: float) -> float | None:
  """Growth of ln p in a rollout from p0 to p*, in units of ln(1 + e).

  It is the line divided by the rollouts; both begin at p0, or where the run
  begins if that is higher. Where a run has not reached p*, its growth so far
  counts; None where it has not reached p0.
  """
  log_p = run["log_p"]
  first = max(math.log(p0), log_p[0])
  begin = 0.0 if first == log_p[0] else crossing(log_p, math.exp(first))
  end, grown = crossing(log_p), math.log(TARGET) - first
  if begin is None:
    return None
  if end is None:
    end, grown = len(log_p) - 1, log_p[-1] - first
  return grown / (end - begin) / math.log1p(run["e"])


def speeds(
    data: dict, setting: str, e: float, p0: float, start: float = FIRST
) -> list[float]:
  """`speed` by seed, of the runs whose SFT ended at `start`."""
  found = [
      speed(x, p0)
      for x in data["runs"]
      if (x["setting"], x["e"], x["p0"]) == (setting, e, start)
  ]
  return [x for x in found if x is not None]


def drives(data: dict, setting: str) -> list[float]:
  """`speeds` of the runs without a clip, in units of ln(1 + E)."""
  unit = math.log1p(FREE) / math.log1p(E)
  return [x * unit for x in speeds(data, setting, FREE, FIRST)]


def reached(
    data: dict, setting: str, e: float, p0: float, start: float = FIRST
) -> list[float]:
  """Rollouts to the target as shares of the line, by seed."""
  return [1 / x for x in speeds(data, setting, e, p0, start)]


def number(values: Sequence[float], digits: int = 2) -> str:
  """Mean ± half of the width of the 95% interval; '-' without a value."""
  return results.mean(values, f".{digits}f")


def grid(cell: Any, corner: str = "e \\ p0") -> list[str]:
  """A table of all cells; `cell` is a function of e and p0."""
  heads = [f"{p0:.1%}" for p0 in STARTS]
  out = [results.row(corner, *heads), "|---" * (len(STARTS) + 1) + "|"]
  return out + [
      results.row(f"{e:g}", *(cell(e, p0) for p0 in STARTS)) for e in BOUNDS
  ]


def bandit_share(data: dict, name: str, e: float, p0: float) -> float:
  """Rollouts of a named bandit as a share of the line."""
  (found,) = (
      x["rollouts"]
      for x in data["bandit"]["grids"][name]
      if (x["e"], x["p0"]) == (e, p0)
  )
  return found / line(e, p0)


def points(data: dict) -> list[dict]:
  """Drive and speed of each bandit of the table of steps, in units of ln(1+e).

  The drive is the growth of ln p in a rollout without a clip.
  """
  whole = line(E, P0)
  return [
      x | dict(drive=whole / x["free"], speed=whole / x["rollouts"])
      for x in data["bandit"]["steps"]
      if x["free"] and x["rollouts"]
  ]


def page(data: dict) -> list[str]:
  """The page in Markdown."""
  about = (
      "A token of probability p0, whose ratio is at most 1 + e in every"
      " rollout, needs at least ln(p\\*/p0) / ln(1 + e) rollouts to reach p\\*:"
      f" from 1% to 50% {line(0.2, 0.01):.1f} at e = .2,"
      f" {line(0.28, 0.01):.1f} at .28 and {line(0.5, 0.01):.1f} at .5. Does a"
      " token that PPO's clip bounds by 1 + e keep to this law? Data in"
      " `clip_law.json`; hypotheses and sizes before the runs:"
      " [plan.md](plan.md)."
  )
  return results.document(
      "Clip-higher as a law",
      _finding(data),
      about,
      "![rollouts from p0 to a half](clip_law.png)",
      _answer(data),
      _runs_tables(data),
      _bandit_tables(data),
      _factors_table(data),
      _verdicts(data),
      made="Made by `python -m studies.clip_law.run`.",
      versions=_footer(data),
  )


def _finding(data: dict) -> str:
  """The share of the law's rollouts that runs need, by setting."""
  words = []
  for setting, label in (
      (DEFAULT, "at the default settings"),
      (LAW, "under the conditions of the law"),
  ):
    found = [
        statistics.mean(x)
        for e in BOUNDS
        for p0 in STARTS
        if (x := reached(data, setting, e, p0))
    ]
    if found:
      words.append(f"{min(found):.2f} to {max(found):.2f} {label}")
  if not words:
    return "No run has reached a half yet."
  return (
      "Of the rollouts that the law of the clip asks for, runs need"
      f" {' and '.join(words)}."
  )


def _footer(data: dict) -> list[str]:
  """Commits of runs and bandit, and the machine."""
  commits = collections.Counter(
      x["commit"][:12]
      + " with uncommitted changes" * x["commit"].endswith("-dirty")
      for x in data["runs"]
  )
  made = collections.Counter(x["seed"] for x in data["runs"])
  total = len(wanted(SEEDS))
  seeds = ", ".join(f"{seed} ({made[seed]})" for seed in SEEDS)
  return [
      "Commits of the runs:"
      f" {', '.join(f'{x} ({n})' for x, n in sorted(commits.items()))}."
      f" {len(data['runs'])} of {total} runs; seeds and their runs: {seeds}.",
      "",
      *results.footer(data),
  ]


def _answer(data: dict) -> list[str]:
  """What holds and what does not."""
  out = [
      "**The clip bounds the gradient, and not the ratio**, so that the formula"
      " is a law only under conditions: many small optimizer steps in a"
      " rollout, no momentum, and nothing that moves the token but its own"
      " samples.",
  ]
  usual = {
      e: statistics.mean(found)
      for e in BOUNDS
      if (found := reached(data, DEFAULT, e, FIRST))
  }
  if usual:
    cells = [
        f"{share * line(e, FIRST):.1f} at e = {e:g}, where the law has"
        f" {line(e, FIRST):.1f}"
        for e, share in usual.items()
    ]
    out += [
        "",
        "**At our default settings it does not hold.** Rollouts from"
        f" {FIRST:.1%} to 50%: {'; '.join(cells)}.",
    ]
  free = drives(data, DEFAULT)
  if free:
    out[-1] += f" Without a clip: {line(E, FIRST) / statistics.mean(free):.1f}."
  law = [
      statistics.mean(x)
      for e in BOUNDS
      for p0 in STARTS
      if (x := reached(data, LAW, e, p0))
  ]
  if law:
    out += [
        "",
        "**Under its conditions it nearly does.** With 16 smaller steps, no"
        " momentum and positive samples only, the runs need"
        f" {min(law):.2f} to {max(law):.2f} of the line in {len(law)} cells:"
        " the step that crosses the bound counts in full.",
    ]
  out += [
      "",
      "What the deviation is made of:",
      "",
      *_parts(data),
      *_ladder(data),
      *_history(data),
      *_factors(data),
      "- **Few steps are not clipped.** The ratio is 1 at the first optimizer"
      " step of a rollout, so that e has no influence on one step; N steps of"
      " size u reach the bound from N = 1 + ln(1 + e) / u on. Below that the"
      " learning rate limits the token, and the law does not.",
      "- **Prompts that share nothing are clipped once per epoch**, since a"
      " minibatch has whole groups. In the runs prompts share nearly"
      " everything: see the last two columns of the table of single factors.",
  ]
  return out


def _parts(data: dict) -> list[str]:
  """The bandit's account of the deviation; [] before it is measured."""
  if not data.get("bandit"):
    return []
  first, found = next(iter(BANDITS)), data["bandit"]["parts"]
  shares = [bandit_share(data, first, e, p0) for e in BOUNDS for p0 in STARTS]
  alone = found["8 steps of Adam without momentum, positive samples"]
  momentum = sum(found["8 steps of Adam, positive samples"]) - sum(alone)
  negative = sum(found["8 steps of Adam without momentum"]) - sum(alone)
  return [
      "- **In the limit the line is exact**: the bandit with 64 small steps of"
      f" SGD and positive samples needs {min(shares):.2f} to"
      f" {max(shares):.2f} of it in all 25 cells. With 8 steps of Adam, as in"
      f" our configs, a rollout from 1% at e = {E:g} adds"
      f" {sum(found[LIKE_REAL]):.1f} ln(1 + e) in place of 1.",
      "- **The step that crosses the bound counts in full**: without momentum"
      f" and with positive samples only, a rollout adds {sum(alone):.2f}.",
      f"- **Momentum** adds {momentum:.2f}: it goes on in steps whose gradient"
      " the clip has removed.",
      f"- **Negative samples** add {negative:.2f}. A wrong token that is pushed"
      " down gives its probability to the rare one, and its own ratio hardly"
      " falls, so that no bound ends this push. It grows with p.",
      *_gap(data),
  ]


def _ladder(data: dict) -> list[str]:
  """The speed of the runs, one condition of the law after another."""
  steps = {
      DEFAULT: "at the defaults",
      "positive samples": "with positive samples only",
      "no momentum": "without momentum",
      "no momentum, positive samples": "with both",
      LAW: "with both and smaller steps",
  }
  found = {x: speeds(data, x, E, FIRST) for x in steps}
  if not all(found.values()):
    return []
  cells = [f"{number(found[x])} {words}" for x, words in steps.items()]
  return [
      f"- **In the runs** at e = {E:g} a rollout from {FIRST:.1%} adds, in"
      f" units of ln(1 + e): {'; '.join(cells)}. No single condition suffices.",
  ]


def _factors(data: dict) -> list[str]:
  """What minibatches, epochs and new prompts change in the runs."""
  names = "2 minibatches", DEFAULT, "16 minibatches", "4 epochs"
  found = {x: speeds(data, x, E, FIRST) for x in names}
  if not all(found.values()):
    return []
  cells = [
      f"{number(x)} with {'8 minibatches' if k == DEFAULT else k}"
      for k, x in found.items()
  ]
  return [
      f"- **Minibatches and epochs**: a rollout at e = {E:g} from {FIRST:.1%}"
      f" adds, in the same units, {'; '.join(cells)}. More steps overshoot"
      " more. **Generalisation** takes nothing away: the token grows as much on"
      " the prompts of the next batch (table of single factors).",
  ]


def _gap(data: dict) -> list[str]:
  """What the bandit does not explain; [] without runs."""
  shares = [
      (statistics.mean(found), bandit_share(data, LIKE_REAL, E, p0))
      for p0 in STARTS
      if (found := reached(data, DEFAULT, E, p0))
  ]
  if not shares:
    return []
  runs, bandit = np.mean(shares, 0)
  return [
      f"- **The rest**: at e = {E:g} the runs need {runs:.2f} of the line where"
      f" the bandit, whose free steps are as large as the first ones of the"
      f" runs, needs {bandit:.2f}. The bandit does not have a network, whose"
      " steps of ln p grow while it learns.",
  ]


def _runs_tables(data: dict) -> list[str]:
  """The cells of the two settings."""
  out = []
  for setting, about in (
      (
          DEFAULT,
          "the defaults of `configs/dapo.py`: 8 optimizer steps a rollout,"
          " AdamW at 2e-4 with b1 = .9",
      ),
      (
          LAW,
          "16 optimizer steps a rollout, AdamW without momentum (b1 = 0) at a"
          " rate in proportion to ln(1 + e), so that a step is about an eighth"
          " of the bound; wrong samples have an advantage of 0",
      ),
  ):
    ratios = _own_starts(data, setting)
    out += [
        "",
        f"## Runs: {setting}",
        "",
        f"Settings: {about}. Rollouts from p0 to 50% as a share of the line, in"
        f" runs from {FIRST:.1%}: mean over seeds ± half the width of its 95%"
        " interval. Below 1 the token is faster than the law allows.",
        "",
        *grid(lambda e, p0, s=setting: number(reached(data, s, e, p0))),
    ]
    if ratios:
      out += [
          "",
          "The same, in runs whose SFT ends at p0 itself: on average"
          f" {statistics.mean(ratios):.2f} times the share of the table above"
          f" ({len(ratios)} cells).",
          "",
          *grid(
              lambda e, p0, s=setting: number(
                  reached(data, s, e, p0, p0) if p0 > FIRST else []
              )
          ),
      ]
  return out


def _own_starts(data: dict, setting: str) -> list[float]:
  """Share of the line of runs from p0 itself, of that of runs from `FIRST`."""
  return [
      statistics.mean(own) / statistics.mean(passed)
      for p0 in STARTS[1:]
      for e in BOUNDS
      if (own := reached(data, setting, e, p0, p0))
      and (passed := reached(data, setting, e, p0))
  ]


def _history(data: dict) -> list[str]:
  """How much it matters how a policy came to its probability."""
  means = {
      x: [
          statistics.mean(found)
          for p0 in STARTS[1:]
          for e in BOUNDS
          if (found := reached(data, x, e, p0, p0))
      ]
      for x in (DEFAULT, LAW)
  }
  if not all(means.values()):
    return []
  far = [abs(x - 1) for x in means[LAW]]
  ratios = [statistics.mean(_own_starts(data, x)) for x in means]
  return [
      "- **How a policy came to p0** counts, too. A run from"
      f" {FIRST:.1%} passes 1% to 10% on its way; a run whose SFT ends there"
      f" needs {ratios[0]:.2f} times the share of the line at the defaults, and"
      f" {ratios[1]:.2f} times under the conditions of the law, probably since"
      " the steps of ln p grow while a network learns. Each setting has a table"
      " for both readings. H4 and H5 are about the first one. In the second"
      f" one {sum(x <= 0.15 for x in far)} of {len(far)} cells are within 15%"
      f" of the line under its conditions, and all within {max(far):.0%}; at"
      f" the defaults {sum(x < 0.85 for x in means[DEFAULT])} of"
      f" {len(means[DEFAULT])} cells are below .85 of the line, and the largest"
      " is at"
      f" {max(means[DEFAULT]):.2f}.",
  ]


def _bandit_tables(data: dict) -> list[str]:
  """The grids and the parts of the bandit."""
  if not (bandit := data.get("bandit")):
    return ["", "The bandit has not been measured yet."]
  out = [
      "",
      "## Bandit: what the deviation is made of",
      "",
      "A softmax over four actions in float64 with the package's surrogate,"
      " advantage, reduction and optimizer; groups with signal, 4 seeds"
      " (`bandit.py`). The growth of ln p in a rollout from 1% to"
      f" 50% at e = {E:g}, in units of ln(1 + e): within the bound, by the step"
      " that crosses it, and by later steps, which the clip does not stop. The"
      " last column is the range of rollouts / line over all 25 cells.",
      "",
      "| | within | crossing step | later steps | sum | rollouts / line |",
      "|---|---|---|---|---|---|",
  ]
  for name, found in bandit["parts"].items():
    shares = [bandit_share(data, name, e, p0) for e in BOUNDS for p0 in STARTS]
    cells = [f"{x:.2f}" for x in (*found, sum(found))]
    out.append(
        results.row(name, *cells, f"{min(shares):.2f} to {max(shares):.2f}")
    )
  out += [
      "",
      "Rollouts / line of the first and of the last row, by cell:",
      "",
      *grid(
          lambda e, p0: " and ".join(
              f"{bandit_share(data, name, e, p0):.2f}"
              for name in (next(iter(BANDITS)), LIKE_REAL)
          )
      ),
      "",
      "## Bandit: how many steps until the clip bites",
      "",
      f"Positive samples, SGD, e = {E:g}, from 1% to 50%. N optimizer steps of"
      " a rollout; u, the first step of ln p, in units of ln(1 + e). Each cell:"
      " speed (line / rollouts) at drive (speed without a clip). The clip bites"
      " where the speed is below the drive. A drive of more than"
      f" {line(E, P0):.0f} reaches 50% within a rollout; '-' does not reach it"
      f" in {ROLLOUTS}.",
      "",
      results.row("N \\ u", *(f"{u:g}" for u in SIZES)),
      "|---" * (len(SIZES) + 1) + "|",
  ]
  found = {(x["steps"], x["size"]): x for x in points(data)}
  for n in STEPS:
    cells = [found.get((n, u)) for u in SIZES]
    out.append(
        results.row(
            n,
            *(
                f"{x['speed']:.2f} at {x['drive']:.2f}" if x else "-"
                for x in cells
            ),
        )
    )
  out += [
      "",
      "## Bandit: state sharing",
      "",
      "One rollout of 16 prompts in 8 minibatches of whole groups from 1%;"
      f" e = {E:g}, positive samples, a step of SGD as large as the bound where"
      " all is shared. Growth of ln p in units of ln(1 + e), on the prompts of"
      " the batch and on new prompts; in parentheses without a clip.",
      "",
      "| sharing | epochs | trained prompts | new prompts |",
      "|---|---|---|---|",
  ]
  for x in bandit["sharing"]:
    cells = [f"{a:.2f} ({b:.2f})" for a, b in (x["trained"], x["fresh"])]
    out.append(results.row(f"{x['sharing']:g}", x["epochs"], *cells))
  return out


def _factors_table(data: dict) -> list[str]:
  """Runs of single factors."""
  out = [
      "",
      "## Runs: one factor at a time",
      "",
      f"From {FIRST:.1%} at e = {E:g}; each row changes a setting of the"
      " defaults. Drive: growth of ln p in a rollout without a clip, in units"
      " of ln(1 + e). Speed: the same with the clip; 1 is the law. New prompts:"
      " growth from one batch of prompts to the next over the growth on the"
      " prompts of the batch. Spread: standard deviation of ln p over prompts.",
      "",
      "| | seeds | drive | speed | new prompts / trained | spread |",
      "|---|---|---|---|---|---|",
  ]
  for setting in SETTINGS:
    of_row = of_runs(data, setting)
    if not of_row:
      continue
    out.append(
        results.row(
            setting,
            len(of_row),
            number(drives(data, setting)),
            number(speeds(data, setting, E, FIRST)),
            number([carried(x) for x in of_row]),
            number([max(x["spread"]) for x in of_row]),
        )
    )
  return out


def of_runs(data: dict, setting: str) -> list[dict]:
  """The runs of a setting from the first start at E."""
  cell = (setting, E, FIRST)
  return [x for x in data["runs"] if (x["setting"], x["e"], x["p0"]) == cell]


def carried(run: dict) -> float:
  """Growth on new prompts over the growth on trained prompts, until p*."""
  last = math.ceil(crossing(run["log_p"]) or len(run["log_p"]) - 1)
  return (run["log_p"][last] - run["log_p"][0]) / sum(run["growth"][:last])


class Verdict(NamedTuple):
  """A hypothesis and what was measured; `holds` is None without data."""

  name: str
  claim: str
  holds: bool | None
  measured: str


def bandit_verdicts(data: dict) -> list[Verdict]:
  """The hypotheses about the bandit alone."""
  cells = [(e, p0) for e in BOUNDS for p0 in STARTS]
  first = next(iter(BANDITS))
  far = max(abs(bandit_share(data, first, *x) - 1) for x in cells)
  small = [x for x in points(data) if x["size"] <= 1 / 8]
  off = max(abs(x["speed"] / min(x["drive"], 1) - 1) for x in small)
  alone = [
      x["trained"]
      for x in data["bandit"]["sharing"]
      if x["sharing"] == 0 and x["epochs"] == 1
  ]
  equal = all(a == b for a, b in alone)
  return [
      Verdict(
          "H1",
          "bandit, small steps, positive samples: within 10% of the line",
          far <= 0.1,
          f"at most {far:.0%} from it in {len(cells)} cells",
      ),
      Verdict(
          "H2",
          "bandit: speed is min(drive, 1) within 15% for u <= ln(1 + e) / 8",
          off <= 0.15,
          f"at most {off:.0%} from it at {len(small)} points",
      ),
      Verdict(
          "H7",
          "bandit, no shared states, one epoch: e has no influence",
          equal,
          "equal with and without a clip" if equal else "different",
      ),
  ]


def one_step_verdict(data: dict) -> Verdict:
  """H3, of bandit and runs."""
  one = [
      x
      for x in data.get("bandit", {}).get("steps", [])
      if x["steps"] == 1 and x["free"] is not None
  ]
  clipped, free = (
      {
          x["seed"]: x["log_p"]
          for x in data["runs"]
          if x["setting"] == ONE_STEP and x["e"] == e
      }
      for e in (E, FREE)
  )
  both = sorted(clipped.keys() & free.keys())
  same = all(x["rollouts"] == x["free"] for x in one)
  same_runs = all(clipped[x] == free[x] for x in both)
  measured = []
  if one:
    word = "equal" if same else "different"
    measured.append(f"bandit: {word} at {len(one)} sizes")
  if both:
    word = "equal" if same_runs else "different"
    seeds = f"{len(both)} seed{'s' * (len(both) > 1)}"
    measured.append(f"runs: {word} to the last digit on {seeds}")
  return Verdict(
      "H3",
      "one optimizer step a rollout: e has no influence",
      same and same_runs if measured else None,
      "; ".join(measured),
  )


def verdicts(data: dict) -> list[Verdict]:
  """The hypotheses of plan.md."""
  cells = [(e, p0) for e in BOUNDS for p0 in STARTS]
  out = [one_step_verdict(data)]
  if data.get("bandit"):
    out += bandit_verdicts(data)
  means = {
      setting: {
          x: statistics.mean(found)
          for x in cells
          if (found := reached(data, setting, *x))
      }
      for setting in (DEFAULT, LAW)
  }
  below = sum(x < 1 for x in means[DEFAULT].values())
  count = len(means[DEFAULT])
  out.append(
      Verdict(
          "H4",
          "runs at the defaults: faster than the line in most cells",
          below > count / 2 if count else None,
          f"in {below} of {count} cells",
      )
  )
  count = len(means[LAW])
  far = max((abs(x - 1) for x in means[LAW].values()), default=0.0)
  out.append(
      Verdict(
          "H5",
          "runs, small steps, positive samples: within 15% of the line",
          far <= 0.15 if count else None,
          f"at most {far:.0%} from it in {count} cells",
      )
  )
  usual = speeds(data, DEFAULT, E, FIRST)
  still = speeds(data, "no momentum", E, FIRST)
  left = 0.0
  if usual and still:
    left = (statistics.mean(still) - 1) / (statistics.mean(usual) - 1)
  out.append(
      Verdict(
          "H6",
          "runs without momentum: half of the excess over the law, or less",
          left <= 0.5 if usual and still else None,
          f"{left:.0%} of the excess is left",
      )
  )
  kinds = speeds(data, KINDS, E, FIRST)
  out.append(
      Verdict(
          "H8",
          "runs with 8 kinds of prompts exceed the bound by more than with one",
          statistics.mean(first_growth(data, KINDS))
          > statistics.mean(first_growth(data, DEFAULT))
          if kinds and usual
          else None,
          "growth on trained prompts in units of ln(1 + e):"
          f" {number(first_growth(data, KINDS))}, and"
          f" {number(first_growth(data, DEFAULT))} with one kind",
      )
  )
  small = reached(data, SMALL, E, FIRST)
  out.append(
      Verdict(
          "H9",
          "runs, small steps, all samples: below .9 of the line",
          statistics.mean(small) < 0.9 if small else None,
          f"{number(small)} of it",
      )
  )
  return sorted(out)


def first_growth(data: dict, setting: str) -> list[float]:
  """Mean growth on trained prompts until p*, in units of ln(1 + E), by seed."""
  out = []
  for x in of_runs(data, setting):
    last = math.ceil(crossing(x["log_p"]) or len(x["log_p"]) - 1)
    out.append(statistics.mean(x["growth"][:last]) / math.log1p(E))
  return out


def _verdicts(data: dict) -> list[str]:
  """The table of hypotheses."""
  out = [
      "",
      "## Hypotheses",
      "",
      "| | hypothesis | | measured |",
      "|---" * 4 + "|",
  ]
  for x in verdicts(data):
    word = {True: "holds", False: "**refuted**", None: "no data yet"}[x.holds]
    measured = "" if x.holds is None else x.measured
    out.append(results.row(x.name, x.claim, word, measured))
  return out


# --- figure ------------------------------------------------------------------


def figure(data: dict) -> dict[str, Any]:
  """Rollouts against the line, and speed against drive."""
  longest = line(BOUNDS[0], STARTS[0])
  first = [
      figures.series(
          "the law", [0, longest], [0, longest], color=figures.REFERENCE
      )
  ]

  def add(label, shares, color):
    """A curve over p0 for each e; only that of the longest line is labelled."""
    for e in BOUNDS:
      found = [
          (line(e, p0), line(e, p0) * share)
          for p0 in reversed(STARTS)
          if (share := shares(e, p0)) is not None
      ]
      if found:
        x, y = map(list, zip(*found, strict=True))
        name = label if e == BOUNDS[0] else ""
        curve = figures.series(name, x, y, color=color, marker=True)
        first.append(curve)

  for color, (setting, label) in enumerate(
      (
          (DEFAULT, "runs, default"),
          (LAW, "runs, small steps,\npositive samples"),
      )
  ):
    add(
        label,
        lambda e, p0, s=setting: statistics.mean(x)
        if (x := reached(data, s, e, p0))
        else None,
        color,
    )
  cells = figures.lines(
      first,
      x="the law: ln(.5 / p0) / ln(1 + e) rollouts",
      y="rollouts until p = 50%",
      title="Five bounds e (a curve each, e = .1 to the right), five starts p0",
      from_zero=True,
      labels=True,
  )
  if not data.get("bandit"):
    return figures.figure(figures.block([cells], columns=1, height=3.4))
  for color, (name, label) in enumerate(
      (
          (next(iter(BANDITS)), "bandit, small steps"),
          (LIKE_REAL, "bandit, as the runs"),
      ),
      2,
  ):
    add(label, functools.partial(bandit_share, data, name), color)
  ticks = (0.125, 0.25, 0.5, 1, 2, 4, 8)
  ramp = [2 ** (n / 4) for n in range(-12, 13)]
  second = [
      figures.series(
          "min(drive, 1)",
          ramp,
          [min(x, 1) for x in ramp],
          color=figures.REFERENCE,
      )
  ]
  for color, size in enumerate((1 / 32, 1 / 8, 1 / 2, 2)):
    found = [
        (p["drive"], p["speed"])
        for p in points(data)
        if p["size"] == size and ticks[0] <= p["drive"] <= ticks[-1]
    ]
    second.append(
        figures.series(
            f"bandit, u = {size:g} ln(1 + e)",
            *map(list, zip(*sorted(found), strict=True)),
            color=color,
            marker=True,
        )
    )
  panels = [
      cells,
      figures.lines(
          second,
          x="drive: growth without a clip / ln(1 + e)",
          y="speed: growth with it / ln(1 + e)",
          title="When the clip bites: steps per rollout",
          ticks=ticks,
          labels=True,
      ),
  ]
  return figures.figure(figures.block(panels, columns=1, height=3.4), width=9.0)


if __name__ == "__main__":
  results.main(__doc__, NAME, measure, page, figure=figure, flags=flags)
