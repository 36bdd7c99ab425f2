"""What cannot be right in a config, said before anything compiles.

One line an error: the field, its value, and the remedy. Nothing here imports
jax, so that a mistake is named within a second.
"""

import ml_collections

from rl_reason import config, tasks
from rl_reason.data import datasets, templates
from rl_reason.tasks import files as task_files, scorers

CHOICES = {
    "data.template": tuple(templates.TEMPLATES),
    "model.dtype": ("float32", "bfloat16", "float16"),
    "model.remat": ("none", "dots", "full"),
    "model.attention": ("auto", "xla"),
    "sft.skill.schedule": ("constant", "cosine", "linear"),
    "sft.habits.schedule": ("constant", "cosine", "linear"),
    "reward_model.schedule": ("constant", "cosine", "linear"),
    "optimizer.schedule": ("constant", "cosine", "linear"),
    "optimizer.name": ("adamw", "sgd"),
    "dynamic_sampling.surplus": ("discard", "keep"),
    "dynamic_sampling.shortfall": ("pad", "raise"),
    "reward.truncated": ("terminal", "bootstrap"),
    "kl.kind": ("none", "k1", "k2", "k3"),
    "kl.place": ("loss", "reward"),
    "advantage.groups": ("prompt", "type", "batch"),
    "loss.cov": ("none", "clip", "kl"),
    "loss.correction": ("none", "truncate", "two_sided"),
    "loss.correction_level": ("token", "sequence", "geometric"),
    "rollout.sizes": ("equal", "length", "variance"),
    "rollout.weights": ("same", "bfloat16", "int8"),
    "rollout.cache": ("same", "int8"),
    "critic.init": ("policy", "scratch", "exported"),
    "critic.head": ("scalar", "gated", "categorical"),
    "critic.schedule": ("constant", "cosine", "linear"),
}

# Of `model`, which needs jax.
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")

