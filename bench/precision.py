"""The sampler's log-probs against the trainer's, in every precision.

  python -m bench.precision            # minutes on 2 cores
  python -m bench.precision --table    # only the page, from JSON

Random weights whose logits have a standard deviation of 8, far sharper than
in a trained model: what rounding does to log-probs grows with it. Then:
what merging does to a LoRA adapter, what rounded logits do to log-probs, and
what logits in float32 cost. Writes results/precision.{json,md}.
"""

import dataclasses
import functools
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from bench import results
from rl_reason.base.structs import Prompts, Rollouts, Tree
from rl_reason.features.low_rank.low_rank_factors import LowRank
from rl_reason.models import attention, decoder, linear
from rl_reason.rollout import sampler, sampler_weights
from rl_reason.training import packing, step

DEVIATION = 8  # of the logits
CFG = decoder.ModelConfig(
    vocab=512,
    layers=4,
    width=128,
    heads=4,
    kv_heads=2,
    head_dim=32,
    mlp=384,
    tied=False,
)
# (products, weights of the sampler, its cache)
ROWS = [
    (dtype, *sampler_s)
    for dtype in ("float32", "bfloat16")
    for sampler_s in (
        ("same", "same"),
        ("bfloat16", "same"),
        ("int8", "same"),
        ("same", "int8"),
    )
]
SEEDS = 3
PROMPTS, GROUP, WIDTH = 49, 4, 16
# Longest responses: all of a cache is read at once, or block by block.
SHORT, LONG = 110, 240
RATIOS = (1e-4, 1e-3, 1e-2)  # of an adapter to its matrix


def sharp(cfg: decoder.ModelConfig, seed: int) -> Tree:
  """Random parameters whose logits have a standard deviation of DEVIATION."""
  params = decoder.init(cfg, jax.random.key(seed))
  return params | dict(norm=params["norm"] * DEVIATION)


def prompts(cfg: decoder.ModelConfig, count: int, seed: int) -> Prompts:
  """Random prompts of 13 to 16 tokens."""
  rng = np.random.default_rng(seed)
  return Prompts(
      tokens_NP=rng.integers(2, cfg.vocab, (count, WIDTH)).astype(np.int32),
      start_N=np.arange(count, dtype=np.int32) % 4,
      ids_N=np.arange(count, dtype=np.int32),
  )


def sampled(
    params: Tree,
    cfg: decoder.ModelConfig,
    weights: str,
    cache: str,
    *,
    longest: int = SHORT,
    count: int = PROMPTS,
    seed: int = 0,
    slots: int = 0,
) -> Rollouts:
  """Responses of the sampler with its log-probs; token 0 ends one."""
  make = functools.partial(sampler_weights.make, cfg=cfg, weights=weights)
  rollouts = sampler.sample(
      jax.jit(make)(params),
      prompts(cfg, count, seed),
      jax.random.key(seed),
      cfg=cfg,
      group_size=GROUP,
      max_tokens=longest,
      eos=0,
      pad=1,
      cache=cache,
      slots=slots,
  )
  return jax.device_get(rollouts)


@functools.cache
def _logps_program(cfg):
  return step.logps_program(cfg, 1.0)


def trainer_logps(
    params: Tree, cfg: decoder.ModelConfig, r: Rollouts
) -> np.ndarray:
  """Log-probs of the responses by the trainer, from packed rows: [B, T]."""
  packed = packing.pack(r.tokens_BL, r.start_B, r.mask_BT, 8)
  one = jax.tree.map(lambda x: x[None], packed)
  return jax.device_get(_logps_program(cfg)(params, one))[0][0]


def gaps(params: Tree, cfg: decoder.ModelConfig, *how, **options) -> np.ndarray:
  """|log p of the sampler - log p of the trainer| of each response token."""
  r = sampled(params, cfg, *how, **options)
  return np.abs(r.logps_BT - trainer_logps(params, cfg, r))[r.mask_BT]


def summary(gaps_X: np.ndarray) -> dict[str, float]:
  """Numbers of a row of the table."""
  return dict(
      tokens=len(gaps_X),
      largest=float(gaps_X.max()),
      mean=float(gaps_X.mean()),
      equal=float((gaps_X == 0).mean()),
  )


