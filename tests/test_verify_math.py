"""Math verifier: a table of equal and unequal answers, and their limits."""

import re
import subprocess
import sys
import time
from fractions import Fraction

import hypothesis
import pytest
from hypothesis import strategies as st

from rl_reason.verifiers import math, numeric, ordered

# Groups `reference == answer  answer != answer  answer`, four spaces between.
TABLE = r"""
# integers
42 == 42  42.  42.0  +42  --42  \mathbf{42}  \boldsymbol{42}  \color{red}{42}
42 == \underline{42}  \large 42  42,  \text{42}  {42}  ( 42 )  $42$  ４２ != 4 2
42 != 42?  42!  0x2a  ٤٢    -42 == -42 != 42    7 == 007    0 == -0
$42$ == 42    -5 == −5  – 5    4.2 != 42    420 != 42    24 != 42    4 2 != 42
1000 == 1e3    12 != 12 million    40 != forty
# thousands
1000 == 1,000  1{,}000 != 1.000    1234 == 1\,234  x = 1,234 != 12,34
1234567 == 1 234 567    18107 == 18,\!107    1,000,000 == 1000000  10^6
1234567.5 == 1,234,567.5    1000, 2000 == 1,000 and 2,000
1, 2, 345 == 1,2,345    234 != x = 1,234    1 != 1,000    (1,0) != 1,000
# fractions
0.5 == 1/2  \frac12    \frac12 == \dfrac{1}{2}  {1 \over 2}
1/2 == \tfrac 12  ½  1⁄2  \frac{2}{4}    \frac{-1}{2} == -\frac{1}{2}
-0.5 == \frac{1}{-2}    -\frac12 == -1/2 != \frac{1}{2}    5/3 == \frac{5}{3}
\frac18 == (1/2)^3    1.5 == 3./2    1/6 == \frac{\frac12}{3}
\frac{2}{3} != \frac{3}{2}    0.333 != 1/3    \frac13 != 0.33  0.333333
0 != \frac{1}{0}  0/0    \frac{6}{0} != \frac{5}{0}
\frac{11}{2} == \text{\frac{11}{2}}    2\sqrt3 == \text{2\sqrt3}
# mixed numbers
1.5 == 1\frac12    \frac32 == 1 1/2  1½    9/5 == 1\frac{4}{5}
-1.5 == -1\frac12    21/8 == 2\frac58    \frac12 != 1\frac12    2/3 != 2 1/3
1\frac12 != 11/2
3 == 2\cdot1\frac12
0.5 != 0. 1/2
# decimals: nothing is rounded
.5 == 0.5    0.5 == 0.50    2.5 == 2.50    \pi != 3.14  3.14159265358979  22/7
\sqrt{17} != 4.123  4.1231056256176605    0.0000002 != 0.0000001
0.10000001 != 0.1    e != 2.7    1 == 0.\overline{9} != 0.999999999999
1/3 == 0.\overline{3}  0.\dot{3} != 0.333...    1/6 == 0.1\overline{6}
0.3 != 0.\overline{3}
# powers of ten
0.0012 == 1.2\times10^{-3}  1.2 × 10^-3  1.2e-3    1200 == 1.2 \cdot 10^{3}
4\times 10^{33} == 4e33    5000 == 5.0 × 10³    120000 == 1.2 x 10^5
0.001 == 10⁻³    1.2\times10^{-3} != 1.2\times10^{3}    0.00120001 != 1.2e-3
2e-7 != 1e-7    10^{-80} != 10^{-70}
# large numbers are exact
1267650600228229401496703205376 == 2^{100}
1267650600228229401496703205377 != 2^{100}
1.2676506002282294e30 != 1267650600228229401496703205376
9007199254740992 != 9007199254740993    3^{2007} == 3^{2007}  9^{2007/2}
3^{2008} != 3^{2007}    100!/2^{50} == \frac{100!}{2^{50}}
2432902008176640000 == 20!    2432902008176640001 != 20!
# percent
\frac12 == 50\%    0.5 == 50% != 0.5\%
75\% == 0.75  75  75%  75 percent  75\text{ percent}    75 == 75\%
75% != 7.5%    7.5 != 75\%    74 != 75\%
# units
10 == 10 cm    10 \text{ cm} == 10    10\ \mathrm{cm} == 10\text{ cm}
10 cm == 10 centimeters != 10 cm^2    85\text{ feet} == 85 ft
864 \mbox{ inches}^2 == 864\text{ in}^2  864 square inches
10 \text{ cm}^2 == 10 cm²    4\pi == 4\pi\text{ cm}^2
576\pi == 576\pi\text{ m}^2    60 \text{ miles per hour} == 60 mph
5 == 5 km/h != 5x  5 thousand  5 thousands  5 squared  5 factorial
5 != 5 below zero  5 in the book    25 square feet == 25 sq ft
9.8\text{ m/s}^2 == 9.8\,\mathrm{m/s^2}    25 == 25\ \mathrm{cm^2}
m + 5 == 5 + m    May 5 == 5 May    18 == 18 eggs != about 18  18 or more
18 \text{ eggs} == 18    1920 == 1920\text{ ways.}    12 inches == 12 in
5 \text{ hr} == 5 hours    10 m != 10 cm    10 \text{ cm}^3 != 10 cm^2
5 minutes != 5 hours    6 apples != 5 apples    3 != 3s^2  3 tenths
3s^2 != 3    5 km west != 5 km east    5 June != 5 May
2\mathbf{j}+\mathbf{i} == \mathbf{i}+2\mathbf{j}
\mathbf{i}+2\mathbf{k} != \mathbf{i}+2\mathbf{j}
9.8 m/s != 9.8\,\mathrm{m/s^2}
# money
5 == \$5  $5  5 €  ¥5    1000 == $1,000    1234.5 == \$1,234.50
\$5 == 5 dollars != €5    \$312 == 312 \text{ dollars}    25 == 25\$
\$25 == USD 25    £5 != €5    \$6 != \$5
# degrees
45 == 45^\circ    45^{\circ} == 45°    120^\circ == 120 degrees
\frac12 == \sin 30^\circ    \sqrt3 == 2\sin(60^\circ)
\frac{\sqrt6+\sqrt2}{4} == \sin(45^\circ+30^\circ)    1 == \tan^2 45^\circ
100^\circ C == 100 degrees Celsius    100 == 100 °C    \sin 30^\circ != \sin 30
100^\circ\text{C} != 100^\circ\text{F}    54^\circ != 45^\circ
45^\circ != \frac{\pi}{4}
# bases
1011_2 == 1011_2  1011_{2}  (1011)_2  1011_\text{two}  1011_{\text{two}}  1011₂
1011_2 == 01011_2  1011 in base 2  1011 (base two)  {1011}_{(2)} != 1011 base 3
1011_2 != 1011  1011_3  1010_2  11    152A_{11} == 152a_{11}
-221_{3} == -221_3    42 == 42_{10}    2A_{16} == \text{2A}_{16}
FF_{16} == \text{FF}_{16} != FE_{16}    1011 != 1011_2    -221_3 != 221_3
# surds
\sqrt{12} == 2\sqrt3    \frac1{\sqrt2} == \frac{\sqrt2}{2}
\frac{\sqrt{2}}{2} == sqrt(2)/2    2\sqrt{3} == 2*sqrt(3)    \sqrt{2} == √2
2\sqrt5 == √20    2 == ∛8    3 == \sqrt[3]{27}    4 == \sqrt{16}
2^{1/3} == \sqrt[3]{2}    \frac{\sqrt3+1}{2} == \frac{1}{\sqrt3-1}
1+\sqrt2 == \sqrt{3+2\sqrt2}    35\sqrt{12} != 12\sqrt{35}
\sqrt[3]{2} != \sqrt{2}    \sqrt{6} != 2\sqrt3    \sqrt5 != \sqrt2+\sqrt3
\sqrt2 != -\sqrt2
# constants and functions
\pi/2 == \frac{\pi}{2}    \frac{\pi}{2} == 0.5\pi  pi/2
\tfrac{8\pi}5 == \frac{8\pi}{5}    \pi == π != e    -1 == e^{i\pi}
\log 2 == \ln 2    \ln\sqrt2 == \frac{\ln 2}{2}
3 == \log_2 8  \log_{10} 1000  \lfloor 3.7 \rfloor
\frac{\ln 3}{\ln 2} == \log_2 3    \frac12 == \sin\frac{\pi}{6}
\frac{\pi}{4} == \tan^{-1}(1)  \arctan 1    1 == \sin^2 x+\cos^2 x
2\sin x\cos x == \sin 2x    \sin^2 x == \sin(x)^2
\frac{\cos x}{\sin x} == \cot x    \exp(x) == e^x    4 == \lceil 3.2 \rceil
5 == |-5|    10 == \binom{5}{2}  {5 \choose 2}    120 == 5!    105 == 7!!
2i+3 == 3+2i    2+i\sqrt3 == 2+\sqrt{3}i    i == \sqrt{-1}
2\pi != \pi  \pi^2    \ln 3 != \ln 2    \log_3 2 != \log_2 3
e^{-60} != e^{-50}    0 != e^{-500}    \cos x != \sin x    3-2i != 3+2i
2+3i != 3+2i    \frac52 != \binom{5}{2}    5! != 5!!    (2n)! != 2n!
# formulas
1+x^2 == x^2+1    (x+1)^2 == x^2 + 2x + 1  (x+1)**2 != x^2+2x    2x+6 == 2(x+3)
3-x == -x+3    \frac{n^2+n}{2} == n(n+1)/2    x^2-3x+2 == (x-1)(x-2)
1/x == x^{-1}    a/b == \frac{a}{b}    a^p b^q == a^pb^q
x_2+x_1 == x_{1}+x_2    \sqrt{x^2} == |x|    6x\sqrt{35x} == 6\sqrt{35x^3}
f(x) \cdot f(x) == f(x)^2    n == n!/(n-1)!    (n+1)n! == (n+1)!
\lfloor 2n/3 \rfloor + 1 == \left\lfloor\frac{2 n}{3}\right\rfloor+1
1.5m-1 == \frac{3 m}{2}-1    x^3 != x^{2}
\frac{n(n-1)}{2} != \frac{n(n+1)}{2}    y != x    X != x    x_2 != x_1
x != \sqrt{x^2}  |x|  x+1  \lfloor x \rfloor    1 != (-1)^n    0 != f(0)  2f(0)
3x != x(3)    x^2 != 2^x    \lfloor m/3 \rfloor != \lfloor m/2 \rfloor
A != A^T    T != T^*    \mathbb{Z}_4 != \mathbb{Z}_8
# tuples
(1, 2) == (1,2)
(1,2) == \left( 1, 2 \right)  1,2 != (2,1)  2,1  (1,2,3)  (1,3)
\left(\frac12, 2\right) == (0.5, \sqrt{4})    [1,2,3] == (1,2,3)
(1,2,3) == \langle 1,2,3\rangle != (1,2)    (-3,2),(3,2) == (3,2),(-3,2)
\{1,2\} != (1,2)    [1,2] != (1,2)
# sets and lists
\{2,1\} == \{1,2\}  \left\{1,2\right\}    \{3,5\} == {3, 5}  3 and 5
5,4,3 == 3, 4, and 5    -2, 1 == 1,-2    \{1,2\} == \{1,1,2\}    5 == \{5\}
(1,2) == \{(1,2)\} != \{1,2\}    \emptyset == \{\}  \varnothing != \{0\}  0
B, E, G == \text{B, E, G} != B, E    III, II, I == I,II,III
1,2 != 1,1,2  1,2,3    1,2,3 != 1,2    1,2,4 != 1,2,3
# a or b
3,-3 == 3 or -3  \pm 3  x = 3 \text{ or } x = -3    \pm 3 == 3,-3 != 3
-3, 3 == x=3 or x=-3    1+\sqrt2, 1-\sqrt2 == 1 \pm \sqrt{2}
\frac{1-\sqrt5}{2},\frac{1+\sqrt5}{2} == \frac{1\pm\sqrt{5}}{2}
(1,2),(-1,2) == (\pm 1, 2)    3 != \pm 3    42 != 42 or 41  41 or 42  42, 41
\frac{1+\sqrt5}{2} != \frac{1\pm\sqrt{5}}{2}
# intervals
\left[0,1\right) == [0,1)    (2, +\infty) == (2,\infty)
(-\infty,5] == (-\infty, 5]
(3,\infty) \cup (-\infty, 2) == (-\infty,2)\cup(3,\infty)
[3,\infty) == x\ge3    x \geqslant 3 == 3 \le x
(1,3] == 1<x\le 3  \{x \mid 1 < x \le 3\}    [0,1] == x \in [0,1] != (0,1)
2<x<5 == x \in (2,5)    \mathbb{R} == all real numbers
(-\infty,2)\cup(3,\infty) == x<2 \text{ or } x>3    (3,\infty) == \{x | x > 3\}
(-\infty,\infty) == \mathbb{R}    (1,\infty) == p>1    (0,1] != [0,1)
[0,2] != [0,1]    (-\infty,2) != (2,\infty)  (-\infty,2)\cup(3,\infty)
[2,\infty) != (2,\infty)    x\ge3 != x>3    x<3 != x>3    3 != x>3
q>1 != p>1    1<x<4 != 1<x<3    42 != [41,43]
(2,3)\cup(4,5) == \{(2,3) \cup (4,5)\}
# equations
5 == x=5  x = 2+3 = 5  2+3=5  5 = x  AB = 5  \text{Area} = 5 != x=5=6  x=x
x=5 == 5  x = 5 != y=5    x = 5 == 5 = x    2x == f^{-1}(x) = 2x  y = 2x
x^2 == f(x) = x^2    n == f(n)=n    \frac13 == P(X=2)=1/3
45^\circ == \angle A = 45^\circ    \pi == x = \pi
y=2x == 2x  x=y/2  2x - y = 0
\frac{x^2}{16}-\frac{y^2}{9}=1 == 9x^2-16y^2=144    y=6,x=5 == x=5, y=6
(1,2) == (a,b)=(1,2)    2n == a_n = 2n    x \ne 2 == x\neq 2
x > 2 == 2x > 4  -x < -2    1 > x+y == x+y<1    6 != x=5  x=5=6  5=6
y=3x != y=2x    y=-2x != y=2x    0 != x^2-x=0  0=0    B != A=B
x = 2 != x\neq 2    x+y>1 != x+y<1    f(x) != f'(x)=f(x)
# matrices
[[1,2],[3,4]] == \begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}
[[1,2],[3,4]] == \left[\begin{array}{cc}1&2\\3&4\end{array}\right]
\begin{bmatrix}1.2\\-1.4\end{bmatrix} == \begin{pmatrix}6/5\\-7/5\end{pmatrix}
\begin{pmatrix}1&2\\3&4\end{pmatrix} == [[1,2],[3,4]]
\begin{pmatrix}1&2\\3&4\end{pmatrix} != \begin{pmatrix}1&2\end{pmatrix}
\begin{pmatrix}1&3\\2&4\end{pmatrix} != \begin{pmatrix}1&2\\3&4\end{pmatrix}
\begin{pmatrix}1&2\end{pmatrix} != \begin{pmatrix}1\\2\end{pmatrix}
\begin{pmatrix}1\end{pmatrix} != 1
# words, choices, times, ratios
\text{east} == east  East
east == \textbf{east}  the east != west  seat  northeast  not east
east != east or west    No == no    C == \text{(C)} != c    E == (\text{E})
\text{C} == C    \text{1:03 PM} == 1:03 PM  1:03 p.m.    5 a.m. == 5am
2:3 == 2 : 3  2\colon3  2 to 3 != 3:2    Sunday == \text{Sunday}
O(n^3\log k) == O(n^3 \log k)    \mathbb{Q}/\mathbb{Z} == \mathbb{Q}/\mathbb{Z}
\infty == \infty != -\infty    D != C    Yes != No    1:03 PM != 1:03 AM
D_3 != D_4    \aleph_1 != \aleph_0    \mathbb{Z} != \mathbb{Q}
# what only math-verify reads
\frac{n(n+1)}{2} == \sum_{k=1}^{n} k    \frac12 == \int_0^1 x dx
(-\infty,0)\cup(0,\infty) == \mathbb{R}\setminus\{0\}
\frac{n(n-1)}{2} != \sum_{k=1}^{n} k    \frac13 != \int_0^1 x dx
"""


