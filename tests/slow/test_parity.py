"""Parity with transformers (torch, CPU) on random checkpoints.

Needs the extra `parity`; skipped without it.
"""

import dataclasses
import json
import re

import jax
import numpy as np
import padded
import pytest
import tiny
from conftest import ROOT

from rl_reason import hf
from rl_reason.base.structs import Prompts
from rl_reason.devices import device_mesh
from rl_reason.models import critic, decoder, experts, parameters
from rl_reason.rollout import sampler

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = dict(
    vocab_size=59,
    hidden_size=40,
    intermediate_size=56,
    num_hidden_layers=3,
    max_position_embeddings=256,
    bos_token_id=None,
    eos_token_id=1,
    pad_token_id=0,
)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=5e5,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
YARN = dict(
    rope_type="yarn",
    rope_theta=1e6,
    factor=4.0,
    original_max_position_embeddings=32,
)
HEADS = dict(num_attention_heads=4, num_key_value_heads=2)


def rotary(**scaling):
  """A model of heads of 10 with a scaling of its positions."""
  return HEADS | dict(head_dim=10, rope_parameters=scaling)


EXPERTS = HEADS | dict(
    head_dim=12, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20
)
# The example of the documentation.
TABLE: dict = {}
exec(
    re.search(
        r'```python\n("""Families .*?)```',
        (ROOT / "docs" / "evaluation.md").read_text(),
        re.DOTALL,
    )[1],
    TABLE,
)
hf.architecture.add("my_families:TABLE", TABLE["TABLE"])
MODELS = {
    "mixtral": (
        "Mixtral",
        HEADS | dict(head_dim=12, num_local_experts=6, num_experts_per_tok=2),
    ),
    "qwen2-tied": ("Qwen2", HEADS | dict(tie_word_embeddings=True)),
    "qwen2-untied": ("Qwen2", dict(num_attention_heads=5)),
    "qwen3": ("Qwen3", HEADS | dict(head_dim=12, tie_word_embeddings=True)),
    "qwen3-biases": (
        "Qwen3",
        HEADS
        | dict(
            head_dim=8,
            attention_bias=True,
            rope_parameters=dict(rope_type="default", rope_theta=1e6),
        ),
    ),
    "llama": ("Llama", HEADS),
    "llama3-scaled": ("Llama", HEADS | dict(rope_parameters=LLAMA3)),
    "yarn": ("Qwen2", rotary(**YARN)),
    "yarn-deepseek": (
        "Llama",
        rotary(**YARN | dict(mscale=0.7, mscale_all_dim=1.0, truncate=False)),
    ),
    "yarn-betas": (
        "Qwen3",
        rotary(**YARN, beta_slow=0.25, beta_fast=4.0, attention_factor=1.3),
    ),
    "linear": ("Llama", rotary(rope_type="linear", rope_theta=1e4, factor=3.0)),
    "dynamic": (
        "Llama",
        rotary(rope_type="dynamic", rope_theta=1e4, factor=3.0),
    ),
    "llama-biases": (
        "Llama",
        dict(
            num_attention_heads=4,
            num_key_value_heads=4,
            attention_bias=True,
            mlp_bias=True,
            rms_norm_eps=1e-3,
        ),
    ),
    "mistral": ("Mistral", HEADS | dict(head_dim=14, sliding_window=200)),
    "qwen3-moe": ("Qwen3Moe", EXPERTS | dict(norm_topk_prob=True)),
    "qwen3-moe-not-normalized": ("Qwen3Moe", EXPERTS | dict(num_experts=7)),
}


def build(name, kind="ForCausalLM", **change):
  """A random model of transformers; no norm is 1 and no bias 0."""
  family, config = MODELS[name]
  config = SIZES | dict(num_key_value_heads=1) | config | change
  config = getattr(transformers, f"{family}Config")(**config)
  torch.manual_seed(0)
  theirs = getattr(transformers, f"{family}{kind}")(config).eval()
  with torch.no_grad():
    for p in theirs.parameters():
      p.add_(torch.randn_like(p) * 0.15)
  return theirs


def in_jax(path, table=decoder.table):
  source = hf.find(str(path), table=table)
  mesh = device_mesh.make_mesh(1, 1, 1, jax.devices()[:1])
  return source.cfg, hf.load(source, table(source.cfg), mesh)


def logits(params, cfg, tokens, start):
  hidden = padded.hidden(params, cfg, tokens, start)
  return np.asarray(decoder.logits(params, cfg, hidden))


