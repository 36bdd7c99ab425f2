"""The same GRPO run by TRL, by tunix and by this package: learning curves.

  python -m bench.peers --install trl     # once; tunix likewise
  python -m bench.parity_run              # resumable; --seeds, --rows: a part
  python -m bench.parity_run --collect    # the data of the runs made so far
  python -m bench.parity_run --table      # only page and figure, from the data

One checkpoint in the format of transformers, one tokenizer, one file of rows
and one reward function (`bench/peers/parity_reward.py`) go through
`GRPOTrainer`, through `GRPOLearner` and through `configs/trl_grpo.py`, whose
fields are the defaults of TRL. `KNOBS` is what else all are given. A seed fixes
the prompts of each rollout, which are the same in all; the sampling noise is
each library's own. Controls are runs of this package with one knob off: what
the comparison would have noticed. results/plans/parity_run.md has the
hypotheses.
"""

import hashlib
import itertools
import json
import pathlib
import random
import subprocess
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from bench import harness, results, runs
from rl_reason.base import json_files
from rl_reason.data import pipelines
from rl_reason.devices import randomness
from rl_reason.lab import ablate, comparison, jobs
from rl_reason.monitoring import run_log
from rl_reason.tasks import arithmetic

NAME = "parity_run"
PLACE = results.RUNS / NAME
SEEDS = ablate.fresh_seeds(NAME, 16)
ROLLOUTS, PROMPTS, GROUP, EPOCHS = 40, 16, 8, 2
EVERY = 10  # rollouts between rows of the table
HELD_OUT = 64  # rows of the evaluation set that a run of this package needs

# Meaning, field here and its value, field of GRPOConfig and its value.
KNOBS = (
    ("rollouts", "rl.steps", ROLLOUTS, "max_steps", EPOCHS * ROLLOUTS),
    (
        *("responses of a rollout", "rollout.batch", PROMPTS * GROUP),
        *("per_device_train_batch_size", PROMPTS * GROUP),
    ),
    *(
        ("group size", "rollout.group_size", GROUP, "num_generations", GROUP),
        ("epochs", "updates.epochs", EPOCHS, "num_iterations", EPOCHS),
        ("tokens", "rollout.max_tokens", 48, "max_completion_length", 48),
        ("learning rate", "optimizer.lr", 5e-5, "learning_rate", 5e-5),
    ),
    (
        *("schedule", "optimizer.schedule", "constant"),
        *("lr_scheduler_type", "constant"),
    ),
    ("dtype", "model.dtype", "float32", "bf16", False),
    ("recomputed", "model.remat", "dots", "gradient_checkpointing", False),
    ("prompt order", "seed", "the seed", "shuffle_dataset", False),
)
# Fields of this package that GRPOConfig does not have.
OTHERS = {
    "data.chat": False,
    "data.kind": "none",  # the reward function alone
    "data.deduplicate": False,
    "data.ngram": 0,
    "reward.functions": "bench.peers.parity_reward:correct",
    "rollout.max_prompt": 12,
    "updates.token_budget": 8192,
    "evaluate.prompts": HELD_OUT,
    "evaluate.interim_prompts": HELD_OUT,
    "evaluate.samples": 1,
    "evaluate.mean_of": 1,
    "log.samples_every": ROLLOUTS,
    "checkpoint.every": ROLLOUTS,
}
OURS, TRL, TUNIX = "rl_reason", "TRL", "tunix"
PEERS = {  # rows of other libraries: environment, module, and repairs
    TRL: ("trl", "bench.peers.parity_trl", {}),
    TUNIX: ("tunix", "bench.peers.parity_tunix", dict(keys=False, eos=False)),
    "tunix, keys and EOS repaired": (
        *("tunix", "bench.peers.parity_tunix"),
        dict(keys=True, eos=True),
    ),
}
CONTROLS = {  # rows of this package with one knob off
    "learning rate x 0.7": {"optimizer.lr": 3.5e-5},
    "temperature 0.9": {"rollout.temperature": 0.9},
    "mean over samples first": {"reduction.name": "seq_mean_token_mean"},
}
ROWS = (OURS, *PEERS, *CONTROLS)
# Measures: name, metric here, metric of TRL.
MEASURES = {
    "reward": ("critic/rewards/mean", "reward"),
    "length": ("response_length/mean", "completions/mean_length"),
    "truncated": ("response_length/clip_ratio", "completions/clipped_ratio"),
    "entropy": ("actor/entropy", "entropy"),
    "clipped": ("actor/pg_clipfrac", "clip_ratio/region_mean"),
    "gradient norm": ("actor/grad_norm", "grad_norm"),
}


