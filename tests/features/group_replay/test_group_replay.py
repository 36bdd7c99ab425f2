"""Replay of older groups: the buffer, its bound on age, and weights by hand."""

import functools
import hashlib
import json

import jax
import numpy as np
import pytest
from test_dynamic_sampling import (
    CORRECT,
    GROUP,
    INCORRECT,
    SIGNAL,
    collect,
    ids,
    rows,
)
from tiny_session import tiny_config

from rl_reason import tasks
from rl_reason.algorithms import credit
from rl_reason.base import config
from rl_reason.base.errors import ConfigError
from rl_reason.checks import config_checks, config_facts
from rl_reason.collect import dynamic_sampling, experience
from rl_reason.data import datasets, prompt_stream, tokenizer
from rl_reason.features.group_replay import stored_groups
from rl_reason.features.group_replay.older_groups import OlderGroups, measured
from rl_reason.features.mismatch_corrections import corrections
from rl_reason.tasks import arithmetic
from rl_reason.training import certificate

PLACES = 12


def of_padding(empty, **options):
  signal = dynamic_sampling.in_every_step(dynamic_sampling.partly_correct)
  return OlderGroups(
      None,
      empty,
      signal=signal,
      **dict(group_size=GROUP, seed=0) | options,
  )


def buffer(count=2, max_age=2, seed=0):
  empty = experience.pad(
      experience.take(rows(0, SIGNAL), []), PLACES, rows(0, SIGNAL), GROUP
  )
  return of_padding(empty, count=count, max_age=max_age, seed=seed)


def ages(batch):
  return batch.age_B[::GROUP].tolist()


def exchange(replay, batch, step=0):
  found = replay.exchange(batch, step)
  return replay.older(), found


def test_groups_leave_when_they_are_too_old():
  """Only new groups with signal enter; a bound of 2 steps keeps two of them."""
  replay = buffer(count=9)
  drawn, found = exchange(replay, rows(0, SIGNAL, CORRECT, SIGNAL, INCORRECT))
  known = experience.without_padding(replay.rows)
  assert ids(known) == [0, 2] and ages(known) == [0, 0]
  assert found["replay/groups"] == 2 and found["replay/dropped_by_age"] == 0
  assert found["replay/share"] == 0 and "replay/weight_mean" not in found
  assert len(drawn.age_B) == 9 * GROUP  # padded
  assert ids(experience.without_padding(drawn)) == [0, 2]

  # The next batch has these, a step older, and two new ones.
  def collect():
    return rows(4, SIGNAL, SIGNAL)

  batch, _ = dynamic_sampling.fill_batch(
      collect,
      drawn,
      batch=4 * GROUP,
      group_size=GROUP,
      enabled=False,
      max_rounds=1,
      shortfall="pad",
  )
  assert ids(batch) == [0, 2, 4, 5] and ages(batch) == [1, 1, 0, 0]
  _, found = exchange(replay, batch, 1)
  known = experience.without_padding(replay.rows)
  assert ids(known) == [0, 2, 4, 5] and ages(known) == [1, 1, 0, 0]
  assert found["replay/share"] == 0.5 and found["replay/age_mean"] == 1

  # In the next step but one they would be 3 steps old.
  drawn, found = exchange(replay, rows(6, SIGNAL), 2)
  known = experience.without_padding(replay.rows)
  assert ids(known) == [4, 5, 6] and ages(known) == [1, 1, 0]
  assert found["replay/dropped_by_age"] == 2
  assert set(ids(experience.without_padding(drawn))) == {4, 5, 6}
  assert max(drawn.age_B) + 1 <= 2  # `fill_batch` makes them a step older


def test_a_draw_depends_on_seed_and_step():
  def draw(seed, step):
    replay = buffer(seed=seed)
    drawn, _ = exchange(replay, rows(0, *[SIGNAL] * 6), step)
    return ids(experience.without_padding(drawn))

  assert draw(0, 5) == draw(0, 5)
  found = {tuple(draw(seed, step)) for seed in range(4) for step in range(4)}
  assert len(found) > 6 and all(len(set(x)) == 2 for x in found)
  assert set(np.ravel(list(found))) == set(range(6))  # any group may be drawn


def test_a_restored_buffer_goes_on():
  whole, restored = buffer(), buffer()
  exchange(whole, rows(0, SIGNAL, SIGNAL), 0)
  restored.restore(jax.tree.map(np.copy, whole.arrays()), {})
  for step in (1, 2):
    new = rows(4 * step, SIGNAL, SIGNAL)
    one, two = exchange(whole, new, step), exchange(restored, new, step)
    jax.tree.map(np.testing.assert_array_equal, one, two)
  jax.tree.map(np.testing.assert_array_equal, whole.rows, restored.rows)
  jax.tree.map(
      lambda x, y: np.testing.assert_equal(x.shape, y.shape),
      whole.rows,
      buffer().rows,
  )


