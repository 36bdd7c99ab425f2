"""A work directory is enough: its config, its record, its checkpoints."""

import contextlib
import json
import shutil
import sys
import threading
import types
import zipfile

import checkpoints as hf_files
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
import tiny_data
from checkpoints import bits, checkpoint, with_tokenizer

from configs import grpo
from rl_reason import hf, run, tasks
from rl_reason.base import config, errors, functions
from rl_reason.base.fields import FIELDS
from rl_reason.base.structs import TrainState
from rl_reason.checkpointing.checkpoint import Checkpoints
from rl_reason.checks import (
    named_code,
    path_contents,
    run_directory,
    saved_config,
)
from rl_reason.data import tokenizer
from rl_reason.devices import device_mesh
from rl_reason.monitoring import display
from rl_reason.serve import filters
from rl_reason.stages import evaluate, starting_model, trained_parameters
from rl_reason.tasks import reward_terms

ENGINE = named_code.ENGINE
MINE = """
def short(response, row, *, scale: float = 1.0):
  return -scale * len(response.text)

def verify(text, answer):
  return text == answer

def advantage(rewards_B, groups_B):
  return rewards_B
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
  """The working directory, with a module of the user, and a work directory."""
  here = tmp_path / "here"
  (here / "runs" / "a").mkdir(parents=True)
  (here / "my_code.py").write_text(MINE)
  monkeypatch.chdir(here)
  monkeypatch.setattr(sys, "path", [*sys.path])
  (here / "rows.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n')
  yield types.SimpleNamespace(here=here, run=here / "runs" / "a")
  sys.modules.pop("my_code", None)


def save(workdir, **fields):
  """Writes config.json; `a__b` is the field a.b."""
  flat = config.flat(config.with_defaults(grpo.get_config()))
  flat |= {name.replace("__", "."): x for name, x in fields.items()}
  (workdir / "config.json").write_text(json.dumps(flat))
  return flat


def read(workdir, stage, **given):
  given = {name.replace("__", "."): x for name, x in given.items()}
  return saved_config.read(workdir, stage, given)


# --- which code is imported --------------------------------------------------


def test_whose_code_it_is(place, monkeypatch):
  (place.run / "evil.py").write_text("")
  (place.run / "package").mkdir()
  monkeypatch.syspath_prepend(place.run)
  names = {
      "my_code:short": "",
      "my_code": "",
      "os:system": "belongs to Python",
      "os.path:join": "belongs to Python",
      "rl_reason.run:stages": "or to rl_reason",
      "numpy:save": "numpy is a library",
      "evil:f": "lies in the work directory",
      "package.deep:f": "lies in the work directory",
      "gone:f": "there is no module gone in ",
      "rl_reason.tasks.passed_objects:short": "an object of the Python session",
      "__main__:short": "an object of the Python session",
  }
  for name, words in names.items():
    why = named_code.why_foreign(name, place.run)
    assert bool(why) == bool(words) and words in why, name
  assert not {"my_code", "evil", "gone"} & sys.modules.keys()


PAYLOAD = """
import pathlib
pathlib.Path("MARK").write_text("")
f = Task = print
"""


def stranger(here):
  """Puts the same payload everywhere; returns names, and what they say."""
  mark = here / "ran"
  text = PAYLOAD.replace("MARK", str(mark))
  other = here / "out" / "of a stranger"  # a run that is not called runs
  for path in (
      here / "runs/a/payload.py",
      here / "runs/a/deep/er/payload.py",
      here / "runs/a/pack/__init__.py",
      here / "runs/helpers/payload.py",
      other / "by_path.py",
  ):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  (here / "runs/a/pack/inner.py").write_text("f = Task = print")
  (other / "config.json").write_text('{"rl.steps": 3}')
  (here / "linked.py").symlink_to(here / "runs/a/payload.py")
  (here / "latest").symlink_to(here / "runs/a")
  (here / "runs/a/pulled.py").symlink_to(here / "my_code.py")
  (here / "both").mkdir()  # a package without __init__ in two places
  (here / "runs/a/both").mkdir()
  (here / "runs/a/both/late.py").write_text(text)
  with zipfile.ZipFile(here / "runs/a/code.zip", "w") as archive:
    archive.writestr("zipped.py", text)
    archive.writestr("zipack/__init__.py", "")
    archive.writestr("zipack/inner.py", text)
  sys.path += [str(other), str(here / "runs/a"), str(here / "runs/a/code.zip")]
  lies = "lies in the work directory "
  return mark, {
      "runs.a.payload": lies,
      "runs.a.deep.er.payload": lies,
      "runs.a.pack": lies,
      "runs.a.pack.inner": lies,
      "runs.a.pulled": lies,
      "runs.helpers.payload": "the folder of the work directory",
      "linked": lies,
      "latest.payload": lies,
      "by_path": lies,
      "payload": lies,
      "pack.inner": lies,
      "both.late": lies,
      "zipped": lies,
      "zipack.inner": lies,
  }


def test_the_file_of_the_whole_name_decides(place):
  mark, names = stranger(place.here)
  (place.here / "mine" / "deep").mkdir(parents=True)
  (place.here / "mine" / "__init__.py").write_text("raise SystemExit")
  (place.here / "mine" / "deep" / "code.py").write_text(MINE)
  (place.here / "both" / "own.py").write_text(MINE)
  (place.here / "empty").mkdir()
  own = ("my_code", "mine.deep.code", "both.own")
  for name, words in (names | dict.fromkeys(own, "")).items():
    for ending in ("", ":f"):
      why = named_code.why_foreign(name + ending, place.run)
      assert bool(why) == bool(words) and words in why, (name, why)
  for name in ("mine.gone", "my_code.gone", ".my_code", "a..b", "empty", ""):
    assert "there is no module" in named_code.why_foreign(name, place.run)
  assert not mark.exists() and not {"mine", "both", "runs"} & sys.modules.keys()


def test_names_are_checked_as_they_are_read(place, monkeypatch):
  """Whatever the spelling: `why_foreign` is asked about what is imported."""
  (place.run / "config.json").write_text('{"rl.steps": 3}')
  rule = {"name": "r", "weight": 1}
  inner, outer = place.run / "inner.json", place.run / "outer.json"
  inner.write_text(json.dumps([rule | {"function": "runs.a.payload:f"}]))
  outer.write_text(json.dumps([rule | {"function": str(inner)}]))
  loaded: list[str] = []
  monkeypatch.setattr(functions, "load", loaded.append)
  for text in ("runs.a.x=my_code:f", "my_code:f , a=b:c"):
    with contextlib.suppress(ValueError):
      filters.load(text)
    assert {*loaded} <= {
        *named_code.names_of_code({"serve.filter": text})["serve.filter"]
    }
    loaded.clear()
  for path in (outer, inner):
    inner.write_text(json.dumps([rule | {"function": str(path)}]))
    with pytest.raises(ValueError, match="rules of a rule"):
      reward_terms.find(str(path))
  assert not loaded
  for name in ("files", f"{tasks.GYM}:x"):
    assert named_code.names_of_code({"environment.name": name})
    assert not named_code.names_of_code({"task.name": name})
  for text in ("judge='u'", "#\njudge='u'", "\U0001d4f3udge='u'"):
    fields = {"reward.functions": f"length,constitution({text})*2"}
    assert named_code.fields_with_code(fields), text


def test_a_library_and_a_folder_of_runs_have_no_code_of_the_user(place):
  """Installed by --target; a folder above the folder of the runs."""
  for name in ("lib", "lib.lib-1.dist-info", "all/a/x"):
    (place.here / name.replace("lib.", "lib/")).mkdir(parents=True)
  for name in ("lib/tool.py", "lib/mine.py", "all/payload.py"):
    (place.here / name).write_text("")
  record = place.here / "lib/lib-1.dist-info/RECORD"
  record.write_text("other.py,,\ntool.py,sha256=1,2\n")
  sys.path.append(str(place.here / "lib"))
  run = place.here / "all/a/x"
  assert "is a library" in named_code.why_foreign("tool:f", run)
  assert not named_code.why_foreign("mine:f", run)
  assert "the folder of" in named_code.why_foreign("all.payload:f", run)
  assert not named_code.why_foreign("all.payload:f", place.run)


def test_only_the_user_names_a_repository_to_push_to(place):
  flat = save(place.run) | {"export.push_to": "owner/name"}
  (place.run / "config.json").write_text(json.dumps(flat))
  c, [line] = saved_config.read(place.run, "export", {})
  assert not c.export.push_to and "--config.export.push_to=owner/name" in line
  c, lines = saved_config.read(
      place.run, "export", {"export.push_to": "owner/name"}
  )
  assert c.export.push_to == "owner/name" and not lines


def test_no_field_runs_code_of_a_stranger(place):
  """Each field that may name code, in each stage that reads a config."""
  mark, names = stranger(place.here)
  flat, before = save(place.run), {*sys.modules}
  name, rules = "runs.a.payload:f", place.run / "rules.json"
  rules.write_text(json.dumps([{"name": "r", "weight": 1, "function": name}]))
  cases = {
      x: {x: name}
      for x, spec in FIELDS.items()
      if isinstance(spec.default, str) and named_code.names_of_code({x: name})
  }
  cases |= {x: {x: name, "rollout.engine.name": "vllm"} for x in ENGINE}
  cases["rules"] = {"reward.functions": f"{rules}*1"}
  assert len(cases) >= 24
  for case, values in cases.items():
    (place.run / "config.json").write_text(json.dumps(flat | values))
    for stage in saved_config.UNUSED:
      for given in {}, {"log.every": "3"}, {"gone.field": "3"}:
        with contextlib.suppress(errors.ConfigError):
          c, _ = saved_config.read(place.run, stage, given)
          assert not named_code.fields_with_code(config.flat(c)), (case, stage)
      assert not mark.exists(), (case, stage)
  assert not {x.partition(".")[0] for x in names} & ({*sys.modules} - before)


def test_what_the_user_names_is_imported_wherever_it_is(place):
  """The command line is the user's, also for a module in a work directory."""
  _, names = stranger(place.here)
  (place.run / "kept.py").write_text(MINE)
  save(place.run, reward__functions="runs.a.payload:f*1")
  given = dict(reward__functions="runs.a.kept:short*1")
  c, notes = read(place.run, "evaluate", **given)
  assert c.reward.functions == "runs.a.kept:short*1" and not notes
  sys.modules.pop("runs.a.kept")


