"""Held-out accuracy: mean@k, pass@k, maj@k with intervals, and greedy.

The noise of a sample depends on the seed and the prompt only, so the models of
one run are compared on common random numbers.
"""

import functools
import hashlib
import json
import operator
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from rl_reason import tasks
from rl_reason.base import json_files
from rl_reason.base.structs import NO_SCORE, Rollouts
from rl_reason.collect import doubtful_verdicts as doubtful_lib, grading
from rl_reason.collect.reward_runner import Rewards
from rl_reason.evaluation import stop_texts
from rl_reason.evaluation.statistics import (
    Bin,
    best_of_k,
    calibration_curve,
    calibration_error,
    interval,
    majority_vote,
    mean_interval,
    pass_at_k,
    share_interval,
)
from rl_reason.monitoring import alerts, samples, step_metrics
from rl_reason.report import scores as scores_lib
from rl_reason.tasks import reward_functions

SCORE = "val-aux/score"  # checkpoints are chosen by it, by nothing else
NOT_MEASURED = 0.1  # share of failures beyond which a set has no score


class Responses(NamedTuple):
  """Responses to one set: N prompts, G - 1 samples and a greedy one of each.

  Attributes:
    name: of the set.
    rows: the N rows.
    texts_NG: the responses; the last one of each prompt is greedy.
    correct_NG, lengths_NG, truncated_NG: likewise.
    lines: the first response to some prompts as a line of samples.jsonl.
    failures: of the verifier and of reward functions.
    repetition: mean share of repeated tokens in first responses.
    broken: number of responses by `step_metrics.broken_responses`.
    rewards_NG: where nothing verifies the rows, the weighted terms of the
      reward, with their weights at the end of the run, and NaN where it is not
      known; else None.
    unknown: number of responses whose verdict or reward is not known, since the
      verifier or a function failed.
    mean_of: samples of each prompt in mean@k, the first ones.
    sampling: fields of the config that the protocol of the set replaced.
    doubtful: rejected ones that may be right, see `doubtful_verdicts`; None
      where the task cannot read leniently.
    terms_NG: scores of each term of the reward by name; NaN where a function
      failed.
    numbers_NG: further numbers of responses by name, of `feature.Player`.
    by_level: names of those whose means are of interest by difficulty.
  """

  name: str
  rows: list[tasks.Row]
  texts_NG: list[list[str]]
  correct_NG: np.ndarray
  lengths_NG: np.ndarray
  truncated_NG: np.ndarray
  lines: list[dict]
  failures: int
  repetition: float
  broken: int = 0
  mean_of: int = 1
  sampling: Mapping[str, Any] = {}
  doubtful: list[dict] | None = None
  rewards_NG: np.ndarray | None = None
  numbers_NG: Mapping[str, np.ndarray] = {}
  by_level: Collection[str] = ()
  terms_NG: dict[str, np.ndarray] = {}
  rules_NG: dict[str, np.ndarray] = {}
  unknown: int = 0

  @property
  def measured(self) -> bool:
    """Whether the set has a score: failures leave enough of it.

    A verifier that fails on a few responses counts them as incorrect, and a
    failed reward is in no mean. If a verifier or judge is down, the score says
    nothing about the policy.
    """
    few = self.unknown <= NOT_MEASURED * self.lengths_NG.size
    return few and bool(np.isfinite(self.scores_NG[:, : self.mean_of]).any())

  @property
  def scores_NG(self) -> np.ndarray:
    """What the set is measured by: rewards without a verifier, or verdicts."""
    return self.correct_NG if self.rewards_NG is None else self.rewards_NG

  @property
  def chooses(self) -> bool:
    """Whether thresholds and checkpoints are chosen by the set."""
    return self.name.startswith(tasks.VALIDATION)

  @property
  def measure(self) -> str:
    """The name of `scores_NG` in metrics."""
    return "acc" if self.rewards_NG is None else "reward"


