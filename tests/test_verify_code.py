"""Code verifier: programs that are right, wrong, and out to deceive it."""

import concurrent.futures
import json
import math
import os

import pytest

from rl_reason.verifiers import code, lockdown, sandbox, wire

try:
  sandbox.tier()
except RuntimeError as e:
  pytestmark = pytest.mark.skip(reason=str(e))

LIMITS = sandbox.Limits(cpu=2, wall=20.0)
SQUARE = code.mbpp(
    ["assert f(3) == 9", "assert f(-2) == 4", "assert f(0) == 0"]
)
RIGHT = "def f(x):\n  return x * x\n"


def judge(program, problem=SQUARE, **kwargs):
  return code.judge(program, problem, **{"limits": LIMITS} | kwargs)


def asserts(*lines):
  return code.mbpp([f"assert {line}" for line in lines])


# --- from a response to a program --------------------------------------------


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("x = 1", "x = 1"),
        ("    return 1\n", "    return 1\n"),
        ("```python\nx = 1\n```", "x = 1\n"),
        ("So:\n\n```py\nx = 1\n```\nDone.", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```Python3 title=a\nx = 1\n```", "x = 1\n"),
        ("```python\nx = 1\n```\nBetter:\n```python\nx = 2\n```", "x = 2\n"),
        ("```python\nx = 1\n```\nIt prints\n```\n1\n```", "x = 1\n"),
        ("```python\nx = 1\n```\n```text\n1\n```", "x = 1\n"),
        ("  ```python\n  x = 1\n  ```", "  x = 1\n"),
        ("```python\n```", ""),
        ("```python\ns = 'a```b'\n```", "s = 'a```b'\n"),
        ("```python\nx = 1", None),  # never finished
        ("```python\nx = 1\n```\n```python\nx = ", None),
        ("```bash\nls\n```", None),
    ],
)
def test_program(text, program):
  assert code.program(text) == program


def test_huge_texts_are_searched_quickly():
  assert code.program("`" * 10**6) == "`" * 10**6
  assert code.program("```python\n" * 10**5) in ("", None)


# --- honest programs ---------------------------------------------------------


def test_right_wrong_and_why():
  assert judge(RIGHT) == (True, "right", "")
  assert judge(f"Sure.\n```python\n{RIGHT}```\n").right
  got = judge("def f(x): return 3 * x")
  assert got[:2] == (False, "wrong") and "assert f(-2) == 4" in got.detail


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("def f(x): return 1 / 0", "error"),
        ("def f(x) return", "error"),
        ("1 / 0", "error"),
        ("def g(x): return x * x", "error"),
        ("f = 9", "error"),
        ("", "error"),
        ("\0", "error"),
        ("\ud800", "error"),
        ("def f(x):\n  return f(x)", "error"),
        ("def f(x): return input()", "error"),
        ("def f(x):\n  while True: pass", "timeout"),
        ("while True: pass", "timeout"),
        ("import os\nos._exit(0)", "crash"),
        ("def f(x):\n  a = []\n  while True: a += [a] * 10**6", "memory"),
        ("```python\ndef f(x): return x * x", "refused"),
    ],
)
def test_reasons(program, reason):
  cpu = 30 if reason == "memory" else 1  # new pages are slow on a busy machine
  assert judge(program, limits=LIMITS._replace(cpu=cpu)).reason == reason


PLAIN = [
    *["None", "True", "0", "-1", "2**53", "-2**53 - 1", "10**5000", "0.1"],
    *["-0.0", "float('inf')", "1e-323", "''", "'\\0\\ud800é'", "b'\\0\\xff'"],
    *[
        "'\\ud83d\\ude00'",
        "bytearray(b'a')",
        "(1 + 2j)",
        "range(1, 9, 3)",
        "[]",
        "()",
        "set()",
    ],
    *["{}", "[1, [2, (3,)]]", "((), ((),))", "{1, (2, 3)}"],
    *["frozenset({1})", "{(1, 2): {3: [4]}, 'int': 5}", "{'tuple': [1]}"],
    *["{None: None, True: 1.5}", "[[['a']]]", "{frozenset(): b''}"],
]


@pytest.mark.parametrize("text", PLAIN)
def test_plain_data_crosses(text):
  value = eval(text)
  back = wire.decode(wire.encode(value))
  assert back == value and type(back) is type(value)
  if not isinstance(value, int):  # Python writes 4300 digits at most
    assert repr(back) == repr(value)


