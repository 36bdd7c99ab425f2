"""The speedrun: from random parameters to 95% held out. Rules and records.

  python -m bench.training.speedrun --name=NAME  # 16 runs, then a record
  python -m bench.training.speedrun --name=NAME --config=my_run.py --xla_flags=
  python -m bench.training.speedrun --name=NAME --collect  # of the finished
  python -m bench.training.speedrun --check  # all records, by the rules
  python -m bench.training.speedrun --table  # only the page, from JSON

Each run is one process on two cores, with an empty cache of compiled programs.
Finished runs are kept in runs/speedrun/NAME, so an interrupted command goes on
where it was; --again makes all of them again. A record is appended to
results/speedrun.json if it breaks no rule. It is preliminary if runs are
missing, or if other processes were busy. Only Linux can say the latter.
"""

import json
import os
import pathlib
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time

from bench import results
from rl_reason.base import config as config_lib
from rl_reason.checks import config_checks
from rl_reason.lab import ablate, comparison
from rl_reason.monitoring import run_log
from rl_reason.report import machine

NAME = "speedrun"
# Not those of "speedrun", which were run with an earlier config.
SEEDS = ablate.fresh_seeds("rl_reason speedrun", 16)
HELD_OUT = "val-core/arithmetic/acc/mean@4"
GOAL = 0.95  # held-out accuracy after RL: the lower end of its interval
BEFORE = 0.4  # at most, before RL: RL must do the rest
CORES = 2
FLAGS = (
    f"--xla_force_host_platform_device_count={CORES}"
    " --xla_backend_optimization_level=1"
)
QUIET = 0.1  # cores that other processes use during a run, at most
REFERENCE = 500.0  # GFLOP/s of `PRODUCT` on the machine that seconds scale to
# What every run has in common with configs/dapo.py. All other fields, own
# functions and the environment variables of XLA are free.
FIXED = (
    # Rule 1: the task, and no other data or models.
    *("task.name", "task.difficulties", "environment.name", "tokenizer"),
    *("data.train", "data.evaluate", "streams.sft", "streams.text"),
    *("model.path", "rl.init", "critic.path", "critic.reuse"),
    *("reward_model.init", "kl.reference", "kl.server.model"),
    *("rollout.engine.name", "rollout.replay_from", "sft.reuse", "sft.samples"),
    # Rule 2: what SFT shows in the end.
    *("sft.mixture", "sft.habits.steps", "sft.habits.schedule"),
    "sft.habits.mixture",
    # Rule 3: the evaluation.
    *("evaluate.prompts", "evaluate.mean_of", "evaluate.sampling"),
    *("evaluate.temperature", "evaluate.top_p", "evaluate.top_k"),
    *("evaluate.min_p", "evaluate.repetition_penalty", "evaluate.perturb"),
    "evaluate.tasks",
)
_FIELDS = textwrap.fill(
    ", ".join(f"`{x}`" for x in FIXED) + ". Everything else is free: model,"
    " precision, batches, optimizer, algorithm, own functions, flags of XLA.",
    width=80,
    initial_indent="   ",
    subsequent_indent="   ",
    break_long_words=False,
    break_on_hyphens=False,
)
RULES = f"""
1. The task is the built-in arithmetic of `configs/dapo.py` with its held-out
   problems. The model starts from random parameters and sees nothing but
   demonstrations and problems of the task.
2. SFT ends with the habits of `configs/dapo.py`. The held-out accuracy before
   RL is at most {BEFORE:.0%}, so that RL has to do the rest. For all three of
   these rules, these fields are as in `configs/dapo.py`:
{_FIELDS}
3. Held-out accuracy is the mean of 4 samples at temperature 1 on 1,000
   problems, by the evaluation at the end of the run. Held-out problems choose
   nothing: neither a checkpoint nor the end of the run.
4. {len(SEEDS)} seeds, fixed by a hash: {", ".join(map(str, SEEDS))}.
   Their mean, less half of its 95% interval (Student's t), is at least
   {GOAL:.0%}. All runs are of one commit, without edits, which has the config
   and all own functions.
5. Time is the wall time of the process, from its start to its exit: imports,
   compilation with an empty cache, SFT, RL, evaluations, checkpoints and the
   report. The machine runs Linux and has an installed package, {CORES} CPU
   cores and no accelerator. During a run all other processes use at most
   {QUIET} cores.
6. The time of a record is the mean over its seeds. Times of different machines
   are compared after scaling: seconds x G / {REFERENCE:.0f}, where G is the
   rate of a matrix product (1024 x 1024 float32 by XLA on the same {CORES}
   cores, the best of 50) in GFLOP/s, measured before each run, without the
   flags of the run.
"""
PRODUCT = """
import time, jax
x = jax.random.normal(jax.random.key(0), (1024, 1024))
f = jax.jit(lambda x: x @ x)
f(x).block_until_ready()
def seconds():
  start = time.perf_counter()
  f(x).block_until_ready()
  return time.perf_counter() - start
print(2e-9 * 1024**3 / min(seconds() for _ in range(50)))
"""