# --- what both are given -----------------------------------------------------


def make_model() -> pathlib.Path:
  """Returns the checkpoint; its SFT on the built-in task runs once."""
  workdir = PLACE / "sft"
  out = workdir / "export" / "policy"
  if not out.exists():
    flags = ["--config=configs/grpo.py", "--config.model.qkv_bias=True"]
    for stage in ("sft", "export"):
      subprocess.run(
          [*jobs.MAIN, *flags, f"--stage={stage}", f"--workdir={workdir}"],
          cwd=results.ROOT,
          check=True,
      )
  return out


def problems() -> dict[str, list[dict[str, str]]]:
  """Different problems: rows to train on, and held-out ones."""
  rng, found = np.random.default_rng(0), {}
  while len(found) < ROLLOUTS * PROMPTS + HELD_OUT:
    row = arithmetic.problem(rng, int(rng.integers(2, 7)))
    found[row.prompt] = row.answer
  rows = [dict(question=k, answer=x) for k, x in found.items()]
  random.Random(0).shuffle(rows)  # short chains are found first
  return dict(train=rows[HELD_OUT:], evaluate=rows[:HELD_OUT])


def make_files() -> dict[str, pathlib.Path]:
  """Returns the files of `problems`."""
  PLACE.mkdir(parents=True, exist_ok=True)
  files = {}
  for name, rows in problems().items():
    files[name] = PLACE / f"{name}.jsonl"
    if not files[name].exists():
      lines = [json.dumps(row) + "\n" for row in rows]
      json_files.write_text(files[name], "".join(lines))
  return files


def prompts(seed: int) -> list[dict[str, str]]:
  """The prompts of a run in their order, rollout by rollout, with answers.

  It is the order in which this package reads a file of rows with the seed.
  """
  order = randomness.host_seed(seed, "rollout prompts")
  stream = pipelines.Mixed([problems()["train"]], [1.0], order)
  rows = [stream[i][1] for i in range(ROLLOUTS * PROMPTS)]
  return [dict(prompt=x["question"], answer=x["answer"]) for x in rows]


def fields(seed: int, row: str = OURS) -> dict[str, Any]:
  """Returns what a run of this package changes in configs/trl_grpo.py."""
  out = {field: value for _, field, value, *_ in KNOBS}
  out |= OTHERS | CONTROLS.get(row, {}) | dict(seed=seed)
  out["model.path"] = str(make_model())
  for name, path in make_files().items():
    out[f"data.{name}"] = str(path)
  return out


def options(seed: int) -> dict[str, Any]:
  """Returns the fields of `GRPOConfig` that are not its defaults."""
  return {field: value for *_, field, value in KNOBS} | dict(seed=seed)


# --- runs --------------------------------------------------------------------


def place(row: str, seed: int) -> pathlib.Path:
  """The work directory of a run, or the file of a run of a peer."""
  name = f"{ablate.slug(row)}-{seed}"
  return PLACE / (f"{name}.json" if row in PEERS else name)


def job(row: str, seed: int) -> jobs.Job:
  """A run of this package."""
  return runs.run("configs/trl_grpo.py", place(row, seed), fields(seed, row))


def given(row: str, seed: int) -> dict[str, Any]:
  """The job of a run of a peer."""
  environment, _, repairs = PEERS[row]
  out = dict(weights=str(make_model()), rows=prompts(seed))
  if environment == "trl":
    return out | dict(options=options(seed))
  of_field = {field: value for _, field, value, *_ in KNOBS}
  return (
      out
      | repairs
      | dict(
          prompts=PROMPTS,
          group=GROUP,
          epochs=EPOCHS,
          max_prompt=OTHERS["rollout.max_prompt"],
          max_tokens=of_field["rollout.max_tokens"],
          lr=of_field["optimizer.lr"],
          seed=seed,
      )
  )


