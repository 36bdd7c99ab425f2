"""Distillation: the KL over the vocabulary, teachers, and how it fails."""

import dataclasses
import functools
import json

import checkpoints
import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import tiny
import tiny_session
from checkpoints import with_tokenizer
from tiny_session import call

from configs import base, distill
from rl_reason.algorithms import advantages, credit, objective
from rl_reason.base import config
from rl_reason.base.errors import ConfigError
from rl_reason.checks import (
    config_checks,
    file_checks,
    path_contents,
    replay_rules,
)
from rl_reason.checks.rules import Faults
from rl_reason.data import tokenizer
from rl_reason.features.distillation import (
    divergence,
    reference_policy,
    teacher,
)
from rl_reason.lab import memory_formula
from rl_reason.models import decoder
from rl_reason.stages import build_step, observers, rl

close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
checkpoint = functools.partial(checkpoints.checkpoint, kind="qwen3")
ALPHABET = tiny.TASK.ALPHABET


# --- the KL over the whole vocabulary ----------------------------------------


@pytest.mark.parametrize(
    ("beta", "value"),
    [
        (1.0, np.log(2) / 2 + np.log(2 / 3) / 2),
        (0.0, np.log(1 / 2) / 4 + 3 * np.log(3 / 2) / 4),
        # m = (3/8, 5/8): half of KL(q || m), half of KL(p || m).
        (
            0.5,
            (np.log(2 / 3) / 4 + 3 * np.log(6 / 5) / 4) / 2
            + (np.log(4 / 3) / 2 + np.log(4 / 5) / 2) / 2,
        ),
    ],
)
def test_the_divergence_by_hand(beta, value):
  """p = (1/2, 1/2), q = (1/4, 3/4); the third token is impossible."""
  p, q = np.log([[0.5, 0.5, 1e-38]]), np.log([[0.25, 0.75, 1e-38]])
  p[:, 2] = q[:, 2] = -1e30  # as a padded vocabulary has it
  close(divergence.full(jnp.float32(p), jnp.float32(q), beta=beta), [value])


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("both", [True, False])
def test_tokens_that_are_excluded_add_nothing(beta, both):
  """A logit of -inf in both, or where the divergence ignores the other."""
  inf = jnp.inf
  logits, ref = jnp.array([[0.3, -0.8, -inf]]), jnp.array([[-0.2, 0.5, -inf]])
  if not both:  # the forward KL needs q = 0 where p = 0, the reverse p = 0
    which = logits if beta == 0 else ref
    changed = which.at[0, 2].set(-1.0)
    logits, ref = (changed, ref) if beta == 0 else (logits, changed)
  ref = jax.nn.log_softmax(ref)

  def of(logits):
    return divergence.full(jax.nn.log_softmax(logits), ref, beta=beta).sum()

  value, grad = jax.value_and_grad(of)(logits)
  finite = lambda x: jnp.where(jnp.isinf(x), -1e30, x)  # noqa: E731
  ref = finite(ref)
  close(value, of(finite(logits)))
  close(grad, jax.grad(of)(finite(logits)))


def by_softmax(logits_XV, ref_logps_XV, beta):
  """The definition, without a gradient by hand."""
  p, q = jax.nn.softmax(logits_XV), jnp.exp(ref_logps_XV)
  of = lambda x, y: jnp.sum(x * jnp.log(x / y), -1)  # noqa: E731
  if beta in (0, 1):
    return of(p, q) if beta else of(q, p)
  m = beta * q + (1 - beta) * p
  return beta * of(q, m) + (1 - beta) * of(p, m)


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0])
def test_the_gradient_by_hand_is_that_of_the_definition(beta):
  rng = np.random.default_rng(0)
  logits, ref = jnp.float32(rng.normal(0, 2, (2, 5, 7)))
  ref = jax.nn.log_softmax(ref)

  def of(fn):
    return jax.value_and_grad(lambda x: fn(x).sum())(logits)

  got = of(lambda x: divergence.full(jax.nn.log_softmax(x), ref, beta=beta))
  wanted = of(lambda x: by_softmax(x, ref, beta))
  close(got[0], wanted[0])
  close(got[1], wanted[1])