# --- runs --------------------------------------------------------------------


def command(config: str, overrides: list[str]) -> list[str]:
  """Arguments of python, without seed and work directory."""
  return ["-m", "rl_reason.main", f"--config={config}", *overrides]


def _pin() -> None:
  """Leaves a process as many cores as the rules do."""
  os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])


def product() -> float:
  """GFLOP/s of the fixed matrix product, whatever flags a run has."""
  free = ("XLA_", "JAX_", "OMP_")
  environ = {k: x for k, x in os.environ.items() if not k.startswith(free)}
  out = subprocess.run(
      [sys.executable, "-c", PRODUCT],
      env=environ | dict(JAX_PLATFORMS="cpu"),
      preexec_fn=_pin,
      check=True,
      capture_output=True,
      text=True,
  )
  return round(float(out.stdout), 1)


def machine_seconds() -> float:
  """CPU seconds of all processes since the machine started (Linux)."""
  user, nice, system = map(
      int, pathlib.Path("/proc/stat").read_text().split()[1:4]
  )
  return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def run(place: pathlib.Path, args: list[str], variables: dict, seed: int):
  """Makes one run; returns its seconds and accuracies."""
  shutil.rmtree(place, ignore_errors=True)
  place.mkdir(parents=True)
  rate = product()
  with tempfile.TemporaryDirectory() as cache:
    environ = os.environ | dict(XDG_CACHE_HOME=cache, JAX_PLATFORMS="cpu")
    environ |= variables | dict(PYTHONPATH=str(results.ROOT))
    environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    words = [*args, f"--config.seed={seed}", f"--workdir={place / 'run'}"]
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun, machine = time.monotonic(), machine_seconds()
    with (place / "output.txt").open("w") as out:
      done = subprocess.run(
          [sys.executable, *words],
          cwd=results.ROOT,
          env=environ,
          preexec_fn=_pin,
          stdout=out,
          stderr=subprocess.STDOUT,
      )
    if done.returncode:
      raise SystemExit(
          f"seed {seed}: the run ended with exit code {done.returncode}; see"
          f" {place / 'output.txt'}"
      )
    seconds = time.monotonic() - begun
    machine = machine_seconds() - machine
  end = resource.getrusage(resource.RUSAGE_CHILDREN)
  spent = end.ru_utime + end.ru_stime - cpu.ru_utime - cpu.ru_stime
  lines = run_log.read_metrics(place / "run")
  found = [x for x in lines if x["stage"] == "evaluate"]
  steps = [x for x in lines if x["stage"] == "rl"]
  return dict(
      seed=seed,
      seconds=round(seconds, 1),
      cpu_seconds=round(spent, 1),
      product=rate,
      others=round(max(machine - spent, 0.0) / seconds, 2),
      before=found[0][HELD_OUT],
      after=found[-1][HELD_OUT],
      steps=found[-1]["step"],
      tokens=steps[-1]["tokens/generated"] if steps else 0,
      environment=results.run_environment(place / "run"),
  )


def record(given) -> dict:
  """Makes the runs that are missing; returns the record."""
  args = command(given.config, given.override)
  variables = dict(XLA_FLAGS=given.xla_flags)
  c, _ = config_checks.checked(given.config, _fields(given.override))
  folder = results.RUNS / NAME / re.sub(r"\W+", "-", given.name)
  what = dict(
      command=" ".join(
          [*(f"{k}='{v}'" for k, v in variables.items()), "python", *args]
      ),
      config=_different(config_lib.flat(c)),
  )
  found = []
  for seed in SEEDS[: given.seeds]:
    path = folder / str(seed) / "result.json"
    if given.collect and not path.exists():
      continue
    if given.again or not path.exists():
      one = run(path.parent, args, variables, seed)
      path.write_text(json.dumps(one | what))
    one = json.loads(path.read_text())
    if (of_run := {k: one.pop(k, "unknown") for k in what}) != what:
      raise SystemExit(
          f"{path}: is of {of_run['command']}, config {of_run['config']};"
          " --again makes all runs of this name again, and another --name keeps"
          " them"
      )
    found.append(one)
    shown = "{seed}: {seconds} s, {cpu_seconds} CPU s, {after:.1%}, "
    print((shown + "others {others}").format(**found[-1]), flush=True)
  if not found:
    raise SystemExit(f"{folder}: there is no finished run")
  environments = [x.pop("environment") for x in found]
  return dict(
      name=given.name,
      date=time.strftime("%Y-%m-%d", time.gmtime()),
      **what,
      commits=sorted({str(x["git commit"]) for x in environments}),
      environment=environments[-1],
      runs=found,
  )


