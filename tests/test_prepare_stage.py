"""The stage that prepares data: files, reuse, interruption, configs."""

# ruff: noqa: F811  (pytest finds fixtures by their names)

import gzip
import json
import os
import pathlib
import threading

import jax
import pytest
import transformers
from tiny_data import (  # noqa: F401  (fixtures)
    FIVE,
    check,
    make,
    rows,
    run,
    tok_dir,
    verifier,
    write,
)

from rl_reason import verifiers
from rl_reason.base import json_files
from rl_reason.base.errors import ConfigError, Stopped
from rl_reason.data.datasets import DataError

BOAT = "A boat sails nine miles north and four miles east."

# --- the stage ---------------------------------------------------------------


def test_the_same_again(make, tmp_path):
  c = make(FIVE, [(BOAT, "1")], paraphrases=3)
  first = rows(run(c, tmp_path / "1"))
  assert first == rows(run(c, tmp_path / "2"))
  reports = [(tmp_path / x / "data" / "data.json").read_text() for x in "12"]
  assert reports[0] == reports[1]


def test_done_work_is_recognised(make, tmp_path):
  c = make(FIVE)
  place = run(c, tmp_path)

  def changed():
    before = (place / "data.json").stat().st_ino
    run(c, tmp_path)
    return (place / "data.json").stat().st_ino != before

  assert not changed()
  c.seed, c.rl.steps = 7, 9  # nothing of the data depends on them
  assert not changed()
  os.utime(c.data.train, ns=(1, 1))
  assert changed() and not changed()
  write(tmp_path / "train.jsonl", FIVE[:2])
  assert changed() and len(rows(place)) == 2
  c.rollout.max_prompt = 500
  assert changed() and not changed()