def test_importance_weights_by_hand():
  """pi_old / pi_sampler of tokens: e^.5 and e^-1; the bound 1.5 cuts e^.5."""
  replay = buffer(count=1, max_age=9)
  one = rows(0, SIGNAL)
  first = experience.with_old_logps(one, one.rollouts.logps_BT - 3)
  drawn, _ = exchange(replay, first)
  batch = drawn.replace(age_B=drawn.age_B + 1)  # as `fill_batch` does
  sampler_BT = batch.rollouts.logps_BT
  now_BT = sampler_BT + np.array([0.5, -1], np.float32)
  batch = experience.with_old_logps(batch, now_BT)
  np.testing.assert_array_equal(batch.old_logps_BT, now_BT)
  inputs = experience.credit_inputs(batch)
  found = credit.assign(
      inputs | dict(rewards_B=np.array([1, -1], np.float32)),
      advantage=lambda rewards_B: rewards_B,
      adjustments=[
          functools.partial(
              corrections.corrected,
              correction=functools.partial(corrections.truncate, high=1.5),
          )
      ],
  )
  low = np.exp(-1)
  np.testing.assert_allclose(
      found["advantages_BT"], [[1.5, low], [-1.5, -low]], rtol=1e-6
  )
  metrics = measured(batch)
  assert metrics["replay/weight_mean"] == pytest.approx(
      (np.exp(0.5) + low) / 2, rel=1e-6
  )
  assert metrics["replay/share"] == 1 and metrics["replay/age_mean"] == 1


def test_the_certificate_compares_no_replayed_group():
  """Their sampler was another policy."""
  check = certificate.Certificate.of_logps
  of = type("C", (), {"_ahead": 0})()
  batch = rows(0, SIGNAL)
  far_BT = batch.rollouts.logps_BT + 7
  assert check(of, batch, far_BT) == {"rollout/logp_gap_mean": 7}
  old = batch.replace(age_B=batch.age_B + 1)
  assert check(of, old, far_BT) == {}


def replaying(**changes):
  c = tiny_config()
  c.rollout.replay, c.correction.name = 2, "truncate"
  config.override(c, changes)
  return c


def test_replay_is_off_policy():
  c = replaying()
  config_checks.fields(c)
  assert "rollout.replay" in config_facts.off_policy_fields(c)
  assert not config_facts.on_policy(c)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"correction.name": "none"}, "set correction.name = 'truncate'"),
        ({"rollout.replay": 8}, "rollout.replay = 8: must be less than the 8"),
        ({"rollout.replay_age": 0}, "must be at least 1"),
        ({"rl.staleness": 1, "rl.old_logps": "trainer"}, "in flight"),
        ({"rollout.group_sizes.name": "by_length"}, "of different sizes"),
        ({"advantage.name": "temporal"}, "reads responses of its own step"),
        ({"surrogate.name": "reinforce"}, "rollout.replay"),
    ],
)
def test_replay_that_cannot_work_is_refused(changes, words):
  with pytest.raises(ConfigError, match=words):
    config_checks.fields(replaying(**changes))


def test_a_bound_on_age_needs_replay():
  with pytest.raises(ConfigError, match="does nothing without rollout.replay"):
    c = replaying(**{"rollout.replay": 0, "correction.name": "none"})
    config_checks.checked(c, {"rollout.replay_age": 2})


# --- groups of files ---------------------------------------------------------

TOK = tokenizer.characters(arithmetic.ALPHABET)


def stored(path, groups_of_lines, **fields):
  """A directory as --stage=generate writes it."""
  out = path / "generated" / "3"
  out.mkdir(parents=True, exist_ok=True)
  text = "".join(json.dumps(x) + "\n" for x in groups_of_lines)
  (out / "part-000000000.jsonl").write_text(text)
  digest = hashlib.sha256(text.encode()).hexdigest()
  fields = {
      "generate.keep": "all",
      "generate.samples": GROUP,
      "generate.temperature": 1.0,
      "generate.top_p": 1.0,
  } | fields
  files = {"part-000000000.jsonl": dict(sha256=digest)}
  manifest = dict(fields=fields, files=files)
  out.with_name("3.json").write_text(json.dumps(manifest))
  return out


def responses(prompt, *verdicts):
  return [
      dict(
          prompt=prompt,
          difficulty=2,
          correct=x,
          truncated=False,
          ids=[3 + n, 4, 1],
          logps=[-0.5, -n, -2.0],
      )
      for n, x in enumerate(verdicts)
  ]


