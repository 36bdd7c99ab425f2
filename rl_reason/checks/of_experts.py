"""Fields of mixtures of experts: what they go with, and what refuses them."""

from rl_reason.base import config
from rl_reason.checks import facts
from rl_reason.checks.combinations import fail
from rl_reason.checks.facts import environment

# Fields that do nothing without experts -> their defaults.
OF_EXPERTS = {
    "mesh.expert": 1,
    "rollout.replay_routing": False,
    "loss.router_aux": 0.0,
}


def check(c) -> None:
  """Mixture of experts; model.path has given the shape.

  Raises:
    Fault: what goes with no experts, or not with experts.
  """
  m, r = c.model, c.rollout
  if not m.experts:
    for name, off in OF_EXPERTS.items():
      if config.at(c, name) != off:
        fail(f"{name}: the model has no experts (model.experts): leave it out")
    return
  if m.experts_per_token > m.experts:
    fail(
        "model.experts_per_token: must not exceed model.experts ="
        f" {m.experts}"
    )
  if m.mlp_bias:
    fail("model.mlp_bias: experts have no biases: leave it out")
  if m.experts % c.mesh.expert:
    fail(f"mesh.expert: must divide model.experts = {m.experts}")
  if m.remat == "auto":
    fail("model.remat: no formula counts the memory of experts: name one")
  if c.lora.rank and {"gate", "up", "down"} & {*facts.lora_targets(c)}:
    fail("lora.targets: experts have no factors: use 'q,k,v,o'")
  if r.replay_routing:
    remedy = "leave it out, or set rollout.replay_routing = False"
    if r.partial_groups:
      fail(
          "rollout.partial_groups: what an older policy chose in a response"
          f" is not kept: {remedy}"
      )
    if r.engine.name != "own":
      fail(f"rollout.engine.name: engines return no routes: {remedy}")
    if environment(c):
      fail(
          "rollout.replay_routing: not recorded over several turns: leave it"
          " out for environments"
      )
    if facts.has_history(c):
      fail(f"advantage.name: no routes are kept of earlier steps: {remedy}")