# Least value of each number; (low, high) where there is a highest one too.
BOUNDS = {
    "seed": 0,
    "data.paraphrases": (1, len(templates.PARAPHRASES)),
    "data.ngram": 0,
    "data.limit": 0,
    "model.layers": 1,
    "model.width": 1,
    "model.heads": 1,
    "model.kv_heads": 1,
    "model.head_dim": 2,
    "model.mlp": 1,
    "model.rope_theta": 1,
    "model.rope_factor": 1,
    "model.rope_low": 0,
    "model.rope_context": 1,
    "model.norm_eps": 0,
    "model.logprob_chunk": 1,
    "sft.batch": 1,
    "sft.skill.steps": 0,
    "sft.skill.lr": 0,
    "sft.skill.threshold": (0, 1),
    "sft.habits.steps": 0,
    "sft.habits.lr": 0,
    "rollout.batch": 1,
    "rollout.group_size": 1,
    "rollout.least_group": 1,
    "rollout.slots": 0,
    "rollout.stragglers": 0,
    "rollout.retire_after": 0,
    "rollout.max_prompt": 1,
    "rollout.max_tokens": 1,
    "rollout.temperature": 1e-6,
    "lora.rank": 0,
    "lora.alpha": 1e-9,
    "rollout.top_p": (1e-9, 1),
    "dynamic_sampling.max_rounds": 1,
    "dynamic_sampling.batches": 1,
    "reward.overlong_buffer": 0,
    "reward.overlong_coef": 0,
    "reward.length_coef": 0,
    "reward.length_decay": 0,
    "reward.workers": 1,
    "reward.seconds": 1e-3,
    "reward_model.steps": 1,
    "reward_model.batch": 1,
    "reward_model.lr": 0,
    "reward_model.evaluate_pairs": 1,
    "kl.coef": 0,
    "kl.target": 0,
    "kl.horizon": 1,
    "advantage.eps": 0,
    "advantage.ddof": (0, 1),
    "advantage.gamma": (0, 1),
    "advantage.lam": (0, 1),
    "advantage.alpha": 1e-9,
    "advantage.mix": (0, 1),
    "advantage.decay": 0,
    "advantage.slope": (0, 1),
    "advantage.hardest": 1e-9,
    "advantage.bonus": 0,
    "advantage.history": 1,
    "advantage.history_ratio": 0,
    "critic.heads": 1,
    "critic.bins": 2,
    "critic.lam": (0, 1),
    "critic.clip": 0,
    "critic.lr": 0,
    "critic.warmup_steps": 0,
    "critic.pretrain_steps": 0,
    "critic.pretrain_loss": 0,
    "critic.mix": (0, 1),
    "critic.mix_decay": 0,
    "critic.mix_reliability": 0,
    "loss.clip_low": (0, 1),
    "loss.clip_high": 0,
    "loss.dual_clip": 0,
    "loss.log_ratio_max": 0,
    "loss.length_alpha": (0, 0.5),
    "loss.positive_nll": 0,
    "loss.entropy_coef": 0,
    "loss.entropy_target": 0,
    "loss.entropy_step": 0,
    "loss.top_entropy": (1e-9, 1),
    "loss.cov_share": (0, 1),
    "loss.cov_coef": 0,
    "loss.correction_low": (0, 1),
    "loss.correction_high": 1,
    "updates.max_kl": 0,
    "optimizer.freeze": (0, 1),
    "updates.minibatches": 1,
    "updates.token_budget": 1,
    "updates.epochs": 1,
    "optimizer.lr": 0,
    "optimizer.warmup_steps": 0,
    "optimizer.b1": (0, 1),
    "optimizer.b2": (0, 1),
    "optimizer.eps": 0,
    "optimizer.weight_decay": 0,
    "optimizer.clip_norm": 0,
    "rl.steps": 0,
    "evaluate.prompts": 1,
    "evaluate.samples": 1,
    "evaluate.mean_of": 1,
    "evaluate.temperature": 0,
    "evaluate.top_p": (1e-9, 1),
    "evaluate.batch": 1,
    "evaluate.every": 0,
    "evaluate.interim_prompts": 1,
    "checkpoint.every": 1,
    "checkpoint.sft_every": 1,
    "checkpoint.keep_last": 1,
    "checkpoint.keep_best": 0,
    "log.sft_every": 1,
    "log.samples_every": 1,
    "log.samples": 1,
}


