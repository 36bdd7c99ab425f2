"""Constitutions: the package's rules, judges, reward models, and their logs."""

import asyncio
import http.server
import json
import math
import threading
import types

import numpy as np
import pytest
import tiny
from test_reward_functions import constitution

from rl_reason.base import errors
from rl_reason.base.structs import Rollouts
from rl_reason.checks import config_facts, named_code, path_contents
from rl_reason.checks.saved_config import _why_lost
from rl_reason.collect.reward_runner import RewardRunner, Rewards
from rl_reason.configs import base
from rl_reason.evaluation import accuracy
from rl_reason.tasks import Row, answer_rules, constitutions, reward_terms
from rl_reason.tasks.judge import Judge
from rl_reason.tasks.reward_functions import Failed, Response

BOX = Row("What is 1+1? Put the answer into \\boxed{}.", "2")
TAGS = Row("Reason in <think>, answer in <answer>. 1+1?", "2")
LINE = Row("1+1? End with a line Answer: $Answer.", "2")
PLAIN = Row("1+1=", "2")
RUSSIAN = Row("Сколько будет 1+1?", "2")
MIXED = Row("Сколько будет five 五", "5")


def response(text, share=0.5, truncated=False):
  return Response(text, share, truncated)


@pytest.mark.parametrize(
    ("rule", "row", "text", "kept"),
    [
        ("asked_format", BOX, r"It is \boxed{2}.", 1),
        ("asked_format", BOX, "Answer: 2", 0),
        ("asked_format", TAGS, "<think>1</think><answer>2</answer>", 1),
        ("asked_format", TAGS, "<answer>2</answer>", 0),
        ("asked_format", LINE, "So\nAnswer: 2\n", 1),
        ("asked_format", LINE, "Answer: 2\nas said", 0),
        ("asked_format", LINE, "Answer:", 0),
        ("asked_format", LINE, "", 0),
        ("asked_format", PLAIN, "2", 1),
        ("ends_with_answer", BOX, r"$\boxed{\frac{1}{2}}$.", 1),
        ("ends_with_answer", BOX, r"\boxed{2} and so on", 0),
        ("ends_with_answer", BOX, r"\boxed{2} then \boxed{3}", 1),
        ("ends_with_answer", TAGS, "<answer>2</answer> ok", 0),
        ("ends_with_answer", LINE, "Answer: 2\n\n", 1),
        ("ends_with_answer", LINE, "Answer: 2\nBye", 0),
        ("ends_with_answer", PLAIN, "no marked answer", 1),
        ("few_repetitions", PLAIN, "a b c d e f", 1),
        ("few_repetitions", PLAIN, "a b c d " * 5, 0),
        ("same_script", BOX, "The sum is two", 1),
        ("same_script", RUSSIAN, "Ответ два", 1),
        ("same_script", RUSSIAN, "Да, yes", 2 / 5),
        # Variables, commands of LaTeX and Greek letters are of no language.
        ("same_script", RUSSIAN, r"Пусть x = \frac{y}{2}, α", 1),
        ("same_script", PLAIN, "any", 1),  # no letters to compare with
        ("same_script", BOX, "1+1=2", 1),
        ("same_script", BOX, "答案 two", 3 / 5),
        # 12 and 4 of 17 letters have a share of a tenth, and 1 has not.
        ("same_script", MIXED, "пять five 五", 8 / 9),
    ],
)
def test_rules_of_answers_by_hand(rule, row, text, kept):
  found = getattr(answer_rules, rule)(response(text), row)
  assert found == pytest.approx(kept)


def test_a_response_in_time_has_ended():
  kept = answer_rules.in_time
  assert kept(response("2", 0.5), PLAIN) == 1
  assert kept(response("2", 1.0, truncated=True), PLAIN) == 0
  assert kept(response("2", 0.5), PLAIN, share=0.4) == 0


def ask(name, texts, row=BOX):
  """What the function of a term returns for responses to a row."""
  return constitution(name, texts, row)


def test_the_constitution_of_the_package():
  """Weights 2, 1, 1, 1, 1 without a judge: a wrong format costs 2 of 6."""
  good, bad = ask("constitution", [r"It is \boxed{2}", r"2, 2, Два \foo"])
  assert good == {
      "score": 1,
      "rules": {
          "format": 1,
          "nothing after the answer": 1,
          "no repetition": 1,
          "language of the question": 1,
          "length": 1,
      },
  }
  assert bad["rules"]["language of the question"] == 0
  assert bad["score"] == pytest.approx(3 / 6)


def test_a_rule_without_a_judge_is_left_out_and_says_so():
  said = []
  terms = reward_terms.terms("constitution*0.5")
  RewardRunner(terms, max_tokens=8, show=said.append)
  [line] = said
  assert (
      "constitution: rules that ask a judge are left out: helpful and" in line
  )
  assert "constitution(judge='http://" in line
  said.clear()
  terms = reward_terms.terms("constitution(judge='http://localhost:1/v1')*.5")
  runner = RewardRunner(terms, max_tokens=8, show=said.append)
  assert not said and terms[0].label == "constitution"
  assert runner.rules[-1][2] == "constitution/kept/helpful_and_harmless"


