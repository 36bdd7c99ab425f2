"""Errors and warnings of a config before anything compiles.

An error is one line: the field, its value, and the remedy. Nothing here imports
jax, so that an error appears within half a second.
"""

from collections.abc import Mapping
from typing import Any, NoReturn

import ml_collections
import numpy as np

from rl_reason import config, functions, tasks
from rl_reason.config import ConfigError
from rl_reason.data import datasets, known_sets
from rl_reason.tasks import files as task_files, scorers

# Of `models.decoder`, which needs jax.
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


def checked(
    path: str, given: Mapping[str, Any]
) -> tuple[ml_collections.ConfigDict, list[str]]:
  """Reads and checks a config with its overrides.

  Args:
    path: FILE.py, or FILE.py:variant.
    given: full name of a field -> its value, or text.

  Returns:
    The config with all arguments of its functions, and lines for the screen:
    warnings, and arguments that an override has left out.

  Raises:
    ConfigError: the first thing that is wrong.
  """
  c = config.read(path)
  notes = config.override(c, given)
  try:
    fields(c, tuple(given))
  except (AttributeError, KeyError, TypeError) as e:
    raise ConfigError(
        f"{path}: {config.one_line(e)}; does it start from configs/base.py?"
    ) from None
  notes += [f"warning: {line}" for line in warnings(c)]
  return config.with_defaults(c), notes


def fields(c: ml_collections.ConfigDict, given: tuple[str, ...] = ()) -> None:
  """Checks every field, every function and every combination.

  Args:
    c: the whole config.
    given: names of the fields that were set on the command line.

  Raises:
    ConfigError: the first thing that is wrong.
  """
  values = config.flat(c)
  for name, spec in config.FIELDS.items():
    if problem := spec.problem(config.at(c, name)):
      raise _error(values, name, problem)
  sections = tuple(f"{x.field}." for x in functions.KINDS.values())
  for name, value in values.items():
    if name not in config.FIELDS and not name.startswith(sections):
      raise config.no_such_field(c, name, value)
  for kind, known in functions.KINDS.items():
    functions.check(kind, config.at(c, known.field))
  values = config.flat(config.with_defaults(c))
  rules = (_task, _data, _model, _rollouts, _rewards, _credit, _loss)
  try:
    for rule in rules:
      rule(c)
    _given(c, given)
  except _Fault as e:
    raise _error(values, *e.args) from None


def _error(values: dict[str, Any], field: str, remedy: str) -> ConfigError:
  return ConfigError(f"{field} = {values.get(field)!r}: {remedy}")


class _Fault(Exception):
  """A field, and the remedy."""


def fail(text: str) -> NoReturn:
  """Refuses a config, with 'field: remedy'."""
  raise _Fault(*text.split(": ", 1))


# --- rules -------------------------------------------------------------------


def _task(c) -> None:
  """The task, its difficulties, and the styles of its demonstrations."""
  try:
    task = tasks.get(c.task.name)
  except ValueError as e:
    fail(f"task.name: {e}")
  sft_steps = 0 if c.sft.reuse else c.sft.skill.steps + c.sft.habits.steps
  if sft_steps and not task.has_demonstrations:
    fail(
        f"sft.skill.steps: the task {c.task.name} has no function demonstrate:"
        " give model.path, and set sft.skill.steps = 0 and sft.habits.steps = 0"
    )
  for level in c.task.difficulties if task.DIFFICULTIES else ():
    if level not in task.DIFFICULTIES:
      fail(
          f"task.difficulties: {level!r} is none of {c.task.name}'s"
          f" {task.DIFFICULTIES}"
      )
  mixtures = ["sft.skill.mixture", "sft.habits.mixture"]
  pairs = ["reward_model.chosen", "reward_model.rejected"]
  for name in mixtures + [x for x in pairs if config.at(c, x)]:
    try:
      styles = config.mixture(config.at(c, name))
    except ValueError:
      fail(f"{name}: must look like 'careful:1,direct:4'")
    for style in styles if task.STYLES else ():
      if style not in task.STYLES:
        fail(
            f"{name}: {style!r} is none of {c.task.name}'s styles"
            f" {', '.join(task.STYLES)}; see configs/{c.task.name}.py"
        )


def _sources(c, use: str):
  return datasets.parse_all(c.data[use], dict(evaluate="test").get(use, use))


