"""Retired prompts: of tasks and of files, and what a file says of them."""

# ruff: noqa: F811  (pytest finds fixtures by their names)

import pytest
from test_collect import numbers
from test_measured_rows import of_each_set, stream  # noqa: F401  (a fixture)
from test_no_verifier import free  # noqa: F401  (a fixture)

from rl_reason.base.errors import ConfigError, RunError
from rl_reason.checks import config_checks
from rl_reason.data import prompt_stream
from rl_reason.features.retired_prompts.retirement import Retirement


@pytest.mark.parametrize("after", [1, 2])
def test_prompts_retire_once_they_are_solved(monkeypatch, after):
  """Each of five prompts is drawn `after` times; then the run says so."""
  monkeypatch.setattr(prompt_stream, "MAX_PASSED_IN_A_ROW", 10)
  prompts, drawn = numbers(5, drawn=Retirement(after)), []
  with pytest.raises(RunError, match=f"retire_after = {after}: 11 prompts"):
    while True:
      _, rows = prompts.draw(1)
      drawn += [row.prompt for row in rows]
      prompts.update(rows, [1.0], [3.0])
  assert sorted(drawn) == sorted("01234" * after)


def test_an_incorrect_response_ends_a_streak():
  """Solved, not solved, solved are no two steps in a row."""
  prompts, streaks = numbers(1, drawn=Retirement(2)), []
  for accuracy in (1.0, 0.5, 1.0, 1.0):
    _, rows = prompts.draw(1)
    prompts.update(rows, [accuracy], [3.0])
    streaks.append(list(prompts.get_state()["solved"].values()))
  assert streaks == [[1], [], [1], [2]]


def test_prompts_retire_at_a_rate():
  """15 of 16 correct responses are 90%, and 14 are not."""
  prompts = numbers(2, drawn=Retirement(1, 0.9))
  _, rows = prompts.draw(2)
  prompts.update(rows, [15 / 16, 14 / 16], [3.0, 3.0])
  _, again = prompts.draw(2)
  assert again == [rows[1]] * 2


@of_each_set
def test_prompts_of_files_retire(stream, monkeypatch, name):
  monkeypatch.setattr(prompt_stream, "MAX_PASSED_IN_A_ROW", 10)
  prompts, found = stream(name, [0.5, 0.5, 0.5], drawn=Retirement(1))
  _, drawn = prompts.draw(2)
  prompts.update(drawn, [1.0, 1.0], [3.0, 3.0])
  [rest] = set(found) - set(drawn)
  for _ in range(5):
    _, [row] = prompts.draw(1)
    assert row == rest
  prompts.update([row], [1.0], [3.0])
  with pytest.raises(RunError, match="are retired"):
    prompts.draw(1)


@of_each_set
@pytest.mark.parametrize("types", ["pass_rate", "difficulty"])
def test_what_a_file_says_is_solved_retires(stream, name, types):
  """A rate of .9 counts as one solved round, until a round says otherwise."""
  rates = [0.9, 0.5, 0.5]
  options = dict(cycle=True, types=types)
  prompts, found = stream(name, rates, drawn=Retirement(1, 0.9), **options)
  _, drawn = prompts.draw(6)
  assert found[0] not in drawn and {*drawn} == {*found[1:]}
  prompts, found = stream(name, rates, drawn=Retirement(2, 0.9), **options)
  prompts.update([found[0]], [0.5], [3.0])
  prompts.update([found[0]], [1.0], [3.0])
  assert found[0] in prompts.draw(6)[1]
  prompts.update([found[0]], [1.0], [3.0])
  assert found[0] not in prompts.draw(6)[1]
  prompts, found = stream(name, rates, drawn=Retirement(2, 0.9), **options)
  prompts.update([found[0]], [1.0], [3.0])
  assert found[0] not in prompts.draw(6)[1]


def test_what_nothing_verifies_is_never_solved(free):
  free.rollout.retire_after = 2
  with pytest.raises(ConfigError, match="no verifier: leave it at 0"):
    config_checks.fields(free)
