"""Targets of a run (`log.targets`): numbers that it should keep to.

Its report says of each target whether it was met; see README.md.
"""

from typing import Any

from rl_reason.base import feature
from rl_reason.base.fields import number, section


class _RunTargets(feature.Declaration):

  def fields(self, c) -> None:
    c.log.targets = section(  # the report says whether they were met; 0: none
        "log.targets",
        "RL",
        kl=number(0.0, low=0),  # actor/kl_old_new at most; nats per token
        entropy=number(0.0, low=0),  # actor/entropy at least; nats per token
        grad_norm=number(0.0, low=0),  # actor/grad_norm at most
    )

  def used(self, c) -> bool:
    return any(c.log.targets.values())

  def notes(self, lines: list[dict[str, Any]], f: dict[str, Any]) -> list[str]:
    from rl_reason.features.run_targets import judged

    return judged.sentences(lines, f)


FEATURE = _RunTargets()
