"""Trajectories: turns of the policy, and the answers of environments.

A wave samples all live responses to the end of a turn. Environments answer
ended turns while other turns still decode. The answers are appended as token
ids, and the next wave continues the responses. Tokens are never decoded and
encoded again: an environment gets the text of a turn, and the update gets the
sampled ids.

Nothing depends on when an environment answers. The noise of a token depends on
(seed, prompt id, sample, position), and a wave begins after all answers to the
wave before have arrived. Its rows, and so all bits, are the same for any number
of threads and any delays.
"""

import concurrent.futures
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_reason.base.structs import Experience, Rollouts
from rl_reason.collect.collector import RolloutCollector
from rl_reason.data import tokenizer
from rl_reason.devices import hosts
from rl_reason.features.environments import observations
from rl_reason.features.environments.environment_runner import (
    Environments,
    Failure,
)
from rl_reason.features.environments.turns import Turns
from rl_reason.rollout.sampler import Sampled
from rl_reason.tasks import Row

# (keep_cache=, resumed=, limits_B=) -> a stream of `sampler.stream`, on the
# host.
Sample = Callable[..., Iterable[Sampled]]


class Answer(NamedTuple):
  """An environment's answer to a turn.

  Attributes:
    ids: of the observation, which the policy reads next.
    reward: of the turn.
    over: whether the trajectory ends.
    correct: whether the trajectory counts as correct, if it ends.
  """

  ids: list[int]
  reward: float
  over: bool
  correct: bool


