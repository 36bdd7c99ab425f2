"""The adapter of rl_reason."""

import importlib.metadata
import inspect
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from configs import grpo
from configs.paper import grpo as grpo_paper
from conformance.adapters import expected_gradient, four_rows
from rl_reason.algorithms import (
    advantage_variants,
    advantages,
    credit,
    loss_terms,
    objective,
    reductions,
    surrogate_variants,
    surrogates,
    values,
)
from rl_reason.base.structs import Batch, Experience, Rollouts
from rl_reason.checks import config_facts
from rl_reason.collect import dynamic_sampling, experience
from rl_reason.features.mismatch_corrections import corrections
from rl_reason.models import decoder
from rl_reason.training import packing, step


def versions() -> dict[str, str]:
  """Versions of the package and of what it computes with."""
  names = ("rl_reason", "jax", "numpy")
  return {x: importlib.metadata.version(x) for x in names}


# --- advantages --------------------------------------------------------------


def _group(rewards_B, groups_B):
  return jnp.asarray(rewards_B), jnp.asarray(groups_B)


def grpo_advantages(rewards_B, groups_B):
  """rl_reason.algorithms.advantages.group_norm."""
  return dict(advantages_B=advantages.group_norm(*_group(rewards_B, groups_B)))


def dr_grpo_advantages(rewards_B, groups_B):
  """rl_reason.algorithms.advantages.group_mean."""
  return dict(advantages_B=advantages.group_mean(*_group(rewards_B, groups_B)))


def rloo_advantages(rewards_B, groups_B):
  """rl_reason.algorithms.advantages.leave_one_out."""
  inputs = _group(rewards_B, groups_B)
  return dict(advantages_B=advantages.leave_one_out(*inputs))


def lite_ppo_advantages(rewards_B, groups_B):
  """rl_reason.algorithms.advantages.group_mean_batch_std."""
  inputs = *_group(rewards_B, groups_B), jnp.ones(len(groups_B), bool)
  return dict(advantages_B=advantages.group_mean_batch_std(*inputs))


def max_rl_advantages(rewards_B, groups_B):
  """rl_reason.algorithms.advantages.max_rl."""
  return dict(advantages_B=advantages.max_rl(*_group(rewards_B, groups_B)))


def pass_at_k_advantages(rewards_B, groups_B, k):
  """rl_reason.algorithms.advantage_variants.pass_at_k."""
  inputs = _group(rewards_B, groups_B)
  return dict(advantages_B=advantage_variants.pass_at_k(*inputs, k=k))


def w_reinforce_advantages(rewards_B, weight):
  """rl_reason.algorithms.advantage_variants.weak_positives."""
  found_B = advantage_variants.weak_positives(rewards_B, weight=weight)
  return dict(advantages_B=found_B)


def gdpo_advantages(parts_KB, weights_K, groups_B):
  """advantage_variants.gdpo, reductions.whiten (`advantage.whiten`)."""
  ones_B = jnp.ones(len(groups_B), bool)
  parts = zip(jnp.asarray(parts_KB), weights_K, strict=True)
  named = {f"part {i}": x for i, x in enumerate(parts)}
  inputs = None, jnp.asarray(groups_B), ones_B, named
  total_B = advantage_variants.gdpo(*inputs)[0]
  white_B1 = reductions.whiten(total_B[:, None], ones_B[:, None])
  return dict(advantages_B=white_B1[:, 0])


def _credit(advantage, mask_BT, whiten=False, **rows):
  """`credit.assign`, as in a training step."""
  rows = (
      dict(
          age_B=jnp.zeros(len(mask_BT), jnp.int32),
          types_B=jnp.zeros(len(mask_BT), jnp.int32),
          problems_B=jnp.zeros(len(mask_BT), jnp.int32),
          groups_B=jnp.zeros(len(mask_BT), jnp.int32),
          mask_BT=jnp.asarray(mask_BT),
          logps_BT=jnp.zeros(mask_BT.shape),
      )
      | {k: jnp.asarray(x) for k, x in rows.items() if k[-2:] in ("_B", "BT")}
      | {k: x for k, x in rows.items() if k == "kl_coef"}
  )
  more = dict(kl="k1", kl_in_reward=True) if "kl_coef" in rows else {}
  out = credit.assign(rows, advantage=advantage, whiten=whiten, **more)
  return out["advantages_BT"]


def token_advantages(rewards_B, groups_B, mask_BT):
  """rl_reason.algorithms.credit.assign with advantages.group_mean."""
  rows = dict(rewards_B=rewards_B, groups_B=groups_B)
  out = _credit(advantages.group_mean, mask_BT, **rows)
  return dict(advantages_BT=out)


