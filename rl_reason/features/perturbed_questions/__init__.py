"""Robustness: an evaluation of perturbed copies of the held-out questions.

`evaluate.perturb` names the copies; see README.md.
"""

from rl_reason.base import config, feature


def _names(c) -> list[str]:
  from rl_reason.features.perturbed_questions import perturbations

  return perturbations.parse(c.evaluate.perturb, c.task.name)


class _PerturbedQuestions(feature.Declaration):
  marks = {
      "free": ("evaluate.perturb",),
      "readers": {"evaluate.perturb": (_names, "task.name")},
  }

  def fields(self, c) -> None:
    # --stage=evaluate: copies: paraphrase, distractor, numbers, names
    config.extend(c, "evaluate", perturb="")

  def used(self, c) -> bool:
    return bool(c.evaluate.perturb)

  def evaluator(self, c, stage: feature.Evaluating) -> feature.Evaluator:
    if not self.used(c):
      return feature.Evaluator()
    from rl_reason.features.perturbed_questions import perturbed_sets

    return perturbed_sets.PerturbedSets(c, _names(c), stage)


FEATURE = _PerturbedQuestions()