def cases():
  """Category -> cases (answer, reference answer, whether they are equal)."""
  out: dict = {}
  for line in TABLE.strip().splitlines():
    if line.startswith("# "):
      category = out[line[2:]] = []
      continue
    for group in line.split("    "):
      reference, *parts = re.split(" (==|!=) ", group)
      for sign, answers in zip(parts[::2], parts[1::2], strict=True):
        for answer in answers.split("  "):
          category.append((answer, reference, sign == "=="))
  return out


CASES = cases()
assert sum(map(len, CASES.values())) > 480


@pytest.mark.parametrize("category", CASES)
def test_table(category):
  for answer, reference, same in CASES[category]:
    case = answer, reference
    assert math.equal(answer, reference) is same, case
    text = f"So it is\n\\boxed{{{answer}}}"
    assert math.verify(text, reference) is same, case
    assert math.usable(reference) or not same, case


# --- prose, and lists in order -----------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        *["0 is impossible", "0 if x", "it is 0", "0 impossible", "0 at x"],
        *["there is no x = 0", "0 would be absurd", "nothing times 0"],
        *["0 is undefined", "0 cannot be", "impossible 0", "0 by itself"],
    ],
)
def test_words_are_no_products_of_letters(text):
  assert not math.verify(f"\\boxed{{{text}}}", "0")


