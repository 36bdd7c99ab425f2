"""The examples in docs/own_functions.md work as printed."""

import importlib
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_session
from conftest import ROOT

from rl_reason import api
from rl_reason.algorithms import objective
from rl_reason.base import errors, functions
from rl_reason.base.structs import Batch, Rollouts
from rl_reason.checks import (
    config_checks,
    config_files,
    own_functions,
    traced_functions,
)
from rl_reason.collect import experience
from rl_reason.monitoring import own_metrics
from rl_reason.report import charts
from rl_reason.stages import build_step
from rl_reason.training import packing, step

PAGE = (ROOT / "docs" / "own_functions.md").read_text()
CODE, GMPO, TERMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def directory(tmp_path, monkeypatch):
  """A user's directory with the printed file."""
  (tmp_path / "my_advantages.py").write_text(CODE)
  (tmp_path / "my_gmpo.py").write_text(f'"""GMPO."""\n\n{GMPO}')
  (tmp_path / "my_terms.py").write_text(TERMS)
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(str(tmp_path))
  yield tmp_path
  for name in ("my_advantages", "my_gmpo", "my_terms"):
    sys.modules.pop(name, None)


def test_the_examples_pass_the_linter(directory):
  settings = f"--config={ROOT / 'pyproject.toml'}"
  command = [sys.executable, "-m", "ruff", "check", settings, "."]
  done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout


def test_the_example_is_an_advantage(directory):
  """Rewards 1, 0 | 3, 5 are 0, 1 | 2, 0 below the best; scaled by 1/2."""
  from configs import dapo

  flags = dict(re.findall(r"--config\.(advantage\.[\w.]+)=([\w:.]+)", PAGE))
  assert flags == {
      "advantage.name": "my_advantages:group_best",
      "advantage.args.scale": "0.5",
  }
  c = config_files.smoke(dapo.get_config())
  c.advantage.name = flags["advantage.name"]
  c.advantage.args = {"scale": 0.5}
  config_checks.fields(c)
  function = functions.bind("advantage", c.advantage)
  rewards_B, groups_B = jnp.array([1.0, 0, 3, 5]), jnp.array([7, 7, 2, 2])
  np.testing.assert_allclose(function(rewards_B, groups_B), [0, -0.5, -1, 0])


def test_a_lambda_for_each_token(directory):
  """V = 0 and a reward of 1 at the end: A_t = lambda_t A_{t+1}, from 1.

  Lambdas of three tokens are .5, .75, 1; the masked position is skipped.
  """
  c = tiny_session.tiny_config()
  c.advantage.name = "my_advantages:gae_rising"
  c.advantage.args = {"first": 0.5}
  function = functions.bind("advantage", c.advantage)
  rewards_BT = jnp.array([[0.0, 0, 0, 1]])
  mask_BT = jnp.array([[True, True, False, True]])
  got_BT = function(rewards_BT, jnp.zeros((1, 4)), mask_BT)
  np.testing.assert_allclose(got_BT, [[0.375, 0.75, 0, 1]])


def test_gmpo_is_a_surrogate(directory):
  """By hand; positive advantages clip log r above .4, negative below -.4.

  A = 2: log r of .1, .5, -.9 become .1, .4, -.9. A = -1: .3, -.6 become .3,
  -.4.
  """
  from configs import grpo

  c = config_files.smoke(grpo.get_config())
  c.surrogate.name, c.surrogate.args = "my_gmpo:gmpo", {"clip": 0.4}
  config_checks.fields(c)
  logps_BT = jnp.array([[0.1, 0.5, -0.9, 9], [0.3, -0.6, 9, 9]])
  mask_BT = jnp.array([[1, 1, 1, 0], [1, 1, 0, 0]], bool)
  advantages_BT = jnp.array([[2.0], [-1]]) * mask_BT
  zeros_BT = jnp.zeros_like(logps_BT)
  surrogate = functions.bind("surrogate", c.surrogate)
  loss_BT, aux = surrogate(logps_BT, zeros_BT, advantages_BT, mask_BT)
  want_B1 = np.array([[-2 * np.exp(-0.4 / 3)], [np.exp(-0.1 / 2)]])
  np.testing.assert_allclose(loss_BT, want_B1 * mask_BT, rtol=1e-6)
  clipped_BT = [[False, True, False, False], [False, True, False, False]]
  assert (aux["clipped"] & mask_BT).tolist() == clipped_BT
  assert not aux["clipped_lower"].any()
  for args, error in (
      ({"clip": -1}, "must be at least 0"),
      ({"clipp": 1}, "gmpo takes clip; did you mean clip?"),
  ):
    c.surrogate.args = args
    with pytest.raises(errors.ConfigError, match=re.escape(error)):
      config_checks.fields(c)