@pytest.mark.slow
def test_log_probs_entropy_and_divergence_of_another_model():
  """Their gradients are those of the softmax over all logits at once."""
  small = dataclasses.replace(tiny.CFG, layers=1, tokens=len(tiny.TOK))
  cfg = dataclasses.replace(small, tied=False, logprob_chunk=7)
  ref_cfg = dataclasses.replace(small, width=24, vocab=30)
  b = jax.tree.map(lambda x: x[0], tiny.batch(1, 8))
  packed = padded.micro(b.tokens_BL, b.start_B, b.mask_BT)
  params = decoder.init(cfg, jax.random.key(0))
  ref = decoder.init(ref_cfg, jax.random.key(1))
  weights = np.random.default_rng(0).normal(size=(3, *b.mask_BT.shape))
  weights *= b.mask_BT
  compare = functools.partial(divergence.chunked, ref_cfg, 0.3, ref)

  def in_chunks(params):
    return decoder.packed_logps(params, cfg, packed, 0.7, compare)[:3]

  def log_probs(params, cfg):
    states, _ = decoder.hidden(params, cfg, packed)
    logits = decoder.logits(params, cfg, states)[..., : len(tiny.TOK)]
    logps = jax.nn.log_softmax(logits / 0.7)
    return logps.reshape(-1, len(tiny.TOK))[packed.source_BT]

  def dense(params):
    logps_BTV, ref_BTV = log_probs(params, cfg), log_probs(ref, ref_cfg)
    targets_BT = packed.tokens_RL.reshape(-1)[packed.source_BT + 1]
    chosen = jnp.take_along_axis(logps_BTV, targets_BT[..., None], -1)[..., 0]
    entropy_BT = -jnp.sum(jnp.exp(logps_BTV) * logps_BTV, -1)
    return chosen, entropy_BT, by_softmax(logps_BTV, ref_BTV, 0.3)

  def total(fn):
    def weighted(params):
      out = fn(params)
      return sum(jnp.sum(w * x) for w, x in zip(weights, out, strict=True)), out

    return jax.jit(jax.grad(weighted, has_aux=True))(params)

  (got, out), (wanted, other) = total(in_chunks), total(dense)
  for x, y in zip(out, other, strict=True):
    close(x * b.mask_BT, y * b.mask_BT, rtol=1e-4)
  for x, y in zip(*map(jax.tree.leaves, (got, wanted)), strict=True):
    np.testing.assert_allclose(x, y, atol=2e-5 * np.abs(y).max())
  plain = decoder.packed_logps(params, cfg, packed, 0.7)[:2]
  for x, y in zip(out, plain, strict=False):
    close(x * b.mask_BT, y * b.mask_BT)


@pytest.mark.slow
def test_few_chunks_of_logits_exist_at_a_time():
  """Of both models: temporary memory does not grow with the rows."""
  vocab, chunk, rows = 20_000, 16, 16
  cfg = dataclasses.replace(
      tiny.CFG, layers=1, vocab=vocab, logprob_chunk=chunk
  )
  params = jax.eval_shape(lambda: decoder.init(cfg, jax.random.key(0)))
  b = jax.tree.map(lambda x: x[0], tiny.batch(1, rows))
  packed = padded.micro(b.tokens_BL, b.start_B, np.ones_like(b.mask_BT))

  def total(params, ref):
    compare = functools.partial(divergence.chunked, cfg, 1.0, ref)
    *out, _ = decoder.packed_logps(params, cfg, packed, 1.0, compare)
    return sum(jnp.sum(x**2) for x in out)

  compiled = jax.jit(jax.grad(total)).lower(params, params).compile()
  temp = compiled.memory_analysis().temp_size_in_bytes
  assert temp < 0.5 * 4 * vocab * rows * tiny.T  # of the logits of one model


def test_the_full_kl_is_a_term_of_the_loss():
  """Weights 1/3: coefficient 2 times (0.3 + 0.6 + 0) / 3."""
  mask = np.array([[1, 1], [1, 0]], bool)
  zeros = np.zeros((2, 2), np.float32)
  b = padded.Batch(
      groups_B=np.arange(2),
      mask_BT=mask,
      advantages_BT=zeros,
      old_logps_BT=zeros,
      ref_logps_BT=zeros,
      correct_B=zeros[0],
      staleness_B=np.zeros(2, int),
      values_BT=zeros,
      returns_BT=zeros,
  )
  o = build_step.objective(distill.get_config(), on_policy=False)
  w = objective.token_weights(o, b)
  full = jnp.array([[0.3, 0.6], [0.0, 5.0]])
  coefs = dict(kl=jnp.float32(2), entropy=jnp.float32(0))
  total, metrics = objective.loss(
      o, zeros, zeros, b, w, coefs, dict(full_kl_BT=full)
  )
  close(total, 0.6)
  close(metrics["kl_loss"], 0.3)
  close(metrics["kl/reference"], 0.3)


