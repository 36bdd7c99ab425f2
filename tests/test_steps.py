r"""Which steps a response shows, and which hold: worked by hand."""

import time

import pytest

from rl_reason.verifiers.steps import verdicts

HOLDS, FAILS = [True], [False]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("12+5=17", HOLDS),
        ("12+5=18", FAILS),
        ("1+2+3=6", HOLDS),
        ("-3+5=2", HOLDS),
        ("0.1+0.2=0.3", HOLDS),
        ("10/3=3.33", FAILS),  # 3.333... to be exact
        ("3+4=7.5", FAILS),
        ("2^3 = 8, 2**3=9", [True, False]),
        ("(3+4)*(1+1)=14", HOLDS),
        ("8/0=1; 1+1=2", [False, True]),
        ("1 1/2 + 1/2 = 2", HOLDS),
        ("1,200 + 300 = 1,500", HOLDS),
        ("1,234,567 + 1 = 1,234,568", HOLDS),
        ("3 \u00d7 4 = 12, 12 \u00f7 4 = 3, 5 \u2212 2 = 3", HOLDS * 3),
        ("3 x 4 = 12", HOLDS),
    ],
)
def test_plain(text, wanted):
  assert verdicts(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (r"$\frac{1}{2}+\frac12=1$", HOLDS),
        (r"\(\dfrac{3}{4}\cdot 8 = 6\)", HOLDS),
        (r"3 \times 4 = 12", HOLDS),
        (r"\left(3+4\right) \div 2 = 3.5", HOLDS),
        (r"1{,}000 \cdot 2 = 2{,}000", HOLDS),
        (r"12+5=\boxed{17}", HOLDS),
        (r"\boxed{3+4=8}", FAILS),
        (r"3+4=7\text{ apples}", HOLDS),
        ("3+4&=7\\\\\n&=2+6", [True]),  # the next line has no left side
        (r"12/5 = 2.4 \approx 2", HOLDS),
        (r"10/3 \approx 3.33", []),
        (r"\sqrt{16}+1=5", []),
        (r"\pi 3+4=7", []),
        (r"3+4=7\pi", []),
        (r"\frac{x}{2}+3=7", []),
    ],
)
def test_latex(text, wanted):
  assert verdicts(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("$15/3=5$", HOLDS),
        ("$15 / $3 = 5", HOLDS),
        (r"\$5 + \$3 = \$9", FAILS),
        ("20% * 50 = 10", HOLDS),
        (r"50\% \times 30 = 15", HOLDS),
        ("10% + 20% = 30%", HOLDS),
        ("1/4 = 25%", HOLDS),
        ("1/4 * 100 = 25%", HOLDS),  # as the verifier reads a percentage
        ("1/4 = 24%", FAILS),
        ("100 / 20% = 500", HOLDS),
    ],
)
def test_money_and_percent(text, wanted):
  assert verdicts(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Step 1: 3+4=7. Then 4 + 4 = 9.", [True, False]),
        ("- 3 + 4 = 7\n* 1 + 1 = 2\n2. 2+2=4\n3) 3+3=7", [*HOLDS * 3, False]),
        ("**12 + 5 = 17**", HOLDS),
        ("48/2 = <<48/2=24>>24", HOLDS),
        ("7 apples (3+4=7).", HOLDS),
        ("12 + 5 = 17 apples", HOLDS),
        ("3*4 = 12 = 10 + 3", [True, False]),
        ("3*4 = 12 + 5 = 17", [False, True]),  # runs on: the first is untrue
        ("x = 3 + 4 = 7", HOLDS),
        ("12 = 3*4", HOLDS),
        ("so, -3+5=2", HOLDS),
    ],
)
def test_in_prose(text, wanted):
  assert verdicts(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        *("", "=", "3 + 4 =", "= 3 + 4", "5 = 5", "-3 = -3", "50% = 50"),
        *("x + 3 = 7", "2x+3=7", "x - 3 + 2 = 4", "x_1+2=3", "f(3)+2=7"),
        *("3+4=7x", "3 + 4 = 7 + y", "3\u00b2 + 1 = 10", "|3-5| = 2"),
        *("12 apples + 5 apples = 17 apples", "2 3+4=7", "1.5.2+1=3"),
        *("3+4 != 8", "3+4 == 7", "3+4 <= 7", "5! = 120", "{3+4=7"),
        *("so -3+5=2", "9^9^9^9=1", "1+" * 100 + "1=101"),
    ],
)
def test_what_is_no_step(text):
  assert verdicts(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "1+1=2 " * 10_000,
        "=" * 50_000,
        "(" * 20_000 + "=" + ")" * 20_000,
        "1" * 50_000 + "+1=2",
        "\\frac" * 20_000 + "=",
        "1/(9^99)^99+1/(7^99)^99+" * 8 + "1=1",
    ],
)
def test_hostile_text_takes_no_time(text):
  began = time.thread_time()
  verdicts(text)
  assert time.thread_time() - began < 20
