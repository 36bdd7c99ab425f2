"""The adapter of TRL: GRPOTrainer and RLOOTrainer with given log-probs.

Each operation runs the trainer's own methods. Only the forward pass is given:
`_get_per_token_logps_and_entropies` returns the log-probs of the case, and
`_generate` its completions.
"""

import functools
import importlib.metadata
import os
import tempfile

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import datasets
import numpy as np
import tokenizers
import torch
import transformers
import trl
from trl.experimental import gmpo
from trl.rewards import get_soft_overlong_punishment
from trl.trainer import utils

from conformance.adapters import expected_gradient

ABSENT = dict(
    max_rl_advantages="no such advantage",
    pass_at_k_advantages="no such advantage",
    w_reinforce_advantages="no such advantage",
    opo_advantages="no such advantage",
    otb_advantages="no such advantage",
    reinforce_pp_advantages="no trainer with advantages per token",
    reinforce_pp_baseline_advantages="no trainer with advantages per token",
    m2po_weights="no such mask",
    token_advantages="advantages stay one number per completion",
    gae="no trainer with a critic",
    gae_length_adaptive="no trainer with a critic",
    kl_reward_returns="RLOOTrainer subtracts the KL of whole completions",
    whiten="no trainer with advantages per token",
    logged_loss="the loss is logged by transformers' Trainer",
    positive_nll="no such term",
    value_loss="no trainer with a critic",
    groups_with_signal="no dynamic sampling",
    chosen_prompts="no dynamic sampling",
)
PROMPT = 2


def versions() -> dict[str, str]:
  """Versions of the library and of what it computes with."""
  names = ("trl", "torch", "transformers")
  return {x: importlib.metadata.version(x) for x in names}


@functools.cache
def _model():
  """A tiny model on disk, where a reference model is loaded from."""
  words = {f"t{i}": i for i in range(64)}
  inner = tokenizers.Tokenizer(
      tokenizers.models.WordLevel(words, unk_token="t2")
  )
  inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  tok = transformers.PreTrainedTokenizerFast(
      tokenizer_object=inner, pad_token="t0", eos_token="t1"
  )
  cfg = transformers.Qwen2Config(
      vocab_size=64,
      hidden_size=8,
      intermediate_size=8,
      num_hidden_layers=1,
      num_attention_heads=1,
      num_key_value_heads=1,
      pad_token_id=0,
      eos_token_id=1,
  )
  path = tempfile.mkdtemp()
  transformers.AutoModelForCausalLM.from_config(cfg).save_pretrained(path)
  return path, tok


def _trainer(kind, reward_funcs=None, **fields):
  """A trainer whose generation and forward pass are given by the case."""
  transformers.logging.set_verbosity_error()
  transformers.utils.logging.disable_progress_bar()
  path, tok = _model()
  config, trainer = dict(
      grpo=(trl.GRPOConfig, trl.GRPOTrainer),
      rloo=(trl.RLOOConfig, trl.RLOOTrainer),
      gmpo=(gmpo.GMPOConfig, gmpo.GMPOTrainer),
  )[kind]
  rewards = []
  args = config(
      output_dir=tempfile.mkdtemp(),
      use_cpu=True,
      bf16=False,
      report_to="none",
      save_strategy="no",
      disable_tqdm=True,
      **fields,
  )
  out = trainer(
      model=path,
      args=args,
      processing_class=tok,
      reward_funcs=reward_funcs or (lambda completions, **_: list(rewards)),
      train_dataset=datasets.Dataset.from_list([dict(prompt="t2")] * 8),
  )
  out.case_rewards = rewards
  out._step = 0
  out.current_gradient_accumulation_steps = args.gradient_accumulation_steps
  return out


def _generated(trainer, rewards_B, lengths_B, sampler_BT=None):
  """`_generate_and_score_completions` on completions of given lengths."""
  rows = len(rewards_B)
  ids = [[3] * int(n) for n in lengths_B]
  logps = None
  if sampler_BT is not None:
    logps = [
        row[:n]
        for row, n in zip(sampler_BT.tolist(), map(len, ids), strict=True)
    ]
  texts = ["t3"] * rows
  trainer.case_rewards[:] = [float(x) for x in rewards_B]
  prompts = [[2] * PROMPT] * rows
  out = prompts, ids, None, texts, logps, {}, None, None
  if isinstance(trainer, trl.RLOOTrainer):
    out = prompts, ids, texts
  trainer._generate = lambda prompts: out
  trainer.model.train()
  return trainer._generate_and_score_completions([dict(prompt="t2")] * rows)


def _adjacent(groups_B) -> int:
  """Rows of a group; the trainer groups by position, in equal groups."""
  sizes = np.bincount(groups_B)
  if not np.array_equal(groups_B, np.repeat(np.arange(len(sizes)), sizes[0])):
    raise NotImplementedError("groups are adjacent rows of equal number")
  return int(sizes[0])


