"""Examples from rows: columns, pairs, answers, and the known sets."""

import csv
import datetime
import decimal
import hashlib
import importlib
import json

import pyarrow.parquet
import pytest

from rl_reason import api
from rl_reason.base.errors import ConfigError
from rl_reason.data import datasets, known_sets
from rl_reason.data.datasets import DataError, Malformed
from rl_reason.serve import protocol


def write(directory, *rows):
  path = directory / "x.jsonl"
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return path


def examples(text, mapping="", kind="math", meaning="detect"):
  source = datasets.parse(str(text))
  columns = datasets.columns(mapping)
  return list(datasets.examples(source, columns, kind, meaning))


# --- examples ----------------------------------------------------------------


def test_columns_are_mapped(tmp_path):
  path = tmp_path / "x.jsonl"
  path.write_text('{"q": " Two? ", "meta": {"result": 2.0}, "l": "Level 4"}')
  [one] = examples(path, "question=q,answer=meta.result, difficulty = l")
  assert one == datasets.Example(
      question="Two?",
      answer="2",
      kind="math",
      difficulty=4,
      source=str(path),
      where="x.jsonl:1",
      columns={"q": " Two? ", "meta": {"result": 2.0}, "l": "Level 4"},
      subject=str(path),
  )
  for text in ("question", "question=", "prompt=x", "question=a,result=b"):
    with pytest.raises(DataError, match="is no column; write for instance"):
      datasets.columns(text)


def test_a_question_from_several_columns(tmp_path):
  row = {"context": ["One, two.", "{3}"], "meta": {"ask": "Is it?"}, "n": 2}
  path = write(tmp_path, row | {"answer": "4", "more": ""})
  text = (
      r"question={{c}}: {context}\n\n{meta.ask} ({n}, {more}), = {question?},"
      " answer={n}{n}"
  )
  [one] = examples(path, text.replace("{question?}", "so"))
  asked = "{c}: One, two.\n{3}\n\nIs it? (2, ), = so"
  assert (one.question, one.answer) == (asked, "22")
  for braces in ("question={", "question=a{b}}", "question={}"):
    with pytest.raises(ValueError, match="has a brace alone"):
      datasets.columns(braces)


def test_a_template_of_columns_that_a_row_lacks(tmp_path):
  rows = [{"a": "1", "b": x, "answer": "2"} for x in ("2", None, [{}])]
  path = write(tmp_path, *rows, {"a": "1", "answer": "2"})
  one, *malformed = examples(path, "question={a} {b}")
  assert one.question == "1 2"
  assert [x.why for x in malformed[::2]] == ["no field 'b'"] * 2
  assert "another type" in malformed[1].why
  with pytest.raises(
      DataError,
      match=(
          "question in the column c of '{a} {c}'; i"
          "ts columns are a, b, answer: name the right one"
      ),
  ):
    examples(path, "question={a} {c}")


def test_an_answer_from_several_columns_of_python_rows(tmp_path):
  row = {"question": "1/2?", "a": 1, "b": 2}
  usual = importlib.import_module("configs.base").get_config()
  for mapping, kind in (("answer={a}/{b}", None), ("answer={c}", "none")):
    fields = {"data.columns": mapping}
    found, _ = api._row_fields(usual, fields, tmp_path, [row] * 6, None)
    assert found.get("data.kind") == kind


def test_rows_are_not_written_where_no_source_can_be(tmp_path):
  usual = importlib.import_module("configs.base").get_config()
  workdir = tmp_path / "dapo,seed=1"
  with pytest.raises(ConfigError, match="has no ,: choose another workdir"):
    api._row_fields(usual, {}, workdir, [{"question": "1+1?"}] * 6, None)
  assert not workdir.exists()


OPTIONS = {"one": "red", "two": "green", "three": "blue"}
CHOICES = "choices=one|two | three"


@pytest.mark.parametrize(
    ("row", "mapping"),
    [
        (OPTIONS | {"answer": "b"}, CHOICES),
        (OPTIONS | {"answer": "green"}, CHOICES),
        ({"list": list(OPTIONS.values()), "answer": "B"}, "choices=list"),
        (
            {
                "list": {"label": [1, 2, 3], "text": list(OPTIONS.values())},
                "answer": 2,
            },
            "choices=list",
        ),
    ],
)
def test_choices_of_columns_keep_their_order(tmp_path, row, mapping):
  path = write(tmp_path, {"question": "Which?"} | row)
  [one] = examples(path, mapping, "choice")
  assert one.question == "Which?\n\nA) red\nB) green\nC) blue"
  assert one.answer == "B"


