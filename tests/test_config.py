"""No field that nothing reads, and no mistake that is found late."""

import copy
import dataclasses
import functools
import hashlib
import importlib
import re
import threading
import types

import jax
import numpy as np
import pytest
import tiny as tiny_model
from conftest import ROOT

from rl_reason import checks, config, hf
from rl_reason.checkpointing import checkpoint
from rl_reason.data import tokenizer
from rl_reason.models import critic, decoder, parameters
from rl_reason.monitoring import display
from rl_reason.reward_models import train
from rl_reason.scale import sharding
from rl_reason.structs import RunError
from rl_reason.tasks import arithmetic, files
from rl_reason.training import (
    dynamic_sampling,
    experience,
    packing,
    rl,
    session,
    sft,
    step,
    value,
)


def tiny():
  """Seconds, every stage, and every feature that a field belongs to on."""
  c = importlib.import_module("configs.base").get_config()
  c.model.update(layers=1, width=16, heads=2, kv_heads=1, head_dim=8, mlp=16)
  c.sft.batch = 16
  c.sft.skill.update(steps=3, threshold=0.0)
  c.sft.habits.update(steps=3)
  c.reward_model.update(steps=2, batch=8, evaluate_pairs=8)
  c.rollout.update(batch=32, group_size=4)
  c.updates.update(minibatches=1)
  c.dynamic_sampling.update(enabled=True, max_rounds=2)
  c.rl.steps = 2
  c.evaluate.update(
      prompts=16, interim_prompts=8, batch=16, samples=2, mean_of=1, every=1
  )
  c.checkpoint.update(every=1, sft_every=2, keep_last=9)
  c.log.update(sft_every=1, samples_every=1, samples=2, tensorboard=False)
  return c


def make_run(c, workdir):
  return session.make_run(c, workdir, display.Display(False), threading.Event())


# --- probes: what a field may change -----------------------------------------


def lower_sft(run):
  tx, where = sft._optimizer(run, "skill")
  state = step.abstract_state(decoder.table(run.cfg), tx, where)
  c = run.config
  pairs = [("1+2=", "#3")] * c.sft.batch
  slots = c.rollout.max_prompt, c.rollout.max_tokens
  rows = stages_data().pack_demonstrations(run.tok, pairs, *slots)
  packed = packing.pack(*rows, run.packed_rows)
  fn = functools.partial(step.sft_update, cfg=run.cfg, tx=tx)
  return jax.jit(fn).lower(state, packed, rows[2]).as_text()


def lower_rl(run):
  tx, where = rl._optimizer(run)
  state = step.abstract_state(rl.table(run), tx, where)
  coefs = dict(kl=np.float32(0), entropy=np.float32(0))
  base = run_params(run) if run.config.lora.rank else None
  update = rl._update(run, tx, where)
  return update.lower(state, *full_minibatches(run), coefs, base).as_text()


def lower_critic(run):
  tx, where = value.optimizer(run, run.config.rl.steps)
  table = critic.table(run.critic_cfg)
  state = step.abstract_state(table, tx, where)
  update = value.make_update(run, tx, where)
  return update.lower(state, *full_minibatches(run)).as_text()


def full_minibatches(run):
  """Rows of full length."""
  rows = experience.no_rows(run)
  zeros_BT = rows.old_logps_BT
  assigned = dict(advantages_BT=zeros_BT, returns_BT=zeros_BT)
  r = rows.rollouts
  r = r.replace(mask_BT=np.ones_like(r.mask_BT))
  batch = experience.batch(run, rows.replace(rollouts=r), assigned)
  cut = experience.Maker.layout(types.SimpleNamespace(_run=run), r)
  return experience.minibatches(run, batch, cut)


def lower_assign(run):
  rows = experience.no_rows(run)
  zeros_BT = rows.old_logps_BT
  past = experience.no_past(run)
  names = ("values_BT", "pretrained_BT", "ref_logps_BT", "entropy_BT")
  more = dict.fromkeys(names, zeros_BT) | dict(
      progress=np.float32(0),
      kl_coef=np.float32(0),
      past_rewards_H=past.rewards_H,
      past_problems_H=past.problems_H,
      past_weights_H=past.rewards_H,
  )
  return experience._assign(run).lower(experience.facts(rows) | more).as_text()


def batch_mask(run):
  rows = experience.no_rows(run)
  ones = np.ones_like(rows.rollouts.mask_BT)
  cut = np.ones_like(rows.rollouts.truncated_B)
  rows = rows.replace(
      rollouts=rows.rollouts.replace(mask_BT=ones, truncated_B=cut)
  )
  zeros_BT = rows.old_logps_BT
  assigned = dict(advantages_BT=zeros_BT, returns_BT=zeros_BT)
  return experience.batch(run, rows, assigned).mask_BT.sum()


