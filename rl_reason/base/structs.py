"""The arrays that flow between functions, and the legend of shape letters.

A suffix names the axes of an array in order: `tokens_BL` is `[B, L]`. A module
that uses a letter for another axis says so in its docstring ("Shapes here:
...").

| letter | axis                                        |
|--------|---------------------------------------------|
| N      | prompts                                     |
| G      | samples of one prompt (a group)             |
| B      | rows: one response each, B = N * G          |
| R      | packed rows: several sequences each         |
| P      | prompt tokens, padded on the LEFT           |
| T      | response tokens, padded on the right        |
| L      | P + T                                       |
| M, A   | minibatches, micro-batches of a minibatch   |
| H      | remembered responses of earlier steps       |
| E, U   | terms of the reward, functions among them   |
| V, D   | vocabulary, width of the residual stream    |
| W, X   | shards of the rows, places of a shard       |
| K, Q   | key/value heads, query heads per kv head    |
| C, F   | width of a head, of the feed-forward layer  |
| J      | outputs of a value head (bins)              |
| S      | slots of the key/value cache                |
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flax import struct

from rl_reason.base.bounds import (
    NonNegative as NonNegative,
    Positive as Positive,
    UnitInterval as UnitInterval,
)

Array = Any  # a jax.Array on the device, a numpy.ndarray on the host
Tree = Any  # a pytree of arrays

# Of a reward function that returns None: the lowest float32, since what is not
# finite takes the reward from its response.
NO_SCORE = float(np.finfo(np.float32).min)


def call_by_name(function: Callable, inputs: Mapping[str, Any]) -> Any:
  """Calls a function with the inputs that its positional parameters name.

  Keyword-only parameters are the user's: bound before, or left at their
  defaults.
  """
  parameters = inspect.signature(function).parameters.values()
  positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
  return function(*(inputs[p.name] for p in parameters if p.kind is positional))


@struct.dataclass
class Prompts:
  """A batch of prompts.

  Attributes:
    tokens_NP: int32, padded on the left.
    start_N: int32, the first slot that holds a token (= number of pads).
    ids_N: int32, the position of each prompt in the data stream. It seeds the
      noise of its samples, so it must be unique among prompts that share a key.
  """

  tokens_NP: Array
  start_N: Array
  ids_N: Array


@struct.dataclass
class Rollouts:
  """Sampled responses, one row each; rows of a group are adjacent.

  Attributes:
    tokens_BL: int32, the prompt (left-padded) and then the response.
    start_B: int32, first slot that holds a token.
    ids_B: int32, the prompt's id: rows of a group share it.
    mask_BT: bool, the response tokens that the policy chose, EOS included. A
      mask, not a length: observations of an environment are left out.
    logps_BT: float32, the sampler's log-probability of each token at the
      sampling temperature, before top-p.
    lengths_B: int32, response tokens, EOS and observations included.
    truncated_B: bool, no EOS within T tokens.
    record: choices of the model at each token, which the trainer's forward pass
      repeats (see `experts.by_layer`): a pytree of arrays [B, L, ...], -1 where
      nothing is known; None: nothing is recorded.
  """

  tokens_BL: Array
  start_B: Array
  ids_B: Array
  mask_BT: Array
  logps_BT: Array
  lengths_B: Array
  truncated_B: Array
  record: Tree | None = None

  @property
  def policy_lengths_B(self) -> Array:
    """Tokens that the policy chose, [B]; 0 in rows of padding."""
    return self.mask_BT.sum(1, dtype=self.lengths_B.dtype)


@struct.dataclass
class Steps:
  """Process rewards: rewards of the steps of responses.

  Attributes:
    rewards_EBT: float32, a tuple of [B, T], one for each term of
      reward.functions: the reward of each step at its last token, else 0.
    judged_EB: bool, a tuple of [B]: whether the term has given a response
      rewards by step; their sum is its score.
    ends_BT: bool, the last token of each step.
    returns_BT: float32, where a step ends before the response does, the mean
      reward of continuations of this prefix; zeros without continuations.
  """

  rewards_EBT: tuple[Array, ...]
  judged_EB: tuple[Array, ...]
  ends_BT: Array
  returns_BT: Array


@struct.dataclass
class Shared:
  """Prompts of packed rows, once for all responses that follow in the row.

  The last token of a prompt is not shared: each response begins with a copy,
  which predicts its first token.

  Attributes:
    prompt_RL2: int32, where in its row the prompt of each token begins and
      ends; the token sees it too.
    copies_RL: int32, sequences that a token is part of; 0 for padding.
    longest: tokens of the longest prompt and of the longest response; static.
  """

  prompt_RL2: Array
  copies_RL: Array
  longest: tuple[int, int] = struct.field(pytree_node=False)


@struct.dataclass
class Packed:
  """Rows laid end to end: what a forward pass reads.

  Shapes are of a micro-batch. In a minibatch, all arrays but source_BT have an
  axis A before R, and source_BT counts places from the first micro-batch on.

  Attributes:
    tokens_RL: int32, several sequences a row, then zeros.
    positions_RL: int32, of each token in its sequence.
    segments_RL: int32, tokens of one sequence share a number; 0 is padding.
    source_BT: int32, place (r * L + l) of the token BEFORE each response token,
      which predicts it; past the end of a response, the entry of its first
      token.
    record: of `Rollouts`, of each token: arrays [R, L, ...]; None: nothing is
      recorded.
    further: a pytree of arrays [R, L] of a feature; None: there are none.
    shared: the prompts that responses of a row share; None: each sequence has a
      segment with a prompt of its own.
  """

  tokens_RL: Array
  positions_RL: Array
  segments_RL: Array
  source_BT: Array
  record: Tree | None = None
  further: Tree | None = None
  shared: Shared | None = None


@struct.dataclass
class Experience:
  """Rollouts with grades and old log-probabilities (those of pi_old).

  Attributes:
    rollouts: B rows.
    correct_B: float32 in {0, 1}, the verifier's verdict; -1 where it failed.
    scores_EB: float32, a tuple of [B], one for each term of reward.functions;
      `NO_SCORE`, or NaN where the response leaves the loss.
    old_logps_BT: float32, log-probabilities of pi_old: by the trainer's forward
      pass if it makes one, else by the sampler.
    stale_lengths_B: int32, leading response tokens that an older policy sampled
      and whose old_logps_BT are the sampler's: all or none.
    age_B: int32, RL steps since sampling of the row began: 0 for new rows, more
      for groups of earlier steps; -1 marks padding.
    types_B: int32, the problem type, by rollout.types (`PromptStream.types`).
    problems_B: int32, a hash of the prompt: equal prompts have equal hashes in
      all steps.
    turns: of responses with several turns: arrays of a feature, whose `inputs`
      names those that credit reads; None: responses have one turn.
    steps: with process rewards; None: without.
  """

  rollouts: Rollouts
  correct_B: Array
  scores_EB: tuple[Array, ...]
  old_logps_BT: Array
  stale_lengths_B: Array
  age_B: Array
  types_B: Array
  problems_B: Array
  turns: Tree | None = None
  steps: Steps | None = None


@struct.dataclass
class Batch:
  """The rows of one RL step; split into minibatches, with a leading axis M.

  Their tokens are in `Packed`.

  Attributes:
    groups_B: int32, rows of one prompt share an id.
    mask_BT: bool, tokens that enter the loss.
    advantages_BT: float32.
    old_logps_BT, ref_logps_BT: float32; the reference is zeros if unused.
    correct_B: float32 in {0, 1}, or -1 where the verifier failed, whose mask is
      empty; a positive-example LM loss reads it.
    staleness_B: int32, optimizer steps between the sampling of the row and
      this batch; -1 for padding.
    values_BT, returns_BT: float32, the critic's values before the update and
      its targets; zeros without a critic.
    sampler_logps_BT: float32, for a surrogate that reads them and other
      old_logps_BT; else None.
  """

  groups_B: Array
  mask_BT: Array
  advantages_BT: Array
  old_logps_BT: Array
  ref_logps_BT: Array
  correct_B: Array
  staleness_B: Array
  values_BT: Array
  returns_BT: Array
  sampler_logps_BT: Array | None = struct.field(default=None, kw_only=True)


@struct.dataclass
class TrainState:
  """The state that an update reads and returns.

  Attributes:
    params: trained parameters in fp32; see `learned_parameters.Learned.table`.
    opt_state: of the optax optimizer.
    step: int32 scalar, completed steps of the stage.
    skipped: int32 scalar, skipped updates: the gradient was not finite, or no
      token had weight in the loss.
  """

  params: Tree
  opt_state: Tree
  step: Array
  skipped: Array