def test_a_correct_column_is_shuffled_by_the_row(tmp_path):
  rows = [{"question": f"Which, {n}?"} | OPTIONS for n in range(300)]
  mapping = f"{CHOICES},answer=two"
  found = examples(write(tmp_path, *rows), mapping, "choice")
  for one in found:
    lines = dict(x.split(") ") for x in one.question.splitlines()[2:])
    assert sorted(lines.values()) == ["blue", "green", "red"]
    assert lines[one.answer] == "green"
  counts = [sum(x.answer == letter for x in found) for letter in "ABC"]
  # Two standard deviations of a fair die of three sides are 16.
  assert max(abs(x - 100) for x in counts) <= 25
  again = examples(write(tmp_path, *rows[::-1]), mapping, "choice")
  assert [x.question for x in again[::-1]] == [x.question for x in found]
  texts = ["red", "green", "blue"]
  texts.sort(key=lambda x: hashlib.sha256(f"Which, 0?\0{x}".encode()).digest())
  assert found[0].question.endswith("\n\nA) {}\nB) {}\nC) {}".format(*texts))


@pytest.mark.parametrize(
    ("row", "mapping", "why"),
    [
        ({"two": None, "answer": "A"}, CHOICES, "no field 'two'"),
        ({"answer": "D"}, CHOICES, "the answer 'D' is not the label or the t"),
        ({"one": "B", "answer": "B"}, CHOICES, "the answer 'B' is not the lab"),
        ({"one": "green"}, f"{CHOICES},answer=two", "two choices are 'green'"),
        ({"answer": "A"}, "choices=one", "'one' has no list of choices"),
        (
            {"l": ["x"], "answer": "A"},
            "choices=l",
            "there are no two choices in l",
        ),
        ({"l": ["x"] * 11, "answer": "A"}, "choices=l", "more than 10 choices"),
        (
            {"l": {"text": ["x"]}, "answer": "A"},
            "choices=l",
            "no field 'label'",
        ),
    ],
)
def test_choices_that_are_not_clear(tmp_path, row, mapping, why):
  path = write(tmp_path, {"question": "Which?"} | OPTIONS | row)
  [malformed] = examples(path, f"{mapping},question={{question}}", "choice")
  assert isinstance(malformed, Malformed) and why in malformed.why


FOUR = ["red", "green", "blue", "white"]


@pytest.mark.parametrize(
    ("rows", "letters"),  # of choices and answer
    [
        ([(FOUR, 0), (FOUR, 3), (FOUR, 2)], "ADC"),  # MMLU
        ([(FOUR, "3"), (FOUR, "0")], "DA"),  # HellaSwag
        ([(FOUR, 4), (FOUR, 1), (FOUR, 2.0)], "DAB"),
        ([(FOUR[:2], "1"), (FOUR[:2], "2")], "AB"),  # WinoGrande
        ([(FOUR[:2], 0), (FOUR[:2], 1)], "AB"),  # PIQA
        ([(["12", "15", "18"], "18"), (["1", "2", "4"], 2)], "CB"),  # texts
        ([(["1", "2", "3", "4"], 4), (["1", "2", "3", "4"], 2)], "DB"),
        ([(["0", "1", "2"], 0), (["0", "1", "2"], 2)], "AC"),
        ([(FOUR, "B"), (FOUR, "blue"), (FOUR, "(c)"), (FOUR, "d.")], "BCCD"),
        ([({"A": "red", "B": "green", "C": None}, "b")], "B"),  # MedQA
        (
            [([{"key": "A", "value": "1"}, {"key": "B", "value": "A"}], "B")],
            "B",
        ),
        ([({"label": ["1", "2"], "text": FOUR[:2]}, "2"), (FOUR, "B")], "BB"),
    ],
)
def test_numbers_that_name_a_choice(tmp_path, rows, letters):
  written = [{"question": "?", "list": x, "answer": a} for x, a in rows]
  path = write(tmp_path, *written)
  found = examples(path, "choices=list", "choice")
  assert "".join(x.answer for x in found) == letters


def test_a_number_that_no_meaning_has_is_one_malformed_row(tmp_path):
  row = {"question": "?", "list": FOUR}
  answers = 0, 7, -1, 3  # -1: a test split without answers
  path = write(tmp_path, *(row | {"answer": x} for x in answers))
  found = examples(path, "choices=list", "choice")
  why = [x.why for x in found if isinstance(x, Malformed)]
  assert why[0] == "the answer '7' is not the index0 of one choice"
  assert [x.answer for x in found if not isinstance(x, Malformed)] == ["A", "D"]


