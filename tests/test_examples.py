"""The examples: within their length, and equal to the real loop."""

import runpy

import pytest
from conftest import ROOT


@pytest.mark.parametrize(
    ("name", "most"), [("dapo_on_one_screen", 150), ("own_reward", 40)]
)
def test_an_example_fits_its_screen(name, most):
  text = (ROOT / "examples" / f"{name}.py").read_text()
  assert len(text.splitlines()) <= most


def test_own_reward_runs(capsys):
  runpy.run_path(str(ROOT / "examples" / "own_reward.py"))
  assert "reward" in capsys.readouterr().out
