"""The adapter of verl: core_algos, and `ppo_loss` of the actor's worker.

`ppo_loss` gets the padded log-probs of the case in place of the model's output;
the conversion of the one into the other is replaced by the identity.
"""

import importlib.metadata
import types

import numpy as np
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.trainer.ppo import core_algos, rollout_corr_helper
from verl.utils import torch_functional
from verl.utils.metric import utils as metrics_lib
from verl.workers.config import ActorConfig, PolicyLossConfig
from verl.workers.utils import losses

from conformance.adapters import expected_gradient, four_rows

ABSENT = dict(
    lite_ppo_advantages="no such advantage",
    max_rl_advantages="no such advantage",
    gae_length_adaptive="no such advantage",
    pass_at_k_advantages="its pass@k is the one of arXiv:2503.19595",
    w_reinforce_advantages="no such advantage",
    m2po_weights="no such mask",
    positive_nll="no such term",
    chosen_prompts="the replay buffer needs TransferQueue",
    groups_with_signal="the replay buffer needs TransferQueue",
    keeps_old_logps="part of the trainer, which needs Ray workers",
)
losses.no_padding_2_padding = lambda tensor, data: tensor


def versions() -> dict[str, str]:
  """Versions of the library and of what it computes with."""
  names = ("verl", "torch", "tensordict")
  return {x: importlib.metadata.version(x) for x in names}


# --- advantages --------------------------------------------------------------


def _outcome(function, rewards_B, groups_B, mask_BT=None, **more):
  rows = len(rewards_B)
  if mask_BT is None:
    mask_BT = np.ones((rows, 4), bool)
  mask = torch.tensor(mask_BT).float()
  last = torch.tensor(
      np.arange(4) == 3 - np.argmax(mask_BT[:, ::-1], 1)[:, None]
  )
  tokens = torch.where(last, torch.tensor(rewards_B)[:, None], 0.0)
  index = np.array([f"p{i}" for i in groups_B], dtype=object)
  return function(tokens, mask, index, **more)[0]


def grpo_advantages(rewards_B, groups_B):
  """verl.trainer.ppo.core_algos.compute_grpo_outcome_advantage."""
  out = _outcome(core_algos.compute_grpo_outcome_advantage, rewards_B, groups_B)
  return dict(advantages_B=out[:, 0])


def dr_grpo_advantages(rewards_B, groups_B):
  """compute_grpo_outcome_advantage, norm_adv_by_std_in_grpo=False."""
  out = _outcome(
      core_algos.compute_grpo_outcome_advantage,
      rewards_B,
      groups_B,
      norm_adv_by_std_in_grpo=False,
  )
  return dict(advantages_B=out[:, 0])


def rloo_advantages(rewards_B, groups_B):
  """verl.trainer.ppo.core_algos.compute_rloo_outcome_advantage."""
  out = _outcome(core_algos.compute_rloo_outcome_advantage, rewards_B, groups_B)
  return dict(advantages_B=out[:, 0])


def token_advantages(rewards_B, groups_B, mask_BT):
  """compute_grpo_outcome_advantage, norm_adv_by_std_in_grpo=False."""
  out = _outcome(
      core_algos.compute_grpo_outcome_advantage,
      rewards_B,
      groups_B,
      mask_BT,
      norm_adv_by_std_in_grpo=False,
  )
  return dict(advantages_BT=out)


def reinforce_pp_baseline_advantages(rewards_B, groups_B, mask_BT):
  """core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage."""
  function = core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage
  out = _outcome(function, rewards_B, groups_B, mask_BT)
  return dict(advantages_BT=out)


def opo_advantages(rewards_B, groups_B, mask_BT):
  """verl.trainer.ppo.core_algos.compute_opo_outcome_advantage."""
  function = core_algos.compute_opo_outcome_advantage
  out = _outcome(function, rewards_B, groups_B, mask_BT)
  return dict(advantages_BT=out)


