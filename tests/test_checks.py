"""Configs that cannot work are refused by name, with the remedy."""

import feature_fields
import pytest
from test_config import with_fields

from configs import base
from rl_reason import features, tasks
from rl_reason.base import config, errors, feature, fields
from rl_reason.base.fields import FIELDS
from rl_reason.checks import (
    config_checks,
    machine_checks,
)


class Others:
  """A task without difficulties."""

  def problem(self, rng, difficulty):
    return tasks.Row(str(rng.random()), "1", difficulty)


OF_OTHERS = {
    "task.name": "test_checks:Others",
    "task.difficulties": (),
    "sft.steps": 0,
    "sft.habits.steps": 0,
    "model.path": "x",
    "reward.functions": "length*1",
    "optimizer.lr": 1e-5,
}


def error(changes, given=()):
  """The error of a file, or of a command line that gives some fields."""
  with pytest.raises(errors.ConfigError) as e:
    config_checks.fields(with_fields(changes), given)
  assert len(e.value.lines) == 1
  return str(e.value)


MAX_RL = {"advantage.name": "max_rl", "reward.incorrect": 0.0}
OWN_OUTCOME = "rl_reason.algorithms.rewards:correctness"
ON_POLICY = {"surrogate.name": "reinforce", "updates.minibatches": 1}
STALE = {
    "updates.minibatches": {"updates.minibatches": 2},
    "updates.epochs": {"updates.epochs": 2},
}
INTERRUPT = {
    "environment.name": "interrupt",
    "environment.turn_tokens": 8,
    "environment.phrase": "#",
}
GAE = {"advantage.name": "gae"}
VLLM = {
    "rollout.engine.name": "vllm",
    "rollout.engine.args.model": "policy",
}
FILES = {
    "task.name": "files",
    "task.difficulties": (),
    "tokenizer": "x",
    "data.train": "gsm8k",
    "data.evaluate": "gsm8k",
}


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"rollout.group_size": 1}, "rollout.group_size = 1: group_norm comp"),
        ({"updates.minibatches": 5}, "updates.minibatches = 5: must divide"),
        (
            {"updates.token_budget": 0},
            "updates.token_budget = 0: must be at le",
        ),
        ({"reward.overlong_buffer": 99}, "must not exceed rollout.max_tokens"),
        ({"reward.correct": -1.0}, "must be more than reward.incorrect"),
        ({"reward.functions": "steps*"}, "must look like 'steps', 'steps*0.5'"),
        ({"reward.timeout": 1.0}, "does nothing without reward.functions"),
        ({"reward.executor": "process"}, "does nothing without reward.func"),
        ({"reward.outcome.args.correct_long": 1.0}, "correctness takes no arg"),
        ({"kl.kind": "k3"}, "kl.kind = 'k3': does nothing without kl.coef"),
        ({"kl.kind": "k1", "kl.coef": 0.1}, "has no expected gradient"),
        ({"kl.place": "reward"}, "kl.place = 'reward': does nothing without"),
        ({"advantage.name": "max_rl"}, "set reward.correct = 1"),
        (
            MAX_RL | {"reward.overlong_buffer": 4},
            "reward.overlong_buffer = 0, reward.functions",
        ),
        (
            MAX_RL | {"reward.functions": "length*-0.3"},
            "reward.functions = '' and kl.place = 'loss'",
        ),
        (
            MAX_RL | {"reward.outcome.name": OWN_OUTCOME},
            "{0, 1}: set reward.outcome.name = 'correctness'",
        ),
        (
            {"reward.outcome.name": "cosine"},
            "reward.outcome.name = 'cosine': was taken out: reward.length_pen",
        ),
        (
            {"advantage.name": "pass_at_k", "advantage.args.k": 9},
            "advantage.args.k = 9: must be at most rollout.group_size = 8",
        ),
        (
            {"advantage.name": "pass_at_k", "reward.functions": "length"},
            "at most 0, and reward.outcome.name = 'correctness', reward.length",
        ),
        (
            {"advantage.name": "weak_positives", "reward.incorrect": 0.0},
            "reward.incorrect = 0.0: must be below 0",
        ),
        ({"advantage.name": "gdpo"}, "gdpo reads rewards by their names"),
        (
            {"advantage.name": "score_weighted", "advantage.args.score": "x"}
            | {"reward.functions": "length,steps*0"},
            "advantage.args.score = 'x': is none of reward.functions: length",
        ),
        (
            {"advantage.name": "score_weighted", "reward.functions": "length"},
            "advantage.args.score: score_weighted needs it",
        ),
        (
            {"advantage.name": "gdpo", "reward.functions": "length,length*2"},
            "needs parts of different names",
        ),
        (
            {"advantage.name": "gdpo", "reward.functions": "length"}
            | {"kl.kind": "k1", "kl.coef": 0.1, "kl.place": "reward"},
            "kl.place = 'reward': gdpo would not see it",
        ),
        (
            {"advantage.name": "confidence_weighted"},
            "two-valued rewards have no degrees of confidence",
        ),
        (GAE | {"advantage.groups": "type"}, "gae compares no groups"),
        (
            FILES | {"advantage.groups": "type"},
            "advantage.groups = 'type': the",
        ),
        (FILES | {"advantage.name": "hierarchical"}, "(type): choose another"),
        (
            FILES | {"advantage.name": "gae_exp_complexity"},
            "have no difficulty",
        ),
        (
            FILES | {"rollout.group_sizes.name": "by_length"},
            "rollout.group_sizes.name = 'by_length': the sets of data.train",
        ),
        ({"rollout.types": "subject"}, "compares types of problems"),
        (
            {"advantage.name": "gae_exp_complexity"}
            | {"rollout.types": "subject"},
            "rollout.types = 'subject': gae_exp_complexity needs a complexity",
        ),
        (
            FILES
            | {"advantage.name": "gae_exp_complexity"}
            | {"rollout.types": "pass_rate", "advantage.args.hardest": 1.0},
            "tenths of incorrect responses: set 10",
        ),
        (
            OF_OTHERS
            | {"advantage.groups": "type", "rollout.types": "pass_rate"},
            "there is no verifier: leave it at 'difficulty'",
        ),
        ({"critic.pretrain_steps": 5}, "group_norm has no critic"),
        (
            {"critic.fallback": True},
            "critic.fallback = True: was taken out: critic.pretrain_steps",
        ),
        (GAE | {"critic.init": "exported"}, "critic.path = '': critic.init"),
        (GAE | {"critic.path": "x"}, "critic.path = 'x': is for critic.init ="),
        (GAE | {"critic.reuse": "x"}, "critic.reuse = 'x': does nothing"),
        (
            GAE | {"critic.value_mixture.name": "mixture"},
            "without critic.pretrain_steps",
        ),
        (
            GAE
            | {"critic.head.name": "categorical", "critic.head.args.low": 3.0},
            "critic.head.args.low = 3.0: must be below",
        ),
        (
            GAE | {"critic.head.name": "categorical", "reward.correct": 10.0},
            "must contain the rewards, -1.0 to 10.0",
        ),
        *(
            (ON_POLICY | fields, f"the run is off-policy: set {name} = ")
            for name, fields in STALE.items()
        ),
        ({"surrogate.name": "trpo"}, "there are ppo, reinforce"),
        (
            {"surrogate.args.clip_low": -0.1},
            "clip_low = -0.1: must be at least",
        ),
        (
            {"surrogate.args.clip_low": "low"},
            "clip_low = 'low': must be a numb",
        ),
        (
            {"surrogate.args.dual_clip": 0.5},
            "must be more than 1, or 0 for off",
        ),
        (
            {"reduction.name": "token"},
            "reduction.name = 'token': there is no su",
        ),
        (
            {"covariance.name": "clip_cov"},
            "covariance.name = clip_cov: was taken out: an entropy bonus",
        ),
        ({"covariance.args.share": 0.1}, "args.share = 0.1: was taken out"),
        ({"correction.args.high": 2.0}, "none takes no arguments"),
        ({"model.heads": 3}, "must be a multiple of model.kv_heads = 2"),
        ({"model.head_dim": 7}, "must be even"),
        (
            {"model.rope_low": 9.0, "model.rope_factor": 2.0},
            "must be below model.rope_high = 4.0",
        ),
        ({"sft.steps": 0}, "or give model.path or sft.reuse"),
        ({"task.difficulties": (99,)}, "99 is none of arithmetic's"),
        ({"sft.difficulties": (99,)}, "99 is none of arithmetic's"),
        (FILES | {"sft.difficulties": (2,)}, "here SFT reads rows: set ()"),
        *(
            ({name: "careful"}, f"{name} = 'careful': must look like 'careful:")
            for name in ("sft.mixture", *feature.marked("mixtures"))
        ),
        ({"sft.mixture": "brilliant:1"}, "'brilliant' is none of"),
        ({"data.train": "gsm8k", "tokenizer": "x"}, "'files' goes with"),
        (FILES | {"tokenizer": ""}, "name a tokenizer"),
        (FILES | {"data.evaluate": "gsm8k*2"}, "leave out the weights"),
        (FILES | {"data.train": "aime24"}, "set data.allow_benchmarks = True"),
        (FILES | {"data.system": "Think."}, "does nothing without data.chat"),
        (
            {"rollout.group_sizes.name": "by_length"}
            | {"rollout.group_sizes.args.least": 9},
            "must not exceed rollout.group_size = 8",
        ),
        (
            {"rollout.engine.name": "vllm"},
            "rollout.engine.args.model: vllm needs it",
        ),
        (
            VLLM | {"rollout.weights": "int8"},
            "rollout.weights = 'int8': 'int8' is for the sampler of this",
        ),
        ({"rollout.top_p": 0.9}, "set rollout.allow_filters = True"),
        ({"rollout.min_p": 0.1}, "set rollout.allow_filters = True"),
        ({"rollout.allow_top_p": True}, "is now rollout.allow_filters"),
        ({"data.template_args": "think=1"}, "plain text: set data.chat = True"),
        (
            {"data.template_args": "think", "data.chat": True},
            "data.template_args = 'think': must look like enable_thinking",
        ),
        ({"rollout.weights": "int4"}, "one of same, bfloat16, int8"),
        (
            GAE | {"rollout.group_size": 1, "dynamic_sampling.enabled": True},
            "a group of one is all correct or all incorrect",
        ),
        (
            {"reward.functions": "a/b*1", "dynamic_sampling.enabled": True}
            | {"dynamic_sampling.batches": 2},
            "dynamic_sampling.batches = 2: a round is then larger",
        ),
        (
            {"dynamic_sampling.surplus": "keep"},
            "dynamic_sampling.surplus = keep: was taken out: dynamic_samp",
        ),
        ({"dynamic_sampling.batches": 3}, "without dynamic_sampling.enabled"),
        ({"optimizer.freeze": 0.1}, "freezes no layer of model.layers = 2"),
        (
            {"optimizer.name": "sgd", "optimizer.offload": True},
            "optimizer.offload = True: not with 'sgd', only with 'adamw'",
        ),
        ({"optimizer.warmup_steps": 50}, "must be less than rl.steps"),
        ({"evaluate.mean_of": 9}, "must not exceed evaluate.samples"),
        ({"evaluate.interim_prompts": 9999}, "exceed evaluate.prompts"),
        ({"mesh.fsdp": 0}, "must be positive, or -1"),
        ({"mesh.fsdp": -1}, "only one axis"),
        ({"mesh.sequence": 7}, "must divide the length of packed rows"),
    ],
)
def test_impossible_configs_are_named(changes, words):
  assert words in error(changes, given=tuple(changes))


