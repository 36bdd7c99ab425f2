"""The stage `--stage=dpo`: the policy of SFT learns from preferences.

Direct preference optimization (DPO) on pairs of responses, before RL; see
README.md.
"""

from collections.abc import Iterator

from rl_reason import tasks
from rl_reason.base import feature
from rl_reason.base.fields import choice, field, number, path, rate, section

_STYLES = "dpo.chosen", "dpo.rejected"
_OF_TASK = {"dpo.samples": "the pairs of files have no styles of the task"}
_PRETRAINED = 1e-4  # a large learning rate for a checkpoint


class _PreferenceOptimization(feature.Declaration):
  stages = {
      "dpo": feature.Stage(
          run="rl_reason.features.preference_optimization.dpo:run",
          about="SFT, and DPO on pairs of responses; with dpo.steps, the stage"
          " 'all' has it as well, before RL",
          rate="dpo.lr",
          policy=True,
          steps="dpo.steps",
          rows=lambda c: {"dpo.batch": 2 * c.dpo.batch},
          other_names=("preferences", "preference_optimization"),
      )
  }
  marks = {
      "smoke": {"dpo.steps": 10, "dpo.warmup_steps": 5},
      "sources": ("dpo.samples",),
      "evaluated": {"dpo.steps": 0},
      "mixtures": _STYLES,
  }

  def fields(self, c) -> None:
    c.dpo = section(  # --stage=dpo, and in --stage=all between SFT and RL
        "dpo",
        "dpo.steps",
        steps=number(0, low=0),  # 0 is off
        batch=number(32, low=1),  # pairs
        lr=rate(1e-4),
        schedule=choice("linear", "cosine", "constant"),
        warmup_steps=number(0, low=0, at_most="dpo.steps"),
        beta=number(0.1, low=1e-6),  # of the KL to the policy of SFT
        label_smoothing=number(0.0, low=0, high=0.5),  # share of wrong labels
        chosen=field("", not_with=_OF_TASK),  # style:weight of correct ones
        rejected=field("", not_with=_OF_TASK),  # style:weight of incorrect ones
        evaluate_pairs=number(500, low=1),  # held out
        samples=path(),  # sources of pairs: of --stage=generate, or ratings
    )

  def used(self, c) -> bool:
    return bool(c.dpo.steps)

  def rules(self, c) -> Iterator[feature.Rule]:
    from rl_reason.checks import data_rules

    yield from data_rules.styles(c, _STYLES)
    files, found = c.task.name == tasks.FILES, tasks.get(c.task.name)
    if not (c.dpo.samples or files or found.has_demonstrations):
      yield "dpo.samples", (
          f"the task {c.task.name} has no function demonstrate: name files with"
          " pairs"
      )
    if feature.judge(c) and not c.dpo.samples:
      yield "dpo.samples", (
          "demonstrations of an environment are no pairs of texts: name files"
          " with pairs"
      )

  def cautions(self, c) -> Iterator[feature.Rule]:
    if c.model.path and c.dpo.lr >= _PRETRAINED:
      yield "dpo.lr", (
          "suits a small model that starts from random parameters; DPO of a"
          " checkpoint usually takes 5e-7 to 5e-6"
      )


FEATURE = _PreferenceOptimization()
