"""Costs of algorithms: medians of steps, configs of equal size, claims."""

import pytest
from conftest import ROOT

from bench import cost_configs, costs, results
from rl_reason.base import config
from rl_reason.checks import config_checks


def line(step, seconds, **more):
  return {
      "stage": "rl",
      "step": step,
      "timing_s/step": seconds,
      "timing_s/gen": seconds / 2,
      "timing_s/adv": 0.25,
      "timing_s/host": 0.25,
      "perf/memory_gib": step / 10,
      "tokens/generated": 100 * step**2,
      "flops/total": 1000 * step,
  } | more


def test_costs_are_medians_without_the_steps_that_compile():
  lines = [line(1, 90.0), line(2, 80.0), line(3, 2.0), line(4, 1.0)]
  lines.append(line(5, 4.0))
  for step, seconds in (1, 50.0), (3, 14.0):
    lines.append({"stage": "value", "step": step, "timing_s/steps": seconds})
  found = costs.costs(lines, batch=8)
  assert found["steps"] == 3 and found["seconds"] == 2.0
  assert (found["least"], found["largest"]) == (1.0, 4.0)
  assert found["phases"]["sampling"] == 1.0 and found["phases"]["other"] == 0.5
  assert found["phases"]["values"] == 0.0
  assert found["memory_gib"] == 0.5  # the peak of the run
  assert found["responses_an_hour"] == 8 * 3600 / 2
  # 900 - 400, 1600 - 900, 2500 - 1600
  assert found["tokens"] == 700 and found["flops"] == 1000
  assert found["joules"] is None and found["pretraining"] == 7.0


@pytest.mark.parametrize(
    ("claimed", "measured", "word"),
    [
        (1.8, 2.5, "agrees"),
        (0.7, 0.9, "agrees"),
        (1.8, 0.9, "opposite"),
        (0.7, 1.06, "opposite"),
        (1.8, 1.04, "not comparable"),
        (0.7, 0.96, "not comparable"),
    ],
)
def test_verdicts(claimed, measured, word):
  """A difference of up to 5% is none."""
  found, reason = costs.verdict(claimed, measured)
  assert found == word and f"{measured:.2f}" in reason


def row(seconds, memory):
  return dict(
      steps=3,
      seconds=seconds,
      least=seconds,
      largest=seconds,
      phases=dict.fromkeys(costs.PHASES, 0.1),
      memory_gib=memory,
      formula_gib=None,
      responses_an_hour=3600 / seconds,
      tokens=10.0,
      flops=1e9,
      joules=None,
      pretraining=None,
      environment={"cpu count": 2, "git commit": "x"},
  )


ROWS = dict(ppo=row(2.0, 1.0), vapo=row(4.0, 0.8), grpo=row(1.0, 1.0))


def test_a_claim_is_judged_by_its_ratios_to_ppo():
  memory, _, seconds, _, *short = costs.CLAIMS
  found = {what: word for what, word, _ in costs.judged(memory, ROWS)}
  assert found == {
      "peak memory, VAPO / PPO": "opposite",  # 72 / 45 is more, .8 is less
      "peak memory, GRPO / PPO": "not comparable",  # equal
      "peak memory, DAPO / PPO": "not comparable",  # not measured
  }
  found = [x[1] for x in costs.judged(seconds, ROWS)]
  assert found == ["agrees", "not comparable", "agrees"]
  (what, word, why), *_ = costs.judged(short[0], ROWS)
  assert (what, word) == ("-", "not comparable")
  assert why.endswith("-20% to +25% between two algorithms")


def test_the_page_begins_with_the_ratios_and_the_claims():
  result = dict(load=0.0, rows=dict(tiny=ROWS))
  title, _, finding, *_ = lines = costs.page(result)
  assert title == "# What each algorithm costs"
  assert "Of 15 claims: 4 x agrees, 1 x opposite and 10 x" in finding
  assert finding.startswith("Seconds and peak memory of a step, divided by")
  assert "VAPO 2.00 and 0.80" in finding
  assert any(x.startswith("| GRPO | 1.00 (1.00 to 1.00)") for x in lines)
  assert "Made by `python -m bench.costs`." in lines


@pytest.mark.parametrize("model", ["default", "tiny"])
def test_configs_have_equal_sizes(model):
  """Each is checked as a run would be, and has its algorithm's functions."""
  found = {}
  for algorithm in cost_configs.ALGORITHMS:
    path = f"{costs.CONFIG}:{algorithm}-{model}"
    c, _ = config_checks.checked(str(ROOT / path), {})
    found[algorithm] = config.flat(c)
  names = [x for x in found["ppo"] if x.startswith(("updates", "model", "sft"))]
  names += ["rollout.batch", "rollout.max_tokens", "rl.steps", "optimizer.lr"]
  for name in names:
    assert len({str(x[name]) for x in found.values()}) == 1, name
  assert found["dapo"]["dynamic_sampling.enabled"]
  assert found["vapo"]["advantage.name"] == "gae_length_adaptive"
  assert found["ppo"]["rollout.group_size"] == 1


def test_finished_runs_are_not_made_again(monkeypatch, tmp_path):
  """The data is kept after each run."""
  monkeypatch.setattr(results, "RESULTS", tmp_path)
  made = []
  monkeypatch.setattr(costs.runs, "make", lambda jobs: made.extend(jobs))
  monkeypatch.setattr(costs, "row_of", lambda *_: row(1.0, 1.0))
  given = type("Flags", (), dict(models="tiny"))
  stopped = results.write

  def write(name, result, lines):
    stopped(name, result, lines)
    if len(result["rows"]["tiny"]) == 2 and len(made) == 4:
      raise KeyboardInterrupt

  monkeypatch.setattr(results, "write", write)
  with pytest.raises(KeyboardInterrupt):
    costs.measure(given)
  result = costs.measure(given)
  names = [x.workdir.name for x in made[1::2]]
  assert names == ["ppo-tiny", "grpo-tiny", "dapo-tiny", "vapo-tiny"]
  assert {x.workdir.name for x in made[::2]} == {"sft-tiny"}
  assert [*result["rows"]["tiny"]] == [*cost_configs.ALGORITHMS]
  assert all(x.bases == (made[0].workdir,) for x in made[1::2])
