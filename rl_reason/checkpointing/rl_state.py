"""The complete state of an RL run, as one checkpoint saves it."""

import dataclasses
from typing import Any

import jax

from rl_reason.base.feature import Part
from rl_reason.base.structs import Rollouts, TrainState, Tree
from rl_reason.devices import sharding


@dataclasses.dataclass
class RLState:
  """The state of an RL run.

  Attributes:
    policy: learned parameters and optimizer of the policy.
    critic: of the critic; None without one.
    collector: `collect.RolloutCollector`; holds the prompt stream and the
      running statistics of reward models.
    coefs: coefficients in the loss, 'kl' and 'entropy', which a feature may
      move, and what it continues from.
    counters: totals of the run: generated 'tokens', 'flops'.
    mesh: where arrays are saved from and restored to.
    step: RL steps that are done.
    evaluated: the policy of this step was evaluated.
    certificate: `certificate.Certificate`, checksums of recent policies.
    parts: of the features of the run.
  """

  policy: TrainState
  critic: TrainState | None
  collector: Any
  coefs: dict[str, float]
  counters: dict[str, float]
  mesh: Any
  step: int = 0
  evaluated: bool = False
  certificate: Any = None
  parts: Part = dataclasses.field(default_factory=Part)

  def arrays(self) -> Tree:
    """The pytree of arrays, on the mesh."""
    return dict(
        policy=self.policy,
        critic=self.critic,
        **sharding.put(self.mesh, named(self.parts.arrays())),
    )

  def host(self) -> dict[str, Any]:
    """Everything else, as JSON."""
    # The parts first: what they wait for moves the stream of prompts.
    beside = self.parts.host()
    if scores := self.collector.rewards.get_state():
      beside["scores"] = scores
    return beside | dict(
        prompts=self.collector.prompts.get_state(),
        coefs=self.coefs,
        counters=self.counters,
        evaluated=self.evaluated,
        certificate=self.certificate.host(),
    )

  def restore(self, arrays: Tree, host: dict[str, Any]) -> None:
    """Restores a saved state.

    Raises:
      RunError: a part cannot go on from it.
    """
    self.policy, self.critic = arrays["policy"], arrays["critic"]
    arrays = unnamed(arrays)
    of_parts = {name: arrays[name] for name in self.parts.arrays()}
    self.parts.restore(sharding.fetch(of_parts), host)
    self.collector.prompts.set_state(host["prompts"])
    self.collector.rewards.set_state(host.get("scores", {}))
    self.coefs, self.counters = host["coefs"], host["counters"]
    self.evaluated = host["evaluated"]
    self.certificate.restore(host.get("certificate", {}))


# The name of Rollouts.record in checkpoints.
RECORD = "routes_BLZ"


def named(arrays: Tree) -> Tree:
  """Arrays under their names in checkpoints: rollouts as dicts."""

  def fields(x):
    if not isinstance(x, Rollouts):
      return x
    found = {f.name: getattr(x, f.name) for f in dataclasses.fields(x)}
    return found | {RECORD: found.pop("record")}

  return jax.tree.map(fields, arrays, is_leaf=lambda x: isinstance(x, Rollouts))


def unnamed(arrays: Tree) -> Tree:
  """The inverse of `named`."""

  def is_rollouts(x):
    return isinstance(x, dict) and RECORD in x

  def rollouts(x):
    if not is_rollouts(x):
      return x
    return Rollouts(**{k if k != RECORD else "record": v for k, v in x.items()})

  return jax.tree.map(rollouts, arrays, is_leaf=is_rollouts)