def fields(c: ml_collections.ConfigDict, given: tuple[str, ...] = ()) -> None:
  """Checks every field and every combination that cannot work.

  Args:
    c: the whole config.
    given: names of the fields that were set on the command line.

  Raises:
    ConfigError: the first thing that is wrong.
  """
  values = config.flat(c)

  def refuse(name: str, remedy: str):
    raise config.ConfigError(f"{name} = {values.get(name)!r}: {remedy}")

  def require(condition, name: str, remedy: str):
    if not condition:
      refuse(name, remedy)

  for name, allowed in CHOICES.items():
    require(
        values[name] in allowed, name, f"must be one of {', '.join(allowed)}"
    )
  for name, bound in BOUNDS.items():
    low, high = bound if isinstance(bound, tuple) else (bound, None)
    x = values[name]
    text = f"at least {low}" + (f" and at most {high}" if high else "")
    require(x >= low and (high is None or x <= high), name, f"must be {text}")

  try:
    task = tasks.get(c.task.name)
  except ValueError as e:
    refuse("task.name", str(e))
  sft_steps = 0 if c.sft.reuse else c.sft.skill.steps + c.sft.habits.steps
  require(
      task.has_demonstrations or not sft_steps,
      "sft.skill.steps",
      f"the task {c.task.name} has no function demonstrate: give model.path,"
      " and set sft.skill.steps = 0 and sft.habits.steps = 0",
  )
  for level in c.task.difficulties if task.DIFFICULTIES else ():
    require(
        level in task.DIFFICULTIES,
        "task.difficulties",
        f"{level!r} is none of {c.task.name}'s {task.DIFFICULTIES}",
    )
  mixtures = "sft.skill.mixture", "sft.habits.mixture"
  for name in (*mixtures, "reward_model.chosen", "reward_model.rejected"):
    if name.startswith("reward_model") and not values[name]:
      continue
    try:
      styles = config.mixture(values[name])
    except ValueError:
      refuse(name, "must look like 'careful:1,direct:4'")
    for style in styles if task.STYLES else ():
      require(
          style in task.STYLES,
          name,
          f"{style!r} is none of {c.task.name}'s styles"
          f" {', '.join(task.STYLES)}; see configs/{c.task.name}.py",
      )

  _check_data(c, require)
  m = c.model
  require(
      m.heads % m.kv_heads == 0,
      "model.heads",
      f"must be a multiple of model.kv_heads = {m.kv_heads}",
  )
  require(m.head_dim % 2 == 0, "model.head_dim", "must be even (rotary)")
  require(
      m.rope_low < m.rope_high,
      "model.rope_low",
      f"must be below model.rope_high = {m.rope_high}",
  )
  for name in given:
    require(
        not (m.path and config.is_shape(name)),
        name,
        f"the checkpoint model.path = {m.path!r} has its own: leave it out",
    )
  require(
      m.path or c.sft.reuse or c.sft.skill.steps,
      "sft.skill.steps",
      "a fresh model knows nothing: train it, or give model.path or sft.reuse",
  )
  axes = [c.mesh.data, c.mesh.fsdp, c.mesh.tensor]
  for name, size in c.mesh.items():
    require(size == -1 or size > 0, f"mesh.{name}", "must be positive, or -1")
  require(
      axes.count(-1) <= 1, "mesh.data", "only one axis of the mesh may be -1"
  )

  r, d = c.rollout, c.dynamic_sampling
  for name, module in config.FUNCTIONS.items():
    if name not in CHOICES:  # the others may be any function of their module
      known = config.signatures(module)
      require(values[name] in known, name, f"must be one of {', '.join(known)}")
    section, chosen = name.split(".")[0], values[name] != "none"
    for keyword in config.signature(c, name).keywords if chosen else ():
      field = f"{section}.{config.PREFIXES.get(name, '')}{keyword}"
      require(
          field in values,
          name,
          f"takes {keyword}: add the field {field} to configs/base.py",
      )
  idle = config.unread(c)
  for name in given:
    section = name.split(".")[0]
    beside = [x for x in config.FUNCTIONS if x.split(".")[0] == section]
    require(
        name not in idle,
        name,
        "nothing takes it with"
        f" {', '.join(f'{x} = {values[x]!r}' for x in beside)}: leave it out",
    )
  _check_algorithm(c, require)
  for name in given:
    require(
        c.lora.rank or not name.startswith("lora.") or name == "lora.rank",
        name,
        "is for lora.rank > 0: set it, or leave this out",
    )
  for name in config.lora_targets(c):
    require(
        name in MATRICES,
        "lora.targets",
        f"{name!r} is none of {', '.join(MATRICES)}",
    )
  require(
      not (c.lora.rank and c.optimizer.freeze),
      "optimizer.freeze",
      f"with lora.rank = {c.lora.rank} the parameters of all layers are frozen:"
      " leave it out",
  )
  layers = round(c.optimizer.freeze * m.layers)
  require(
      m.path or layers or not c.optimizer.freeze,
      "optimizer.freeze",
      f"of model.layers = {m.layers} that is none",
  )
  require(
      not c.optimizer.offload or c.optimizer.name == "adamw",
      "optimizer.offload",
      f"{c.optimizer.name!r} keeps no moments: leave it out",
  )
  require(
      r.top_p == 1 or r.allow_top_p,
      "rollout.top_p",
      "stored log-probs are those before top-p: training would be off-policy;"
      " use 1.0, or set rollout.allow_top_p=True",
  )
  require(
      r.batch % r.group_size == 0,
      "rollout.group_size",
      f"must divide rollout.batch = {r.batch}",
  )
  prompts = r.batch // r.group_size
  require(
      prompts % c.updates.minibatches == 0,
      "updates.minibatches",
      f"must divide the {prompts} prompts of a batch (whole groups)",
  )
  for name in ("right_long", "wrong_long"):
    require(
        c.reward.cosine or not c.reward[name],
        f"reward.{name}",
        "is for reward.cosine = True",
    )
  try:
    for term in scorers.terms(c.reward.scorers):
      if not scorers.is_model(term.name):
        scorers.find(term.name)
  except ValueError as e:
    refuse("reward.scorers", str(e))
  require(
      c.reward.overlong_buffer <= r.max_tokens,
      "reward.overlong_buffer",
      f"must not exceed rollout.max_tokens = {r.max_tokens}",
  )
  require(
      c.reward.right > c.reward.wrong,
      "reward.right",
      f"must be more than reward.wrong = {c.reward.wrong}",
  )
  require(
      c.loss.dual_clip == 0 or c.loss.dual_clip > 1,
      "loss.dual_clip",
      "must be more than 1, or 0 for off",
  )
  require(
      d.surplus == "discard" or d.enabled,
      "dynamic_sampling.surplus",
      "there is a surplus only with dynamic_sampling.enabled=True",
  )
  require(
      d.batches == 1 or d.enabled,
      "dynamic_sampling.batches",
      "what does not fit is dropped: needs dynamic_sampling.enabled=True",
  )
  learned = [x.name for x in scorers.terms(c.reward.scorers)]
  models = any(map(scorers.is_model, learned))
  require(
      d.batches == 1 or not models,
      "dynamic_sampling.batches",
      "a round is then larger than the batch that reward models score: leave"
      " it at 1",
  )
  _check_stragglers(c, models, require)
  for section in ("optimizer", "critic"):
    require(
        c[section].warmup_steps < max(c.rl.steps, 1),
        f"{section}.warmup_steps",
        f"must be less than rl.steps = {c.rl.steps}",
    )
  require(
      c.evaluate.mean_of <= c.evaluate.samples,
      "evaluate.mean_of",
      f"must not exceed evaluate.samples = {c.evaluate.samples}",
  )
  require(
      c.evaluate.interim_prompts <= c.evaluate.prompts,
      "evaluate.interim_prompts",
      f"must not exceed evaluate.prompts = {c.evaluate.prompts}",
  )


