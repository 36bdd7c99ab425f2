"""Time of model.dtype on a CPU: a gradient, and steps of decoding.

  python -m bench.speed.dtype        # two minutes

Dtypes take turns. Writes results/dtype.{json,md}.
"""

import dataclasses
import statistics
import time

import jax
import jax.numpy as jnp

from bench import results
from rl_reason.base.structs import Packed, Prompts
from rl_reason.models import decoder, linear
from rl_reason.rollout import sampler

DTYPES = ("float32", "bfloat16", "float16")
ROWS, LENGTH, PROMPTS, GROUP, TOKENS = 8, 256, 4, 8, 64
REPEATS = 5
CFG = decoder.ModelConfig(
    vocab=512,
    layers=4,
    width=256,
    heads=8,
    kv_heads=4,
    head_dim=32,
    mlp=1024,
    logprob_chunk=256,
)


def gradient(cfg: decoder.ModelConfig):
  """A function that computes a gradient of log-probs once."""
  params = decoder.init(cfg, jax.random.key(0))
  ones = jnp.ones((ROWS, LENGTH), jnp.int32)
  at = jnp.broadcast_to(jnp.arange(LENGTH), ones.shape)
  packed = Packed(ones, at, ones, jnp.ones((ROWS, LENGTH - 1), jnp.int32))

  def total(params, packed):
    return decoder.packed_logps(params, cfg, packed)[0].sum()

  program = jax.jit(jax.grad(total)).lower(params, packed).compile()
  return lambda: jax.block_until_ready(program(params, packed))


def decoding(cfg: decoder.ModelConfig):
  """A function that samples a few responses of equal length once."""
  params = linear.cast(decoder.init(cfg, jax.random.key(0)), cfg.dtype)
  prompts = Prompts(
      tokens_NP=jnp.ones((PROMPTS, 16), jnp.int32),
      start_N=jnp.zeros(PROMPTS, jnp.int32),
      ids_N=jnp.arange(PROMPTS),
  )
  how = dict(cfg=cfg, group_size=GROUP, max_tokens=TOKENS, eos=-1, pad=0)
  key = jax.random.key(0)
  return lambda: jax.block_until_ready(
      sampler.sample(params, prompts, key, **how)
  )


def measure(_) -> dict:
  """Times all dtypes, one after the other in each round."""
  load = results.load()
  found: dict = {}
  for name, make in dict(gradient=gradient, decoding=decoding).items():
    runs = {
        dtype: make(dataclasses.replace(CFG, dtype=dtype)) for dtype in DTYPES
    }
    for run in runs.values():
      run()
    seconds: dict = {dtype: [] for dtype in DTYPES}
    for _ in range(REPEATS):
      for dtype, run in runs.items():
        start = time.process_time()
        run()
        seconds[dtype].append(time.process_time() - start)
    found[name] = seconds
    print(name, seconds, flush=True)
  return dict(cpu_seconds=found, environment=results.environment(load))


def factor(result: dict, name: str, dtype: str) -> float:
  """The time of a dtype, of float32's."""
  seconds = result["cpu_seconds"][name]
  return statistics.median(seconds[dtype]) / statistics.median(
      seconds["float32"]
  )


def page(result: dict) -> list[str]:
  """Returns the table in Markdown."""
  out = [
      "| model.dtype | gradient, s | of float32 | decoding, s | of float32 |",
      "|---|---|---|---|---|",
  ]
  for dtype in DTYPES:
    cells = []
    for name in "gradient", "decoding":
      seconds = statistics.median(result["cpu_seconds"][name][dtype])
      cells += [f"{seconds:.3f}", f"{factor(result, name, dtype):.1f}"]
    out.append(results.row(dtype, *cells))
  words = [
      f"{factor(result, 'gradient', dtype):.1f} and"
      f" {factor(result, 'decoding', dtype):.1f} times in {dtype}"
      for dtype in DTYPES
      if dtype != "float32"
  ]
  return results.document(
      "model.dtype on a CPU",
      "Relative to float32, a gradient and decoding take"
      f" {results.joined(words)} the CPU time.",
      "Is a smaller dtype faster on a CPU? Median CPU seconds of"
      f" {REPEATS} turns. Gradient: of the log-probs of {ROWS} packed rows of"
      f" {LENGTH} tokens. Decoding: {PROMPTS * GROUP} responses of {TOKENS}"
      f" tokens. The model has {CFG.layers} layers of width {CFG.width}.",
      out,
      made="Made by `python -m bench.speed.dtype`.",
      versions=results.footer(result),
  )


if __name__ == "__main__":
  results.main(__doc__, "dtype", measure, page)