@pytest.mark.parametrize(
    ("rows", "error", "meanings"),
    [
        (
            [(["1", "2", "3", "4"], 2)],
            (
                "x.jsonl:1, which has 2 of 4 choices: set data.answer_as to"
                " index0 or index1 or text"
            ),
            {"index0": "C", "index1": "B", "text": "B"},
        ),
        (
            [(FOUR, 1), (FOUR, 2)],
            "set data.answer_as to index0 or index1 .index0 counts",
            {"index0": "BC", "index1": "AB"},
        ),
        (
            [(FOUR, 0), (FOUR, 4), (FOUR, 1)],
            (
                "no way to read them fits all rows: .* index0 without"
                " x.jsonl:2, which has 4 of 4 choices, or index1 without"
                " x.jsonl:1"
            ),
            {"index0": "A-B", "index1": "-DA"},
        ),
        (
            [(["B", "A"], "A"), (["B", "A"], "B")],
            None,  # malformed rows, since other rows of a source may be clear
            {"letter": "AB", "text": "BA"},
        ),
    ],
)
def test_the_config_says_which_choice_a_number_names(
    tmp_path, rows, error, meanings
):
  written = [{"question": "?", "list": x, "answer": a} for x, a in rows]
  path = write(tmp_path, *written)
  if error:
    with pytest.raises(DataError, match=error):
      examples(path, "choices=list", "choice")
  for meaning, letters in meanings.items():
    found = examples(path, "choices=list", "choice", meaning)
    read = ["-" if isinstance(x, Malformed) else x.answer for x in found]
    assert "".join(read) == letters


def test_meanings_of_answers_by_source(tmp_path):
  (tmp_path / "a.jsonl").write_text("")
  source = datasets.parse(str(tmp_path / "a.jsonl"))
  assert datasets.meaning_of("a.jsonl=index0,text", source) == "index0"
  assert datasets.meaning_of("b.jsonl=index0,text", source) == "text"
  assert datasets.meaning_of("b.jsonl=index0", source) == "detect"
  with pytest.raises(DataError, match="'index' is none of detect, letter, ind"):
    datasets.meanings("a.jsonl=index")


def test_columns_of_each_source(tmp_path):
  for name in ("a.jsonl", "b.jsonl", "c@1.jsonl"):
    (tmp_path / name).write_text("")
  a, b, c = (
      datasets.parse(str(tmp_path / x))
      for x in ("a.jsonl", "b.jsonl", "c@1.jsonl")
  )
  text = (
      "question=task,answer=gold; a.jsonl: question=Q: {q};"
      f" {{r}},choices=x|y; {tmp_path}/c@1.jsonl: answer=meta.result"
  )
  of = {x.place: datasets.columns(text, x) for x in (a, b, c)}
  assert of[a.place]["question"] == ("Q: {q}; {r}",)
  assert (of[a.place]["answer"], of[a.place]["choices"]) == (
      ("gold",),
      ("x", "y"),
  )
  assert (of[b.place]["question"], of[b.place]["choices"]) == (("task",), ())
  assert of[c.place]["answer"] == ("meta.result",)
  assert datasets.columns(text)["question"] == ("task",)
  assert {*datasets.own_columns(text)} == {"", "a.jsonl", c.place}
  with pytest.raises(DataError, match="quest=x' is no column"):
    datasets.columns("a.jsonl: question=y,quest=x", b)


def test_choices_need_their_verifier(tmp_path):
  path = write(tmp_path, {"question": "Which?", "answer": "A"} | OPTIONS)
  for kind in ("math", "none"):
    with pytest.raises(DataError, match="set data.kind = 'choice'"):
      examples(path, CHOICES, kind)
  assert examples(path, CHOICES, "my_verifiers:check")[0].answer == "A"
  with pytest.raises(DataError, match="choices are columns: choices=a"):
    datasets.columns("choices={a}")


def test_demonstrations_and_preferences(tmp_path):
  """Preferences once as texts and once as chats."""
  user = {"role": "user", "content": "Two?"}
  chats = [[user, {"role": "assistant", "content": x}] for x in ("2", "3")]
  path = write(
      tmp_path,
      {"question": "Two?", "response": "It is 2."},
      {"question": "Two?", "chosen": "2", "rejected": "3"},
      {"question": [user], "chosen": chats[0], "rejected": chats[1]},
  )
  found = [(x.question, x.response, x.rejected) for x in examples(path)]
  preference = "Two?", "2", "3"
  assert found == [("Two?", "It is 2.", ""), preference, preference]


TURN = dict(role="user", content="Two?")
SYSTEM = dict(role="system", content="Be short.")
FEW = [SYSTEM, TURN, dict(role="assistant", content="2"), TURN]


@pytest.mark.parametrize(
    ("row", "expected"),  # turns before the question, answer, response
    [
        ({"problem": "Two?", "solution": r"So \boxed{2}."}, ([], "2", "")),
        ({"prompt": "Two?", "ground_truth": 2}, ([], "2", "")),
        ({"prompt": FEW, "answer": "2"}, (FEW[:3], "2", "")),  # TRL
        (  # verl
            {
                "data_source": "mine",
                "prompt": [SYSTEM | {"name": None}, TURN],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": "2"},
                "extra_info": {"index": 0},
            },
            ([SYSTEM], "2", ""),
        ),
        ({"messages": FEW[:3]}, ([SYSTEM], "", "2")),
        (
            {
                "prompt": [TURN],
                "completion": [FEW[2] | {"content": "It is 2."}],
            },
            ([], "", "It is 2."),
        ),
        ({"question": "", "prompt": "Two?", "answer": 2}, ([], "2", "")),
    ],
)
def test_layouts_that_are_known(tmp_path, row, expected):
  path = tmp_path / "x.parquet"
  pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
  [one] = examples(path)
  assert one.question == "Two?" and one.columns.keys() == row.keys()
  assert (list(one.turns), one.answer, one.response) == expected