@pytest.mark.parametrize(
    ("kind", "result", "error"),
    [
        ("advantage", "x[:1]", r"returns \(1,\), and must .* axes B or BT"),
        (
            "advantage",
            "x.missing",
            r"raises, when it is traced, AttributeError: .* \(made_\w+.py:3, ",
        ),
        ("advantage", "x", None),
        ("advantage", "x, dict(mine=x.sum())", None),
        ("surrogate", "x", "must return arrays with the axes"),
        ("surrogate", "(x, dict(clipped=x))", "'clipped_lower': 'BT'"),
        ("surrogate", "(x, dict(clipped=x, clipped_lower=x, more=x))", None),
        ("reduction", "x.sum()", "axes BT, where B = 32 and T = 48"),
        ("reduction", "x", None),
    ],
)
def test_what_a_function_returns_is_known_before_sft(
    directory, kind, result, error
):
  first = dict(advantage="rewards_B", surrogate="logps_BT", reduction="mask_BT")
  code = f"def f({first[kind]}):\n  x = {first[kind]}\n  return {result}\n"
  name = f"made_{abs(hash((kind, result)))}"
  (directory / f"{name}.py").write_text(code)
  c = importlib.import_module("configs.base").arithmetic()
  c.rollout.batch = 32
  c[kind].update(name=f"{name}:f", args={})
  if error is None:
    traced_functions.check(c)
    return
  with pytest.raises(errors.ConfigError, match=error) as e:
    traced_functions.check(c)
  assert str(e.value).startswith(f"{kind}.name = '{name}:f': ")


def own_terms():
  """A config with the terms and the metric of the document."""
  c = config_files.smoke(importlib.import_module("configs.dapo").get_config())
  c.loss.terms, c.log.metrics = (
      re.search(rf"--config\.{field}=([^'\s]+)", PAGE)[1]
      for field in ("loss.terms", "log.metrics")
  )
  return c


def test_own_terms_of_the_loss(directory):
  """By hand; micro-batches of one row each add up to the minibatch.

  Rows of 2 and 1 tokens, the first one correct. Entropies .1, .4 and .2 are .2,
  0 and .1 below .3, each weighs a third; -log p of the first row is 1 and 3.
  At half of the run the coefficient of the imitation is .05.
  """
  c = own_terms()
  config_checks.fields(c)
  traced_functions.check(c)
  o = build_step.objective(c, on_policy=False)
  found = build_step.coefficients(c)(dict(kl=0.0, entropy=0.0), 0.5)
  labels = "my_terms:confidence(least=0.3)", "my_terms:imitation"
  np.testing.assert_allclose([found[x] for x in labels], [0.01, 0.05])
  zeros = jnp.zeros((2, 2))
  b = Batch(
      groups_B=jnp.array([0, 1]),
      mask_BT=jnp.array([[1, 1], [1, 0]], bool),
      advantages_BT=zeros,
      old_logps_BT=jnp.array([[-1.0, -3], [-2, 0]]),
      ref_logps_BT=zeros,
      correct_B=jnp.array([1.0, 0]),
      staleness_B=jnp.zeros(2, int),
      values_BT=zeros,
      returns_BT=zeros,
  )
  entropy_BT = jnp.array([[0.1, 0.4], [0.2, 0]])
  w = objective.token_weights(o, b)

  def loss(logps_BT, entropy_BT, rows):
    arrays = packing.zero_others(jnp.array(rows), (b, w))
    return objective.loss(o, logps_BT, entropy_BT, *arrays, found)

  def add(x, y):
    return jax.tree.map(jnp.add, x, y)

  gradient = jax.grad(loss, (0, 1), has_aux=True)
  whole = gradient(b.old_logps_BT, entropy_BT, [True, True])
  parts = [
      gradient(b.old_logps_BT, entropy_BT, rows)
      for rows in ([True, False], [False, True])
  ]
  (by_logps_BT, by_entropy_BT), metrics = whole
  names = [f"loss/{x}/mean" for x in labels]
  np.testing.assert_allclose([metrics[x] for x in names], [0.1, 2], rtol=1e-6)
  np.testing.assert_allclose(metrics["loss"], 0.001 + 0.1, rtol=1e-6)
  np.testing.assert_allclose(by_logps_BT, [[-0.025, -0.025], [0, 0]])
  third = 0.01 / 3
  np.testing.assert_allclose(
      by_entropy_BT, [[-third, 0], [-third, 0]], rtol=1e-6
  )
  (grads, of_parts), added = add(*parts), [*names, "loss", "nll_loss"][:3]
  np.testing.assert_allclose(grads[0], by_logps_BT)
  np.testing.assert_allclose(grads[1], by_entropy_BT)
  for name in added:
    np.testing.assert_allclose(of_parts[name], metrics[name], rtol=1e-6)