def samples(run):
  """Tokens, and their log-probs, that the training sampler draws."""
  c = run.config
  state = run_params(run)
  texts = ["1+2=", "3+4="] * 4
  prompts = stages_data().pack_prompts(
      run.tok, texts, range(8), c.rollout.max_prompt
  )
  rows = sharding.fetch(
      run.sample(
          state,
          run.put(prompts, "batch"),
          run.key("rollout"),
          run.put(np.float32(c.rollout.temperature)),
          group_size=c.rollout.group_size,
          top_p=c.rollout.top_p,
      )
  )
  return digest(rows)


def stages_data():
  return importlib.import_module("rl_reason.data.pipelines")


def run_params(run):
  tx, where = sft._optimizer(run, "skill")
  key = run.key("parameters")
  return step.init_state(decoder.table(run.cfg), tx, where, key).params


def params(run):
  return digest(run_params(run))


def attends(run):
  return session.attend_by(run.config)  # on this CPU only the reason can change


def placed(run):
  return str([x.sharding for x in jax.tree.leaves(run_params(run))])


def digest(tree):
  leaves = [np.asarray(x) for x in jax.tree.leaves(jax.device_get(tree))]
  return hashlib.sha256(b"".join(x.tobytes() for x in leaves)).hexdigest()


def artifacts(run, everything=True):
  """All that a run leaves behind, times aside."""
  values = sft.run(run)
  if everything:
    values = rl.run(run, values)
  run.log.close()
  out = {"params": digest(values)}
  for path in sorted(run.workdir.rglob("*")):
    name = str(path.relative_to(run.workdir))
    if path.suffix == ".jsonl":
      out[name] = [
          [x for x in line.split(", ") if not re.search("timing_s|perf/", x)]
          for line in path.read_text().splitlines()
      ]
    elif path.name == "manifest.json" or "tensorboard" in name:
      out[name.split("events")[0]] = 1
  return out


def trained(run):
  return artifacts(run, everything=False)


def saves(run):
  """The steps at which SFT was saved, also those deleted since."""
  seen, save = [], checkpoint.Checkpoints.save

  def noted(self, at, *args, **kwargs):
    seen.append((self.name, at))
    save(self, at, *args, **kwargs)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(checkpoint.Checkpoints, "save", noted)
    trained(run)
  return seen


def error(run):
  try:
    return artifacts(run, everything=False)
  except sft.TooWeak as e:
    return str(e)


def remembered(run):
  return len(experience.no_past(run).rewards_H)


def past_weights(run):
  """Of a remembered batch whose policy was another one."""
  rows = experience.no_rows(run)
  ones_BT = np.ones_like(rows.rollouts.mask_BT)
  rows = rows.replace(
      rollouts=rows.rollouts.replace(mask_BT=ones_BT),
      old_logps_BT=np.full_like(rows.old_logps_BT, -9),
  )
  past = experience.remember(experience.no_past(run), rows, rows.correct_B)
  maker = experience.Maker(run, "test")
  return maker.past(run_params(run), past)["past_weights_H"].sum()


def retired(run):
  """Ids of the prompts of a second round, after one that was all right."""
  run.levels = (2,)  # few enough that they come again
  maker = experience.Maker(run, "test")
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(arithmetic, "verify", lambda text, row: True)
    for _ in range(30):
      rows = maker.generate(run_params(run))
  return set(rows.rollouts.ids_B.tolist())


def first_critic(run):
  return digest(value.run(run, run_params(run))[0])


def pretrained(run):
  """The critic after its stage; a critic that fits nothing is not done soon."""
  return digest(value.run(run, run_params(run))[0]), run.log.sizes()


def sampler_weights(run):
  """What the policy is sampled with in training."""
  maker = experience.Maker(run, "test")
  return digest(maker.weights(run_params(run)))


def sampled(run):
  """Log-probs of a round of training."""
  maker = experience.Maker(run, "test")
  return digest(maker.generate(run_params(run)).rollouts.logps_BT)


def samplers(run):
  """Shapes of the programs that sample a round."""
  experience.Maker(run, "test").generate(run_params(run))
  return set(run._samplers)


def saved(run):
  """Shapes of what is in a checkpoint of RL."""
  return jax.tree.map(np.shape, rl.abstract(run))


def verifier(run):
  """Processes and seconds of a task of files."""
  with pytest.MonkeyPatch.context() as patch:
    seen = []
    patch.setattr(files.workers, "Pool", lambda *args: seen.append(args))
    run.config.task.name = "files"
    run.config.tokenizer = str(run.workdir / "tokenizer")
    run.tok.save_pretrained(run.config.tokenizer)
    make_run(run.config, run.workdir)
  return seen


def preferred(run):
  """A reward model, and what held-out pairs say of it."""
  params = train.run(run, run_params(run))
  run.log.close()
  return digest(params), (run.workdir / "metrics.jsonl").read_text()


# --- the table: every field, another value, and where it must show -----------

