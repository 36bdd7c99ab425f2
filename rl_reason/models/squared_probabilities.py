"""Log-probs with the sum of the squared probabilities of all tokens.

That sum is the chance that two samples are the same token. Logits exist for one
chunk of positions at a time, as in `decoder.packed_logps`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rl_reason.base.structs import Array, Packed, Tree
from rl_reason.models import decoder


def chunked(
    packed: Packed,
    take: Callable[[Array], Array],
    cfg: decoder.ModelConfig,
    temperature: float,
    head: Tree,
    hidden_WXD: Array,
    targets_WX: Array,
    count: Array,
) -> tuple[Array, Array, Array]:
  """Log-probs, entropy and sum_v p_v^2: a `compare` of `decoder.packed_logps`.

  No gradient is needed: only the pass before an update computes it.

  Args:
    packed: the rows; not read.
    take: not read.
    cfg: static, as all that follows, of `decoder.packed_logps`.
    temperature: of the softmax.
    head: the output matrix, by its name.
    hidden_WXD: the states of the policy.
    targets_WX: the tokens that they predict.
    count: positions of a shard that predict a response token.

  Returns:
    [W, X] each, 0 beyond `count`.
  """
  del packed, take
  size = min(cfg.logprob_chunk, targets_WX.shape[1])

  def one(at, out):
    hidden_XD = decoder.chunk(hidden_WXD, at, size)
    scaled_XV = decoder.logits(head, cfg, hidden_XD) / temperature
    target_X = decoder.chunk(targets_WX, at, size)
    logps_XV = scaled_XV - jax.nn.logsumexp(scaled_XV, -1, keepdims=True)
    probs_XV = jnp.exp(logps_XV)
    possible_XV = jnp.where(probs_XV > 0, logps_XV, 0)  # may be -inf elsewhere
    new = (
        jnp.take_along_axis(logps_XV, target_X[:, None], 1)[:, 0],
        -jnp.sum(probs_XV * possible_XV, -1),
        jnp.sum(probs_XV**2, -1),
    )
    return tuple(
        decoder.with_chunk(x, y, at, size)
        for x, y in zip(out, new, strict=True)
    )

  zeros_WX = jnp.zeros(targets_WX.shape, jnp.float32)
  return jax.lax.fori_loop(0, -(-count // size), one, (zeros_WX,) * 3)
