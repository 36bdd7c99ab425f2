"""The reading path of docs/tour.md: true, complete and within its budget."""

import ast
import importlib
import pathlib
import re
import sys
import threading

import jax
import pytest
import tiny_session
from import_graph import ROOT, graph, heights
from tiny_session import call

from rl_reason.checks import config_files
from rl_reason.collect.collector import RolloutCollector
from rl_reason.report import page
from rl_reason.rollout import sampler
from rl_reason.stages import interim, rl

TOUR = ROOT / "docs" / "tour.md"
PACKAGE = f"{ROOT / 'rl_reason'}/"
# From `main` to the gradient; 5% of air on top.
MAX_FILES, MAX_LINES, MAX_STEPS_UP = 20, 5000, 20
AIR = 1.05
FEATURE = re.compile(r"rl_reason/features/\w+/__init__\.py$")


class Calls:
  """Calls between files of the package, in any thread, while it is entered.

  Attributes:
    all: (file of the caller, file of the function), as paths from the root. The
      caller is the nearest function of the package: jax and threads in between
      do not count.
    of_step: the same, from the first time that `begin_step` was called.
  """

  def __init__(self):
    self.all, self.of_step, self._step = set(), set(), False

  def begin_step(self):
    self._step = True

  def _trace(self, frame, *_):
    """Is called for calls alone, as it returns no function for their lines."""
    if frame.f_code.co_name == "<module>":
      return
    if not (called := _file(frame)):
      return
    caller = frame.f_back
    while caller is not None and not _file(caller):
      caller = caller.f_back
    call = _file(caller) if caller else "", called
    self.all.add(call)
    if self._step:
      self.of_step.add(call)

  def __enter__(self):
    threading.settrace(self._trace)
    sys.settrace(self._trace)
    return self

  def __exit__(self, *_):
    sys.settrace(None)
    threading.settrace(None)


def _file(frame) -> str:
  """The file of a frame as a path from the root; '' outside of the package."""
  name = frame.f_code.co_filename
  return name.removeprefix(f"{ROOT}/") if name.startswith(PACKAGE) else ""


def calls_of_a_run(name: str, workdir, monkeypatch) -> Calls:
  """Calls while `rl.train` builds, traces and runs one step of a config."""
  c = tiny_session.tiny_config()
  module = importlib.import_module(f"configs.{name}")
  c.update(config_files.smoke(module.get_config()))
  small = tiny_session.tiny_config()
  for section in ("model", "rollout", "log"):
    c[section].update(small[section])
  c.updates.minibatches = 2
  c.dynamic_sampling.max_rounds = 2
  c.rl.steps = 1
  session = tiny_session.make_session(workdir, c)
  jax.clear_caches()  # programs that other tests traced would not be seen
  sampler.program.cache_clear()
  monkeypatch.setattr(interim, "run", lambda *_: 0.0)
  # A page is written with a checkpoint, and not by a step.
  monkeypatch.setattr(page, "refresher", lambda *_: lambda: None)
  calls, start_step = Calls(), RolloutCollector.start_step

  def start(collector):
    calls.begin_step()
    start_step(collector)

  monkeypatch.setattr(RolloutCollector, "start_step", start)
  with jax.set_mesh(session.mesh):
    params = tiny_session.random_params(session)
    with calls:
      call(rl.train, session, params)
  return calls


@pytest.fixture(scope="module")
def dapo(tmp_path_factory):
  with pytest.MonkeyPatch.context() as patch:
    return calls_of_a_run("dapo", tmp_path_factory.mktemp("dapo"), patch)


def stops(text: str) -> list[str]:
  """Files of the reading path: bold, or first in a numbered item."""
  found = re.findall(r"(?m)(?:\*\*|^\d+\. )[\[`*]*([\w/]+\.py)", text)
  return list(dict.fromkeys(found))


def supporting(text: str) -> set[str]:
  """Items "- `file.py`: why" of the section on supporting rooms."""
  _, _, section = text.partition("## Supporting modules")
  section, _, _ = section.partition("\n## ")
  return set(re.findall(r"(?m)^- `(rl_reason/[\w/]+\.py)`: \w", section))


@pytest.fixture(scope="module")
def tour():
  if not TOUR.exists():
    pytest.skip("docs/tour.md is not written yet")
  return TOUR.read_text()


