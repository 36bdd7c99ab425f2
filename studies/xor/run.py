"""A skill that RL earns: DAPO on parities against SFT and rejection sampling.

  python -m studies.xor.run --jobs 2    # resumable; 25 core-minutes a seed
  python -m studies.xor.run --seeds 4   # only the first seeds
  python -m studies.xor.run --collect   # of the runs made so far
  python -m studies.xor.run --keep_data # runs of xor.json are not made again
  python -m studies.xor.run --table     # only tables and figure, from JSON

All rows of a seed start from the same SFT model, except the SFT control, which
trains longer. Rejection sampling generates about as many tokens as DAPO: 12%
fewer in one round, 21% more in three (means over seeds).
Writes xor.json, .md and .png; plan.md has the hypotheses.
"""

import itertools
import pathlib

import numpy as np

from bench import results, runs
from bench.training import seeds
from rl_reason.lab import ablate, comparison, jobs
from rl_reason.monitoring import run_log
from rl_reason.report import figures, scores

NAME = "xor"
SEEDS = ablate.fresh_seeds("rl_reason xor", 16)
CORE = "val-core/xor/acc/"
COLUMNS = ("mean@4", "greedy", "pass@8")
LEARNED = {
    "accuracy": "train/accuracy",
    "length": "response_length/mean",
    "written": "behaviour/written_out",
    "entropy": "actor/entropy",
}

# RL generates about a million tokens, and its compute is that of 160 SFT steps;
# responses of the SFT model have 9 tokens.
_SAMPLING = {
    "rl.steps": 0,
    "generate.keep": "correct",
    "rounds.lr": 1e-3,
    "rounds.steps": 400,
}
_CLIP_HIGHER = {"surrogate.args.clip_high": 0.28}
ROWS = {
    "DAPO": ("configs/xor.py", {}),
    "GRPO": ("configs/xor.py:grpo", {}),
    "GRPO + clip-higher": ("configs/xor.py:grpo", _CLIP_HIGHER),
    "GRPO + clip-higher + token-level loss": (
        "configs/xor.py:grpo",
        _CLIP_HIGHER | {"reduction.name": "token_mean"},
    ),
    "DAPO, shuffled rewards": ("configs/xor.py:shuffled", {}),
    "rejection sampling, 3 rounds": (
        "configs/xor.py:grpo",
        _SAMPLING | {"rounds.count": 3, "generate.prompts": 4608},
    ),
    "rejection sampling, 1 round": (
        "configs/xor.py:grpo",
        _SAMPLING | {"rounds.count": 1, "generate.prompts": 13824},
    ),
    "SFT only": ("configs/xor.py", {"rl.steps": 0, "sft.steps": 4500}),
}
CONTROL = "SFT only"
# From GRPO to DAPO, by a technique at a time.
LADDER = (*(x for x in ROWS if x.startswith("GRPO")), "DAPO")
CURVES = [x for x in ROWS if "+" not in x and x != CONTROL]
SHOWN = {  # by step: factor and digits
    "accuracy": (100, 1),
    "written": (1, 2),
    "length": (1, 1),
    "entropy": (1, 3),
}
AT = 15  # RL step at which the accuracy has not yet reached its limit


def directory(name: str, seed: int) -> pathlib.Path:
  """The work directory of a run."""
  return results.RUNS / NAME / f"{ablate.slug(name)}-{seed}"


def base(seed: int) -> jobs.Job:
  """SFT of a seed."""
  fields = {"seed": seed} | runs.HELD_OUT
  job = runs.run("configs/xor.py", directory("SFT", seed), fields)
  return job._replace(args=[*job.args, "--stage=sft"], row="")


def job(name: str, seed: int) -> jobs.Job:
  """A run; all but the SFT control start from the SFT model of `base`."""
  config, own = ROWS[name]
  fields, bases = {"seed": seed} | runs.HELD_OUT | own, ()
  if name != CONTROL:
    bases = (directory("SFT", seed),)
    fields["sft.reuse"] = str(bases[0])
  return runs.run(config, directory(name, seed), fields, bases)