FIELDS = {
    "seed": (1, params),
    "task.name": ("countdown", trained),
    "task.difficulties": ((2, 3), trained),
    "tokenizer": ("DIRECTORY", params),
    **dict.fromkeys(  # tests/test_prepare.py
        [
            *("data.train", "data.evaluate", "data.columns"),
            *("data.kind", "data.template", "data.chat", "data.system"),
            *("data.paraphrases", "data.deduplicate", "data.ngram"),
            *("data.allow_benchmarks", "data.limit"),
        ],
        (None, "prepare"),
    ),
    "model.path": ("CHECKPOINT", lower_sft),
    "model.layers": (2, lower_sft),
    "model.width": (24, lower_sft),
    "model.heads": (4, lower_sft),
    "model.kv_heads": (2, lower_sft),
    "model.head_dim": (16, lower_sft),
    "model.mlp": (24, lower_sft),
    "model.rope_theta": (1e6, lower_sft),
    "model.rope_factor": (8.0, lower_sft),
    "model.rope_low": (2.0, lower_sft),
    "model.rope_high": (8.0, lower_sft),
    "model.rope_context": (64, lower_sft),
    "model.norm_eps": (1e-5, lower_sft),
    "model.qkv_bias": (True, lower_sft),
    "model.o_bias": (True, lower_sft),
    "model.mlp_bias": (True, lower_sft),
    "model.qk_norm": (True, lower_sft),
    "model.tied": (False, lower_sft),
    "model.dtype": ("bfloat16", lower_sft),
    "model.remat": ("full", lower_sft),
    "model.logprob_chunk": (16, lower_sft),
    "model.attention": ("xla", attends),
    "mesh.data": (4, placed),
    "mesh.fsdp": (2, placed),
    "mesh.tensor": (2, placed),
    "sft.reuse": ("OTHER", trained),
    "sft.batch": (32, lower_sft),
    "sft.skill.steps": (4, trained),
    "sft.skill.lr": (1e-4, lower_sft),
    "sft.skill.schedule": ("linear", lower_sft),
    "sft.skill.mixture": ("direct:1", trained),
    "sft.skill.threshold": (1.0, error),
    "sft.habits.steps": (4, trained),
    "sft.habits.lr": (1e-2, trained),
    "sft.habits.schedule": ("constant", trained),
    "sft.habits.mixture": ("direct:1", trained),
    "rollout.batch": (64, lower_rl),
    "rollout.group_size": (8, samples),
    "rollout.sizes": ("length", artifacts),
    "rollout.least_group": (3, artifacts),
    "rollout.slots": (8, samplers),
    "rollout.stragglers": (2, saved),
    "rollout.across_steps": (True, artifacts),
    "rollout.retire_after": (1, retired),
    "rollout.max_prompt": (14, lower_rl),
    "rollout.max_tokens": (40, lower_rl),
    "rollout.stop_tokens": (("-",), samples),
    "rollout.temperature": (0.7, samples),
    "rollout.top_p": (0.5, samples),
    "rollout.allow_top_p": (True, "check"),
    "rollout.weights": ("int8", sampler_weights),
    "rollout.cache": ("int8", sampled),
    "dynamic_sampling.enabled": (False, artifacts),
    "dynamic_sampling.max_rounds": (1, artifacts),
    "dynamic_sampling.batches": (2, artifacts),
    "dynamic_sampling.surplus": ("keep", artifacts),
    "dynamic_sampling.shortfall": ("raise", "Shortfall"),
    "reward.right": (2.0, lower_assign),
    "reward.wrong": (0.0, lower_assign),
    "reward.overlong_buffer": (8, lower_assign),
    "reward.overlong_coef": (0.5, lower_assign),
    "reward.length_coef": (0.1, lower_assign),
    "reward.length_decay": (0.5, lower_assign),
    "reward.length_threshold": (0.5, lower_assign),
    "reward.cosine": (True, lower_assign),
    "reward.right_long": (0.5, lower_assign),
    "reward.wrong_long": (0.5, lower_assign),
    "reward.scorers": ("boxed*0.5", lower_assign),
    "reward.workers": (2, verifier),
    "reward.seconds": (3.0, verifier),
    "reward.truncated": ("bootstrap", lower_assign),
    "reward.shuffle": (True, artifacts),
    "reward_model.steps": (3, preferred),
    "reward_model.batch": (16, preferred),
    "reward_model.lr": (1e-2, preferred),
    "reward_model.schedule": ("linear", preferred),
    "reward_model.chosen": ("careful:1", preferred),
    "reward_model.rejected": ("sloppy:1", preferred),
    "reward_model.evaluate_pairs": (4, preferred),
    "advantage.name": ("group_mean", lower_assign),
    "advantage.eps": (1e-4, lower_assign),
    "advantage.ddof": (0, lower_assign),
    "advantage.groups": ("batch", lower_assign),
    "advantage.whiten": (True, lower_assign),
    "advantage.gamma": (0.9, lower_assign),
    "advantage.lam": (0.5, lower_assign),
    "advantage.alpha": (0.5, lower_assign),
    "advantage.mix": (0.2, lower_assign),
    "advantage.decay": (2.0, lower_assign),
    "advantage.slope": (0.1, lower_assign),
    "advantage.hardest": (3.0, lower_assign),
    "advantage.bonus": (0.2, lower_assign),
    "advantage.history": (3, remembered),
    "advantage.history_ratio": (0.1, past_weights),
    "kl.kind": ("k2", lower_rl),
    "kl.place": ("reward", lower_rl),
    "kl.coef": (0.2, artifacts),
    "kl.target": (0.1, artifacts),
    "kl.horizon": (100, artifacts),
    "critic.init": ("scratch", first_critic),
    "critic.path": ("EXPORT", "exported"),
    "critic.head": ("gated", lower_critic),
    "critic.heads": (2, lower_critic),
    "critic.bins": (11, lower_critic),
    "critic.low": (-1.0, lower_critic),
    "critic.high": (1.0, lower_critic),
    "critic.lam": (1.0, lower_assign),
    "critic.clip": (0.2, lower_critic),
    "critic.lr": (1e-2, lower_critic),
    "critic.schedule": ("cosine", lower_critic),
    "critic.warmup_steps": (1, lower_critic),
    "critic.reuse": ("OTHER", pretrained),
    "critic.pretrain_steps": (2, pretrained),
    "critic.pretrain_ev": (-9.0, pretrained),
    "critic.pretrain_loss": (1e-9, pretrained),
    "critic.mix": (0.2, lower_assign),
    "critic.mix_decay": (3.0, lower_assign),
    "critic.mix_reliability": (3.0, lower_assign),
    "critic.fallback": (True, lower_assign),
    "loss.clip_low": (0.1, lower_rl),
    "loss.clip_high": (0.28, lower_rl),
    "loss.dual_clip": (3.0, lower_rl),
    "loss.log_ratio_max": (10.0, lower_rl),
    "loss.reduction": ("constant", lower_rl),
    "loss.mask_truncated": (True, batch_mask),
    "loss.length_alpha": (0.5, lower_rl),
    "loss.positive_nll": (0.1, lower_rl),
    "loss.surrogate": ("cispo", lower_rl),
    "loss.entropy_coef": (0.1, lower_rl),
    "loss.entropy_target": (0.1, lower_rl),
    "loss.entropy_step": (0.5, artifacts),
    "loss.top_entropy": (0.2, lower_assign),
    "loss.cov": ("clip", lower_rl),
    "loss.cov_share": (0.5, lower_rl),
    "loss.cov_low": (0.5, lower_rl),
    "loss.cov_high": (2.0, lower_rl),
    "loss.cov_coef": (0.5, lower_rl),
    "loss.correction": ("two_sided", lower_assign),
    "loss.correction_low": (0.4, lower_assign),
    "loss.correction_high": (3.0, lower_assign),
    "loss.correction_level": ("geometric", lower_assign),
    "updates.minibatches": (2, lower_rl),
    "updates.token_budget": (600, lower_rl),
    "updates.epochs": (2, lower_rl),
    "updates.max_kl": (0.1, lower_rl),
    "optimizer.name": ("sgd", lower_rl),
    "optimizer.lr": (1e-3, lower_rl),
    "optimizer.schedule": ("cosine", lower_rl),
    "optimizer.warmup_steps": (1, lower_rl),
    "optimizer.b1": (0.8, lower_rl),
    "optimizer.b2": (0.99, lower_rl),
    "optimizer.eps": (1e-6, lower_rl),
    "optimizer.weight_decay": (0.1, lower_rl),
    "optimizer.clip_norm": (0.5, lower_rl),
    "optimizer.freeze": (1.0, lower_rl),
    "optimizer.offload": (True, lower_rl),
    "lora.rank": (2, lower_rl),
    "lora.alpha": (8.0, lower_rl),
    "lora.targets": ("q,v", lower_rl),
    "rl.steps": (3, artifacts),
    "evaluate.prompts": (8, artifacts),
    "evaluate.samples": (3, artifacts),
    "evaluate.mean_of": (2, artifacts),
    "evaluate.temperature": (0.5, artifacts),
    "evaluate.top_p": (0.5, artifacts),
    "evaluate.batch": (8, "shape"),
    "evaluate.every": (0, artifacts),
    "evaluate.interim_prompts": (16, artifacts),
    "checkpoint.every": (2, artifacts),
    "checkpoint.sft_every": (1, saves),
    "checkpoint.keep_last": (1, artifacts),
    "checkpoint.keep_best": (3, artifacts),
    "log.sft_every": (2, trained),
    "log.samples_every": (3, artifacts),
    "log.samples": (3, artifacts),
    "log.tensorboard": (True, trained),
}

