"""Decoding, update and complete step, relative to the limits of one device.

  python -m bench.gpu --dims=qwen2.5-1.5b --tail --slots=256 --rows=1024
  python -m bench.gpu --dims=tiny --rows=8 --prompt=8 --response=16

The limits are measured in the same run: the bandwidth of a memory copy and the
rate of a square matrix product in the dtype of the model. Decoding is limited
by memory bandwidth (the weights once per step, and the keys and values of the
context), everything else by FLOPs. Every implementation of attention that this
machine has is measured (`rl_reason.models.kernels`).
"""

import argparse
import functools
import itertools
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from bench import harness, ours, results
from rl_reason.models import decoder, kernels, parameters
from rl_reason.stages.model import TRIED

TASKS = ("rollout", "update", "rl_step")


def seconds(call: Callable, repeats: int, inner: int = 1) -> float:
  """Returns the median seconds of a call, after two warm-up calls.

  Args:
    call: dispatches the work and returns its result.
    repeats: number of measurements.
    inner: calls dispatched together, to hide the cost of dispatch.
  """
  taken = []
  for i in range(repeats + 2):
    start = time.perf_counter()
    jax.block_until_ready([call() for _ in range(inner)])
    if i > 1:
      taken.append((time.perf_counter() - start) / inner)
  return statistics.median(taken)


def bandwidth(mib: int, repeats: int) -> float:
  """Returns bytes per second, read and written, of a copy of `mib` MiB."""
  x = jnp.zeros(mib * 2**18, jnp.float32)
  copy = jax.jit(lambda x: x + 1)
  return 2 * x.nbytes / seconds(lambda: copy(x), repeats, inner=4)


def matmul_rate(width: int, dtype: str, repeats: int) -> float:
  """Returns FLOPs per second of a square matrix product."""
  x = jnp.ones((width, width), dtype)
  product = jax.jit(lambda x: x @ x)
  return 2 * width**3 / seconds(lambda: product(x), repeats, inner=4)


