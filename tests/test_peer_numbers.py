"""Algorithms of recent papers against TRL 1.16.0, verl 0.9.1 and AReaL 1.0.4.

conformance/peer_numbers.json is what these libraries compute from the arrays of
conformance/peer_numbers.py; `python -m conformance.peer_numbers trl` in their
environment (and `verl`, `areal`) writes it.
"""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from by_hand import close

from conformance import peer_numbers as arrays
from rl_reason.algorithms import (
    advantage_variants,
    kl,
    reductions,
    surrogate_variants,
    surrogates,
)
from rl_reason.features.mismatch_corrections import corrections

KNOWN = json.loads(arrays.PATH.read_text())


GSPO = functools.partial(surrogates.gspo, clip_low=0.2, clip_high=0.25)
# Ours, and the aggregation of the peer.
LOSSES = {
    ("trl", "sapo"): (surrogate_variants.sapo, "seq_mean_token_mean"),
    ("trl", "gmpo"): (surrogate_variants.gmpo, "seq_mean_token_mean"),
    ("trl", "luspo"): (GSPO, "seq_mean_token_sum"),
    ("trl", "vespo"): (surrogate_variants.vespo, "token_mean"),
    ("trl", "ppo_sequence_mask"): (
        surrogate_variants.ppo_sequence_mask,
        "seq_mean_token_mean",
    ),
    ("verl", "dppo"): (surrogate_variants.dppo, "token_mean"),
    ("verl", "gmpo"): (surrogate_variants.gmpo, "seq_mean_token_mean"),
    ("verl", "token_sum"): (surrogates.reinforce, "token_sum"),
}


def gradient(reduction, loss):
  """The loss of log-probs, and its gradient, in float64."""
  with jax.enable_x64(True):
    mask_BT = jnp.asarray(arrays.MASK, float)
    groups_B = jnp.arange(len(arrays.MASK))
    w_BT = getattr(reductions, reduction)(mask_BT, groups_B)
    logps_BT = jnp.asarray(arrays.OLD + np.log(arrays.RATIOS))
    return jax.value_and_grad(lambda x: jnp.sum(w_BT * loss(x)))(logps_BT)


def assert_known(peer, name, got):
  wanted = KNOWN[peer]["numbers"][name]
  # verl adds 1e-8 to the number of tokens of a response.
  close(got[0], wanted["loss"], rtol=1e-7)
  close(got[1], wanted["grad_BT"], rtol=1e-7, atol=1e-9)


def test_versions():
  assert KNOWN["trl"]["versions"]["trl"] == "1.16.0"
  assert KNOWN["verl"]["versions"]["verl"] == "0.9.1"
  assert KNOWN["areal"]["versions"]["areal"] == "1.0.4"


@pytest.mark.parametrize(("peer", "name"), LOSSES)
def test_losses(peer, name):
  surrogate, reduction = LOSSES[peer, name]
  advantages_BT = np.repeat(arrays.ADVANTAGES[:, None], 4, 1)

  def loss(x):
    return surrogate(x, arrays.OLD, advantages_BT, arrays.MASK)[0]

  assert_known(peer, name, gradient(reduction, loss))


@pytest.mark.parametrize(
    ("peer", "kind", "reduction"),
    [
        ("trl", "k3_unbiased", "seq_mean_token_mean"),
        ("verl", "abs", "token_mean"),
    ],
)
def test_kl(peer, kind, reduction):
  def loss(x):
    return kl.estimate(kind, x, arrays.REFERENCE, arrays.OLD)

  assert_known(peer, kind, gradient(reduction, loss))


def test_opo():
  mask_BT = np.arange(4) < arrays.LENGTHS[:, None]
  with jax.enable_x64(True):
    got_B = advantage_variants.opo(
        jnp.asarray(arrays.REWARDS),
        jnp.asarray(arrays.GROUPS),
        jnp.asarray(mask_BT),
    )
  wanted_BT = KNOWN["verl"]["numbers"]["opo"]
  close(np.asarray(got_B)[:, None] * mask_BT, wanted_BT, rtol=1e-12)


@pytest.mark.parametrize("zero_tail", [0, 1])
def test_otb(zero_tail):
  """Token 3 of response 2 is reached by no other response of its group."""
  mask_BT = np.arange(4) < arrays.LENGTHS[:, None]
  last_BT = np.arange(4) == arrays.LENGTHS[:, None] - 1
  with jax.enable_x64(True):
    inputs = (
        arrays.REWARDS,
        last_BT * arrays.REWARDS[:, None],
        arrays.GROUPS,
        np.log(arrays.PROBS),
        arrays.SQUARES,
        mask_BT,
    )
    got_BT = advantage_variants.optimal_token_baseline(
        *map(jnp.asarray, inputs), zero_tail=zero_tail
    )
  wanted_BT = KNOWN["verl"]["numbers"]["otb"][zero_tail]
  close(got_BT, wanted_BT, rtol=1e-12, atol=1e-12)


def test_gdpo():
  """verl whitens over tokens, as `advantage.whiten` does."""
  mask_BT = jnp.arange(4) < arrays.LENGTHS[:, None]
  parts = {
      k: (jnp.asarray(x), arrays.WEIGHTS[k]) for k, x in arrays.PARTS.items()
  }
  got_B, _ = advantage_variants.gdpo(
      jnp.asarray(arrays.REWARDS),
      jnp.asarray(arrays.GROUPS),
      jnp.ones(8, bool),
      parts,
  )
  got_BT = reductions.whiten(got_B[:, None] * jnp.ones((8, 4)), mask_BT)
  close(got_BT, KNOWN["verl"]["numbers"]["gdpo"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", range(len(arrays.THRESHOLDS)))
def test_second_moment(n):
  """Where a clip could stop every token: AReaL does not read the advantages."""
  log_BT = arrays.OLD - arrays.SAMPLER
  got_BT = corrections.second_moment(
      jnp.asarray(arrays.OLD),
      jnp.asarray(arrays.SAMPLER),
      jnp.asarray(arrays.MASK),
      jnp.asarray(np.sign(log_BT)),
      threshold=arrays.THRESHOLDS[n],
  )
  wanted_BT = np.array(KNOWN["areal"]["numbers"]["second_moment"][n])
  assert wanted_BT.sum() == (2, 3, 5, 9)[n]
  close(got_BT, wanted_BT * np.exp(log_BT), rtol=1e-5)
