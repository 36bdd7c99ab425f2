"""GRPO on a reward of your own: python examples/own_reward.py."""

import jax
import numpy as np
import optax

from rl_reason.algorithms import advantages, objective, reductions, surrogates
from rl_reason.collect import experience
from rl_reason.data import pipelines, tokenizer
from rl_reason.models import decoder
from rl_reason.rollout import sampler
from rl_reason.training import optimizer, packing, step

PROMPTS, P = ["1+2=", "3+4=", "9-5=", "7+8="], 8
tok = tokenizer.characters("0123456789+-=")
shape = dict(layers=2, width=64, heads=4, kv_heads=2, head_dim=16, mlp=128)
cfg, tx = decoder.ModelConfig(len(tok), **shape), optax.adamw(2e-3)
state = optimizer.first_state(decoder.init(cfg, jax.random.key(0)), tx)
state = jax.device_put(state, jax.devices()[0])  # where updates leave it
prompts = pipelines.pack_prompts(tok, PROMPTS, range(len(PROMPTS)), P)
kwargs = dict(eos=(tok.eos_token_id,), pad=tok.pad_token_id)
kwargs |= dict(cfg=cfg, group_size=8, max_tokens=16)
loss = objective.Objective(surrogates.ppo, reductions.token_mean)
static = dict(cfg=cfg, tx=tx, temperature=1.0, objective=loss)
advantage = jax.jit(advantages.group_norm)
update = jax.jit(lambda *args: step.rl_update(*args, **static))

for n, key in enumerate(jax.random.split(jax.random.key(1), 10)):
  # Rollout: eight responses to each prompt. The reward: the share of digits.
  out = jax.device_get(sampler.sample(state.params, prompts, key, **kwargs))
  texts = tokenizer.decode(tok, out.tokens_BL[:, P:], out.lengths_B)
  rewards = [np.mean([x.isdigit() for x in text or " "]) for text in texts]
  rewards_B = np.float32(rewards)
  # GRPO's advantage, and one optimizer step in micro-batches of packed rows.
  advantages_B = advantage(rewards_B, out.ids_B)
  rows = experience.graded(out, correct_B=rewards_B == 1)
  batch = step.train_batch(rows, dict(advantages_BT=advantages_B[:, None]))
  plan = packing.plan(out, packed_rows=8, minibatches=1)
  data = step.minibatches(None, batch, plan)
  state, metrics = update(state, *data, dict(kl=0, entropy=0))
  print(f"step {n}: reward {rewards_B.mean():.3f}, loss {metrics['loss']:+.4f}")