HUMAN = {"from": "human", "value": "Two?"}
GPT = {"from": "gpt", "value": "2"}
CALL = {"name": "double", "arguments": '{"x": 1}'}
CALLED = {
    "role": "assistant",
    "tool_calls": [{"type": "function", "function": CALL}],
}
OLD_CALL = {"role": "assistant", "content": None, "function_call": CALL}
PARTS = [{"type": "text", "text": "Two"}, {"type": "text", "text": "or 3?"}]


@pytest.mark.parametrize(
    ("row", "question", "turns", "response"),
    [
        ({"conversations": [HUMAN, GPT]}, "Two?", [], "2"),
        (
            {
                "conversations": [
                    {"from": "system", "value": "Be short."},
                    *[HUMAN, GPT, HUMAN],
                ]
            },
            "Two?",
            FEW[:3],
            "",
        ),
        ({"messages": [HUMAN | {"from": "user"}, GPT]}, "Two?", [], "2"),
        (
            {
                "conversation": [
                    *[HUMAN, GPT | {"from": "function_call"}],
                    *[HUMAN | {"from": "observation"}, GPT],
                    *[HUMAN | {"weight": None}, GPT | {"from": "Model"}],
                ]
            },
            "Two?",
            [
                *[TURN, FEW[2], TURN | {"role": "tool"}],
                FEW[2],
            ],
            "2",
        ),
        ({"prompt": [TURN | {"content": PARTS}]}, "Two\nor 3?", [], ""),
        (
            {"prompt": [x | {"content": PARTS[1:]} for x in (SYSTEM, TURN)]},
            "or 3?",
            [SYSTEM | {"content": "or 3?"}],
            "",
        ),
        (
            {"question": "Two?", "chosen": [HUMAN, GPT], "rejected": [GPT]},
            "Two?",
            [],
            "2",
        ),
    ],
)
def test_chats_of_other_layouts(tmp_path, row, question, turns, response):
  path = tmp_path / "x.parquet"
  pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
  [one] = examples(path, kind="none")
  assert (one.question, list(one.turns)) == (question, turns)
  assert one.response == response


def test_a_system_turn_in_a_column(tmp_path):
  row = {"conversations": [HUMAN, GPT], "system": " Be short.", "tools": ""}
  other = {"question": "Two?", "answer": "2", "system": "Linux"}
  path = write(tmp_path, row, row | {"system": ""}, other)
  first, *rest = examples(path)
  assert list(first.turns) == [SYSTEM] and not any(x.turns for x in rest)
  chat = [{"from": "system", "value": "Mine."}, HUMAN]
  [one] = examples(write(tmp_path, row | {"conversations": chat}), kind="none")
  assert [x["content"] for x in one.turns] == ["Mine."]


def test_cells_of_csv_that_are_json(tmp_path):
  """As pandas writes a set in the format of verl."""
  path = tmp_path / "x.csv"
  rows = [
      {
          "prompt": json.dumps([SYSTEM, TURN]),
          "reward_model": json.dumps({"ground_truth": "2"}),
          "options": json.dumps(["1", "2"]),
      },
      {"prompt": "[{1}] is a set.", "reward_model": "{", "options": "1"},
      {"prompt": str([TURN]), "reward_model": "", "options": "[]"},
      {"prompt": '[{"a": 1}] has a key?', "reward_model": "", "options": ""},
  ]
  with path.open("w", newline="") as file:
    writer = csv.DictWriter(file, rows[0])
    writer.writeheader()
    writer.writerows(rows)
  first, text, malformed, key = examples(path)
  assert (first.question, first.answer) == ("Two?", "2")
  assert list(first.turns) == [SYSTEM]
  assert text.question == "[{1}] is a set." and text.answer == ""
  assert "are JSON, with double quotes" in malformed.why
  assert key.question == '[{"a": 1}] has a key?'
  columns = "choices=options,answer=reward_model.ground_truth"
  [one, *_] = examples(path, columns, "choice", "text")
  assert one.question.endswith("A) 1\nB) 2") and one.answer == "B"


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (
            {"prompt": [TURN | {"content": [{"type": "image_url"}]}]},
            "a turn has a part of type image_url, and only text is read",
        ),
        (
            {"prompt": [TURN | {"content": [*PARTS, {"type": "image"}]}]},
            "part of type image,",
        ),
        (
            {"prompt": [TURN | {"content": [{"type": "text", "text": 1}]}]},
            "part of type text",
        ),
        ({"problem": "<image>Two?", "images": ["x.png"]}, "has an image, and"),
        ({"conversations": [GPT]}, "last turn of a prompt is not the user's"),
        ({"messages": [TURN, CALLED]}, "calls tools outside of its text"),
        ({"messages": [TURN, CALLED | {"content": "2"}]}, "into its content"),
        ({"prompt": "Two?", "completion": [OLD_CALL]}, "or leave the turn out"),
    ],
)
def test_turns_that_are_no_text(tmp_path, row, why):
  [malformed] = examples(write(tmp_path, row | {"answer": "2"}))
  assert why in malformed.why