# --- the sampled form --------------------------------------------------------


def test_the_advantage_of_a_token_is_the_log_ratio_of_the_teacher():
  """Exactly log p_teacher - log p, undiscounted; equal models have 0."""
  c = distill.get_config("sampled")
  mask = np.array([[1, 1, 1], [1, 1, 0]], bool)
  logps, ref = np.random.default_rng(0).normal(-2, 1, (2, 2, 3))
  rows = dict(
      rewards_B=jnp.zeros(2),
      mask_BT=mask,
      age_B=np.zeros(2, int),
      groups_B=np.arange(2),
      types_B=np.zeros(2, int),
      problems_B=np.arange(2),
      logps_BT=jnp.float32(logps),
      kl_coef=jnp.float32(c.kl.coef),
  )
  assign = functools.partial(
      credit.assign,
      advantage=functools.partial(
          getattr(advantages, c.advantage.name), **c.advantage.args
      ),
      kl=c.kl.kind,
      kl_in_reward=c.kl.place == "reward",
  )
  out = assign(rows | dict(ref_logps_BT=jnp.float32(ref)))
  wanted = np.where(mask, np.float32(ref) - np.float32(logps), 0)
  np.testing.assert_array_equal(out["advantages_BT"], wanted)
  same = assign(rows | dict(ref_logps_BT=jnp.float32(logps)))
  assert not np.asarray(same["advantages_BT"]).any()


def test_both_forms_have_the_gradient_of_the_reverse_kl():
  """E over tokens of A grad log p is minus the gradient of the full KL."""
  logits = jnp.array([[0.3, -1.0, 2.0, 0.0]])
  teacher = jnp.log(jnp.array([[0.4, 0.3, 0.2, 0.1]]))
  logps = jax.nn.log_softmax(logits)
  of_tokens = jax.jacobian(lambda x: jax.nn.log_softmax(x)[0])(logits)[:, 0]
  advantage = (teacher - logps)[0]
  sampled = jnp.einsum("v,v,vd->d", jnp.exp(logps[0]), advantage, of_tokens)
  exact = jax.grad(
      lambda x: divergence.full(jax.nn.log_softmax(x), teacher).sum()
  )
  close(sampled, -exact(logits)[0])


# --- documented failures -----------------------------------------------------

TEACHER = np.log([0.4, 0.3, 0.15, 0.1, 0.05])


def descend(loss, steps=4000, rate=0.5):
  """A bandit that minimizes a loss of its log-probs; its probabilities."""
  step = jax.jit(
      lambda x: x - rate * jax.grad(lambda y: loss(jax.nn.log_softmax(y)))(x)
  )
  logits = jnp.zeros(5)
  for _ in range(steps):
    logits = step(logits)
  return np.asarray(jax.nn.softmax(logits))


def test_a_top_k_reverse_kl_lets_mass_escape():
  """Cut to the teacher's two likeliest tokens, it is least at p = q / e there.

  sum p log(p / q) has the slope log(p / q) + 1. The teacher has 70% on both
  tokens and the student ends with 26%: the sum is negative, -0.7 / e, better
  than the 0 of a perfect student. Over the full vocabulary the student ends at
  the teacher.
  """
  teacher = jnp.float32(TEACHER)

  def top_2(logps):
    return jnp.sum((jnp.exp(logps) * (logps - teacher))[:2])

  escaped = descend(top_2)
  close(escaped[:2], np.exp(TEACHER[:2]) / np.e, rtol=1e-3)
  assert escaped[2:].sum() > 0.74 and top_2(jnp.log(escaped)) < -0.25
  assert top_2(teacher) == 0

  def full(logps):
    return divergence.full(logps[None], teacher[None])[0]

  close(descend(full), np.exp(TEACHER), rtol=1e-3)


