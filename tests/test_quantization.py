"""Exports in bfloat16, int8 and int4: numbers by hand, files, refusals."""

import dataclasses
import json

import checkpoints
import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import safetensors.numpy
import tiny
import tiny_session
from checkpoints import checkpoint, load
from hypothesis import given, settings, strategies as st

from rl_reason import hf
from rl_reason.base import config
from rl_reason.base.errors import ConfigError
from rl_reason.checks import machine_checks
from rl_reason.devices import device_mesh
from rl_reason.hf import quantization
from rl_reason.hf.quantization import Scheme
from rl_reason.models import decoder
from rl_reason.stages import evaluate, export, lower_precision

SIZES = dict(hidden_size=64, intermediate_size=96, head_dim=16)
MIXTURE = SIZES | dict(moe_intermediate_size=32)


def test_values_and_bits_by_hand():
  """Two groups of one output: a scale of 7.5 / 7.5 = 1, and of 15 / 7.5 = 2."""
  w_OI = np.array([[7.5, -7.5, 0.4, -1, 15, 3.2, -15, -0.9]], np.float32)
  values, scale = quantization.quantize(w_OI, Scheme(4, 4))
  # 7.5 and -7.5 are ties, which go to even; 8 is beyond the range.
  np.testing.assert_array_equal(values, [[7, -8, 0, -1, 7, 2, -8, 0]])
  assert values.dtype == np.int8 and scale.dtype == jnp.bfloat16
  np.testing.assert_array_equal(scale, np.array([[1, 2]], scale.dtype))
  np.testing.assert_array_equal(
      quantization.dequantize(values, scale), [[7, -8, 0, -1, 14, 4, -16, 0]]
  )
  # The first value is in the lowest four bits, and 8 is zero.
  packed = quantization.pack(values, 4)
  assert packed.dtype == np.int32 and packed.view(np.uint32) == 0x80AF780F
  # Eight bits: one scale of 15 / 127.5, in bfloat16 1.8828125 / 16: the largest
  # weights are 127.47 steps. 128 is zero.
  values, scale = quantization.quantize(w_OI, Scheme(8))
  assert scale.shape == (1, 1) and scale[0, 0] == 1.8828125 / 16
  np.testing.assert_array_equal(values, [[64, -64, 3, -8, 127, 27, -127, -8]])
  packed = quantization.pack(values[:, :6], 8)
  np.testing.assert_array_equal(
      packed.view(np.uint8), [[192, 64, 131, 120, 255, 155, 0, 0]]
  )


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([Scheme(8), Scheme(4, 32), Scheme(4, 128)]),
    st.floats(-20, 20),
)
@settings(max_examples=40, deadline=None)
def test_no_weight_moves_by_more_than_half_a_step(seed, scheme, exponent):
  """Apart from what is clipped, by 0.4% more since scales are rounded."""
  rng = np.random.default_rng(seed)
  w_OI = rng.standard_t(3, (3, 256)).astype(np.float32) * 2.0**exponent
  w_OI[1, :128] = 0
  with np.errstate(invalid="raise", divide="raise"):
    values, scale = quantization.quantize(w_OI, scheme)
  error = np.abs(quantization.dequantize(values, scale) - w_OI)
  assert not error[1, :128].any()
  step = np.repeat(scale.astype(np.float32), 256 // scale.shape[1], 1)
  bound = 0.5 + 2.0 ** (scheme.bits - 1) * 2**-8
  assert (error <= step * bound).all()
  inside = np.abs(w_OI) <= step * (2 ** (scheme.bits - 1) - 1)
  assert (error[inside] <= step[inside] * 0.5001).all()


def unpacked(path):
  """The weights of a directory in float32, by bits and scales alone."""
  files = [safetensors.numpy.load_file(x) for x in path.glob("*.safetensors")]
  tensors = {name: x for file in files for name, x in file.items()}
  fields = json.loads((path / "config.json").read_text())
  found = fields.get("quantization_config")
  bits = (
      found["config_groups"]["group_0"]["weights"]["num_bits"] if found else 0
  )
  out = {}
  for name, x in tensors.items():
    matrix, mark, part = name.rpartition("_")
    if not (mark and part in ("packed", "scale", "shape")):
      assert x.dtype == jnp.bfloat16, name
      out[name] = x.astype(np.float32)
    elif part == "packed":
      outputs, inputs = tensors[matrix + "_shape"]
      shifts = np.arange(0, 32, bits)
      values = x.view(np.uint32)[:, :, None] >> shifts & (2**bits - 1)
      values = values.reshape(outputs, -1)[:, :inputs].astype(np.int64)
      values -= 2 ** (bits - 1)
      scale = tensors[matrix + "_scale"].astype(np.float32)
      scale = np.repeat(scale, inputs // scale.shape[1], 1)
      out[matrix] = values.astype(np.float32) * scale
  return out, fields


def stacked(tensors, cfg):
  """Parameters of the decoder with the weights of tensors."""
  table = decoder.table(cfg)
  leaves = [np.full(x.shape, np.nan, np.float32) for x in rows(table)]
  for name, place in hf.saving.placements(table).items():
    x = tensors.pop(name)
    leaves[place.param][place.at] = x.T if place.transposed else x
  assert not tensors
  treedef = jax.tree.structure(table, is_leaf=lambda x: hasattr(x, "axes"))
  return treedef.unflatten(leaves)


def rows(table):
  return jax.tree.leaves(table, is_leaf=lambda x: hasattr(x, "axes"))


@pytest.mark.parametrize(
    ("kind", "sizes", "precision", "group"),
    [
        ("qwen2", SIZES, "bfloat16", None),
        ("qwen2", {}, "int8", None),  # 20 inputs: two values are in no word
        ("llama", SIZES, "int4", 32),
        ("qwen3", dict(SIZES, intermediate_size=128), "int4", 64),
        ("qwen3_moe", MIXTURE, "int4", 32),
    ],
)
def test_a_file_has_the_weights_that_are_evaluated(
    kind, sizes, precision, group, tmp_path
):
  """Unpacked in NumPy they equal, bit for bit, those that JAX rounds."""
  path = checkpoint(tmp_path / "in", kind, torch_dtype="float32", **sizes)
  source, params = load(path)
  cfg, out = source.cfg, tmp_path / "out"
  table = decoder.table(cfg)
  hf.save(
      *(out, params, table, cfg),
      source=source,
      precision=precision,
      shard_bytes=9_000,
  )
  tensors, fields = unpacked(out)
  program = jax.jit(quantization.rounded, static_argnums=(1, 2))
  want = program(params, cfg, precision)
  got = stacked(tensors, cfg)
  jax.tree.map(np.testing.assert_array_equal, got, want)
  assert fields["dtype"] == fields["torch_dtype"] == "bfloat16"
  index = json.loads((out / "model.safetensors.index.json").read_text())
  data = sum(
      x.nbytes
      for file in out.glob("*.safetensors")
      for x in safetensors.numpy.load_file(file).values()
  )
  assert index["metadata"]["total_size"] == data
  if precision == "bfloat16":
    assert "quantization_config" not in fields
    assert hf.find(str(out)).cfg == cfg
    return
  found = fields["quantization_config"]
  weights = found["config_groups"]["group_0"]["weights"]
  assert found["ignore"] == ["lm_head", r"re:.*mlp\.gate$"]
  assert weights["group_size"] == group
  assert weights["strategy"] == ("group" if group else "channel")
  names = set(index["weight_map"])
  routers = {x for x in names if x.endswith("mlp.gate.weight")}
  assert len(routers) == cfg.layers * (kind == "qwen3_moe")
  assert "model.embed_tokens.weight" in names
  with pytest.raises(
      ConfigError, match="quantization_config = 'compressed-.*before quant"
  ):
    hf.find(str(out))


def test_a_shape_without_groups_is_refused():
  c = tiny_session.tiny_config()
  c.export.precision = "int4"
  c.model.update(width=64, heads=2, head_dim=24, mlp=128)
  words = "export.precision = 'int4': .* model.heads .* = 48; 'int8' has no gro"
  with pytest.raises(ConfigError, match=words):
    machine_checks.devices(c, 1)
  c.export.precision = "int8"
  machine_checks.devices(c, 1)
  cfg = dataclasses.replace(tiny.CFG, width=48)
  with pytest.raises(ConfigError, match="model.width = 48"):
    hf.save(None, None, decoder.table(cfg), cfg, precision="int4")


def lines(count, step=3):
  """Lines of samples.jsonl; those of the last step are the newest."""
  texts = [
      dict(prompt=f"{b}+{b}=", response=f"{2 * b}", truncated=b % 3 == 0)
      for b in range(1, count + 1)
  ]
  return [dict(stage="rl", step=step, **x) for x in texts]


@pytest.mark.slow
def test_the_cost_is_that_of_the_weights_in_the_file(tmp_path, monkeypatch):
  """An export says it, and the tokens are those of the newest responses."""
  session = tiny_session.make_session(
      tmp_path / "run", export__precision="int8"
  )
  params = tiny_session.random_params(session)
  said = []
  monkeypatch.setattr(session.display, "say", said.append)
  monkeypatch.setattr(
      export.trained_parameters,
      "policy",
      lambda *_, **__: (params, None, 3, "the policy"),
  )
  monkeypatch.setattr(lower_precision, "RESPONSES", 6)
  text = tiny_session.call(lower_precision.cost, session, None)
  assert "has logged no responses" in text
  assert "--config.export.precision=int8 measures" in text
  old = [dict(x, response="9" * 9) for x in lines(9)]
  other = [dict(stage="doubtful", step=3, response="no prompt")]
  (tmp_path / "run" / "samples.jsonl").write_text(
      "".join(json.dumps(x) + "\n" for x in old + lines(6) + other)
  )
  rounded = quantization.rounded(params, session.cfg, "int8")
  tok, limits = session.tok, session.config.rollout
  sampled = lower_precision.responses(
      tmp_path / "run" / "samples.jsonl", tok, limits, 4
  )
  np.testing.assert_array_equal(sampled.lengths_B, [2, 2, 1, 2, 3, 2, 0, 0])
  row = sampled.tokens_BL[4]
  assert tok.decode(row[sampled.start_B[4] : limits.max_prompt]) == "5+5="
  assert row[limits.max_prompt + 2] == tok.eos_token_id
  before, after = (
      padded.response_logps(
          x,
          session.cfg,
          sampled.tokens_BL,
          sampled.start_B,
          limits.max_tokens,
      )[0][sampled.mask_BT]
      for x in (params, rounded)
  )
  ratio = after - before
  gap, divergence = np.abs(ratio).mean(), (np.exp(ratio) - 1 - ratio).mean()
  with jax.set_mesh(session.mesh):
    tiny_session.call(export.run, session, "newest")
  path = tmp_path / "run" / "export" / "policy-int8"
  assert said[0] == f"the policy written to {path}"
  assert gap > 1e-4
  assert said[-1].startswith(
      "int8 changes the log-probs of 12 tokens of the run's 6 newest responses"
      f" by {gap:.2g} nats on average (KL {divergence:.2g} nats per token)"
  )
  card = (path / "README.md").read_text()
  assert "The weights are in int8" in card and '"int8"' in card
  assert params["layers"]["q"].is_deleted()  # not twice in memory


@pytest.mark.slow
def test_an_evaluation_has_the_weights_of_the_export(tmp_path, monkeypatch):
  changes = dict(sft__steps=0, sft__habits__steps=0, rl__steps=1)
  source = checkpoints.with_tokenizer(checkpoint(tmp_path / "x", **SIZES))
  session = tiny_session.make_session(
      tmp_path / "run",
      model__path=str(source),
      export__precision="int4",
      **changes,
  )
  _, params = load(source)
  want = quantization.rounded(params, session.cfg, "int4")
  found, plain = [], evaluate.evaluate

  def record(c, session, params, *args, **keywords):
    found.append(params)
    return plain(c, session, params, *args, **keywords)

  monkeypatch.setattr(evaluate, "evaluate", record)
  fields = config.flat(session.config)
  del fields["export.precision"]  # of a run that is older than the field
  (tmp_path / "run" / "config.json").write_text(json.dumps(fields))
  with jax.set_mesh(session.mesh):
    tiny_session.call(evaluate.run, session, "newest")
  jax.tree.map(np.testing.assert_array_equal, found[0], want)
  name = "evaluation-newest,export.precision=int4.json"
  assert (tmp_path / "run" / name).exists()


@pytest.mark.slow
def test_eight_devices_write_the_same_bits_at_the_same_cost(
    tmp_path, monkeypatch
):
  found = {}
  for name, mesh in dict(
      one=None, eight=device_mesh.make_mesh(2, 2, 2)
  ).items():
    c, workdir = tiny_session.tiny_config(), tmp_path / name
    c.model.update(width=64, heads=2, head_dim=32, mlp=64)
    session = tiny_session.make_session(
        workdir, c, mesh, export__precision="int4"
    )
    text = "".join(json.dumps(x) + "\n" for x in lines(7))
    (workdir / "samples.jsonl").write_text(text)
    policy = tiny_session.random_params(session), None, 3, "the policy"
    monkeypatch.setattr(
        export.trained_parameters, "policy", lambda *_, x=policy, **__: x
    )
    said = []
    monkeypatch.setattr(session.display, "say", said.append)
    with jax.set_mesh(session.mesh):
      tiny_session.call(export.run, session, "newest")
    found[name] = unpacked(workdir / "export" / "policy-int4")[0], said[-1]
  (one, cost), (eight, of_eight) = found.values()
  assert cost == of_eight and "15 tokens of the run's 7 newest" in cost
  jax.tree.map(np.testing.assert_array_equal, one, eight)
