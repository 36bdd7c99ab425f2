"""Adapters of `conformance.run`: a library's own functions, by operation.

An adapter is a module, or any object, with functions of these names. Each calls
a function of the library, never a copy of it, and its docstring names it.
Operations that are missing are "not applicable"; `ABSENT` may say why, and a
function may raise NotImplementedError(reason) for an option that the library
does not have. `versions()` returns the versions of the library.

Arguments are NumPy arrays (float32, int32, bool), numbers and strings; results
are arrays or numbers by the names below. B responses (4 or 8), T tokens (4), V
vocabulary.

| operation            | arguments -> results                                 |
|----------------------|------------------------------------------------------|
| grpo_advantages, dr_grpo_advantages, rloo_advantages, lite_ppo_advantages,   |
| max_rl_advantages    | rewards_B, groups_B -> advantages_B                  |
| pass_at_k_advantages | rewards_B, groups_B, k -> advantages_B               |
| w_reinforce_advantages | rewards_B, weight -> advantages_B                  |
| gdpo_advantages      | parts_KB (of the reward), weights_K, groups_B ->     |
|                      | advantages_B, of responses of one token              |
| opo_advantages, reinforce_pp_baseline_advantages                            |
|                      | rewards_B, groups_B, mask_BT -> advantages_BT        |
| otb_advantages       | rewards_B, groups_B, logps_BT, squares_BT (sum of    |
|                      | squared probabilities), mask_BT -> advantages_BT     |
| token_advantages     | rewards_B, groups_B, mask_BT -> advantages_BT, of     |
|                      | Dr.GRPO                                              |
| gae                  | rewards_BT, values_BT, mask_BT, gamma, lam ->        |
|                      | returns_BT (A + V, not whitened)                     |
| gae_length_adaptive  | rewards_BT, values_BT, mask_BT, alpha -> returns_BT  |
| kl_reward_returns    | rewards_B, logps_BT, ref_logps_BT, mask_BT, kl_coef, |
|                      | gamma -> returns_BT (to go, of the k1 penalty and    |
|                      | the outcome, not whitened)                           |
| reinforce_pp_advantages | the same -> advantages_BT, whitened               |
| whiten               | values_BT, mask_BT -> values_BT                      |
| m2po_weights         | old_logps_BT, sampler_logps_BT, advantages_BT,       |
|                      | mask_BT, threshold -> weights_BT                     |
| policy_loss          | see below -> loss, grad_BT (by logps_BT)             |
| logged_loss          | as policy_loss -> loss, as the library logs it       |
| positive_nll         | logps_BT, correct_B, mask_BT, micro_batches -> loss, |
|                      | grad_BT                                              |
| kl_loss              | logps_BT, ref_logps_BT, mask_BT, kind -> loss        |
|                      | (mean over tokens), grad_BT                          |
| kl_gradient          | probs_V, ref_probs_V, choice -> grad_V, by the       |
|                      | logits (`expected_gradient`)                         |
| value_loss           | values_BT, old_values_BT, returns_BT, mask_BT, clip  |
|                      | -> loss (mean over tokens)                           |
| token_logps          | logits_NV, tokens_N, temperature -> logps_N          |
| entropy              | logits_NV -> entropy_N                               |
| soft_overlong        | token_ids, texts, max_tokens, buffer -> rewards_B    |
| groups_with_signal   | correct_B, rewards_B, groups_B -> keep_N             |
| chosen_prompts       | signal_N, finished_at_N, wanted -> prompts           |
| keeps_old_logps      | updates_per_rollout -> kept                          |

policy_loss: logps_BT, old_logps_BT, advantages_BT, mask_BT, reduction (of
`rl_reason.algorithms.reductions`), clip_low, clip_high; optionally kind
('gspo'; 'cispo', with ratio_max in place of the bounds; or a function of
`rl_reason.algorithms.surrogate_variants`, with its keywords), dual_clip,
groups_B, micro_batches (rows of each), and sampler_logps_BT with correction
(its kind, 'tis' or 'icepop', and bounds). The maximal response length is T.
"""

import numpy as np


def expected_gradient(probs_V, token_grads_V):
  """Gradient by the logits of sum p(x) f(log p(x)), without that of p.

  Args:
    probs_V: of the policy, which samples.
    token_grads_V: d f / d log p of each token.
  """
  return probs_V * (token_grads_V - np.sum(probs_V * token_grads_V))


def four_rows(*probs_V):
  """Log-probs of each distribution as four equal rows of a batch, float32."""
  return [np.tile(np.log(x), (4, 1)).astype(np.float32) for x in probs_V]