def test_letters_side_by_side_are_products():
  for one, other in (
      ("ax + by = c", "by + ax = c"),
      ("v_0 + at", "at + v_0"),
      ("2abi + an", "an + 2abi"),
      ("mgh + 1", "1 + hgm"),
      ("2xyz", "2zxy"),
      ("nRT + 1", "1 + RnT"),
  ):
    assert math.equal(one, other), one
  assert not math.equal("2xyz", "2")
  assert math.equal("Bob, Alice", "\\text{Alice}, \\text{Bob}")
  assert not math.equal("Ecila, Obb", "Alice, Bob")


def test_references_that_no_short_answer_equals():
  for text in (
      "0 is impossible if it has a root",
      "7 if n is even and 8 otherwise",
      "the sequence converges for every number that it starts with",
  ):
    assert not math.usable(text), text
  for text in ("3 is the only possible value", "3 is the solution"):
    assert math.usable(text) and math.verify("\\boxed{3}", text), text
  for text in ("all real numbers", "red, green and blue", "does not exist"):
    assert math.usable(text), text


def test_the_order_of_a_list_counts_in_one_kind():
  for reference, right, wrong in (
      ("3, 5, 7", ("3, 5, 7", "(3, 5, 7)", "3, 5 and 7"), ("7, 3, 5", "3, 5")),
      ("ant, bee, cow", ("Ant, bee, cow",), ("bee, ant, cow", "cow, bee, ant")),
      ("1/2, 0.75", ("0.5, 3/4",), ("3/4, 0.5", "{3/4, 1/2}")),
      ("2, 2, 3", ("2, 2, 3",), ("2, 3, 2", "2, 3")),
      ("42", ("42", "x = 42"), ("41",)),
  ):
    assert ordered.usable(reference)
    for text in right:
      assert ordered.verify(f"\\boxed{{{text}}}", reference), text
    for text in wrong:
      assert not ordered.verify(f"\\boxed{{{text}}}", reference), text
  assert math.verify("\\boxed{7, 3, 5}", "3, 5, 7")  # a set
  assert not ordered.verify("", "3, 5")


