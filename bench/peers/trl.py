"""A worker of TRL on the CPU build of torch; see worker.py.

Sampling is `generate` of transformers with the arguments of GRPOTrainer, or
its continuous batching; update and step are GRPOTrainer's own loop. Callbacks
of the trainer begin and end a turn.
"""

import contextlib
import functools
import logging
import os
import tempfile

import datasets
import numpy as np
import torch
import transformers
import trl

from bench import worker

PAGE = 64  # tokens of a block of continuous batching's cache


def load(job: dict):
  """Returns model and tokenizer of the job."""
  transformers.logging.set_verbosity_error()
  transformers.utils.logging.disable_progress_bar()
  logging.disable(logging.WARNING)
  model = transformers.AutoModelForCausalLM.from_pretrained(
      job["weights"],
      dtype=getattr(torch, job["dtype"]),
      attn_implementation="sdpa",
  )
  return model, transformers.PreTrainedTokenizerFast.from_pretrained(
      job["weights"]
  )


class EosAtLimit(transformers.LogitsProcessor):
  """Samples EOS exactly at the length limit of each row."""

  def __init__(self, limits: list[int], prompt: int, eos: int):
    self.limits = torch.tensor(limits)
    self.prompt, self.eos = prompt, eos

  def __call__(self, input_ids, scores):
    """Returns the scores of the next token."""
    ends = input_ids.shape[1] - self.prompt + 1 >= self.limits
    at_end = torch.full_like(scores[0], -torch.inf)
    at_end[self.eos] = 0
    scores[:, self.eos] = -torch.inf
    return torch.where(ends[:, None], at_end, scores)


