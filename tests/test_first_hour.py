"""Mistakes of the first hour: all of them at once, before a run starts."""

import json
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest
from checkpoints import checkpoint
from conftest import ROOT, child_env
from tiny_data import byte_tokenizer, write

from rl_reason.base import config, errors, other_names, own_code
from rl_reason.base.fields import FIELDS
from rl_reason.checks import command_line, config_checks, config_files, rules
from rl_reason.tasks import reward_terms

CONFIG = """
from rl_reason.configs import base

def get_config():
  c = base.get_config()
  c.task.name, c.task.difficulties = "files", ()
  c.model.path, c.optimizer.lr = "model", 1e-5
  c.data.train, c.data.evaluate = "rows.jsonl", "held_out.jsonl"
  c.rollout.batch, c.rollout.group_size, c.updates.minibatches = 8, 4, 1
  c.rollout.max_prompt, c.rollout.max_tokens = 64, 32
  c.reward.workers = 1
  c.log.loggers = ""
  return c
"""
OWN = """
def score(response, row):
  return 1.0

def helper(x):
  return x.missing

def advantage(rewards_B):
  return helper(rewards_B)

def surrogate(logps_BT):
  return logps_BT.sum()

def of_trl(completions, solutions):
  return [0.0] * len(completions)

class Task:
  def problem(self, rng, difficulty):
    return undefined

  def verify(self, text, row):
    return True

class Broken:
  def __init__(self):
    raise RuntimeError("no database")
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
  """A user's directory: a config, rows, functions, a model, damaged models."""
  here = tmp_path_factory.mktemp("hour")
  (here / "mine.py").write_text(CONFIG)
  (here / "my_hour.py").write_text(OWN)
  (here / "breaks.py").write_text("x = 1\nimport torchh\n")
  tok = byte_tokenizer()
  for (
      name
  ) in "model no_config other_kind no_tokenizer no_chat cut small".split():
    checkpoint(here / name, vocab_size=300 if name != "small" else 40)
    tok.save_pretrained(here / name)
  (here / "no_config" / "config.json").unlink()
  settings = json.loads((here / "model" / "config.json").read_text())
  text = json.dumps(settings | dict(model_type="gpt2"))
  (here / "other_kind" / "config.json").write_text(text)
  for path in (here / "no_tokenizer").glob("tokenizer*"):
    path.unlink()
  (here / "no_chat" / "chat_template.jinja").write_text(
      "{{ raise_exception('only users') }}"
  )
  with (here / "cut" / "model.safetensors").open("r+b") as file:
    file.truncate(1000)
  for name in ("rows", "held_out"):
    write(
        here / f"{name}.jsonl", [(f"{name} {i}+1?", f"{i}") for i in range(3)]
    )
  write(here / "columns.jsonl", [dict(q="1+1?", a="2")])
  write(here / "answers.jsonl", [dict(question="1+1?")])
  write(
      here / "essays.jsonl",
      [("Why?", "There is no single answer to that, as it depends.")],
  )
  write(here / "text.jsonl", ["hello"])
  write(here / "long.jsonl", [("word " * 100, "1")])
  write(here / "empty.jsonl", [])
  return here


@pytest.fixture
def lines(made, monkeypatch):
  """lines(field=value, ...) -> what is wrong, before anything starts."""
  monkeypatch.chdir(made)
  monkeypatch.syspath_prepend(str(made))
  yield lambda fields, stage="all", path="mine.py": told(fields, stage, path)
  for name in ("my_hour", "breaks"):
    sys.modules.pop(name, None)


def told(fields, stage, path):
  faults = rules.Faults()
  command_line.prepare(path, fields, None, stage, faults)
  return faults.lines


def test_a_whole_config_starts(lines):
  assert lines({}) == lines({}, "evaluate") == lines({}, "prepare") == []