def otb_advantages(rewards_B, groups_B, logps_BT, squares_BT, mask_BT):
  """verl.trainer.ppo.core_algos.compute_optimal_token_baseline_advantage."""
  out = _outcome(
      core_algos.compute_optimal_token_baseline_advantage,
      rewards_B,
      groups_B,
      mask_BT,
      old_log_probs=torch.tensor(logps_BT),
      sum_pi_squared=torch.tensor(squares_BT),
  )
  return dict(advantages_BT=out)


def gdpo_advantages(parts_KB, weights_K, groups_B):
  """verl.trainer.ppo.core_algos.compute_gdpo_outcome_advantage."""
  # It whitens over tokens: responses of one token.
  ones = torch.ones(len(groups_B), 1)
  names = [f"part{i}" for i in range(len(parts_KB))]
  out, _ = core_algos.compute_gdpo_outcome_advantage(
      ones,
      ones,
      groups_B,
      config=dict(
          gdpo_reward_keys=names, gdpo_reward_weights=weights_K.tolist()
      ),
      non_tensor_batch=dict(zip(names, parts_KB, strict=True)),
      batch=dict(
          prompts=ones, attention_mask=torch.cat([ones, ones], 1).long()
      ),
  )
  return dict(advantages_B=out[:, 0])


def gae(rewards_BT, values_BT, mask_BT, gamma, lam):
  """verl.trainer.ppo.core_algos.compute_gae_advantage_return."""
  _, returns = core_algos.compute_gae_advantage_return(
      torch.tensor(rewards_BT),
      torch.tensor(values_BT),
      torch.tensor(mask_BT).float(),
      gamma,
      lam,
  )
  return dict(returns_BT=returns)


def _reinforce_pp(rewards_B, logps_BT, ref_logps_BT, mask_BT, kl_coef, gamma):
  from verl import DataProto
  from verl.trainer.ppo import ray_trainer

  last = np.arange(4) == 3 - np.argmax(mask_BT[:, ::-1], 1)[:, None]
  mask = torch.tensor(mask_BT).float()
  data = DataProto.from_dict(
      dict(
          response_mask=mask,
          token_level_scores=torch.tensor(
              np.where(last, rewards_B[:, None], 0).astype(np.float32)
          ),
          old_log_probs=torch.tensor(logps_BT),
          ref_log_prob=torch.tensor(ref_logps_BT),
      )
  )
  data, _ = ray_trainer.apply_kl_penalty(
      data, core_algos.FixedKLController(kl_coef), "kl"
  )
  return core_algos.compute_reinforce_plus_plus_outcome_advantage(
      data.batch["token_level_rewards"],
      mask,
      config=types.SimpleNamespace(gamma=gamma),
  )


def kl_reward_returns(**inputs):
  """ray_trainer.apply_kl_penalty, then compute_reinforce_plus_plus_..."""
  return dict(returns_BT=_reinforce_pp(**inputs)[1])


def reinforce_pp_advantages(**inputs):
  """ray_trainer.apply_kl_penalty, then compute_reinforce_plus_plus_..."""
  return dict(advantages_BT=_reinforce_pp(**inputs)[0])


def whiten(values_BT, mask_BT):
  """verl.utils.torch_functional.masked_whiten."""
  out = torch_functional.masked_whiten(
      torch.tensor(values_BT), torch.tensor(mask_BT).float()
  )
  return dict(values_BT=out)


# --- the loss ----------------------------------------------------------------

MODES = dict(
    token_mean="token-mean",
    seq_mean_token_mean="seq-mean-token-mean",
    seq_mean_token_sum="seq-mean-token-sum",
    token_sum="token-sum",
    constant="seq-mean-token-sum-norm",
)
KINDS = dict(
    ppo="vanilla",
    gspo="gspo",
    cispo="cispo",
    sapo="sapo",
    gmpo="geo_mean",
    dppo="dppo_tv",
)


