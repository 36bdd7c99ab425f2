"""Held-out accuracy: mean@k, pass@k, maj@k with intervals, and greedy.

The noise of a sample depends on the seed and the prompt only, so two models of
one run are compared on the same random numbers.
"""

import collections
import math
import operator
from collections.abc import Sequence

import jax
import numpy as np

from rl_reason import data, sharding, tasks, tokenizer
from rl_reason.structs import Rollouts, Tree


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


def majority(answers_NG: list[list[str]], correct_NG: np.ndarray):
  """Whether the most frequent answer of each prompt is right: [N].

  Samples without an answer ('') do not vote; ties go to the answer that came
  first. Answers that are equal as text count as one.
  """
  right_N = np.zeros(len(answers_NG))
  for n, answers in enumerate(answers_NG):
    votes = collections.Counter(a for a in answers if a)
    if votes:
      winner = votes.most_common(1)[0][0]
      right_N[n] = correct_NG[n][answers.index(winner)]
  return right_N


def judge(task, tok, rollouts: Rollouts, rows: Sequence[tasks.Row]):
  """Texts and verdicts of responses; G adjacent ones belong to each row.

  A response that was cut off, or that the verifier fails on, is wrong.

  Returns:
    texts [B], correct [B] float32 in {0, 1}, and the number of responses on
    which the verifier itself failed.
  """
  slots = rollouts.tokens_BL.shape[1] - rollouts.mask_BT.shape[1]
  texts = tokenizer.decode(
      tok, rollouts.tokens_BL[:, slots:], rollouts.lengths_B
  )
  group = len(texts) // len(rows)
  correct_B = np.zeros(len(texts), np.float32)
  failures = 0
  for b, text in enumerate(texts):
    if not rollouts.truncated_B[b]:
      try:
        correct_B[b] = task.verify(text, rows[b // group])
      except Exception:  # whatever it is, the run goes on
        failures += 1
  return texts, correct_B, failures


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
  add(f"maj@{samples}", majority(answers_NG, correct_NG))
  for k in [2**i for i in range(samples.bit_length()) if 2**i <= samples]:
    add(f"pass@{k}", pass_at_k(correct_NG, k))
  # Checkpoints compete on the prompts that every evaluation has.
  out["val-aux/score"] = float(mean_N[:score_of].mean())
  for level in np.unique(level_N):
    key = f"val-aux/{name}/difficulty_{level}/acc/mean@{mean_of}"
    out[key] = float(mean_N[level_N == level].mean())
  return out


def evaluate(run, params: Tree, count: int, doing: str):
  """Samples and scores `count` held-out prompts.

  Args:
    run: stages.Run; reads config.evaluate.
    params: of the model.
    count: prompts.
    doing: shown while it works.

  Returns:
    metrics, and the first sample of each prompt as rows for samples.jsonl.
  """
  c = run.config
  everything = tasks.evaluation_rows(
      run.task, run.levels, c.evaluate.prompts
  )
  rows = list(everything[:count])
  batch, samples = c.evaluate.batch, c.evaluate.samples
  heat_G = np.array([c.evaluate.temperature] * samples + [0.0], np.float32)
  parts, failures = [], 0
  texts, kept = [], []
  for first in range(0, len(rows), batch):
    run.display.doing(f"{doing}: prompt {first}/{len(rows)}")
    some = rows[first : first + batch]
    filled = [*some, *[some[0]] * (batch - len(some))]  # one shape, one program
    prompts = data.pack_prompts(
        run.tok,
        [row.prompt for row in filled],
        range(first, first + batch),
        c.rollout.max_prompt,
    )
    rollouts = sharding.fetch(
        run.sample(
            params,
            run.put(prompts, "batch"),
            run.key("evaluate"),
            run.put(heat_G),
            group_size=samples + 1,
            top_p=c.evaluate.top_p,
        )
    )
    real = slice(len(some) * (samples + 1))
    rollouts = jax.tree.map(operator.itemgetter(real), rollouts)
    said, correct_B, failed = judge(run.task, run.tok, rollouts, some)
    failures += failed
    parts.append(
        np.stack(
            [correct_B, rollouts.lengths_B, rollouts.truncated_B], -1
        ).reshape(len(some), samples + 1, 3)
    )
    texts += np.reshape(np.array(said, object), (len(some), -1)).tolist()
    kept += run.sample_rows(
        rollouts, some, said, correct_B, np.arange(len(some)) * (samples + 1)
    )
    run.check_stop()
  judged_NG = np.concatenate(parts)
  correct_NG, length_NG, truncated_NG = np.moveaxis(judged_NG, -1, 0)
  answers_NG = [
      [
          "" if cut else run.task.answer(t)
          for t, cut in zip(said[:samples], cut_G[:samples], strict=True)
      ]
      for said, cut_G in zip(texts, truncated_NG, strict=True)
  ]
  metrics = summarize(
      c.task.name,
      rows,
      correct_NG[:, :samples],
      correct_NG[:, samples],
      answers_NG,
      mean_of=c.evaluate.mean_of,
      score_of=c.evaluate.interim_prompts,
  )
  metrics |= {
      "val-aux/response_length/mean": length_NG[:, :samples].mean(),
      "val-aux/response_length/clip_ratio": truncated_NG[:, :samples].mean(),
      "val-aux/verifier_failures": failures,
  }
  return metrics, kept
