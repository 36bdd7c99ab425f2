"""The adapter of tunix: algo_core, common, and its PeftTrainer.

The losses take a model. Here the model is its log-probs (a parameter), and
`compute_per_token_logps`, its forward pass, returns them.
"""

import importlib.metadata
import os
import types
from unittest import mock

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tunix.rl import algo_core, common
from tunix.rl.grpo import dapo_learner, grpo_learner
from tunix.sft import peft_trainer

from conformance.adapters import expected_gradient, four_rows

ABSENT = dict(
    lite_ppo_advantages="no such advantage",
    max_rl_advantages="no such advantage",
    token_advantages="advantages stay one number per completion",
    pass_at_k_advantages="no such advantage",
    w_reinforce_advantages="no such advantage",
    gdpo_advantages="no such advantage",
    opo_advantages="no such advantage",
    otb_advantages="no such advantage",
    reinforce_pp_advantages="no such advantage",
    reinforce_pp_baseline_advantages="no such advantage",
    m2po_weights="no such mask",
    gae_length_adaptive="no such advantage",
    kl_reward_returns="part of PPOLearner's loop over a cluster",
    logged_loss="logged by the trainer's buffer",
    positive_nll="no such term",
    groups_with_signal="DAPOConfig.dynamic_sampling is a TODO",
    chosen_prompts="DAPOConfig.dynamic_sampling is a TODO",
    keeps_old_logps="part of GRPOLearner's loop over a cluster",
)


def versions() -> dict[str, str]:
  """Versions of the library and of what it computes with."""
  names = ("google-tunix", "jax", "flax")
  return {x: importlib.metadata.version(x) for x in names}


# --- advantages --------------------------------------------------------------


def _advantages(function, rewards_B, groups_B):
  sizes = np.bincount(groups_B)
  if not np.array_equal(groups_B, np.repeat(np.arange(len(sizes)), sizes[0])):
    raise NotImplementedError("groups are adjacent rows of equal number")
  return dict(advantages_B=function(rewards_B, int(sizes[0])))


def grpo_advantages(rewards_B, groups_B):
  """tunix.rl.algo_core.compute_advantages."""
  return _advantages(algo_core.compute_advantages, rewards_B, groups_B)


def dr_grpo_advantages(rewards_B, groups_B):
  """tunix.rl.algo_core.compute_drgrpo_advantages."""
  return _advantages(algo_core.compute_drgrpo_advantages, rewards_B, groups_B)


def rloo_advantages(rewards_B, groups_B):
  """tunix.rl.algo_core.compute_rloo_advantages."""
  return _advantages(algo_core.compute_rloo_advantages, rewards_B, groups_B)


def gae(rewards_BT, values_BT, mask_BT, gamma, lam):
  """tunix.rl.algo_core.compute_gae_advantages."""
  _, returns = algo_core.compute_gae_advantages(
      rewards_BT, values_BT, mask_BT.astype(np.float32), gamma, lam
  )
  return dict(returns_BT=returns)


def whiten(values_BT, mask_BT):
  """tunix.rl.algo_core.masked_whiten."""
  out = algo_core.masked_whiten(jnp.asarray(values_BT), jnp.asarray(mask_BT))
  return dict(values_BT=out)


# --- the loss ----------------------------------------------------------------

MODES = dict(
    token_mean="token-mean",
    seq_mean_token_mean="sequence-mean-token-mean",
    seq_mean_token_sum="seq-mean-token-sum",
    constant="sequence-mean-token-scale",
)


class Given(nnx.Module):
  """A model that is the log-probs of all rows."""

  def __init__(self, logps_BT):
    self.logps_BT = nnx.Param(jnp.asarray(logps_BT))


def _forward(graphdef, state, prompt_tokens, completion_tokens, **_):
  """In place of `common.compute_per_token_logps`: prompts are row numbers."""
  model = nnx.merge(graphdef, state)
  logps = model.logps_BT[...][prompt_tokens[:, 0]]
  return logps, jnp.zeros((*logps.shape, 2))


def _examples(micro_batches, reference, sampler, **arrays):
  out = []
  for micro in micro_batches:
    rows = np.array(list(micro))
    out.append(
        common.TrainExample(
            prompt_ids=jnp.asarray(rows)[:, None],
            prompt_mask=jnp.ones((len(rows), 1), bool),
            completion_ids=jnp.ones((len(rows), 4), jnp.int32),
            completion_mask=jnp.asarray(arrays["mask_BT"][rows]),
            advantages=jnp.asarray(arrays["advantages_BT"][rows]),
            ref_per_token_logps=None if reference is None else reference[rows],
            old_per_token_logps=jnp.asarray(arrays["old_logps_BT"][rows]),
            sampler_is_weights=None if sampler is None else sampler[rows],
        )
    )
  return out