def _fields(overrides: list[str]) -> dict[str, str]:
  """Overrides of the command line by field."""
  words = (x.removeprefix("--config.").partition("=") for x in overrides)
  return {name: value for name, _, value in words}


def _different(flat: dict) -> dict:
  """Fields that differ from configs/dapo.py."""
  default = config_lib.flat(config_checks.checked("configs/dapo.py", {})[0])
  found = {k: x for k, x in flat.items() if x != default.get(k)}
  return json.loads(json.dumps(found))


def require_commit(config: str) -> None:
  """Refuses edits, a config or functions that no commit has (rule 4)."""
  git = ["git", "-C", str(results.ROOT), "ls-files"]

  def files(*args: str) -> list[str]:
    done = subprocess.run([*git, *args], capture_output=True, text=True)
    return done.stdout.split()

  path = config.partition(":")[0]
  found = files("--others", "--exclude-standard", "*.py")
  if not files("--", path):
    found.append(path)
  if "-dirty" in str(machine.commit(results.ROOT / "rl_reason")):
    found.append("edits of committed files")
  if found:
    raise SystemExit(
        f"not part of a commit: {', '.join(sorted(set(found)))}; a record names"
        " the commit of all its code, so commit or remove these first (a branch"
        " of your own is enough)"
    )


# --- rules -------------------------------------------------------------------


def faults(one: dict) -> list[str]:
  """What makes a record invalid."""
  out = [
      f"{name} = {one['config'][name]!r}: is as in configs/dapo.py"
      for name in FIXED
      if name in one["config"]
  ]
  for x in one["runs"]:
    if x["before"] > BEFORE:
      out.append(f"seed {x['seed']} begins RL at {x['before']:.1%}")
  mean, half = comparison.interval([x["after"] for x in one["runs"]])
  if half is None or len(one["runs"]) < len(SEEDS):
    half = 0.0  # preliminary
  if mean - half < GOAL:
    out.append(f"{mean:.1%} - {half:.1%} after RL is less than {GOAL:.0%}")
  known = [x["seed"] for x in one["runs"]]
  if known != [x for x in SEEDS if x in known]:
    out.append(f"seeds {known}: they are {list(SEEDS)}, in this order")
  if len(one["commits"]) != 1 or "-dirty" in one["commits"][0]:
    out.append(f"commits {one['commits']}: one, without edits")
  if one["environment"]["backend"] != "cpu":
    out.append(f"backend {one['environment']['backend']}: cpu")
  return out


def preliminary(one: dict) -> list[str]:
  """Why a valid record holds no place yet."""
  out, busy = [], [x["others"] for x in one["runs"] if x["others"] > QUIET]
  if (count := len(one["runs"])) < len(SEEDS):
    out.append(f"{count} of {len(SEEDS)} seeds")
  if busy:
    out.append(f"other processes used up to {max(busy)} cores")
  return out


def scaled(one: dict) -> float:
  """Mean seconds of a record on the machine of the reference."""
  return statistics.mean(
      x["seconds"] * x["product"] / REFERENCE for x in one["runs"]
  )


def ranked(records: list[dict]) -> list[dict]:
  """Records by their scaled seconds, preliminary ones last."""
  return sorted(records, key=lambda x: (bool(preliminary(x)), scaled(x)))


# --- command and page --------------------------------------------------------


def flags(parser) -> None:
  """The flags."""
  parser.add_argument("--name", default="", help="of the record")
  parser.add_argument("--config", default="configs/speedrun.py")
  parser.add_argument("--override", action="append", default=[])
  parser.add_argument("--xla_flags", default=FLAGS)
  parser.add_argument("--seeds", type=int, default=len(SEEDS))
  parser.add_argument("--again", action="store_true")
  parser.add_argument("--collect", action="store_true")
  parser.add_argument("--check", action="store_true")


