"""Dynamic sampling: which groups a batch gets, on rows made by hand."""

import jax
import numpy as np
import pytest

from configs import base
from rl_reason.algorithms import credit as credit_lib
from rl_reason.base.structs import NO_SCORE, Experience, Rollouts
from rl_reason.collect import dynamic_sampling
from rl_reason.stages import build_step

GROUP = 2  # samples of a prompt
CORRECT, SIGNAL, INCORRECT = (1, 1), (1, 0), (0, 0)  # grades of a group


def rows(first_id, *grades) -> Experience:
  """Groups of two rows with ids first_id, first_id + 1, ...

  Every number of row s of prompt i contains 10 * i + s, to be known again.
  """
  ids_B = first_id + np.arange(len(grades) * GROUP, dtype=np.int32) // GROUP
  mark_B = 10 * ids_B + np.arange(len(ids_B), dtype=np.int32) % GROUP
  return Experience(
      rollouts=Rollouts(
          tokens_BL=np.tile(mark_B[:, None], (1, 3)),
          start_B=np.zeros_like(ids_B),
          ids_B=ids_B,
          mask_BT=np.ones((len(ids_B), 2), bool),
          logps_BT=-np.tile(mark_B[:, None], (1, 2)).astype(np.float32),
          lengths_B=np.full_like(ids_B, 2),
          truncated_B=np.zeros(len(ids_B), bool),
      ),
      correct_B=np.array(grades, np.float32).reshape(-1),
      scores_EB=(mark_B.astype(np.float32), -mark_B.astype(np.float32)),
      old_logps_BT=np.zeros((len(ids_B), 2), np.float32),
      stale_lengths_B=np.zeros_like(ids_B),
      age_B=np.zeros_like(ids_B),
      types_B=np.zeros_like(ids_B),
      problems_B=ids_B,
  )


class Rounds:
  """Returns prepared rounds of generation, and counts the calls."""

  def __init__(self, *rounds):
    self.rounds, self.calls = list(rounds), 0

  def __call__(self):
    self.calls += 1
    return self.rounds.pop(0)


def collect(*rounds, kept=None, **keywords):
  """`fill_batch` of three groups, and the number of rounds that it sampled."""
  generate = Rounds(*rounds)
  keywords = {
      "enabled": True,
      "max_rounds": 4,
      "shortfall": "raise",
      **keywords,
  }
  out = dynamic_sampling.fill_batch(
      generate, kept, batch=3 * GROUP, group_size=GROUP, **keywords
  )
  return *out, generate.calls


def ids(batch):
  """Prompt of each group."""
  return batch.rollouts.ids_B[::GROUP].tolist()


def test_refills_in_prompt_order():
  """Groups 0, 3 and 4 have signal; 5 would too, but the batch is full.

  The metrics are of all six groups that were sampled: accuracies 1/2, 1, 0 and
  1/2, 1/2, 1/2 sum to 3 of 6; one group is all correct, one all incorrect.
  Twelve rows of two tokens are 24 tokens.
  """
  batch, metrics, calls = collect(
      rows(0, SIGNAL, CORRECT, INCORRECT), rows(3, SIGNAL, SIGNAL, SIGNAL)
  )
  assert ids(batch) == [0, 3, 4]
  assert batch.rollouts.tokens_BL[:, 0].tolist() == [0, 1, 30, 31, 40, 41]
  assert batch.rollouts.logps_BT[:, 1].tolist() == [0, -1, -30, -31, -40, -41]
  assert batch.correct_B.tolist() == [1, 0] * 3
  assert batch.age_B.tolist() == [0] * 6
  assert calls == 2
  assert {k: float(v) for k, v in metrics.items()} == {
      "train/accuracy": 0.5,
      "train/all_correct": pytest.approx(1 / 6),
      "train/all_incorrect": pytest.approx(1 / 6),
      "train/generation_rounds": 2,
      "train/groups_with_signal": 3,
      "train/groups_kept": 0,
      "train/groups_missing": 0,
      "tokens/generated": 24,
  }


def test_groups_go_by_prompt_whatever_order_they_are_completed_in():
  """Of four groups with signal the last prompt's is discarded.

  Prompts 0 and 1 were begun in the first round and completed in the second, as
  their responses are long; prompts 2 and 3 have short ones, which were first.
  """
  short, long = rows(2, SIGNAL, SIGNAL), rows(0, SIGNAL, SIGNAL)
  batch, _, calls = collect(short, long)
  assert calls == 2
  assert ids(batch) == [0, 1, 2]
  assert batch.rollouts.tokens_BL[:, 0].tolist() == [0, 1, 10, 11, 20, 21]


def test_a_full_first_round_is_enough():
  batch, metrics, calls = collect(rows(7, SIGNAL, SIGNAL, SIGNAL))
  assert ids(batch) == [7, 8, 9]
  assert calls == metrics["train/generation_rounds"] == 1


