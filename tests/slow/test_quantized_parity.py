"""Exports in bfloat16, int8 and int4, read by transformers.

Those in int8 and int4 also by compressed-tensors.

Needs the extra `parity`; skipped without it.
"""

import checkpoints
import jax
import numpy as np
import padded
import pytest
import safetensors.numpy
from test_parity import in_jax
from test_quantization import MIXTURE, SIZES

from rl_reason import hf
from rl_reason.hf import quantization
from rl_reason.models import decoder

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("compressed_tensors")

KINDS = {
    "qwen2": SIZES,  # tied
    "llama": SIZES,
    "qwen3": SIZES | dict(intermediate_size=128),  # groups of 64
    "mistral": dict(  # groups of 128
        hidden_size=128,
        intermediate_size=256,
        head_dim=32,
        num_key_value_heads=2,
    ),
    "qwen3_moe": MIXTURE,
}


QUANTIZED = [(k, p) for k in KINDS for p in quantization.BITS]


@pytest.fixture
def exported(request, tmp_path):
  """The directory of an export, the policy and its shape, and the precision."""
  kind, precision = request.param
  path = checkpoints.checkpoint(tmp_path / "in", kind, **KINDS[kind])
  cfg, params = in_jax(path)
  source, out = hf.find(str(path)), tmp_path / "out"
  hf.save(
      *(out, params, decoder.table(cfg), cfg),
      source=source,
      precision=precision,
      shard_bytes=60_000,
  )
  return out, params, cfg, precision


@pytest.mark.parametrize(
    "exported", [*QUANTIZED, *((k, "bfloat16") for k in KINDS)], indirect=True
)
def test_logits_are_those_of_the_rounded_policy(exported):
  out, params, cfg, precision = exported
  theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
      out, dtype=torch.float32, output_loading_info=True
  )
  assert not any(info.values()), info
  tokens_BL = np.random.default_rng(0).integers(2, cfg.vocab, (2, 40))
  with torch.no_grad():
    got = theirs(torch.tensor(tokens_BL)).logits.numpy()

  def logits(params):
    hidden = padded.hidden(params, cfg, tokens_BL, np.zeros(2, np.int32))
    return np.asarray(decoder.logits(params, cfg, hidden))

  want = logits(quantization.rounded(params, cfg, precision))
  # transformers rounds the weights of experts to bfloat16 once more.
  np.testing.assert_allclose(got, want, atol=0.03 if cfg.experts else 1e-5)
  assert np.abs(want - logits(params)).max() > 1e-3 * np.abs(want).max()


@pytest.mark.parametrize("exported", QUANTIZED, indirect=True)
def test_the_library_packs_the_same_bits(exported):
  """Scales, values and words: those of its observers and its compressor."""
  from compressed_tensors.compressors import BaseCompressor
  from compressed_tensors.quantization import QuantizationConfig
  from compressed_tensors.quantization.utils import calculate_qparams

  out, params, cfg, precision = exported
  found = QuantizationConfig.model_validate(
      quantization.config(quantization.scheme(cfg, precision))
  )
  scheme = found.config_groups["group_0"]
  compressor = BaseCompressor.get_value_from_registry(found.format)
  files = [safetensors.numpy.load_file(x) for x in out.glob("*.safetensors")]
  tensors = {name: x for file in files for name, x in file.items()}
  checked = 0
  for name, place in hf.saving.placements(decoder.table(cfg)).items():
    if not name.endswith(quantization.MATRIX):
      continue
    x = np.asarray(jax.tree.leaves(params)[place.param][place.at]).T
    w_OI = torch.tensor(np.ascontiguousarray(x))
    groups = w_OI.reshape(
        len(w_OI), -1, scheme.weights.group_size or x.shape[1]
    )
    bounds = groups.amin(-1), groups.amax(-1)
    scale, _ = calculate_qparams(*bounds, scheme.weights)
    scale = scale.bfloat16().float()
    parts = compressor.compress(dict(weight=w_OI, weight_scale=scale), scheme)
    np.testing.assert_array_equal(
        tensors[f"{name}_scale"].astype(np.float32), scale.numpy()
    )
    for part in ("packed", "shape"):
      np.testing.assert_array_equal(
          tensors[f"{name}_{part}"], parts[f"weight_{part}"].numpy()
      )
    checked += 1
  assert checked == cfg.layers * (4 + 3 * max(cfg.experts, 1))
