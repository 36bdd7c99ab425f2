"""Calls reward functions on groups of responses, while others are sampled.

A call gets one whole group, all responses to a prompt, as soon as the last of
them has finished, so the content of a call never depends on timing. If a
function fails on a response, the response has no reward and leaves the loss; if
a call fails, its whole group does. So does a response that nothing scores: all
functions return None for it, and no verdict is rewarded.

Functions run in threads, or in processes, which can be ended. Async functions
in threads share one event loop, without a limit on their number; users may add
a semaphore.
"""

import asyncio
import re
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rl_reason import tasks
from rl_reason.base.errors import RunError
from rl_reason.base.structs import NO_SCORE, Array, Rollouts, Steps
from rl_reason.collect import grading
from rl_reason.data import tokenizer
from rl_reason.tasks import Row, reward_terms, threads
from rl_reason.tasks.reward_functions import (
    Failed,
    RewardBatch,
    RewardFunction,
    Score,
    number,
)
from rl_reason.tasks.reward_terms import Term
from rl_reason.verifiers import workers as workers_lib

Model = Callable[[Rollouts], Array]  # -> scores [B]

GOOD, NOT_APPLICABLE, FAILED, LATE = range(4)
MEGABYTES = 1 << 20  # address space of a process; libraries of models need much


