"""The core knows no feature, and each feature can be taken out."""

import functools
import re
import subprocess
import sys
import types
from collections.abc import Mapping

import feature_fields
import numpy as np
import pytest
import tiny_session
from conftest import child_env
from import_graph import ROOT, graph

from rl_reason import features
from rl_reason.base import feature, field_marks, fields
from rl_reason.base.errors import RunError
from rl_reason.base.fields import FIELDS
from rl_reason.base.function_kinds import KINDS
from rl_reason.base.structs import TrainState
from rl_reason.checkpointing.checkpoint import Checkpoints
from rl_reason.stages import learn, trained_parameters

PACKAGE = ROOT / "rl_reason"
CORE = [
    *(
        path
        for path in sorted(PACKAGE.rglob("*"))
        if path.suffix in (".py", ".toml")
        and path.relative_to(PACKAGE).parts[0] not in ("features", "lab")
    ),
    *(ROOT / "configs" / f"{x}.py" for x in ("base", "variants", "dapo")),
]


def test_the_core_imports_only_the_table_of_features():
  for name, wanted in graph().items():
    if not name.startswith(("features.", "lab", "serve")):
      assert not [x for x in wanted if x.startswith("features.")], name
  assert not graph()["features"]


@pytest.mark.parametrize("name", features.FEATURES)
def test_no_file_of_the_core_names_a_feature(name):
  """Neither its folder nor one of its fields."""
  words = {name, *feature_fields.of([name])}
  assert len(words) > 1
  named = re.compile(rf"\b({'|'.join(map(re.escape, sorted(words)))})\b")
  found = {str(x): y[0] for x in CORE if (y := named.search(x.read_text()))}
  assert not found


@pytest.mark.parametrize("name", features.FEATURES)
def test_a_feature_brings_its_page_and_its_tests(name):
  assert (PACKAGE / "features" / name / "README.md").exists()
  assert [*(ROOT / "tests" / "features" / name).glob("test_*.py")]
  listed = (PACKAGE / "features" / "README.md").read_text()
  assert f"[`{name}/`]({name}/README.md)" in listed


@pytest.mark.parametrize("name", features.FEATURES)
def test_marks_are_known_and_of_its_fields(name):
  one = features.declared()[features.FEATURES.index(name)]
  own = feature_fields.of([name], changed=True)
  for mark, of_mark in one.marks.items():
    assert mark in field_marks.MARKS
    assert (mark in field_marks.VALUES) == isinstance(of_mark, Mapping), mark
    named = of_mark.values() if mark == "other_names" else of_mark
    for field in named:
      assert any(x.startswith(field) for x in own), (mark, field)


def test_fields_of_marks(monkeypatch):
  class Declared(feature.Declaration):

    def __init__(self, asked_for, **marks):
      self.marks, self.asked_for = marks, asked_for

    def used(self, c):
      return self.asked_for

  made = (
      Declared(True, lag=("a.x", "a.y"), shown={"a.x": "{:g} steps"}),
      Declared(False, lag=("b",), shown={"b": "b is {}"}),
  )
  monkeypatch.setattr(features, "declared", lambda: made)
  assert feature.marked("shown") == {"a.x": "{:g} steps", "b": "b is {}"}
  c = {"a": {"x": 0, "y": 3}, "b": 2}
  assert feature.marked("lag", c) == {"a.x": True, "a.y": True}
  assert feature.set_fields(c, "lag") == {"a.y": 3, "b": 2}
  assert feature.marked("machine") == {}
  assert feature.said(c, "lag") == {"a.y": True, "b": True}
  assert feature.first(c, "terms") == ()
  assert feature.first(c, "player") is None and not feature.judge(c)


def test_what_a_mark_says_may_depend_on_the_value(monkeypatch):
  one = feature.Declaration()
  one.marks = {
      "unshared": {
          "a": lambda value: value > 2 and "a is large",
          "b": lambda value: value > 2 and "b is large",
          "c": "c is set",
          "d": "d is set",
      }
  }
  monkeypatch.setattr(features, "declared", lambda: (one,))
  c = dict(a=3, b=1, c=1, d=0)
  assert feature.said(c, "unshared") == dict(a="a is large", c="c is set")