def read(name: str, seed: int) -> dict:
  """Evaluations, and the learning curve of RL."""
  place = directory(name, seed)
  lines = run_log.read_metrics(place)
  evaluations = scores.of_stage(lines, "evaluate")
  rl = scores.of_stage(lines, "rl")
  generated = {x["step"]: x["tokens/generated"] for x in rl}
  tokens = [generated.get(x["step"], 0) for x in evaluations]
  if name.startswith("rejection"):
    tokens = [x.get("rounds/tokens", 0) for x in evaluations]
    tokens = list(itertools.accumulate(tokens))
  return dict(
      name=name,
      seed=seed,
      steps=[x["step"] for x in evaluations],
      tokens=tokens,
      length=[x["val-aux/response_length/mean"] for x in evaluations],
      **{k: [x[CORE + k] for x in evaluations] for k in COLUMNS},
      rl={k: [x.get(key) for x in rl] for k, key in LEARNED.items()},
  )


def page(result: dict) -> list[str]:
  """Returns the tables in Markdown."""
  found, of_dapo = result["runs"], {}
  for run in found:
    if run["name"] == "DAPO":
      of_dapo[run["seed"]] = run
  made = len(of_dapo)
  about = [
      "What does RL give that SFT and rejection sampling do not?"
      " [plan.md](plan.md) has the hypotheses, and what would refute them. A"
      " prompt has three blocks of"
      " eight bits, and a"
      " response states the parity of each block. The model guesses the parity"
      " of a block at once (right half of the time), or writes it out bit by"
      " bit (nearly always right); there are 2^24 prompts. SFT teaches the"
      " steps in single blocks, and"
      " in blocks that the prompt names, but never in all blocks of a prompt."
      " Where the choice is free, as in RL and in the evaluation, SFT writes"
      " out 5% of the blocks (`rl_reason/tasks/xor.py`).",
      "",
      f"Held-out prompts: 1,000, mean of 4 samples at temperature 1. {made} of"
      f" {len(SEEDS)} seeds have been run. Mean over seeds ± half the width of"
      " its 95% interval (Student's t), and least to most. 'SFT only' trains"
      " for 500 steps more than the other rows. RL takes the FLOPs of about 160"
      " steps of SFT: 0.59 TFLOP (`flops/total` of seed 57225), where a step of"
      " SFT has 128 rows of 45 tokens, prompts included, of 216 kFLOP a token"
      " in the forward pass, and three times that with the backward pass. Bands"
      " of the figure: least to most of the seeds.",
  ]
  out, words = [], []
  out += [
      "| | mean@4 | greedy | pass@8 | length | generated tokens | seeds |",
      "|---|---|---|---|---|---|---|",
  ]

  def row(label: str, of_row: list[dict], at: int) -> None:
    cells = [seeds.spread([x[k][at] for x in of_row]) for k in COLUMNS]
    for name, form in (("length", ".1f"), ("tokens", ",.0f")):
      cells.append(results.mean([x[name][at] for x in of_row], form))
    out.append(results.row(label, *cells, len(of_row)))

  row("after SFT, before RL", list(of_dapo.values()), 0)
  for name in ROWS:
    of_row = [x for x in found if x["name"] == name]
    if of_row:
      row(f"after: {name}", of_row, -1)
  out += [
      "",
      "DAPO against the other rows on the same seeds, in points of mean@4, at"
      " the end of both, and with DAPO cut where it has generated the tokens of"
      " the row (linear between evaluations; DAPO has often ended before the"
      " tokens of three rounds of rejection sampling):",
      "",
      "| | DAPO - row | smallest | at the row's tokens | seeds |",
      "|---|---|---|---|---|",
  ]
  for name in list(ROWS)[1:]:
    of_row = [x for x in found if x["name"] == name and x["seed"] in of_dapo]
    pairs = [(of_dapo[x["seed"]], x) for x in of_row]
    ends = [100 * (a["mean@4"][-1] - b["mean@4"][-1]) for a, b in pairs]
    cuts = [
        100 * (at_tokens(a, b["tokens"][-1]) - b["mean@4"][-1])
        for a, b in pairs
        if b["tokens"][-1]
    ]
    if pairs:
      end, cut = (results.mean(x, "+.1f") for x in (ends, cuts))
      cells = end, f"{min(ends):+.1f}", cut
      words.append(f"{end} from {name}")
      out.append(results.row(name, *cells, len(pairs)))
  out += _ladder(found)
  out += _by_seed(found, of_dapo) + _by_step(list(of_dapo.values()))
  out += [
      "",
      "The machine and the commit are those of the runs that were made last.",
  ]
  versions = results.footer(result)
  if commits := result.get("earlier_commits"):
    versions += ["", f"Commits of earlier runs: {', '.join(commits)}."]
  ends = [x["mean@4"][-1] for x in of_dapo.values()]
  start = [x["mean@4"][0] for x in of_dapo.values()]
  first, last = (seeds.spread(x).partition(" (")[0] for x in (start, ends))
  return results.document(
      "A skill that RL earns: parities, written out or guessed",
      f"DAPO goes from {first} to {last}; in points it ends"
      f" {results.joined(words)}.",
      about,
      "![curves](xor.png)",
      out,
      made="Made by `python -m studies.xor.run`.",
      versions=versions,
  )