# What the standard library makes of plain data: text, and its imports.
LIBRARY = """
from collections import deque
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
"""
VALUES = [
    *["Fraction(6, 4)", "Decimal('1.10')", "Decimal('-Infinity')"],
    *["date(2024, 2, 29)", "datetime(2024, 2, 29, 1, 2, 3, 4)", "time(1, 2)"],
    *["datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-3)))"],
    *["timedelta(days=-1, microseconds=5)", "deque([1, [2]], 3)"],
    *["{Fraction(1): [Decimal(2)]}", "{1: 2}.keys()", "{1: [2]}.items()"],
]


def test_values_of_the_library_cross():
  space: dict = {}
  exec(LIBRARY, space)
  for text in VALUES:
    value = eval(text, space)
    back = wire.decode(json.loads(json.dumps(wire.encode(value))))
    assert (back, repr(back)) == (value, repr(value))
  assert list(wire.decode(wire.encode({1: [2]}.values()))) == [[2]]
  tests = [f"assert f({x}) == {x}" for x in VALUES]
  tests += ["assert f(Fraction(4, 2)) == 2 and f(Fraction(1, 2)) != 1"]
  problem = code.Calls("\n".join(tests), ("f",), LIBRARY)
  assert judge("def f(x): return x", problem).right
  assert not judge("def f(x): return str(x)", problem).right


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
try:
  next(b)
except ValueError as e:
  assert str(e) == "broken"
else:
  assert False
"""
  assert judge(program, code.Calls(tests)).right
  assert judge(program, asserts("naturals() == 0")).reason == "wrong"
  assert not judge(program, asserts("sum(naturals())")).right
  with pytest.raises(ValueError, match="an iterator of more than"):
    wire.encode([iter(range(wire.MAX_ITEMS + 1))])


def test_functions_that_are_passed_on():
  tests = """
assert list(map(f, [1, 2])) == [1, 4] and sorted([1, 2], key=g) == [2, 1]
h = f
assert h(3) == 9
assert f(x=math.floor(2.5)) == 4
"""
  program = RIGHT + "def g(x): return -x\n"
  assert judge(program, code.Calls(tests)).right


def test_arguments_of_any_name():
  program = "def f(self, name, number=0, **more): return self - name, more"
  line = "f(name=1, self=3, kind=2) == (2, {'kind': 2})"
  assert judge(program, asserts(line)).right


def test_plain_data_reaches_the_tests_and_the_candidate():
  """Type and value of each, there and back, in one problem."""
  tests = [f"echo({x}) == {x} and type(echo({x})) is type({x})" for x in PLAIN]
  tests += ["repr(echo([{1: (2.5, 'a')}])) == '[{1: (2.5, \\'a\\')}]'"]
  tests += ["math.isnan(echo(float('nan')))", "echo(1) is not True"]
  tests += ["kind((1,)) == 'tuple' and kind({1}) == 'set'", "kind(b=1) == {}"]
  program = """
def echo(x): return x
def kind(x={}, b=0): return x if b else type(x).__name__
"""
  assert judge(program, asserts(*tests)).right


def test_subclasses_cross_as_their_base():
  program = """
import collections, enum
Point = collections.namedtuple("Point", "x y")
class Colour(enum.IntEnum):
  RED = 1
class Same(str):
  def __eq__(self, other): return True
  __hash__ = str.__hash__
def f(): return [collections.Counter("aab"), Point(1, 2), Colour.RED]
def g(): return Same("a")
"""
  assert judge(program, asserts("f() == [{'a': 2, 'b': 1}, (1, 2), 1]")).right
  assert not judge(program, asserts("g() == 'b'")).right
  assert judge(program, asserts("g() == 'a'")).right


def test_only_the_truth_of_other_objects_crosses():
  """MBPP asserts that a match is found; such a value equals nothing."""
  program = "import re\ndef f(x): return re.match('a', x)"
  assert judge(program, asserts("f('a')", "not f('b')", "f('b') is None")).right
  for line in ("f('a') == True", "f('a') == f('a')", "f('a') == 1"):
    assert judge(program, asserts(line)).reason == "wrong"


def test_exceptions_cross():
  tests = """
for value, kind in ((0, ZeroDivisionError), ("a", TypeError), (-1, Exception)):
  try:
    f(value)
  except kind as e:
    assert value != -1 or "too small" in str(e)
  else:
    assert False
