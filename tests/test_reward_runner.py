"""Reward functions of users: their forms, when they run, and how they fail."""

import asyncio
import functools
import re
import sys
import threading
import time

import numpy as np
import pytest
import tiny
from conftest import ROOT

from rl_reason.algorithms import advantages, credit
from rl_reason.base.errors import RunError
from rl_reason.base.structs import NO_SCORE, Rollouts
from rl_reason.collect.reward_runner import (
    RewardRound,
    RewardRunner,
    Rewards,
)
from rl_reason.tasks import Row, reward_terms, threads

LENGTH = 8
TURNS = [{"role": "user", "content": "1+1"}]
ROWS = [
    Row("1+1=", "2", columns=dict(prompt="1+1=", solution="2", level=1)),
    Row("2+2=", "4", columns=dict(prompt="2+2=", solution="4", level=2)),
    Row("3+3=", "6", messages=TURNS, columns=dict(solution="6", level=3)),
]
TEXTS = ["2", "1+1", "5", "4", "6", "#6"]  # two responses to each

FUNCTIONS = """
import asyncio, math, threading, time

GO, CALLS = threading.Event(), []

# Whether a response has the answer, plus a tenth of its number of tokens.

def one(response, row, *, most=8):
  assert isinstance(response.truncated, bool)
  return (row.columns["solution"] in response.text) + response.share * most / 10

async def one_async(response, row):
  await asyncio.sleep(0)
  return one(response, row)

def batch(batch):
  lists = zip(batch.texts, batch.token_ids, batch.rows, batch.prompts)
  assert len(batch.truncated) == 2
  assert all(row.prompt == prompt for _, _, row, prompt in lists)
  lists = zip(batch.texts, batch.token_ids, batch.rows)
  return [(r.answer in text) + len(ids) / 10 for text, ids, r in lists]

async def batch_async(batch):
  return globals()["batch"](batch)

def trl(completions, prompts=None, completion_ids=None, **columns):
  assert set(columns) == {"solution", "level"}
  chat = columns["level"][0] == 3
  assert chat == (prompts[0] == [{"role": "user", "content": "1+1"}])
  texts = [x[0]["content"] if chat else x for x in completions]
  found = zip(texts, completion_ids, columns["solution"])
  return [(answer in text) + len(ids) / 10 for text, ids, answer in found]

async def trl_async(completions, solution, completion_ids, **unused):
  texts = [x if isinstance(x, str) else x[0]["content"] for x in completions]
  found = zip(texts, completion_ids, solution)
  return [(answer in text) + len(ids) / 10 for text, ids, answer in found]

def few_columns(completions, solution, scale=1):
  return [scale] * len(completions)

def missing(completions, truth):
  return [1.0]

def some(completions, level, **columns):
  return [None if level[0] == 2 else 1.0 for _ in completions]

def raises(response, row):
  raise KeyError("of the user")

def raises_later(batch):
  CALLS.append(0)
  return [1 / 0] if GO.is_set() else [1.0, 1.0]

def nan_later(batch):
  return [math.nan if GO.is_set() else 1.0, 1.0]

def inf(batch):
  return [math.inf, 1.0]

def short(batch):
  return [1.0]

def none(batch):
  return [None, 1.0]

def no_list(batch):
  return 1.0

async def late(batch):
  raise ValueError("asynchronous")

def exits(batch):
  raise SystemExit("left")

async def interrupts(response, row):
  raise KeyboardInterrupt("left")

def waits(batch):
  CALLS.append(threading.get_ident())
  GO.wait(30)
  return [1.0, 1.0]

def hangs_on_fours(batch):
  if batch.rows[0].answer == "4":
    GO.wait(30)
  return [1.0, 1.0]

async def sleeps_on_fours(batch):
  if batch.rows[0].answer == "4":
    await asyncio.sleep(30)
  return [1.0, 1.0]

def blocks_on_fours(batch):
  if batch.rows[0].answer == "4":
    time.sleep(30)
  return [1.0, 1.0]
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
  """The module of the user, imported anew."""
  name = f"rewards_{tmp_path.name}"
  (tmp_path / f"{name}.py").write_text(FUNCTIONS)
  monkeypatch.syspath_prepend(tmp_path)
  module = __import__(name)
  yield module
  module.GO.set()


def rollouts(texts=TEXTS) -> Rollouts:
  """Two responses to each prompt; the last one has no EOS."""
  count = len(texts)
  tokens_BT = np.full((count, LENGTH), tiny.TOK.pad_token_id, np.int32)
  lengths_B = np.zeros(count, np.int32)
  for b, text in enumerate(texts):
    ids = tiny.TOK.convert_tokens_to_ids(list(text))
    ids += [tiny.TOK.eos_token_id] * (b < count - 1)
    lengths_B[b] = len(ids)
    tokens_BT[b, : len(ids)] = ids
  mask_BT = np.arange(LENGTH) < lengths_B[:, None]
  prompt_BP = np.zeros((count, 3), np.int32)
  return Rollouts(
      tokens_BL=np.concatenate([prompt_BP, tokens_BT], 1),
      start_B=np.zeros(count, np.int32),
      ids_B=np.arange(count) // 2 + 7,
      mask_BT=mask_BT,
      logps_BT=np.zeros(mask_BT.shape, np.float32),
      lengths_B=lengths_B,
      truncated_B=np.arange(count) == count - 1,
  )


class Run:
  """A runner of functions of the user's module, and what it has said."""

  def __init__(self, module, *names, **options):
    text = ",".join(f"{module.__name__}:{x}*1" for x in names)
    self.said: list[str] = []
    self.runner = RewardRunner(
        reward_terms.terms(text),
        max_tokens=LENGTH,
        show=self.said.append,
        **options,
    )

  def begin(self) -> RewardRound:
    rows_B = [row for row in ROWS for _ in range(2)]
    return RewardRound(self.runner, tiny.TOK, rows_B)

  def scores(self):
    scores = self.begin()
    scores.submit(rollouts(), np.ones(6, bool))
    scores.wait()
    scores_UB = np.nan_to_num(scores.scores_UB, nan=-1)  # -1: it failed
    return scores_UB.tolist(), scores.failures


