"""How near to the limits of one device: decoding, update, whole step.

  python -m bench.gpu --dims=qwen2.5-1.5b --tail --slots=256 --rows=1024
  python -m bench.gpu --dims=tiny --rows=8 --prompt=8 --response=16

The limits are measured in the same run: the bandwidth of a copy of memory, the
rate of a square matrix product in the dtype of the model. Decoding is bound by
bytes (weights once a step, and the keys and values so far), all else by
operations.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from bench import harness, ours
from rl_reason.models import decoder, parameters

TASKS = ("rollout", "update", "rl_step")


def seconds(call: Callable, repeats: int, inner: int = 1) -> float:
  """Median time of a call whose result is waited for, after two unmeasured.

  Args:
    call: dispatches the work.
    repeats: how often the median is over.
    inner: calls under way at once, so that dispatch does not count.
  """
  taken = []
  for i in range(repeats + 2):
    began = time.perf_counter()
    jax.block_until_ready([call() for _ in range(inner)])
    if i > 1:
      taken.append((time.perf_counter() - began) / inner)
  return statistics.median(taken)


def bandwidth(mib: int, repeats: int) -> float:
  """Bytes a second, read and written, of a copy of so many MiB."""
  x = jnp.zeros(mib * 2**18, jnp.float32)
  copy = jax.jit(lambda x: x + 1)
  return 2 * x.nbytes / seconds(lambda: copy(x), repeats, inner=4)


def matmul_rate(width: int, dtype: str, repeats: int) -> float:
  """Operations a second of a square matrix product."""
  x = jnp.ones((width, width), dtype)
  product = jax.jit(lambda x: x @ x)
  return 2 * width**3 / seconds(lambda: product(x), repeats, inner=4)


def work(
    cfg: decoder.ModelConfig, size: harness.Size, limits: list[int], slots: int
) -> dict[str, float]:
  """Bytes and operations that a step cannot do without.

  Args:
    cfg: of the model.
    size: of the step.
    limits: tokens of each response.
    slots: responses that decode together; the weights are read once for all.

  Returns:
    `decode_bytes`, `prefill_flops`, `forward_flops` (one pass over all rows).
  """
  itemsize = jnp.dtype(cfg.dtype).itemsize
  read = decoder.table(cfg)
  if not cfg.tied:
    del read["embed"]  # but for a row a token
  rows = jax.tree.leaves(read, is_leaf=parameters.is_param)
  weights = sum(functools.reduce(int.__mul__, row.shape) for row in rows)
  token = 2 * cfg.layers * cfg.kv_heads * cfg.head_dim  # its key and value
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


def measure(given: argparse.Namespace) -> dict:
  """Limits, times, and their ratios."""
  size = harness.Size(
      given.rows,
      given.prompt,
      given.response,
      tail=given.tail,
      group=given.group,
  )
  options = dict(micro=given.micro, remat=given.remat, slots=given.slots)
  before = harness.load()
  taken = {}
  for task in TASKS:
    what = harness.job(task, size, given.dims, given.dtype, options)
    step = ours.TASKS[task](what)
    taken[task] = seconds(step, given.repeats)
    del step  # its weights, before the next task loads its own
  bytes_s = bandwidth(given.copy_mib, given.repeats)
  flops_s = matmul_rate(given.product, given.dtype, given.repeats)
  cfg = ours.shape(what)
  todo = work(cfg, size, what["limits"], given.slots)
  decode = todo["decode_bytes"] / bytes_s
  prefill = todo["prefill_flops"] / flops_s
  forward = todo["forward_flops"] / flops_s
  # An update is one pass forward and two back.
  limit = dict(
      rollout=decode + prefill,
      update=3 * forward,
      rl_step=decode + prefill + 3 * forward,
  )
  return dict(
      command=f"python -m bench.gpu --dims={given.dims} --dtype={given.dtype}"
      f" --rows={given.rows} --prompt={given.prompt}"
      f" --response={given.response} --group={given.group}"
      f" --micro={given.micro} --remat={given.remat} --slots={given.slots}"
      + (" --tail" if given.tail else ""),
      environment=harness.environment(before),
      gb_per_s=bytes_s / 1e9,
      tflop_per_s=flops_s / 1e12,
      seconds=taken,
      limit=limit,
      share={task: limit[task] / taken[task] for task in TASKS},
      decoded_per_s=sum(what["limits"]) / taken["rollout"],
  )


def page(result: dict) -> list[str]:
  """Lines of markdown."""
  lines = ["# One device against its limits", ""]
  lines += harness.busy(result["environment"])
  lines += [
      f"Made by `{result['command']}`. Limits measured in the same run: a copy"
      f" of memory at {result['gb_per_s']:,.1f} GB/s, a matrix product at"
      f" {result['tflop_per_s']:,.2f} TFLOP/s. Sampled:"
      f" {result['decoded_per_s']:,.0f} tokens/s. The share of an update is"
      " its MFU, against the measured product.",
      "",
      "| | seconds | limit | share |",
      "|---|---|---|---|",
  ]
  for task in TASKS:
    cells = [task, f"{result['seconds'][task]:.4f}"]
    cells += [f"{result['limit'][task]:.4f}", f"{result['share'][task]:.1%}"]
    lines.append("| " + " | ".join(cells) + " |")
  return [*lines, "", *harness.footer(result)]


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
  """The flags."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--dims", choices=harness.DIMS, default="qwen2.5-1.5b")
  parser.add_argument("--dtype", default="bfloat16")
  parser.add_argument("--rows", type=int, default=256)
  parser.add_argument("--group", type=int, default=8)
  parser.add_argument("--prompt", type=int, default=128)
  parser.add_argument("--response", type=int, default=512)
  parser.add_argument("--tail", action="store_true", help="log-normal lengths")
  parser.add_argument("--slots", type=int, default=0, help="0: as many as rows")
  parser.add_argument("--micro", type=int, default=16)
  parser.add_argument("--remat", default="full")
  parser.add_argument("--repeats", type=int, default=5)
  parser.add_argument("--copy_mib", type=int, default=1024)
  parser.add_argument("--product", type=int, default=8192)
  given = parser.parse_args(argv)
  given.micro = min(given.micro, given.rows)
  given.slots = given.slots or given.rows
  return given


def main() -> None:
  """Measures, then writes the table."""
  result = measure(arguments())
  harness.write("bench_gpu", result, page(result))
  print("\n".join(page(result)))


if __name__ == "__main__":
  main()