def test_stops_and_supporting_files_are_read_from_the_text():
  text = """
1. `configs/dapo.py` changes `configs/base.py`.
2. **[`rl_reason/main.py`](../rl_reason/main.py)**, then
**`rl_reason/stages/rl.py`**: the loop; see `rl_reason/base/structs.py`.

## Supporting modules
- `rl_reason/data/`: a room is no file.
- `rl_reason/randomness.py`: keys.

## Rooms that a step never enters
- `rl_reason/hf/`: other formats.
"""
  assert stops(text) == [
      "configs/dapo.py",
      "rl_reason/main.py",
      "rl_reason/stages/rl.py",
  ]
  assert supporting(text) == {"rl_reason/randomness.py"}


def test_the_tour_is_short(tour):
  lines = {
      name: len((ROOT / name).read_bytes().splitlines()) for name in stops(tour)
  }
  assert list(lines)[0] == "rl_reason/main.py"
  assert len(lines) <= AIR * MAX_FILES
  assert f"A step executes {len(supporting(tour))} more files." in tour
  assert sum(lines.values()) <= AIR * MAX_LINES, lines


def test_the_loop_fits_a_screen():
  tree = ast.parse((ROOT / "rl_reason" / "stages" / "rl.py").read_text())
  (train,) = [x for x in tree.body if getattr(x, "name", "") == "train"]
  *_, loop = [x for x in train.body if isinstance(x, ast.With)]
  assert loop.end_lineno - loop.lineno < 100


def test_a_step_of_dapo_executes_only_what_the_tour_names(tour, dapo):
  """Each file is a stop, or named as supporting; all of these are executed."""
  executed = {called for _, called in dapo.of_step}
  assert "rl_reason/stages/rl.py" in {caller for caller, _ in dapo.of_step}
  assert "rl_reason/models/critic.py" not in executed
  executed -= {"rl_reason/stages/rl.py"}
  assert executed.difference(stops(tour)) == supporting(tour)


def steps_up(calls: set[tuple[str, str]], modules) -> set[tuple[str, str]]:
  """Calls from a file to a higher one: callbacks and objects from above.

  A file stands above all that it imports, by the longest chain of imports. A
  reader who follows a call from the loop down to the gradient meets each of
  these as a function whose file is not among the imports. However many features
  there are, a file that asks those of the table makes one step up.

  Args:
    calls: (file of the caller, file of the function).
    modules: module -> modules that it imports, of `import_graph.graph`.
  """
  height = heights(modules)

  def of(file: str) -> int:
    parts = pathlib.Path(file).with_suffix("").parts[1:]
    return height.get(".".join(x for x in parts if x != "__init__"), 0)

  up = {(a, b) for a, b in calls if a and of(a) < of(b)}
  return {(a, FEATURE.sub("rl_reason/features/", b)) for a, b in up}


def test_steps_up_by_hand():
  modules = {"low": set(), "middle": {"low"}, "high": {"middle", "low"}}
  names = {x: f"rl_reason/{x}.py" for x in modules}
  low, middle, high = names["low"], names["middle"], names["high"]
  calls = {(high, middle), (middle, low), (low, low), (low, high), ("", high)}
  assert steps_up(calls, modules) == {(low, high)}
  # Two features are one step of a file that asks them.
  modules |= {f"features.{x}": {"high"} for x in "ab"}
  asked = [f"rl_reason/features/{x}/__init__.py" for x in "ab"]
  asked = {(file, x) for file in (low, middle) for x in asked}
  table = {(file, "rl_reason/features/") for file in (low, middle)}
  assert steps_up(asked, modules) == table


def test_calls_lead_down(dapo):
  up = steps_up(dapo.all, graph())
  assert len(up) <= MAX_STEPS_UP, sorted(up)


ALGORITHMS = (
    *("surrogates", "surrogate_variants", "advantage_variants", "kl"),
    *("reductions", "process"),
)


@pytest.mark.parametrize("module", ALGORITHMS)
def test_an_algorithm_is_a_function_of_25_lines(module):
  """Its body, without the docstring, which has the formula and the source."""
  path = ROOT / "rl_reason" / "algorithms" / f"{module}.py"
  found = [
      x
      for x in ast.parse(path.read_text()).body
      if isinstance(x, ast.FunctionDef)
  ]
  assert found
  for function in found:
    body = function.body[ast.get_docstring(function) is not None :]
    lines = body[-1].end_lineno - body[0].lineno + 1
    assert lines <= 25, f"{module}.{function.name} has {lines} lines"
    assert function.name[0] == "_" or ast.get_docstring(function)
