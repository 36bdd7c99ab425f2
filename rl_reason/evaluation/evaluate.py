"""Held-out accuracy: mean@k, pass@k, maj@k with intervals, and greedy.

The noise of a sample depends on the seed and the prompt only, so two models of
one run are compared on the same random numbers.
"""

import collections
import math
import operator
from typing import NamedTuple

import jax
import numpy as np

from rl_reason import tasks
from rl_reason.checkpointing.resumable import check_stop
from rl_reason.data import pipelines
from rl_reason.evaluation import grading
from rl_reason.monitoring.rl_metrics import sample_lines
from rl_reason.randomness import key
from rl_reason.scale import sharding
from rl_reason.structs import Tree
from rl_reason.tasks import scorers


def mean_interval(values_N: np.ndarray) -> tuple[float, float]:
  """Mean over prompts and the half-width of its 95% normal interval.

  Args:
    values_N: one number per prompt; samples of a prompt are averaged before,
      since they are not independent.
  """
  spread = values_N.std(ddof=1) if len(values_N) > 1 else 0.0
  return float(values_N.mean()), float(1.96 * spread / len(values_N) ** 0.5)


def pass_at_k(correct_NG: np.ndarray, k: int) -> np.ndarray:
  """Chance that at least one of k samples is right, unbiased: [N].

  1 - C(G - c, k) / C(G, k) with c of G right (Codex, arXiv:2107.03374, eq 1).

  Args:
    correct_NG: {0, 1}, G >= k samples of each prompt.
    k: samples drawn without replacement.
  """
  samples = correct_NG.shape[1]
  wrong_N = samples - correct_NG.sum(1).astype(int)
  none_N = [math.comb(w, k) / math.comb(samples, k) for w in wrong_N]
  return 1 - np.array(none_N)


