"""Checkpoints of transformers: read and written bit for bit; shapes."""

import dataclasses
import json

import checkpoints
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
import tiny
import transformers
from checkpoints import LLAMA3, bits, checkpoint, config_of, load, weights_of

from rl_reason import hf
from rl_reason.base.errors import ConfigError
from rl_reason.data import tokenizer
from rl_reason.devices import device_mesh
from rl_reason.hf import architecture, model_files
from rl_reason.models import critic, decoder, rope
from rl_reason.models.parameters import shardings


@pytest.fixture(scope="module")
def mesh():
  return device_mesh.make_mesh(2, 2, 2)


def read_json(path):
  return json.loads(path.read_text())


# --- weights -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "dtype", "shards"),
    [
        ("qwen2", jnp.bfloat16, 3),
        ("qwen3", np.float32, 2),
        ("llama", np.float16, 1),
        ("llama-5", jnp.bfloat16, 1),
        ("mistral", np.float32, 1),
        ("qwen3_moe", jnp.bfloat16, 2),
    ],
)
def test_the_round_trip_is_bit_exact(kind, dtype, shards, tmp_path, mesh):
  path, out = checkpoint(tmp_path / "in", kind, dtype, shards), tmp_path / "out"
  source, params = load(path, mesh if shards > 1 else None)
  assert all(x.dtype == np.float32 for x in jax.tree.leaves(params))
  table = decoder.table(source.cfg)
  hf.save(
      out, params, table, source.cfg, source=source, shard_bytes=4000 * shards
  )
  assert bits(out) == bits(path)
  written = sorted(out.glob("*.safetensors"))
  index = read_json(out / model_files.INDEX)
  weight_map = index["weight_map"]
  assert len(written) > 1
  for file in written:
    with safetensors.safe_open(file, "np") as f:
      assert f.metadata() == {"format": "pt"}
      assert {weight_map[name] for name in f.keys()} == {file.name}
  size = sum(len(data) for _, _, data in bits(path).values())
  assert index["metadata"]["total_size"] == size
  before, after = (read_json(x / "config.json") for x in (path, out))
  for name in before.keys() - {"rope_scaling", "rope_parameters"}:
    assert after[name] == before[name]
  again = hf.find(str(out))
  assert again.cfg == source.cfg and again.context == source.context


def test_parameters_are_transposed_and_stacked_tensors(tmp_path, mesh):
  path = checkpoint(tmp_path, "llama", np.float32, 2)  # its q is square
  weights = weights_of(config_of("llama"))
  source, params = load(path, mesh)
  where = shardings(decoder.table(source.cfg), mesh)
  assert [x.sharding for x in jax.tree.leaves(params)] == jax.tree.leaves(where)
  for ours, theirs in dict(q="self_attn.q_proj", down="mlp.down_proj").items():
    rows = [weights[f"model.layers.{i}.{theirs}.weight"].T for i in range(3)]
    np.testing.assert_array_equal(params["layers"][ours], np.stack(rows))
  np.testing.assert_array_equal(params["head"], weights["lm_head.weight"].T)
  np.testing.assert_array_equal(
      params["embed"], weights["model.embed_tokens.weight"]
  )


def test_each_device_reads_only_its_shard(tmp_path, mesh, monkeypatch):
  path = checkpoint(tmp_path, "llama")
  reads, make = [], jax.make_array_from_callback

  def recording(shape, where, callback):
    def read(index):
      part = callback(index)
      reads.append((shape, part.shape))
      return part

    return make(shape, where, read)

  monkeypatch.setattr(jax, "make_array_from_callback", recording)
  load(path, mesh)
  matrices = [x for x in reads if len(x[0]) == 2]
  assert matrices
  for shape, part in matrices:
    assert part[0] * 2 == shape[0] and part[1] * 2 == shape[1]


