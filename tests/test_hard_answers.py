"""Right answers in other forms, wrong ones like them, and lenient readings."""

import functools
import logging
import subprocess
import sys
import time

import pytest

from bench.verifiers import hard_answers
from rl_reason.verifiers import lenient_match, math

PAIRS = hard_answers.pairs()
TRAPS = r"""
6 != \text{twice x is } 6  \text{half of x is } 6  6 \text{ (million)}
10 != 10 \text{ (binary)}  10 (base two)  \text{almost } 10
P(A) = \frac38 != P(B) = \frac38  P(B) = 3/8
f(a) = 7 != f(b) = 7    mx + c != mx + k    x^2 + k != x^2 + C
\frac13 != 1:03  \frac13 \approx 3  \frac13 \approx 0.333 \approx 0.4
\pi != 3 \approx \pi  3.14 \approx \pi  \pi \approx 3.2  22/7 \approx \pi
x>1, y<2 != x>1  (1,2)  x<2, y>1    n\pi != 2n\pi, n\in\mathbb{Z}
(n-2)\pi != n\pi, n\in\mathbb{Z}  \{k\pi : k\in\mathbb{Z}\}  -(k-2)\pi
\text{p is prime and } n = 3 != 3    \text{Team 1 or team } 2 != 2
\text{at most 5 apples} != 5    \text{all integers n such that n is } 5 != 5
\{t\mid t>3\} != \{x \mid t>3\}  t<3    \max\{a,b\} != \max\{a,b,b+1\}
1+2+\cdots+64 != 127    2+4+\cdots+64 != 126    63 != 1+2+4+\cdots+2
1+2+\cdots+100+1 != 5151    5050 != 1+2+\cdots+99+1  1+2+\cdots+10+20+\cdots+100
2+2+\cdots+2 != 6  4    6 != 2+2+\cdots+2  1+2+2+\cdots+3
8 != 2^3 \text{ or } 9  8 \text{ or } -8    4 != 4 \text{ or about } 5
5 \text{ seconds} != \text{fifth}    \frac15 != \text{fifth}  5th
2:3:4 != 2:3:5  \frac23    0 != \{\emptyset\}    \emptyset != \{\{\}\}
(2,3) != 3\hat{i}+2\hat{j}  2\hat{i}+3\hat{k}  2+3i
x=2, y=3 != y=2, x=3  \{2,3\}    3 != 3 \pmod{7} + 1
"""


@functools.cache
def accepted(pair: hard_answers.Pair) -> bool:
  return math.verify(pair.response, pair.reference)


def traps() -> list[tuple[str, str]]:
  out = []
  for line in TRAPS.strip().splitlines():
    for group in line.split("    "):
      reference, answers = group.split(" != ", 1)
      out += [(answer, reference) for answer in answers.split("  ")]
  return out


@pytest.mark.parametrize("half", hard_answers.HALVES)
def test_right_answers_in_other_forms_are_accepted(half):
  """At least nine of ten of each half, and no wrong one."""
  pairs = [pair for pair in PAIRS if pair.half == half]
  verdicts = [accepted(x) for x in pairs]
  wrong = [
      x for x, y in zip(pairs, verdicts, strict=True) if y and not x.correct
  ]
  assert not wrong
  right = [y for x, y in zip(pairs, verdicts, strict=True) if x.correct]
  assert len(right) > 340 and len(pairs) - len(right) > 370
  assert sum(right) > 0.9 * len(right)


def test_every_class_is_read():
  """None of the classes is refused as a whole."""
  read = {x.kind for x in PAIRS if x.correct and accepted(x)}
  assert read == {x.kind for x in PAIRS}


@pytest.mark.parametrize(("answer", "reference"), traps())
def test_traps_are_refused(answer, reference):
  assert not math.verify(f"\\boxed{{{answer}}}", reference)


