"""Rollout collection: draw prompts, sample responses, grade and score them."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rl_reason import tasks
from rl_reason.base.structs import (
    Array,
    Experience,
    Prompts,
    Rollouts,
    Tree,
    call_by_name,
)
from rl_reason.collect import dynamic_sampling
from rl_reason.collect.doubtful_verdicts import Doubtful
from rl_reason.collect.experience import graded, groups
from rl_reason.collect.grading import AsyncGrader
from rl_reason.collect.reward_runner import RewardRound, Rewards
from rl_reason.data import pipelines
from rl_reason.data.prompt_stream import PromptStream, prompt_hash
from rl_reason.devices import sharding
from rl_reason.models import checksums
from rl_reason.monitoring import resources, step_metrics
from rl_reason.rollout.sampler import RolloutEngine, Sampled
from rl_reason.rollout.sampling_filters import Filters
from rl_reason.tasks import Row


class RolloutCollector:
  """Samples and grades rounds of prompts, each with the newest policy.

  Args:
    prompts: where prompts are drawn from.
    engine: samples the responses.
    task: has the verifier.
    tok: the tokenizer.
    rewards: terms of the reward in addition to the verdict.
    key: of the sampling noise, together with the ids of prompts.
    num_responses: of a round.
    group_size: responses to each prompt, on average.
    group_sizes: of a feature, see `feature.Declaration.sizes`, which
      returns the responses to each prompt [N]; None: all groups are equal.
    max_prompt: slots of a prompt, in tokens.
    temperature: of sampling.
    filters: of sampling; None without.
    cache: precision of keys and values: 'same' or 'int8'.
    record: of the sampler, see `sampler.Sampler`.
    shuffle_seed: permutes the verdicts of a round, as a control; None: off.

  Attributes:
    prompts: the stream of prompts.
    clock: laps 'gen' and 'score' of the training loop.
    rewards: the terms of the reward.
    failures: of verifier and reward functions, since the last `start_step`.
    stats: counts of the responses since then.
    doubtful: rejected responses since then that may be right.
    held: the engine's answers since then about the weights that sampled.
  """

  def __init__(
      self,
      prompts: PromptStream,
      engine: RolloutEngine,
      *,
      task: Any,
      tok: Any,
      rewards: Rewards,
      key: Array,
      num_responses: int,
      group_size: int,
      group_sizes: Callable[..., np.ndarray] | None,
      max_prompt: int,
      temperature: float,
      filters: Filters | None,
      cache: str,
      record: Callable[..., Any] | None = None,
      shuffle_seed: int | None = None,
  ):
    self.prompts = prompts
    self.num_responses = num_responses
    self.clock = resources.Clock()
    self.failures = 0
    self.stats = step_metrics.ResponseStats(
        task.answer, getattr(task, "BEHAVIOURS", {})
    )
    self.doubtful = Doubtful(task)
    self.held: list[checksums.Answer] = []
    self._engine, self._task, self._tok = engine, task, tok
    self.rewards, self._key = rewards, key
    self._group_size, self._group_sizes = group_size, group_sizes
    self._max_prompt = max_prompt
    self._temperature = np.float32(temperature)
    self._options: dict[str, Any] = dict(
        group_size=group_size, filters=filters, cache=cache, record=record
    )
    self._shuffle_seed = shuffle_seed

  def start_step(self) -> None:
    """Begins the next training step: resets the counts of failures."""
    self.failures = 0
    self.held = []
    self.stats.clear()
    self.doubtful.clear()
    self.rewards.start_step()

  def finish(
      self,
      rows: Experience,
      metrics: dict[str, Any],
      *,
      weights: Tree,
      step: int,
  ) -> tuple[Experience, dict[str, Any]]:
    """What else is sampled for a full batch; `step` are completed RL steps."""
    del weights, step
    return rows, metrics

  def counts(self) -> dict[str, Any]:
    """Counts since `start_step`, as JSON; 'doubtful' lists responses."""
    return dict(
        held=checksums.answers(self.held),
        functions=self.rewards.counts(),
        failures={"train/verifier_failures": self.failures},
        responses=self.stats.metrics() | self.doubtful.counts(),
        doubtful=self.doubtful.found(),
    )

  def collect(
      self,
      weights: Tree,
      on_dispatch: Callable[[], None] = lambda: None,
  ) -> Experience:
    """Samples, grades and scores one round of prompts.

    Args:
      weights: sampler weights, of `RolloutEngine.weights`.
      on_dispatch: called as soon as the device has work.

    Returns:
      the groups of the round in the order of their prompts.

    Raises:
      RunError: no prompt is left to draw.
    """
    # Draw prompts; each gets a group of responses.
    ids, rows = self.prompts.draw(self.num_responses // self._group_size)
    sizes_N = self._sizes(rows)
    rows_B = [
        row for row, n in zip(rows, sizes_N, strict=True) for _ in range(n)
    ]

    # Sample, and grade responses as they finish while others still decode.
    parts = self._sample(weights, ids, rows, sizes_N, rows_B, on_dispatch)
    rollouts, grader, scores = self._grade(parts, rows_B)

    # Join the graded responses with the terms of their reward.
    experience = self._experience(rollouts, grader.correct_B, rows_B)
    experience = experience.replace(steps=self.rewards.steps(scores))
    experience = self._score(experience, scores.scores_UB, rows_B)
    self.stats.add(experience, grader.texts, rows_B)
    self.doubtful.responses(
        grader.texts, rows_B, grader.correct_B, rollouts.truncated_B
    )
    self._update_prompts(experience, rows)
    self.clock.lap("score")
    return experience

  def _grade(
      self, parts: Iterator[Sampled], rows_B: list[Row]
  ) -> tuple[Rollouts, Any, RewardRound]:
    """Grades responses as they finish, while others are still being sampled.

    Returns the responses, their grader and scores.
    """
    grader = self._grader(rows_B)
    scores = self.rewards.begin(self._tok, rows_B)
    with contextlib.closing(grader):
      for rollouts, finished_B, *_ in parts:
        grader.submit(rollouts, finished_B)
        scores.submit(rollouts, finished_B)
      self.clock.lap("gen")
      grader.wait()
      scores.wait()
    self.failures += grader.failures + scores.failures
    return rollouts, grader, scores

  def _grader(self, rows_B: list[Row]) -> Any:
    """The grader of a round."""
    return AsyncGrader(self._task, self._tok, rows_B)

  def _sizes(self, rows: list[Row]) -> np.ndarray:
    """Responses to each prompt: [N]."""
    if self._group_sizes is None:
      return np.full(len(rows), self._group_size)
    accuracy_N, length_N = self.prompts.expected(rows)
    inputs = dict(
        expected_accuracy_N=accuracy_N,
        expected_length_N=length_N,
        num_responses=self.num_responses,
    )
    return call_by_name(self._group_sizes, inputs)

  def _sample(
      self,
      weights: Tree,
      ids: list[int],
      rows: list[Row],
      sizes_N: np.ndarray,
      rows_B: list[Row],
      on_dispatch: Callable[[], None],
      **options: Any,
  ) -> Iterator[Sampled]:
    """Yields all responses so far, on the host."""
    prompts: Prompts = pipelines.pack_prompts(
        self._tok, [row.prompt for row in rows], ids, self._max_prompt
    )
    # Responses with a long expected length start first, so that none decodes
    # alone at the end. This changes no token.
    _, length_B = self.prompts.expected(rows_B)
    for part in self._engine.stream(
        weights,
        prompts,
        self._key,
        self._temperature,
        None if self._group_sizes is None else sizes_N,
        expected_B=length_B,
        on_dispatch=on_dispatch,
        **self._options | options,
    ):
      if part.held is not None:
        self.held.append(part.held())
      yield part.with_arrays(sharding.fetch)

  def _experience(self, rollouts, correct_B, rows_B) -> Experience:
    """Graded responses of this step's policy."""
    zeros_B = np.zeros(len(rows_B), np.float32)
    return graded(
        rollouts,
        correct_B,
        scores_EB=tuple(zeros_B for _ in self.rewards.terms),
        types_B=self.prompts.types(rows_B),
        problems_B=np.array([prompt_hash(row) for row in rows_B], np.int32),
    )

  def _score(
      self, rows: Experience, scores_UB: Array, rows_B: list[Row]
  ) -> Experience:
    """Rows with all terms of the reward, and with verdicts of the control."""
    if self._shuffle_seed is not None:
      seed = self._shuffle_seed, rows.rollouts.ids_B[0]
      permute = np.random.default_rng(seed).permutation
      rows = rows.replace(correct_B=permute(rows.correct_B))
    verified_B = self._verified(rows_B)
    scores_EB = self.rewards.all_scores(scores_UB, rows.rollouts, verified_B)
    return rows.replace(scores_EB=scores_EB)

  def _verified(self, rows: list[Row]) -> np.ndarray:
    """Whether responses to each row have a verdict."""
    return np.array([tasks.has_verifier(self._task, row) for row in rows], bool)

  def _update_prompts(self, experience: Experience, rows: list[Row]) -> None:
    """Passes the accuracy and lengths of a round to the prompt stream.

    The accuracy is NaN of a group without a verdict.
    """
    found = groups(experience.rollouts.ids_B)
    lengths_B = experience.rollouts.lengths_B
    accuracy_N = dynamic_sampling.accuracy(experience)
    self.prompts.update(
        rows,
        np.where(self._verified(rows), accuracy_N, np.nan),
        [float(lengths_B[group].mean()) for group in found],
    )