def run_peer(row: str, seed: int) -> None:
  """Makes a run of a peer, unless its file exists.

  Raises:
    SystemExit: the peer is not installed, or trained on other prompts.
  """
  out, (environment, module, _) = place(row, seed), PEERS[row]
  if out.exists():
    return
  python = harness.ENVIRONMENTS / environment / "bin" / "python"
  if not python.exists():
    raise SystemExit(
        f"{python} does not exist; run python -m bench.peers --install"
        f" {environment}"
    )
  task = given(row, seed)
  jobs.say(f"{row}, seed {seed}: started")
  load = results.load()
  with out.with_suffix(".log").open("w") as errors:
    done = subprocess.run(
        [python, "-m", module],
        input=json.dumps(task),
        stdout=subprocess.PIPE,
        stderr=errors,
        cwd=results.ROOT,
        text=True,
        check=True,
    )
  found = json.loads(done.stdout) | dict(load=load)
  if sum(found.pop("prompts"), []) != [x["prompt"] for x in task["rows"]]:
    raise SystemExit(f"{row}, seed {seed}: other prompts, or in another order")
  json_files.write_json(out, found)
  jobs.say(f"{row}, seed {seed}: done after {found['seconds']:.0f} s")


def read(row: str, seed: int) -> dict[str, Any]:
  """The measures of a finished run by rollout, and its seconds."""
  which = int(row in PEERS)
  if row in PEERS:
    found = json.loads(place(row, seed).read_text())
    lines = found["log"]
    if row == TRL:
      lines = [_merged(x) for x in zip(*[iter(lines)] * EPOCHS, strict=True)]
    seconds, load = found["seconds"], found["load"]
  else:
    log = run_log.read_metrics(place(row, seed))
    lines = [x for x in log if x["stage"] == "rl"]
    check_prompts(place(row, seed), seed)
    seconds = sum(x["timing_s/step"] for x in lines)
    load = job(row, seed).record()["load"]
  curves = {
      name: [float(f"{x[keys[which]]:.5g}") for x in lines]
      for name, keys in MEASURES.items()
      if keys[which] in lines[0]
  }
  return dict(row=row, seed=seed, seconds=round(seconds, 1), load=load) | curves


def check_prompts(workdir: pathlib.Path, seed: int) -> None:
  """Checks that a run of this package had the prompts of `prompts`.

  Raises:
    SystemExit: a logged response is to a prompt of another rollout.
  """
  wanted = [x["prompt"] for x in prompts(seed)]
  with (workdir / "samples.jsonl").open() as lines:
    logged = [x for x in map(json.loads, lines) if x["stage"] == "rl"]
  for x in logged:
    at = (x["step"] - 1) * PROMPTS
    if x["prompt"] not in wanted[at : at + PROMPTS]:
      raise SystemExit(f"{workdir}: {x['prompt']!r} is not of {x['step']}")
  if not logged:
    raise SystemExit(f"{workdir}: samples.jsonl has no response of RL")


def _merged(lines: Sequence[dict]) -> dict[str, float]:
  """The metrics of a rollout: means over its optimizer steps that have them."""
  names = {name for line in lines for name in line}
  return {
      name: float(np.mean([x[name] for x in lines if name in x]))
      for name in names
  }


# --- statistics --------------------------------------------------------------


def of_seeds(
    result: dict, one: str, other: str, measure: str = "reward"
) -> tuple[np.ndarray, np.ndarray]:
  """The curves of two rows, [seeds, rollouts] each, of the seeds of both."""
  found = {(x["row"], x["seed"]): x[measure] for x in result["runs"]}
  both = [
      x for x in result["seeds"] if (one, x) in found and (other, x) in found
  ]
  return tuple(np.array([found[row, x] for x in both]) for row in (one, other))