def test_long_series_and_large_sets_cost_nothing():
  """In CPU seconds of this thread, and ten times what a quiet machine needs."""
  assert math.equal("1+2+\\cdots+10^{300}", "10^{300}(10^{300}+1)/2")
  assert math.equal("1+2+\\cdots+100+1", "5051")
  assert math.equal("1\\cdot2\\cdots20", "20!")
  start = time.thread_time()
  for text in (
      "1+2+\\cdots+9^{9^9}",
      "1^2+2^2+\\cdots+10^9",
      "1\\cdot2\\cdots10^9",
      "\\sum_{k=1}^{10^9} \\sin k",
      "+".join(["{\\sum_{k=1}^{99} \\sin(k)}"] * 3),
      "\\max\\{" * 35 + "1,2" + "\\}" * 35,
      "\\gcd(9^{9^9},6)",
      " or ".join(f"x>\\sqrt{{{n}}}" for n in range(2, 60)),
      " \\cup ".join(f"(\\sqrt{{{n}}},\\sqrt{{{n}.5}})" for n in range(2, 12)),
      ", ".join(f"\\frac{{{n}\\pi}}{{37}}+2k\\pi" for n in range(20))
      + ", k \\in \\mathbb{Z}",
      "1 about " * 14,
      "1, " * 400 + "where k",
  ):
    for reference in ("1", "x>\\sqrt2", "2k\\pi, k \\in \\mathbb{Z}"):
      assert not math.verify(f"\\boxed{{{text}}}", reference)
      lenient_match.reading(f"\\boxed{{{text}}}", reference)
    math.usable(text)
  assert time.thread_time() - start < 40


def test_references_in_boxes_and_in_prose():
  for reference in ("\\boxed{5}", "The answer is 5 apples.", "#### 5"):
    assert math.usable(reference), reference
    assert math.verify("\\boxed{5}", reference), reference
    assert math.verify("Answer: 5", reference, tolerance=0.1), reference
    assert math.verify("Answer: 5.05", reference, tolerance=0.1), reference


def test_an_approximation_alone_is_a_value():
  """As it was: only next to an exact value do its digits have to be right."""
  for answer in ("N \\approx 1.2 \\times 10^5", "\\approx 120000", "≈ 1.2e5"):
    assert math.equal(answer, "1.2 \\times 10^{5}"), answer
  assert math.equal("x \\approx 0.333 \\approx 0.3", "0.333")
  assert not math.equal("x \\approx 5 \\approx 6", "5")
  assert not math.equal("121000 \\approx 1.2 \\times 10^5", "120000")


def test_math_verify_does_not_say_that_it_has_no_time_limit():
  """Nothing else of that logger is lost."""
  code = r"""
from rl_reason.verifiers import math
assert math.equal("\\sum_{k=1}^{n} k", "\\frac{n(n+1)}{2}")
import logging
logging.getLogger("math_verify.parser").warning("something else")
"""
  argv = [sys.executable, "-c", code]
  done = subprocess.run(argv, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  assert done.stdout + done.stderr == "something else\n"
  assert logging.getLogger("math_verify").filters == []


# --- rejected, perhaps right -------------------------------------------------


@pytest.mark.parametrize(
    ("response", "reference", "why"),
    [
        ("\\boxed{0.333}", "\\frac13", "equal up to rounding"),
        ("\\boxed{3.14}", "\\pi", "equal up to rounding"),
        ("\\boxed{(2,1)}", "(1,2)", "another order"),
        ("\\boxed{5 m}", "5 cm", "the same but for units or brackets"),
        (
            "\\boxed{[0,1]}",
            "(0,1)",
            "the same but for case, spaces and punctuation",
        ),
        ("It might be 41 or 42", "42", "the last number of the response"),
        ("\\boxed{7}", "8", ""),
        ("\\boxed{-5}", "5", ""),
        ("\\boxed{x-1}", "x+1", ""),
        ("\\boxed{1/(1-1)}", "5", ""),
        ("", "5", ""),
        ("\\boxed{(1,2,3)}", "(1,2)", ""),
    ],
)
def test_lenient_readings(response, reference, why):
  assert not math.verify(response, reference)
  assert lenient_match.reading(response, reference) == why