class RewardRunner:
  """Calls the reward functions of a run.

  Args:
    terms: of the reward; reward models among them are ignored.
    executor: 'thread' or 'process'.
    workers: calls at a time.
    seconds: time-out of a call.
    max_tokens: of a response.
    show: writes the first failure of each function to the screen.

  Attributes:
    counts: metrics of the failures since `reset`.
  """

  def __init__(
      self,
      terms: Sequence[Term],
      *,
      executor: str = "thread",
      workers: int = 4,
      seconds: float = 60.0,
      max_tokens: int,
      show: tasks.Show | None = None,
  ):
    self.terms = [x for x in terms if not reward_terms.is_model(x.name)]
    self.max_tokens = max_tokens
    self._functions = [reward_terms.find(x.name) for x in self.terms]
    # The rules of constitutions that functions and judges keep: number of the
    # function, name of the rule, name in metrics.
    self.rules = [
        (f, rule, rule_name(term, rule))
        for f, (term, x) in enumerate(
            zip(self.terms, self._functions, strict=True)
        )
        for rule in getattr(x.function, "rules", ())
    ]
    # The rules that reward models keep, of each constitution.
    self.model_rules = {
        x.name: getattr(x.function, "models", ()) for x in self._functions
    }
    for term, x in zip(self.terms, self._functions, strict=True):
      if show and (lost := getattr(x.function, "left_out", ())):
        show(
            f"{term.label}: rules that ask a judge are left out:"
            f" {', '.join(lost)}; name a server to keep them, as in"
            f" reward.functions = \"{term.name.partition('(')[0]}"
            "(judge='http://localhost:8000/v1')\""
        )
    self._failures = [
        tasks.Failures(f"the reward function {x.name}", show)
        for x in self.terms
    ]
    self._seconds = seconds
    limit = f"reward.timeout = {seconds:g} s"
    self._late = Failed(f"took longer than {limit}: raise it, if that is usual")
    self._proved = False  # after a first batch without a failure
    self._pool: workers_lib.Pool | None = None
    self.reset()
    if not self.terms:
      return
    # One loop starts and times calls. Async functions run in another loop,
    # which they may block.
    self.loop, self._async_loop = threads.event_loop(), threads.event_loop()
    self._threads = threads.Threads(workers, seconds)
    if executor == "process":
      self._pool = workers_lib.Pool(
          "rl_reason.tasks.reward_terms:scores_in_worker",
          workers,
          seconds=1e6,  # of CPU time
          wall_seconds=seconds,
          megabytes=MEGABYTES,
      )

  def reset(self) -> None:
    """Resets the counts."""
    self.counts: dict[str, int] = {}
    self._kept: dict[str, tuple[float, int]] = {}
    for term, function in zip(self.terms, self._functions, strict=True):
      self.counts[f"reward/{term.label}/failures"] = 0
      if function.form == "completions":
        self.counts[f"reward/{term.label}/not_applicable"] = 0

  def close(self) -> None:
    """Ends the threads and the processes."""
    if self._pool is not None:
      self._pool.close()
    for loop in (self.loop, self._async_loop) if self.terms else ():
      loop.call_soon_threadsafe(loop.stop)

  async def scores(self, batch: RewardBatch) -> list[list[Score]]:
    """The scores of each function for a group; runs in `loop`."""
    calls = [self._scores(function, batch) for function in self._functions]
    return await asyncio.gather(*calls)

  async def _scores(
      self, function: RewardFunction, batch: RewardBatch
  ) -> list[Score]:
    call = self._by_thread if self._pool is None else self._by_process
    try:
      return await call(function, batch)
    except TimeoutError:
      return [self._late] * len(batch.rows)
    except Exception:  # columns that are no JSON, or no thread can start
      return [Failed(traceback.format_exc())] * len(batch.rows)

  async def _by_thread(self, function, batch) -> list[Score]:
    started = await self._threads.call(function.start, batch)
    finish = function.finish(started, len(batch.rows))
    future = asyncio.run_coroutine_threadsafe(finish, self._async_loop)
    return await asyncio.wait_for(asyncio.wrap_future(future), self._seconds)

  async def _by_process(self, function, batch) -> list[Score]:
    assert self._pool is not None
    [pending] = self._pool.submit([(function.name, batch)])
    value, failure = await asyncio.wrap_future(pending)
    if failure == "time":
      raise TimeoutError
    if failure:
      return [Failed(f"its process failed: {failure}")] * len(batch.rows)
    return [Failed(x) if isinstance(x, str) else x for x in value]

  def note_rules(
      self, names: Sequence[str], kept_RB: Array | Sequence[Array]
  ) -> None:
    """Counts how far responses keep rules; NaN is not known.

    Args:
      names: of the rules, in metrics.
      kept_RB: by rule, from 0 to 1.
    """
    for name, kept_B in zip(names, kept_RB, strict=True):
      known = kept_B[np.isfinite(kept_B)].astype(np.float64)
      total, count = self._kept.get(name, (0.0, 0))
      self._kept[name] = total + float(known.sum()), count + known.size

  def shares(self) -> dict[str, float]:
    """The mean of how far each rule was kept since `reset`, by its metric."""
    return {
        f"reward/{name}": total / count
        for name, (total, count) in self._kept.items()
        if count
    }

  def note(self, states_UB: Array, reasons: list[Failed | None]) -> int:
    """Counts the failures of a round, on all processes alike.

    Args:
      states_UB: GOOD, NOT_APPLICABLE, FAILED or LATE, by function and response
        of the round.
      reasons: the first failure of each function; None if only another process
        saw it.

    Returns:
      the number of failures.

    Raises:
      RunError: a function failed on its first batch, or too many calls hang in
        threads.
    """
    if self._threads.full:
      raise RunError(
          f"reward.executor = 'thread': {self._threads.hanging} calls have not"
          " ended, and threads cannot be ended: correct the functions, or set"
          " reward.executor = 'process'"
      )
    for f, (term, reason) in enumerate(zip(self.terms, reasons, strict=True)):
      states_B = states_UB[f]
      failed_B = states_B >= FAILED
      why = str(reason or "another process has failed, and shows it")
      # A function that fails on its first batch is wrong: the run ends.
      wrong = (states_B == FAILED).any()
      if not self._proved and (wrong or (states_B == LATE).all()):
        remedy = ", correct it and run again" * bool(wrong)
        raise RunError(
            f"the reward function {term.name} failed on its first batch"
            f"{remedy}: {why}".rstrip()
        )
      # Later failures only cost responses.
      for _ in range(int(failed_B.sum())):
        self._failures[f].add(why)
      self.counts[f"reward/{term.label}/failures"] += int(failed_B.sum())
      none = int((states_B == NOT_APPLICABLE).sum())
      if none:
        self.counts[f"reward/{term.label}/not_applicable"] += none
    self._proved = True
    return int((states_UB >= FAILED).sum())


