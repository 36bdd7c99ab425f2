"""Published protocols of known sets: prompts, and what makes a score theirs."""

import importlib
import json
import threading
import types

import numpy as np
import pytest
import test_known_sets
import tiny_data
import tiny_session

from rl_reason import tasks, verifiers
from rl_reason.base import config as config_lib
from rl_reason.base.errors import ConfigError
from rl_reason.data import (
    held_out,
    known_sets,
    published,
    screening,
    templates,
)
from rl_reason.evaluation import results
from rl_reason.stages import evaluate, prepare

tok_dir, make = tiny_data.tok_dir, tiny_data.make
RAW = test_known_sets.KNOWN_ROWS
# Name -> the prompt of its row of `KNOWN_ROWS`, as its source writes it.
PROMPTS = {
    "dapo_math_17k": (
        "Solve the following math problem step by step. The last line of your"
        " response should be of the form Answer: $Answer (without quotes) where"
        " $Answer is the answer to the problem.\n\nFirst line.\n\nWhat is 1 +"
        ' 1?\n\nRemember to put your answer on its own line after "Answer:".'
    ),
    "gsm8k": (
        "1+1? Let's think step by step and output the final answer after"
        ' "####".'
    ),
    "math500": (
        "Solve the following math problem step by step. The last line of your"
        " response should be of the form Answer: $ANSWER (without quotes) where"
        " $ANSWER is the answer to the problem.\n\n1+1?\n\nRemember to put your"
        ' answer on its own line after "Answer:", and you do not need to use a'
        " \\boxed command."
    ),
    "gpqa": (
        "Answer the following multiple choice question. The last line of your"
        " response should be of the following format: 'Answer: $LETTER'"
        " (without quotes) where LETTER is one of ABCD. Think step by step"
        " before answering.\n\nWhat?\n\nA) three\nB) one\nC) two\nD) four"
    ),
    "humaneval": "def f(x):\n",
}
DAPO = PROMPTS["dapo_math_17k"]
FOLIO_HEAD = (
    "Given a problem statement as contexts, the task is to answer a logical"
    " reasoning question. \n------\n"
)


def concluded(premises, conclusion):
  """A question of FOLIO in the words of Logic-LM."""
  return (
      f"Context:\n{premises}\n\nQuestion: Based on the above information, is"
      f" the following statement true, false, or uncertain? {conclusion}\n\n"
      "Options:\nA) True\nB) False\nC) Uncertain\n\nThe correct option is:"
  )


ASKED = concluded("All cats purr. Tom is a cat.", "Tom purrs.")
PROMPTS["folio"] = FOLIO_HEAD + ASKED
PROMPTS["aime24"] = DAPO.replace("First line.\n\nWhat is 1 + 1?", "1+1?")


@pytest.mark.parametrize(
    "name", [x for x in published.PUBLISHED if x != "mbpp"]
)
def test_a_published_prompt_is_verbatim(name):
  row = RAW[name][0]
  template = published.PUBLISHED[name].template(row)
  question = known_sets.KNOWN[name].question(row)
  _, question, _ = known_sets.chat(question)
  [turn] = templates.messages(question, template)
  assert turn["content"] == PROMPTS[name]


def task(number, **fields):
  """A row of MBPP."""
  tests = [f"assert f({n}) == {n + number}" for n in range(4)]
  code = f"def f(x):\r\n  return x + {number} "
  row = dict(task_id=number, text=f"Add {number}.", code=code, test_list=tests)
  return row | fields


HEAD = "You are an expert Python programmer, and here is your task: "


def asked(number):
  tests = "\n".join(f"assert f({n}) == {n + number}" for n in range(3))
  return (
      f"{HEAD}Add {number}. Your code should pass these tests:\n\n{tests}\n"
      "[BEGIN]\n"
  )


SOLVED = "".join(
    f"{asked(n)}def f(x):\r\n  return x + {n} \n[DONE]\n\n" for n in (2, 3, 4)
)


