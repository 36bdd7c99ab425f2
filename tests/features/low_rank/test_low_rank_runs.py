"""Runs with LoRA: resumed to the same bits, saved, exported, and refused."""

import json

import jax
import numpy as np
import padded
import pytest
import test_low_rank
import tiny
import tiny_session
from conftest import restore_arrays
from test_quantization import stacked, unpacked
from tiny_session import call, half_correct  # noqa: F401, fixtures

from rl_reason import hf
from rl_reason.base.errors import RunError
from rl_reason.hf import quantization
from rl_reason.models import decoder, linear
from rl_reason.stages import export, rl, sft, trained_parameters

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("half_correct"),
]


def train(workdir, steps=2):
  c = tiny_session.tiny_config()
  c.lora.rank = 2
  c.kl.update(kind="k3", coef=0.1)
  c.rollout.weights = "int8"
  c.correction.name = "truncate"
  c.rl.steps = steps
  session = tiny_session.make_session(workdir, c)
  with jax.set_mesh(session.mesh):
    sft_params = call(sft.run, session)
    params = call(rl.train, session, sft_params)
  session.log.close()
  return session, sft_params, params


def test_a_run_resumes_to_the_same_bits(tmp_path):
  """In two parts as in one; then its metrics, checkpoint and export."""
  *_, want = train(tmp_path / "whole")
  train(tmp_path / "parts", steps=1)
  session, sft_params, got = train(tmp_path / "parts")
  assert tiny_session.digest(got) == tiny_session.digest(want)
  assert np.asarray(want["layers"]["v"].b).any()

  # At step 1 the KL to the base is that of the initial factors: 0.
  text = (tmp_path / "parts" / "metrics.jsonl").read_text()
  lines = [json.loads(line) for line in text.splitlines()]
  first, second = (x for x in lines if x["stage"] == "rl")
  assert abs(first["kl/reference"]) < 1e-7 < second["kl/reference"]
  assert first["rollout/logp_gap_max"] > 1e-5  # int8
  assert first["actor/first_log_ratio_max"] < 1e-5

  # A checkpoint has the factors and their moments, and no matrix of the base.
  saved = restore_arrays(tmp_path / "parts/checkpoints/rl/2/state")["policy"]
  assert set(saved["params"]) == {"layers"}
  for x in jax.tree.leaves(saved):
    assert 2 in x.shape or not x.ndim
  width = session.cfg.width
  assert saved["params"]["layers"]["q"]["a"].shape == (1, width, 2)

  with jax.set_mesh(session.mesh):
    policy, _, at = call(
        trained_parameters.rl, session, "newest", base=lambda: sft_params
    )
    assert at == 2 and tiny_session.digest(policy) == tiny_session.digest(got)
    call(export.run, session, "newest")
    out = hf.find(str(tmp_path / "parts/export/policy"))
    loaded = hf.load(out, decoder.table(session.cfg), session.mesh)
    merged = jax.jit(linear.merged)(got)
    jax.tree.map(np.testing.assert_array_equal, loaded, merged)
    session.config.export.precision = "int8"
    call(export.run, session, "newest")
    small, _ = unpacked(tmp_path / "parts/export/policy-int8")
    jax.tree.map(
        np.testing.assert_array_equal,
        stacked(small, session.cfg),
        jax.jit(quantization.rounded, static_argnums=(1, 2))(
            merged, session.cfg, "int8"
        ),
    )
    b = test_low_rank.rows()
    args = session.cfg, b.tokens_BL % session.cfg.vocab, b.start_B, tiny.T
    np.testing.assert_allclose(
        padded.response_logps(loaded, *args)[0],
        padded.response_logps(got, *args)[0],
        atol=2e-5,
    )
  card = (tmp_path / "parts/export/policy/README.md").read_text()
  assert "with LoRA of rank 2 merged into the weights" in card

  # Factors of another base are refused, and a mean of factors.
  with pytest.raises(RunError, match="LoRA factors .* name one step"):
    call(trained_parameters.rl, session, "1+2")
  other = jax.tree.map(lambda x: x + 1, sft_params)
  with jax.set_mesh(session.mesh):
    with pytest.raises(RunError, match="belong to another model"):
      call(trained_parameters.rl, session, "newest", base=lambda: other)
    session.config.rl.steps = 3
    with pytest.raises(RunError, match="belong to another model"):
      call(rl.train, session, other)