def test_a_feature_adds_values_to_a_choice(monkeypatch):
  known = dict(a=fields.choice("none", "own", needs="b"))
  monkeypatch.setattr(fields, "FIELDS", known)
  fields.widen("a", "other")
  fields.widen("a", "other")
  assert known["a"].choices == ("none", "own", "other")
  assert (known["a"].default, known["a"].needs) == ("none", ("b",))
  assert known["a"].problem("no") == "must be one of none, own, other"


class Counted(feature.Part):
  """A part with a state, an array and a metric of its own."""

  def __init__(self, name):
    self.name, self.count, self.open = name, 0, True

  def collecting(self, collect, samples):
    return lambda: [*collect(), self.name, samples]

  def planning(self, plan_rows):
    return lambda rows: [*plan_rows(rows), self.name]

  def exchange(self, rows, step):
    self.count += rows
    return {f"{self.name}/rows": self.count}

  def arrays(self):
    return {self.name: self.count}

  def restore(self, arrays, host):
    self.count = arrays[self.name] + host.get(self.name, 0)

  def wait(self):
    self.count = 0

  def close(self):
    self.open = False


class Older(feature.Part):

  def older(self):
    return "groups"

  def host(self):
    return dict(a=10)


def test_the_parts_of_a_run_are_one(monkeypatch):
  class Declared(feature.Declaration):

    def __init__(self, part):
      self.part = part

    def used(self, c):
      return self.part.__class__ is not feature.Part

    def start(self, c, loop):
      return self.part

  made = Counted("a"), feature.Part(), Older(), Counted("b")
  monkeypatch.setattr(features, "declared", lambda: [*map(Declared, made)])
  assert len(feature.used(None)) == 3  # the second one is off
  parts = feature.start(None, None)
  assert parts.older() == "groups" and parts.beside() == {}
  assert feature.start(None, None).evaluated({}, 0) == {}
  assert parts.exchange(2, 0) == {"a/rows": 2, "b/rows": 2}
  saved, host = parts.arrays(), parts.host()
  assert (saved, host) == (dict(a=2, b=2), dict(a=10))
  parts.restore(saved, host)
  assert parts.arrays() == dict(a=12, b=2)
  assert parts.collecting(lambda: [0], 1)() == [0, "a", 1, "b", 1]
  assert parts.planning(lambda rows: [rows])(7) == [7, "a", "b"]
  assert parts.reference(None) is None
  parts.wait()
  assert parts.arrays() == dict(a=0, b=0) and made[0].open
  parts.close()
  assert not made[0].open and not made[3].open
  assert feature.Part().inputs(None, None) == feature.Part().arrays() == {}


def further(c, session, params):
  """A stage that a feature might bring."""
  return [*params, session.model]


@pytest.mark.parametrize("policy", [True, False])
def test_a_stage_of_a_feature_trains_after_sft(monkeypatch, policy):
  """Its result may be the policy."""
  one = feature.Stage(f"{__name__}:further", "", "further.lr", policy=policy)
  monkeypatch.setattr(feature, "stages", lambda: dict(further=one))
  monkeypatch.setattr(learn.sft, "run", lambda c, session: ["sft"])
  rl = types.SimpleNamespace(checkpoints=types.SimpleNamespace(steps=list))
  monkeypatch.setattr(learn, "open_stage", lambda *_: rl)
  session = types.SimpleNamespace(model="model", output=None)
  found = learn.run(None, session, "further")
  assert found == (["sft", "model"] if policy else ["sft"])