def _loss(
    logps_BT,
    reduction="token_mean",
    micro_batches=None,
    ref_logps_BT=None,
    kl_kind=None,
    **inputs,
):
  """Loss and gradient of `grpo_loss_fn`; of micro-batches by PeftTrainer."""
  if reduction not in MODES:
    raise NotImplementedError(f"no loss_agg_mode for {reduction}")
  if (kind := inputs.get("kind", "grpo")) not in ("grpo", "gspo"):
    raise NotImplementedError(f"no {kind}")
  if "correction" in inputs:
    raise NotImplementedError(
        "weights are computed inside of AgenticGRPOLearner's loop"
    )
  fields = dict(
      num_generations=2,
      epsilon=inputs.get("clip_low", 0.2),
      beta=0.0 if ref_logps_BT is None else 1.0,
      loss_agg_mode=MODES[reduction],
      loss_algo="gspo-token" if kind == "gspo" else "grpo",
  )
  if kl_kind not in (None, "default"):
    fields["kl_loss_mode"] = kl_kind
  config = grpo_learner.GRPOConfig(**fields)
  config.epsilon_high = inputs.get("clip_high", 0.2)
  config.epsilon_c = inputs.get("dual_clip")
  config.temperature = 1.0
  micro_batches = micro_batches or [range(len(logps_BT))]
  reference = None if ref_logps_BT is None else jnp.asarray(ref_logps_BT)
  examples = _examples(micro_batches, reference, None, **inputs)
  model = Given(logps_BT)

  def loss_fn(model, train_example):
    return algo_core.grpo_loss_fn(model, train_example, config, 0, 1)

  with mock.patch.object(common, "compute_per_token_logps", _forward):
    if len(examples) > 1:
      return dict(grad_BT=_accumulated(model, loss_fn, examples))
    grad_fn = nnx.value_and_grad(loss_fn, has_aux=True)
    (loss, _), grads = grad_fn(model, examples[0])
  return dict(loss=loss, grad_BT=grads.logps_BT[...])


def _accumulated(model, loss_fn, examples):
  """The gradient of a step of PeftTrainer, which plain SGD applies."""
  before = np.asarray(model.logps_BT[...])
  trainer = peft_trainer.PeftTrainer(
      model,
      optax.sgd(1.0),
      peft_trainer.TrainingConfig(
          eval_every_n_steps=10**6,
          max_steps=1,
          gradient_accumulation_steps=len(examples),
      ),
  )
  trainer.with_loss_fn(loss_fn, has_aux=True)
  trainer.with_gen_model_input_fn(lambda x: dict(train_example=x))
  trainer.train(examples)
  return before - np.asarray(model.logps_BT[...])


def policy_loss(**inputs):
  """tunix.rl.algo_core.grpo_loss_fn, sft.peft_trainer.PeftTrainer.train."""
  return _loss(**inputs)


def _kl(logps_BT, ref_logps_BT, mask_BT, kind):
  return _loss(
      logps_BT,
      ref_logps_BT=ref_logps_BT,
      kl_kind=kind,
      mask_BT=mask_BT,
      old_logps_BT=logps_BT,
      advantages_BT=np.zeros_like(logps_BT),
  )


def kl_loss(logps_BT, ref_logps_BT, mask_BT, kind):
  """algo_core.grpo_loss_fn, beta=1 (common.compute_kl_divergence)."""
  kinds = dict(k1="kl", k2="mse_kl", k3="low_var_kl")
  if kind not in kinds:
    raise NotImplementedError(f"no kl_loss_mode for {kind}")
  return _kl(logps_BT, ref_logps_BT, mask_BT, kinds[kind])


def kl_gradient(probs_V, ref_probs_V, choice):
  """algo_core.grpo_loss_fn, beta=1, kl_loss_mode of GRPOConfig or "mse_kl"."""
  arrays = four_rows(probs_V, ref_probs_V)
  kind = "default" if choice == "default" else "mse_kl"
  grads_V = _kl(*arrays, np.ones((4, 4), bool), kind)["grad_BT"][0] * 16
  return dict(grad_V=expected_gradient(probs_V, grads_V))


def value_loss(values_BT, old_values_BT, returns_BT, mask_BT, clip):
  """tunix.rl.algo_core.ppo_value_loss_fn."""
  example = types.SimpleNamespace(
      prompt_ids=jnp.zeros((4, 1), jnp.int32),
      completion_ids=jnp.zeros((4, 4), jnp.int32),
      completion_mask=jnp.asarray(mask_BT),
      old_values=jnp.asarray(old_values_BT),
      returns=jnp.asarray(returns_BT),
  )
  # Scores of a prompt of one token and the response; the last one is cut off.
  scores = jnp.pad(jnp.asarray(values_BT), ((0, 0), (0, 1)))
  with mock.patch.object(common, "compute_score", lambda *_, **__: scores):
    loss, _ = algo_core.ppo_value_loss_fn(None, example, clip, 0, 1)
  return dict(loss=loss)


class Logits(nnx.Module):
  """A model of one row that returns given logits."""

  def __init__(self, logits_NV):
    # The first token is the prompt; the last logits predict nothing.
    padded = jnp.pad(jnp.asarray(logits_NV), ((0, 1), (0, 0)))
    self.logits = nnx.Param(padded[None])

  def __call__(self, tokens, positions, cache, attention_mask):
    """Returns logits and cache."""
    return self.logits[...], None


def token_logps(logits_NV, tokens_N, temperature):
  """tunix.rl.common.compute_per_token_logps."""
  out = common.compute_per_token_logps(
      *nnx.split(Logits(logits_NV)),
      prompt_tokens=jnp.ones((1, 1), jnp.int32),
      completion_tokens=jnp.asarray(tokens_N)[None],
      pad_id=-1,
      eos_id=-2,
      temperature=temperature,
  )
  return dict(logps_N=out[0])


def entropy(logits_NV):
  """tunix.rl.algo_core.compute_entropy_from_logits."""
  out = algo_core.compute_entropy_from_logits(jnp.asarray(logits_NV))
  return dict(entropy_N=out)


def soft_overlong(token_ids, texts, max_tokens, buffer):
  """tunix.rl.grpo.dapo_learner.reward_shaping."""
  del token_ids
  out = dapo_learner.reward_shaping(
      prompts=[""] * len(texts),
      completions=texts,
      mode=None,
      overlong_buffer=dict(
          overlong_buffer_length=buffer,
          overlong_buffer_penalty=1.0,
          max_response_length=max_tokens,
      ),
  )
  return dict(rewards_B=out)