def test_a_source_with_difficulties_has_types():
  fields = FILES | {"data.train": "math", "advantage.groups": "type"}
  config_checks.fields(with_fields(fields))
  # Every set has pass rates, which a run measures.
  gsm8k = dict(fields, **{"data.train": "gsm8k", "rollout.types": "pass_rate"})
  config_checks.fields(with_fields(gsm8k))
  fields["data.train"] = "somebody/rows"  # may have a column for it
  config_checks.fields(with_fields(fields))


@pytest.mark.parametrize(
    "changes, words",
    [
        (
            {"advantage.groups": "type", "task.difficulties": (2,)},
            "problems, and all have the same one",
        ),
        ({"advantage.groups": "type"}, ""),
        (
            {
                "rollout.group_sizes.name": "by_length",
                "task.difficulties": (2,),
            },
            "rollout.group_sizes.name = 'by_length': depends on the difficu",
        ),
        (
            OF_OTHERS | {"advantage.name": "hierarchical"},
            "have the same one (ta",
        ),
        (OF_OTHERS | {"advantage.name": "gae_exp_complexity"}, "the same one"),
        ({"advantage.name": "gae_exp_complexity"}, ""),
        (
            {"advantage.name": "gae_exp_complexity"}
            | {"advantage.args.hardest": 1.0},
            "advantage.args.hardest = 1.0: is below the difficulty of all"
            " problems, which count as equally hard, so that the difficulty"
            " changes nothing: set the hardest, 6",
        ),
        (
            {"advantage.name": "gae_exp_complexity"}
            | {"advantage.args.hardest": 6.0},
            "",
        ),
        (
            {"advantage.groups": "type", "rollout.types": "subject"},
            "depends on the subject (type)",
        ),
        (
            {"advantage.groups": "type", "rollout.types": "pass_rate"}
            | {"task.difficulties": (2,)},
            "",
        ),
    ],
)
def test_combinations_without_effect_are_warned_of(changes, words):
  c = with_fields(changes)
  config_checks.fields(c)
  lines = [x for x in config_checks.warnings(c) if "does nothing" not in x]
  assert len(lines) == bool(words) and all(words in x for x in lines)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"turn_tokens": 0}, "turn_tokens = 0: the tokens before an interrupt"),
        (
            {"turn_tokens": 48},
            "turn_tokens = 48: must be less than rollout.max",
        ),
        (
            {"phrase": ""},
            "environment.phrase = '': what follows an interrupted",
        ),
        (
            {"executor": "process"},
            "executor = 'process': the verifier has proc",
        ),
        ({"name": "calculator"}, "environment.phrase = '#': is of the environ"),
    ],
)
def test_interruptions_that_cannot_work_are_refused(changes, words):
  config_checks.fields(with_fields(INTERRUPT))
  changes = {f"environment.{k}": x for k, x in changes.items()}
  with pytest.raises(errors.ConfigError) as e:
    config_checks.fields(with_fields(INTERRUPT | changes))
  assert words in str(e.value)