def measure(dtype: str, weights: str, cache: str, seed: int, longest: int):
  """A row of the first table."""
  cfg = dataclasses.replace(CFG, dtype=dtype)
  how = weights, cache
  found = gaps(sharp(cfg, seed), cfg, *how, seed=seed, longest=longest)
  row = dict(dtype=dtype, weights=weights, cache=cache, longest=longest)
  return row | dict(seed=seed) | summary(found)


def adapters(
    ratio: float, kind: str, seed: int, size: int = 512, rank: int = 8
) -> dict[str, float | str]:
  """What a sampler makes of the effect of an adapter on 64 states.

  The effect is what the factors add to x W, computed in float32; the error is
  what the sampler's product adds, less the effect, relative to it.

  Args:
    ratio: |sAB| / |W|.
    kind: 'merged', rounded to bfloat16, or weights of `sampler_weights.make`.
    seed: of the weights and states.
    size: inputs and outputs of the matrix.
    rank: of the factors.
  """
  rng = np.random.default_rng(seed)
  x, w, a, b = (
      jnp.asarray(rng.normal(size=shape), jnp.float32)
      for shape in ((64, size), (size, size), (size, rank), (rank, size))
  )
  w = (w * size**-0.5).astype(jnp.bfloat16)
  scale = float(ratio * jnp.linalg.norm(w.astype(jnp.float32)))
  scale /= float(jnp.linalg.norm(a @ b))
  joined = LowRank(w, a, b, scale)
  effect = scale * (x @ a) @ b
  cfg = decoder.ModelConfig(
      vocab=8,
      layers=1,
      width=size,
      heads=1,
      kv_heads=1,
      head_dim=size,
      mlp=size,
      dtype="bfloat16",
  )

  def served(matrix):
    """The product with the matrix that the sampler gets, in float32."""
    if kind == "merged":
      whole = linear.merged(dict(q=matrix))["q"]
      return x @ whole.astype(jnp.bfloat16).astype(jnp.float32)
    params = jax.tree.map(jnp.zeros_like, decoder.init(cfg, jax.random.key(0)))
    layers = params["layers"] | dict(q=jax.tree.map(lambda y: y[None], matrix))
    params |= dict(layers=layers)
    made = sampler_weights.make(params, cfg, kind)["layers"]["q"]
    return linear.product(x, jax.tree.map(lambda y: y[0], made))

  error = served(joined) - served(w) - effect
  whole = linear.merged(dict(q=joined))["q"].astype(jnp.bfloat16)
  return dict(
      ratio=ratio,
      kind=kind,
      error=float(jnp.linalg.norm(error) / jnp.linalg.norm(effect)),
      unchanged=float((whole == w).mean()) if kind == "merged" else 0.0,
  )


def rounded_logits(seed: int) -> dict[str, float]:
  """How far logits rounded to bfloat16 move log-probs of the same states."""
  cfg = dataclasses.replace(CFG, dtype="bfloat16")
  params = sharp(cfg, seed)
  r = sampled(params, cfg, "same", "same", seed=seed)
  same = dataclasses.replace(cfg, logits_dtype="same")
  both = (trainer_logps(params, x, r) for x in (cfg, same))
  return summary(np.abs(np.subtract(*both))[r.mask_BT])


def fastest(run: Callable[[], Tree], times: int = 5) -> float:
  """Seconds of the fastest of some calls, after one that compiles."""
  out = []
  for _ in range(times + 1):
    start = time.perf_counter()
    jax.block_until_ready(run())
    out.append(time.perf_counter() - start)
  return min(out[1:])


