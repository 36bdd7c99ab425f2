"""Numbers of TRL, verl and AReaL for the algorithms of recent papers.

  runs/peers/trl/bin/python -m conformance.peer_numbers trl
  runs/peers/verl/bin/python -m conformance.peer_numbers verl
  runs/peers/areal/bin/python -m conformance.peer_numbers areal

Each writes its part of peer_numbers.json here. A loss comes with its gradient
by the log-probs.
"""

import argparse
import ast
import collections
import importlib.metadata
import json
import pathlib
import types

import numpy as np

PATH = pathlib.Path(__file__).with_suffix(".json")
OLD = np.log([[0.5, 0.2, 0.9, 0.05], [0.3, 0.6, 0.1, 0.8], [0.4, 0.7, 0.25, 1]])
RATIOS = np.array([[1, 1.5, 0.6, 3], [1.1, 0.5, 2.5, 0.9], [1.2, 0.1, 1, 1]])
REFERENCE = np.log(
    [[0.4, 0.3, 0.6, 0.1], [0.3, 0.2, 0.3, 0.8], [0.6, 0.5, 1, 1]]
)
ADVANTAGES = np.array([1.5, -2, -0.7])
MASK = np.arange(4) < np.array([[4], [3], [2]])
# Eight responses to two prompts: lengths, rewards, and two parts of a reward.
LENGTHS = np.array([3, 1, 4, 2, 4, 4, 1, 2])
REWARDS = np.array([1.0, -1, -1, 1, -1, -1, 1, -1])
GROUPS = np.array([0, 0, 0, 0, 1, 1, 1, 1])
PARTS = dict(
    correct=[1.0, 0, 0, 1, 0, 0, 1, 0],
    style=[0.5, 0.25, 0.75, 0.5, 0.1, 0.9, 0.3, 0.3],
)
WEIGHTS = dict(correct=1.0, style=0.5)
# Of their tokens: probabilities, and the sums of squares over the vocabulary.
PROBS = np.linspace(0.1, 0.95, 32).reshape(8, 4)
SQUARES = PROBS**2 + 0.3 * (1 - PROBS) ** 2
# M2PO: log-probs of an older policy, and thresholds with which 2, 3, 5 and all
# tokens stay.
SAMPLER = OLD - np.log(1.05 * RATIOS)
THRESHOLDS = (0.02, 0.05, 0.15, 2.0)


def _gradient(function) -> dict:
  """The loss of a function of log-probs, and its gradient."""
  import torch

  logps = torch.tensor(OLD + np.log(RATIOS), requires_grad=True)
  loss = function(logps)
  loss.backward()
  return dict(loss=loss.item(), grad_BT=logps.grad.tolist())


class _Accelerator:
  """Of one process."""

  num_processes, sync_gradients = 1, True

  def reduce(self, x, reduction=None):
    return x

  def gather(self, x):
    return x


def _trl_loss(trainer, *, advantages=ADVANTAGES, **more):
  """`_compute_loss` of a trainer whose model gives the log-probs above."""
  import torch

  ids, mask = torch.zeros(MASK.shape, dtype=torch.long), torch.tensor(
      1.0 * MASK
  )
  settings = types.SimpleNamespace(
      delta=None,
      use_bias_correction_kl=True,
      steps_per_generation=1,
      **trainer.DEFAULTS,
  )
  me = types.SimpleNamespace(
      accelerator=_Accelerator(),
      args=settings,
      model=types.SimpleNamespace(training=True),
      current_gradient_accumulation_steps=1,
      top_entropy_quantile=1.0,
      aux_loss_enabled=False,
      use_vllm=False,
      vllm_importance_sampling_correction=False,
      off_policy_mask_threshold=None,
      beta=0.0,
      importance_sampling_level="token",
      epsilon_low=0.2,
      epsilon_high=0.2,
      max_completion_length=4,
      _entropy_bonus_enabled=False,
      use_adaptive_entropy=False,
      _metrics={"train": collections.defaultdict(list)},
      get_off_policy_mask=trainer.GRPOTrainer.get_off_policy_mask,
      get_gamma_weights=trainer.GRPOTrainer.get_gamma_weights,
  )
  vars(me).update(more)
  inputs = dict(
      prompt_ids=ids,
      prompt_mask=ids,
      completion_ids=ids,
      completion_mask=mask,
      advantages=torch.tensor(advantages),
      old_per_token_logps=torch.tensor(OLD),
      ref_per_token_logps=torch.tensor(REFERENCE),
      num_items_in_batch=mask.sum(),
  )

  def loss(logps):
    me._get_per_token_logps_and_entropies = lambda *_, **__: (
        logps,
        torch.zeros_like(logps),
        None,
    )
    return trainer.compute(me, None, inputs)

  return _gradient(loss)