# What must be set besides, in both runs, for a field to matter.
WITH = {
    "task.name": {
        "task.difficulties": (2, 3),
        "sft.skill.mixture": "careful:1",
        "sft.habits.mixture": "careful:1",
    },
    "model.kv_heads": {"model.heads": 2},
    "model.heads": {"model.kv_heads": 1},
    "model.rope_low": {"model.rope_factor": 8.0, "model.rope_context": 64},
    "model.rope_high": {"model.rope_factor": 8.0, "model.rope_context": 64},
    "model.rope_context": {"model.rope_factor": 8.0},
    "rollout.least_group": {"rollout.sizes": "length"},
    "rollout.across_steps": {"rollout.stragglers": 2},
    "rollout.top_p": {"rollout.allow_top_p": True},
    "reward.overlong_coef": {"reward.overlong_buffer": 8},
    "reward.length_decay": {"reward.length_coef": 0.1},
    "reward.length_threshold": {"reward.length_coef": 0.1},
    "reward.right_long": {"reward.cosine": True},
    "reward.wrong_long": {"reward.cosine": True},
    "kl.kind": {"kl.kind": "k3", "kl.coef": 0.1},
    "kl.place": {"kl.kind": "k3", "kl.coef": 0.1},
    "kl.coef": {"kl.kind": "k3", "kl.coef": 0.1},
    "kl.target": {"kl.kind": "k3", "kl.coef": 0.1},
    "kl.horizon": {"kl.kind": "k3", "kl.coef": 0.1, "kl.target": 0.01},
    "advantage.gamma": {"advantage.name": "gae"},
    "advantage.lam": {"advantage.name": "gae"},
    "advantage.alpha": {"advantage.name": "gae_length_adaptive"},
    "advantage.mix": {"advantage.name": "hybrid"},
    "advantage.decay": {"advantage.name": "hybrid"},
    "advantage.slope": {"advantage.name": "gae_exp_complexity"},
    "advantage.hardest": {"advantage.name": "gae_exp_complexity"},
    "advantage.bonus": {"advantage.name": "explore"},
    "advantage.history": {"advantage.name": "temporal"},
    "advantage.history_ratio": {"advantage.name": "temporal"},
    "loss.entropy_step": {"loss.entropy_target": 9.0},
    "loss.cov_share": {"loss.cov": "clip"},
    "loss.cov_low": {"loss.cov": "clip"},
    "loss.cov_high": {"loss.cov": "clip"},
    "loss.cov_coef": {"loss.cov": "kl"},
    "loss.correction_low": {"loss.correction": "two_sided"},
    "loss.correction_high": {"loss.correction": "truncate"},
    "loss.correction_level": {"loss.correction": "truncate"},
    "lora.alpha": {"lora.rank": 2},
    "lora.targets": {"lora.rank": 2},
    "critic.heads": {"critic.head": "gated"},
    "critic.bins": {"critic.head": "categorical"},
    "critic.low": {"critic.head": "categorical"},
    "critic.high": {"critic.head": "categorical"},
    "critic.reuse": {"critic.pretrain_steps": 1},
    "critic.pretrain_ev": {"critic.pretrain_steps": 3},
    "critic.pretrain_loss": {
        "critic.pretrain_steps": 3,
        "critic.pretrain_ev": -9.0,
    },
    "critic.mix": {"critic.pretrain_steps": 1},
    "critic.mix_decay": {"critic.pretrain_steps": 1, "critic.mix": 0.5},
    "critic.mix_reliability": {"critic.pretrain_steps": 1, "critic.mix": 0.5},
    "mesh.data": {"mesh.data": 8, "mesh.fsdp": -1},
    "mesh.tensor": {"model.kv_heads": 2},
    "checkpoint.every": {"evaluate.every": 0, "rl.steps": 2},
    "checkpoint.keep_best": {"checkpoint.keep_last": 1},
    "checkpoint.keep_last": {"evaluate.every": 0},
    "evaluate.interim_prompts": {"evaluate.batch": 16},
    "evaluate.samples": {"evaluate.mean_of": 1},
    "dynamic_sampling.max_rounds": {"dynamic_sampling.max_rounds": 2},
}


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory):
  """Programs that a field leaves alone are compiled once for all of them."""
  jax.config.update(
      "jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled"))
  )
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
  yield
  jax.config.update("jax_compilation_cache_dir", None)