def test_a_critic_of_a_stranger_calls_no_code(place):
  """Of any run that a config names: rl.init, critic.reuse, a reward model."""
  flat = save(place.run, critic__head__name="runs.a.payload:f")
  saver = Checkpoints(place.run / "checkpoints" / "rl")
  saver.save(1, {"x": np.zeros(2)}, dict(config=flat))
  saver.close()
  c = config.with_defaults(grpo.get_config())
  with pytest.raises(errors.ConfigError, match="names code to import"):
    trained_parameters.other_checkpoint(
        c, "rl.init", place.run / "checkpoints" / "rl", (), "", print
    )


def test_export_and_serving_call_no_code_of_the_run(place):
  save(
      place.run,
      reward__functions="gone:score*1,length*-0.1",
      advantage__name="gone:advantage",
      advantage__args={"scale": 2.0},
      task__name="gone_task",
      environment__name="gone:Game",
      data__kind="gone:verify",
      log__loggers="gone:logger",
  )
  for stage in ("export", "serve"):
    c, notes = read(place.run, stage)
    assert not named_code.fields_with_code(config.flat(c)) and not notes
    assert not c.advantage.args
  with pytest.raises(
      errors.ConfigError, match="task.name = 'gone_task': cannot"
  ):
    read(place.run, "evaluate")


