"""The value stage: what it learns, when it ends, and how it goes on.

A tiny model and a verdict that the prompt decides: whether it subtracts. The
policy is random and fixed, so all there is to learn is what prefixes are worth.
"""

import json
import types

import jax
import numpy as np
import pytest
import test_config
import test_credit

from rl_reason import hf
from rl_reason.checkpointing import checkpoint
from rl_reason.evaluation import evaluate
from rl_reason.hf import export
from rl_reason.models import critic, decoder
from rl_reason.structs import RunError
from rl_reason.training import experience, rl, step, value
from rl_reason.training.session import Stopped

compiled = test_config.compiled  # a fixture: compiles each program once
digest = test_config.digest
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


def judge(task, tok, rollouts, rows):
  """Right if the prompt has a minus, though the response was cut off."""
  del task, tok
  count = len(rollouts.lengths_B)
  rows_B = [row for row in rows for _ in range(count // len(rows))]
  correct_B = np.array(["-" in row.prompt for row in rows_B], np.float32)
  return [""] * count, correct_B, 0


@pytest.fixture(scope="module", autouse=True)
def verdicts():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(evaluate, "begin_to_judge", lambda *a: lambda: judge(*a))
    yield


def make_run(workdir, stop_at=None, die_at=None, **changes):
  workdir.mkdir(exist_ok=True)
  run = test_credit.make_run(workdir, **FIELDS | changes)
  return test_credit.interrupted(run, stop_at, die_at)


def pretrain(workdir, **changes):
  """The value stage of one process: what it returns, logs and starts from."""
  run = make_run(workdir, **changes)
  with jax.set_mesh(run.mesh):
    policy = test_config.run_params(run)
    try:
      params, spent = value.run(run, policy)
    finally:
      run.log.close()
  return types.SimpleNamespace(
      run=run, policy=policy, params=params, spent=spent, lines=lines(workdir)
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
def whole(compiled, verdicts, tmp_path_factory):
  """A critic after all of its steps."""
  return pretrain(tmp_path_factory.mktemp("value") / "whole")


# --- what it learns ----------------------------------------------------------


def test_it_learns_what_prefixes_are_worth(whole):
  """Explained variance is of responses that it has not learnt from yet."""
  explained = [x["critic/vf_explained_var"] for x in whole.lines]
  assert len(explained) == STEPS and explained[0] < 0.2
  assert min(explained[-3:]) > 0.5
  loss = [x["critic/vf_loss"] for x in whole.lines]
  assert loss[-1] < loss[0] / 2
  assert whole.lines[-1]["tokens/generated"] == whole.spent["tokens"] > 0
  assert whole.lines[-1]["flops/total"] == pytest.approx(whole.spent["flops"])
  assert [x["step"] for x in whole.lines] == list(range(1, STEPS + 1))


def test_the_policy_stays_as_it_was(whole):
  assert digest(whole.policy) == digest(test_config.run_params(whole.run))


def assert_that_the_critic_matters(run, policy, params):
  """On prompts and noise of another stream: it explains, and GAE gains."""
  with jax.set_mesh(run.mesh):
    maker = experience.Maker(run, "fresh")
    rows = maker.generate(policy)
    values_BT = maker.values(params, maker.layout(rows.rollouts))
    zeros_BT = np.zeros_like(values_BT)
    assigned = maker.assign(
        rows,
        values_BT=values_BT,
        pretrained_BT=zeros_BT,
        ref_logps_BT=zeros_BT,
        entropy_BT=zeros_BT,
        progress=np.float32(0),
        kl_coef=np.float32(0),
    )
  some = rows.rollouts.mask_BT
  reward_BT = np.where(some, assigned["rewards_B"][:, None], 0)
  noise = np.mean(assigned["advantages_BT"][some] ** 2)
  assert assigned["metrics"]["critic/vf_explained_var"] > 0.5
  assert noise < 0.25 * np.var(reward_BT[some])


def test_the_critic_matters(whole, tmp_path, monkeypatch):
  """And zeros in its place, or a critic that has not learnt, do not do."""
  assert_that_the_critic_matters(whole.run, whole.policy, whole.params)
  raw = pretrain(tmp_path / "a", critic__pretrain_steps=0).params
  with pytest.raises(AssertionError):
    assert_that_the_critic_matters(whole.run, whole.policy, raw)

  def zeros(params, cfg, packed):
    return jax.numpy.zeros(packed.source_BT.shape), None

  monkeypatch.setattr(critic, "values", zeros)
  with pytest.raises(AssertionError):
    assert_that_the_critic_matters(whole.run, whole.policy, whole.params)


def test_it_learns_returns_of_whole_responses(tmp_path, monkeypatch):
  """Monte Carlo, whatever lambda the targets have in RL."""
  seen, batch = [], experience.batch

  def spy(run, rows, assigned, **more):
    seen.append((rows, assigned))
    return batch(run, rows, assigned, **more)

  monkeypatch.setattr(experience, "batch", spy)
  pretrain(tmp_path / "a", critic__pretrain_steps=1, critic__lam=0.5)
  ((rows, assigned),) = seen
  some = rows.rollouts.mask_BT
  reward_BT = np.broadcast_to(assigned["rewards_B"][:, None], some.shape)
  np.testing.assert_allclose(
      assigned["returns_BT"][some], reward_BT[some], atol=1e-5
  )


def test_without_pretraining_it_starts_from_the_policy(tmp_path):
  got = pretrain(tmp_path / "a", critic__pretrain_steps=0)
  assert got.spent == dict(tokens=0, flops=0.0) and not got.lines
  trunk = {k: got.policy[k] for k in got.params["trunk"]}
  assert digest(got.params["trunk"]) == digest(trunk)


# --- when it ends ------------------------------------------------------------


def first(lines, found):
  return next(x["step"] for x in lines if found(x))


def test_it_ends_when_it_explains_enough(whole, tmp_path):
  got = pretrain(tmp_path / "a", critic__pretrain_ev=0.3)
  wanted = first(whole.lines, lambda x: x["critic/vf_explained_var"] >= 0.3)
  assert 1 < wanted < STEPS
  assert got.lines == whole.lines[:wanted]
  again = pretrain(tmp_path / "a", critic__pretrain_ev=0.3)
  assert digest(again.params) == digest(got.params)
  assert again.spent == got.spent and again.lines == got.lines


@pytest.mark.slow
def test_it_ends_when_its_loss_is_small_enough(whole, tmp_path):
  """And it explains enough: the later one of the two decides."""
  losses = sorted(x["critic/vf_loss"] for x in whole.lines)
  limit = (losses[STEPS // 3] + losses[STEPS // 3 + 1]) / 2
  both = dict(critic__pretrain_ev=-9.0, critic__pretrain_loss=limit)
  got = pretrain(tmp_path / "a", **both)
  wanted = first(whole.lines, lambda x: x["critic/vf_loss"] <= limit)
  assert 1 < wanted < STEPS and len(got.lines) == wanted
  got = pretrain(tmp_path / "b", **both | dict(critic__pretrain_ev=2.0))
  assert len(got.lines) == STEPS, "no critic explains twice of everything"


# --- how it goes on ----------------------------------------------------------


def test_stopped_and_killed_it_ends_with_the_same_bits(whole, tmp_path):
  """SIGTERM at 3 saves there; SIGKILL at 3 + 2 goes back to the save at 4."""
  with pytest.raises(Stopped):
    pretrain(tmp_path / "a", stop_at=3)
  assert [x["step"] for x in lines(tmp_path / "a")] == [1, 2, 3]
  with pytest.raises(KeyboardInterrupt):
    pretrain(tmp_path / "a", die_at=2)
  assert [x["step"] for x in lines(tmp_path / "a")] == [1, 2, 3, 4, 5]
  got = pretrain(tmp_path / "a")
  assert digest(got.params) == digest(whole.params)
  assert got.spent == whole.spent and got.lines == whole.lines


def test_a_pretrained_critic_is_used_again(whole, tmp_path):
  """With what it cost there; not if it is not done, or of another shape."""
  got = pretrain(tmp_path / "a", critic__reuse=str(whole.run.workdir))
  assert digest(got.params) == digest(whole.params)
  assert got.spent == whole.spent and not got.lines
  with pytest.raises(Stopped):
    pretrain(tmp_path / "half", stop_at=3)
  with pytest.raises(RunError, match="half: not complete; run --stage=value"):
    pretrain(tmp_path / "b", critic__reuse=str(tmp_path / "half"))
  with pytest.raises(RunError, match="args.heads is 4 there and 5 here"):
    pretrain(
        tmp_path / "c",
        critic__reuse=str(whole.run.workdir),
        critic__head__args__heads=5,
    )
  with pytest.raises(RunError, match="critic.reuse = .*: holds no whole"):
    pretrain(tmp_path / "d", critic__reuse=str(tmp_path / "nowhere"))


def test_an_exported_critic_is_where_another_starts(whole, tmp_path):
  """--stage=export, then critic.init = 'exported': the same networks."""
  run, policy, params = whole.run, whole.policy, whole.params
  with jax.set_mesh(run.mesh):
    with pytest.raises(RunError, match="no such checkpoint of RL"):
      export.run(run, "newest")
    tx, where = rl._optimizer(run)
    state = step.new_state(policy, tx, where)
    judge_tx, judge_where = value.optimizer(run, run.config.rl.steps)
    judge_state = step.new_state(params, judge_tx, judge_where)
    saved = run.checkpoints("rl")
    everything = rl._everything(run, state, judge_state, None, None, None)
    saved.save(2, everything, {})
    saved.close()
    export.run(run, "newest")
    out = run.workdir / "export"
    source = hf.find(str(out / "policy"))
    got = hf.load(source, decoder.table(source.cfg), run.mesh)
    assert digest(got) == digest(policy)

  start = dict(critic__init="exported", critic__path=str(out / "critic"))
  got = pretrain(tmp_path / "a", critic__pretrain_steps=0, **start)
  assert digest(got.params) == digest(params)
  assert got.spent == dict(tokens=0, flops=0.0)
  got = pretrain(tmp_path / "b", critic__pretrain_steps=1, **start)
  assert got.lines[0]["critic/vf_explained_var"] > 0.5, "it knows already"
  with pytest.raises(RunError, match="critic.head.name is 'scalar' there"):
    pretrain(tmp_path / "c", critic__head__name="gated", **start)


def reinforce(workdir, **changes):
  """Value stage and RL of one process: digests of policy and critic."""
  run = make_run(
      workdir,
      critic__pretrain_steps=2,
      critic__value_mixture__name="mixture",
      loss__positive_nll=0.1,
      rl__steps=3,
      evaluate__every=0,
      **changes,
  )
  with jax.set_mesh(run.mesh):
    policy = test_config.run_params(run)
    params, spent = value.run(run, policy)
    rl.run(run, policy, params, spent)
    run.log.close()
    policy, params, at = rl.load(run, "newest")
  assert at == 3
  return digest(policy), digest(params), lines(workdir)


def test_rl_goes_on_with_policy_and_critic(tmp_path):
  """VAPO with a mixture of critics: stopped, killed, and never stopped."""
  wanted = reinforce(tmp_path / "whole")
  saved = checkpoint.Checkpoints(tmp_path / "a" / "checkpoints" / "rl")
  with pytest.raises(Stopped):  # asked in 2 steps, an evaluation, 1 step
    reinforce(tmp_path / "a", stop_at=4)
  assert saved.steps() == [0, 1]
  with pytest.raises(KeyboardInterrupt):
    reinforce(tmp_path / "a", die_at=1)
  assert saved.steps() == [0, 1, 2]
  got = reinforce(tmp_path / "a")
  assert got == wanted
  steps = [x for x in wanted[2] if x["stage"] == "rl"]
  assert len(steps) == 3 and len({wanted[0], wanted[1]}) == 2
  for line in steps:
    assert line["critic/vf_explained_var"] not in (None, 0)
    assert line["critic/grad_norm"] > 0 and line["actor/nll_loss"] > 0
