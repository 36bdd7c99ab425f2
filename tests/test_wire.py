"""Plain data and frames between the tests and a candidate."""

import json
import math
import os

import pytest
from test_verify_code import asserts, grade

from rl_reason.verifiers import code, wire

PLAIN = [
    *["None", "True", "0", "-1", "2**53", "-2**53 - 1", "10**5000", "0.1"],
    *["-0.0", "float('inf')", "1e-323", "''", "'\\0\\ud800é'", "b'\\0\\xff'"],
    *["'\\ud83d\\ude00'", "bytearray(b'a')", "(1 + 2j)", "range(1, 9, 3)"],
    *[
        "[]",
        "()",
        "set()",
        "{}",
        "[1, [2, (3,)]]",
        "((), ((),))",
        "{1, (2, 3)}",
    ],
    *["frozenset({1})", "{(1, 2): {3: [4]}, 'int': 5}", "{'tuple': [1]}"],
    *["{None: None, True: 1.5}", "[[['a']]]", "{frozenset(): b''}"],
]
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


def test_plain_data_crosses():
  """Type and value, through JSON, and there and back between processes."""
  space: dict = {}
  exec(LIBRARY, space)
  for text in PLAIN + VALUES:
    value = eval(text, space)
    back = wire.decode(json.loads(json.dumps(wire.encode(value))))
    if "\\ud83d" not in text:  # send() does not let JSON join surrogates
      assert back == value and type(back) is type(value), text
    if not isinstance(value, int):  # Python writes 4300 digits at most
      assert repr(wire.decode(wire.encode(value))) == repr(value)
  assert list(wire.decode(wire.encode({1: [2]}.values()))) == [[2]]
  assert math.isnan(wire.decode(wire.encode(math.nan)))
  tests = [f"f({x}) == {x} and type(f({x})) is type({x})" for x in PLAIN]
  tests += [f"f({x}) == {x}" for x in VALUES]
  tests += ["f(Fraction(4, 2)) == 2 and f(Fraction(1, 2)) != 1"]
  tests += ["f(float('nan')) != 0", "f(1) is not True", "f(b=1, x=2) == 2"]
  tests += ["repr(f([{1: (2.5, 'a')}])) == '[{1: (2.5, \\'a\\')}]'"]
  problem = code.Calls(asserts(*tests).tests, ("f",), LIBRARY)
  assert grade("def f(x, b=0): return x", problem).correct
  assert not grade("def f(x, b=0): return str(x)", problem).correct


def test_numbers_and_arrays_of_numpy_cross():
  """A number is one of Python's; an array keeps its type and its shape."""
  program = """
import numpy as np
def total(x): return np.sum(x)
def more(x): return np.mean(x) > 1
def scale(x): return np.array(x) * 2
def empty(): return np.zeros((0, 3))
def names(): return [np.str_("a")], {np.int64(1): np.float32(0.5)}
def objects(): return np.array([print])
"""
  tests = """
import numpy as np
assert type(total([1, 2])) is int and more([1, 2]) is True
assert scale(np.eye(2)).tolist() == [[2.0, 0.0], [0.0, 2.0]]
assert scale([1]).dtype == np.int64 and empty().shape == (0, 3)
assert names() == (["a"], {1: 0.5}) and objects() != print
"""
  assert grade(program, code.Calls(tests)).correct


def test_hostile_frames_are_errors():
  for content in (
      *({"tuple": 1}, {"int": 5}, {"int": "x"}, {"eval": "1"}, {}),
      *({"tuple": [], "list": []}, {"dict": [[1]]}, {"dict": [[[], 1]]}),
      *({"set": [[]]}, {"range": ["1", "2", "0"]}, {"range": "abcd"}),
      *({"bytes": "0"}, {"complex": ["x"]}, {"decimal.Decimal": ["x"]}),
      *({"datetime.date": [0, 0, 0]}, {"dict_keys": [[]]}),
      *({"collections.Counter": []}, {"array": ["O", [1], [[]]]}),
      *({"array": ["<i8", [2], [1]]}, {"array": ["<i8", [1], ["x"]]}),
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
  with pytest.raises(ValueError, match="an iterator of more than"):
    wire.encode([iter(range(wire.MAX_ITEMS + 1))])
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