def reinforce_pp_baseline_advantages(rewards_B, groups_B, mask_BT):
  """rl_reason.algorithms.credit.assign, advantages.group_mean, whiten."""
  rows = dict(rewards_B=rewards_B, groups_B=groups_B)
  out = _credit(advantages.group_mean, mask_BT, whiten=True, **rows)
  return dict(advantages_BT=out)


def opo_advantages(rewards_B, groups_B, mask_BT):
  """rl_reason.algorithms.credit.assign with advantage_variants.opo."""
  rows = dict(rewards_B=rewards_B, groups_B=groups_B)
  out = _credit(advantage_variants.opo, mask_BT, **rows)
  return dict(advantages_BT=out)


def otb_advantages(rewards_B, groups_B, logps_BT, squares_BT, mask_BT):
  """credit.assign with advantage_variants.optimal_token_baseline."""
  rows = dict(rewards_B=rewards_B, groups_B=groups_B, logps_BT=logps_BT)
  function = advantage_variants.optimal_token_baseline
  out = _credit(function, mask_BT, squares_BT=squares_BT, **rows)
  return dict(advantages_BT=out)


def gae(rewards_BT, values_BT, mask_BT, gamma, lam):
  """rl_reason.algorithms.credit.targets (advantages.gae)."""
  arrays = map(jnp.asarray, (rewards_BT, values_BT, mask_BT))
  return dict(returns_BT=credit.targets(*arrays, gamma=gamma, lam=lam)[0])


def gae_length_adaptive(rewards_BT, values_BT, mask_BT, alpha):
  """rl_reason.algorithms.advantages.gae_length_adaptive."""
  arrays = map(jnp.asarray, (rewards_BT, values_BT, mask_BT))
  found_BT = advantages.gae_length_adaptive(*arrays, alpha=alpha)
  return dict(returns_BT=found_BT + values_BT)


def _to_go(gamma, **rows):
  """Returns to go of the KL penalty and the outcome."""

  def advantage(rewards_BT, mask_BT):
    return advantages.returns_to_go(rewards_BT, mask_BT, gamma=gamma)

  return _credit(advantage, **rows)


def kl_reward_returns(**inputs):
  """rl_reason.algorithms.credit.assign with advantages.returns_to_go."""
  return dict(returns_BT=_to_go(**inputs))


def reinforce_pp_advantages(**inputs):
  """rl_reason.algorithms.credit.assign, advantages.returns_to_go, whiten."""
  return dict(advantages_BT=_to_go(whiten=True, **inputs))


def whiten(values_BT, mask_BT):
  """rl_reason.algorithms.reductions.whiten."""
  arrays = jnp.asarray(values_BT), jnp.asarray(mask_BT)
  return dict(values_BT=reductions.whiten(*arrays))


# --- the loss ----------------------------------------------------------------


def m2po_weights(
    old_logps_BT, sampler_logps_BT, advantages_BT, mask_BT, threshold
):
  """rl_reason.features.mismatch_corrections, second_moment."""
  inputs = old_logps_BT, sampler_logps_BT, mask_BT, advantages_BT
  arrays = map(jnp.asarray, inputs)
  found_BT = corrections.second_moment(*arrays, threshold=threshold)
  return dict(weights_BT=found_BT)


def _batch(mask_BT, **arrays) -> Batch:
  """A minibatch, as `step.rl_update` has it."""
  rows, zeros_BT = len(mask_BT), np.zeros(mask_BT.shape, np.float32)

  def given(name, default):
    return jnp.asarray(arrays.get(name, default))

  return step.without_padding(
      Batch(
          advantages_BT=given("advantages_BT", zeros_BT),
          old_logps_BT=given("old_logps_BT", zeros_BT),
          ref_logps_BT=given("ref_logps_BT", zeros_BT),
          mask_BT=jnp.asarray(mask_BT),
          groups_B=given("groups_B", np.arange(rows)),
          correct_B=given("correct_B", np.zeros(rows, np.float32)),
          staleness_B=jnp.zeros(rows, jnp.int32),
          values_BT=zeros_BT,
          returns_BT=zeros_BT,
      )
  )