def test_a_term_without_a_coefficient_is_a_metric(directory):
  c = own_terms()
  c.loss.terms = "my_terms:imitation*0"
  (term,) = build_step.objective(c, on_policy=False).terms
  assert term.coef == 0


@pytest.mark.parametrize(
    ("field", "text", "error"),
    [
        ("loss.terms", "my_terms:confidenc", "did you mean confidence?"),
        (
            "loss.terms",
            "my_terms:confidence(most=1)",
            "my_terms:confidence.most = 1: my_terms:confidence takes least",
        ),
        ("loss.terms", "my_terms:lengths", "takes lengths_B, which does not"),
        ("loss.terms", "my_terms:imitation*x", "must look like"),
        ("loss.terms", "my_terms:imitation,my_terms:imitation", "twice"),
        ("loss.terms", "made_terms:of_values", "set advantage.name = 'gae'"),
        ("loss.terms", "made_terms:of_reference", "set kl.kind = 'k3'"),
        ("loss.terms", "made_terms:weighted", "token_weights: takes logps_BT"),
        ("log.metrics", "my_terms:confidence", "takes entropy_BT, which does"),
        ("log.metrics", "my_terms:lengths*2", "leave its weight out"),
        ("log.metrics", "made_terms:of_values", "set advantage.name = 'gae'"),
    ],
)
def test_mistakes_in_own_terms_and_metrics(directory, field, text, error):
  (directory / "made_terms.py").write_text(
      "def of_values(values_BT): return values_BT\n"
      "def of_reference(ref_logps_BT): return ref_logps_BT\n"
      "def weighted(logps_BT): return logps_BT\n"
      "weighted.token_weights = weighted\n"
  )
  c = own_terms()
  section, _, name = field.partition(".")
  c[section][name] = text
  with pytest.raises(errors.ConfigError, match=re.escape(error)) as e:
    config_checks.fields(c)
  assert str(e.value).startswith(f"{field} = {text!r}: ")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("return x.sum()", "returns (), and must return arrays with the axes"),
        ("return np.asarray(x)", "raises, when it is traced, TracerArray"),
    ],
)
def test_what_an_own_term_returns_is_known_before_sft(directory, code, error):
  name = f"made_{abs(hash(code))}"
  (directory / f"{name}.py").write_text(
      f"import numpy as np\ndef f(logps_BT):\n  x = logps_BT\n  {code}\n"
  )
  c = own_terms()
  c.loss.terms = f"{name}:f*0.1"
  with pytest.raises(errors.ConfigError, match=re.escape(error)) as e:
    traced_functions.check(c)
  assert str(e.value).startswith(f"loss.terms = '{name}:f': ")


def test_own_metrics_are_logged_and_plotted(directory):
  """Of three rows, the last one is padding; a failure is said once."""
  rollouts = Rollouts(
      tokens_BL=np.zeros((3, 4), int),
      start_B=np.zeros(3, int),
      ids_B=np.arange(3),
      mask_BT=np.array([[1, 1], [1, 0], [1, 1]], bool),
      logps_BT=np.zeros((3, 2)),
      lengths_B=np.array([2, 1, 2]),
      truncated_B=np.zeros(3, bool),
  )
  rows = experience.graded(rollouts, np.array([0.0, 1, 1]))
  rows = rows.replace(age_B=np.array([0, 0, -1]))
  credit = dict(advantages_BT=np.zeros((3, 2)), rewards_B=np.ones(3))
  functions_ = {x.label: x.function for x in own_functions.metrics(own_terms())}
  broken = dict(broken=lambda step: 1 / (step - 1), text=lambda step: "x")
  said = []
  own = own_metrics.OwnMetrics(functions_ | broken, said.append)
  batch = step.train_batch(rows, credit)
  wanted = {"own/my_terms:lengths/all": 2.0, "own/my_terms:lengths/correct": 1}
  assert own(rows, credit, batch, 1) == wanted
  assert own(rows, credit, batch, 2) == wanted | {"own/broken": 1.0}
  assert len(said) == 2 and "broken raised ZeroDivisionError" in said[0]
  assert set(own_metrics.arrays_of_step(rows, credit, batch, 1)) == {
      *own_functions.OF_STEP
  }
  logged = wanted | {"loss/my_terms:f(x={1})/mean": 0.5}
  lines = [dict(stage="rl", step=n, **logged) for n in (1, 2)]
  shown = {x["title"]: x["series"][0]["y"] for x in charts.charts_of(lines)[1]}
  assert shown["my_terms:lengths/all"] == [2, 2]
  assert shown["my_terms:f(x={1})"] == [0.5, 0.5]


