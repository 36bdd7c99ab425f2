"""Priorities of prompts: a curriculum by the pass rates of the run itself.

A function takes the pass rate that the run expects of a prompt, a number in
[0, 1], and returns the probability of training on the prompt when the shuffled
stream of rows comes to it: a prompt is then sampled in proportion to its
priority. A prompt whose pass rate is not known is always drawn. With
`rollout.priority.name = "none"` every prompt is.
"""

from typing import Annotated

# A prompt that is never drawn would keep its pass rate while the policy learns.
Least = Annotated[float, (1e-3, 1)]


def failure_rate(pass_rate: float, *, least: Least = 0.05) -> float:
  """1 - p: prioritized sampling of Kimi k1.5 (arXiv:2501.12599).

  Harder prompts are drawn more often.

  Args:
    pass_rate: p, the expected share of correct responses.
    least: of the probabilities, so that a solved prompt comes back sometimes.
  """
  return max(1 - pass_rate, least)


def learnability(pass_rate: float, *, least: Least = 0.05) -> float:
  """4 p (1 - p): learnability of a prompt (arXiv:2502.12272), at most 1.

  p (1 - p) is the variance of a verdict, so that prompts near a pass rate of
  1/2 are drawn most often. The paper samples from a buffer of the most
  learnable prompts; here all prompts are drawn in proportion.

  Args:
    pass_rate: p, the expected share of correct responses.
    least: of the probabilities, so that the pass rates of prompts that are
      never or always solved are measured again.
  """
  return max(4 * pass_rate * (1 - pass_rate), least)
