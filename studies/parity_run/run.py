"""The same GRPO run by TRL, by tunix and by this package: learning curves.

  python -m bench.peers --install trl         # once; and tunix
  python -m studies.parity_run.run            # resumable; --seeds, --rows
  python -m studies.parity_run.run --collect  # of the runs made so far
  python -m studies.parity_run.run --table    # only page and figure, from JSON

One checkpoint in the format of transformers, one tokenizer, one file of rows
and one reward function (`bench/peers/parity_reward.py`) go through
`GRPOTrainer` of TRL, `GRPOLearner` of tunix and `configs/trl_grpo.py`, whose
fields are the defaults of TRL. `KNOBS` is what else all are given. A seed fixes
the prompts of each rollout, which are the same in all; the sampling noise is
each library's own.
Controls are runs of this package with one knob off: what the comparison would
have noticed. `replay` compares the updates on the same samples.
plan.md has the hypotheses.
"""

import hashlib
import itertools
import json
import pathlib
import random
import subprocess
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy import stats

from bench import harness, results, runs
from rl_reason.base import config as config_lib, json_files
from rl_reason.checks import config_files
from rl_reason.data import pipelines
from rl_reason.devices import randomness
from rl_reason.lab import ablate, comparison, jobs
from rl_reason.monitoring import run_log
from rl_reason.report import figures
from rl_reason.tasks import arithmetic

NAME = "parity_run"
PLACE = results.RUNS / NAME
SEEDS = ablate.fresh_seeds(NAME, 16)
DEVELOPMENT = 1  # a seed of no comparison
ROLLOUTS, PROMPTS, GROUP, EPOCHS = 40, 16, 8, 2
EVERY = 10  # rollouts between rows of the table
REPLAYED = 10  # rollouts of `replay`
HELD_OUT = 64  # rows of the evaluation set that a run of this package needs

