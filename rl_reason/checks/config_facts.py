"""Facts that follow from a config: what it has, reads, samples and fetches."""

import math
from collections.abc import Iterable
from typing import Any

import ml_collections

from rl_reason import tasks, verifiers
from rl_reason.base import config, feature, functions
from rl_reason.checks import own_functions
from rl_reason.configs.base import ESTIMATORS
from rl_reason.data import datasets, known_sets
from rl_reason.devices import axes
from rl_reason.tasks import reward_terms


def mixture(text: str) -> dict[str, float]:
  """'careful:1,direct:4' -> {'careful': 1.0, 'direct': 4.0}.

  Raises:
    ValueError: the text has another form.
  """
  try:
    pairs = [part.split(":") for part in text.split(",")]
    out = {style.strip(): float(weight) for style, weight in pairs}
  except ValueError:
    out = {}
  if min(out.values(), default=-1) < 0 or not sum(out.values()) > 0:
    raise ValueError("must look like 'careful:1,direct:4'")
  return out


def styles(text: str, task: Any) -> dict[str, float]:
  """The mixture of styles of a task; '' is all of its styles, equally often."""
  return mixture(text) if text else dict.fromkeys(task.STYLES, 1.0)


def revisions(c) -> dict[str, str]:
  """Revisions of repositories on the hub, by their ids.

  Raises:
    ValueError: the text of hub.revisions has another form.
  """
  items = [x.strip() for x in c.hub.revisions.split(",") if x.strip()]
  pairs = [[y.strip() for y in x.split("=")] for x in items]
  if any(len(pair) != 2 or not all(pair) for pair in pairs):
    raise ValueError("must look like 'OWNER/REPOSITORY=REVISION,...'")
  out = dict(pairs)
  if len(out) < len(pairs):
    raise ValueError("names a repository twice")
  return out


def revision(c, repository: str) -> str | None:
  """The revision of a repository on the hub; None is the newest."""
  return revisions(c).get(repository)


def advantage_inputs(c) -> tuple[str, ...]:
  """Inputs of the advantage, by name."""
  return functions.signature("advantage", c.advantage.name).inputs


def has_critic(c) -> bool:
  """Whether the advantage is computed from values."""
  return "values_BT" in advantage_inputs(c)


def batch_options(c) -> dict[str, bool]:
  """Keywords of `step.train_batch`, of the policy."""
  inputs = set(functions.signature("surrogate", c.surrogate.name).inputs)
  inputs.update(*(x.inputs for x in own_functions.terms(c)))
  # The old log-probs of one on-policy update are the sampler's.
  reads_sampler = "sampler_logps_BT" in inputs and not on_policy(c)
  return dict(mask_truncated=c.loss.mask_truncated, reads_sampler=reads_sampler)


def reads_squares(c) -> bool:
  """Whether the advantage reads sums of squared probabilities."""
  return "squares_BT" in advantage_inputs(c)


def type_field(c) -> str:
  """The field that depends on the type of problems; '' if none."""
  if c.advantage.groups == "type":
    return "advantage.groups"
  if "types_B" in advantage_inputs(c):
    return "advantage.name"
  return next(iter(feature.marked("types", c)), "")


def hardest(c) -> float:
  """Complexity from which on problems count as equally hard; inf without."""
  if c.advantage.name != "gae_exp_complexity":
    return math.inf
  return functions.arguments("advantage", c.advantage)["hardest"]


def differ(c, types: Iterable[str]) -> bool:
  """Whether problems of these types differ for the function that reads them."""
  if c.rollout.types == "difficulty":
    return len({min(int(x), hardest(c)) for x in types}) > 1
  return len(set(types)) > 1


# Advantages that are the deviation of the reward from the mean of its group, up
# to a scale of the group; and those that are linear in the reward.
DEVIATIONS = "group_mean", "group_norm", "group_mean_batch_std", "leave_one_out"
LINEAR = (
    *("returns_to_go", "gae", "gae_length_adaptive", "gae_exp_complexity"),
    *("opo", "optimal_token_baseline", "length_weighted", "quality_weighted"),
)


