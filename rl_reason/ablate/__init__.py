"""Ablations: rows of configs, run on the same seeds and compared in pairs.

  python -m rl_reason.ablate --config=configs/ablations/clip_sweep.py
  python -m rl_reason.ablate --config=... --table   # pages only, from the data
  python -m rl_reason.ablate --config=... --table --against=PPO --at=5  # prints

Each row and seed is a process of its own, and starts from the SFT model (and
from the pretrained critic) that all rows of the seed share. What is finished is
not run again. Writes OUT/NAME.json, .md, .html and, with matplotlib, .png.
Exit codes: those of `rl_reason.main`.
"""

import argparse
import hashlib
import inspect
import json
import pathlib
import re
import runpy
import shlex
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_collections

from rl_reason import checks, config as config_lib
from rl_reason.ablate import jobs
from rl_reason.ablate.jobs import Job, say
from rl_reason.config import ConfigError


class Measure(NamedTuple):
  """How a measure is read from metrics.jsonl."""

  stage: str  # 'evaluate', or 'rl': its value is the mean of the last quarter
  key: str
  unit: str
  share: bool = False


MEASURES = {
    "entropy": Measure("rl", "actor/entropy", "nats a token"),
    "truncation": Measure(
        "rl", "response_length/clip_ratio", "% of responses", True
    ),
    "length": Measure("rl", "response_length/mean", "tokens"),
    "reward": Measure("rl", "critic/rewards/mean", "reward"),
    "training accuracy": Measure("rl", "train/accuracy", "%", True),
    "kept prompts": Measure("rl", "train/mixed", "% of those sampled", True),
    "rounds": Measure("rl", "train/generation_rounds", "rounds a step"),
    "clipped": Measure("rl", "actor/pg_clipfrac", "% of tokens", True),
    "update KL": Measure("rl", "actor/ppo_kl", "nats a token"),
    "reference KL": Measure("rl", "actor/kl_loss", "nats a token"),
    "gradient norm": Measure("rl", "actor/grad_norm", "norm"),
    "explained variance": Measure("rl", "critic/vf_explained_var", "of 1"),
    "value loss": Measure("rl", "critic/vf_loss", "loss"),
    "greedy": Measure("evaluate", "greedy", "% of prompts", True),
    "held-out length": Measure("evaluate", "response length", "tokens"),
    "held-out truncation": Measure(
        "evaluate", "cut off", "% of responses", True
    ),
}

# What SFT depends on, and value pretraining besides.
_SFT = """
    seed task. data. tokenizer model. sft. rollout.max_prompt rollout.max_tokens
    optimizer.name optimizer.b1 optimizer.b2 optimizer.eps
    optimizer.weight_decay optimizer.clip_norm
    evaluate.prompts evaluate.interim_prompts evaluate.batch evaluate.samples
    evaluate.mean_of evaluate.temperature evaluate.top_p
""".split()
_VALUE = "critic. rollout. reward. updates. advantage.gamma kl.".split()


class Base(NamedTuple):
  """What rows can share."""

  stage: str
  reuse: str  # field that takes its work directory
  depends: tuple[str, ...]  # fields that change it, or their beginnings


BASES = (
    Base("sft", "sft.reuse", (*_SFT,)),
    Base("value", "critic.reuse", (*_SFT, *_VALUE)),
)


def ladder(
    *, title, question, seeds, reference, rows, common=None, measures=()
) -> ml_collections.ConfigDict:
  """What `get_config` of an ablation returns.

  Args:
    title: of the page.
    question: what is asked, and what the paper saw.
    seeds: see `fresh_seeds`.
    reference: name of the row that the others are compared with.
    rows: (name, config such as 'configs/dapo.py:shuffled', {field: value}),
      in the order of the table.
    common: {field: value} of all rows; a row's own come after.
    measures: names in MEASURES, or 'pass@8', 'maj@8', beyond accuracy.
  """
  fields = dict(
      title=title,
      question=question,
      seeds=tuple(seeds),
      reference=reference,
      common=common or {},
      rows=tuple(rows),
      measures=tuple(measures),
  )
  return ml_collections.ConfigDict(fields, allow_dotted_keys=True)


def fresh_seeds(name: str, count: int) -> tuple[int, ...]:
  """Seeds that nobody picked: two bytes each of the name's SHA-256.

  Raises:
    ValueError: more are wanted than the hash has.
  """
  digest = hashlib.sha256(name.encode()).digest()
  pairs = [digest[i : i + 2] for i in range(0, len(digest), 2)]
  seeds = tuple(dict.fromkeys(int.from_bytes(pair, "big") for pair in pairs))
  if count > len(seeds):
    raise ValueError(f"{count} seeds of {name!r}: there are {len(seeds)}")
  return seeds[:count]