class Episodes:
  """The trajectories of one round of prompts.

  Also the grader of the round (see `collect.grading.AsyncGrader`), since an
  environment says itself whether a trajectory is correct.

  Args:
    environments: of the run.
    rows: the problems, [N].
    ids: of the prompts, not negative.
    sizes_N: responses to each.
    seed: of the generators that `reset` gets.

  Attributes:
    prompts: texts [N], of `reset`.
    texts: transcripts [B]; valid once `stream` has ended, as all below.
    correct_B: float32 in {0, 1}; -1 where the environment failed.
    failures: number of trajectories in which it failed.

  Raises:
    RunError: all trajectories of the run's first round failed.
  """

  def __init__(
      self,
      environments: Environments,
      rows: Sequence[Row],
      ids: Sequence[int],
      sizes_N: Sequence[int],
      seed: int,
  ):
    self._run = environments
    count = int(np.sum(sizes_N))
    group_B = np.repeat(np.arange(len(rows)), sizes_N)
    self._own_B = hosts.own(ids)[group_B]  # environments of this process
    self.correct_B = np.zeros(count, np.float32)
    self.texts = [""] * count
    self._failed: dict[int, Failure] = {}  # by row
    self._plays: dict[int, Any] = {}  # by row
    self._pending: dict[int, concurrent.futures.Future] = {}  # by row
    self._rollouts: Rollouts | None = None
    self._start_B = np.zeros(count, int)  # first token of the current turn
    self._turns_B = np.zeros(count, int)  # ended turns
    self._asked_B = np.zeros(count, bool)  # the environment has the turn
    self._cut_B = np.zeros(count, bool)  # the last turn was cut
    self._chat_B = np.zeros(count, bool)  # the prompt is a turn of a chat

    def begin(b: int, n: int):
      self._plays[b] = play = environments.begin()
      prompt = play.reset(rows[n], (seed, int(ids[n])))
      is_chat = bool(rows[n].messages) or not isinstance(prompt, str)
      text = observations.prompt_text(environments.tok, prompt, play.offered)
      tokenizer.encode(environments.tok, [text])  # fails here, not in a batch
      return text, is_chat

    for b in np.flatnonzero(self._own_B).tolist():
      self._pending[b] = environments.call(begin, b, int(group_B[b]))
    prompts: dict[int, str] = {}
    for b, (prompt, is_chat) in self._received(tuple).items():
      n, self._chat_B[b] = int(group_B[b]), is_chat
      if prompts.setdefault(n, prompt) != prompt:
        self._failed[b] = Failure(
            f"reset gave the prompts {prompts[n]!r} and {prompt!r} to one row;"
            " responses to a row share its prompt: draw it with rng alone"
        )
    if len(self._failed) == count:
      self._note()
    # If all trajectories of a row have failed, none is learned from: any prompt
    # will do.
    anything = environments.tok.eos_token
    self.prompts = [prompts.get(n, anything) for n in range(len(rows))]

  def _received(self, kind: Callable[[Any], Any]) -> dict[int, Any]:
    """Waits for the pending calls of all processes; notes failures.

    Returns what `kind` makes of the fields of each value, by row, in order,
    without failed rows.
    """
    found = {b: x.result() for b, x in self._pending.items()}
    self._pending = {}
    parts = hosts.everyones(
        [[b, isinstance(x, Failure), list(x)] for b, x in found.items()]
    )
    out = {}
    for b, failed, fields in sorted(x for part in parts for x in part):
      if failed:
        self._failed[b] = Failure(*fields)
      else:
        out[b] = kind(fields)
    return out

  @property
  def failures(self) -> int:
    """Trajectories in which the environment failed."""
    return len(self._failed)

  def submit(self, rollouts: Rollouts, finished_B: np.ndarray) -> None:
    """Does nothing: `stream` calls the environments."""

  def wait(self) -> None:
    """Does nothing: `stream` has waited."""

  def close(self) -> None:
    """Drops the environments."""
    self._plays = {}

  by_level = ("turns",)  # see `feature.Declaration.play`

  @property
  def numbers(self) -> dict[str, np.ndarray]:
    """Number of turns and sum of rewards of each trajectory, [B] float64."""
    returns_B = self._rewards_BT.sum(1)
    found = dict(turns=self._turns_B, returns=returns_B)
    return {name: x.astype(np.float64) for name, x in found.items()}

  def turns(self) -> Turns:
    """The turns of all trajectories."""
    return Turns(rewards_BT=self._rewards_BT, numbers_BT=self._numbers_BT)

  def stream(self, sample: Sample) -> Iterator[Sampled]:
    """Plays all trajectories to their ends; yields all so far after each wave.

    `sample` samples turns: first without `resumed`, then with it; with
    `limits_B`, if turns have a limit; and it keeps the cache.
    """
    live_B = np.ones(len(self.texts), bool)
    while live_B.any():
      # Sample the next turns. Environments answer while others still decode.
      if self._rollouts is None:
        parts = sample(keep_cache=True, **self._limits())
        cache = self._wave(parts, live_B)
      else:
        for wave_B in self._fitting(live_B):
          resumed = Sampled(self._rollouts, ~wave_B, cache)
          parts = sample(keep_cache=True, resumed=resumed, **self._limits())
          cache = self._wave(parts, wave_B)
      # Append the answers; trajectories that are not over continue.
      assert self._rollouts is not None
      live_B = self._answered(self._rollouts, live_B)
      if not live_B.any():
        self._finish(self._rollouts)
      yield Sampled(self._rollouts, ~live_B)

  def _limits(self) -> dict[str, np.ndarray]:
    """The most tokens of each response when its next turn is cut."""
    if not self._run.turn_tokens:
      return {}
    limits_B = self._start_B + self._run.turn_tokens
    if self._rollouts is not None:
      most = self._rollouts.mask_BT.shape[1]
      limits_B = np.where(self._cut_B, most, np.minimum(limits_B, most))
    return dict(limits_B=limits_B.astype(np.int32))

  def _fitting(self, live_B: np.ndarray) -> Iterator[np.ndarray]:
    """Splits rows into waves that have a slot for each row."""
    shards = self._run.shards
    slots = (self._run.slots or len(live_B)) // shards
    rank_WX = live_B.reshape(shards, -1).cumsum(1) - 1
    wave_B = rank_WX.reshape(-1) // slots
    for wave in range(wave_B[live_B].max() + 1):
      yield live_B & (wave_B == wave)

  def _wave(self, parts: Iterable[Sampled], wave_B: np.ndarray) -> Any:
    """Takes over turns as they end and asks environments; returns the cache."""
    waiting_B, cache = wave_B.copy(), None
    for sampled in parts:
      part, ended_B, cache = sampled[:3]
      if self._rollouts is None:
        self._rollouts = _empty(part, self._run.tok.pad_token_id)
        self._numbers_BT = np.zeros(part.mask_BT.shape, np.int32)
        self._rewards_BT = np.zeros(part.mask_BT.shape, np.float32)
      rows = np.flatnonzero(ended_B & waiting_B)
      waiting_B[rows] = False
      for name in ("tokens_BL", "logps_BT", "lengths_B"):
        getattr(self._rollouts, name)[rows] = getattr(part, name)[rows]
      for b in rows.tolist():
        self._ask(b, self._rollouts)
    return cache

  def _ask(self, b: int, rollouts: Rollouts) -> None:
    """Asks the environment of a row, if its turn is over."""
    start, end = self._start_B[b], rollouts.lengths_B[b]
    ids = _responses(rollouts)[b, start:end]
    rollouts.mask_BT[b, start:end] = True
    self._numbers_BT[b, start:end] = self._turns_B[b] + 1
    (text,) = tokenizer.decode(self._run.tok, ids[None], [len(ids)])
    stops = any(stop in text for stop in self._run.stop_strings)
    ended = next((x for x in self._run.stop_strings if text.endswith(x)), "")
    if is_end := int(ids[-1]) in self._run.ends:
      ended = self._run.tok.convert_ids_to_tokens(int(ids[-1]))
    # A turn without an end is cut once, if there is room for an observation.
    limit, room = self._run.turn_tokens, end < rollouts.mask_BT.shape[1]
    cut = 0 < limit <= end - start and room and not (stops or is_end)
    cut = cut and not self._cut_B[b]
    if b not in self._failed and (stops or is_end or cut):
      self._cut_B[b] = cut
      self._turns_B[b] += 1
      self._asked_B[b] = True
      if self._own_B[b]:
        # After a cut, the observation is part of the same turn of a chat.
        chat = self._chat_B[b] and not cut
        encode = functools.partial(
            self._run.observer.answer, chat=chat, ended=ended
        )
        play = self._plays[b]
        self._pending[b] = self._run.call(_answer, play, text, encode, cut)

  def _answered(self, rollouts: Rollouts, live_B: np.ndarray) -> np.ndarray:
    """Appends the answers of environments; returns the live trajectories."""
    tokens_BT, lengths_B = _responses(rollouts), rollouts.lengths_B
    asked_B, self._asked_B = self._asked_B, np.zeros(len(live_B), bool)
    answers = self._received(lambda fields: Answer(*fields))
    # A turn continues if its last token completed no stop string.
    room_B = lengths_B < tokens_BT.shape[1]
    failed_B = np.isin(np.arange(len(live_B)), list(self._failed))
    live_B = live_B & ~asked_B & room_B & ~failed_B
    for b, answer in answers.items():
      self._rewards_BT[b, lengths_B[b] - 1] = answer.reward
      if answer.over:
        self.correct_B[b] = answer.correct
        rollouts.truncated_B[b] = False
        continue
      # An observation that leaves no room for a turn ends the trajectory.
      start, end = lengths_B[b], lengths_B[b] + len(answer.ids)
      if self._turns_B[b] < self._run.max_turns and end < tokens_BT.shape[1]:
        tokens_BT[b, start:end] = answer.ids
        lengths_B[b] = self._start_B[b] = end
        live_B[b] = True
    return live_B

  def _finish(self, rollouts: Rollouts) -> None:
    """Sets transcripts and failures after all trajectories have ended."""
    self.texts = tokenizer.decode(
        self._run.tok, _responses(rollouts), rollouts.lengths_B
    )
    for play in list(self._plays.values()):  # a late thread may add one
      play.close()
    self._note()

  def _note(self) -> None:
    self.correct_B[list(self._failed)] = -1
    self._run.note(list(self._failed.values()), len(self.texts))


