"""Scaling curves: ScaleRL's equation by hand, and fits to made-up runs."""

import json

import numpy as np
import pytest

from rl_reason.base import errors
from rl_reason.lab import sigmoid

TRUE = sigmoid.Fit(first=0.1, asymptote=0.8, steepness=2.0, middle=4e9)


def run(folder, true=TRUE, count=12, noise=0.0, seed=0):
  """Writes the evaluations of a run that costs 1e9 FLOPs a step."""
  draw = np.random.default_rng(seed).normal
  lines = []
  for step in range(count + 1):
    cost_S = np.array([max(step, 1e-9) * 1e9])
    accuracy = float(true(cost_S)[0]) + draw(0, noise)
    core = "val-core/toy/acc/mean@4"
    line = dict(stage="evaluate", step=step) | {core: accuracy}
    # Value pretraining is the cost of step 0.
    lines.append(line | {core + "/ci95": 0.02, "flops/total": 7 + step * 1e9})
  folder.mkdir(exist_ok=True)
  text = "".join(json.dumps(x) + "\n" for x in lines)
  (folder / "metrics.jsonl").write_text(text)
  return folder


def test_the_equation_by_hand():
  # Half of the gain at C_mid; 1 / (1 + 2^-2) = .8 of it at twice C_mid.
  found = TRUE(np.array([4e9, 8e9]))
  assert found == pytest.approx([0.45, 0.66])


def test_a_fit_finds_the_parameters_of_a_curve(tmp_path):
  curve = sigmoid.read(run(tmp_path), "flops")
  assert curve.name == "mean@4" and curve.cost_S[0] == 1e9
  assert curve.first == pytest.approx(0.1)
  assert sigmoid.fit(curve) == pytest.approx(TRUE, rel=1e-4)
  low, high = sigmoid.intervals(curve, sigmoid.fit(curve), 50)
  assert np.all(low < TRUE[1:]) and np.all(TRUE[1:] < high)
  assert high[0] - low[0] < 0.1


@pytest.mark.slow
def test_the_report_of_a_run(tmp_path, capsys):
  good = run(tmp_path / "good")
  flat = run(tmp_path / "flat", TRUE._replace(middle=1e11), noise=0.01)
  short = run(tmp_path / "short", count=3)
  names = [str(good), str(flat), str(short), str(tmp_path / "none")]
  assert sigmoid.main(names) == 1
  out, err = capsys.readouterr()
  assert "mean@4 at 12 evaluations, up to 1.2e+10 FLOPs of RL" in out
  assert "R0 10.0%; A 80.0% (" in out and "B 2 (" in out
  assert "C_mid 4e+09 (" in out
  assert "predicts the rest with a mean error of 0.0 points" in out
  assert out.count("does not determine its asymptote: more rl.steps") == 1
  assert f"{short}: 3 evaluations after step 0; the fit needs 4" in err
  assert "none: no metrics.jsonl; name the --workdir of a run" in err
  assert sigmoid.main([str(good), "--axis=steps"]) == 0
  assert "C_mid 4 (" in capsys.readouterr().out


def test_a_reward_has_a_curve(tmp_path):
  """From -2 to 1.5; the asymptote of a reward has no bound of 1."""
  true = sigmoid.Fit(first=-2.0, asymptote=1.5, steepness=2.0, middle=4e9)
  path = run(tmp_path, true) / "metrics.jsonl"
  path.write_text(path.read_text().replace("/acc/", "/reward/"))
  curve = sigmoid.read(tmp_path, "flops")
  assert not curve.share and curve.low < -2 and curve.high > 1.5
  assert sigmoid.fit(curve) == pytest.approx(true, rel=1e-3)
  lines = sigmoid.report(tmp_path, "flops")
  assert "R0 -2; A 1.5 (" in lines[1] and "points" not in lines[-1]


def test_validation_prompts_come_first(tmp_path):
  path = run(tmp_path) / "metrics.jsonl"
  text = path.read_text().replace("/toy/", "/validation/")
  both = [
      json.loads(a)
      | (json.loads(b) if json.loads(a)["step"] in (0, 12) else {})
      for a, b in zip(
          text.splitlines(), path.read_text().splitlines(), strict=True
      )
  ]
  path.write_text("".join(json.dumps(x) + "\n" for x in both))
  curve = sigmoid.read(tmp_path, "flops")
  assert curve.name == "validation mean@4" and len(curve.cost_S) == 12


def test_a_log_without_costs_has_a_curve_of_steps(tmp_path):
  path = run(tmp_path) / "metrics.jsonl"
  lines = [json.loads(x) for x in path.read_text().splitlines()]
  for line in lines:
    del line["flops/total"]
  lines.append(dict(stage="rl", step=12))
  path.write_text("".join(json.dumps(x) + "\n" for x in lines))
  why = "12 evaluations after step 0, and none with its flops in metrics.jsonl"
  with pytest.raises(errors.RunError, match=f"{why}: use --axis=steps"):
    sigmoid.read(tmp_path, "flops")
  assert len(sigmoid.read(tmp_path, "steps").cost_S) == 12
