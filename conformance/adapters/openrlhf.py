"""The adapter of OpenRLHF: its losses and `RemoteExperienceMaker`.

The package imports deepspeed, flash-attn and Ray, which the functions here do
not use: where they are not installed, empty modules stand in for them.
"""

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
import types
from unittest import mock

import numpy as np
import torch
import transformers  # noqa: F401  before the stand-ins: it asks what there is

UNUSED = {
    *("deepspeed", "ray", "peft", "bitsandbytes", "flash_attn", "optimum"),
    *("torchdata", "vllm", "loralib", "pylatexenc", "datasets", "jsonlines"),
    *("aiohttp", "torchmetrics", "ring_flash_attn"),
}


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Finds an empty module for each module of `UNUSED`; it is asked last."""

  def find_spec(self, name, path=None, target=None):
    """The spec of an empty module, or None."""
    if name.split(".")[0] in UNUSED:
      return importlib.machinery.ModuleSpec(name, self, is_package=True)
    return None

  def create_module(self, spec):
    """A module whose every attribute is a mock."""
    module = mock.MagicMock(name=spec.name)
    module.__path__ = []
    return module

  def exec_module(self, module):
    """Nothing to run."""


sys.meta_path.append(StandIns())


from openrlhf.models import loss as loss_lib, utils as model_utils  # noqa: E402
from openrlhf.trainer.ppo_utils import (  # noqa: E402
    experience_maker,
    length_penalty,
)
from openrlhf.utils import loss_utils  # noqa: E402

from conformance.adapters import expected_gradient, four_rows  # noqa: E402

ABSENT = dict(
    lite_ppo_advantages="no such advantage",
    max_rl_advantages="no such advantage",
    gae_length_adaptive="no such advantage",
    pass_at_k_advantages="no such advantage",
    w_reinforce_advantages="no such advantage",
    gdpo_advantages="no such advantage",
    opo_advantages="no such advantage",
    otb_advantages="no such advantage",
    m2po_weights="no such mask",
    whiten="whitened inline, over the experiences of all workers",
    logged_loss="logged by the worker, which needs DeepSpeed",
    positive_nll="no such term",
    groups_with_signal="filtered inside of the loop over vLLM engines",
    chosen_prompts="filtered inside of the loop over vLLM engines",
    keeps_old_logps="log-probs are kept by the trainer, which needs DeepSpeed",
)


def versions() -> dict[str, str]:
  """Versions of the library and of what it computes with."""
  return {x: importlib.metadata.version(x) for x in ("openrlhf", "torch")}


# --- advantages --------------------------------------------------------------


def _maker():
  maker = experience_maker.RemoteExperienceMaker
  return maker.__new__(maker)


def _advantages(
    estimator, rewards_B, groups_B, mask_BT=None, kl_BT=None, kl_coef=0.0
):
  """`compute_advantages_and_returns` of one experience."""
  sizes = np.bincount(groups_B)
  if not np.array_equal(groups_B, np.repeat(np.arange(len(sizes)), sizes[0])):
    raise NotImplementedError("groups are adjacent rows of equal number")
  space = types.SimpleNamespace
  maker, rows = _maker(), len(rewards_B)
  mask = np.ones((rows, 4), bool) if mask_BT is None else mask_BT
  args = space(
      rollout=space(n_samples_per_prompt=int(sizes[0])),
      algo=space(
          advantage=space(
              estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False
          )
      ),
      reward=space(clip_range=None),
  )
  maker.strategy, maker.advantage_estimator = space(args=args), estimator
  maker.kl_ctl = space(value=kl_coef)
  experience = space(
      index=list(range(rows)),
      rewards=torch.tensor(rewards_B),
      kl=torch.zeros(mask.shape) if kl_BT is None else kl_BT,
      action_mask=torch.tensor(mask),
      info={},
  )
  maker.compute_advantages_and_returns([experience])
  return experience.advantages


def grpo_advantages(rewards_B, groups_B):
  """RemoteExperienceMaker.compute_advantages_and_returns, group_norm."""
  return dict(advantages_B=_advantages("group_norm", rewards_B, groups_B)[:, 0])


def dr_grpo_advantages(rewards_B, groups_B):
  """RemoteExperienceMaker.compute_advantages_and_returns, dr_grpo."""
  return dict(advantages_B=_advantages("dr_grpo", rewards_B, groups_B)[:, 0])


def rloo_advantages(rewards_B, groups_B):
  """RemoteExperienceMaker.compute_advantages_and_returns, rloo."""
  return dict(advantages_B=_advantages("rloo", rewards_B, groups_B)[:, 0])


def token_advantages(rewards_B, groups_B, mask_BT):
  """RemoteExperienceMaker.compute_advantages_and_returns, dr_grpo."""
  out = _advantages("dr_grpo", rewards_B, groups_B, mask_BT)
  # The loss reads the positions of action_mask.
  return dict(advantages_BT=out * torch.tensor(mask_BT))


def reinforce_pp_advantages(
    rewards_B, logps_BT, ref_logps_BT, mask_BT, kl_coef, gamma
):
  """RemoteExperienceMaker.compute_advantages_and_returns, reinforce."""
  del gamma  # 1, as in `_advantages`
  kl_BT = model_utils.compute_approx_kl(
      torch.tensor(logps_BT), torch.tensor(ref_logps_BT), kl_estimator="k1"
  )
  each_B = np.arange(len(rewards_B))
  out = _advantages("reinforce", rewards_B, each_B, mask_BT, kl_BT, kl_coef)
  return dict(advantages_BT=out)


def reinforce_pp_baseline_advantages(rewards_B, groups_B, mask_BT):
  """compute_advantages_and_returns, reinforce_baseline."""
  out = _advantages("reinforce_baseline", rewards_B, groups_B, mask_BT)
  return dict(advantages_BT=out)


def gae(rewards_BT, values_BT, mask_BT, gamma, lam):
  """RemoteExperienceMaker.get_advantages_and_returns."""
  arrays = map(torch.tensor, (values_BT, rewards_BT, mask_BT))
  _, returns = _maker().get_advantages_and_returns(*arrays, gamma, lam)
  return dict(returns_BT=returns)


def kl_reward_returns(
    rewards_B, logps_BT, ref_logps_BT, mask_BT, kl_coef, gamma
):
  """models.utils.compute_approx_kl, compute_reward; get_cumulative_returns."""
  mask = torch.tensor(mask_BT)
  kl = model_utils.compute_approx_kl(
      torch.tensor(logps_BT), torch.tensor(ref_logps_BT), kl_estimator="k1"
  )
  reward = model_utils.compute_reward(
      torch.tensor(rewards_B), kl_coef, kl, action_mask=mask
  )
  out = _maker().get_cumulative_returns(reward, mask, gamma)
  return dict(returns_BT=out)


# --- the loss ----------------------------------------------------------------


def _totals(mask, micro_batches) -> dict:
  """The totals that the actor's worker passes to the loss."""
  masks = [mask[list(micro)] for micro in micro_batches]
  count = len(micro_batches)
  return loss_utils._optimizer_step_loss_norm(masks, None, 1, count)


