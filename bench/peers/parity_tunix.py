"""tunix's side of the study `parity_run`, in the peer's environment.

Reads a job from stdin, runs `GRPOLearner` through its public interface, and
writes the metrics of each rollout as JSON.
"""

import dataclasses
import importlib.metadata
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from tunix.rl import common, rl_cluster
from tunix.rl.grpo import grpo_learner
from tunix.rl.rollout import base_rollout, vanilla_rollout

from bench.peers import parity_reward, tunix as worker_of_tunix


class WithEos(vanilla_rollout.VanillaRollout):
  """The vanilla rollout, whose finished responses keep their EOS.

  tunix cuts EOS from the tokens of a response, so that the loss lacks it.
  """

  def __init__(self, rollout_actor, tokenizer, mesh, rollout_config):
    self.mesh = mesh
    config = rollout_actor.config
    super().__init__(
        rollout_actor,
        tokenizer,
        cache_config_or_size=base_rollout.CacheConfig(
            cache_size=rollout_config.kv_cache_size,
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
        ),
    )

  def generate(self, prompts, rollout_config, **kwargs):
    """Generates responses."""
    out = super().generate(prompts, rollout_config, **kwargs)
    most = rollout_config.max_tokens_to_generate
    tokens = [
        np.append(x, self.eos_id()) if len(x) < most else x for x in out.tokens
    ]
    return dataclasses.replace(out, tokens=tokens)


def train(job: dict[str, Any]) -> dict[str, Any]:
  """Trains on the prompts of the job, in their order.

  Args:
    job: weights, a directory; rows, dicts with prompt and answer, those of each
      rollout in turn; options: rollouts, prompts (of a rollout), group,
      iterations, tokens, prompt_tokens, lr, seed, and eos: whether the loss has
      the EOS of responses; out: whether samples and log-probs are returned.

  Returns:
    log: reward, length with EOS, and share of truncated responses of each
    rollout; prompts: those that each call of the reward function was about;
    seconds. With `out`, too: sampled, the prompts, completions and rewards of
    each rollout, in tokens; logps, of the tokens of the last rollout after
    training.
  """
  options, rows = job["options"], job["rows"]
  model, mesh, tok = worker_of_tunix.load(
      dict(weights=job["weights"], dtype="float32", options={})
  )
  prompts, group, most = (options[x] for x in ("prompts", "group", "tokens"))
  rollout = base_rollout.RolloutConfig(
      max_tokens_to_generate=most,
      max_prompt_length=options["prompt_tokens"],
      kv_cache_size=options["prompt_tokens"] + most,
      temperature=1.0,
      top_p=1.0,
      eos_tokens=[tok.eos_token_id],
  )
  cluster = rl_cluster.RLCluster(
      actor=model,
      tokenizer=tok,
      cluster_config=rl_cluster.ClusterConfig(
          role_to_mesh=dict.fromkeys(worker_of_tunix.ROLES, mesh),
          rollout_engine=WithEos if options["eos"] else "vanilla",
          training_config=rl_cluster.RLTrainingConfig(
              actor_optimizer=optax.chain(  # the defaults of TRL
                  optax.clip_by_global_norm(1.0),
                  optax.adamw(options["lr"], b2=0.999, weight_decay=0.0),
              ),
              eval_every_n_steps=10**9,
              max_steps=10**9,
              mini_batch_size=prompts,
              train_micro_batch_size=prompts,
              rollout_micro_batch_size=prompts,
              compute_logps_micro_batch_size=prompts,
          ),
          rollout_config=rollout,
      ),
  )
  asked, log = [], []
  sampled = dict(prompts=[], completions=[], rewards=[])
  generate = cluster.rollout.generate

  def recorded(texts, config, **kwargs):
    out = generate(texts, config, **kwargs)
    sampled["prompts"].append(tok([str(x) for x in texts])["input_ids"])
    sampled["completions"].append([x.tolist() for x in out.tokens])
    return out

  cluster.rollout.generate = recorded

  def correct(prompts, completions, answer, **columns):
    asked.append(list(dict.fromkeys(map(str, prompts))))
    rewards = parity_reward.correct(completions, answer, **columns)
    sampled["rewards"].append(rewards)
    # A token is a character, and EOS is none.
    lengths = [min(len(x) + 1, most) for x in completions]
    cut = [len(x) >= most for x in completions]
    log.append(
        dict(
            reward=float(np.mean(rewards)),
            length=float(np.mean(lengths)),
            truncated=float(np.mean(cut)),
        )
    )
    return rewards

  learner = grpo_learner.GRPOLearner(
      rl_cluster=cluster,
      algo_config=grpo_learner.GRPOConfig(
          num_generations=group,
          num_iterations=options["iterations"],
          beta=0.0,
          epsilon=0.2,
          loss_agg_mode="token-mean",
      ),
      reward_fns=correct,
  )

  def batches() -> Iterator[dict[str, np.ndarray]]:
    for number in range(options["rollouts"]):
      # Else all rollouts of all runs would have the same noise.
      rollout.seed = jax.random.fold_in(jax.random.key(options["seed"]), number)
      part = rows[number * prompts : (number + 1) * prompts]
      yield dict(
          prompts=np.array([x["prompt"] for x in part]),
          answer=np.array([x["answer"] for x in part]),
      )

  start = time.perf_counter()
  with mesh:
    learner.train(batches())
    seconds = time.perf_counter() - start
    found = dict(log=log, prompts=asked, seconds=seconds)
    if job["out"]:
      trained = cluster.actor_trainer.model
      logps = _logps(trained, sampled, tok, options)
      found |= dict(sampled=sampled, logps=logps)
  return found


def _logps(model, sampled: dict, tok, options: dict) -> list[list[float]]:
  """The log-probs of the completions of the last rollout."""
  slots, most, pad = (
      options["prompt_tokens"],
      options["tokens"],
      tok.pad_token_id,
  )
  ids = sampled["completions"][-1]
  logps_BT = common.compute_per_token_logps(
      *nnx.split(model),
      prompt_tokens=np.array(
          [[pad] * (slots - len(x)) + x for x in sampled["prompts"][-1]]
      ),
      completion_tokens=np.array([x + [pad] * (most - len(x)) for x in ids]),
      pad_id=pad,
      eos_id=tok.eos_token_id,
  )
  rows = zip(np.asarray(logps_BT).tolist(), ids, strict=True)
  return [logps[: len(x)] for logps, x in rows]


def main() -> None:
  """Runs the job of stdin."""
  job = json.load(sys.stdin)
  out, sys.stdout = sys.stdout, sys.stderr
  names = {"tunix": "google-tunix", "jax": "jax", "flax": "flax"}
  versions = {x: importlib.metadata.version(y) for x, y in names.items()}
  json.dump(train(job) | dict(versions=versions), out)


if __name__ == "__main__":
  main()
