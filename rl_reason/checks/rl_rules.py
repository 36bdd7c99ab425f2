"""Rules of RL: sampling, rewards, advantages, the loss."""

from collections.abc import Iterator

from rl_reason.base import feature, functions
from rl_reason.base.fields import FIELDS
from rl_reason.checks import config_facts, own_functions, relations
from rl_reason.checks.rules import Rule
from rl_reason.data import prompt_stream
from rl_reason.tasks import passed_objects, reward_terms

# What `config_facts.two_valued` requires.
_TWO_VALUED = (
    "reward.outcome.name = 'correctness', reward.length_penalty.name = 'none',"
    " reward.truncated = 'terminal', reward.overlong_buffer = 0,"
    " reward.functions = '' and kl.place = 'loss', and let verifiers judge"
)


def rollouts(c) -> Iterator[Rule]:
  """Sampling, and dynamic sampling."""
  r, d = c.rollout, c.dynamic_sampling
  prompts = r.batch // r.group_size
  models = config_facts.reward_models(c)
  for name in relations.FILTERS:
    off = FIELDS[f"rollout.{name}"].default
    if r[name] != off and not r.allow_filters:
      yield f"rollout.{name}", (
          "responses would come from another distribution than the log-probs"
          f" of training, which is then off-policy: use {off}, or set"
          " rollout.allow_filters = True"
      )
  if r.batch % r.group_size:
    yield "rollout.group_size", f"must divide rollout.batch = {r.batch}"
  # A group split over two minibatches would have two sets of token weights.
  elif prompts % c.updates.minibatches:
    yield "updates.minibatches", (
        f"must divide the {prompts} prompts of a batch: groups stay whole"
    )
  compares = "groups_B" in config_facts.advantage_inputs(c)
  by_prompt = compares and c.advantage.groups == "prompt"
  if r.group_size == 1 and c.rl.steps and by_prompt:
    yield "rollout.group_size", (
        f"{c.advantage.name} compares the responses to one prompt: use 2 or"
        " more, or advantage.groups = 'batch'"
    )
  elif d.enabled and r.group_size == 1:
    yield "dynamic_sampling.enabled", (
        "a group of one is all correct or all incorrect: rollout.group_size"
        " must be > 1"
    )
  if d.batches > 1 and models:
    yield "dynamic_sampling.batches", (
        "a round is then larger than the batch that reward models score: leave"
        " it at 1"
    )


def packing(c) -> Iterator[Rule]:
  """Packed rows that hold the prompt of a group once."""
  if c.updates.share_prompts == "always" and c.rl.steps:
    if reason := config_facts.unshared_prompts(c):
      yield "updates.share_prompts", f"{reason}: use 'auto' or 'never'"


def engine(c) -> Iterator[Rule]:
  """What samples: our sampler or another engine."""
  other = c.rollout.engine.name != "own"
  for name in ("weights", "cache", "stop_strings"):
    value = c.rollout[name]
    if other and value not in ("same", ()):
      yield f"rollout.{name}", (
          f"{value!r} is for the sampler of this package: leave the field out,"
          " or set rollout.engine.name = 'own'"
      )


