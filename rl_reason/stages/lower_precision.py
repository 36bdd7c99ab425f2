"""The policy in the precision of an export, and what the precision costs."""

import collections
import functools
import json
import pathlib
from typing import Any

import jax
import numpy as np

from rl_reason.algorithms import kl
from rl_reason.base.structs import Rollouts, Tree
from rl_reason.data import pipelines, tokenizer
from rl_reason.devices import sharding
from rl_reason.hf import quantization
from rl_reason.stages import build_step
from rl_reason.stages.model import Model
from rl_reason.stages.run_output import Output
from rl_reason.training import packing

RESPONSES = 64  # the newest ones of samples.jsonl, for the cost
LINES = 512  # of samples.jsonl, read for them
STAGES = ("rl", "evaluate")  # whose lines are responses of the policy


def rounded(c, policy: Tree, model: Model) -> Tree:
  """The policy as an export of c.export.precision has it.

  Args:
    c: the config; a precision other than 'same'.
    policy: its weights are arrays, which are donated.
    model: its shape.
  """
  where = jax.tree.map(lambda x: x.sharding, policy)
  program = functools.partial(
      quantization.rounded, cfg=model.cfg, precision=c.export.precision
  )
  return jax.jit(program, out_shardings=where, donate_argnums=0)(policy)


def cost(c, policy: Tree, model: Model, output: Output, tok: Any) -> str:
  """One line on how far the precision moves log-probs of the run's responses.

  The responses are the newest ones that the run logged, held-out ones among
  them. The line has the mean of |log p of the policy - log p of the export|
  over their tokens, and the KL between the two by the estimator k3.

  Args:
    c: the config; a precision other than 'same'.
    policy: its weights are arrays, which are donated.
    model: its shape, and the devices.
    output: work directory and screen.
    tok: the tokenizer.
  """
  precision = c.export.precision
  evaluate = (
      "--stage=evaluate with --config.export.precision="
      f"{precision} measures its held-out accuracy"
  )
  shards = sharding.num_shards(model.mesh, "batch")
  path = output.workdir / "samples.jsonl"
  rows = responses(path, tok, c.rollout, shards)
  if rows is None:
    return (
        f"{precision}: the run has logged no responses on which log-probs could"
        f" be compared; {evaluate}"
    )
  logps = build_step.logps(c, model.cfg, model.mesh, output.display)
  packed_rows = build_step.packed_rows(c, model.mesh)
  plan = packing.plan(rows, packed_rows=packed_rows, minibatches=1)
  before_BT, *_ = logps(policy, plan)
  after_BT, *_ = logps(rounded(c, policy, model), plan)
  mask_BT = rows.mask_BT
  gap = np.abs(before_BT - after_BT)[mask_BT].mean()
  divergence = np.asarray(kl.k3(before_BT, after_BT))[mask_BT].mean()
  return (
      f"{precision} changes the log-probs of {mask_BT.sum():,} tokens of the"
      f" run's {mask_BT.any(1).sum()} newest responses by {gap:.2g} nats on"
      f" average (KL {divergence:.2g} nats per token); {evaluate}"
  )


def responses(
    path: pathlib.Path, tok: Any, limits: Any, shards: int
) -> Rollouts | None:
  """The newest responses of samples.jsonl as rows; None without any.

  Args:
    path: of samples.jsonl.
    tok: the tokenizer.
    limits: has max_prompt and max_tokens; longer responses are cut.
    shards: divides the number of rows: rows with an empty mask come last.
  """
  if not path.exists():
    return None
  with path.open(errors="replace") as f:
    text = collections.deque((x for x in f if x.endswith("\n")), LINES)
  lines = [x for x in map(json.loads, text) if x["stage"] in STAGES]
  lines = [x for x in lines if x["response"]][-RESPONSES:]
  if not lines:
    return None
  texts = tokenizer.encode_after(tok, [x["response"] for x in lines])
  end = tokenizer.response_ends(tok).ids[-1]
  ends = [[] if x["truncated"] else [end] for x in lines]
  rows = [
      (x + end)[: limits.max_tokens] for x, end in zip(texts, ends, strict=True)
  ]
  padding = -len(rows) % shards
  rows += [[]] * padding
  asked = [x["prompt"] for x in lines + lines[-1:] * padding]
  ids_B, slots = np.arange(len(rows)), limits.max_prompt
  prompts = pipelines.pack_prompts(tok, asked, ids_B, slots)
  lengths_B = np.array([len(x) for x in rows], np.int32)
  mask_BT = np.arange(limits.max_tokens) < lengths_B[:, None]
  tokens_BT = np.full(mask_BT.shape, tok.pad_token_id, np.int32)
  tokens_BT[mask_BT] = np.concatenate(rows)
  return Rollouts(
      tokens_BL=np.concatenate([prompts.tokens_NP, tokens_BT], 1),
      start_B=prompts.start_N,
      ids_B=prompts.ids_N,
      mask_BT=mask_BT,
      logps_BT=np.zeros_like(mask_BT, np.float32),
      lengths_B=lengths_B,
      truncated_B=np.zeros(len(rows), bool),
  )