def test_a_task_of_turns_is_not_interrupted():
  guess = {"task.name": "guess", "task.difficulties": (8,)}
  with pytest.raises(errors.ConfigError, match="guess has no verifier of"):
    config_checks.fields(with_fields(INTERRUPT | guess))


@pytest.mark.parametrize(
    "changes, rest",
    [
        ({"critic.lr": 0.5}, {}),
        ({"critic.head.name": "gated"}, {}),
        ({"environment.max_turns": 2}, {}),
        ({"advantage.history": 3}, {"advantage.name": "gae"}),
        ({"reward.overlong_coef": 0.5}, {}),
        ({"dynamic_sampling.max_rounds": 3}, {}),
        ({"dynamic_sampling.shortfall": "raise"}, {}),
        ({"critic.pretrain_ev": 0.5}, {"advantage.name": "gae"}),
    ],
)
def test_fields_that_nothing_reads(changes, rest):
  """A file may leave them for another algorithm; a command line may not."""
  [name], c = changes, with_fields(changes | rest)
  [line] = config_checks.warnings(c)
  assert line.startswith(f"{name} = {changes[name]!r}: does nothing")
  assert "does nothing" in error(changes | rest, given=(name,))
  assert f"warning: {line}" in config_checks.checked(c, {})[1]