"""
  program = """
class TooSmall(Exception): pass
def f(x):
  if isinstance(x, int) and x < 0: raise TooSmall("too small")
  return 1 / x
"""
  assert judge(program, code.Calls(tests)).right
  assert not judge(RIGHT, code.Calls(tests)).right


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
):
  try:
    f(value)
  except kinds as e:
    assert args is None or e.args == args
  else:
    raise TypeError
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
"""
  prompt = "class Odd(Exception): pass\n"
  assert judge(program, code.Calls(tests, ("f",), prompt)).right
  program = "def f(x): raise ValueError('odd', 3)"
  assert not judge(program, code.Calls(tests, ("f",), prompt)).right


def test_a_changed_argument_stays_with_the_candidate():
  """Else a candidate could change what the tests expect."""
  tests = "x = [3, 1]\nassert f(x) == sorted(x)\nassert x == [3, 1]\n"
  assert judge("f = sorted", code.Calls(tests)).right
  assert not judge(
      "def f(x):\n  x.clear()\n  return []", code.Calls(tests)
  ).right


PROMPT = '''import math
def double(x):
  """A helper."""
  return 2 * x

def f(x):
  """Undoes `double`."""
'''
CHECK = "def check(g):\n  for n in range(9):\n    assert g(double(n)) == n\n"
UNDO = code.humaneval(PROMPT, CHECK, "f")


@pytest.mark.parametrize(
    "text",
    [
        "  return x // 2\n",  # goes on with the prompt
        "  return half(x)\n\ndef half(x):\n  return math.floor(x / 2)\n",
        "def f(x):\n  return x // 2",
        f"```python\n{PROMPT}  return x // 2\n```",
        "from __future__ import annotations\ndef f(x): return x // 2",
        # The helper that the tests use is that of the prompt.
        "def double(x): return 0\ndef f(x): return x // 2",
    ],
)
def test_prompts(text):
  assert judge(text, UNDO).right


@pytest.mark.parametrize(
    "text", ["", "  pass\n", "x = 1", "def f(x): return x"]
)
def test_prompts_wrong(text):
  assert not judge(text, UNDO).right
  assert not judge("def double(x): return x\ndef f(x): return x", UNDO).right


def test_names_of_pythons_own():
  """A problem of MBPP wants a `sum`; others name modules without import."""
  assert judge("def sum(a, b): return a * b", asserts("sum(3, 5) == 15")).right
  assert judge("def f(): return 3.14", asserts("math.floor(f()) == 3")).right
  assert judge("def f(): return []", asserts("sum(f()) == 0")).right


def test_problems_that_test_nothing():
  with pytest.raises(ValueError, match="without tests"):
    judge(RIGHT, code.mbpp([]))
  with pytest.raises(ValueError, match="without tests"):
    judge(RIGHT, code.Streams(()))
  assert judge(RIGHT, code.Calls("assert 1 == 1")).reason == "error"
  assert judge(RIGHT, code.Calls("assert f(")).reason == "error"


# --- standard input and output -----------------------------------------------

SUMS = code.Streams((("1 2\n", "3\n"), ("5 5", " 10 ")))


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("print(sum(map(int, input().split())))", "right"),
        (
            "import sys\nprint(*[sum(map(int, sys.stdin.read().split()))])",
            "right",
        ),
        (
            "if __name__ == '__main__': print(sum(map(int, input().split())))",
            "right",
        ),
        ("print(sum(map(int, input().split()))); exit()", "right"),
        ("print(3)", "wrong"),
        ("", "wrong"),
        ("print(sum(map(int, input().split())), 'x')", "wrong"),
        ("input(); input()", "error"),
        ("print(sum(map(int, input().split()))); raise ValueError", "error"),
        ("print(sum(map(int, input().split()))); exit(1)", "error"),
        ("while True: print('3' * 10**5)", "output"),
        ("while True: pass", "timeout"),
        ("x = bytearray(50 * 10**9)", "memory"),
        ("import os; os.abort()", "crash"),
    ],
)
def test_streams(program, reason):
  limits = LIMITS._replace(cpu=1, output=10**6)
  assert judge(program, SUMS, limits=limits).reason == reason


