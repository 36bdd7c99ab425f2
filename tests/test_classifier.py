"""Classifiers of transformers as reward models and as initial critics."""

import json

import checkpoints
import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import tiny
from checkpoints import bits, random_params, with_tokenizer
from tiny_session import call, digest

from rl_reason import hf
from rl_reason.base.errors import ConfigError, RunError
from rl_reason.checks import config_checks
from rl_reason.data import tokenizer
from rl_reason.devices import device_mesh
from rl_reason.hf import SEQUENCE_CLASSIFIER
from rl_reason.models import critic
from rl_reason.stages import scorer, trained_parameters, value
from rl_reason.tasks import reward_terms
from rl_reason.training import packing

FAMILIES = {"qwen2": "Qwen2", "qwen3": "Qwen3", "llama": "Llama"}
FAMILIES["mistral"] = "Mistral"
ALPHABET = tiny.TASK.ALPHABET


def weights_of(config, labels=1, dtype=np.float32):
  weights = checkpoints.weights_of(config, 3, dtype)
  weights.pop("lm_head.weight", None)
  shape = labels, config["hidden_size"]
  score = np.random.default_rng(4).normal(size=shape)
  return weights | {"score.weight": score.astype(dtype)}


def make(
    path,
    kind="qwen3",
    labels=1,
    dtype=np.float32,
    alphabet=ALPHABET,
    edit=lambda tensors: tensors,
    **change,
):
  """A sequence classifier with random weights."""
  name = f"{FAMILIES[kind]}ForSequenceClassification"
  config = checkpoints.config_of(kind, **dict(architectures=[name]) | change)
  checkpoints.write(path, config, edit(weights_of(config, labels, dtype)))
  return with_tokenizer(path, alphabet) if alphabet else path


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
  path = tmp_path_factory.mktemp("policy")
  return with_tokenizer(checkpoints.checkpoint(path, "qwen3"))


@pytest.fixture
def make_session(policy, tmp_path):
  def make(**changes):
    return checkpoints.session_of(policy, tmp_path / "run", **changes)

  return make


def table(cfg):
  return critic.table(critic.CriticConfig(cfg))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("qwen2", np.float32),
        ("qwen3", jnp.bfloat16),
        ("llama", np.float32),
        ("mistral", np.float32),
    ],
)
def test_the_round_trip_is_bit_exact(kind, dtype, tmp_path):
  path, out = make(tmp_path / "x", kind, dtype=dtype), tmp_path / "y"
  mesh = device_mesh.make_mesh(1, 2, 1, jax.devices()[:2])
  source, params = checkpoints.load(path, mesh, table)
  head = params["value_head"]
  assert not np.any(head["bias"])
  score = weights_of(source.config, dtype=dtype)["score.weight"]
  np.testing.assert_array_equal(head["value"].T, score.astype(np.float32))
  rows = table(source.cfg)
  hf.save(
      out, params, rows, source.cfg, head=SEQUENCE_CLASSIFIER, source=source
  )
  assert bits(out) == bits(path)
  config = json.loads((out / "config.json").read_text())
  assert config["architectures"] == source.config["architectures"]
  assert config["id2label"] == {"0": "LABEL_0"}


def test_a_bias_or_several_outputs_are_not_written(tmp_path):
  def refused(words, rows, params):
    with pytest.raises(ConfigError, match=words):
      head, out = SEQUENCE_CLASSIFIER, tmp_path / "x"
      hf.save(out, params, rows, tiny.CFG, head=head)
    assert not out.exists()

  rows = table(tiny.CFG)
  params = random_params(rows)
  bias = params["value_head"]["bias"]
  params["value_head"]["bias"] = jnp.full_like(bias, 0.5)
  refused(r"1 outputs and a bias of \[0.5\]: a", rows, params)
  gated = critic.table(critic.CriticConfig(tiny.CFG, "gated", heads=3))
  refused("value_head: 3 outputs", gated, random_params(gated))


def test_eos_is_not_the_padding_token(tmp_path):
  """transformers scores the last token before padding: EOS must not be it."""
  rows, out = table(tiny.CFG), tmp_path / "x"
  params = random_params(rows)
  params["value_head"]["bias"] *= 0
  path = with_tokenizer(tmp_path / "tok")
  for pad, expected in ((tiny.TOK.pad_token, 0), (tiny.TOK.eos_token, None)):
    tok = tokenizer.load(str(path), ALPHABET)
    tok.pad_token = pad
    head = SEQUENCE_CLASSIFIER
    hf.save(out, params, rows, tiny.CFG, head=head, tokenizer=tok)
    config = json.loads((out / "config.json").read_text())
    assert config["pad_token_id"] == expected and config["eos_token_id"] == 1


