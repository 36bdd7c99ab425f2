"""Faults injected into tiny runs: named, parameters untouched, ended."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_session
from tiny_session import call

from rl_reason.base import config
from rl_reason.base.errors import RunError
from rl_reason.checkpointing import resumable
from rl_reason.checkpointing.checkpoint import Checkpoints
from rl_reason.monitoring import health
from rl_reason.stages import build_step, interim, rl, sft, value
from rl_reason.tasks import arithmetic

pytestmark = pytest.mark.slow
STEPS = 3
CALLS: list[str] = []


def no_number(correct_B):
  """An outcome that is NaN."""
  return correct_B * jnp.nan


def raises(text, row):
  raise RuntimeError("no verdict")


def half(text, row):
  return len(text) % 2


def worse(completions, **columns):
  """A reward function with a bug, which shows after a while."""
  CALLS.extend(completions)
  return [1.0 / (len(CALLS) < 40) for _ in completions]


def equal(correct_B):
  """An outcome that does not tell responses apart."""
  return jnp.ones_like(correct_B, jnp.float32)


# fault: (fields, verify, the alert, whether no parameter may change)
FAULTS = {
    "learning rate": (
        {},
        half,
        "alert/broken_policy",
        False,
    ),
    "float16 overflows": (
        dict(
            model__dtype="float16",
            advantage__name="group_mean",
            reward__correct=1e8,
        ),
        half,
        "alert/nan_skipped_updates",
        True,
    ),
    "NaN outcome": (
        dict(reward__outcome__name=f"{__name__}:no_number"),
        half,
        "alert/rewards_that_are_not_finite",
        True,
    ),
    "verifier raises": ({}, raises, "alert/failures_of_the_verifier", True),
    "no signal": (
        {},
        lambda text, row: False,
        "alert/few_groups_with_signal",
        True,
    ),
    "steps too large": (
        dict(optimizer__lr=1.0, updates__minibatches=4),
        half,
        "alert/updates_too_large",
        False,
    ),
    "a ratio beyond e^20": (
        dict(optimizer__lr=1.0, updates__minibatches=4),
        half,
        "alert/ratio_out_of_bounds",
        False,
    ),
    "another sampler": (
        {},
        half,
        "alert/sampler_trainer_mismatch",
        False,
    ),
    "reward function raises": (
        dict(reward__functions=f"{__name__}:worse*1"),
        half,
        "alert/failures_of_reward_functions",
        False,
    ),
    "all rewards alike": (
        dict(reward__outcome__name=f"{__name__}:equal"),
        half,
        "alert/gradient_of_0",
        True,
    ),
    "learns to end at once": (
        dict(optimizer__lr=0.3),
        half,
        "alert/length_collapse",
        False,
    ),
    "no penalty for drift": (
        dict(kl__kind="k3", kl__coef=1e-9, optimizer__lr=0.3),
        half,
        "alert/drift_from_the_initial_policy",
        False,
    ),
    "too sure to explore": ({}, half, "alert/entropy_collapse", True),
    "few rounds": (
        dict(dynamic_sampling__enabled=True, dynamic_sampling__max_rounds=1),
        lambda text, row: row.prompt.startswith("1") and len(text) % 2,
        "alert/incomplete_batches",
        False,
    ),
    "everything truncated": (
        dict(rollout__max_tokens=2),
        half,
        "alert/truncated_responses",
        False,
    ),
}


# What the parameters of the first policy are multiplied by.
SCALES = {"no penalty for drift": 3, "too sure to explore": 20}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_flagged(fault, tmp_path, monkeypatch):
  fields, verify, alert, untouched = FAULTS[fault]
  monkeypatch.setattr(interim, "run", lambda *_: 0.0)
  monkeypatch.setattr(arithmetic, "verify", verify)
  session = tiny_session.make_session(
      tmp_path,
      **dict(
          dynamic_sampling__enabled=False,
          updates__minibatches=2,
          rl__steps=STEPS,
          rl__max_steps_without_update=0,
          rl__max_steps_uncertified=0,
          evaluate__every=0,
          checkpoint__every=9,
      )
      | fields,
  )
  if fault == "learning rate":  # the config's check refuses it
    session.config.optimizer.lr = 1e30
  if fault == "another sampler":
    right = session.engine.weights
    monkeypatch.setattr(
        session.engine,
        "weights",
        lambda params, *a: right(jax.tree.map(lambda x: 4 * x, params), *a),
    )
  with jax.set_mesh(session.mesh):
    params = tiny_session.random_params(session)
    params = jax.tree.map(lambda x: x * SCALES.get(fault, 1), params)
    before = tiny_session.digest(params)
    after = call(rl.train, session, params)
  assert (tiny_session.digest(after) == before) == untouched
  lines = tiny_session.logged(tmp_path)
  assert any(alert in x for x in lines), lines
  fields = config.flat(session.config)
  if untouched:
    with pytest.raises(RunError, match=f"RL made no update in {STEPS} steps"):
      health.check_run(lines, fields)
  elif fault == "learning rate":
    with pytest.raises(RunError, match="RL ended with a broken policy. Step 3"):
      health.check_run(lines, fields)
  else:
    health.check_run(lines, fields)


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_parameters_that_overflow_are_not_saved(stage, tmp_path, monkeypatch):
  """Their gradient is finite; the checkpoint before them stays the newest."""
  monkeypatch.setattr(arithmetic, "verify", half)
  session = tiny_session.make_session(tmp_path, checkpoint__keep_last=1)
  rate = "sft.lr" if stage == "sft" else "optimizer.lr"
  with jax.set_mesh(session.mesh):
    params = tiny_session.random_params(session)
    tiny_session.set_field(session.config, rate, 1e39)
    with pytest.raises(resumable.NotFinite, match=f"lower {rate} .now 1e.39"):
      call(sft.run, session) if stage == "sft" else call(
          rl.train, session, params
      )
  checkpoints = Checkpoints(tmp_path / "checkpoints" / stage)
  lines = [x for x in tiny_session.logged(tmp_path) if x["stage"] == stage]
  if stage == "sft":
    assert not checkpoints.steps() and lines[0]["sft/grad_norm"] > 0
  else:
    assert checkpoints.steps() == [0] and checkpoints.fault(0) is None
    assert lines[0]["actor/grad_norm"] > 0


def test_value_pretraining_whose_updates_are_skipped(tmp_path, monkeypatch):
  """Returns that are not finite: the step is named, and the state is saved."""
  session = tiny_session.make_session(
      tmp_path,
      advantage__name="gae",
      critic__pretrain_steps=4,
      rl__max_steps_without_update=2,
  )
  right = build_step.returns

  def broken(*args):
    program = right(*args)

    def returns(inputs):
      out = program(inputs)
      return out | dict(returns_BT=out["returns_BT"] * np.nan)

    return returns

  monkeypatch.setattr(build_step, "returns", broken)
  with jax.set_mesh(session.mesh):
    policy = tiny_session.random_params(session)
    with pytest.raises(RunError, match="value pretraining.*Step 2: gradients"):
      call(value.run, session, policy)
  lines = tiny_session.logged(tmp_path)
  assert [x["critic/update_skipped"] for x in lines] == [1, 1]
  assert (tmp_path / "checkpoints" / "value" / "2").exists()


def test_value_pretraining_whose_verifier_raises(tmp_path, monkeypatch):
  """It is said once, and counted in each step."""
  said = []
  session = tiny_session.make_session(
      tmp_path,
      advantage__name="gae",
      critic__pretrain_steps=2,
      rl__max_steps_without_update=0,
  )
  monkeypatch.setattr(type(session.display), "say", lambda _, x: said.append(x))
  turns = iter(range(10**6))
  monkeypatch.setattr(arithmetic, "verify", lambda *_: 1 // (next(turns) % 2))
  with jax.set_mesh(session.mesh):
    call(value.run, session, tiny_session.random_params(session))
  lines = tiny_session.logged(tmp_path)
  assert all(x["train/verifier_failures"] > 0 for x in lines)
  warnings = [x for x in said if "Failures of the verifier: " in x]
  assert len(warnings) == 1 and warnings[0].startswith("warning: step 1: ")