LINES = [
    *responses("1+2=", True, False),
    *responses("3+4=", True, True),
    *responses("5+6=", None, True),
    *responses("5+6=", False, True),
]


def read(place, **changes):
  options = dict(group_size=GROUP, temperature=1.0, max_prompt=6, max_tokens=4)
  return stored_groups.read("f", place, TOK, **options | changes)


def test_groups_of_a_file_are_rows(tmp_path):
  found = read(stored(tmp_path, LINES))
  assert found.rollouts.ids_B[::GROUP].tolist() == [2**30 + n for n in range(4)]
  assert found.correct_B.tolist() == [1, 0, 1, 1, -1, 1, 0, 1]
  rollouts = found.rollouts
  assert rollouts.lengths_B.tolist() == [3] * 8
  np.testing.assert_array_equal(
      rollouts.tokens_BL[1],
      [0, 0, *TOK.encode("1+2=", add_special_tokens=False), 4, 4, 1, 0],
  )
  assert rollouts.start_B[1] == 2
  assert rollouts.mask_BT[1].tolist() == [True] * 3 + [False]
  assert rollouts.logps_BT[1].tolist() == [-0.5, -1, -2, 0]
  assert found.types_B.tolist() == [2] * 8 and not found.age_B.any()
  row = tasks.Row("1+2=", "3")
  assert found.problems_B[0] == prompt_stream.prompt_hash(row)
  # The same arrays as in a batch.
  like = experience.no_rows(8, 6, 4, 0)
  shapes = lambda x: [(y.shape, y.dtype) for y in jax.tree.leaves(x)]  # noqa: E731
  assert shapes(found) == shapes(like)


def test_a_file_fills_the_buffer_with_groups_with_signal(tmp_path):
  found = read(stored(tmp_path, LINES))
  empty = experience.no_rows(PLACES, 6, 4, 0)
  replay = of_padding(empty, count=1, max_age=2)
  assert (
      replay.fill(found) == 2
  )  # the others are all correct, or have no second verdict
  assert [x - 2**30 for x in ids(experience.without_padding(replay.rows))] == [
      0,
      3,
  ]
  drawn = replay.older()
  assert len(drawn.age_B) == GROUP and ages(drawn) == [0]
  assert of_padding(empty, count=1, max_age=1).fill(found) == 1


def test_older_groups_come_first_whatever_their_ids():
  """Groups of a file have large ids; a full batch still has them."""
  kept = rows(50, SIGNAL)
  batch, *_ = collect(rows(0, SIGNAL, SIGNAL, SIGNAL), kept=kept)
  assert ids(batch) == [50, 0, 1] and ages(batch) == [1, 0, 0]


@pytest.mark.parametrize(
    "lines, fields, changes, words",
    [
        (
            LINES,
            {"generate.keep": "correct"},
            {},
            "keep = 'correct'; replay in",
        ),
        (LINES, {"generate.samples": 4}, {}, "generate.samples = 4"),
        (LINES, {}, {"temperature": 0.7}, "generate.temperature = 1.0; .* 0.7"),
        (LINES, {"generate.top_p": 0.9}, {}, "generate.top_p = 0.9"),
        (LINES, {"generate.top_k": 5}, {}, "generate.top_k = 5; .* needs 0"),
        (LINES[1:], {}, {}, "no groups of 2 .* and generate.samples = 2"),
        (LINES, {}, {"max_tokens": 2}, "raise rollout.max_tokens"),
        ([x | {"ids": [999]} for x in LINES], {}, {}, "of another tokenizer"),
        ([{"prompt": "1"}], {}, {}, "rows lack ids, logps, correct, truncated"),
    ],
)
def test_files_that_cannot_be_replayed(lines, fields, changes, words, tmp_path):
  place = stored(tmp_path, lines, **fields)
  with pytest.raises(datasets.DataError, match=words):
    read(place, **changes)


def test_damaged_and_other_directories_are_refused(tmp_path):
  place = stored(tmp_path, LINES)
  next(place.iterdir()).write_text("{}\n")
  with pytest.raises(datasets.DataError, match="is missing or damaged"):
    read(place)
  with pytest.raises(datasets.DataError, match="is no directory of --stage"):
    read(tmp_path)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"reward.functions": "length*1"}, "no scores of single functions"),
        ({"rollout.replay": 0}, "does nothing without rollout.replay"),
        (
            {
                "kl.kind": "full",
                "kl.coef": 1.0,
                "kl.privileged": "{prompt}{answer}",
            },
            "files have no reference answers",
        ),
    ],
)
def test_replay_of_a_file_that_cannot_work_is_refused(changes, words):
  c = replaying(**{"rollout.replay_from": "runs/x/generated/3"} | changes)
  with pytest.raises(ConfigError, match=words):
    config_checks.fields(c)