def area(one_NS: np.ndarray, other_NS: np.ndarray) -> float:
  """The mean over rollouts of the distance of the mean curves."""
  return float(np.abs(one_NS.mean(0) - other_NS.mean(0)).mean())


def permutation_test(one_NS: np.ndarray, other_NS: np.ndarray) -> float:
  """The share of permutations whose `area` is at least the measured one.

  A seed has the same prompts in both rows, so a permutation swaps the rows of
  some seeds: 2^N ways, the measured one among them.

  Args:
    one_NS: curves of N seeds, at most 16.
    other_NS: curves of the same seeds.
  """
  difference_NS = one_NS - other_NS
  count = len(difference_NS)
  signs_WN = 1.0 - 2 * (np.arange(2**count)[:, None] >> np.arange(count) & 1)
  areas_W = np.abs(signs_WN @ difference_NS / count).mean(1)
  return float((areas_W >= areas_W[0] - 1e-12).mean())


def compare(one_NS: np.ndarray, other_NS: np.ndarray) -> dict[str, Any]:
  """How the curves of two rows differ; shares of 1, 95% intervals.

  Args:
    one_NS: curves of N seeds.
    other_NS: curves of the same seeds.

  Returns:
    steps: for every tenth rollout its number, (mean, half width) of `one` and
    `other`, whether these bands overlap, and (mean, half width) of the
    difference; difference: (mean, half width) of the mean over all rollouts;
    detectable: the difference of that mean which a t-test with these seeds
    finds with a probability of 80%; area, p: of `permutation_test`.
  """
  steps = []
  for step in range(EVERY, one_NS.shape[1] + 1, EVERY):
    one_N, other_N = one_NS[:, step - 1], other_NS[:, step - 1]
    one, other = comparison.interval(one_N), comparison.interval(other_N)
    gap, halves = abs(one[0] - other[0]), (one[1] or 0) + (other[1] or 0)
    steps.append(
        dict(
            step=step,
            one=one,
            other=other,
            overlap=gap <= halves,
            difference=comparison.interval(one_N - other_N),
        )
    )
  means_N = (one_NS - other_NS).mean(1)
  quantiles = stats.t.ppf([0.975, 0.8], len(means_N) - 1)
  return dict(
      steps=steps,
      difference=comparison.interval(means_N),
      detectable=float(quantiles.sum() * stats.sem(means_N)),
      area=area(one_NS, other_NS),
      p=permutation_test(one_NS, other_NS),
  )


# --- data, page and figure ---------------------------------------------------


def add_flags(parser) -> None:
  """The flags."""
  parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many")
  parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
  parser.add_argument("--collect", action="store_true", help="run nothing")


def finished(row: str, seed: int) -> bool:
  """Whether a run has ended."""
  there = place(row, seed).exists()
  return there and (row in PEERS or job(row, seed).finished())


def measure(flags) -> dict:
  """Makes the missing runs; returns the data of all runs made so far."""
  wanted = list(itertools.product(SEEDS[: flags.seeds], flags.rows))
  for seed, row in [] if flags.collect else wanted:
    if row in PEERS:
      run_peer(row, seed)
    else:
      one, load = job(row, seed), results.load()
      if not one.finished():
        runs.make([one])
        one.update_record(load=load)
  made = [x for x in itertools.product(SEEDS, ROWS) if finished(x[1], x[0])]
  weights = (make_model() / "model.safetensors").read_bytes()
  versions = {
      row: json.loads(place(row, seed).read_text())["versions"]
      for seed, row in made
      if row in (TRL, TUNIX)
  }
  return dict(
      command="python -m bench.parity_run",
      seeds=list(SEEDS),
      knobs=[list(x) for x in KNOBS],
      controls=CONTROLS,
      weights=hashlib.sha256(weights).hexdigest()[:16],
      runs=[read(row, seed) for seed, row in made],
      peers=versions,
      environment=results.run_environment(place(OURS, made[0][0])),
  )


def page(result: dict) -> list[str]:
  """Returns the page."""
  return [f"# {len(result['runs'])} runs", "", *results.footer(result)]


if __name__ == "__main__":
  results.main(__doc__, NAME, measure, page, flags=add_flags)
