"""Trajectories without a model: a sampler on the host, and environments."""

import collections
import time
import types

import jax
import numpy as np
from tiny import TOK

from rl_reason import tasks
from rl_reason.base.structs import Rollouts
from rl_reason.data import tokenizer
from rl_reason.features.environments.environment_runner import Environments
from rl_reason.features.environments.episodes import Episodes
from rl_reason.rollout.sampler import Sampled
from rl_reason.tasks import arithmetic

EOS, P, GROUP = TOK.eos_token_id, 3, 4


class Echo:
  """Answers with the length of the response; ends at random."""

  def reset(self, row, rng):
    self.history, self.is_over = [], False
    self.row, self.rng = row, rng
    self.seed = rng.integers(2**31)

  def say(self):
    return f"{self.rng.integers(10**5)}=" * int(self.rng.integers(0, 3))

  def step(self, response):
    said, reward = self.say(), float(self.rng.integers(-2, 3))
    self.is_over = bool(self.rng.random() < 0.1)
    self.history.append((response, said, reward))
    return said, reward, self.is_over


def rows(count):
  return [tasks.Row(f"{n}", "", 2) for n in range(count)]


def environments(make, **options):
  usual = dict(ends=(EOS,), max_turns=99)
  return Environments(make.__name__, make, TOK, **usual | options)


def play(run, count=16, max_tokens=80, pauses=(), seed=0, made=True):
  """Plays `count` trajectories of random tokens.

  A token and its log-prob depend on row and position only, as in the sampler.
  """
  drawn, waves = collections.defaultdict(dict), []
  prompts = np.tile(TOK("1+1")["input_ids"], (count, 1)).astype(np.int32)
  ends = [EOS, *pauses]

  def sample(keep_cache, resumed=None, limits_B=None):
    assert keep_cache
    blank = Rollouts(
        tokens_BL=np.concatenate(
            [prompts, np.zeros((count, max_tokens), np.int32)], 1
        ),
        start_B=np.zeros(count, np.int32),
        ids_B=np.repeat(np.arange(count // GROUP), GROUP),
        mask_BT=np.zeros((count, max_tokens), bool),
        logps_BT=np.zeros((count, max_tokens), np.float32),
        lengths_B=np.zeros(count, np.int32),
        truncated_B=np.ones(count, bool),
    )
    out, ended_B, *_ = resumed or (blank, np.zeros(count, bool))
    out, ended_B = jax.tree.map(np.array, (out, ended_B))
    waves.append(np.flatnonzero(~ended_B))
    left = list(waves[-1])
    for b in waves[-1]:
      while not ended_B[b]:
        t = int(out.lengths_B[b])
        rng = np.random.default_rng((seed, b, t))
        is_end = rng.random() < 0.2
        token = EOS if is_end else int(rng.integers(2, len(TOK)))
        assert t not in drawn[b], "drawn twice"
        drawn[b][t] = out.tokens_BL[b, P + t] = token
        out.logps_BT[b, t] = -token
        out.lengths_B[b] = t + 1
        limit = max_tokens if limits_B is None else limits_B[b]
        ended_B[b] = token in ends or t + 1 == limit
      left.remove(b)
      if len(left) == 2:  # a snapshot in the middle, as `stream` yields them
        yield Sampled(jax.tree.map(np.array, out), ended_B.copy())
    yield Sampled(out, ended_B)

  sizes_N = [GROUP] * (count // GROUP)
  ids = range(count // GROUP)
  episodes = Episodes(run, rows(count // GROUP), ids, sizes_N, seed)
  *_, (rollouts, ended_B, *_) = episodes.stream(sample)
  run.close()
  assert ended_B.all()
  return types.SimpleNamespace(
      rollouts=rollouts,
      episodes=episodes,
      made=made and [x.environment for x in episodes._plays.values()],
      drawn=drawn,
      waves=waves,
      tokens=sum(map(len, drawn.values())),
  )


def check_ids(found):
  """Every token of the mask was drawn once, at its place; the rest is said."""
  r, turns = found.rollouts, found.episodes.turns()
  slots = r.tokens_BL.shape[1] - r.mask_BT.shape[1]
  for b, environment in enumerate(found.made):
    ids = r.tokens_BL[b, slots:]
    mask_T, numbers_T = r.mask_BT[b], turns.numbers_BT[b]
    # Tokens of the policy are those of the sampler, with its log-probs.
    here = {int(t): int(ids[t]) for t in np.flatnonzero(mask_T)}
    assert here == found.drawn[b]
    np.testing.assert_array_equal(r.logps_BT[b], np.where(mask_T, -ids, 0))
    np.testing.assert_array_equal(numbers_T > 0, mask_T)
    end = int(r.lengths_B[b])
    assert not mask_T[end:].any() and (ids[end:] == TOK.pad_token_id).all()
    # Each turn is what the environment read, each observation what it said.
    rest, rewards_T = ids[:end].tolist(), np.zeros(len(mask_T))
    for number, (turn, said, reward) in enumerate(environment.history, 1):
      size = int((numbers_T == number).sum())
      assert rest[size - 1] == EOS
      assert tokenizer.decode(TOK, np.array([rest[:size]]), [size]) == [turn]
      rewards_T[np.flatnonzero(numbers_T == number)[-1]] = reward
      encoded = tokenizer.encode(TOK, [said])[0]
      if rest := rest[size:]:
        assert rest[: len(encoded)] == encoded
        rest = rest[len(encoded) :]
    assert EOS not in rest  # a last turn that the limit has cut
    np.testing.assert_array_equal(turns.rewards_BT[b], rewards_T)


class Talk:
  """A task for an untrained policy: any turn is answered, one in three ends."""

  ALPHABET = arithmetic.ALPHABET
  DIFFICULTIES = arithmetic.DIFFICULTIES
  STYLES = ("careful",)
  problem = staticmethod(arithmetic.problem)
  delay = 0.0  # seconds, on average

  def demonstrate(self, row, style, rng):
    return ["1+1", "#2"]

  def reset(self, row, rng):
    self.rng = rng

  def step(self, response):
    time.sleep(np.random.default_rng().exponential(self.delay or 1e-9))
    # Of the response and of rng: the rows of a group differ.
    over = (len(response) + int(self.rng.integers(3))) % 3 == 0
    return f"={len(response)};", float(len(response) % 2), over