@pytest.mark.parametrize("place", ["file", "directory", "lacking", "unsolved"])
def test_the_prompt_of_mbpp_begins_with_three_solved_tasks(
    make, tmp_path, place
):
  """They are rows of the file, or of the split beside it, and not scored."""
  rows = [task(n) for n in (11, 4, 3, 2)]
  files = dict(test=rows)
  if place == "directory":
    files = dict(test=rows[:1], prompt=rows[1:])
  if place == "lacking":
    files = dict(test=rows[:3])
  if place == "unsolved":
    files = dict(test=[*rows[:3], task(2, code="")])
  for name, of_file in files.items():
    text = "".join(json.dumps(x) + "\n" for x in of_file)
    (tmp_path / f"{name}.jsonl").write_text(text)
  source = tmp_path if place == "directory" else tmp_path / "test.jsonl"
  c = make([("2+2?", "4")], template="code=published,plain")
  c.rollout.max_prompt = 2000
  c.data.evaluate = f"mbpp:test@{source}"
  said, found = prepared(c, tmp_path / "run")
  prompts = [x.prompt for x in tiny_data.rows(found, "evaluate")]
  fields = {"data.template": "published", "data.chat": False}
  protocol = published.PUBLISHED["mbpp"]
  differ = published.differences(protocol, "code", 500, fields, prompts[0])
  warned = [x for x in said if "lacks the rows 2, 3, 4 (task_id)" in x]
  if place in ("file", "directory"):
    assert prompts == [SOLVED + asked(11)] and not warned and not differ
    dropped = (found / "quarantine.jsonl").read_text()
    count = dropped.count("it is a solved task of the published prompt")
    assert count == (3 if place == "file" else 0)
  else:
    ids = [11, 4, 3] if place == "lacking" else [11, 4, 3, 2]
    assert prompts == [*map(asked, ids)] and len(warned) == 1
    assert differ == ["no solved tasks in the prompt, not 3"]
  if place == "lacking":  # the rows come: the prompts are written anew
    path = tmp_path / "test.jsonl"
    path.write_text(path.read_text() + json.dumps(rows[3]))
    said, found = prepared(c, tmp_path / "run")
    [row] = tiny_data.rows(found, "evaluate")
    assert row.prompt == SOLVED + asked(11)
    assert not any("lacks the rows" in x for x in said)
  if place == "file":  # another template has no solved tasks
    c.data.template = "plain"
    _, found = prepared(c, tmp_path / "plain")
    assert len(tiny_data.rows(found, "evaluate")) == 4


def test_the_task_of_mbpp_without_the_three_solved_ones():
  protocol = published.PUBLISHED["mbpp"]
  assert protocol.template(RAW["mbpp"][0]).prompt("unused") == (
      "You are an expert Python programmer, and here is your task: Add one."
      " Your code should pass these tests:\n\nassert f(1) == 2"
      "\nassert f(2) == 3\n[BEGIN]\n"
  )
  fields = {"data.template": "published", "data.chat": False}
  found = published.differences(protocol, "code", 500, fields)
  assert found == ["no solved tasks in the prompt, not 3"]


FOLIO_SHOTS = [
    dict(example_id=641, premises=["It rains "], conclusion="Q", label="False"),
    dict(example_id=7, premises=["It rains "], conclusion="R", label="True"),
    dict(example_id=1131, premises="P\nS. ", conclusion="T ", label="Unknown"),
]