def cost_of_logits() -> dict[str, dict[str, float]]:
  """Time and temporary memory of log-probs with their gradient, by dtype."""
  shape = dict(vocab=32_768, layers=1, width=512, mlp=512, dtype="bfloat16")
  big = dataclasses.replace(CFG, **shape)
  rng = np.random.default_rng(0)
  tokens_BL = rng.integers(2, big.vocab, (8, 512)).astype(np.int32)
  mask_BT = np.ones((8, 496), bool)
  packed = packing.pack(tokens_BL, np.zeros(8, np.int32), mask_BT, 8)
  packed, _ = packing.micro_batch(packed, jnp.asarray(0))
  params, out = decoder.init(big, jax.random.key(0)), {}
  for logits_dtype in ("float32", "same"):
    cfg = dataclasses.replace(big, logits_dtype=logits_dtype)

    def loss(params, packed, cfg=cfg):
      return decoder.packed_logps(params, cfg, packed)[0].mean()

    program = jax.jit(jax.grad(loss)).lower(params, packed).compile()
    memory = program.memory_analysis().temp_size_in_bytes
    out[logits_dtype] = dict(
        seconds=fastest(functools.partial(program, params, packed)),
        mib=memory / 2**20,
    )
  return out


def cost_of_equality() -> dict[str, float]:
  """Time of scoring by the sampler's own program, which agrees to the bit.

  A trainer whose forward pass is the decode loop has the sampler's numbers by
  construction. The time of sampling stands for it: the same products, and the
  choice of each token.
  """
  params, how = sharp(CFG, 0), ("same", "same")
  r = sampled(params, CFG, *how)
  return dict(
      decode=fastest(lambda: sampled(params, CFG, *how).logps_BT),
      packed=fastest(lambda: trainer_logps(params, CFG, r)),
  )


def page(result: dict) -> list[str]:
  """The page in Markdown."""
  about = (
      "How far are the log-probs of the sampler from those of the trainer,"
      " which"
      " has the same weights? Data in `precision.json`. Random"
      f" weights ({CFG.layers} layers, width {CFG.width}, {CFG.vocab} tokens),"
      f" logits with a standard deviation of {DEVIATION}; {SEEDS} seeds. Gap:"
      " |log-prob of the sampler - log-prob of the trainer| of a response"
      " token, in nats. Equal: tokens whose two log-probs are the same bits."
  )
  lines = [
      "| model.dtype | rollout.weights | rollout.cache | longest response |"
      " tokens | largest gap | mean gap | equal |",
      "|---|---|---|---|---|---|---|---|",
  ]
  words = []
  keys = dict.fromkeys(
      (x["dtype"], x["weights"], x["cache"], x["longest"])
      for x in result["gaps"]
  )
  names = "dtype", "weights", "cache", "longest"
  for key in keys:
    rows = [x for x in result["gaps"] if tuple(x[n] for n in names) == key]
    tokens = sum(x["tokens"] for x in rows)

    def mean(name, rows=rows, tokens=tokens):
      return sum(x[name] * x["tokens"] for x in rows) / tokens

    lines.append(
        f"| {' | '.join(map(str, key))} | {tokens:,} |"
        f" {max(x['largest'] for x in rows):.2g} | {mean('mean'):.2g} |"
        f" {mean('equal'):.1%} |"
    )
    if key[1:3] == ("same", "same"):
      words.append(
          f"{mean('mean'):.2g} nats ({key[0]}, responses of up to {key[3]}"
          f" tokens; {mean('equal'):.1%} of the tokens are equal)"
      )
  cost, logits = result["equality"], result["logits"]
  lines += [
      "",
      "**bfloat16 products, same weights.** Sampler and trainer round the same"
      " numbers: the softmax terms of attention relative to a power of two, the"
      " output of attention once, the residual stream after each sublayer. Both"
      " add up in float32, and where XLA's CPU backend adds up in the same"
      " order, all log-probs are the same bits. A cache of more than"
      f" {attention.BLOCK} tokens is read in blocks, whose sums are added up in"
      " another order: a sum that differs in its last bit of float32 is"
      " sometimes rounded to another bfloat16, and everything after it differs"
      " by as much as bfloat16 does. Kernels of accelerators add up in orders"
      " of their own; this page was not measured there.",
      "",
      "**float32 products, same weights.** The two programs add up in different"
      " orders (the mean of squares in a norm, and attention), and nothing is"
      " rounded away afterwards. They would agree to the bit if the trainer"
      " scored responses with the sampler's program, which takes"
      f" {cost['decode'] / cost['packed']:.1f} times as long as the packed"
      f" forward pass here ({cost['decode']:.2f} s and {cost['packed']:.2f} s"
      " for the same responses). The project does not do that: the mean gap"
      " is 1e-5 of a clip range of 0.2.",
      "",
      "## LoRA adapters",
      "",
      "Error of the effect of an adapter of rank 8 on a bfloat16 matrix of 512"
      " x 512, relative to the effect; unchanged: entries of the merged matrix"
      " that equal the base. Merged: W + sAB, rounded to bfloat16, as"
      " the sampler had it before; same and int8: what the sampler gets now,"
      " the factors apart.",
      "",
      "| size of sAB / W | merged | unchanged | same | int8 |",
      "|---|---|---|---|---|",
  ]
  for ratio in RATIOS:
    found = {x["kind"]: x for x in result["adapters"] if x["ratio"] == ratio}
    lines.append(
        f"| {ratio:g} | {found['merged']['error']:.2g} |"
        f" {found['merged']['unchanged']:.0%} | {found['same']['error']:.2g} |"
        f" {found['int8']['error']:.2g} |"
    )
  off, memory = result["rounded"], {k: x["mib"] for k, x in logits.items()}
  lines += [
      "",
      "## Logits in float32",
      "",
      "The head's products are added up and returned in float32"
      ' (`model.logits_dtype = "float32"`). Rounded to bfloat16 ("same"), the'
      f" log-probs of the same tokens differ by up to {off['largest']:.2g}"
      f" nats, by {off['mean']:.2g} on average. The gradient of the log-probs"
      " of 3,968 tokens with a vocabulary of 32,768, width 512, takes"
      f" {memory['float32']:.0f} MiB of temporary memory ({memory['same']:.0f}"
      ' with "same"), and'
      f" {logits['float32']['seconds'] / logits['same']['seconds']:.2f} times"
      " the time on this CPU.",
  ]
  if found := results.read("vllm"):
    lines += ["", "## A vLLM server as the engine", ""]
    lines += [
        *table_of_gaps(found),
        "",
        "Measured by `python -m bench.real_vllm`, which says the speed of both"
        " samplers, too ([vllm](vllm.md)).",
    ]
  return results.document(
      "One policy: log-probs of the sampler and of the trainer",
      "With the same weights and cache the log-probs of sampler and trainer"
      f" differ on average by {results.joined(words)}.",
      about,
      lines,
      made="Made by `python -m bench.precision`.",
      versions=results.footer(result),
  )


