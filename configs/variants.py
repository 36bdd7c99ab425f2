"""Fields that no named algorithm needs; `configs/base.py` adds them.

Mixture of experts, shaped rewards, other critics, reward models, serving,
generated data: see docs/techniques.md.
"""

import functools

from rl_reason import features
from rl_reason.base import config
from rl_reason.base.fields import (
    choice,
    field,
    function,
    number,
    path,
    rate,
    section,
)

EXPERTS = "model.experts"
# Filters of the next token, next to top_p; see docs/serving.md.
FILTERS = dict(
    top_k=number(0, low=0),  # likeliest tokens; 0: all
    min_p=number(0.0, low=0, high=1),  # least share of the likeliest token's
    repetition_penalty=number(1.0, low=1e-2, high=100),  # 1 is off
)


def add(c) -> None:
  """Adds the fields to the sections of the base; all are off."""
  extend = functools.partial(config.extend, c)
  extend(
      "model",
      experts=number(0, low=0),  # feed-forward layers to choose from; 0: one
      experts_per_token=number(8, low=1, needs=EXPERTS),
      norm_topk=field(True, needs=EXPERTS),  # a token's weights sum to 1
  )
  extend(
      "data",
      # Of a source of code, that preparation runs against the tests of their
      # rows, since SFT does not imitate those that fail; 0: all that SFT
      # imitates, and a few of other sources.
      programs=number(0, low=0, needs=("rows of files", "rows of code")),
      # How answers name one of the choices of data.columns: letter, index0,
      # index1 (counted from 0, from 1), text; or 'FILE=index0,letter'.
      answer_as=field("detect", needs="data.columns"),
  )
  extend(
      "rollout",
      # Texts that end a response of one turn, as EOS does, and whether rewards
      # and verifiers read them.
      stop_strings=(),
      include_stop_str_in_output=field(False, needs="rollout.stop_strings"),
      # Of problems: what group sizes and advantages compare them by.
      types=choice(
          *("difficulty", "subject", "pass_rate"),
          needs="a reader of types",
      ),
      **FILTERS,  # off-policy: an error without rollout.allow_filters
      weights=choice("same", "bfloat16", "int8"),  # of the sampler
      cache=choice("same", "int8"),  # keys and values of the sampler
      engine=function("engine", "own"),  # that samples in RL: vllm
  )
  extend(
      "sft",
      # Style:weight of a task's demonstrations; '' is any style.
      mixture=field("", needs=("SFT", "styles")),
      # Of the demonstrated problems; () is task.difficulties.
      difficulties=field((), needs="sft.steps"),
  )
  c.sft.habits = section(  # a second stage, of configs for the built-in tasks
      "sft.habits",
      steps=number(0, low=0),
      lr=rate(2e-5, needs="SFT of habits"),
      schedule=choice(*("cosine", "constant", "linear"), needs="SFT of habits"),
      mixture=field("", needs="SFT of habits"),  # as sft.mixture
  )
  extend(
      "evaluate",
      **FILTERS,
      # Held-out prompts of files beyond rollout.max_prompt; drop: the name of
      # the set says how many are missing.
      long_prompts=choice("error", "drop", needs="rows of files"),
      # Further held-out sets, which every evaluation has:
      # 'arithmetic(2+3),countdown', with difficulties or with all of the task's
      tasks="",
  )
  extend(
      "dynamic_sampling",
      # Of a group: some are correct, or rewards differ; auto: correctness
      # where all rows of data.train have a verifier that is rewarded.
      signal=choice(
          *("auto", "correctness", "reward"), needs="dynamic_sampling.enabled"
      ),
  )
  extend(
      "reward",
      outcome=function("outcome", "correctness"),
      length_penalty=function("length_penalty"),  # logquad
      functions=path(),  # 'my_rewards:judge*0.5,length*-0.3': docs/rewards.md
      # What the numbers of steps are, of functions that judge steps; none: a
      # response is rewarded with their sum.
      process=choice(
          *("none", "rewards", "potentials"),
          needs="reward.functions",
      ),
      # Of functions; reward.workers: how many.
      executor=choice("thread", "process", needs="reward.functions"),
      # Seconds of one call of a function.
      timeout=number(60.0, low=1e-3, needs="reward.functions"),
      truncated=choice("terminal", "bootstrap"),  # bootstrap: group's mean
  )
  extend(
      "loss",
      # Load balance of experts, also of SFT.
      router_aux=number(0.0, low=0, needs=EXPERTS),
  )
  extend(
      "critic",
      init=choice("policy", "scratch", "exported"),  # of the trunk
      path=path(),  # of an exported critic, or a reward model
      head=function("critic_head", "scalar"),  # or gated, categorical
  )
  extend(
      "updates",
      # Packed rows hold the prompt of a group once; auto: where that saves a
      # fifth of the tokens of full rows, and XLA computes attention.
      share_prompts=choice("auto", "always", "never", needs="RL"),
  )
  extend(
      "mesh",
      # Splits experts, and rows as data does.
      expert=number(1, low=1, needs=EXPERTS),
  )
  extend(
      "optimizer",
      # Share of the first layers, in RL.
      freeze=number(0.0, low=0, high=1, needs="RL"),
      offload=False,  # optimizer state offload to host memory
  )
  c.serve = section(  # --stage=serve
      "serve",
      host="127.0.0.1",  # beyond this machine a key is needed: docs/serving.md
      port=number(8000, low=0, high=65535),  # 0: any that is free
      name="",  # of the model; '': the work directory's
      # A second policy: a step of this run, as --step has it, or the work
      # directory of another run. 'auto' is the policy before RL of a small
      # model; '' is none.
      beside=path("auto"),
      slots=number(32, low=1),  # responses that decode together
      max_prompt=number(0, low=0),  # tokens; 0: rollout.max_prompt
      max_tokens=number(0, low=0),  # of a response; 0: rollout.max_tokens
      queue=number(1024, low=1),  # responses that wait; more are refused
      timeout=number(600.0, low=1e-3),  # seconds of a request
      receive=number(10.0, low=1e-3),  # to send a request, or to read a part
      grace=number(5.0, low=0),  # seconds that responses have after SIGTERM
      stall=number(30.0, low=1e-3),  # without a token: /health answers 503
      certificate=path(),  # a PEM file: HTTPS, with serve.private_key
      private_key=path(),  # the other PEM file
      max_body=number(1 << 20, low=1),  # bytes of a request
      filter=path(),  # 'rules.json,my_rules:unsafe' withhold responses
  )
  c.generate = section(  # --stage=generate
      "generate",
      prompts=number(1024, low=1),  # of training
      samples=number(8, low=1),  # responses to each
      batch=number(64, low=1),  # prompts at a time, and of a file
      temperature=number(1.0, low=0),
      top_p=number(1.0, low=1e-9, high=1),
      **FILTERS,
      keep=choice("all", "correct", "best", "pairs", "majority", "prompts"),
      format=choice("jsonl", "parquet"),
  )
  c.hub = section(  # the Hugging Face hub
      "hub",
      # 'OWNER/REPOSITORY=REVISION,...': a commit, tag or branch of a model, a
      # tokenizer or data; without one, the newest version is fetched.
      revisions="",
  )
  c.export = section(  # --stage=export
      "export",
      push_to="",  # 'owner/name' on the Hugging Face hub; '' is nowhere
      # Who sees a repository that is created there.
      private=field(True, needs="export.push_to"),
      # Of the policy: 'same' is the dtypes of model.path, or float32; 'int8'
      # and 'int4' are weight-only. --stage=evaluate evaluates it, too.
      precision=choice("same", "bfloat16", "int8", "int4"),
  )
  for one in features.declared():
    one.fields(c)
