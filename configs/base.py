"""Every field there is, with its default and what it does.

The other configs change a few of these. On the command line:
`--config.loss.clip_high=0.28`. `rl_reason/config.py` checks the whole.
"""

import ml_collections


def get_config():
  """All defaults: GRPO without a KL on the built-in task, laptop-sized."""
  c = ml_collections.ConfigDict()
  c.seed = 0  # of parameters, data order and sampling noise

  c.task = ml_collections.ConfigDict()
  c.task.name = "arithmetic"  # a module of rl_reason/tasks
  c.task.difficulties = (2, 3, 4, 5, 6)  # drawn evenly; () = all of the task's

  c.tokenizer = ""  # directory or hub id; '' = the task's own characters

  c.model = ml_collections.ConfigDict()  # rl_reason/model.py: ModelConfig
  c.model.layers = 2
  c.model.width = 64
  c.model.heads = 4
  c.model.kv_heads = 2
  c.model.head_dim = 16
  c.model.mlp = 192
  c.model.rope_theta = 10_000.0
  c.model.norm_eps = 1e-6
  c.model.qkv_bias = False
  c.model.qk_norm = False
  c.model.tied = True
  c.model.dtype = "float32"  # of matrix products; bfloat16 on accelerators
  c.model.remat = "dots"  # what the backward pass recomputes: none, dots, full
  c.model.logprob_chunk = 128  # positions a row whose logits exist at a time

  c.mesh = ml_collections.ConfigDict()  # devices = data x fsdp x tensor
  c.mesh.data = -1  # -1: the rest
  c.mesh.fsdp = 1
  c.mesh.tensor = 1

  c.sft = ml_collections.ConfigDict()  # two stages: a skill, then habits
  c.sft.reuse = ""  # work directory whose finished SFT to start from
  c.sft.batch = 64
  c.sft.micro_batches = 2
  c.sft.skill = ml_collections.ConfigDict()
  c.sft.skill.steps = 1000
  c.sft.skill.lr = 4e-3
  c.sft.skill.schedule = "cosine"
  c.sft.skill.mixture = "careful:1"  # style:weight of demonstrations
  c.sft.skill.threshold = 0.95  # greedy held-out accuracy that it must reach
  c.sft.habits = ml_collections.ConfigDict()
  c.sft.habits.steps = 80
  c.sft.habits.lr = 3e-4
  c.sft.habits.schedule = "cosine"
  c.sft.habits.mixture = "careful:2,leap:2,direct:3,ramble:1,sloppy:2"

  c.rollout = ml_collections.ConfigDict()
  c.rollout.prompts = 32  # a batch, and one round of generation
  c.rollout.group_size = 8  # responses to each prompt
  c.rollout.max_prompt = 12  # tokens
  c.rollout.max_tokens = 48  # of a response, EOS included
  c.rollout.temperature = 1.0
  c.rollout.top_p = 1.0
  c.rollout.allow_top_p = False  # stored log-probs ignore top_p: say you know

  c.dynamic_sampling = ml_collections.ConfigDict()  # DAPO sec 3.2
  c.dynamic_sampling.enabled = False  # refill with 0 < accuracy < 1 groups
  c.dynamic_sampling.max_rounds = 10
  c.dynamic_sampling.surplus = "discard"  # or 'keep' for the next step
  c.dynamic_sampling.shortfall = "pad"  # with empty rows, or 'raise'

  c.reward = ml_collections.ConfigDict()
  c.reward.right = 1.0
  c.reward.wrong = -1.0
  c.reward.overlong_buffer = 0  # tokens over which -1 builds up; DAPO eq 13
  c.reward.overlong_coef = 1.0  # factor of that punishment
  c.reward.truncated = "terminal"  # or 'bootstrap': worth the group's finished
  c.reward.shuffle = False  # control: verdicts permuted over the batch

  c.advantage = ml_collections.ConfigDict()
  c.advantage.name = "group_norm"  # a function of rl_reason/advantages.py
  c.advantage.eps = 1e-6  # added to the standard deviation
  c.advantage.ddof = 1

  c.loss = ml_collections.ConfigDict()
  c.loss.clip_low = 0.2
  c.loss.clip_high = 0.2
  c.loss.dual_clip = 0.0  # c of dual-clip PPO; 0 = off
  c.loss.log_ratio_max = 20.0
  c.loss.reduction = "seq_mean_token_mean"  # a function of weights.py
  c.loss.mask_truncated = False  # overlong filtering
  c.loss.kl = "none"  # k1, k2 or k3 against the SFT model
  c.loss.kl_coef = 0.0

  c.updates = ml_collections.ConfigDict()
  c.updates.minibatches = 8  # optimizer steps a rollout and epoch
  c.updates.micro_batches = 1  # of each minibatch, gradients summed
  c.updates.epochs = 1

  c.optimizer = ml_collections.ConfigDict()  # of all stages
  c.optimizer.name = "adamw"  # or 'sgd'
  c.optimizer.lr = 2e-4  # of RL; SFT has its own
  c.optimizer.schedule = "constant"  # cosine, linear
  c.optimizer.warmup_steps = 0  # RL steps of linear warm-up
  c.optimizer.b1 = 0.9
  c.optimizer.b2 = 0.95
  c.optimizer.eps = 1e-8
  c.optimizer.weight_decay = 0.0
  c.optimizer.clip_norm = 1.0  # 0 = off

  c.rl = ml_collections.ConfigDict()
  c.rl.steps = 40  # rollouts; 0 = SFT only

  c.evaluate = ml_collections.ConfigDict()
  c.evaluate.prompts = 1000  # held out; before and after
  c.evaluate.samples = 8  # of each prompt, plus a greedy one
  c.evaluate.mean_of = 4  # samples in the headline accuracy
  c.evaluate.temperature = 1.0
  c.evaluate.top_p = 1.0
  c.evaluate.batch = 256  # prompts sampled at a time
  c.evaluate.every = 10  # RL steps between interim evaluations; 0 = never
  c.evaluate.interim_prompts = 256

  c.checkpoint = ml_collections.ConfigDict()
  c.checkpoint.every = 10  # RL steps
  c.checkpoint.sft_every = 250
  c.checkpoint.keep_last = 2
  c.checkpoint.keep_best = 1  # by interim evaluation

  c.log = ml_collections.ConfigDict()
  c.log.sft_every = 10  # steps a line
  c.log.samples_every = 5  # RL steps between kept sample responses
  c.log.samples = 6  # responses kept each time
  c.log.tensorboard = True
  return c
