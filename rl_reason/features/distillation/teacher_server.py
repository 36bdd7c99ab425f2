"""A teacher on a server: `kl.reference` is its URL.

The server scores the responses of the policy token by token, which is enough
for a KL that is estimated from the sampled tokens.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from rl_reason.base.errors import ConfigError
from rl_reason.base.structs import Array, Tree
from rl_reason.checks import config_facts
from rl_reason.data import tokenizer
from rl_reason.features.distillation import scoring
from rl_reason.monitoring.display import Display
from rl_reason.training.packing import PackingPlan

PROBES, LENGTH = 16, 32  # texts that compare the tokenizers, and their tokens


def log_probs(
    c, tok: Any, display: Display, prompts: Sequence[str]
) -> Callable[[PackingPlan, Tree, int], Array]:
  """(plan, parameters, step) -> log-probs of the teacher, [B, T].

  Args:
    c: the config.
    tok: the tokenizer of the policy.
    display: shows what happens.
    prompts: some prompts of the run, for the comparison of the tokenizers.

  Raises:
    ConfigError: the server has another tokenizer, or takes shorter rows.
    RunError: it does not answer.
  """
  if jax.process_count() > 1:
    raise ConfigError(
        f"kl.reference = {c.kl.reference!r}: a server is asked by one process:"
        " train on one host, or name a checkpoint"
    )
  scorer = scoring.Scorer(c.kl.reference, say=display.say, **c.kl.server)
  longest, most = config_facts.row_slots(c), scorer.longest or np.inf
  if longest > most:
    raise ConfigError(
        f"kl.reference = {c.kl.reference!r}: takes {most} tokens, and a prompt"
        f" with its response has up to {longest}: start it with --max-model-len"
        f" {longest + 1} (vLLM) or --config.serve.max_prompt={longest}"
        " (--stage=serve); if its model has fewer positions, lower"
        f" rollout.max_prompt or rollout.max_tokens by {longest - most}"
    )
  texts = [*prompts, *probes(tok)]
  encode = lambda found: tokenizer.encode(tok, found)  # noqa: E731
  if difference := scoring.check_tokenizer(scorer, texts, encode):
    raise ConfigError(
        f"kl.reference = {c.kl.reference!r}: has another tokenizer:"
        f" {difference}; use a teacher of the policy's family"
    )
  display.say(f"kl.reference: {scorer.model} of {c.kl.reference}")

  def of(plan: PackingPlan, _: Tree, step: int) -> Array:
    rows, first_B = sequences(plan)
    asked = [b for b, row in enumerate(rows) if row]
    found = scorer.logps([rows[b] for b in asked], f"at step {step + 1} of RL")
    logps_BT = np.zeros((len(rows), c.rollout.max_tokens), np.float32)
    for b, (_, logps) in zip(asked, found, strict=True):
      of_response = logps[first_B[b] - 1 :]  # the first token has none
      logps_BT[b, : len(of_response)] = of_response
    return logps_BT

  return of


def sequences(plan: PackingPlan) -> tuple[list[list[int]], list[int]]:
  """The tokens of each row of a plan, and the number of its prompt's tokens.

  In the order of the rows; [] and 0 for a row that is not packed.
  """
  count = plan.order_MB.max() + 1
  rows: list[list[int]] = [[] for _ in range(count)]
  first = [0] * count
  for m, order_B in enumerate(plan.order_MB[: count // plan.order_MB.shape[1]]):
    tokens_X = plan.packed_M.tokens_RL[m].reshape(-1)
    owner_X = plan.packed_M.segments_RL[m].reshape(-1)
    for number, b in enumerate(order_B):
      places = np.flatnonzero(owner_X == number + 1)
      if len(places):
        rows[b] = tokens_X[places].tolist()
        source = plan.packed_M.source_BT[m, number, 0]
        first[b] = int(source - places[0]) + 1
  return rows, first


def probes(tok: Any) -> list[str]:
  """Texts of tokens from all parts of the vocabulary."""
  special = {*tok.all_special_ids}
  ids = sorted(x for x in tok.get_vocab().values() if x not in special)
  apart = max(len(ids) // (PROBES * LENGTH), 1)
  spread = ids[::apart][: PROBES * LENGTH]
  text = tokenizer.Detokenizer(tok).text
  starts = range(0, len(spread), LENGTH)
  return [text(spread[at : at + LENGTH]) for at in starts]
