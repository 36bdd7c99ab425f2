"""Code verifier: correct programs, incorrect ones, and programs that cheat."""

import json
import math

import pytest

from rl_reason.verifiers import code, sandbox

try:
  sandbox.tier()
except RuntimeError as e:
  pytestmark = pytest.mark.skip(reason=str(e))

LIMITS = sandbox.Limits(cpu=2, wall=20.0)
SQUARE = code.Calls("assert f(3) == 9\nassert f(-2) == 4\nassert f(0) == 0")
CORRECT = "def f(x):\n  return x * x\n"


def grade(program, problem=SQUARE, **kwargs):
  return code.grade(program, problem, **{"limits": LIMITS} | kwargs)


def asserts(*lines):
  return code.Calls("\n".join(f"assert {line}" for line in lines))


# --- from a response to a program --------------------------------------------

X = "x = 1\n"


@pytest.mark.parametrize(
    ("text", "program"),
    [
        *[("x = 1", "x = 1"), ("    return 1\n", "    return 1\n")],
        *[(f"```python\n{X}```", X), (f"So:\n\n```py\n{X}```\nDone.", X)],
        *[(f"```\n{X}```", X), (f"```Python3 title=a\n{X}```", X)],
        (f"```python\n{X}```\nBetter:\n```python\nx = 2\n```", "x = 2\n"),
        (f"```python\n{X}```\nIt prints\n```\n1\n```", X),
        (f"```python\n{X}```\n```text\n1\n```", X),
        *[(f"  ```python\n  {X}  ```", X), ("```python\n```", "")],
        ("```python\ns = 'a```b'\n```", "s = 'a```b'\n"),
        (f"```python\n{X}```\n```python\nx = ", X),  # never finished
        *[("```bash\nls\n```", None), ("`" * 10**6, "`" * 10**6)],
    ],
)
def test_program(text, program):
  assert code.program(text) == program


CODEX = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
BODY = "    return x * x\n"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"{BODY}\ndef f(x):\n    return 1", BODY),
        (f"{BODY}\nprint(f(2)\n", BODY),
        (f"\n{BODY}\n# Test\n", f"\n{BODY}"),
        (f"  # a note\n{BODY}", f"  # a note\n{BODY}"),
        (f"import os\n\ndef f(x):\n{BODY}", None),  # a whole program
        (f"\ndef f(x):\n{BODY}", None),
        (f"    So:\n```python\ndef f(x):\n{BODY}```", None),
        (f"def f(x):\n{BODY}[DONE]\nYou are", f"def f(x):\n{BODY}"),
        # A block after the stop text is not that of the response.
        (f"{BODY}\ndef g():\n  pass\n```\nE", BODY),
        (f"def f(x):\n{BODY}[DONE]\n```python\nde", f"def f(x):\n{BODY}"),
        (
            "  So:\n```\nX\n\ndef f(x): 1\n```[DONE]",
            "  So:\n```\nX\n\ndef f(x): 1\n```",
        ),
    ],
)
def test_completions_end_where_the_published_ones_end(text, kept):
  kept = text if kept is None else kept
  assert code.completion(text, (*CODEX, "[DONE]")) == kept
  assert code.completion(text, ()) == text


def test_stop_sequences_of_a_reference_answer():
  """A base model goes on after the body, here with another f."""
  text = f"{BODY}\ndef f(x):\n    return 1\n\nprint(f(2"
  fields = dict(tests="assert f(3) == 9", names=["f"], prompt="def f(x):\n")
  assert not code.verify(text, json.dumps(fields))
  assert code.verify(text, json.dumps(fields | dict(stop=CODEX)))
  trial = code.trial(text, json.dumps(fields | dict(stop=CODEX)), LIMITS)
  assert (trial.reason, trial.passed) == ("", 1)


# --- honest programs ---------------------------------------------------------


