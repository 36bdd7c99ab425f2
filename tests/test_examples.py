"""The examples: within their length, documented, and learning."""

import re
import runpy

import pytest
from conftest import ROOT


@pytest.mark.parametrize(
    ("name", "most"), [("dapo_on_one_screen", 150), ("own_reward", 45)]
)
def test_an_example_fits_its_screen(name, most):
  text = (ROOT / "examples" / f"{name}.py").read_text()
  assert len(text.splitlines()) <= most


@pytest.mark.slow
def test_own_reward_learns_and_is_the_one_of_its_page(capsys):
  path = ROOT / "examples" / "own_reward.py"
  page = (ROOT / "docs" / "your_loop.md").read_text()
  assert f"```python\n{path.read_text()}```" in page
  runpy.run_path(str(path))
  rewards = re.findall(r"reward ([\d.]+)", capsys.readouterr().out)
  assert float(rewards[0]) < 0.8 and float(rewards[-1]) > 0.98
