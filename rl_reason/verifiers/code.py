"""Code: whether a program passes tests that it never sees.

There are two layers of protection. The sandbox (sandbox.py) contains all
processes. The tests run in one sandbox (tester.py) and the program in another
(candidate.py), and they exchange arguments and values as plain data (wire.py),
so that the program cannot reach the verdict. The output of the program, its
exit status and changes to its interpreter have no effect. Programs that read
standard input are judged here, by their output; the expected output does not
enter the sandbox.
"""

import ast
import contextlib
import functools
import json
import math
import os
import re
import subprocess
from typing import NamedTuple

from rl_reason.verifiers import (
    code_blocks,
    code_prompts,
    code_tests,
    sandbox,
    tester,
    unit_tests,
)
from rl_reason.verifiers.code_blocks import program
from rl_reason.verifiers.code_tests import Calls, Streams

FLOAT_TOLERANCE = 1e-6  # as the usual checkers of contests
MOST_DIGITS = 40  # characters of a float that has a tolerance


class Verdict(NamedTuple):
  """The outcome of the tests.

  Attributes:
    correct: whether all tests passed.
    reason: 'correct', 'incorrect', 'error' (an exception), 'timeout', 'memory',
      'output' (too much output), 'crash' (the process has ended) or 'refused'
      (no program, or a value that is not plain data).
    detail: text for people; may quote the candidate.
  """

  correct: bool
  reason: str
  detail: str = ""


def completion(text: str, stop: tuple[str, ...]) -> str:
  r"""A response of a base model up to its first stop text.

  Stop texts that begin with a newline, such as "\ndef" after the body of a
  function, end only a response that begins within the function: a response that
  is a whole program, or has it in a block, has such lines as well.
  """
  anywhere = tuple(x for x in stop if not x.startswith("\n"))
  within = text.lstrip("\r\n")[:1] in (" ", "\t")
  kept = _before(text, stop if within else anywhere)
  return _before(text, anywhere) if code_blocks.FENCE.search(kept) else kept


def _before(text: str, stop: tuple[str, ...]) -> str:
  """The text before the first of some texts."""
  pattern = "|".join(map(re.escape, stop))
  return re.split(pattern, text, maxsplit=1)[0] if stop else text


def stop_texts(reference: str) -> tuple[str, ...]:
  """The stop texts of a reference answer; () without any, or without tests."""
  with contextlib.suppress(ValueError):
    problem = code_tests.parse(reference)
    return problem.stop if isinstance(problem, Calls) else ()
  return ()


def _source(text: str, problem: Calls | Streams) -> str | None:
  """The program of a response to a problem."""
  if not isinstance(problem, Calls):
    return program(text)
  return program(completion(text, problem.stop), _names(problem))


@functools.lru_cache(64)
def _names(problem: Calls) -> set[str]:
  """Names of the program that the tests use; empty if they are no Python."""
  names = {part for x in problem.names for part in x.split("().")}
  with contextlib.suppress(SyntaxError, ValueError, RecursionError):
    names |= unit_tests.imported(ast.parse(problem.tests))
    prompt = code_blocks.Block(code_prompts.module(problem.prompt), True)
    return names or tester.free(problem.tests, prompt.defines)[0]
  return names


def _calls(source: str, problem: Calls, tier, limits) -> Verdict:
  """Runs the program and the tests in two processes, joined by two pipes."""
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
      while ends:  # else a process would not see the other one end
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


# A number that is no part of a word, a version or a date with points.
_NUMBER = re.compile(
    r"(?<![\w.])([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?)(?=j?(?![\w.]))",
    re.ASCII | re.IGNORECASE,
)


def _near(found: str, expected: str, tolerance: float | None) -> bool:
  """Whether two numbers are equal, up to a tolerance.

  Without one, FLOAT_TOLERANCE is that of two floats.
  """
  if found == expected:
    return True
  numbers = float(found), float(expected)
  if tolerance is None:
    # More digits than these are meant to be compared.
    if expected.lstrip("+-").isdecimal() or len(expected) > MOST_DIGITS:
      return False
    if found.lstrip("+-").isdecimal():  # 3 is 3.0
      return numbers[0] == numbers[1]
    tolerance = FLOAT_TOLERANCE
  return math.isfinite(numbers[1]) and math.isclose(
      *numbers, rel_tol=tolerance, abs_tol=tolerance
  )