def rewards(c) -> Iterator[Rule]:
  """Rewards, verdicts, and the KL to the reference."""
  r, k = c.reward, c.kl
  if config_facts.no_verifier(c):
    why = "nothing says which responses are correct: there is no verifier:"
    if c.dynamic_sampling.signal == "correctness":
      yield "dynamic_sampling.signal", f"{why} use 'auto'"
    if c.loss.positive_nll:
      yield "loss.positive_nll", f"{why} leave it at 0"
    if c.rollout.types == "pass_rate":
      yield "rollout.types", f"{why} leave it at 'difficulty'"
  for term in reward_terms.terms(r.functions):
    if r.executor == "process" and term.name.startswith(passed_objects.LOCAL):
      yield "reward.executor", (
          f"another process cannot import {term.name}: put the function into a"
          " module of its own, or use 'thread'"
      )
  teaches = feature.marked("teaches")
  unrewarded = r.functions or feature.set_fields(c, "teaches")
  alone = unrewarded and r.correct == r.incorrect == 0
  if r.correct <= r.incorrect and not alone:
    yield "reward.correct", (
        f"must be more than reward.incorrect = {r.incorrect}; both may be 0"
        " with reward.functions, which then are the only reward"
        + f", and with {' or '.join(teaches)}" * bool(teaches)
    )
  if alone and not r.functions and c.dynamic_sampling.enabled:
    yield "dynamic_sampling.enabled", (
        "without a reward no group has signal: use False"
    )
  if k.kind == "k1" and k.place == "loss":
    yield "kl.kind", (
        "as a loss, on-policy, it has no expected gradient: use k2 or k3, or"
        " kl.place = 'reward'"
    )


def process(c) -> Iterator[Rule]:
  """Process rewards, and the advantages that read them."""
  kind, name = c.reward.process, c.advantage.name
  inputs = {*config_facts.advantage_inputs(c)}
  if kind == "none":
    if inputs & {"step_rewards_BT", "step_ends_BT"}:
      yield "advantage.name", (
          "there are no process rewards: set reward.process, and name functions"
          " that judge steps in reward.functions"
      )
    return
  if not inputs & {"rewards_BT", "step_rewards_BT"}:
    yield "advantage.name", (
        f"reads no rewards of steps, which reward.process = {kind!r} gives: use"
        " process_norm, returns_by_turn, gae_by_turn, gae or returns_to_go"
    )
  if kind == "potentials" and name == "process_norm":
    yield "advantage.name", (
        "normalises rewards of steps, and potentials give differences that"
        " cancel: use returns_by_turn, or reward.process = 'rewards'"
    )
  terms = reward_terms.terms(c.reward.functions)
  if terms and all(reward_terms.is_model(x.name) for x in terms):
    yield "reward.functions", (
        "a reward model judges whole responses: name a function that judges"
        " steps, as 'steps' does, or leave reward.process at 'none'"
    )
  if kind == "potentials" and config_facts.no_verifier(c) and len(terms) == 1:
    yield "reward.process", (
        "potentials do not change which responses are best, and nothing else"
        " is rewarded: use 'rewards', or name a second function"
    )