def _data(c) -> None:
  """Rows of files."""
  d, remedy = c.data, ""
  for use in ("train", "evaluate"):
    try:
      for source, weight in _sources(c, use):
        if use == "evaluate" and weight is not None:
          remedy = "each set is evaluated on its own: leave out the weights"
        if use == "train" and source.benchmark and not d.allow_benchmarks:
          remedy = (
              f"{source.name}:{source.split} is a benchmark: leave it out, or"
              " set data.allow_benchmarks = True"
          )
    except datasets.DataError as e:
      remedy = str(e)
    if remedy:
      fail(f"data.{use}: {remedy}")
  try:
    task_files.check_kind(d.kind)
  except ValueError as e:
    fail(f"data.kind: {e}")
  try:
    datasets.columns(d.columns)
  except datasets.DataError as e:
    fail(f"data.columns: {e}")
  if (d.train or d.evaluate) and not (c.tokenizer or c.model.path):
    fail(
        "tokenizer: the characters of the built-in tasks cannot spell"
        " data.train and data.evaluate: name a tokenizer"
    )
  if (c.task.name == tasks.FILES) != bool(d.train or d.evaluate):
    fail(
        "task.name: 'files' goes with data.train and data.evaluate: set both or"
        " neither"
    )
  if d.system and not d.chat:
    fail("data.system: is part of the chat template: set data.chat = True")


def _model(c) -> None:
  """Shapes, the mesh, LoRA, and the optimizer."""
  m, o = c.model, c.optimizer
  if m.heads % m.kv_heads:
    fail(f"model.heads: must be a multiple of model.kv_heads = {m.kv_heads}")
  if m.head_dim % 2:
    fail("model.head_dim: must be even (rotary embeddings)")
  if m.rope_low >= m.rope_high:
    fail(f"model.rope_low: must be below model.rope_high = {m.rope_high}")
  if not (m.path or c.sft.reuse or c.sft.skill.steps):
    fail(
        "sft.skill.steps: an untrained model solves nothing: train it, or give"
        " model.path or sft.reuse"
    )
  for axis, size in c.mesh.items():
    if size != -1 and size < 1:
      fail(f"mesh.{axis}: must be positive, or -1")
  if list(c.mesh.values()).count(-1) > 1:
    fail("mesh.data: only one axis of the mesh may be -1")
  for name in config.lora_targets(c):
    if name not in MATRICES:
      fail(f"lora.targets: {name!r} is none of {', '.join(MATRICES)}")
  if c.lora.rank and o.freeze:
    fail(
        f"optimizer.freeze: with lora.rank = {c.lora.rank} the parameters of"
        " all layers are frozen: leave it out"
    )
  if o.freeze and not (m.path or round(o.freeze * m.layers)):
    fail(f"optimizer.freeze: is not one layer of model.layers = {m.layers}")
  if o.offload and o.name != "adamw":
    fail(f"optimizer.offload: {o.name!r} keeps no moments: leave it out")
  for section in ("optimizer", "critic"):
    if c[section].warmup_steps >= max(c.rl.steps, 1):
      fail(f"{section}.warmup_steps: must be less than rl.steps = {c.rl.steps}")


def _rollouts(c) -> None:
  """Generation, dynamic sampling, and evaluation."""
  r, d, e = c.rollout, c.dynamic_sampling, c.evaluate
  advantage, inputs = c.advantage.name, config.needs(c)
  prompts = r.batch // r.group_size
  least = functions.arguments("group_sizes", r.group_sizes).get("least", 0)
  models = any(map(scorers.is_model, _scorer_names(c)))
  if r.top_p < 1 and not r.allow_top_p:
    fail(
        "rollout.top_p: stored log-probs are those before top-p: training would"
        " be off-policy; use 1.0, or set rollout.allow_top_p=True"
    )
  if r.batch % r.group_size:
    fail(f"rollout.group_size: must divide rollout.batch = {r.batch}")
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
  if least > r.group_size:
    fail(
        "rollout.group_sizes.args.least: must not exceed the mean,"
        f" rollout.group_size = {r.group_size}"
    )
  if r.partial_across_steps and not r.partial_groups:
    fail("rollout.partial_across_steps: needs rollout.partial_groups")
  if r.partial_groups:
    slots = r.slots or r.batch
    if not (d.enabled or r.partial_across_steps):
      fail(
          "rollout.partial_groups: a step has one round of generation: needs"
          " dynamic_sampling.enabled=True, or rollout.partial_across_steps=True"
      )
    if r.group_sizes.name != "equal":
      fail("rollout.partial_groups: needs rollout.group_sizes.name = 'equal'")
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
    if c.reward.shuffle:
      fail(
          "rollout.partial_groups: the number of rounds depends on which"
          " responses are correct: no reward.shuffle"
      )
  if d.enabled and r.group_size == 1:
    fail(
        "dynamic_sampling.enabled: a group of one is all correct or all"
        " incorrect: rollout.group_size must be > 1"
    )
  if d.surplus != "discard" and not d.enabled:
    fail(
        "dynamic_sampling.surplus: there is a surplus only with"
        " dynamic_sampling.enabled=True"
    )
  if d.batches > 1 and not d.enabled:
    fail(
        "dynamic_sampling.batches: rows beyond the batch are discarded: needs"
        " dynamic_sampling.enabled=True"
    )
  if d.batches > 1 and models:
    fail(
        "dynamic_sampling.batches: a round is then larger than the batch that"
        " reward models score: leave it at 1"
    )
  if e.mean_of > e.samples:
    fail(f"evaluate.mean_of: must not exceed evaluate.samples = {e.samples}")
  if e.interim_prompts > e.prompts:
    fail(
        "evaluate.interim_prompts: must not exceed evaluate.prompts ="
        f" {e.prompts}"
    )