def test_a_tied_head_may_be_stored_twice(tmp_path):
  config = config_of("qwen2")
  weights = weights_of(config)
  weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()
  path = checkpoints.write(tmp_path / "in", config, weights)
  source, params = load(path)
  assert "head" not in params
  table = decoder.table(source.cfg)
  hf.save(tmp_path / "out", params, table, source.cfg, source=source)
  assert bits(tmp_path / "out") == bits(path)
  weights["lm_head.weight"][0, 0] += 1
  checkpoints.write(path, config, weights)
  with pytest.raises(ConfigError, match="tie_word_embeddings = True: lm_head"):
    hf.find(str(path))


def test_buffers_of_old_checkpoints_are_ignored(tmp_path):
  config, name = config_of("llama"), "model.layers.0.self_attn.rotary_emb.inv"
  buffer = {f"{name}_freq": np.ones(3, np.float32)}
  path = checkpoints.write(tmp_path, config, weights_of(config) | buffer)
  assert not buffer.keys() & hf.find(str(path)).tensors.keys()


def test_weights_that_overflow_the_dtype_are_not_written(tmp_path):
  source, params = load(checkpoint(tmp_path / "in", "mistral", np.float16))
  params["norm"] = params["norm"].at[0].set(1e5)
  table, out = decoder.table(source.cfg), tmp_path / "out"
  out.mkdir()
  with pytest.raises(ConfigError, match="model.norm.weight .* in float16"):
    hf.save(out, params, table, source.cfg, source=source)
  assert not list(out.iterdir())  # unfinished files are elsewhere


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (dict(qkv_bias=True), "qwen2"),
        (dict(qkv_bias=True, o_bias=True, mlp_bias=True), "llama"),
        (dict(qk_norm=True, head_dim=6), "qwen3"),
        (dict(width=30, tied=False), "mistral"),  # no multiple of the heads
        (dict(rope_factor=4.0, rope_context=32, rope_theta=5e5), "llama"),
    ],
)
def test_a_model_of_ours_is_saved_and_loaded(change, kind, tmp_path):
  cfg, path = dataclasses.replace(tiny.CFG, **change), tmp_path / "x"
  table = decoder.table(cfg)
  params = checkpoints.random_params(table)
  hf.save(path, params, table, cfg, tokenizer=tiny.TOK, card="a card")
  source, again = load(path)
  assert source.config["model_type"] == kind
  assert architecture.fields(source.cfg) == architecture.fields(cfg)
  jax.tree.map(np.testing.assert_array_equal, params, again)
  tok = tokenizer.load(str(path), tiny.TASK.ALPHABET)
  assert tok.get_vocab() == tiny.TOK.get_vocab()
  eos = read_json(path / "generation_config.json")["eos_token_id"]
  assert eos == source.config["eos_token_id"] == 1
  fields = read_json(path / "tokenizer_config.json")
  assert fields["tokenizer_class"] == "PreTrainedTokenizerFast"
  assert (path / "README.md").read_text() == "a card"


@pytest.mark.parametrize(
    ("before", "stop_ids", "after"),
    [
        (dict(eos_token_id=1), (1,), 1),
        (dict(eos_token_id=1, top_k=5), (1, 7), [1, 7]),
        (dict(eos_token_id=[5, 1]), (1, 7), [1, 7, 5]),
        (dict(eos_token_id=[5, 1]), (1,), [5, 1]),
        (dict(top_k=5), (1,), 1),
        (None, (1, 7), [1, 7]),
    ],
)
def test_an_export_stops_where_the_run_stopped(
    before, stop_ids, after, tmp_path
):
  table = decoder.table(tiny.CFG)
  params = checkpoints.random_params(table)
  hf.save(tmp_path / "x", params, table, tiny.CFG, tokenizer=tiny.TOK)
  config = tmp_path / "x" / "generation_config.json"
  config.unlink()
  if before:
    config.write_text(json.dumps(before))
  source, _ = load(tmp_path / "x")
  out = tmp_path / "out"
  hf.save(out, params, table, tiny.CFG, source=source, stop_ids=stop_ids)
  found = read_json(out / "generation_config.json")
  assert found == (before or {}) | dict(eos_token_id=after)
  read = transformers.GenerationConfig.from_pretrained(out)
  assert read.eos_token_id == after
  strings = ["\nQuestion:", "</answer>"]
  ends = dict(stop_ids=stop_ids, stop_strings=strings)
  hf.save(out, params, table, tiny.CFG, source=source, **ends)
  read = transformers.GenerationConfig.from_pretrained(out)
  assert (read.eos_token_id, read.stop_strings) == (after, strings)