def _check_stragglers(c, models: bool, require) -> None:
  """Groups that a round leaves to the next one."""
  r = c.rollout
  if not r.stragglers:
    require(
        not r.across_steps, "rollout.across_steps", "needs rollout.stragglers"
    )
    return
  name = "rollout.stragglers"
  require(
      c.dynamic_sampling.enabled or r.across_steps,
      name,
      "a step has one round: needs dynamic_sampling.enabled=True, or"
      " rollout.across_steps=True",
  )
  require(r.sizes == "equal", name, "needs rollout.sizes = 'equal'")
  require(
      r.stragglers * r.group_size <= (r.slots or r.batch),
      name,
      f"{r.stragglers} groups of {r.group_size} must find slots, and there are"
      f" {r.slots or r.batch}",
  )
  require(
      not models,
      name,
      "rounds are then of any size, and reward models score whole batches",
  )
  require(
      not c.reward.shuffle,
      name,
      "whether a round follows is known by verdicts: no reward.shuffle",
  )


def _check_data(c, require) -> None:
  """Sources, and what goes with them."""
  d = c.data
  parsed = {}
  for use, prefer in (("train", "train"), ("evaluate", "test")):
    try:
      parsed[use] = datasets.parse_all(d[use], prefer)
    except datasets.DataError as e:
      require(False, f"data.{use}", str(e))
  try:
    task_files.check_kind(d.kind)
  except ValueError as e:
    require(False, "data.kind", str(e))
  try:
    datasets.columns(d.columns)
  except datasets.DataError as e:
    require(False, "data.columns", str(e))
  require(
      c.tokenizer or c.model.path or not (d.train or d.evaluate),
      "tokenizer",
      "the task's own characters do not spell the texts of data.train and"
      " data.evaluate: name a tokenizer",
  )
  require(
      (c.task.name == tasks.FILES) == bool(d.train or d.evaluate),
      "task.name",
      "'files' goes with data.train and data.evaluate: set both or neither",
  )
  for source, _ in parsed["train"]:
    require(
        d.allow_benchmarks or not source.benchmark,
        "data.train",
        f"{source.name}:{source.split} is there to evaluate on: leave it out,"
        " or set data.allow_benchmarks = True",
    )
  require(
      all(weight is None for _, weight in parsed["evaluate"]),
      "data.evaluate",
      "each set is evaluated on its own: leave out the weights",
  )
  require(
      d.chat or not d.system,
      "data.system",
      "is a turn of the chat template: set data.chat = True",
  )