def policy_loss(
    logps_BT,
    old_logps_BT,
    advantages_BT,
    mask_BT,
    reduction,
    micro_batches=None,
    **options,
):
  """openrlhf.models.loss.PolicyLoss."""
  if (kind := options.get("kind", "ppo")) not in ("ppo", "gspo"):
    raise NotImplementedError(f"no {kind}")
  if reduction not in ("token_mean", "seq_mean_token_mean"):
    raise NotImplementedError(f"no loss_agg_mode for {reduction}")
  mask = torch.tensor(mask_BT)
  micro_batches = micro_batches or [range(len(logps_BT))]
  totals, fields = _totals(mask, micro_batches), {}
  if "correction" in options:
    given = options["correction"]
    fields = dict(
        is_correction_level="token",
        is_correction_mode=dict(tis="clip", icepop="mask")[given["kind"]],
        is_correction_threshold=[given.get("low", 0.0), given["high"]],
    )
  function = loss_lib.PolicyLoss(
      clip_eps_low=options.get("clip_low", 0.2),
      clip_eps_high=options.get("clip_high", 0.2),
      dual_clip=options.get("dual_clip"),
      token_level_loss=reduction == "token_mean",
      policy_loss_type=kind,
      **fields,
  )
  logps = torch.tensor(logps_BT, requires_grad=True)
  arrays = [torch.tensor(old_logps_BT), torch.tensor(advantages_BT), mask]
  sampler = torch.tensor(options.get("sampler_logps_BT", old_logps_BT))
  total = 0.0
  for micro in micro_batches:
    at = list(micro)
    loss = function(logps[at], *(x[at] for x in arrays), sampler[at], **totals)[
        0
    ]
    loss = loss / len(micro_batches)  # as DeepSpeed does in backward
    loss.backward()
    total = total + loss.detach()
  return dict(loss=total, grad_BT=logps.grad)


