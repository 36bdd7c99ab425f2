"""Every field, with its default, its bounds and what it does.

The other configs change a few of these fields. On the command line:
`--config.rollout.batch=128 --config.surrogate.args.clip_high=0.28`. A section
with `name` and `args` chooses a function (`rl_reason/base/functions.py`);
`args` are keyword arguments of that function, whose signature has the defaults
and bounds.

A field also declares which fields it needs, must not exceed, or excludes. A
field that does nothing is refused on the command line; a setting of a file,
which an override may have made idle, is a warning (`rl_reason/base/fields.py`).
Fields that no named algorithm needs are in configs/variants.py.
"""

from rl_reason.base.fields import (
    choice,
    field,
    function,
    number,
    path,
    rate,
    section,
)
from rl_reason.configs import variants
from rl_reason.data import templates

ENABLED, PRETRAINING = "dynamic_sampling.enabled", "critic.pretrain_steps"
# Facts of `relations.FACTS`.
ROWS, RL, SFT = "rows of files", "RL", "SFT"
ROPE = "model.rope_factor"
# Of a KL, from the sampled tokens: `algorithms.kl.ESTIMATORS`.
ESTIMATORS = ("k1", "k2", "k3", "k3_unbiased", "abs")


def get_config():
  """All defaults: GRPO without a KL on the built-in task, laptop-sized."""
  c = section(
      "",
      seed=number(0, low=0),  # of parameters, data order and sampling
      tokenizer=path(),  # directory or hub id; '' is the task's own characters
  )
  c.task = section(
      "task",
      name="arithmetic",  # or countdown, files, my_task, my_tasks:Name
      difficulties=(2, 3, 4, 5, 6),  # drawn evenly; () is all of the task's
  )
  c.data = section(  # rows of files: task.name = "files"
      "data",
      train=path(),  # sources*weights, see docs/data.md
      evaluate=path(),  # sources; training rows similar to theirs are dropped
      # Of sources that are not built in: 'question=problem,...'.
      columns=field("", needs=ROWS),
      # Their verifier, or 'FILE=code,math', see docs/rewards.md.
      kind=path("math", needs=ROWS),
      template=field("plain", needs=ROWS),  # or 'math=dapo,code=plain'
      chat=False,  # prompts are a turn of the tokenizer's chat template
      system=field("", needs="data.chat"),  # prompt of the chat template
      # Keywords of the chat template: 'enable_thinking=False'.
      template_args=field("", needs="chat messages"),
      paraphrases=number(  # wordings
          1, low=1, high=len(templates.PARAPHRASES), needs=ROWS
      ),
      deduplicate=field(True, needs=ROWS),  # by the text of the question
      # Words; decontamination by shared n-grams.
      ngram=number(13, low=0, needs=ROWS),
      # To train on AIME and the like is an error.
      allow_benchmarks=field(False, needs=ROWS),
      # (0.1, 0.9): only training rows whose measured rate is within.
      pass_rate=field((), needs="data.train"),
      # First prompts of RL, which come in the order of their pass rates.
      curriculum=number(0, low=0, needs="data.pass_rate"),
      # Share of a source's rows that may be unusable.
      max_corrupt=number(0.5, low=0, high=1, needs=ROWS),
      # Rows of each training source; 0 is all.
      limit=number(0, low=0, needs=ROWS),
  )
  c.model = section(
      "model",
      path=path(),  # directory or hub id; the checkpoint decides the shape
      # A table of families of one's own, module:TABLE.
      family=field(
          "",
          needs="model.path",
          not_with={
              "export.precision": "tensors with other names stay as they are",
              "rollout.engine.name": (
                  "engines get the names of the package's families"
              ),
          },
      ),
      layers=number(2, low=1),
      width=number(64, low=1),
      heads=number(4, low=1),
      kv_heads=number(2, low=1),
      head_dim=number(16, low=2),
      mlp=number(192, low=1),
      rope_theta=number(10_000.0, low=1),
      # How the context was extended, as in config.json (models/rope.py).
      rope_type=choice("llama3", "yarn", "linear", "dynamic", needs=ROPE),
      rope_factor=number(1.0, low=1),  # divides low frequencies
      # Low: fewer turns in rope_context; unchanged: more than rope_high.
      rope_low=number(1.0, low=0, needs=(ROPE, "rope by turns")),
      rope_high=field(4.0, needs=(ROPE, "rope by turns")),
      rope_context=number(8192, low=1, needs=(ROPE, "rope by turns")),  # tokens
      rope_scale=number(1.0, low=1e-3),  # of queries and keys
      # Yarn: low and high are rounded to frequencies.
      rope_truncate=field(True, needs=(ROPE, "yarn")),
      norm_eps=number(1e-6, low=0),
      qkv_bias=False,
      o_bias=False,
      mlp_bias=False,
      qk_norm=False,
      tied=True,  # embedding and output matrix
      dtype=choice("float32", "bfloat16", "float16"),  # of matrix products
      logits_dtype=choice("float32", "same"),  # same: rounded to model.dtype
      # Recomputed in the backward pass; auto: as much as the memory needs.
      remat=choice("dots", "none", "full", "sqrt", "auto"),
      logprob_chunk=number(1024, low=1),  # tokens whose logits exist at a time
      # auto: kernels of TPUs, or cuDNN, where they fit, and else XLA.
      attention=choice("auto", "xla", "cudnn", "triton"),
  )
  c.mesh = section(  # devices = data x fsdp x sequence x tensor
      "mesh",
      data=-1,  # -1: the remaining devices
      fsdp=1,
      sequence=number(1, low=1),  # splits packed rows: long responses
      tensor=1,
  )
  # Rate, schedule and batch are Llama 2's (arXiv:2307.09288, section 3.1); its
  # two passes over the rows are 2 * rows / batch steps.
  c.sft = section(
      "sft",
      steps=number(0, low=0),  # 0: RL starts from model.path
      lr=rate(2e-5, needs=SFT),  # of all parameters of a trained model
      schedule=choice("cosine", "constant", "linear", needs=SFT),
      warmup_steps=number(0, low=0, needs=SFT),  # of linear warm-up
      batch=number(64, low=1, needs=SFT),  # rows
      samples=path(),  # sources of rows to imitate; '': data.train, or the task
      reuse=path(),  # work directory whose finished SFT to start from
      # Greedy accuracy; less is an error.
      threshold=number(0.0, low=0, high=1, needs=SFT),
  )
  c.rollout = section(
      "rollout",
      batch=number(256, low=1),  # responses of a step
      group_size=number(8, low=1),  # responses to each prompt
      slots=number(0, low=0),  # rows that decode at a time; 0 is all
      max_prompt=number(12, low=1),  # tokens
      max_tokens=number(48, low=1),  # of a response, EOS included
      stop_tokens=(),  # end a response, as EOS does
      add_special_tokens=True,  # BOS where the tokenizer adds it to a text
      temperature=number(1.0, low=1e-6),
      top_p=number(1.0, low=1e-9, high=1),
      # top_p < 1 is off-policy: an error without this.
      allow_filters=field(False, needs="a filter"),
  )
  c.dynamic_sampling = section(  # DAPO sec 3.2
      "dynamic_sampling",
      # Only groups that are neither all correct nor incorrect.
      enabled=field(False, needs=RL),
      max_rounds=number(10, low=1, needs=ENABLED),  # of generation
      batches=number(1, low=1, needs=ENABLED),  # of responses in a round
      shortfall=choice("pad", "raise", needs=ENABLED),  # after max_rounds
  )
  c.reward = section(
      "reward",
      correct=field(1.0, needs="a verdict"),  # of a correct response
      incorrect=field(-1.0, needs="a verdict"),
      # Tokens; DAPO eq 13; 0 is off.
      overlong_buffer=number(0, low=0, at_most="rollout.max_tokens"),
      overlong_coef=number(1.0, low=0, needs="reward.overlong_buffer"),
      workers=number(4, low=1),  # of the verifier, and of reward functions
      seconds=number(10.0, low=1e-3),  # CPU time of the verifier, a response
      shuffle=False,  # control: outcomes permuted over the batch
  )
  c.advantage = function("advantage", "group_norm")  # docs/techniques.md
  c.advantage.update(
      section(
          "advantage",
          groups=choice("prompt", "type", "batch"),  # rows that are compared
          whiten=False,  # mean 0 and variance 1 over the tokens of the batch
      )
  )
  # reinforce, gspo, cispo, sapo...
  c.surrogate = function("surrogate", "ppo", needs=RL)
  c.reduction = function(  # of token losses
      "reduction", "seq_mean_token_mean", needs=RL
  )
  c.loss = section(
      "loss",
      mask_truncated=field(False, needs=RL),  # DAPO's overlong filtering
      # Whether filtered responses count for the baseline of their group.
      truncated_in_baseline=field(True, needs="loss.mask_truncated"),
      # VAPO's positive-example LM loss.
      positive_nll=number(0.0, low=0, needs=RL),
      entropy_coef=number(0.0, low=0, needs=RL),  # entropy bonus
      # Of one's own: 'my_terms:f(x=2)*0.1', docs/own_functions.md.
      terms=field("", needs=RL),
  )
  c.kl = section(  # to the policy that RL starts from
      "kl",
      # Estimated from the sampled tokens, or what a feature computes.
      kind=choice("none", *ESTIMATORS, needs="kl.coef"),
      # reward: subtracted from the reward of each token.
      place=choice("loss", "reward", needs="kl.kind"),
      coef=number(0.0, low=0, needs=("kl.kind", RL)),
  )
  c.critic = section(  # where the advantage is computed from values
      "critic",
      "a critic",
      lam=number(0.95, low=0, high=1),  # of the targets; 1 is Monte Carlo
      clip=number(0.5, low=0),  # of the change of a value; 0 is off
      lr=rate(1e-3),
      schedule=choice("constant", "cosine", "linear"),
      warmup_steps=number(0, low=0),  # RL steps of linear warm-up
      # Work directory whose pretrained critic to start from.
      reuse=path(needs=PRETRAINING),
      pretrain_steps=number(0, low=0),  # rollouts of the fixed policy; 0: none
      # Explained variance, and loss (0: any), that end pretraining.
      pretrain_ev=field(2.0, needs=PRETRAINING),
      pretrain_loss=number(0.0, low=0, needs=PRETRAINING),
  )
  c.updates = section(
      "updates",
      # Optimizer steps a rollout and epoch.
      minibatches=number(8, low=1, needs=RL),
      token_budget=number(960, low=1),  # of a micro-batch, data x fsdp
      epochs=number(1, low=1, needs=RL),
  )
  c.optimizer = section(
      "optimizer",
      name=choice("adamw", "muon", "sgd"),
      lr=rate(2e-4, needs=RL),  # SFT has its own
      schedule=choice("constant", "cosine", "linear", needs=RL),
      warmup_steps=number(0, low=0, needs=RL),  # RL steps of linear warm-up
      b1=number(0.9, low=0, high=1, needs="moments"),
      b2=number(0.95, low=0, high=1, needs="moments"),
      eps=number(1e-8, low=0, needs="moments"),
      weight_decay=number(0.0, low=0, needs="moments"),
      clip_norm=number(1.0, low=0),  # 0 is off
  )
  c.rl = section(
      "rl",
      steps=number(40, low=0),  # rollouts; 0: SFT only
      # Consecutive steps of any stage without a usable update; more end the
      # run with an error; 0: never.
      max_steps_without_update=number(20, low=0),
      # Consecutive steps whose sampler was another policy; 0: never.
      max_steps_uncertified=number(3, low=0),
  )
  c.evaluate = section(
      "evaluate",
      prompts=number(1000, low=1),  # held out; before and after RL
      samples=number(8, low=1),  # of each prompt, and a greedy one
      # Samples in the headline accuracy.
      mean_of=number(4, low=1, at_most="evaluate.samples"),
      temperature=number(1.0, low=0),
      top_p=number(1.0, low=1e-9, high=1),
      batch=number(256, low=1),  # prompts at a time
      every=number(10, low=0),  # RL steps; 0: no interim evaluation
      interim_prompts=number(256, low=1, at_most="evaluate.prompts"),
      validation=True,  # prompts of their own choose; False: held-out ones do
  )
  c.checkpoint = section(
      "checkpoint",
      every=number(10, low=1),  # RL steps
      sft_every=number(250, low=1),
      keep_last=number(2, low=1),
      keep_best=number(1, low=0),  # by interim evaluation
  )
  c.log = section(
      "log",
      sft_every=number(10, low=1),  # SFT steps
      stall_seconds=number(60.0, low=0.0),  # without progress: print stacks
      stall_ends=number(0.0, low=0.0),  # without progress: end, code 175
      samples_every=number(5, low=1),  # RL steps
      groups=number(3, low=1),  # all responses to a prompt, each time
      samples=number(6, low=1),  # responses with the numbers of each token
      ratios=False,  # of tokens after the update, by one more forward pass
      loggers="tensorboard",  # wandb, trackio, module:function; '' is none
      # Of an RL step, of one's own: 'my_metrics:f(x=2),my_metrics:g'.
      metrics=field("", needs=RL),
  )
  variants.add(c)
  return c


def arithmetic():
  """The defaults, and SFT for the built-in task: a skill, then bad habits.

  The rates are those of a small model that starts from random parameters.
  """
  c = get_config()
  c.sft.update(steps=1000, lr=4e-3, mixture="careful:1", threshold=0.95)
  c.sft.batch = 96  # at 64 some seeds end with a worse skill
  mixture = "careful:2,leap:2,direct:3,ramble:1,sloppy:2"
  c.sft.habits.update(steps=80, lr=3e-4, mixture=mixture)
  return c
