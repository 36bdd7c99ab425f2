"""Entropy collapse and its rescue: what is read off the runs."""

import argparse

import numpy as np
import pytest

from bench import results, runs
from rl_reason.lab import jobs
from rl_reason.monitoring import alerts, health
from studies.entropy_collapse import run as study
from studies.xor import run as xor

pytestmark = pytest.mark.slow


def run(epochs, bound, seed, accuracy, entropies):
  steps = [0, 5, 10, 15, 20, 25]
  return dict(
      epochs=epochs,
      bound=bound,
      seed=seed,
      steps=steps,
      accuracy=list(np.linspace(0.1, accuracy, 6)),
      entropy=list(np.geomspace(*entropies, 25)),
      clipped=[0.0] * 25,
  )


@pytest.fixture
def result():
  """Eight seeds: four epochs collapse at .2, and reach .9 at .28."""
  runs, rng = [], np.random.default_rng(0)
  for seed in study.SEEDS:
    for epochs, bound in study.ROWS:
      low = epochs == "four epochs" and bound == 0.2
      accuracy = (0.5 if low else 0.9) + 0.01 * rng.normal()
      runs.append(run(epochs, bound, seed, accuracy, (0.3, 0.02)))
  return dict(command="c", runs=runs, environment={})


def test_rows_begin_from_one_model_and_differ_in_two_fields(monkeypatch):
  found = [study.job(*row, 7) for row in study.ROWS]
  assert {x.fields["sft.reuse"] for x in found} == {str(xor.base(7).workdir)}
  flat = [frozenset(map(str, x.fields.items())) for x in found]
  differ = frozenset.union(*flat) - frozenset.intersection(*flat)
  names = {x.split("'")[1] for x in differ}
  assert names == {"updates.epochs", "surrogate.args.clip_high"}
  assert len({x.workdir for x in found}) == len(study.ROWS) == 6


def test_collapse_is_low_entropy_without_the_skill():
  assert study.collapsed(run("", 0.2, 1, 0.5, (0.3, 0.02)))
  assert not study.collapsed(run("", 0.2, 1, 0.8, (0.3, 0.02)))  # learned
  assert not study.collapsed(run("", 0.2, 1, 0.5, (0.3, 0.1)))  # explores


def alerted(entropy, accuracy):
  """The steps with the relative alert, of a run with these numbers."""
  [rule] = [x for x in alerts.RULES if x.name == "Entropy collapse"]
  monitor = health.HealthMonitor(dict.fromkeys(health.LIMITS, 0), print)
  out, lines = [], []
  for x, y in zip(entropy, accuracy, strict=True):
    line = {"actor/updates": 1, "actor/entropy": x, "train/accuracy": y}
    lines.append(monitor._with_start(line))
    found = alerts.of_step(lines[-alerts.WINDOW :], {}, [rule])
    if any("at its highest" in x.message for x in found):
      out.append(len(lines))
  return out


def interpolated(x):
  """The held-out accuracy at each step of RL."""
  steps = range(1, len(x["entropy"]) + 1)
  pairs = zip(x["steps"], x["accuracy"], strict=True)
  known = [pair for pair in pairs if pair[1] is not None]
  return np.interp(steps, *zip(*known, strict=True))


def test_the_alert_finds_the_runs_that_the_study_calls_collapsed():
  """18 of 20; of the runs that learn the skill 1 of 19 has it on the way.

  The accuracy at steps without an evaluation is interpolated.
  """
  every = results.read(study.NAME)["runs"]
  found = [alerted(x["entropy"], interpolated(x)) for x in every]
  pairs = list(zip(every, found, strict=True))
  lost = [bool(at) for x, at in pairs if study.collapsed(x)]
  assert (sum(lost), len(lost)) == (18, 20)
  learned = [bool(at) for x, at in pairs if x["accuracy"][-1] > 0.9]
  assert (sum(learned), len(learned)) == (1, 19)


@pytest.mark.parametrize(
    ("page", "least"),
    [("xor", 50), ("credit", 40), ("knobs", 30), ("band_runs", 100)],
)
def test_the_alert_is_silent_where_the_skill_is_learned(page, least):
  """In committed runs that end above 90%, whose entropy falls as far."""
  healthy = far = alarms = 0
  for x in results.read(page)["runs"]:
    of_rl = x.get("rl") or x
    accuracy = of_rl.get("training accuracy") or of_rl.get("accuracy")
    if page == "band_runs":
      accuracy = list(interpolated(x))
    entropy = of_rl["entropy"]
    if not accuracy or None in entropy or None in accuracy:
      continue
    if np.mean(accuracy[-3:]) > 0.9:
      healthy += 1
      smooth = np.convolve(entropy, np.ones(3) / 3, "valid")
      far += min(smooth) < alerts.LOST * smooth[0]
      alarms += bool(alerted(entropy, accuracy))
  assert healthy >= least and far > healthy / 2
  assert not alarms