def test_a_file_may_not_switch_something_on_in_vain():
  """What is off by default is refused; a setting of a file is a warning."""
  assert "without kl.coef" in error({"kl.kind": "k3"})
  assert "without data.chat" in error({"data.system": "Think."})
  line = "kl.place = 'reward': does nothing without kl.kind: set both"
  [found] = config_checks.warnings(with_fields({"kl.place": "reward"}))
  assert found.startswith(line)


def test_fields_that_something_reads():
  changes = {"critic.lr": 0.5, "critic.pretrain_ev": 0.5} | GAE
  changes |= {"critic.pretrain_steps": 2}
  assert config_checks.warnings(with_fields(changes)) == []
  changes = {"reward.overlong_buffer": 4, "dynamic_sampling.enabled": True}
  changes |= {"reward.overlong_coef": 0.5}
  changes |= {"dynamic_sampling.shortfall": "raise"}
  assert config_checks.warnings(with_fields(changes)) == []


def test_fields_of_the_command_line_that_nothing_reads():
  c = base.arithmetic()
  config_checks.fields(c, given=("reward.overlong_buffer",))
  # The default, as in a sweep.
  config_checks.fields(c, given=("reward.overlong_coef",))
  c.reward.overlong_coef, c.critic.lr = 0.5, 0.4
  for name in ("reward.overlong_coef", "critic.lr"):
    with pytest.raises(errors.ConfigError, match=f"{name} = .* this out"):
      config_checks.fields(c, given=(name,))
  c.model.path = "x"
  config_checks.fields(c, given=("model.path", "model.dtype"))
  with pytest.raises(
      errors.ConfigError, match="model.width = 64: model.path = 'x'"
  ):
    config_checks.fields(c, given=("model.width",))