def test_a_shape_that_no_family_has_is_not_written(tmp_path):
  cfg = dataclasses.replace(tiny.CFG, qk_norm=True, qkv_bias=True)
  with pytest.raises(ConfigError, match="model.qk_norm = True: none of llama"):
    hf.save(tmp_path / "x", None, decoder.table(cfg), cfg)


@pytest.mark.parametrize(
    ("head", "outputs"), [("scalar", 1), ("gated", 3), ("categorical", 5)]
)
def test_a_critic_is_a_token_classifier(head, outputs, tmp_path):
  def table(cfg):
    return critic.table(critic.CriticConfig(cfg, head, heads=3, bins=5))

  params = checkpoints.random_params(table(tiny.CFG))
  hf.save(tmp_path / "x", params, table(tiny.CFG), tiny.CFG)
  source, again = load(tmp_path / "x", table=table)
  jax.tree.map(np.testing.assert_array_equal, params, again)
  assert source.config["architectures"] == ["LlamaForTokenClassification"]
  assert len(source.config["id2label"]) == outputs
  with pytest.raises(ConfigError, match="must be .'LlamaForCausalLM'"):
    hf.find(str(tmp_path / "x"))


# --- config.json -------------------------------------------------------------


def test_the_shape_is_that_of_config_json():
  assert architecture.read(config_of("llama")) == decoder.ModelConfig(
      vocab=40,
      layers=3,
      width=24,
      heads=4,
      kv_heads=2,
      head_dim=6,
      mlp=20,
      rope_theta=5e5,
      rope_factor=8.0,
      rope_low=1.0,
      rope_high=4.0,
      rope_context=64,
      qkv_bias=True,
      o_bias=True,
      mlp_bias=True,
      tied=False,
  )
  assert architecture.read(config_of("qwen3", head_dim=...)).head_dim == 128
  five = architecture.read(config_of("llama-5", model_type="llama"))
  assert five.rope_theta == 5e5 and five.rope_factor == 8 and not five.qkv_bias
  assert architecture.read(config_of("mistral")).kv_heads == 4


def test_llama3_frequencies_by_hand():
  cfg = architecture.read(config_of("llama", head_dim=8))
  plain = [5e5 ** (-i / 4) for i in range(4)]
  # In 64 tokens: 10.19, 0.38, 0.014 and 0.0005 turns. The first frequency
  # stays; the others, below one turn, are divided by 8.
  np.testing.assert_allclose(
      rope.frequencies(cfg), [plain[0]] + [x / 8 for x in plain[1:]]
  )
  cfg = dataclasses.replace(cfg, rope_context=512)
  turns = 512 * plain[1] / (2 * np.pi)  # 3.06, between 1 and 4: interpolated
  share = (turns - 1) / 3
  expected = share * plain[1] + (1 - share) * plain[1] / 8
  np.testing.assert_allclose(rope.frequencies(cfg)[1], expected)


def yarn(**change):
  """As Qwen2.5's instructions for long texts add it to config.json."""
  scaling = dict(type="yarn", factor=4.0, original_max_position_embeddings=64)
  scaling = scaling | change
  return dict(rope_scaling={k: x for k, x in scaling.items() if x is not ...})