@pytest.mark.parametrize(
    "turn",
    [
        *[CALLED, CALLED | {"content": ""}, CALLED | {"refusal": None}],
        *[OLD_CALL, CALLED | {"tool_calls": json.dumps(CALLED["tool_calls"])}],
    ],
)
@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("role", ["tool", "function"])
def test_earlier_turns_may_call_tools(tmp_path, turn, served, role):
  """In the forms of OpenAI's API, and in a text, as in columns of Parquet."""
  chat = [TURN, turn, {"role": role, "content": "2"}, TURN]
  if served:
    _, found, result, _ = protocol.Chat(messages=chat).turns
  else:
    [one] = examples(write(tmp_path, {"messages": chat}), kind="none")
    _, found, result = one.turns
  assert result == {"role": "tool", "content": "2"}
  assert found == CALLED | {"content": ""}


@pytest.mark.parametrize(
    ("turn", "thought", "said"),
    [
        ({"reasoning": "t", "content": "2"}, "t", "2"),
        ({"thinking": "t", "content": PARTS}, "t", "Two\nor 3?"),
        ({"content": [{"type": "thinking", "thinking": "t"}, "2"]}, "t", "2"),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, None, "No."),
        ({"content": "2", "tool_calls": [], "function_call": None}, None, "2"),
    ],
)
def test_a_turn_has_one_form(turn, thought, said):
  turn = {"role": "assistant", **turn}
  [found] = protocol.Chat(messages=[turn]).turns
  assert (found.get("reasoning_content"), found["content"]) == (thought, said)
  assert found.keys() <= {"role", "content", "reasoning_content"}
  wanted = f"<think>\nt\n</think>\n\n{said}" if thought else said
  assert known_sets.text([turn]) == wanted


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("", {"Question": "Two?", "ANSWER": 2}),
        ("", {"PROBLEM": "Two?", "Reward_Model": {"Ground_Truth": "2"}}),
        ("gsm8k@", {"Question": "Two?", "Answer": "1 + 1\n#### 2"}),
        ("aime24@", {"ID": "1", "Problem": "Two?", "Answer": 2}),
        ("svamp@", {"body": "Two", "QUESTION": "Two?", "answer": 2.0}),
        ("deepmath@", {"Question": "Two?", "Final_Answer": "2"}),
        ("", {"Question": "Three?", "question": "Two?", "answer": 2}),
    ],
)
def test_columns_in_another_case(tmp_path, text, row):
  [one] = examples(f"{text}{write(tmp_path, row)}")
  assert (one.question.removeprefix("Two. "), one.answer.strip()) == (
      "Two?",
      "2",
  )
  assert one.columns == row


@pytest.mark.parametrize(
    ("mapping", "answer"),
    [
        ("answer=gold.value", "7"),
        ("answer=gold.aliases.1", "seven"),
        ("answer=spans.0.text", "7"),
    ],
)
def test_answers_inside_of_a_column(tmp_path, mapping, answer):
  gold = {"value": "7", "aliases": ["VII", "seven"]}
  row = {"question": "?", "gold": gold, "spans": [{"text": "7"}]}
  path = write(tmp_path, row)
  assert examples(path, mapping)[0].answer == answer
  for column, why in (
      ("gold", "an object: data.columns names a part, COLUMN.value"),
      ("gold.aliases", "a list: data.columns names an item, COLUMN.0"),
  ):
    [malformed] = examples(path, f"answer={column}")
    assert why in malformed.why


@pytest.mark.parametrize(
    "chat",
    [
        [SYSTEM],
        FEW[:1] + FEW[2:3],
        [TURN | {"content": [{"type": "image"}]}],
        [{}],
    ],
)
def test_a_chat_without_a_question_is_malformed(tmp_path, chat):
  [malformed] = examples(write(tmp_path, {"prompt": chat, "answer": "2"}))
  assert isinstance(malformed, Malformed)


