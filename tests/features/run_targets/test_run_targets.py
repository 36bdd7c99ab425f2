"""Targets of a run: met or missed by hand, and in the report."""

import json
import re

import pytest
from test_checks import with_fields

from rl_reason.base import config, feature, resume_rules
from rl_reason.base.errors import ConfigError
from rl_reason.checks import config_checks
from rl_reason.configs import base
from rl_reason.features.run_targets import judged
from rl_reason.report import page

KL, ENTROPY = "actor/kl_old_new", "actor/entropy"


def lines_of(**metrics):
  """Lines of metrics.jsonl: one for each value of the metrics."""
  names = dict(kl=KL, entropy=ENTROPY, grad_norm="actor/grad_norm")
  rows = zip(*metrics.values(), strict=True)
  return [
      {"stage": "rl", "step": step}
      | dict(zip([names[x] for x in metrics], row, strict=True))
      for step, row in enumerate(rows, 1)
  ]


def test_the_last_ten_steps_decide():
  """KL: two steps above, then ten at .05; entropy: falls below at the end."""
  kl, entropy = [0.3, 0.2] + [0.05] * 10, [0.9] * 6 + [0.3] * 6
  lines = [{"stage": "sft", "step": 1}, *lines_of(kl=kl, entropy=entropy)]
  fields = {"log.targets.kl": 0.1, "log.targets.entropy": 0.6}
  # The mean of the last ten entropies: (4 * .9 + 6 * .3) / 10 = .54.
  assert judged.sentences(lines, fields) == [
      "Target met: KL from the old policy to the new one (actor/kl_old_new) at"
      " most 0.1. It is 0.05 in the mean of the last 10 steps, and kept to the"
      " target in 10 of 12 steps.",
      "Target missed: entropy (actor/entropy) at least 0.6. It is 0.54 in the"
      " mean of the last 10 steps, and kept to the target in 6 of 12 steps.",
  ]


@pytest.mark.parametrize(
    "norms, text",
    [
        ([1.0], "met: .* It is 1 in the mean of the last 1 steps, .* 1 of 1 s"),
        ([1.001], "missed: "),
        ([None, 0.5], "met: .* It is 0.5 .* last 2 steps, .* in 1 of 2 steps"),
        ([None], "not measured: norm of the gradient .* at most 1."),
        ([], "not measured: "),
    ],
)
def test_bounds_belong_to_a_target_and_null_does_not(norms, text):
  lines = lines_of(grad_norm=norms)
  (said,) = judged.sentences(lines, {"log.targets.grad_norm": 1.0})
  assert said.startswith("Target ")
  assert re.search(f"Target {text}", said), said


def test_the_report_says_it(tmp_path):
  """And says nothing of a run without targets, or of an earlier version."""
  lines = "".join(json.dumps(x) + "\n" for x in lines_of(kl=[0.2]))
  (tmp_path / "metrics.jsonl").write_text(lines)
  flat = config.flat(config.with_defaults(base.get_config()))
  earlier = {k: x for k, x in flat.items() if "log.targets" not in k}
  with_target = flat | {"log.targets.kl": 0.1}
  for fields, count in ((with_target, 1), (flat, 0), (earlier, 0)):
    (tmp_path / "config.json").write_text(json.dumps(fields))
    notes = page.data_of(tmp_path)["notes"]
    assert len([x for x in notes if x.startswith("Target missed: KL")]) == count


def test_a_target_changes_no_run():
  """It may change in a run that resumes, and older runs do without."""
  c = base.arithmetic()
  old = config.flat(config.with_defaults(c))
  new = old | {"log.targets.entropy": 0.5}
  assert resume_rules.differences(old, new) == []
  earlier = {k: x for k, x in old.items() if "log.targets" not in k}
  assert resume_rules.differences(earlier, new) == []
  names = [x.__class__.__name__ for x in feature.used(c)]
  c = with_fields({"log.targets.entropy": 0.5}, c)
  more = [x.__class__.__name__ for x in feature.used(c)]
  assert more == [*names, "_RunTargets"]


def test_targets_are_checked():
  with pytest.raises(ConfigError, match="log.targets.kl = -0.1"):
    config_checks.fields(with_fields({"log.targets.kl": -0.1}))
  c = with_fields({"log.targets.kl": 0.1, "rl.steps": 0})
  with pytest.raises(ConfigError, match="log.targets.kl = 0.1: .*leave this"):
    config_checks.fields(c, ["log.targets.kl"])
