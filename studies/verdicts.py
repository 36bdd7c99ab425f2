"""The hypotheses of planned ablations, tested on their data.

  python -m studies.verdicts   # seconds; writes verdicts.md of each study

The hypotheses and what would refute them are in plan.md of each study. All
differences are paired by seed.
"""

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from bench import results
from rl_reason.lab import comparison

FOLDER = pathlib.Path(__file__).parent
FINAL = -1  # the place of the last evaluation


def decided(values: Sequence[float], sign: int, bound: float = 0.0) -> str:
  """'held' if the interval is beyond a bound on the side of a sign."""
  mean, half = comparison.interval(values)
  if half is None:
    return "open"
  low, high = sorted((sign * (mean - half), sign * (mean + half)))
  return "held" if low > bound else "refuted" if high < bound else "open"


def strictly(values: Sequence[float], sign: int) -> str:
  """`decided`, for plans that count an interval with 0 as refuted."""
  return "held" if decided(values, sign) == "held" else "refuted"


def within(values: Sequence[float], bound: float) -> str:
  """'held' if the interval lies within a bound on either side of 0."""
  mean, half = comparison.interval(values)
  if half is None:
    return "open"
  if abs(mean) + half <= bound:
    return "held"
  return "refuted" if abs(mean) - half > bound else "open"


class Scores:
  """The data of an ablation: values of rows by seed, in the same order."""

  def __init__(self, data: dict):
    self.runs = {(x["row"], x["seed"]): x for x in data["runs"]}
    self.seeds = [
        x for x in data["seeds"] if (data["reference"], x) in self.runs
    ]

  def accuracy(self, row: str, step: int = FINAL) -> np.ndarray:
    """Held-out accuracy in percent at an RL step, by default the last."""
    out = []
    for seed in self.seeds:
      curve = self.runs[row, seed]["evaluate"]
      at = step if step == FINAL else curve["step"].index(step)
      out.append(100 * curve["accuracy"][at])
    return np.asarray(out)

  def mean(self, row: str, name: str) -> np.ndarray:
    """The mean of a measure of training over all steps."""
    return np.asarray(
        [np.mean(self.runs[row, x]["rl"][name]) for x in self.seeds]
    )

  def change(self, row: str, name: str, steps: int) -> np.ndarray:
    """The mean of a measure over the first updates, less that before them."""
    of_row = [self.runs[row, x]["rl"][name] for x in self.seeds]
    return np.asarray([np.mean(x[1 : 1 + steps]) - x[0] for x in of_row])


class Finding(NamedTuple):
  """What was found on a hypothesis.

  Attributes:
    words: the hypothesis.
    values: differences by seed.
    verdict: 'held', 'refuted' or 'open'.
    unit: of the values.
  """

  words: str
  values: np.ndarray
  verdict: str
  unit: str = " points"


class Answer(NamedTuple):
  """What a study found: one sentence, and each hypothesis."""

  headline: str
  findings: list[Finding]


def points(values: np.ndarray) -> str:
  """'+1.4 ± 1.1 points'."""
  return f"{results.mean(values, '+.1f')} points"