@pytest.mark.parametrize(
    ("row", "mapping", "error"),
    [
        (
            {"aufgabe": "2?", "antwort": "2"},
            "",
            (
                "no row has a value of question in question, problem, prompt,"
                " messages, .*; its columns are aufgabe, antwort: name the"
                " right one, as in data.columns = 'question=aufgabe'"
            ),
        ),
        (
            {"question": "2?", "gold": "2"},
            "",
            (
                "no row has a value of answer in .*its columns are question,"
                " gold.*data.columns = 'answer=.*data.kind = 'none'"
            ),
        ),
        ({"q": "?", "answer": 2}, "question=task", "of question in task; its"),
    ],
)
def test_an_unknown_layout_names_its_columns(tmp_path, row, mapping, error):
  with pytest.raises(DataError, match=f"x.jsonl: .*{error}"):
    examples(write(tmp_path, row, row), mapping)
  if "gold" in row:
    assert len(examples(write(tmp_path, row), mapping, kind="none")) == 1


def test_kinds_of_files(tmp_path):
  names = "a.jsonl", "b.jsonl", "c.jsonl"
  for name in names:
    (tmp_path / name).write_text("")
  sources = [datasets.parse(str(tmp_path / x)) for x in names]
  text = f"a.jsonl=code, {tmp_path}/b.jsonl=my:f,none"
  found = [datasets.kind_of(text, x) for x in sources]
  assert found == ["code", "my:f", "none"]
  assert datasets.kind_of("a.jsonl=code", sources[1]) == "math"
  assert not datasets.parse("gsm8k").names


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (
            "code",
            '{"tests": "assert f()", "names": [], "prompt": "", "stop": []}',
        ),
        ("my:f", '{"tests": "1"}'),
        ("none", None),
    ],
)
def test_a_reference_answer_may_be_an_object(tmp_path, kind, answer):
  row = {"question": "?", "answer": json.loads(answer) if answer else ""}
  [one] = examples(write(tmp_path, row), kind=kind)
  assert one.answer == (answer or "")
  [none] = examples(write(tmp_path, row | {"answer": [1]}))
  assert isinstance(none, Malformed)


@pytest.mark.parametrize(
    "cell",
    [
        *[{"question": "\ud800"}, {"question": {"a": 1}}, {"question": ["x"]}],
        *[{"answer": float("nan")}, {"answer": float("inf")}, {"answer": [2]}],
        *[{"response": {}}, {"chosen": [{}]}, {"difficulty": "9" * 400}],
    ],
)
def test_a_row_with_a_cell_of_no_use_is_malformed(tmp_path, cell):
  path = write(tmp_path, {"question": "?", "answer": "2"} | cell, {"other": 1})
  malformed, empty = examples(path)
  assert isinstance(malformed, Malformed) and malformed.where == "x.jsonl:1"
  assert empty.question == empty.answer == ""  # screening drops it


def _table(name, cells, kind):
  fields = {"question": ["1?", "2?"], name: pyarrow.array(cells, kind)}
  return pyarrow.table(fields)


@pytest.mark.parametrize(
    ("cells", "kind", "answers"),
    [
        ([0.1, 1e-7], pyarrow.float32(), ["0.1", "0.0000001"]),
        ([16777216.0, None], pyarrow.float32(), ["16777216", ""]),
        ([0.1, 2.5], pyarrow.float16(), ["0.1", "2.5"]),
        ([0.1, 1e22], pyarrow.float64(), ["0.1", "1" + "0" * 22]),
        ([18.0, -0.0], pyarrow.float64(), ["18", "0"]),
        (
            [decimal.Decimal("18.00"), decimal.Decimal("0.50")],
            pyarrow.decimal128(5, 2),
            ["18", "0.5"],
        ),
        (
            [datetime.date(2024, 5, 1), datetime.datetime(2024, 1, 2)],
            pyarrow.date32(),
            ["2024-05-01", "2024-01-02"],
        ),
        ([b"7", "é".encode()], pyarrow.binary(), ["7", "é"]),
        (["7", "7"], pyarrow.dictionary(pyarrow.int8(), "string"), ["7", "7"]),
    ],
)
@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_numbers_have_the_digits_of_their_width(
    tmp_path, cells, kind, answers, ending
):
  path = tmp_path / f"x.{ending}"
  table = _table("answer", cells, kind)
  if ending == "arrow":
    with pyarrow.ipc.new_file(str(path), table.schema) as writer:
      writer.write_table(table)
  else:
    pyarrow.parquet.write_table(table, path)
  assert [x.answer for x in examples(path)] == answers


def test_numbers_within_columns_have_their_digits(tmp_path):
  narrow = pyarrow.float32()
  cell = {"a": [0.1, None], "b": {"c": 0.2}, "d": 3, "e": {"k": 0.3}}
  kind = pyarrow.struct(
      [
          ("a", pyarrow.list_(narrow)),
          ("b", pyarrow.struct([("c", narrow)])),
          ("d", pyarrow.int64()),
          ("e", pyarrow.map_("string", narrow)),
      ]
  )
  path = tmp_path / "x.parquet"
  pyarrow.parquet.write_table(_table("extra", [cell, None], kind), path)
  found = examples(path, kind="none")
  assert [x.columns["extra"] for x in found] == [cell, None]
  [first, _] = examples(path, "answer=extra.b.c", kind="none")
  assert first.answer == "0.2"


