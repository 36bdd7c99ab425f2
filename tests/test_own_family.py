"""Families of models of the user: the example of docs/evaluation.md."""

import json
import re
import sys

import checkpoints
import jax
import numpy as np
import pytest
import safetensors.numpy
from conftest import ROOT

from configs import base
from rl_reason import hf
from rl_reason.base.errors import ConfigError
from rl_reason.checks import config_checks
from rl_reason.devices import device_mesh
from rl_reason.hf import architecture, tensor_names
from rl_reason.models import decoder

EXAMPLE = re.search(
    r'```python\n("""Families .*?)```',
    (ROOT / "docs" / "evaluation.md").read_text(),
    re.DOTALL,
)[1]
EXPERT = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


@pytest.fixture
def families(tmp_path, monkeypatch):
  """A user's directory with the printed file; the table is as it was after."""
  (tmp_path / "my_families.py").write_text(EXAMPLE)
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(str(tmp_path))
  monkeypatch.setattr(architecture, "FAMILIES", dict(architecture.FAMILIES))
  yield tmp_path
  for name in ("my_families", "made_families"):
    sys.modules.pop(name, None)


def config_with(path, family="my_families:TABLE"):
  c = base.get_config()
  c.task.name, c.model.path, c.model.family = "arithmetic", str(path), family
  return c


def mixtral(name: str) -> str:
  """The tensor of Mixtral that has this name in Qwen3-MoE."""
  for ours, theirs in EXPERT.items():
    name = re.sub(rf"mlp\.(experts\.\d+)\.{ours}", rf"mlp.\1.{theirs}", name)
  return name.replace("mlp.", "block_sparse_moe.")


def test_a_family_has_its_own_names_of_tensors(families):
  """The same numbers as of Qwen3-MoE without norms of q and k, and back."""
  fields = checkpoints.config_of(
      "qwen3_moe",
      model_type="mixtral",
      num_experts=...,
      moe_intermediate_size=...,
      norm_topk_prob=...,
      num_local_experts=4,
      intermediate_size=6,
  )
  named = checkpoints.weights_of(
      fields | dict(num_experts=4, moe_intermediate_size=6, model_type="llama")
  )
  place = checkpoints.write(
      families / "in", fields, {mixtral(k): x for k, x in named.items()}
  )
  with pytest.raises(ConfigError, match="'mixtral': must be one of"):
    hf.find(str(place))
  config_checks.fields(config_with(place))
  source = hf.find(str(place))
  cfg = source.cfg
  assert (cfg.experts, cfg.mlp, cfg.norm_topk, cfg.qk_norm) == (4, 6, 1, 0)
  table = decoder.table(cfg)
  params = hf.load(
      source, table, device_mesh.make_mesh(1, 1, 1, jax.devices()[:1])
  )
  gate = "model.layers.1.mlp.experts.2.gate_proj.weight"
  np.testing.assert_array_equal(params["layers"]["gate"][1, 2], named[gate].T)
  hf.save(families / "out", params, table, cfg, source=source)
  again = safetensors.numpy.load_file(families / "out" / "model.safetensors")
  assert again.keys() == {mixtral(x) for x in named}
  written = json.loads((families / "out" / "config.json").read_text())
  assert written["architectures"] == ["MixtralForCausalLM"]


def test_names_outside_of_layers():
  cfg = decoder.ModelConfig(
      **dict(vocab=8, layers=2, width=4, heads=1, kv_heads=1, head_dim=4, mlp=4)
  )
  found = tensor_names.placements(
      decoder.table(cfg),
      {"embed": "tok", "norm": "ln", "layers": "h.{}", "q": "attn.q"},
  )
  assert list(found)[0] == "tok.weight" and list(found)[-1] == "ln.weight"
  assert {"h.0.attn.q.weight", "h.1.self_attn.k_proj.weight"} <= found.keys()


@pytest.mark.parametrize(
    ("text", "family", "error"),
    [
        ("TABLE = 1", "made_families:TABLE", "must be a dict: model_type of"),
        ("TABLE = {'x': 1}", "made_families:TABLE", "must be a dict: model_t"),
        (
            f"{EXAMPLE}\nTABLE['llama'] = TABLE['mixtral']",
            "made_families:TABLE",
            "the package reads model_type 'llama' itself",
        ),
        ("", "made_families:TABLE", "has no TABLE"),
    ],
)
def test_mistakes_in_families(families, text, family, error):
  (families / "made_families.py").write_text(text)
  with pytest.raises(ConfigError, match=re.escape(error)):
    config_checks.fields(config_with("somebody/model", family))
  with pytest.raises(ConfigError, match="does nothing without model.path"):
    config_checks.fields(config_with(""))