def test_an_evaluation_of_verified_rows_needs_no_reward(place):
  save(place.run, reward__functions="gone:score*1", advantage__name="gone:f")
  c, [note] = read(place.run, "evaluate")
  assert c.reward.functions == "" and "gone:score (there is no mod" in note
  assert "accuracy does not depend on it" in note and "\n" not in note
  # Those that are there are scored, and so are others than those of the run.
  save(place.run, reward__functions="my_code:short*1,gone:score*1")
  c, [note] = read(place.run, "evaluate")
  assert c.reward.functions == "my_code:short*1"
  given = dict(reward__functions="my_code:short(scale=2.0)*0,length*-1")
  c, notes = read(place.run, "evaluate", **given)
  assert c.reward.functions == given["reward__functions"] and not notes
  with pytest.raises(errors.ConfigError, match="reward.functions = 'lenth'"):
    read(place.run, "evaluate", reward__functions="lenth")


ROWS = dict(
    task__name="files",
    data__train="rows.jsonl",
    data__evaluate="rows.jsonl",
    tokenizer="t",
)


def test_rewards_that_are_gone_are_left_out_of_an_evaluation(place):
  terms = "gone:f(n=1)*1,my_code:short(scale=2.0)*0.5,my_code:long*1,length*-1"
  save(place.run, reward__functions=terms, data__kind="none", **ROWS)
  c, [note] = read(place.run, "evaluate")
  assert c.reward.functions == "my_code:short(scale=2.0)*0.5,length*-1"
  assert "gone:f(n=1) (there is no module gone" in note and "\n" not in note
  assert "my_code:long (" in note and f"are {c.reward.functions} alone" in note
  save(place.run, reward__functions="gone:f*1", data__kind="none", **ROWS)
  words = "nothing else judges .* gone:f .*or give --config"
  with pytest.raises(errors.ConfigError, match=words):
    read(place.run, "evaluate")


