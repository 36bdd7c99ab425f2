"""The hypotheses of planned ablations: rules by hand, and the pages."""

import pytest

from studies import verdicts

pytestmark = pytest.mark.slow  # a study is frozen with its data

ABOVE, AROUND, BELOW = [2.0, 2.1, 1.9], [3.0, -3.0, 0.0], [-2.0, -2.1, -1.9]


def test_rules_by_hand():
  # Half of the interval of ABOVE: 4.303 x .1 / sqrt(3) = .248; of AROUND: 7.45.
  for values, sign, bound, found in (
      (ABOVE, 1, 0, "held"),
      (ABOVE, -1, 0, "refuted"),
      (ABOVE, 1, 1.7, "held"),
      (ABOVE, 1, 1.8, "open"),
      (ABOVE, 1, 2.3, "refuted"),
      (AROUND, 1, 0, "open"),
      (BELOW, -1, 0, "held"),
      ([2.0], 1, 0, "open"),
  ):
    assert verdicts.decided(values, sign, bound) == found, (values, sign, bound)
  assert verdicts.strictly(AROUND, 1) == "refuted"
  assert verdicts.strictly(ABOVE, 1) == "held"
  for values, bound, found in (
      (ABOVE, 2.3, "held"),
      (ABOVE, 2.0, "open"),
      (BELOW, 1.7, "refuted"),
      (AROUND, 7.5, "held"),
      (AROUND, 7.4, "open"),
  ):
    assert verdicts.within(values, bound) == found, (values, bound)


def test_scores_pair_rows_by_seed():
  def run(row, seed, *accuracy):
    curve = dict(step=[0, 5], accuracy=[*accuracy])
    return dict(row=row, seed=seed, evaluate=curve, rl=dict(x=[1.0, 3.0]))

  scores = verdicts.Scores(
      dict(
          seeds=[7, 3, 9],
          reference="a",
          runs=[run("b", 3, 0.3, 0.4), run("a", 3, 0.1, 0.2)]
          + [run("a", 7, 0.5, 0.6), run("b", 7, 0.7, 0.9)],
      )
  )
  assert scores.seeds == [7, 3]
  gain = scores.accuracy("b") - scores.accuracy("a")
  assert gain == pytest.approx([30, 20])
  assert scores.accuracy("b", 0) == pytest.approx([70, 30])
  assert scores.mean("a", "x") == pytest.approx([2, 2])
  assert scores.change("a", "x", 1) == pytest.approx([2, 2])


@pytest.mark.parametrize("name", filter(verdicts.has_run, verdicts.STUDIES))
def test_pages_are_of_the_data(name):
  path = verdicts.FOLDER / name / "verdicts.md"
  assert path.read_text() == "\n".join(verdicts.page(name)) + "\n"