def table_of_gaps(result: dict) -> list[str]:
  """Lines about the log-probs of the sampler and of the trainer."""
  lines = [
      "SmolLM2-135M-Instruct, temperature 1; gap: |log-prob of the sampler -"
      " log-prob of the trainer| of a response token, in nats. vLLM is"
      f" {result['peers']['vLLM']['version']} on CPUs.",
      "",
      "| sampler | its weights | trainer's `model.dtype` | tokens | largest gap"
      " | mean gap |",
      "|---|---|---|---|---|---|",
  ]
  names = dict(ours="`rollout.engine.name` none", vllm="vLLM")
  for x in result["gaps"]:
    lines.append(
        results.row(
            names[x["system"]],
            x["dtype"],
            x["trainer"],
            f"{x['tokens']:,}",
            f"{x['largest']:.2g}",
            f"{x['mean']:.2g}",
        )
    )
  return lines


def measure_all(_) -> dict:
  """All numbers of the page."""
  load, found = results.load(), []
  for row in ROWS:
    for seed in range(SEEDS):
      found.append(measure(*row, seed, SHORT))
      print(found[-1], flush=True)
  for dtype in ("float32", "bfloat16"):
    found.append(measure(dtype, "same", "same", 0, LONG))
  return dict(
      command="python -m bench.precision",
      environment=results.environment(load),
      gaps=found,
      adapters=[
          adapters(ratio, kind, 0)
          for ratio in RATIOS
          for kind in ("merged", "same", "int8")
      ],
      rounded=rounded_logits(0),
      logits=cost_of_logits(),
      equality=cost_of_equality(),
  )


if __name__ == "__main__":
  results.main(__doc__, "precision", measure_all, page)
