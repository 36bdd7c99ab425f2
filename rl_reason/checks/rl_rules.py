"""Rules of RL: sampling, rewards, advantages, the loss, and rounds."""

from collections.abc import Iterator

from rl_reason.base.config import at
from rl_reason.checks import facts
from rl_reason.checks.rules import Rule, reading
from rl_reason.tasks import given, reward_terms


def rollouts(c) -> Iterator[Rule]:
  """Sampling, and dynamic sampling."""
  r, d = c.rollout, c.dynamic_sampling
  prompts = r.batch // r.group_size
  models = facts.reward_models(c)
  yield (
      "rollout.top_p",
      r.top_p < 1 and not r.allow_top_p,
      "stored log-probs are those before top-p: training would be off-policy;"
      " use 1.0, or set rollout.allow_top_p=True",
  )
  yield (
      "rollout.group_size",
      r.batch % r.group_size,
      f"must divide rollout.batch = {r.batch}",
  )
  # A group split over two minibatches would have two sets of token weights.
  yield (
      "updates.minibatches",
      prompts % c.updates.minibatches,
      f"must divide the {prompts} prompts of a batch: groups stay whole",
  )
  compares = "groups_B" in facts.advantage_inputs(c)
  by_prompt = compares and c.advantage.groups == "prompt"
  yield (
      "rollout.group_size",
      r.group_size == 1 and c.rl.steps and by_prompt,
      f"{c.advantage.name} compares the responses to one prompt: use 2 or more,"
      " or advantage.groups = 'batch'",
  )
  least = at(c, "rollout.group_sizes.args").get("least", 0)
  yield (
      "rollout.group_sizes.args.least",
      least > r.group_size,
      f"must not exceed rollout.group_size = {r.group_size}",
  )
  yield (
      "dynamic_sampling.enabled",
      d.enabled and r.group_size == 1,
      "a group of one is all correct or all incorrect: rollout.group_size must"
      " be > 1",
  )
  yield (
      "dynamic_sampling.batches",
      d.batches > 1 and models,
      "a round is then larger than the batch that reward models score: leave it"
      " at 1",
  )


def partial_groups(c) -> Iterator[Rule]:
  """Unfinished groups wait in slots of the sampler until the next round."""
  r, name = c.rollout, "rollout.partial_groups"
  if not r.partial_groups:
    return
  slots = r.slots or r.batch
  yield (
      name,
      r.partial_groups * r.group_size > slots,
      f"{r.partial_groups} groups of {r.group_size} do not fit into"
      f" {slots} slots",
  )
  yield (
      name,
      facts.reward_models(c),
      "reward models score whole batches, and rounds then have any number of"
      " rows",
  )
  yield (
      name,
      not r.partial_across_steps and facts.by_reward(c),
      "whether another round follows depends on which responses are correct:"
      " not with dynamic_sampling.signal = 'reward', or without a verifier",
  )


def engine(c) -> Iterator[Rule]:
  """What samples: our sampler, devices of its own, or another engine."""
  other = c.rollout.engine.name != "own"
  for name in ("weights", "cache", "partial_groups"):
    value = c.rollout[name]
    yield (
        f"rollout.{name}",
        other and value not in ("same", 0),
        f"{value!r} is for our own sampler: leave it, or set"
        " rollout.engine.name = 'own'",
    )
  yield (
      "mesh.rollout",
      c.mesh.rollout and other,
      "the engine has devices of its own: leave it at 0",
  )
  yield (
      "mesh.rollout",
      c.mesh.rollout and facts.reward_models(c),
      "reward models score evaluations, too, which only the devices that learn"
      " sample: leave it at 0",
  )


def rewards(c) -> Iterator[Rule]:
  """Rewards, verdicts, and the KL to the reference."""
  r, k = c.reward, c.kl
  if facts.no_verifier(c):
    why = "nothing says which responses are correct: there is no verifier:"
    correctness = c.dynamic_sampling.signal == "correctness"
    yield "dynamic_sampling.signal", correctness, f"{why} use 'auto'"
    for name in ("rollout.retire_after", "loss.positive_nll"):
      yield name, at(c, name), f"{why} leave it at 0"
  with reading(c, "reward.functions"):
    terms = reward_terms.terms(r.functions)
    for term in terms:
      if not reward_terms.is_model(term.name):
        reward_terms.find(term.name)
  for term in terms:
    yield (
        "reward.executor",
        r.executor == "process" and term.name.startswith(given.LOCAL),
        f"another process cannot import {term.name}: put the function into a"
        " module of its own, or use 'thread'",
    )
  alone = r.functions and r.correct == r.incorrect == 0
  yield (
      "reward.correct",
      r.correct <= r.incorrect and not alone,
      f"must be more than reward.incorrect = {r.incorrect}; both may be 0 with"
      " reward.functions, which then are the only reward",
  )
  yield (
      "kl.kind",
      k.kind == "k1" and k.place == "loss",
      "as a loss, on-policy, it has no expected gradient: use k2 or k3, or"
      " kl.place = 'reward'",
  )
  yield (
      "kl.place",
      k.place == "reward" and facts.has_history(c),
      f"{c.advantage.name} compares rewards with rewards of earlier steps: use"
      " 'loss'",
  )


