"""Code: whether a program passes tests that it never sees.

Two layers. The sandbox (sandbox.py) contains the processes. The verdict is safe
from the program because no process holds both sides: the tests run in one
sandbox (tester.py) and the program in another (candidate.py), and arguments and
values cross between them as plain data (wire.py). Only the process of the tests
and this one decide: the output of the program, its exit status and its changes
to its own interpreter decide nothing. Programs that read and write are compared
here, by their output; the expected output does not enter the sandbox.
"""

import ast
import json
import math
import os
import re
import subprocess
from typing import NamedTuple

from rl_reason.verifiers import code_prompts, sandbox

_FENCE = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n`]*$", re.MULTILINE)


class Verdict(NamedTuple):
  """The outcome of the tests.

  Attributes:
    correct: whether all tests passed.
    reason: 'correct', 'incorrect', 'error' (an exception), 'timeout', 'memory',
      'output' (too much of it), 'crash' (the process is gone) or 'refused' (no
      program, or its values are not plain data).
    detail: for people; may quote the candidate.
  """

  correct: bool
  reason: str
  detail: str = ""


class Calls(NamedTuple):
  """Tests that call the program's functions.

  Attributes:
    tests: source of asserts; the program never sees it.
    names: the functions called by the tests; empty: all undefined names.
    prompt: source that the program continues or repeats, perhaps a signature
      alone; its other functions belong to the tests as well.
  """

  tests: str
  names: tuple[str, ...] = ()
  prompt: str = ""


class Streams(NamedTuple):
  """Tests of a program that reads standard input and writes standard output.

  Attributes:
    cases: pairs of input and expected output, compared token by token.
    tolerance: relative or absolute error that a number may have; None: tokens
      are compared as text.
  """

  cases: tuple[tuple[str, str], ...]
  tolerance: float | None = None


def program(text: str) -> str | None:
  """The program of a response: its last fence of Python, or all of it.

  A fence in another language is no program; one without a language is, if none
  is marked as Python. None if there are fences but no program among them, or if
  the last fence is not closed.
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
  """Runs the program and the tests in two processes joined by two pipes."""
  requests, asking = os.pipe()
  answers, answering = os.pipe()
  ends = [requests, asking, answers, answering]
  job: dict = dict(program=source, prompt=problem.prompt)
  job |= dict(read=requests, write=answering)
  test: dict = problem._asdict() | dict(read=answers, write=asking)
  try:
    with (
        sandbox.running("candidate.calls", job, tier, limits) as candidate,
        sandbox.running("tester.tests", test, tier, limits) as tester,
    ):
      while ends:  # so that the end of one side is seen by the other
        os.close(ends.pop())
      out, ended = sandbox.read(tester, limits, (candidate,))
      if ended:
        return Verdict(False, ended, "waiting for the tests")
      if not out:
        why = sandbox.death(tester, limits._replace(wall=1.0)) or "crash"
        return Verdict(False, why, "in the tests")
      reason, detail = json.loads(out)
      if (
          reason == "crash"
          and sandbox.death(candidate, limits._replace(wall=1.0)) == "timeout"
      ):
        reason = "timeout"
      return Verdict(reason == "correct", reason, detail)
  finally:
    for fd in ends:
      os.close(fd)


def _equal(found: str, expected: str, tolerance: float | None) -> bool:
  if found == expected or tolerance is None:
    return found == expected
  try:
    numbers = float(found), float(expected)
  except ValueError:
    return False
  return math.isclose(*numbers, rel_tol=tolerance, abs_tol=tolerance)


def _script(job: dict, stdin: str, tier, limits, **errors) -> tuple[bytes, str]:
  """Runs a program as a script -> its output, and why it ended early."""
  data = stdin.encode(errors="surrogatepass")
  with sandbox.running(
      "candidate.script", job, tier, limits, stdin=data, **errors
  ) as process:
    out, ended = sandbox.read(process, limits)
    return out, ended or sandbox.death(process, limits)


def _streams(source: str, problem: Streams, tier, limits) -> Verdict:
  """Runs the program once a case, and compares its output."""
  for index, (stdin, expected) in enumerate(problem.cases):
    out, ended = _script(dict(program=source), stdin, tier, limits)
    if ended:
      return Verdict(False, ended, f"case {index}")
    found, wanted = out.decode(errors="replace").split(), expected.split()
    if len(found) != len(wanted) or not all(
        _equal(a, b, problem.tolerance)
        for a, b in zip(found, wanted, strict=True)
    ):
      return Verdict(False, "incorrect", f"case {index}")
  return Verdict(True, "correct")


def grade(
    text: str,
    problem: Calls | Streams,
    *,
    tier: str | None = None,
    allow_unsafe: bool = False,
    limits: sandbox.Limits = sandbox.Limits(),  # noqa: B008  a tuple
) -> Verdict:
  """Runs the program of a finished response against the tests of a problem.

  Keywords: `sandbox.tier` describes tier and allow_unsafe; limits are those of
  each process: the program's, one a case, and the tests'.

  Raises:
    RuntimeError: nothing on this machine can contain a program.
    ValueError: the problem has no tests.
  """
  if not (problem.tests if isinstance(problem, Calls) else problem.cases):
    raise ValueError("a problem without tests: any program would be correct")
  found = sandbox.tier(tier, allow_unsafe=allow_unsafe)
  source = program(text)
  if source is None:
    return Verdict(False, "refused", "no program in the response")
  if isinstance(problem, Calls):
    return _calls(source, problem, found, limits)
  return _streams(source, problem, found, limits)


class Trial(NamedTuple):
  """What happened when a program ran, and then its tests.

  Attributes:
    output: what the program prints, errors included.
    reason: why it ended early, as of `Verdict`; '' if by itself.
    passed: number of tests that passed.
    tests: number of tests.
  """

  output: str
  reason: str
  passed: int
  tests: int


def _single(problem: Calls | Streams) -> list[Calls | Streams]:
  """The tests of a problem one by one: its cases, or its asserts.

  What is no assert on the top level belongs to each of them.
  """
  if isinstance(problem, Streams):
    return [problem._replace(cases=(case,)) for case in problem.cases]
  module = ast.parse(problem.tests)
  asserts = [x for x in module.body if isinstance(x, ast.Assert)]
  out: list[Calls | Streams] = []
  for one in asserts:
    body = [x for x in module.body if x is one or x not in asserts]
    tests = ast.unparse(ast.Module(body, module.type_ignores))
    out.append(problem._replace(tests=tests))
  return out or [problem]


def trial(
    text: str,
    reference: str,
    limits: sandbox.Limits = sandbox.Limits(),  # noqa: B008  a tuple
) -> Trial:
  """Runs the program of a response as a script, then against each test.

  A program that reads gets the input of the first case. Tests behind one that
  does not end, or of a program that does not end, count as not passed.

  Args:
    text: the response.
    reference: the reference answer.
    limits: of each process.

  Raises:
    RuntimeError: nothing on this machine can contain a program.
    ValueError: the reference answer holds no tests.
  """
  problem, tier = _problem(reference), sandbox.tier()
  tests = _single(problem)
  source = program(text)
  if source is None:
    return Trial("", "refused", 0, len(tests))
  job, stdin = dict(program=source), ""
  if isinstance(problem, Calls):
    job["prompt"] = problem.prompt
  else:
    stdin = problem.cases[0][0]
  out, ended = _script(job, stdin, tier, limits, errors=subprocess.STDOUT)
  passed, reason = 0, ended
  for test in tests:
    if reason == "timeout":
      break
    reason = grade(text, test, limits=limits).reason
    passed += reason == "correct"
  return Trial(out.decode(errors="replace"), ended, passed, len(tests))


# --- the contract of all verifiers -------------------------------------------

answer = program


def _problem(reference: str) -> Calls | Streams:
  """Tests from JSON: {"tests", "names", "prompt"} or {"cases", "tolerance"}.

  Raises:
    ValueError: it is something else, holds no tests, or is no Python.
  """
  try:
    fields = json.loads(reference)
    if "cases" in fields:
      cases = tuple((str(a), str(b)) for a, b in fields["cases"])
      problem: Calls | Streams = Streams(cases, fields.get("tolerance"))
    else:
      names = tuple(map(str, fields["names"]))
      problem = Calls(str(fields["tests"]), names, str(fields["prompt"]))
    if not problem[0]:
      raise ValueError
  except (TypeError, KeyError, ValueError):
    raise ValueError(
        "the reference answer holds no tests of a program"
    ) from None
  # Else every program would be wrong, and nobody would hear of the reason.
  if isinstance(problem, Calls):
    code_prompts.module(problem.prompt)
    try:
      ast.parse(problem.tests)
    except (SyntaxError, RecursionError) as e:
      raise ValueError(f"the tests of the reference answer: {e}") from None
  return problem


def verify(text: str, reference: str) -> bool:
  """Whether the program of a response passes the tests of a reference answer.

  Raises:
    RuntimeError: nothing on this machine can contain a program.
    ValueError: the reference answer holds no tests, or is no Python.
  """
  return grade(text, _problem(reference)).correct


def usable(reference: str) -> bool:
  """Whether a reference answer holds a prompt and tests that are Python."""
  try:
    _problem(reference)
  except ValueError:
    return False
  return True
