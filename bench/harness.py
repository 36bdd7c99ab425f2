"""What the tables with peers share: jobs, and workers that take turns.

A job describes what every system runs: dims, weights, prompts, lengths. Each
system is a process (`worker`). All are started and warmed up before the first
measured turn, and their turns alternate, so that a busy minute affects all.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np

from bench import results

PEERS = ("tunix", "trl")
ENVIRONMENTS = results.RUNS / "peers"
PAD, EOS, FIRST = 0, 1, 2  # token ids: padding, EOS, first ordinary token
# Of log-normal lengths before they are clipped, as a share of the limit.
MEAN = 100 / 512

FIELDS = "vocab layers width mlp heads kv_heads head_dim rope_theta tied"
DIMS = {
    "tiny": (64, 2, 32, 64, 4, 2, 8, 1e4, True),
    "4m": (512, 4, 256, 1024, 8, 4, 32, 1e4, True),
    "smollm2-135m": (49152, 30, 576, 1536, 9, 3, 64, 1e5, True),
    "qwen2.5-0.5b": (151936, 24, 896, 4864, 14, 2, 64, 1e6, True),
    "qwen2.5-1.5b": (151936, 28, 1536, 8960, 12, 2, 128, 1e6, True),
    "qwen2.5-7b": (152064, 28, 3584, 18944, 28, 4, 128, 1e6, False),
}


def shape(dims: str) -> dict[str, Any]:
  """Returns ModelConfig fields of a row of `DIMS`, or of 'ROW:LAYERS'."""
  name, _, layers = dims.partition(":")
  out = dict(zip(FIELDS.split(), DIMS[name], strict=True))
  return out | (dict(layers=int(layers)) if layers else {})


@dataclasses.dataclass(frozen=True)
class Size:
  """Size of a job.

  Attributes:
    rows: number of responses.
    prompt: tokens of each prompt.
    response: maximum tokens of a response.
    tail: whether lengths are log-normal; otherwise all have the maximum.
    group: responses per prompt.
  """

  rows: int
  prompt: int
  response: int
  tail: bool
  group: int = 8


def lengths(rows: int, limit: int, mean: float, seed: int = 0) -> list[int]:
  """Returns response lengths: log-normal with sigma 1, clipped at `limit`.

  Args:
    rows: number of lengths.
    limit: maximum in tokens.
    mean: mean of the log-normal before clipping.
    seed: seed of the sample.
  """
  rng = np.random.default_rng(seed)
  sample = rng.lognormal(np.log(mean) - 0.5, 1.0, rows)
  return np.clip(np.rint(sample), 1, limit).astype(int).tolist()


def save_weights(dims: str, directory: pathlib.Path) -> None:
  """Saves a random Qwen2 with a tokenizer in the format of transformers."""
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
  """Returns the directory of `save_weights`, made at the first call.

  Another process makes it on the CPU, so that the parent of the systems uses no
  device, and a parent that has allocated the memory of a GPU can call this.
  """
  directory = results.RUNS / "bench" / dims.replace(":", "-")
  if not directory.exists():
    code = "import pathlib, sys; from bench import harness;"
    code += "harness.save_weights(sys.argv[1], pathlib.Path(sys.argv[2]))"
    subprocess.run(
        [sys.executable, "-c", code, dims, directory],
        cwd=results.ROOT,
        check=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
  return directory


def job(task: str, size: Size, dims: str, dtype: str, options: dict) -> dict:
  """Returns the job of a worker; systems differ in the options only.

  Args:
    task: 'rollout', 'update' or 'rl_step'.
    size: size of the job.
    dims: as in `shape`.
    dtype: dtype of weights and products; ours keeps fp32 master weights.
    options: options of the system, such as its batch and micro-batch.
  """
  rng = np.random.default_rng(0)
  vocab = shape(dims)["vocab"]
  groups = size.rows // size.group
  prompts = rng.integers(FIRST, vocab, (groups, size.prompt))
  responses = rng.integers(FIRST, vocab, (size.rows, size.response))
  limits = (
      lengths(size.rows, size.response, size.response * MEAN)
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
  """The process of one system.

  Args:
    name: 'ours' or one of `PEERS`.
    job: the job that it runs.
    environments: directory of the peers' virtual environments.
  """

  def __init__(self, name: str, job: dict, environments: pathlib.Path):
    python, module = sys.executable, "bench.ours"
    if name in PEERS:
      python = str(environments / name / "bin" / "python")
      module = f"bench.peers.{name}"
      if not pathlib.Path(python).exists():
        raise SystemExit(
            f"--peer={name}: {python} does not exist; run python -m bench.peers"
            f" --install {name} --venv {environments / name}"
        )
    self.name = name
    log = results.RUNS / "bench" / f"{name}-{job['task']}.log"
    with log.open("w") as errors:
      self._process = subprocess.Popen(
          [python, "-m", module],
          cwd=results.ROOT,
          stdin=subprocess.PIPE,
          stdout=subprocess.PIPE,
          stderr=errors,
          text=True,
      )
    assert self._process.stdin and self._process.stdout  # for mypy
    self._in, self._out = self._process.stdin, self._process.stdout
    self._log = log
    self._send(json.dumps(job))

  def _send(self, line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # `turn` reports it
      self._in.write(line + "\n")
      self._in.flush()

  def turn(self) -> dict[str, Any]:
    """Runs the job once and returns the worker's answer.

    Raises:
      RuntimeError: the process died; the text names its log.
    """
    self._send("go")
    answer = self._out.readline()
    if not answer:
      tail = self._log.read_text().strip().splitlines()[-1:]
      log = self._log.relative_to(results.RUNS.parent)
      raise RuntimeError(f"{self.name} died, see {log}: {tail}")
    return json.loads(answer)

  def close(self) -> None:
    """Ends the process."""
    with contextlib.suppress(BrokenPipeError):
      self._in.close()
    self._out.close()
    try:
      self._process.wait(20)
    except subprocess.TimeoutExpired:  # it is in the middle of a turn
      self._process.kill()
      self._process.wait()


def race(
    jobs: dict[str, dict],
    environments: pathlib.Path,
    repeats: int,
    warmups: int = 2,
) -> dict[str, dict]:
  """Interleaves the turns of all systems.

  Args:
    jobs: jobs by system.
    environments: directory of the peers' virtual environments.
    repeats: measured turns of each system.
    warmups: turns before them; the first compiles.

  Returns:
    by system: `first`, the seconds of the first turn, `seconds` of the measured
    turns, `peak_mib` at the end, and the answer to the last turn.
  """
  workers: dict[str, Worker] = {}
  try:
    for name, one in jobs.items():
      workers[name] = Worker(name, one, environments)
    turns: dict[str, list] = {name: [] for name in jobs}
    for name, _ in itertools.product(jobs, range(warmups)):
      turns[name].append(workers[name].turn())
    for _, name in itertools.product(range(repeats), jobs):
      turns[name].append(workers[name].turn())
      print(f"{name}: {turns[name][-1]['seconds']:.3f} s", flush=True)
  finally:
    for worker in workers.values():
      worker.close()
  return {
      name: answers[-1]
      | dict(
          first=answers[0]["seconds"],
          seconds=[x["seconds"] for x in answers[warmups:]],
      )
      for name, answers in turns.items()
  }


def check(job: dict, answers: dict[str, dict]) -> None:
  """Checks that each system sampled exactly the tokens that the job asks for.

  Raises:
    RuntimeError: a system stopped early or late, so its time has no meaning.
  """
  wanted = sum(job["limits"])
  for name, answer in answers.items():
    if answer.get("tokens", wanted) != wanted:
      raise RuntimeError(f"{name}: {answer['tokens']} tokens, not {wanted}")


def call(
    module: str, peer: str, task: dict[str, Any], log: pathlib.Path
) -> dict[str, Any]:
  """Runs a module of bench/peers in the environment of a peer.

  Args:
    module: its name; it reads the task from stdin and writes JSON to stdout.
    peer: name of the environment.
    task: what it is told.
    log: file to which its stderr is appended.

  Raises:
    SystemExit: the peer is not installed, or failed.
  """
  python = ENVIRONMENTS / peer / "bin" / "python"
  if not python.exists():
    raise SystemExit(
        f"{python} does not exist; run python -m bench.peers --install {peer}"
    )
  with log.open("a") as errors:
    done = subprocess.run(
        [python, "-m", f"bench.peers.{module}"],
        input=json.dumps(task),
        stdout=subprocess.PIPE,
        stderr=errors,
        cwd=results.ROOT,
        # Threads of torch that wait for a core take none.
        env=os.environ | dict(OMP_WAIT_POLICY="PASSIVE"),
        text=True,
    )
  if done.returncode:
    raise SystemExit(f"{peer}: exit code {done.returncode}, see {log}")
  return json.loads(done.stdout)


def peer_versions(name: str, environments: pathlib.Path) -> dict[str, str]:
  """Returns the versions in the virtual environment of a peer."""
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