def test_a_policy_of_such_a_stage_is_read_by_its_name(monkeypatch, tmp_path):
  """For an evaluation or an export; an incomplete one is refused."""
  one = feature.Stage("", "", "further.lr", policy=True)
  monkeypatch.setattr(feature, "stages", lambda: dict(further=one))
  session = tiny_session.make_session(tmp_path)
  params, zero = tiny_session.random_params(session), np.int32(0)
  saved = TrainState(params, (dict(m=zero),), step=zero, skipped=zero)
  read = functools.partial(
      tiny_session.call, trained_parameters.policy, session, "further"
  )
  for step, complete in ((1, False), (2, True)):
    with pytest.raises(RunError, match="run --stage=further there"):
      read()
    saver = Checkpoints(tmp_path / "checkpoints" / "further")
    saver.save(step, saved, dict(complete=complete))
    saver.close()
  found, critic, step, about = read()
  assert tiny_session.digest(found) == tiny_session.digest(params)
  assert (critic, step, about) == (None, 0, "the policy of --stage=further")
  tiny_session.call(trained_parameters.require, session, "further")


def test_every_field_of_a_feature_has_a_need_or_turns_it_on():
  off = [0, False, "", (), "none", *(x.off for x in KINDS.values())]
  for name in feature_fields.of(features.FEATURES):
    of_stage = name.partition(".")[0] in feature.stages()  # read by it alone
    assert of_stage or fields.needs(name) or FIELDS[name].default in off, name


# The line is removed, and the folder cannot be imported.
WITHOUT = """
import sys
from rl_reason import features

class Hidden:
  def find_spec(self, name, *_):
    if name.startswith(f"rl_reason.features.{sys.argv[1]}"):
      raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Hidden())
features.FEATURES = [x for x in features.FEATURES if x != sys.argv[1]]
"""
CHECKED = """
from rl_reason import main
from rl_reason.base.fields import FIELDS
from rl_reason.checks import config_checks

for name in ("dapo", "vapo"):
  config_checks.checked(f"configs/{name}.py:smoke", {})
print(*FIELDS)
main.command(["main", "--helpfull"])
"""
# A process for each argument, after what takes longest: imports of libraries.
FORKED = """
import os, sys, traceback
import flax, jax, ml_collections, numpy, optax, orbax.checkpoint

folder, *names = sys.argv[1:]
for name in names:
  if child := os.fork():
    os.waitpid(child, 0)
    continue
  with open(f"{folder}/{name}", "w") as out:
    sys.stdout = sys.stderr = out
    sys.argv = ["without", name]
    try:
      exec(CODE)
    except SystemExit:
      pass
    except BaseException:
      traceback.print_exc()
  os._exit(0)
"""
RUN = """
from rl_reason import main
sys.argv = ["main", *sys.argv[2:]]
main.main()
"""


def in_a_process(code, *args):
  """Code in a process of the package."""
  argv = [sys.executable, "-c", code, *args]
  return subprocess.run(
      argv, cwd=ROOT, env=child_env(), capture_output=True, text=True
  )


def test_each_feature_can_be_taken_out(tmp_path):
  """Configs are checked without it, and --help names nothing of it."""
  code = FORKED.replace("CODE", repr(WITHOUT + CHECKED))
  done = in_a_process(code, str(tmp_path), *features.FEATURES)
  assert not done.returncode, done.stderr
  for name in features.FEATURES:
    known, _, text = (tmp_path / name).read_text().partition("\n")
    text = text.partition("Presets (")[0]  # files, some of them of a feature
    assert "--workdir" in text and "seed" in known.split(), known + text
    own = feature_fields.of([name])
    assert not own & {*known.split()}
    assert not re.search(rf"\b{name}\b", text), name
    assert not [x for x in own if x in text]


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["dapo", "vapo"])
@pytest.mark.parametrize("name", features.FEATURES)
def test_a_run_without_a_feature(name, preset, tmp_path):
  args = f"--config=configs/{preset}.py:smoke", f"--workdir={tmp_path / 'a'}"
  done = in_a_process(WITHOUT + RUN, name, *args)
  assert not done.returncode, done.stderr
  assert (tmp_path / "a" / "report.html").exists()