def rollout(turns: worker.Turns) -> None:
  """Samples with `generate` in batches, or with continuous batching."""
  job, (model, tok) = turns.job, load(turns.job)
  model.eval()
  prompts, limits = job["prompts"], job["limits"] if job["tail"] else None
  options, slots = job["options"], len(prompts[0]) + job["response"]
  config = transformers.GenerationConfig(
      max_new_tokens=job["response"],
      do_sample=True,
      temperature=1.0,
      top_k=0,
      top_p=1.0,
      pad_token_id=tok.pad_token_id,
      eos_token_id=tok.eos_token_id if limits else None,
      cache_implementation=options.get("cache"),
      disable_compile=True,  # as in GRPOTrainer
  )
  torch.manual_seed(0)

  @torch.no_grad()
  def by_batches() -> dict:
    tokens = 0
    for at in worker.batches(list(range(len(prompts))), options["batch"]):
      ids = torch.tensor([prompts[i] for i in at])
      more = {}
      if limits:
        few = [limits[i] for i in at]
        ends = EosAtLimit(few, ids.shape[1], tok.eos_token_id)
        more["logits_processor"] = transformers.LogitsProcessorList([ends])
      out = model.generate(
          input_ids=ids,
          attention_mask=torch.ones_like(ids),
          generation_config=config,
          **more,
      )[:, ids.shape[1] :]
      tokens += int(lengths(out, tok.eos_token_id if limits else -1).sum())
    return dict(tokens=tokens)

  # Each request carries its own length limit.
  def continuous() -> dict:
    found = {}
    with model.continuous_batching_context_manager(
        generation_config=config,
        # The default takes half of the memory of the machine.
        continuous_batching_config=transformers.ContinuousBatchingConfig(
            page_size=PAGE,
            num_blocks=options["batch"] * -(-slots // PAGE),
            max_batch_tokens=max(options["batch"], slots),
            max_requests_per_batch=options["batch"],
        ),
        block=True,
        timeout=5,
    ) as manager:
      for i, ids in enumerate(prompts):
        most = limits[i] if limits else job["response"]
        manager.add_request(
            ids, request_id=f"r{i}", max_new_tokens=most, eos_token_id=-1
        )
      while len(found) < len(prompts):
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
          found[result.request_id] = len(result.generated_tokens)
        elif not manager.is_running():
          raise RuntimeError("continuous batching stopped")
    return dict(tokens=sum(found.values()))

  engine = options.get("engine", "generate")
  worker.repeat(turns, dict(generate=by_batches, continuous=continuous)[engine])


def lengths(out: torch.Tensor, eos: int) -> torch.Tensor:
  """Returns the tokens of each row, EOS included."""
  is_end = out == eos
  return torch.where(is_end.any(1), is_end.int().argmax(1) + 1, out.shape[1])


class NoMoreTurns(Exception):
  """The measurement is complete."""


class Clock(transformers.TrainerCallback):
  """Makes each step of the trainer a turn."""

  def __init__(self, turns: worker.Turns):
    self.turns = turns

  def on_step_begin(self, args, state, control, **_):
    """Waits for a turn."""
    if not self.turns.begin():
      raise NoMoreTurns

  def on_step_end(self, args, state, control, **_):
    """Ends the turn."""
    self.turns.end()


def train(turns: worker.Turns, kind=trl.GRPOTrainer) -> None:
  """Runs GRPOTrainer's loop, one step per turn."""
  job, (model, tok) = turns.job, load(turns.job)
  rows, group = len(job["prompts"]), job["group"]
  micro = job["options"]["micro"]
  texts = [tok.decode(ids) for ids in job["prompts"][::group]]
  endless = 10_000
  with tempfile.TemporaryDirectory() as scratch:
    args = trl.GRPOConfig(
        output_dir=scratch,
        max_steps=endless,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=rows // micro,
        num_generations=group,
        max_completion_length=job["response"],
        generation_kwargs=dict(min_new_tokens=job["response"]),
        temperature=1.0,
        learning_rate=job["lr"],
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        weight_decay=0.0,
        beta=0.0,
        bf16=False,
        gradient_checkpointing=job["options"].get("checkpointing", False),
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = kind(
        model=model,
        args=args,
        processing_class=tok,
        reward_funcs=lambda completions, **_: np.arange(
            len(completions), dtype=float
        ).tolist(),
        train_dataset=datasets.Dataset.from_list(
            [dict(prompt=text) for text in texts] * endless
        ),
        callbacks=[Clock(turns)],
    )
    trainer.job = job
    with contextlib.suppress(NoMoreTurns):
      trainer.train()


class Fixed(trl.GRPOTrainer):
  """Trains on the responses of the job instead of sampling."""

  def _generate_and_score_completions(self, inputs):
    prompt = torch.tensor(self.job["prompts"])
    response = torch.tensor(self.job["responses"])
    limits = torch.tensor(self.job["limits"])
    mask = torch.arange(response.shape[1]) < limits[:, None]
    return dict(
        prompt_ids=prompt,
        prompt_mask=torch.ones_like(prompt),
        completion_ids=response,
        completion_mask=mask.int(),
        advantages=torch.tensor(self.job["advantages"]),
        num_items_in_batch=mask.sum(),
    )


def products(turns: worker.Turns) -> None:
  """Times the parts of an update one by one (see `products.PRODUCTS`)."""
  job, parts = turns.job, {}
  for name, (transposed, (m, k, n)) in job["products"].items():
    a = torch.randn(k, m).T if transposed else torch.randn(m, k)
    parts[name] = functools.partial(torch.mm, a, torch.randn(k, n))
  x = job["attention"]
  shape = x["rows"], x["kv"] * x["group"], x["length"], x["dim"]
  few = x["rows"], x["kv"], x["length"], x["dim"]
  q = torch.randn(shape, requires_grad=True)
  k, v = (torch.randn(few, requires_grad=True) for _ in range(2))

  def attention():
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )
    return torch.autograd.grad((out * q).sum(), (q, k, v))

  parts["attention"] = attention

  def step() -> dict:
    return dict(parts={name: worker.fastest(x) for name, x in parts.items()})

  worker.repeat(turns, step)


if __name__ == "__main__":
  os.environ["TOKENIZERS_PARALLELISM"] = "false"
  worker.serve(
      dict(
          rollout=rollout,
          update=lambda t: train(t, Fixed),
          rl_step=train,
          products=products,
      )
  )