def vote(
    answers_NG: list[list[str]], correct_NG: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """The most frequent answer of each prompt: how often, and is it right.

  Samples without an answer ('') do not vote; ties go to the answer that came
  first. Answers that are equal as text count as one.

  Returns:
    share of all samples that gave it [N], and {0, 1} [N]; 0 without a vote.
  """
  share_N, right_N = np.zeros((2, len(answers_NG)))
  for n, answers in enumerate(answers_NG):
    votes = collections.Counter(a for a in answers if a)
    if votes:
      winner, count = votes.most_common(1)[0]
      share_N[n] = count / len(answers)
      right_N[n] = correct_NG[n][answers.index(winner)]
  return share_N, right_N


def calibration_error(
    sure_N: np.ndarray, right_N: np.ndarray, *, bins: int = 10
) -> float:
  """Mean distance of confidence and accuracy, over bins of confidence.

  The expected calibration error of arXiv:1706.04599, eq 3.

  Args:
    sure_N: [N] in [0, 1], how sure each prediction is.
    right_N: [N] in [0, 1].
    bins: of equal width.
  """
  bin_N = np.minimum((sure_N * bins).astype(int), bins - 1)
  gaps = [
      (bin_N == i).mean() * abs((right_N - sure_N)[bin_N == i].mean())
      for i in np.unique(bin_N)
  ]
  return float(sum(gaps))


def summarize(
    name: str,
    rows,
    correct_NG,
    greedy_N,
    answers_NG,
    *,
    mean_of: int,
    score_of: int,
) -> dict[str, float]:
  """All numbers of an evaluation, under the names that verl's users know."""
  samples = correct_NG.shape[1]
  level_N = np.array([row.difficulty for row in rows])
  out = {}

  def add(key, values_N):
    mean, half = mean_interval(np.asarray(values_N, float))
    out[f"val-core/{name}/acc/{key}"] = mean
    out[f"val-core/{name}/acc/{key}/ci95"] = half

  mean_N = correct_NG[:, :mean_of].mean(1)
  add(f"mean@{mean_of}", mean_N)
  add("greedy", greedy_N)
  share_N, right_N = vote(answers_NG, correct_NG)
  add(f"maj@{samples}", right_N)
  for k in [2**i for i in range(samples.bit_length()) if 2**i <= samples]:
    add(f"pass@{k}", pass_at_k(correct_NG, k))
  sure = f"val-aux/{name}/maj_calibration_error"
  out[sure] = calibration_error(share_N, right_N)
  # Checkpoints compete on the prompts that every evaluation has.
  out["val-aux/score"] = float(mean_N[:score_of].mean())
  for level in np.unique(level_N):
    key = f"val-aux/{name}/difficulty_{level}/acc/mean@{mean_of}"
    out[key] = float(mean_N[level_N == level].mean())
  return out


class Responses(NamedTuple):
  """What a model said to the prompts of one set: N prompts, G + 1 samples each.

  Attributes:
    name: of the set.
    rows: of the prompts.
    texts_NG: lists of responses; the last one of each prompt is greedy.
    correct_NG, lengths_NG, truncated_NG: of the same shape.
    samples: the first response of each prompt as a line for samples.jsonl.
    failures: responses on which the verifier itself failed.
    repeated: mean share of a response's tokens that it had before.
  """

  name: str
  rows: list[tasks.Row]
  texts_NG: list[list[str]]
  correct_NG: np.ndarray
  lengths_NG: np.ndarray
  truncated_NG: np.ndarray
  samples: list[dict]
  failures: int
  repeated: float


class Level(NamedTuple):
  """How the prompts of one difficulty of a set went.

  Attributes:
    difficulty: as its rows have it.
    prompts: how many.
    mean, half: accuracy of samples, and half its 95% interval.
    cut: share of samples that were longer than allowed.
  """

  difficulty: int
  prompts: int
  mean: float
  half: float
  cut: float


def levels(said: Responses, mean_of: int) -> list[Level]:
  """Each difficulty of a set, the lowest first.

  Args:
    said: the responses; the greedy ones do not count.
    mean_of: samples that accuracy is the mean of; all of them may be cut off.
  """
  level_N = np.array([row.difficulty for row in said.rows])
  mean_N = said.correct_NG[:, :mean_of].mean(1)
  cut_N = said.truncated_NG[:, :-1].mean(1)
  return [
      Level(
          int(level),
          int((level_N == level).sum()),
          *mean_interval(mean_N[level_N == level]),
          float(cut_N[level_N == level].mean()),
      )
      for level in np.unique(level_N)
  ]


def respond(
    session, params: Tree, name: str, rows: list[tasks.Row], doing: str
) -> Responses:
  """Samples and scores responses to the prompts of one set.

  Args:
    session: of the run.
    params: of the model.
    name: of the set.
    rows: of its prompts.
    doing: shown while it works.
  """
  c = session.config
  batch, each = c.evaluate.batch, c.evaluate.samples + 1
  heat_G = np.array([c.evaluate.temperature] * (each - 1) + [0.0], np.float32)
  parts, texts, kept, repeats, failures = [], [], [], [], 0
  for first in range(0, len(rows), batch):
    session.display.doing(f"{doing}: {name}, prompt {first}/{len(rows)}")
    some = rows[first : first + batch]
    filled = [*some, *[some[0]] * (batch - len(some))]  # one shape, one program
    prompts = pipelines.pack_prompts(
        session.tok,
        [row.prompt for row in filled],
        range(first, first + batch),
        c.rollout.max_prompt,
    )
    rollouts = sharding.fetch(
        session.engine.sample(
            params,
            prompts,
            key(session.mesh, c.seed, "evaluate"),
            heat_G,
            group_size=each,
            top_p=c.evaluate.top_p,
        )
    )
    real = slice(len(some) * each)
    rollouts = jax.tree.map(operator.itemgetter(real), rollouts)
    said, correct_B, failed = grading.grade(
        session.task, session.tok, rollouts, some
    )
    failures += failed
    facts_B3 = np.stack(
        [correct_B, rollouts.lengths_B, rollouts.truncated_B], -1
    )
    parts.append(facts_B3.reshape(len(some), each, 3))
    texts += [said[b : b + each] for b in range(0, len(said), each)]
    first_N = np.arange(len(some)) * each
    tokens_BT = rollouts.tokens_BL[:, c.rollout.max_prompt :]
    kept += sample_lines(session.tok, rollouts, some, said, correct_B, first_N)
    repeats += [
        scorers.repeated(tokens_BT[b, :n].tolist())
        for b, n in zip(first_N, rollouts.lengths_B[first_N], strict=True)
    ]
    check_stop(session.stop)
  correct_NG, length_NG, cut_NG = np.moveaxis(np.concatenate(parts), -1, 0)
  return Responses(
      name=name,
      rows=rows,
      texts_NG=texts,
      correct_NG=correct_NG,
      lengths_NG=length_NG,
      truncated_NG=cut_NG,
      samples=kept,
      failures=failures,
      repeated=float(np.mean(repeats)),
  )


def score(session, said: Responses) -> dict[str, float]:
  """All numbers of the responses to one set."""
  c = session.config
  answers_NG = [
      [
          "" if cut else session.task.answer(text, row)
          for text, cut in zip(texts[:-1], cut_G[:-1], strict=True)
      ]
      for row, texts, cut_G in zip(
          said.rows, said.texts_NG, said.truncated_NG, strict=True
      )
  ]
  return summarize(
      said.name,
      said.rows,
      said.correct_NG[:, :-1],
      said.correct_NG[:, -1],
      answers_NG,
      mean_of=c.evaluate.mean_of,
      score_of=c.evaluate.interim_prompts,
  )


def evaluate(session, params: Tree, count: int, doing: str):
  """Samples and scores held-out prompts of every set.

  Args:
    session: of the run.
    params: of the model.
    count: prompts of a set, at most.
    doing: shown while it works.

  Returns:
    metrics, and the `Responses` to each set.
  """
  c = session.config
  weights = session.engine.weights(params)
  everything = [
      respond(session, weights, name, rows[:count], doing)
      for name, rows in session.rows.evaluation_sets(c.evaluate.prompts).items()
  ]
  metrics, competing = {}, []
  for said in everything:
    metrics |= score(session, said)
    competing.append(metrics["val-aux/score"])
  lengths = [said.lengths_NG[:, :-1].ravel() for said in everything]
  cut = [said.truncated_NG[:, :-1].ravel() for said in everything]
  metrics |= {
      "val-aux/score": float(np.mean(competing)),
      "val-aux/response_length/mean": float(np.concatenate(lengths).mean()),
      "val-aux/response_length/clip_ratio": float(np.concatenate(cut).mean()),
      "val-aux/repetition/mean": float(
          np.mean([said.repeated for said in everything])
      ),
      "val-aux/verifier_failures": sum(said.failures for said in everything),
  }
  return metrics, everything