def _loss(
    logps_BT,
    mask_BT,
    old_logps_BT,
    advantages_BT,
    reduction="token_mean",
    micro_batches=None,
    ref_logps_BT=None,
    kl_kind=None,
    **options,
):
  """Loss, gradient and metrics by `ppo_loss`, summed over micro-batches."""
  if reduction not in MODES:
    raise NotImplementedError(f"no loss_agg_mode for {reduction}")
  if (kind := options.get("kind", "ppo")) not in KINDS:
    raise NotImplementedError(f"no {kind}")
  bounds = options.get("clip_low", 0.2), options.get("clip_high", 0.2)
  more = {}
  if kl_kind not in (None, "default"):
    more["kl_loss_type"] = kl_kind
  if kind == "cispo":
    bounds = 1.0, options["ratio_max"] - 1
  elif kind == "dppo":
    bounds = options["change_low"], options["change_high"]
    options["dual_clip"] = options["ratio_max"]
  elif kind == "sapo":
    more["tau_pos"] = options["tau_positive"]
    more["tau_neg"] = options["tau_negative"]
  config = ActorConfig(
      strategy="fsdp",
      rollout_n=2,
      ppo_micro_batch_size_per_gpu=2,
      clip_ratio_low=bounds[0],
      clip_ratio_high=bounds[1],
      clip_ratio_c=options.get("dual_clip", 1e9),
      loss_agg_mode=MODES[reduction],
      use_kl_loss=kl_kind is not None,
      kl_loss_coef=1.0,
      policy_loss=PolicyLossConfig(loss_mode=KINDS[kind]),
      **more,
  )
  logps = torch.tensor(logps_BT, requires_grad=True)
  mask = torch.tensor(mask_BT)
  arrays = dict(
      response_mask=mask,
      old_log_probs=torch.tensor(old_logps_BT),
      advantages=torch.tensor(advantages_BT),
  )
  if ref_logps_BT is not None:
    arrays["ref_log_prob"] = torch.tensor(ref_logps_BT)
  if "correction" in options:
    given = dict(options["correction"])
    bound = given["high"]
    if given["kind"] == "icepop":
      bound = f"{given['low']}_{given['high']}"
    log_ratio = old_logps_BT - options["sampler_logps_BT"]
    weights, _ = rollout_corr_helper.compute_rollout_correction_weights(
        torch.tensor(log_ratio), mask.float(), "token", bound
    )
    arrays["rollout_is_weights"] = weights
  total, found = 0.0, {}
  for micro in micro_batches or [range(len(logps_BT))]:
    rows = list(micro)
    data = TensorDict({k: x[rows] for k, x in arrays.items()}, len(rows))
    # What the engine adds to each micro-batch.
    info = dict(
        dp_size=1,
        batch_num_tokens=int(mask.sum()),
        global_batch_size=len(logps_BT),
    )
    batch = _WithInfo(data, info)
    loss, metrics = losses.ppo_loss(config, dict(log_probs=logps[rows]), batch)
    loss.backward()
    total = total + loss.detach()
    for name, x in metrics.items():
      if isinstance(x, metrics_lib.Metric):
        found.setdefault(name, []).append(x)
  return dict(loss=total, grad_BT=logps.grad), found


class _WithInfo:
  """A TensorDict with the numbers that `ppo_loss` looks up in it."""

  def __init__(self, data, info):
    self._data, self._info = data, info

  def __getitem__(self, name):
    return self._info[name] if name in self._info else self._data[name]

  def __contains__(self, name):
    return name in self._info or name in self._data.keys()

  def select(self, *names):
    """Padded tensors are not nested: nothing to convert."""
    return self

  def to_padded_tensor(self):
    """As above."""
    return self._data


def policy_loss(**inputs):
  """verl.workers.utils.losses.ppo_loss (core_algos.compute_policy_loss_...)."""
  return _loss(**inputs)[0]


