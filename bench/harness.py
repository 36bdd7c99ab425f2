"""What the tables share: jobs, workers in turns, statistics, files.

A job says what every system runs: dims, weights, prompts, lengths. Systems are
processes (`worker`), all started and warm before the first measured turn, and
take their turns one after the other, so that a busy minute hurts all alike.
"""

import argparse
import contextlib
import dataclasses
import datetime
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "results"
RUNS = ROOT / "runs"
PEERS = ("tunix", "trl")
ENVIRONMENTS = RUNS / "peers"
PAD, EOS, FIRST = 0, 1, 2  # ids: padding, end, the first ordinary token

FIELDS = "vocab layers width mlp heads kv_heads head_dim rope_theta tied"
DIMS = {
    "tiny": (64, 2, 32, 64, 4, 2, 8, 1e4, True),
    "4m": (512, 4, 256, 1024, 8, 4, 32, 1e4, True),
    "qwen2.5-0.5b": (151936, 24, 896, 4864, 14, 2, 64, 1e6, True),
    "qwen2.5-1.5b": (151936, 28, 1536, 8960, 12, 2, 128, 1e6, True),
    "qwen2.5-7b": (152064, 28, 3584, 18944, 28, 4, 128, 1e6, False),
}


def shape(dims: str) -> dict[str, Any]:
  """Fields of a ModelConfig: of a row of `DIMS`, or 'ROW:LAYERS' of it."""
  name, _, layers = dims.partition(":")
  out = dict(zip(FIELDS.split(), DIMS[name], strict=True))
  return out | (dict(layers=int(layers)) if layers else {})


@dataclasses.dataclass(frozen=True)
class Size:
  """How much a job has to do.

  Attributes:
    rows: responses.
    prompt, response: tokens of each prompt, the most of a response.
    tail: whether lengths are drawn from a log-normal; else all are full.
    group: responses to a prompt, where it matters.
  """

  rows: int
  prompt: int
  response: int
  tail: bool
  group: int = 8


def lengths(rows: int, most: int, mean: float, seed: int = 0) -> list[int]:
  """A trace of response lengths: log-normal with sigma 1, cut at `most`.

  Args:
    rows: how many.
    most: the cap, in tokens.
    mean: of the log-normal before it is cut.
    seed: of the draw.
  """
  rng = np.random.default_rng(seed)
  drawn = rng.lognormal(np.log(mean) - 0.5, 1.0, rows)
  return np.clip(np.rint(drawn), 1, most).astype(int).tolist()


def save_weights(dims: str, directory: pathlib.Path) -> None:
  """A random Qwen2 in the layout of transformers, and a tokenizer for it."""
  import jax
  import tokenizers
  import transformers

  from rl_reason import hf
  from rl_reason.models import decoder

  cfg = decoder.ModelConfig(**shape(dims), qkv_bias=True)
  names = ["<pad>", "<eos>", *(f"t{i}" for i in range(FIRST, cfg.vocab))]
  words = {name: i for i, name in enumerate(names)}
  fast = tokenizers.Tokenizer(
      tokenizers.models.WordLevel(words, unk_token=names[FIRST])
  )
  fast.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  tok = transformers.PreTrainedTokenizerFast(
      tokenizer_object=fast, pad_token=names[PAD], eos_token=names[EOS]
  )
  params = decoder.init(cfg, jax.random.key(0))
  directory.parent.mkdir(parents=True, exist_ok=True)
  table = decoder.table(cfg)
  hf.save(directory, params, table, cfg, tokenizer=tok, context=4096)


def weights(dims: str) -> pathlib.Path:
  """The directory of `save_weights`, made by the first who asks.

  In a process of its own: the parent of all systems holds no device.
  """
  directory = RUNS / "bench" / dims.replace(":", "-")
  if not directory.exists():
    code = "import pathlib, sys; from bench import harness;"
    code += "harness.save_weights(sys.argv[1], pathlib.Path(sys.argv[2]))"
    subprocess.run(
        [sys.executable, "-c", code, dims, directory],
        cwd=ROOT,
        check=True,
    )
  return directory


