"""Value pretraining: what the critic learns, when it ends, how it resumes.

A tiny model and a verdict that the prompt decides: whether it subtracts. The
policy is random and fixed, so all there is to learn is the value of prefixes.
"""

import json
import types

import jax
import numpy as np
import pytest
import tiny_session
from tiny_session import call, digest, interrupted

from rl_reason import hf
from rl_reason.base.errors import RunError
from rl_reason.checkpointing.resumable import Stopped
from rl_reason.collect import grading
from rl_reason.models import decoder
from rl_reason.stages import build_step, export, value
from rl_reason.stages.run_output import open_stage
from rl_reason.training import step

STEPS = 16
FIELDS = dict(
    advantage__name="gae_length_adaptive",
    advantage__args__alpha=1.0,  # responses have four tokens: lambda is 3/4
    critic__lr=0.01,
    critic__pretrain_steps=STEPS,
    rollout__batch=64,
    rollout__max_tokens=4,
    task__difficulties=(2,),
    dynamic_sampling__enabled=False,
    checkpoint__every=2,
)


def grade(task, tok, rollouts, rows, texts=None):
  """Correct if the prompt has a minus, even if the response is truncated."""
  del task, tok, texts
  count = len(rollouts.lengths_B)
  rows_B = [row for row in rows for _ in range(count // len(rows))]
  correct_B = np.array(["-" in row.prompt for row in rows_B], np.float32)
  return [""] * count, correct_B, 0


@pytest.fixture(scope="module", autouse=True)
def verdicts():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(grading, "start_grading", lambda *a: lambda: grade(*a))
    yield


def make_session(workdir, stop_at=None, die_at=None, **changes):
  session = tiny_session.make_session(workdir, **FIELDS | changes)
  return interrupted(session, stop_at, die_at)


def pretrain(workdir, **changes):
  """Value pretraining in one process: its results, its log and its policy."""
  session = make_session(workdir, **changes)
  with jax.set_mesh(session.mesh):
    policy = tiny_session.random_params(session)
    try:
      params, counters = call(value.run, session, policy)
    finally:
      session.log.close()
  return types.SimpleNamespace(
      session=session,
      policy=policy,
      params=params,
      counters=counters,
      lines=lines(workdir),
  )


def lines(workdir):
  """Metrics without the times."""
  rows = (workdir / "metrics.jsonl").read_text().splitlines()
  return [
      {
          k: x
          for k, x in json.loads(row).items()
          if not k.startswith(("timing_s/", "perf/"))
      }
      for row in rows
  ]


@pytest.fixture(scope="module")
def trained(verdicts, tmp_path_factory):
  """A critic after all of its steps."""
  return pretrain(tmp_path_factory.mktemp("value") / "a")


# --- what it learns ----------------------------------------------------------


def test_it_learns_the_value_of_prefixes(trained):
  """Explained variance is of responses that it has not learnt from yet."""
  explained = [x["critic/vf_explained_var"] for x in trained.lines]
  assert len(explained) == STEPS and explained[0] < 0.2
  assert min(explained[-3:]) > 0.5
  loss = [x["critic/vf_loss"] for x in trained.lines]
  assert loss[-1] < loss[0] / 2
  last, counters = trained.lines[-1], trained.counters
  assert last["tokens/generated"] == counters["tokens"] > 0
  assert last["flops/total"] == pytest.approx(counters["flops"])
  assert [x["step"] for x in trained.lines] == list(range(1, STEPS + 1))
  policy = tiny_session.random_params(trained.session)
  assert digest(trained.policy) == digest(policy), "it stays fixed"


def explained_variance(session, policy, params):
  """Of the returns of fresh prompts, by the critic's values."""
  with jax.set_mesh(session.mesh):
    collector = tiny_session.collector(session, "fresh")
    rows = collector.collect(session.engine.weights(policy))
    plan = build_step.planner(session.config, session.mesh)(rows.rollouts)
    program = build_step.values_program(session.critic_cfg)
    values_BT = step.forward(session.mesh, program, params, plan)
  mask_BT = rows.rollouts.mask_BT
  returns_BT = np.where(rows.correct_B > 0, 1.0, -1.0)[:, None] + 0 * values_BT
  error = (returns_BT - values_BT)[mask_BT]
  return 1 - np.var(error) / np.var(returns_BT[mask_BT])


def test_the_critic_explains_fresh_prompts_only_when_trained(trained, tmp_path):
  session, policy = trained.session, trained.policy
  assert explained_variance(session, policy, trained.params) > 0.5
  untrained = pretrain(tmp_path / "a", critic__pretrain_steps=0)
  assert untrained.counters == dict(tokens=0, flops=0.0)
  assert not untrained.lines
  trunk = {k: untrained.policy[k] for k in untrained.params["trunk"]}
  assert digest(untrained.params["trunk"]) == digest(trunk)
  assert explained_variance(session, policy, untrained.params) < 0.2


def test_its_targets_are_monte_carlo_returns(tmp_path, monkeypatch):
  """Whatever lambda the targets have in RL."""
  calls, train_batch = [], value.train_batch

  def spy(rows, credit, **options):
    calls.append((rows, credit))
    return train_batch(rows, credit, **options)

  monkeypatch.setattr(value, "train_batch", spy)
  pretrain(tmp_path / "a", critic__pretrain_steps=1, critic__lam=0.5)
  ((rows, credit),) = calls
  mask_BT = rows.rollouts.mask_BT
  reward_BT = np.broadcast_to(credit["rewards_B"][:, None], mask_BT.shape)
  np.testing.assert_allclose(
      credit["returns_BT"][mask_BT], reward_BT[mask_BT], atol=1e-5
  )


# --- when it ends ------------------------------------------------------------


def first_step(lines, condition):
  return next(x["step"] for x in lines if condition(x))


@pytest.mark.slow
def test_it_ends_when_it_explains_enough(trained, tmp_path):
  result = pretrain(tmp_path / "a", critic__pretrain_ev=0.3)
  end = first_step(trained.lines, lambda x: x["critic/vf_explained_var"] >= 0.3)
  assert 1 < end < STEPS
  assert result.lines == trained.lines[:end]
  again = pretrain(tmp_path / "a", critic__pretrain_ev=0.3)
  assert digest(again.params) == digest(result.params)
  assert again.counters == result.counters and again.lines == result.lines


# --- how it resumes ----------------------------------------------------------


@pytest.mark.slow
def test_stopped_and_killed_it_ends_with_the_same_bits(trained, tmp_path):
  """SIGTERM at 3 saves there; SIGKILL at 3 + 2 goes back to the save at 4."""
  with pytest.raises(Stopped):
    pretrain(tmp_path / "a", stop_at=3)
  assert [x["step"] for x in lines(tmp_path / "a")] == [1, 2, 3]
  with pytest.raises(KeyboardInterrupt):
    pretrain(tmp_path / "a", die_at=2)
  assert [x["step"] for x in lines(tmp_path / "a")] == [1, 2, 3, 4, 5]
  result = pretrain(tmp_path / "a")
  assert digest(result.params) == digest(trained.params)
  assert result.counters == trained.counters
  assert result.lines == trained.lines


@pytest.mark.slow
def test_a_pretrained_critic_is_reused(trained, tmp_path):
  """With its counters; unless it is incomplete or of another shape."""
  workdir = str(trained.session.workdir)
  result = pretrain(tmp_path / "a", critic__reuse=workdir)
  assert digest(result.params) == digest(trained.params)
  assert result.counters == trained.counters and not result.lines
  with pytest.raises(Stopped):
    pretrain(tmp_path / "half", stop_at=3)

  def refused(words, **changes):
    with pytest.raises(RunError, match=words):
      pretrain(tmp_path / "b", **changes)

  refused(
      "half: not complete; run --stage=value",
      critic__reuse=str(tmp_path / "half"),
  )
  refused(
      "critic.head.name is 'scalar' there and 'gated' here",
      critic__reuse=workdir,
      critic__head__name="gated",
  )
  # The policy, its sampling and its mask give the values their meaning.
  for words, changes in (
      (r"rollout.temperature: 1.0 -> 0.7", dict(rollout__temperature=0.7)),
      (r"rollout.top_p", dict(rollout__top_p=0.9, rollout__allow_filters=True)),
      (r"sft.reuse: '' -> 'x'", dict(sft__reuse="x")),
      (r"loss.mask_truncated", dict(loss__mask_truncated=True)),
  ):
    refused(f"of another policy.*{words}", critic__reuse=workdir, **changes)
  # Neither does the number of workers, nor does SFT of that very run.
  free = dict(sft__reuse=workdir, reward__workers=1)
  pretrain(tmp_path / "c", critic__reuse=workdir, **free)
  refused(
      "critic.reuse = .*: holds no complete", critic__reuse=str(tmp_path / "no")
  )


def test_a_critic_starts_from_an_exported_one(trained, tmp_path):
  """--stage=export, then critic.init = 'exported': the same networks."""
  session, policy, params = trained.session, trained.policy, trained.params
  with jax.set_mesh(session.mesh):
    with pytest.raises(RunError, match="its SFT is not complete"):
      call(export.run, session, "newest")
    state = tiny_session.initial_state(session, policy, params, None)
    checkpoints = call(open_stage, session, "rl").checkpoints
    checkpoints.save(2, state.arrays(), {})
    checkpoints.close()
    call(export.run, session, "newest")
    out = session.workdir / "export"
    source = hf.find(str(out / "policy"))
    loaded = hf.load(source, decoder.table(source.cfg), session.mesh)
    assert digest(loaded) == digest(policy)

  init = dict(critic__init="exported", critic__path=str(out / "critic"))
  result = pretrain(tmp_path / "a", critic__pretrain_steps=0, **init)
  assert digest(result.params) == digest(params)
  assert result.counters == dict(tokens=0, flops=0.0)
  with pytest.raises(RunError, match="critic.head.name is 'scalar' there"):
    pretrain(tmp_path / "b", critic__head__name="gated", **init)
