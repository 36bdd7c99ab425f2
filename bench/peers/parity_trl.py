"""TRL's side of the study `parity_run`, in the peer's environment.

Reads a job from stdin, runs `GRPOTrainer` through its public interface, and
writes the metrics of each rollout as JSON.
"""

import importlib
import json
import logging
import os
import resource
import sys
import tempfile
import time

import datasets
import torch
import transformers
import trl


class Deadline(transformers.TrainerCallback):
  """Ends the training after some CPU time, with a whole step.

  Not after some time of the clock: other programs may share the machine.
  """

  def __init__(self, cpu_seconds: float):
    self.end = time.process_time() + cpu_seconds

  def on_step_end(self, args, state, control, **_):
    """Asks the trainer to stop."""
    control.should_training_stop |= time.process_time() > self.end


def train(job: dict) -> dict:
  """Trains on the prompts of the job, in their order.

  Args:
    job: weights, a directory; rows, dicts with prompt and answer, those of each
      rollout in turn; options, fields of `GRPOConfig`; out, a directory for the
      trained model, or None; threads of torch, default 1; reward, 'module:name'
      of a reward function, default `parity_reward.correct`; cpu_seconds,
      of all threads, after which training ends, default never.

  Returns:
    log: what the trainer logged after each optimizer step; prompts: those that
    each call of the reward function was about; seconds; cpu_seconds;
    memory_gib, the largest resident memory. With `out`, too: sampled, the
    prompts, completions and rewards of each rollout, in tokens.
  """
  torch.set_num_threads(job.get("threads", 1))
  transformers.logging.set_verbosity_error()
  transformers.utils.logging.disable_progress_bar()
  logging.disable(logging.WARNING)
  model = transformers.AutoModelForCausalLM.from_pretrained(
      job["weights"], dtype=torch.float32
  )
  tok = transformers.AutoTokenizer.from_pretrained(job["weights"])
  module, _, name = job.get(
      "reward", "bench.peers.parity_reward:correct"
  ).rpartition(":")
  verifier = getattr(importlib.import_module(module), name)
  asked, sampled = [], dict(prompts=[], completions=[], rewards=[])

  def correct(prompts, completions, answer, completion_ids, **columns):
    rewards = verifier(completions, answer, **columns)
    if isinstance(prompts[0], str):
      asked.append(list(dict.fromkeys(prompts)))
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
    trainer.add_callback(Deadline(job.get("cpu_seconds", float("inf"))))
    start, cpu_start = time.perf_counter(), time.process_time()
    trainer.train()
    times = dict(
        seconds=time.perf_counter() - start,
        cpu_seconds=time.process_time() - cpu_start,
    )
  log = [x for x in trainer.state.log_history if "grad_norm" in x]
  kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  found = dict(log=log, prompts=asked, **times)
  found |= dict(memory_gib=kilobytes / 2**20)
  if job["out"]:
    model.save_pretrained(job["out"])
    tok.save_pretrained(job["out"])
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