def _advantages(kind, rewards_B, groups_B, **fields):
  size, rows = _adjacent(groups_B), len(rewards_B)
  trainer = _trainer(
      kind,
      num_generations=size,
      per_device_train_batch_size=rows,
      beta=0.0,
      **fields,
  )
  given = torch.full((rows, 4), -1.0)
  trainer._get_per_token_logps_and_entropies = lambda *_, **__: (
      given,
      given,
      None,
  )
  return _generated(trainer, rewards_B, [4] * rows)["advantages"]


def grpo_advantages(rewards_B, groups_B):
  """trl.GRPOTrainer._generate_and_score_completions, scale_rewards="group"."""
  out = _advantages("grpo", rewards_B, groups_B, scale_rewards="group")
  return dict(advantages_B=out)


def dr_grpo_advantages(rewards_B, groups_B):
  """trl.GRPOTrainer._generate_and_score_completions, scale_rewards="none"."""
  out = _advantages("grpo", rewards_B, groups_B, scale_rewards="none")
  return dict(advantages_B=out)


def lite_ppo_advantages(rewards_B, groups_B):
  """trl.GRPOTrainer._generate_and_score_completions, scale_rewards="batch"."""
  out = _advantages("grpo", rewards_B, groups_B, scale_rewards="batch")
  return dict(advantages_B=out)


def gdpo_advantages(parts_KB, weights_K, groups_B):
  """trl.GRPOTrainer, multi_objective_aggregation="normalize_then_sum"."""
  out = _advantages(
      "grpo",
      parts_KB[0],
      groups_B,
      multi_objective_aggregation="normalize_then_sum",
      reward_funcs=[lambda x=x, **_: x for x in parts_KB.tolist()],
      reward_weights=weights_K.tolist(),
  )
  return dict(advantages_B=out)


def rloo_advantages(rewards_B, groups_B):
  """trl.RLOOTrainer._generate_and_score_completions."""
  out = _advantages("rloo", rewards_B, groups_B, normalize_advantages=False)
  return dict(advantages_B=out)


LOSSES = dict(
    token_mean="dapo",
    seq_mean_token_mean="grpo",
    seq_mean_token_sum="luspo",
    constant="dr_grpo",
)


def _fields_of_kind(kind, options) -> dict:
  """Fields of the config for a surrogate."""
  match kind:
    case "ppo" | "gmpo":
      return {}
    case "gspo":
      return dict(importance_sampling_level="sequence")
    case "cispo":
      return dict(loss_type="cispo", epsilon_high=options["ratio_max"])
    case "sapo":
      return dict(
          loss_type="sapo",
          sapo_temperature_pos=options["tau_positive"],
          sapo_temperature_neg=options["tau_negative"],
      )
    case "vespo":
      return dict(
          loss_type="vespo",
          vespo_k_pos=options["k_positive"],
          vespo_lambda_pos=options["lam_positive"],
          vespo_k_neg=options["k_negative"],
          vespo_lambda_neg=options["lam_negative"],
      )
    case "ppo_sequence_mask":
      return dict(off_policy_mask_threshold=options["delta"])
  raise NotImplementedError(f"no {kind}")


