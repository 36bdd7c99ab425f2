"""Tests of programs in the forms in which data sets publish them."""

import base64
import json
import pickle
import zlib

import pytest

from rl_reason.verifiers import code, code_tests, sandbox

try:
  sandbox.tier()
except RuntimeError as e:
  pytestmark = pytest.mark.skip(reason=str(e))

ADD = "def add(a, b):\n  return a + b\n"
METHOD = "class Solution:\n  def add(self, a: List[int], b): return a + b\n"
READS = "print(sum(map(int, input().split())))\n"
WRONG = """
def add(a, b): return 9
class Solution:
  def add(self, a, b): return 9
class Stack(list): pass
print(99)
"""
STREAM = dict(inputs=["1 2\n", "3 4\n"], outputs=["3\n", "7\n"])
CALL = dict(fn_name="add", inputs=[[1, 2], [3, 4]], outputs=[[3], 7])
STDIN = dict(input="1 2", output="3", type="stdin_stdout")
FUNCTION = dict(type="function_call", fn_name="add", input=[1, 2], output=3)
LINES = [dict(input="1\n2", output="3", testtype="functional")]
PACKED = base64.b64encode(
    zlib.compress(pickle.dumps(json.dumps(LINES)))
).decode()
CHECK = "def check(candidate):\n  assert candidate(1, b=2) == 3\n"
HEAD = "def add(a, b):\n  '''Adds.'''\n"
KODCODE = """
import pytest
from solution import Stack, add
@pytest.fixture
def one(): return 1
def test_one(one):
  assert add(one, 2) == 3
@pytest.mark.parametrize("a, b, c", [(1, 2, 3), pytest.param(0, 2, 2)])
@pytest.mark.timeout(9)
def test_many(a, b, c):
  assert add(a, b) == c
def test_floats():
  assert add(0.1, 0.2) == pytest.approx(0.3)
  with pytest.raises(TypeError, match="unsupported"):
    add(None, 1)
class TestStack:
  def test_push(self):
    s = Stack()
    s.push(3)
    assert len(s) == 1 and 3 in s and s.pop() == 3 and s.size == 0
    assert not s and list(s) == [] and s != Stack()
"""
STACK = ADD + """
class Stack:
  def __init__(self): self.items = []
  size = property(lambda self: len(self))
  def __len__(self): return len(self.items)
  def __iter__(self): return iter(self.items)
  def push(self, x): self.items.append(x)
  def pop(self): return self.items.pop()
"""
UNITTEST = """
import unittest
from solution import Solution
class TestSolution(unittest.TestCase):
  def setUp(self):
    self.solution = Solution()
  def test_add(self):
    self.assertEqual(self.solution.add(1, 2), 3)
"""


@pytest.mark.parametrize(
    ("tests", "program"),
    [
        # Standard input and output.
        *[(STREAM, READS), (json.dumps(STREAM), READS)],
        (dict(inputs=[["1", "2"]], outputs=[["1"]]), "print(input())"),
        (STREAM | dict(fn_name=None), READS),
        *[([STDIN], READS), (dict(tests=json.dumps([STDIN])), READS)],
        (dict(verification_info=dict(test_cases=[STDIN])), READS),
        (
            dict(
                verification_info=json.dumps(
                    dict(language="python", test_cases=json.dumps([STDIN]))
                )
            ),
            READS,
        ),
        (dict(reward_model=dict(ground_truth=json.dumps(STREAM))), READS),
        (dict(input_output=json.dumps(STREAM)), READS),
        *[([["1 2", "3"]], READS), (dict(cases=[["1 2", "3"]]), READS)],
        # Calls.
        *[(CALL, ADD), (CALL, METHOD), (json.dumps(CALL), METHOD)],
        (dict(fn_name="add", inputs=["1\n2"], outputs=["3"]), METHOD),
        (dict(verification_info=dict(test_cases=[FUNCTION])), ADD),
        (dict(fn_name="f", inputs=[3], outputs=[1 / 3]), "f = lambda x: 1 / x"),
        (
            dict(fn_name="f", inputs=[[{"1": 2}]], outputs=[{"1": [1, 2]}]),
            "def f(x): return {1: (1, 2)}",
        ),
        (
            dict(
                public_test_cases=json.dumps(LINES),
                private_test_cases=PACKED,
                metadata=json.dumps(dict(func_name="add")),
            ),
            METHOD,
        ),
        (dict(public_test_cases=LINES, starter_code=METHOD), METHOD),
        *[
            (dict(entry_point="add", tests=[test]), METHOD)
            for test in (
                dict(input=[1, 2], expected=3),
                dict(args=[1, 2], expected_output=3),
                dict(input=dict(a=1, b=2), output=3),
                dict(input="a = 1, b = 2", output="3"),
            )
        ],
        # Other names, and texts of Python.
        ([dict(stdin="1 2", stdout="3")], READS),
        ([dict(name="x", **STREAM)], READS),  # Skywork-OR1
        (str(dict(test_cases=[STDIN])), READS),
        (str(["assert add(1, 2) == 3"]), ADD),
        ("```python\nassert add(1, 2) == 3\n```", ADD),
        # Python.
        *[("assert add(1, 2) == 3", ADD), (["assert add(1, 2) == 3"], ADD)],
        (dict(test_list=["assert add(1, 2) == 3"], test_imports=[]), ADD),
        (dict(assert_case=["assert add(1, 2) == 3"], fn_name="add"), ADD),
        ("s = Solution()\nassert s.add(1, 2) == 3", METHOD),
        ("import solution\nassert solution.add(1, 2) == 3", ADD),
        ("from solution import *\ndef test_add(): assert add(1, 2) == 3", ADD),
        (dict(test=CHECK, entry_point="add", prompt=HEAD), "  return a + b\n"),
        (dict(test=CHECK, entry_point="Solution().add"), METHOD),
        (dict(functional=CHECK, fn_name="add", prompt="Add two."), ADD),
        *[(dict(test=KODCODE), STACK), (dict(test=UNITTEST), METHOD)],
    ],
)
def test_forms(tests, program):
  """Each is read, also from the reference answer that preparation writes."""
  text = tests if isinstance(tests, str) else json.dumps(tests)
  assert code.usable(text)
  assert code.verify(f"```python\n{program}```", text)
  assert not code.verify(WRONG, text)
  problem = code_tests.parse(text)
  assert code_tests.parse(problem.reference()) == problem