FORMS = ["one", "one_async", "batch", "batch_async", "trl", "trl_async"]
WANTED = [1.2, 0.4, 0.2, 1.2, 1.2, 1.2]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_the_forms_give_equal_rewards(mine, executor):
  run = Run(mine, *FORMS, executor=executor, workers=2)
  scores_UB, failures = run.scores()
  np.testing.assert_allclose(scores_UB, [WANTED] * 6, rtol=1e-6)
  assert not failures and not run.said
  run.runner.close()


def test_keywords_are_bound(mine):
  run = Run(mine, "one(most=16)", "few_columns", "few_columns(scale=3)")
  scores_UB, _ = run.scores()
  np.testing.assert_allclose(scores_UB[0], [1.4, 0.8, 0.4, 1.4, 1.4, 1.4])
  assert scores_UB[1:] == [[1.0] * 6, [3.0] * 6]


def test_a_group_is_scored_when_it_has_finished(mine):
  """Not before, and only once; and sampling does not wait for it."""
  run = Run(mine, "waits")
  scores = run.begin()
  scores.submit(rollouts(), np.array([1, 1, 1, 0, 0, 0], bool))
  scores.submit(rollouts(), np.array([1, 1, 1, 1, 0, 1], bool))
  while len(mine.CALLS) < 2:
    time.sleep(0.01)
  mine.GO.set()
  scores.submit(rollouts(), np.ones(6, bool))
  scores.wait()
  assert len(mine.CALLS) == 3 and scores.scores_UB.tolist() == [[1.0] * 6]
  assert threading.get_ident() not in mine.CALLS


def test_async_functions_run_at_the_same_time(mine):
  """Three groups of two wait for each other: more than one worker."""

  async def meet(response, row):
    mine.CALLS.append(row)
    while len(mine.CALLS) < 6:
      await asyncio.sleep(0.001)
    return 1.0

  mine.meet = meet
  scores_UB, failures = Run(mine, "meet", workers=1, seconds=20).scores()
  assert scores_UB == [[1.0] * 6] and not failures


