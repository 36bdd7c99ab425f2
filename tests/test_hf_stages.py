"""Stages that start from checkpoints of transformers, and the export."""

import dataclasses

import checkpoints
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
import tiny_session
from checkpoints import bits, checkpoint, session_of, with_tokenizer
from tiny_session import call, tiny_config

from rl_reason import hf
from rl_reason.base.errors import ConfigError
from rl_reason.hf import architecture
from rl_reason.models import critic, decoder
from rl_reason.stages import export, sft, trained_parameters, value
from rl_reason.stages.run_output import open_stage


def test_a_session_has_the_shape_of_its_checkpoint(tmp_path):
  path = with_tokenizer(checkpoint(tmp_path / "x", "qwen3"))
  session = session_of(path, tmp_path / "run")
  source, cfg = hf.find(str(path)), session.cfg
  assert architecture.fields(cfg) == architecture.fields(source.cfg)
  assert (cfg.vocab, cfg.tokens) == (40, len(tiny.TOK))
  assert cfg.remat == session.config.model.remat
  assert session.config.model.qk_norm
  assert session.tok.get_vocab() == tiny.TOK.get_vocab()


def test_checkpoints_that_do_not_fit_are_named(tmp_path):
  path = checkpoint(tmp_path / "x", "mistral", sliding_window=59)
  workdir, c = tmp_path / "run", tiny_config()
  longest = 59 - c.rollout.max_prompt

  def refused(words, **changes):
    changes = dict(rollout__max_tokens=longest) | changes
    with pytest.raises(ConfigError, match=words):
      session_of(path, workdir, **changes)

  refused("makes 60 tokens, and .* takes 59", rollout__max_tokens=longest + 1)
  refused("tokenizer = '': .* has no tokenizer .*; name one")
  large = tiny.TASK.ALPHABET + "abcdefghijklmnopqrstuvwxyz"
  large = with_tokenizer(tmp_path / "large", large)
  refused("43 tokens, and model.path .* of 40", tokenizer=str(large))
  for damage in ("{}", ""):
    (large / "tokenizer.json").write_text(damage)
    refused("tokenizer = .* cannot be loaded", tokenizer=str(large))


def test_rows_beyond_the_tokenizer_have_no_probability():
  """Nor do they change the probabilities of the others."""
  cfg = dataclasses.replace(tiny.CFG, layers=1, vocab=40, tokens=17)
  params = checkpoints.random_params(decoder.table(cfg))
  small = dataclasses.replace(cfg, vocab=17)
  fewer = params | dict(embed=params["embed"][:17])
  rng = np.random.default_rng(0)
  hidden_BD = jax.numpy.asarray(rng.normal(size=(8, cfg.width)), np.float32)
  logits_BV = decoder.logits(params, cfg, hidden_BD)
  np.testing.assert_array_equal(jax.nn.softmax(logits_BV)[:, 17:], 0)
  expected_BV = decoder.logits(fewer, small, hidden_BD)
  np.testing.assert_allclose(logits_BV[:, :17], expected_BV, rtol=1e-5)


@pytest.mark.slow
def test_the_policy_of_a_checkpoint_is_exported_again(tmp_path, monkeypatch):
  """Its weights bit for bit, its tokenizer, a model card; and the critic.

  The policy is pushed to the hub, which is asked before anything is written.
  """
  path = with_tokenizer(checkpoint(tmp_path / "x", "qwen2", jnp.bfloat16))
  changes = dict(advantage__name="gae", critic__head__name="gated")
  changes |= dict(export__push_to="me/model", export__private=False)
  calls = []

  def create(*args):
    assert not (session.workdir / "export").exists()
    calls.append(args)

  monkeypatch.setattr(export.hub, "create", create)
  monkeypatch.setattr(export.hub, "push", lambda *args: calls.append(args))
  session = session_of(path, tmp_path / "run", **changes)
  _, expected = checkpoints.load(path, session.mesh)
  with jax.set_mesh(session.mesh):
    params = call(sft.run, session)
    assert not (session.workdir / "checkpoints").exists()
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    jax.tree.map(
        np.testing.assert_array_equal,
        call(trained_parameters.sft, session),
        expected,
    )
    critic_params, _ = call(value.run, session, params)
    state = tiny_session.initial_state(session, params, critic_params, None)
    state.step = 7
    stage = call(open_stage, session, "rl")
    stage.save(state)
    stage.checkpoints.close()
    accuracy = {"val-core/arithmetic/acc/greedy": 0.25}
    session.log.metrics("evaluate", 0, accuracy)
    session.log.metrics("evaluate", 7, dict.fromkeys(accuracy, 0.75))
    call(export.run, session, "newest")
  out = session.workdir / "export"
  push = "me/model", out / "policy", "Step 7 of RL"
  assert calls == [("me/model", False), push]
  assert bits(out / "policy") == bits(path)
  for name in ("tokenizer.json", "tokenizer_config.json"):
    assert (out / "policy" / name).read_text() == (path / name).read_text()
  card = (out / "policy" / "README.md").read_text()
  assert "| metric | step 0 | step 7 |" in card
  assert "| val-core/arithmetic/acc/greedy | 0.25 | 0.75 |" in card
  assert '    advantage.name = "gae"' in card and "run, step 7" in card

  def table(cfg):
    heads = session.critic_cfg.heads
    return critic.table(critic.CriticConfig(cfg, "gated", heads))

  source, again = checkpoints.load(out / "critic", session.mesh, table)
  assert source.tensors["score.weight"].dtype == "F32"
  jax.tree.map(np.testing.assert_array_equal, critic_params, again)


@pytest.mark.slow
def test_sft_starts_from_a_checkpoint(tmp_path):
  path = with_tokenizer(checkpoint(tmp_path / "x"))
  changes = dict(optimizer__name="sgd", sft__habits__lr=1e-6)
  session = session_of(path, tmp_path / "run", sft__habits__steps=1, **changes)
  with jax.set_mesh(session.mesh):
    params, again = call(sft.run, session), call(
        trained_parameters.sft, session
    )
  jax.tree.map(np.testing.assert_array_equal, params, again)
  start = checkpoints.weights_of(checkpoints.config_of("qwen2"))
  change = params["embed"] - start["model.embed_tokens.weight"]
  assert 0 < np.abs(change).max() < 1e-3