@pytest.fixture(autouse=True)
def groups_with_signal(monkeypatch):
  """A verdict that an untrained model gets right half of the time."""
  monkeypatch.setattr(arithmetic, "verify", lambda text, row: len(text) % 2)


def test_the_table_is_complete():
  assert FIELDS.keys() == config.flat(tiny()).keys()


def set_field(c, name, value):
  *path, last = name.split(".")
  for part in path:
    c = c[part]
  with c.unlocked():
    c[last] = value


SLOW = {artifacts, trained, error, saves, pretrained, retired, preferred}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if probe in SLOW else [])
        for name, (_, probe) in FIELDS.items()
        if callable(probe)
    ],
)
def test_field_is_read(name, tmp_path):
  value_of_field, probe = FIELDS[name]
  if value_of_field == "DIRECTORY":
    value_of_field = str(tmp_path / "tokenizer")
    tokenizer.characters("0123456789+-=;#xyz").save_pretrained(value_of_field)
  if value_of_field == "CHECKPOINT":
    cfg = dataclasses.replace(tiny_model.CFG, qk_norm=True)
    params = decoder.init(cfg, jax.random.key(0))
    value_of_field = str(tmp_path / "checkpoint")
    hf.save(
        tmp_path / "checkpoint",
        params,
        decoder.table(cfg),
        cfg,
        tokenizer=tiny_model.TOK,
    )
  if value_of_field == "OTHER":
    value_of_field = str(tmp_path / "other")
    c = tiny()
    c.seed = 7
    with jax.set_mesh(sharding.make_mesh()):
      (tmp_path / "other").mkdir()
      run = make_run(c, tmp_path / "other")
      if name == "sft.reuse":
        sft.run(run)
      else:
        c.seed, c.critic.pretrain_steps, c.advantage.name = 0, 1, "gae"
        c.critic.lr = 1e-2
        run = make_run(c, tmp_path / "other")
        value.run(run, run_params(run))
  seen = []
  for change in (None, value_of_field):
    c = tiny()
    with_critic = {"advantage.name": "gae"} if "critic." in name else {}
    for other, needed in (with_critic | WITH.get(name, {})).items():
      set_field(c, other, needed)
    if change is not None:
      set_field(c, name, change)
    checks.fields(c)
    workdir = tmp_path / str(change is None)
    workdir.mkdir()
    run = make_run(c, workdir)
    with jax.set_mesh(run.mesh):
      seen.append(probe(run))
  assert seen[0] != seen[1]


