r"""Which steps a response has, and which are correct: worked by hand."""

import time

import pytest

from rl_reason.verifiers.arithmetic_steps import verdicts

# Families of cases: (text, whether each of its steps is correct).
CASES = {
    "plain": [
        *[
            ("12+5=17", "1"),
            ("12+5=18", "0"),
            ("1+2+3=6", "1"),
            ("-3+5=2", "1"),
        ],
        ("0.1+0.2=0.3", "1"),
        *[("10/3=3.33", "0"), ("3+4=7.5", "0")],  # 3.333... to be exact
        *[("2^3 = 8, 2**3=9", "10"), ("(3+4)*(1+1)=14", "1")],
        *[
            ("8/0=1; 1+1=2", "01"),
            ("1 1/2 + 1/2 = 2", "1"),
            ("3 x 4 = 12", "1"),
        ],
        *[("1,200 + 300 = 1,500", "1"), ("1,234,567 + 1 = 1,234,568", "1")],
        ("3 \u00d7 4 = 12, 12 \u00f7 4 = 3, 5 \u2212 2 = 3", "111"),
        (r"\frac{1}{2}\times 3\frac{4}{5} = \frac{19}{10}", "1"),
    ],
    "LaTeX": [
        (r"$\frac{1}{2}+\frac12=1$", "1"),
        *[(r"\(\dfrac{3}{4}\cdot 8 = 6\)", "1"), (r"3 \times 4 = 12", "1")],
        (r"\left(3+4\right) \div 2 = 3.5", "1"),
        (r"1{,}000 \cdot 2 = 2{,}000", "1"),
        *[(r"12+5=\boxed{17}", "1"), (r"\boxed{3+4=8}", "0")],
        (r"3+4=7\text{ apples}", "1"),
        ("3+4&=7\\\\\n&=2+6", "1"),  # the next line has no left side
        *[(r"12/5 = 2.4 \approx 2", "1"), (r"10/3 \approx 3.33", "")],
        *[(r"\sqrt{16}+1=5", ""), (r"\pi 3+4=7", ""), (r"3+4=7\pi", "")],
        (r"\frac{x}{2}+3=7", ""),
    ],
    "money and percent": [
        *[("$15/3=5$", "1"), ("$15 / $3 = 5", "1"), (r"\$5 + \$3 = \$9", "0")],
        *[("20% * 50 = 10", "1"), (r"50\% \times 30 = 15", "1")],
        *[("10% + 20% = 30%", "1"), ("1/4 = 25%", "1"), ("1/4 = 24%", "0")],
        ("1/4 * 100 = 25%", "1"),  # as the verifier reads a percentage
        ("100 / 20% = 500", "1"),
    ],
    "prose": [
        ("Step 1: 3+4=7. Then 4 + 4 = 9.", "10"),
        ("- 3 + 4 = 7\n* 1 + 1 = 2\n2. 2+2=4\n3) 3+3=7", "1110"),
        *[("**12 + 5 = 17**", "1"), ("48/2 = <<48/2=24>>24", "1")],
        *[("7 apples (3+4=7).", "1"), ("12 + 5 = 17 apples", "1")],
        ("3*4 = 12 = 10 + 3", "10"),
        ("3*4 = 12 + 5 = 17", "01"),  # runs on: the first is untrue
        *[("x = 3 + 4 = 7", "1"), ("12 = 3*4", "1"), ("so, -3+5=2", "1")],
    ],
}


@pytest.mark.parametrize("family", CASES)
def test_steps(family):
  for text, steps in CASES[family]:
    assert verdicts(text) == [step == "1" for step in steps], text


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