LATE = [
    ("hangs_on_fours", "thread", 0.2),
    ("sleeps_on_fours", "thread", 0.2),
    ("blocks_on_fours", "process", 2.0),
]


@pytest.mark.parametrize("name, executor, seconds", LATE)
def test_a_call_that_takes_too_long_has_failed(mine, name, executor, seconds):
  """It costs its group, and the calls behind it go on."""
  run = Run(mine, name, executor=executor, workers=1, seconds=seconds)
  scores_UB, failures = run.scores()
  assert scores_UB == [[1, 1, -1, -1, 1, 1]] and failures == 2
  [said] = run.said
  assert f"function {mine.__name__}:{name} failed" in said
  assert f"took longer than reward.timeout = {seconds:g} s" in said
  assert run.runner.counts == {f"reward/{mine.__name__}:{name}/failures": 2}
  run.runner.close()


FIRST = [
    ("raises", "KeyError: 'of the user'"),
    ("late", "ValueError: asynchronous"),
    ("missing", "takes truth, which the data do not have.* solution, level"),
    ("inf", "inf, which is no finite number"),
    ("none", "None, which is no finite number"),
    ("short", r"\[1.0\] for 2 responses"),
    ("no_list", "1.0 for 2 responses"),
    ("exits", "SystemExit: left"),
    ("interrupts", "KeyboardInterrupt: left"),
]
TRACED = "raises", "late", "missing", "exits", "interrupts"


@pytest.mark.parametrize("name, words", FIRST)
def test_a_failure_in_the_first_batch_stops(mine, name, words):
  start = f"(?s)^the reward function {mine.__name__}:{name} failed on its first"
  with pytest.raises(RunError, match=f"{start} batch.*{words}") as e:
    Run(mine, name).scores()
  assert ("line" in str(e.value)) == (name in TRACED)


def test_calls_that_are_all_too_late_stop_the_first_batch(mine):
  words = "first batch: took longer than reward.timeout = 0.1 s: raise it"
  with pytest.raises(RunError, match=words):
    Run(mine, "waits", seconds=0.1).scores()


def test_calls_that_hang_in_threads_end_the_run(mine, monkeypatch):
  """Counted until they end; the error names the remedy."""
  monkeypatch.setattr(threads, "MOST_HANGING", 5)
  run = Run(mine, "hangs_on_fours", seconds=0.1)
  for _ in range(4):
    assert run.scores()[1] == 2
  with pytest.raises(RunError, match="5 calls .* reward.executor = 'process'"):
    run.scores()
  mine.GO.set()
  while run.runner._threads.hanging:
    time.sleep(0.01)
  assert run.scores()[1] == 0


@pytest.mark.parametrize(
    "name, wanted, count",
    [("raises_later", [-1] * 6, 6), ("nan_later", [-1, 1] * 3, 3)],
)
def test_later_failures_are_counted_and_said_once(mine, name, wanted, count):
  run = Run(mine, name)
  assert run.scores() == ([[1.0] * 6], 0)
  mine.GO.set()
  for _ in range(2):
    assert run.scores() == ([wanted], count)
  [said] = run.said
  assert "later" in said and ("ZeroDivisionError" in said or "nan" in said)
  key = f"reward/{mine.__name__}:{name}/failures"
  assert run.runner.counts == {key: 2 * count}
  run.runner.reset()
  assert run.runner.counts == {key: 0}


def test_not_applicable_is_no_failure(mine):
  run = Run(mine, "some")
  [scores_B], failures = run.scores()
  wanted_B = np.float32([1, 1, NO_SCORE, NO_SCORE, 1, 1])
  assert scores_B == np.nan_to_num(wanted_B).tolist() and not failures
  assert list(run.runner.counts.values()) == [0, 2] and not run.said


N = np.nan