def padded_rows(rows=4, length=120, left=True):
  """Random tokens, positions that are real, and the first of each row."""
  rng = np.random.default_rng(0)
  tokens = rng.integers(2, SIZES["vocab_size"], (rows, length)).astype(np.int32)
  pads = np.arange(rows) * 7
  if left:
    real = np.arange(length) >= pads[:, None]
  else:
    real = np.arange(length) < length - pads[:, None]
  start = pads if left else np.zeros_like(pads)
  return np.where(real, tokens, 0), real, start.astype(np.int32)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_logits(name, left, tmp_path):
  theirs = build(name)
  theirs.save_pretrained(tmp_path, max_shard_size="30KB")
  cfg, params = in_jax(tmp_path)
  tokens, real, start = padded_rows(left=left)
  with torch.no_grad():
    want = theirs(
        torch.tensor(tokens, dtype=torch.long),
        attention_mask=torch.tensor(real, dtype=torch.long),
        position_ids=torch.tensor((real.cumsum(1) - 1).clip(0)),
    ).logits.numpy()
  got = logits(params, cfg, tokens, start)
  assert np.abs(want[real]).max() > 1
  np.testing.assert_allclose(got[real], want[real], atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_greedy_generation(name, tmp_path):
  """With the cache of each, from prompts that are padded on the left."""
  theirs = build(name, eos_token_id=None)  # nothing ends a response
  theirs.save_pretrained(tmp_path)
  cfg, params = in_jax(tmp_path)
  tokens, real, start = padded_rows(length=40)
  length = 48
  with torch.no_grad():
    want = theirs.generate(
        torch.tensor(tokens, dtype=torch.long),
        attention_mask=torch.tensor(real, dtype=torch.long),
        do_sample=False,
        max_new_tokens=length,
    ).numpy()
  got = sampler.sample(
      params,
      Prompts(tokens, start, np.arange(len(tokens), dtype=np.int32)),
      jax.random.key(0),
      0.0,
      cfg=cfg,
      group_size=1,
      max_tokens=length,
      eos=-1,
      pad=0,
  )
  np.testing.assert_array_equal(got.tokens_BL, want)
  assert len(np.unique(want[:, 40:])) > 5


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_of_an_export_is_read(name, tmp_path):
  """No tensor is missing or unused, and every bit is the same."""
  theirs = build(name).to(torch.bfloat16)
  theirs.save_pretrained(tmp_path / "in")
  source = hf.find(str(tmp_path / "in"))
  cfg, params = in_jax(tmp_path / "in")
  table, out = decoder.table(cfg), tmp_path / "out"
  hf.save(out, params, table, cfg, source=source, shard_bytes=30_000)
  assert len(list(out.glob("*.safetensors"))) > 1
  again, info = transformers.AutoModelForCausalLM.from_pretrained(
      out, output_loading_info=True
  )
  assert not any(info.values()), info
  assert again.dtype == torch.bfloat16
  for key, x in theirs.state_dict().items():
    assert torch.equal(x, again.state_dict()[key]), key


def test_the_balance_of_experts():
  """`experts.balance` is the auxiliary loss of transformers."""
  from transformers.models.qwen3_moe import modeling_qwen3_moe as theirs

  rng = np.random.default_rng(0)
  logits = rng.normal(size=(3, 2 * 9, 6)).astype(np.float32)
  real = np.arange(9) < np.array([[9], [5]])
  probs = np.asarray(jax.nn.softmax(logits, -1))
  routes = np.argsort(-probs, -1)[..., :2]
  for mask in (None, real):
    want = theirs.load_balancing_loss_func(
        tuple(map(torch.tensor, logits)),
        6,
        2,
        None if mask is None else torch.tensor(mask),
    )
    mask_X = np.ones(18, bool) if mask is None else mask.reshape(-1)
    got = experts.balance(routes, probs, mask_X)
    np.testing.assert_allclose(got, want.item(), rtol=1e-5)


def test_rotary_fields_of_transformers_4_suffice(tmp_path):
  """Fields that transformers before 5 reads, without those that 5 added."""
  theirs = build("llama3-scaled")
  theirs.save_pretrained(tmp_path / "in")
  cfg, params = in_jax(tmp_path / "in")
  source = hf.find(str(tmp_path / "in"))
  out = tmp_path / "out"
  hf.save(out, params, decoder.table(cfg), cfg, source=source)
  config = json.loads((out / "config.json").read_text())
  del config["rope_parameters"], config["dtype"]
  (out / "config.json").write_text(json.dumps(config))
  again = transformers.AutoModelForCausalLM.from_pretrained(out)
  tokens = torch.arange(2, 58)[None]
  with torch.no_grad():
    assert torch.equal(theirs(tokens).logits, again(tokens).logits)
  assert in_jax(out)[0] == cfg


@pytest.mark.parametrize(
    "change",
    [
        {},
        dict(qkv_bias=True, tied=False),
        dict(qk_norm=True, head_dim=10),
        dict(rope_factor=4.0, rope_context=16),
        dict(qk_norm=True, experts=4, experts_per_token=3, mlp=20),
    ],
)
def test_a_model_of_ours_is_loaded(change, tmp_path):
  cfg = dataclasses.replace(tiny.CFG, **change)
  params = decoder.init(cfg, jax.random.key(0))
  hf.save(tmp_path / "x", params, decoder.table(cfg), cfg, tokenizer=tiny.TOK)
  theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
      tmp_path / "x", output_loading_info=True
  )
  assert not any(info.values()), info
  tokens = np.random.default_rng(0).integers(0, 17, (2, 50)).astype(np.int32)
  with torch.no_grad():
    want = theirs(torch.tensor(tokens, dtype=torch.long)).logits.numpy()
  got = logits(params, cfg, tokens, np.zeros(2, np.int32))
  np.testing.assert_allclose(got, want, atol=1e-4)
  tok = transformers.AutoTokenizer.from_pretrained(tmp_path / "x")
  assert tok.encode("1+2=") == tiny.TOK.encode("1+2=")


