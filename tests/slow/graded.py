"""Grades and scores the same responses in one process, or in one of several.

  python graded.py INDEX COUNT PORT

prints as JSON the verdicts, the scores, and which prompts were judged here.
"""

import json
import os
import pathlib
import sys
import types

from rl_reason.base import errors

sys.path[:0] = [str(pathlib.Path(__file__).parents[1])]  # tests' helpers
CALLS = set()


def verify(text, row):
  CALLS.add(row.prompt)
  if text == "8":
    raise ValueError("a response that breaks the verifier")
  return text == row.answer


def score(batch):
  """A reward function, of the user; it fails on the third round."""
  CALLS.add(batch.prompts[0] + " rewarded")
  if os.environ.get("FAIL") and batch.prompts[0] == "3+3=":
    raise ValueError("a group that breaks the reward function")
  return [-0.1 * len(text) for text in batch.texts]


def main(index, count, port):
  import jax

  if count > 1:
    jax.distributed.initialize(f"localhost:{port}", count, index)
  import numpy as np
  from test_reward_runner import rollouts, tiny

  from rl_reason import tasks
  from rl_reason.collect import grading, reward_runner
  from rl_reason.tasks import Row, reward_terms

  rows = [Row(f"{n}+{n}=", f"{2 * n}") for n in range(1, 6)]
  texts = ["2", "1", "4", "5", "6", "6", "8", "9", "10", "1"]
  rows_B = [row for row in rows for _ in range(2)]
  source = types.SimpleNamespace(verify=verify, problem=lambda: None)
  grader = grading.AsyncGrader(
      tasks.Task("test", source, lambda _: None), tiny.TOK, rows_B
  )
  runner = reward_runner.RewardRunner(
      reward_terms.terms("graded:score*1"), max_tokens=8
  )
  scores = reward_runner.RewardRound(runner, tiny.TOK, rows_B)
  for finished in (4, 10):  # as they finish
    finished_B = np.arange(10) < finished
    grader.submit(rollouts(texts), finished_B)
    scores.submit(rollouts(texts), finished_B)
  grader.wait()
  found = dict(correct=grader.correct_B.tolist(), failures=grader.failures)
  try:
    scores.wait()
    found |= dict(scores=scores.scores_UB.tolist(), counts=runner.counts)
  except errors.RunError as e:
    found["error"] = str(e)
  import graded  # the module that the runner has imported

  print(json.dumps(found | dict(judged=sorted(CALLS | graded.CALLS))))
  grader.close()
  runner.close()


if __name__ == "__main__":
  main(*map(int, sys.argv[1:]))
