"""Rows as hubs publish them: choices, Alpaca, chats, preferences, files."""

import gzip
import json
import tarfile
import zipfile

import pyarrow.parquet
import pytest

from rl_reason.data import datasets, screening
from rl_reason.data.datasets import DataError, Malformed

FOUR = ["red", "green", "blue", "white"]
LETTERED = "Which?\n\nA) red\nB) green\nC) blue\nD) white"
USER = {"role": "user", "content": "Two?"}
SAYS = {"role": "assistant", "content": "2"}
BE_SHORT = {"role": "system", "content": "Be short."}


def examples(path, mapping="", kind="math", split=""):
  source = datasets.parse(f"{path}{split}")
  columns = datasets.columns(mapping, source)
  return list(datasets.examples(source, columns, kind))


def one(directory, row, mapping="", kind="math"):
  path = directory / "x.jsonl"
  path.write_text(json.dumps(row))
  [found] = examples(path, mapping, kind)
  return found


@pytest.mark.parametrize(
    "row",
    [
        # Columns that no field names: ARC, MMLU-Pro.
        {"choices": {"text": FOUR, "label": [*"ABCD"]}, "answerKey": "B"},
        {"options": FOUR, "answer": "B", "answer_index": 1},
        {"choices": FOUR, "answer": "Green."},
        # What an answer may be: one item, one mark of each choice, both forms.
        {"choices": FOUR, "answer": ["B"]},
        {"choices": FOUR, "answer": [0, 1, 0, 0]},
        {"choices": FOUR, "answer": [False, True, False, False]},
        *({"choices": FOUR, "answer": x} for x in ("B) green", "(b) Green")),
        # What choices may be: texts with labels, one text, other keys.
        {"options": [f"{a}){b}" for a, b in zip("ABCD", FOUR, strict=True)]}
        | {"answer": "B"},
        {"options": "a ) red , b ) green , c ) blue , d ) white"}
        | {"answer": "b"},
        {"options": "A. red\nB. green\nC. blue\nD. white", "answer": "green"},
        {"choices": str(FOUR), "answer": "green"},
        {
            "choices": [
                {"id": a, "content": b}
                for a, b in zip("ABCD", FOUR, strict=True)
            ],
            "answer": "B",
        },
    ],
)
def test_choices_as_they_are_published(tmp_path, row):
  found = one(tmp_path, {"question": "Which?"} | row, kind="choice")
  assert (found.question, found.answer) == (LETTERED, "B")


def test_choices_that_a_question_shows_are_not_repeated(tmp_path):
  row = {"question": LETTERED, "options": FOUR, "answer": "green"}
  found = one(tmp_path, row, kind="choice")
  assert (found.question, found.answer) == (LETTERED, "B")
  for options in ("none", ["red"], None):  # no choices
    found = one(tmp_path, row | {"options": options}, kind="choice")
    assert (found.question, found.answer) == (LETTERED, "green")


@pytest.mark.parametrize("answer", [["A", "B"], [1, 1, 0, 0], [0] * 4, "AB"])
def test_answers_that_are_several_choices(tmp_path, answer):
  row = {"question": "Which?", "choices": FOUR, "answer": answer}
  assert isinstance(one(tmp_path, row, kind="choice"), Malformed)


@pytest.mark.parametrize("empty", [None, "", float("nan")])
def test_rows_with_fewer_choices(tmp_path, empty):
  row = dict(zip("ABCDE", [*FOUR, empty], strict=True))
  row |= {"question": "Which?", "answer": "B"}
  found = one(tmp_path, row, "choices=A|B|C|D|E", "choice")
  assert (found.question, found.answer) == (LETTERED, "B")
  correct = "choices=A|B|C|D|E,answer=E"
  with pytest.raises(DataError, match="no row has a value of answer in E"):
    one(tmp_path, row | {"E": ""}, correct, "choice")