def test_verdicts_say_why():
  assert grade(CORRECT) == (True, "correct", "")
  assert grade(f"Sure.\n```python\n{CORRECT}```\n").correct
  correct, reason, detail = grade("def f(x): return 3 * x")
  assert (correct, reason) == (False, "incorrect") and "f(-2) == 4" in detail


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        *[("def f(x): return 1 / 0", "error"), ("def f(x) return", "error")],
        *[("def g(x): return x * x", "error"), ("\ud800", "error")],
        *[("def f(x):\n  return f(x)", "error"), ("f = 9", "error")],
        ("def f(x): return input()", "error"),
        ("def f(x):\n  while True: pass", "timeout"),
        ("import os\nos._exit(0)", "crash"),
        ("def f(x):\n  a = []\n  while True: a += [a] * 10**6", "memory"),
        ("```bash\nls\n```", "refused"),
    ],
)
def test_reasons(program, reason):
  cpu = 30 if reason == "memory" else 1  # new pages are slow on a busy machine
  limits = LIMITS._replace(cpu=cpu, memory=1 << 28)
  assert grade(program, limits=limits).reason == reason


def test_iterators_are_asked_for_each_item():
  """They may have no end, raise on the way, and be an argument."""
  program = """
import itertools
def naturals(): yield from itertools.count()
def pairs(x): return zip(x, x)
def breaks():
  yield 1
  raise ValueError("broken")
def total(x): return next(x) + sum(x)
"""
  tests = """
import itertools
n = naturals()
assert next(n) == 0 and list(itertools.islice(n, 3)) == [1, 2, 3]
assert next(naturals()) == 0 and next(n) == 4
assert dict(pairs("ab")) == {"a": "a", "b": "b"} and list(pairs("")) == []
assert total(iter([1, 2])) == 3 and total(x for x in range(5)) == 10
b = breaks()
assert next(b) == 1
try: next(b)
except ValueError as e: assert str(e) == "broken"
else: assert False
"""
  assert grade(program, code.Calls(tests)).correct
  assert grade(program, asserts("naturals() == 0")).reason == "incorrect"


def test_functions_are_passed_on_and_take_arguments_of_any_name():
  """Names of Python's own and modules without an import as MBPP has them."""
  tests = """
assert list(map(f, [1, 2])) == [1, 4] and sorted([1, 2], key=g) == [2, 1]
h = f
assert h(3) == 9 and f(x=math.floor(2.5)) == 4
assert k(name=1, self=3, kind=2) == (2, {'kind': 2})
"""
  program = CORRECT + "def g(x): return -x\n"
  program += "def k(self, name, number=0, **rest): return self - name, rest"
  assert grade(program, code.Calls(tests)).correct
  assert grade(
      "def sum(a, b): return a * b", asserts("sum(3, 5) == 15")
  ).correct
  assert grade("def f(): return []", asserts("sum(f()) == 0")).correct


def test_other_values_cross_as_their_base_or_their_truth():
  """MBPP asserts that a match is found; such a value equals nothing."""
  program = """
import collections, enum, re
Point = collections.namedtuple("Point", "x y")
class Colour(enum.IntEnum):
  RED = 1
class Same(str):
  def __eq__(self, other): return True
  __hash__ = str.__hash__
def f(): return [collections.Counter("aab"), Point(1, 2), Colour.RED]
def g(): return Same("a")
def m(x): return re.match("a", x)
"""
  lines = ["f() == [{'a': 2, 'b': 1}, (1, 2), 1]", "g() == 'a'", "g() != 'b'"]
  lines += ["m('a')", "not m('b')", "m('b') is None", "m('a') != True"]
  lines += ["m('a') != m('a')", "m('a') != 1"]
  assert grade(program, asserts(*lines)).correct


