"""Environments in processes of their own: the same runs, and calls that end."""

import pathlib
import subprocess
import sys
import threading
import time

import numpy as np
import process_games
import pytest
from conftest import ROOT
from tiny_episodes import TOK, environments, play

from rl_reason.base.errors import ConfigError, RunError
from rl_reason.checks import config_checks
from rl_reason.features.environments import executors
from rl_reason.features.environments.environment_runner import Environments
from rl_reason.tasks import Row


def in_processes(make, **options):
  name = f"process_games:{make.__name__}"
  usual = dict(ends=(TOK.eos_token_id,), max_turns=99, executor="process")
  return Environments(name, make, TOK, **usual | options)


@pytest.mark.parametrize("make", [process_games.Counts, process_games.Messages])
def test_processes_play_as_threads_do(make):
  alone, other = play(environments(make)), play(in_processes(make), made=False)
  for name in ("tokens_BL", "mask_BT", "logps_BT", "lengths_B", "truncated_B"):
    a, b = getattr(alone.rollouts, name), getattr(other.rollouts, name)
    np.testing.assert_array_equal(a, b, name)
  one, two = alone.episodes, other.episodes
  assert one.turns().numbers_BT.max() > 2
  np.testing.assert_array_equal(one.correct_B, two.correct_B)
  for name in ("turns", "returns"):
    np.testing.assert_array_equal(one.numbers[name], two.numbers[name])
  assert one.failures == two.failures == 0


CALL = '<tool_call>{"name": "price", "arguments": {"item": "%s"}}</tool_call>'


def test_tools_in_a_process_and_in_a_thread():
  """The same messages; a tool that exits is an error that the policy reads."""
  parent = executors.Parent("process_games:Shop", process_games.Shop, 20.0)
  both = executors.Play(process_games.Shop), executors.PlayInProcess(parent)
  row = Row("tea?", "2.5", columns=dict(a=[1]))
  found = [
      (
          [tool.__name__ for tool in x.offered],
          x.reset(row, (0, 1)),
          *(x.step(CALL % item) for item in ("tea", "ink", "exit")),
          x.step("2.5"),
      )
      for x in both
  ]
  assert found[0] == found[1]
  names, prompt, tea, ink, exits, last = found[0]
  assert names == ["price"] and prompt == [dict(role="user", content="tea?")]
  assert tea.observation == [dict(role="tool", content="2.5")]
  assert "error: KeyError: 'ink'" in ink.observation[0]["content"]
  assert "error: SystemExit: no exit" in exits.observation[0]["content"]
  assert last == ("", 1.0, True, True)
  parent.close()


def ended(pid: int) -> bool:
  try:
    state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2]
  except OSError:
    return True
  return state[0] == "Z"


def test_calls_that_hang_exit_or_crash_end_with_their_process(
    tmp_path, monkeypatch
):
  """They cost their trajectories alone, and leave no thread and no process."""
  monkeypatch.setenv("PLAYS", str(tmp_path))
  shown, threads = [], threading.active_count()
  run = in_processes(process_games.Faulty, seconds=5.0, show=shown.append)
  run._proved = True
  began = time.monotonic()
  found = play(run, count=24, made=False)
  assert time.monotonic() - began < 60
  fine = play(environments(process_games.Counts), count=24)
  started_B = found.episodes._turns_B > 0
  names = process_games.Faulty.FAULTS
  fault_B = np.array([names[b // 4] for b in range(24)])
  failed_B = started_B & (fault_B != "fine")
  np.testing.assert_array_equal(found.episodes.correct_B < 0, failed_B)
  same_B = fault_B == "fine"
  np.testing.assert_array_equal(
      found.rollouts.tokens_BL[same_B], fine.rollouts.tokens_BL[same_B]
  )
  assert len(shown) == 1
  whys = [found.episodes._failed[b].reason for b in np.flatnonzero(failed_B)]
  kinds = dict(zip(fault_B[failed_B], whys, strict=True))
  assert kinds["hangs"] == "took longer than environment.timeout = 5 s"
  assert "SystemExit: 3" in kinds["exits"]
  assert "KeyboardInterrupt: stop" in kinds["raises"]
  assert "RecursionError" in kinds["recurses"]
  assert "process of the environment has ended" in kinds["crashes"]
  # What a call has started ends with it, and no thread hangs.
  started = [int(x.name) for x in tmp_path.iterdir()]
  deadline = time.monotonic() + 30
  while not all(map(ended, started)) or threading.active_count() > threads:
    assert time.monotonic() < deadline
    time.sleep(0.05)
  assert started


def test_an_environment_that_another_process_cannot_import():
  with pytest.raises(RunError, match="has no missing; it has Counts.*'thread'"):
    Environments(
        "process_games:missing",
        process_games.Counts,
        TOK,
        ends=(),
        max_turns=1,
        executor="process",
    )
  fields = {
      "environment.name": "__main__:Game",
      "environment.executor": "process",
  }
  sys.modules["__main__"].Game = process_games.Counts
  with pytest.raises(ConfigError, match="another process cannot import"):
    config_checks.checked(str(ROOT / "configs" / "dapo.py"), fields)


def test_processes_of_environments_do_not_import_jax():
  module = "rl_reason.features.environments.executors"
  code = f"import sys, {module}; print('jax' in sys.modules)"
  found = subprocess.run(
      [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
  )
  assert found.stdout == "False\n", found.stderr
