"""The example in the README works as printed."""

import re
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT

from rl_reason import checks, config, functions

README = (ROOT / "README.md").read_text()
CODE = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]


@pytest.fixture
def directory(tmp_path, monkeypatch):
  """A user's directory with the printed file."""
  (tmp_path / "my_advantages.py").write_text(CODE)
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(str(tmp_path))
  yield tmp_path
  sys.modules.pop("my_advantages", None)


def test_the_example_passes_the_linter(directory):
  settings = f"--config={ROOT / 'pyproject.toml'}"
  command = [sys.executable, "-m", "ruff", "check", settings, "."]
  done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout


def test_the_example_is_an_advantage(directory):
  """Rewards 1, 0 | 3, 5 are 0, 1 | 2, 0 below the best; scaled by 1/2."""
  from configs import dapo

  flags = dict(re.findall(r"--config\.(advantage\.[\w.]+)=([\w:.]+)", README))
  assert flags == {
      "advantage.name": "my_advantages:group_best",
      "advantage.args.scale": "0.5",
  }
  c = config.smoke(dapo.get_config())
  c.advantage.name = flags["advantage.name"]
  c.advantage.args = {"scale": 0.5}
  checks.fields(c)
  function = functions.bind("advantage", c.advantage)
  rewards_B, groups_B = jnp.array([1.0, 0, 3, 5]), jnp.array([7, 7, 2, 2])
  np.testing.assert_allclose(function(rewards_B, groups_B), [0, -0.5, -1, 0])