@pytest.mark.parametrize("place", ["file", "directory", "lacking"])
def test_the_prompt_of_folio_begins_with_two_solved_rows(make, tmp_path, place):
  """They are rows of the split train, and the answer is a letter."""
  rows = [RAW["folio"][0], *FOLIO_SHOTS]
  files = dict(validation=rows)
  if place == "directory":
    files = dict(validation=rows[:1], train=rows[1:])
  if place == "lacking":  # of one, the premises
    empty = dict(FOLIO_SHOTS[-1], premises=None)
    files = dict(validation=[*rows[:3], empty])
  for name, of_file in files.items():
    text = "".join(json.dumps(x) + "\n" for x in of_file)
    (tmp_path / f"folio_v2_{name}.jsonl").write_text(text)
  source = tmp_path
  if place != "directory":
    source = tmp_path / "folio_v2_validation.jsonl"
  c = make([("2+2?", "4")], template="choice=published,plain")
  c.rollout.max_prompt = 2000
  c.data.evaluate = f"folio:validation@{source}"
  said, found = prepared(c, tmp_path / "run")
  of_set = tiny_data.rows(found, "evaluate")
  solved = f"{concluded('P S.', 'T')} C\n------\n"
  solved += f"{concluded('It rains', 'Q')} B\n------\n"
  protocol = published.PUBLISHED["folio"]
  fields = {"data.template": "published", "data.chat": False}
  differ = published.differences(
      protocol, "choice", 204, fields, of_set[0].prompt
  )
  warned = [x for x in said if "lacks the rows 1131, 641 (example_id)" in x]
  if place == "lacking":
    assert of_set[0].prompt == FOLIO_HEAD + ASKED
    assert len(of_set) == 3 and len(warned) == 1
    assert "a directory with the split train" in warned[0]
    assert differ == ["no solved tasks in the prompt, not 2"]
    return
  assert of_set[0].prompt == FOLIO_HEAD + solved + ASKED
  assert not warned and not differ
  assert [x.answer for x in of_set] == ["A", "A"][: len(of_set)]
  assert len(of_set) == (2 if place == "file" else 1)  # 641, 1131 are no rows
  # Another prompt asks for one of the three values.
  c.data.template = "plain"
  _, found = prepared(c, tmp_path / "plain")
  first, *_ = tiny_data.rows(found, "evaluate")
  assert first.answer == "True" and first.prompt == RAW["folio"][1]


def test_the_answer_of_a_training_row_is_the_one_to_its_prompt(
    make, tmp_path, monkeypatch
):
  """Repeated rows do not contradict each other; other labels do."""
  monkeypatch.setitem(verifiers.KINDS, "choice", "rl_reason.verifiers.choice")
  row = RAW["folio"][0]
  uncertain = row | {"conclusion": "R", "label": "Uncertain"}
  rows = [row, row, uncertain, row | {"conclusion": "S"}]
  rows.append(rows[-1] | {"label": "False"})
  lacking = row | {"conclusion": "T"}
  del lacking["label"]
  rows.append(lacking)
  path = tmp_path / "folio_train.jsonl"
  path.write_text("".join(json.dumps(x) + "\n" for x in rows))
  c = make((), template="choice=published,plain")
  c.data.train, c.rollout.max_prompt = f"folio:train@{path}", 2000
  _, found = prepared(c, tmp_path / "run")
  assert [x.answer for x in tiny_data.rows(found)] == ["A", "C"]
  dropped = {
      screening.DUPLICATE: 1,
      screening.CONTRADICTION: 2,
      screening.NO_ANSWER: 1,
  }
  assert tiny_data.report(found)["dropped"] == dropped


def aime(**fields):
  """The config of DAPO's evaluation; `fields` are changed."""
  c = importlib.import_module("configs.base").get_config()
  c.data.update(template="published", chat=True)
  c.evaluate.update(samples=32, mean_of=32, top_p=0.7)
  c.rollout.max_tokens = 20480
  return config_lib.flat(c) | fields


ROW = tasks.Row("", "", kind="math", source="aime24")