@pytest.fixture
def student(tmp_path):
  return with_tokenizer(checkpoint(tmp_path / "student"))


def session_of(path, teacher, workdir, **changes):
  """A session of the config of distillation, whose policy is a checkpoint."""
  c = tiny_session.tiny_config()
  own = distill.get_config()
  for name in ("kl", "reward", "advantage", "reduction"):
    c[name] = own[name]
  c.dynamic_sampling.update(enabled=False, max_rounds=10)
  c.rollout.group_size = 1
  c.kl.reference = str(teacher)
  return checkpoints.session_of(path, workdir, c=c, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("sampled", [False, True])
def test_a_teacher_that_equals_the_student_changes_nothing(
    sampled, student, tmp_path
):
  """All advantages are 0, and the parameters keep their bits.

  In the full form the models are two parts of one program, which XLA compiles
  differently: the gradient is 0 up to rounding.
  """
  changes = dict(kl__kind="k1", kl__place="reward") if sampled else {}
  session = session_of(student, student, tmp_path / "run", **changes)
  _, params = checkpoints.load(student)
  with jax.set_mesh(session.mesh):
    trained = call(rl.train, session, params)
  lines = tiny_session.logged(tmp_path / "run")
  [line] = [x for x in lines if x["stage"] == "rl"]
  if not sampled:
    assert line["actor/grad_norm"] < 1e-5
    assert abs(line["kl/reference"]) < 1e-6
    return
  assert tiny_session.digest(trained) == tiny_session.digest(params)
  assert line["actor/grad_norm"] == line["kl/reference"] == 0


def test_a_teacher_of_another_shape(student, tmp_path):
  """It keeps its own shape, and its passes count as its FLOPs."""
  large = with_tokenizer(checkpoint(tmp_path / "large", num_hidden_layers=6))
  session = session_of(student, large, tmp_path / "run")
  params = call(teacher.load, session)
  _, wanted = checkpoints.load(large)
  assert tiny_session.digest(params) == tiny_session.digest(wanted)
  of = memory_formula.estimate(
      session.c, session.cfg, session.critic_cfg, session.mesh
  )
  size = sum(x.nbytes for x in jax.tree.leaves(params))
  assert of.resident["teacher (kl.reference)"] == size
  passes = observers.forward_passes(session.c, session.cfg, on_policy=True)
  assert 3 + 1.5 < passes < 3 + 2.5


def refused(student, teacher, words, **changes):
  """The line of the check of files, before a device is used."""
  c = tiny_session.tiny_config()
  config.override(
      c,
      {
          "model.path": str(student),
          "kl.reference": str(teacher),
          "kl.kind": "full",
          "kl.coef": 1.0,
          "sft.steps": 0,
          "sft.habits.steps": 0,
      }
      | changes,
  )
  faults = Faults()
  file_checks.check(c, "all", faults)
  [line] = faults.lines
  assert line.startswith(f"kl.reference = {str(teacher)!r}: "), line
  assert words in line


def test_a_teacher_that_reads_other_tokens_is_refused(student, tmp_path):
  """Before a device is touched, and again when a run loads it."""
  other = with_tokenizer(checkpoint(tmp_path / "other"), ALPHABET[::-1])
  refused(student, other, "has another tokenizer: '#' has id 2, and 16")
  bare = checkpoint(tmp_path / "bare")
  refused(student, bare, "has no tokenizer; add its own")
  refused(student, tmp_path / "none", "there is no such directory")
  with pytest.raises(ConfigError, match="has another tokenizer"):
    call(teacher.load, session_of(student, other, tmp_path / "run"))


def test_a_teacher_that_ends_responses_otherwise_is_refused(student, tmp_path):
  other, tok = checkpoint(tmp_path / "other"), tokenizer.characters(ALPHABET)
  tok.eos_token = "#"
  tok.save_pretrained(other)
  refused(student, other, "ends its responses with '#', and the policy with")
  c = tiny_session.tiny_config()
  c.kl.reference, policy = str(other), tokenizer.characters(ALPHABET)
  tokenizer.end_with(policy, ("#",))
  reference_policy.check(c, policy)


def test_a_teacher_with_another_template_is_refused(student, tmp_path):
  other, tok = checkpoint(tmp_path / "other"), tokenizer.characters(ALPHABET)
  tok.chat_template = "{{ messages }}"
  tok.save_pretrained(other)
  c = tiny_session.tiny_config()
  c.kl.reference = str(other)
  reference_policy.check(c, tiny.TOK)  # prompts are no chats
  c.data.chat = True
  with pytest.raises(ConfigError, match="has another chat template"):
    reference_policy.check(c, tiny.TOK)
  short = with_tokenizer(
      checkpoint(tmp_path / "short", max_position_embeddings=59)
  )
  refused(student, short, "takes 59 tokens", **{"model.path": str(student)})


def work_directory(path, **changes):
  """What a run from random parameters records of itself, without weights."""
  c = tiny_session.tiny_config()
  config.override(c, changes)
  (path / "checkpoints").mkdir(parents=True)
  (path / "config.json").write_text(json.dumps(config.flat(c)))
  tiny.TOK.save_pretrained(path / "origin" / "tokenizer")
  return path


def test_a_run_is_a_teacher(tmp_path):
  """With its own shape; a run that saw other prompts is refused."""
  path = work_directory(tmp_path / "run", **{"model.layers": 3})
  c = tiny_session.tiny_config()
  c.kl.reference, c.model.logprob_chunk = str(path), 5
  reference_policy.check(c, tiny.TOK)
  shape = teacher.shape(c, tiny.CFG)
  assert (shape.layers, shape.width, shape.logprob_chunk) == (3, 16, 5)
  assert (shape.vocab, shape.tokens) == (tiny.CFG.vocab, tiny.CFG.tokens)
  other = work_directory(tmp_path / "other", **{"data.template": "dapo"})
  c.kl.reference = str(other)
  with pytest.raises(ConfigError, match="'dapo' there and 'plain' here"):
    reference_policy.check(c, tiny.TOK)
  (other / "config.json").unlink()
  with pytest.raises(ConfigError, match="no config.json of their run"):
    reference_policy.check(c, tiny.TOK)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kl.place": "reward"}, "kl.place = 'reward': the full KL is a term"),
        ({"kl.kind": "k2", "kl.jsd_beta": 0.5}, "kl.jsd_beta = 0.5: does"),
        ({"kl.reference": ""}, "reward.correct = 0.0: must be more than"),
        ({"dynamic_sampling.enabled": True}, "no group has signal"),
        ({"kl.kind": "none", "kl.coef": 0.0}, "kl.reference = 'runs/dapo': d"),
    ],
)
def test_combinations_that_cannot_work_are_refused(changes, words):
  if "dynamic_sampling.enabled" in changes:
    changes = changes | {"rollout.group_size": 8}
  with pytest.raises(ConfigError) as e:
    config_checks.checked(distill.get_config(), changes)
  assert any(words in x for x in e.value.lines), e.value.lines