def test_exceptions_are_what_the_tests_know_of_them():
  """The nearest base, with its arguments; those of the prompt as well."""
  tests = """
for value, kinds, args in (
    ("own", (ValueError,), ("odd", 3)),
    ("prompt", (Odd,), ("odd",)),
    ("bytes", (UnicodeDecodeError,), None),
    ("json", (ValueError,), None),
    ("file", (FileNotFoundError,), (2, "No such file or directory")),
    ("none", (KeyError,), (None,)),
    ("assert", (AssertionError,), ("odd",)),
    ("zero", (ZeroDivisionError,), None),
):
  try: f(value)
  except kinds as e: assert args is None or e.args == args
  else: raise TypeError
"""
  program = """
import json
class Own(ValueError): pass
def f(x):
  if x == "own": raise Own("odd", 3)
  if x == "prompt": raise Odd("odd")
  if x == "bytes": b"\\xff".decode()
  if x == "json": json.loads("{")
  if x == "file": open("/nowhere/x")
  if x == "none": {}[None]
  assert x != "assert", "odd"
  1 / 0
"""
  prompt = "class Odd(Exception): pass\n"
  assert grade(program, code.Calls(tests, ("f",), prompt)).correct
  program = "def f(x): raise ValueError('odd', 3)"
  assert not grade(program, code.Calls(tests, ("f",), prompt)).correct


def test_a_changed_argument_stays_with_the_candidate():
  """Else a candidate could change what the tests expect."""
  tests = code.Calls("x = [3, 1]\nassert f(x) == sorted(x)\nassert x == [3, 1]")
  assert grade("f = sorted", tests).correct
  assert not grade("def f(x):\n  x.clear()\n  return []", tests).correct


PROMPT = '''import math
def double(x):
  """A helper."""
  return 2 * x

def f(x):
  """Undoes `double`."""
'''
CHECK = "def check(g):\n  for n in range(9): assert g(double(n)) == n\ncheck(f)"
UNDO = code.Calls(CHECK, ("f",), PROMPT)


@pytest.mark.parametrize(
    ("text", "correct"),
    [
        # A continuation of the prompt, alone or whole.
        (
            "  return half(x)\n\ndef half(x):\n  return math.floor(x / 2)\n",
            True,
        ),
        (f"```python\n{PROMPT}  return x // 2\n```", True),
        ("from __future__ import annotations\ndef f(x): return x // 2", True),
        # The helper that the tests use is that of the prompt.
        ("def double(x): return 0\ndef f(x): return x // 2", True),
        ("def double(x): return x\ndef f(x): return x", False),
        *[("", False), ("  pass\n", False), ("x = 1", False)],
    ],
)
def test_prompts(text, correct):
  assert grade(text, UNDO).correct is correct


BODY = "    y = x * x\n    return y\n"


@pytest.mark.parametrize(
    "prompt",
    [
        *["def f(x):", "def f(x):\n", "def f(x: int) -> int:  # squares\n"],
        *["def f(x)", "import math\ndef f(x):\n    # a comment\n"],
    ],
)
def test_a_prompt_may_be_a_bare_signature(prompt):
  """A body, or the whole function; with the names of the tests or without."""
  for names in (["f"], []):
    tests = "assert f(3) == 9 and f(-2) == 4"
    reference = json.dumps(dict(tests=tests, names=names, prompt=prompt))
    assert code.usable(reference)
    whole = f"def f(x):\n{BODY}"
    fenced = [f"```python\n{text}```" for text in (BODY, whole)]
    for text in (BODY, whole, *fenced):
      assert code.verify(text, reference), (text, names)
    assert not code.verify(BODY.replace("*", "+"), reference)
    assert not code.verify("", reference)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (dict(prompt="def f(x:\n"), "the prompt of the reference answer is no"),
        (dict(tests="assert f("), "the tests of the reference answer: "),
        (dict(tests=""), "holds no tests"),
    ],
)
def test_a_reference_that_no_program_passes_is_said(fields, why):
  """A failure of the verifier, which a run shows; preparation drops it."""
  usual = dict(tests="assert f(1) == 1", names=["f"], prompt="")
  reference = json.dumps(usual | fields)
  assert not code.usable(reference)
  with pytest.raises(ValueError, match=why):
    code.verify("def f(x): return x", reference)