def work(
    cfg: decoder.ModelConfig, size: harness.Size, limits: list[int], slots: int
) -> dict[str, float]:
  """Returns the bytes and FLOPs that a step requires.

  Args:
    cfg: static shape of the model.
    size: size of the step.
    limits: tokens of each response.
    slots: responses that decode together and share one read of the weights.

  Returns:
    `decode_bytes`, `prefill_flops`, `forward_flops` (one pass over all rows).
  """
  itemsize = jnp.dtype(cfg.dtype).itemsize
  read = decoder.table(cfg)
  if not cfg.tied:
    del read["embed"]  # except one row per token
  rows = jax.tree.leaves(read, is_leaf=parameters.is_param)
  weights = sum(functools.reduce(int.__mul__, row.shape) for row in rows)
  token = (
      2 * cfg.layers * cfg.kv_heads * cfg.head_dim
  )  # values of its key and value
  steps = max(max(limits), -(-sum(limits) // slots))
  seen = sum(n * (size.prompt + n / 2) for n in limits)

  def flops(tokens, context):
    return tokens * parameters.flops_per_token(decoder.table(cfg), context)

  return dict(
      decode_bytes=itemsize * (steps * weights + token * seen),
      prefill_flops=flops(
          size.rows // size.group * size.prompt, size.prompt / 2
      ),
      forward_flops=sum(
          flops(size.prompt + n, (size.prompt + n) / 2) for n in limits
      ),
  )


def implementations(dtype: str, head_dim: int) -> tuple[list[str], list[str]]:
  """Returns what computes attention on this machine, and why others do not."""
  found, refused = ["xla"], []
  for name in kernels.KERNELS:
    chosen, reason = kernels.choose(
        name, jax.default_backend(), dtype, head_dim
    )
    if chosen == name and name in TRIED:
      reason = TRIED[name](head_dim)
    elif chosen == name:
      reason = ""
    if reason:
      refused.append(f"{name}: {reason}")
    else:
      found.append(name)
  return found, refused


def measure(flags: argparse.Namespace) -> dict:
  """Returns limits, times of each implementation, and their ratios."""
  size = harness.Size(
      flags.rows,
      flags.prompt,
      flags.response,
      tail=flags.tail,
      group=flags.group,
  )
  options = dict(micro=flags.micro, remat=flags.remat, slots=flags.slots)
  head_dim = harness.shape(flags.dims)["head_dim"]
  names, refused = implementations(flags.dtype, head_dim)
  before = results.load()
  taken = {}
  for name, task in itertools.product(names, TASKS):
    job = harness.job(
        task, size, flags.dims, flags.dtype, options | dict(attention=name)
    )
    step = ours.TASKS[task](job)
    taken.setdefault(name, {})[task] = seconds(step, flags.repeats)
    del step  # frees its weights before the next task loads its own
  bytes_s = bandwidth(flags.copy_mib, flags.repeats)
  flops_s = matmul_rate(flags.product, flags.dtype, flags.repeats)
  cfg = ours.shape(job)
  todo = work(cfg, size, job["limits"], flags.slots)
  decode = todo["decode_bytes"] / bytes_s
  prefill = todo["prefill_flops"] / flops_s
  forward = todo["forward_flops"] / flops_s
  # A backward pass costs two forward passes.
  limit = dict(
      rollout=decode + prefill,
      update=3 * forward,
      rl_step=decode + prefill + 3 * forward,
  )
  return dict(
      command=f"python -m bench.gpu --dims={flags.dims} --dtype={flags.dtype}"
      f" --rows={flags.rows} --prompt={flags.prompt}"
      f" --response={flags.response} --group={flags.group}"
      f" --micro={flags.micro} --remat={flags.remat} --slots={flags.slots}"
      + (" --tail" if flags.tail else ""),
      environment=results.environment(before),
      gb_per_s=bytes_s / 1e9,
      tflop_per_s=flops_s / 1e12,
      refused=refused,
      seconds=taken,
      limit=limit,
      decoded_per_s={
          name: sum(job["limits"]) / taken[name]["rollout"] for name in names
      },
  )


def page(result: dict) -> list[str]:
  """Returns lines of Markdown."""
  lines = ["# One device against its limits", ""]
  lines += results.busy(result["environment"])
  lines += [
      f"Made by `{result['command']}`. Limits measured in the same run: a"
      f" memory copy at {result['gb_per_s']:,.1f} GB/s, a matrix product at"
      f" {result['tflop_per_s']:,.2f} TFLOP/s. The share of an update is its"
      " MFU relative to the measured matrix product.",
      "",
      "| attention | | seconds | limit | share | tokens/s |",
      "|---|---|---|---|---|---|",
  ]
  for name, task in itertools.product(result["seconds"], TASKS):
    taken, limit = result["seconds"][name][task], result["limit"][task]
    cells = [name, task, f"{taken:.4f}", f"{limit:.4f}", f"{limit / taken:.1%}"]
    rate = result["decoded_per_s"][name]
    cells.append(f"{rate:,.0f}" if task == "rollout" else "")
    lines.append(results.row(*cells))
  lines += ["", *(f"Not measured: {x}." for x in result["refused"])]
  return [*lines, "", *results.footer(result)]


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
  """Returns the flags."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--dims", choices=harness.DIMS, default="qwen2.5-1.5b")
  parser.add_argument("--dtype", default="bfloat16")
  parser.add_argument("--rows", type=int, default=256)
  parser.add_argument("--group", type=int, default=8)
  parser.add_argument("--prompt", type=int, default=128)
  parser.add_argument("--response", type=int, default=512)
  parser.add_argument("--tail", action="store_true", help="log-normal lengths")
  parser.add_argument("--slots", type=int, default=0, help="0: number of rows")
  parser.add_argument("--micro", type=int, default=16)
  parser.add_argument("--remat", default="full")
  parser.add_argument("--repeats", type=int, default=5)
  parser.add_argument("--copy_mib", type=int, default=1024)
  parser.add_argument("--product", type=int, default=8192)
  flags = parser.parse_args(argv)
  flags.micro = min(flags.micro, flags.rows)
  flags.slots = flags.slots or flags.rows
  return flags


def main() -> None:
  """Measures, then writes the table."""
  result = measure(arguments())
  results.write("bench_gpu", result, page(result))
  print("\n".join(page(result)))


if __name__ == "__main__":
  main()