def test_a_replay_has_no_teacher():
  own = base.arithmetic()
  config.override(own, {"kl.kind": "k2", "kl.coef": 0.1})
  other = own.copy_and_resolve_references()
  config.override(other, {"kl.reference": "runs/dapo"})
  with pytest.raises(ConfigError, match="a replay loads no teacher"):
    replay_rules.check(own, other)
  other = own.copy_and_resolve_references()
  config.override(other, {"kl.kind": "full"})
  with pytest.raises(ConfigError, match="no gradient over the whole vocab"):
    replay_rules.check(own, other)


def test_a_run_resumes_with_the_teacher_that_it_began_with(student, tmp_path):
  """A copy elsewhere is the same; a run that has gone on is another one."""
  c = tiny_session.tiny_config()
  c.kl.reference = str(student)
  before = path_contents.content(c, "kl.reference")
  c.kl.reference = str(student.rename(tmp_path / "moved"))
  assert path_contents.content(c, "kl.reference") == before
  run, step = tmp_path / "run", tmp_path / "run" / "checkpoints" / "rl" / "1"
  step.mkdir(parents=True)
  (step / "manifest.json").write_text("{}")
  (run / "metrics.jsonl").write_text("")
  c.kl.reference = str(run)
  before = path_contents.content(c, "kl.reference")
  (run / "report.json").write_text("{}")
  assert path_contents.content(c, "kl.reference") == before
  step.rename(step.with_name("2"))
  assert path_contents.content(c, "kl.reference") != before
