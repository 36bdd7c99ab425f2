"""Streams beside RL: gradients are added, and rows resume where they were."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import tiny
import tiny_session
from test_prompt_start import BOS, EOS, NAMES, STARTS, load

from configs import base
from rl_reason.algorithms import objective, reductions, surrogates
from rl_reason.base import config, feature
from rl_reason.base.errors import ConfigError
from rl_reason.base.structs import TrainState
from rl_reason.checks import config_checks, replay_rules
from rl_reason.data import datasets
from rl_reason.features.rows_beside_rl import plain_text, streams
from rl_reason.models import decoder
from rl_reason.stages import compile_ahead
from rl_reason.training import imitation, packing, step

CFG = dataclasses.replace(tiny.CFG, layers=1)
OBJECTIVE = objective.Objective(surrogates.reinforce, reductions.token_mean)
COEFS = dict(kl=jnp.float32(0), entropy=jnp.float32(0))
COEF, SLOTS = 0.3, tiny.P + tiny.T


@pytest.mark.slow
def test_the_gradient_is_the_sum_of_both():
  """Each stream has rows, weights and a denominator of its own.

  Wanted, from padded rows: RL's mean of -A log p over its tokens at temperature
  0.8, and 0.3 times the mean of -log p over the tokens of 4 rows of text at
  temperature 1. SGD at rate 1 moves by minus the gradient, in which micro-
  batches of text have other tokens than those of RL.
  """
  params = decoder.init(CFG, jax.random.key(0))
  batch_M, rng = tiny.batch(1, 8), np.random.default_rng(2)
  b = jax.tree.map(lambda x: x[0], batch_M)
  texts = [rng.integers(3, 9, size) for size in (SLOTS, 2, SLOTS - 3, 7)]
  text = plain_text.pack(texts, SLOTS, tiny.TOK.pad_token_id)

  def mean(params, tokens_BL, start_B, mask_BT, weights_BT, temperature):
    args = params, CFG, tokens_BL, start_B, mask_BT.shape[1], temperature
    logps_BT, _ = padded.response_logps(*args)
    return (
        -jnp.sum(jnp.where(mask_BT, logps_BT * weights_BT, 0)) / mask_BT.sum()
    )

  def wanted(params):
    rows = b.tokens_BL, b.start_B, b.mask_BT
    of_rl = mean(params, *rows, b.advantages_BT, 0.8)
    of_text = mean(params, *text, 1.0, 1.0)
    return of_rl + COEF * of_text, (of_rl, of_text)

  grads, (of_rl, of_text) = jax.jit(jax.grad(wanted, has_aux=True))(params)
  tx, zero = tiny.optimizer(name="sgd", lr=1.0), jnp.zeros((), jnp.int32)
  coefs = dict(text=COEF)
  update = functools.partial(
      step.rl_update,
      cfg=CFG,
      tx=tx,
      temperature=0.8,
      objective=OBJECTIVE,
      stream=functools.partial(streams.gradients, cfg=CFG, coefs=coefs),
  )
  packed = packing.pack(*text, 1)
  assert packing.num_used(packed) == 3
  rows = jax.tree.map(lambda x: x[None], (packed, text[2]))
  after, metrics = jax.jit(update)(
      TrainState(params, tx.init(params), zero, zero),
      batch_M,
      padded.packed(batch_M, 2),
      COEFS,
      beside=dict(rows_M=dict(text=rows)),
  )
  moved = jax.tree.map(jnp.subtract, params, after.params)
  for x, y in zip(*map(jax.tree.leaves, (moved, grads)), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-5 * np.abs(y).max())
  np.testing.assert_allclose(metrics["text_loss"], of_text, rtol=1e-5)
  np.testing.assert_allclose(metrics["loss"], of_rl, rtol=1e-4)


def test_streams_have_a_coefficient_and_a_metric_each(monkeypatch):
  def gradient(params, packed, mask, base, *, coef, cfg):
    return {"w": coef * packed * params}, dict(loss=packed + mask)

  monkeypatch.setattr(imitation, "gradient", gradient)
  rows = dict(sft=(1.0, 10.0), text=(3.0, 30.0))
  coefs = dict(sft=0.5, text=2.0)
  grads, metrics = streams.gradients(7.0, rows, coefs=coefs, cfg=None)
  assert grads == {"w": 0.5 * 7 + 2 * 3 * 7}
  assert metrics == dict(sft_loss=11, text_loss=33)


def test_every_token_of_a_document_is_predicted_once():
  """Rows of 4 tokens; each begins with the last token of the row before."""
  whole = [9, 0, 1, 2, 3, 4, 5, 6, 9]
  rows = plain_text.cut(whole, 4)
  assert [x.tolist() for x in rows] == [[9, 0, 1, 2], [2, 3, 4, 5], [5, 6, 9]]
  assert [x.tolist() for x in plain_text.cut(whole[:7], 4)] == [
      [9, 0, 1, 2],
      [2, 3, 4, 5],
  ]
  tokens_BL, start_B, mask_BT = plain_text.pack(rows, 4, 7)
  packed = packing.pack(tokens_BL, start_B, mask_BT, 1)
  flat = packed.tokens_RL.reshape(-1)
  assert flat[packed.source_BT + 1][mask_BT].tolist() == whole[1:]
  assert flat[packed.source_BT][mask_BT].tolist() == whole[:-1]


def test_documents_of_files(tmp_path):
  """A .txt file is a document; rows have a column text, or are counted."""
  (tmp_path / "a.txt").write_text("1+1=2")
  lines = [{"text": "3+4=7"}, {"text": ""}, {"prompt": "1"}, {"text": "2=2"}]
  rows = "".join(json.dumps(x) + "\n" for x in lines)
  (tmp_path / "b.jsonl").write_text(rows)
  (tmp_path / "none.jsonl").write_text('{"prompt": "1"}\n')
  said, field = [], "streams.text_sources"
  read = functools.partial(
      plain_text.read, field, tok=tiny.TOK, say=said.append
  )
  sources = f"{tmp_path}/a.txt*3,{tmp_path}/b.jsonl*1"
  parts, weights = read(sources, slots=5)
  end = tiny.TOK.eos_token_id
  [[one, two], others] = parts
  ids = tiny.TOK.encode("1+1=2", add_special_tokens=False)
  assert [*one, *two[1:]] == [end, *ids, end] and one[-1] == two[0]
  assert len(others) == 3 and weights == [3, 1]
  assert said == [
      f"{field}: 1 of 1 documents of {tmp_path}/a.txt: 5 tokens in 2 rows",
      f"{field}: 2 of 4 documents of {tmp_path}/b.jsonl (2 lack the column"
      " 'text'): 8 tokens in 3 rows",
  ]
  with pytest.raises(datasets.DataError, match="none is left; name a file"):
    read(f"{tmp_path}/none.jsonl", slots=5)
  (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
  with pytest.raises(
      datasets.DataError,
      match=r"latin.txt: is not UTF-8 \(.* position 3.*\): convert it, as with",
  ):
    read(f"{tmp_path}/latin.txt", slots=5)


@pytest.mark.parametrize(("kind", "start"), STARTS, ids=NAMES)
def test_documents_have_bos_and_eos_once(kind, start, tmp_path):
  tok = load(tmp_path / "tok", kind)
  source = tmp_path / "text.txt"
  for text in ("a b", f"{BOS}a b" if start else "a b"):
    source.write_text(text)
    ((row,),), _ = plain_text.read("x", str(source), tok, 99, lambda _: None)
    before = "".join(start) or BOS
    assert tok.decode(row) == f"{before}a b{EOS}"


@pytest.fixture
def session(tmp_path):
  text = tmp_path / "a.txt"
  text.write_text("1+1=2" * 100)
  return tiny_session.make_session(
      tmp_path,
      streams__sft=0.5,
      streams__sft_batch=6,
      streams__text=0.5,
      streams__text_batch=5,
      streams__text_sources=str(text),
      updates__minibatches=2,
  )


def stream_of(session):
  loop = feature.Loop(signal=None, logps=None, collector=None, session=session)
  return streams.start(session.c, loop)


def test_the_rows_resume_where_they_were(session):
  """Each step has rows of its own, as the update that compiles ahead wants."""
  with jax.set_mesh(session.mesh):
    stream = stream_of(session)
    first, saved = stream.beside()["rows_M"], stream.host()
    second, again = stream.beside()["rows_M"], stream_of(session)
    again.restore({}, saved)
    resumed = again.beside()["rows_M"]
    old = stream_of(session)  # a state of an earlier version, of SFT alone
    old._streams.pop("text")
    old.restore({}, dict(stream=saved["stream"]["sft"]))
    shapes = compile_ahead.update_arguments(session.c, session.model)[-1][
        "rows_M"
    ]
  assert tiny_session.digest(resumed) == tiny_session.digest(second)
  assert tiny_session.digest(first) != tiny_session.digest(second)
  slots = session.c.rollout.max_prompt + session.c.rollout.max_tokens
  assert first["sft"][1].shape == (2, 6, session.c.rollout.max_tokens)
  assert first["text"][1].shape == (2, 5, slots - 1)
  assert jax.tree.structure(shapes) == jax.tree.structure(first)
  for x, y in zip(*map(jax.tree.leaves, (first, shapes)), strict=True):
    assert (x.shape, x.dtype) == (y.shape, y.dtype)
    assert x.sharding.is_equivalent_to(y.sharding, x.ndim)


def test_a_stream_is_off_by_default_and_is_not_replayed():
  c = base.arithmetic()
  assert c.streams.sft == c.streams.text == 0
  with pytest.raises(ConfigError, match="streams.sft_batch = 8: does nothing"):
    config_checks.checked(c, {"streams.sft_batch": 8})
  with pytest.raises(ConfigError, match="streams.text_batch = 8: does nothin"):
    config_checks.checked(c, {"streams.text_batch": 8})
  with pytest.raises(ConfigError, match="name files in streams.text_sources"):
    config_checks.checked(c, {"streams.text": 0.1})
  other = c.copy_and_resolve_references()
  for name in ("streams.sft", "streams.text"):
    own = other.copy_and_resolve_references()
    config.override(own, {name: 0.1})
    with pytest.raises(ConfigError, match=f"{name} = .*gradient of RL alone"):
      replay_rules.check(own, own)
