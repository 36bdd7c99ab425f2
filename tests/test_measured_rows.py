"""What rows know of themselves, and who reads it, on rows of three sets."""

# ruff: noqa: F811  (pytest finds fixtures by their names)

import pytest
from tiny_data import (  # noqa: F401  (fixtures)
    check,
    make,
    report,
    rows,
    run,
    tok_dir,
    verifier,
    write,
)

from rl_reason.base.errors import ConfigError
from rl_reason.data import known_sets, screening
from rl_reason.data.datasets import DataError
from rl_reason.lab import generate

INTERVAL = "the pass rate is not within data.pass_rate = 0.1, 0.9"


def gsm8k(i):
  return dict(question=f"Ann has {i} cats?", answer=f"So <<1>>.\n#### {i}")


def math(i):
  return dict(
      problem=f"What is ${i}$?",
      level=f"Level {1 + i % 5}",
      type=["Algebra", "Geometry"][i % 2],
      solution=rf"It is $\boxed{{{i}}}$.",
  )


def dapo(i):
  return dict(
      data_source="math_dapo",
      prompt=[dict(role="user", content=f"Find {i}.")],
      ability="MATH",
      reward_model=dict(ground_truth=str(i), style="rule-lighteval/MATH_v2"),
      extra_info=dict(index=str(i)),
  )


SETS = dict(gsm8k=gsm8k, math=math, dapo_math_17k=dapo)
of_each_set = pytest.mark.parametrize("name", SETS)


def measured(name, rates):
  """Rows in the columns of a set, with pass rates; None: not measured."""
  return [
      SETS[name](i) | dict(pass_rate=rate, response_tokens=10.0 + i)
      for i, rate in enumerate(rates)
  ]


def config(make, name, lines, /, **fields):
  """A config that reads lines as a known set."""
  c = make(lines, **fields)
  c.data.train = f"{name}@{c.data.train}"
  return c


@of_each_set
def test_a_row_knows_its_source_subject_and_pass_rate(make, tmp_path, name):
  lines = measured(name, [0.25, None])
  lines[1].pop("response_tokens")
  place = run(config(make, name, lines), tmp_path)
  one, two = rows(place)
  assert one.source == name
  assert (one.pass_rate, one.response_tokens) == (0.25, 10.0)
  assert (two.pass_rate, two.response_tokens) == (None, None)
  own = dict(gsm8k="gsm8k", math="Algebra", dapo_math_17k="math_dapo")
  assert one.subject == own[name]
  assert report(place)["pass_rates"] == {"0.2": 1, "unknown": 1}
  text = (place / "data.md").read_text()
  assert "Rows by measured pass rate: 0.2: 1, unknown: 1" in text
  assert f"Rows by subject: {one.subject}: " in text


@of_each_set
def test_the_filter_keeps_what_is_within_and_counts_the_rest(
    make, tmp_path, name
):
  """Ends are within; rows that were not measured are left out, aloud."""
  lines = measured(name, [0.0, 0.1, 0.5, 0.9, 0.95, 1.0, None])
  place = run(config(make, name, lines, pass_rate=(0.1, 0.9)), tmp_path)
  assert [row.pass_rate for row in rows(place)] == [0.1, 0.5, 0.9]
  dropped = report(place)["dropped"]
  assert dropped == {INTERVAL: 3, screening.UNMEASURED: 1}


def test_the_filter_needs_measured_rows(make, tmp_path):
  c = config(make, "gsm8k", [gsm8k(1), gsm8k(2)], pass_rate=(0.1, 0.9))
  with pytest.raises(DataError, match="generate.keep = 'prompts' measures it"):
    run(c, tmp_path)
  for wrong in ((0.5,), (0.9, 0.1), (0, 2), ("a", "b"), (0.1, 0.5, 0.9)):
    c.data.pass_rate = wrong
    with pytest.raises(ConfigError, match=r"two numbers, 0 <= low <= high"):
      check(c)


def test_evaluation_rows_are_not_filtered(make, tmp_path):
  c = make([gsm8k(1) | dict(pass_rate=0.5)], [gsm8k(7)], pass_rate=(0.1, 0.9))
  assert len(rows(run(c, tmp_path), "evaluate")) == 1


@pytest.mark.parametrize("wrong", [-0.1, 75, "half", [0.5], float("nan")])
def test_what_is_no_pass_rate_is_malformed(make, tmp_path, wrong):
  lines = [gsm8k(1), gsm8k(2) | dict(pass_rate=wrong)]
  place = run(config(make, "gsm8k", lines), tmp_path)
  assert report(place)["dropped"] == {screening.MALFORMED: 1}


def test_a_rate_has_another_column(make, tmp_path):
  """Big-Math calls it by the model that was measured."""
  line = gsm8k(1) | dict(llama8b_solve_rate="0.5")
  c = make([line], columns="pass_rate=llama8b_solve_rate")
  [row] = rows(run(c, tmp_path))
  assert row.pass_rate == 0.5 == known_sets.measured("0.5")


@of_each_set
def test_rows_that_were_measured_are_read_as_before(make, tmp_path, name):
  """Of --stage=generate in two files: what a set has, and the rates."""
  before = rows(run(config(make, name, measured(name, [None] * 2)), tmp_path))
  place = tmp_path / "generated" / "0"
  place.mkdir(parents=True)
  for n, row in enumerate(before):
    found = dict(pass_rate=n / 2, response_tokens=5.0)
    line = generate.prompt_columns(row, "prompts") | found
    write(place / f"part-00000000{n}.jsonl", [line])
  c = make()
  c.data.train = f"{name}@{place}"
  after = rows(run(c, tmp_path / "again"))
  same = "prompt", "answer", "difficulty", "kind", "source", "subject"
  for n, (old, new) in enumerate(zip(before, after, strict=True)):
    assert all(getattr(old, x) == getattr(new, x) for x in same)
    assert (new.pass_rate, new.response_tokens) == (n / 2, 5.0)