def trl() -> dict:
  """`_compute_loss` of GRPOTrainer and of GMPOTrainer."""
  from trl import GRPOConfig, GRPOTrainer
  from trl.experimental.gmpo import GMPOTrainer

  fields = GRPOConfig.__dataclass_fields__
  names = [x for x in fields if x.startswith(("sapo_", "vespo_"))]
  grpo = types.SimpleNamespace(
      GRPOTrainer=GRPOTrainer,
      DEFAULTS={x: fields[x].default for x in names},
      compute=GRPOTrainer._compute_loss,
  )
  gmpo = types.SimpleNamespace(
      **vars(grpo) | dict(compute=GMPOTrainer._compute_loss)
  )
  wide = dict(epsilon_low=0.2, epsilon_high=0.25)
  return dict(
      sapo=_trl_loss(grpo, loss_type="sapo"),
      luspo=_trl_loss(
          grpo, loss_type="luspo", importance_sampling_level="sequence", **wide
      ),
      vespo=_trl_loss(grpo, loss_type="vespo"),
      ppo_sequence_mask=_trl_loss(
          grpo, loss_type="grpo", off_policy_mask_threshold=0.5
      ),
      k3_unbiased=_trl_loss(
          grpo, loss_type="grpo", beta=1.0, advantages=0 * ADVANTAGES
      ),
      gmpo=_trl_loss(gmpo, epsilon_low=0.4, epsilon_high=0.4),
  )


class _Config(dict):
  """A config of verl: items are attributes, too."""

  __getattr__ = dict.__getitem__


def verl() -> dict:
  """Functions of verl.trainer.ppo.core_algos."""
  import torch
  from verl.trainer.ppo import core_algos as core

  old, mask = torch.tensor(OLD), torch.tensor(1.0 * MASK)
  advantages = torch.tensor(ADVANTAGES)[:, None].expand(mask.shape)

  def loss(function, clip):
    clips = dict(clip_ratio=clip, clip_ratio_low=clip, clip_ratio_high=clip)
    config = _Config(clips, global_batch_info={})
    return _gradient(
        lambda logps: function(old, logps, advantages, mask, config=config)[0]
    )

  def aggregated(function, mode):
    return _gradient(lambda x: core.agg_loss(function(x), mask, mode))

  tokens = torch.tensor(1.0 * (np.arange(4) < LENGTHS[:, None]))
  last = torch.tensor(1.0 * (np.arange(4) == LENGTHS[:, None] - 1))
  outcome = last * torch.tensor(REWARDS)[:, None]
  ones = torch.ones(8, 1)

  def otb(zero_tail):
    logps, squares = torch.tensor(np.log(PROBS)), torch.tensor(SQUARES)
    arrays = outcome, tokens, GROUPS, logps, squares
    return core.compute_optimal_token_baseline_advantage(
        *arrays, handle_zero_tail=zero_tail
    )[0].tolist()

  return dict(
      dppo=loss(core.compute_policy_loss_dppo_tv, 0.2),
      gmpo=loss(core.compute_policy_loss_geo_mean, 0.4),
      token_sum=aggregated(lambda x: -x * advantages, "token-sum"),
      abs=aggregated(
          lambda x: core.kl_penalty_forward(x, torch.tensor(REFERENCE), "abs"),
          "token-mean",
      ),
      opo=core.compute_opo_outcome_advantage(outcome, tokens, GROUPS)[
          0
      ].tolist(),
      otb=[otb(False), otb(True)],
      gdpo=core.compute_gdpo_outcome_advantage(
          outcome,
          tokens,
          GROUPS,
          config=_Config(
              gdpo_reward_keys=[*PARTS],
              gdpo_reward_weights=[*WEIGHTS.values()],
          ),
          non_tensor_batch=PARTS,
          batch=dict(
              prompts=ones, attention_mask=torch.cat([ones, tokens], 1).long()
          ),
      )[0].tolist(),
  )


def areal() -> dict:
  """The mask of M2PO.

  The package itself needs a GPU, so that only the two functions of
  areal/trainer/ppo/actor.py that make the mask are compiled.
  """
  import torch

  place = importlib.metadata.distribution("areal").locate_file(
      "areal/trainer/ppo/actor.py"
  )
  names = "_apply_m2po_masking", "_get_m2po_loss_mask"
  module = ast.parse(pathlib.Path(str(place)).read_text())
  module.body = [x for x in module.body if getattr(x, "name", "") in names]
  made: dict = dict(torch=torch)
  exec(compile(module, str(place), "exec"), made)
  sampler, old = torch.tensor(SAMPLER), torch.tensor(OLD)
  mask = torch.tensor(MASK)
  return dict(
      second_moment=[
          made[names[0]](sampler, old, mask, x).tolist() for x in THRESHOLDS
      ]
  )


if __name__ == "__main__":
  import torch  # the arrays above are read without it

  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("peer", choices=("trl", "verl", "areal"))
  flags = parser.parse_args()
  torch.set_default_dtype(torch.float64)
  versions = {x: importlib.metadata.version(x) for x in (flags.peer, "torch")}
  numbers = dict(trl=trl, verl=verl, areal=areal)[flags.peer]()
  known = json.loads(PATH.read_text()) if PATH.exists() else {}
  known[flags.peer] = dict(versions=versions, numbers=numbers)
  PATH.write_text(json.dumps(known, sort_keys=True) + "\n")
