"""The divergence of two models over the vocabulary, at each response token.

Logits of both models exist for one chunk of positions at a time, also in the
backward pass. The models need the same tokens, but not the same shape.
"""

import functools
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_reason.algorithms import reductions
from rl_reason.algorithms.objective import Term
from rl_reason.base.structs import Array, Packed, Tree
from rl_reason.models import decoder


def full(logps_XV: Array, ref_logps_XV: Array, *, beta: float = 1.0) -> Array:
  """The divergence of policy p and reference q over the whole vocabulary.

  The generalized Jensen-Shannon divergence of GKD (arXiv:2306.13649, sec 2),
  beta KL(q || m) + (1 - beta) KL(p || m) with m = beta q + (1 - beta) p. At
  both ends of beta it would be 0; as in TRL, beta 0 is the forward KL(q || p)
  and beta 1 the reverse KL(p || q).

  The gradient by log p is written by hand. It leaves out multiples of p, which
  normalized log-probs cancel: where p = q it is exactly 0.

  Args:
    logps_XV: [X, V] of the policy.
    ref_logps_XV: [X, V] of the reference; no gradient.
    beta: in [0, 1].

  Returns:
    [X], in nats.
  """
  chex.assert_equal_shape([logps_XV, ref_logps_XV])
  fixed_XV = jax.lax.stop_gradient(logps_XV)
  p_XV, q_XV = jnp.exp(fixed_XV), jnp.exp(ref_logps_XV)
  # A token that both exclude (a logit of -inf) adds 0 to all.
  none_XV = jnp.isneginf(fixed_XV) & jnp.isneginf(ref_logps_XV)
  ratio_XV = jnp.where(none_XV, 0, ref_logps_XV - fixed_XV)  # log q / p
  if beta == 1:
    value_XV = slope_XV = jnp.where(p_XV > 0, -p_XV * ratio_XV, 0)
  elif beta == 0:
    value_XV = jnp.where(q_XV > 0, q_XV * ratio_XV, 0)
    slope_XV = p_XV - q_XV
  else:
    ratio_XV = jnp.clip(ratio_XV, -80, 80)  # exp(80) fits into float32
    mixed_XV = jnp.log1p(beta * jnp.expm1(ratio_XV))  # log m / p
    slope_XV = -(1 - beta) * p_XV * mixed_XV
    value_XV = beta * q_XV * (ratio_XV - mixed_XV) + slope_XV
  slope_XV = jax.lax.stop_gradient(slope_XV)
  change_XV = jnp.where(jnp.isneginf(fixed_XV), 0, logps_XV - fixed_XV)
  return jnp.sum(value_XV + slope_XV * change_XV, -1)


def full_kl(full_kl_BT: Array) -> Array:
  """`full` of the tokens of responses."""
  return full_kl_BT


# The term of the loss, and its mean over tokens.
TERMS = (
    Term("kl_loss", full_kl, "kl"),
    Term("kl/reference", full_kl, 0, reductions.token_mean),
)


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
    beta: of `full`.
    reference: parameters of the reference; no gradient.
    packed: the rows; the reference reads `packed.further`, if there is any.
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
  read = packed if packed.further is None else packed.further
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
      full(logps_XV, ref_logps_XV, beta=beta),
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