@pytest.mark.slow
def test_a_classifier_of_any_shape_is_a_term_of_the_reward(
    make_session, tmp_path
):
  path = make(tmp_path / "judge", "llama", dtype=jnp.bfloat16)
  session = make_session(reward__functions=f"{path}*0.5")
  with jax.set_mesh(session.mesh):
    call(trained_parameters.check_classifiers, session)
    prompts = tiny.prompts(8)
    response_BT = np.random.default_rng(0).integers(2, 17, (8, 24))
    tokens_BL = np.concatenate([prompts.tokens_NP, response_BT], 1)
    mask_BT = np.arange(24) < np.arange(1, 9)[:, None]
    params, cfg = call(trained_parameters.reward_model, session, str(path))
    rows = tokens_BL.astype(np.int32), prompts.start_N, mask_BT
    packed_M = jax.tree.map(lambda x: x[None], packing.pack(*rows, 8))
    scores_B = scorer.scores_program(cfg)(params, packed_M)[0]
    source, params = checkpoints.load(path, session.mesh, table)
    cfg = critic.CriticConfig(source.cfg)
    score = jax.jit(critic.scores, static_argnums=1)
    expected_B = score(params, cfg, padded.micro(*rows, 8))
  assert np.ptp(expected_B) > 0.1
  np.testing.assert_allclose(scores_B, expected_B, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_critic_starts_from_a_classifier(make_session, tmp_path):
  path = make(tmp_path / "judge")
  init = dict(
      advantage__name="gae", critic__init="exported", critic__path=str(path)
  )
  session = make_session(advantage__name="gae", **init)
  with jax.set_mesh(session.mesh):
    call(trained_parameters.check_classifiers, session)
    params, counters = call(value.run, session, policy_params=None)
    _, expected = checkpoints.load(path, session.mesh, table)
  assert digest(params) == digest(expected) and not counters["tokens"]


def test_a_hub_id_is_a_reward_model(make_session, tmp_path, monkeypatch):
  path, calls = make(tmp_path / "judge"), []
  monkeypatch.setattr(
      huggingface_hub,
      "snapshot_download",
      lambda name, **_: calls.append(name) or str(path),
  )
  session = make_session(reward__functions="owner/judge-7B*0.5")
  config_checks.fields(session.config)
  with jax.set_mesh(session.mesh):
    call(trained_parameters.reward_model, session, "owner/judge-7B")
  assert calls == ["owner/judge-7B"]
  for name in ("steps", "my:function", "a/rules.json", "a/b/c"):
    assert not reward_terms.is_model(name)


def add_bias(tensors):
  return tensors | {"score.bias": np.zeros(1, np.float32)}


def drop_score(tensors):
  return {k: x for k, x in tensors.items() if k != "score.weight"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(labels=2), "score.weight has shape [2, 24], and the value head"),
        (
            dict(architectures=["Qwen3ForRewardModel"]),
            "['Qwen3ForRewardModel']: must be ['Qwen3ForTokenClassification']"
            " or ['Qwen3ForSequenceClassification']",
        ),
        (dict(architectures=None), "score.bias is missing"),
        (dict(model_type="gemma2"), "model_type = 'gemma2': must be one of"),
        (dict(edit=add_bias), "score.bias is not a tensor of this model"),
        (dict(edit=drop_score), "score.weight is missing"),
        (dict(max_position_embeddings=59), "takes 59 tokens, and rollout.max"),
        (dict(alphabet=""), "has no tokenizer; add its own"),
        (dict(alphabet=ALPHABET + "a"), "'a' has id 17, and None in the poli"),
        (dict(alphabet=ALPHABET[::-1]), "has another tokenizer: '#' has id 2"),
        (dict(vocab_size=16), "vocab_size of 16, and its tokenizer has 17"),
    ],
)
def test_an_unusable_classifier_is_named(change, words, make_session, tmp_path):
  path = make(tmp_path / "judge", **change)
  session = make_session(reward__functions=f"length*-1,{path}*0.5")
  with pytest.raises(ConfigError) as e:
    call(trained_parameters.check_classifiers, session)
  assert str(e.value).startswith(f"reward.functions = {str(path)!r}: ")
  assert words in str(e.value) and "\n" not in str(e.value)
  session = make_session(
      advantage__name="gae", critic__init="exported", critic__path=str(path)
  )
  with pytest.raises(ConfigError, match="critic.path = "):
    call(trained_parameters.check_classifiers, session)


@pytest.mark.parametrize(
    ("change", "head", "words"),
    [
        (dict(intermediate_size=28), "scalar", "model.mlp is 28 there and 20"),
        (dict(rope_theta=5e4), "scalar", "model.rope_theta is 50000.0 there"),
        (dict(vocab_size=41), "scalar", "model.vocab is 41 there and 40 here"),
        ({}, "gated", "critic.head.name is .scalar. there and .gated. h"),
    ],
)
def test_a_critic_needs_the_shape_of_the_policy(
    change, head, words, make_session, tmp_path
):
  path = make(tmp_path / "judge", **change)
  init = dict(
      advantage__name="gae", critic__init="exported", critic__path=str(path)
  )
  with pytest.raises(RunError, match=words):
    call(
        trained_parameters.check_classifiers,
        make_session(critic__head__name=head, **init),
    )
