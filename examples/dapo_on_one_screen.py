"""SFT and DAPO on one screen: no config, no mesh, no checkpoints.

  python examples/dapo_on_one_screen.py

The algorithm of `configs/dapo.py`, written to be read: it calls the same public
functions as the training loop, with the same data, noise and losses. A policy
learns to evaluate chains of digits, learns bad habits, and unlearns them by
DAPO (arXiv:2503.14476). About two minutes on 2 CPU cores.
"""

import functools
import itertools

import jax
import numpy as np

from rl_reason import tasks
from rl_reason.algorithms import (
    advantages,
    credit,
    objective,
    reductions,
    surrogates,
)
from rl_reason.collect import dynamic_sampling, experience, grading
from rl_reason.data import pipelines, tokenizer
from rl_reason.devices.randomness import key
from rl_reason.models import decoder
from rl_reason.rollout import sampler
from rl_reason.stages import demonstrations, supervised
from rl_reason.training import packing, step
from rl_reason.training.optimizer import first_state, make_optimizer

SEED = 0
SKILL = dict(careful=1)  # styles of demonstrations, by weight
HABITS = dict(careful=2, leap=2, direct=3, ramble=1, sloppy=2)
MAX_PROMPT, MAX_TOKENS = 12, 48
PACKED_ROWS = 960 // (MAX_PROMPT + MAX_TOKENS)  # in a micro-batch

task = tasks.get("arithmetic")
row_source = pipelines.RowSource(task, "arithmetic", (2, 3, 4, 5, 6), SEED)
tok = tokenizer.load("", task.ALPHABET)
shape = dict(layers=2, width=64, heads=4, kv_heads=2, head_dim=16, mlp=192)
cfg = decoder.ModelConfig(vocab=len(tok), remat="dots", **shape)
adam = dict(b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.0, clip_norm=1.0)
adamw = functools.partial(make_optimizer, warmup=0, **adam)


def sft(params, purpose, styles, *, steps, lr, batch=96):
  """Imitates demonstrations in these styles; yields (params, loss)."""
  tx = adamw(lr=lr, schedule="cosine", total=steps)
  state = first_state(params, tx)
  update = jax.jit(functools.partial(supervised.sft_update, cfg=cfg, tx=tx))
  batches = demonstrations.batches(row_source, purpose, batch, styles)
  for pairs in itertools.islice(batches, steps):
    tokens_BL, start_B, mask_BT = demonstrations.pack(
        tok, pairs, MAX_PROMPT, MAX_TOKENS
    )
    packed = packing.pack(tokens_BL, start_B, mask_BT, PACKED_ROWS)
    state, metrics = update(state, packed, mask_BT)
    yield state.params, float(metrics["loss"])


def dapo(params, *, steps, lr=2e-4, batch=256, group=8, minibatches=8):
  """Trains with DAPO; yields (params, metrics) of each step."""
  tx = adamw(lr=lr, schedule="constant", total=steps * minibatches)
  state = first_state(params, tx)
  _, prompt_stream = row_source.prompts("rollout prompts")

  # The reward is +1 or -1, plus soft overlong punishment (eq 7 and 13). The
  # advantage is relative to the group of the prompt (eq 9).
  reward = functools.partial(
      credit.outcome, max_tokens=MAX_TOKENS, overlong_buffer=4
  )
  assign = functools.partial(credit.assign, advantage=advantages.group_norm)
  credit_program = functools.partial(
      credit.rewards_and_advantages, reward=reward, assign=assign
  )
  credit_program = jax.jit(credit_program)
  # The loss: clip-higher, averaged over all tokens (eq 8).
  loss = objective.Objective(
      functools.partial(surrogates.ppo, clip_high=0.28, dual_clip=10.0),
      reductions.token_mean,
  )
  update = functools.partial(
      step.rl_update, cfg=cfg, tx=tx, temperature=1.0, objective=loss
  )
  update = jax.jit(update)
  logps = step.logps_program(cfg, temperature=1.0)
  random_key = key(None, SEED, "rollout")
  sampling = dict(cfg=cfg, group_size=group, max_tokens=MAX_TOKENS)
  sampling |= dict(eos=(tok.eos_token_id,), pad=tok.pad_token_id)
  refill = dict(batch=batch, group_size=group, enabled=True, max_rounds=10)
  refill |= dict(shortfall="pad")

  def sample_round():
    """Samples and grades the next prompts."""
    drawn = [next(prompt_stream)[0] for _ in range(batch // group)]
    ids, rows = zip(*drawn, strict=True)
    texts = [row.prompt for row in rows]
    prompts = pipelines.pack_prompts(tok, texts, ids, MAX_PROMPT)
    sampled = sampler.sample(state.params, prompts, random_key, **sampling)
    rollouts = jax.device_get(sampled)
    finish = grading.start_grading(task, tok, rollouts, rows)
    _, correct_B, _ = finish()
    return experience.graded(rollouts, correct_B)

  for _ in range(steps):
    # Dynamic sampling: refill until every group has signal (eq 11).
    rows, metrics = dynamic_sampling.fill_batch(sample_round, None, **refill)
    # The trainer computes old log-probs, in the micro-batches of the update.
    plan = packing.plan(
        rows.rollouts, packed_rows=PACKED_ROWS, minibatches=minibatches
    )
    logps_BT, _ = step.forward(None, logps, state.params, plan)
    rows = experience.with_old_logps(rows, logps_BT)
    # Credit, and one optimizer step on each minibatch.
    credited = jax.device_get(credit_program(experience.credit_inputs(rows)))
    data = step.minibatches(None, step.train_batch(rows, credited), plan)
    coefs = dict(kl=np.float32(0), entropy=np.float32(0))
    state, update_metrics = update(state, *data, coefs)
    yield state.params, metrics | jax.device_get(update_metrics)


if __name__ == "__main__":
  params = decoder.init(cfg, key(None, SEED, "parameters"))
  *_, (params, loss) = sft(params, "skill", SKILL, steps=1000, lr=4e-3)
  print(f"SFT, the skill: loss {loss:.3f}")
  *_, (params, loss) = sft(params, "habits", HABITS, steps=80, lr=3e-4)
  print(f"SFT, the habits: loss {loss:.3f}")
  for n, (_, metrics) in enumerate(dapo(params, steps=40), 1):
    accuracy, loss = metrics["train/accuracy"], metrics["loss"]
    print(f"step {n}: accuracy {accuracy:.1%}, loss {loss:+.4f}")
