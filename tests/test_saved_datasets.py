"""Directories of `save_to_disk`, and JSON files that hold lists of rows."""

import json

import pytest
from test_datasets import ROWS, lines, read, write_arrow

from rl_reason.checks import path_contents
from rl_reason.data import datasets
from rl_reason.data.datasets import DataError


def save(path, rows, shards=1, split=None):
  """The files that a Dataset of `datasets` 5.2 is saved as."""
  path.mkdir(parents=True)
  names = [f"data-{n:05}-of-{shards:05}.arrow" for n in range(shards)]
  for n, name in enumerate(names):
    part = rows[n * len(rows) // shards : (n + 1) * len(rows) // shards]
    write_arrow(path / name, part)
  state = dict(_data_files=[dict(filename=x) for x in names], _split=split)
  (path / "state.json").write_text(json.dumps(state))
  (path / "dataset_info.json").write_text(json.dumps(dict(features={})))


def save_dict(path, **splits):
  for name, rows in splits.items():
    save(path / name, rows)
  (path / "dataset_dict.json").write_text(json.dumps(dict(splits=[*splits])))


def questions(text, split="train"):
  return [row["question"] for _, row in read(text, split)]


ASKED = [row["question"] for row in ROWS]


def test_a_saved_dataset(tmp_path):
  """Its files in the order of its list, and no other one."""
  save(tmp_path / "a", ROWS, shards=2)
  write_arrow(tmp_path / "a" / "cache-1.arrow", ROWS)
  found = read(tmp_path / "a")
  assert [row for _, row in found] == ROWS
  assert found[-1][0] == "data-00001-of-00002.arrow:3"
  path = tmp_path / "a" / "state.json"
  state = json.loads(path.read_text())
  state["_data_files"].reverse()
  path.write_text(json.dumps(state))
  assert questions(tmp_path / "a") == ASKED[2:] + ASKED[:2]


def test_the_splits_of_a_saved_dict(tmp_path):
  path = tmp_path / "d"
  save_dict(path, train=ROWS[:3], test=ROWS[3:])
  assert questions(path) == questions(f"{path}:train", "test") == ASKED[:3]
  assert questions(path, "test") == questions(f"{path}:test") == ASKED[3:]
  [(where, _), *_] = read(path)
  assert where == "train/data-00000-of-00001.arrow:1"
  save_dict(tmp_path / "one", only=ROWS)
  assert questions(tmp_path / "one") == ASKED
  # A known set: GSM8K has both splits, and the split of AIME is of any name.
  assert questions(f"gsm8k:test@{path}") == ASKED[3:]
  assert questions(f"aime24@{tmp_path / 'one'}", "test") == ASKED


def test_columns_and_chats_of_a_saved_dataset(tmp_path):
  turns = [
      dict(role="user", content="1+1?"),
      dict(role="assistant", content="2"),
  ]
  save(tmp_path / "a", [dict(messages=turns, meta=dict(id=1, result="2"))])
  source = datasets.parse(str(tmp_path / "a"))
  mapping = datasets.columns("answer=meta.result")
  [example] = datasets.examples(source, mapping, "math")
  assert (example.question, example.answer) == ("1+1?", "2")
  assert example.response == "2" and example.columns["meta"]["id"] == 1


WRONG = [
    ("d:dev", "train", "has no split 'dev'; it has train, test"),
    ("v", "test", "the splits train, valid, and no 'test': name one, as in"),
    ("a:test", "train", "one Dataset and no split 'test': leave out the split"),
    ("gsm8k:train@held", "train", "holds test and no split 'train'"),
    ("gsm8k:train@only", "train", "no split 'train'; it has test"),
    (".", "train", "saved data sets, such as .*: name one of them"),
    ("old", "train", "early version of datasets, with an index"),
    ("lost", "train", "0000-of-00001.arrow: is missing: copy the whole"),
    ("torn", "train", "state.json: is damaged .*copy it again"),
    ("none", "train", "no file in none ends in .jsonl, .json"),
    ("none/a.arrow:test", "train", "a file has no splits: leave out :test"),
]


@pytest.mark.parametrize(("text", "split", "words"), WRONG)
def test_what_cannot_be_read_is_said(tmp_path, monkeypatch, text, split, words):
  monkeypatch.chdir(tmp_path)
  save_dict(tmp_path / "d", train=ROWS, test=ROWS)
  save_dict(tmp_path / "v", train=ROWS, valid=ROWS)
  save_dict(tmp_path / "only", test=ROWS)
  save(tmp_path / "a", ROWS)
  save(tmp_path / "held", ROWS, split="test")
  for name in ("old", "lost", "torn"):
    save(tmp_path / name, ROWS)
  index = dict(_data_files=[], _indices_data_files=[dict(filename="i.arrow")])
  (tmp_path / "old" / "state.json").write_text(json.dumps(index))
  (tmp_path / "lost" / "data-00000-of-00001.arrow").unlink()
  (tmp_path / "torn" / "state.json").write_text("{")
  (tmp_path / "none").mkdir()
  (tmp_path / "none" / "dataset_info.json").write_text("{}")
  if ":test" in text and "arrow" in text:
    write_arrow(tmp_path / "none" / "a.arrow", ROWS)
  with pytest.raises(DataError, match=words) as error:
    read(text, split)
  assert "\n" not in str(error.value)


def test_lists_of_a_json_file(tmp_path):
  path = tmp_path / "x.json"
  path.write_text(json.dumps(dict(train=ROWS[:2], test=ROWS[2:]), indent=2))
  assert questions(f"{path}:test") == ASKED[2:]
  assert questions(f"gsm8k@{path}") == ASKED[:2]
  with pytest.raises(DataError, match="has the lists train, test: name one"):
    read(path)
  with pytest.raises(DataError, match="no list of rows 'dev'; its keys are tr"):
    read(f"{path}:dev")
  # A row on a line, which has lists of its own.
  row = dict(question="1?", tests=[dict(input="1")], messages=[])
  path.write_text(json.dumps(row))
  assert [x for _, x in read(path)] == [row]
  turns = dict(messages=[dict(role="user", content="1?")])
  path.write_text(json.dumps(turns, indent=1))
  assert [x for _, x in read(path)] == [turns]
  path.write_text(json.dumps(dict(question=["1?"], answer=["1", "2"])))
  with pytest.raises(DataError, match="keys question, answer, none of which"):
    read(path)
  path.write_bytes(lines(ROWS))
  with pytest.raises(DataError, match="has no splits: leave out :test"):
    read(f"{path}:test")


def test_the_content_of_a_saved_dataset_is_hashed(tmp_path, make_base):
  save(tmp_path / "a", ROWS)
  make_base.data.train = str(tmp_path / "a")
  before = path_contents.content(make_base, "data.train")
  (tmp_path / "a" / "dataset_info.json").write_text("{}")
  assert before == path_contents.content(make_base, "data.train") != ""
  write_arrow(tmp_path / "a" / "data-00000-of-00001.arrow", ROWS[1:])
  assert before != path_contents.content(make_base, "data.train")


@pytest.fixture
def make_base():
  from configs import base

  return base.get_config()