def test_yarn_frequencies_by_hand():
  cfg = architecture.read(config_of("llama", head_dim=8, **yarn()))
  # The indices of 32 and of 1 rotation in 64 tokens, of base 5e5, are -0.35 and
  # 0.71; rounded and clipped, 0 and 1: the first frequency stays, the others
  # are divided by 4. Queries and keys are multiplied by 0.1 ln 4 + 1.
  plain = [5e5 ** (-i / 4) for i in range(4)]
  np.testing.assert_allclose(
      rope.frequencies(cfg), [plain[0]] + [x / 4 for x in plain[1:]]
  )
  assert cfg.rope_scale == pytest.approx(1.138629, abs=1e-6)
  cfg = dataclasses.replace(cfg, rope_low=0.01, rope_truncate=False)
  # Without rounding, from 0 to 2.1113: the share is 1 - 1/2.1113.
  share = 1 - 1 / 2.111259
  np.testing.assert_allclose(
      rope.frequencies(cfg)[1], plain[1] * (share + (1 - share) / 4), rtol=1e-6
  )


def test_linear_and_dynamic_frequencies_by_hand():
  def of(kind):
    change = dict(head_dim=8, rope_scaling=dict(type=kind, factor=2))
    return architecture.read(config_of("llama", **change))

  plain = np.array([5e5 ** (-i / 4) for i in range(4)])
  np.testing.assert_allclose(rope.frequencies(of("linear")), plain / 2)
  np.testing.assert_allclose(rope.frequencies(of("dynamic")), plain)


@pytest.mark.parametrize(
    ("change", "scale"),
    [
        (yarn(attention_factor=0.5), 0.5),
        (yarn(attention_factor=None), 1.138629),
        (yarn(factor=None), 1.069315),  # 128 positions of 64: 2
        (yarn(mscale=0.707, mscale_all_dim=1.0), 0.964327),
        (yarn(mscale=1.0, mscale_all_dim=0), 1.138629),
    ],
)
def test_the_attention_factor_of_yarn(change, scale):
  cfg = architecture.read(config_of("qwen2", **change))
  assert cfg.rope_scale == pytest.approx(scale, abs=1e-6)
  fields = architecture.rope_fields(cfg)  # an export says the same
  again = architecture.read(config_of("qwen2") | fields)
  assert again == cfg


WINDOW = dict(sliding_window=16, use_sliding_window=True)


@pytest.mark.parametrize(
    ("kind", "change", "tokens"),
    [
        ("llama", dict(sliding_window=16), 128),
        ("mistral", dict(sliding_window=16), 16),
        ("mistral", dict(sliding_window=4096), 128),
        ("qwen2", WINDOW | dict(use_sliding_window=False), 128),
        ("qwen2", WINDOW, 16),
        ("qwen3", WINDOW | dict(max_position_embeddings=8), 8),
        ("qwen2", yarn(), 256),
        ("qwen2", yarn(original_max_position_embeddings=...), 512),
        # Beside the scaling, as of Phi; transformers prefers this place.
        ("llama", yarn() | dict(original_max_position_embeddings=48), 192),
        ("qwen2", dict(rope_scaling=dict(type="linear", factor=4.0)), 128),
        ("qwen2", dict(rope_scaling=dict(type="dynamic", factor=4.0)), 128),
    ],
)
def test_the_context_ends_where_a_sliding_window_hides_tokens(
    kind, change, tokens
):
  assert architecture.context(config_of(kind, **change)) == tokens


