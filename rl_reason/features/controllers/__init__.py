"""Adaptive controllers of the coefficients of the KL and of the entropy bonus.

`kl.controller` and `loss.entropy_controller` name a function that moves a
coefficient from step to step towards a target; see README.md.
"""

from collections.abc import Iterator

from rl_reason.base import feature
from rl_reason.base.fields import function
from rl_reason.base.function_kinds import Kind

_MOVES = "moves the coefficient of the next step, and not of this"


class _Controllers(feature.Declaration):
  kinds = {
      "kl_controller": Kind(
          "kl.controller",
          ("features.controllers.adaptive",),
          ("coef", "kl", "rows"),
          off="fixed",
          aliases={"adaptive": "adaptive_kl"},
      ),
      "entropy_controller": Kind(
          "loss.entropy_controller",
          ("features.controllers.adaptive",),
          ("coef", "entropy"),
          off="fixed",
          aliases={"adaptive": "adaptive_entropy"},
      ),
  }
  marks = {
      "other_names": {"kl_ctrl": "kl.controller.name"},
      "not_replayed": {
          "kl.controller.": _MOVES,
          "loss.entropy_controller.": _MOVES,
      },
  }
  remedies = {
      "Entropy collapse": (
          "loss.entropy_controller.name 'adaptive' with the early entropy as"
          " `target`"
      ),
      "Drift from the initial policy": (
          "kl.controller.name 'adaptive' with a smaller `horizon`"
      ),
  }

  def fields(self, c) -> None:
    # adaptive: to a target KL
    c.kl.controller = function("kl_controller", needs="kl.kind")
    c.loss.entropy_controller = function("entropy_controller")  # adaptive

  def used(self, c) -> bool:
    return bool(self.coefs(c))

  def coefs(self, c) -> set[str]:
    moved = {
        "kl": c.kl.controller.name,
        "entropy": c.loss.entropy_controller.name,
    }
    return {name for name, x in moved.items() if x != "fixed"}

  def rules(self, c) -> Iterator[feature.Rule]:
    if c.kl.kind == "full" and "kl" in self.coefs(c):
      yield "kl.controller.name", (
          "reads the KL before the update, and the full KL is computed in it:"
          " use 'fixed', or another kl.kind"
      )

  def early_logps(self, c) -> bool:
    return "entropy" in self.coefs(c) or c.kl.kind != "none"

  def start(self, c, loop: feature.Loop) -> feature.Part:
    from rl_reason.features.controllers import steering

    return steering.Controllers(c)


FEATURE = _Controllers()