def test_kept_groups_come_first():
  """They keep the log-probs of the policy that sampled them, at age 1."""
  old_BT = np.arange(12, dtype=np.float32).reshape(6, 2) - 20
  kept = rows(4, SIGNAL, SIGNAL, SIGNAL).replace(old_logps_BT=old_BT)
  kept.age_B[4:] = -1  # padding
  batch, metrics, calls = collect(rows(7, INCORRECT, SIGNAL, SIGNAL), kept=kept)
  assert calls == 1
  assert ids(batch) == [4, 5, 8]
  assert batch.age_B.tolist() == [1, 1, 1, 1, 0, 0]
  np.testing.assert_array_equal(batch.old_logps_BT[:4], old_BT[:4])
  assert metrics["train/groups_kept"] == 2
  assert metrics["train/groups_with_signal"] == 3
  assert metrics["train/accuracy"] == pytest.approx(1 / 3), "fresh rows only"
  assert metrics["tokens/generated"] == 12


def test_shortfall_raises():
  """Two rounds with one useful group of six: 1 of 3."""
  with pytest.raises(dynamic_sampling.Shortfall) as error:
    collect(
        rows(0, INCORRECT, SIGNAL, INCORRECT),
        rows(3, INCORRECT, INCORRECT, INCORRECT),
        max_rounds=2,
    )
  message = str(error.value)
  assert "1 of 3 groups have signal after 2 rounds (accuracy 8.3%)" in message
  assert "max_rounds" in message and "shortfall = 'pad'" in message


def test_shortfall_pads():
  batch, metrics, calls = collect(
      rows(0, INCORRECT, SIGNAL, INCORRECT),
      rows(3, CORRECT, INCORRECT, INCORRECT),
      max_rounds=2,
      shortfall="pad",
  )
  assert calls == 2
  assert ids(batch)[0] == 1
  assert batch.age_B.tolist() == [0, 0, -1, -1, -1, -1]
  assert batch.rollouts.mask_BT.any(1).tolist() == [True] * 2 + [False] * 4
  padding = ids(batch)[1:]
  assert max(padding) < 0 and len(set(padding)) == 2, "groups of their own"
  assert batch.rollouts.ids_B.dtype == np.int32
  assert metrics["train/groups_with_signal"] == 1
  assert metrics["train/groups_missing"] == 2


def test_no_signal_at_all():
  """A batch of padding alone: the update will do nothing, but must run."""
  batch, metrics, _ = collect(
      rows(0, INCORRECT, CORRECT, INCORRECT), max_rounds=1, shortfall="pad"
  )
  assert len(batch.age_B) == 6
  assert (batch.age_B == -1).all()
  assert not batch.rollouts.mask_BT.any()
  assert metrics["train/groups_with_signal"] == 0
  assert metrics["train/groups_missing"] == 3


def with_scores(found: Experience, *scores_EB) -> Experience:
  scores_EB = tuple(np.array(x, np.float32) for x in scores_EB)
  return found.replace(scores_EB=scores_EB)


def test_responses_that_leave_the_loss_say_nothing_of_their_group():
  """A function failed on one of two; None of one function changes nothing."""
  nan, none = np.nan, NO_SCORE
  found = with_scores(
      rows(0, (1, 0), (1, 0), (1, 0), (1, 0)),
      [1, nan, 1, none, none, none, 1, 1],
      [1, 1, none, 1, 1, 1, 1, nan],
  )
  for signal in ("partly_correct", "finished_partly_correct"):
    signal_N = getattr(dynamic_sampling, signal)(found)
    assert signal_N.tolist() == [False, True, True, False]


def test_groups_without_a_verdict_are_in_no_mean():
  found = rows(0, (1, 1), (-1, -1), (1, 0))
  _, metrics, _ = collect(found, enabled=False, shortfall="pad")
  assert metrics["train/accuracy"] == 3 / 4
  assert metrics["train/all_correct"] == 1 / 2
  assert metrics["train/all_incorrect"] == 0
  *_, metrics, _ = collect(
      rows(0, (-1, -1), (-1, -1)), max_rounds=1, shortfall="pad"
  )
  assert "train/accuracy" not in metrics
  with pytest.raises(dynamic_sampling.Shortfall, match="no group has a verdic"):
    collect(rows(0, (-1, -1)), max_rounds=1)


def test_responses_whose_verifier_failed_say_nothing_of_their_group():
  found = rows(0, (1, -1), (0, -1), (-1, -1), (1, 0))
  accuracy_N = dynamic_sampling.accuracy(found)
  np.testing.assert_array_equal(accuracy_N, [1, 0, np.nan, 0.5])
  signal_N = dynamic_sampling.partly_correct(found)
  assert signal_N.tolist() == [False, False, False, True]
  assert (
      dynamic_sampling.finished_partly_correct(found).tolist()
      == signal_N.tolist()
  )