@pytest.fixture
def server():
  """A judge says yes to responses with 'please'; 'odd' has no log-probs."""
  asked = []

  class Handler(http.server.BaseHTTPRequestHandler):

    def do_POST(self):
      body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
      asked.append((self.path, self.headers.get("Authorization"), body))
      [message] = body["messages"]
      text = message["content"].partition("<response>")[2]
      choice = {"message": {"content": "maybe"}}
      if "odd" in text:
        choice = {"message": {"content": "Yes."}}
      elif "please" in text:
        top = [("yes", 0.4), (" Yes", 0.2), ("No", 0.2), ("x", 0.1)]
        tokens = [dict(token=t, logprob=math.log(p)) for t, p in top]
        choice["logprobs"] = {"content": [{"top_logprobs": tokens}]}
      answer = json.dumps({"choices": [choice]}).encode()
      self.send_response(200)
      self.end_headers()
      self.wfile.write(answer)

    def log_message(self, *_):
      pass

  found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
  thread = threading.Thread(target=found.serve_forever, args=(0.01,))
  thread.start()
  url = f"http://127.0.0.1:{found.server_port}/v1"
  yield types.SimpleNamespace(url=url, asked=asked)
  found.shutdown()
  thread.join()
  found.server_close()


def test_a_judge_keeps_a_rule(server, monkeypatch):
  """6 of 8 weights are kept by functions, 2 by the judge."""
  monkeypatch.setenv("KEY_OF_TEST", "secret")
  name = f"constitution(judge='{server.url}',model='m',key_env='KEY_OF_TEST')"
  text = r"please \boxed{2}"
  polite, odd, neither = ask(name, [text, r"odd \boxed{2}", r"\boxed{2}"])
  assert polite["rules"]["helpful and harmless"] == pytest.approx(0.75)
  assert polite["score"] == pytest.approx((6 + 2 * 0.75) / 8)
  assert odd["score"] == pytest.approx(1)
  assert isinstance(neither, Failed) and "'maybe', neither yes" in neither
  path, key, body = server.asked[0]
  assert (path, key) == ("/v1/chat/completions", "Bearer secret")
  assert (body["model"], body["temperature"]) == ("m", 0)
  content_ = body["messages"][0]["content"]
  assert BOX.prompt in content_ and "insults" in content_


def test_a_judge_is_asked_about_many_responses_at_a_time(monkeypatch):
  """Of more than the 32 threads that asyncio has at most."""
  together = threading.Barrier(40, timeout=30)
  monkeypatch.setattr(Judge, "_ask", lambda *_: together.wait() // 40)

  async def scores():
    judge = Judge("http://127.0.0.1:1/v1", parallel=40)
    return await asyncio.gather(*[judge.score("?", "", "") for _ in range(40)])

  assert asyncio.run(scores()) == [0] * 40


def test_a_judge_that_is_gone_fails_responses_with_the_remedy():
  judge = Judge("http://127.0.0.1:1/v1", seconds=5.0)
  with pytest.raises(ValueError, match="http://127.0.0.1:1/v1/chat/comp.*does"):
    asyncio.run(judge.score("?", "", ""))


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        ([{"name": "a", "weight": 1, "judge": "?"}], "all rules ask a judge"),
        ([{"name": "a", "weight": 1, "forbid": "x", "threshold": 1}], "'a'"),
        (
            [{"name": "a", "weight": 1, "forbid": x} for x in "xy"],
            "two rules have one name: a, a",
        ),
    ],
)
def test_bad_rules_are_named(rules, named, tmp_path):
  path = tmp_path / "rules.json"
  path.write_text(json.dumps(rules))
  with pytest.raises(ValueError, match=named):
    reward_terms.find(str(path))


@pytest.mark.parametrize("given", ["url='x'", "judge='x',color=1"])
def test_other_arguments_of_a_constitution_are_refused(given):
  with pytest.raises(ValueError, match="are judge, the address of a server, a"):
    reward_terms.find(f"constitution({given})")


# --- reward models as rules ---------------------------------------------------

RULES = [
    {"name": "has a sum", "weight": 1, "require": r"\+"},
    {"name": "by model", "weight": 3, "model": "rm/model", "threshold": 3},
]


@pytest.fixture
def rewards(tmp_path):
  """A reward model whose score is the length of the response."""
  path = tmp_path / "rules.json"
  path.write_text(json.dumps(RULES))
  terms = reward_terms.terms(f"{path}*2,length*0")
  runner = RewardRunner(terms, max_tokens=8)
  model = lambda rollouts: rollouts.lengths_B.astype(np.float32)  # noqa: E731
  return Rewards(terms, runner, {"rm/model": model})


