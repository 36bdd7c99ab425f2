"""Trajectories of a real policy: exact ids, equal bits, and a whole run."""

import functools

import jax
import numpy as np
import pytest
import test_resume
import tiny_episodes
import tiny_session
from feature_fields import there
from tiny_episodes import Talk, check_ids, environments, play

from rl_reason.checks import config_facts
from rl_reason.collect import experience
from rl_reason.devices import device_mesh
from rl_reason.monitoring.display import Display
from rl_reason.stages import build_step, interim, sft
from rl_reason.training import step

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("shared_programs"),
]
shared_programs = tiny_session.shared_programs
FIELDS = dict(
    task__name="tiny_episodes:Talk",
    sft__mixture="careful:1",
    sft__habits__mixture="careful:1",
    dynamic_sampling__signal="reward",
    environment__stop_strings=("1", "5", "9;", "#"),  # turns are short
)


def test_a_million_tokens_are_those_that_were_sampled():
  """Random trajectories, with pauses, limits and slots: 0 differences."""
  tokens, seed = 0, 0
  while tokens < 10**6:
    pauses = tiny_episodes.TOK.convert_tokens_to_ids(["2", "=", "0"])
    run = environments(tiny_episodes.Echo, slots=16 * (seed % 2))
    found = play(run, 256, max_tokens=400, pauses=pauses, seed=seed)
    check_ids(found)
    tokens, seed = tokens + found.tokens, seed + 1


class Chat(Talk):
  """Answers of several tokens; one turn in ten is the last."""

  def step(self, response):
    said = "=" * int(self.rng.integers(1, 6))
    return said, 1.0, self.rng.random() < 0.1


def test_a_million_tokens_of_a_policy_are_those_of_the_update(
    tmp_path, monkeypatch
):
  """Packed ids against those that left the sampler; gap of log-probs."""
  session = tiny_session.make_session(
      tmp_path,
      task__name=f"{__name__}:Chat",
      sft__mixture="careful:1",
      sft__habits__mixture="careful:1",
      rollout__batch=512,
      rollout__max_tokens=192,
      environment__max_turns=64,
  )
  stream, sampled_BT = session.engine.stream, np.empty((512, 192), int)

  def spy(*args, resumed=None, **options):
    if resumed is None:
      sampled_BT[:] = -1
    for part in stream(*args, resumed=resumed, **options):
      rollouts, ended_B = jax.device_get(part[:2])
      for b in np.flatnonzero(ended_B):
        if resumed is None or not resumed[1][b]:
          start = 0 if resumed is None else resumed[0].lengths_B[b]
          end = rollouts.lengths_B[b]
          sampled_BT[b, start:end] = rollouts.tokens_BL[b, -192:][start:end]
      yield part

  monkeypatch.setattr(session.engine, "stream", spy)
  tokens = differences = turns = 0
  gap = 0.0
  with jax.set_mesh(session.mesh):
    params = tiny_session.random_params(session)
    collector = tiny_session.collector(session, "rollout")
    planner = build_step.planner(session.config, session.mesh)
    program = step.logps_program(session.cfg, temperature=1.0)
    while tokens < 10**6:
      rows = collector.collect(params)
      r, plan = rows.rollouts, planner(rows.rollouts)
      flat_M = plan.packed_M.tokens_RL.reshape(len(plan.order_MB), -1)
      differences += ((sampled_BT >= 0) != r.mask_BT).sum()
      for m, order_B in enumerate(plan.order_MB):
        mask_BT = r.mask_BT[order_B]
        packed_BT = flat_M[m][plan.packed_M.source_BT[m] * mask_BT + 1]
        wrong_BT = packed_BT != sampled_BT[order_B]
        differences += wrong_BT[mask_BT].sum()
      trainer_BT, _ = step.forward(session.mesh, program, params, plan)
      gap = max(gap, np.abs(r.logps_BT - trainer_BT)[r.mask_BT].max())
      tokens += r.mask_BT.sum()
      turns += rows.turns.numbers_BT.max(1).sum()
  print(f"{tokens:,} tokens, {turns:,} turns: {differences} differences;")
  print(f"largest gap of log-probs {gap:.1e}")
  assert turns > 10**4 and differences == 0 and gap < 2e-5


def collected(tmp_path, monkeypatch, delay=0.0, **changes):
  """One round of trajectories, and their log-probs by the trainer."""
  monkeypatch.setattr(Talk, "delay", delay)
  session = tiny_session.make_session(tmp_path, **FIELDS | changes)
  with jax.set_mesh(session.mesh):
    params = tiny_session.random_params(session)
    collector = tiny_session.collector(session, "rollout")
    rows = collector.collect(params)
    plan = build_step.planner(session.config, session.mesh)(rows.rollouts)
    program = step.logps_program(session.cfg, temperature=1.0)
    logps = functools.partial(step.forward, session.mesh, program)
    return rows, logps(params, plan)[0]