@pytest.mark.parametrize(
    ("row", "question", "response"),
    [
        (
            {"instruction": "Add.", "input": "1+1", "output": "2"},
            "Add.\n\n1+1",
            "2",
        ),
        ({"instruction": "Two?", "input": "", "output": "2"}, "Two?", "2"),
        (  # Dolly
            {"instruction": "Who?", "context": "Ann came.", "response": "Ann"},
            "Who?\n\nAnn came.",
            "Ann",
        ),
        ({"query": "Two?", "response": "2"}, "Two?", "2"),  # MetaMathQA
        ({"question": "Two?", "input": "3", "output": "2"}, "Two?", ""),
        ({"dialogue": [USER, SAYS]}, "Two?", "2"),
        *(
            ({"messages": turns}, "Two?", "2")
            for turns in (
                [{"role": "User", "value": "Two?"}, SAYS],
                [USER, {"from": "ai", "content": "2"}],
                [{"role": "human", "text": "Two?"}, SAYS | {"role": "gpt"}],
                [USER, {"role": "model", "parts": [{"text": "2"}]}],
                {"role": ["user", "assistant"], "content": ["Two?", "2"]},
                [
                    USER
                    | {"content": [{"type": "input_text", "text": "Two?"}]},
                    SAYS | {"content": [{"type": "output_text", "text": "2"}]},
                ],
            )
        ),
        (
            {
                "messages": [
                    USER,
                    SAYS
                    | {
                        "content": [
                            {"type": "thinking", "thinking": "1+1"},
                            {"type": "text", "text": "2"},
                        ]
                    },
                ]
            },
            "Two?",
            "<think>\n1+1\n</think>\n\n2",
        ),
        # Preferences without a prompt, and with objects.
        ({"chosen": [USER, SAYS], "rejected": [USER, SAYS]}, "Two?", "2"),
        ({"question": "Two?", "chosen": SAYS, "rejected": USER}, "Two?", "2"),
    ],
)
def test_demonstrations_as_they_are_published(
    tmp_path, row, question, response
):
  found = one(tmp_path, row, kind="none")
  assert (found.question, found.response) == (question, response)
  assert not found.turns


def test_preferences_of_different_prompts(tmp_path):
  other = USER | {"content": "Three?"}
  row = {"chosen": [USER, SAYS], "rejected": [other, SAYS]}
  path = tmp_path / "x.jsonl"
  path.write_text("\n".join(map(json.dumps, [row, row | {"rejected": ""}])))
  with pytest.raises(DataError, match="no row has a value of question"):
    examples(path, kind="none")
  text = json.dumps({"question": "Two?", "response": "2"})
  path.write_text(f"{json.dumps(row)}\n{text}")
  assert "answer different prompts" in examples(path, kind="none")[0].why


@pytest.mark.parametrize(
    ("row", "mapping", "turns"),
    [
        ({"system": "Be short.", "chosen": "2", "rejected": "3"}, "", True),
        ({"system_prompt": "Be short.", "response": "2"}, "", True),
        ({"who": "Be short.", "answer": "2"}, "system=who", True),
        ({"system": "Be short.", "answer": "2"}, "", False),  # may be anything
        ({"system": "", "response": "2"}, "", False),
    ],
)
def test_a_system_turn_before_a_text(tmp_path, row, mapping, turns):
  found = one(tmp_path, {"question": "Two?"} | row, mapping)
  assert list(found.turns) == [BE_SHORT] * turns


def test_a_completion_that_is_not_wanted(tmp_path):
  data = type("Data", (), {"ngram": 0})
  screen = screening.Screen(data, None)
  row = {"prompt": "Two?", "completion": "3"}  # TRL's unpaired preferences
  for label, wanted in ((True, True), (False, False), (None, True)):
    found = one(tmp_path, row | {"label": label}, kind="none")
    fault = screen.fault(found)
    assert (fault is None) == wanted


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"expected_answer": "2"}, "2"),  # OpenMathInstruct
        ({"correct_answer": 2}, "2"),
        ({"reward_model": {"ground_truth": '["2"]'}}, "2"),  # Skywork-OR1
        ({"answer": ["2"]}, "2"),
        ({"answer": "[0, 1]"}, "[0, 1]"),  # an interval
        ({"answer": "[2]"}, "[2]"),
        *(({"answer": x}, None) for x in ("proof", "notfound", "NaN")),
    ],
)
def test_references_as_they_are_published(tmp_path, row, answer):
  found = one(tmp_path, {"question": "Two?"} | row)
  assert getattr(found, "answer", None) == answer


