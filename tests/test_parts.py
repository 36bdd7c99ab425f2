"""Stages by name, and the session that they get."""

import inspect
import pkgutil
import threading

import jax
import pytest
import tiny_session

from rl_reason import run
from rl_reason.devices import device_mesh
from rl_reason.monitoring import display
from rl_reason.stages import parts, session


@pytest.mark.parametrize(
    "name", sorted(run.STAGES.keys() - {"prepare", "size"})
)
def test_a_stage_gets_config_session_and_what_is_asked(name):
  stage = pkgutil.resolve_name(run.STAGES[name])
  first, second, third, *more = inspect.signature(stage).parameters
  asked = "stage" if name in run.TRAINS else "which"
  assert (first, second, third) == ("c", "session", asked)
  assert more == (["earlier"] if name == "evaluate" else [])


def test_a_session_opens_what_is_read(tmp_path, monkeypatch):
  opened = []
  for name in ("output", "row_source", "reward_runner"):
    make = getattr(parts, name)

    def watched(*args, name=name, make=make):
      opened.append(name)
      return make(*args)

    monkeypatch.setattr(parts, name, watched)
  c = tiny_session.tiny_config()
  mesh = device_mesh.make_mesh(1, 1, 1, jax.devices()[:1])
  screen = display.Display(False)
  new = session.Session(c, tmp_path, mesh, mesh, screen, threading.Event())
  assert opened == []
  assert new.output is new.output and opened == ["output"]
  other = new.replace(output=None)
  assert other.output is None and new.output is not None
  new.open()
  assert sorted(opened) == ["output", "reward_runner", "row_source"]
  assert new.opened == {}
  new.close()


@pytest.mark.parametrize("path", [*run.CHECKS.values(), run.AUTOMATIC_REMAT])
def test_what_a_run_names_exists(path):
  assert callable(pkgutil.resolve_name(path))