def test_bootstrapped_groups_have_the_signal_of_their_finished_responses():
  """The truncated response gets the mean of the others: here their reward."""
  found = rows(0, CORRECT, (0, 1), *[INCORRECT] * 4)
  groups = np.repeat(np.arange(4, dtype=np.int32), 3)
  truncated_B = np.array([0, 0, 1, 0, 0, 1, 0, 1, 1, 1, 1, 1], bool)
  rollouts = found.rollouts.replace(ids_B=groups, truncated_B=truncated_B)
  found = found.replace(rollouts=rollouts)
  credit = dict(groups_B=groups, correct_B=found.correct_B)
  credit |= dict(lengths_B=rollouts.lengths_B, truncated_B=truncated_B)
  rewards_B = credit_lib.outcome(credit, max_tokens=2, bootstrap=True)
  spread_N = np.ptp(np.asarray(rewards_B).reshape(4, 3), 1) > 0
  c = base.get_config()
  signal = build_step.signal(c, build_step.reward(c))(None)
  assert signal(found).tolist() == [True, True, False, False]
  c.dynamic_sampling.enabled, c.reward.truncated = True, "bootstrap"
  signal = build_step.signal(c, build_step.reward(c))(None)
  assert (
      signal(found).tolist() == spread_N.tolist() == [False, True, False, False]
  )


def test_disabled_takes_one_round_as_it_is():
  batch, metrics, calls = collect(
      rows(0, INCORRECT, CORRECT, SIGNAL), enabled=False
  )
  assert calls == 1
  assert ids(batch) == [0, 1, 2]
  assert batch.age_B.tolist() == [0] * 6
  assert batch.rollouts.mask_BT.all()
  assert metrics["train/groups_with_signal"] == 1
  assert metrics["train/groups_missing"] == 0


def test_disabled_takes_no_second_round():
  """Two groups of three: the batch is padded, however many rounds it may."""
  batch, metrics, calls = collect(
      rows(0, INCORRECT, CORRECT), enabled=False, shortfall="pad"
  )
  assert calls == 1
  assert ids(batch)[:2] == [0, 1]
  assert batch.age_B.tolist() == [0] * 4 + [-1] * 2
  assert metrics["train/groups_missing"] == 1


def test_the_filter_reads_accuracy():
  """One correct response of two, whatever the shaped rewards will be."""
  batch = rows(0, CORRECT, SIGNAL, INCORRECT)
  np.testing.assert_array_equal(dynamic_sampling.accuracy(batch), [1, 0.5, 0])


def test_inputs_are_not_modified():
  """Ages and masks are changed on copies: a kept batch can be saved again."""
  kept = rows(0, SIGNAL, SIGNAL, SIGNAL)
  kept.age_B[2:] = -1
  before = kept.age_B.copy()
  collect(rows(3, SIGNAL, SIGNAL, SIGNAL), kept=kept)
  np.testing.assert_array_equal(kept.age_B, before)
  assert kept.rollouts.mask_BT.all()


def test_kept_groups_may_fill_a_batch():
  """No round is needed then, and there is nothing to be measured."""
  kept = rows(0, SIGNAL, SIGNAL, SIGNAL)
  batch, metrics, calls = collect(kept=kept)
  assert calls == metrics["train/generation_rounds"] == 0
  assert ids(batch) == [0, 1, 2]
  assert batch.age_B.tolist() == [1] * 6


def test_a_smaller_group_takes_the_place_that_another_one_leaves():
  """Groups of 4, 3 and 2 rows: 4 and 2 fill six places."""
  batch = rows(0, SIGNAL, SIGNAL, SIGNAL, SIGNAL, SIGNAL)
  batch = jax.tree.map(lambda x: x[:9], batch)
  ids_B = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2], np.int32)
  batch = batch.replace(rollouts=batch.rollouts.replace(ids_B=ids_B))
  out, metrics, _ = collect(batch)
  assert out.rollouts.ids_B.tolist() == [0, 0, 0, 0, 2, 2]
  assert metrics["train/groups_missing"] == 0


def test_a_group_that_does_not_fit_leaves_padding():
  """Of groups of 2, 3 and 2 rows, six places hold the first two and padding."""
  batch = rows(0, CORRECT, SIGNAL, SIGNAL, SIGNAL)  # 8 rows
  ids_B = np.array([0, 0, 1, 1, 1, 2, 2, 2], np.int32)
  batch = batch.replace(
      rollouts=batch.rollouts.replace(ids_B=ids_B),
      correct_B=np.array([1, 0, 1, 0, 0, 0, 1, 1], np.float32),
  )
  out, metrics, _ = collect(batch)
  assert out.rollouts.ids_B.tolist() == [0, 0, 1, 1, 1, -1]
  assert out.age_B.tolist() == [0, 0, 0, 0, 0, -1]
  assert metrics["train/groups_missing"] == 0.5