def scaled(**change):
  return dict(rope_scaling=LLAMA3 | change)


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
  """A checkpoint of each family."""
  path = tmp_path_factory.mktemp("intact")
  return {kind: checkpoint(path / kind, kind) for kind in checkpoints.CONFIGS}


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("llama", dict(model_type="gemma2"), "model_type = 'gemma2': must be"),
        ("llama", dict(architectures=["LlamaModel"]), "architectures = "),
        ("llama", dict(hidden_act="gelu" * 1000), "hidden_act = 'gelugelu"),
        ("llama", dict(partial_rotary_factor=0.5), "partial_rotary_factor"),
        ("llama", dict(quantization_config={"bits": 4}), "quantization_config"),
        ("llama", dict(auto_map={"AutoModel": "x.Y"}), "auto_map"),
        ("llama", dict(hidden_size="24"), "hidden_size = '24': must be a whol"),
        ("llama", dict(hidden_size=...), "hidden_size = None: must be a whole"),
        ("llama", dict(num_hidden_layers=0), "num_hidden_layers = 0"),
        ("llama", dict(vocab_size=2**70), "must be a whole number"),
        ("llama", dict(num_key_value_heads=3), "num_key_value_heads = 3"),
        ("llama", dict(head_dim=7), "head_dim = 7: must be even"),
        ("llama", dict(hidden_size=26), "num_attention_heads = 4: must divide"),
        ("llama", dict(rms_norm_eps="small"), "rms_norm_eps = 'small'"),
        ("llama", dict(tie_word_embeddings="no"), "tie_word_embeddings = 'no'"),
        ("llama", dict(rope_theta=10**400), "must be 1 or more"),
        ("llama", dict(rope_scaling="llama3"), "rope_scaling = 'llama3'"),
        ("llama-5", dict(rope_parameters=0), "rope_parameters = 0: must be"),
        ("llama", scaled(rope_type="longrope"), "rope_type = 'longrope': must"),
        ("llama", yarn(beta_fast=0.5), "beta_slow = 1.0: must be below beta_f"),
        ("llama", yarn(truncate="no"), "rope_scaling.truncate = 'no': must be"),
        ("llama", yarn(factor=-2), "rope_scaling.factor = -2: must be a numbe"),
        ("llama", yarn(mscale=[1]), "rope_scaling.mscale = [1]: must be a num"),
        ("llama", scaled(factor="8"), "rope_scaling.factor = '8'"),
        ("llama", scaled(low_freq_factor=4.0), "must be below high_freq_facto"),
        ("llama", scaled(mrope_section=[1]), "rope_scaling.mrope_section"),
        ("mistral", dict(sliding_window=-1), "sliding_window = -1"),
        (
            "qwen3_moe",
            dict(num_experts_per_tok=5),
            "not exceed num_experts = 4",
        ),
        (
            "qwen3_moe",
            dict(mlp_only_layers=[0]),
            "mlp_only_layers = [0]: is no",
        ),
        (
            "qwen3_moe",
            dict(num_experts=2**40),
            "num_hidden_layers x num_expert",
        ),
        # config.json contradicts the tensors.
        ("qwen2", dict(num_hidden_layers=2**40), "only 38 tensors"),
        ("llama", dict(attention_bias=False), "bias is not a tensor of this"),
        ("qwen2", dict(tie_word_embeddings=False), "lm_head.weight is missing"),
        ("qwen2", dict(vocab_size=41), "embed_tokens.weight has shape [40, 2"),
        ("qwen2", dict(num_hidden_layers=2), "model.layers.2."),
        ("qwen2", dict(num_hidden_layers=4), "model.layers.3."),
        ("qwen2", dict(head_dim=8), "and config.json requires ["),
    ],
)
def test_unsupported_fields_are_named(kind, change, words, tmp_path, intact):
  path = tmp_path / "x"
  path.mkdir()
  (path / model_files.SINGLE).symlink_to(intact[kind] / model_files.SINGLE)
  fields = config_of(kind, **dict(model_type=kind.split("-")[0]) | change)
  (path / "config.json").write_text(json.dumps(fields))
  with pytest.raises(ConfigError) as e:
    hf.find(str(path))
  text = str(e.value)
  assert text.startswith(f"model.path = {str(path)!r}: ")
  assert words in text and "\n" not in text and len(text) < 1500
