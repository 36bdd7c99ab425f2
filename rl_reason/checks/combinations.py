"""Combinations of fields that cannot work, or that do nothing.

Each is refused by name: 'field: remedy'; `checks.py` adds the value.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

import ml_collections
import numpy as np

from rl_reason import environments, tasks
from rl_reason.base import config, fields, functions, resume_rules
from rl_reason.checks import facts
from rl_reason.checks.facts import by_reward, environment, no_verifier, sources
from rl_reason.data import known_sets
from rl_reason.tasks import given, reward_terms

# A field does nothing unless another one is set, too.
NEEDS = {
    "critic.reuse": "critic.pretrain_steps",
    "critic.value_mixture.name": "critic.pretrain_steps",
    "data.system": "data.chat",
    "dynamic_sampling.batches": "dynamic_sampling.enabled",
    "dynamic_sampling.signal": "dynamic_sampling.enabled",
    "dynamic_sampling.surplus": "dynamic_sampling.enabled",
    "kl.coef": "kl.kind",
    "kl.controller.name": "kl.kind",
    "kl.kind": "kl.coef",
    "kl.place": "kl.kind",
    "reward.executor": "reward.functions",
    "reward.timeout": "reward.functions",
    "mesh.rollout": "rl.staleness",
    "rl.old_logps": "rl.staleness",
    "rollout.partial_across_steps": "rollout.partial_groups",
    "model.experts_per_token": "model.experts",
    "model.norm_topk": "model.experts",
}

# A field must not exceed another one.
AT_MOST = {
    "evaluate.interim_prompts": "evaluate.prompts",
    "evaluate.mean_of": "evaluate.samples",
    "reward.overlong_buffer": "rollout.max_tokens",
    "rollout.group_sizes.args.least": "rollout.group_size",
}

# Fields of which only one may be set, and why.
CONFLICTS = {
    ("optimizer.freeze", "lora.rank"): "LoRA freezes all layers",
    ("rollout.partial_groups", "rollout.group_sizes.name"): (
        "groups of different sizes cannot be continued"
    ),
    ("dynamic_sampling.surplus", "rl.staleness"): (
        "the groups that a step keeps come too late for batches in flight"
    ),
    ("rollout.partial_across_steps", "rl.staleness"): (
        "responses would be of more policies than the age of a row can tell"
    ),
    ("rollout.partial_groups", "reward.shuffle"): (
        "the number of rounds depends on which responses are correct"
    ),
}


class Fault(Exception):
  """A field, and the remedy."""


def fail(text: str) -> NoReturn:
  """Refuses a config, with 'field: remedy'."""
  raise Fault(*text.split(": ", 1))


@contextlib.contextmanager
def faults_of(field: str) -> Iterator[None]:
  """Refuses a field where reading it raises a ValueError."""
  try:
    yield
  except ValueError as e:
    fail(f"{field}: {e}")


def check(c, values: dict[str, Any]) -> None:
  """Checks all combinations.

  Args:
    c: the whole config.
    values: `config.flat` of it, with all arguments of functions.

  Raises:
    Fault: the first combination that cannot work.
  """
  _pairs(values)
  for rules in (_environment, _rewards, _rollouts, _credit, _loss):
    rules(c)


def _pairs(values: dict[str, Any]) -> None:
  """Fields that need, exceed or exclude each other."""

  def is_set(name):
    return values[name] != fields.FIELDS[name].default

  for name, other in NEEDS.items():
    if is_set(name) and not is_set(other):
      fail(f"{name}: does nothing without {other}: set both or neither")
  for name, other in AT_MOST.items():
    if values.get(name, 0) > values[other]:
      fail(f"{name}: must not exceed {other} = {values[other]}")
  for (name, other), reason in CONFLICTS.items():
    if is_set(name) and is_set(other):
      fail(f"{name}: not with {other} = {values[other]!r}: {reason}")


def _rollouts(c) -> None:
  """Generation and dynamic sampling."""
  r, d = c.rollout, c.dynamic_sampling
  advantage, inputs = c.advantage.name, facts.needs(c)
  prompts = r.batch // r.group_size
  models = any(
      reward_terms.is_model(x.name)
      for x in reward_terms.terms(c.reward.functions)
  )
  if r.top_p < 1 and not r.allow_top_p:
    fail(
        "rollout.top_p: stored log-probs are those before top-p: training would"
        " be off-policy; use 1.0, or set rollout.allow_top_p=True"
    )
  if r.batch % r.group_size:
    fail(f"rollout.group_size: must divide rollout.batch = {r.batch}")
  # A group split over two minibatches would have two sets of token weights.
  if prompts % c.updates.minibatches:
    fail(
        f"updates.minibatches: must divide the {prompts} prompts of a batch:"
        " groups stay whole"
    )
  if (
      r.group_size == 1
      and c.rl.steps
      and c.advantage.groups == "prompt"
      and "groups_B" in inputs
  ):
    fail(
        f"rollout.group_size: {advantage} compares the responses to one prompt:"
        " use 2 or more, or advantage.groups = 'batch'"
    )
  # Unfinished groups wait in slots of the sampler until the next round.
  if r.partial_groups:
    slots = r.slots or r.batch
    if not (d.enabled or r.partial_across_steps):
      fail(
          "rollout.partial_groups: a step has one round of generation: needs"
          " dynamic_sampling.enabled=True, or rollout.partial_across_steps=True"
      )
    if r.partial_groups * r.group_size > slots:
      fail(
          f"rollout.partial_groups: {r.partial_groups} groups of"
          f" {r.group_size} do not fit into {slots} slots"
      )
    if models:
      fail(
          "rollout.partial_groups: reward models score whole batches, and"
          " rounds then have any number of rows"
      )
  if r.partial_groups and not r.partial_across_steps and by_reward(c):
    fail(
        "rollout.partial_groups: whether another round follows depends on which"
        " responses are correct: not with dynamic_sampling.signal = 'reward',"
        " or without a verifier"
    )
  if no_verifier(c):
    remedy = "nothing says which responses are correct: there is no verifier:"
    if d.signal == "correctness":
      fail(f"dynamic_sampling.signal: {remedy} use 'auto'")
    for name in ("rollout.retire_after", "loss.positive_nll"):
      if config.at(c, name):
        fail(f"{name}: {remedy} leave it at 0")
  if d.enabled and r.group_size == 1:
    fail(
        "dynamic_sampling.enabled: a group of one is all correct or all"
        " incorrect: rollout.group_size must be > 1"
    )
  if r.engine.name != "own":
    for name in ("weights", "cache", "partial_groups"):
      if (value := r[name]) not in ("same", 0):
        fail(
            f"rollout.{name}: {value!r} is for our own sampler: leave it, or"
            " set rollout.engine.name = 'own'"
        )
    if c.mesh.rollout:
      fail("mesh.rollout: the engine has devices of its own: leave it at 0")
  if c.mesh.rollout and models:
    fail(
        "mesh.rollout: reward models score evaluations, too, which only the"
        " devices that learn sample: leave it at 0"
    )
  if d.batches > 1 and models:
    fail(
        "dynamic_sampling.batches: a round is then larger than the batch that"
        " reward models score: leave it at 1"
    )


def _rewards(c) -> None:
  """Rewards, and the KL to the reference."""
  r, k = c.reward, c.kl
  with faults_of("reward.functions"):
    for term in reward_terms.terms(r.functions):
      if not reward_terms.is_model(term.name):
        reward_terms.find(term.name)
      if r.executor == "process" and term.name.startswith(given.LOCAL):
        fail(
            f"reward.executor: another process cannot import {term.name}: put"
            " the function into a module of its own, or use 'thread'"
        )
  alone = r.functions and r.correct == r.incorrect == 0
  if r.correct <= r.incorrect and not alone:
    fail(
        f"reward.correct: must be more than reward.incorrect = {r.incorrect};"
        " both may be 0 beside reward.functions, which then reward alone"
    )
  if k.kind == "k1" and k.place == "loss":
    fail(
        "kl.kind: as a loss, on-policy, it has no expected gradient: use k2 or"
        " k3, or kl.place = 'reward'"
    )
  if k.place == "reward" and facts.has_history(c):
    fail(
        f"kl.place: {c.advantage.name} compares rewards with those of earlier"
        " steps: use 'loss'"
    )


def _environment(c) -> None:
  """Trajectories of several turns, in an environment."""
  found = environment(c)
  for fault in environments.faults(c, found, facts.needs(c)):
    fail(fault)
  if found and (c.rl.staleness or c.rollout.engine.name != "own"):
    name = "rl.staleness" if c.rl.staleness else "rollout.engine.name"
    fail(f"{name}: trajectories of several turns are not sampled ahead")


def _two_valued(c) -> bool:
  """Whether every response has one of two rewards."""
  r = c.reward
  return (
      environment(c) is None
      and r.outcome.name == "correctness"
      and r.length_penalty.name == "none"
      and r.truncated == "terminal"
      and not (r.overlong_buffer and r.overlong_coef)
      and not r.functions
      and c.kl.place == "loss"
  )


def _has_types(c) -> bool:
  """Whether training rows may have a difficulty: the type of a problem."""
  if c.task.name != tasks.FILES:
    return True
  no_difficulty = known_sets.Known._field_defaults["difficulty"]
  known = [known_sets.KNOWN.get(x.name) for x, _ in sources(c, "train")]
  return any(x is None or x.difficulty is not no_difficulty for x in known)


def _credit(c) -> None:
  """Advantages, and the critic."""
  name, inputs, v = c.advantage.name, facts.needs(c), c.critic
  low, high = sorted((c.reward.correct, c.reward.incorrect))
  if c.advantage.groups != "prompt" and "groups_B" not in inputs:
    fail(f"advantage.groups: {name} compares no groups: leave it at 'prompt'")
  # MaxRL's objective is defined for success rates.
  if name == "max_rl" and (low, high) != (0, 1):
    fail(
        "advantage.name: divides by the mean of rewards in {0, 1}: set"
        " reward.correct = 1 and reward.incorrect = 0"
    )
  if name == "max_rl" and not _two_valued(c):
    fail(
        "advantage.name: divides by the mean of rewards in {0, 1}: no length"
        " penalty, cosine, functions, bootstrap or KL in the reward"
    )
  if name == "confidence_weighted" and _two_valued(c):
    fail(
        "advantage.name: two-valued rewards have no degrees of confidence: use"
        " leave_one_out, or a reward model in reward.functions"
    )
  if (field := facts.type_field(c)) and not _has_types(c):
    other = "'prompt' or 'batch'" if field == "advantage.groups" else "another"
    fail(
        f"{field}: the sets of data.train have no difficulty (type): choose"
        f" {other}"
    )
  if not facts.has_critic(c):
    remedy = f"{name} has no critic: use gae or gae_length_adaptive"
    if v.pretrain_steps:
      fail(f"critic.pretrain_steps: {remedy}")
    if v.value_mixture.name != "none":
      fail(f"critic.value_mixture.name: {remedy}")
    if v.fallback:
      fail(f"critic.fallback: {remedy}")
  if v.reuse and v.init == "exported":
    fail("critic.reuse: replaces value pretraining: not with critic.init")
  if bool(v.path) != (v.init == "exported"):
    fail(
        f"critic.path: does not go with critic.init = {v.init!r}: it is for"
        " 'exported'"
    )
  if v.head.name == "categorical":
    support = functions.arguments("critic_head", v.head)
    if support["low"] >= support["high"]:
      fail(
          "critic.head.args.low: must be below critic.head.args.high ="
          f" {support['high']}"
      )
    if not support["low"] <= low <= high <= support["high"]:
      fail(
          "critic.head.name: critic.head.args.low to critic.head.args.high must"
          f" contain the rewards, {low} to {high}"
      )


def _loss(c) -> None:
  """The loss of the policy."""
  if 0 < c.surrogate.args.get("dual_clip", 0) <= 1:
    fail("surrogate.args.dual_clip: must be more than 1, or 0 for off")
  late = resume_rules.those(resume_rules.OFF_POLICY, config.flat(c))
  if c.surrogate.name == "reinforce" and late:
    fail(
        "surrogate.name: has no ratio, so it is correct only on-policy: leave"
        f" {', '.join(late)} at updates.minibatches = 1, updates.epochs = 1,"
        " dynamic_sampling.surplus = 'discard', rollout.partial_across_steps ="
        " False, rl.staleness = 0; or use ppo, whose ratio corrects for the"
        " policy that sampled"
    )
  corrected = c.rl.staleness and c.correction.name != "none"
  if corrected and c.rl.old_logps == "sampler":
    fail("correction.name: does nothing here: set rl.old_logps = 'trainer'")
  cov = functions.arguments("covariance", c.covariance)
  if cov.get("low", 0) > cov.get("high", 0):
    fail(
        "covariance.args.low: must be below covariance.args.high ="
        f" {cov.get('high')}"
    )


def warnings(c: ml_collections.ConfigDict) -> list[str]:
  """One line for each combination that probably does nothing."""
  out = []
  if facts.has_history(c):
    alone = "prompts without earlier responses get leave_one_out's baseline"
    if c.task.name == tasks.FILES:
      out.append(
          f"advantage.name = {c.advantage.name!r}: prompts of files come again"
          f" only after a pass over data.train; {alone}"
      )
    elif _share_returning(c) < 0.1:
      out.append(
          f"advantage.name = {c.advantage.name!r}: fewer than 10% of prompts"
          f" come again within {c.advantage.history} steps; {alone}: use fewer"
          " task.difficulties, or raise advantage.history"
      )
  out += off_policy(c)
  if (field := facts.type_field(c)) and c.task.name != tasks.FILES:
    if len({row.difficulty for row in _draws(c, 64)}) == 1:
      out.append(
          f"{field} = {config.at(c, field)!r}: goes by the difficulty (type) of"
          " problems, and all have the same one (task.difficulties ="
          f" {c.task.difficulties})"
      )
  return out


def _share_returning(c) -> float:
  """Share of a step's prompts that occurred within advantage.history steps."""
  count = min(c.rollout.batch // c.rollout.group_size, 256)
  rows = _draws(c, count * (1 + c.advantage.history))
  earlier = {row.prompt for row in rows[count:]}
  return sum(row.prompt in earlier for row in rows[:count]) / count


def _draws(c, count: int) -> list[tasks.Row]:
  """Rows of a task that generates them, drawn as training draws them."""
  task, rng = tasks.get(c.task.name), np.random.default_rng(0)
  levels = tuple(c.task.difficulties) or task.DIFFICULTIES or (0,)
  return [tasks.draw(task, rng, levels, evaluation=False) for _ in range(count)]


def off_policy(c: Any) -> list[str]:
  """Rollouts that another policy samples, without a correction."""
  out = []
  exact = dict(weights=("same", c.model.dtype), cache=("same",))
  for name, values in exact.items():
    if c.rollout[name] not in values and c.correction.name == "none":
      out.append(
          f"rollout.{name} = {c.rollout[name]!r} samples from another policy"
          " than the one that learns (rollout/sampler_trainer_kl);"
          " correction.name = 'truncate' corrects for the mismatch"
      )
  if c.rollout.engine.name != "own" and c.correction.name == "none":
    out.append(
        f"rollout.engine.name = {c.rollout.engine.name!r} samples with other"
        " kernels than those that learn (rollout/sampler_trainer_kl);"
        " correction.name = 'truncate' corrects for the mismatch"
    )
  if c.rollout.engine.name != "own" and c.lora.rank:
    out.append(
        f"rollout.engine.name = {c.rollout.engine.name!r} gets LoRA factors"
        " merged with their matrix; an engine in bfloat16 rounds most of a"
        " small adapter away: run the engine in float32"
    )
  if c.rl.old_logps == "trainer" and c.correction.name == "none":
    out.append(
        "rl.old_logps = 'trainer': nothing corrects for the age of the policy"
        " that sampled; correction.name = 'truncate' does"
    )
  if c.rollout.partial_across_steps:
    out.append(
        "rollout.partial_across_steps fills batches with the responses that"
        " finish first, a bias towards short responses; the tokens of long ones"
        " come partly from an older policy"
    )
  return out
