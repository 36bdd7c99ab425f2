"""The study of distillation: its runs, and what is read off them."""

import numpy as np
import pytest

from studies.distill import run as study

pytestmark = pytest.mark.slow


def run(name, seed, last, tokens):
  return dict(
      name=name,
      seed=seed,
      steps=[0, 10],
      tokens=[0, tokens],
      kl=[],
      **{k: [0.25, last] for k in study.COLUMNS},
  )


@pytest.fixture
def runs():
  """The full form is as good as DAPO with 8% of its tokens."""
  rng, out = np.random.default_rng(0), []
  for seed in study.SEEDS:
    noise = 0.01 * rng.normal()
    out += [
        run(study.TEACHER, seed, 0.98, 10**6),
        run(study.RL, seed, 0.9, 10**6),
        run(study.FULL, seed, 0.9 + noise, 80_000),
        run(study.SAMPLED, seed, 0.8 + noise / 2, 80_000),
    ]
  return out


def verdicts(runs):
  return [x[-1] for x in study.verdicts(study.by_seed(dict(runs=runs)))]


def test_students_share_an_sft_model_and_a_teacher_of_twice_their_size():
  jobs = {name: study.job(name, 7) for name in study.ROWS}
  sizes = {name: x.fields["model.mlp"] for name, x in jobs.items()}
  assert sizes.pop(study.TEACHER) == 192 and set(sizes.values()) == {64}
  for name in (study.FULL, study.SAMPLED):
    fields = jobs[name].fields
    assert fields["kl.reference"] == str(jobs[study.TEACHER].workdir)
    assert fields["sft.reuse"] == str(jobs[study.RL].workdir)
    assert fields["reward.correct"] == fields["reward.incorrect"] == 0
  kinds = [jobs[x].fields["kl.kind"] for x in study.ROWS]
  assert kinds == ["none", "none", "full", "k1"]
  assert len(set(study.SEEDS)) == 16 and not {0, 1, 2, 3} & {*study.SEEDS}


def test_verdicts(runs):
  assert verdicts(runs) == ["holds", "holds"]
  assert verdicts(runs[:-1]) == ["open"]
  for x in runs:
    if x["name"] == study.SAMPLED:
      x["mean@4"][-1] = 0.95
  assert verdicts(runs) == ["holds", "refuted"]
  runs[2]["tokens"][-1] = 110_000  # one seed, 11% of the tokens
  assert verdicts(runs)[0] == "refuted"
  runs[2]["tokens"][-1] = 80_000
  for x in runs:
    if x["name"] == study.FULL:
      x["mean@4"][-1] -= 0.05
  assert verdicts(runs)[0] == "refuted"


def test_the_page_has_each_row(runs):
  result = dict(command="c", environment={}, runs=runs)
  text = "\n".join(study.page(result))
  assert "16 of 16 seeds" in text and text.count("| after: ") == len(study.ROWS)
  assert "| 80,000 |" in text and "| holds |" in text
  assert len(study.figure(result)["blocks"][0]["panels"][0]["series"]) == 3