def respond(
    sample: Callable[..., tuple[Rollouts, Any]],
    tok: Any,
    task: Any,
    name: str,
    rows: list[tasks.Row],
    *,
    batch: int,
    max_prompt: int,
    num_lines: int,
    progress: Callable[[str], None],
    mean_of: int,
    style: str = "",
    sampling: Mapping[str, Any] = types.MappingProxyType({}),
    rewards: Callable[[], Rewards] | None = None,
) -> Responses:
  """Samples and grades responses to the prompts of one set.

  Args:
    sample: (`batch` rows, ids of their prompts, number of rows that count; the
      others may be cut) -> G responses to each, the last one greedy, on the
      host; and what has played and judged them (`feature.Player`), or None.
    tok: the tokenizer.
    task: has the verifier.
    name: of the set.
    rows: its rows.
    batch: prompts sampled at once.
    max_prompt: maximum tokens of a prompt.
    num_lines: responses that become lines of samples.jsonl.
    progress: called with a text before each batch; may raise.
    mean_of: samples of each prompt in mean@k.
    style: data.template, see `stop_texts.of_row`.
    sampling: fields of the config that the protocol of the set replaced.
    rewards: gives the terms of the reward, which are scored on all responses
      and measure rows without a verifier; None: nothing is scored.
  """
  verified = rewards is None or any(tasks.has_verifier(task, x) for x in rows)
  terms_EB: list[np.ndarray] = []
  rules: list[dict[str, np.ndarray]] = []
  rewards_B: list[np.ndarray] = []
  numbers: dict[str, list[np.ndarray]] = {}
  stats, texts, lines, repetition = [], [], [], []
  failures = broken = unknown = 0
  doubtful: list[dict] = []
  unread = doubtful_lib.MOST
  for first in range(0, len(rows), batch):
    progress(f"{name}, prompt {first}/{len(rows)}")
    # Sample. The last batch is filled up, so that one program serves all.
    part = rows[first : first + batch]
    filled = [*part, *[part[0]] * (batch - len(part))]
    ids = range(first, first + batch)
    rollouts, played = sample(filled, ids, len(part))
    group_size = len(rollouts.lengths_B) // batch
    real = operator.itemgetter(slice(len(part) * group_size))
    # Stop as the source of the set does, since base models rarely end.
    cut: list[str] | None = None
    stop_N = [
        stop_texts.of_row(row, style) if played is None else ()
        for row in filled
    ]
    if any(stop_N):
      stop_B = [stop for stop in stop_N for _ in range(group_size)]
      rollouts, cut = stop_texts.cut(tok, rollouts, stop_B)
    if rewards is not None:
      rows_B = [row for row in filled for _ in range(group_size)]
      count = len(part) * group_size
      found_EB, kept, failed = rewards().scores_of_all(
          tok, rollouts, rows_B, count
      )
      terms_EB.append(np.where(found_EB == NO_SCORE, np.nan, found_EB))
      rules.append(kept)
      if not verified:
        rewards_B.append(rewards().total(found_EB))
        unknown += int(np.isnan(found_EB).any(0).sum())
      failures += failed
    rollouts = jax.tree.map(real, rollouts)
    # Grade.
    if played is None:
      wait = grading.start_grading(
          task, tok, rollouts, part, None if cut is None else real(cut)
      )
      texts_B, correct_B, failed = wait()
    else:
      texts_B, correct_B = real(played.texts), real(played.correct_B)
      failed = int((correct_B < 0).sum())
      for label, x_B in played.numbers.items():
        x_NG = real(x_B).reshape(-1, group_size)
        numbers.setdefault(label, []).append(x_NG)
    if verified and unread:
      rows_B = [row for row in part for _ in range(group_size)]
      rejected = np.flatnonzero((correct_B == 0) & ~rollouts.truncated_B)
      doubtful += doubtful_lib.find(task, texts_B, rows_B, rejected, unread)
      unread -= min(unread, len(rejected))
    correct_B = np.maximum(correct_B, 0)  # as incorrect, where it failed
    failures += failed
    unknown += failed if verified else 0
    broken += step_metrics.broken_responses(rollouts)
    stats_B3 = np.stack(
        [correct_B, rollouts.policy_lengths_B, rollouts.truncated_B], -1
    )
    stats.append(stats_B3.reshape(len(part), group_size, 3))
    texts += [
        texts_B[b : b + group_size] for b in range(0, len(texts_B), group_size)
    ]
    # Keep the first response to some prompts for samples.jsonl.
    first_N = np.arange(len(part)) * group_size
    shown = first_N[: num_lines - len(lines)].tolist()
    lines += samples.lines(
        tok,
        rollouts,
        part,
        texts_B,
        correct_B,
        shown,
        is_verified=functools.partial(tasks.has_verifier, task),
        **(dict(reward=rewards_B[-1]) if rewards_B else {}),
    )
    tokens_BT = rollouts.tokens_BL[:, max_prompt:]
    repetition += [
        reward_functions.repeated(tokens_BT[b, rollouts.mask_BT[b]].tolist())
        for b in first_N
    ]
  correct_NG, lengths_NG, truncated_NG = np.moveaxis(
      np.concatenate(stats), -1, 0
  )
  shape = correct_NG.shape
  labels = rewards().labels if rewards is not None else []
  scores_EB = np.concatenate(terms_EB, 1) if terms_EB else []
  return Responses(
      name=name,
      rows=rows,
      texts_NG=texts,
      correct_NG=correct_NG,
      lengths_NG=lengths_NG,
      truncated_NG=truncated_NG,
      lines=lines,
      failures=failures,
      broken=broken,
      unknown=unknown,
      mean_of=mean_of,
      sampling=sampling,
      doubtful=doubtful if hasattr(task, "read_leniently") else None,
      repetition=float(np.mean(repetition)),
      rewards_NG=np.concatenate(rewards_B).reshape(shape)
      if rewards_B
      else None,
      terms_NG={
          label: scores_B.reshape(shape)
          for label, scores_B in zip(labels, scores_EB, strict=True)
      },
      rules_NG={
          rule: np.concatenate([x[rule] for x in rules]).reshape(shape)
          for rule in (rules[0] if rules else ())
      },
      numbers_NG={x: np.concatenate(y) for x, y in numbers.items()},
      by_level=() if played is None else played.by_level,
  )