def test_four_faults_are_four_lines(lines):
  found = lines(
      {
          "rollout.bach": "3",
          "optimizer.lr": "-1",
          "surrogate.args.clip_hihg": ".3",
          "kl.kind": "k3",
          "model.path": "no_config",
          "data.train": "columns.jsonl",
      }
  )
  assert found == [
      "rollout.bach = 3: there is no such field; did you mean rollout.batch?",
      "optimizer.lr = -1.0: must be at least 0 and at most 1",
      "surrogate.args.clip_hihg = 0.3: ppo takes clip_low, clip_high,"
      " dual_clip, log_ratio_max; did you mean clip_high?",
      "kl.kind = 'k3': does nothing without kl.coef: set both, or leave this"
      " out",
      "model.path = 'no_config': has no config.json (it has"
      " chat_template.jinja, model.safetensors, tokenizer.json,"
      " tokenizer_config.json); give the directory of a model, as written by"
      " save_pretrained",
      "data.train: columns.jsonl: no row has a value of question in question,"
      " problem, prompt, messages, conversations, conversation, dialogue,"
      " dialog, query, instruction; its columns are q, a: name the right one,"
      " as in data.columns = 'question=q'",
  ]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        # What the unknown value would have satisfied is left out.
        (
            {"kl.koef": "0.1", "kl.kind": "k3"},
            "kl.koef = 0.1: there is no such field; did you mean kl.coef?",
        ),
        # Similar to no field.
        ({"zz": "1"}, "zz = 1: there is no such field; see configs/base.py"),
        (
            {"workdir": "here"},
            "workdir = here: there is no such field; did you mean the flag"
            " --workdir?",
        ),
        ({"rollout.batch": "many"}, "rollout.batch = many: must be an integer"),
        (
            {"rollout.batch": "0", "rollout.group_size": "3"},
            "rollout.batch = 0: must be at least 1",
        ),
        (
            {"task.name": "fils"},
            "task.name = 'fils': none of arithmetic, operators,",
        ),
        (
            {"advantage.name": "gea", "critic.lr": "0.01"},
            "advantage.name = 'gea': there is no such function; did you mean",
        ),
        (
            {"data.train": "rosw.jsonl"},
            "data.train = 'rosw.jsonl': rosw.jsonl:",
        ),
    ],
)
def test_what_follows_from_another_fault_is_left_out(lines, fields, line):
  [found] = lines(fields)
  assert found.startswith(line)


def test_what_no_value_would_satisfy_is_told(lines):
  found = lines({"rollout.batch": "0", "rollout.top_p": "0.9"})
  assert [x.partition(" = ")[0] for x in found] == [
      "rollout.batch",
      "rollout.top_p",
  ]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {"model.path": "modle"},
            "model.path = 'modle': there is no such directory, and the id of a"
            " hub looks like OWNER/NAME; did you mean model?",
        ),
        (
            {"model.path": "other_kind"},
            "model.path = 'other_kind': config.json: model_type = 'gpt2': must"
            " be one of llama, qwen2, qwen3, mistral, qwen3_moe; model.family"
            " adds one",
        ),
        (
            {"model.path": "no_tokenizer"},
            "tokenizer = '': model.path = 'no_tokenizer' has no tokenizer"
            " (tokenizer.json, tokenizer.model, vocab.json); name one",
        ),
        (
            {"model.path": "small"},
            "tokenizer = 'small': has 259 tokens, and model.path = 'small' has"
            " a vocab_size of 40; use the tokenizer of that model",
        ),
        (
            {"model.path": "no_chat", "data.chat": "true"},
            "data.chat = True: the tokenizer's chat template refuses this"
            " (TemplateError: only users): give messages that it takes,"
            " correct data.template_args, set"
            " data.system = '', or data.chat = False",
        ),
        (
            {"rollout.max_tokens": "999"},
            "rollout.max_tokens = 999: with rollout.max_prompt it makes 1063"
            " tokens, and model.path = 'model' takes 128"
            " (max_position_embeddings, sliding_window): lower"
            " rollout.max_tokens or rollout.max_prompt",
        ),
        (
            {"rollout.stop_tokens": "'</s>',"},
            "rollout.stop_tokens: '</s>' is no token of the tokenizer; leave it"
            " out, or add it to the tokenizer and to the model",
        ),
        (
            {"data.train": "answers.jsonl"},
            "data.train: answers.jsonl: no row has a value of answer in answer,"
            " reward_model.ground_truth, ground_truth, final_answer,"
            " expected_answer, correct_answer, answerKey, solution; its columns"
            " are question: name the right one, as in data.columns ="
            " 'answer=question', or set data.kind = 'none' if rewards need no"
            " reference answers",
        ),
        (
            {"data.train": "empty.jsonl"},
            "data.train: no row of empty.jsonl is left (it is empty); correct"
            " it or leave it out",
        ),
        (
            {"data.train": "text.jsonl"},
            "data.train: no row of text.jsonl is left (1 rows: the row is"
            " malformed, as in text.jsonl:1: no object in UTF-8, or not with"
            " the columns of the header); correct it or leave it out",
        ),
        (
            {"data.train": "essays.jsonl"},
            "data.train: no row of essays.jsonl is left (1 rows: the reference"
            " answer cannot be verified, as in essays.jsonl:1: There is no"
            " single answer to that, as it depends.); correct it or leave it"
            " out",
        ),
        (
            {"reward.functions": "my_hour:of_trl"},
            "reward.functions = 'my_hour:of_trl': my_hour:of_trl takes"
            " solutions, which the data do not have: their columns are"
            " question, answer",
        ),
        (
            {"reward.functions": "my_hour:scoer"},
            "reward.functions = 'my_hour:scoer': my_hour has no scoer; did you"
            " mean score? it has score, helper, advantage, surrogate, of_trl,"
            " Task, Broken",
        ),
        (
            {"reward.functions": "breaks:f"},
            "reward.functions = 'breaks:f': ModuleNotFoundError: No module"
            " named 'torchh' (breaks.py:2)",
        ),
        (
            {"reward.functions": "my_hour.py:score"},
            "reward.functions = 'my_hour.py:score': name the module without"
            " path and suffix: my_hour:FUNCTION",
        ),
        (
            {"advantage.name": "my_hour:advantage"},
            "advantage.name = 'my_hour:advantage': raises, when it is traced,"
            " AttributeError: DynamicJaxprTracer has no attribute missing"
            " (my_hour.py:6, in helper)",
        ),
        (
            {
                "task.name": "my_hour:Task",
                "data.train": "",
                "data.evaluate": "",
            },
            "task.name = 'my_hour:Task': NameError: name 'undefined' is not"
            " defined (my_hour.py:19, in problem)",
        ),
        (
            {"environment.name": "my_hour:Broken"},
            "environment.name = 'my_hour:Broken': has no method step",
        ),
        (
            {"sft.reuse": "runs/none"},
            "sft.reuse = 'runs/none': there is no such directory; name the work"
            " directory of a run",
        ),
    ],
)
def test_files_and_own_code(lines, fields, line):
  """One line each, although nothing was compiled and no run started."""
  assert lines(fields) == [line]
  assert not pathlib.Path("runs").exists()