def at_tokens(run: dict, tokens: float) -> float:
  """mean@4 of a run after so many generated tokens."""
  return float(np.interp(tokens, run["tokens"], run["mean@4"]))


def _ladder(found: list[dict]) -> list[str]:
  """Each technique of DAPO against the row before it, at RL step AT."""
  out = [
      "",
      f"From GRPO to DAPO, mean@4 at RL step {AT}, where no row has reached its"
      " limit, and the difference from the row before on the same seeds: at"
      " this step, and at the tokens that the row before has generated by then."
      " The paper (arXiv:2503.14476, table 1) reports a gain for each"
      " technique, at equal steps. Its other two techniques, overlong filtering"
      " and the soft overlong punishment, are no part of configs/xor.py, where"
      " the longest responses that are needed fit into the limit; the last row"
      " adds two techniques at once.",
      "",
      f"| | at step {AT} | difference | sign of the paper | at equal tokens |"
      " seeds |",
      "|---|---|---|---|---|---|",
  ]
  before: dict[int, float] = {}
  spent: dict[int, float] = {}
  for name in LADDER:
    of_row = {
        x["seed"]: x
        for x in found
        if x["name"] == name and (not before or x["seed"] in before)
    }
    steps = {seed: x["steps"].index(AT) for seed, x in of_row.items()}
    at = {seed: x["mean@4"][steps[seed]] for seed, x in of_row.items()}
    both = [x for x in at if x in before]
    gains = [100 * (at[x] - before[x]) for x in both]
    equal = [100 * (at_tokens(of_row[x], spent[x]) - before[x]) for x in both]
    cells = ["", "", ""]
    if len(gains) > 1:
      mean, half = comparison.interval(gains)
      sign = "reproduced" if mean > half else "not reproduced"
      cells = [
          results.mean(gains, "+.1f"),
          "opposite" if -mean > half else sign,
          results.mean(equal, "+.1f"),
      ]
    if at:
      label = name if name != "DAPO" else "+ dynamic sampling, dual clip (DAPO)"
      values = seeds.spread(list(at.values()))
      out.append(results.row(label, values, *cells, len(at)))
    before = at
    spent = {seed: x["tokens"][steps[seed]] for seed, x in of_row.items()}
  return out


def _by_seed(found: list[dict], of_dapo: dict[int, dict]) -> list[str]:
  """mean@4 of each seed."""
  out = ["", "By seed, mean@4:", ""]
  out += ["| seed | before RL | " + " | ".join(ROWS) + " |"]
  out += ["|---" * (len(ROWS) + 2) + "|"]
  for seed, first in of_dapo.items():
    last = {x["name"]: x["mean@4"][-1] for x in found if x["seed"] == seed}
    cells = [f"{last[x]:.1%}" if x in last else "not run" for x in ROWS]
    out.append(results.row(seed, f"{first['mean@4'][0]:.1%}", *cells))
  return out