# Meaning; field here and its value; field of GRPOConfig and its value.
KNOBS = (
    ("rollouts", ("rl.steps", ROLLOUTS), ("max_steps", EPOCHS * ROLLOUTS)),
    (
        "responses of a rollout",
        ("rollout.batch", PROMPTS * GROUP),
        ("per_device_train_batch_size", PROMPTS * GROUP),
    ),
    ("group size", ("rollout.group_size", GROUP), ("num_generations", GROUP)),
    ("epochs", ("updates.epochs", EPOCHS), ("num_iterations", EPOCHS)),
    ("tokens", ("rollout.max_tokens", 48), ("max_completion_length", 48)),
    ("learning rate", ("optimizer.lr", 5e-5), ("learning_rate", 5e-5)),
    (
        "schedule",
        ("optimizer.schedule", "constant"),
        ("lr_scheduler_type", "constant"),
    ),
    ("dtype", ("model.dtype", "float32"), ("bf16", False)),
    (
        "recomputed activations",
        ("model.remat", "dots"),
        ("gradient_checkpointing", False),
    ),
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
OURS, TRL = "rl_reason", "TRL"
CONTROLS = {  # rows of this package with one knob off
    "learning rate x 0.7": {"optimizer.lr": 3.5e-5},
    "temperature 0.9": {"rollout.temperature": 0.9},
    "mean over samples first": {"reduction.name": "seq_mean_token_mean"},
}
# The samplers alone: rollouts of a policy that stays as it is, in both.
OURS_FIXED, TRL_FIXED = "rl_reason, fixed policy", "TRL, fixed policy"
FIXED_RATE = 1e-12
FIXED_SEEDS = 4
LOOKED = 5  # seeds whose difference the plan names before the others were run
# tunix as it is, and with the EOS of responses in its loss.
TUNIX, TUNIX_EOS = "tunix", "tunix, EOS in the loss"
PEERS = {TRL: "trl", TRL_FIXED: "trl", TUNIX: "tunix", TUNIX_EOS: "tunix"}
ROWS = (OURS, TRL, *CONTROLS, OURS_FIXED, TRL_FIXED, TUNIX, TUNIX_EOS)
ABOUT = {  # what differs from TRL
    OURS: "nothing",
    "learning rate x 0.7": "`optimizer.lr` 3.5e-5",
    "temperature 0.9": "`rollout.temperature` 0.9",
    "mean over samples first": "`reduction.name` seq_mean_token_mean",
}
LEVEL = 0.05  # of the permutation test
NEEDED = 8  # seeds, by the plan
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
  out = {field: value for _, (field, value), _ in KNOBS}
  out |= OTHERS | CONTROLS.get(row, {}) | dict(seed=seed)
  if row == OURS_FIXED:
    out["optimizer.lr"] = FIXED_RATE
  out["model.path"] = str(make_model())
  for name, path in make_files().items():
    out[f"data.{name}"] = str(path)
  return out


def options(seed: int, row: str = TRL) -> dict[str, Any]:
  """What a peer is told of the run.

  For TRL these are the fields of `GRPOConfig` that are not its defaults.
  """
  out = {field: value for *_, (field, value) in KNOBS}
  if PEERS[row] == "tunix":
    return dict(
        rollouts=ROLLOUTS,
        prompts=PROMPTS,
        group=GROUP,
        iterations=EPOCHS,
        tokens=out["max_completion_length"],
        prompt_tokens=OTHERS["rollout.max_prompt"],
        lr=out["learning_rate"],
        seed=seed,
        eos=row == TUNIX_EOS,
    )
  if row == TRL_FIXED:
    out["learning_rate"] = FIXED_RATE
  return out | dict(seed=seed, shuffle_dataset=False)  # rows are in order


# --- runs --------------------------------------------------------------------


def place(row: str, seed: int) -> pathlib.Path:
  """The work directory of a run, or the file of a run of a peer."""
  name = f"{ablate.slug(row)}-{seed}"
  return PLACE / (f"{name}.json" if row in PEERS else name)


def job(row: str, seed: int) -> jobs.Job:
  """A run of this package."""
  return runs.run("configs/trl_grpo.py", place(row, seed), fields(seed, row))


def given(seed: int, row: str = TRL) -> dict[str, Any]:
  """The job of a run of a peer."""
  rows, weights = prompts(seed), str(make_model())
  return dict(weights=weights, rows=rows, options=options(seed, row), out=None)


def call_peer(name: str, task: dict[str, Any]) -> dict[str, Any]:
  """Runs a job of a peer in its environment.

  Raises:
    SystemExit: the peer is not installed, failed, or trained on other prompts.
  """
  found = harness.call(f"parity_{name}", name, task, PLACE / f"{name}.log")
  if sum(found.pop("prompts"), []) != [x["prompt"] for x in task["rows"]]:
    raise SystemExit(f"{name}: trained on other prompts, or in another order")
  return found


def run_peer(row: str, seed: int) -> None:
  """Makes a run of a peer, unless its file exists."""
  out = place(row, seed)
  if not out.exists():
    jobs.say(f"{row}, seed {seed}: started")
    load = results.load()
    found = call_peer(PEERS[row], given(seed, row))
    about = dict(load=load, commit=results.commit())
    json_files.write_json(out, found | about)
    jobs.say(f"{row}, seed {seed}: done after {found['seconds']:.0f} s")


def replay() -> dict[str, Any]:
  """Updates here on what TRL sampled in a run, against TRL's own updates.

  Returns:
    rollouts: their number; grad_norm: of each rollout, here and in TRL;
    parameters: difference of the trained parameters relative to their change;
    logps: of the tokens of the last rollout, mean change by training, and mean
    and largest difference between both trained models.
  """
  from studies.trl_defaults import run as trl_defaults

  out = PLACE / "replay"
  task = given(DEVELOPMENT) | dict(out=str(out))
  task["rows"] = task["rows"][: REPLAYED * PROMPTS]
  task["options"]["max_steps"] = REPLAYED * EPOCHS
  peer = call_peer("trl", task)
  log, before, after, logps = trl_defaults.replay(
      replayed_config(), dict(weights=str(make_model())) | peer["sampled"]
  )
  theirs = trl_defaults.load(str(out))
  last = peer["sampled"]["completions"][-1]
  return dict(
      seed=DEVELOPMENT,
      rollouts=len(log),
      grad_norm=[
          [x["grad_norm"] for x in log],
          [x["grad_norm"] for x in of_rollouts(peer["log"])],
      ],
      parameters=trl_defaults.difference(before, after, theirs),
      logps=gaps(*map(logps, (before, after, theirs)), last),
  )


def replay_tunix(row: str) -> dict[str, Any]:
  """The same on what tunix sampled.

  tunix takes a padding token that was sampled for padding, so that the updates
  differ from the first such response on.

  Returns:
    responses: those with a padding token, by rollout; then by number of
    rollouts, of all and of those before the first such response, the `gaps` of
    the log-probs.
  """
  sampled, found = after_rollouts(row, REPLAYED)
  padded = [
      sum(harness.PAD in ids for ids in of_rollout)
      for of_rollout in sampled["completions"]
  ]
  out: dict[str, Any] = dict(responses=padded, gaps={REPLAYED: found})
  before = next((n for n, count in enumerate(padded) if count), 0)
  if before:
    out["gaps"][before] = after_rollouts(row, before)[1]
  return out


def after_rollouts(row: str, rollouts: int) -> tuple[dict[str, list], dict]:
  """What tunix samples in some rollouts, and the `gaps` after the updates."""
  from studies.trl_defaults import run as trl_defaults

  task = given(DEVELOPMENT, row) | dict(out=True)
  task["rows"] = task["rows"][: rollouts * PROMPTS]
  task["options"]["rollouts"] = rollouts
  peer = call_peer("tunix", task)
  sampled = peer["sampled"]
  _, before, after, logps = trl_defaults.replay(
      replayed_config(), dict(weights=str(make_model())) | sampled
  )
  start_BT, ours_BT = logps(before), logps(after)
  theirs_BT = np.zeros_like(ours_BT)
  for b, values in enumerate(peer["logps"]):
    theirs_BT[b, : len(values)] = values
  last = sampled["completions"][-1]
  return sampled, gaps(start_BT, ours_BT, theirs_BT, last)


def replayed_config():
  """The config of a run whose rows and rewards are given."""
  c = config_files.read("configs/trl_grpo.py")
  changes = {
      name: value
      for name, value in fields(DEVELOPMENT).items()
      if not name.startswith(("data.", "reward."))  # both are given
  }
  config_lib.override(c, changes)
  return c


def gaps(start_BT, ours_BT, theirs_BT, completions: list) -> dict[str, float]:
  """Differences of log-probs of completions, 0 after their ends.

  Returns:
    change: by training, mean over tokens; difference, largest: between both
    trained models, mean over tokens and maximum.
  """
  tokens = sum(map(len, completions))
  gap_BT = np.abs(ours_BT - theirs_BT)
  return dict(
      change=float(np.abs(ours_BT - start_BT).sum() / tokens),
      difference=float(gap_BT.sum() / tokens),
      largest=float(gap_BT.max()),
  )


def read(row: str, seed: int) -> dict[str, Any]:
  """The measures of a finished run by rollout, and its seconds."""
  which = int(PEERS.get(row) == "trl")
  if row in PEERS:
    found = json.loads(place(row, seed).read_text())
    lines = of_rollouts(found["log"]) if which else found["log"]
    seconds, load = found["seconds"], found["load"]
  else:
    log = run_log.read_metrics(place(row, seed))
    lines = [x for x in log if x["stage"] == "rl"]
    check_prompts(place(row, seed), seed)
    seconds = sum(x["timing_s/step"] for x in lines)
    load = job(row, seed).record()["load"]
  keys = {name: both[which] for name, both in MEASURES.items()}
  if PEERS.get(row) == "tunix":  # it is asked for the first measures only
    keys = {name: name for name in MEASURES if name in lines[0]}
  curves = {
      name: [float(f"{x[key]:.5g}") for x in lines]
      for name, key in keys.items()
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


def of_rollouts(lines: Sequence[dict]) -> list[dict[str, float]]:
  """The metrics of rollouts, from those of TRL's optimizer steps.

  What TRL measures of sampling is only in the first step of a rollout; of other
  metrics the mean counts.
  """
  out = []
  for steps in zip(*[iter(lines)] * EPOCHS, strict=True):
    names = {name for line in steps for name in line}
    out.append(
        {
            name: float(np.mean([x[name] for x in steps if name in x]))
            for name in names
        }
    )
  return out


# --- statistics --------------------------------------------------------------


def of_seeds(
    result: dict, one: str, other: str, measure: str = "reward"
) -> tuple[np.ndarray, np.ndarray]:
  """The curves of two rows, [seeds, rollouts] each, of the seeds of both."""
  found = {
      (x["row"], x["seed"]): x[measure] for x in result["runs"] if measure in x
  }
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
    seeds: N; steps: for every tenth rollout its number, (mean, half width) of
    `one` and `other`, whether these bands overlap, and (mean, half width) of
    the difference; difference: (mean, half width) of the mean over all
    rollouts; detectable: the difference of that mean which a t-test with these
    seeds finds with a probability of 80%; area, p: of `permutation_test`.
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
      seeds=len(means_N),
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
  parser.add_argument("--replay", action="store_true", help="only the replay")


def finished(row: str, seed: int) -> bool:
  """Whether a run has ended."""
  there = place(row, seed).exists()
  return there and (row in PEERS or job(row, seed).finished())


def measure(flags) -> dict:
  """Makes the missing runs; returns the data of all runs made so far."""
  before = results.read(NAME)
  weights = _weights(before, flags.collect)
  kept = PLACE / "replay.json"
  asked = not flags.collect and TRL in flags.rows
  if asked and not kept.exists():
    json_files.write_json(kept, replay())
  kept_tunix = PLACE / "replay_tunix.json"
  if not flags.collect and TUNIX in flags.rows and not kept_tunix.exists():
    found = {row: replay_tunix(row) for row in (TUNIX, TUNIX_EOS)}
    json_files.write_json(kept_tunix, found)
  wanted = list(itertools.product(SEEDS[: flags.seeds], flags.rows))
  wanted = [] if flags.replay or flags.collect else wanted
  for seed, row in wanted:
    if row in (OURS_FIXED, TRL_FIXED) and seed not in SEEDS[:FIXED_SEEDS]:
      continue
    if row in PEERS:
      run_peer(row, seed)
    else:
      one, load = job(row, seed), results.load()
      if not one.finished():
        runs.make([one])
        one.update_record(load=load)
  made = [x for x in itertools.product(SEEDS, ROWS) if finished(x[1], x[0])]
  versions = {
      row: json.loads(place(row, seed).read_text())["versions"]
      for seed, row in made
      if row in (TRL, TUNIX)
  }
  ours = [
      results.run_environment(place(row, seed))
      for seed, row in made
      if row not in PEERS
  ]
  commits = {x["git commit"] for x in ours} | set(before.get("commits", []))
  commits |= {
      json.loads(place(row, seed).read_text())["commit"]
      for seed, row in made
      if row in PEERS
  }
  found = {(x["seed"], x["row"]): x for x in before.get("runs", [])}
  found |= {(seed, row): read(row, seed) for seed, row in made}
  return dict(
      command="python -m studies.parity_run.run",
      commits=sorted(commits),
      seeds=list(SEEDS),
      knobs=[list(x) for x in KNOBS],
      controls=CONTROLS,
      weights=weights,
      runs=[
          found[key] for key in itertools.product(SEEDS, ROWS) if key in found
      ],
      replay=json.loads(kept.read_text())
      if kept.exists()
      else before.get("replay"),
      replay_tunix=json.loads(kept_tunix.read_text())
      if kept_tunix.exists()
      else before.get("replay_tunix"),
      peers=before.get("peers", {}) | versions,
      environment=[*ours, before.get("environment")][0],
  )


def _weights(before: dict, collect: bool) -> str:
  """The hash of the checkpoint, which the runs of the repository have, too.

  Raises:
    SystemExit: the runs of the repository began with another checkpoint.
  """
  if collect and not PLACE.exists():
    return before.get("weights", "")
  model = (make_model() / "model.safetensors").read_bytes()
  found = hashlib.sha256(model).hexdigest()[:16]
  if before and before["weights"] != found:
    raise SystemExit(
        f"the checkpoint of this machine has the hash {found}, and the runs of"
        f" results/{NAME}.json began with {before['weights']}: they cannot be"
        " mixed. Move that file away to begin anew"
    )
  return found


def points(interval: Sequence[float | None], sign: str = "") -> str:
  """Returns mean and half width of an interval of shares, in points."""
  mean, half = interval
  text = f"{100 * mean:{sign}z.1f}"
  return text if half is None else f"{text} ± {100 * half:.1f}"


def verdicts(found: dict[str, Any]) -> list[bool | None]:
  """Whether each of the three hypotheses of the plan holds.

  The third is None where the seeds are too few to refute it: the two extreme
  ones of all permutations are more than `LEVEL` of them.
  """
  mean, half = found["difference"]
  few = 2 / 2 ** found["seeds"] > LEVEL
  return [
      all(x["overlap"] for x in found["steps"]),
      abs(mean) <= half,
      None if few else found["p"] > LEVEL,
  ]


def rows_of(result: dict, rows: Iterable[str] = (OURS, *CONTROLS)) -> list[str]:
  """The rows with at least two seeds that TRL has as well."""
  return [x for x in rows if len(of_seeds(result, x, TRL)[0]) > 1]


def page(result: dict) -> list[str]:
  """Returns the page."""
  ours, trl = of_seeds(result, OURS, TRL)
  if len(ours) < 2:
    raise SystemExit(
        "the page needs two seeds of TRL and of this package, and there are"
        f" {len(ours)}: python -m studies.parity_run.run --seeds=2 --rows"
        f" {OURS} {TRL}"
    )
  found = compare(ours, trl)
  agree = verdicts(found)
  versions = result["peers"][TRL]
  tunix = f" {result['peers'].get(TUNIX, {}).get('tunix', '')}".rstrip()
  about = (
      "Do three libraries learn the same from the same data? Data in"
      " `parity_run.json`, hypotheses in [plan.md](plan.md). One checkpoint"
      " (the SFT model of the built-in task, 100k parameters),"
      " one tokenizer, one file of rows and one reward function, 1 for a"
      f" correct response and 0 for others, go through `GRPOTrainer` of TRL"
      f" {versions['trl']} (torch {versions['torch']}), through `GRPOLearner`"
      f" of tunix{tunix} and through `configs/trl_grpo.py`, all on a CPU in"
      " float32. A seed fixes the prompts of each rollout, which are the same"
      " in all. The sampling noise is each library's own, so that single runs"
      " differ, and only their distribution over seeds can agree. The reward is"
      f" the mean of the {PROMPTS * GROUP} responses of a rollout, in points"
      " (shares of 100). Bands of the figure: 95% intervals of the mean."
  )
  out = [
      f"## TRL and rl_reason: {len(ours)} of {len(result['seeds'])} seeds each",
      "",
      *_partial(len(ours)),
      "| rollout | TRL | rl_reason | difference | bands overlap |",
      "|---|---|---|---|---|",
  ]
  for x in found["steps"]:
    cells = [points(x["other"]), points(x["one"]), points(x["difference"], "+")]
    out.append(
        results.row(x["step"], *cells, "yes" if x["overlap"] else "**no**")
    )
  yes = {True: "holds", False: "refuted", None: "cannot fail with so few seeds"}
  out += [
      "",
      "Means over seeds ± half of the 95% interval (Student's t); differences"
      " are paired by seed.",
      "",
      f"1. The bands overlap at every tenth rollout: {yes[agree[0]]}.",
      "2. The difference of the mean over all rollouts is"
      f" {points(found['difference'], '+')} points; its interval holds 0:"
      f" {yes[agree[1]]}. A t-test with these seeds finds a difference of"
      f" {100 * found['detectable']:.1f} points with a probability of 80%."
      + _halves(ours, trl),
      "3. The distance of the mean curves (mean over rollouts of its absolute"
      f" value) is {100 * found['area']:.2f} points; of all"
      f" {2 ** len(ours):,} ways to swap the two libraries within seeds,"
      f" {found['p']:.1%} give at least that; more than {LEVEL:.0%}:"
      f" {yes[agree[2]]}.",
      "",
      "## Which differences the comparison detects",
      "",
      "The same three tests against TRL, for runs of this package with one knob"
      f" off, which are of the first {NEEDED} seeds.",
      "",
      "| run | what differs | seeds | bands overlap | difference | distance"
      " | permutations | the same as TRL |",
      "|---" * 8 + "|",
  ]
  for row in rows_of(result):
    out.append(_tests(result, row, TRL, ABOUT[row]))
  missing = [row for row in CONTROLS if row not in rows_of(result)]
  if missing:
    out += ["", f"These rows have not run yet: {', '.join(missing)}."]
  else:
    *_, last = CONTROLS
    refuted = False in verdicts(compare(*of_seeds(result, last, TRL)))
    out += [
        "",
        f"The plan predicted that {last!r} would not be found, because the"
        " responses differ little in length:"
        f" {'refuted' if refuted else 'holds'}.",
        "",
        _power_of_bands(result),
    ]
  out += [
      "",
      *_replayed(result["replay"]),
      *_samplers(result),
      *_tunix(result),
      *_other_measures(result),
      *_knobs(result),
      *_seconds(result),
  ]
  commits = ", ".join(x[:8] for x in result["commits"])
  same = "same" if all(x is not False for x in agree) else "different"
  return results.document(
      "The same GRPO run in TRL, tunix and here",
      f"TRL and rl_reason learn the {same}: over {len(ours)} seeds the mean"
      " reward of all rollouts differs by"
      f" {points(found['difference'], '+')} points, and bands overlap at"
      f" {sum(x['overlap'] for x in found['steps'])} of {len(found['steps'])}"
      " rollouts.",
      about,
      f"![reward by rollout]({NAME}.png)",
      out,
      made=f"Made by `{result['command']}`.",
      versions=[
          f"Commits of the runs: {commits}.",
          "",
          *results.footer(result),
      ],
  )


def _halves(ours_NS: np.ndarray, trl_NS: np.ndarray) -> str:
  """A sentence on the seeds before and after the look that the plan names."""
  means_N = (ours_NS - trl_NS).mean(1)
  if len(means_N) < LOOKED + 2:
    return ""
  early, late = (
      points(comparison.interval(x), "+")
      for x in (means_N[:LOOKED], means_N[LOOKED:])
  )
  return (
      f" After the first {LOOKED} seeds it was {early} points; in the other"
      f" {len(means_N) - LOOKED}, which the plan asks to show that this is"
      f" chance, it is {late}."
  )


def _power_of_bands(result: dict) -> str:
  """A sentence on what overlapping bands can show."""
  cells, found = [], 0
  for row in (OURS, *CONTROLS):
    steps = compare(*of_seeds(result, row, TRL))["steps"]
    apart = [abs(x["difference"][0]) > x["difference"][1] for x in steps]
    cells.append(f"{row} {sum(apart)} of {len(apart)}")
    found += row in CONTROLS and not all(x["overlap"] for x in steps)
  return (
      "The bands of the first test contain the differences between the prompts"
      " of the seeds, which both libraries share: this test alone finds"
      f" {found} of the {len(CONTROLS)} controls. Differences paired by seed"
      f" exclude 0 at this number of the tenth rollouts: {', '.join(cells)}."
      " The conclusion rests on the other two tests."
  )


def _tests(result: dict, row: str, other: str, about: str) -> str:
  """The row of a table: the three tests of a row against another one."""
  pair = of_seeds(result, row, other)
  found = compare(*pair)
  overlaps = sum(x["overlap"] for x in found["steps"])
  return results.row(
      row,
      about,
      len(pair[0]),
      f"{overlaps} of {len(found['steps'])}",
      points(found["difference"], "+"),
      f"{100 * found['area']:.2f}",
      f"{found['p']:.1%}",
      "refuted" if False in verdicts(found) else "not refuted",
  )


def cause(of_eos: Sequence[float], of_row: Sequence[float]) -> str:
  """Whether EOS explains a difference, each as (mean, half width)."""
  low, high = of_eos[0] - of_eos[1], of_eos[0] + of_eos[1]
  if not low <= of_row[0] <= high:
    return "EOS is not the cause of all of it, and no other cause was shown."
  if low <= 0 <= high:
    return "The interval contains both 0 and this difference: undecided."
  return "EOS explains it."


def _tunix(result: dict) -> list[str]:
  """tunix against this package; [] if it has not run."""
  rows = [
      x for x in (TUNIX, TUNIX_EOS) if len(of_seeds(result, x, OURS)[0]) > 1
  ]
  if not rows:
    return []
  about = {
      TUNIX: "1e-6 and the mask of padding (below); EOS is not in the loss",
      TUNIX_EOS: "1e-6 and the mask of padding (below)",
  }
  out = [
      "## tunix and rl_reason",
      "",
      "`GRPOLearner` gets the same knobs: 2 iterations of one optimizer step,"
      " clip of .2, mean over all tokens, no KL, `optax.adamw` with TRL's"
      " values, gradient clipping at 1. Its code adds 1e-6, not 1e-4, to the"
      " standard deviation of a group. The tokens of a response end before EOS,"
      " so that EOS is not trained: the second row adds EOS by a subclass of"
      " its rollout. `RolloutConfig.seed` is set for each rollout; without it,"
      " all rollouts of all runs have the same noise. The same three tests"
      " against this package:",
      "",
      "| run | what differs | seeds | bands overlap | difference | distance"
      " | permutations | the same as rl_reason |",
      "|---" * 8 + "|",
      *(_tests(result, row, OURS, about[row]) for row in rows),
      "",
      "| measure | rl_reason | tunix | difference |",
      "|---|---|---|---|",
      *_lines(result, TUNIX, OURS, ("reward", "length", "truncated")),
      "",
  ]
  of_trl = []
  for row in rows:
    found = compare(*of_seeds(result, row, TRL))
    of_trl.append(
        f"{points(found['difference'], '+')} ({row}; permutations"
        f" {found['p']:.1%})"
    )
  out += [f"The difference from TRL, in points: {', '.join(of_trl)}.", ""]
  if rows[1:]:
    of_eos = compare(*of_seeds(result, TUNIX, TUNIX_EOS))["difference"]
    first, second = (compare(*of_seeds(result, x, OURS)) for x in rows)
    failed = [verdicts(x).count(False) for x in (first, second)]
    out += [
        "The plan predicted that no test fails in the second row, and that none"
        " fails in the first row either, or else that the second row shows EOS"
        f" to be the cause. {failed[0]} tests fail in the first row and"
        f" {failed[1]} in the second. Both rows of tunix have the same noise,"
        f" so that EOS alone makes {points(of_eos, '+')} points; the first row"
        f" differs from this package by {points(first['difference'], '+')}."
        f" {cause(of_eos, first['difference'])} Tests 2 and 3 are correlated,"
        " so that chance may have failed both; the mask of tunix affects both"
        " rows.",
        "",
    ]
  for row, found in (result.get("replay_tunix") or {}).items():
    out += [_replayed_tunix(row, found), ""]
  return out


def _replayed_tunix(row: str, found: dict[str, Any]) -> str:
  """A sentence on the samples of a row of tunix in the updates of both."""
  padded = sum(found["responses"])
  parts = [
      f"after {rollouts} rollouts {gaps_found['difference']:.1g} on average and"
      f" {gaps_found['largest']:.1g} at most (its change by training:"
      f" {gaps_found['change']:.2g})"
      for rollouts, gaps_found in sorted(
          found["gaps"].items(), key=lambda x: int(x[0])
      )
  ]
  cause = (
      f" In these rollouts {padded} of"
      f" {len(found['responses']) * PROMPTS * GROUP:,} responses have a padding"
      " token that the policy sampled. tunix finds the mask and the positions"
      " of a response by comparing its tokens with the padding token; TRL and"
      " this package train that token like any other. The smaller number of"
      " rollouts ends before the first such response."
  )
  return (
      f"The completions and rewards of a run ({row}, seed {DEVELOPMENT}) also"
      " go through the updates of this package. The log-prob of a token of the"
      f" last rollout differs between the trained models {'; '.join(parts)}."
      + cause * bool(padded)
  )


def _partial(seeds: int) -> list[str]:
  """A remark, if fewer seeds have run than the plan needs."""
  if seeds >= NEEDED:
    return []
  return [
      f"**Partial: {seeds} seeds have run in both; the plan needs {NEEDED}. The"
      " same command makes the missing runs.**",
      "",
  ]


def _replayed(found: dict[str, Any] | None) -> list[str]:
  """The updates of both on the same samples; [] if they have not run."""
  if not found:
    return []
  here_S, there_S = np.array(found["grad_norm"])
  gap_S = np.abs(here_S - there_S)[there_S > 0] / there_S[there_S > 0]
  logps = found["logps"]
  return [
      "## The samples of TRL in the updates of both",
      "",
      "Without the noise of sampling: the completions and rewards of the first"
      f" {found['rollouts']} rollouts of a run of TRL (seed {found['seed']})"
      " also go through the updates of this package, which computes"
      " advantages, old log-probs, loss and optimizer steps. After"
      f" {EPOCHS * found['rollouts']} optimizer steps the log-prob of a token"
      f" of the last rollout has changed by {logps['change']:.2g} on average;"
      " between the two trained models it differs by"
      f" {logps['difference']:.1g} on average and by {logps['largest']:.1g} at"
      f" most. The parameters differ by {found['parameters']:.1g} of their"
      " change. The gradient norms of the rollouts differ by"
      f" {np.median(gap_S):.1g} of their value (median; at most"
      f" {gap_S.max():.1g}).",
      "",
      *(
          [
              "The updates are the same, so that a difference of the curves"
              " comes from the samplers, from decoding and the reward function,"
              " or from chance.",
              "",
          ]
          if logps["difference"] < 1e-3 * logps["change"]
          else []
      ),
  ]


def _samplers(result: dict) -> list[str]:
  """Samples and rewards of a fixed policy; [] if they have not run."""
  found = of_seeds(result, OURS_FIXED, TRL_FIXED)[0]
  if len(found) < 2:
    return []
  return [
      "## The samplers and rewards alone",
      "",
      f"The same runs at a learning rate of {FIXED_RATE:g}, so that the policy"
      f" stays the checkpoint: {found.size * PROMPTS * GROUP:,} responses in"
      f" each library, of {len(found)} seeds, to the same prompts. Intervals"
      " are over seeds. Prediction: no difference but chance.",
      "",
      *_measures(
          result, OURS_FIXED, TRL_FIXED, ("reward", "length", "truncated")
      ),
  ]


def _other_measures(result: dict) -> list[str]:
  """Means over all rollouts of what both trainers log."""
  return [
      "## Other measures, means over all rollouts",
      "",
      *_measures(result, OURS, TRL, MEASURES),
  ]


def _measures(result: dict, one: str, other: str, names) -> list[str]:
  """The table of means over all rollouts of two rows, paired by seed."""
  head = ["| measure | TRL | rl_reason | difference |", "|---|---|---|---|"]
  return [*head, *_lines(result, one, other, names), ""]


def _lines(result: dict, one: str, other: str, names) -> list[str]:
  """The lines of such a table: the other row, the row, the difference."""
  out = []
  for name in names:
    one_N, other_N = (x.mean(1) for x in of_seeds(result, one, other, name))
    cells = [
        _number(comparison.interval(x))
        for x in (other_N, one_N, one_N - other_N)
    ]
    out.append(results.row(name, *cells))
  return out


def _number(interval: Sequence[float | None]) -> str:
  """Returns mean and half width with three digits."""
  mean, half = interval
  return f"{mean:.3g}" if half is None else f"{mean:.3g} ± {half:.2g}"


def _knobs(result: dict) -> list[str]:
  """What TRL and this package are given."""
  out = [
      "## What TRL and this package are given",
      "",
      "The other fields of the algorithm are TRL's defaults in both"
      " ([trl_defaults.md](../trl_defaults/trl_defaults.md)): clip .2, mean"
      " over all tokens, AdamW (.9, .999, 1e-8, no weight decay), gradient norm"
      " clipped at 1, temperature 1, no KL. TRL does not shuffle the rows; this"
      " package also"
      " gets the fields of data, evaluation and checkpoints in `OTHERS` of"
      " `studies/parity_run/run.py`.",
      "",
      "| | here | | `GRPOConfig` | |",
      "|---|---|---|---|---|",
  ]
  for name, (field, value), (other, theirs) in result["knobs"]:
    shown = json.dumps(value), json.dumps(theirs)
    out.append(
        results.row(name, f"`{field}`", shown[0], f"`{other}`", shown[1])
    )
  return [
      *out,
      "",
      f"Weights: sha256 {result['weights']}. Seeds:"
      f" {', '.join(map(str, result['seeds']))}.",
      "",
  ]


def _seconds(result: dict) -> list[str]:
  """A side remark on time."""
  parts = []
  for row in (OURS, TRL):
    of_row = [x for x in result["runs"] if x["row"] == row]
    if of_row:
      took = [x["seconds"] / len(x["reward"]) for x in of_row]
      loads = [x["load"] for x in of_row]
      parts.append(
          f"{row} {np.median(took):.1f} s (load {min(loads):.0f} to"
          f" {max(loads):.0f})"
      )
  return [
      "Seconds of a rollout with its two updates, median over seeds,"
      " compilation included, TRL with one thread and this package with the"
      " cores that it was given, on a machine that others used as well, so that"
      f" they compare nothing: {'; '.join(parts)}.",
      "",
  ]


def figure(result: dict) -> dict:
  """Curves with bands, and the differences from TRL."""
  rows = rows_of(result, (OURS, *CONTROLS, TUNIX, TUNIX_EOS))

  def curve(row: str, color: int | str, other: str = TRL):
    curves_NS = of_seeds(result, row, other)[0]
    half = stats.t.ppf(0.975, len(curves_NS) - 1) * stats.sem(curves_NS)
    mean = curves_NS.mean(0)
    steps = range(1, len(mean) + 1)
    return figures.series(
        row, steps, mean, color=color, low=mean - half, high=mean + half
    )

  panels = [
      figures.lines(
          [curve(TRL, figures.REFERENCE, row), curve(row, 0)],
          x="rollout",
          y="" if i % 3 else "reward",
          title=row,
          percent=True,
      )
      for i, row in enumerate(rows)
  ]
  differences = []
  for row in rows:
    one_NS, other_NS = of_seeds(result, row, TRL)
    means = [100 * x for x in (one_NS - other_NS).mean(1)]
    differences.append((row, means, *comparison.interval(means)))
  forest = figures.forest(differences, x="points of reward more than TRL")
  return figures.figure(
      figures.block(panels, columns=min(3, len(panels)), height=2.6),
      figures.block([forest], columns=1, height=1 + 0.2 * len(rows)),
      note="Reward of each rollout, mean over seeds with its 95% interval;"
      " grey: TRL. Below: mean over all rollouts,\ndifference from TRL with its"
      " 95% interval; filled where it excludes 0; dots: seeds.",
  )


if __name__ == "__main__":
  results.main(__doc__, NAME, measure, page, figure=figure, flags=add_flags)