def test_deep_recursion_in_a_thread():
  """How programs of contests get a larger stack."""
  program = """
import sys, threading
sys.setrecursionlimit(10**6)
threading.stack_size(1 << 27)
def depth(n): return n and 1 + depth(n - 1)
t = threading.Thread(target=lambda: print(depth(50_000)))
t.start()
t.join()
"""
  assert judge(program, code.Streams((("", "50000"),))).right


def test_a_thread_that_nobody_joins():
  """The other habit of contests: the script ends before its work does."""
  program = """
import threading, time
def work():
  time.sleep(0.2)
  print(sum(map(int, input().split())))
threading.Thread(target=work).start()
"""
  assert judge(program, SUMS).right


SUM = "print(sum(map(int, sys.stdin.read().split())))"


@pytest.mark.parametrize(
    "program",
    [
        "import sys\nif sys.argv[1:]: sys.stdin = open(sys.argv[1])\n" + SUM,
        "import os, sys\nif os.path.exists(os.path.join(os.path.dirname("
        "__file__), 'input.txt')): sys.stdin = open('input.txt')\n" + SUM,
        "import sys\nsys.stdin = open('/dev/stdin')\n" + SUM,
        "import sys\nsys.stdin = open(0)\n" + SUM,
        "import fileinput\nprint(sum(int(x) for line in fileinput.input()"
        " for x in line.split()))",
        "import asyncio, sys\nasync def main():\n"
        f"  await asyncio.to_thread(sum, [])\n  {SUM}\nasyncio.run(main())",
    ],
)
def test_ways_to_read(program):
  assert judge(program, SUMS).right


def test_large_numbers_are_printed():
  program = "import math\nprint(math.factorial(int(input())))"
  expected = str(math.factorial(1500))
  assert judge(program, code.Streams((("1500", expected),))).right
  got = judge("f = str", asserts("f(10**6000) == '1' + 6000 * '0'"))
  assert got.right


def test_input_that_is_no_text():
  problem = code.Streams((("\ud800", "1"),))
  assert judge("print(1)", problem).right


def test_tolerance():
  third = code.Streams((("", "0.3333 x"),))
  program = "print(1 / 3, 'x')"
  assert not judge(program, third).right
  assert judge(program, third._replace(tolerance=1e-3)).right
  assert not judge(program, third._replace(tolerance=1e-5)).right
  assert not judge("print('nan x')", third._replace(tolerance=1e9)).right


def test_a_script_sees_neither_the_output_nor_the_next_case():
  program = """
import gc, sys
print(sum(map(int, input().split())))
print(input())
"""
  assert not judge(program, SUMS).right


