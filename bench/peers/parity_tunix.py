"""tunix's side of `python -m bench.parity_run`, in the peer's environment.

Reads a job from stdin, runs `GRPOLearner` through its public interface, and
writes the metrics of each rollout as JSON.
"""

import dataclasses
import json
import sys
import time
from importlib import metadata

import numpy as np
import optax
from tunix.rl import rl_cluster
from tunix.rl.grpo import grpo_learner
from tunix.rl.rollout import base_rollout

from bench.peers import parity_reward, tunix


class Repaired:
  """A rollout engine whose keys differ by call and whose tokens have EOS.

  Args:
    engine: the engine of tunix.
    seed: of the keys.
    keys: whether each call has its own key.
    eos: whether a response that ended has its EOS.
  """

  def __init__(self, engine, seed: int, *, keys: bool, eos: bool):
    self._engine, self._eos = engine, eos
    self._seeds = np.random.default_rng(seed) if keys else None

  def __getattr__(self, name):
    return getattr(self._engine, name)

  def generate(self, prompts, config, **options):
    """Calls the engine."""
    if self._seeds is not None:
      seed = int(self._seeds.integers(2**31))
      config = dataclasses.replace(config, seed=seed)
    out = self._engine.generate(prompts, config, **options)
    if not self._eos:
      return out
    limit, end = config.max_tokens_to_generate, [self._engine.eos_id()]
    tokens = [
        np.concatenate([x, end]).astype(np.int32) if len(x) < limit else x
        for x in map(np.asarray, out.tokens)
    ]
    return dataclasses.replace(out, tokens=tokens)


def train(job: dict) -> dict:
  """Trains on the prompts of the job, in their order.

  Args:
    job: weights, a directory; rows, dicts with prompt and answer, those of each
      rollout in turn; prompts, of a rollout; seed, group, epochs, max_prompt,
      max_tokens, lr; keys and eos, see `Repaired`.

  Returns:
    log: reward, length and share of truncated responses of each rollout;
    prompts: those that each call of the reward function was about; seconds.
  """
  asked, log = [], []
  model, mesh, tok = tunix.load(job | dict(dtype="float32", options={}))
  count, group = job["prompts"], job["group"]
  cluster = rl_cluster.RLCluster(
      actor=model,
      tokenizer=tok,
      cluster_config=rl_cluster.ClusterConfig(
          role_to_mesh=dict.fromkeys(tunix.ROLES, mesh),
          training_config=rl_cluster.RLTrainingConfig(
              actor_optimizer=optax.chain(
                  optax.clip_by_global_norm(1.0),
                  optax.adamw(job["lr"], b1=0.9, b2=0.999, weight_decay=0.0),
              ),
              eval_every_n_steps=10**9,
              max_steps=10**9,
              mini_batch_size=count,
              train_micro_batch_size=count,
              rollout_micro_batch_size=count,
              compute_logps_micro_batch_size=count,
          ),
          rollout_config=base_rollout.RolloutConfig(
              max_tokens_to_generate=job["max_tokens"],
              max_prompt_length=job["max_prompt"],
              kv_cache_size=job["max_prompt"] + job["max_tokens"],
              temperature=1.0,
              top_p=1.0,
              seed=job["seed"],
              eos_tokens=[tok.eos_token_id],
          ),
      ),
  )
  if job["keys"] or job["eos"]:
    engine = cluster.rollout
    cluster._rollout = Repaired(  # pylint: disable=protected-access
        engine, job["seed"], keys=job["keys"], eos=job["eos"]
    )

  def correct(prompts, completions, answer, **columns):
    asked.append(list(dict.fromkeys(map(str, prompts))))
    rewards = parity_reward.correct(completions, answer, **columns)
    lengths = [len(x) + 1 for x in tok(list(completions))["input_ids"]]
    log.append(
        dict(
            reward=float(np.mean(rewards)),
            length=float(np.minimum(lengths, job["max_tokens"]).mean()),
            truncated=float((np.array(lengths) > job["max_tokens"]).mean()),
        )
    )
    return rewards

  learner = grpo_learner.GRPOLearner(
      rl_cluster=cluster,
      algo_config=grpo_learner.GRPOConfig(
          num_generations=group,
          num_iterations=job["epochs"],
          beta=0.0,
          epsilon=0.2,
          loss_agg_mode="token-mean",
      ),
      reward_fns=correct,
  )
  rows = job["rows"]
  batches = [rows[i : i + count] for i in range(0, len(rows), count)]
  start = time.perf_counter()
  with mesh:
    learner.train(
        [
            dict(
                prompts=[x["prompt"] for x in batch],
                answer=[x["answer"] for x in batch],
            )
            for batch in batches
        ]
    )
  return dict(log=log, prompts=asked, seconds=time.perf_counter() - start)


def main() -> None:
  """Runs the job of stdin."""
  job = json.load(sys.stdin)
  out, sys.stdout = sys.stdout, sys.stderr  # the learner prints
  names = ("google-tunix", "jax", "flax", "transformers")
  versions = {name: metadata.version(name) for name in names}
  json.dump(train(job) | dict(versions=versions), out)


if __name__ == "__main__":
  main()
