"""Trajectories in environments: exact ids, failures, independence of delays."""

import concurrent.futures
import json
import threading
import time

import jax
import numpy as np
import pytest
from tiny_episodes import EOS, TOK, Echo, check_ids, environments, play, rows

from rl_reason import tasks
from rl_reason.base.errors import RunError
from rl_reason.data import tokenizer
from rl_reason.features.environments import (
    episodes,
    factory,
    observation_loss,
)
from rl_reason.tasks import threads


class Delayed(Echo):
  """Answers after a random time."""

  def step(self, response):
    time.sleep(np.random.default_rng().exponential(0.002))
    return super().step(response)


def test_the_update_gets_the_ids_that_were_sampled():
  found = play(environments(Echo), count=32, max_tokens=80)
  assert found.tokens > 500
  check_ids(found)
  seen_BT = np.asarray(observation_loss.observed(found.rollouts.mask_BT))
  assert seen_BT.any()
  tokens_BT = found.rollouts.tokens_BL[:, -seen_BT.shape[1] :]
  for environment, ids, seen in zip(
      found.made, tokens_BT, seen_BT, strict=True
  ):
    said = "".join(said for _, said, _ in environment.history)
    assert said.startswith(TOK.decode(ids[seen]))


@pytest.mark.parametrize("slots", [0, 4])
def test_nothing_depends_on_the_order_of_answers(slots):
  """The same arrays for one and eight threads, and any delays."""
  alone, many = (
      play(environments(kind, workers=workers, slots=slots), max_tokens=40)
      for kind, workers in ((Echo, 1), (Delayed, 8))
  )
  for name in ("tokens_BL", "mask_BT", "logps_BT", "lengths_B", "truncated_B"):
    a, b = getattr(alone.rollouts, name), getattr(many.rollouts, name)
    np.testing.assert_array_equal(a, b, name)
  np.testing.assert_array_equal(
      alone.episodes.correct_B, many.episodes.correct_B
  )
  assert alone.episodes.texts == many.episodes.texts
  widest = max(len(x) for x in alone.waves[1:])
  assert widest <= slots if slots else widest > 4


class Faulty(Echo):
  """Fails in its own way in some trajectories."""

  number = 0
  lock = threading.Lock()
  faults = ("raise", "hang", "nan", "shape", "fine")

  def reset(self, row, rng):
    with Faulty.lock:
      Faulty.number += 1
      self.fault = self.faults[Faulty.number % 5]
    return super().reset(row, rng)

  def step(self, response):
    match self.fault:
      case "raise":
        raise ZeroDivisionError(response)
      case "hang":
        time.sleep(1.5)
      case "nan":
        return "", float("nan"), True
      case "shape":
        return "", 0.0
    return super().step(response)


def test_a_failure_costs_one_trajectory():
  """It is counted and shown once, and the others are as they would be."""
  shown = []
  run = environments(Faulty, seconds=0.5, show=shown.append)
  run._proved = True
  found = play(run, max_tokens=40)
  failed_B = found.episodes.correct_B < 0
  assert found.episodes.failures == failed_B.sum() > 0
  for b, environment in enumerate(found.made):
    started = found.episodes._turns_B[b] > 0
    assert failed_B[b] == (environment.fault != "fine" and started), b
  assert len(shown) == 1 and "the environment Faulty failed" in shown[0]
  fine = play(environments(Echo), max_tokens=40).rollouts
  for b in np.flatnonzero(~failed_B):
    np.testing.assert_array_equal(
        found.rollouts.tokens_BL[b], fine.tokens_BL[b]
    )


def test_a_first_round_that_fails_throughout_ends_the_run():
  class Broken(Echo):

    def step(self, response):
      raise KeyError("the first traceback")

  with pytest.raises(RunError, match=r"(?s)all 16 .*the first traceback"):
    play(environments(Broken), max_tokens=200)