def measure(given) -> dict:
  """Makes a record and appends it, or only checks all records."""
  result = results.read(NAME)
  records = result.get("records", [])
  if given.check:
    found = {x["name"]: faults(x) for x in records}
    for name, lines in found.items():
      print(f"{name}: {'; '.join(lines) or 'breaks no rule'}")
    raise SystemExit(int(any(found.values())))
  if not given.name:
    raise SystemExit("--name is the name of the record")
  if not hasattr(os, "sched_setaffinity"):
    raise SystemExit("the speedrun needs Linux, which pins runs to cores")
  if not given.collect:
    require_commit(given.config)
  one = record(given)
  lines = faults(one)
  same = [x for x in records if x["name"] == one["name"]]
  if preliminary(one) and any(not preliminary(x) for x in same):
    lines.append(
        f"{one['name']!r} has a complete record, which a preliminary one does"
        " not replace: choose another --name"
    )
  if lines:
    raise SystemExit("no record: " + "; ".join(lines))
  records = [x for x in records if x["name"] != one["name"]]
  return dict(records=[*records, one], environment=one["environment"])


def page(result: dict) -> list[str]:
  """Returns rules and records in Markdown."""
  out = [
      "How fast do two CPU cores train the default task, from random parameters"
      " to 95% held-out accuracy? SFT on the skill is part of the time; the"
      " habits of rule 2 then spoil the skill, and RL has to repair it. Beat a"
      " record with a config, a function or a faster program of your own:"
      " commit the files, and this command makes 16 runs, checks the rules and"
      " appends a record to `results/speedrun.json`; `--check` checks all"
      " records:",
      "",
      "    python -m bench.training.speedrun --name='what is new'"
      " --config=my_run.py",
      "    python -m bench.training.speedrun --check",
      "",
      "## Rules",
      *RULES.rstrip().split("\n"),
      "",
      "## Records",
      "",
      "| record | scaled s | seconds (least to most) | CPU s | GFLOP/s |"
      " held out before RL | after (least) | RL steps | date |",
      "|---" * 9 + "|",
  ]
  records = ranked(result["records"])
  for x in records:
    runs = x["runs"]

    def of(name, runs=runs):
      return [run[name] for run in runs]

    out.append(
        results.row(
            x["name"] + (" (preliminary)" if preliminary(x) else ""),
            f"{scaled(x):.1f}",
            results.spread(of("seconds"), ".1f"),
            f"{statistics.mean(of('cpu_seconds')):.0f}",
            f"{statistics.mean(of('product')):.0f}",
            f"{statistics.mean(of('before')):.1%}",
            f"{statistics.mean(of('after')):.1%} ({min(of('after')):.1%})",
            f"{statistics.mean(of('steps')):.0f}",
            x["date"],
        )
    )
  for x in records:
    out += ["", f"### {x['name']}", "", f"    {x['command']}", ""]
    if found := preliminary(x):
      out += [f"**Preliminary: {'; '.join(found)}.**", ""]
    out += [
        "Fields that differ from `configs/dapo.py`: "
        + ", ".join(f"`{k} = {v!r}`" for k, v in x["config"].items())
        + f". Commit {x['commits'][0][:12]}.",
        "",
        "| seed | seconds | CPU s | GFLOP/s | cores of other processes |"
        " before RL | after | RL steps | generated tokens |",
        "|---" * 9 + "|",
    ]
    for run in x["runs"]:
      out.append(
          results.row(
              run["seed"],
              run["seconds"],
              run["cpu_seconds"],
              f"{run['product']:.0f}",
              run["others"],
              f"{run['before']:.1%}",
              f"{run['after']:.1%}",
              run["steps"],
              f"{run['tokens']:,.0f}",
          )
      )
  found = "There is no record yet (null)."
  if records:
    best = records[0]
    after = [x["after"] for x in best["runs"]]
    found = (
        f"The record is {scaled(best):.1f} scaled seconds, {best['name']}, with"
        f" {statistics.mean(after):.1%} held-out accuracy"
        f" over {len(after)} seeds"
        f"{' (preliminary)' if preliminary(best) else ''}."
    )
  return results.document(
      "Speedrun: from random parameters to 95% held out",
      found,
      out,
      made="Made by `python -m bench.training.speedrun`.",
      versions=results.footer(result) if records else (),
  )


if __name__ == "__main__":
  results.main(__doc__, NAME, measure, page, flags=flags)