def summarize_sets(
    sets: list[Responses],
    scored: Collection[str],
    answer: Callable[[str, tasks.Row], str],
    *,
    score_of: int,
) -> dict[str, float]:
  """Returns the metrics of all sets, as `summarize`, and their means.

  Args:
    sets: responses to each set.
    scored: names of the sets that choose checkpoints: of the validation sets,
      or of the held-out ones if there are no others. The mean of their scores
      is 'val-aux/score', which is missing if nothing is chosen, or if one of
      them has no score.
    answer: (response, row) -> the answer that votes.
    score_of: prompts of each set in the score: the first ones, which every
      evaluation has.
  """
  metrics: dict[str, float] = {}
  for responses in sets:
    metrics |= summarize(responses, answer)
  chosen = [x for x in sets if x.name in scored]
  found = [_known(_means(x)[:score_of]) for x in chosen if x.measured]
  scores = [float(known_N.mean()) for known_N in found if known_N.size]
  # What was not measured does not compete.
  if scores and len(scores) == len(chosen):
    metrics[SCORE] = float(np.mean(scores))
  lengths = [x.lengths_NG[:, :-1].ravel() for x in sets]
  truncated = [x.truncated_NG[:, :-1].ravel() for x in sets]
  clip_ratio = float(np.concatenate(truncated).mean())
  for label in {label: None for x in sets for label in x.numbers_NG}:
    of_sets = [x.numbers_NG[label] for x in sets if label in x.numbers_NG]
    all_sets = np.concatenate([x_NG[:, :-1].ravel() for x_NG in of_sets])
    metrics[f"val-aux/{label}/mean"] = float(all_sets.mean())
  read = [x.doubtful for x in sets if x.doubtful is not None]
  if read:
    metrics["val-aux/perhaps_right"] = sum(map(len, read))
  if broken := sum(x.broken for x in sets):
    metrics[alerts.BROKEN_HELD_OUT] = broken
  return metrics | {
      "val-aux/response_length/mean": float(np.concatenate(lengths).mean()),
      "val-aux/response_length/clip_ratio": clip_ratio,
      "val-aux/repetition/mean": float(np.mean([x.repetition for x in sets])),
      "val-aux/verifier_failures": sum(x.failures for x in sets),
  }