def test_the_alert_needs_the_accuracy_and_the_start():
  entropy, flat = list(np.geomspace(0.3, 0.02, 12)), [0.4] * 12
  assert alerted(entropy, flat) == [11, 12]
  assert not alerted(entropy, [None] * 12)  # nothing verifies
  assert not alerted(entropy, list(np.linspace(0.1, 0.9, 12)))  # it learns
  assert not alerted(entropy, [0.8] * 12)  # a skill
  assert not alerted(entropy[5:], [0.4] * 7)  # as low at the start
  # It may rise first, to a mean of 0.9, and be noisy. An explosion that is over
  # is no collapse.
  falls = list(np.geomspace(1, 0.05, 10))
  assert alerted([*np.geomspace(0.1, 1, 8), *falls], [0.4] * 18)[0] == 17
  noise = np.exp(0.3 * np.random.default_rng(0).normal(size=30))
  assert len(alerted(np.geomspace(0.3, 0.02, 30) * noise, [0.4] * 30)) > 5
  assert not alerted([0.6] * 5 + [5.0] * 4 + [0.6] * 9, [0.4] * 18)
  # A resumed run knows its start.
  lines = [
      {"stage": "rl", "actor/updates": 1, "actor/entropy": x} for x in entropy
  ]
  fields = dict.fromkeys(health.LIMITS, 0)
  resumed = health.HealthMonitor(fields, print, lambda: lines[:-1])
  for line in resumed._before():
    last = resumed._with_start(line)
  assert last[alerts.ENTROPY_START] == pytest.approx(np.mean(entropy[:3]))


def test_verdicts(result):
  found = {text: verdict for text, verdict, _ in study.verdicts(result)}
  # Equal entropies are not above 0, and equal accuracies are not faster.
  assert list(found.values()) == ["holds", "holds", "**refuted**", "holds"]
  for x in result["runs"]:
    if x["bound"] == 0.28:
      x["entropy"] = [2 * y + 0.01 * x["seed"] / 1e5 for y in x["entropy"]]
    if (x["epochs"], x["bound"]) == ("four epochs", 0.2):
      x["accuracy"] = [0.9] * 6
  _, *rest = study.verdicts(result)
  assert [x[1] for x in study.verdicts(result)][0] == "**refuted**"
  assert [x[1] for x in rest] == ["**refuted**"] * 3


def test_the_page_has_each_row(result):
  text = "\n".join(study.page(result))
  assert text.count("| 1.28 |") == 2 and "8 of 8 seeds" in text
  few = result | dict(runs=result["runs"][:6])
  partial = "\n".join(study.page(few))
  assert "1 of 8 seeds" in partial and "refuted" not in partial
  assert study.OPEN in partial and study.OPEN not in text


def test_runs_of_the_data_are_kept_and_the_others_share_sft(monkeypatch):
  """Nothing of a kept run is made again, and its commit is named."""
  kept = dict(name="DAPO", seed=xor.SEEDS[0], score=1)
  before = dict(runs=[kept], environment={"git commit": "a1"})
  monkeypatch.setattr(results, "read", lambda name: before)
  monkeypatch.setattr(results, "run_environment", lambda _: {"jax": "0"})
  monkeypatch.setattr(
      xor, "read", lambda name, seed: dict(name=name, seed=seed)
  )
  made = []
  monkeypatch.setattr(runs, "make", lambda wanted, _: made.extend(wanted))
  monkeypatch.setattr(jobs.Job, "finished", lambda job: job in made)
  parser = argparse.ArgumentParser()
  xor.flags(parser)
  rows = ["--rows", "DAPO", "GRPO", "--seeds", "2", "--keep_data"]
  found = xor.measure(parser.parse_args(rows))
  bases, own = made[:2], made[2:]
  assert [x.row for x in bases] == ["", ""]
  assert all("--stage=sft" in x.args for x in bases)
  assert [x.row for x in own] == [
      f"grpo-{xor.SEEDS[0]}",
      f"dapo-{xor.SEEDS[1]}",
      f"grpo-{xor.SEEDS[1]}",
  ]
  assert {x.bases[0] for x in own} == {x.workdir for x in bases}
  assert found["runs"][0] is kept and len(found["runs"]) == 4
  assert found["earlier_commits"] == ["a1"]