def _update(o, batch, logps_BT, micro_batches=None, coefs=None):
  """Loss, gradient and metrics, summed over micro-batches as in `step`."""
  rows = len(logps_BT)
  weights = objective.token_weights(o, batch)
  coefs = dict(kl=0.0, entropy=0.0) | (coefs or {})
  total, grad_BT, metrics = 0.0, 0.0, {}
  for micro in micro_batches or [range(rows)]:
    member_B = jnp.isin(jnp.arange(rows), jnp.array(list(micro)))

    args = packing.zero_others(member_B, (batch, weights))

    def loss(logps_BT, b=args[0], w=args[1]):
      return objective.loss(o, logps_BT, jnp.zeros_like(logps_BT), b, w, coefs)

    grad, found = jax.grad(loss, has_aux=True)(jnp.asarray(logps_BT))
    total, grad_BT = total + found["loss"], grad_BT + grad
    for k, x in found.items():
      metrics[k] = metrics.get(k, 0.0) + x
  return dict(loss=total, grad_BT=grad_BT), metrics


def _surrogate(kind="ppo", **inputs):
  """A function of the package with the keywords that a case gives."""
  module = surrogates if hasattr(surrogates, kind) else surrogate_variants
  function = getattr(module, kind)
  if kind == "cispo":
    inputs |= dict(clip_low=1.0, clip_high=inputs["ratio_max"] - 1)
  found = inspect.signature(function).parameters.values()
  known = {x.name for x in found if x.kind == x.KEYWORD_ONLY}
  keywords = {k: x for k, x in inputs.items() if k in known}

  def surrogate(logps_BT, old_logps_BT, advantages_BT, mask_BT):
    return function(logps_BT, old_logps_BT, advantages_BT, mask_BT, **keywords)

  return surrogate


def _policy(logps_BT, reduction, mask_BT, micro_batches=None, **inputs):
  if "correction" in inputs:
    bounds = dict(inputs["correction"])
    name = dict(tis="truncate", icepop="two_sided")[bounds.pop("kind")]
    arrays = inputs["old_logps_BT"], inputs["sampler_logps_BT"], mask_BT
    factor_BT = getattr(corrections, name)(*map(jnp.asarray, arrays), **bounds)
    inputs["advantages_BT"] = inputs["advantages_BT"] * factor_BT
  o = objective.Objective(
      surrogate=_surrogate(**inputs),
      reduction=getattr(reductions, reduction),
  )
  return _update(o, _batch(mask_BT, **inputs), logps_BT, micro_batches)


def policy_loss(**inputs):
  """rl_reason.algorithms.objective.token_weights and loss (surrogates)."""
  return _policy(**inputs)[0]


def logged_loss(**inputs):
  """rl_reason.algorithms.objective.loss, its metric pg_loss."""
  return dict(loss=_policy(**inputs)[1]["pg_loss"])


def positive_nll(logps_BT, correct_B, mask_BT, micro_batches):
  """rl_reason.algorithms.loss_terms, its term positive_nll."""
  o = objective.Objective(
      surrogate=_surrogate(),
      reduction=reductions.token_mean,
      terms=loss_terms.terms(positive_nll=1.0),
  )
  batch = _batch(mask_BT, correct_B=correct_B, old_logps_BT=logps_BT)
  return _update(o, batch, logps_BT, micro_batches)[0]


def kl_loss(logps_BT, ref_logps_BT, mask_BT, kind):
  """rl_reason.algorithms.loss_terms, its term kl (kl.estimate)."""
  o = objective.Objective(
      surrogate=_surrogate(),
      reduction=reductions.token_mean,
      terms=loss_terms.terms(kl=kind),
  )
  arrays = dict(ref_logps_BT=ref_logps_BT, old_logps_BT=logps_BT)
  batch = _batch(mask_BT, **arrays)
  return _update(o, batch, logps_BT, coefs=dict(kl=1.0))[0]


def kl_gradient(probs_V, ref_probs_V, choice):
  """rl_reason.algorithms.objective.loss, kl.kind of configs/paper/grpo.py."""
  kind = grpo_paper.get_config().kl.kind if choice == "default" else "k2"
  arrays = four_rows(probs_V, ref_probs_V)
  grad_BT = kl_loss(*arrays, np.ones((4, 4), bool), kind)["grad_BT"]
  return dict(grad_V=expected_gradient(probs_V, np.asarray(grad_BT[0]) * 16))


def value_loss(values_BT, old_values_BT, returns_BT, mask_BT, clip):
  """rl_reason.algorithms.values.value_loss."""
  arrays = map(jnp.asarray, (values_BT, old_values_BT, returns_BT))
  loss_BT = values.value_loss(*arrays, clip=clip)
  mask_BT = jnp.asarray(mask_BT, jnp.float32)
  weights_BT = reductions.token_mean(mask_BT, jnp.arange(len(mask_BT)))
  return dict(loss=jnp.sum(weights_BT * loss_BT))