# --- deceit ------------------------------------------------------------------

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
  for fd in range(64):
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
EQUAL = """
class Equal{base}:
  def __eq__(self, other): return True
  def __ne__(self, other): return False
  def __hash__(self): return 0
  def __bool__(self): return True
"""
DECEIT = {
    "leaves at once": "import sys; sys.exit(0)",
    "leaves in the call": "import sys\ndef f(x): sys.exit(0)",
    "leaves for good": "import os; os._exit(0)",
    "leaves for good in the call": "import os\ndef f(x): os._exit(0)",
    "quits": "def f(x): quit()",
    "raises SystemExit": "def f(x): raise SystemExit(0)",
    "interrupts": "def f(x): raise KeyboardInterrupt",
    "ends the generator": "def f(x): raise GeneratorExit",
    "aborts": "import os\ndef f(x): os.abort()",
    "segfaults": "import ctypes\ndef f(x): ctypes.string_at(0)",
    "always equal": EQUAL.format(base="") + "def f(x): return Equal()",
    "always equal int": (
        EQUAL.format(base="(int)") + "def f(x): return Equal(7)"
    ),
    "always equal float": (
        EQUAL.format(base="(float)") + "def f(x): return Equal(7)"
    ),
    "always equal list": (
        EQUAL.format(base="(list)") + "def f(x): return Equal([7])"
    ),
    "always equal inside": (
        EQUAL.format(base="") + "def f(x): return [Equal()]"
    ),
    "says it is an int": """
class Liar:
  __class__ = int
  def __index__(self): return 9
  def __eq__(self, other): return True
def f(x): return Liar()
""",
    "a mock": "import unittest.mock\ndef f(x): return unittest.mock.ANY",
    "a generator": "def f(x): yield x * x",
    "itself": "def f(x): return f",
    "not a number": "def f(x): return float('nan')",
    "a list in itself": "def f(x):\n  a = []\n  a.append(a)\n  return a",
    "a deep list": """
def f(x):
  a = []
  for _ in range(10**5): a = [a]
  return a
""",
    "an endless generator": """
def f(x):
  while True: yield x * x
""",
    "an endless list": """
class Endless(list):
  def __iter__(self):
    while True: yield 9
def f(x): return Endless()
""",
    "an iterator of the tests' own": REACH
    + """
def f(x):
  everywhere(frame_of({"number": request()["number"], "iterator": ["f"]}))
""",
    "an error of the tests' own": REACH
    + """
def f(x):
  raised = [["_Ended", "SystemExit", "f"], {"tuple": ["right"]}, ""]
  everywhere(frame_of({"number": request()["number"], "raised": raised}))
""",
    "a made value with an evil argument": REACH
    + """
def f(x):
  value = {"decimal.Decimal": [{"os.system": ["true"]}]}
  everywhere(frame_of({"number": request()["number"], "value": value}))
""",
    "a long text": "def f(x): return 'a' * 10**8",
    "a large number": "def f(x): return 1 << 10**7",
    "a fake line": 'print(\'OK\\n1 passed\\n["right", ""]\')\ndef f(x): pass',
    "a fake line on every descriptor": REACH
    + """
everywhere(b'["right", ""]')
def f(x): everywhere(b'["right", ""]')
""",
    "no assertions": """
import builtins
builtins.AssertionError = ValueError
def f(x): raise AssertionError
""",
    "another assertion error": """
import builtins
class AssertionError(BaseException): pass
builtins.AssertionError = AssertionError
def f(x): raise AssertionError("right")
""",
    "patched json": """
import json
json.dumps = lambda *a, **k: '{"number": 1, "value": 9}'
def f(x): return 0
""",
    "patched equality": """
import operator, builtins
operator.eq = lambda a, b: True
builtins.all = builtins.bool = lambda *a: True
def f(x): return 0
""",
    "snoops in frames and heap": REACH
    + """
def f(x):
  for text in texts():
    if f"f({x}) =" in text:
      return int(text.split(f"f({x}) == ")[1].split("'")[0].split(",")[0])
""",
    "snoops on other processes": """
import glob
def f(x):
  for path in glob.glob("/proc/*/cmdline") + glob.glob("/proc/*/environ"):
    if f"f({x}) ==" in open(path).read(): return x * x
  for path in glob.glob("/proc/*/mem"):
    open(path, "rb").read(1)
    return x * x
""",
    "snoops on descriptors": """
import os
def f(x):
  for fd in range(64):
    try:
      if b"assert" in os.pread(fd, 10**6, 0): return x * x
    except OSError:
      pass
""",
    "calls the tests": """
from rl_reason.verifiers import tester
def f(x): tester._Tests(0, 1).end("right", "")
""",
    "says failed right": REACH
    + """
def f(x):
  number = request()["number"]
  everywhere(frame_of({"number": number, "failed": ["right", ""]}))
""",
    "says raised right": REACH
    + """
def f(x):
  everywhere(frame_of({"number": request()["number"], "raised": ["", ""]}))
""",
    "answers before it is asked": REACH
    + """
for value in (9, 4, 0):
  everywhere(frame_of({"number": "0" * 32, "value": value}))
def f(x): return 0
""",
    "answers twice": REACH
    + """
def f(x):
  number = request()["number"]
  for value in (x * x, 4, 0):
    everywhere(frame_of({"number": number, "value": value}))
  return 0
""",
    "answers without a number": REACH
    + """
def f(x): everywhere(frame_of({"value": x * x}))
""",
    "answers with two things": REACH
    + """
def f(x):
  number = request()["number"]
  everywhere(frame_of({"number": number, "value": x * x, "truth": True}))
""",
    "answers with a number equal to all": REACH
    + """
def f(x): everywhere(frame_of({"number": [True], "value": x * x}))
""",
    "answers with an unknown tag": REACH
    + """
def f(x):
  number = request()["number"]
  everywhere(frame_of({"number": number, "value": {"eval": "9"}}))
""",
    "answers with a wrong tag": REACH
    + """
def f(x):
  number = request()["number"]
  everywhere(frame_of({"number": number, "value": {"set": [{"set": []}]}}))
""",
    "answers in pieces": REACH
    + """
def f(x): everywhere(b"\\0\\0\\0")
""",
    "answers with a long frame": REACH
    + """
def f(x): everywhere(b"\\xff" * 8)
""",
    "answers with no JSON": REACH
    + """
def f(x): everywhere(b"\\0\\0\\0\\2{]")
""",
    "answers with deep JSON": REACH
    + """
def f(x): everywhere((10**6).to_bytes(4, "big") + b"[" * 10**6)
""",
    "answers from a thread": REACH
    + """
import threading
def shout():
  while True: everywhere(frame_of({"number": "", "value": 9}))
threading.Thread(target=shout, daemon=True).start()
def f(x): return 0
""",
    "floods": REACH
    + """
def f(x):
  while True: everywhere(b"\\0" * 65536)
""",
    "hangs up": "import os\nos.closerange(0, 100)\ndef f(x): return x * x",
    "answers itself": """
import os
def f(x):
  a, b = os.pipe()
  for fd in range(3, 60):
    try: os.dup2(a, fd)
    except OSError: pass
  return 0
""",
    "kills its parent": """
import os, signal
def f(x): os.kill(os.getppid(), signal.SIGKILL)
""",
    "kills everybody": """
import os, signal
def f(x): os.kill(-1, signal.SIGKILL)
""",
    "ends others by a broken pipe": "import os\ndef f(x): os.close(0)",
    "an error with an evil text": """
class Evil(Exception):
  def __str__(self): raise SystemExit(0)
def f(x): raise Evil
""",
    "an error with a false name": """
Evil = type("SystemExit", (Exception,), {})
def f(x): raise Evil
""",
    "an error called right": """
def f(x): raise type("right", (Exception,), {})("right")
""",
    "traces": """
import sys
sys.settrace(lambda *a: None)
sys.setprofile(lambda *a: None)
sys.excepthook = lambda *a: None
def f(x): raise ValueError
""",
    "leaves when it is collected": """
import os
class Bomb:
  def __del__(self): os._exit(0)
def f(x): Bomb()
""",
    "leaves when others do": """
import atexit, os, sys
atexit.register(os._exit, 0)
def f(x): sys.exit()
""",
    "no modules": "import sys\nsys.modules.clear()\ndef f(x): return 0",
    "collisions": """
def f(x): return {n * (2**61 - 1) for n in range(40_000)}
""",
    "ignores the limit": """
import signal
signal.signal(signal.SIGXCPU, signal.SIG_IGN)
def f(x):
  while True: pass
""",
    "forks to answer": """
import os
def f(x): return x * x if os.fork() else 0
""",
    "writes the answer down": """
import json
def f(x):
  with open("/tmp/right", "w") as f: json.dump(["right", ""], f)
""",
}


