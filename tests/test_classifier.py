"""Reward models of others: read, scored with, started from, refused by name."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import test_hf
import tiny
from test_config import digest, run_params

from rl_reason import checks, hf
from rl_reason.config import ConfigError
from rl_reason.models import critic, parameters
from rl_reason.reward_models import classifier, train
from rl_reason.scale import sharding
from rl_reason.structs import RunError
from rl_reason.tasks import scorers
from rl_reason.training import experience, value

FAMILIES = {"qwen2": "Qwen2", "qwen3": "Qwen3", "llama": "Llama"}
FAMILIES["mistral"] = "Mistral"
ALPHABET = tiny.TASK.ALPHABET


def weights_of(fields, labels=1, dtype=np.float32, seed=3):
  out = test_hf.weights_of(fields, seed, dtype)
  out.pop("lm_head.weight", None)
  score = np.random.default_rng(4).normal(size=(labels, fields["hidden_size"]))
  return out | {"score.weight": score.astype(dtype)}


def make(
    path, kind="qwen3", labels=1, dtype=np.float32, alphabet=ALPHABET, **change
):
  """A sequence classifier of a family, with random weights."""
  name = f"{FAMILIES[kind]}ForSequenceClassification"
  change = dict(architectures=[name]) | change
  fields = test_hf.config_of(kind, **change)
  test_hf.write(path, fields, weights_of(fields, labels, dtype))
  return test_hf.with_tokenizer(path, alphabet) if alphabet else path


def rewrite(path, change):
  """Other tensors in the same file."""
  fields = json.loads((path / "config.json").read_text())
  test_hf.write(path, fields, change(weights_of(fields)))


def make_run(tmp_path, **change):
  """A run whose policy is a Qwen3."""
  policy = tmp_path / "policy"
  if not policy.exists():
    test_hf.with_tokenizer(test_hf.checkpoint(policy, "qwen3"))
  return test_hf.make_run(test_hf.tiny_config(policy, **change), tmp_path / "r")


def table(cfg):
  return critic.table(critic.CriticConfig(cfg))


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize(
    "dtype", [np.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.slow)]
)
def test_in_and_out_is_bit_exact(kind, dtype, tmp_path):
  path = make(tmp_path / "x", kind, dtype=dtype)
  mesh = sharding.make_mesh(data=-1, fsdp=2, tensor=1)
  with jax.set_mesh(mesh):
    source = hf.find(str(path), "reward.scorers", table)
    rows = table(source.cfg)
    params = hf.load(source, rows, mesh)
    head = params["value_head"]
    assert not np.any(head["bias"])
    wanted = weights_of(source.config, dtype=dtype)["score.weight"]
    np.testing.assert_array_equal(head["value"].T, wanted.astype(np.float32))
    out = tmp_path / "y"
    hf.save(
        out,
        params,
        rows,
        source.cfg,
        head=hf.SEQUENCE_CLASSIFIER,
        source=source,
    )
  assert test_hf.bits(out) == test_hf.bits(path)
  said = json.loads((out / "config.json").read_text())
  assert said["architectures"] == source.config["architectures"]
  assert said["id2label"] == {"0": "LABEL_0"}


def test_a_bias_cannot_go_out(tmp_path):
  params = parameters.init_table(table(tiny.CFG), jax.random.key(0))
  params["value_head"]["bias"] += 0.5
  with pytest.raises(ConfigError, match=r"1 outputs and a bias of \[0.5\]: a"):
    hf.save(
        tmp_path / "x",
        params,
        table(tiny.CFG),
        tiny.CFG,
        head=hf.SEQUENCE_CLASSIFIER,
    )
  gated = critic.table(critic.CriticConfig(tiny.CFG, "gated", heads=3))
  params = parameters.init_table(gated, jax.random.key(0))
  with pytest.raises(ConfigError, match="value_head: 3 outputs"):
    hf.save(
        tmp_path / "x", params, gated, tiny.CFG, head=hf.SEQUENCE_CLASSIFIER
    )
  assert not (tmp_path / "x").exists()


def test_the_end_of_a_response_is_not_padding(tmp_path):
  """transformers scores what stands before the padding: EOS must not be it."""
  params = parameters.init_table(table(tiny.CFG), jax.random.key(0))
  path = test_hf.with_tokenizer(tmp_path / "tok")
  for pad, wanted in ((tiny.TOK.pad_token, 0), (tiny.TOK.eos_token, None)):
    tok = test_hf.tokenizer.load(str(path), ALPHABET)
    tok.pad_token = pad
    out = tmp_path / "x"
    hf.save(
        out,
        params,
        table(tiny.CFG),
        tiny.CFG,
        head=hf.SEQUENCE_CLASSIFIER,
        tokenizer=tok,
    )
    said = json.loads((out / "config.json").read_text())
    assert said["pad_token_id"] == wanted and said["eos_token_id"] == 1


def test_it_is_a_reward_of_any_shape(tmp_path):
  path = make(tmp_path / "judge", "llama", dtype=jnp.bfloat16)
  run = make_run(tmp_path, reward__scorers=f"{path}*0.5")
  checks.fields(run.config)
  with jax.set_mesh(run.mesh):
    classifier.check(run)
    maker = experience.Maker(run, "test")
    rows = maker.generate(run_params(run))
    r, (got_B,) = rows.rollouts, rows.scores_NB
    source = hf.find(str(path), "x", table)
    params = hf.load(source, table(source.cfg), run.mesh)
    cfg = critic.CriticConfig(source.cfg)
    rows = r.tokens_BL, r.start_B, r.mask_BT
    packed = padded.micro(*rows, len(r.start_B))
    wanted_B = critic.scores(params, cfg, packed)
  assert np.ptp(wanted_B) > 0.1
  np.testing.assert_allclose(got_B, wanted_B, rtol=1e-4, atol=1e-5)


def test_a_critic_starts_from_it(tmp_path):
  path = make(tmp_path / "judge")
  start = dict(critic__init="exported", critic__path=str(path))
  run = make_run(tmp_path, advantage__name="gae", **start)
  with jax.set_mesh(run.mesh):
    classifier.check(run)
    found, spent = value.run(run, run_params(run))
    source = hf.find(str(path), "critic.path", table)
    wanted = hf.load(source, table(run.cfg), run.mesh)
  assert digest(found) == digest(wanted) and not spent["tokens"]


def test_a_hub_id_is_a_model(tmp_path, monkeypatch):
  import huggingface_hub

  path = make(tmp_path / "judge")
  asked = []
  monkeypatch.setattr(
      huggingface_hub,
      "snapshot_download",
      lambda name, **_: asked.append(name) or str(path),
  )
  run = make_run(tmp_path, reward__scorers="owner/judge-7B*0.5")
  checks.fields(run.config)
  with jax.set_mesh(run.mesh):
    train.load(run, "owner/judge-7B")
  assert asked == ["owner/judge-7B"]
  for name in ("steps", "my:function", "a/rules.json", "a/b/c"):
    assert not scorers.is_model(name)


def bias(tensors):
  return tensors | {"score.bias": np.zeros(1, np.float32)}


def without(tensors):
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
        (dict(architectures=["Qwen3ForCausalLM"]), "['Qwen3ForCausalLM']: mus"),
        (dict(architectures=None), "score.bias is missing"),
        (dict(model_type="gemma2"), "model_type = 'gemma2': must be one of"),
        (dict(tensors=bias), "score.bias is a tensor that nothing uses"),
        (dict(tensors=without), "score.weight is missing"),
        (dict(max_position_embeddings=59), "takes 59 tokens, and rollout.max"),
        (dict(alphabet=""), "has no tokenizer beside it"),
        (dict(alphabet=ALPHABET + "a"), "'a' is 17 there and None here"),
        (dict(alphabet=ALPHABET[::-1]), "has another tokenizer: '#' is 2 th"),
        (dict(vocab_size=16), "vocab_size of 16, and its tokenizer has 17"),
    ],
)
def test_what_cannot_be_used_is_named(change, words, tmp_path):
  tensors = change.pop("tensors", None)
  path = make(tmp_path / "judge", **change)
  if tensors:
    rewrite(path, tensors)
  run = make_run(tmp_path, reward__scorers=f"length*-1,{path}*0.5")
  with pytest.raises(ConfigError) as e:
    classifier.check(run)
  assert str(e.value).startswith(f"reward.scorers = {str(path)!r}: ")
  assert words in str(e.value) and "\n" not in str(e.value)
  run = make_run(tmp_path, critic__init="exported", critic__path=str(path))
  with pytest.raises(ConfigError, match="critic.path = "):
    classifier.check(run)


@pytest.mark.parametrize(
    ("change", "head", "words"),
    [
        (dict(intermediate_size=28), "scalar", "model.mlp is 28 there and 20"),
        (dict(rope_theta=5e4), "scalar", "model.rope_theta is 50000.0 there"),
        (dict(vocab_size=41), "scalar", "model.vocab is 41 there and 40 here"),
        ({}, "gated", "critic.head.name is 'scalar' there and 'gated' here"),
    ],
)
def test_a_critic_has_the_shape_of_the_policy(change, head, words, tmp_path):
  path = make(tmp_path / "judge", **change)
  start = dict(critic__init="exported", critic__path=str(path))
  run = make_run(tmp_path, critic__head__name=head, **start)
  with pytest.raises(RunError, match=words):
    classifier.check(run)