def two_responses():
  """'1+1' and '12345', to one prompt."""
  texts = "1+1", "12345"
  ids = [tiny.TOK.encode(x) for x in texts]
  tokens_BL = np.zeros((2, 12), np.int32)
  for row, x in zip(tokens_BL, ids, strict=True):
    row[4 : 4 + len(x)] = x
  lengths_B = np.array([len(x) for x in ids])
  return Rollouts(
      tokens_BL=tokens_BL,
      start_B=np.zeros(2, np.int32),
      ids_B=np.zeros(2, np.int32),
      mask_BT=np.arange(8) < lengths_B[:, None],
      logps_BT=np.zeros((2, 8), np.float32),
      lengths_B=lengths_B,
      truncated_B=np.ones(2, bool),
  )


BY_MODEL = [0.5, 1 / (1 + math.exp(-2))]  # scores 3 and 5, threshold 3
TOTAL = [(1 + 3 * BY_MODEL[0]) / 4, 3 * BY_MODEL[1] / 4]


def test_shares_come_from_processes_too():
  terms = reward_terms.terms("constitution*1")
  runner = RewardRunner(terms, executor="process", workers=1, max_tokens=8)
  found = Rewards(terms, runner, {})
  _, kept, _ = found.scores_of_all(
      tiny.TOK, two_responses(), [PLAIN._replace(columns={"a": 1})] * 2, 2
  )
  runner.close()
  assert kept["constitution/kept/length"].tolist() == [0, 0]  # truncated
  assert kept["constitution/kept/format"].tolist() == [1, 1]


def test_a_reward_model_keeps_a_rule_and_shares_are_logged(rewards):
  rollouts, rows = two_responses(), [PLAIN] * 2
  rewards.start_step()
  found = rewards.begin(tiny.TOK, rows)
  found.submit(rollouts, np.ones(2, bool))
  found.wait()
  scores_B, _ = rewards.all_scores(found.scores_UB, rollouts)
  np.testing.assert_allclose(scores_B, TOTAL, rtol=1e-6)
  counts = rewards.counts()
  assert counts["reward/rules/kept/has_a_sum"] == 0.5
  assert counts["reward/rules/kept/by_model"] == pytest.approx(
      np.mean(BY_MODEL)
  )
  # An evaluation has shares of its own.
  scores_EB, kept, _ = rewards.scores_of_all(tiny.TOK, rollouts, rows, 2)
  np.testing.assert_allclose(scores_EB[0], TOTAL, rtol=1e-6)
  assert kept["rules/kept/has_a_sum"].tolist() == [1, 0]
  np.testing.assert_allclose(kept["rules/kept/by_model"], BY_MODEL, rtol=1e-6)
  assert rewards.counts() == counts
  rewards.start_step()
  assert not any("kept" in x for x in rewards.counts())


def test_a_score_of_a_rule_that_is_not_finite_is_no_reward(rewards):
  """The sigmoid of an infinite score would be a reward of 1 or 0."""
  scores = np.array([np.inf, 5], np.float32)
  rewards._models["rm/model"] = lambda rollouts: scores
  found = rewards.scores_of_all(tiny.TOK, two_responses(), [PLAIN] * 2, 2)
  assert np.isnan(found[0][0][0]) and found[0][0][1] == pytest.approx(TOTAL[1])


def test_evaluations_report_how_far_rules_are_kept(rewards):
  """One sample and a greedy response, which is not in the mean."""
  responses = accuracy.respond(
      lambda *_: (two_responses(), None),
      tiny.TOK,
      tiny.TASK,
      "held",
      [PLAIN],
      batch=1,
      max_prompt=4,
      num_lines=1,
      mean_of=1,
      progress=lambda _: None,
      rewards=lambda: rewards,
  )
  values = accuracy.summarize(responses, lambda text, row: "")
  assert values["val-aux/held/reward/rules/kept/has_a_sum"] == 1
  assert values["val-aux/held/reward/rules/kept/by_model"] == 0.5
  assert values["val-aux/held/reward/rules/mean"] == pytest.approx(TOTAL[0])


def test_models_of_rules_are_reward_models_of_the_config(tmp_path):
  path, model = tmp_path / "rules.json", tmp_path / "model"
  model.mkdir()
  (model / "x.json").write_text("1")
  path.write_text(json.dumps([RULES[1] | {"model": str(model)}]))
  c = base.get_config()
  c.reward.functions = f"{path}*1,constitution*0"
  assert config_facts.reward_models(c) == [str(model)]
  before = path_contents.content(c, "reward.functions")
  (model / "x.json").write_text("2")  # the model counts, as the file does
  assert path_contents.content(c, "reward.functions") != before
  assert constitutions.of_term("length") is None


def test_a_work_directory_may_not_send_responses_to_a_server(tmp_path):
  term = "constitution(model='m', judge='http://there/v1')"
  fields = {"reward.functions": f"{term}*1"}
  assert named_code.fields_with_code(fields) == ["reward.functions"]
  with pytest.raises(errors.ConfigError, match="names code to import"):
    named_code.refuse_code("runs/x", fields)
  assert _why_lost(term, tmp_path) == "it sends responses to a server"
  assert named_code.fields_with_code({"reward.functions": "constitution"}) == []
  assert _why_lost("constitution", tmp_path) == ""