@pytest.mark.slow
def test_evaluate_batch_changes_the_program_and_no_number(tmp_path):
  seen, shapes = [], []
  for batch in (16, 8):
    c = tiny()
    c.evaluate.batch = batch
    (tmp_path / str(batch)).mkdir()
    run = make_run(c, tmp_path / str(batch))
    with jax.set_mesh(run.mesh):
      seen.append(artifacts(run))
    shapes.append(set(run._samplers))
    del seen[-1]["samples.jsonl"]  # has log-probs: rounding shows
  assert seen[0] == seen[1] and shapes[0] != shapes[1]


@pytest.mark.slow
def test_shortfall_can_raise(tmp_path, monkeypatch):
  monkeypatch.setattr(arithmetic, "verify", lambda text, row: False)
  c = tiny()
  c.dynamic_sampling.shortfall = "raise"
  run = make_run(c, tmp_path)
  with jax.set_mesh(run.mesh), pytest.raises(dynamic_sampling.Shortfall):
    rl.run(run, sft.run(run))


def test_the_critic_starts_from_an_exported_one(tmp_path):
  """Or from one of another shape: then the field and both shapes are named."""
  c = tiny()
  c.advantage.name, c.critic.init = "gae", "exported"
  c.critic.path = str(tmp_path / "export" / "critic")
  run = make_run(c, tmp_path)
  with jax.set_mesh(run.mesh):
    with pytest.raises(RunError, match="critic.path = .*: holds no whole"):
      value.run(run, run_params(run))
    table = critic.table(run.critic_cfg)
    params = parameters.init_table(table, jax.random.key(3))
    out = checkpoint.Checkpoints(tmp_path / "export" / "critic")
    out.save(7, params, dict(config=config.flat(c)))
    out.close()
    found, spent = value.run(run, run_params(run))
    assert digest(found) == digest(params) and spent["tokens"] == 0
    c.critic.head = "gated"
    with pytest.raises(RunError, match="critic.head is 'scalar' there"):
      value.run(run, run_params(run))


def test_old_log_probs_are_left_out_unless_something_reads_them():
  c = tiny()
  c.updates.minibatches = 1
  assert config.on_policy(c)
  for change in (
      {"updates.epochs": 2},
      {"dynamic_sampling.surplus": "keep"},
      {"loss.correction": "truncate"},
      {"loss.cov": "clip"},
      {"loss.top_entropy": 0.5},
      {"loss.entropy_target": 0.5},
      {"kl.kind": "k3", "kl.place": "reward"},
      {"kl.kind": "k3", "kl.target": 0.1},
      {"advantage.name": "temporal"},
      {"advantage.name": "quality_weighted"},
  ):
    reads = copy.deepcopy(c)
    for name, value_of_field in change.items():
      set_field(reads, name, value_of_field)
    assert not config.on_policy(reads), change
  c.kl.kind = "k3"
  assert config.on_policy(c), "the update measures a KL in its loss"


def test_a_cache_that_no_kernel_reads_is_refused(tmp_path, monkeypatch):
  """Known once it is known who computes attention."""
  c = tiny()
  c.rollout.cache, c.model.dtype, c.model.head_dim = "int8", "bfloat16", 128
  monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
  with pytest.raises(config.ConfigError, match="'int8': .* of tpu .* 'same'"):
    make_run(c, tmp_path)
  c.model.attention = "xla"
  make_run(c, tmp_path)


def test_allow_top_p_is_what_lets_top_p_through():
  c = tiny()
  c.rollout.top_p = 0.9
  with pytest.raises(config.ConfigError, match="allow_top_p"):
    checks.fields(c)
  c.rollout.allow_top_p = True
  checks.fields(c)


