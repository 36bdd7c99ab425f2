"""Decoding, update and complete step, relative to the limits of one device.

  python -m bench.speed.gpu --dims=qwen2.5-1.5b --tail --slots=256 --rows=1024
  python -m bench.speed.gpu --dims=tiny --rows=8 --prompt=8 --response=16

The limits are measured in the same run: the bandwidth of a memory copy and the
rate of a square matrix product in the dtype of the model. Decoding is limited
by memory bandwidth (the weights once per step, and the keys and values of the
context), everything else by FLOPs. Every implementation of attention that this
machine has is measured (`rl_reason.models.kernels`).
"""

import argparse
import dataclasses
import functools
import itertools
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bench import harness, ours, results
from rl_reason.devices import sharding
from rl_reason.models import decoder, kernels, parameters
from rl_reason.stages.model import TRIED
from rl_reason.training import step as step_lib

TASKS = ("rollout", "update", "rl_step")
# Sampler and trainer are compared on responses of several lengths.
PARITY = harness.Size(rows=16, prompt=64, response=200, tail=True)


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


def parity(
    flags: argparse.Namespace, names: list[str]
) -> dict[str, dict[str, float]]:
  """Returns how far each implementation is from float32, and from itself.

  Args:
    flags: of the command; PARITY gives the size.
    names: of the implementations.

  Returns:
    by implementation: `logps` and `logps_max`, the mean and the largest
    difference of the trainer's log-probs from XLA's in float32; `gradient`, the
    norm of the difference of their gradients, of the norm of float32's; and
    `sampler` and `sampler_max`, differences of the sampler's log-probs from the
    trainer's, for the tokens that the sampler drew.
  """
  job = harness.job("rollout", PARITY, flags.dims, flags.dtype, {})
  cfg, params = ours.load(job)
  weights_BT = np.random.default_rng(0).normal(
      size=(PARITY.rows, PARITY.response)
  )

  def loss(cfg, params, micro, rows):
    weights_BT, mask_BT = rows
    logps_BT = decoder.packed_logps(params, cfg, micro)[0] * mask_BT
    return jnp.sum(logps_BT * weights_BT), dict(logps=logps_BT)

  @functools.cache
  def program(cfg):
    fn = functools.partial(loss, cfg)
    return jax.jit(functools.partial(step_lib.accumulate, fn))

  def run(cfg, rollouts):
    rows = weights_BT, np.float32(rollouts.mask_BT)
    tokens = rollouts.tokens_BL, rollouts.mask_BT
    packed_M = ours.pack(dict(options=dict(micro=PARITY.rows)), *tokens)
    packed = jax.tree.map(lambda x: x[0], packed_M)
    grads, metrics = jax.device_get(program(cfg)(params, packed, rows))
    return grads, metrics["logps"]

  exact = dataclasses.replace(cfg, dtype="float32", attention="xla")
  found = {}
  for name in names:
    shape = dataclasses.replace(cfg, attention=name)
    weights = ours.policy_weights(shape)(params)
    sample = ours.sampler(job, shape)
    rollouts = sharding.fetch(sample(weights, jax.random.key(1)))
    # GPUs and TPUs round float32 products unless they are told not to.
    with jax.default_matmul_precision("highest"):
      true_grads, true_BT = run(exact, rollouts)
    grads, logps_BT = run(shape, rollouts)
    mask_BT = rollouts.mask_BT
    far = np.abs(logps_BT - true_BT)[mask_BT]
    own = np.abs(rollouts.logps_BT - logps_BT)[mask_BT]
    gap = jax.tree.map(np.subtract, grads, true_grads)
    norms = [float(optax.tree.norm(x)) for x in (gap, true_grads)]
    found[name] = dict(
        logps=float(far.mean()),
        logps_max=float(far.max()),
        gradient=norms[0] / norms[1],
        sampler=float(own.mean()),
        sampler_max=float(own.max()),
    )
    print(name, found[name], flush=True)
  return found


def measure(flags: argparse.Namespace) -> dict:
  """Returns limits, times of each implementation, and their ratios."""
  flags.micro = min(flags.micro, flags.rows)
  flags.slots = flags.slots or flags.rows
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
  names = [x for x in names if x in (flags.attention or names)]
  before = results.load()
  parities = parity(flags, names)
  taken: dict[str, dict[str, float]] = {}
  for name, task in itertools.product(names, TASKS):
    job = harness.job(
        task, size, flags.dims, flags.dtype, options | dict(attention=name)
    )
    step = ours.TASKS[task](job)
    taken.setdefault(name, {})[task] = seconds(step, flags.repeats)
    del step  # frees its weights before the next task loads its own
    print(f"{name}, {task}: {taken[name][task]:.3f} s", flush=True)
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
      command=f"python -m bench.speed.gpu --dims={flags.dims}"
      f" --dtype={flags.dtype} --rows={flags.rows} --prompt={flags.prompt}"
      f" --response={flags.response} --group={flags.group}"
      f" --micro={flags.micro} --remat={flags.remat} --slots={flags.slots}"
      + (" --tail" if flags.tail else "")
      + " ".join(["", "--attention", *flags.attention] * bool(flags.attention)),
      environment=results.environment(before)
      | dict(platform_version=jax.devices()[0].client.platform_version),
      gb_per_s=bytes_s / 1e9,
      tflop_per_s=flops_s / 1e12,
      refused=refused,
      parity=parities,
      seconds=taken,
      limit=limit,
      decoded_per_s={
          name: sum(job["limits"]) / taken[name]["rollout"] for name in names
      },
  )


def measure_size(flags: argparse.Namespace) -> dict:
  """Returns the data so far, with this measurement of its size of a model."""
  found = results.read("gpu").get("measured", {})
  return dict(measured=found | {flags.dims: measure(flags)})


def page(result: dict) -> list[str]:
  """Returns lines of Markdown."""
  measured = result["measured"]
  found = []
  for dims, one in measured.items():
    for task in TASKS:
      shares = (one["limit"][task] / x[task] for x in one["seconds"].values())
      share = max(shares, default=0)
      found.append(f"{share:.0%} of the limit in {task} ({dims})")
  sections = []
  for dims, one in measured.items():
    sections += [f"## {dims}", "", *section(one), ""]
  return results.document(
      "One device against its limits",
      f"With the fastest attention the device reaches {results.joined(found)}.",
      "Which share of its memory's and its products' speed does the program"
      " reach on one device?",
      sections,
      made="Made by `python -m bench.speed.gpu`, with the flags of each"
      " section.",
  )


def section(result: dict) -> list[str]:
  """Returns lines of one measurement."""
  lines = results.busy(result["environment"])
  lines += [
      f"By `{result['command']}`. Limits measured in the same run: a"
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
  lines += [
      "",
      "Differences in nats of log-probs of responses that the sampler drew, as"
      " mean and maximum. The trainer is compared with XLA's in float32, its"
      " gradient relative to the norm; the sampler with the trainer.",
      "",
      "| attention | trainer | gradient | sampler |",
      "|---|---|---|---|",
  ]
  for name, gap in result["parity"].items():
    trainer, own = (
        f"{gap[x]:.4f}, {gap[f'{x}_max']:.3f}" for x in ("logps", "sampler")
    )
    lines.append(results.row(name, trainer, f"{gap['gradient']:.2%}", own))
  lines += ["", *(f"Not measured: {x}." for x in result["refused"])]
  return [*lines, "", *results.footer(result)]


def flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags."""
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
  parser.add_argument("--attention", nargs="*", default=[], help="only these")


if __name__ == "__main__":
  results.main(__doc__, "gpu", measure_size, page, flags=flags)
