"""Ablations: rows of configs, run on the same seeds and compared in pairs.

  python -m rl_reason.ablate --config=configs/ablations/clip_sweep.py
  python -m rl_reason.ablate --config=... --power=2  # seeds that 2 points need
  python -m rl_reason.ablate --config=... --rungs 5 15  # successive halving
  python -m rl_reason.ablate --config=... --table   # rewrites the output files
  python -m rl_reason.ablate --config=... --table --against=PPO --at=5  # prints

Each row and seed runs in its own process and starts from the SFT model (and the
pretrained critic) that all rows of the seed share. Finished runs are skipped.
The command writes OUT/NAME.json, .md, .html and, with matplotlib, .png, and has
the exit codes of `rl_reason.main`.
"""

import argparse
import functools
import hashlib
import itertools
import json
import pathlib
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_collections

from rl_reason.base import config as config_lib, feature
from rl_reason.base.errors import ConfigError
from rl_reason.checks import config_checks, config_files, run_directory
from rl_reason.lab import jobs
from rl_reason.lab.jobs import Job
from rl_reason.monitoring import output_guard


class Measure(NamedTuple):
  """How to read a measure from metrics.jsonl.

  Attributes:
    stage: 'evaluate'; or 'rl', averaged over the last quarter of the steps.
    key: of the metric.
    unit: for the table.
    share: whether the metric is a fraction, shown in percent.
  """

  stage: str
  key: str
  unit: str
  share: bool = False


MEASURES = {
    name: Measure(*fields)
    for name, *fields in (
        ("entropy", "rl", "actor/entropy", "nats per token"),
        ("truncation", "rl", "response_length/clip_ratio", "%", True),
        ("length", "rl", "response_length/mean", "tokens"),
        ("reward", "rl", "critic/rewards/mean", "reward"),
        ("training accuracy", "rl", "train/accuracy", "%", True),
        ("mixed groups", "rl", "train/mixed", "% of prompts", True),
        ("rounds", "rl", "train/generation_rounds", "per step"),
        ("clipped", "rl", "actor/pg_clipfrac", "% of tokens", True),
        ("update KL", "rl", "actor/ppo_kl", "nats per token"),
        ("reference KL", "rl", "actor/kl_loss", "nats per token"),
        ("gradient norm", "rl", "actor/grad_norm", "norm"),
        ("explained variance", "rl", "critic/vf_explained_var", "of 1"),
        ("value loss", "rl", "critic/vf_loss", "loss"),
        ("greedy", "evaluate", "greedy", "% of prompts", True),
        ("held-out length", "evaluate", "response length", "tokens"),
        ("held-out truncation", "evaluate", "truncated", "%", True),
    )
}

# For `common` of a ladder: held-out mean@4 of 500 prompts at the end, and of
# 250 every 5 steps.
EVALUATED = {
    "evaluate.samples": 4,
    "evaluate.prompts": 500,
    "evaluate.interim_prompts": 250,
    "evaluate.batch": 250,
    "evaluate.every": 5,
}

# Fields that the SFT model depends on, and further fields of value pretraining.
_SFT = """
    seed task. data. tokenizer model. sft. rollout.max_prompt rollout.max_tokens
    optimizer.name optimizer.b1 optimizer.b2 optimizer.eps
    optimizer.weight_decay optimizer.clip_norm
    evaluate.prompts evaluate.interim_prompts evaluate.batch evaluate.samples
    evaluate.mean_of evaluate.temperature evaluate.top_p evaluate.validation
    evaluate.top_k evaluate.min_p evaluate.repetition_penalty
""".split()
_VALUE = "critic. rollout. reward. updates. advantage.args.gamma kl.".split()
_VALUE += [f"{name}." for name, x in feature.stages().items() if x.policy]


# Stages whose results rows can share: the field for their work directory, and
# the fields, or prefixes of fields, that their results depend on.
BASES = {
    "sft": ("sft.reuse", (*_SFT,)),
    "value": ("critic.reuse", (*_SFT, *_VALUE)),
}