# --- hostile text ------------------------------------------------------------

HUGE = [
    *["9^9^9^9", "9^{9^{9^{9}}}", "10^{10^{10}}-10^{10^{10}}", "1e9999"],
    *["1000000!", "3000!!", "\\binom{3000}{1500}", "((((9^9)^9)^9)^9)^9"],
    *["e^{e^{e^{e^e}}}", "\\sin(10^{10000})", "x^{x^{x^{x^x}}}", "1e99999"],
    *["\\sqrt[9]{9^{9^9}}", "2^{-10^{10}}", "(1/3)^{10^9}", "1000000!!"],
    # Loops and patterns that took quadratic or exponential time.
    *["." * 100_000, "*" * 100_000, " " * 100_000 + "x", "\n" * 100_000 + "x"],
    "(" + "a" * 1_000,
    "it is " + "\\a" * 900 + " so, it is",
    "A:\n" * 20_000,
    "\\boxed{1} or " * 10_000,
    "the answer is not " * 5_000,
    *["\\sum_{i=1}^{10^{99}} i", "\\infty-\\infty", "0^{-1}", "\\exp(10^{9})"],
    "1" * 100_000,
    "9" * 1_900,
    "(" * 100_000,
    "{" * 900 + "2" + "}" * 900,
    "(" * 900 + "2" + ")" * 900,
    "\\frac{1}{" * 200 + "2" + "}" * 200,
    "\\sqrt{" * 300 + "2" + "}" * 300,
    "-" * 1_900 + "2",
    "2" + "^2" * 900,
    "|" * 1_900,
    "x+" * 900 + "x",
    "x+" * 290 + "x",
    "xy" * 290,
    ",".join(["x"] * 900),
    "\\pm" * 600,
    "\\boxed{" * 10_000,
    "\\text{" * 10_000,
    "Answer: " * 10_000,
    "$" * 1_999,
    "a=" * 900,
    "<" * 1_900,
    "a(" * 290 + "x" + ")" * 290,
    "a(" * 35 + "x" + ")" * 35,  # two readings of each would be 2 ** 35
    "f(" * 35 + "x" + ")" * 35,
    "|" + "x|" * 200,
    "2" * 500 + "^" + "3" * 500,
]