@pytest.mark.parametrize("error", ["nan", "-1", "inf", "1e400", "0.1,x"])
def test_a_tolerance_that_cannot_be(tmp_path, error):
  row = KNOWN_ROWS["olympiadbench"][0]
  path = write(tmp_path, row | {"error": error}, row | {"error": []})
  malformed, without = examples(f"olympiadbench@{path}")
  assert isinstance(malformed, Malformed) and without.tolerance == 0


@pytest.mark.parametrize(
    "cell, reference",
    [
        ("So 2 + 2 = 4.\n#### 4", "4"),
        (r"first \boxed{1}, then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\fbox{3}", "3"),
        (r"$\boxed 7$", "7"),
        (r"\boxed{\left\{ 1, 2 \right\}}", r"\left\{ 1, 2 \right\}"),
        (r"\boxed{\{1\}", r"\boxed{\{1\}"),  # no box that ends
        ("12", "12"),
        (12.5, "12.5"),
        (27.0, "27"),
        (70, "70"),
    ],
)
def test_reference_answers_of_mathematics(tmp_path, cell, reference):
  [one] = examples(write(tmp_path, {"question": "?", "answer": cell}))
  assert one.answer == reference


DAPO = (
    "Solve the following math problem step by step. The last line of your"
    " response should be of the form Answer: $Answer.\n\nFirst line.\n\nWhat is"
    ' 1 + 1?\n\nRemember to put your answer on its own line after "Answer:".'
)

# Name -> a raw row, question, answer, difficulty.
KNOWN_ROWS = {
    "gsm8k": (
        {"question": "1+1?", "answer": "1+1=<<1+1=2>>2\n#### 2"},
        *("1+1?", "2", 0),
    ),
    "svamp": (
        {"Body": "Ann has 2 cats. ", "Question": "How many?", "Answer": 2.0},
        *("Ann has 2 cats. How many?", "2", 0),
    ),
    "math": (
        {"problem": "1+1?", "solution": r"$\boxed{2}$", "level": "Level 3"},
        *("1+1?", "2", 3),
    ),
    "math500": (
        {"problem": "1+1?", "solution": "so", "answer": "2", "level": 5},
        *("1+1?", "2", 5),
    ),
    "aime24": (
        {"problem": "1+1?", "solution": r"\boxed{3}", "answer": "002"},
        *("1+1?", "002", 0),
    ),
    "aime25": ({"problem": "1+1?", "answer": 2}, "1+1?", "2", 0),
    "amc23": ({"question": "1+1?", "answer": 2.0}, "1+1?", "2", 0),
    "minerva": (
        {"problem": "1+1?", "solution": r"\boxed{1.6} cm"},
        *("1+1?", "1.6", 0),
    ),
    "olympiadbench": (
        {
            "question": "Which?",
            "final_answer": ["$69$,$84$"],
            "unit": "$cm^2$",
            "error": "1e-1",
        },
        *("Which?", "69,84 cm^2", 0),
    ),
    "gaokao2023en": ({"question": "1+1?", "answer": "$2$"}, "1+1?", "$2$", 0),
    "dapo_math_17k": (
        {
            "prompt": [{"role": "user", "content": DAPO}],
            "reward_model": {"ground_truth": "2", "style": "rule"},
        },
        *("First line.\n\nWhat is 1 + 1?", "2", 0),
    ),
    "deepmath": (
        {"question": "1+1?", "final_answer": "2", "difficulty": 4.5},
        *("1+1?", "2", 4),
    ),
    "humaneval": (
        {
            "prompt": "def f(x):\n",
            "test": "def check(g):\n  assert g(1) == 2\n",
            "entry_point": "f",
        },
        "Complete this function:\n\ndef f(x):",
        {
            "tests": "def check(g):\n  assert g(1) == 2\n\ncheck(f)\n",
            "names": ["f"],
            "prompt": "def f(x):\n",
            "stop": ["\nclass", "\ndef", "\n#", "\nif", "\nprint"],
        },
        0,
    ),
    "mbpp": (
        {
            "text": "Add one.",
            "test_list": ["assert f(1) == 2", "assert f(2) == 3"],
            "test_setup_code": "import math",
        },
        "Add one.\n\nIt must pass:\n\nassert f(1) == 2\nassert f(2) == 3",
        {
            "tests": "assert f(1) == 2\nassert f(2) == 3",
            "names": [],
            "prompt": "import math",
            "stop": ["[DONE]"],
        },
        0,
    ),
    "code_contests": (
        {
            "description": "Add one.",
            "public_tests": {"input": ["1\n"], "output": ["2\n"]},
            "private_tests": {"input": [], "output": []},
            "generated_tests": {"input": ["3\n"], "output": ["4\n"]},
            "difficulty": 7,
        },
        *("Add one.", {"cases": [["1\n", "2\n"], ["3\n", "4\n"]]}, 7),
    ),
    "strategyqa": (
        {"question": "Can cats fly?", "answer": False},
        *("Can cats fly? Yes or no?", "no", 0),
    ),
    "commonsenseqa": (
        {
            "question": "Where?",
            "choices": {"label": ["A", "B"], "text": ["here", "there"]},
            "answerKey": "B",
        },
        *("Where?\nA. here\nB. there", "B", 0),
    ),
    "gpqa": (
        {
            "Question": " What?\n",
            "Correct Answer": "four ",
            "Incorrect Answer 1": "one",
            "Incorrect Answer 2": "two",
            "Incorrect Answer 3": "three",
        },
        *("What?\n\nA) three\nB) one\nC) two\nD) four", "D", 0),
    ),
    "folio": (
        {
            "premises": ["All cats purr.", "Tom is a cat."],
            "conclusion": "Tom purrs.",
            "label": "True",
        },
        (
            "All cats purr.\nTom is a cat.\n\nIs the following conclusion True,"
            " False or Uncertain by these premises?\n\nTom purrs."
        ),
        *("True", 0),
    ),
}


