"""Temporary memory of a gradient against depth, for each model.remat.

  python -m studies.remat.run        # two minutes, on a CPU

Compiles the gradient of log-probs of a narrow model, and runs nothing: writes
studies/remat/remat.{json,md}.
"""

import dataclasses

import jax
import jax.numpy as jnp

from bench import results
from rl_reason.base.structs import Packed, Tree
from rl_reason.lab.automatic_remat import REMAT
from rl_reason.models import decoder

DEPTHS = (4, 16, 64)
ROWS, LENGTH = 8, 512  # packed rows, tokens of each
CFG = decoder.ModelConfig(
    vocab=64,
    layers=1,
    width=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    mlp=192,
    logprob_chunk=256,
)


def temporary(cfg: decoder.ModelConfig) -> int:
  """Bytes of temporary buffers of a gradient; gradients are outputs."""
  params = jax.eval_shape(lambda: decoder.init(cfg, jax.random.key(0)))
  tokens = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32)

  def total(params: Tree, packed: Packed) -> jax.Array:
    return decoder.packed_logps(params, cfg, packed)[0].sum()

  args = params, Packed(*[tokens] * 4)
  compiled = jax.jit(jax.grad(total)).lower(*args).compile()
  return compiled.memory_analysis().temp_size_in_bytes


def page(result: dict) -> list[str]:
  """Returns the table in Markdown."""
  head = [f"{depth} layers" for depth in DEPTHS]
  about = (
      "How does the memory of a gradient grow with the number of layers? The"
      " gradient of log-probs of"
      f" {ROWS} packed rows of {LENGTH} tokens, width {CFG.width}, fp32,"
      f" compiled for one device of kind {result['device']}, jax"
      f" {result['jax']}; nothing ran. MiB of temporary buffers, without"
      " parameters and gradients."
  )
  out = [
      "| `model.remat` | " + " | ".join(head) + " |",
      "|---" * (1 + len(DEPTHS)) + "|",
  ]
  words = []
  for remat in REMAT:
    sizes = [result["bytes"][remat][str(depth)] for depth in DEPTHS]
    words.append(f"{sizes[-1] / sizes[0]:.1f} times with `{remat}`")
    out.append(results.row(remat, *(f"{x / 2**20:.1f}" for x in sizes)))
  return results.document(
      "Temporary memory against depth",
      f"From {DEPTHS[0]} to {DEPTHS[-1]} layers the temporary memory of a"
      f" gradient grows {results.joined(words)}.",
      about,
      out,
      made="Made by `python -m studies.remat.run`.",
      versions=[f"Commit {result['commit']}."],
  )


def measure(_) -> dict:
  """Compiles all programs."""
  found: dict = {}
  for remat in REMAT:
    found[remat] = {
        str(depth): temporary(
            dataclasses.replace(CFG, layers=depth, remat=remat)
        )
        for depth in DEPTHS
    }
  return dict(
      device=jax.devices()[0].device_kind,
      jax=jax.__version__,
      commit=results.commit(),
      bytes=found,
  )


if __name__ == "__main__":
  results.main(__doc__, "remat", measure, page)