@pytest.mark.parametrize(
    ("fields", "prompts", "differs"),
    [
        ({}, 30, ""),
        ({"evaluate.samples": 64}, 30, ""),
        ({"evaluate.samples": 8}, 30, "evaluate.samples = 8, not 32"),
        ({"evaluate.mean_of": 8}, 30, "evaluate.mean_of = 8, not 32"),
        (
            {"evaluate.temperature": 0.6},
            30,
            "evaluate.temperature = 0.6, not 1",
        ),
        ({"evaluate.top_p": 1.0}, 30, "evaluate.top_p = 1.0, not 0.7"),
        ({"evaluate.top_k": 20}, 30, "evaluate.top_k = 20, not 0"),
        ({"data.template": "dapo"}, 30, "data.template = 'dapo', not 'publ"),
        ({"data.template": "math=published"}, 30, ""),
        ({"data.template": "code=published"}, 30, "data.template = 'code="),
        ({"data.chat": False}, 30, "data.chat = False, not True"),
        (
            {"rollout.max_tokens": 512},
            30,
            "rollout.max_tokens = 512, not 20480",
        ),
        ({}, 29, "29 prompts, not 30"),
    ],
)
def test_the_screen_says_in_what_an_evaluation_differs(
    fields, prompts, differs
):
  line = published.line("aime24", ROW, prompts, aime(**fields))
  source = "mean@32 of DAPO, arXiv:2503.14476, sec 4.1: "
  same = "aime24: mean@32 is the score of DAPO, arXiv:2503.14476, sec 4.1"
  if differs:
    assert line.startswith(f"aime24: not comparable with {source}{differs}")
    assert ";" not in line
  else:
    assert line == same


@pytest.mark.parametrize("name", ["dapo", "vapo", "ppo"])
def test_the_presets_of_papers_evaluate_as_published(name):
  c = importlib.import_module(f"configs.paper.{name}").get_config()
  protocol = published.PUBLISHED[c.data.evaluate]
  fields = config_lib.flat(c)
  assert not published.differences(protocol, "math", 30, fields)


def test_a_greedy_score_needs_no_samples():
  row = ROW._replace(source="gsm8k")
  fields = aime(**{"evaluate.temperature": 0.3, "evaluate.samples": 1})
  assert published.line("x", row, 1319, fields) == (
      "x: greedy is the score of verl, examples/data_preprocess/gsm8k.py and"
      " its greedy validation"
  )
  for source in ("svamp", "my/gsm8k", "dapo_math_17k"):
    assert not published.line("x", ROW._replace(source=source), 9, fields)


def prepared(c, workdir):
  """What --stage=prepare says, and its directory."""
  said = []
  screen = types.SimpleNamespace(say=said.append, doing=lambda text: None)
  tiny_data.check(c)
  return said, prepare.run(c, workdir, screen, threading.Event())


def test_published_prompts_are_prepared(make, tmp_path):
  """Of known sets that have one; other sets, and the default, stay as is."""
  names = "gsm8k", "humaneval", "gpqa"
  for name in (*names, "folio"):
    (tmp_path / f"{name}.jsonl").write_text(json.dumps(RAW[name][0]))
  c = make([("2+2?", "4")], template="published")
  c.data.evaluate = ",".join(f"{x}@{tmp_path / x}.jsonl" for x in names)
  said, place = prepared(c, tmp_path / "run")
  prompts = [x.prompt for x in tiny_data.rows(place, "evaluate")]
  assert prompts == [PROMPTS[x] for x in names]
  assert [x.prompt for x in tiny_data.rows(place)] == ["2+2?"]
  assert [x for x in said if "no published prompt" in x] == [
      f"{c.data.train}: no published prompt is known here, so its prompts have"
      " the first style of the kind math"
  ]
  c.data.update(template="plain")
  c.data.evaluate += f",folio@{tmp_path}/folio.jsonl"
  said, place = prepared(c, tmp_path / "plain")
  first, *_, last = tiny_data.rows(place, "evaluate")
  assert (first.prompt, first.answer) == ("1+1?", "2")
  assert (last.prompt, last.answer) == (RAW["folio"][1], "True")
  assert not any("no published" in x for x in said)
  c.data.update(template="code=published", paraphrases=2)
  with pytest.raises(ConfigError, match="paraphrases = 2: .*one wording"):
    tiny_data.check(c)


def test_a_published_demonstration_has_the_form_of_the_prompt(make, tmp_path):
  path = tmp_path / "gsm8k.jsonl"
  path.write_text(json.dumps(RAW["gsm8k"][0]))
  c = make((), [("2+2?", "4")], template="published")
  c.data.train = f"gsm8k:train@{path}"
  [row] = tiny_data.rows(tiny_data.run(c, tmp_path / "run"))
  assert row.response == "1+1=2\n#### 2"


