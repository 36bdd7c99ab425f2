"""Where nothing verifies responses: signal and evaluation by the reward."""

import json
import types

import jax
import numpy as np
import pytest
import tiny
import tiny_session
from conftest import data_of_page
from test_reward_runner import rollouts

from rl_reason.base import errors
from rl_reason.base.structs import Rollouts
from rl_reason.checks import config_facts
from rl_reason.collect import dynamic_sampling, experience
from rl_reason.collect.reward_runner import RewardRunner, Rewards
from rl_reason.evaluation import accuracy, results, set_table
from rl_reason.monitoring import alerts, step_logger
from rl_reason.report import scores
from rl_reason.stages import build_step, evaluate, sft
from rl_reason.tasks import Row, files, reward_terms

TASK = """
from rl_reason.tasks import Row

ALPHABET = "0123456789="

def problem(rng, difficulty):
  return Row("".join(map(str, rng.integers(10, size=5))) + "=", "")

def demonstrate(row, style, rng):
  return row.prompt[:2]
"""


@pytest.fixture
def free(tmp_path, monkeypatch):
  """A config of a task without `verify`, rewarded for short responses."""
  (tmp_path / "free_task.py").write_text(TASK)
  monkeypatch.syspath_prepend(tmp_path)
  c = tiny_session.tiny_config()
  c.task.update(name="free_task", difficulties=())
  c.reward.functions = "length*-0.5..-1"
  return c


def test_what_has_a_verifier(free, tmp_path):
  data = tmp_path / "a.jsonl"
  data.write_text("{}")
  usual = tiny_session.tiny_config()
  assert not config_facts.no_verifier(usual)
  assert not config_facts.by_reward(usual)
  usual.dynamic_sampling.signal = "reward"
  assert config_facts.by_reward(usual)
  usual.dynamic_sampling.signal = "auto"
  usual.reward.update(correct=0.0, incorrect=0.0, functions="length")
  assert config_facts.by_reward(
      usual
  )  # the verdict is logged, and not rewarded
  assert config_facts.no_verifier(free) and config_facts.by_reward(free)
  mixed = tiny_session.tiny_config()
  mixed.task.name, mixed.data.kind = "files", "none"
  mixed.data.train = f"{data},gsm8k"
  assert config_facts.unverified(mixed) == [True, False]
  assert config_facts.by_reward(mixed) and not config_facts.no_verifier(mixed)


MISTAKES = [
    (
        {"reward.functions": ""},
        "reward.functions = '': nothing verifies .* no function verify",
    ),
    ({"dynamic_sampling.signal": "correctness"}, "no verifier: use 'auto'"),
    ({"loss.positive_nll": 0.1}, "no verifier: leave it at 0"),
]


@pytest.mark.parametrize("fields, words", MISTAKES)
def test_what_needs_a_verifier_is_refused(free, fields, words, tmp_path):
  for name, value in fields.items():
    tiny_session.set_field(free, name, value)
  with pytest.raises(errors.ConfigError, match=words):
    tiny_session.make_session(tmp_path / "run", free)


def graded(responses: Rollouts, correct_B, scores_B):
  return experience.graded(
      responses,
      np.array(correct_B, np.float32),
      scores_EB=(np.array(scores_B, np.float32),),
  )


def test_signal_is_the_spread_of_the_total_reward(free):
  """Weights move from -1/2 to -1; verdicts count for nothing."""
  rows = graded(rollouts(), [1, 0, 0, 0, 1, 1], [0.5, 0.5, 0.5, 1, 0, 0])
  reward = build_step.reward(free)
  by_reward = dynamic_sampling.rewards_differ(1, reward=reward, steps=2)
  assert by_reward(rows).tolist() == [False, True, False]
  inputs = experience.credit_inputs(rows, progress=np.float32(0.5))
  rewards_B = np.asarray(reward(inputs))
  np.testing.assert_allclose(rewards_B, -0.75 * rows.scores_EB[0])
  assert dynamic_sampling.partly_correct(rows).tolist() == [True, False, False]
  unknown = graded(rollouts(), [0] * 6, [np.nan, 1, np.nan, np.nan, 0, 1])
  assert by_reward(unknown).tolist() == [False, False, True]
  # Two rounds give the batch of two groups; only those with signal are in it.
  batch, metrics = dynamic_sampling.fill_batch(
      lambda: rows,
      None,
      batch=4,
      group_size=2,
      enabled=True,
      max_rounds=3,
      shortfall="pad",
      signal=by_reward,
  )
  assert metrics["train/generation_rounds"] == 2
  assert metrics["train/no_signal"] == pytest.approx(2 / 3)
  assert batch.scores_EB[0].tolist() == [0.5, 1, 0.5, 1]


def responses_to(rows, functions, *, proved=False):
  """Of an evaluation: one sample and a greedy response to each row."""
  terms = reward_terms.terms(functions)
  runner = RewardRunner(terms, max_tokens=8)
  runner._proved = proved
  rewards = Rewards(terms, runner, {})
  return accuracy.respond(
      lambda *_: (rollouts(), None),
      tiny.TOK,
      tiny.TASK,
      "free",
      rows,
      batch=3,
      max_prompt=3,
      num_lines=1,
      mean_of=1,
      progress=lambda _: None,
      rewards=lambda: rewards,
  )