def _loss(
    logps_BT,
    old_logps_BT,
    advantages_BT,
    mask_BT,
    reduction="token_mean",
    micro_batches=None,
    ref_logps_BT=None,
    **options,
):
  """Loss and gradient by `training_step`, summed over micro-batches."""
  if reduction not in LOSSES:
    raise NotImplementedError(f"no loss_type for {reduction}")
  rows, micro_batches = len(logps_BT), micro_batches or [range(len(logps_BT))]
  fields = dict(epsilon=options.get("clip_low", 0.2), beta=0.0)
  fields["epsilon_high"] = options.get("clip_high", 0.2)
  fields["loss_type"] = LOSSES[reduction]
  kind = options.get("kind", "ppo")
  fields |= _fields_of_kind(kind, options)
  if "dual_clip" in options:
    fields["delta"] = options["dual_clip"]
  if ref_logps_BT is not None:
    fields |= dict(beta=1.0) | options["kl"]
  trainer = _trainer(
      "gmpo" if kind == "gmpo" else "grpo",
      num_generations=2,
      per_device_train_batch_size=rows // len(micro_batches),
      gradient_accumulation_steps=len(micro_batches),
      max_completion_length=logps_BT.shape[1],
      **fields,
  )
  trainer._prepare_inputs = lambda x: x
  logps = torch.tensor(logps_BT, requires_grad=True)
  mask, zeros = torch.tensor(mask_BT), torch.zeros(logps_BT.shape)
  current = []
  trainer._get_per_token_logps_and_entropies = lambda *_, **__: (
      logps[current],
      zeros[current],
      None,
  )
  sampler = {}
  if "correction" in options:
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
    bounds = dict(options["correction"])
    mode = dict(tis="token_truncate", icepop="token_mask")[bounds.pop("kind")]
    trainer.vllm_importance_sampling_mode = mode
    trainer.vllm_importance_sampling_clip_min = bounds.get("low")
    trainer.vllm_importance_sampling_clip_max = bounds["high"]
    current[:] = range(rows)
    step = trainer._get_per_token_logps_and_entropies
    old = torch.tensor(old_logps_BT)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (
        old,
        zeros,
        None,
    )
    out = _generated(
        trainer, np.zeros(rows), mask_BT.sum(1), options["sampler_logps_BT"]
    )
    trainer._get_per_token_logps_and_entropies = step
    sampler["importance_sampling_ratio"] = out["importance_sampling_ratio"]
  arrays = dict(
      prompt_ids=torch.full((rows, PROMPT), 2),
      prompt_mask=torch.ones((rows, PROMPT), dtype=torch.long),
      completion_ids=torch.full(logps_BT.shape, 3),
      completion_mask=mask.int(),
      advantages=torch.tensor(advantages_BT),
      old_per_token_logps=torch.tensor(old_logps_BT),
  )
  if kind in ("gspo", "gmpo"):  # one advantage of a completion
    arrays["advantages"] = arrays["advantages"][:, 0]
  if ref_logps_BT is not None:
    arrays["ref_per_token_logps"] = torch.tensor(ref_logps_BT)
  total = 0.0
  for micro in micro_batches:
    current[:] = list(micro)
    inputs = {k: x[current] for k, x in (arrays | sampler).items()}
    inputs["num_items_in_batch"] = mask.sum()
    total = total + trainer.training_step(trainer.model, inputs, None)
  return dict(loss=total, grad_BT=logps.grad)


def policy_loss(**inputs):
  """trl.GRPOTrainer.training_step (_compute_loss; of GMPO: GMPOTrainer)."""
  return _loss(**inputs)


def kl_loss(logps_BT, ref_logps_BT, mask_BT, kind):
  """trl.GRPOTrainer._compute_loss, beta=1, use_bias_correction_kl=False."""
  if kind != "k3":
    raise NotImplementedError("k3 is the only estimator")
  return _loss(
      logps_BT,
      logps_BT,
      np.zeros_like(logps_BT),
      mask_BT,
      ref_logps_BT=ref_logps_BT,
      kl=dict(use_bias_correction_kl=False),
  )


def kl_gradient(probs_V, ref_probs_V, choice):
  """trl.GRPOTrainer._compute_loss, beta=1, use_bias_correction_kl."""
  logps_BT = np.tile(np.log(probs_V), (4, 1)).astype(np.float32)
  found = _loss(
      logps_BT,
      logps_BT,
      np.zeros_like(logps_BT),
      np.ones(logps_BT.shape, bool),
      ref_logps_BT=np.tile(np.log(ref_probs_V), (4, 1)).astype(np.float32),
      kl={} if choice == "default" else dict(use_bias_correction_kl=True),
  )
  grads_V = found["grad_BT"][0].numpy() * logps_BT.size
  return dict(grad_V=expected_gradient(probs_V, grads_V))


def token_logps(logits_NV, tokens_N, temperature):
  """trl.trainer.utils.selective_log_softmax_and_entropy."""
  found, _ = utils.selective_log_softmax_and_entropy(
      torch.tensor(logits_NV),
      torch.tensor(tokens_N, dtype=torch.long),
      temperature=temperature,
  )
  return dict(logps_N=found)


def entropy(logits_NV):
  """trl.trainer.utils.entropy_from_logits."""
  return dict(entropy_N=utils.entropy_from_logits(torch.tensor(logits_NV)))


def soft_overlong(token_ids, texts, max_tokens, buffer):
  """trl.rewards.get_soft_overlong_punishment."""
  reward = get_soft_overlong_punishment(max_tokens, buffer)
  return dict(rewards_B=reward(completions=texts, completion_ids=token_ids))


def keeps_old_logps(updates_per_rollout):
  """trl.GRPOTrainer._generate_and_score_completions, steps_per_generation."""
  trainer = _trainer(
      "grpo",
      num_generations=2,
      per_device_train_batch_size=2,
      gradient_accumulation_steps=1,
      steps_per_generation=updates_per_rollout,
      beta=0.0,
  )
  rows = 2 * updates_per_rollout
  given = torch.full((rows, 4), -1.0)
  trainer._get_per_token_logps_and_entropies = lambda *_, **__: (
      given,
      given,
      None,
  )
  out = _generated(trainer, np.arange(rows), [4] * rows)
  return dict(kept="old_per_token_logps" in out)