def test_a_verifier_is_imported_or_asked_for(place):
  save(place.run, data__kind="rows.jsonl=my_code:verify,math", **ROWS)
  c, _ = read(place.run, "evaluate")
  assert c.data.kind.endswith("my_code:verify,math")
  for name in ("my_code:absent", "gone:verify"):
    save(place.run, data__kind=f"rows.jsonl={name}", **ROWS)
    with pytest.raises(
        errors.ConfigError, match="data.kind = .*or give --conf"
    ):
      read(place.run, "evaluate")


def test_what_may_be_set_without_the_config(place):
  saved = save(place.run)
  c, _ = read(place.run, "evaluate", evaluate__samples="8", mesh__fsdp="2")
  assert c.evaluate.samples == 8 and c.mesh.fsdp == 2
  longer = dict(task__difficulties="(7, 8)", rollout__max_tokens="80")
  c, _ = read(place.run, "evaluate", **longer)
  assert c.task.difficulties == (7, 8) and c.rollout.max_tokens == 80
  assert evaluate.elsewhere(c, place.run) == {
      "task.difficulties": [7, 8],
      "rollout.max_tokens": 80,
  }
  sampler = dict(rollout__stop_tokens="('#',)", rollout__weights="int8")
  turns = dict(environment__max_turns="3", environment__turn_tokens="9")
  slower = dict(reward__seconds="20", reward__workers="2")
  interrupt = dict(
      environment__name="interrupt",
      environment__turn_tokens=4,
      environment__phrase="#",
  )
  save(place.run, **interrupt)
  c, _ = read(place.run, "evaluate", **sampler, **turns, **slower)
  differs = {
      "rollout.stop_tokens": ["#"],
      "environment.max_turns": 3,
      "environment.turn_tokens": 9,
      "reward.seconds": 20.0,
      "rollout.weights": "int8",
  }
  assert evaluate.elsewhere(c, place.run) == differs
  run_directory.check(place.run, c, "evaluate")  # as with --config
  with pytest.raises(errors.ConfigError, match="turn_tokens: 4 -> 9"):
    run_directory.check(place.run, c)
  with pytest.raises(errors.ConfigError, match="turn_tokens = 48: must be les"):
    read(place.run, "evaluate", environment__turn_tokens="48")
  save(place.run, evaluate__tasks="countdown")  # of a run of single turns
  game = dict(task__name="calculator", task__difficulties="(2,)")
  with pytest.raises(errors.ConfigError, match="evaluate.tasks = 'countdown'"):
    read(place.run, "evaluate", **game)
  save(place.run)
  other = dict(
      task__name="files",
      data__evaluate="rows.jsonl",
      data__columns="question=question",
      data__template="dapo",
  )
  c, _ = read(place.run, "evaluate", **other)
  assert c.data.evaluate == "rows.jsonl" and c.data.template == "dapo"
  assert evaluate.elsewhere(c, place.run) == {"task.name": "files"}
  for stage, given, words in (
      ("evaluate", other | dict(data__template="dpo"), "data.template = 'dpo'"),
      ("evaluate", other | dict(data__kind="my_code:no"), "data.kind = .*no"),
      ("evaluate", dict(evaluate__against="x"), "against = 'x': .* no file x"),
      ("evaluate", dict(task__name="xor"), "4, 5, 6 are none of xor's"),
      ("evaluate", dict(rl__steps="3"), "rl.steps: without --config, --st"),
      (
          "export",
          dict(evaluate__samples="3"),
          r"takes export\.\*, mesh\.\*, model.path",
      ),
      ("evaluate", dict(evaluate__samples="2"), "mean_of = 4: must not exceed"),
      (
          "evaluate",
          dict(task__difficulties="(1, 8)"),
          "task.difficulties = .*: 1 is none of arithmetic's",
      ),
      ("evaluate", dict(rollout__temperature="2"), r"takes evaluate\.\*, m"),
      ("evaluate", turns, "max_turns = 3: does nothing: responses have one t"),
      ("evaluate", dict(evaluate__samples="0"), "evaluate.samples = 0"),
      ("evaluate", dict(data__evaluate="rows.jsonl"), "goes with task.name"),
      ("evaluate", dict(data__template="published"), "and reads no files"),
      ("serve", dict(serve__slots="many"), "serve.slots = many: must be"),
  ):
    with pytest.raises(errors.ConfigError, match=words):
      read(place.run, stage, **given)
  # A path may name a copy of the files that the run began with.
  for name in ("first", "copy", "other"):
    checkpoint(place.here / name, head_dim=6 + 2 * (name == "other"))
  c = config.unflat(saved | {"model.path": "first"})
  digest = path_contents.content(c, "model.path")
  save(place.run, model__path="first", **{"content__model.path": digest})
  shutil.rmtree(place.here / "first")
  assert read(place.run, "export", model__path="copy")[0].model.path == "copy"
  with pytest.raises(
      errors.ConfigError, match="model.path = 'other': its file"
  ):
    read(place.run, "export", model__path="other")