def summarize(
    responses: Responses, answer: Callable[[str, tasks.Row], str]
) -> dict[str, float]:
  """Returns the metrics of one set, under the names of verl.

  Lengths and truncation are over all samples. Of a set that is not measured
  there are these alone, and 'not_measured', the number of failures.
  """
  name, measure = responses.name, responses.measure
  mean_of = responses.mean_of
  values: dict[str, np.ndarray] = {}
  out: dict[str, float] = {}
  if responses.measured:
    values, out = of_prompts(responses, answer)
  else:
    out[f"val-aux/{name}/not_measured"] = responses.unknown
  for metric, values_N in values.items():
    known_N = _known(np.asarray(values_N, float))
    if not known_N.size:
      continue
    mean, half = interval(measure, known_N)
    out[f"val-core/{name}/{measure}/{metric}"] = mean
    out[f"val-core/{name}/{measure}/{metric}/ci95"] = half
  for label, mean_N in term_means(responses).items():
    known_N = _known(mean_N)
    if len(known_N):
      mean, half = mean_interval(known_N)
      out[f"val-aux/{name}/reward/{label}/mean"] = mean
      out[f"val-aux/{name}/reward/{label}/mean/ci95"] = half
  for rule, kept_NG in responses.rules_NG.items():
    known = kept_NG[:, :-1][np.isfinite(kept_NG[:, :-1])]
    if known.size:
      out[f"val-aux/{name}/reward/{rule}"] = float(known.mean())
  for level in levels(responses):
    prefix = f"val-aux/{name}/difficulty_{level.difficulty}"
    out[f"{prefix}/{measure}/mean@{mean_of}"] = level.mean
    for label in responses.by_level:
      rows = [x.difficulty == level.difficulty for x in responses.rows]
      x_NG = responses.numbers_NG[label][rows, :mean_of]
      out[f"{prefix}/{label}/mean"] = float(x_NG.mean())
  for metric, values_NG, bound in (
      ("response_length/mean", responses.lengths_NG, mean_interval),
      ("response_length/clip_ratio", responses.truncated_NG, share_interval),
      *(
          (f"{label}/mean", x_NG, mean_interval)
          for label, x_NG in responses.numbers_NG.items()
      ),
  ):
    mean, half = bound(np.asarray(values_NG[:, :-1].mean(1), float))
    out[f"val-aux/{name}/{metric}"] = mean
    out[f"val-aux/{name}/{metric}/ci95"] = half
  return out