class RewardRound:
  """The reward functions' scores of one round of responses.

  Args:
    runner: calls the functions.
    tok: the tokenizer.
    rows_B: the row of each response.
    by_step: whether rewards of steps are kept.
    counts: whether the shares of rules are metrics of the training step.

  Attributes:
    scores_UB: float32 by function; NaN where it failed, `NO_SCORE` where it
      returned None; valid after `wait`.
    rewards_UTB: float32, rewards of steps at their last tokens; [U, 0, B] if
      they are not kept; valid after `wait`, as all below.
    judged_UB: whether a function has given a response rewards by step.
    ends_TB: bool, the last token of each step.
    kept_RB: how far the response keeps each rule of `RewardRunner.rules`, NaN
      where it is not known.
    failures: the number of failures.
  """

  def __init__(
      self,
      runner: RewardRunner,
      tok: Any,
      rows_B: Sequence[Row],
      by_step: bool = False,
      counts: bool = False,
  ):
    self._runner, self._tok, self._rows_B = runner, tok, rows_B
    self._by_step, self._counts = by_step, counts
    self._pending: list = []
    self._begun_B = np.zeros(len(rows_B), bool)
    self._owner_B = np.zeros(len(rows_B), int)
    shape = len(runner.terms), len(rows_B)
    self.scores_UB, self.failures = np.zeros(shape, np.float32), 0
    self.judged_UB = np.zeros(shape, bool)
    tokens = runner.max_tokens if by_step else 0
    self.rewards_UTB = np.zeros((shape[0], tokens, shape[1]), np.float32)
    self.ends_TB = np.zeros((tokens, shape[1]), bool)
    self.kept_RB = np.full((len(runner.rules), shape[1]), np.nan, np.float32)

  def submit(self, rollouts: Rollouts, finished_B: np.ndarray) -> None:
    """Starts the functions on newly finished groups of all responses so far.

    The responses are on the host; rows of a group are adjacent.
    """
    if not self._runner.terms:
      return
    ids_B = rollouts.ids_B  # negative ones are padding
    self._owner_B = grading.owners(ids_B)
    ends = np.flatnonzero(np.diff(ids_B)) + 1
    for group in np.split(np.arange(len(ids_B)), ends):
      begun = self._begun_B[group].any() or ids_B[group[0]] < 0
      if begun or not finished_B[group].all():
        continue
      self._begun_B[group] = True
      if self._owner_B[group[0]] != jax.process_index():
        continue
      part = jax.tree.map(lambda x, group=group: x[group], rollouts)
      scores = self._scores(part, [self._rows_B[b] for b in group])
      future = asyncio.run_coroutine_threadsafe(scores, self._runner.loop)
      self._pending.append((group, future))

  async def _scores(self, rollouts: Rollouts, rows) -> list[list[Score]]:
    """The scores of each function for one group."""
    slots = rollouts.tokens_BL.shape[1] - rollouts.mask_BT.shape[1]
    tokens_BT, lengths_B = rollouts.tokens_BL[:, slots:], rollouts.lengths_B
    ids = [
        x[m].tolist() for x, m in zip(tokens_BT, rollouts.mask_BT, strict=True)
    ]
    batch = RewardBatch(
        prompts=[row.prompt for row in rows],
        texts=tokenizer.decode(self._tok, tokens_BT, lengths_B),
        token_ids=ids,
        truncated=rollouts.truncated_B.tolist(),
        rows=rows,
        max_tokens=self._runner.max_tokens,
    )
    scores = await self._runner.scores(batch)
    if self._by_step:
      await asyncio.to_thread(self._place, scores, batch)
    return scores

  def _place(self, scores: list[list[Score]], batch: RewardBatch) -> None:
    """Replaces the end of each step, in characters, by its last token.

    The score of a response becomes `Failed` if a step ends after the response.
    """
    for of_function in scores:
      for b, steps in enumerate(of_function):
        if not isinstance(steps, list):
          continue
        ends, text = [end for end, _ in steps], batch.texts[b]
        if ends and ends[-1] > len(text):
          of_function[b] = Failed(
              f"returned a step that ends after {ends[-1]} characters, and the"
              f" response has {len(text)}"
          )
          continue
        places = tokenizer.last_tokens(
            self._tok, batch.token_ids[b], text, ends
        )
        of_function[b] = [
            (t, reward) for t, (_, reward) in zip(places, steps, strict=True)
        ]

  def wait(self) -> None:
    """Waits for the scores of all submitted groups.

    Raises:
      RunError: a function failed on its first batch.
    """
    runner = self._runner
    if not runner.terms:
      return
    states_UB = np.zeros(self.scores_UB.shape, np.int32)
    reasons: list[Failed | None] = [None] * len(runner.terms)
    for group, future in self._pending:
      for f, scores in enumerate(future.result()):
        for b, score in zip(group, scores, strict=True):
          if isinstance(score, Failed):
            self.scores_UB[f, b] = np.nan
            states_UB[f, b] = LATE if score == runner._late else FAILED
            reasons[f] = reasons[f] or score
          elif score is None:
            self.scores_UB[f, b] = NO_SCORE
            states_UB[f, b] = NOT_APPLICABLE
          else:
            self.scores_UB[f, b] = number(score)
            if isinstance(score, dict):
              for r, (function, rule, _) in enumerate(runner.rules):
                if function == f:
                  self.kept_RB[r, b] = score["rules"][rule]
            if self._by_step and isinstance(score, list):
              self.judged_UB[f, b] = True
              for t, reward in score:  # a token may end several steps
                self.rewards_UTB[f, t, b] += reward
                self.ends_TB[t, b] = True
    self._pending = []
    states_UB, self.scores_UB = grading.exchange(
        self._owner_B, states_UB, self.scores_UB
    )
    if runner.rules:
      [self.kept_RB] = grading.exchange(self._owner_B, self.kept_RB)
    if self._counts:
      names = [name for _, _, name in runner.rules]
      runner.note_rules(names, self.kept_RB[:, self._begun_B])
    if self._by_step:
      self.rewards_UTB, self.judged_UB, self.ends_TB = grading.exchange(
          self._owner_B, self.rewards_UTB, self.judged_UB, self.ends_TB
      )
    self.failures = runner.note(states_UB[:, self._begun_B], reasons)