def test_batches_that_the_mesh_cannot_split():
  c = base.arithmetic()
  machine_checks.devices(c, 2)
  c.rollout.batch = 24
  with pytest.raises(errors.ConfigError, match="rollout.batch = 24: 3 grou"):
    machine_checks.devices(c, 2)
  c.rollout.batch, c.mesh.data = 32, 3
  with pytest.raises(errors.ConfigError, match="does not cover 8 devices"):
    machine_checks.devices(c, 8)
  c.mesh.data, c.mesh.tensor = -1, 4
  with pytest.raises(errors.ConfigError, match="model.kv_heads = 2: cannot be"):
    machine_checks.devices(c, 4)
  c.mesh.tensor = 1
  c.model.update(remat="sqrt", layers=13)
  with pytest.raises(errors.ConfigError, match="remat = 'sqrt': 13 layers can"):
    machine_checks.devices(c, 1)


def test_batches_of_stages_that_do_not_run_are_not_split():
  c = base.arithmetic()
  c.sft.batch = 3
  with pytest.raises(errors.ConfigError, match="sft.batch = 3: 3 rows"):
    machine_checks.devices(c, 2)
  c.sft.steps = c.sft.habits.steps = 0
  machine_checks.devices(c, 4)


def test_programs_are_refused_where_nothing_contains_them(monkeypatch):
  """Before training: every program would be incorrect otherwise."""

  def none():
    raise RuntimeError("nothing on this machine can contain untrusted code")

  monkeypatch.setattr(machine_checks.sandbox, "tier", none)
  c = base.arithmetic()
  c.task.name = "files"
  c.data.update(train="gsm8k", evaluate="mbpp")
  [line] = machine_checks.files(c)
  assert line.startswith("data.evaluate = 'mbpp': its rows are judged by code")
  assert "nothing on this machine can contain" in line
  c.data.update(evaluate="gsm8k")
  assert machine_checks.files(c) == []


SFT_ALONE = {"rl.steps": 0}
RL_ALONE = {"sft.steps": 0, "sft.habits.steps": 0, "model.path": "x"}
RL_ALONE |= {"optimizer.lr": 1e-5}
ON_FILES = FILES | RL_ALONE
ONE_UPDATE = {"updates.minibatches": 1, "surrogate.name": "reinforce"}
NO_FILES = "does nothing: task.name = 'arithmetic' makes problems, and reads no"


