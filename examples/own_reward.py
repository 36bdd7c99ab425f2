"""One GRPO step on a reward of your own: python examples/own_reward.py."""

import jax
import numpy as np
import optax

from rl_reason.algorithms import advantages, objective, reductions, surrogates
from rl_reason.data import pipelines, tokenizer
from rl_reason.models import decoder
from rl_reason.rollout import sampler
from rl_reason.training import optimizer, packing, step

# A fresh policy samples eight responses of 16 tokens to each prompt.
PROMPTS, P = ["1+2=", "3+4=", "9-5="], 8
tok = tokenizer.characters("0123456789+-=")
shape = dict(layers=2, width=64, heads=4, kv_heads=2, head_dim=16, mlp=128)
cfg, tx = decoder.ModelConfig(len(tok), **shape), optax.adamw(1e-3)
params = decoder.init(cfg, jax.random.key(0))
prompts = pipelines.pack_prompts(tok, PROMPTS, range(len(PROMPTS)), P)
static = dict(cfg=cfg, eos=(tok.eos_token_id,), pad=tok.pad_token_id)
static |= dict(group_size=8, max_tokens=16)
rollouts = sampler.sample(params, prompts, jax.random.key(1), **static)
rollouts = jax.device_get(rollouts)

# Your reward: the share of digits in the text. Then GRPO's advantage.
texts = tokenizer.decode(tok, rollouts.tokens_BL[:, P:], rollouts.lengths_B)
rewards_B = np.float32([np.mean([x.isdigit() for x in f"{t} "]) for t in texts])
advantages_B = advantages.group_norm(rewards_B, rollouts.ids_B)

# One optimizer step on all responses, in micro-batches of eight packed rows.
rows = step.graded(rollouts, correct_B=np.zeros_like(rewards_B))
batch = step.train_batch(rows, dict(advantages_BT=advantages_B[:, None]))
plan = packing.plan(rollouts, packed_rows=8, minibatches=1)
grpo = objective.Objective(surrogates.ppo, reductions.seq_mean_token_mean)
static = dict(cfg=cfg, tx=tx, temperature=1.0, objective=grpo)
update = jax.jit(lambda *args: step.rl_update(*args, **static))
state = optimizer.first_state(params, tx)
data, coefs = step.minibatches(None, batch, plan), dict(kl=0, entropy=0)
state, metrics = update(state, *data, coefs)
print(f"reward {rewards_B.mean():.3f}, gradient {metrics['grad_norm']:.3f}")
