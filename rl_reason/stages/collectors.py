"""The collector of a stage, as a config describes it.

A collector draws prompts, samples responses and grades them; which class does
so depends on features.
"""

from typing import Any

from rl_reason.base import feature
from rl_reason.base.structs import Experience
from rl_reason.collect.collector import RolloutCollector
from rl_reason.collect.experience import no_rows
from rl_reason.collect.reward_runner import Rewards
from rl_reason.data.prompt_stream import PromptStream
from rl_reason.devices.randomness import host_seed, key
from rl_reason.rollout import sampling_filters
from rl_reason.stages import build_step
from rl_reason.stages.session import Session


def collector(
    c,
    session: Session,
    purpose: str,
    *,
    engine: Any,
    rewards: Rewards,
    batches: int = 1,
    curriculum: int = 0,
    older: int = 0,
) -> RolloutCollector:
  """The rollout collector of a stage, on the devices of its engine.

  Args:
    c: the config.
    session: what the run has opened.
    purpose: names the randomness of prompts and of sampling.
    engine: samples the responses.
    rewards: the terms of the reward.
    batches: batches of responses that a round generates.
    curriculum: first prompts, which come easiest first.
    older: rows of a batch that are of earlier steps; a round samples fewer.
  """
  row_source = session.row_source
  prompts = PromptStream(
      *row_source.prompts(f"{purpose} prompts", curriculum=curriculum),
      drawn=feature.first(c, "drawn"),
      types=c.rollout.types,
  )
  recorder = feature.first(c, "recorder")
  options: dict[str, Any] = dict(
      task=row_source.task,
      tok=session.tok,
      rewards=rewards,
      key=key(engine.mesh, c.seed, purpose),
      num_responses=batches * c.rollout.batch - older,
      group_size=c.rollout.group_size,
      group_sizes=feature.first(c, "sizes"),
      max_prompt=c.rollout.max_prompt,
      temperature=c.rollout.temperature,
      filters=sampling_filters.of(c.rollout),
      cache=c.rollout.cache,
      record=recorder and recorder.record,
      shuffle_seed=host_seed(c.seed, "shuffle") if c.reward.shuffle else None,
  )
  for one in feature.used(c):
    if found := one.collector(c, session, engine, purpose):
      other, more = found
      return other(prompts, engine, **options, **more)
  return RolloutCollector(prompts, engine, **options)


def empty_rows(c, rows: int) -> Experience:
  """`no_rows` in the shapes of a config."""
  player, record = feature.first(c, "player"), None
  if recorder := feature.first(c, "recorder"):
    shape = rows, c.rollout.max_prompt + c.rollout.max_tokens
    record = recorder.no_record(c.model, shape)
  return no_rows(
      rows,
      c.rollout.max_prompt,
      c.rollout.max_tokens,
      len(build_step.terms(c)),
      turns=player.padding(rows) if player else None,
      steps=c.reward.process != "none",
      record=record,
  )