def test_an_evaluation_by_a_published_prompt(place):
  save(place.run, **ROWS)
  given = dict(data__template="published", data__chat="True")
  c, _ = read(place.run, "evaluate", **given)
  assert (c.data.template, c.data.chat) == ("published", True)
  with pytest.raises(errors.ConfigError, match="'publishd': must be one of pl"):
    read(place.run, "evaluate", data__template="publishd")


# --- what the directory holds ------------------------------------------------


def test_the_record_of_a_model(tmp_path):
  path = checkpoint(tmp_path / "model", "qwen3", jnp.bfloat16, shards=2)
  with_tokenizer(path)
  source = hf.find(str(path))
  (tmp_path / "run").mkdir()
  for _ in range(2):  # of a run that is resumed
    starting_model.record(tmp_path / "run", source, None)
  shutil.rmtree(path)
  found = starting_model.source(tmp_path / "run")
  assert found.cfg == source.cfg and found.context == source.context
  assert found.config == source.config and found.head == source.head
  for name, x in source.tensors.items():
    y = found.tensors[name]
    assert (y.name, y.dtype, y.shape) == (x.name, x.dtype, x.shape)
  assert not starting_model.tokenizer(tmp_path / "run")
  (found.path / hf.model_description.TENSORS).write_text("{")
  with pytest.raises(errors.ConfigError, match="the training command writes"):
    starting_model.source(tmp_path / "run")
  assert starting_model.source(None) is None and not starting_model.tokenizer(
      tmp_path
  )