@pytest.mark.parametrize("text", HUGE, ids=lambda text: text[:20])
def test_hostile_text_is_incorrect_at_once(text):
  """In CPU seconds of this thread, and ten times what a quiet machine needs."""
  math.verify("x+1", "x^2+1")  # imports what is behind our grammar
  start = time.thread_time()
  for reference in ("1", "\\frac{\\pi}{7}", "x^2+1", "(1,2)"):
    assert not math.verify(f"\\boxed{{{text}}}", reference)
    assert not math.verify(f"Answer: 17 {text}", reference)
    assert not math.verify(text, reference)
  math.usable(text)
  assert not math.verify("\\boxed{17}", text)
  assert time.thread_time() - start < 8


PIECES = (
    "0 1 2 3 10 . , ; : + - * / ^ _ = < > ( ) [ ] { } | ! ' % $ & x y f a e i"
    " pi or and cm not \\{ \\} \\\\ \\frac \\sqrt \\pm \\pi \\infty \\cup \\sin"
    " \\text{ \\begin{pmatrix} \\end{pmatrix} \\le \\in \\binom \\circ \\log"
    " \\lfloor \\rfloor \\boxed{ Answer: <answer> </answer> \\sum \\overline"
    " \\int \u221a \u00bd \x00"
).split(" ")