def _by_step(of_row: list[dict]) -> list[str]:
  """What DAPO learns, over its steps: means over seeds."""
  out = [
      "",
      "DAPO by RL step, means over seeds with 95% intervals: blocks that are"
      " written out (of three), tokens of a response, and the entropy of a"
      " token. No reward depends on the length: responses grow because correct"
      " ones are longer. Batches without rows, because no group had signal,"
      " have no length and no entropy (one seed at step 25).",
      "",
      "| step | accuracy, % | blocks written out | length | entropy |",
      "|---|---|---|---|---|",
  ]
  steps = min(len(x["rl"]["accuracy"]) for x in of_row)
  for step in (1, *range(5, steps + 1, 5)):
    cells = []
    for name, (factor, digits) in SHOWN.items():
      found = [comparison.column(x["rl"], name)[step - 1] for x in of_row]
      numbers = [factor * x for x in found if x is not None]
      cells.append(results.mean(numbers, f".{digits}f"))
    out.append(results.row(step, *cells))
  return out


def figure(result: dict) -> dict:
  """Accuracy against generated tokens, and what the responses of DAPO do."""
  lines, colors = [], dict(zip(CURVES, (0, 1, 3, 4, 5), strict=True))
  for name in CURVES:
    of_row = [x for x in result["runs"] if x["name"] == name]
    if not of_row:
      continue
    count = min(len(x["tokens"]) for x in of_row)
    y_SE = np.array([x["mean@4"][:count] for x in of_row])
    lines.append(
        figures.series(
            name,
            np.mean([x["tokens"][:count] for x in of_row], 0),
            y=y_SE.mean(0),
            low=y_SE.min(0),
            high=y_SE.max(0),
            color=colors[name],
        )
    )
  written = []
  for name in ("DAPO", "GRPO"):
    of_row = [x["rl"] for x in result["runs"] if x["name"] == name]
    if of_row:
      y_SE = np.array([x["written"] for x in of_row])
      written.append(
          figures.series(
              name,
              np.arange(1, y_SE.shape[1] + 1),
              y=y_SE.mean(0),
              low=y_SE.min(0),
              high=y_SE.max(0),
              color=colors[name],
          )
      )
  panels = [
      figures.lines(
          lines,
          x="generated tokens",
          y="held-out accuracy (mean@4)",
          percent=True,
      ),
      figures.lines(written, x="RL steps", y="blocks written out, of three"),
  ]
  return figures.figure(
      figures.block(panels, columns=2, height=3.2), legend=True
  )


def flags(parser) -> None:
  """The flags."""
  parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
  parser.add_argument("--seeds", type=int, default=len(SEEDS))
  parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
  parser.add_argument("--collect", action="store_true")
  parser.add_argument("--keep_data", action="store_true")


def measure(given) -> dict:
  """Runs what is missing, seed by seed; returns the data."""
  every = [(name, seed) for seed, name in itertools.product(SEEDS, ROWS)]
  before = results.read(NAME) if given.keep_data else {}
  kept = {(x["name"], x["seed"]): x for x in before.get("runs", ())}
  if not given.collect:
    wanted = [
        x
        for x in every
        if x[1] in SEEDS[: given.seeds] and x[0] in given.rows and x not in kept
    ]
    learned = [base(seed) for seed in dict.fromkeys(x[1] for x in wanted)]
    runs.make([*learned, *(job(*x) for x in wanted)], given.jobs)
  made = [x for x in every if x not in kept and job(*x).finished()]
  if not made:
    raise SystemExit("there are no finished runs beside those of the data")
  found = kept | {x: read(*x) for x in made}
  earlier = {str(before["environment"].get("git commit"))} if kept else set()
  return dict(
      command="python -m studies.xor.run",
      environment=results.run_environment(directory(*made[0])),
      earlier_commits=sorted(earlier | {*before.get("earlier_commits", ())}),
      runs=[found[x] for x in every if x in found],
  )


if __name__ == "__main__":
  results.main(__doc__, NAME, measure, page, figure=figure, flags=flags)