def test_evaluation_reports_the_reward():
  """Lengths 2, 4 | 2, 2 | 2, 2 of 8, twice the last weight, -1."""
  rows = [Row(f"{n}+1", "", kind="none") for n in (1, 2)]
  responses = responses_to(rows, "length*-5..-1,length*0..-1")
  np.testing.assert_allclose(responses.rewards_NG, [[-0.5, -1], [-0.5, -0.5]])
  values = accuracy.summarize_sets(
      [responses], ("free",), lambda text, row: "", score_of=8
  )
  assert values["val-core/free/reward/mean@1"] == -0.5
  assert values["val-core/free/reward/greedy"] == -0.75
  assert values["val-aux/score"] == -0.5
  assert values["val-aux/free/difficulty_0/reward/mean@1"] == -0.5
  assert not any("/acc/" in name or "maj" in name for name in values)
  found = scores.scores(values)
  assert found["mean@1"].text() == "-0.5 +- 0"
  assert scores.difference(found["greedy"], found["mean@1"]) == "+0.25"
  page = results.responses_page("a run", {}, [responses])
  data = data_of_page(page, "responses")
  [[_, prompts, mean, _]] = [x["cells"] for x in data["levels"]["rows"]]
  assert prompts[0] == "2" and mean[0].startswith("-0.5") and mean[1] is None
  [first, _] = data["sets"][0]["rows"]
  assert (first["correct"], first["score"]) == (None, -0.75)
  assert [x["score"] for x in first["responses"]] == [-0.5, -1]


def no_sums(response, row):
  return 1 / ("+" not in response.text)


def none_of_sums(completions, **columns):
  return [None if "+" in x else 3.0 for x in completions]


def none(completions, **columns):
  return [None] * len(completions)


def down(completions, **columns):
  raise ConnectionError("the judge is down")


NAN = np.nan


@pytest.mark.parametrize(
    "functions, wanted, unknown",
    [
        (["no_sums*1"], [[1, NAN], [1, 1]], 1),
        (["none_of_sums*1"], [[3, NAN], [3, 3]], 0),
        (["none_of_sums*1", "none*1"], [[3, NAN], [3, 3]], 0),
        (["none_of_sums*1", "no_sums*1"], [[4, NAN], [4, 4]], 1),
        (["none*1"], [[NAN, NAN], [NAN, NAN]], 0),
        (["none_of_sums*1", "down*-1"], [[NAN, NAN], [NAN, NAN]], 4),
    ],
)
def test_what_nothing_scored_is_in_no_mean(functions, wanted, unknown):
  """One response of four is a sum."""
  rows = [Row(f"{n}+1", "", kind="none") for n in (1, 2)]
  terms = ",".join(f"{__name__}:{x}" for x in functions)
  responses = responses_to(rows, terms, proved=True)
  np.testing.assert_array_equal(responses.rewards_NG, wanted)
  assert responses.unknown == unknown
  measured = unknown == 0 and functions != ["none*1"]
  assert responses.measured == measured
  values = accuracy.summarize_sets(
      [responses], ("free",), lambda text, row: "", score_of=8
  )
  # What was not measured does not compete.
  assert (accuracy.SCORE in values) == measured
  assert ("val-core/free/reward/mean@1" in values) == measured
  if measured:
    assert values[accuracy.SCORE] == values["val-core/free/reward/greedy"] == 3
  else:
    assert values["val-aux/free/not_measured"] == unknown
    line, *_ = accuracy.lines_of_prompts(responses, lambda text, row: "")
    assert line["scores"]["mean@1"] is None
    assert not accuracy.levels(responses)
    text = evaluate.not_measured(responses)
    assert ("None for all 4" if not unknown else "failed on") in text


def test_rows_with_a_verifier_are_measured_by_verdicts():
  row = Row("1+1", "2")
  responses = responses_to([row, row, row], "length*-1")
  assert responses.rewards_NG is None and responses.measure == "acc"


def test_terms_of_the_reward_are_scored_on_rows_with_a_verifier(tmp_path):
  """Lengths 2, 4 | 2, 2 | 2, 2 of 8; a term of weight 0 is only measured.

  Scores have no weight. Greedy responses, the second ones, do not count.
  """
  rules = '[{"name": "sum", "weight": 1, "require": "[+]"}]'
  (tmp_path / "rules.json").write_text(rules)
  rows = [Row(f"{n}+1", "2") for n in (1, 2)]
  terms = f"length*-5..-1,{tmp_path / 'rules.json'}*0"
  responses = responses_to(rows, terms)
  assert responses.rewards_NG is None
  lengths_NG, rules_NG = responses.terms_NG.values()
  np.testing.assert_allclose(lengths_NG, [[0.25, 0.5], [0.25, 0.25]])
  assert rules_NG.tolist() == [[0, 1], [0, 0]]
  values = accuracy.summarize_sets(
      [responses], (), lambda text, row: "", score_of=8
  )
  assert values["val-aux/free/reward/length/mean"] == 0.25
  assert values["val-aux/free/reward/length/mean/ci95"] == 0
  assert values["val-aux/free/reward/rules/mean"] == 0
  [line, _] = accuracy.lines_of_prompts(responses, lambda text, row: "")
  assert line["scores"]["reward rules"] == 0
  head, table = set_table.as_text(values, [responses])
  table = {name: cells for name, *cells in table}
  assert table["reward length"][0] == "0.25 +- 0"
  assert "without its weight" in table["reward length"][1]