# --- tokens, rewards, sampling -----------------------------------------------


def _tokens(logits_NV, tokens_N, temperature):
  """Log-probs and entropy by the function of the loss, on given logits."""
  rows, vocab = logits_NV.shape
  cfg = decoder.ModelConfig(
      vocab=vocab,
      layers=1,
      width=vocab,
      heads=1,
      kv_heads=1,
      head_dim=vocab,
      mlp=vocab,
      tied=False,
      logprob_chunk=rows,
  )
  with mock.patch.object(decoder, "logits", lambda head, cfg, hidden: hidden):
    return decoder._chunked_logps(
        cfg,
        temperature,
        dict(head=jnp.eye(vocab)),
        jnp.asarray(logits_NV)[None],
        jnp.asarray(tokens_N)[None],
        rows,
    )


def token_logps(logits_NV, tokens_N, temperature):
  """rl_reason.models.decoder.packed_logps, its chunks."""
  return dict(logps_N=_tokens(logits_NV, tokens_N, temperature)[0][0])


def entropy(logits_NV):
  """rl_reason.models.decoder.packed_logps, its chunks."""
  tokens_N = np.zeros(len(logits_NV), np.int32)
  return dict(entropy_N=_tokens(logits_NV, tokens_N, 1.0)[1][0])


def _experience(correct_B, ids_B) -> Experience:
  rows = len(ids_B)
  zeros_BT, zeros_B = np.zeros((rows, 1), np.float32), np.zeros(rows, np.int32)
  rollouts = Rollouts(
      tokens_BL=np.zeros((rows, 2), np.int32),
      start_B=zeros_B,
      ids_B=np.asarray(ids_B, np.int32),
      mask_BT=zeros_BT == 0,
      logps_BT=zeros_BT,
      lengths_B=zeros_B + 1,
      truncated_B=zeros_B > 0,
  )
  return Experience(
      rollouts=rollouts,
      correct_B=np.asarray(correct_B, np.float32),
      scores_EB=(),
      old_logps_BT=zeros_BT,
      stale_lengths_B=zeros_B,
      age_B=zeros_B,
      types_B=zeros_B,
      problems_B=zeros_B,
  )


def soft_overlong(token_ids, texts, max_tokens, buffer):
  """rl_reason.algorithms.credit.outcome (rewards.soft_overlong)."""
  del texts
  rows = _experience(np.zeros(len(token_ids)), np.arange(len(token_ids)))
  lengths_B = np.array([len(x) for x in token_ids], np.int32)
  mask_BT = np.arange(lengths_B.max()) < lengths_B[:, None]
  zeros_BT = np.zeros(mask_BT.shape, np.float32)
  rollouts = rows.rollouts.replace(
      mask_BT=mask_BT, logps_BT=zeros_BT, lengths_B=lengths_B
  )
  inputs = experience.credit_inputs(
      rows.replace(rollouts=rollouts, old_logps_BT=zeros_BT)
  )
  out_B = credit.outcome(
      inputs,
      max_tokens=max_tokens,
      overlong_buffer=buffer,
      correct=0.0,
      incorrect=0.0,
  )
  return dict(rewards_B=out_B)


def groups_with_signal(correct_B, rewards_B, groups_B):
  """rl_reason.collect.dynamic_sampling.partly_correct."""
  del rewards_B  # dynamic_sampling.signal = "reward" would read them
  rows = _experience(correct_B, groups_B)
  return dict(keep_N=dynamic_sampling.partly_correct(rows))


def chosen_prompts(signal_N, finished_at_N, wanted):
  """rl_reason.collect.dynamic_sampling.fill_batch."""
  del finished_at_N  # rows arrive in the order of the prompts
  starts = iter(range(0, len(signal_N), wanted))

  def sample_round():
    start = next(starts)
    prompts = range(start, min(start + wanted, len(signal_N)))
    correct_B = [x for n in prompts for x in (1.0, float(not signal_N[n]))]
    return _experience(correct_B, np.repeat(prompts, 2))

  batch, _ = dynamic_sampling.fill_batch(
      sample_round,
      None,
      batch=2 * wanted,
      group_size=2,
      enabled=True,
      max_rounds=len(signal_N),
      shortfall="raise",
  )
  return dict(prompts=sorted(set(batch.rollouts.ids_B.tolist())))


def keeps_old_logps(updates_per_rollout):
  """rl_reason.checks.config_facts.on_policy of configs/grpo.py."""
  c = grpo.get_config()
  c.updates.update(minibatches=updates_per_rollout, epochs=1)
  return dict(kept=not config_facts.on_policy(c))
