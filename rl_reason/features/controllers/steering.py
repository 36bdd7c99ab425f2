"""Coefficients of the loss that follow measurements of a step."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from rl_reason.base import feature, functions
from rl_reason.base.structs import Array


class Controllers(feature.Part):
  """The controllers of a run; what they move is in `state.coefs`.

  Args:
    c: the config.
  """

  def __init__(self, c):
    self._steer = functools.partial(
        steer,
        rows=c.rollout.batch,
        kl_controller=functions.bind("kl_controller", c.kl.controller),
        entropy_controller=functions.bind(
            "entropy_controller", c.loss.entropy_controller
        ),
    )

  def after(self, state, rows, credit: dict, entropy_BT) -> None:
    """Moves the coefficients of the next step."""
    mask_BT = rows.rollouts.mask_BT
    state.coefs = self._steer(state.coefs, mask_BT, entropy_BT, credit)


def steer(
    coefs: dict[str, float],
    mask_BT: Array,
    entropy_BT: Any,
    credit: dict[str, Any],
    *,
    rows: int,
    kl_controller: Callable[..., float] | None,
    entropy_controller: Callable[..., float | tuple[float, float]] | None,
) -> dict[str, float]:
  """The coefficients of the next step, from the measurements of this step.

  A step without a response whose reward is known moves no coefficient. Without
  a controller (None), its coefficient is fixed. An entropy controller may
  return a second number, the coefficient in the loss of the next step.
  """
  out = dict(coefs)
  mask_BT = mask_BT & np.isfinite(credit["rewards_B"])[:, None]
  if not mask_BT.any():
    return out
  if kl_controller is not None:
    measured = float(credit["metrics"]["kl/reference"])
    out["kl"] = kl_controller(coefs["kl"], measured, rows)
  if entropy_controller is not None:
    entropy = float(entropy_BT[mask_BT].mean())
    coef = coefs.get("entropy_controlled", coefs["entropy"])
    found = entropy_controller(coef, entropy)
    pair = found if isinstance(found, tuple) else (found, found)
    out["entropy_controlled"], out["entropy"] = pair
  return out
