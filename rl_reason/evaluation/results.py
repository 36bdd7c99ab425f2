"""Results of an evaluation, for lm-evaluation-harness and for the browser."""

import math
from collections.abc import Callable
from typing import Any

from rl_reason import tasks
from rl_reason.base import json_files
from rl_reason.evaluation import set_table, stop_texts
from rl_reason.evaluation.accuracy import Responses, calibration, levels
from rl_reason.report import rendering
from rl_reason.report.scores import Score


def harness_results(
    values: dict[str, float],
    sets: list[Responses],
    fields: dict,
    dropped: dict[str, list[dict[str, str]]],
) -> dict:
  """Returns the metrics in the layout of lm-evaluation-harness.

  Args:
    values: metrics of `evaluate`.
    sets: responses to each set.
    fields: the flat config.
    dropped: set -> rows that preparation left out.

  Returns:
    results: set -> 'metric,filter' -> value, and its standard error; n-samples:
    set -> prompts; configs: set -> how it was sampled; dropped: set -> prompts
    that were not evaluated, and why.
  """
  keys = ("results", "n-samples", "configs", "versions", "dropped")
  out: dict = {key: {} for key in keys}
  for responses in sets:
    name, rows = responses.name, len(responses.rows)
    prefix = f"val-core/{name}/{responses.measure}/"
    results: dict[str, str | float] = {"alias": name}
    # Names and standard errors as lm-evaluation-harness writes them: a 95%
    # interval is 1.96 of them wide to each side.
    for key, value in values.items():
      metric = key.removeprefix(prefix)
      if metric != key and not metric.endswith("/ci95"):
        results[f"{metric},none"] = value
        error = values[f"{key}/ci95"] / 1.96
        results[f"{metric}_stderr,none"] = error if math.isfinite(error) else 0
    out["results"][name] = results
    # Prompts that were dropped are part of the original size, so that nobody
    # takes the rest for the complete set.
    left_out = dropped.get(name, [])
    out["dropped"][name] = left_out
    out["n-samples"][name] = {
        "original": rows + len(left_out),
        "effective": rows,
    }
    out["configs"][name] = {
        "task": name,
        **_sampling({**fields, **responses.sampling}, responses.rows[0]),
    }
    out["versions"][name] = 1
  return out


def _sampling(fields: dict, row: tasks.Row) -> dict[str, Any]:
  """How the responses to a set were sampled.

  Args:
    fields: the flat config.
    row: one of the set.
  """
  sampling = {
      "do_sample": fields["evaluate.temperature"] > 0,
      "temperature": fields["evaluate.temperature"],
      "top_p": fields["evaluate.top_p"],
      "max_gen_toks": fields["rollout.max_tokens"],
  }
  filters = dict(top_k=0, min_p=0.0, repetition_penalty=1.0)
  set_here = {
      name: fields.get(f"evaluate.{name}", x) for name, x in filters.items()
  }
  sampling |= {name: x for name, x in set_here.items() if x != filters[name]}
  if stop := stop_texts.of_row(row, fields["data.template"]):
    sampling["until"] = [*stop]
  return dict(repeats=fields["evaluate.samples"], generation_kwargs=sampling)


def responses_page(
    title: str,
    values: dict[str, float],
    sets: list[Responses],
    answer: Callable[[str, tasks.Row], str] | None = None,
) -> str:
  """Returns the page of all responses with verdicts and reference answers.

  `answer` is (response, row) -> the answer that votes; None: no calibration.
  """
  responses, by_difficulty = [], []
  doubtful: list[dict] = []
  for x in sets:
    verified = x.measure == "acc"
    # Without a verifier nothing is correct or incorrect: there is a score only.
    rows = [
        dict(
            prompt=row.prompt,
            answer=row.answer,
            correct=int(x.correct_NG[n].sum()) if verified else None,
            score=json_files.number(x.scores_NG[n].mean(), 4),
            responses=[
                dict(
                    text=text,
                    correct=bool(x.correct_NG[n, g]) if verified else None,
                    score=json_files.number(x.scores_NG[n, g], 4),
                    truncated=bool(x.truncated_NG[n, g]),
                    length=int(x.lengths_NG[n, g]),
                )
                for g, text in enumerate(x.texts_NG[n])
            ],
        )
        for n, row in enumerate(x.rows)
    ]
    responses.append(dict(name=x.name, rows=rows))
    doubtful += x.doubtful or []
    # By difficulty: an average hides which difficulties improve.
    for level in levels(x):
      unit = "tokens" if verified else "reward"
      score = Score(level.mean, level.half, share=verified, unit=unit)
      cells = [
          (str(level.difficulty), None),
          (str(level.prompts), None),
          (score.text(" ± "), level.mean if verified else None),
          (Score(level.truncated).text(), level.truncated),
      ]
      by_difficulty.append(dict(name=x.name, about="", cells=cells))
  means = dict.fromkeys(f"avg@{x.mean_of}" for x in sets)
  head = ["set", "difficulty", "prompts", ", ".join(means), "truncated"]
  data = dict(
      title=title,
      notes=[],
      scores=set_table.for_page(values, sets),
      metrics=[(name, f"{value:.4g}") for name, value in values.items()],
      levels=dict(head=head, rows=by_difficulty),
      calibration=_calibration(sets if answer else [], answer),
      doubtful=doubtful,
      doubtful_note="" if doubtful else "None were found.",
      sets=responses,
  )
  return rendering.render("responses", data)


def _calibration(
    sets: list[Responses], answer: Callable[[str, tasks.Row], str] | None
) -> dict:
  """The bins of each set: confidence in the majority answer, and accuracy."""
  rows = []
  for x in sets:
    assert answer
    for prompts, confidence, accuracy, half in calibration(x, answer):
      cells = [
          (f"{prompts:,}", None),
          (Score(confidence).text(), confidence),
          (Score(accuracy, half).text(" ± "), accuracy),
      ]
      rows.append(dict(name=x.name, about="", cells=cells))
  head = ["set", "prompts", "mean share of the samples", "correct"]
  return dict(head=head, rows=rows)