def test_damaged_weights_and_long_prompts(lines):
  found = lines({"model.path": "cut", "data.train": "long.jsonl"})
  assert found[0].startswith("model.path = 'cut': model.safetensors: ")
  assert "truncated or damaged; download it again" in found[0]
  assert "the prompt is longer than rollout.max_prompt = 64" in found[1]
  assert len(found) == 2


def test_a_later_row_may_be_the_first_that_can_be_used(lines, made):
  rows = [
      ("Why?", "There is no single answer to that, as it depends.")
  ] * 40 + [("1+1?", "2")]
  write(made / "mixed.jsonl", rows)
  assert lines({"data.train": "mixed.jsonl", "data.max_corrupt": "1"}) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "def config():\n  return 1\n",
            ": has no function get_config; did you",
        ),
        (
            "def get_config():\n  pass\n",
            ": get_config returns NoneType, and mu",
        ),
        ("get_config = dict\n", ": get_config returns dict, and must return a"),
        (
            "def get_config():\n  return 1 / 0\n",
            ": ZeroDivisionError: division by zero (bad.py:2, in get_config)",
        ),
        ("def get_config(:\n", ": SyntaxError: invalid syntax (bad.py:1)"),
        (
            "import configs_of_mine\n",
            ": ModuleNotFoundError: No module named 'configs_of_mine' (bad.py",
        ),
    ],
)
def test_a_config_file_of_ones_own(tmp_path, monkeypatch, text, line):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "bad.py").write_text(text)
  faults = rules.Faults()
  given = {"rollout.bach": "1", "optimizer.lr": "10"}
  command_line.prepare("bad.py", given, None, "all", faults)
  assert faults.lines[0].startswith(f"bad.py{line}")
  # The overrides are checked nevertheless.
  assert faults.lines[1].startswith("rollout.bach = 1: there is no such field")
  assert faults.lines[2].startswith(
      "optimizer.lr = 10.0: must be at least 0 an"
  )


