"""Rollout collection: which prompts are drawn, and how responses are graded."""

import json
import threading

import jax
import numpy as np
import pytest
import tiny_session

from rl_reason import tasks
from rl_reason.base.structs import Rollouts
from rl_reason.collect import experience, grading
from rl_reason.data import prompt_stream
from rl_reason.rollout import decode_loop, sampler
from rl_reason.tasks import arithmetic

# --- the stream of prompts ---------------------------------------------------


class Numbers:
  """An iterator over ids 0, 1, ...; prompts repeat after `count` ids."""

  def __init__(self, count):
    self.count, self.next = count, 0

  def __getitem__(self, prompt_id):
    return prompt_id, tasks.Row(str(prompt_id % self.count), "", 2)

  def get_state(self):
    return self.next

  def __next__(self):
    self.next += 1
    return [self[self.next - 1]]


def numbers(count, **options):
  source = Numbers(count)
  return prompt_stream.PromptStream(source, source, **options)


def test_averages_by_difficulty_decay():
  """The first round counts in full, each later one with a tenth."""
  prompts = numbers(9)
  _, rows = prompts.draw(1)
  prompts.update(rows, [0.75], [13.0])
  np.testing.assert_allclose(prompts.expected(rows), [[0.75], [13]])
  prompts.update(rows, [0.25], [3.0])
  wanted = [0.9 * 0.75 + 0.1 * 0.25, 0.9 * 13 + 0.1 * 3]
  np.testing.assert_allclose(prompts.get_state()["averages"]["2"], wanted)
  # A difficulty that is new counts as the average one.
  expected = prompts.expected([tasks.Row("", "", 7)])
  np.testing.assert_allclose(expected, np.transpose([wanted]))


# --- rounds without a model --------------------------------------------------


class InstantEngine:
  """In place of the model: every response is '#', its number in the group."""

  def __init__(self, session):
    self._tok, self._length = session.tok, session.config.rollout.max_tokens
    self.mesh = session.mesh

  def stream(self, params, prompts, key, temperature, sizes_N, **options):
    del params, key, temperature
    if sizes_N is None:
      sizes_N = np.full(len(prompts.ids_N), options["group_size"])
    prompt_B = np.repeat(np.arange(len(sizes_N)), sizes_N)
    sample_B = np.concatenate([np.arange(n) for n in sizes_N])
    mark, zero = self._tok.convert_tokens_to_ids(["#", "0"])
    tokens_BT = np.full((len(prompt_B), self._length), self._tok.pad_token_id)
    tokens_BT[:, 0], tokens_BT[:, 1] = mark, zero + sample_B
    tokens_BT[:, 2] = self._tok.eos_token_id
    tokens_BP = np.asarray(prompts.tokens_NP)[prompt_B]
    all_B = np.ones(len(prompt_B), bool)
    rollouts = Rollouts(
        tokens_BL=np.concatenate([tokens_BP, tokens_BT], 1).astype(np.int32),
        start_B=np.asarray(prompts.start_N)[prompt_B],
        ids_B=np.asarray(prompts.ids_N)[prompt_B],
        mask_BT=all_B[:, None] & (np.arange(self._length) < 3),
        logps_BT=np.zeros(tokens_BT.shape, np.float32),
        lengths_B=3 * all_B.astype(np.int32),
        truncated_B=~all_B,
    )
    yield sampler.Sampled(rollouts, all_B)


def instant(tmp_path, **changes):
  """() -> a new collector of the same run, without a model."""
  session = tiny_session.make_session(tmp_path, **changes)
  session = session.replace(engine=InstantEngine(session))

  def make():
    return tiny_session.collector(session, "test")

  return make


SIZES = dict(rollout__group_sizes__name="by_variance")


@pytest.mark.parametrize("changes", [{}, SIZES], ids=str)
def test_a_collector_resumes_at_the_next_row(tmp_path, monkeypatch, changes):
  """Same prompts, groups and ids, though some prompts are retired."""

  def verify(text, row):
    return row.difficulty == 2 or int(text[1]) % row.difficulty == 0

  monkeypatch.setattr(arithmetic, "verify", verify)
  make = instant(tmp_path, rollout__retire_after=1, **changes)
  collector = make()
  for _ in range(3):
    collector.collect(None)
  state = json.loads(json.dumps(collector.prompts.get_state()))
  wanted = [collector.collect(None) for _ in range(2)]
  resumed = make()
  resumed.prompts.set_state(state)
  got = [resumed.collect(None) for _ in range(2)]
  jax.tree.map(np.testing.assert_array_equal, got, wanted)
  assert collector.prompts.get_state() == resumed.prompts.get_state()
  fresh = make().collect(None)
  assert state["solved"]
  assert set(fresh.rollouts.ids_B) != set(got[0].rollouts.ids_B)
  assert [len(rows.age_B) for rows in wanted] == [32, 32]
  groups = experience.groups(wanted[-1].rollouts.ids_B)
  assert (len({len(g) for g in groups}) > 1) == (changes is SIZES)