def test_a_critic_is_a_token_classifier(tmp_path):
  cfg = critic.CriticConfig(tiny.CFG)
  table = critic.table(cfg)
  params = parameters.init_table(table, jax.random.key(0))
  params["value_head"]["bias"] += 0.3
  hf.save(tmp_path / "x", params, table, tiny.CFG)
  load = transformers.AutoModelForTokenClassification.from_pretrained
  theirs, info = load(tmp_path / "x", output_loading_info=True)
  assert not any(info.values()), info
  tokens = np.random.default_rng(0).integers(0, 17, (2, 50)).astype(np.int32)
  with torch.no_grad():
    want = theirs(torch.tensor(tokens, dtype=torch.long)).logits[..., 0].numpy()
  packed = padded.micro(tokens, np.zeros(2, np.int32), np.ones((2, 49), bool))
  got, _ = critic.values(params, cfg, packed)
  # Our value before token t is theirs after token t - 1.
  np.testing.assert_allclose(got, want[:, :-1], atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_a_sequence_classifier_scores_a_response(name, tmp_path):
  """Theirs is loaded and scores alike; saved again, it has the same bits."""
  theirs = build(name, "ForSequenceClassification", num_labels=1)
  theirs.save_pretrained(tmp_path / "x")

  def table(cfg):
    return critic.table(critic.CriticConfig(cfg))

  trunk, params = in_jax(tmp_path / "x", table)
  source = hf.find(str(tmp_path / "x"), table=table)
  head, out = hf.SEQUENCE_CLASSIFIER, tmp_path / "y"
  hf.save(out, params, table(trunk), trunk, head=head, source=source)
  again, info = type(theirs).from_pretrained(out, output_loading_info=True)
  assert not any(info.values()), info
  before = theirs.state_dict()
  assert all(torch.equal(x, before[k]) for k, x in again.state_dict().items())
  # A prompt in six slots and a response in eight, each with padding.
  rng = np.random.default_rng(0)
  prompts, responses = (6, 3, 1), (8, 5, 2)
  tokens_BL = np.zeros((3, 14), np.int32)
  mask_BT = np.arange(8) < np.array(responses)[:, None]
  wanted = []
  for b, (p, n) in enumerate(zip(prompts, responses, strict=True)):
    tokens_BL[b, 6 - p : 6 + n] = rng.integers(2, 59, p + n)
    text = torch.tensor(tokens_BL[b : b + 1, 6 - p : 6 + n], dtype=torch.long)
    with torch.no_grad():
      wanted.append(theirs(text).logits.item())
  start_B = 6 - np.array(prompts, np.int32)
  cfg = critic.CriticConfig(trunk)
  got = critic.scores(params, cfg, padded.micro(tokens_BL, start_B, mask_BT))
  assert np.ptp(wanted) > 0.1
  np.testing.assert_allclose(got, wanted, atol=1e-4)
