"""What may change on resume."""

import json
import re

import pytest

from configs import base
from rl_reason.base import config, fields as fields_lib, resume_rules
from rl_reason.base.errors import ConfigError, RunError
from rl_reason.base.resume_rules import differences
from rl_reason.stages import trained_parameters

OLD = config.flat(config.with_defaults(base.get_config()))
LONGER = {"rl.steps": 9}


def test_fields_that_an_older_run_lacks_have_their_defaults():
  trained_parameters.require_equal("x", {"model.experts": 0}, {})
  with pytest.raises(RunError, match="model.experts is 0 there and 4 here"):
    trained_parameters.require_equal("x", {"model.experts": 4}, {})


def test_what_may_change_between_runs():
  free = LONGER | {"log.samples": 3, "mesh.fsdp": 2, "optimizer.offload": True}
  assert not differences(OLD, OLD | free)
  changed = OLD | {"surrogate.args.clip_high": 0.3}
  assert differences(OLD, changed) == ["surrogate.args.clip_high: 0.2 -> 0.3"]
  for name in ("mesh.fsdp", "rollout.slots"):
    assert not differences(OLD, OLD | {name: 2})
  # A checkpoint of model.path decides the shape.
  shape = OLD | {"model.width": 96, "model.qkv_bias": True}
  assert differences(OLD, shape)
  path = {"model.path": "x"}
  assert not differences(OLD | path, shape | path)
  assert differences(OLD | path, OLD | path | {"model.dtype": "float16"})


def test_a_run_lacks_the_fields_of_later_versions():
  """It did what their defaults do."""
  earlier = {k: x for k, x in OLD.items() if "_tokens" not in k}
  assert "rollout.stop_tokens" in OLD and not differences(earlier, OLD)
  (line,) = differences(earlier, OLD | {"rollout.stop_tokens": ["\n"]})
  assert line == "rollout.stop_tokens: None -> ['\\n']"
  # A function of a later version, too, with its arguments.
  earlier = {k: x for k, x in OLD.items() if "correction" not in k}
  assert "correction.args" in OLD and not differences(earlier, OLD)
  named = {"correction.name": "truncate"}
  (line,) = differences(earlier, OLD | named)
  assert line == "correction.name: None -> 'truncate'"


@pytest.mark.parametrize(("name", "gone"), fields_lib.REMOVED.items())
def test_a_run_goes_on_without_a_feature_that_it_left_off(name, gone, tmp_path):
  path, used = tmp_path / "config.json", "what it had"
  assert name not in OLD and not differences(OLD | {name: gone.off}, OLD)
  assert differences(OLD | {name: used}, OLD) == [f"{name}: {used!r} -> None"]
  path.write_text(json.dumps(OLD | {name: gone.off}))
  assert config.load(path) == OLD
  path.write_text(json.dumps(OLD | {name: used}))
  message = re.escape(f"{name} = {used}: was taken out: {gone.instead}; ")
  message += ".* --workdir$"
  with pytest.raises(ConfigError, match=message):
    config.load(path)


def test_a_run_of_an_earlier_version_may_go_on_as_it_did():
  """Without what the tokenizer adds to prompts; see `stages.prompt_start`."""
  name = "rollout.add_special_tokens"
  earlier = {k: x for k, x in OLD.items() if k != name}
  assert not differences(earlier, OLD | {name: False})
  assert not differences(earlier, OLD)
  changed = [f"{name}: True -> False", f"{name}: False -> True"]
  assert differences(OLD, OLD | {name: False}) == changed[:1]
  assert differences(OLD | {name: False}, OLD) == changed[1:]


USER = """
def mine(values_BT, progress):
  return values_BT * progress

def constant(values_BT):
  return values_BT
"""


@pytest.mark.parametrize(
    ("fields", "reads"),
    [
        ({"optimizer.schedule": "cosine"}, True),
        ({"critic.schedule": "linear"}, True),
        ({"critic.value_mixture.name": "mixture"}, True),
        ({"critic.value_mixture.name": "own_mix:mine"}, True),
        ({"critic.value_mixture.name": "own_mix:constant"}, False),
        ({"advantage.name": "explore"}, True),
        ({"reward.functions": "length*-0.3..0"}, True),
        ({"reward.functions": "boxed*1, length*0..0.5"}, True),
        ({"reward.functions": "length*0.5..0.5"}, False),
        ({"reward.functions": "../model*0.5"}, False),
    ],
)
def test_readers_of_the_progress_hold_the_number_of_steps(
    fields, reads, tmp_path, monkeypatch
):
  (tmp_path / "own_mix.py").write_text(USER)
  monkeypatch.syspath_prepend(tmp_path)
  found = differences(OLD | fields, OLD | fields | LONGER)
  assert found == (["rl.steps: 40 -> 9"] if reads else [])


def test_the_tables_name_fields():
  names = [*resume_rules.MOVABLE, *resume_rules.PROGRESS]
  assert set(names) <= set(OLD)
  prefixes = *resume_rules.free_fields(), *resume_rules.VALUES
  unused = [x for x in prefixes if not any(y.startswith(x) for y in OLD)]
  unused = [x for x in unused if not x.startswith("rollout.engine.args.")]
  assert unused == ["content.", "advantage.args.gamma"]


@pytest.mark.parametrize(("task", "matters"), [("files", True), ("xor", False)])
def test_a_number_of_programs_matters_to_rows_of_files(task, matters):
  old = {"task.name": task, "data.programs": 32}
  found = differences(old, old | {"data.programs": 0})
  assert found == ["data.programs: 32 -> 0"] * matters
