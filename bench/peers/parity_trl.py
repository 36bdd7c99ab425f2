"""TRL's side of `python -m bench.parity_run`, in the peer's environment.

Reads a job from stdin, runs `GRPOTrainer` through its public interface, and
writes the metrics of each rollout as JSON.
"""

import json
import logging
import os
import sys
import tempfile
import time

import datasets
import torch
import transformers
import trl

from bench.peers import parity_reward


def train(job: dict) -> dict:
  """Trains on the prompts of the job, in their order.

  Args:
    job: weights, a directory; rows, dicts with prompt and answer, those of each
      rollout in turn; options, fields of `GRPOConfig`; out, a directory for the
      trained model, or None.

  Returns:
    log: what the trainer logged after each optimizer step; prompts: those that
    each call of the reward function was about; seconds. With `out`, too:
    sampled, the prompts, completions and rewards of each rollout, in tokens.
  """
  torch.set_num_threads(1)
  transformers.logging.set_verbosity_error()
  transformers.utils.logging.disable_progress_bar()
  logging.disable(logging.WARNING)
  model = transformers.AutoModelForCausalLM.from_pretrained(
      job["weights"], dtype=torch.float32
  )
  tok = transformers.AutoTokenizer.from_pretrained(job["weights"])
  asked, sampled = [], dict(prompts=[], completions=[], rewards=[])

  def correct(prompts, completions, answer, completion_ids, **columns):
    asked.append(list(dict.fromkeys(prompts)))
    rewards = parity_reward.correct(completions, answer, **columns)
    sampled["prompts"].append(tok(prompts)["input_ids"])
    sampled["completions"].append(completion_ids)
    sampled["rewards"].append(rewards)
    return rewards

  with tempfile.TemporaryDirectory() as scratch:
    trainer = trl.GRPOTrainer(
        model=model,
        args=trl.GRPOConfig(
            output_dir=scratch,
            logging_steps=1,
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
            **job["options"],
        ),
        processing_class=tok,
        reward_funcs=correct,
        train_dataset=datasets.Dataset.from_list(job["rows"]),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start
  log = [x for x in trainer.state.log_history if "grad_norm" in x]
  found = dict(log=log, prompts=asked, seconds=seconds)
  if job["out"]:
    model.save_pretrained(job["out"])
    found |= dict(sampled=sampled)
  return found


def main() -> None:
  """Runs the job of stdin."""
  os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
  job = json.load(sys.stdin)
  out, sys.stdout = sys.stdout, sys.stderr  # the trainer prints its logs
  versions = dict(
      trl=trl.__version__,
      transformers=transformers.__version__,
      torch=torch.__version__,
  )
  json.dump(train(job) | dict(versions=versions), out)


if __name__ == "__main__":
  main()