def test_scores_that_failed_are_not_in_the_mean():
  """One of two samples, then both: the second prompt has no mean."""
  scores_NG = np.array([[np.nan, 3, 9], [np.nan, np.inf, 9]])
  responses = responses_to([Row("1+1", "2")] * 2, "length*-1")
  responses = responses._replace(
      mean_of=2,
      terms_NG={"judge": scores_NG},
      correct_NG=np.array([[0, 1, 0], [1, 0, 0]]),
      truncated_NG=np.zeros((2, 3)),
      lengths_NG=np.ones((2, 3)),
      texts_NG=[["1"] * 3] * 2,
  )
  values = accuracy.summarize(responses, lambda text, row: text)
  assert values["val-aux/free/reward/judge/mean"] == 3
  # A sample without a score is chosen only if no other one has a score.
  assert values["val-core/free/acc/bon@2:judge"] == (1 + 1 / 2) / 2


def test_terms_with_the_same_short_name_have_long_ones():
  terms = reward_terms.terms("a/judge.json*1,b/judge.json*1,a/judge.json*2")
  found = Rewards(terms, None, {}).labels
  assert found == ["judge", "b:judge.json", "judge"]


def test_the_summary_and_the_alerts_without_a_verifier(tmp_path):
  line = dict(stage="evaluate", step=0)
  names = [f"val-core/free/reward/mean@1{x}" for x in ("", "/ci95")]
  lines = [
      line | dict(zip(names, (-0.5, 0.1), strict=True)),
      line | dict(zip(names, (-0.25, 0.1), strict=True)) | dict(step=9),
  ]
  rises = [
      {"stage": "rl", "step": n, "critic/rewards/mean": n / 2 + n % 2}
      | {"reward/length/mean": n}
      for n in range(20)
  ]
  text = "".join(json.dumps(x) + "\n" for x in [*lines, *rises])
  (tmp_path / "metrics.jsonl").write_text(text)
  first = scores.summary(tmp_path)[0]
  assert first == (
      "held-out reward (mean@1, 95% intervals): -0.5 +- 0.1 -> -0.25 +- 0.1"
      " after 9 steps"
  )
  assert not alerts.of_evaluations([*lines, *rises])
  assert alerts.of_evaluations(
      [*lines, *[x | {"critic/score/mean": 0} for x in rises]]
  )
  assert step_logger._headline({"critic/rewards/mean": 1}) == dict(reward=1.0)


@pytest.mark.slow
def test_the_evaluation_after_sft_scores_the_reward(tmp_path):
  session = tiny_session.make_session(
      tmp_path, sft__habits__steps=0, reward__functions="length*-1"
  )
  with jax.set_mesh(session.mesh):
    tiny_session.call(sft.run, session)
  *_, last = tiny_session.logged(tmp_path)
  assert last["stage"] == "sft"
  assert last["val-aux/arithmetic/reward/length/mean"] > 0


def test_terms_with_a_reward_model_wait_until_it_is_trained(tmp_path):
  c = tiny_session.tiny_config()
  assert not sft._scores(c)
  (tmp_path / "judge").mkdir()
  for terms, scored in (
      ("length*-1", True),
      (f"{tmp_path / 'judge'},length*-1", False),
  ):
    tiny_session.set_field(c, "reward.functions", terms)
    assert sft._scores(c) == scored


def test_the_accuracy_after_sft_is_of_the_first_set_with_a_verifier(tmp_path):
  """Values are logged in any case: rewards score rows without a verifier."""
  c = tiny_session.tiny_config()
  c.sft.threshold = 0.5
  said, logged = [], []
  output = types.SimpleNamespace(
      display=types.SimpleNamespace(say=said.append),
      log=types.SimpleNamespace(metrics=lambda *x: logged.append(x)),
  )
  values = {"val-core/sums/acc/greedy": 0.7}
  sets = [
      types.SimpleNamespace(name=name, rows=[row], chooses=False)
      for name, row in (
          ("open", Row("?", "", kind="none")),
          ("sums", Row("1+1?", "2", kind="math")),
      )
  ]
  evaluate = lambda *_, **__: (values, sets)  # noqa: E731
  sft._evaluate(c, evaluate, output, files, {})
  assert said == ["SFT: 70.0% of held-out prompts correct (greedy)"]
  del sets[1]
  sft._evaluate(c, evaluate, output, files, {})
  assert said[1].startswith("SFT: no accuracy")
  assert logged == [("sft", c.sft.steps, values)] * 2