def test_every_known_set_has_a_row_here():
  assert KNOWN_ROWS.keys() == known_sets.KNOWN.keys()


@pytest.mark.parametrize("name", known_sets.KNOWN)
def test_known_sets(tmp_path, name):
  row, question, answer, difficulty = KNOWN_ROWS[name]
  [one] = examples(f"{name}@{write(tmp_path, row)}")
  found = json.loads(one.answer) if isinstance(answer, dict) else one.answer
  assert (one.question, found, one.difficulty) == (question, answer, difficulty)
  assert one.kind == known_sets.KNOWN[name].kind and one.source == name
  assert one.tolerance == (0.1 if name == "olympiadbench" else 0)


def test_layouts_of_the_publishers(tmp_path):
  """GPQA is a table with several subsets, FOLIO a text or a list."""
  row, _, letter, _ = KNOWN_ROWS["gpqa"]
  for name in ("gpqa_diamond", "gpqa_main", "gpqa_extended"):
    with (tmp_path / f"{name}.csv").open("w", newline="") as file:
      table = csv.DictWriter(file, [*row, "Record ID"])
      table.writeheader()
      table.writerow(row | {"Record ID": name})
  for split, name in ((":main", "gpqa_main"), ("", "gpqa_diamond")):
    [one] = examples(f"gpqa{split}@{tmp_path}")
    assert one.columns["Record ID"] == name and one.answer == letter
  row, question, *_ = KNOWN_ROWS["folio"]
  text = row | {"premises": "\n".join(row["premises"]), "label": "Uncertain"}
  path = tmp_path / "folio_v2_validation.jsonl"
  path.write_text(json.dumps(text) + "\n" + json.dumps({"label": "True"}))
  one, malformed = examples(f"folio@{path}")
  assert (one.question, one.answer) == (question, "Uncertain")
  assert malformed.why == "no field 'premises'"


def test_subjects(tmp_path):
  """The column of a set; else the set itself, of verl data_source."""
  topics = {"domain": ["Algebra", "Sets"], "topic": "Algebra -> Rings"}
  row = {"problem": "1+1?", "solution": r"$\boxed{2}$", "type": "Geometry"}
  row |= {"question": "1+1?", "answer": "2", "subject": ""} | topics
  path = write(tmp_path, row, row | {"data_source": "openai/gsm8k"})
  found = lambda text, **options: [  # noqa: E731
      x.subject for x in examples(text, **options)
  ]
  assert found(f"math@{path}") == ["Geometry", "Geometry"]
  assert found(f"deepmath@{path}") == ["Algebra -> Rings"] * 2
  assert found(f"gsm8k@{path}") == ["gsm8k", "openai/gsm8k"]
  assert found(path) == [str(path), "openai/gsm8k"]
  named = found(path, mapping="subject=domain")
  assert named == ['["Algebra", "Sets"]'] * 2


def test_copies_with_other_columns(tmp_path):
  path = write(tmp_path, {"prompt": "1+1?", "ground_truth": "2"})
  [one] = examples(f"deepmath@{path}")
  assert (one.question, one.answer) == ("1+1?", "2")
  path = write(tmp_path, {"text": "?"}, {"prompt": 1, "entry_point": 2})
  assert [x.why for x in examples(f"humaneval@{path}")] == [
      "no field 'prompt'",
      "no field 'test'",
  ]
