"""DPO: its loss by hand, against TRL, and how its stage is checked."""

import functools
import json
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from test_checks import with_fields

from conformance import dpo_steps
from rl_reason import hf, run, tasks
from rl_reason.base import config, feature, resume_rules
from rl_reason.base.errors import ConfigError
from rl_reason.checkpointing import resumable
from rl_reason.checks import (
    command_line,
    config_checks,
    config_files,
    file_checks,
    machine_checks,
    usage,
)
from rl_reason.checks.rules import Faults
from rl_reason.configs import base, guess
from rl_reason.devices import device_mesh
from rl_reason.features import preference_optimization as dpo_feature
from rl_reason.features.preference_optimization import dpo
from rl_reason.hf import tensor_names
from rl_reason.models import decoder
from rl_reason.stages import optimizers
from rl_reason.training import optimizer, packing

KNOWN = json.loads(dpo_steps.PATH.read_text())
NAME = "dpo"


def test_the_loss_by_hand():
  """log 2 at a tie; log(1 + e^-d) else, finite however wrong."""
  chosen_B = jnp.array([1.0, 2.0, 0.0, -500.0])
  rejected_B = jnp.array([1.0, 0.0, 2.0, 500.0])
  right_B = [np.log(2), np.log1p(np.exp(-2)), np.log1p(np.exp(2)), 1000]
  wrong_B = [np.log(2), np.log1p(np.exp(2)), np.log1p(np.exp(-2)), 0]
  got_B = dpo.sigmoid_loss(chosen_B, rejected_B)
  np.testing.assert_allclose(got_B, right_B, rtol=1e-6)
  got_B = dpo.sigmoid_loss(chosen_B, rejected_B, 0.25)
  wanted_B = 0.75 * np.array(right_B) + 0.25 * np.array(wrong_B)
  np.testing.assert_allclose(got_B, wanted_B, rtol=1e-6)


@pytest.mark.parametrize("smoothing", [0.1, 0.25])
def test_a_smoothed_loss_is_smallest_at_the_odds_of_right_labels(smoothing):
  best = jnp.log((1 - smoothing) / smoothing)
  slope = jax.grad(lambda d: dpo.sigmoid_loss(d, 0.0 * d, smoothing))
  assert abs(slope(best)) < 1e-6
  assert slope(best - 1) < 0 < slope(best + 1)


def rows_of_pairs(slots=6):
  """Tokens, start and mask of the pairs of `dpo_steps`; chosen ones first."""
  texts = [(prompt, x) for prompt, *both in dpo_steps.PAIRS for x in both]
  tokens_BL = np.zeros((len(texts), 2 * slots), np.int32)
  for b, (prompt, response) in enumerate(texts):
    tokens_BL[b, slots - len(prompt) : slots] = prompt
    tokens_BL[b, slots : slots + len(response)] = response
  start_B = np.array([slots - len(prompt) for prompt, _ in texts])
  length_B = np.array([len(response) for _, response in texts])
  return tokens_BL, start_B, np.arange(slots) < length_B[:, None]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
  """The model of `dpo_steps`: shape, table, parameters, mesh."""
  path = tmp_path_factory.mktemp("llama")
  (path / "config.json").write_text(json.dumps(dpo_steps.CONFIG))
  safetensors.numpy.save_file(dpo_steps.weights(), path / "model.safetensors")
  source = hf.find(str(path))
  mesh = device_mesh.make_mesh(1, 1, 1, jax.devices()[:1])
  table = decoder.table(source.cfg)
  return source.cfg, table, lambda: hf.load(source, table, mesh), mesh


def test_three_steps_of_trl(llama):
  """Metrics and parameters, with two or more micro-batches."""
  cfg, table, params, mesh = llama
  o = base.get_config().optimizer
  o.update(weight_decay=0.0, clip_norm=1.0, b2=0.999, eps=1e-8)
  tx = optimizers.of_stage(
      o, lr=dpo_steps.LR, schedule="linear", total=dpo_steps.STEPS
  )
  tokens_BL, start_B, mask_BT = rows_of_pairs()
  packed = packing.pack(tokens_BL, start_B, mask_BT, 3, 2)
  assert packing.num_used(packed) > 1
  with jax.set_mesh(mesh):
    state = optimizer.new_state(
        params(), tx, optimizer.state_shardings(table, tx, mesh)
    )
    reference = dpo.sequence_logps_program(cfg)
    reference_B = reference(state.params, packed, mask_BT)
    settings = dict(cfg=cfg, tx=tx, beta=dpo_steps.BETA)
    update = jax.jit(functools.partial(dpo.dpo_update, **settings))
    for wanted in KNOWN["steps"]:
      state, metrics = update(state, packed, mask_BT, reference_B)
      for name in dpo_steps.METRICS:
        np.testing.assert_allclose(
            metrics[name], wanted[name], rtol=2e-4, atol=2e-5, err_msg=name
        )
  along = dpo_steps.directions()
  tensors = dict(tensor_names.named_tensors(state.params, cfg))
  assert tensors.keys() == KNOWN["after"].keys()
  for name, wanted in KNOWN["after"].items():
    got = (np.asarray(tensors[name], float) * along[name]).sum()
    np.testing.assert_allclose(got, wanted, atol=2e-3, err_msg=name)


def test_versions():
  assert KNOWN["versions"]["trl"] == "1.16.0"


def test_the_stage_is_one_of_the_stages_that_train():
  assert NAME in run.TRAINS and run.STAGES[NAME] == run.STAGES["sft"]
  assert NAME in file_checks.TRAINS and NAME in usage.STAGES
  assert "did you mean dpo?" in usage.no_such_stage("preferences")
  assert NAME in resumable.FOLLOWED_BY["sft"]
  assert resumable.FOLLOWED_BY[NAME] == ("value", "rl")
  assert resumable.RATES[NAME] == "dpo.lr"
  assert feature.stages()[NAME].policy