def test_types_of_a_round_are_the_pass_rates_before_it(tmp_path, monkeypatch):
  """The first digit of a prompt says how many of four responses are correct."""

  def verify(text, row):
    return int(text[1]) < int(row.prompt[0])

  def tenths(prompt):
    return round(10 * (1 - min(int(prompt[0]), 4) / 4))

  monkeypatch.setattr(arithmetic, "verify", verify)
  options = dict(rollout__types="pass_rate", advantage__groups="type")
  collector = instant(tmp_path, task__difficulties=(2,), **options)()
  prompts_of = lambda rows: [  # noqa: E731
      collector.prompts.row(prompt_id).prompt for prompt_id in rows.ids_B
  ]
  rows = collector.collect(None)
  seen = set(prompts_of(rows.rollouts))
  assert set(rows.types_B.tolist()) == {5}  # nothing is known
  again = 0
  for _ in range(5):
    rows = collector.collect(None)
    found = prompts_of(rows.rollouts)
    for prompt, kind in zip(found, rows.types_B.tolist(), strict=True):
      again += prompt in seen
      assert prompt not in seen or kind == tenths(prompt)
    seen |= set(found)
  assert again


@pytest.mark.parametrize(
    "name, wanted",
    [("equal", [8, 8]), ("by_length", [11, 5]), ("by_variance", [14, 2])],
)
def test_group_sizes_follow_the_averages(tmp_path, name, wanted):
  """16 responses to two prompts.

  Lengths 4 and 8 give 2 : 1. Accuracies 1/2 and 1 need .26 and .01: the least.
  """
  collector = instant(
      tmp_path,
      rollout__group_sizes__name=name,
      rollout__batch=16,
      rollout__group_size=8,
  )()
  rows = [tasks.Row("", "", level) for level in (2, 3)]
  collector.prompts.update(rows, [0.5, 1.0], [4.0, 8.0])
  assert collector._sizes(rows).tolist() == wanted


def test_shuffled_rewards_are_a_permutation(tmp_path, monkeypatch):
  """The control has as many correct responses, but not the same ones."""
  monkeypatch.setattr(arithmetic, "verify", lambda text, row: text[1] == "0")
  honest, shuffled, again = (
      instant(tmp_path, reward__shuffle=shuffle)().collect(None).correct_B
      for shuffle in (False, True, True)
  )
  assert honest.tolist() == [1, 0, 0, 0] * 8
  assert shuffled.sum() == 8 and shuffled.tolist() != honest.tolist()
  assert shuffled.tolist() == again.tolist()


# --- grading while others are sampled ----------------------------------------


@pytest.fixture(scope="module")
def sampling(tmp_path_factory):
  """A session whose host looks at the sampler as often as it can."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(decode_loop, "CHUNK", 1)
    sampler.program.cache_clear()
    session = tiny_session.make_session(tmp_path_factory.mktemp("sampling"))
    with jax.set_mesh(session.mesh):
      yield session, tiny_session.random_params(session)
  sampler.program.cache_clear()


def test_a_slow_verifier_does_not_delay_sampling(sampling, monkeypatch):
  """The first verdict arrives only after all responses are sampled."""
  session, params = sampling
  sampled, waited = threading.Event(), []
  start, stream = grading.start_grading, session.engine.stream

  def slow(*args):
    waited.append(sampled.wait(60))
    return start(*args)

  def to_the_end(*args, **options):
    yield from stream(*args, **options)
    sampled.set()

  monkeypatch.setattr(grading, "start_grading", slow)
  monkeypatch.setattr(session.engine, "stream", to_the_end)
  tiny_session.collector(session, "rollout").collect(params)
  assert len(waited) > 1 and all(waited)


def test_responses_do_not_depend_on_when_they_are_graded(sampling, monkeypatch):
  """Graded in several parts, or all at once at the end."""
  session, params = sampling
  found, start = [], grading.start_grading
  for share in (1 / 8, 1.0):
    sizes = []

    def spy(task, tok, rollouts, rows, sizes=sizes):
      sizes.append(len(rows))
      return start(task, tok, rollouts, rows)

    monkeypatch.setattr(grading, "start_grading", spy)
    monkeypatch.setattr(sampler, "YIELD_SHARE", share)
    collector = tiny_session.collector(session, "rollout")
    found.append(collector.collect(params))
    assert sum(sizes) == session.config.rollout.batch
    assert (len(sizes) > 1) == (share < 1)
  jax.tree.map(np.testing.assert_array_equal, *found)