def test_presets_are_imported_from_the_package(tmp_path):
  """Where no folder configs/ is: in another directory, with the wheel."""
  (tmp_path / "old.py").write_text("from configs import grpo\n")
  code = """
      import sys
      sys.modules["configs"] = None  # as if there were none
      from rl_reason.checks import config_files
      try:
        config_files.read("old.py")
      except ValueError as e:
        print(e)
  """
  done = subprocess.run(
      [sys.executable, "-c", textwrap.dedent(code)],
      cwd=tmp_path,
      env=child_env(),
      capture_output=True,
      text=True,
  )
  assert done.stdout.startswith("old.py: ModuleNotFoundError: "), done.stderr
  assert f"{tmp_path} has no such folder" in done.stdout
  assert "installed as rl_reason.configs: `from rl_reason" in done.stdout


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("lr", ["optimizer.lr", "sft.lr", "critic.lr"]),
        ("steps", ["rl.steps", "sft.steps"]),
        ("learning_rate", ["optimizer.lr"]),
        ("num_generations", ["rollout.group_size"]),
        ("temperature", ["rollout.temperature", "evaluate.temperature"]),
        ("tempratur", ["rollout.temperature", "evaluate.temperature"]),
        ("rollout.bach", ["rollout.batch"]),
        ("nonsense.of.mine", []),
    ],
)
def test_a_name_without_its_section(name, found):
  config_files.read("dapo")
  assert config.similar(name, FIELDS)[: len(found)] == found
  assert bool(config.similar(name, FIELDS)) == bool(found)


def test_a_name_that_counts_something_else():
  """Names of TRL and verl, as in docs/coming_from.md."""
  c = config_files.read("dapo")
  for name, hint in (
      (
          "data.train_batch_size",
          "rollout.batch, which counts responses (prompts x"
          " rollout.group_size)?",
      ),
      (
          "per_device_train_batch_size",
          "updates.token_budget, which counts tokens and changes no result?",
      ),
      ("max_steps", "rl.steps, which counts rollouts, not optimizer steps?"),
      ("max_grad_norm", "optimizer.clip_norm?"),
  ):
    said = str(config.no_such_field(c, name, 8))
    assert said == f"{name} = 8: there is no such field; did you mean {hint}"


def test_flags_that_do_not_exist(tmp_path, monkeypatch):
  from rl_reason import main

  monkeypatch.chdir(tmp_path)
  argv = (
      "main --wrokdir=x --rl.steps=3 seed=1 --learning_rate=1 --stage train"
      " --steps=9 --lr 1e-6 steps=9 --model=a/b --output_dir=x workdir=x dapo"
      " evaluate my.yaml --config.stage=sft actor_rollout_ref.rollout.n=8"
      " data.train_batch_size=64 --nonsense words"
  )
  given, faults = command_line.parse(argv.split(), main.FLAGS)
  assert given == {"stage": "sft"}
  assert faults.lines[0].startswith(
      "--stage = 'train': there is no such stage; did you mean all? There are"
      " all (the default: SFT"
  )
  said = ": there is no such flag; did you mean"
  no = ": not understood; did you mean"
  assert faults.lines[1:] == [
      f"--wrokdir{said} --workdir=x?",
      "'--rl.steps=3': fields look like --config.rl.steps=3",
      "'seed=1': fields look like --config.seed=1",
      f"--learning_rate{said} --config.optimizer.lr=1?",
      f"--steps{said} --config.rl.steps=9?",
      f"--lr{said} --config.optimizer.lr?",
      f"'steps=9'{no} --config.rl.steps=9?",
      f"--model{said} --config.model.path=a/b?",
      f"--output_dir{said} --workdir=x?",
      "'workdir=x': flags begin with two dashes: --workdir=x",
      f"'dapo'{no} --config=dapo?",
      f"'evaluate'{no} --stage=evaluate?",
      f"'my.yaml'{no} --config=my.yaml?",
      f"'actor_rollout_ref.rollout.n=8'{no} --config.rollout.group_size=8?",
      f"'data.train_batch_size=64'{no} --config.rollout.batch=64, which counts"
      " responses (prompts x rollout.group_size)?",
      "--nonsense: there is no such flag; see --help",
  ]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "names no config; presets are"),
        ("dapo,grpo", "names several configs"),
        ("grpo,dapo,vapo:smoke", "names several configs"),
        ("seed=1", "set by --config.seed=1"),
        ("rl.steps=3", "set by --config.rl.steps=3"),
        ("my.yaml", "file of Python, FILE.py: `from rl_reason.configs"),
        ("my.json", "file of Python, FILE.py"),
        ("new.toml", "file of Python, FILE.py"),
        ("my.jsonl", "--config.data.train=my.jsonl"),
        ("run", "is of a run: leave --config out, and give --workdir=run"),
        ("run/config.json", "give --workdir=run"),
        ("empty", "is a directory; name a file.py in it"),
        ("DAPO", "did you mean dapo? --config=help lists the presets"),
        ("configs.dapo", "did you mean dapo?"),
        ("rl_reason.configs.vapo", "did you mean vapo?"),
        ("Dr-GRPO", "did you mean dr_grpo?"),
        ("Qwen/Qwen3-8B", "--config.model.path=Qwen/Qwen3-8B"),
        ("mine", "did you mean mine.py?"),
        ("qqqq", "presets are abs_kl, "),
    ],
)
def test_what_is_no_config(tmp_path, monkeypatch, path, words):
  monkeypatch.chdir(tmp_path)
  for folder in ("run", "empty"):
    (tmp_path / folder).mkdir()
  (tmp_path / "run" / "config.json").write_text('{"surrogate.name": "ppo"}')
  (tmp_path / "my.yaml").write_text("rl:\n  steps: 3\n")
  (tmp_path / "my.json").write_text('{"rl.steps": 3}')
  (tmp_path / "my.jsonl").write_text('[{"question": "1+1?"}]')
  (tmp_path / "mine.py").write_text("")
  with pytest.raises(errors.ConfigError) as e:
    config_checks.checked(path, {})
  assert str(e.value).startswith(f"--config = {path.removesuffix(':smoke')}: ")
  assert words in str(e.value) and "\n" not in str(e.value)