@pytest.mark.parametrize(
    "others, name, value, words",
    [
        *(
            ({}, name, value, NO_FILES)
            for name, value in {
                "data.columns": "question=problem",
                "data.kind": "none",
                "data.template": "dapo",
                "data.paraphrases": 2,
                "data.deduplicate": False,
                "data.ngram": 8,
                "data.allow_benchmarks": True,
                "data.limit": 10,
                "data.max_corrupt": 0.1,
                "data.programs": 5,
                "evaluate.long_prompts": "drop",
                "evaluate.sampling": "published",
            }.items()
        ),
        (ON_FILES, "data.programs", 5, "data.evaluate has code"),
        (ON_FILES, "sft.mixture", "careful:1", "sft.steps = 0"),
        (
            ON_FILES | {"sft.steps": 9},
            *("sft.mixture", "careful:1", "'files' have no styles"),
        ),
        (
            ON_FILES
            | {"data.train": "some/rows", "data.kind": "none"}
            | {"reward.functions": "length*1", "sft.threshold": 0.0},
            *("reward.correct", 2.0, "nothing verifies responses"),
        ),
        ({}, "model.rope_low", 2.0, "without model.rope_factor"),
        ({}, "model.rope_high", 8.0, "without model.rope_factor"),
        ({}, "model.rope_context", 64, "without model.rope_factor"),
        ({}, "model.rope_type", "yarn", "without model.rope_factor"),
        ({}, "model.rope_truncate", False, "without model.rope_factor"),
        (
            {"model.rope_factor": 2.0},
            *(
                "model.rope_truncate",
                False,
                "it is of model.rope_type = 'yarn'",
            ),
        ),
        (
            {"model.rope_factor": 2.0, "model.rope_type": "linear"},
            *("model.rope_context", 64, "'linear' counts no turns"),
        ),
        ({}, "rollout.allow_filters", True, "no filter is on: rollout.top_k"),
        (
            {"evaluate.top_k": 5},
            "rollout.allow_filters",
            True,
            "no filter is on",
        ),
        ({}, "export.private", False, "without export.push_to"),
        (ONE_UPDATE, "updates.max_kl", 0.1, "a rollout has one update"),
        *(
            ({"optimizer.name": "sgd"}, f"optimizer.{x}", 0.5, "has no moments")
            for x in ("b1", "b2", "eps", "weight_decay")
        ),
        *(
            (SFT_ALONE, name, value, "does nothing: rl.steps = 0, and SFT")
            for name, value in {
                "optimizer.lr": 1e-5,
                "optimizer.schedule": "cosine",
                "optimizer.freeze": 0.5,
                "surrogate.name": "gspo",
                "surrogate.args.clip_high": 0.3,
                "reduction.name": "token_mean",
                "dynamic_sampling.enabled": True,
                "loss.mask_truncated": True,
                "loss.entropy_coef": 0.1,
                "updates.minibatches": 4,
                "updates.epochs": 2,
            }.items()
        ),
        *(
            (RL_ALONE, name, value, "does nothing: sft.steps = 0, and RL")
            for name, value in {
                "sft.lr": 1e-5,
                "sft.schedule": "linear",
                "sft.batch": 32,
                "sft.warmup_steps": 2,
            }.items()
        ),
        (RL_ALONE, "sft.habits.lr", 1e-5, "sft.habits.steps = 0"),
    ],
)
def test_a_field_that_nothing_reads_is_refused_on_a_command_line(
    others, name, value, words
):
  c = with_fields(others)
  config_checks.fields(c)
  config.override(c, {name: value})
  with pytest.raises(errors.ConfigError) as e:
    config_checks.fields(c, [name])
  line = next(x for x in e.value.lines if x.startswith(f"{name} = "))
  assert words in line and line.endswith("leave this out")


def test_a_file_may_keep_what_an_override_leaves_out():
  """The whole of an algorithm, where only SFT runs; and the other way round."""
  for path in ("dapo", "vapo", "ppo"):
    c, notes = config_checks.checked(
        path, {"rl.steps": 0, "critic.pretrain_steps": 0}
    )
    assert not [x for x in notes if x.startswith("warning")]
  changes = {"sft.steps": 0, "sft.habits.steps": 0, "model.path": "x"}
  _, notes = config_checks.checked("dapo", changes | {"optimizer.lr": 1e-5})
  assert not [x for x in notes if x.startswith("warning")]


# Fields that every run reads, or a stage of --stage does. A new field without
# `needs` belongs to one of them, or has a need.
ALWAYS_READ = """
seed tokenizer task. data.train data.evaluate data.chat model. mesh.
sft.steps sft.samples sft.reuse sft.habits.steps rollout. reward. advantage.
correction. kl.kind updates.token_budget optimizer.name
optimizer.clip_norm optimizer.offload rl. evaluate. checkpoint. log. streams.
reward_model. serve. generate. hub. export.
critic. environment.
""".split()


def test_every_field_has_a_need_or_is_always_read():
  for name in FIELDS.keys() - feature_fields.of(features.FEATURES):
    always = name in ALWAYS_READ or name.startswith(
        tuple(x for x in ALWAYS_READ if x[-1] == ".")
    )
    assert fields.needs(name) or always, name
