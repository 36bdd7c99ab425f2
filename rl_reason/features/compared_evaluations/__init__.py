"""Evaluations compared: with others, side by side, by difficulty and budget.

`evaluate.against` names evaluations that were made before, `evaluate.models`
further models; see README.md.
"""

import pathlib

from rl_reason.base import config, feature
from rl_reason.base.fields import path


def files(c) -> list[pathlib.Path]:
  """The files of evaluate.against, 'a,b,c'; a name may contain commas.

  Raises:
    ConfigError: one of them is no file.
  """
  from rl_reason.checks import run_directory  # reads the table of features

  fault = (
      "evaluate.against: there is no file {}; --stage=evaluate writes"
      " prompts-WHICH.jsonl into a work directory"
  )
  text = c.evaluate.against
  return run_directory.split_paths(text, pathlib.Path.is_file, fault)


class _ComparedEvaluations(feature.Declaration):
  marks = {
      "free": ("evaluate.against", "evaluate.models"),
      "readers": {"evaluate.against": (files, "")},
  }

  def fields(self, c) -> None:
    config.extend(
        c,
        "evaluate",
        # --stage=evaluate: RUN/prompts-WHICH.jsonl of evaluations to compare
        # with
        against=path(),
        # --stage=evaluate: further models, as model.path; separated by commas
        models=path(),
    )

  def used(self, c) -> bool:
    return bool(c.evaluate.against or c.evaluate.models)

  def policies(self, first, workdirs, given, say):
    from rl_reason.features.compared_evaluations import evaluated_policies

    return evaluated_policies.others(first, workdirs, given, say)

  def evaluator(self, c, stage: feature.Evaluating) -> feature.Evaluator:
    from rl_reason.features.compared_evaluations import differences

    return differences.Compared(files(c), stage.display)


FEATURE = _ComparedEvaluations()