def job(task: str, size: Size, dims: str, dtype: str, options: dict) -> dict:
  """What a worker is told; the same for every system but for the options.

  Args:
    task: 'rollout', 'update' or 'rl_step'.
    size: how much.
    dims: as in `shape`.
    dtype: of weights and products; ours keeps fp32 master weights.
    options: of that system: its batch, its micro-batch and the like.
  """
  rng = np.random.default_rng(0)
  vocab = shape(dims)["vocab"]
  groups = size.rows // size.group
  prompts = rng.integers(FIRST, vocab, (groups, size.prompt))
  responses = rng.integers(FIRST, vocab, (size.rows, size.response))
  mean = size.response * 100 / 512  # 100 tokens where 512 are the most
  limits = (
      lengths(size.rows, size.response, mean)
      if size.tail
      else [size.response] * size.rows
  )
  return dict(
      task=task,
      weights=str(weights(dims)),
      dtype=dtype,
      prompts=np.repeat(prompts, size.group, 0).tolist(),
      responses=responses.tolist(),
      advantages=rng.normal(size=size.rows).tolist(),
      limits=limits,
      tail=size.tail,
      response=size.response,
      group=size.group,
      lr=1e-6,
      options=options,
  )


class Worker:
  """A system's process.

  Args:
    name: 'ours', or of `PEERS`.
    job: what it runs.
    environments: where the peers' environments are.
  """

  def __init__(self, name: str, job: dict, environments: pathlib.Path):
    python, module = sys.executable, "bench.ours"
    if name in PEERS:
      python = str(environments / name / "bin" / "python")
      module = f"bench.peers.{name}"
      if not pathlib.Path(python).exists():
        raise SystemExit(
            f"--peer={name}: {python} is not there; run python -m bench.peers"
            f" --install {name} --venv {environments / name}"
        )
    self.name = name
    log = RUNS / "bench" / f"{name}-{job['task']}.log"
    with log.open("w") as errors:
      self._process = subprocess.Popen(
          [python, "-m", module],
          cwd=ROOT,
          stdin=subprocess.PIPE,
          stdout=subprocess.PIPE,
          stderr=errors,
          text=True,
      )
    assert self._process.stdin and self._process.stdout  # they are pipes
    self._in, self._out = self._process.stdin, self._process.stdout
    self._log = log
    self._say(json.dumps(job))

  def _say(self, line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the answer will not come
      self._in.write(line + "\n")
      self._in.flush()

  def turn(self) -> dict[str, Any]:
    """Lets it run once.

    Raises:
      RuntimeError: it died; names its log.
    """
    self._say("go")
    answer = self._out.readline()
    if not answer:
      tail = self._log.read_text().strip().splitlines()[-1:]
      log = self._log.relative_to(RUNS.parent)
      raise RuntimeError(f"{self.name} died, see {log}: {tail}")
    return json.loads(answer)

  def close(self) -> None:
    """Ends it."""
    with contextlib.suppress(BrokenPipeError):
      self._in.close()
    self._out.close()
    try:
      self._process.wait(20)
    except subprocess.TimeoutExpired:  # in the middle of a turn
      self._process.kill()
      self._process.wait()


def race(
    jobs: dict[str, dict],
    environments: pathlib.Path,
    repeats: int,
    warmups: int = 2,
) -> dict[str, dict]:
  """Every system's turns, interleaved.

  Args:
    jobs: by system.
    environments: where the peers' environments are.
    repeats: measured turns of each.
    warmups: turns before them; the first compiles.

  Returns:
    by system: `first` seconds of the first turn, `seconds` of the measured,
    `peak_mib` at the end, and the facts of the last turn.
  """
  workers: dict[str, Worker] = {}
  try:
    for name, what in jobs.items():
      workers[name] = Worker(name, what, environments)
    turns: dict[str, list] = {name: [] for name in jobs}
    for name, _ in itertools.product(jobs, range(warmups)):
      turns[name].append(workers[name].turn())
    for _, name in itertools.product(range(repeats), jobs):
      turns[name].append(workers[name].turn())
      print(f"{name}: {turns[name][-1]['seconds']:.3f} s", flush=True)
  finally:
    for one in workers.values():
      one.close()
  return {
      name: done[-1]
      | dict(
          first=done[0]["seconds"],
          seconds=[x["seconds"] for x in done[warmups:]],
      )
      for name, done in turns.items()
  }


def check(what: dict, answers: dict[str, dict]) -> None:
  """Every system must have sampled just the tokens that the job asks for.

  Raises:
    RuntimeError: one stopped early or late; its time would say nothing.
  """
  wanted = sum(what["limits"])
  for name, answer in answers.items():
    if answer.get("tokens", wanted) != wanted:
      raise RuntimeError(f"{name}: {answer['tokens']} tokens, not {wanted}")


def ratios(ours: list[float], peer: list[float]) -> list[float]:
  """The ratio of medians, then the least and the most of paired ratios."""
  pairs = [b / a for a, b in zip(ours, peer, strict=True)]
  middle = statistics.median(peer) / statistics.median(ours)
  return [middle, min(pairs), max(pairs)]


# --- options: the best of a committed sweep -----------------------------------

SWEEP = "bench_sweep"


def best(key: str, options: list[dict]) -> dict:
  """The fastest of the options by the sweep, else the first of them."""
  seen = read(SWEEP).get(key, {}).get("runs", [])
  known = [x for x in seen if x["options"] in options and "died" not in x]
  if not known:
    return options[0]
  return min(known, key=lambda x: statistics.median(x["seconds"]))["options"]


def sweep(table: "Table", names: list[str], given: argparse.Namespace) -> None:
  """Times every option of every system; adds to results/bench_sweep.json."""
  result = read(SWEEP)
  for case, name in itertools.product(given.case, names):
    key = table.key(case, name, given)
    runs, before = [], load()
    for options in table.options(case, name):
      what = table.job(case, given, options)
      print(key, options, flush=True)
      try:
        answers = race({name: what}, given.environments, 3, warmups=1)
        check(what, answers)
      except RuntimeError as e:  # too large a batch, an engine that cannot
        runs.append(dict(options=options, died=str(e)))
        continue
      runs.append(dict(options=options, **answers[name]))
    result[key] = dict(environment=environment(before), runs=runs)
    lines = ["# Settings tried", ""]
    lines += ["Made by `python -m bench.TABLE --sweep`; the fastest is taken."]
    lines += ["", "| | options | seconds | least to most | peak MiB |"]
    lines += ["|---|---|---|---|---|"]
    for at, found in sorted(result.items()):
      for x in found["runs"]:
        lines.append(f"| {at} | {told(x['options'])} | {timing(x)} |")
    write(SWEEP, result, lines)


def told(options: dict) -> str:
  """Options in a cell."""
  return ", ".join(f"{name} {value}" for name, value in options.items())


def timing(x: dict) -> str:
  """Cells: median, range, memory."""
  if "died" in x:
    return "did not run | | "
  low, high = min(x["seconds"]), max(x["seconds"])
  middle = statistics.median(x["seconds"])
  return f"{middle:.3f} | {low:.3f} to {high:.3f} | {x['peak_mib']:.0f}"


# --- tables -------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Table:
  """One table: a task of the workers at some sizes.

  Attributes:
    name: of the module and, after 'bench_', of the files in results/.
    title: of the page.
    about: what is compared, and how, for its readers.
    task: of the workers.
    cases: sizes by name.
    tried: by system, the options that a sweep tries, the likely best first.
  """

  name: str
  title: str
  about: str
  task: str
  cases: dict[str, Size]
  tried: dict[str, list[dict]]

  def options(self, case: str, name: str) -> list[dict]:
    """What to try; no batch is larger than there are rows."""
    rows = self.cases[case].rows
    return [
        x
        for x in self.tried[name]
        if max(x.get("batch", 1), x.get("micro", 1)) <= rows
    ]

  def key(self, case: str, name: str, given: argparse.Namespace) -> str:
    """Under which the sweep is kept."""
    return f"{self.task}/{case}/{given.dims}/{given.dtype}/{name}"

  def job(self, case: str, given: argparse.Namespace, options: dict) -> dict:
    """What a worker is told."""
    return job(self.task, self.cases[case], given.dims, given.dtype, options)


def arguments(table: Table, argv: list[str] | None = None):
  """The flags that all tables share."""
  parser = argparse.ArgumentParser(description=table.title)
  parser.add_argument("--peer", action="append", choices=PEERS, default=[])
  parser.add_argument("--case", action="append", choices=table.cases)
  parser.add_argument("--dims", choices=DIMS, default="4m")
  parser.add_argument("--dtype", default="float32")
  parser.add_argument("--repeats", type=int, default=5)
  parser.add_argument("--sweep", action="store_true", help="try all options")
  parser.add_argument(
      "--environments",
      type=pathlib.Path,
      default=ENVIRONMENTS,
      help="folder that holds the peers' environments",
  )
  given = parser.parse_args(argv)
  given.case = given.case or list(table.cases)
  return given


def compare(table: Table, given: argparse.Namespace, warmups: int = 2) -> dict:
  """Runs the cases; the result, as it goes to JSON."""
  before = load()
  names = ["ours", *dict.fromkeys(given.peer)]
  cases = {}
  for case in given.case:
    jobs = {}
    for name in names:
      options = best(table.key(case, name, given), table.options(case, name))
      jobs[name] = table.job(case, given, options)
    answers = race(jobs, given.environments, given.repeats, warmups)
    check(jobs["ours"], answers)
    ours = answers["ours"]["seconds"]
    cases[case] = dict(
        size=dataclasses.asdict(table.cases[case]),
        tokens=sum(jobs["ours"]["limits"]),
        systems={
            name: answers[name]
            | dict(options=jobs[name]["options"])
            | (
                dict(ratio=ratios(ours, answers[name]["seconds"]))
                if given.repeats
                else {}
            )
            for name in names
        },
    )
  flags = [f"--peer={name}" for name in given.peer]
  flags += [f"--dims={given.dims}", f"--dtype={given.dtype}"]
  return dict(
      command=" ".join([f"python -m bench.{table.name}", *flags]),
      date=str(datetime.date.today()),
      environment=environment(before),
      peers={x: peer_versions(x, given.environments) for x in names[1:]},
      cases=cases,
  )


COLUMNS = {
    "median s": lambda case, x: f"{statistics.median(x['seconds']):.3f}",
    "least to most": lambda case, x: (
        f"{min(x['seconds']):.3f} to {max(x['seconds']):.3f}"
    ),
    "tokens/s": lambda case, x: (
        f"{case['tokens'] / statistics.median(x['seconds']):,.0f}"
    ),
    "ours is faster by": lambda case, x: (
        "{:.2f} ({:.2f} to {:.2f})".format(*x["ratio"])
    ),
    "first s": lambda case, x: f"{x['first']:.1f}",
    "peak MiB": lambda case, x: f"{x['peak_mib']:,.0f}",
}


def page(table: Table, result: dict, columns: dict = COLUMNS) -> list[str]:
  """Lines of markdown; columns are functions of a case and a system."""
  lines = [f"# {table.title}", "", *busy(result["environment"])]
  lines += [f"{table.about} Made by `{result['command']}`.", ""]
  lines += ["| case | system | options | " + " | ".join(columns) + " |"]
  lines += ["|---" * (3 + len(columns)) + "|"]
  for name, case in result["cases"].items():
    for system, x in case["systems"].items():
      cells = [name, system, told(x["options"])]
      cells += [show(case, x) for show in columns.values()]
      lines.append("| " + " | ".join(cells) + " |")
  return [*lines, "", *footer(result)]


def busy(environment: dict) -> list[str]:
  """A warning, if the machine had other work when a measurement began."""
  if environment["load"] < 0.5:
    return []
  load, cores = environment["load"], environment["cpu count"]
  return [
      f"**Preliminary: the machine was busy (load {load} on {cores} cores).**",
      "",
  ]


def footer(result: dict) -> list[str]:
  """Machine and versions."""
  known = [f"{k} {v}" for k, v in result["environment"].items() if v]
  out = ["Ours: " + ", ".join(known) + "."]
  for name, versions in result.get("peers", {}).items():
    said = ", ".join(f"{k} {v}" for k, v in versions.items())
    out += ["", f"{name}: {said}."]
  return out


def main(table: Table) -> None:
  """Measures what the flags say, then writes the table."""
  given = arguments(table)
  if given.sweep:
    sweep(table, ["ours", *given.peer], given)
    return
  result = compare(table, given)
  lines = page(table, result)
  write(f"bench_{table.name}", result, lines)
  print("\n".join(lines))


# --- files --------------------------------------------------------------------


def load() -> float:
  """How many processes wanted a core in the last minute, before ours did."""
  return round(os.getloadavg()[0], 1)


def environment(load: float) -> dict[str, Any]:
  """Machine, versions and commit of a measurement; the load before it.

  Takes hold of the device: call it when the workers have ended.
  """
  from rl_reason.report import environment as environment_lib

  return environment_lib.describe() | dict(load=load)


def peer_versions(name: str, environments: pathlib.Path) -> dict[str, str]:
  """What a peer's environment holds."""
  python = environments / name / "bin" / "python"
  out = subprocess.run(
      [python, "-m", "pip", "list", "--format=json"],
      check=True,
      capture_output=True,
      text=True,
  )
  wanted = ("google-tunix", "trl", "transformers", "torch", "jax", "flax")
  return {
      x["name"]: x["version"]
      for x in json.loads(out.stdout)
      if x["name"] in wanted
  }


def read(name: str) -> dict[str, Any]:
  """results/NAME.json; empty if it is not there."""
  path = RESULTS / f"{name}.json"
  return json.loads(path.read_text()) if path.exists() else {}


def write(name: str, result: dict, lines: list[str]) -> None:
  """results/NAME.json and results/NAME.md."""
  RESULTS.mkdir(exist_ok=True)
  text = json.dumps(result, indent=1)
  (RESULTS / f"{name}.json").write_text(text + "\n")
  (RESULTS / f"{name}.md").write_text("\n".join(lines) + "\n")