@hypothesis.settings(deadline=None, max_examples=200, derandomize=True)
@hypothesis.given(*[st.lists(st.sampled_from(PIECES), max_size=16)] * 2)
def test_any_text_has_a_verdict(answer, reference):
  """No text is an error, and none takes long."""
  answer, reference = "".join(answer), " ".join(reference)
  start = time.thread_time()
  assert math.equal(answer, reference) in (True, False)
  assert math.verify(answer, reference) in (True, False)
  assert math.usable(reference) in (True, False)
  assert time.thread_time() - start < 8  # sympy's import among it


def test_nothing_is_evaluated(tmp_path):
  """Neither by us nor behind math-verify's back: the file never appears."""
  target = tmp_path / "made"
  python = f"__import__('pathlib').Path('{target}').touch()"
  for wrapper in ("{}", "\\text{{{}}}", "\\sum_{{{}}}", "\\operatorname{{{}}}"):
    for text in (python, python + "+1", f"\\frac{{{python}}}{{2}}"):
      for reference in ("1", "\\sum_{k=1}^n k"):
        assert not math.verify(f"\\boxed{{{wrapper.format(text)}}}", reference)
  assert not target.exists()


def test_no_parser_that_executes_is_called(monkeypatch):
  """`sympify` and `parse_expr` of text raise for the whole table."""
  import math_verify.parser
  import sympy.parsing.sympy_parser

  def refuse(*_, **__):
    raise AssertionError("executes its input")

  # sympy parses constants of its own when first used.
  assert math.equal("\\sum_{k=1}^{n} k", "\\frac{n(n+1)}{2}")
  monkeypatch.setattr(sympy.parsing.sympy_parser, "eval_expr", refuse)
  monkeypatch.setattr(sympy.parsing.sympy_parser, "parse_expr", refuse)
  monkeypatch.setattr(math_verify.parser, "parse_expr", refuse)
  with pytest.raises(AssertionError):
    sympy.sympify("1 + x")  # the trap works
  for rows in CASES.values():
    for answer, reference, same in rows:
      assert math.equal(answer, reference) is same, (answer, reference)


