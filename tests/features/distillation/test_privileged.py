"""A teacher that reads the answer with the prompt: self-distillation."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import tiny
import tiny_session

from configs import base
from rl_reason.algorithms import objective, reductions, surrogates
from rl_reason.base import feature
from rl_reason.base.errors import ConfigError
from rl_reason.base.structs import Rollouts
from rl_reason.checks import config_checks, replay_rules
from rl_reason.data import datasets, pipelines, tokenizer
from rl_reason.features.distillation import (
    divergence,
    privileged,
    privileged_prompts as text,
    teacher,
)
from rl_reason.models import decoder
from rl_reason.stages import build_step, compile_ahead
from rl_reason.tasks import Row
from rl_reason.training import packing, step

CFG = dataclasses.replace(tiny.CFG, layers=1)
ROWS = [Row("1+1=", "2"), Row("12+30=", "42"), Row("5-1+1=", "5")]
MORE = 6  # slots of the prompts of the reference beyond those of the policy
WITH_ANSWER = "#{answer}={prompt}"


def test_the_text_of_the_prompt():
  row = Row("What is {x}?", "{answer}", response="so")
  assert text.text(r"{prompt}\n{answer} {{solution}}", row, tiny.TOK) == (
      "What is {x}?\n{answer} {so}"
  )
  tok = tokenizer.characters(tiny.TASK.ALPHABET)
  tok.chat_template = (
      "{% for x in messages %}<{{ x.role }} {{ x.content }}>{% endfor %}"
  )
  turns = [dict(role="system", content="S"), dict(role="user", content="Q")]
  chat = Row("<system S><user Q>", "7", messages=turns)
  assert text.text("{prompt} ({answer})", chat, tok) == "<system S><user Q (7)>"
  assert turns[1]["content"] == "Q"


def test_what_a_row_lacks_is_named():
  of = functools.partial(text.prompts, row=ROWS.__getitem__, tok=tiny.TOK)
  with pytest.raises(datasets.DataError, match="'1\\+1=' has no response for"):
    of("{prompt}{solution}", [0], slots=50)
  with pytest.raises(datasets.DataError, match="set kl.max_prompt = 10 or mor"):
    of(WITH_ANSWER, [0, 1], slots=9)
  found = of(WITH_ANSWER, [1, 0], slots=10)
  assert tiny.TOK.decode(found.tokens_NP[0]) == "#42=12+30="
  assert found.start_N.tolist() == [0, 3]
  assert of(WITH_ANSWER, [], slots=10).tokens_NP.shape == (0, 10)  # padding


def rollouts(rng) -> Rollouts:
  """Two responses to each prompt, the last row padding."""
  ids_B = np.array([2, 2, 0, 0, 1, -1], np.int32)
  prompts = pipelines.pack_prompts(
      tiny.TOK, [ROWS[x].prompt for x in ids_B], ids_B, tiny.P
  )
  lengths_B = np.array([tiny.T, 1, 5, 9, 3, 0])
  tokens_BT = rng.integers(2, CFG.vocab, (6, tiny.T)).astype(np.int32)
  zeros_BT = np.zeros((6, tiny.T), np.float32)
  return Rollouts(
      tokens_BL=np.concatenate([prompts.tokens_NP, tokens_BT], 1),
      start_B=prompts.start_N,
      ids_B=ids_B,
      mask_BT=np.arange(tiny.T) < lengths_B[:, None],
      logps_BT=zeros_BT,
      lengths_B=lengths_B.astype(np.int32),
      truncated_B=lengths_B > 99,
  )


def planned(template, packed_rows=2):
  found = rollouts(np.random.default_rng(0))
  prompts = functools.partial(
      text.prompts,
      template,
      row=ROWS.__getitem__,
      tok=tiny.TOK,
      slots=tiny.P + MORE,
  )
  plan_rows = functools.partial(
      packing.plan, packed_rows=packed_rows, minibatches=1
  )
  made = privileged.plan(found, plan_rows=plan_rows, prompts=prompts)
  return found, made


def sequences(packed, mask_BT):
  """The tokens of each row, as a forward pass reads them."""
  flat, owner = packed.tokens_RL.reshape(-1), packed.segments_RL.reshape(-1)
  at = packed.positions_RL.reshape(-1)
  for source_T, mask_T in zip(packed.source_BT, mask_BT, strict=True):
    if mask_T.any():
      places = np.flatnonzero(owner == owner[source_T[0]])
      np.testing.assert_array_equal(at[places], np.arange(len(places)))
      np.testing.assert_array_equal(np.diff(places), 1)
      yield flat[places].tolist(), flat[source_T[mask_T] + 1].tolist()


def test_each_response_token_has_one_place_in_both():
  r, made = planned(WITH_ANSWER, packed_rows=9)
  packed = jax.tree.map(lambda x: x[0, 0], made.packed_M)
  packed = packed.replace(source_BT=made.packed_M.source_BT[0])
  order_B = made.order_MB[0]
  mask_BT = r.mask_BT[order_B]
  ids = order_B[mask_BT.any(1)]
  own = list(sequences(packed, mask_BT))
  theirs = list(sequences(privileged.of_reference(packed), mask_BT))
  for b, (whole, response), (other, same) in zip(ids, own, theirs, strict=True):
    row = ROWS[r.ids_B[b]]
    wanted = r.tokens_BL[b, tiny.P :][r.mask_BT[b]].tolist()
    assert response == same == wanted
    prompts = row.prompt, f"#{row.answer}={row.prompt}"
    for found, prompt in zip((whole, other), prompts, strict=True):
      start = tokenizer.encode(tiny.TOK, [prompt])[0]
      assert found == start + wanted


def log_probs(params, tokens_BL, start_B):
  """All log-probs at response tokens, of rows that are padded on the left."""
  states_BLD = padded.hidden(params, CFG, tokens_BL, start_B)
  logits_BLV = decoder.logits(params, CFG, states_BLD)
  return jax.nn.log_softmax(logits_BLV[:, -tiny.T - 1 : -1])


@pytest.mark.slow
def test_the_teacher_is_the_policy_that_has_read_the_answer():
  """The gradient of KL(p || q) has none of the teacher q, which is p itself.

  Wanted, from padded rows: the teacher reads other prompts, and its log-probs
  are constants. With nothing added to the prompt, the KL is exactly 0.
  """
  params = decoder.init(CFG, jax.random.key(3))
  o = objective.Objective(
      surrogates.reinforce,
      reductions.token_mean,
      divergence.TERMS,
  )
  compare = functools.partial(divergence.chunked, CFG, 1.0)
  gradient = jax.jit(
      functools.partial(
          step.policy_gradient,
          cfg=CFG,
          temperature=1.0,
          objective=o,
          compare=("full_kl_BT", compare),
      )
  )
  coefs = dict(kl=jnp.float32(1), entropy=jnp.float32(0))

  def of(template):
    r, made = planned(template)
    packed = jax.tree.map(lambda x: x[0], made.packed_M)
    r = jax.tree.map(lambda x: x[made.order_MB[0]], r)
    batch = jax.tree.map(lambda x: x[0], tiny.batch(1, len(r.ids_B)))
    batch = batch.replace(
        mask_BT=r.mask_BT, advantages_BT=0 * batch.advantages_BT
    )
    return r, gradient(params, batch, packed, coefs)

  _, (_, metrics, _) = of("{prompt}")
  assert metrics["kl_loss"] == 0
  r, (grads, metrics, _) = of(WITH_ANSWER)
  prompts = text.prompts(
      WITH_ANSWER,
      [max(x, 0) for x in r.ids_B],
      ROWS.__getitem__,
      tiny.TOK,
      tiny.P + MORE,
  )
  tokens_BL = np.concatenate([prompts.tokens_NP, r.tokens_BL[:, tiny.P :]], 1)
  teacher_BTV = log_probs(params, tokens_BL, prompts.start_N)

  @jax.jit
  def wanted(params):
    own_BTV = log_probs(params, r.tokens_BL, r.start_B)
    kl_BT = jnp.sum(jnp.exp(own_BTV) * (own_BTV - teacher_BTV), -1)
    return jnp.sum(jnp.where(r.mask_BT, kl_BT, 0)) / r.mask_BT.sum()

  value, wanted_grads = jax.value_and_grad(wanted)(params)
  assert value > 1e-3
  np.testing.assert_allclose(metrics["kl_loss"], value, rtol=1e-4)
  for x, y in zip(*map(jax.tree.leaves, (grads, wanted_grads)), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-4 * np.abs(y).max())


def settings(**changes):
  c = tiny_session.tiny_config()
  fields = dict(kl__kind="full", kl__coef=1.0, kl__privileged=WITH_ANSWER)
  for name, value in (fields | changes).items():
    tiny_session.set_field(c, name.replace("__", "."), value)
  return c


def test_the_update_compiles_ahead_for_these_rows(tmp_path):
  c = settings(kl__self_teacher="current", kl__max_prompt=14)
  session = tiny_session.make_session(tmp_path, c)
  rows = {0: ROWS[0]}
  prompts = types.SimpleNamespace(row=rows.__getitem__)
  collector = types.SimpleNamespace(prompts=prompts)
  loop = feature.Loop(None, None, collector, session)
  with jax.set_mesh(session.mesh):
    part = teacher.Teacher(c, loop)
    plan = part.planning(build_step.planner(c, session.mesh))
    r = rollouts(np.random.default_rng(0))
    r = jax.tree.map(lambda x: np.repeat(x[2:3], c.rollout.batch, 0), r)
    more = np.zeros((c.rollout.batch, c.rollout.max_tokens - tiny.T))
    r = r.replace(
        tokens_BL=np.concatenate([r.tokens_BL, more.astype(np.int32)], 1),
        mask_BT=np.concatenate([r.mask_BT, more > 0], 1),
    )
    found = plan(r, 0).packed_M
    args = compile_ahead.update_arguments(c, session.model)
  assert args[5] == part.beside() == {}
  shapes = jax.tree.map(lambda x: (x.shape, x.dtype), (found, args[2]))
  assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"kl.privileged": "{answer}"},
            "kl.privileged = '{answer}': has no {p",
        ),
        ({"kl.kind": "none", "kl.coef": 0.0}, "kl.privileged = "),
        (
            {"kl.max_prompt": 3},
            "kl.max_prompt = 3: the prompt itself has up to",
        ),
        ({"kl.privileged": ""}, "kl.self_teacher = 'current': does nothing"),
        ({"task.name": "guess"}, "an environment writes its own prompts"),
        ({"kl.reference": "runs/dapo"}, "the parameters of its checkpoint"),
    ],
)
def test_combinations_that_cannot_work_are_refused(changes, words):
  c = base.arithmetic()
  own = {
      "kl.kind": "full",
      "kl.coef": 1.0,
      "kl.privileged": WITH_ANSWER,
      "kl.self_teacher": "current",
  }
  if "task.name" in changes:
    c.sft.update(steps=0, mixture="")
    c.sft.habits.update(steps=0, mixture="")
    c.task.difficulties = ()
  with pytest.raises(ConfigError) as e:
    config_checks.checked(c, own | changes)
  assert any(words in x for x in e.value.lines), e.value.lines


def test_a_replay_has_no_privileged_prompts():
  c = settings(kl__kind="k2")
  with pytest.raises(ConfigError, match="reads no prompts of the reference"):
    replay_rules.check(c, c)
