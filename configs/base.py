"""Every field there is, with its default and what it does.

The other configs change a few of these. On the command line:
`--config.loss.clip_high=0.28`. `rl_reason/checks.py` checks the whole.
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

  c.data = ml_collections.ConfigDict()  # rows of files; --stage=prepare
  c.data.train = ""  # sources*weights: rl_reason/datasets.py; task.name 'files'
  c.data.evaluate = ""  # sources; training rows like theirs are dropped
  c.data.columns = ""  # of sources not known by name: 'question=problem,...'
  c.data.kind = "math"  # of such sources: math, choice, code
  c.data.template = "plain"  # a name in rl_reason/prompts.py
  c.data.chat = False  # as a turn of the tokenizer's chat template
  c.data.system = ""  # the system's turn before it
  c.data.paraphrases = 1  # ways of asking, chosen by a hash of the question
  c.data.deduplicate = True  # by the question's text
  c.data.ngram = 13  # words that a training row may not share with an evaluated
  c.data.allow_benchmarks = False  # train on AIME and the like: say you know
  c.data.limit = 0  # rows kept of each training source; 0 = all

  c.model = ml_collections.ConfigDict()  # rl_reason/model.py: ModelConfig
  c.model.path = ""  # directory or hub id, which then decides the shape
  c.model.layers = 2
  c.model.width = 64
  c.model.heads = 4
  c.model.kv_heads = 2
  c.model.head_dim = 16
  c.model.mlp = 192
  c.model.rope_theta = 10_000.0
  c.model.rope_factor = 1.0  # Llama 3.1: slow frequencies divided by it
  c.model.rope_low = 1.0  # slow: fewer turns than this in rope_context
  c.model.rope_high = 4.0  # unchanged: more turns than this
  c.model.rope_context = 8192  # tokens
  c.model.norm_eps = 1e-6
  c.model.qkv_bias = False
  c.model.o_bias = False
  c.model.mlp_bias = False
  c.model.qk_norm = False
  c.model.tied = True
  c.model.dtype = "float32"  # of matrix products; bfloat16 on accelerators
  c.model.remat = "dots"  # what the backward pass recomputes: none, dots, full
  c.model.logprob_chunk = 1024  # tokens whose logits exist at a time
  c.model.attention = "auto"  # JAX's kernels where they fit; "xla": none

  c.mesh = ml_collections.ConfigDict()  # devices = data x fsdp x tensor
  c.mesh.data = -1  # -1: the rest
  c.mesh.fsdp = 1
  c.mesh.tensor = 1

  c.sft = ml_collections.ConfigDict()  # two stages: a skill, then habits
  c.sft.reuse = ""  # work directory whose finished SFT to start from
  c.sft.batch = 64
  c.sft.skill = ml_collections.ConfigDict()
  c.sft.skill.steps = 1000  # 0: RL starts from model.path
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
  c.rollout.batch = 256  # responses of a step, and of a round of generation
  c.rollout.group_size = 8  # responses to each prompt: batch / 8 prompts
  c.rollout.sizes = "equal"  # of groups; or by expected 'length', 'variance'
  c.rollout.least_group = 2  # of groups that are not equal
  c.rollout.slots = 0  # rows that decode together, others wait; 0 = all
  # Groups that a round may leave unfinished while the next one begins. Of the
  # same step only, unless they may go on with the policy of the next: then a
  # round draws so many more, and ends when the usual number is whole.
  c.rollout.stragglers = 0
  c.rollout.across_steps = False  # a bias to short responses
  c.rollout.retire_after = 0  # prompts all right so often in a row; 0 = never
  c.rollout.max_prompt = 12  # tokens
  c.rollout.max_tokens = 48  # of a response, EOS included
  c.rollout.stop_tokens = ()  # that end a response, besides EOS
  c.rollout.temperature = 1.0
  c.rollout.top_p = 1.0
  c.rollout.allow_top_p = False  # stored log-probs ignore top_p: say you know
  # What samples in training: the policy's own weights, or a copy made once a
  # step, whole on each device of the fsdp axis. Evaluation has its own, full.
  c.rollout.weights = "same"  # bfloat16, int8 (then: loss.correction)
  c.rollout.cache = "same"  # keys and values, also in training only; or int8

  c.dynamic_sampling = ml_collections.ConfigDict()  # DAPO sec 3.2
  c.dynamic_sampling.enabled = False  # refill with 0 < accuracy < 1 groups
  c.dynamic_sampling.max_rounds = 10
  c.dynamic_sampling.batches = 1  # of responses in a round; one tail for all
  c.dynamic_sampling.surplus = "discard"  # or 'keep' for the next step
  c.dynamic_sampling.shortfall = "pad"  # with empty rows, or 'raise'

  c.reward = ml_collections.ConfigDict()
  c.reward.right = 1.0
  c.reward.wrong = -1.0
  c.reward.overlong_buffer = 0  # tokens over which -1 builds up; DAPO eq 13
  c.reward.overlong_coef = 1.0  # factor of that punishment
  c.reward.length_coef = 0.0  # lambda of rewards.logquad
  c.reward.length_decay = 1.0  # g: good answers pay less
  c.reward.length_threshold = 0.0  # reward from which on they do
  c.reward.cosine = False  # rewards.cosine: right and wrong by length
  c.reward.right_long = 0.0  # ... at rollout.max_tokens
  c.reward.wrong_long = 0.0
  c.reward.scorers = ""  # e.g. 'steps*0.5,length*-0.3': rl_reason/scorers.py
  c.reward.truncated = "terminal"  # or 'bootstrap': worth the group's finished
  c.reward.workers = 4  # processes that verify; task.name = 'files'
  c.reward.seconds = 10.0  # CPU time of a verdict; then it is: wrong
  c.reward.shuffle = False  # control: verdicts permuted over the batch

  c.kl = ml_collections.ConfigDict()  # to the SFT model
  c.kl.kind = "none"  # k1, k2, k3
  c.kl.place = "loss"  # or 'reward': subtracted from each token's
  c.kl.coef = 0.0
  c.kl.target = 0.0  # nats a token that the coefficient steers to; 0 = fixed
  c.kl.horizon = 10_000  # responses; how slowly it steers

  c.advantage = ml_collections.ConfigDict()
  c.advantage.name = "group_norm"  # a function of rl_reason/advantages.py
  c.advantage.groups = "prompt"  # rows that it compares: prompt, type, batch
  c.advantage.whiten = False  # mean 0, variance 1 over the batch's tokens
  c.advantage.eps = 1e-6  # added to the standard deviation
  c.advantage.ddof = 1
  c.advantage.gamma = 1.0  # discount, also of the critic's targets
  c.advantage.lam = 0.95  # of GAE
  c.advantage.alpha = 0.05  # length-adaptive GAE: lam = 1 - 1 / (alpha length)
  c.advantage.mix = 0.5  # share of the first part of hierarchical and hybrid
  c.advantage.decay = 1.0  # of hybrid, explore, gae_exp_complexity
  c.advantage.slope = 0.5  # gae_exp_complexity: how much the hardest loses
  c.advantage.hardest = 6.0  # gae_exp_complexity: that complexity
  c.advantage.bonus = 0.1  # explore
  c.advantage.history = 2  # temporal: RL steps that are remembered
  c.advantage.history_ratio = 2.0  # temporal: cap of an old response's weight

  c.critic = ml_collections.ConfigDict()  # read if the advantage needs values
  c.critic.init = "policy"  # trunk: policy, scratch, or exported
  c.critic.path = (
      ""  # init = 'exported': DIR of --stage=export, or a reward model
  )
  c.critic.head = "scalar"  # or gated (several heads), categorical
  c.critic.heads = 4  # gated
  c.critic.bins = 41  # categorical: points of the support
  c.critic.low = -2.0  # categorical: least return
  c.critic.high = 2.0  # categorical: greatest return
  c.critic.lam = 0.95  # of the targets; 1.0 decouples them (VAPO)
  c.critic.clip = 0.5  # how far a value may move in a step; 0 = off
  c.critic.lr = 1e-3
  c.critic.schedule = "constant"  # cosine, linear
  c.critic.warmup_steps = 0  # RL steps of linear warm-up
  c.critic.reuse = ""  # work directory whose pretrained critic to start from
  c.critic.pretrain_steps = 0  # rollouts of the fixed policy; 0 = none
  c.critic.pretrain_ev = 2.0  # done sooner: explained variance at least this
  c.critic.pretrain_loss = 0.0  # ... and value loss at most this; 0 = any
  c.critic.mix = 0.0  # w0: share of the pretrained critic in V
  c.critic.mix_decay = 1.0  # k: that share fades over the run
  c.critic.mix_reliability = 1.0  # eta: and with explained variance
  c.critic.fallback = False  # EVPO: batch mean while explained variance <= 0

  c.reward_model = ml_collections.ConfigDict()  # --stage=reward_model
  c.reward_model.steps = 300
  c.reward_model.batch = 64  # pairs
  c.reward_model.lr = 1e-3
  c.reward_model.schedule = "cosine"
  c.reward_model.chosen = ""  # style:weight of right responses; '' = any
  c.reward_model.rejected = ""  # and of wrong ones
  c.reward_model.evaluate_pairs = 1000  # held out

  c.loss = ml_collections.ConfigDict()
  c.loss.surrogate = "ppo"  # a function of rl_reason/surrogates.py
  c.loss.clip_low = 0.2
  c.loss.clip_high = 0.2
  c.loss.dual_clip = 0.0  # c of dual-clip PPO; 0 = off
  c.loss.log_ratio_max = 20.0
  c.loss.reduction = "seq_mean_token_mean"  # a function of weights.py
  c.loss.length_alpha = 0.0  # responses weigh (length / median)^-alpha
  c.loss.mask_truncated = False  # overlong filtering
  c.loss.positive_nll = 0.0  # mu: imitate the right responses (VAPO)
  c.loss.entropy_coef = 0.0  # bonus
  c.loss.entropy_target = 0.0  # nats that the bonus steers to; 0 = fixed
  c.loss.entropy_step = 1e-3  # by how much it steers
  c.loss.top_entropy = 1.0  # share of tokens that learn: the most undecided
  c.loss.cov = "none"  # 'clip' (Clip-Cov) or 'kl' (KL-Cov)
  c.loss.cov_share = 2e-4  # of all tokens
  c.loss.cov_low = 1.0  # Clip-Cov: covariance of a candidate
  c.loss.cov_high = 5.0
  c.loss.cov_coef = 1.0  # KL-Cov: factor of |log ratio|
  c.loss.correction = "none"  # sampler/trainer mismatch: truncate, two_sided
  c.loss.correction_low = 0.5
  c.loss.correction_high = 2.0
  c.loss.correction_level = "token"  # sequence, geometric

  c.updates = ml_collections.ConfigDict()
  c.updates.minibatches = 8  # optimizer steps a rollout and epoch
  c.updates.token_budget = 960  # of a micro-batch, each shard of the rows
  c.updates.epochs = 1
  c.updates.max_kl = 0.0  # no more updates of a rollout beyond; 0 = off

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
  c.optimizer.freeze = 0.0  # share of the layers, from the first, kept in RL
  c.optimizer.offload = False  # Adam's moments wait in the host's memory

  c.lora = ml_collections.ConfigDict()  # of RL; SFT and critics train whole
  c.lora.rank = 0  # of the factors that learn beside a fixed model; 0 = off
  c.lora.alpha = 32.0  # they count alpha / rank
  c.lora.targets = "q,k,v,o,gate,up,down"  # matrices that have them

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