def ladder(
    *, title, question, seeds, reference, rows, common=None, measures=()
) -> ml_collections.ConfigDict:
  """Builds the config of an ablation.

  Curves are measured on held-out prompts: `evaluate.validation` is False.

  Args:
    title: title of the page.
    question: the question, and the finding of the paper.
    seeds: see `fresh_seeds`.
    reference: name of the row with which other rows are compared.
    rows: tuples (name, config such as 'configs/dapo.py:shuffled', {field:
      value}) in the order of the table.
    common: {field: value} of all rows; values of a row take precedence.
    measures: measures besides accuracy: names in MEASURES, 'pass@8', 'maj@8'.
  """
  fields = dict(title=title, question=question, reference=reference)
  common = {"evaluate.validation": False} | (common or {})
  fields |= dict(seeds=tuple(seeds), rows=tuple(rows), common=common)
  fields |= dict(measures=tuple(measures))
  return ml_collections.ConfigDict(fields, allow_dotted_keys=True)


def fresh_seeds(name: str, count: int) -> tuple[int, ...]:
  """Returns seeds that nobody chose: byte pairs of SHA-256 hashes of a name.

  The first 16 are of the name itself, the next ones of 'NAME 1', 'NAME 2', ...
  """
  seeds: dict[int, None] = {}
  for block in itertools.count():
    if len(seeds) >= count:
      break
    digest = hashlib.sha256(f"{name} {block}".removesuffix(" 0").encode())
    pairs = zip(*[iter(digest.digest())] * 2, strict=True)
    seeds |= dict.fromkeys(256 * high + low for high, low in pairs)
  return tuple(seeds)[:count]


def measures(c: ml_collections.ConfigDict) -> dict[str, Measure]:
  """Returns the measures of an ablation by name.

  Raises:
    ConfigError: a name is unknown.
  """
  out = {}
  for name in c.measures:
    if re.fullmatch(r"(pass|maj)@\d+", name):
      out[name] = Measure("evaluate", name, "% of prompts", True)
    else:
      require("measures", name, [*MEASURES, "pass@K", "maj@K"])
      out[name] = MEASURES[name]
  return out


def check(c: ml_collections.ConfigDict) -> None:
  """Raises ConfigError for the first mistake; `configure` checks each row."""
  if "rows" not in c:
    raise ConfigError("rows: missing; get_config returns ablate.ladder()")
  names = [row[0] for row in c.rows]
  if len(set(map(slug, names))) < len(names):
    raise ConfigError(f"rows {names}: two would share a directory; rename one")
  require("reference", c.reference, names)
  measures(c)
  if not c.seeds or len(set(c.seeds)) < len(c.seeds):
    raise ConfigError(f"seeds = {c.seeds}: name at least one, each once")


def require(field: str, name: str, known: Sequence[str]) -> None:
  """Raises ConfigError unless the name is known."""
  if name not in known:
    raise ConfigError(
        f"{field} = {name!r}: unknown name; choose from {', '.join(known)}"
    )