# --- errors ------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, text",
    [
        ({"rollout.group_size": 1}, "rollout.group_size = 1: "),
        ({"updates.minibatches": 3}, "updates.minibatches = 3: must divide"),
        ({"updates.token_budget": 0}, "updates.token_budget = 0: "),
        ({"reward.overlong_buffer": 99}, "must not exceed rollout.max_tokens"),
        ({"reward_model.chosen": "x:1"}, "'x' is none of arithmetic's styles"),
        ({"reward.right_long": 1.0}, "is for reward.cosine = True"),
        ({"reward.scorers": "steps"}, "must look like 'steps*0.5'"),
        ({"reward.scorers": "step*1"}, "'step' is none of boxed, tags"),
        ({"kl.kind": "k3"}, "kl.coef = 0.0: does not go with"),
        ({"kl.kind": "k4", "kl.coef": 0.1}, "none, k1, k2, k3"),
        ({"kl.kind": "k1", "kl.coef": 0.1}, "has no expected gradient"),
        ({"kl.place": "reward"}, "need a KL"),
        ({"advantage.name": "max_rl"}, "rewards in {0, 1}: set reward.right"),
        (
            {
                "advantage.name": "max_rl",
                "reward.wrong": 0.0,
                "reward.overlong_buffer": 4,
            },
            "no length penalty",
        ),
        (
            {
                "advantage.name": "max_rl",
                "reward.wrong": 0.0,
                "reward.scorers": "length*-0.3",
            },
            "scorers, bootstrap or KL",
        ),
        (
            {
                "advantage.name": "max_rl",
                "reward.wrong": 0.0,
                "reward.cosine": True,
            },
            "no length penalty, cosine",
        ),
        (
            {
                "advantage.name": "gae",
                "critic.head": "categorical",
                "reward.right": 10.0,
            },
            "must hold the rewards, -1.0 to 10.0",
        ),
        (
            {"loss.surrogate": "reinforce", "updates.epochs": 2},
            "right on the policy that sampled",
        ),
        ({"optimizer.freeze": 0.1}, "of model.layers = 1 that is none"),
        (
            {"reward.scorers": "a/b*1", "dynamic_sampling.batches": 2},
            "dynamic_sampling.batches = 2: a round is then larger",
        ),
        (
            {
                "advantage.name": "gae",
                "rollout.group_size": 1,
                "updates.minibatches": 1,
            },
            "dynamic_sampling.enabled = True: a group of one",
        ),
        ({"advantage.name": "gae", "advantage.groups": "type"}, "no groups"),
        ({"critic.pretrain_steps": 5}, "group_norm has no critic"),
        ({"critic.init": "exported"}, "critic.path = '': does not go with"),
        (
            {"advantage.name": "gae", "critic.reuse": "x"},
            "critic.reuse = 'x': takes the place of value pretraining",
        ),
        ({"advantage.name": "gae", "critic.mix": 0.5}, "the pretrained critic"),
        ({"critic.low": 3.0}, "must be below critic.high"),
        ({"loss.cov_low": 9.0}, "must be below loss.cov_high"),
        ({"loss.surrogate": "trpo"}, "must be one of ppo, reinforce"),
        ({"loss.clip_low": -0.1}, "loss.clip_low = -0.1: must be at least 0"),
        ({"loss.dual_clip": 0.5}, "loss.dual_clip = 0.5: "),
        ({"loss.reduction": "token"}, "must be one of token_mean"),
        ({"advantage.name": "gea"}, "must be one of group_mean"),
        ({"model.heads": 3, "model.kv_heads": 2}, "multiple of model.kv_heads"),
        ({"model.head_dim": 7}, "must be even"),
        ({"model.rope_low": 9.0}, "must be below model.rope_high = 4.0"),
        ({"sft.skill.steps": 0}, "or give model.path or sft.reuse"),
        ({"task.difficulties": (99,)}, "99 is none of arithmetic's"),
        ({"sft.skill.mixture": "careful"}, "must look like"),
        ({"sft.skill.mixture": "brilliant:1"}, "'brilliant' is none of"),
        ({"rollout.across_steps": True}, "needs rollout.stragglers"),
        (
            {
                "rollout.stragglers": 2,
                "dynamic_sampling.enabled": False,
            },
            "rollout.stragglers = 2: a step has one round",
        ),
        (
            {"rollout.stragglers": 2, "rollout.sizes": "length"},
            "needs rollout.sizes = 'equal'",
        ),
        (
            {"rollout.stragglers": 2, "rollout.slots": 4},
            "2 groups of 4 must find slots, and there are 4",
        ),
        (
            {"rollout.stragglers": 2, "reward.shuffle": True},
            "no reward.shuffle",
        ),
        ({"rollout.top_p": 0.9}, "set rollout.allow_top_p=True"),
        ({"rollout.weights": "int4"}, "one of same, bfloat16, int8"),
        ({"rollout.cache": "bfloat16"}, "must be one of same, int8"),
        ({"lora.rank": -1}, "lora.rank = -1: must be at least 0"),
        ({"lora.alpha": 0.0}, "lora.alpha = 0.0: must be at least"),
        ({"lora.targets": "q,head"}, "'head' is none of q, k, v, o, gate"),
        ({"lora.targets": ""}, "'' is none of q, k"),
        (
            {"lora.rank": 2, "optimizer.freeze": 0.5},
            "optimizer.freeze = 0.5: with lora.rank = 2",
        ),
        ({"reward.right": -1.0}, "must be more than reward.wrong"),
        ({"optimizer.warmup_steps": 5}, "must be less than rl.steps"),
        (
            {"optimizer.name": "sgd", "optimizer.offload": True},
            "optimizer.offload = True: 'sgd' keeps no moments",
        ),
        ({"evaluate.mean_of": 3}, "must not exceed evaluate.samples"),
        ({"evaluate.interim_prompts": 99}, "must not exceed evaluate.prompts"),
        (
            {
                "dynamic_sampling.surplus": "keep",
                "dynamic_sampling.enabled": False,
            },
            "only with dynamic_sampling.enabled",
        ),
        (
            {
                "dynamic_sampling.batches": 3,
                "dynamic_sampling.enabled": False,
            },
            "needs dynamic_sampling.enabled",
        ),
        ({"mesh.fsdp": 0}, "must be positive, or -1"),
        ({"mesh.fsdp": -1}, "only one axis"),
    ],
)
def test_impossible_configs_are_named(change, text):
  c = tiny()
  for name in change:
    set_field(c, name, change[name])
  with pytest.raises(config.ConfigError) as e:
    checks.fields(c)
  assert text in str(e.value) and "\n" not in str(e.value)


