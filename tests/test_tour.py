"""The reading path of docs/tour.md: true, complete and within its budget."""

import ast
import contextlib
import importlib
import pathlib
import re
import sys
import threading

import jax
import pytest
import tiny_session
from tiny_session import call

from rl_reason.checks import config_files
from rl_reason.models import critic
from rl_reason.report import page
from rl_reason.rollout import sampler
from rl_reason.stages import interim, rl

ROOT = pathlib.Path(__file__).parents[1]
TOUR = ROOT / "docs" / "tour.md"
MAX_FILES, MAX_LINES = 16, 4200


@contextlib.contextmanager
def recorded(files: set[str]):
  """Adds the files of the package whose functions run, in any thread."""
  package, seen = f"{ROOT / 'rl_reason'}/", set()

  def profile(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_name != "<module>":
      seen.add(code.co_filename)

  threading.setprofile(profile)
  sys.setprofile(profile)
  try:
    yield
  finally:
    sys.setprofile(None)
    threading.setprofile(None)
    files |= {
        str(pathlib.Path(name).relative_to(ROOT))
        for name in seen
        if name.startswith(package)
    }


def executed_by_a_step(name: str, workdir, monkeypatch) -> set[str]:
  """Files of the package that one step of a config executes, and traces."""
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
  files: set[str] = set()
  with jax.set_mesh(session.mesh):
    params = tiny_session.random_params(session)
    values = None
    if session.config.advantage.name.startswith("gae"):
      values = critic.init(session.critic_cfg, jax.random.key(1), params)
    step = recorded(files)
    start_step = rl.build_step.RolloutCollector.start_step

    def start(collector):
      step.__enter__()
      start_step(collector)

    monkeypatch.setattr(rl.build_step.RolloutCollector, "start_step", start)
    try:
      call(rl.train, session, params, values)
    finally:
      step.__exit__(None, None, None)
  return files


def stops(text: str) -> list[str]:
  """Files of the reading path: bold, or first in a numbered item."""
  found = re.findall(r"(?m)(?:\*\*|^\d+\. )[\[`*]*([\w/]+\.py)", text)
  return list(dict.fromkeys(found))


def supporting(text: str) -> set[str]:
  """Items "- `file.py`: why" of the section on supporting rooms."""
  _, _, section = text.partition("## Supporting rooms")
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

## Supporting rooms
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
  assert 0 < len(lines) <= MAX_FILES
  assert f"A step executes {len(supporting(tour))} more files." in tour
  assert sum(lines.values()) < MAX_LINES, lines


def test_the_loop_fits_a_screen():
  tree = ast.parse((ROOT / "rl_reason" / "stages" / "rl.py").read_text())
  (train,) = [x for x in tree.body if getattr(x, "name", "") == "train"]
  (loop,) = [x for x in train.body if isinstance(x, ast.With)]
  assert loop.end_lineno - loop.lineno < 100


def test_a_step_of_dapo_executes_only_what_the_tour_names(
    tour, tmp_path, monkeypatch
):
  """Each file is a stop, or named as supporting; all of these are executed."""
  executed = executed_by_a_step("dapo", tmp_path, monkeypatch)
  assert "rl_reason/stages/rl.py" in executed
  assert "rl_reason/models/critic.py" not in executed
  assert executed.difference(stops(tour)) == supporting(tour)