@pytest.mark.parametrize(
    "weights, scores_EB, verified, by_verdict, rewards_B",
    [
        # The verdict is not rewarded, or there is none.
        ([1], [[1, 0, NO_SCORE, 1]], False, False, [1, 0, N, 1]),
        ([1], [[1, 0, NO_SCORE, 1]], True, False, [1, 0, N, 1]),
        ([1], [[1, 0, N, 1]], False, False, [1, 0, N, 1]),
        # One of two functions scores the response; a weight of 0 only logs.
        (
            [1, 2],
            [[1, 0, NO_SCORE, 1], [NO_SCORE, 0, NO_SCORE, 0]],
            *(False, False, [1, 0, N, 1]),
        ),
        (
            [1, 0],
            [[1, 0, NO_SCORE, 1], [5, 5, 5, 5]],
            *(False, False, [1, 0, N, 1]),
        ),
        (
            [1, 2],
            [[1, 0, NO_SCORE, 1], [0, 0, 3, 0]],
            *(True, False, [1, 0, 6, 1]),
        ),
        # A failed function takes the reward from its response.
        (
            [1, 1],
            [[1, 0, NO_SCORE, 1], [0, 0, N, 0]],
            *(False, False, [1, 0, N, 1]),
        ),
        # The verdict is a score.
        ([1], [[1, 0, NO_SCORE, 1]], True, True, [1, 0, 0, 1]),
    ],
)
def test_what_nothing_scores_leaves_the_loss(
    weights, scores_EB, verified, by_verdict, rewards_B
):
  """As in TRL: [1, 0, None, 1] has the advantages .577, -1.155, 0, .577."""
  terms = reward_terms.terms(",".join(f"length*{x}" for x in weights))
  runner = RewardRunner([], max_tokens=2)
  rewards = Rewards(terms, runner, {}, by_verdict=by_verdict)
  rewards._raw_scores = lambda scores, _: ([*np.float32(scores)], {})
  one_group = Rollouts(*[None] * 7).replace(ids_B=np.zeros(4, int))
  found_EB = rewards.all_scores(scores_EB, one_group, np.full(4, verified))
  rows = dict(
      correct_B=np.zeros(4, np.float32),
      scores_EB=found_EB,
      lengths_B=np.full(4, 2),
      truncated_B=np.zeros(4, bool),
      groups_B=np.zeros(4, int),
      age_B=np.zeros(4, int),
      types_B=np.zeros(4, int),
      problems_B=np.zeros(4, int),
      mask_BT=np.ones((4, 2), bool),
      logps_BT=np.zeros((4, 2), np.float32),
      progress=0.0,
  )
  out = credit.rewards_and_advantages(
      rows,
      reward=functools.partial(
          credit.outcome,
          max_tokens=2,
          incorrect=0.0,
          term_weights=tuple((x, x) for x in weights),
      ),
      assign=functools.partial(
          credit.assign,
          advantage=functools.partial(advantages.group_norm, eps=0.0),
      ),
  )
  np.testing.assert_array_equal(out["rewards_B"], rewards_B)
  given = np.isfinite(rewards_B)
  wanted_B = np.zeros(4)
  known = np.array(rewards_B)[given]
  wanted_B[given] = (known - known.mean()) / known.std(ddof=1)
  np.testing.assert_allclose(
      out["advantages_BT"][:, 0], wanted_B, rtol=1e-6, atol=1e-7
  )
  if known.tolist() == [1, 0, 1]:
    np.testing.assert_allclose(wanted_B, [0.577, -1.155, 0, 0.577], atol=1e-3)


def test_the_printed_rewards_work(tmp_path, monkeypatch):
  """docs/rewards.md: called as printed there."""
  text = (ROOT / "docs" / "rewards.md").read_text()
  [code] = re.findall(r'```python\n("""Three rewards.*?)```', text, re.DOTALL)
  [flag] = re.findall(r"--config.reward.functions='(.*)'`", text)
  (tmp_path / "my_rewards.py").write_text(code)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
  terms = reward_terms.terms(f"{flag},my_rewards:accuracy_reward*1")
  scores = RewardRound(
      RewardRunner(terms, max_tokens=LENGTH),
      tiny.TOK,
      [row._replace(columns={}) for row in ROWS for _ in range(2)],
  )
  scores.submit(rollouts(["2", "1+1"] * 3), np.ones(6, bool))
  scores.wait()
  correct = [1, 0, 0, 0, 0, 0]
  assert scores.scores_UB.tolist() == [[1.0] * 6, correct, correct]
  monkeypatch.delitem(sys.modules, "my_rewards")