def test_a_keyword_that_the_advantage_does_not_take():
  c = tiny()
  c.advantage.name = "group_mean"
  checks.fields(c)  # left at its default: nobody is misled
  with pytest.raises(config.ConfigError, match="eps = 1e-06: nothing takes it"):
    checks.fields(c, given=("advantage.eps",))
  c.loss.surrogate = "gspo"
  with pytest.raises(config.ConfigError, match="loss.dual_clip = 0.0: nothing"):
    checks.fields(c, given=("loss.clip_low", "loss.dual_clip"))


def test_factors_that_are_off_have_no_settings():
  c = tiny()
  checks.fields(c, given=("lora.rank",))
  with pytest.raises(
      config.ConfigError, match="lora.alpha = 32.0: is for lora"
  ):
    checks.fields(c, given=("lora.alpha",))
  c.lora.rank = 2
  checks.fields(c, given=("lora.alpha",))


def test_a_checkpoint_decides_the_shape():
  c = tiny()
  c.model.path = "x"
  checks.fields(c, given=("model.path", "model.dtype"))
  with pytest.raises(config.ConfigError, match="model.width = 16: the checkpo"):
    checks.fields(c, given=("model.width",))
  old = config.flat(c)
  new = old | {"model.width": 64, "model.qkv_bias": True}
  assert not config.differences(old, new)
  assert config.differences(old, old | {"model.dtype": "bfloat16"})
  fresh = {"model.path": ""}
  assert config.differences(old | fresh, new | fresh)


def test_batches_that_the_mesh_cannot_split():
  c = tiny()
  checks.devices(c, 8)
  c.rollout.batch = 48
  with pytest.raises(config.ConfigError, match="rollout.batch = 48: 12 rows"):
    checks.devices(c, 8)
  c.rollout.batch, c.mesh.data = 32, 3
  with pytest.raises(config.ConfigError, match="does not cover 8 devices"):
    checks.devices(c, 8)


def test_what_may_change_between_runs():
  old = config.flat(tiny())
  more = old | {"rl.steps": 9, "log.samples": 3, "mesh.fsdp": 2}
  more["optimizer.offload"] = True
  assert not config.differences(old, more)
  assert config.differences(old, old | {"loss.clip_high": 0.3}) == [
      "loss.clip_high: 0.2 -> 0.3"
  ]
  # A decay is stretched by more steps: other learning rates, other numbers.
  for decay in (
      {"optimizer.schedule": "cosine"},
      {"critic.schedule": "linear"},
      {"critic.mix": 0.5},
      {"advantage.name": "explore"},
  ):
    assert config.differences(old | decay, more | decay) == ["rl.steps: 2 -> 9"]


def test_flat_and_back():
  c = tiny()
  assert config.flat(config.unflat(config.flat(c))) == config.flat(c)


def test_every_config_is_valid():
  paths = [*ROOT.glob("configs/*.py"), *ROOT.glob("configs/paper/*.py")]
  for path in sorted(paths):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    module = importlib.import_module(name)
    if name == "configs.paper.size":  # only what the presets share
      continue
    for variant in getattr(module, "VARIANTS", ("",)):
      args = (variant,) if variant else ()
      checks.fields(module.get_config(*args))


def test_the_mesh_is_not_free_where_it_decides_which_rows_end_first():
  old = config.flat(tiny())
  new = old | {"mesh.fsdp": 2}
  assert config.differences(old, new) == []
  across = {"rollout.across_steps": True}
  (said,) = config.differences(old | across, new | across)
  assert said.startswith("mesh.fsdp: ")


def test_a_keyword_without_a_field_is_named(monkeypatch):
  new = config.Signature((), ("gate",))  # of a function that somebody adds
  monkeypatch.setattr(config, "signature", lambda c, field: new)
  with pytest.raises(config.ConfigError, match="add the field advantage.gate"):
    checks.fields(tiny())