def measures(c: ml_collections.ConfigDict) -> dict[str, Measure]:
  """How to read those of an ablation.

  Raises:
    ConfigError: there is none of a name.
  """
  votes = [x for x in c.measures if re.fullmatch(r"(pass|maj)@\d+", x)]
  known = MEASURES | {
      name: Measure("evaluate", name, "% of prompts", True) for name in votes
  }
  for name in c.measures:
    _known("measures", name, [*known, "pass@K", "maj@K"])
  return {name: known[name] for name in c.measures}


def load(path: str) -> ml_collections.ConfigDict:
  """The config of FILE or FILE:variant.

  Raises:
    ConfigError: there is none.
  """
  file, _, variant = path.partition(":")
  if not pathlib.Path(file).is_file():
    raise ConfigError(f"{path}: there is no such file")
  try:
    make = runpy.run_path(file)["get_config"]
    return make(*([variant] if variant else []))
  except Exception as e:
    raise ConfigError(f"{path}: {config_lib.one_line(e)}") from None


def check(c: ml_collections.ConfigDict) -> None:
  """Checks what rows do not say themselves.

  Raises:
    ConfigError: the first thing that cannot work.
  """
  for field in inspect.signature(ladder).parameters:
    if field not in c:
      raise ConfigError(f"{field}: missing; get_config returns ablate.ladder()")
  names, slugs = [row[0] for row in c.rows], [slug(row[0]) for row in c.rows]
  for i, name in enumerate(names):
    other = slugs.index(slugs[i])
    if other < i:
      raise ConfigError(
          f"rows {names[other]!r} and {name!r}: would share the directory"
          f" {slugs[i]}; rename one"
      )
  _known("reference", c.reference, names)
  measures(c)
  if not c.seeds or len(set(c.seeds)) < len(c.seeds):
    raise ConfigError(f"seeds = {c.seeds}: give some, each once")


def _known(field: str, name: str, known: Sequence[str]) -> None:
  if name not in known:
    raise ConfigError(
        f"{field} = {name!r}: there is none; there are {', '.join(known)}"
    )