def test_it_is_part_of_a_run_where_it_has_steps():
  c = base.arithmetic()
  assert feature.before_rl(c) == []
  c.dpo.update(steps=5, batch=5)
  assert feature.before_rl(c) == [NAME]
  machine_checks.devices(c, 4, "reward_model")  # which starts from SFT
  for stage in ("all", NAME):
    with pytest.raises(ConfigError, match="dpo.batch = 5: 10 rows"):
      machine_checks.devices(c, 4, stage)


def test_a_stage_of_no_steps_is_refused(tmp_path):
  faults = Faults()
  command_line.examine(base.arithmetic(), {}, tmp_path, NAME, faults)
  assert faults.lines == [
      "dpo.steps = 0: --stage=dpo would train nothing: set it"
  ]


def test_what_another_run_must_share():
  """A critic has the values of the policy that RL starts from."""
  there = config.flat(base.arithmetic())
  here = there | {"dpo.steps": 5}
  (found,) = resume_rules.other_values(there, here, "runs/a")
  assert found == "dpo.steps: 0 -> 5"
  assert resume_rules.differences(there, here) == [found]


ON = {"dpo.steps": 5}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (ON | {"dpo.chosen": "x:1"}, "'x' is none of arithmetic's styles"),
        (ON | {"dpo.label_smoothing": 0.6}, "label_smoothing = 0.6"),
        (ON | {"dpo.beta": 0.0}, "dpo.beta = 0.0: must be"),
        (ON | {"dpo.warmup_steps": 6}, "dpo.warmup_steps"),
        ({"dpo.chosen": "careful:1"}, "does nothing without dpo.steps"),
    ],
)
def test_what_cannot_work(changes, fault):
  c = base.arithmetic()
  with pytest.raises(ConfigError, match=re.escape(fault)):
    config_checks.fields(with_fields(changes, c))


def test_pairs_of_files_have_no_styles(tmp_path):
  rows = tmp_path / "pairs.jsonl"
  rows.write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}')
  changes = ON | {"dpo.chosen": "careful:1", "dpo.samples": str(rows)}
  with pytest.raises(ConfigError, match="the pairs of files have no styles"):
    config_checks.fields(with_fields(changes, base.arithmetic()))


def test_a_task_without_demonstrations_needs_files(monkeypatch):
  c = base.arithmetic()
  c.dpo.steps = 5
  rules = dpo_feature.FEATURE.rules
  assert not [*rules(c)]
  known = types.SimpleNamespace(has_demonstrations=False, STYLES=())
  monkeypatch.setattr(tasks, "get", lambda _: known)
  ((field, remedy),) = rules(c)
  assert field == "dpo.samples" and "no function demonstrate" in remedy
  c.dpo.samples = "a.jsonl"
  assert not [*rules(c)]


def test_an_environment_has_no_pairs():
  c = guess.get_config()
  c.dpo.steps = 5
  with pytest.raises(ConfigError, match="environment are no pairs of texts"):
    config_checks.fields(c)


def test_a_rate_for_random_parameters_is_doubted():
  c = base.arithmetic()
  c.model.path = "somebody/model"
  c.dpo.update(steps=5)
  (found,) = dpo_feature.FEATURE.cautions(c)
  assert found[0] == "dpo.lr"
  c.dpo.lr = 1e-6
  assert [*dpo_feature.FEATURE.cautions(c)] == []


def test_its_smoke_run():
  c = config_files.read("configs/preferences.py:smoke")
  small = config.flat(c)
  assert small["dpo.steps"] == 10
  c.dpo.update(steps=300, warmup_steps=100)
  config_checks.fields(config_files.smoke(c))


def test_the_reference_is_that_of_the_batches_to_come():
  """Before the first batch and after a resume; its policy is then deleted."""
  calls, stops = [], []

  class Numbers:
    """A stream of the batches 0, 1, 2, ..."""

    def __init__(self):
      self.at = 0

    def __iter__(self):
      return self

    def __next__(self):
      self.at += 1
      return self.at - 1

    def get_state(self):
      return self.at

    def set_state(self, state):
      self.at = state

  def logps(params, tokens, start, mask):
    assert not params["a"].is_deleted()
    calls.append(tokens)
    return np.full(2, 10.0 * tokens)

  def start():
    params = {"a": jnp.ones(2)}
    reference = dpo.Reference(
        params,
        logps,
        [(100, 0, 0)],
        say=lambda _: None,
        doing=lambda _: None,
        check_stop=lambda: stops.append(0),
    )
    pack = lambda n: (n, n + 1, n + 2)  # noqa: E731
    return (
        dpo.WithReference(Numbers(), pack, 4, reference),
        reference,
        params,
    )

  stream, reference, params = start()
  first = [next(stream) for _ in range(2)]
  assert [x[:3] for x in first] == [(0, 1, 2), (1, 2, 3)]
  assert [x[3].tolist() for x in first] == [[0, 0], [10, 10]]
  assert calls == [0, 1, 2, 3, 100] and len(stops) == 4
  assert params["a"].is_deleted() and reference.compute() == []
  ((_, held_out_B),) = reference.held_out
  assert held_out_B.tolist() == [1000, 1000]
  state = json.loads(json.dumps(stream.get_state()))

  del calls[:]
  stream, *_ = start()
  stream.set_state(state)
  assert [next(stream)[0] for _ in range(2)] == [2, 3]
  assert calls == [2, 3, 100]
