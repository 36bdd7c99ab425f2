"""Evaluation as a stage of its own, from a work directory.

WORKDIR/evaluation-WHICH.json       every number, in rl_reason's names
WORKDIR/results-WHICH.json          the same as lm-evaluation-harness lays out
WORKDIR/responses-WHICH.html        every response, to be browsed
"""

import functools
import math

import jax

from rl_reason import config as config_lib
from rl_reason.checkpointing import rl_state
from rl_reason.evaluation import evaluate
from rl_reason.monitoring import metrics
from rl_reason.report import page, scores as scores_lib
from rl_reason.session import Session
from rl_reason.training import sft


def run(session: Session, which: str) -> dict[str, float]:
  """Evaluates a checkpoint and writes the files above.

  Args:
    session: of the run.
    which: 'sft', 'newest', 'best', or a step of RL.

  Returns:
    the metrics.

  Raises:
    RunError: there is no such checkpoint.
  """
  if which == "sft":
    params, at = sft.load(session), 0
  else:
    sft_params = functools.partial(sft.load, session)
    params, _, at = rl_state.load(session, which, sft_params)
  count = session.config.evaluate.prompts
  values, told = evaluate.evaluate(session, params, count, "evaluating")
  values = {k: metrics.number(v) for k, v in values.items()}
  for name, value in values.items():
    session.display.say(f"{name} = {value:.4g}")
  if jax.process_index() == 0:
    path = session.workdir / f"evaluation-{which}.json"
    metrics.write_json(path, dict(step=at) | values)
    session.display.say(f"written to {path}")
    fields = config_lib.flat(session.config)
    metrics.write_json(
        session.workdir / f"results-{which}.json", results(values, told, fields)
    )
    path = session.workdir / f"responses-{which}.html"
    title = f"{session.workdir.absolute().name}, step {at}"
    text = browse(title, values, told, session.config.evaluate.mean_of)
    metrics.write_text(path, text)
    session.display.say(f"responses: {path}")
  return values


def results(
    values: dict[str, float], told: list[evaluate.Responses], fields: dict
) -> dict:
  """The numbers as lm-evaluation-harness writes them.

  Args:
    values: of `evaluate.evaluate`.
    told: responses to each set.
    fields: the flat config.

  Returns:
    results: set -> 'metric,filter' -> value, and its standard error; n-samples:
    set -> prompts; configs: set -> how it was sampled.
  """
  sampling = {
      "do_sample": fields["evaluate.temperature"] > 0,
      "temperature": fields["evaluate.temperature"],
      "top_p": fields["evaluate.top_p"],
      "max_gen_toks": fields["rollout.max_tokens"],
  }
  out = {}
  for said in told:
    core = f"val-core/{said.name}/acc/"
    numbers: dict[str, str | float] = {"alias": said.name}
    for name, value in values.items():
      metric = name.removeprefix(core)
      if metric != name and not metric.endswith("/ci95"):
        numbers[f"{metric},none"] = value
        error = values[f"{name}/ci95"] / 1.96
        numbers[f"{metric}_stderr,none"] = error if math.isfinite(error) else 0
    out[said.name] = numbers
  return {
      "results": out,
      "n-samples": {
          x.name: {"original": len(x.rows), "effective": len(x.rows)}
          for x in told
      },
      "configs": {
          x.name: {
              "task": x.name,
              "repeats": fields["evaluate.samples"],
              "generation_kwargs": sampling,
          }
          for x in told
      },
      "versions": {x.name: 1 for x in told},
  }


def browse(
    title: str,
    values: dict[str, float],
    told: list[evaluate.Responses],
    mean_of: int,
) -> str:
  """Returns the page of all responses with verdicts and reference answers.

  Args:
    title: of the page.
    values: of `evaluate.evaluate`.
    told: responses to each set.
    mean_of: samples of a prompt that its accuracy is the mean of.
  """
  sets = []
  for said in told:
    rows = []
    for n, row in enumerate(said.rows):
      correct_G = said.correct_NG[n]
      rows.append(
          dict(
              prompt=row.prompt,
              answer=row.answer,
              correct=int(correct_G.sum()),
              responses=[
                  dict(
                      text=text,
                      correct=bool(correct_G[g]),
                      truncated=bool(said.truncated_NG[n, g]),
                      length=int(said.lengths_NG[n, g]),
                  )
                  for g, text in enumerate(said.texts_NG[n])
              ],
          )
      )
    sets.append(dict(name=said.name, rows=rows))
  scores = [(name, f"{value:.4g}") for name, value in values.items()]
  levels = by_difficulty(told, mean_of)
  data = dict(title=title, notes=[], scores=scores, levels=levels, sets=sets)
  return page.render("responses", data)


def by_difficulty(told: list[evaluate.Responses], mean_of: int) -> dict:
  """The table of the page: each difficulty of each set."""
  head = ["set", "difficulty", "prompts", f"avg@{mean_of}", "truncated"]
  rows = []
  for said in told:
    for level in evaluate.levels(said, mean_of):
      score = scores_lib.Score(level.mean, level.half)
      cells = [
          (str(level.difficulty), None),
          (str(level.prompts), None),
          (score.text(" ± "), level.mean),
          (scores_lib.Score(level.cut).text(), level.cut),
      ]
      rows.append(dict(name=said.name, about="", cells=cells))
  return dict(head=head, rows=rows)