def _kl(logps_BT, ref_logps_BT, mask_BT, **options):
  logps = torch.tensor(logps_BT, requires_grad=True)
  kl = model_utils.compute_approx_kl(
      logps, torch.tensor(ref_logps_BT), torch.tensor(logps_BT), **options
  )
  mask = torch.tensor(mask_BT)
  totals = _totals(mask, [range(len(logps_BT))])
  loss = loss_lib.aggregate_loss(kl, mask, True, **totals)
  loss.backward()
  return dict(loss=loss, grad_BT=logps.grad)


def kl_loss(logps_BT, ref_logps_BT, mask_BT, kind):
  """openrlhf.models.utils.compute_approx_kl, models.loss.aggregate_loss."""
  if kind not in ("k1", "k2", "k3"):
    raise NotImplementedError(f"no kl_estimator for {kind}")
  return _kl(logps_BT, ref_logps_BT, mask_BT, kl_estimator=kind)


def kl_gradient(probs_V, ref_probs_V, choice):
  """openrlhf.models.utils.compute_approx_kl, unbiased_gradient."""
  arrays = four_rows(probs_V, ref_probs_V)
  found = _kl(
      *arrays,
      np.ones((4, 4), bool),
      kl_estimator="k1",  # the default of --algo.kl.estimator
      unbiased_gradient=choice == "unbiased",
  )
  grads_V = found["grad_BT"][0].numpy() * 16
  return dict(grad_V=expected_gradient(probs_V, grads_V))


def value_loss(values_BT, old_values_BT, returns_BT, mask_BT, clip):
  """openrlhf.models.loss.ValueLoss."""
  function = loss_lib.ValueLoss(clip_eps=clip)
  arrays = map(torch.tensor, (values_BT, old_values_BT, returns_BT, mask_BT))
  return dict(loss=function(*arrays))


def token_logps(logits_NV, tokens_N, temperature):
  """openrlhf.models.utils.log_probs_from_logits."""
  labels = torch.tensor(tokens_N, dtype=torch.long)[None]
  with mock.patch.dict(
      sys.modules, {"flash_attn.ops.triton.cross_entropy": None}
  ):
    out = model_utils.log_probs_from_logits(
        torch.tensor(logits_NV)[None], labels, temperature
    )
  return dict(logps_N=out[0])


def entropy(logits_NV):
  """openrlhf.models.utils.compute_entropy."""
  function = model_utils.compute_entropy
  # torch.compile needs a C++ compiler; the same function without it.
  function = getattr(function, "_torchdynamo_orig_callable", function)
  return dict(entropy_N=function(torch.tensor(logits_NV)))


def soft_overlong(token_ids, texts, max_tokens, buffer):
  """openrlhf.trainer.ppo_utils.length_penalty.apply_overlong_penalty."""
  del texts
  experience = types.SimpleNamespace(
      response_length=torch.tensor([len(x) for x in token_ids]),
      rewards=torch.zeros(len(token_ids)),
  )
  length_penalty.apply_overlong_penalty([experience], max_tokens, buffer)
  return dict(rewards_B=experience.rewards)