@pytest.mark.parametrize(
    ("source", "most", "sampled"),
    [
        ("aime24", 30000, (32, 1.0, 0.7, 20480)),
        ("aime24", 512, (32, 1.0, 0.7, 512)),  # the sampler has no more room
        ("math500", 30000, (10, 0.5, 1.0, 2048)),
        ("gsm8k", 30000, None),  # its score is greedy, in every evaluation
    ],
)
def test_fields_of_a_protocol(source, most, sampled):
  found = published.sampling(source, {"rollout.max_tokens": most})
  assert found.pop("evaluate.repetition_penalty") == 1.0
  names = "evaluate.samples evaluate.temperature evaluate.top_p".split()
  names.append("rollout.max_tokens")
  if sampled is None:
    assert not found
  else:
    assert tuple(found[x] for x in names) == sampled
    assert found["evaluate.mean_of"] == sampled[0]


def test_a_set_without_a_protocol_is_sampled_by_the_config():
  for source in ("arithmetic", "dapo_math_17k", "svamp"):
    assert not published.sampling(source, {"rollout.max_tokens": 9})


@pytest.mark.slow
def test_one_command_samples_each_set_by_its_protocol(tmp_path, monkeypatch):
  """Three protocols of small sizes; responses equal those of such a config."""
  session = tiny_session.make_session(
      tmp_path, evaluate__prompts=4, evaluate__interim_prompts=4
  )
  rows = list(held_out.rows_of_task(session.task, (2, 3), 4))
  protocols = dict(
      aime24=dict(samples=3, temperature=0.7, top_p=0.9, tokens=2),
      gsm8k={},
  )
  for name, fields in protocols.items():
    protocol = published.Protocol("a paper", "{question}", "", 4, **fields)
    monkeypatch.setitem(published.PUBLISHED, name, protocol)
  sets = {
      name: [x._replace(source=name) for x in rows]
      for name in (*protocols, "own")
  }
  monkeypatch.setattr(held_out, "evaluation_sets", lambda *_: sets)
  params = tiny_session.random_params(session)

  def evaluated(**fields):
    session.c.evaluate.update(fields)
    return tiny_session.call(
        evaluate.evaluate, session, params, 4, "", by_protocol=True
    )

  numbers, found = evaluated()
  sizes = {x.name: np.shape(x.texts_NG) for x in found}
  assert sizes == dict(aime24=(4, 4), gsm8k=(4, 3), own=(4, 3))
  of_aime, of_gsm8k, own = found
  assert of_aime.lengths_NG.max() == 2 < own.lengths_NG.max()
  means = [x for x in numbers if x.endswith(("mean@3", "mean@1"))]
  names = "aime24/acc/mean@3", "gsm8k/acc/mean@1", "own/acc/mean@1"
  assert [x for x in means if "val-core" in x] == [
      f"val-core/{x}" for x in names
  ]
  assert own.sampling == {} and of_gsm8k.texts_NG == own.texts_NG
  # One set has a config of its own.
  how = results.harness_results(
      numbers, found, config_lib.flat(session.c), dropped={}
  )["configs"]
  assert [how[x]["repeats"] for x in sizes] == [3, 2, 2]
  assert how["aime24"]["generation_kwargs"] == dict(
      do_sample=True, temperature=0.7, top_p=0.9, max_gen_toks=2
  )
  line = published.line(
      *("aime24", ROW, 4),
      config_lib.flat(session.c)
      | {"data.template": "published", "data.chat": True}
      | of_aime.sampling,
  )
  assert line == "aime24: mean@3 is the score of a paper"
  sets = dict(own=rows)
  _, [same] = evaluated(samples=3, mean_of=3, temperature=0.7, top_p=0.9)
  assert np.shape(same.texts_NG) == (4, 4)
  for cut_G, full_G in zip(of_aime.texts_NG, same.texts_NG, strict=True):
    for cut, full in zip(cut_G, full_G, strict=True):
      assert full.startswith(cut)