@pytest.mark.parametrize("name", DECEIT)
def test_deceit(name):
  got = judge(DECEIT[name], limits=LIMITS._replace(cpu=1))
  assert not got.right and got.reason != "right", got


def test_the_helpers_of_deceit_reach_what_they_say():
  """A request can be read and answered early; that is only another return."""
  program = REACH + """
def f(x):
  everywhere(frame_of({"number": request()["number"], "value": x * x}))
  os.read(next_question(), 0)
def next_question(): return 0
"""
  assert judge(program, asserts("f(3) == 9")).right
  assert not judge(program, asserts("f(3) == 9", "f(4) == 16")).right


def test_no_test_can_catch_the_end():
  """The candidate is gone, whatever a test makes of exceptions."""
  tests = "try:\n  f(1)\nexcept BaseException:\n  pass\n"
  assert judge(RIGHT, code.Calls(tests)).right
  for program in ("import os\ndef f(x): os._exit(0)", "def f(x): exit()"):
    assert not judge(program, code.Calls(tests)).right
    assert not judge(program, code.Calls(tests + "assert True\n")).right


def test_output_of_a_candidate_is_not_the_protocol():
  program = """
import os, sys
print("x" * 10**6, flush=True)
os.write(1, b"[" * 100); os.write(2, b"[" * 100)
def f(x):
  print(x, file=sys.stderr)
  return x * x
"""
  assert judge(program).right


def test_sets_have_one_order():
  """Else the verdict on a program that relies on it would be a coin toss."""
  program = "def f(): return list(set('abcdefghijklmnop'))"
  tests = code.Calls("assert f() == list(set('abcdefghijklmnop'))")
  assert all(judge(program, tests).right for _ in range(5))


