"""Which prompts the policy has solved often enough."""

from typing import Any

from rl_reason.data.prompt_stream import prompt_hash
from rl_reason.tasks import Row


class Retirement:
  """Counts in how many rounds in a row prompts were solved.

  Args:
    after: number of consecutive rounds in which a prompt was solved, after
      which the prompt is no longer drawn.
    rate: share of correct responses from which on a prompt is solved.
  """

  def __init__(self, after: int, rate: float = 1.0):
    self._after, self._rate = after, rate
    self._solved: dict[str, int] = {}  # prompt: rounds solved in a row

  def keeps(self, row: Row) -> bool:
    """Whether a prompt is still drawn."""
    return self._times(row) < self._after

  def note(self, row: Row, accuracy: float) -> None:
    """Counts a round of a prompt, with its share of correct responses."""
    times, name = self._times(row), str(prompt_hash(row))
    self._solved.pop(name, None)
    if accuracy >= self._rate:
      self._solved[name] = times + 1
    elif self._times(row):  # what the file says holds no longer
      self._solved[name] = 0

  def why(self, passed: int) -> str:
    """Why so many prompts in a row are not drawn, and the remedy."""
    return (
        f"rollout.retire_after = {self._after}: {passed} prompts in a row are"
        f" retired because {self._rate:.0%} or more of the responses to them"
        " were correct; stop the run, or add harder prompts"
    )

  def get_state(self) -> dict[str, Any]:
    """The counts, as JSON."""
    return self._solved

  def set_state(self, state: dict[str, Any]) -> None:
    """Restores `get_state`."""
    self._solved = state

  def _times(self, row: Row) -> int:
    """The rounds in a row in which a prompt was solved.

    Before its first round, a prompt has been solved once if its file says so.
    """
    solved = row.pass_rate is not None and row.pass_rate >= self._rate
    return self._solved.get(str(prompt_hash(row)), int(solved))
