"""TRL's side of the comparison, in the peer's environment.

Reads a job from stdin and writes JSON: the defaults of `GRPOConfig`, and what
`GRPOTrainer` logged in steps on given completions and rewards. The trainer
computes everything else: advantages, loss, clipping, schedule and optimizer.
"""

import dataclasses
import json
import logging
import os
import sys
import tempfile

import datasets
import torch
import transformers
import trl


def defaults() -> dict:
  """Returns the default of each field of `GRPOConfig`."""
  return {
      x.name: x.default_factory()
      if x.default is dataclasses.MISSING
      else x.default
      for x in dataclasses.fields(trl.GRPOConfig)
  }


def steps(job: dict) -> list[dict]:
  """Trains on the completions of each step; saves the model in job['out'].

  Args:
    job: weights, out; lr, the only default that is changed; prompts, one of
      token ids for each step; completions and rewards, [step][completion].
  """
  transformers.logging.set_verbosity_error()
  transformers.utils.logging.disable_progress_bar()
  logging.disable(logging.WARNING)
  model = transformers.AutoModelForCausalLM.from_pretrained(
      job["weights"], dtype=torch.float32
  )
  tok = transformers.PreTrainedTokenizerFast.from_pretrained(job["weights"])
  done = iter(range(len(job["prompts"])))
  current = []

  def rollout(prompts, trainer):
    step = next(done)
    current[:] = job["rewards"][step]
    ids = job["completions"][step]
    return dict(
        prompt_ids=[job["prompts"][step]] * len(prompts),
        completion_ids=ids,
        logprobs=[[0.0] * len(x) for x in ids],
    )

  with tempfile.TemporaryDirectory() as scratch:
    args = trl.GRPOConfig(
        output_dir=scratch,
        learning_rate=job["lr"],
        max_steps=len(job["prompts"]),
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = trl.GRPOTrainer(
        model=model,
        args=args,
        processing_class=tok,
        reward_funcs=lambda completions, **_: list(current),
        rollout_func=rollout,
        train_dataset=datasets.Dataset.from_list([dict(prompt="t2")] * 8),
    )
    trainer.train()
  model.save_pretrained(job["out"])
  return [
      {k: x[k] for k in ("learning_rate", "grad_norm")}
      for x in trainer.state.log_history
      if "grad_norm" in x
  ]


def main() -> None:
  """Runs the job of stdin."""
  os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
  job = json.load(sys.stdin)
  out, sys.stdout = sys.stdout, sys.stderr  # the trainer prints its logs
  result = dict(
      versions=dict(
          trl=trl.__version__,
          transformers=transformers.__version__,
          torch=torch.__version__,
      ),
      defaults=defaults(),
      steps=steps(job),
  )
  json.dump(result, out)


if __name__ == "__main__":
  main()