class Short(Echo):
  """Says what it got of turns that were cut."""

  def cut(self, response):
    self.cuts = [*getattr(self, "cuts", []), response]
    return "=" * len(self.cuts), -1.0, False


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("pauses", [(), range(2, len(TOK), 2)])
def test_a_turn_is_cut_at_its_limit(limit, pauses):
  """The answer follows its tokens; the turn after a cut has no limit."""
  run = environments(Short, turn_tokens=limit, stop_strings=("never",))
  found = play(run, max_tokens=30, pauses=pauses)
  r, longest = found.rollouts, 0
  slots = r.tokens_BL.shape[1] - r.mask_BT.shape[1]
  numbers_BT = found.episodes.turns().numbers_BT
  for b, environment in enumerate(found.made):
    ids, cuts = r.tokens_BL[b, slots:], list(getattr(environment, "cuts", []))
    here = {int(t): int(ids[t]) for t in np.flatnonzero(r.mask_BT[b])}
    assert here == found.drawn[b]
    count, after_cut = len(cuts), False
    for number in range(1, numbers_BT[b].max() + 1):
      (turn,) = np.nonzero(numbers_BT[b] == number)
      end = turn[-1] + 1
      if after_cut:
        longest = max(longest, len(turn))
      is_cut = not after_cut and EOS not in ids[turn] and end < len(ids)
      assert after_cut or len(turn) <= limit
      if is_cut:
        assert len(turn) == limit
        assert TOK.decode(ids[turn]) == cuts.pop(0)
        said = "=" * (count - len(cuts))
        if end + len(said) < len(ids):
          assert TOK.decode(ids[end : end + len(said)]) == said
          assert not r.mask_BT[b, end : end + len(said)].any()
      after_cut = is_cut
    assert not cuts
  assert longest > 3


def test_environments_without_cut_get_the_turn_as_a_step():
  found = play(environments(Echo, turn_tokens=1), max_tokens=12)
  turns = [x.history[0][0] for x in found.made]
  assert {*map(len, turns)} == {0, 1}  # EOS at once, or a cut


def test_an_interrupted_response_by_hand():
  """The verifier reads the thought, the phrase and the answer as one text."""
  task = tasks.get("arithmetic")
  row = tasks.Row("5-1+1=", "5", 3)
  make = factory.find("interrupt", task, ";#")
  for turns, wanted in (
      ([("step", "5-1=4;4+1=5;#5")], 1.0),
      ([("step", "5-1=4;#4")], 0.0),
      ([("cut", "5-1=4;4+1=5"), ("step", "5")], 1.0),
      ([("cut", "5-1=4;4+1=5"), ("step", "4")], 0.0),
  ):
    environment = make()
    environment.reset(row, None)
    for name, text in turns:
      said, reward, over = getattr(environment, name)(text)
      assert over == ((name, text) == turns[-1])
      assert over or (said, reward) == (";#", 0.0)
    assert reward == wanted == environment.correct()

  class Fails:
    begin = staticmethod(lambda pairs: lambda: [None])

  environment = factory.find("interrupt", Fails(), "#")()
  environment.reset(row, None)
  with pytest.raises(RuntimeError, match="verifier failed"):
    environment.step("5")


def test_responses_to_a_row_share_its_prompt():
  class Own(Echo):
    count = 0

    def reset(self, row, rng):
      Own.count += 1
      return super().reset(row, rng) or str(Own.count % 2)

  run = environments(Own, workers=1)
  run._proved = True
  found = play(run, max_tokens=8)
  assert found.episodes.failures == 8 and len(set(found.episodes.prompts)) == 1


def test_a_stop_string_ends_a_turn_however_it_is_spelled():
  """A pause of the sampler that is no end, as after "2", changes nothing."""
  run = environments(Echo, stop_strings=("12",))
  pauses = TOK.convert_tokens_to_ids(["2"])
  found = play(run, count=64, max_tokens=60, pauses=pauses)
  turns = [x[0] for one in found.made for x in one.history]
  stopped = [x for x in turns if x.endswith("12")]
  assert stopped and all("12" not in x[:-1] for x in turns)
  assert any("2" in x[:-1] for x in turns), "a pause that was no stop"


def test_limits_truncate():
  """Turns end at max_turns, and before an observation that leaves no room."""
  few = play(environments(Echo, max_turns=2), max_tokens=80)
  last_B = few.episodes.turns().numbers_BT.max(1)
  assert last_B.max() == 2
  for b, environment in enumerate(few.made):
    over = environment.history and environment.is_over
    assert few.rollouts.truncated_B[b] != bool(over)
    assert few.episodes.correct_B[b] <= bool(over)

  class Long(Echo):

    def say(self):
      return "7" * 79

  long = play(environments(Long), max_tokens=80)
  assert long.episodes.turns().numbers_BT.max() == 1
  assert (long.rollouts.mask_BT.sum(1) == long.rollouts.lengths_B).all()


def test_rows_of_a_group_get_the_same_generator():
  found = play(environments(Echo), max_tokens=8)
  seeds = [x.seed for x in found.made]
  assert all(len(set(seeds[n : n + 4])) == 1 for n in range(0, 16, 4))
  assert len(set(seeds)) == len(rows(16)) // 4


class Foreign(Echo):
  """Says what its tokenizer cannot spell."""

  def say(self):
    return "é" if self.seed % 2 else super().say()


