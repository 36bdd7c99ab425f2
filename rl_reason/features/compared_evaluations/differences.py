"""What --stage=evaluate says of evaluations compared, besides their scores."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from rl_reason.base import feature, json_files
from rl_reason.evaluation.accuracy import Responses, levels
from rl_reason.evaluation.statistics import interval
from rl_reason.features.compared_evaluations import side_by_side
from rl_reason.report import paired
from rl_reason.report.scores import Score


class Compared(feature.Evaluator):
  """The differences of an evaluation from others, and a table of several.

  Args:
    against: files of `evaluate.against`.
    display: the screen.

  Raises:
    RunError: one of the files is of another kind.
  """

  def __init__(self, against: Sequence[pathlib.Path], display: Any):
    self._others = {x: paired.read(x) for x in against}  # before it takes long
    self._display = display

  def metrics(
      self, found: Any, sets: Any, earlier: Sequence[Any]
  ) -> dict[str, float]:
    """The differences from the first evaluation of the command, and others."""
    say, out = self._display.say, {}
    for x in sets:
      if line := by_difficulty(x):
        say(line)
      if x.measure == "acc" and x.measured:
        out |= by_budget({**found.fields, **x.sampling}, x, say)
    new = paired.values_of(found.lines)
    first = {x.path: paired.values_of(x.lines) for x in earlier[:1]}
    display = self._display
    out |= compared(first, new, found.path, display, show=False)
    return out | compared(self._others, new, found.path, display)

  def end(self, found: Sequence[Any]) -> None:
    """Shows the evaluations of a command in one table, and writes it."""
    if not found[1:]:
      return
    head, rows = side_by_side.table(found)
    self._display.table(
        "side by side, with 95% intervals; in parentheses the difference from"
        f" {head[3]}, paired by problem",
        head,
        rows,
    )
    if jax.process_index() == 0:
      path = found[0].path.parent / side_by_side.FILE
      json_files.write_text(path, side_by_side.markdown(head, rows))
      self._display.say(f"the same table: {path}")


def compared(
    others: Mapping[pathlib.Path, paired.Values],
    new: paired.Values,
    path: pathlib.Path,
    display: Any,
    *,
    show: bool = True,
) -> dict[str, float]:
  """Metrics of the differences to other evaluations.

  `path` is the file that this evaluation is about to write; `show` is whether
  the screen has a table of the differences.
  """
  found, out = {}, {}
  for label, other in paired.labels([*others], path).items():
    found[label] = paired.differences(new, others[other])
    for line in unpaired(label, found[label], new):
      display.say(f"warning: {line}")
    for x in found[label]:
      mark = f"minus_{label.replace('/', ':')}"
      key = f"val-aux/{x.of_set}/{mark}/{x.measure}/{x.name}"
      out |= {key: x.new - x.old, f"{key}/ci95": x.half}
  if show and any(found.values()):
    display.table(
        "differences on the same prompts, paired, with 95% intervals",
        [
            *("compared with", "set", "score", "prompts"),
            *("there", "here", "difference"),
        ],
        paired.table(found),
    )
  return out


def unpaired(
    label: str, found: Sequence[paired.Difference], new: paired.Values
) -> list[str]:
  """Lines on sets without a partner, and on prompts without one."""
  out = []
  compared = {(x.of_set, x.measure) for x in found}
  for of_set, measure in new:
    if (of_set, measure) in compared:
      continue
    remedy = "the same set, difficulties and evaluate.samples give pairs"
    if "~" in of_set:  # perturbed copies
      remedy = "evaluate both with the same evaluate.perturb"
    out.append(
        f"{of_set}: no problem and score in common with {label}: nothing to"
        f" compare; {remedy}"
    )
  for of_set, alone in {x.of_set: x.alone for x in found if x.alone}.items():
    out.append(
        f"{of_set}: {alone:,} prompts are not in both this evaluation and"
        f" {label}, and are left out of the differences"
    )
  return out


def by_difficulty(responses: Responses) -> str:
  """The scores of each difficulty in a line; '' where all rows have one."""
  found = levels(responses)
  if len(found) < 2:
    return ""
  verified = responses.measure == "acc"
  unit = "tokens" if verified else "reward"
  scores = [Score(x.mean, x.half, share=verified, unit=unit) for x in found]
  parts = [
      f"{level.difficulty}: {score.text()}"
      for level, score in zip(found, scores, strict=True)
  ]
  head = f"{responses.name}, mean@{responses.mean_of} by difficulty"
  return f"{head}: {', '.join(parts)}"


def by_budget(
    fields: Mapping[str, Any],
    responses: Responses,
    say: Callable[[str], None],
) -> dict[str, float]:
  """Metrics of the accuracy at an eighth, a quarter, half of and all tokens.

  `fields` is the flat config with which the set was sampled.
  """
  mean_of, limit = responses.mean_of, fields["rollout.max_tokens"]
  out, shown = {}, []
  for tokens in sorted({max(limit // n, 1) for n in (8, 4, 2, 1)}):
    mean, half = within_budget(responses, tokens)
    name = f"val-aux/{responses.name}/within_{tokens}_tokens/mean@{mean_of}"
    out |= {name: mean, f"{name}/ci95": half}
    shown.append(f"{tokens}: {mean:.1%} +- {100 * half:.1f}")
  say(
      f"{responses.name}, mean@{mean_of} by the maximum of tokens:"
      f" {', '.join(shown)}"
  )
  return out


def within_budget(responses: Responses, tokens: int) -> tuple[float, float]:
  """The accuracy if sampling ended after `tokens`, and half of its interval.

  A longer response is incorrect then. One sampling has the accuracy at every
  budget, since the policy does not know the limit.
  """
  within_NG = responses.correct_NG * (responses.lengths_NG <= tokens)
  return interval("acc", within_NG[:, : responses.mean_of].mean(1))
