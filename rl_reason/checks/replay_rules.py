"""What a replay of a step may change: the credit and the update of its batch.

A replay samples the batch of the step again, as the run did. Fields that decide
how the run came to this step, or which responses are in its batch, therefore
stay as they are.
"""

from typing import Any

from rl_reason import features
from rl_reason.base import config as config_lib, feature, resume_rules
from rl_reason.base.errors import ConfigError
from rl_reason.base.fields import FIELDS
from rl_reason.checks import config_facts, rules
from rl_reason.tasks import reward_terms

# Fields of the machine, which change no number except for rounding.
MACHINE = (
    "mesh.",
    "model.path",
    "model.attention",
    "model.remat",
    "model.logprob_chunk",
    "optimizer.offload",
    "rollout.slots",
    "reward.workers",
    "reward.executor",
    "reward.timeout",
    "sft.reuse",
    "updates.token_budget",
)
# Fields that give the same batch another credit, or another update.
LEARNS = (
    "advantage.",
    "critic.lam",
    "kl.",
    "loss.",
    "optimizer.",
    "reduction.",
    "reward.",
    "surrogate.",
    "updates.",
)
# Fields among them, or close to them, that do something else -> the reason.
OTHERS = {
    "critic.": (
        "acts on the critic's own update or its beginning, and not on the"
        " gradient of the policy, which a replay compares"
    ),
    "reward.seconds": "may change verdicts, which the batch has already",
    "reward.shuffle": "permutes the verdicts of the batch as it is collected",
    "dynamic_sampling.": "decides which groups are in the batch of the step",
    "rollout.": "decides which responses are sampled",
}
LATER = ("checkpoint.", "evaluate.", "export.", "generate.", "log.", "serve.")


def learns() -> tuple[str, ...]:
  """`LEARNS`, and such fields of features."""
  return LEARNS + (*feature.marked("replayed"),)


def machine() -> tuple[str, ...]:
  """`MACHINE`, and such fields of features."""
  return MACHINE + (*feature.marked("machine"),)


def changes(own: dict[str, Any], c) -> dict[str, Any]:
  """The fields in which a config differs from the flat config of a run.

  Fields of the machine, and hashes of files, are left out.
  """
  before, now = resume_rules.complete(own), config_lib.flat(c)
  of_machine = machine()
  names = [
      x
      for x in {**before, **now}
      if (x in FIELDS or ".args" in x) and not x.startswith(of_machine)
  ]
  now = {name: _plain(now.get(name)) for name in names}
  return {
      name: now[name]
      for name in names
      if now[name] != _plain(before.get(name)) and now[name] is not None
  }


def _plain(value: Any) -> Any:
  return list(value) if isinstance(value, tuple) else value


def check(own, c) -> None:
  """Refuses a config that cannot have had the batch of a run.

  Args:
    own: the config of the run.
    c: with overrides.

  Raises:
    ConfigError: a line for each field that would change the batch, or that a
      replay does not read.
  """
  found = changes(config_lib.flat(own), c)
  lines = [
      rules.line(c, name, why)
      for name in found
      if (why := _why_not(own, c, name))
  ]
  for one in (own, c):
    for name, why in feature.said(one, "unreplayed").items():
      lines.append(rules.line(one, name, f"--stage=replay {why}"))
  if lines:
    raise ConfigError(*lines)


def _why_not(own, c, name: str) -> str:
  """Why a field cannot change in a replay; '' if it can."""
  takes = (
      "; --stage=replay gives the batch of the step another credit or another"
      f" update: {', '.join(f'{x}*' if x[-1] == '.' else x for x in learns())}"
  )
  credited = name.startswith(learns())
  others = OTHERS.copy()
  others |= dict.fromkeys(feature.marked("sampled"), others["rollout."])
  others |= feature.marked("not_replayed")
  for prefix, why in others.items():
    same = name == prefix or (prefix[-1] == "." and name.startswith(prefix))
    if same and not (prefix == "critic." and credited):
      return why + takes
  if name.startswith(LATER):
    return f"changes nothing that a replay shows{takes}"
  if not credited:
    return f"decides the policy or the prompts of the step{takes}"
  if name.startswith("reward."):
    return _why_not_reward(own, c, name)
  if name.startswith("advantage."):
    if config_facts.has_critic(c) and not config_facts.has_critic(own):
      return (
          "reads values of a critic, which the run does not have: train with it"
      )
    if any(one.used(c) and not one.used(own) for one in features.declared()):
      return "reads arrays that the run does not have: train with it"
  return ""


def _why_not_reward(own, c, name: str) -> str:
  """Why a field of the reward cannot change in a replay; '' if it can."""
  sampled = own.dynamic_sampling.enabled
  if sampled and (config_facts.by_reward(own) or name == "reward.truncated"):
    return (
        f"decides which groups have signal (dynamic_sampling.signal ="
        f" {own.dynamic_sampling.signal!r}), and so which are in the batch"
    )
  if name == "reward.process" and own.reward.process == "none":
    return "the run has not kept rewards of steps: train with it"
  if name == "reward.functions":
    before, now = (
        [x.name for x in reward_terms.terms(x.reward.functions)]
        for x in (own, c)
    )
    if before != now:
      return (
          "the responses of the batch are scored by"
          f" {own.reward.functions or 'no function'!r}: a replay may change the"
          " weights of these functions only"
      )
  return ""
