"""What sampling ahead is refused with, and what the core asks of it."""

import contextlib

import jax
import pytest
from test_checks import ON_POLICY, VLLM
from test_config import with_fields
from test_report import head_of
from test_size import sized

from rl_reason.base import config, fields, other_names, resume_rules
from rl_reason.base.errors import ConfigError
from rl_reason.checks import (
    config_checks,
    config_facts,
    config_files,
    machine_checks,
    relations,
)
from rl_reason.configs import base
from rl_reason.stages import parts

AHEAD = {"rl.staleness": 1}
FROM_TRAINER = AHEAD | {"rl.old_logps": "trainer"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"advantage.name": "optimal_token_baseline", "rl.staleness": 2},
            "rl.old_logps = 'sampler': optimal_token_baseline reads",
        ),
        (
            AHEAD | {"correction.name": "truncate"},
            "set rl.old_logps = 'trainer'",
        ),
        (
            VLLM | AHEAD | {"mesh.rollout": 1},
            "mesh.rollout = 1: the engine has devices of its own",
        ),
        ({"mesh.rollout": 1}, "does nothing without rl.staleness"),
        (
            AHEAD | {"mesh.rollout": 1, "reward.functions": "a/b*1"},
            "mesh.rollout = 1: reward models score evaluations",
        ),
        ({"rl.old_logps": "trainer"}, "does nothing without rl.staleness"),
        (ON_POLICY | AHEAD, "the run is off-policy: set rl.staleness = 0"),
    ],
)
def test_impossible_configs_are_named(changes, words):
  with pytest.raises(ConfigError) as e:
    config_checks.fields(with_fields(changes), tuple(changes))
  assert len(e.value.lines) == 1 and words in str(e.value)


def test_trajectories_are_not_sampled_ahead():
  c = config_files.read("configs/guess.py")
  c.rl.staleness = 1
  with pytest.raises(ConfigError, match="rl.staleness = 1: trajectorie"):
    config_checks.fields(c)


@pytest.mark.parametrize(
    ("changes", "warns"),
    [(FROM_TRAINER, 1), (FROM_TRAINER | {"correction.name": "truncate"}, 0)],
)
def test_an_age_that_nothing_corrects_is_warned_of(changes, warns):
  lines = config_checks.warnings(with_fields(changes))
  assert sum("nothing corrects for the age" in x for x in lines) == warns


@pytest.mark.parametrize(
    ("rollout", "axes", "words"),
    [
        (9, {}, "mesh.rollout = 9: of 8 devices, some must learn"),
        (8, {}, "mesh.rollout = 8: of 8 devices, some must learn"),
        (3, {"tensor": 2, "data": 2}, "not cover 5 devices besides the 3 that"),
        (3, {"tensor": 1}, "rollout.batch = 256: 32 groups cannot be split"),
        (3, {"tensor": 5}, "mesh.rollout = 3: must be a multiple of tensor=5"),
        (1, {"fsdp": 7}, "32 groups cannot be split over 7 .*: make their"),
        (4, {}, ""),
    ],
)
def test_devices_that_only_sample(rollout, axes, words):
  c = with_fields(AHEAD)
  c.updates.minibatches, c.sft.batch, c.evaluate.batch = 1, 840, 840
  c.mesh.update(rollout=rollout, **axes)
  refused = pytest.raises(ConfigError, match=words)
  with refused if words else contextlib.nullcontext():
    machine_checks.devices(c, 8)


def test_a_smoke_run_has_no_devices_that_only_sample():
  c = with_fields(AHEAD | {"mesh.rollout": 2, "mesh.tensor": 2})
  config_files.smoke(c)
  assert (c.mesh.rollout, c.mesh.tensor) == (0, 1)


def test_the_updates_are_off_policy():
  c = with_fields({"updates.minibatches": 1})
  assert config_facts.on_policy(c) and config_facts.lag(c) == 0
  c.rl.staleness = 2
  assert not config_facts.on_policy(c) and config_facts.lag(c) == 2


def test_a_resumed_run_keeps_its_number_of_steps():
  old = config.flat(base.arithmetic())
  assert not resume_rules.reads_progress(old)
  assert resume_rules.reads_progress(old | AHEAD)


def test_several_processes_do_not_sample_ahead(monkeypatch):
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  parts.check_machine(with_fields({}))
  with pytest.raises(ConfigError, match="rl.staleness = 1: .* set it to 0"):
    parts.check_machine(with_fields(AHEAD))


def test_a_field_of_a_feature_that_is_not_there_is_not_set():
  """`rollout.replay` is refused with rl.staleness, and works without it."""
  c = with_fields(AHEAD)
  assert relations.is_set(c, "rl.staleness")
  assert not relations.is_set(c, "rl.gone")


def test_names_of_other_libraries():
  assert other_names.of_others()["max_staleness"] == "rl.staleness"
  assert "rl.staleness" in fields.FIELDS


def test_the_head_of_a_report_says_it(tmp_path):
  found = head_of(tmp_path, "dapo", AHEAD | {"mesh.rollout": 2})
  assert "batches sampled at most 1 steps ahead" in found["algorithm"]
  assert "2 devices that only sample" in found["algorithm"]


def test_memory_has_copies_of_the_sampler_weights():
  path, copies = "recipes/gsm8k_0_5b", dict(rl__staleness=3)
  size = sized(path)[1]
  peak = size.rollout_peak + 3 * size.rollout["weights of the sampler"]
  assert sized(path, **copies)[1].rollout_peak == peak
  copies["mesh__rollout"] = 1  # on the device that samples
  assert sized(path, 2, **copies)[1].rollout_peak == size.rollout_peak