def test_names_of_other_libraries_lead_to_a_field_of_the_guide():
  """The rows of docs/coming_from.md."""
  guide = (ROOT / "docs" / "coming_from.md").read_text()
  rows = [x.split(" | ") for x in guide.splitlines() if x.startswith("| `")]
  fields = {}
  for here, *others in rows:
    for name in re.findall(r"`([a-z_]\w*(?:\.\w+)*)`", " ".join(others[:2])):
      found = fields.setdefault(name.rpartition(".")[2], [])
      found += re.findall(r"`((?:--)?\w[\w.]*)`", here.replace("flag ", ""))
  asked = {
      x: config.similar(x, FIELDS)[0].removeprefix("the flag ")
      for x in fields
      if x in other_names.OF_OTHERS
  }
  assert len(asked) > 60
  # It saves memory in TRL, and the field that does so here is another one.
  assert {x for x, y in asked.items() if y not in fields[x]} == {
      "gradient_accumulation_steps"
  }
  # kl.server.model, and dpo.beta, which is kl.coef's name in GRPO's equation.
  lasts = {x.rpartition(".")[2] for x in FIELDS} - {"model", "beta"}
  assert not lasts & {*other_names.OF_OTHERS}
  known = {x.removeprefix("the flag ") for x in other_names.OF_OTHERS.values()}
  assert known - {"--workdir", "--stage"} <= {
      *FIELDS,
      *("surrogate.args.clip_low", "surrogate.args.clip_high"),
      *("surrogate.args.dual_clip", "advantage.args.gamma"),
      "advantage.args.lam",
  }


# --- single fields -----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("~/x", "HOME/x"),
        ("NAME@~/a.jsonl*2, ~/b.jsonl", "NAME@HOME/a.jsonl*2, HOME/b.jsonl"),
        ("~/a.jsonl=code,math", "HOME/a.jsonl=code,math"),
        ("~/rules.json*0.5,my:f", "HOME/rules.json*0.5,my:f"),
        ("runs/a~b", "runs/a~b"),
        ("a~/b", "a~/b"),
    ],
)
def test_the_home_directory(monkeypatch, text, found):
  monkeypatch.setenv("HOME", "/home/me")
  assert config.home(text) == found.replace("HOME", "/home/me")