def test_problems_that_test_nothing():
  for problem in (code.Calls(""), code.Streams(())):
    with pytest.raises(ValueError, match="without tests"):
      grade(CORRECT, problem)
  assert grade(CORRECT, code.Calls("assert 1 == 1")).reason == "error"
  assert grade(CORRECT, code.Calls("assert f(")).reason == "error"


# --- standard input and output -----------------------------------------------

SUMS = code.Streams((("1 2\n", "3\n"), ("5 5", " 10 ")))
SUM = "print(sum(map(int, sys.stdin.read().split())))"


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("print(sum(map(int, input().split()))); exit()", "correct"),
        ("import sys\nsys.stdin = open('/dev/stdin')\n" + SUM, "correct"),
        (
            "import sys\nif sys.argv[1:] or __name__ != '__main__':"
            " sys.stdin = open(sys.argv[1])\n" + SUM,
            "correct",
        ),
        (
            "import asyncio, sys\nasync def main():\n"
            f"  await asyncio.to_thread(sum, [])\n  {SUM}\n"
            "asyncio.run(main())",
            "correct",
        ),
        (  # the script ends before its work does
            "import threading, time\ndef work():\n  time.sleep(0.2)\n"
            "  print(sum(map(int, input().split())))\n"
            "threading.Thread(target=work).start()",
            "correct",
        ),
        *[("print(3)", "incorrect"), ("input(); input()", "error")],
        # It sees neither the expected output nor the next case.
        ("print(sum(map(int, input().split())))\nprint(input())", "error"),
        ("print(sum(map(int, input().split()))); exit(1)", "error"),
        ("while True: print('3' * 10**5)", "output"),
        *[("while True: pass", "timeout"), ("x = bytearray(5**15)", "memory")],
        ("import os; os.abort()", "crash"),
    ],
)
def test_streams(program, reason):
  limits = LIMITS._replace(cpu=1, output=10**6)
  assert grade(program, SUMS, limits=limits).reason == reason


def test_large_numbers_and_deep_recursion():
  """A thread with a larger stack, as programs of contests have it."""
  program = """
import math, sys, threading
sys.setrecursionlimit(10**6)
threading.stack_size(1 << 27)
def depth(n): return n and 1 + depth(n - 1)
t = threading.Thread(target=lambda: print(depth(50_000)))
t.start()
t.join()
print(math.factorial(1500))
"""
  output = f"50000 {math.factorial(1500)}"
  assert grade(program, code.Streams((("\ud800", output),))).correct
  assert grade("f = str", asserts("f(10**6000) == '1' + 6000 * '0'")).correct


def test_tolerance():
  third = code.Streams((("", "0.3333 x"),))
  program = "print(1 / 3, 'x')"
  assert not grade(program, third).correct
  assert grade(program, third._replace(tolerance=1e-3)).correct
  assert not grade(program, third._replace(tolerance=1e-5)).correct
  assert not grade("print('nan x')", third._replace(tolerance=1e9)).correct


@pytest.mark.parametrize(
    ("found", "expected", "equal"),
    [
        *[("0.3333333333333333", "0.333333", True), (".5", "0.50", True)],
        *[("1e-05", "0.00001", True), ("1E3", "1000.0", True)],
        *[("[0.1,", "[0.10000000000000001,", True), ("3", "3.0", True)],
        *[("0.3333", "0.333333", False), ("0.5%", "0.5", False)],
        *[("-3", "-3.0", True), ("+2", "2.00", True), ("-3.0", "-3", False)],
        *[("x=0.30000000000000004", "x=0.3", True), ("y=.3", "x=.3", False)],
        *[("0.1,0.2", "0.1000000001,0.2", True), ("1,.2", "2,.2", False)],
        *[("(1+0.30000000000000004j)", "(1+0.3j)", True), ("a", "a.", False)],
        *[("9" * 5000, "3.0", False), ("12:30.50", "12:30.5", True)],
        # Integers are exact, and so is text.
        *[("10000001", "10000000", False), ("3.0", "3", False)],
        *[("1000001", "1000000.0", False), ("1.2.3", "1.20.3", False)],
        *[("nan", "1.0", False), ("1e999", "1e998", False)],
        # The task is to write many digits.
        ("3.1415926", "3.1415926" + "5" * 50, False),
    ],
)
def test_floats_on_both_sides_have_a_tolerance(found, expected, equal):
  case = code.Streams((("", f"x {expected}"),))
  assert grade(f"print('x', {found!r})", case).correct is equal