def shares_advantage(c) -> str:
  """How a plain sum of several rewards says the share of each in the advantage.

  Returns:
    'deviation' or 'linear', as above; '' if it does not. `gdpo` says the shares
    of its own terms.
  """
  labels = [x.label for x in reward_terms.terms(c.reward.functions)]
  several = (
      c.reward.process == "none"
      and len({*labels, "outcome"}) == len(labels) + 1  # names of metrics
      and len(labels) + (not no_verifier(c)) > 1
  )
  if several and c.advantage.name in DEVIATIONS:
    return "deviation"
  # Rewards of a judge may stand at any token, a KL in the reward stands at
  # each, and a tail without a baseline is not linear.
  a = c.advantage
  other = c.kl.place == "reward" and estimates_kl(c)
  other = other or a.args.get("zero_tail") or feature.judge(c)
  return "linear" if several and a.name in LINEAR and not other else ""


def discount(c) -> float:
  """Discount of the critic's targets: the discount of the advantage, or 1."""
  return functions.arguments("advantage", c.advantage).get("gamma", 1.0)


def on_policy(c) -> bool:
  """Whether the update itself computes the old log-probs, without a pass.

  With one optimizer step a rollout the old log-probs are those that the update
  starts from, unless something before the update reads them or their entropy.
  """
  inputs = set(advantage_inputs(c))
  early = bool({"logps_BT", "entropy_BT", "squares_BT"} & inputs)
  early |= any(one.early_logps(c) for one in feature.used(c))
  kl = c.kl.kind != "none" and c.kl.place == "reward"
  return not (off_policy_fields(c) or early or kl)


def estimates_kl(c) -> bool:
  """Whether the KL to the reference is estimated from the sampled tokens."""
  return c.kl.kind in ESTIMATORS


def compares_with_start(c) -> bool:
  """Whether a KL compares with the policy that RL starts from."""
  return c.kl.kind != "none" and not feature.said(c, "other_reference")


def off_policy_fields(c) -> dict[str, int]:
  """The fields that let updates see rows of a policy before the newest one.

  They are the sources of such rows, and all updates of a step but the first.

  Returns:
    the fields of this config, and the values without such rows.
  """
  values = {"updates.minibatches": 1, "updates.epochs": 1}
  found = {name: x for name, x in values.items() if config.at(c, name) != x}
  return found | dict.fromkeys(feature.set_fields(c, "older_policy"), 0)


def mesh_axes(c) -> dict[str, int]:
  """Axes of the mesh that learns, as they are configured."""
  return {name: c.mesh[name] for name in axes.NAMES if name in c.mesh}


def samplers(c) -> int:
  """Devices that only sample."""
  return sum(feature.set_fields(c, "samplers").values())


def older_rows(c) -> int:
  """Rows of a batch that are of earlier steps."""
  groups = sum(feature.set_fields(c, "older_groups").values())
  return groups * c.rollout.group_size


def lag(c) -> int:
  """RL steps, at most, from the policy that samples a batch to its update."""
  return sum(feature.set_fields(c, "lag").values())