def logged_loss(**inputs):
  """verl.workers.utils.losses.ppo_loss, its metric actor/pg_loss."""
  found = _loss(**inputs)[1]["actor/pg_loss"]
  first = found[0]
  first.extend([x for metric in found[1:] for x in metric.values])
  return dict(loss=metrics_lib.reduce_metrics(dict(x=first))["x"])


def _kl(logps_BT, ref_logps_BT, mask_BT, kind):
  return _loss(
      logps_BT,
      mask_BT,
      logps_BT,
      np.zeros_like(logps_BT),
      ref_logps_BT=ref_logps_BT,
      kl_kind=kind,
  )[0]


def kl_loss(logps_BT, ref_logps_BT, mask_BT, kind):
  """verl.workers.utils.losses.ppo_loss, use_kl_loss (core_algos.kl_penalty)."""
  return _kl(logps_BT, ref_logps_BT, mask_BT, kind)


def kl_gradient(probs_V, ref_probs_V, choice):
  """ppo_loss, use_kl_loss, kl_loss_type of ActorConfig or "k3+"."""
  arrays = four_rows(probs_V, ref_probs_V)
  kind = "default" if choice == "default" else "k3+"
  grads = _kl(*arrays, np.ones((4, 4), bool), kind)["grad_BT"][0] * 16
  return dict(grad_V=expected_gradient(probs_V, grads.numpy()))


def value_loss(values_BT, old_values_BT, returns_BT, mask_BT, clip):
  """verl.trainer.ppo.core_algos.compute_value_loss."""
  arrays = map(torch.tensor, (values_BT, returns_BT, old_values_BT, mask_BT))
  return dict(loss=core_algos.compute_value_loss(*arrays, clip)[0])


def token_logps(logits_NV, tokens_N, temperature):
  """verl.utils.torch_functional.logprobs_from_logits."""
  # The engine divides the logits by the temperature in place.
  logits = torch.tensor(logits_NV).div_(temperature)
  labels = torch.tensor(tokens_N, dtype=torch.long)
  out = torch_functional.logprobs_from_logits(logits, labels)
  return dict(logps_N=out)


def entropy(logits_NV):
  """verl.utils.torch_functional.entropy_from_logits."""
  out = torch_functional.entropy_from_logits(torch.tensor(logits_NV))
  return dict(entropy_N=out)


def soft_overlong(token_ids, texts, max_tokens, buffer):
  """verl.experimental.reward_loop.reward_manager.dapo.DAPORewardManager."""
  import asyncio

  from verl import DataProto
  from verl.experimental.reward_loop.reward_manager import dapo

  config = OmegaConf.create(
      dict(
          reward=dict(
              reward_kwargs=dict(
                  max_resp_len=max_tokens,
                  overlong_buffer_cfg=dict(
                      enable=True, len=buffer, penalty_factor=1.0, log=False
                  ),
              )
          )
      )
  )

  async def one(ids, text):
    manager = dapo.DAPORewardManager(
        config,
        types.SimpleNamespace(decode=lambda *_, **__: text),
        lambda **_: 0.0,
    )
    manager.loop = asyncio.get_running_loop()
    width = max(map(len, token_ids))
    responses = torch.zeros((1, width), dtype=torch.long)
    responses[0, : len(ids)] = torch.tensor(ids)
    mask = (torch.arange(width) < len(ids)).long()[None]
    data = DataProto.from_dict(
        dict(responses=responses, attention_mask=mask),
        non_tensors=dict(
            data_source=np.array(["x"], object),
            reward_model=np.array([dict(ground_truth="")], object),
        ),
    )
    return float((await manager.run_single(data))["reward_score"])

  async def every():
    return [await one(*x) for x in zip(token_ids, texts, strict=True)]

  return dict(rewards_B=asyncio.run(every()))