def files(c) -> None:
  """Checks that a task of files has all that training and evaluation need.

  Raises:
    ConfigError: a source is missing; --stage=prepare does without.
  """
  trains = c.rl.steps or c.sft.skill.steps or c.sft.habits.steps
  for name, wanted in (("train", trains), ("evaluate", True)):
    if c.task.name == tasks.FILES and wanted and not c.data[name]:
      raise config.ConfigError(f"data.{name} = '': name at least one source")


def _check_algorithm(c, require) -> None:
  """Combinations of an algorithm's parts that make no sense."""
  name, arrays = c.advantage.name, config.needs(c)
  k = c.kl
  require(
      c.rollout.group_size > 1
      or c.rl.steps == 0
      or c.advantage.groups != "prompt"
      or "groups_B" not in arrays,
      "rollout.group_size",
      f"{name} compares the responses to one prompt: use 2 or more, or"
      " advantage.groups = 'batch'",
  )
  require(
      c.rollout.sizes == "equal"
      or 2 <= c.rollout.least_group <= c.rollout.group_size,
      "rollout.least_group",
      "groups that are not equal need 2 responses or more, and"
      f" rollout.group_size = {c.rollout.group_size} on average",
  )
  require(
      c.advantage.groups == "prompt" or "groups_B" in arrays,
      "advantage.groups",
      f"{name} compares no groups: leave it at 'prompt'",
  )
  require(
      c.rollout.group_size > 1 or not c.dynamic_sampling.enabled,
      "dynamic_sampling.enabled",
      "a group of one is never half right: rollout.group_size must be > 1",
  )
  if name == "max_rl":
    extra = (c.reward.overlong_buffer and c.reward.overlong_coef) or (
        c.reward.length_coef or c.reward.cosine or c.reward.scorers
    )
    require(
        (c.reward.right, c.reward.wrong) == (1, 0),
        "advantage.name",
        "divides by the mean of rewards in {0, 1}: set reward.right = 1 and"
        " reward.wrong = 0",
    )
    require(
        not extra and c.reward.truncated == "terminal" and k.place == "loss",
        "advantage.name",
        "divides by the mean of rewards in {0, 1}: no length penalty, cosine,"
        " scorers, bootstrap or KL in the reward",
    )
  require(
      (k.kind == "none") == (k.coef == 0),
      "kl.coef",
      f"does not go with kl.kind = {k.kind!r}: set both or neither",
  )
  require(
      k.kind != "none" or (k.place == "loss" and not k.target),
      "kl.kind",
      "kl.place and kl.target need a KL: k1, k2 or k3",
  )
  require(
      not (k.kind == "k1" and k.place == "loss"),
      "kl.kind",
      "as a loss, on-policy, it has no expected gradient: use k2 or k3, or"
      " kl.place = 'reward'",
  )
  require(
      not c.loss.entropy_target or c.loss.entropy_step,
      "loss.entropy_step",
      "must be more than 0 to steer to loss.entropy_target",
  )
  v = c.critic
  if not config.has_critic(c):
    for field, off in (("pretrain_steps", 0), ("mix", 0), ("fallback", False)):
      require(
          v[field] == off,
          f"critic.{field}",
          f"{name} has no critic: use gae or gae_length_adaptive",
      )
  require(
      not v.reuse or (v.pretrain_steps and v.init != "exported"),
      "critic.reuse",
      "takes the place of value pretraining: needs critic.pretrain_steps > 0,"
      " and not critic.init = 'exported'",
  )
  require(
      bool(v.path) == (v.init == "exported"),
      "critic.path",
      f"does not go with critic.init = {v.init!r}: it is for 'exported'",
  )
  require(
      not v.mix or v.pretrain_steps,
      "critic.mix",
      "mixes in the pretrained critic: needs critic.pretrain_steps > 0",
  )
  require(v.low < v.high, "critic.low", f"must be below critic.high = {v.high}")
  low, high = sorted((c.reward.right, c.reward.wrong))
  require(
      v.head != "categorical" or v.low <= low <= high <= v.high,
      "critic.head",
      f"critic.low = {v.low} to critic.high = {v.high} must hold the rewards,"
      f" {low} to {high}",
  )
  require(
      c.loss.surrogate != "reinforce"
      or c.updates.minibatches * c.updates.epochs == 1,
      "loss.surrogate",
      "has no ratio, and is right on the policy that sampled only: set"
      " updates.minibatches = 1 and updates.epochs = 1",
  )
  require(
      c.loss.cov_low < c.loss.cov_high,
      "loss.cov_low",
      f"must be below loss.cov_high = {c.loss.cov_high}",
  )
  require(
      c.advantage.name != "temporal" or c.kl.place == "loss",
      "kl.place",
      "temporal compares outcomes with those of earlier steps: use 'loss'",
  )