def rule_name(term: Term, rule: str) -> str:
  """The name of a rule in metrics, below reward/."""
  return f"{term.label}/kept/{re.sub(r'[^-A-Za-z0-9_.]+', '_', rule)}"


class Rewards:
  """All terms of the reward: functions, and reward models.

  Args:
    terms: in the order of the config.
    runner: of the reward functions.
    models: the reward models by name.
    by_step: whether rewards of steps are kept; else a step counts in the score
      of its response only.
    scales: what scales the scores of reward models in training, by their names:
      a function of scores [B] and whether a row is a response [B], with
      `metrics`, `reset` for the next step, `get_state` and `set_state`;
      evaluations report raw scores.
    by_verdict: whether the verdict on a response is part of its reward.
  """

  def __init__(
      self,
      terms: Sequence[Term],
      runner: RewardRunner,
      models: dict[str, Model],
      by_step: bool = False,
      scales: Mapping[str, Any] = types.MappingProxyType({}),
      by_verdict: bool = True,
  ):
    self.terms, self.runner, self._models = tuple(terms), runner, models
    self.by_step, self._scales = by_step, scales
    self._by_verdict = by_verdict

  def start_step(self) -> None:
    """Begins the counts of the next training step."""
    self.runner.reset()
    for scale in self._scales.values():
      scale.reset()

  def counts(self) -> dict[str, Any]:
    """Metrics of the responses since `start_step`."""
    out = self.runner.counts | self.runner.shares()
    for scale in self._scales.values():
      out |= scale.metrics()
    return out

  def get_state(self) -> list[Any]:
    """What the scales keep, as JSON, by position: a model may move."""
    return [x.get_state() for x in self._scales.values()]

  def set_state(self, state: list[Any]) -> None:
    """Restores `get_state`."""
    for scale, own in zip(self._scales.values(), state, strict=True):
      scale.set_state(own)

  def begin(self, tok: Any, rows_B: Sequence[Row]) -> RewardRound:
    """Starts a round of responses to these rows."""
    return RewardRound(self.runner, tok, rows_B, self.by_step, counts=True)

  @property
  def labels(self) -> list[str]:
    """Names in metrics: the label, or the full name if the label is taken."""
    owner: dict[str, str] = {}
    names = [
        x.label if owner.setdefault(x.label, x.name) == x.name else x.name
        for x in self.terms
    ]
    return [name.replace("/", ":") for name in names]  # parts of a metric

  def of_all(
      self,
      tok: Any,
      rollouts: Rollouts,
      rows_B: Sequence[Row],
      count: int,
      verified_B: Array | bool = False,
  ) -> tuple[Array, int]:
    """The rewards [count] of complete responses, and the number of failures.

    The arguments are those of `scores_of_all` and of `total`.
    """
    scores_EB, _, failures = self.scores_of_all(tok, rollouts, rows_B, count)
    return self.total(scores_EB, verified_B), failures

  def total(self, scores_EB: Array, verified_B: Array | bool = False) -> Array:
    """The rewards [B] of scores [E, B], with the weights of the last step.

    NaN where a function failed, or where nothing scores the response;
    verified_B is as in `scored`.
    """
    weights_E = [term.last for term in self.terms]
    found_EB = np.asarray(self.scored([*scores_EB], verified_B))
    given_EB = np.where(found_EB == NO_SCORE, 0, found_EB)
    return np.tensordot(weights_E, given_EB, 1)

  def scored(
      self, scores_EB: Sequence[Array], verified_B: Array | bool = False
  ) -> list[Array]:
    """The scores, NaN of all terms where nothing scores a response.

    Args:
      scores_EB: [B] of each term.
      verified_B: whether a response has a verdict.
    """
    # A function of weight 0 is only logged.
    counted = [
        score_B == NO_SCORE
        for x, score_B in zip(self.terms, scores_EB, strict=True)
        if x.first or x.last
    ]
    if not counted:
      return list(scores_EB)
    nobody_B = np.all(counted, 0) & ~(verified_B & np.bool_(self._by_verdict))
    return [np.where(nobody_B, np.float32(np.nan), x) for x in scores_EB]

  def scores_of_all(
      self, tok: Any, rollouts: Rollouts, rows_B: Sequence[Row], count: int
  ) -> tuple[Array, dict[str, Array], int]:
    """The scores of all terms for complete responses.

    Args:
      tok: the tokenizer.
      rollouts: on the host; reward models score all rows, so that shapes stay
        the same.
      rows_B: the row of each response.
      count: number of real responses, which come first.

    Returns:
      the scores [E, count], raw, NaN where a function failed; how far responses
      keep each rule of a constitution [count], by the name of the rule in
      metrics; and the number of failures.
    """
    if not self.terms:  # SFT on rows without a verifier
      return np.zeros((0, count)), {}, 0
    functions = RewardRound(self.runner, tok, rows_B)
    functions.submit(rollouts, np.arange(len(rows_B)) < count)
    functions.wait()
    scores_EB, kept = self._raw_scores(functions.scores_UB, rollouts)
    names = [name for _, _, name in self.runner.rules]
    kept |= zip(names, functions.kept_RB, strict=True)
    kept = {name: kept_B[:count] for name, kept_B in kept.items()}
    return np.stack(scores_EB)[:, :count], kept, functions.failures

  def all_scores(
      self,
      scores_UB: Array,
      rollouts: Rollouts,
      verified_B: Array | bool = True,
  ) -> tuple[Array, ...]:
    """The scores of all terms to train on, [B] each.

    Scores of reward models are scaled where the run has a scale. The scores of
    a response that nothing scores are NaN: it leaves the loss. verified_B is as
    in `scored`.
    """
    scores_EB, kept = self._raw_scores(scores_UB, rollouts)
    real_B = rollouts.ids_B >= 0
    if kept:
      self.runner.note_rules([*kept], [x_B[real_B] for x_B in kept.values()])
    found_EB = [
        self._scales[x.name](scores_B, real_B)
        if x.name in self._scales
        else scores_B
        for x, scores_B in zip(self.terms, scores_EB, strict=True)
    ]
    return tuple(self.scored(found_EB, verified_B))

  def _raw_scores(
      self, scores_UB: Array, rollouts: Rollouts
  ) -> tuple[list[Array], dict[str, Array]]:
    """The scores of all terms, [B] each, and of the rules of reward models."""
    of_functions = iter(scores_UB)
    scores_EB: list[Array] = []
    kept: dict[str, Array] = {}
    for term in self.terms:
      if term.name in self._models:
        found_B = self._models[term.name](rollouts)
        scores_EB.append(np.asarray(found_B, np.float32))
        continue
      score_B = next(of_functions)
      for rule in self.runner.model_rules[term.name]:
        found_B = np.asarray(self._models[rule.model](rollouts), np.float32)
        # The sigmoid, as a hyperbolic tangent, which overflows nowhere. It
        # would make a finite reward of an infinite score.
        found_B = np.where(np.isfinite(found_B), found_B, np.nan)
        kept_B = 0.5 * (1 + np.tanh((found_B - rule.threshold) / 2))
        kept[rule_name(term, rule.rule)] = kept_B
        score_B = score_B + np.float32(rule.share) * kept_B
      scores_EB.append(score_B)
    return scores_EB, kept

  def steps(self, found: RewardRound) -> Steps | None:
    """The process rewards of a round; None if they are not kept."""
    if not self.by_step:
      return None
    of_functions = zip(found.rewards_UTB, found.judged_UB, strict=True)
    zeros_TB = np.zeros(found.ends_TB.shape, np.float32)
    of_model = zeros_TB, np.zeros(zeros_TB.shape[1], bool)
    rewards_ETB, judged_EB = zip(
        *(
            of_model if x.name in self._models else next(of_functions)
            for x in self.terms
        ),
        strict=True,
    )
    return Steps(
        rewards_EBT=tuple(x_TB.T for x_TB in rewards_ETB),
        judged_EB=judged_EB,
        ends_BT=found.ends_TB.T,
        returns_BT=zeros_TB.T,
    )