def test_an_edited_verifier_prepares_the_data_again(
    make, tmp_path, monkeypatch
):
  """It decides which demonstrations are correct."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(str(tmp_path))
  code = "def right(text, reference):\n  return "
  pathlib.Path("edited_verifier.py").write_text(f"{code}True\n")
  c = make(FIVE, kind="edited_verifier:right")
  found = [(run(c, tmp_path) / "data.json").stat().st_ino for _ in range(2)]
  pathlib.Path("edited_verifier.py").write_text(f"{code}text == reference\n")
  found.append((run(c, tmp_path) / "data.json").stat().st_ino)
  assert found[0] == found[1] != found[2]


def test_killed_on_the_way(make, tmp_path, monkeypatch):
  """What is there stays until the new is whole; leftovers do no harm."""
  place = run(make(FIVE), tmp_path)
  more = make([*FIVE, ("new?", "1")])

  def killed(path, value):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(json_files, "write_json", killed)
    with pytest.raises(KeyboardInterrupt):
      run(more, tmp_path)
  assert len(rows(place)) == 5 and (tmp_path / "data.new").exists()
  stop = threading.Event()
  stop.set()
  with pytest.raises(Stopped):
    run(more, tmp_path, stop)
  assert len(rows(place)) == 5
  run(more, tmp_path)
  assert len(rows(place)) == 6
  assert sorted(x.name for x in tmp_path.iterdir()) == ["data", "train.jsonl"]


def test_one_process_writes(make, tmp_path, monkeypatch):
  monkeypatch.setattr(jax, "process_index", lambda: 1)
  run(make(FIVE), tmp_path)
  assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "train, text",
    [
        (
            [("1?", "x"), ("2?", "y")],
            "2 rows: the reference .* verified, as in train.jsonl:1: x",
        ),
        (["\n"], "it is empty"),
    ],
)
def test_nothing_left(make, tmp_path, train, text):
  with pytest.raises(DataError, match=f"no row of .*train.jsonl is.*{text}"):
    run(make(train), tmp_path)
  assert not (tmp_path / "data").exists()


def test_a_source_of_corrupt_rows_is_refused(make, tmp_path):
  """95 of 100: no answers, no questions, no JSON; 5 that can be trained on."""
  bad = [f'{{"question": "{i}?"}}' for i in range(60)] + ["{"] * 30
  bad += [("", "1")] * 5
  words = "95 of 100 rows .* more than data.max_corrupt = 0.5 .*60 rows: there"
  with pytest.raises(DataError, match=words):
    run(make([*FIVE, *bad], max_corrupt=0.5), tmp_path)
  assert not (tmp_path / "data").exists()
  assert len(rows(run(make([*FIVE, *bad], max_corrupt=0.95), tmp_path))) == 5
  # Duplicates are not corrupt.
  again = make([*FIVE, *FIVE, *FIVE], max_corrupt=0.0)
  assert len(rows(run(again, tmp_path))) == 5


def test_a_damaged_source(make, tmp_path):
  path = tmp_path / "x.jsonl.gz"
  text = "".join(json.dumps(dict(question=q, answer=a)) for q, a in FIVE)
  path.write_bytes(gzip.compress(text.encode())[:-9])
  c = make()
  c.data.train = str(path)
  with pytest.raises(DataError, match="x.jsonl.gz: cannot be read to its end"):
    run(c, tmp_path)


def test_keywords_of_the_chat_template_change_the_prompts(
    make, tmp_path, tok_dir
):
  tok = transformers.AutoTokenizer.from_pretrained(tok_dir)
  tok.chat_template = (
      "{{ messages[0].content }}{% if think is true %} (Think.){% endif %}"
      "{{ 1 / size if size is defined }}"
  )
  tok.save_pretrained(tmp_path / "tok")
  texts = {}
  for args in ("", "think=True", "think=False"):
    c = make(FIVE, chat=True, template_args=args)
    c.tokenizer = str(tmp_path / "tok")
    texts[args] = [row.prompt for row in rows(run(c, tmp_path))]
  assert texts[""] == texts["think=False"] == [question for question, _ in FIVE]
  assert texts["think=True"] == [f"{x} (Think.)" for x in texts[""]]
  c = make(FIVE, chat=True, template_args="size=0")
  c.tokenizer = str(tmp_path / "tok")
  with pytest.raises(ConfigError, match="ZeroDiv.*correct data.template_args"):
    run(c, tmp_path)


def test_a_tokenizer_without_a_chat_template(make, tmp_path, tok_dir):
  tok = transformers.AutoTokenizer.from_pretrained(tok_dir)
  tok.chat_template = None
  tok.save_pretrained(tmp_path / "tok")
  c = make(FIVE, chat=True)
  c.tokenizer = str(tmp_path / "tok")
  with pytest.raises(ConfigError, match="set data.chat = False"):
    run(c, tmp_path)


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"train": "gsm8"}, "data.train = .* did you mean gsm8k"),
        ({"evaluate": "/no/such"}, "data.evaluate = .*neither a known set"),
        ({"columns": "prompt=x"}, "data.columns = .* is no column"),
        (
            {"kind": "poetry"},
            "data.kind = 'poetry': must be one of math, ordered",
        ),
        ({"template": "mine"}, "data.template = 'mine': must be one of plain"),
        (
            {"kind": "none", "train": "owner/poems"},
            "reward.functions = '': nothing verifies",
        ),
        ({"template": "math=code"}, "data.template = .*must be one of plain"),
        (
            {"kind": "x.jsonl=code"},
            "data.kind = .*'x.jsonl' is no file of data",
        ),
        ({"kind": "train.jsonl=odd"}, "data.kind = .*must be one of math, or"),
        (
            {"columns": "x.jsonl: question=q"},
            "data.columns = .*'x.jsonl' is no file of data",
        ),
        (
            {"columns": "train.jsonl: quest=q"},
            "data.columns = .*quest=q' is no column",
        ),
        (
            {"answer_as": "index2"},
            "data.answer_as = .*is none of detect, letter, index0, index1",
        ),
        (
            {"answer_as": "x.jsonl=index0", "columns": "choices=x"},
            "data.answer_as = .*'x.jsonl' is no file of data",
        ),
        ({"answer_as": "index0"}, "data.answer_as = .*no choices are named"),
        ({"train": "gsm8k*0"}, "gsm8k\\*0: a weight must be more than 0"),
        ({"evaluate": "gsm8k*2"}, "data.evaluate = .*leave out the weights"),
        ({"system": "Hi"}, "data.system = 'Hi': does nothing without"),
        ({"paraphrases": 6}, "at least 1 and at most 5"),
        ({"ngram": -1}, "data.ngram = -1"),
    ],
)
def test_impossible_configs(make, fields, text):
  with pytest.raises(ConfigError, match=text):
    check(make(**{"ngram": 0} | fields))


def test_two_sources_with_columns_and_choices_of_their_own(
    make, tmp_path, monkeypatch
):
  """ARC's rows name labels, MMLU's count from 0, and the config may say so."""
  options = ["red", "green", "blue", "white"]
  arc = {"stem": "Arc?", "options": {"label": [*"ABCD"], "text": options}}
  mmlu = {"Question": "Mmlu?", "choices": options, "answer": 1}
  paths = [
      write(tmp_path / "arc.jsonl", [arc | {"answerKey": "D"}]),
      write(tmp_path / "mm@lu.jsonl", [mmlu]),
  ]
  columns = (
      "arc.jsonl: question=stem,choices=options,answer=answerKey;"
      " mm@lu.jsonl: choices=choices"
  )
  real = "rl_reason.verifiers.choice"
  monkeypatch.setitem(verifiers.KINDS, "choice", real)
  c = make(evaluate=",".join(paths), kind="choice", columns=columns)
  mark = "mm@lu.jsonl: .*set data.answer_as to index0 or index1 .index0"
  with pytest.raises(DataError, match=mark):
    run(c, tmp_path / "a")
  c.data.answer_as = "mm@lu.jsonl=index0"
  place = run(c, tmp_path / "b")
  assert [x.answer for x in rows(place, "evaluate")] == ["D", "B"]


def test_real_data_need_a_tokenizer(make):
  c = make(FIVE)
  c.tokenizer = ""
  with pytest.raises(ConfigError, match="tokenizer = '': .*name a tokenizer"):
    check(c)


CHOICES = [
    *FIVE,
    (FIVE[0][0], "1"),
    {"q": "Other column?", "question": "This column?", "answer": "3"},
]


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, 6),
        ({"deduplicate": False}, 7),
        ({"limit": 2}, 2),
        ({"columns": "question=q"}, 1),
        ({"kind": "choice"}, 6),
    ],
)
def test_fields_that_choose_rows(make, tmp_path, fields, kept):
  found = rows(run(make(CHOICES, **fields), tmp_path))
  assert len(found) == kept
  assert found[0].kind == fields.get("kind", "math")
  assert found[-1].prompt == {
      1: "Other column?",
      2: FIVE[1][0],
  }.get(kept, "This column?")