def _scorer_names(c) -> list[str]:
  try:
    return [x.name for x in scorers.terms(c.reward.scorers)]
  except ValueError:
    return []  # `_rewards` has the error


def _rewards(c) -> None:
  """Rewards, and the KL to the reference."""
  r, k = c.reward, c.kl
  try:
    for term in scorers.terms(r.scorers):
      if not scorers.is_model(term.name):
        scorers.find(term.name)
  except ValueError as e:
    fail(f"reward.scorers: {e}")
  if r.overlong_buffer > c.rollout.max_tokens:
    fail(
        "reward.overlong_buffer: must not exceed rollout.max_tokens ="
        f" {c.rollout.max_tokens}"
    )
  if r.correct <= r.incorrect:
    fail(f"reward.correct: must be more than reward.incorrect = {r.incorrect}")
  if (k.kind != "none") != bool(k.coef):
    fail(f"kl.coef: does not go with kl.kind = {k.kind!r}: set both or neither")
  if k.kind == "none" and k.place != "loss":
    fail("kl.place: does nothing without kl.kind and kl.coef")
  if k.kind == "none" and k.controller.name != "fixed":
    fail("kl.controller.name: does nothing without kl.kind and kl.coef")
  if k.kind == "k1" and k.place == "loss":
    fail(
        "kl.kind: as a loss, on-policy, it has no expected gradient: use k2 or"
        " k3, or kl.place = 'reward'"
    )
  if k.place == "reward" and config.has_history(c):
    fail(
        f"kl.place: {c.advantage.name} compares rewards with those of earlier"
        " steps: use 'loss'"
    )


def _two_valued(c) -> bool:
  """Whether every response has one of two rewards."""
  r = c.reward
  return (
      r.outcome.name == "correctness"
      and r.length_penalty.name == "none"
      and r.truncated == "terminal"
      and not (r.overlong_buffer and r.overlong_coef)
      and not r.scorers
      and c.kl.place == "loss"
  )


def _has_types(c) -> bool:
  """Whether training rows may have a difficulty: the type of a problem."""
  if c.task.name != tasks.FILES:
    return True
  no_difficulty = known_sets.Known._field_defaults["difficulty"]
  known = [known_sets.KNOWN.get(x.name) for x, _ in _sources(c, "train")]
  return any(x is None or x.difficulty is not no_difficulty for x in known)