@pytest.mark.parametrize(
    ("tests", "why"),
    [
        (dict(inputs=["1"], outputs=[]), "1 inputs and 0 outputs"),
        (dict(inputs=[], outputs=[]), "0 inputs and 0 outputs"),
        (dict(inputs=[{"a": 1}], outputs=["1"]), "the input or output of a"),
        (dict(fn_name="a b", inputs=[1], outputs=[1]), "'a b' is no name"),
        (dict(fn_name="f", inputs=["a b"], outputs=["1"]), "'a b' of a call"),
        (LINES, "tests of the type 'functional' need the field fn_name"),
        ([STDIN, *LINES], "several functions or types"),
        (dict(language="rust", test_cases=[STDIN]), "the language is rust"),
        (dict(private_test_cases="AAAA"), "the private tests cannot be"),
        (CHECK, r"check\(candidate\) needs the field entry_point"),
        ("def test_f():\n  print(f(1))", "the tests assert nothing"),
        ("import pandas\nassert f(1)", "the tests import pandas"),
        ("def test_f(tmp_path): assert f(tmp_path)", "the fixture tmp_path"),
        ([1, 2], "a list is neither of asserts nor of"),
        (dict(note="x"), "an object has only note"),
        (dict(answer=42), "it is 42"),
    ],
)
def test_other_forms_are_refused_by_name(tests, why):
  text = tests if isinstance(tests, str) else json.dumps(tests)
  with pytest.raises(ValueError, match=f"no tests.*{why}.*the forms are ass"):
    code.verify(ADD, text)


def test_private_tests_run_no_code(tmp_path):
  """They are a pickle, from which only texts are read."""

  class Payload:

    def __reduce__(self):
      return open, (str(tmp_path / "harm"), "w")

  packed = base64.b64encode(zlib.compress(pickle.dumps(Payload()))).decode()
  with pytest.raises(ValueError, match="cannot be unpacked"):
    code_tests.parse(json.dumps(dict(private_test_cases=packed)))
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "program",
    [
        # The value of a function has no methods that answer a test.
        "class Yes:\n  def startswith(self, x): return True\n"
        "def f(): return Yes()\nclass F: name = Yes()\n",
        "class F:\n  def __eq__(self, x): return True\n  name = F = f = F\n",
    ],
)
def test_objects_answer_no_test(program):
  for test in (
      *("f().startswith('a')", "F().name.startswith('a')", "F() == 1"),
      *("F().name == 'a'", "f() == 'a'", "F() == F()", "F().name == F().name"),
  ):
    assert not code.verify(program, f"assert {test}"), test


def test_each_test_function_counts():
  """In the environment that repairs programs."""
  tests = "from solution import f\n"
  tests += "".join(f"def test_{i}(): assert f({i}) == {i}\n" for i in range(4))
  found = code.trial("def f(x): return min(x, 1)", tests)
  assert (found.passed, found.tests) == (2, 4)
