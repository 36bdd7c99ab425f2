"""Data sets of reasoning_gym as a task: names, levels, points, processes."""

import re
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT

from rl_reason import tasks
from rl_reason.base.errors import ConfigError
from rl_reason.checks import config_checks
from rl_reason.data import held_out
from rl_reason.data.pipelines import RowSource
from rl_reason.tasks.reward_functions import Response

MIXTURE = "reasoning_gym:chain_sum*3,gcd(max_value=40, max_numbers=3)"


def test_a_missing_package_is_named():
  """In one line, with the extra that installs it; without jax."""
  code = (
      "import sys; sys.modules['reasoning_gym'] = None\n"
      "from rl_reason.checks import config_checks\n"
      "try: config_checks.checked('dapo', {'task.name': 'reasoning_gym:gcd'})\n"
      "except ValueError as e: print(e)\n"
      "assert 'jax' not in sys.modules"
  )
  argv = [sys.executable, "-c", code]
  done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
  assert done.stdout == (
      "task.name = 'reasoning_gym:gcd': reasoning_gym is not installed: pip"
      " install 'rl_reason[reasoning-gym]'\n"
  ), done.stderr


@pytest.fixture(scope="module")
def gym():
  pytest.importorskip("reasoning_gym")
  from rl_reason.tasks import gym

  return gym


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("chainsum", "'chainsum' is no data set of .*; did you mean chain_sum"),
        ("gcd(most=4)", "gcd has no field most: it has max_numbers, "),
        ("gcd(size=4)", "gcd has no field size"),
        ("gcd(max_value=0)", "gcd.max_value=0.: max_value must be"),
        ("gcd*0", "must look like"),
        ("", "name a set"),
    ],
)
def test_what_is_no_set_is_refused(gym, name, error):
  with pytest.raises(ConfigError, match=f"task.name = .*{error}"):
    config_checks.checked("dapo", {"task.name": f"reasoning_gym:{name}"})


def test_a_mixture_with_weights_fields_and_levels(gym):
  task = tasks.get(MIXTURE)
  rng = np.random.default_rng(0)
  rows = [task.problem(rng, 0) for _ in range(400)]
  share = np.mean([row.source == "chain_sum" for row in rows])
  assert share == pytest.approx(0.75, abs=0.06)
  numbers = [
      int(x)
      for row in rows
      if row.source != "chain_sum"
      for x in re.findall(r"\d+", row.prompt)
  ]
  assert max(numbers) <= 40
  for row in rows[:20]:
    assert task.verify(task.demonstrate(row, "any", rng), row)
    assert task.verify(f"So <answer> {row.answer} </answer>!", row)
  # A level is that of the curriculum, without easier ones; or the last.
  chains = tasks.get("reasoning_gym:chain_sum")
  for level, terms in ((1, 2), (3, 4), (99, 12)):
    prompt = chains.problem(rng, level).prompt
    assert len(re.findall(r"\d+", prompt)) == terms, prompt
  with pytest.raises(ConfigError, match="no problem of difficulty 1: .*nodes"):
    tasks.get("reasoning_gym:knight_swap").problem(rng, 1)
  # Each set is evaluated under its own name.
  sets = held_out.evaluation_sets(RowSource(task, MIXTURE, (0,), 0), 40)
  assert list(sets) == ["chain_sum", "gcd(max_value=40, max_numbers=3)"]
  assert sum(map(len, sets.values())) == 40
  assert all(tasks.held_out(row.prompt) for row in sets["chain_sum"])


def test_points_between_0_and_1_are_a_reward_and_no_verdict(gym):
  row = tasks.get("reasoning_gym:chain_sum").problem(
      np.random.default_rng(0), 0
  )
  text = f"it is {row.answer}"
  assert gym.score(Response(text, 0.5, False), row) == pytest.approx(
      len(row.answer) / len(text)
  )
  assert not gym.verdict(*gym.item(text, row))
  config_checks.checked(
      "dapo",
      {
          "task.name": MIXTURE,
          "reward.functions": "rl_reason.tasks.gym:score*0.5",
      },
  )


def test_worker_processes_score(gym):
  """A question that another process does not make again is a failure."""
  shown = []
  task = tasks.get(MIXTURE, shown.append).in_workers(2, 10.0, shown.append)
  rng = np.random.default_rng(1)
  rows = [task.problem(rng, 2) for _ in range(6)]
  pairs = [(row.answer, row) for row in rows] + [("no", rows[0])]
  other = rows[1]._replace(prompt="another?")
  verdicts = task.begin([*pairs, (other.answer, other)])()
  assert verdicts == [True] * 6 + [False, None]
  assert len(shown) == 1 and "makes another question" in shown[0]
  task._verifier.close()