def configure(
    path: str, common: dict[str, Any], own: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Returns the checked flat config of a row, and its overrides.

  A common field that the row does not read is dropped from the overrides; an
  own field that the row does not read is an error.

  Raises:
    ConfigError: the file or a field is invalid, or the fields do not fit.
  """
  c = config_files.read(path)
  overrides = {**common, **own}
  names = {k: v for k, v in overrides.items() if k.endswith(".name")}
  config_lib.override(c, names)
  # Common arguments that the function of this row does not take are dropped.
  known = config_lib.known_fields(c)
  shared = common.keys() - own.keys()
  idle = {k for k in shared if ".args." in k and k not in known}
  overrides = {k: v for k, v in overrides.items() if k not in idle}
  # Common fields are as of a file, in which some may do nothing in this row.
  c = config_files.read(path)
  config_lib.override(c, {k: v for k, v in overrides.items() if k in shared})
  c, _ = config_checks.checked(
      c, {k: v for k, v in overrides.items() if k in own}
  )
  return config_lib.flat(c), overrides


def slug(row: str) -> str:
  """Returns a row's name as a file name."""
  return re.sub(r"[^a-z0-9.]+", "-", row.lower()).strip("-")


def plan(
    c: ml_collections.ConfigDict, folder: pathlib.Path, name: str
) -> list[Job]:
  """Returns all jobs, seed by seed, each base before the rows that need it.

  Ablations with the same `folder`, the parent of all work directories, share
  bases.

  Raises:
    ConfigError: the first mistake, with the name of its row.
  """
  check(c)
  common = config_lib.flat(c.common)
  found: dict[pathlib.Path, Job] = {}
  for seed in c.seeds:
    for row, path, own in c.rows:
      try:
        fields, overrides = configure(path, common, {**own, "seed": seed})
      except ConfigError as e:
        raise ConfigError(*(f"row {row!r}: {x}" for x in e.lines)) from None
      # Rows with the same stages before RL share them: the directory of a
      # stage is named after the hash of the fields that it depends on.
      bases: tuple[pathlib.Path, ...] = ()
      reuse = {}
      for stage, (field, depends) in BASES.items():
        pretrains = fields.get("critic.pretrain_steps", 0) > 0
        if fields.get(field) or (stage == "value" and not pretrains):
          continue
        key = {k: v for k, v in fields.items() if k.startswith(depends)}
        text = json.dumps(key, sort_keys=True).encode()
        workdir = folder / stage / hashlib.sha256(text).hexdigest()[:12]
        args = jobs.arguments(
            path, overrides | reuse, workdir, f"--stage={stage}"
        )
        title = f"{stage}, seed {seed} ({workdir.name})"
        found.setdefault(workdir, Job(title, workdir, args, key | reuse, bases))
        reuse[field] = str(workdir)
        bases += (workdir,)
      # Each row runs RL itself, from the shared stages, after their jobs.
      workdir = folder / name / f"{slug(row)}-{seed}"
      args = jobs.arguments(path, overrides | reuse, workdir)
      title = f"{row}, seed {seed}"
      found[workdir] = Job(
          title, workdir, args, fields | reuse, bases, row, seed
      )
  return list(found.values())


def main(argv: list[str], child: Sequence[str] = jobs.MAIN) -> int:
  """Runs the command and returns the exit code; `child` executes one row."""
  parser = argparse.ArgumentParser(
      prog="python -m rl_reason.ablate",
      description=__doc__.splitlines()[0],
      allow_abbrev=False,
  )
  flag = parser.add_argument
  flag("--config", required=True, help="configs/ablations/X.py")
  flag("--config.seeds", dest="seeds", type=_seeds, help="override: 1,2,3")
  flag("--rows", nargs="+", help="run only these rows")
  flag("--jobs", type=int, default=2, help="number of processes at a time")
  flag("--runs_per_process", type=int, default=1, help="see jobs.run")
  flag(
      "--rungs",
      nargs="+",
      type=int,
      default=[],
      metavar="STEP",
      help="successive halving: RL steps at which the worse half of the rows"
      " ends, by validation; writes OUT/NAME-halving.*",
  )
  flag(
      "--keep_data",
      action="store_true",
      help="runs of OUT/NAME.json are not made again: other runs are added",
  )
  flag("--out", default="results", help="directory of the output files")
  flag(
      "--figure",
      choices=("png", "svg", "pdf"),
      default="png",
      help="format of the figure; svg and pdf are for papers",
  )
  flag("--workdir", default="runs/ablations", help="directory of the runs")
  flag(
      "--table", action="store_true", help="run nothing: rewrite from the data"
  )
  flag(
      "--power",
      type=float,
      metavar="POINTS",
      help="run nothing: how many seeds a difference of POINTS needs",
  )
  flag("--against", help="with --table: print a comparison with this row")
  flag("--at", type=int, help="with --against: as of this RL step")
  flags = parser.parse_args(argv)
  if min(flags.jobs, flags.runs_per_process) < 1:
    parser.error("--jobs, --runs_per_process: at least 1")
  if flags.power is not None and not flags.power > 0:
    parser.error("--power: a difference above 0 points")
  if flags.keep_data and flags.rungs:
    parser.error("--keep_data: successive halving has no runs to add to")
  if flags.against and not flags.table:
    parser.error("--against: needs --table, which runs nothing")
  if flags.at is not None and not flags.against:
    parser.error("--at: needs --against")
  file, _, variant = flags.config.partition(":")
  parts = [pathlib.Path(file).stem, variant, "halving" * bool(flags.rungs)]
  name = "-".join(filter(None, parts))
  out = pathlib.Path(flags.out).expanduser() / f"{name}.json"
  try:
    if flags.table:
      if not out.exists():
        raise ConfigError(f"{out}: there are no data yet; leave out --table")
      data, code = json.loads(out.read_text()), 0
      rows = [flags.against] * bool(flags.against) + list(flags.rows or ())
      for row in rows:
        known = [x[0] for x in data["rows"]]
        require("--against, --rows", row, known)
    else:
      c = config_files.read(flags.config)
      if flags.seeds:
        c.seeds = flags.seeds
      check(c)
      if flags.power is not None:
        from rl_reason.lab import power

        found = _deviations(c, out.parent, name)
        print(power.report(*found, len(c.seeds), flags.power))
        return 0
      data, code = _run(c, flags, argv, name, out, child)
  except ConfigError as e:
    print(*(f"config error: {x}" for x in e.lines), sep="\n", file=sys.stderr)
    return 2
  if not data["runs"]:
    return code
  from rl_reason.lab import ablation_pages, comparison

  if flags.table and flags.against:
    data = comparison.select(data, flags.rows or (), flags.against, flags.at)
    print(ablation_pages.markdown_table(data))
    return code
  for path in ablation_pages.write(data, out, flags.figure):
    jobs.say(f"wrote {path}")
  for text in comparison.notes(data):
    jobs.say(text)
  return code


def _deviations(
    c, folder: pathlib.Path, name: str
) -> tuple[str, dict[str, tuple[float, int]]]:
  """What `power.known` says of an ablation."""
  from rl_reason.lab import power

  own = dict(rows=c.rows, reference=c.reference)
  own["common"] = config_lib.flat(c.common)
  return power.known(folder, name, power.task_of(own))


def _seeds(text: str) -> tuple[int, ...]:
  return tuple(int(x) for x in text.split(","))


def _run(c, flags, argv, name: str, out: pathlib.Path, child):
  """Runs the missing rows; returns the data and the exit code."""
  folder = pathlib.Path(flags.workdir).expanduser()
  if flags.rungs:
    c.common["evaluate.validation"] = True  # held-out prompts choose no row
  todo = plan(c, folder, name)
  rows = [row[0] for row in c.rows]
  for row in flags.rows or ():
    require("--rows", row, rows)
  rows = list(flags.rows or rows)
  if flags.rungs:
    from rl_reason.lab import halving

    halving.check(todo, rows, flags.rungs)
  stop = jobs.stop_on_signals()
  command = f"python -m rl_reason.ablate {shlex.join(argv)}"

  from rl_reason.lab import comparison, power  # slow: after the config's check

  deviations = _deviations(c, out.parent, name)
  for line in power.lines(*deviations, len(c.seeds)):
    jobs.say(line)
  ended: dict[str, str] = {}
  kept = comparison.kept(c, out) if flags.keep_data else {}
  if kept.get("runs"):
    jobs.say(f"{len(kept['runs'])} runs of {out} are not made again")
  known = {(x["row"], x["seed"]) for x in kept.get("runs", ())}

  def save():
    data = comparison.collect(c, todo, measures(c), command, ended, kept)
    if data["runs"]:
      comparison.save(data, out)
    return data

  own = folder / name
  own.mkdir(parents=True, exist_ok=True)
  run = functools.partial(
      jobs.run,
      stop=stop,
      parallel=flags.jobs,
      main=child,
      held=run_directory.lock(own, jobs.say),
      runs_per_process=flags.runs_per_process,
  )
  failed = []
  for rung in flags.rungs:
    short = plan(halving.at(c, rung), folder, name)
    short = [x for x in short if x.row in ("", *rows)]
    failed += run([x for x in short if halving.score(x, rung) is None])
    if stop.is_set():
      return save(), 143
    found = halving.means(short, rung)
    rows = halving.survivors(found, c.reference)
    for row, mean in found.items():
      text = "a run failed" if mean is None else f"validation score {mean:.4g}"
      if row not in rows:
        ended[row] = f"ended at step {rung}: {text}"
      jobs.say(f"rung {rung}: {row}: {text}" + "; ends" * (row not in rows))
  wanted = [x for x in todo if x.row in ("", *rows)]
  wanted = [x for x in wanted if (x.row, x.seed) not in known]
  failed += run(wanted, on_finished=save)
  for job in failed:
    jobs.say(f"FAILED: {job}")
  return save(), 143 if stop.is_set() else int(bool(failed))


def command() -> None:
  """Runs the command line."""
  with output_guard.guarded():
    status = main(sys.argv[1:])
  sys.exit(status)