def test_an_advantage_of_parts_of_the_reward(directory):
  code = (
      "def f(rewards_B, parts):\n"
      "  return sum(weight * x_B for x_B, weight in parts.values())\n"
  )
  (directory / "made_of_parts.py").write_text(code)
  c = importlib.import_module("configs.base").arithmetic()
  c.advantage.update(name="made_of_parts:f", args={})
  traced_functions.check(c)


def test_a_run_checks_what_functions_return_first(directory):
  (directory / "made_scalar.py").write_text(
      "def f(logps_BT):\n  return logps_BT.sum()\n"
  )
  c = tiny_session.tiny_config()
  c.surrogate.update(name="made_scalar:f", args={})
  with pytest.raises(errors.ConfigError, match="surrogate.name .* must return"):
    api.train(c, workdir=directory / "run", show=False)
  assert not (directory / "run" / "checkpoints").exists()


OWN = """
import functools, json, random

import jax

def half(rewards_B, groups_B, *, scale=0.5):
  return jax.numpy.asarray(rewards_B) * scale

mine = functools.partial(half, scale=random.random())
"""


def test_files_of_the_directory_replace_no_module(tmp_path):
  """Also in a checkout that is not installed, where the package is found."""
  for name in ("rl_reason", "configs"):
    (tmp_path / name).symlink_to(ROOT / name)
  (tmp_path / "own_functions.py").write_text(OWN)
  for name in ("json", "random", "typing", "numpy", "yaml", "jax"):
    (tmp_path / f"{name}.py").write_text(f"raise SystemExit({name!r})")
  done = subprocess.run(
      [sys.executable, "-m", "rl_reason.main", "--config=dapo"]
      + ["--config.advantage.name=own_functions:mine"]  # imports the file
      + ["--config.advantage.args.scales=2"],
      cwd=tmp_path,
      env={k: x for k, x in os.environ.items() if k != "PYTHONPATH"},
      capture_output=True,
      text=True,
  )
  assert done.returncode == 2, done.stdout + done.stderr
  assert "scales" in done.stderr and "did you mean scale?" in done.stderr


def test_a_file_that_is_hidden_by_a_module_is_named(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", list(sys.path))
  for name in ("random", "math", "yaml"):  # math has no file
    (tmp_path / f"{name}.py").write_text("def best(rewards_B): return 0")
    named = rf"{name}.py is hidden by .*: give the file another name"
    with pytest.raises(errors.ConfigError, match=named):
      functions.load(f"{name}:best")
    with pytest.raises(errors.ConfigError, match=named):
      functions.signature("advantage", f"{name}:best")


def test_files_of_callable_objects(directory):
  """They have no file of their own: it is that of their module."""
  (directory / "my_objects.py").write_text(
      "import functools\ndef f(x, y): return x\n"
      "class Rule:\n  def __call__(self, x): return x\n"
      "partial, rule = functools.partial(f, y=1), Rule()\n"
  )
  named = [f"my_objects:{x}" for x in ("f", "partial", "rule")]
  found = functions.files(["math", *named])
  assert found == [directory / "my_objects.py"] * 3


def test_arrays_at_the_top_of_a_module_are_too_early_for_several_processes(
    directory,
):
  (directory / "early.py").write_text(
      "import jax.numpy as jnp\nSCALE = jnp.array(2.0)\n"
      "def scaled(rewards_B):\n  return rewards_B * SCALE\n"
  )
  done = subprocess.run(
      [sys.executable, "-m", "rl_reason.main", "--config=dapo:smoke"]
      + ["--config.advantage.name=early:scaled", "--distributed"],
      cwd=directory,
      env=os.environ | {"PYTHONPATH": str(ROOT)},
      capture_output=True,
      text=True,
  )
  assert done.returncode == 2, done.stderr
  assert "--distributed: a module that the config names" in done.stderr