def advantages(c) -> Iterator[Rule]:
  """The advantage, and the groups that it compares."""
  name, inputs = c.advantage.name, config_facts.advantage_inputs(c)
  if c.advantage.groups != "prompt" and "groups_B" not in inputs:
    yield "advantage.groups", f"{name} compares no groups: leave it at 'prompt'"
  # MaxRL's objective is defined for success rates.
  divides = "divides by the mean of rewards in {0, 1}:"
  if name == "max_rl" and (c.reward.incorrect, c.reward.correct) != (0, 1):
    yield "advantage.name", (
        f"{divides} set reward.correct = 1 and reward.incorrect = 0"
    )
  if name == "max_rl" and not config_facts.two_valued(c):
    yield "advantage.name", f"{divides} set {_TWO_VALUED}"
  if name == "pass_at_k":
    k = functions.arguments("advantage", c.advantage)["k"]
    if k > c.rollout.group_size:
      yield "advantage.args.k", (
          f"must be at most rollout.group_size = {c.rollout.group_size}"
      )
    if not (
        config_facts.two_valued(c)
        and c.reward.incorrect <= 0 < c.reward.correct
    ):
      yield "advantage.name", (
          "a reward above 0 is a success: set reward.correct above 0,"
          f" reward.incorrect to at most 0, and {_TWO_VALUED}"
      )
  if name == "weak_positives" and c.reward.incorrect >= 0:
    yield "reward.incorrect", (
        "must be below 0: weak_positives learns from negative rewards"
    )
  if "parts" in inputs and not c.reward.functions:
    yield "advantage.name", (
        f"{name} reads rewards by their names: name some in reward.functions"
    )
  labels = [x.label for x in reward_terms.terms(c.reward.functions)]
  if "parts" in inputs and len({*labels, "outcome"}) <= len(labels):
    yield "reward.functions", (
        f"{name} needs parts of different names, and 'outcome' is the verdict:"
        f" rename one of {', '.join(labels)}"
    )
  if name == "score_weighted":
    score = c.advantage.args.get("score")
    if labels and score is not None and score not in labels:
      yield "advantage.args.score", (
          f"is none of reward.functions: {', '.join(labels)}"
      )
  elif "parts" in inputs and c.kl.place == "reward":
    yield "kl.place", f"{name} would not see it: use 'loss'"
  if name == "confidence_weighted" and config_facts.two_valued(c):
    yield "advantage.name", (
        "two-valued rewards have no degrees of confidence: use leave_one_out,"
        " or a reward model in reward.functions"
    )
  if field := config_facts.type_field(c):
    other = "'prompt' or 'batch'" if field == "advantage.groups" else "another"
    if not config_facts.has_types(c):
      yield field, (
          f"the sets of data.train have no difficulty (type): choose {other},"
          " or rollout.types = 'pass_rate'"
      )
  if name == "gae_exp_complexity" and c.rollout.types == "subject":
    yield "rollout.types", f"{name} needs a complexity, which no subject is"
  if c.rollout.types == "pass_rate" and config_facts.hardest(c) <= 1:
    yield "advantage.args.hardest", (
        "complexities by rollout.types = 'pass_rate' are tenths of incorrect"
        f" responses: set {prompt_stream.HARDEST}"
    )


def critic(c) -> Iterator[Rule]:
  """The critic: what it starts from, and the support of its head."""
  v = c.critic
  if v.reuse and v.init == "exported":
    yield "critic.reuse", (
        "the critic of another run replaces the one of critic.init ="
        " 'exported': leave one of them out"
    )
  if bool(v.path) != (v.init == "exported"):
    yield "critic.path", (
        "is for critic.init = 'exported': leave it out, or set critic.init"
        if v.path
        else "critic.init = 'exported' needs it: name an exported critic, or a"
        " classifier of transformers"
    )
  if v.head.name == "categorical":
    low, high = v.head.args.low, v.head.args.high
    if low >= high:
      yield "critic.head.args.low", (
          f"must be below critic.head.args.high = {high}"
      )
    least, most = sorted((c.reward.correct, c.reward.incorrect))
    if low < high and not low <= least <= most <= high:
      yield "critic.head.name", (
          "critic.head.args.low to critic.head.args.high must contain the"
          f" rewards, {least} to {most}"
      )


def loss(c) -> Iterator[Rule]:
  """The loss of the policy."""
  if 0 < c.surrogate.args.get("dual_clip", 0) <= 1:
    yield "surrogate.args.dual_clip", "must be more than 1, or 0 for off"
  late = " and ".join(
      f"{name} = {off}"
      for name, off in config_facts.off_policy_fields(c).items()
  )
  if c.surrogate.name == "reinforce" and late:
    yield "surrogate.name", (
        "has no ratio, so it is correct only on-policy, and the run is"
        f" off-policy: set {late}; or use ppo, whose ratio corrects for the"
        " policy that sampled"
    )
  # Without these fields the arrays are zeros.
  critic = config_facts.has_critic(c), "advantage.name = 'gae'"
  estimated = config_facts.estimates_kl(c), "kl.kind = 'k3' and kl.coef"
  there = dict(ref_logps_BT=estimated)
  there |= dict(values_BT=critic, returns_BT=critic)
  for field, own in (
      *(("loss.terms", x) for x in own_functions.terms(c)),
      *(("log.metrics", x) for x in own_functions.metrics(c)),
  ):
    for name in own.inputs:
      exists, needs = there.get(name, (True, ""))
      if not exists:
        yield field, f"{own.label} takes {name}: set {needs}"