def test_the_trainer_finds_the_log_probs_of_the_sampler(tmp_path, monkeypatch):
  """As for single turns; slots, workers and delays change no bit."""
  rows, trainer_BT = collected(tmp_path / "a", monkeypatch)
  r = rows.rollouts
  assert rows.turns.numbers_BT.max() > 3
  holes_BT = ~r.mask_BT & (np.arange(48) < r.lengths_B[:, None])
  assert holes_BT.sum() > 50
  gap_BT = np.abs(r.logps_BT - trainer_BT)
  assert gap_BT[r.mask_BT].max() < 2e-5
  single_turn = dict(task__name="arithmetic", environment__stop_strings=())
  single = collected(tmp_path / "b", monkeypatch, **single_turn)
  mask_BT = single[0].rollouts.mask_BT
  usual = np.abs(single[0].rollouts.logps_BT - single[1])[mask_BT].max()
  assert gap_BT[r.mask_BT].max() < 10 * usual
  others = dict(delay=0.01, environment__workers=1)
  for changes in (others, others | dict(environment__workers=8)):
    again, _ = collected(tmp_path / "c", monkeypatch, **changes)
    assert tiny_session.digest(again) == tiny_session.digest(rows)
  few, _ = collected(tmp_path / "d", monkeypatch, rollout__slots=8)
  for name in ("tokens_BL", "mask_BT", "lengths_B"):
    got, wanted = getattr(few.rollouts, name), getattr(r, name)
    np.testing.assert_array_equal(got, wanted, name)


def test_a_killed_run_resumes_with_the_same_bits(tmp_path, monkeypatch):
  """Groups that were kept bring their turns and rewards."""
  monkeypatch.setattr(interim, "run", lambda *_: 0.0)
  monkeypatch.setattr(sft, "_evaluate", lambda *_: None)
  (text := tmp_path / "corpus.txt").write_text("1+1=2" * 99)
  changes = FIELDS | test_resume.RARE | dict(advantage__name="returns_by_turn")
  changes |= dict(loss__observation_nll=0.1)
  replayed = there(rollout__replay=1, correction__name="truncate")
  changes |= replayed
  beside = dict(streams__text=0.1, streams__text_batch=4)
  changes |= (beside := there(**beside, streams__text_sources=str(text)))
  _, (metrics, samples) = test_resume.assert_same(
      tmp_path,
      test_resume.run_rl,
      "rl",
      changes,
      dict(die_at=4),
      KeyboardInterrupt,
  )
  assert not replayed or any(line["train/groups_kept"] for line in metrics)
  assert metrics[0]["environment/turns/max"] > 2
  assert "actor/observation_loss" in metrics[0]
  assert ("actor/text_loss" in metrics[0]) == bool(beside)
  assert {0, 1, 2} <= set(samples[0]["turn"])


@pytest.mark.parametrize("advantage", ["gae_by_turn", "gae", "group_norm"])
def test_observations_have_no_part_in_an_update(
    tmp_path, monkeypatch, advantage
):
  """Whatever stands there: advantages, values, log-probs, even NaN."""
  rows, _ = collected(tmp_path, monkeypatch, advantage__name=advantage)
  mask_BT = rows.rollouts.mask_BT
  c = tiny_session.tiny_config()
  for name, value in (FIELDS | dict(advantage__name=advantage)).items():
    tiny_session.set_field(c, name.replace("__", "."), value)
  values_BT = np.random.default_rng(0).normal(size=mask_BT.shape)

  def credit(fill):
    rollouts = rows.rollouts.replace(
        logps_BT=np.where(mask_BT, rows.rollouts.logps_BT, fill)
    )
    old_BT = np.where(mask_BT, rows.old_logps_BT, fill)
    inputs = experience.credit_inputs(
        rows.replace(rollouts=rollouts, old_logps_BT=old_BT),
        values_BT=np.where(mask_BT, values_BT, 7 * fill).astype(np.float32),
        progress=np.float32(0),
        kl_coef=np.float32(0),
    )
    mesh = device_mesh.make_mesh(1, 1, 1, jax.devices()[:1])
    with jax.set_mesh(mesh):
      reward = build_step.reward(c)
      return build_step.credit(
          c,
          reward,
          mesh,
          Display(False),
          on_policy=config_facts.on_policy(c),
      )(inputs)

  one, two = credit(0.0), credit(3.0)
  for name in ("advantages_BT", "rewards_B"):
    np.testing.assert_array_equal(one[name], two[name])
  assert (one["advantages_BT"][~mask_BT] == 0).all()
  np.testing.assert_array_equal(one["rewards_B"], rows.turns.rewards_BT.sum(1))