def noisy_verdicts(scores: Scores) -> Answer:
  """Small noise, where learning stops, DAPO, MaxRL, and a cliff."""
  rows, shares = ("grpo", "dapo", "max_rl"), (0.05, 0.1, 0.2, 0.3, 0.4, 0.45)

  def at(row: str, share: float, step: int = FINAL) -> np.ndarray:
    return scores.accuracy(f"{row}, p = {share:g}", step)

  gain = {(x, p): at(x, p) - at(x, p, 0) for x in rows for p in (0, *shares)}
  loss = {(x, p): at(x, 0) - at(x, p) for x in rows for p in shares}
  small = -loss["grpo", 0.05]
  words = "1. grpo at p = .05 loses less than 5 points"
  out = [Finding(words, small, decided(small, 1, -5))]

  def learns(number: int, row: str, share: float) -> None:
    found = gain[row, share]
    words = f"{number}. {row} learns at p = {share:g}"
    out.append(Finding(words, found, strictly(found, 1)))

  def loses_more(number: int, row: str, share: float) -> None:
    found = loss[row, share] - loss["grpo", share]
    words = f"{number}. {row} loses more at p = {share:g} than grpo"
    out.append(Finding(words, found, strictly(found, 1)))

  learns(2, "grpo", 0.2)
  learns(2, "dapo", 0.2)
  loses_more(3, "dapo", 0.2)
  loses_more(4, "max_rl", 0.2)
  for row in rows:
    up, fall = (at(row, 0.1) - at(row, p) for p in (0.05, 0.2))
    outside = decided(up, 1) == "held" or decided(fall, -1) == "held"
    words = f"5. {row}: p = .1 lies between .05 and .2; here .1 minus .05"
    out.append(Finding(words, up, "refuted" if outside else "held"))
  for row in rows:
    learns(6, row, 0.3)
  for row in rows:
    found = gain[row, 0.45] - gain[row, 0] / 2
    words = f"7. {row} gains less than half at p = .45; here: gain - half"
    out.append(Finding(words, found, decided(found, -1)))
  loses_more(8, "dapo", 0.3)
  loses_more(8, "dapo", 0.4)
  out += [
      Finding(f"{row}: gain at p = {p:g}", gain[row, p], "")
      for row in rows
      for p in (0, *shares)
  ]
  learned = [
      [p for p in (0, *shares) if strictly(gain[x, p], 1) == "held"]
      for x in rows
  ]
  ends = [
      f"{row} learns up to p = {known[-1]:g} ({points(gain[row, known[-1]])},"
      f" without noise {points(gain[row, 0])})"
      for row, known in zip(rows, learned, strict=True)
  ]
  return Answer(
      "Where a share p of the verdicts is flipped (0.05, 0.1, 0.2, 0.3, 0.4 and"
      f" 0.45 were run), {results.joined(ends)}.",
      out,
  )


def preferences(scores: Scores) -> Answer:
  """What DPO and RL add."""
  with_dpo, alone = "SFT, DPO, RL", "SFT, RL"
  before, early, after = (
      scores.accuracy(with_dpo, x) - scores.accuracy(alone, x)
      for x in (0, 5, FINAL)
  )
  gain = scores.accuracy(alone) - scores.accuracy(alone, 0)
  more = gain - before
  words = (
      f"DPO adds {points(before)} to SFT, of which {points(early)} are left"
      f" after 5 RL steps and {points(after)} after 20; RL without DPO adds"
      f" {points(gain)}."
  )
  findings = [
      Finding("1. before RL, DPO adds something", before, decided(before, 1)),
      Finding("2. RL adds more than DPO", more, decided(more, 1)),
      Finding(
          "3. after RL, less than 5 points are left", after, within(after, 5)
      ),
      Finding("4. DPO saves steps: after 5 of RL", early, decided(early, 1)),
  ]
  return Answer(words, findings)


def temporal_groups(scores: Scores) -> Answer:
  """What earlier responses to the same prompt give."""
  name, earlier = "groups of {}{}".format, ", and earlier ones"
  small, large = (
      scores.accuracy(name(x, earlier)) - scores.accuracy(name(x, ""))
      for x in (2, 8)
  )
  norm = scores.mean(name(2, earlier), "gradient norm")
  norm = norm - scores.mean(name(2, ""), "gradient norm")
  less = large - small
  words = "3. the gradient norm, a mean over steps, falls in groups of 2"
  findings = [
      Finding("1. groups of 2 gain", small, decided(small, 1)),
      Finding("2. groups of 8 gain less", less, decided(less, -1)),
      Finding(words, norm, decided(norm, -1), ""),
  ]
  return Answer(
      "The last 8 responses to the same prompt in the baseline give"
      f" {points(small)} in groups of 2, and {points(large)} in groups of 8.",
      findings,
  )


def complexity(scores: Scores) -> Answer:
  """What a lambda costs that falls with offset or complexity."""
  offset, by_complexity = (
      scores.accuracy(x) - scores.accuracy("PPO")
      for x in ("by offset", "by complexity")
  )
  less = by_complexity - offset
  words = "2. by complexity ends below PPO"
  findings = [
      Finding("1. by offset ends below PPO", offset, decided(offset, -1)),
      Finding(words, by_complexity, decided(by_complexity, -1)),
      Finding("2. and above by offset", less, decided(less, 1)),
  ]
  return Answer(
      "A lambda of GAE that falls with the offset differs from PPO's constant"
      f" lambda by {points(offset)}, one that falls with the number of operands"
      f" by {points(by_complexity)}.",
      findings,
  )