def test_every_path_is_expanded(monkeypatch, tmp_path):
  """Fields of the command line and of a file, and the flags."""
  monkeypatch.setenv("HOME", str(tmp_path))
  (tmp_path / "mine.py").write_text(CONFIG.replace('"rows', '"~/rows'))
  write(tmp_path / "rows.jsonl", [("1+1?", "2")])
  (tmp_path / "held_out.jsonl").symlink_to("rows.jsonl")
  given = {"data.evaluate": "~/held_out.jsonl", "tokenizer": "~/tok"}
  c, _ = config_checks.checked("~/mine.py", given)
  assert c.data.train == f"{tmp_path}/rows.jsonl"
  assert c.data.evaluate == f"{tmp_path}/held_out.jsonl"
  assert c.tokenizer == f"{tmp_path}/tok"
  faults = rules.Faults()
  found = command_line.prepare("dapo", {}, "~/run", "all", faults)
  assert found[1] == tmp_path / "run"
  # What looks like a path is declared as one.
  named = {x for x in FIELDS if x.endswith((".path", ".reuse", "functions"))}
  assert named <= {x for x, spec in FIELDS.items() if spec.is_path}


@pytest.mark.parametrize(
    ("text", "weight"),
    [
        ("my:f", 1.0),
        ("steps", 1.0),
        ("my:f(a='2*3', b=(1, 2))", 1.0),
        ("my:f(a=1) * 2", 2.0),
        ("rules.json", 1.0),
        ("OWNER/REPOSITORY-1.5", 1.0),
    ],
)
def test_a_weight_may_be_left_out(text, weight):
  [term] = reward_terms.terms(text)
  assert (term.first, term.last) == (weight, weight)
  assert term.name == text.partition(" *")[0]


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (
            "2*my:f",
            "a weight follows the function after an asterisk, as in 'ste",
        ),
        ("my:f:0.5", "a weight follows the function after an asterisk"),
        ("my:f=0.5", "a weight follows the function after an asterisk"),
        ("-my:f", "a weight follows the function after an asterisk"),
        ("my:f(a=1)0.5", "a weight follows the function after an asterisk"),
        ("my:f + other:g", "commas separate terms, as in 'steps,length*-0.3'"),
        ("2*my:f + other:g", "commas separate terms, as in"),
        ("my:f*half", "must look like 'steps', 'steps*0.5' or 'steps*0.5..0'"),
    ],
)
def test_a_weight_that_could_be_misread(text, remedy):
  with pytest.raises(ValueError, match="^" + re.escape(f"{text!r}: {remedy}")):
    reward_terms.terms(text)


@pytest.mark.parametrize("name", ["optimizer.lr", "critic.lr", "sft.lr"])
def test_learning_rates(name):
  """At most 1; of AdamW at most 0.5; what is high is a warning."""
  c = config_files.read("vapo")
  config.override(c, {name: 10.0})
  with pytest.raises(
      errors.ConfigError, match="at most 1: a step changes each"
  ):
    config_checks.fields(c)
  config.override(c, {name: 0.7})
  with pytest.raises(
      errors.ConfigError, match="at most 0.5 with 'adamw': a step"
  ):
    config_checks.fields(c)
  config.override(c, {name: 0.5})
  config_checks.fields(c)
  config.override(c, {name: 1.0, "optimizer.name": "sgd"})
  config_checks.fields(c)


def test_a_rate_for_another_model_is_a_warning(tmp_path):
  given = {"model.path": "OWNER/NAME", "sft.steps": 0, "sft.habits.steps": 0}
  _, notes = config_checks.checked("dapo", given)
  assert any(
      x.startswith("warning: optimizer.lr = 0.0002: is high") for x in notes
  )
  _, notes = config_checks.checked("dapo", given | {"optimizer.lr": 1e-6})
  assert not any("optimizer.lr" in x for x in notes)
  _, notes = config_checks.checked("dapo", given | {"lora.rank": 4})
  assert not any("optimizer.lr" in x for x in notes)
  for width, high in ((64, False), (896, True)):  # a tiny model, Qwen2.5-0.5B
    shape = {"hidden_size": width}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    local = given | {"model.path": str(tmp_path)}
    _, notes = config_checks.checked("dapo", local)
    assert high == any("optimizer.lr = 0.0002: is high" in x for x in notes)


def test_the_place_is_in_the_users_file(tmp_path, monkeypatch):
  """Not in Python, where json raises, nor in this package."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "reads.py").write_text(
      "import json\ndef f():\n  json.loads('{')\n"
  )
  monkeypatch.syspath_prepend(str(tmp_path))
  import reads

  with pytest.raises(ValueError) as e:
    reads.f()
  assert own_code.place(e.value).endswith("reads.py:3, in f")
