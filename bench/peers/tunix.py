"""A worker of tunix on the CPU; see worker.py.

Sampling is its `Sampler`, update and step are those of `GRPOLearner` on one
device. The model is its Qwen2.
"""

import json
import os
import pathlib

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import optax
import transformers
from flax import nnx
from tunix.generate import sampler
from tunix.models.qwen2 import model as qwen2, params as qwen2_params
from tunix.rl import rl_cluster
from tunix.rl.grpo import grpo_learner
from tunix.rl.rollout import base_rollout

from bench import worker


def load(job: dict):
  """Returns model, mesh of one device, and tokenizer of the job."""
  hf_config = json.loads(
      (pathlib.Path(job["weights"]) / "config.json").read_text()
  )
  dtype = jnp.dtype(job["dtype"]).type
  config = qwen2.ModelConfig(
      num_layers=hf_config["num_hidden_layers"],
      vocab_size=hf_config["vocab_size"],
      embed_dim=hf_config["hidden_size"],
      hidden_dim=hf_config["intermediate_size"],
      num_heads=hf_config["num_attention_heads"],
      head_dim=hf_config["head_dim"],
      num_kv_heads=hf_config["num_key_value_heads"],
      rope_theta=int(hf_config["rope_theta"]),
      norm_eps=hf_config["rms_norm_eps"],
      use_tied_embedding=hf_config["tie_word_embeddings"],
      remat_config=getattr(
          qwen2.RematConfig, job["options"].get("remat", "NONE")
      ),
      dtype=dtype,
      param_dtype=dtype,
  )
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), AXES)
  model = qwen2_params.create_model_from_safe_tensors(
      job["weights"], config, mesh, dtype
  )
  return (
      model,
      mesh,
      transformers.PreTrainedTokenizerFast.from_pretrained(job["weights"]),
  )


AXES = ("fsdp", "tp")
ROLES = (
    rl_cluster.Role.ACTOR,
    rl_cluster.Role.REFERENCE,
    rl_cluster.Role.ROLLOUT,
)


class EosAtLimit(nnx.Module):
  """A model that samples EOS exactly at the length limit of each row.

  The limits are a variable of the model, so that new limits need no new
  compilation; nothing else of the sampler is changed.
  """

  def __init__(self, model, prompt: int, eos: int, rows: int):
    self.model, self.prompt, self.eos = model, prompt, eos
    self.config = model.config
    self.limits = nnx.Variable(jnp.zeros(rows, jnp.int32))

  def __call__(self, tokens, positions, cache, attention_mask):
    """Returns logits and cache."""
    logits, cache = self.model(tokens, positions, cache, attention_mask)
    at_end = positions[:, -1] - self.prompt + 2 >= self.limits[...]
    end = jnp.where(at_end, 1e9, -1e9)
    return logits.at[:, -1, self.eos].set(end), cache


def rollout(turns: worker.Turns) -> None:
  """Samples in batches."""
  job = turns.job
  model, mesh, tok = load(job)
  prompts, size = job["prompts"], job["options"]["batch"]
  limits = job["limits"] if job["tail"] else None
  config, slots = model.config, len(prompts[0]) + job["response"]
  if limits:
    model = EosAtLimit(model, len(prompts[0]), tok.eos_token_id, size)
  sample = sampler.Sampler(
      model,
      tok,
      sampler.CacheConfig(
          cache_size=slots,
          num_layers=config.num_layers,
          num_kv_heads=config.num_kv_heads,
          head_dim=config.head_dim,
      ),
  )
  texts = [tok.decode(ids) for ids in prompts]
  # An id outside the vocabulary is never sampled.
  ends = [tok.eos_token_id if limits else config.vocab_size]

  def step() -> dict:
    tokens = 0
    for at in worker.batches(list(range(len(texts))), size):
      if limits:
        model.limits[...] = jnp.array([limits[i] for i in at], jnp.int32)
        sample.transformer_state = nnx.variables(model)
      out = sample(
          [texts[i] for i in at],
          max_generation_steps=job["response"],
          max_prompt_length=len(prompts[0]),
          eos_tokens=ends,
          temperature=1.0,
          top_p=1.0,
          seed=0,
      )
      # The returned tokens leave out EOS.
      tokens += sum(len(x) + bool(limits) for x in out.tokens)
    return dict(tokens=tokens)

  with mesh:
    worker.repeat(turns, step)


def learner(job: dict):
  """Returns a GRPOLearner with its cluster, mesh and tokenizer."""
  model, mesh, tok = load(job)
  rows, group = len(job["prompts"]), job["group"]
  micro = job["options"]["micro"] // group
  prompt, response = len(job["prompts"][0]), job["response"]
  cluster = rl_cluster.RLCluster(
      actor=model,
      tokenizer=tok,
      cluster_config=rl_cluster.ClusterConfig(
          role_to_mesh=dict.fromkeys(ROLES, mesh),
          training_config=rl_cluster.RLTrainingConfig(
              actor_optimizer=optax.chain(
                  optax.clip_by_global_norm(1.0),
                  optax.adamw(job["lr"], weight_decay=0.0),
              ),
              eval_every_n_steps=10**9,
              max_steps=10**9,
              mini_batch_size=rows // group,
              train_micro_batch_size=micro,
              rollout_micro_batch_size=job["options"].get("batch", rows)
              // group,
          ),
          rollout_config=base_rollout.RolloutConfig(
              max_tokens_to_generate=response,
              max_prompt_length=prompt,
              kv_cache_size=prompt + response,
              temperature=1.0,
              top_p=1.0,
              eos_tokens=[model.config.vocab_size],
          ),
      ),
  )
  learner = grpo_learner.GRPOLearner(
      rl_cluster=cluster,
      algo_config=grpo_learner.GRPOConfig(num_generations=group, beta=0.0),
      reward_fns=lambda completions, **_: np.arange(
          len(completions), dtype=float
      ).tolist(),
  )
  return learner, cluster, mesh, tok


def update(turns: worker.Turns) -> None:
  """Runs the cluster's update on the responses of the job."""
  job = turns.job
  _, cluster, mesh, _ = learner(job)
  micro = job["options"]["micro"]
  prompt, response = np.array(job["prompts"]), np.array(job["responses"])
  mask = np.arange(response.shape[1]) < np.array(job["limits"])[:, None]
  advantages = np.array(job["advantages"], np.float32)
  examples = [
      grpo_learner.TrainExample(
          prompt_ids=jnp.array(prompt[at]),
          prompt_mask=jnp.ones(prompt[at].shape, bool),
          completion_ids=jnp.array(response[at]),
          completion_mask=jnp.array(mask[at]),
          advantages=jnp.array(advantages[at]),
          ref_per_token_logps=None,
          old_per_token_logps=None,
      )
      for at in worker.batches(list(range(len(prompt))), micro)
  ]

  def step() -> dict:
    cluster.update_actor(examples, None)
    jax.block_until_ready(nnx.state(cluster.actor_trainer.model))
    return {}

  with mesh:
    worker.repeat(turns, step)


def rl_step(turns: worker.Turns) -> None:
  """The learner's loop; a turn is from one batch of prompts to the next."""
  job = turns.job
  made, _, mesh, tok = learner(job)
  texts = [tok.decode(ids) for ids in job["prompts"][:: job["group"]]]

  def prompts():
    while turns.begin():
      yield dict(prompts=texts)
      turns.end()

  with mesh:
    made.train(prompts())


if __name__ == "__main__":
  worker.serve(dict(rollout=rollout, update=update, rl_step=rl_step))