def advantages(c) -> Iterator[Rule]:
  """The advantage, and the groups that it compares."""
  name, inputs = c.advantage.name, facts.advantage_inputs(c)
  yield (
      "advantage.groups",
      c.advantage.groups != "prompt" and "groups_B" not in inputs,
      f"{name} compares no groups: leave it at 'prompt'",
  )
  # MaxRL's objective is defined for success rates.
  divides = "divides by the mean of rewards in {0, 1}:"
  yield (
      "advantage.name",
      name == "max_rl" and (c.reward.incorrect, c.reward.correct) != (0, 1),
      f"{divides} set reward.correct = 1 and reward.incorrect = 0",
  )
  yield (
      "advantage.name",
      name == "max_rl" and not facts.two_valued(c),
      f"{divides} no length penalty, cosine, functions, bootstrap or KL in the"
      " reward",
  )
  yield (
      "advantage.name",
      name == "confidence_weighted" and facts.two_valued(c),
      "two-valued rewards have no degrees of confidence: use leave_one_out, or"
      " a reward model in reward.functions",
  )
  if field := facts.type_field(c):
    other = "'prompt' or 'batch'" if field == "advantage.groups" else "another"
    yield (
        field,
        not facts.has_types(c),
        "the sets of data.train have no difficulty (type): choose " + other,
    )


def critic(c) -> Iterator[Rule]:
  """The critic: what it starts from, and the support of its head."""
  v = c.critic
  yield (
      "critic.reuse",
      v.reuse and v.init == "exported",
      "replaces value pretraining: not with critic.init",
  )
  yield (
      "critic.path",
      bool(v.path) != (v.init == "exported"),
      f"does not go with critic.init = {v.init!r}: it is for 'exported'",
  )
  if v.head.name == "categorical":
    low, high = v.head.args.low, v.head.args.high
    yield (
        "critic.head.args.low",
        low >= high,
        f"must be below critic.head.args.high = {high}",
    )
    least, most = sorted((c.reward.correct, c.reward.incorrect))
    yield (
        "critic.head.name",
        not low <= least <= most <= high,
        "critic.head.args.low to critic.head.args.high must contain the"
        f" rewards, {least} to {most}",
    )


def loss(c) -> Iterator[Rule]:
  """The loss of the policy."""
  yield (
      "surrogate.args.dual_clip",
      0 < c.surrogate.args.get("dual_clip", 0) <= 1,
      "must be more than 1, or 0 for off",
  )
  late = facts.off_policy_fields(c)
  yield (
      "surrogate.name",
      c.surrogate.name == "reinforce" and late,
      f"has no ratio, so it is correct only on-policy: leave {', '.join(late)}"
      " at updates.minibatches = 1, updates.epochs = 1,"
      " dynamic_sampling.surplus = 'discard', rollout.partial_across_steps ="
      " False, rl.staleness = 0; or use ppo, whose ratio corrects for the"
      " policy that sampled",
  )
  corrected = c.rl.staleness and c.correction.name != "none"
  yield (
      "correction.name",
      corrected and c.rl.old_logps == "sampler",
      "does nothing here: set rl.old_logps = 'trainer'",
  )
  cov = c.covariance.args
  yield (
      "covariance.args.low",
      cov.get("low", 0) > cov.get("high", 0),
      f"must be below covariance.args.high = {cov.get('high')}",
  )


def rounds(c) -> Iterator[Rule]:
  """Rounds: samples of the policy, and what is learned from them."""
  keep = c.generate.keep
  if not c.rounds.count:
    return
  yield (
      "rounds.count",
      facts.environment(c),
      "--stage=generate plays no environments: leave it at 0",
  )
  yield (
      "generate.keep",
      keep == "all",
      "would imitate incorrect responses, too: use 'correct', 'best',"
      " 'majority', or 'pairs' for a reward model",
  )
  yield (
      "generate.keep",
      keep == "correct" and facts.no_verifier(c),
      "nothing says which are correct: use 'best'",
  )
  yield (
      "rl.steps",
      keep == "pairs" and not c.rl.steps,
      "nothing would learn from the reward model of a round",
  )
