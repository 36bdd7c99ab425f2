"""Stateless sampling with a key/value cache: same arguments, same tokens.

A token's noise depends on (key, prompt id, sample, position in the response)
and on nothing else: not on the rows beside it, the padding or the devices.
"""

import functools

import jax
import jax.numpy as jnp

from rl_reason import attention, model, sharding
from rl_reason.structs import Array, Prompts, Rollouts, Tree


def choose(logits_BV: Array, uniform_B: Array, top_p: float) -> Array:
  """Inverse-CDF sampling: one uniform number decides one token.

  Args:
    logits_BV: float32, temperature already applied.
    uniform_B: in [0, 1).
    top_p: keep the smallest set of likeliest tokens with this mass; the
      likeliest token is always in it.

  Returns:
    [B] int32.
  """
  probs_BV = jax.nn.softmax(logits_BV, -1)
  if top_p < 1:
    order_BV = jnp.argsort(-probs_BV, axis=-1, stable=True)
    sorted_BV = jnp.take_along_axis(probs_BV, order_BV, -1)
    before_BV = jnp.cumsum(sorted_BV, -1) - sorted_BV
    sorted_BV = jnp.where(before_BV < top_p, sorted_BV, 0)
    rank_B = _invert(sorted_BV, uniform_B)
    return jnp.take_along_axis(order_BV, rank_B[:, None], -1)[:, 0]
  return _invert(probs_BV, uniform_B)


def _invert(probs_BV: Array, uniform_B: Array) -> Array:
  cdf_BV = jnp.cumsum(probs_BV, -1)
  point_B1 = uniform_B[:, None] * cdf_BV[:, -1:]
  token_B = jnp.sum(cdf_BV <= point_B1, -1)
  return jnp.minimum(token_B, probs_BV.shape[-1] - 1)


