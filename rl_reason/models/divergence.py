"""The divergence of two models over the vocabulary, at each response token.

Logits of both models exist for one chunk of positions at a time, also in the
backward pass. The models need the same tokens, but not the same shape.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from rl_reason.algorithms import kl
from rl_reason.base.structs import Array, Packed, Tree
from rl_reason.models import decoder


def chunked(
    ref_cfg: decoder.ModelConfig,
    beta: float,
    reference: Tree,
    packed: Packed,
    take: Callable[[Array], Array],
    cfg: decoder.ModelConfig,
    temperature: float,
    head: Tree,
    hidden_WXD: Array,
    targets_WX: Array,
    count: Array,
) -> tuple[Array, Array, Array]:
  """Log-probs, entropy and divergence from a reference: `compare` of a policy.

  Args:
    ref_cfg: static shape of the reference.
    beta: of `kl.full`.
    reference: parameters of the reference; no gradient.
    packed: the rows; the reference reads `packed.reference`, if there is one.
    take: puts arrays [R, L, ...] into the order of hidden_WXD.
    cfg: static shape of the policy, as all that follows, of
      `decoder.packed_logps`.
    temperature: of both softmaxes.
    head: the output matrix, by its name.
    hidden_WXD: the states of the policy.
    targets_WX: the tokens that they predict.
    count: positions of a shard that predict a response token.

  Returns:
    [W, X] each, 0 beyond `count`.
  """
  reference = jax.lax.stop_gradient(reference)
  read = packed if packed.reference is None else packed.reference
  theirs_RLD, _ = decoder.hidden(reference, ref_cfg, read)
  name = "embed" if ref_cfg.tied else "head"
  fixed = {name: reference[name]}, take(theirs_RLD), targets_WX, count
  how = cfg, ref_cfg, temperature, beta
  return _chunked(how, head, hidden_WXD, fixed)


def _of_chunk(how, head, hidden_XD, ref_head, theirs_XD, target_X):
  """Log-probs, entropy and divergence of the positions of a chunk."""
  cfg, ref_cfg, temperature, beta = how

  # Padding of the vocabulary has probability 0, and may differ in length. Equal
  # models have equal bits, as `decoder` computes them.
  def log_probs(head, cfg, hidden_XD):
    logits_XV = decoder.logits(head, cfg, hidden_XD)[:, :tokens] / temperature
    return logits_XV - jax.nn.logsumexp(logits_XV, -1, keepdims=True)

  tokens = cfg.tokens or cfg.vocab
  logps_XV = log_probs(head, cfg, hidden_XD)
  ref_logps_XV = log_probs(ref_head, ref_cfg, theirs_XD)
  probs_XV = jnp.exp(logps_XV)
  possible_XV = jnp.where(probs_XV > 0, logps_XV, 0)  # it may be -inf elsewhere
  return (
      jnp.take_along_axis(logps_XV, target_X[:, None], 1)[:, 0],
      -jnp.sum(probs_XV * possible_XV, -1),
      kl.full(logps_XV, ref_logps_XV, beta=beta),
  )


# As in `decoder`, the loops end after the last position with a response token,
# which autodiff of a loop does not allow: each chunk is differentiated.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chunked(how, head, hidden_WXD, fixed):
  return _forward(how, head, hidden_WXD, fixed)[0]


def _forward(how, head, hidden_WXD, fixed):
  ref_head, theirs_WXD, targets_WX, count = fixed
  size = min(how[0].logprob_chunk, targets_WX.shape[1])

  def one(at, out):
    arrays = (hidden_WXD, theirs_WXD, targets_WX)
    own_XD, *others = (decoder.chunk(x, at, size) for x in arrays)
    new = _of_chunk(how, head, own_XD, ref_head, *others)
    return tuple(
        decoder.with_chunk(x, y, at, size)
        for x, y in zip(out, new, strict=True)
    )

  zeros_WX = jnp.zeros(targets_WX.shape, jnp.float32)
  out = jax.lax.fori_loop(0, -(-count // size), one, (zeros_WX,) * 3)
  return out, (head, hidden_WXD, fixed)


def _backward(how, saved, grads):
  head, hidden_WXD, (ref_head, theirs_WXD, targets_WX, count) = saved
  size = min(how[0].logprob_chunk, targets_WX.shape[1])

  def one(at, carry):
    head_grad, hidden_grad_WXD = carry
    own_XD, theirs_XD, target_X, *of_chunk = (
        decoder.chunk(x, at, size)
        for x in (hidden_WXD, theirs_WXD, targets_WX, *grads)
    )

    def fn(head, own_XD):
      return _of_chunk(how, head, own_XD, ref_head, theirs_XD, target_X)

    _, pull = jax.vjp(fn, head, own_XD)
    more, new_XD = pull(tuple(of_chunk))
    head_grad = jax.tree.map(jnp.add, head_grad, more)
    return head_grad, decoder.with_chunk(hidden_grad_WXD, new_XD, at, size)

  zeros = jax.tree.map(jnp.zeros_like, (head, hidden_WXD))
  return *jax.lax.fori_loop(0, -(-count // size), one, zeros), None


_chunked.defvjp(_forward, _backward)