def test_a_tolerance_that_is_no_number_is_refused():
  fields = dict(cases=[["", "0.3333"]])
  for good in (None, 0, 1e-3, "1e-3"):
    assert code.usable(json.dumps(fields | dict(tolerance=good)))
  assert code.verify("print(1/3)", json.dumps(fields | dict(tolerance="1e-3")))
  for bad in (-1, "few", [], float("nan"), float("inf"), 10**400):
    reference = json.dumps(fields | dict(tolerance=bad))
    assert not code.usable(reference)
    with pytest.raises(ValueError, match="tolerance .* is no number"):
      code.verify("print(1/3)", reference)


# --- programs that cheat -----------------------------------------------------

# What a program can reach: the frames above it, all objects, all descriptors.
REACH = """
import gc, json, os, sys
def frames():
  frame = sys._getframe(1)
  while frame:
    yield frame
    frame = frame.f_back
def texts():
  for frame in frames():
    yield repr(frame.f_locals)
    yield repr(frame.f_globals)
  for thing in gc.get_objects():
    if isinstance(thing, (dict, list, tuple)):
      yield repr(thing)
def everywhere(data):
  for fd in range(1024):
    try:
      os.write(fd, data)
    except OSError:
      pass
def frame_of(message):
  body = json.dumps(message).encode()
  return len(body).to_bytes(4, "big") + body
def request():
  return next(f.f_locals["request"] for f in frames()
              if isinstance(f.f_locals.get("request"), dict))
"""
CHEATS = r"""
# leaves for good in the call
import os
def f(x): os._exit(0)
# raises SystemExit
def f(x): raise SystemExit(0)
# always equal list
class Equal(list):
  def __eq__(self, other): return True
  def __ne__(self, other): return False
  def __hash__(self): return 0
  def __bool__(self): return True
def f(x): return Equal([7])
# an error of the tests' own
def f(x):
  raised = [["_Ended", "SystemExit", "f"], {"tuple": ["correct"]}, ""]
  everywhere(frame_of({"number": request()["number"], "raised": raised}))
# a fake line on every descriptor
everywhere(b'["correct", ""]')
def f(x): everywhere(b'["correct", ""]')
# snoops in frames and heap
def f(x):
  for text in texts():
    if f"f({x}) =" in text:
      return int(text.split(f"f({x}) == ")[1].split("'")[0].split(",")[0])
# says failed right
def f(x):
  number = request()["number"]
  everywhere(frame_of({"number": number, "failed": ["correct", ""]}))
# answers before it is asked
for value in (9, 4, 0):
  everywhere(frame_of({"number": "0" * 32, "value": value}))
def f(x): return 0
# answers twice
def f(x):
  number = request()["number"]
  for value in (x * x, 4, 0):
    everywhere(frame_of({"number": number, "value": value}))
  return 0
# answers with a long frame
def f(x): everywhere(b"\xff" * 8)
# floods
def f(x):
  while True: everywhere(b"\0" * 65536)
# hangs up
import os
os.closerange(0, 4096)
def f(x): return x * x
# kills everybody
import os, signal
def f(x): os.kill(-1, signal.SIGKILL)
# ignores the limit
import signal
signal.signal(signal.SIGXCPU, signal.SIG_IGN)
def f(x):
  while True: pass
"""


def programs(text):
  """Parameters (program) of a table of programs below `# name` lines."""
  parts = ("\n" + text.strip()).split("\n# ")[1:]
  pairs = [part.split("\n", 1) for part in parts]
  return [pytest.param(REACH + program, id=name) for name, program in pairs]