def test_text_that_cannot_be_encoded_costs_its_trajectory():
  """Said with the character and the remedy; the others are as they would be."""
  shown = []
  run = environments(Foreign, show=shown.append)
  run._proved = True
  found = play(run, max_tokens=40)
  failed_B = found.episodes.correct_B < 0
  assert 0 < failed_B.sum() == found.episodes.failures < 16
  (text,) = shown
  assert "cannot encode 'é' in 'é': leave it out" in text
  fine = play(environments(Echo), max_tokens=40).rollouts.tokens_BL
  odd_B = np.array([x.seed % 2 for x in found.made], bool)
  assert (failed_B <= odd_B).all()
  np.testing.assert_array_equal(found.rollouts.tokens_BL[~odd_B], fine[~odd_B])


def test_a_prompt_that_cannot_be_encoded_costs_its_group():
  """Its place is taken by any prompt, so that the round goes on."""

  class Odd(Echo):

    def reset(self, row, rng):
      super().reset(row, rng)
      return "é" if row.prompt == "1" else None

  shown = []
  run = environments(Odd, show=shown.append)
  run._proved = True
  found = play(run, max_tokens=8)
  assert found.episodes.failures == 4 and "cannot encode 'é'" in shown[0]
  assert found.episodes.prompts == ["0", TOK.eos_token, "2", "3"]
  assert tokenizer.encode(TOK, found.episodes.prompts)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_exit_of_an_environment_is_a_failure_at_once(error):

  class Leaves(Echo):

    def step(self, response):
      raise error("left")

  began = time.monotonic()
  with pytest.raises(RunError, match=f"(?s)all 16 .*{error.__name__}: left"):
    play(environments(Leaves, seconds=60.0), max_tokens=200)
  assert time.monotonic() - began < 30


def test_calls_that_hang_are_bounded(monkeypatch):
  """Threads that cannot be ended are counted; the run ends with a remedy."""
  monkeypatch.setattr(threads, "MOST_HANGING", 5)
  release = threading.Event()

  class Hangs(Echo):

    def step(self, response):
      release.wait()
      return super().step(response)

  shown = []
  run = environments(Hangs, seconds=0.05, workers=4, show=shown.append)
  run._proved = True
  before = threading.active_count()
  with pytest.raises(RunError, match="set environment.executor = 'process'"):
    play(run, count=32, max_tokens=40)
  assert threading.active_count() - before <= 4 + 5
  release.set()
  while run._threads.hanging:  # one that ends is no longer counted
    time.sleep(0.01)
  calls = [run.call(lambda: 7) for _ in range(3)]
  assert [x.result() for x in calls] == [7, 7, 7]


class Hosts:
  """Stands for `devices.hosts`: each thread is a process of a run."""

  def __init__(self, count):
    self.index, self._values = threading.local(), [None] * count
    self._count, self._barrier = count, threading.Barrier(count, timeout=60)

  def own(self, ids):
    return np.asarray(ids) % self._count == self.index.value

  def everyones(self, value):
    self._values[self.index.value] = json.dumps(value)
    self._barrier.wait()
    found = [json.loads(x) for x in self._values]
    self._barrier.wait()  # before the next values
    return found


def test_hosts_play_their_own_rows_and_end_where_one_does(monkeypatch):
  """Each asks the environments of its prompts; all have all trajectories."""

  class Mixed(Echo):
    """Fails in the rows of one prompt, and of another in reset."""

    def reset(self, row, rng):
      super().reset(row, rng)
      if row.prompt == "2":
        raise KeyError("no game 2")

    def step(self, response):
      if self.row.prompt == "1":
        raise KeyError("no turn of 1")
      return super().step(response)

  def played(index):
    hosts.index.value = index
    run = environments(Mixed, show=lambda _: None, slots=8)
    run._proved = True
    return play(run, max_tokens=80)

  found = []
  for count in (1, 2, 3):
    hosts = Hosts(count)
    monkeypatch.setattr(episodes, "hosts", hosts)
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
      found.append(list(pool.map(played, range(count))))
  (alone,) = found[0]
  for each in found[1:]:
    made = [{int(x.row.prompt) for x in one.made} for one in each]
    assert sorted(x for one in made for x in one) == [0, 1, 2, 3]
    assert all(n % len(each) == i for i, one in enumerate(made) for n in one)
    for one in each:
      parts = [
          (x.rollouts, x.episodes.turns(), x.episodes.correct_B)
          for x in (one, alone)
      ]
      jax.tree.map(np.testing.assert_array_equal, *parts)
      assert one.episodes.prompts == alone.episodes.prompts
      assert one.episodes.texts == alone.episodes.texts
      failed = {b: x.reason for b, x in alone.episodes._failed.items()}
      assert {b: x.reason for b, x in one.episodes._failed.items()} == failed
  assert alone.episodes.failures >= 5
  assert alone.episodes.numbers["returns"].any()