def configure(
    path: str, common: dict[str, Any], own: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
  """The checked flat config of a row, and the overrides that make it.

  A common field that nothing in the row reads is left out of these; one of the
  row's own is an error.

  Raises:
    ConfigError: the file, a field or the whole cannot work.
  """
  c = load(path)
  fields = config_lib.flat(c)
  given = {**common, **own}
  for name, value in given.items():
    if name not in fields:
      raise ConfigError(config_lib.no_such_field(name, repr(value), fields))
    try:
      c.update_from_flattened_dict({name: value})
    except (TypeError, ValueError):
      kind = type(fields[name]).__name__
      raise ConfigError(f"{name} = {value!r}: must be a {kind}") from None
  try:
    idle = config_lib.unread(c) - own.keys()
    given = {k: v for k, v in given.items() if k not in idle}
    c.update_from_flattened_dict({k: fields[k] for k in idle & common.keys()})
    checks.fields(c, tuple(given))
  except (AttributeError, KeyError, TypeError) as e:
    raise ConfigError(
        f"{path}: {config_lib.one_line(e)}; does it start from configs/base.py?"
    ) from None
  return config_lib.flat(c), given


def slug(row: str) -> str:
  """A row's name as a file name."""
  return re.sub(r"[^a-z0-9.]+", "-", row.lower()).strip("-")


def plan(
    c: ml_collections.ConfigDict, folder: pathlib.Path, name: str
) -> list[Job]:
  """All jobs, seed by seed, bases before the rows that need them.

  Args:
    c: the ablation.
    folder: of the work directories of all ablations, which share the bases.
    name: of this one.

  Raises:
    ConfigError: the first thing that cannot work, and in which row.
  """
  check(c)
  out: dict[pathlib.Path, Job] = {}
  for seed in c.seeds:
    for row, path, own in c.rows:
      common = config_lib.flat(c.common)
      try:
        fields, given = configure(path, common, {**own, "seed": seed})
      except ConfigError as e:
        raise ConfigError(f"row {row!r}: {e}") from None
      needs: tuple[pathlib.Path, ...] = ()
      reuse = {}
      for base in BASES:
        if fields.get(base.reuse) or not _starts_from(base, fields):
          continue
        key = {k: v for k, v in fields.items() if k.startswith(base.depends)}
        text = json.dumps(key, sort_keys=True).encode()
        workdir = folder / base.stage / hashlib.sha256(text).hexdigest()[:12]
        args = _args(path, given | reuse, workdir, f"--stage={base.stage}")
        title = f"{base.stage}, seed {seed} ({workdir.name})"
        job = Job(title, workdir, args, key | reuse, needs)
        out.setdefault(workdir, job)
        reuse[base.reuse] = str(workdir)
        needs += (workdir,)
      workdir = folder / name / f"{slug(row)}-{seed}"
      args = _args(path, given | reuse, workdir)
      title = f"{row}, seed {seed}"
      out[workdir] = Job(title, workdir, args, fields | reuse, needs, row, seed)
  return list(out.values())


def _starts_from(base: Base, fields: dict[str, Any]) -> bool:
  return base.stage == "sft" or fields.get("critic.pretrain_steps", 0) > 0


def _args(path, given, workdir, *more) -> list[str]:
  flags = [f"--config.{k}={_flag(v)}" for k, v in given.items()]
  return [f"--config={path}", *flags, f"--workdir={workdir}", *more]


def _flag(value: Any) -> str:
  return str(tuple(value) if isinstance(value, list) else value)


def main(argv: list[str], child: Sequence[str] = jobs.MAIN) -> int:
  """Returns the exit code.

  Args:
    argv: without the name of the command.
    child: command that runs a row.
  """
  parser = argparse.ArgumentParser(
      prog="python -m rl_reason.ablate",
      description=__doc__.splitlines()[0],
      allow_abbrev=False,
  )
  parser.add_argument("--config", required=True, help="configs/ablations/X.py")
  parser.add_argument(
      "--config.seeds", dest="seeds", type=_seeds, help="instead: 1,2,3"
  )
  parser.add_argument("--rows", nargs="+", help="run only these, by name")
  parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
  parser.add_argument("--out", default="results", help="folder of results")
  parser.add_argument(
      "--workdir", default="runs/ablations", help="where the runs go"
  )
  parser.add_argument(
      "--table", action="store_true", help="only pages, from the data"
  )
  parser.add_argument(
      "--against", help="with --table: print a comparison with this row"
  )
  parser.add_argument(
      "--at", type=int, help="with --against: as of this RL step"
  )
  flags = parser.parse_args(argv)
  if flags.jobs < 1:
    parser.error("--jobs: at least 1")
  file, _, variant = flags.config.partition(":")
  name = pathlib.Path(file).stem + (f"-{variant}" if variant else "")
  out = pathlib.Path(flags.out) / f"{name}.json"
  try:
    if flags.table:
      if not out.exists():
        raise ConfigError(f"{out}: there are no data yet; leave out --table")
      data, code = json.loads(out.read_text()), 0
      names = [row[0] for row in data["rows"]]
      for row in filter(None, [flags.against, *(flags.rows or ())]):
        _known("--against, --rows", row, names)
    else:
      data, code = _run(flags, name, out, shlex.join(argv), child)
  except ConfigError as e:
    print(f"config error: {e}", file=sys.stderr)
    return 2
  if data["runs"]:
    from rl_reason.ablate import compare

    if flags.table and flags.against:
      some = flags.rows or ()
      print(
          compare.markdown_table(
              compare.select(data, some, flags.against, flags.at)
          )
      )
      return code
    for path in compare.write(data, out):
      say(f"wrote {path}")
    for text in compare.notes(data):
      say(text)
  return code


def _seeds(text: str) -> tuple[int, ...]:
  return tuple(int(x) for x in text.split(","))


def _run(flags, name: str, out: pathlib.Path, command: str, child):
  """Runs what is missing; returns the data and the exit code."""
  sys.path.insert(0, str(pathlib.Path.cwd()))  # configs import configs.base
  c = load(flags.config)
  if flags.seeds:
    c.seeds = flags.seeds
  folder = pathlib.Path(flags.workdir)
  everything = plan(c, folder, name)
  names = [row[0] for row in c.rows]
  for row in flags.rows or ():
    _known("--rows", row, names)
  wanted = ("", *(flags.rows or names))
  chosen = [job for job in everything if job.row in wanted]
  stop = threading.Event()

  def ask(number, _):
    stop.set()
    signal.signal(number, signal.SIG_DFL)  # the second time means it

  signal.signal(signal.SIGTERM, ask)
  signal.signal(signal.SIGINT, ask)

  from rl_reason.ablate import compare  # after the checks: it imports jax

  def landed():
    data = compare.collect(c, everything, measures(c))
    data["command"] = f"python -m rl_reason.ablate {command}"
    if data["runs"]:
      compare.save(data, out)
    return data

  failed = jobs.run(
      chosen,
      stop,
      at_once=flags.jobs,
      cache=folder / "compiled",
      main=child,
      landed=landed,
  )
  for job in failed:
    say(f"FAILED: {job}")
  return landed(), 143 if stop.is_set() else int(bool(failed))