def _equal(found: str, expected: str, tolerance: float | None) -> bool:
  """Whether two tokens, such as x=0.1,-2, are equal up to their numbers."""
  first, second = _NUMBER.split(found), _NUMBER.split(expected)
  return first[::2] == second[::2] and all(
      _near(a, b, tolerance)
      for a, b in zip(first[1::2], second[1::2], strict=True)
  )


def _script(job: dict, stdin: str, tier, limits, **errors) -> tuple[bytes, str]:
  """Runs a program as a script; returns its output and why it ended early."""
  data = stdin.encode(errors="surrogatepass")
  with sandbox.running(
      "candidate.script", job, tier, limits, stdin=data, **errors
  ) as process:
    out, ended = sandbox.read(process, limits)
    return out, ended or sandbox.death(process, limits)


def _streams(source: str, problem: Streams, tier, limits) -> Verdict:
  """Runs the program on each case, and compares its output."""
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

  Args:
    text: the response.
    problem: the tests.
    tier: the only acceptable tier, see `sandbox.tier`.
    allow_unsafe: whether resource limits alone are acceptable.
    limits: limits of each process of the program and of the tests.

  Raises:
    RuntimeError: this machine has no sandbox.
    ValueError: the problem has no tests.
  """
  if not (problem.tests if isinstance(problem, Calls) else problem.cases):
    raise ValueError("a problem without tests: any program would be correct")
  found = sandbox.tier(tier, allow_unsafe=allow_unsafe)
  source = _source(text, problem)
  if source is None:
    return Verdict(False, "refused", "no program in the response")
  if isinstance(problem, Calls):
    return _calls(source, problem, found, limits)
  return _streams(source, problem, found, limits)


class Trial(NamedTuple):
  """The outcome of a program as a script, and of its tests.

  Attributes:
    output: standard output and standard error of the program.
    reason: why the program ended early, as in `Verdict`; '' if it did not.
    passed: number of tests that passed.
    tests: number of tests.
  """

  output: str
  reason: str
  passed: int
  tests: int


def _single(problem: Calls | Streams) -> list[Calls | Streams]:
  """The tests of a problem one by one: its cases, or its asserts and functions.

  Functions are those that pytest runs. Other statements are part of each test.
  """
  if isinstance(problem, Streams):
    return [problem._replace(cases=(case,)) for case in problem.cases]
  module = ast.parse(problem.tests)
  functions = unit_tests.functions(module)
  single = [
      x for x in module.body if isinstance(x, ast.Assert) or x in functions
  ]
  out: list[Calls | Streams] = []
  for one in single:
    body = [x for x in module.body if x is one or x not in single]
    tests = ast.unparse(ast.Module(body, module.type_ignores))
    out.append(problem._replace(tests=tests))
  return out or [problem]


def trial(
    text: str,
    reference: str,
    limits: sandbox.Limits = sandbox.Limits(),  # noqa: B008  a tuple
) -> Trial:
  """Runs the program of a response as a script, then against each test.

  Programs that read standard input get the input of the first case. After a
  timeout, of the script or of a test, the remaining tests count as failed.

  Args:
    text: the response.
    reference: the reference answer.
    limits: limits of each process.

  Raises:
    RuntimeError: this machine has no sandbox.
    ValueError: the reference answer holds no tests.
  """
  problem, tier = code_tests.parse(reference), sandbox.tier()
  tests = _single(problem)
  source = _source(text, problem)
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


def verify(text: str, reference: str) -> bool:
  """Whether the program of a response passes the tests of a reference answer.

  Raises:
    RuntimeError: this machine has no sandbox.
    ValueError: the reference answer holds no tests, or is no Python, or its
      tolerance is no number.
  """
  return grade(text, code_tests.parse(reference)).correct


def usable(reference: str) -> bool:
  """Whether a reference answer holds a prompt and tests that are Python."""
  try:
    code_tests.parse(reference)
  except ValueError:
    return False
  return True