# --- files -------------------------------------------------------------------

ROW = {"question": "Two?", "answer": "2"}
TEXT = json.dumps(ROW).encode()


def zipped(path):
  with zipfile.ZipFile(path, "w") as archive:
    archive.writestr("data/", "")
    archive.writestr("data/x.jsonl", TEXT)
    archive.writestr("LICENSE", "MIT")


def tarred(path):
  with tarfile.open(path, "w:gz"):
    pass


def parquet(path):
  pyarrow.parquet.write_table(pyarrow.Table.from_pylist([ROW]), path)


@pytest.mark.parametrize(
    ("name", "write", "split"),
    [
        ("x.zip", zipped, ""),
        ("x.json", {"version": 1, "data": {"train": [ROW]}}, ""),
        ("x.json", {"data": {"train": [ROW], "test": []}}, ":train"),
        ("x.json", {"version": 1, "problems": [ROW]}, ""),
        ("x.csv", b'question, answer\n"Two?", "2"\n', ""),
    ],
)
def test_files_as_they_are_published(tmp_path, name, write, split):
  path = tmp_path / name
  if isinstance(write, dict):
    write = json.dumps(write).encode()
  write(path) if callable(write) else path.write_bytes(write)
  [found] = examples(path, split=split)
  assert (found.question, found.answer) == ("Two?", "2")


def test_rows_that_are_chats(tmp_path):
  path = tmp_path / "x.json"  # Open-Reasoner-Zero
  answer = {"from": "assistant", "ground_truth": {"value": "17"}}
  path.write_text(json.dumps([[{"from": "human", "value": "Q?"}, answer]]))
  mapping = "question=messages.0.value,answer=messages.1.ground_truth.value"
  [found] = examples(path, mapping)
  assert (found.question, found.answer) == ("Q?", "17")


@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        ("x.jsonl", gzip.compress(TEXT, mtime=0), "rename it to {path}.gz"),
        ("x.jsonl.gz", TEXT, "is not compressed: rename it to"),
        ("x.json", parquet, "x.parquet"),
        ("x.jsonl", zipped, "rename it to {path}.zip"),
        ("x.tar.gz", tarred, "unpack it, and name its directory"),
        ("x.jsonl.tar.gz", tarred, "unpack it"),
        ("x.tgz", tarred, "unpack it"),
        ("x.xlsx", zipped, "a spreadsheet: save it as CSV"),
        ("x.pkl", b"", "write its rows as Parquet"),
        ("x.json", b"Entry not found", "a server's answer"),
        ("x.jsonl", b"<?xml version='1.0'?><Error/>", "a server's answer"),
        ("x.parquet", b"/annex/objects/MD5E-s1--a", "git annex get"),
        ("x.json", b"version https://hawser.github.com/spec/v1", "lfs pull"),
        ("x.csv", b"Two?,2\n3?,3\n", "write a first line with names"),
    ],
)
def test_files_of_another_content(tmp_path, name, write, words):
  path = tmp_path / name
  write(path) if callable(write) else path.write_bytes(write)
  with pytest.raises(DataError) as error:
    examples(path)
  assert words.format(path=path) in str(error.value)
  assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_times_and_maps_of_parquet(tmp_path):
  path = tmp_path / "x.parquet"
  cells = {
      "at": pyarrow.array([1577923200000000001], pyarrow.timestamp("ns")),
      "took": pyarrow.array([1000000001], pyarrow.duration("ns")),
      "meta": pyarrow.array(
          [[("gold", "5")]], pyarrow.map_(pyarrow.string(), pyarrow.string())
      ),
      "question": ["Two?"],
  }
  pyarrow.parquet.write_table(pyarrow.table(cells), path)
  [found] = examples(path, "answer=meta.gold")
  assert found.answer == "5" and found.columns["at"].year == 2020