def packed_rows(c, num_shards: int = 1) -> int:
  """Packed rows of a micro-batch: as many as the token budget holds, or one.

  Args:
    c: the config.
    num_shards: shards of the rows; each has a token budget of its own.
  """
  return num_shards * max(c.updates.token_budget // row_slots(c), 1)


def unshared_prompts(c) -> str:
  """Why packed rows cannot hold the prompt of a group once; '' if they can.

  Kernels of attention are another reason.
  """
  for name, why in feature.said(c, "unshared").items():
    return f"{why} ({name})"
  if packed_rows(c) < 2:
    return "updates.token_budget holds a single row of maximal length"
  return ""


def saves_tokens(c) -> bool:
  """Whether prompts that occur once save a fifth of the tokens of full rows.

  For as many tokens, attention to shared prompts takes longer.
  """
  r, rows = c.rollout, min(c.rollout.group_size, packed_rows(c))
  return 5 * (rows - 1) * r.max_prompt >= rows * row_slots(c)


def longest_prompts(c) -> dict[str, int]:
  """Tokens of the longest prompts that models read in training, by field."""
  found = {"rollout.max_prompt": c.rollout.max_prompt}
  for one in feature.used(c):
    found |= one.prompts(c)
  return found


def row_slots(c) -> int:
  """Tokens of a packed row of RL."""
  return max(longest_prompts(c).values()) + c.rollout.max_tokens


def most_slots(c) -> int:
  """Responses that decode at a time in RL; 0: all of an evaluation, too."""
  if feature.judge(c):
    return c.rollout.slots
  return c.rollout.slots or c.dynamic_sampling.batches * c.rollout.batch


def sources(c, use: str) -> list:
  """The sources of data.train or data.evaluate, with their weights."""
  return datasets.parse_all(c.data[use], dict(evaluate="test").get(use, use))


def kind_of_rows(c, source: datasets.Source) -> str:
  """The verifier of the rows of a source; 'none' without."""
  known = datasets.KNOWN.get(source.name)
  return known.kind if known else datasets.kind_of(c.data.kind, source)


def unverified(c) -> list[bool]:
  """Whether each source of training rows has no verifier."""
  if feature.judge(c):
    return [False]
  if c.task.name != tasks.FILES:
    return [not tasks.get(c.task.name).verifies]
  return [
      kind_of_rows(c, source) == verifiers.NONE
      for source, _ in sources(c, "train")
  ]


def no_verifier(c) -> bool:
  """Whether nothing says which responses are correct."""
  found = unverified(c)
  return bool(found) and all(found)


def two_valued(c) -> bool:
  """Whether every response has one of two rewards."""
  r = c.reward
  return (
      not feature.judge(c)
      and r.outcome.name == "correctness"
      and r.length_penalty.name == "none"
      and r.truncated == "terminal"
      and not (r.overlong_buffer and r.overlong_coef)
      and not r.functions
      and c.kl.place == "loss"
  )


def by_verdict(c) -> bool:
  """Whether the verdict on a response is part of its reward."""
  r = c.reward
  equal = r.outcome.name == "correctness" and r.correct == r.incorrect
  return bool(feature.judge(c)) or not equal


def has_types(c) -> bool:
  """Whether training rows may have the type that rollout.types names."""
  if c.task.name != tasks.FILES or c.rollout.types != "difficulty":
    return True
  no_difficulty = known_sets.Known._field_defaults["difficulty"]
  known = [known_sets.KNOWN.get(x.name) for x, _ in sources(c, "train")]
  return any(x is None or x.difficulty is not no_difficulty for x in known)


def reward_models(c) -> list[str]:
  """Reward models that reward.functions names, also as rules."""
  terms = reward_terms.terms(c.reward.functions)
  return [name for x in terms for name in reward_terms.models_of(x.name)]


def sft_steps(c) -> int:
  """Steps of SFT."""
  return 0 if c.sft.reuse else c.sft.steps + c.sft.habits.steps


def learns(c) -> bool:
  """Whether the config sets steps of RL or SFT, also if SFT is reused."""
  return bool(c.rl.steps or c.sft.steps or c.sft.habits.steps)


def by_reward(c) -> bool:
  """Whether a group has signal if its rewards differ, correct or not."""
  signal = c.dynamic_sampling.signal
  not_rewarded = c.reward.correct == c.reward.incorrect
  return signal == "reward" or (
      signal == "auto" and (not_rewarded or any(unverified(c)))
  )


def mesh_sizes(c: ml_collections.ConfigDict, devices: int) -> dict[str, int]:
  """Sizes of the axes of the mesh; -1 takes the devices that others leave."""
  return axes.fill(mesh_axes(c), devices - samplers(c))