def test_load_changes_no_verdict():
  """Eight at once on few cores: CPU time is what counts."""
  program = """
import time
def f(x):
  while time.process_time() < 0.7: pass
  return x * x
"""
  limits = sandbox.Limits(cpu=1, wall=60.0)
  count = 4 * (os.cpu_count() or 1)
  with concurrent.futures.ThreadPoolExecutor(count) as pool:
    jobs = [pool.submit(judge, program, limits=limits) for _ in range(count)]
    assert all(job.result().right for job in jobs)


def test_frames_of_an_enemy():
  """Neither value nor error that nobody expects."""
  assert math.isnan(wire.decode(wire.encode(math.nan)))
  for content in (
      {"tuple": 1},
      {"int": 5},
      {"int": "x"},
      {"eval": "1"},
      {},
      {"tuple": [], "list": []},
      {"dict": [[1]]},
      {"dict": [[[], 1]]},
      {"set": [[]]},
      {"range": ["1", "2", "0"]},
      {"range": "abcd"},
      {"bytes": "0"},
      {"complex": ["x"]},
      {"decimal.Decimal": ["x"]},
      {"datetime.date": [0, 0, 0]},
      {"dict_keys": [[]]},
      {"collections.Counter": []},
  ):
    with pytest.raises((ArithmeticError, LookupError, TypeError, ValueError)):
      wire.decode(content)


def test_frames_are_bounded():
  """In depth and in bytes, on both sides, before memory is spent."""
  deep: list = []
  for _ in range(wire.MAX_DEPTH):
    deep = [deep]
  assert wire.decode(wire.encode(deep)) == deep
  with pytest.raises(ValueError, match="nested deeper"):
    wire.encode([deep])
  read, write = os.pipe()
  with pytest.raises(ValueError, match="more than"):
    wire.send(write, "a" * wire.MAX_FRAME)
  os.write(write, (wire.MAX_FRAME + 1).to_bytes(4, "big"))
  os.close(write)
  with pytest.raises(ValueError, match="a frame of"):
    wire.receive(read)
  with pytest.raises(EOFError):
    wire.receive(read)
  os.close(read)


def test_the_filter_names_the_calls_that_it_means():
  """Against the kernel's own list, where its headers are installed."""
  header = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"
  if not os.path.exists(header):
    pytest.skip("no kernel headers")
  numbers = {}
  with open(header) as f:
    for line in f:
      if line.startswith("#define __NR_"):
        name, number = line.split()[1:]
        numbers[name.removeprefix("__NR_")] = int(number)
  words = lockdown._ALLOWED.split()
  allowed = dict(zip(words[::2], map(int, words[1::2]), strict=True))
  assert allowed == {name: numbers[name] for name in allowed}
  assert lockdown._CLONE == numbers["clone"]
  assert lockdown._SOCKETPAIR == numbers["socketpair"]
  assert lockdown._IOCTL == numbers["ioctl"]
  assert lockdown._PRLIMIT == numbers["prlimit64"]
  for name in ("fork", "socket", "execve", "ptrace", "chmod", "io_uring_setup"):
    assert name not in allowed


# --- golds as text -----------------------------------------------------------

ASSERTS = json.dumps(dict(tests="assert f(2) == 4", names=["f"], prompt=""))
CASES = json.dumps(dict(cases=[["2 3", "5"], ["1 1", "2"]]))


@pytest.mark.parametrize(
    ("text", "gold", "right"),
    [
        ("```python\ndef f(x):\n  return x * x\n```", ASSERTS, True),
        ("```python\ndef f(x):\n  return x + x + 1\n```", ASSERTS, False),
        ("print(sum(map(int, input().split())))", CASES, True),
        ("print(5)", CASES, False),
    ],
)
def test_a_gold_as_text(text, gold, right):
  assert code.usable(gold)
  assert code.verify(text, gold) is right


@pytest.mark.parametrize(
    "gold",
    [
        *["", "3", "[]", "{}", "null", "not JSON"],
        *['{"cases": []}', '{"cases": [1]}', '{"cases": [["a"]]}'],
        json.dumps(dict(tests="", names=[], prompt="")),
        json.dumps(dict(tests="x", names=None, prompt="")),
    ],
)
def test_a_gold_without_tests(gold):
  """Else any program would be right."""
  assert not code.usable(gold)
  with pytest.raises(ValueError, match="holds no tests"):
    code.verify("print(1)", gold)


def test_a_gold_that_is_no_python():
  assert not code.usable(json.dumps(dict(tests="(", names=[], prompt="")))
