"""The start of a turn with and without the kept cache of the last turn.

  python -m studies.turns.run  # minutes, on a CPU; writes turns.{json,md}

Times the program of the sampler that all rows of a wave wait for, with the
cache of the wave before and without it (`rollout/continuation.py`).
"""

import itertools
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from bench import harness, results
from rl_reason.base.structs import Prompts
from rl_reason.models import decoder
from rl_reason.rollout import sampler

NAME = "turns"
TINY = dict(layers=2, width=64, heads=4, kv_heads=2, head_dim=16, mlp=192)
MODELS = {"of the configs": TINY | dict(vocab=64), "4m": harness.shape("4m")}
# Tokens so far, of the observation at their end, and rows.
CASES = ((64, 2, 64), (224, 64, 32), (1024, 64, 8))
PROMPT, GROUP = 12, 8
REPEATS = 5


def measure(name: str, width: int, new: int, rows: int) -> dict:
  """Milliseconds a row of the start of a turn; MiB of a row's cache."""
  cfg = decoder.ModelConfig(**MODELS[name])
  params = jax.jit(lambda key: decoder.init(cfg, key))(jax.random.key(0))
  rng = np.random.default_rng(0)
  count, before = rows // GROUP, width - PROMPT - new
  prompts = Prompts(
      tokens_NP=rng.integers(2, cfg.vocab, (count, PROMPT), np.int32),
      start_N=np.zeros(count, np.int32),
      ids_N=np.arange(count, dtype=np.int32),
  )
  static = dict(cfg=cfg, group_size=GROUP, max_tokens=width - PROMPT + 16)
  static |= dict(eos=-1, pad=0)
  *_, sampled = sampler.stream(
      params,
      prompts,
      jax.random.key(1),
      limits_B=np.full(rows, before),
      keep_cache=True,
      **static,
  )
  kept, rollouts = sampled.cache, sampled.rollouts
  resumed = rollouts.replace(lengths_B=rollouts.lengths_B + new)
  resumed = resumed, jnp.zeros(rows, bool)
  ways: dict[str, list[float]] = {"again": [], "kept": []}
  for turn, way in itertools.product(range(REPEATS + 1), ways):
    keeps = way == "kept"
    one = sampler.Sampler(**static, keep_cache=keeps)
    start = sampler.program(one, "start", keeps)
    cache = jax.tree.map(jnp.array, kept) if keeps else None  # is donated
    args = params, prompts, jax.random.key(1), 1.0, None, width, 0.0, resumed
    jax.block_until_ready(cache)
    began = time.perf_counter()
    jax.block_until_ready(start(*args, cache))
    if turn:  # the first one compiles
      ways[way].append(1e3 * (time.perf_counter() - began) / rows)
  size = sum(x.nbytes for x in jax.tree.leaves(kept.cache)) / rows / 2**20
  return dict(model=name, tokens=width, new=new, mib=size, milliseconds=ways)


def page(result: dict) -> list[str]:
  """The table in Markdown."""
  about = (
      "How much sooner does a turn start if the cache of the turns before is"
      f" kept? Data in `{NAME}.json`. Milliseconds a"
      " row until the next token can be drawn: prompt and response are read"
      " again, or the observation alone, behind the cache that was kept."
      f" Medians of {REPEATS}, least to most; the ratio is that of medians."
  )
  out = [
      "| model | tokens so far | of the observation | again | kept | ratio |"
      " MiB a row |",
      "|---" * 7 + "|",
  ]
  ratios = []
  for x in result["cases"]:
    times = x["milliseconds"]
    again, kept = (statistics.median(times[way]) for way in times)
    cells = [
        f"{statistics.median(values):.2f} ({min(values):.2f} to"
        f" {max(values):.2f})"
        for values in times.values()
    ]
    cells = [x["model"], str(x["tokens"]), str(x["new"]), *cells]
    cells += [f"{again / kept:.1f}", f"{x['mib']:.2f}"]
    out.append(results.row(*cells))
    ratios.append(again / kept)
  return results.document(
      "The start of a turn: read again, or kept",
      f"With the cache kept, a turn starts {min(ratios):.1f} to"
      f" {max(ratios):.1f} times as fast as with everything read again.",
      results.busy(result["environment"]),
      about,
      out,
      made=f"Made by `{result['command']}`.",
      versions=results.footer(result),
  )


def measure_all(_) -> dict:
  """Measures all cases."""
  load, cases = results.load(), []
  for name, case in itertools.product(MODELS, CASES):
    cases.append(measure(name, *case))
    print(name, *case, flush=True)
  return dict(
      command="python -m studies.turns.run",
      environment=results.environment(load),
      cases=cases,
  )


if __name__ == "__main__":
  results.main(__doc__, NAME, measure_all, page)