@pytest.mark.parametrize("program", programs(CHEATS))
def test_cheats_are_incorrect(program):
  """tests/slow/test_cheats.py has many more."""
  verdict = grade(program, limits=LIMITS._replace(cpu=1))
  assert not verdict.correct and verdict.reason != "correct", verdict


def test_the_helpers_of_cheats_reach_what_they_say():
  """A request can be read and answered early; that is only another return."""
  program = REACH + """
def f(x):
  everywhere(frame_of({"number": request()["number"], "value": x * x}))
  os.read(next_question(), 0)
def next_question(): return 0
"""
  assert grade(program, asserts("f(3) == 9")).correct
  assert not grade(program, asserts("f(3) == 9", "f(4) == 16")).correct


def test_no_test_can_catch_the_end():
  """The candidate is gone, even if a test catches all exceptions."""
  tests = "try:\n  f(1)\nexcept BaseException:\n  pass\nassert True\n"
  assert grade(CORRECT, code.Calls(tests)).correct
  for program in ("import os\ndef f(x): os._exit(0)", "def f(x): exit()"):
    assert not grade(program, code.Calls(tests)).correct


@pytest.mark.parametrize(
    "tests",
    [
        "assert all(map(f, [1, 2]))",
        "assert list(map(f, [1])) == []",
        "assert not any(f(x) for x in map(f, [1]))",
        "assert list(filter(f, [1, 2])) == []",
        "assert list(iter(f, 3)) == []",
        "assert next(map(f, [1]), 4) == 4",
        "assert max(map(f, [1]), default=1) == 1",
    ],
)
@pytest.mark.parametrize("error", ["StopIteration", "Stop", "GeneratorExit"])
def test_the_end_of_an_iteration_is_no_answer(tests, error):
  """map, filter and iter end at it, and nothing is left to be false."""
  program = f"class Stop(StopIteration): pass\ndef f(*x): raise {error}"
  assert grade(program, code.Calls(tests)).reason == "error"


def test_tests_may_expect_the_end_of_an_iteration():
  program = "def f(x):\n  return next(iter(x))"
  tests = "try:\n  f([])\nexcept StopIteration:\n  pass\nelse:\n  assert 0"
  assert grade(program, code.Calls(tests)).correct
  generator = "def f(x):\n  yield from range(x)"
  assert grade(generator, asserts("all(map(bool, f(1))) is False")).correct
  assert grade(generator, asserts("list(f(0)) == []")).correct


def test_sets_have_one_order():
  """Else the verdict on a program that relies on it would be a coin toss."""
  program = "def f(): return list(set('abcdefghijklmnop'))"
  tests = code.Calls("assert f() == list(set('abcdefghijklmnop'))")
  assert all(grade(program, tests).correct for _ in range(2))


# --- reference answers as text -----------------------------------------------


def test_reference_answers_hold_tests():
  """One without tests is refused: any program would be correct."""
  calls = json.dumps(dict(tests="assert f(2) == 4", names=["f"], prompt=""))
  cases = json.dumps(dict(cases=[["2 3", "5"], ["1 1", "2"]]))
  assert code.usable(calls) and code.usable(cases)
  assert code.verify(f"```python\n{CORRECT}```", calls)
  assert not code.verify("def f(x):\n  return x + x + 1", calls)
  assert code.verify("print(sum(map(int, input().split())))", cases)
  assert not code.verify("print(5)", cases)
  for reference in (
      *("", "3", "[]", "{}", "null", "not JSON", '{"cases": []}'),
      *('{"cases": [1]}', '{"cases": [["a"]]}'),
      json.dumps(dict(tests="", names=[], prompt="")),
      json.dumps(dict(tests="x", names=None, prompt="")),
  ):
    assert not code.usable(reference)
    with pytest.raises(ValueError, match="holds no tests"):
      code.verify("print(1)", reference)
  assert not code.usable(json.dumps(dict(tests="(", names=[], prompt="")))
