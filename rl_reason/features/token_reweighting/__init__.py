"""Tokens that count more or less: by their entropy, or the response's length.

`loss.top_entropy` and `loss.length_alpha`; see README.md.
"""

import functools
from collections.abc import Callable

from rl_reason.base import config, feature
from rl_reason.base.fields import number


class _TokenReweighting(feature.Declaration):
  marks = {
      "other_names": {"top_entropy_quantile": "loss.top_entropy"},
  }

  def fields(self, c) -> None:
    config.extend(
        c,
        "loss",
        # (length / median)^-alpha.
        length_alpha=number(0.0, low=0, high=0.5, needs="RL"),
        # Share of tokens, by entropy.
        top_entropy=number(1.0, low=1e-9, high=1, needs="RL"),
    )

  def used(self, c) -> bool:
    return c.loss.length_alpha > 0 or c.loss.top_entropy < 1

  def early_logps(self, c) -> bool:
    return c.loss.top_entropy < 1

  def reduction(self, c, reduction: Callable) -> Callable:
    from rl_reason.features.token_reweighting import token_factors

    if not c.loss.length_alpha:
      return reduction
    return functools.partial(
        token_factors.by_length,
        reduction=reduction,
        alpha=c.loss.length_alpha,
    )

  def adjustment(self, c) -> Callable | None:
    from rl_reason.features.token_reweighting import token_factors

    if c.loss.top_entropy == 1:
      return None
    return functools.partial(
        token_factors.of_high_entropy, share=c.loss.top_entropy
    )


FEATURE = _TokenReweighting()
