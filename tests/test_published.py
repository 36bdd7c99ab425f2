"""Published protocols of known sets: prompts, and what makes a score theirs."""

import json
import threading
import types

import pytest
import test_known_sets
import tiny_data

from rl_reason import verifiers
from rl_reason.base.errors import ConfigError
from rl_reason.data import (
    known_sets,
    published,
    screening,
    templates,
)
from rl_reason.stages import prepare

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
  shown = published.PUBLISHED["mbpp"].solved(prompts[0])
  warned = [x for x in said if "lacks the rows 2, 3, 4 (task_id)" in x]
  if place in ("file", "directory"):
    assert prompts == [SOLVED + asked(11)] and not warned and shown == 3
    dropped = (found / "quarantine.jsonl").read_text()
    count = dropped.count("it is a solved task of the published prompt")
    assert count == (3 if place == "file" else 0)
  else:
    ids = [11, 4, 3] if place == "lacking" else [11, 4, 3, 2]
    assert prompts == [*map(asked, ids)] and len(warned) == 1
    assert shown == 0
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


FOLIO_SHOTS = [
    dict(example_id=641, premises=["It rains "], conclusion="Q", label="False"),
    dict(example_id=7, premises=["It rains "], conclusion="R", label="True"),
    dict(example_id=1131, premises="P\nS. ", conclusion="T ", label="Unknown"),
]


FOLIO_SOLVED = (
    f"{concluded('P S.', 'T')} C\n------\n"
    f"{concluded('It rains', 'Q')} B\n------\n"
)


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
  shown = published.PUBLISHED["folio"].solved(of_set[0].prompt)
  warned = [x for x in said if "lacks the rows 1131, 641 (example_id)" in x]
  if place == "lacking":
    assert of_set[0].prompt == FOLIO_HEAD + ASKED
    assert len(of_set) == 3 and len(warned) == 1
    assert "a directory with the split train" in warned[0]
    assert shown == 0
    return
  assert of_set[0].prompt == FOLIO_HEAD + FOLIO_SOLVED + ASKED
  assert not warned and shown == 2
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