@functools.partial(
    jax.jit,
    static_argnames=("cfg", "group_size", "max_tokens", "top_p", "eos", "pad"),
)
def sample(
    params: Tree,
    prompts: Prompts,
    key: Array,
    temperature: Array | float = 1.0,
    sizes_N: Array | None = None,
    *,
    cfg: model.ModelConfig,
    group_size: int,
    max_tokens: int,
    eos: int,
    pad: int,
    top_p: float = 1.0,
) -> Rollouts:
  """G responses to each of N prompts.

  Each prompt is prefilled once and its cache copied to its G samples; then all
  rows decode together until the last one has ended. Nothing crosses to the
  host before the end.

  Args:
    params: of the model.
    prompts: N prompts of P slots.
    key: seeds all noise, together with `prompts.ids_N`.
    temperature: scalar or [G], one per sample; 0 is greedy (log-probs are then
      those at temperature 1).
    sizes_N: int, how many responses to each prompt, N * G in all; None: G to
      each. With sizes the temperature must be a scalar.
    cfg: static shape of the model.
    group_size: G.
    max_tokens: T, the longest response, EOS included.
    eos: the token that ends a response, and stays in it.
    pad: fills the slots behind it.
    top_p: nucleus; the log-probs returned are those BEFORE this filter.

  Returns:
    Rollouts of N * G rows; those of a prompt are adjacent.
  """
  prompt_slots = prompts.tokens_NP.shape[1]
  rows = prompts.tokens_NP.shape[0] * group_size

  def per_sample(x, axis=0):
    if sizes_N is None:
      return jnp.repeat(x, group_size, axis)
    return jnp.repeat(x, sizes_N, axis, total_repeat_length=rows)

  cache = model.empty_cache(cfg, prompts.tokens_NP.shape[0], prompt_slots)
  positions_NP, segments_NP = model.padded(prompts.tokens_NP, prompts.start_N)
  hidden_NPD, filled = model.forward(
      params,
      cfg,
      prompts.tokens_NP,
      positions_NP,
      attention.prefill(segments_NP),
      cache,
  )
  logits_BV = per_sample(model.logits(params, cfg, hidden_NPD[:, -1]))
  grow = ((0, 0), (0, 0), (0, 0), (0, max_tokens), (0, 0))
  cache = attention.constrain_cache(
      jax.tree.map(lambda x: jnp.pad(per_sample(x, 1), grow), filled)
  )

  start_B = per_sample(prompts.start_N)
  ids_B = per_sample(prompts.ids_N)
  if sizes_N is None:
    sample_B = jnp.tile(jnp.arange(group_size), rows // group_size)
  else:
    sample_B = jnp.arange(rows) - per_sample(jnp.cumsum(sizes_N) - sizes_N)
  fold = jax.vmap(jax.random.fold_in, (0, 0))
  key_B = fold(fold(jnp.repeat(key[None], rows), ids_B), sample_B)
  heat = jnp.asarray(temperature, jnp.float32)
  if heat.ndim:
    heat_B = jnp.tile(heat, rows // group_size)
  else:
    heat_B = jnp.broadcast_to(heat, (rows,))
  greedy_B = heat_B == 0
  heat_B = jnp.where(greedy_B, 1, heat_B)

  def unfinished(carry):
    t, _, _, done_B, _, _, _ = carry
    return (t < max_tokens) & ~jnp.all(done_B)

  def decode(carry):
    t, cache, logits_BV, done_B, tokens_BT, logps_BT, length_B = carry
    scaled_BV = logits_BV / heat_B[:, None]
    noise_B = jax.vmap(lambda k: jax.random.uniform(jax.random.fold_in(k, t)))(
        key_B
    )
    token_B = jnp.where(
        greedy_B,
        jnp.argmax(scaled_BV, -1),
        choose(scaled_BV, noise_B, top_p),
    )
    chosen_B = jnp.take_along_axis(scaled_BV, token_B[:, None], -1)[:, 0]
    logp_B = chosen_B - jax.nn.logsumexp(scaled_BV, -1)
    # Rounding may put the last step of a CDF behind the tokens there are.
    token_B = jnp.minimum(token_B, (cfg.tokens or cfg.vocab) - 1)
    token_B = jnp.where(done_B, pad, token_B).astype(jnp.int32)
    tokens_BT = tokens_BT.at[:, t].set(token_B)
    logps_BT = logps_BT.at[:, t].set(jnp.where(done_B, 0, logp_B))
    length_B = length_B + ~done_B
    done_B = done_B | (token_B == eos)
    slot = prompt_slots + t
    hidden_B1D, cache = model.forward(
        params,
        cfg,
        token_B[:, None],
        (slot - start_B)[:, None],
        attention.decode(start_B, slot),
        cache,
    )
    logits_BV = model.logits(params, cfg, hidden_B1D[:, 0])
    return t + 1, cache, logits_BV, done_B, tokens_BT, logps_BT, length_B

  empty_BT = jnp.zeros((rows, max_tokens))
  carry = (
      0,
      cache,
      logits_BV,
      jnp.zeros(rows, bool),
      jnp.full_like(empty_BT, pad, jnp.int32),
      empty_BT,
      jnp.zeros(rows, jnp.int32),
  )
  carry = jax.lax.while_loop(unfinished, decode, carry)
  _, _, _, done_B, tokens_BT, logps_BT, length_B = carry
  tokens_BL = jnp.concatenate([per_sample(prompts.tokens_NP), tokens_BT], 1)
  rollouts = Rollouts(
      tokens_BL=tokens_BL,
      start_B=start_B,
      ids_B=ids_B,
      mask_BT=jnp.arange(max_tokens) < length_B[:, None],
      logps_BT=logps_BT,
      lengths_B=length_B,
      truncated_B=~done_B,
  )
  return jax.tree.map(
      lambda x: sharding.constrain(x, "batch", *(None,) * (x.ndim - 1)),
      rollouts,
  )
