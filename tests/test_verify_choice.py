"""Multiple choice and three values: what chooses, and what only mentions."""

import pytest

from rl_reason.verifiers import choice


@pytest.mark.parametrize(
    "text",
    [
        *["C", "c", "(C)", "(c)", "C.", "C)", "**C**", "$C$", " C \n", "[C]"],
        *["\\boxed{C}", "\\boxed{\\text{C}}", "\\boxed{\\text{(C)}}"],
        *["\\boxed{\\textbf{(C)}\\ 42}", "\\boxed{C: Paris}", "\\fbox{C}"],
        *["Answer: C", "Answer: (C)", "Answer: C. Paris", "**Answer:** C"],
        *["Answer: option C", "Answer: **C**", "Answer:\nC", "ANSWER: c"],
        *["The answer is C.", "The answer is C) Paris", "<answer>C</answer>"],
        *["The correct option is (C).", "I choose C.", "So it is C."],
        *["\\boxed{A} \\boxed{C}", "Answer: A\nAnswer: C"],
        *["The answer is not A. It is C.", "The answer is not A but C."],
        "A is wrong, B is wrong.\nAnswer: C",
        "<think>\\boxed{A}</think> C",
    ],
)
@pytest.mark.parametrize("reference", ["C", "(C)", "\\text{(C)}", "c", "C."])
def test_correct_choice(text, reference):
  assert choice.answer(text) == "C"
  assert choice.verify(text, reference)
  assert not choice.verify(text, "A")


@pytest.mark.parametrize(
    "text",
    [
        *["", " ", "\\boxed{}", "\\boxed{C", "<answer>C", "Answer:", "\x00C"],
        *["C or D", "Answer: C or D", "Answer: not C", "\\boxed{C, D}"],
        *["\\boxed{C/D}", "C and D", "(C) is wrong, so (D)", "C and not D"],
        *["\\boxed{CD}", "\\boxed{ABCD}", "\\boxed{C} \\boxed{}", "Cat", "K"],
        *["C\nAnswer: D", "\\boxed{C} \\boxed{D}", "Answer: C\nAnswer: D"],
        *["The answer is not \\boxed{C}", "\\boxed{C} is wrong."],
        *["It can't be C.", "C\nAnswer: not C"],
        *["\\boxed{C} or \\boxed{D}", "\\boxed{D} or \\boxed{C}"],
        *["I don't think the answer is C.", "The answer is not C but D."],
        *["The answer is not C.", "A cat sat on it", "I think it is hard"],
        *["C\x00", "\u202eC", "Ignore the question: every choice is C or D"],
        "A B C D",
        "C" * 100_000,
        "(" * 100_000 + "C",
    ],
)
def test_no_correct_choice(text):
  assert not choice.verify(text, "C")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        *[("Yes", "yes"), ("yes.", "yes"), ("NO", "no"), ("\\boxed{No}", "no")],
        *[("Answer: Yes, because 2 is even.", "yes"), ("True", "yes")],
        *[("The answer is no.", "no"), ("\\boxed{\\text{False}}", "no")],
        *[("It is true that 2 is even. The answer is no.", "no")],
        *[("Answer: yes or no", None), ("Yes and no", None), ("maybe", None)],
        *[("Not sure", None), ("nothing", None), ("None", None)],
        *[("Yesterday", None), ("Noah", None), ("Answer: not yes", None)],
    ],
)
def test_yes_and_no(text, answer):
  assert choice.answer(text) == answer
  assert choice.verify(text, "Yes") is (answer == "yes")
  assert choice.verify(text, "no") is (answer == "no")


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        *[("Answer: Uncertain", "Uncertain"), ("uncertain.", "Unknown")],
        *[("\\boxed{\\text{Unknown}}", "Uncertain"), ("**True**", "True")],
        *[("Answer: Uncertain, as no premise is about it.", "Uncertain")],
        *[("The conclusion is unknown.", "Uncertain")],
        *[("Answer: False. The value of x is unknown.", "False")],
        *[("Answer: C) Uncertain", "C"), ("The answer is false.", "False")],
        *[("It is true that it rains. The answer is uncertain.", "Unknown")],
        *[("True\n\nAnswer: Uncertain", "Uncertain"), ("A\nA", "A")],
        *[("A) True", "A"), ("(B) False.", "B")],
        *[("B. I will check.\n------\nAnswer: A", "A")],
        *[("So far:\n------\nAnswer: A", "A")],
        *[("Option A\n------\nfails.\n\nAnswer: B", "B")],
        *[("True\n------\n\nAnswer: Uncertain", "Uncertain")],
    ],
)
def test_three_values(text, reference):
  assert choice.verify(text, reference)
  for other in {"True", "False", "Uncertain", "C"} - {reference, "Uncertain"}:
    assert not choice.verify(text, other)


@pytest.mark.parametrize(
    "text",
    [
        *["Answer: True, False or Uncertain", "Answer: True/False/Uncertain"],
        *[
            "Answer: Uncertain/True",
            "Answer: True, Uncertain",
            "True | Unknown",
        ],
        *["True, False, Uncertain", "[True, False, Uncertain]"],
        *["Is it True, False or Uncertain?", "The choices: True, Uncertain"],
        *["True\nFalse\nUncertain", "* True\n* False\n* Uncertain", "A\nB\nC"],
        *["One of these.\n\nTrue\nFalse\nUncertain\n", "(A)\n(B)\n(C)"],
        *["A) True\nB) False\nC) Uncertain", "Answer: not uncertain"],
        *["Answer: uncertain or true", "\\boxed{Uncertain} or \\boxed{True}"],
        *["I am certain", "The answer is not uncertain.", "uncertainty"],
        *["A) True or B) False", "A or B\n"],
    ],
)
def test_a_copy_of_the_choices_is_no_choice(text):
  verdicts = [choice.verify(text, x) for x in ("True", "False", "Uncertain")]
  assert verdicts == [False] * 3
  assert choice.answer(text) is None


def test_usable():
  words = ["Yes", "false", "Uncertain", "unknown"]
  assert all(map(choice.usable, ["A", "(j)", "\\text{(C)}", *words]))
  assert not any(map(choice.usable, ["", "K", "AB", "A or B", "42", "maybe"]))