@pytest.mark.parametrize(
    "tok", [tiny.TOK, tiny_data.byte_tokenizer()], ids=["characters", "bytes"]
)
def test_the_record_of_a_tokenizer(tmp_path, tok):
  starting_model.record(tmp_path, None, tok)
  assert starting_model.source(tmp_path) is None
  found = tokenizer.load(starting_model.tokenizer(tmp_path), "")
  assert found.get_vocab() == tok.get_vocab()
  assert found.all_special_ids == tok.all_special_ids
  text = "12+3=15"
  [ids] = tokenizer.encode(found, [text])
  assert [ids] == tokenizer.encode(tok, [text])
  assert found.decode(ids) == tok.decode(ids) == text


def finished(workdir, path, params):
  """The work directory of a run of RL that has just ended."""
  source = hf.find(str(path))
  shape = hf.architecture.fields(source.cfg)
  del shape["vocab"]
  flat = save(
      workdir,
      **{f"model__{name}": x for name, x in shape.items()},
      model__path=str(path),
      advantage__name="gone:advantage",
      reward__functions="gone:score*1",
      log__loggers="gone:logger",
      rl__steps=3,
      sft__steps=0,
      sft__habits__steps=0,
      rollout__max_prompt=12,
      rollout__max_tokens=24,
  )
  starting_model.record(workdir, source, None)
  (workdir / "metrics.jsonl").write_text("")
  zero = jnp.int32(0)
  for step in (2, 3):
    x = jax.tree.map(lambda x, step=step: x * step, params)
    arrays = dict(
        policy=TrainState(x, (dict(m=x), ()), step=zero, skipped=zero),
        critic=None,
        kept=None,
        history=dict(rewards=np.zeros(4)),
    )
    saver = Checkpoints(workdir / "checkpoints" / "rl", keep_last=2)
    saver.save(step, arrays, dict(config=flat))
    saver.close()


def test_a_moved_run_without_its_model_is_exported(place, capsys):
  """Its advantage, its reward and model.path are gone."""
  path = with_tokenizer(checkpoint(place.here / "model"))
  mesh = device_mesh.make_mesh(1, 1, 1, jax.devices()[:1])
  _, params = hf_files.load(path, mesh)
  finished(place.run, path, params)
  expected, spelled = bits(path), (path / "tokenizer.json").read_bytes()
  shutil.rmtree(path)
  moved = place.run.rename(place.here / "moved")

  def export(step):
    c, _ = read(moved, "export")
    with contextlib.closing(display.Display(True)) as screen:
      run.stages(
          c,
          moved,
          screen,
          threading.Event(),
          stage="export",
          step=step,
          devices=jax.devices()[:1],
          from_record=True,
      )
    return bits(moved / "export" / "policy")

  for step, factor in (("newest", 3), ("2", 2)):
    found = export(step)
    assert found.keys() == expected.keys()
    for name, (dtype, shape, raw) in found.items():
      assert (dtype, shape) == expected[name][:2]
      start = np.frombuffer(expected[name][2], np.float32)
      np.testing.assert_array_equal(
          np.frombuffer(raw, np.float32), start * factor
      )
  out = moved / "export" / "policy"
  card = (out / "README.md").read_text()
  assert '    advantage.name = "gone:advantage"' in card and "step 2" in card
  assert (out / "tokenizer.json").read_bytes() == spelled
  assert "the policy of step 2 of RL in " in capsys.readouterr().out
  with pytest.raises(errors.RunError, match=r"--step = value: .*\[2, 3\]; or"):
    export("value")
  with pytest.raises(errors.ConfigError, match="model.path = .*no such direct"):
    export("sft")  # the model of model.path, whose weights are gone