def devices(c: ml_collections.ConfigDict, devices: int) -> None:
  """Checks what depends on the number of devices.

  Raises:
    ConfigError: a batch or a parameter cannot be split over the mesh.
  """
  sizes = dict(c.mesh)
  known = 1
  for size in sizes.values():
    known *= size if size > 0 else 1
  for name, size in sizes.items():
    if size == -1:
      sizes[name] = devices // known
      known *= sizes[name]
  shape = " x ".join(f"{k} {v}" for k, v in sizes.items())
  if known != devices:
    raise config.ConfigError(
        f"mesh = {shape}: does not cover {devices} devices; set one axis to -1"
    )
  ways, tensor = sizes["data"] * sizes["fsdp"], sizes["tensor"]
  r = c.rollout
  for name, rows in {
      "sft.batch": c.sft.batch,
      "reward_model.batch": 2
      * c.reward_model.batch
      * (c.reward_model.steps > 0),
      "rollout.batch": r.batch // r.group_size,
      "rollout.slots": r.slots,
      "rollout.stragglers": r.stragglers,
      "updates.minibatches": r.batch // c.updates.minibatches,
      "evaluate.batch": c.evaluate.batch,
  }.items():
    if rows % ways:
      raise config.ConfigError(
          f"{name} = {config.flat(c)[name]!r}: {rows} rows at a time cannot"
          f" be split over data x fsdp = {ways} devices"
      )
  for name, size, parts in (
      ("model.kv_heads", c.model.kv_heads, tensor),
      ("model.mlp", c.model.mlp, tensor),
      ("model.width", c.model.width, sizes["fsdp"]),
  ):
    if size % parts:
      raise config.ConfigError(
          f"{name} = {size}: cannot be split over {parts} devices of the mesh"
          f" ({shape})"
      )