def of_prompts(
    responses: Responses, answer: Callable[[str, tasks.Row], str]
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
  """Returns the scores of each prompt by name, [N], and metrics of the set."""
  values = {
      f"mean@{responses.mean_of}": _means(responses),
      "greedy": responses.scores_NG[:, -1],
  }
  if responses.measure != "acc":
    return values, {}
  of_verdicts, aux = _of_verdicts(responses, answer)
  return values | of_verdicts, aux


def _means(responses: Responses) -> np.ndarray:
  """The score of each prompt in mean@k, [N]; NaN where none is known."""
  return _row_means(responses.scores_NG[:, : responses.mean_of])


def _row_means(scores_NG: np.ndarray) -> np.ndarray:
  """The mean of the finite scores of each row, [N]; NaN where none is."""
  known_NG = np.isfinite(scores_NG)
  with np.errstate(invalid="ignore"):
    return np.where(known_NG, scores_NG, 0).sum(1) / known_NG.sum(1)


def _known(values_N: np.ndarray) -> np.ndarray:
  return values_N[np.isfinite(values_N)]


def term_means(responses: Responses) -> dict[str, np.ndarray]:
  """Returns the mean scores of the terms of the reward by name, [N].

  They are over the samples that have a score; NaN where no sample has one.
  """
  return {
      label: _row_means(scores_NG[:, :-1])  # without the greedy one
      for label, scores_NG in responses.terms_NG.items()
  }


def problem(row: tasks.Row) -> str:
  """What identifies the problem of a row in the files of `report.paired`.

  Of a row of a file it is a hash of its columns, which do not depend on
  template and tokenizer; of a generated row it is the prompt.
  """
  if not row.columns:
    return row.prompt
  columns = json.dumps(dict(row.columns), sort_keys=True, default=str)
  return hashlib.sha256(columns.encode()).hexdigest()[:16]


def lines_of_prompts(
    responses: Responses,
    answer: Callable[[str, tasks.Row], str],
    *,
    originals: Sequence[tasks.Row] | None = None,
) -> list[dict[str, Any]]:
  """Returns the lines of `report.paired`: the scores of each prompt.

  `originals` are rows whose problems the rows of the responses have.
  """
  values, _ = of_prompts(responses, answer)
  if not responses.measured:
    values = {k: np.full(len(x_N), np.nan) for k, x_N in values.items()}
  means = term_means(responses)
  values |= {f"{scores_lib.REWARD}{label}": x_N for label, x_N in means.items()}
  of_rows = map(problem, originals or responses.rows)
  return [
      dict(
          set=responses.name,
          measure=responses.measure,
          prompt=row.prompt,
          problem=name,
          scores={k: json_files.number(x_N[n]) for k, x_N in values.items()},
      )
      for n, (row, name) in enumerate(zip(responses.rows, of_rows, strict=True))
  ]


def _of_verdicts(
    responses: Responses, answer: Callable[[str, tasks.Row], str]
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
  """maj@k, pass@k and best-of-n, and the error of the majority's share."""
  correct_NG = responses.correct_NG[:, :-1]  # without the greedy one
  samples = correct_NG.shape[1]
  share_N, majority_N = _majority(responses, answer)
  values = {f"maj@{samples}": majority_N}
  ks = [2**i for i in range(samples.bit_length()) if 2**i <= samples]
  for k in ks:
    values[f"pass@{k}"] = pass_at_k(correct_NG, k)
  for label, scores_NG in responses.terms_NG.items():
    for k in ks[1:]:
      best_N = best_of_k(correct_NG, scores_NG[:, :-1], k)
      values[f"bon@{k}:{label}"] = best_N
  error = calibration_error(share_N, majority_N)
  return values, {f"val-aux/{responses.name}/maj_calibration_error": error}


def calibration(
    responses: Responses, answer: Callable[[str, tasks.Row], str]
) -> list[Bin]:
  """Returns how often majority answers are correct, by their share of samples.

  [] where nothing verifies the rows.
  """
  if responses.measure != "acc":
    return []
  return calibration_curve(*_majority(responses, answer))


def _majority(
    responses: Responses, answer: Callable[[str, tasks.Row], str]
) -> tuple[np.ndarray, np.ndarray]:
  """`majority_vote` of the samples; truncated ones do not vote."""
  answers_NG = [
      [
          "" if responses.truncated_NG[n, g] else answer(text, row)
          for g, text in enumerate(responses.texts_NG[n][:-1])
      ]
      for n, row in enumerate(responses.rows)
  ]
  return majority_vote(answers_NG, responses.correct_NG[:, :-1])


class Level(NamedTuple):
  """Results on the prompts of one difficulty.

  Attributes:
    difficulty: of the rows.
    prompts: number of rows.
    mean, half: accuracy (or reward), and half of its 95% interval.
    truncated: share of truncated samples.
  """

  difficulty: int
  prompts: int
  mean: float
  half: float
  truncated: float


def levels(responses: Responses) -> list[Level]:
  """Returns the results by difficulty, the lowest first.

  Greedy responses do not count; the accuracy is that of mean@k. Without a
  score there is no result.
  """
  difficulty_N = np.array([row.difficulty for row in responses.rows])
  mean_N = _means(responses)
  truncated_N = responses.truncated_NG[:, :-1].mean(1)
  out = []
  for difficulty in np.unique(difficulty_N):
    of_level_N = difficulty_N == difficulty
    known_N = _known(mean_N[of_level_N])
    if known_N.size and responses.measured:
      out.append(
          Level(
              int(difficulty),
              int(of_level_N.sum()),
              *interval(responses.measure, known_N),
              float(truncated_N[of_level_N].mean()),
          )
      )
  return out
