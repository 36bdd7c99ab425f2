"""Averages of checkpoints: weights by hand, steps that exist, the card."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_session
from tiny_session import call

from rl_reason.base import config as config_lib
from rl_reason.base.errors import RunError
from rl_reason.base.fields import FIELDS
from rl_reason.checkpointing import averaging
from rl_reason.checkpointing.checkpoint import Checkpoints
from rl_reason.lab import generate
from rl_reason.stages import card_fields, export, trained_parameters


def test_weights_by_hand():
  mean = averaging.parse("20+30+40")
  assert mean == ((20, 30, 40), None)
  assert mean.weights() == [1 / 3] * 3
  moving = averaging.parse("20+30+40@0.9")
  assert moving.weights() == pytest.approx([0.81, 0.09, 0.1])
  for text in ("newest", "best", "20", "20+", "sft", "+20", "20,30"):
    assert averaging.parse(text) is None
  for text, words in (
      ("30+20", "oldest first"),
      ("20+20", "each step once"),
      ("20+30@1", "between 0 and 1"),
      ("20+30@0", "between 0 and 1"),
  ):
    with pytest.raises(ValueError, match=words):
      averaging.parse(text)


def test_sums_are_in_float32():
  # In float16 the sum of these would overflow.
  trees = [{"a": jnp.full(2, x, jnp.float16)} for x in (59968, 59968, 30000)]
  found = averaging.combine([1 / 3] * 3, [lambda x=x: x for x in trees])
  assert found["a"].dtype == jnp.float32
  np.testing.assert_allclose(found["a"], 149936 / 3, rtol=1e-6)


@pytest.fixture(scope="module")
def session(tmp_path_factory):
  """A work directory whose checkpoints are 1, 2 and 5 times some parameters."""
  session = tiny_session.make_session(tmp_path_factory.mktemp("run"))
  fields = config_lib.flat(session.config)
  with jax.set_mesh(session.mesh):
    params = tiny_session.random_params(session)
    for step, factor in ((1, 1), (2, 2), (4, 5)):
      scaled = jax.tree.map(lambda x, k=factor: k * x, params)
      checkpoints = Checkpoints(
          session.workdir / "checkpoints" / "rl", keep_last=9
      )
      checkpoints.save(
          step,
          dict(policy=dict(params=scaled), critic=None),
          dict(config=fields, evaluated=True),
      )
      checkpoints.close()
    wider = jax.tree.map(lambda x: jnp.concatenate([x, x]), params)
    checkpoints = Checkpoints(
        session.workdir / "checkpoints" / "rl", keep_last=9
    )
    checkpoints.save(
        6, dict(policy=dict(params=wider), critic=None), dict(config=fields)
    )
    checkpoints.close()
  session.params = params
  return session


def close(found, params, factor):
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, factor * y, rtol=1e-6),
      jax.device_get(found),
      jax.device_get(params),
  )


@pytest.mark.parametrize(
    "which, factor, step",
    [("1+2+4", 8 / 3, 4), ("1+2@0.75", 1.25, 2), ("2", 2, 2)],
)
def test_the_policy_of_several_steps(session, which, factor, step):
  with jax.set_mesh(session.mesh):
    params, critic, at, about = call(trained_parameters.policy, session, which)
  close(params, session.params, factor)
  assert critic is None and at == step
  assert (f"the mean of steps {which}" in about) == ("+" in which)


@pytest.mark.parametrize(
    "which, words",
    [
        ("1+3", r"= 1\+3: no such checkpoint of RL in .* \(there are \[1, 2"),
        ("2+1", "oldest first"),
        ("1+6", "networks of step 6 have other shapes than those of step 1"),
    ],
)
def test_steps_that_have_no_mean_are_refused(session, which, words):
  with jax.set_mesh(session.mesh), pytest.raises(RunError, match=words):
    call(trained_parameters.policy, session, which)


def test_what_does_not_take_a_mean(session):
  with pytest.raises(RunError, match="samples are of one step"):
    call(generate.run, session, "1+2")


def test_the_card_claims_no_accuracy_of_a_mean(tmp_path):
  lines = [
      {"stage": "evaluate", "step": x, "val-core/a/acc/mean@1": x / 10}
      for x in (0, 4)
  ]
  text = "".join(json.dumps(x) + "\n" for x in lines)
  (tmp_path / "metrics.jsonl").write_text(text)
  fields = config_lib.flat(tiny_session.tiny_config())
  one = export.model_card(fields, tmp_path, 4)
  mean = export.model_card(fields, tmp_path, 4, averaging.parse("2+4@0.5"))
  assert "| 0.0 | 0.4 |" in one and "| 0.4 |" not in mean
  words = "the mean of the parameters of steps 2, 4 (moving average, decay 0.5)"
  assert words in " ".join(mean.split())


def test_a_card_publishes_nothing_private(tmp_path, monkeypatch):
  """Whatever a text of the config holds, unless a reader needs its kind."""
  monkeypatch.chdir(tmp_path)
  home, secret = tmp_path / "home" / "jane", "sk-1234"
  home.mkdir(parents=True)
  (home / "rows.jsonl").write_text("{}")
  fields = config_lib.flat(tiny_session.tiny_config())
  for name, value in fields.items():
    if isinstance(value, str) and not FIELDS[name].choices:
      for text in (str(home / "x"), f"a {secret}", f"m:f(key='{secret}')*1"):
        card = export.model_card(fields | {name: text}, tmp_path, 4)
        assert str(home) not in card and secret not in card, name
  fields |= {
      "reward.functions": f"mine:f(key='{secret}')*0.5,length*-1..0,"
      f"{home}/rules.json*2,{home}/model*1,constitution(judge='{secret}')*1",
      "model.path": "Qwen/Qwen2.5-0.5B",
      "data.train": f"gsm8k*2,{home}/rows.jsonl*1,openai/gsm8k",
      "data.evaluate": f"{home}/rows.jsonl",
      "advantage.name": "mine:advantage",
      "advantage.args": {"key": secret},
      "rollout.engine.args.url": f"http://{secret}",
      "kl.server.url": f"http://{secret}",
      "data.system": f"You are {secret}.",
      "serve.private_key": str(home / "key.pem"),
      "content.model.path": "0123456789abcdef",
  }
  (tmp_path / "home" / "jane" / "model").mkdir()
  workdir = tmp_path / f"dapo,model.path={secret}"
  workdir.mkdir()
  line = {"stage": "evaluate", "step": 4, f"val-core/{home}/rows.jsonl/acc": 1}
  (workdir / "metrics.jsonl").write_text(json.dumps(line) + "\n")
  card = export.model_card(fields, workdir, 4)
  assert secret not in card and str(home) not in card
  for words in (
      'reward.functions = "mine:f*0.5,length*-1..0,a local path*2,a local pa'
      'th*1,constitution*1"',
      'model.path = "Qwen/Qwen2.5-0.5B"',
      "base_model: Qwen/Qwen2.5-0.5B",
      'data.train = "gsm8k*2,a local path*1,openai/gsm8k"',
      'advantage.name = "mine:advantage"',
      'export.precision = "same"',
      "rollout.temperature = ",
      "| val-core/a local path 0/acc | 1 |",
      "# dapo, step 4",
  ):
    assert words in card, words


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({"data.train": "clients/acme"}, "clients/acme"),  # of the hub
        ({"data.train": "clients/acme", "content.data.train": "1"}, None),
        ({"data.train": "clients/acme.jsonl"}, None),
        ({"data.evaluate": "a/b.parquet*2"}, "a local path*2"),
        ({"tokenizer": "models/own", "content.tokenizer": "1"}, None),
        ({"model.path": "me/model", "content.model.path": "1"}, "me/model"),
        ({"model.path": "models/q4.GGUF"}, None),
    ],
)
def test_a_card_names_no_path_that_is_gone(fields, want):
  """The names of local files have the form of ids of the hub."""
  [value] = card_fields.published(fields).values()
  assert json.loads(value) == (want or card_fields.LOCAL)