def _answer(
    play: Any, text: str, encode: Callable[..., list[int]], cut: bool
) -> Answer:
  """Passes a turn to an environment and encodes its observation."""
  said = play.step(text, cut)
  ids = [] if said.over else encode(said.observation, play.offered)
  return Answer(ids, said.reward, said.over, said.correct)


def _responses(rollouts: Rollouts) -> np.ndarray:
  """Response tokens, a view: [B, T]."""
  slots = rollouts.tokens_BL.shape[1] - rollouts.mask_BT.shape[1]
  return rollouts.tokens_BL[:, slots:]


def _empty(rollouts: Rollouts, pad: int) -> Rollouts:
  """Trajectories before their first turn, in writable arrays."""
  tokens_BL = np.array(rollouts.tokens_BL)
  tokens_BL[:, -rollouts.mask_BT.shape[1] :] = pad
  return rollouts.replace(
      tokens_BL=tokens_BL,
      mask_BT=np.zeros_like(rollouts.mask_BT),
      logps_BT=np.zeros_like(rollouts.logps_BT),
      lengths_B=np.zeros_like(rollouts.lengths_B),
      truncated_B=np.ones_like(rollouts.truncated_B),
  )


class TurnsCollector(RolloutCollector):
  """A collector whose responses are trajectories in environments.

  Args:
    environments: of the run.
    environment_seed: of the generators that environments get.
    **options: of `RolloutCollector`.
  """

  def __init__(
      self, *args, environments: Environments, environment_seed: int, **options
  ):
    super().__init__(*args, **options)
    self._environments, self._seed = environments, environment_seed
    self._episodes: Episodes

  def _sample(
      self, weights, ids, rows, sizes_N, rows_B, on_dispatch, **options
  ) -> Any:
    """Yields all trajectories so far, on the host."""
    self._episodes = Episodes(
        self._environments, rows, ids, sizes_N, self._seed
    )
    prompts = self._episodes.prompts
    prompted = [
        row._replace(prompt=prompt)
        for row, prompt in zip(rows, prompts, strict=True)
    ]
    turns = functools.partial(
        super()._sample, weights, ids, prompted, sizes_N, rows_B
    )

    def sample(**wave):
      # The device has work since the first turns.
      begins = (lambda: None) if "resumed" in wave else on_dispatch
      return turns(begins, **options | wave)

    return self._episodes.stream(sample)

  def _verified(self, rows) -> np.ndarray:
    """Environments judge all trajectories."""
    return np.ones(len(rows), bool)

  def _grader(self, rows_B) -> Episodes:
    """The trajectories of `_sample`, graded by their environments."""
    del rows_B
    return self._episodes

  def _experience(self, rollouts, correct_B, rows_B) -> Experience:
    """Trajectories of this step's policy, with their turns."""
    out = super()._experience(rollouts, correct_B, rows_B)
    return out.replace(turns=self._episodes.turns())