def vapo_reasons(scores: Scores) -> Answer:
  """A biased critic, what repairs it, and where responses end."""
  names = {
      "pretraining": "+ value pretraining",
      "decoupled": "+ decoupled GAE",
      "adaptive": "+ length-adaptive GAE",
      "unbiased": "PPO, critic from the policy",
      "one": "lambda 1 for both",
  }
  ppo = scores.accuracy("PPO")
  end = {key: scores.accuracy(row) for key, row in names.items()}
  gain = ppo - scores.accuracy("PPO", 0)
  biased = ppo - end["unbiased"]
  repaired = end["pretraining"] - ppo
  adds = end["decoupled"] - end["pretraining"]
  same = end["adaptive"] - end["decoupled"]
  slower = end["one"] - end["decoupled"]
  tails = [scores.change(x, "length", 5) for x in ("PPO", names["one"])]
  findings = [
      Finding("1. the biased critic costs", biased, decided(biased, -1)),
      Finding(
          "2. value pretraining repairs it", repaired, decided(repaired, 1)
      ),
      Finding("3. decoupled GAE adds to it", adds, decided(adds, 1)),
      Finding("4. length-adaptive GAE changes nothing", same, within(same, 5)),
      Finding("5. lambda 1 for both is slower", slower, decided(slower, -1)),
      Finding(
          "6. PPO changes the length of the tail",
          tails[0],
          "refuted" if decided(tails[0], 1) == "open" else "held",
          " tokens",
      ),
      Finding("6. lambda 1 for both: the same", tails[1], "", " tokens"),
      Finding("gain of PPO", gain, ""),
  ]
  return Answer(
      "Where the critic starts from a reward model and four decisions are"
      f" spread over 256 tokens, PPO gains {points(gain)}; against a critic"
      f" from the policy the start costs {points(biased)}, value pretraining"
      f" adds {points(repaired)}, decoupled GAE {points(adds)} and"
      f" length-adaptive GAE {points(same)}.",
      findings,
  )


STUDIES: dict[str, Callable[[Scores], Answer]] = {
    x.__name__: x
    for x in (
        noisy_verdicts,
        preferences,
        temporal_groups,
        complexity,
        vapo_reasons,
    )
}


def page(name: str) -> list[str]:
  """The page of a study in Markdown."""
  data = json.loads((FOLDER / name / f"{name}.json").read_text())
  scores = Scores(data)
  headline, found = STUDIES[name](scores)
  tested = [x.verdict for x in found if x.verdict]
  counts = [
      f"{tested.count(x)} {x}"
      for x in ("held", "refuted", "open")
      if x in tested
  ]
  out = [
      f"# {data['title']}: the hypotheses",
      "",
      headline,
      "",
      f"Of {len(tested)} tests, {results.joined(counts)}."
      f" [plan.md](plan.md) has the hypotheses, [{name}.md]({name}.md) the"
      " runs."
      f" Mean of {len(scores.seeds)} differences paired by seed ± half of the"
      " width of the 95% interval (Student's t).",
      "",
      "| hypothesis | found | verdict |",
      "|---|---|---|",
  ]
  for x in found:
    form = "+.1f" if x.unit else "+.2f"
    shown = results.mean(x.values, form) + x.unit
    out.append(results.row(x.words, shown, x.verdict))
  return [*out, "", "Made by `python -m studies.verdicts`."]


def has_run(name: str) -> bool:
  """Whether the data of a study exist."""
  return (FOLDER / name / f"{name}.json").exists()


def main() -> None:
  """Writes all pages."""
  for name in STUDIES:
    if not has_run(name):
      print(f"{name}: planned and not run, no page is written")
      continue
    text = "\n".join(page(name)) + "\n"
    (FOLDER / name / "verdicts.md").write_text(text)
    print(text)


if __name__ == "__main__":
  main()
