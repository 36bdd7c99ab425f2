"""What the generate stage keeps of the responses to a prompt."""

import pathlib

from rl_reason.lab import generate, sample_selection
from rl_reason.lab.sample_selection import Sample


def sample(response, correct, reward, final="", truncated=False):
  return Sample(response, final or response, correct, reward, truncated, [], [])


GROUP = [
    sample("a", False, -1.0, "7"),
    sample("b", True, 1.0, "8"),
    sample("c", True, 1.5, "8"),
    sample("b", True, 1.0, "8"),
    sample("d", None, 0.0, "9", truncated=True),
]


def test_what_is_kept_of_a_group():
  texts = lambda name, group=GROUP: [  # noqa: E731
      x["response"] for x in sample_selection.NAMES[name](group)
  ]
  assert texts("all") == ["a", "b", "c", "b", "d"]
  assert texts("correct") == ["b", "c"]
  assert texts("best") == ["c"]
  assert texts("best", GROUP[:1]) == []  # incorrect
  (pair,) = sample_selection.pairs(GROUP)
  assert (pair["chosen"], pair["rejected"]) == ("c", "a")
  assert sample_selection.pairs(GROUP[1:2] * 3) == []
  # Three of five have 8; the verdicts do not count, ends do.
  wrong = [x._replace(correct=False) for x in GROUP]
  assert texts("majority", wrong) == ["b", "c", "b"]
  assert {x["answer"] for x in sample_selection.majority(wrong)} == {"8"}
  assert sample_selection.majority(GROUP[:3] + GROUP[-1:]) == []  # two of four
  assert sample_selection.NAMES["prompts"](GROUP) == [{}]
  lost = [x._replace(correct=None) for x in GROUP]
  lost[2] = lost[2]._replace(reward=None)  # not measured
  assert texts("best", lost) == ["b"] and texts("best", lost[2:3]) == []
  (pair,) = sample_selection.pairs(lost[:3])
  assert (pair["chosen"], pair["rejected"]) == ("b", "a")
  assert sample_selection.pairs(lost[2:3]) == []
  nothing = [x._replace(correct=None, reward=0.0) for x in GROUP]
  assert texts("best", nothing) == ["a"]  # no verifier: by reward alone


def test_a_group_measures_its_prompt():
  """The share of correct responses among those with a verdict."""
  ids = [1], [1, 2], [1, 2, 3], [1, 2], [1, 2, 3, 4]
  group = [x._replace(ids=y) for x, y in zip(GROUP, ids, strict=True)]
  wanted = dict(pass_rate=0.75, samples=4, response_tokens=2.4)
  assert sample_selection.measured(group) == wanted
  nothing = sample_selection.measured(group[-1:])
  assert nothing == dict(pass_rate=None, samples=0, response_tokens=4.0)


def test_the_advice_names_a_path_that_a_source_may_have():
  """The default work directory of a run with overrides has a comma."""
  plain, comma = (
      pathlib.Path("runs") / name / "generated" / "40"
      for name in ("dapo", "dapo,seed=1")
  )
  use = "use them as a source of data.train:"
  both = f"{use} {plain}; rows of a known set as NAME@{plain}"
  assert generate._advice(plain, False) == f"{use} {plain}"
  assert generate._advice(plain, True) == both
  assert generate._advice(comma, False) == (
      f"{use} {comma}; but first make a link to this directory (ln -s) and name"
      " the link: the path of a source has no ,"
  )
