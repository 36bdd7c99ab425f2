"""Code: whether a program passes tests that it never sees.

Two layers. The sandbox (sandbox.py) contains what runs. The verdict is safe
from it because no process holds both sides: the tests run in one sandbox
(tester.py) and the program in another (candidate.py), and arguments and values
cross between them as plain data (wire.py). Only the tests' process and this
one decide; what the program prints, how it ends and what it does to its own
interpreter decide nothing. Programs that read and write are judged here, by
their output; the expected one does not enter the sandbox.
"""

import ast
import json
import math
import os
import re
import subprocess
from typing import NamedTuple

from rl_reason.verifiers import sandbox

LIMITS = sandbox.Limits()
_FENCE = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n`]*$", re.MULTILINE)


class Verdict(NamedTuple):
  """What came out.

  Attributes:
    right: whether all tests passed.
    reason: 'right', 'wrong', 'error' (an exception), 'timeout', 'memory',
      'output' (too much of it), 'crash' (the process is gone) or 'refused' (no
      program, or what it returns is not plain data).
    detail: for people; may quote the candidate.
  """

  right: bool
  reason: str
  detail: str = ""


class Calls(NamedTuple):
  """Tests that call the program's functions.

  Attributes:
    tests: source of asserts; stays away from the program.
    names: the functions that they call there; empty: all that are not defined.
    prompt: source that the program continues or repeats; its other functions
      are the tests' as well.
  """

  tests: str
  names: tuple[str, ...] = ()
  prompt: str = ""


class Streams(NamedTuple):
  """Tests of a program that reads standard input and writes standard output.

  Attributes:
    cases: pairs of input and expected output, compared token by token.
    tolerance: relative or absolute error that a number may have; None: a token
      is a text.
  """

  cases: tuple[tuple[str, str], ...]
  tolerance: float | None = None


def humaneval(prompt: str, test: str, entry_point: str) -> Calls:
  """A problem of HumanEval (Chen et al. 2021, arXiv:2107.03374)."""
  return Calls(f"{test}\ncheck({entry_point})\n", (entry_point,), prompt)


def mbpp(test_list: list[str], setup: str = "") -> Calls:
  """A problem of MBPP (Austin et al. 2021, arXiv:2108.07732)."""
  return Calls("\n".join(test_list), prompt=setup)


def program(text: str) -> str | None:
  """The program of a response: its last fence of Python, or all of it.

  A fence that says another language is no program, one that says nothing is if
  none says Python. None if there are fences but no such one, or if the last
  one is not closed.
  """
  marks = list(_FENCE.finditer(text))
  if not marks:
    return text
  if len(marks) % 2:
    return None
  found: dict[bool, str] = {}
  for start, end in zip(marks[::2], marks[1::2], strict=True):
    label = start[1].lower()
    if label in ("", "py", "py3", "python", "python3"):
      found[bool(label)] = text[start.end() + 1 : end.start()]
  return found.get(True, found.get(False))


def _calls(source: str, problem: Calls, tier, limits) -> Verdict:
  requests, asking = os.pipe()
  answers, answering = os.pipe()
  ends = [requests, asking, answers, answering]
  test = dict(
      tests=problem.tests,
      names=problem.names,
      prompt=problem.prompt,
      read=answers,
      write=asking,
  )
  job = dict(
      program=source,
      prompt=problem.prompt,
      read=requests,
      write=answering,
  )
  try:
    with (
        sandbox.running(
            "candidate.calls", job, tier, limits, fds=(requests, answering)
        ) as candidate,
        sandbox.running(
            "tester.tests",
            test,
            tier,
            limits,
            stdout=subprocess.PIPE,
            fds=(answers, asking),
        ) as tester,
    ):
      while ends:  # so that the end of one side is seen by the other
        os.close(ends.pop())
      out, ended = sandbox.read(tester, limits)
      if ended:
        return Verdict(False, ended, "waiting for the tests")
      if not out:
        why = sandbox.death(tester, 1.0) or "crash"
        return Verdict(False, why, "in the tests")
      reason, detail = json.loads(out)
      if reason == "crash" and sandbox.death(candidate, 1.0) == "timeout":
        reason = "timeout"
      return Verdict(reason == "right", reason, detail)
  finally:
    for fd in ends:
      os.close(fd)


def _equal(given: str, expected: str, tolerance: float | None) -> bool:
  if given == expected:
    return True
  if tolerance is None:
    return False
  try:
    a, b = float(given), float(expected)
  except ValueError:
    return False
  return math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)


def _streams(source: str, problem: Streams, tier, limits) -> Verdict:
  for index, (stdin, expected) in enumerate(problem.cases):
    where = f"case {index}"
    with sandbox.running(
        "candidate.script",
        dict(program=source),
        tier,
        limits,
        stdin=stdin.encode(errors="surrogatepass"),
        stdout=subprocess.PIPE,
    ) as process:
      out, ended = sandbox.read(process, limits)
      ended = ended or sandbox.death(process, limits.wall)
    if ended:
      return Verdict(False, ended, where)
    given, wanted = out.decode(errors="replace").split(), expected.split()
    if len(given) != len(wanted) or not all(
        _equal(a, b, problem.tolerance)
        for a, b in zip(given, wanted, strict=True)
    ):
      return Verdict(False, "wrong", where)
  return Verdict(True, "right")


def judge(
    text: str,
    problem: Calls | Streams,
    *,
    tier: str | None = None,
    allow_unsafe: bool = False,
    limits: sandbox.Limits = LIMITS,
) -> Verdict:
  """Judges a finished response.

  Args:
    text: the response.
    problem: the tests.
    tier: of sandbox.TIERS; None: the machine's best.
    allow_unsafe: whether limits alone will do for a sandbox.
    limits: of each process: the program's, one a case, and the tests'.

  Raises:
    RuntimeError: nothing on this machine can contain a program.
    ValueError: the problem has no tests.
  """
  if not (problem.tests if isinstance(problem, Calls) else problem.cases):
    raise ValueError("a problem without tests: any program would be right")
  found = sandbox.tier(tier, allow_unsafe=allow_unsafe)
  source = program(text)
  if source is None:
    return Verdict(False, "refused", "no program in the response")
  if isinstance(problem, Calls):
    return _calls(source, problem, found, limits)
  return _streams(source, problem, found, limits)


# --- the contract of all verifiers -------------------------------------------


def _problem(gold: str) -> Calls | Streams:
  """Tests from JSON: {"tests", "names", "prompt"} or {"cases", "tolerance"}.

  Raises:
    ValueError: it is something else, or holds no tests.
  """
  try:
    fields = json.loads(gold)
    if "cases" in fields:
      cases = tuple((str(a), str(b)) for a, b in fields["cases"])
      problem: Calls | Streams = Streams(cases, fields.get("tolerance"))
    else:
      names = tuple(map(str, fields["names"]))
      problem = Calls(str(fields["tests"]), names, str(fields["prompt"]))
  except (TypeError, KeyError, ValueError):
    raise ValueError("this gold holds no tests of a program") from None
  if not (problem.cases if isinstance(problem, Streams) else problem.tests):
    raise ValueError("this gold holds no tests of a program")
  return problem


def answer(text: str) -> str | None:
  """The program of a response."""
  return program(text)


def verify(text: str, gold: str) -> bool:
  """Whether the program of a response passes the tests of a gold.

  Raises:
    RuntimeError: nothing on this machine can contain a program.
    ValueError: the gold holds no tests.
  """
  return judge(text, _problem(gold)).right


def usable(gold: str) -> bool:
  """Whether a gold holds tests that Python can read."""
  try:
    problem = _problem(gold)
    if isinstance(problem, Calls):
      ast.parse(problem.tests)
  except (ValueError, SyntaxError, RecursionError):
    return False
  return True
