"""Filters of the next token: top-k, top-p, min-p, and a repetition penalty.

They are applied in the order of vLLM: repetition penalty, temperature, min-p,
top-k, top-p, each to what the filters before it have left. Transformers applies
min-p last, which keeps other tokens only if both min-p and top-p are set. The
log-probs that a sampler returns are those before all filters.

Shapes here: B decode slots; R rows of the queue, one response each; V tokens of
the vocabulary; L tokens of a prompt and its response.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from rl_reason.base.structs import Array

Parameter = Any  # a number, or an array with a number for each row
NO_TOKEN = 2**31 - 1  # an index beyond any vocabulary


class Filters(NamedTuple):
  """Parameters of the filters; each is off by default.

  A number that is off adds nothing to a program. Of arrays, the program has all
  filters, and executes those that are on in any row.

  Attributes:
    top_k: keeps the k likeliest tokens, and tokens as likely as the last of
      them; 0 keeps all.
    top_p: > 0, keeps the smallest set of the likeliest tokens with this share
      of the mass, at least the likeliest token; 1 keeps all.
    min_p: keeps tokens with at least this share of the probability of the
      likeliest token; 0 keeps all.
    repetition_penalty: > 0, divides the positive logits of the tokens of the
      prompt and of the response so far, and multiplies the negative ones; 1 is
      off. The only filter that also changes a greedy token.
  """

  top_k: Parameter = 0
  top_p: Parameter = 1.0
  min_p: Parameter = 0.0
  repetition_penalty: Parameter = 1.0

  @property
  def reads_tokens(self) -> bool:
    """Whether the repetition penalty is on, which reads the tokens so far."""
    return jnp.ndim(self.repetition_penalty) > 0 or self.repetition_penalty != 1

  def of_rows(self, row_B: Array) -> Self:
    """The parameters of some rows."""
    return type(self)(*(x[row_B] if jnp.ndim(x) else x for x in self))

  def penalize(
      self, logits_BV: Array, queue: Any, row_B: Array, t_B: Array
  ) -> Array:
    """The logits after the repetition penalty.

    A temperature may divide the logits before or after the penalty.

    Args:
      logits_BV: float32.
      queue: a `decode_loop.Queue`, which has the tokens.
      row_B: row of the queue in each slot.
      t_B: tokens of each response so far.
    """
    penalty = self.repetition_penalty

    def penalized(logits_BV):
      at = jnp.arange(len(row_B))[:, None], _tokens(queue, row_B, t_B)
      # A token that occurs twice is written twice, with the same number.
      seen_BL = logits_BV.at[at].get(mode="fill", fill_value=0)
      divisor = penalty[:, None] if jnp.ndim(penalty) else penalty
      seen_BL = jnp.where(seen_BL < 0, seen_BL * divisor, seen_BL / divisor)
      return logits_BV.at[at].set(seen_BL, mode="drop")

    return _where_on(penalty != 1, penalized, logits_BV)

  def truncate(self, probs_BV: Array) -> Array:
    """Probabilities with zeros for the tokens that min-p, top-k, top-p drop."""
    k, p, least = self.top_k, self.top_p, self.min_p
    cut = (least > 0) | (k > 0)

    def top_k(probs_BV):
      return _likeliest(
          probs_BV, jnp.ones_like(probs_BV), jnp.where(k > 0, k, jnp.inf)
      )

    def top_p(probs_BV):
      # Of the mass that is left. A row whose tokens are all left has the mass
      # 1, and not the rounded sum: its nucleus does not depend on other rows.
      mass_B = jnp.where(cut, probs_BV.sum(-1), 1)
      return _likeliest(
          probs_BV, probs_BV, jnp.where(p < 1, p * mass_B, jnp.inf)
      )

    def min_p(probs_BV):
      most_B = probs_BV.max(-1)
      return jnp.where(probs_BV < (least * most_B)[:, None], 0, probs_BV)

    probs_BV = _where_on(least > 0, min_p, probs_BV)
    probs_BV = _where_on(k > 0, top_k, probs_BV)
    return _where_on(p < 1, top_p, probs_BV)


NONE = Filters()


def of(section: Any) -> Filters | None:
  """The filters of a section of the config; None if all are off."""
  filters = Filters(*(section[name] for name in Filters._fields))
  return None if filters == NONE else filters


def _where_on(
    on: bool | Array, apply: Callable[[Array], Array], x_BV: Array
) -> Array:
  """`apply(x_BV)` if the filter is on, in a program or in any row."""
  if jnp.ndim(on):
    return jax.lax.cond(jnp.any(on), apply, lambda x: x, x_BV)
  return apply(x_BV) if on else x_BV


def _tokens(queue: Any, row_B: Array, t_B: Array) -> Array:
  """Tokens of prompt and response so far: [B, L]; else NO_TOKEN."""
  prompt_B = queue.prompt_R[row_B]
  parts = (
      (queue.prompts_NP[prompt_B], queue.length_N[prompt_B]),
      (queue.tokens_RT[row_B], t_B),
  )
  return jnp.concatenate(
      [
          jnp.where(jnp.arange(x.shape[1]) < length[:, None], x, NO_TOKEN)
          for x, length in parts
      ],
      1,
  )


def _likeliest(probs_BV: Array, weights_BV: Array, limit_B: Array) -> Array:
  """Probabilities, with zeros for tokens beyond a limit; [B, V].

  A token stays if all likelier tokens have less weight than the limit. A
  bisection over the bits of a probability, which have the order of the
  probabilities, finds the threshold: sums over a vocabulary are faster than a
  sort.
  """
  bits_BV = jax.lax.bitcast_convert_type(probs_BV, jnp.int32)

  def halve(_, ends):
    low_B, high_B = ends
    middle_B = (low_B + high_B) // 2
    likelier_BV = jnp.where(bits_BV > middle_B[:, None], weights_BV, 0)
    below_B = likelier_BV.sum(-1) < limit_B
    low_B = jnp.where(below_B, low_B, middle_B)
    return low_B, jnp.where(below_B, middle_B, high_B)

  one = jnp.full(len(probs_BV), 0x3F800000, jnp.int32)  # the bits of 1.0
  _, least_B = jax.lax.fori_loop(0, 30, halve, (jnp.full_like(one, -1), one))
  return jnp.where(bits_BV >= least_B[:, None], probs_BV, 0)
