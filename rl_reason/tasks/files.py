"""The task of rows from files (`config.data`); a row's kind names its verifier.

--stage=prepare writes the rows, and `data/pipelines.py` reads them. Worker
processes verify responses while the device samples.
"""

from collections.abc import Callable

from rl_reason import tasks, verifiers
from rl_reason.base import errors, functions
from rl_reason.tasks import Row
from rl_reason.verifiers import workers

VERDICT = "rl_reason.verifiers:verdict"
ALPHABET = ""  # tokenizers of models can encode every text
DIFFICULTIES = ()
STYLES = ()
has_demonstrations = True  # rows may have responses
BEHAVIOURS = {  # of reasoning in English
    "retries": r"(?i)\b(try (again|another)|another (way|approach)|start over)",
    "checks": r"(?i)\b(let('s| me| us) (check|verify)|double[- ]check)",
    "backtracks": r"(?i)\b(wait\b|hold on|i made a mistake|that('s| is) wrong)",
}


def check_kind(kind: str) -> None:
  """Checks the name of a verifier.

  Raises:
    ValueError: the kind is neither built in nor a function of the user.
  """
  if kind not in (*verifiers.KINDS, verifiers.NONE):
    if ":" not in kind:
      known = ", ".join((*verifiers.KINDS, verifiers.NONE))
      hint = errors.did_you_mean(kind, verifiers.KINDS)
      raise ValueError(f"must be one of {known}, or module:function{hint}")
    if not callable(functions.load(kind)):
      raise ValueError(f"{kind} is not a function")


def _item(text: str, row: Row) -> tuple:
  return verifiers.path(row.kind), text, row.answer, row.tolerance


class Verifier:
  """Worker processes that verify responses in the background.

  Args:
    count: number of processes.
    seconds: CPU time limit of one response.
    show: writes the first failure to the screen.
    function: path of the function that verifies an item; it returns a verdict
      or a traceback.
    item: (response, row) -> arguments of the function, which JSON can
      represent.
  """

  ALPHABET, DIFFICULTIES, STYLES = ALPHABET, DIFFICULTIES, STYLES
  BEHAVIOURS = BEHAVIOURS

  def __init__(
      self,
      count: int,
      seconds: float,
      show: tasks.Show | None = None,
      function: str = VERDICT,
      item: Callable[[str, Row], tuple] = _item,
  ):
    self._pool = workers.Pool(function, count, seconds)
    self._item, self._function = item, function
    self._failures = tasks.Failures("the verifier", show)

  @staticmethod
  def answer(text: str, row: Row) -> str:
    """The final answer of a response; '' if it has none."""
    if row.kind == verifiers.NONE:
      return verifiers.last_line(text)
    return verifiers.find(verifiers.path(row.kind)).answer(text) or ""

  def begin(
      self, pairs: list[tuple[str, Row]]
  ) -> Callable[[], list[bool | None]]:
    """Starts to verify responses; see `Task.begin`.

    Rows of the kind `none` are not verified: reward functions judge them.
    """
    verdicts: list[bool | None] = [False] * len(pairs)
    asked = [n for n, x in enumerate(pairs) if x[1].kind != verifiers.NONE]
    pending = self._pool.submit(self._item(*pairs[n]) for n in asked)

    def wait():
      results = self._pool.results(pending)
      for n, (value, failure) in zip(asked, results, strict=True):
        if isinstance(value, str):  # a traceback
          failure = value
        if failure:
          self._failures.add(failure)
        verdicts[n] = None if failure else value is True
      return verdicts

    return wait

  def read_leniently(self, pairs: list[tuple[str, Row]]) -> list[str]:
    """Why each rejected (response, row) may still be right; '' if it is wrong.

    Calls verifiers that define `lenient`, in the worker processes and within
    the time limit.
    """
    out = [""] * len(pairs)
    if self._function != VERDICT:
      return out
    asked = [
        n
        for n, (_, row) in enumerate(pairs)
        if row.kind != verifiers.NONE
        and hasattr(verifiers.find(verifiers.path(row.kind)), "lenient")
    ]
    pending = self._pool.submit((*self._item(*pairs[n]), True) for n in asked)
    for n, (value, _) in zip(asked, self._pool.results(pending), strict=True):
      out[n] = value[0] if isinstance(value, list) and value else ""
    return out

  def close(self) -> None:
    """Ends the processes."""
    self._pool.close()


in_workers = Verifier  # like the method of `tasks.Task`