def test_plain_numbers_need_no_library():
  """Nor does reading: numeric tasks never pay for sympy."""
  code = """
import sys
from rl_reason.verifiers import math
assert math.verify("\\\\boxed{1,234.50}", "1234.5")
assert not math.verify("\\\\boxed{1/3}", "0.333")
print(sorted({"mpmath", "sympy", "math_verify", "numpy"} & set(sys.modules)))
"""
  argv = [sys.executable, "-c", code]
  done = subprocess.run(argv, capture_output=True, text=True)
  assert done.stdout == "[]\n", done.stderr


def test_speed_of_plain_integers():
  """3,000 a second on an idle core, after two thousand characters of work.

  Against a loop over the same characters: seconds depend on what else the
  machine does.
  """
  work = "We add 3 and 4, so that x = 7 is the next. " * 50

  def seconds(task):
    start = time.thread_time()
    for n in range(300):
      task(n)
    return time.thread_time() - start

  def verify(n):
    assert math.verify(f"{work}\\boxed{{{n}}}", str(n))

  def read(n):
    sum(map(ord, work))

  # 13 on an idle machine; the best of ten.
  assert any(seconds(verify) < 25 * seconds(read) for _ in range(10))


# --- reference answers, and the numbers behind -------------------------------


def test_unusable_reference_answers():
  for text in (
      "",
      " ",
      "\\frac{1}{0}",
      "G/N \\cong K",
      "a \\foo b",
      "1\x00",
      "?",
  ):
    assert not math.usable(text), text


def test_a_true_zero_shrinks_with_the_precision():
  """A difference of 1e-100 is none; sums that cancel are."""
  assert not math.equal("\\sqrt{2}+10^{-100}", "\\sqrt2")
  assert math.equal("(\\sqrt2+\\sqrt3)^2-5", "2\\sqrt6")
  assert math.equal("\\sqrt2\\cdot\\sqrt2-2", "0")


def test_a_formula_is_compared_on_both_sides_of_zero():
  x = ("name", "x")
  assert numeric.equal(("abs", x), ("sqrt", ("*", x, x)))
  assert not numeric.equal(x, ("sqrt", ("*", x, x)))


def test_hard_expressions_are_refused_not_guessed():
  huge = ("exp", Fraction(10**9))
  with pytest.raises(numeric.Hard, match="out of range"):
    numeric.equal(huge, ("+", huge, ("name", "pi")))


@pytest.mark.parametrize(
    ("answer", "tolerance", "correct"),
    [
        *[("3.14", 0.01, True), ("3.13", 0.01, False), ("-3.14", 0.01, False)],
        *[(r"\frac{157}{50} \text{ m}", 0.01, True), ("x", 9.0, False)],
        *[("(3.14, 1)", 9.0, False), ("pi", 0.0, False)],
    ],
)
def test_a_tolerance_is_for_numbers(answer, tolerance, correct):
  text = f"\\boxed{{{answer}}}"
  assert math.verify(text, "3.1415", tolerance=tolerance) is correct