def _credit(c) -> None:
  """Advantages, and the critic."""
  name, inputs, v = c.advantage.name, config.needs(c), c.critic
  low, high = sorted((c.reward.correct, c.reward.incorrect))
  if c.advantage.groups != "prompt" and "groups_B" not in inputs:
    fail(f"advantage.groups: {name} compares no groups: leave it at 'prompt'")
  if name == "max_rl" and (low, high) != (0, 1):
    fail(
        "advantage.name: divides by the mean of rewards in {0, 1}: set"
        " reward.correct = 1 and reward.incorrect = 0"
    )
  if name == "max_rl" and not _two_valued(c):
    fail(
        "advantage.name: divides by the mean of rewards in {0, 1}: no length"
        " penalty, cosine, scorers, bootstrap or KL in the reward"
    )
  if name == "confidence_weighted" and _two_valued(c):
    fail(
        "advantage.name: two-valued rewards have no degrees of confidence: use"
        " leave_one_out, or a reward model in reward.scorers"
    )
  if not _has_types(c):
    remedy = "the sets of data.train have no difficulty (type): choose"
    if c.advantage.groups == "type":
      fail(f"advantage.groups: {remedy} 'prompt' or 'batch'")
    if "types_B" in inputs:
      fail(f"advantage.name: {remedy} another advantage")
    if c.rollout.group_sizes.name != "equal":
      fail(f"rollout.group_sizes.name: {remedy} 'equal'")
  if not config.has_critic(c):
    remedy = f"{name} has no critic: use gae or gae_length_adaptive"
    if v.pretrain_steps:
      fail(f"critic.pretrain_steps: {remedy}")
    if v.value_mixture.name != "none":
      fail(f"critic.value_mixture.name: {remedy}")
    if v.fallback:
      fail(f"critic.fallback: {remedy}")
  if v.reuse and (not v.pretrain_steps or v.init == "exported"):
    fail(
        "critic.reuse: replaces value pretraining: needs critic.pretrain_steps"
        " > 0, and not critic.init = 'exported'"
    )
  if bool(v.path) != (v.init == "exported"):
    fail(
        f"critic.path: does not go with critic.init = {v.init!r}: it is for"
        " 'exported'"
    )
  if v.value_mixture.name != "none" and not v.pretrain_steps:
    fail(
        "critic.value_mixture.name: mixes in the pretrained critic: needs"
        " critic.pretrain_steps > 0"
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
  if (
      c.surrogate.name == "reinforce"
      and c.updates.minibatches * c.updates.epochs > 1
  ):
    fail(
        "surrogate.name: has no ratio, so it is correct only on-policy: set"
        " updates.minibatches = 1 and updates.epochs = 1"
    )
  cov = functions.arguments("covariance", c.covariance)
  if cov.get("low", 0) > cov.get("high", 0):
    fail(
        "covariance.args.low: must be below covariance.args.high ="
        f" {cov.get('high')}"
    )


def _given(c, given: tuple[str, ...]) -> None:
  """Fields of the command line that nothing reads with this config."""
  for name in given:
    if c.model.path and config.is_shape(name):
      fail(f"{name}: model.path = {c.model.path!r} decides it: leave it out")
    if name.startswith("lora.") and name != "lora.rank" and not c.lora.rank:
      fail(f"{name}: is for lora.rank > 0: set it, or leave this out")
    if name.startswith("critic.") and not config.has_critic(c):
      fail(f"{name}: {c.advantage.name} has no critic: leave this out")


def warnings(c: ml_collections.ConfigDict) -> list[str]:
  """One line for each combination that probably does nothing."""
  out = []
  if config.has_history(c):
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
  by_type = c.advantage.groups == "type" or "types_B" in config.needs(c)
  if by_type and len(c.task.difficulties) == 1:
    out.append(
        f"task.difficulties = {c.task.difficulties}: problems of one type are"
        " the whole batch"
    )
  return out


def _share_returning(c) -> float:
  """Share of a step's prompts that occurred within advantage.history steps.

  Measured on prompts that are drawn as training draws them.
  """
  task, rng = tasks.get(c.task.name), np.random.default_rng(0)
  levels = tuple(c.task.difficulties) or task.DIFFICULTIES or (0,)
  count = min(c.rollout.batch // c.rollout.group_size, 256)
  total = count * (1 + c.advantage.history)
  rows = [tasks.draw(task, rng, levels, evaluation=False) for _ in range(total)]
  earlier = {row.prompt for row in rows[count:]}
  return sum(row.prompt in earlier for row in rows[:count]) / count


# --- what depends on more than the config ------------------------------------


def files(c) -> None:
  """Checks that a task of files has all that training and evaluation need.

  Raises:
    ConfigError: a source is missing; --stage=prepare does without.
  """
  trains = c.rl.steps or c.sft.skill.steps or c.sft.habits.steps
  for name, needed in (("train", trains), ("evaluate", True)):
    if c.task.name == tasks.FILES and needed and not c.data[name]:
      raise ConfigError(f"data.{name} = '': name at least one source")


def devices(c: ml_collections.ConfigDict, devices: int) -> None:
  """Checks what depends on the number of devices.

  Raises:
    ConfigError: a batch or a parameter cannot be split over the mesh.
  """
  sizes = dict(c.mesh)
  product = 1
  for size in sizes.values():
    product *= max(size, 1)
  for name, size in sizes.items():
    if size == -1:
      sizes[name] = devices // product
      product *= sizes[name]
  shape = " x ".join(f"{k} {v}" for k, v in sizes.items())
  if product != devices:
    raise ConfigError(
        f"mesh = {shape}: does not cover {devices} devices; set one axis to -1"
    )
  shards, tensor = sizes["data"] * sizes["fsdp"], sizes["tensor"]
  r, values = c.rollout, config.flat(c)
  for name, rows in {
      "sft.batch": c.sft.batch,
      "reward_model.batch": 2 * c.reward_model.batch,
      "rollout.batch": r.batch // r.group_size,
      "rollout.slots": r.slots,
      "rollout.partial_groups": r.partial_groups,
      "updates.minibatches": r.batch // c.updates.minibatches,
      "evaluate.batch": c.evaluate.batch,
  }.items():
    if rows % shards:
      remedy = (
          f"{rows} rows cannot be split over data x fsdp = {shards} devices"
      )
      raise _error(values, name, remedy)
  for name, parts in {
      "model.kv_heads": tensor,
      "model.mlp": tensor,
      "model.width": sizes["fsdp"],
  }.items():
    if config.at(c, name) % parts:
      remedy = f"cannot be split over {parts} devices of the mesh ({shape})"
      raise _error(values, name, remedy)
