"""Rows of files: every format, damage, sources, and the known sets."""

import gzip
import itertools
import json

import huggingface_hub
import pyarrow
import pyarrow.parquet
import pytest
from array_record.python import array_record_module

from rl_reason.data import datasets
from rl_reason.data.datasets import DataError, Malformed

ROWS = [
    {"question": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(5)
]
PLAIN = datasets.columns("")


def lines(rows):
  return "".join(json.dumps(row) + "\n" for row in rows).encode()


def write_parquet(path, rows):
  pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def write_array_record(path, rows):
  writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
  for row in rows:
    writer.write(json.dumps(row).encode())
  writer.close()


WRITERS = {
    "a.jsonl": lambda path, rows: path.write_bytes(lines(rows)),
    "a.jsonl.gz": lambda path, rows: path.write_bytes(
        gzip.compress(lines(rows))
    ),
    "a.json": lambda path, rows: path.write_text(json.dumps(rows, indent=1)),
    "a.json.gz": lambda path, rows: path.write_bytes(
        gzip.compress(json.dumps(rows).encode())
    ),
    "b.json": lambda path, rows: path.write_bytes(lines(rows)),  # misnamed
    "a.parquet": write_parquet,
    "a.array_record": write_array_record,
}


def read(text, split="train"):
  return list(datasets.read(datasets.parse(str(text), split)))


def examples(text, mapping="", kind="math"):
  source = datasets.parse(str(text))
  return list(datasets.examples(source, datasets.columns(mapping), kind))


# --- files -------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_rows(tmp_path, name):
  WRITERS[name](tmp_path / name, ROWS)
  wanted = [(f"{name}:{i}", row) for i, row in enumerate(ROWS, 1)]
  assert read(tmp_path / name) == wanted


def test_a_directory_is_its_files_in_order(tmp_path):
  (tmp_path / "part").mkdir()
  write_parquet(tmp_path / "part" / "1.parquet", ROWS[3:])
  (tmp_path / "0.jsonl").write_bytes(lines(ROWS[:3]))
  (tmp_path / "README.md").write_text("no data")
  found = read(tmp_path)
  assert [row for _, row in found] == ROWS
  assert [where for where, _ in found][2:4] == ["0.jsonl:3", "part/1.parquet:1"]


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_lines_that_are_no_object_are_numbered(tmp_path, ending):
  text = b'{"a": 1}\n\n{"a": \n[1]\n"x"\n\xff\xfe\n' + b"[" * 100_000 + b"\n3"
  text += b'\n{"a": 2}'
  path = tmp_path / f"x.jsonl{ending}"
  path.write_bytes(gzip.compress(text) if ending else text)
  found = [(where.rpartition(":")[2], row) for where, row in read(path)]
  assert found == [
      ("1", {"a": 1}),
      *[(str(n), None) for n in (3, 4, 5, 6, 7, 8)],
      ("9", {"a": 2}),
  ]


def test_items_of_a_list_that_are_no_object(tmp_path):
  (tmp_path / "x.json").write_text('[{"a": 1}, 2, null, {"a": 3}]')
  assert [row for _, row in read(tmp_path / "x.json")] == [
      {"a": 1},
      None,
      None,
      {"a": 3},
  ]


@pytest.mark.parametrize(
    "name", ["a.jsonl.gz", "a.json", "a.parquet", "a.array_record"]
)
@pytest.mark.parametrize("damage", ["cut", "garbage", "empty"])
def test_a_damaged_file_is_one_line_with_its_name(tmp_path, name, damage):
  path = tmp_path / name
  WRITERS[name](path, ROWS * 200)
  data = path.read_bytes()
  if damage == "empty" and name in ("a.json", "a.jsonl.gz"):
    return  # nothing in it is nothing wrong
  path.write_bytes(
      dict(cut=data[: len(data) // 2], garbage=b"no data " * 999, empty=b"")[
          damage
      ]
  )
  if damage == "garbage" and name == "a.json":  # taken for lines
    assert {row for _, row in read(path)} == {None}
    return
  with pytest.raises(DataError) as error:
    read(path)
  text = str(error.value)
  assert str(path) in text and "fetch it again" in text and "\n" not in text


def test_what_a_reader_raises_is_named(tmp_path, monkeypatch):
  """Whatever it is: libraries have errors of their own."""
  path = tmp_path / "a.parquet"
  write_parquet(path, ROWS)

  class Odd(Exception):
    pass

  def broken(*args, **kwargs):
    raise Odd("a page of no kind\nand more")

  monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", broken)
  with pytest.raises(DataError, match="a.parquet: .*a page of no kind[^\n]*$"):
    read(path)


def test_a_mark_of_byte_order_is_no_damage(tmp_path):
  for name in ("a.json", "a.jsonl", "b.json"):
    WRITERS[name](tmp_path / name, ROWS)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + data)
    assert [row for _, row in read(tmp_path / name)] == ROWS


def test_a_key_that_stands_twice(tmp_path):
  """Which of the two is meant nobody knows."""
  text = '{"question": "1?", "answer": "1", "answer": "2"}'
  (tmp_path / "a.jsonl").write_text(f"{text}\n")
  assert [row for _, row in read(tmp_path / "a.jsonl")] == [None]
  (tmp_path / "a.json").write_text(f"[{text}]")
  with pytest.raises(DataError, match="the same key twice"):
    read(tmp_path / "a.json")


def test_a_flipped_bit_in_an_array_record(tmp_path):
  path = tmp_path / "a.array_record"
  write_array_record(path, ROWS * 200)
  data = bytearray(path.read_bytes())
  data[data.index(b"What is") if b"What is" in data else 70_000] ^= 0xFF
  path.write_bytes(data)
  with pytest.raises(DataError, match="fetch it again"):
    read(path)


def test_files_are_streamed(tmp_path):
  """Rows before the damage arrive; what is not asked for is not read."""
  path = tmp_path / "a.jsonl.gz"
  noise = [{"i": i, "x": str(hash(i * 7919) ** 5)} for i in range(20_000)]
  path.write_bytes(gzip.compress(lines(noise))[:-1000])
  stream = datasets.read(datasets.parse(str(path)))
  assert [row["i"] for _, row in itertools.islice(stream, 10_000)] == list(
      range(10_000)
  )
  with pytest.raises(DataError):
    list(stream)


def test_a_file_of_another_format(tmp_path):
  (tmp_path / "a.csv").write_text("question,answer\n1,2\n")
  with pytest.raises(DataError, match=r"a.csv: must end in .jsonl, .json"):
    read(tmp_path / "a.csv")
  with pytest.raises(DataError, match=r"no file with .jsonl"):
    read(tmp_path)


# --- sources -----------------------------------------------------------------


def test_sources_of_known_sets(tmp_path):
  parse = datasets.parse
  assert parse("gsm8k")[1:] == ("gsm8k", "train", "openai/gsm8k")
  assert parse("gsm8k", "test")[1:] == ("gsm8k", "test", "openai/gsm8k")
  assert parse("gsm8k:test").split == "test"
  assert parse("aime24").split == "test"  # it has no other
  assert parse("commonsenseqa", "test").split == "validation"
  place = f"gsm8k:train@{tmp_path}"
  assert parse(place, "test")[1:] == ("gsm8k", "train", str(tmp_path))
  # The name of a file says its split where the source does not.
  (tmp_path / "test.jsonl").write_bytes(b"")
  assert parse(f"gsm8k@{tmp_path / 'test.jsonl'}").split == "test"


def test_other_sources(tmp_path):
  parse = datasets.parse
  assert parse(str(tmp_path))[1:] == ("", "", str(tmp_path))
  assert parse(f"{tmp_path}:dev")[1:] == ("", "dev", str(tmp_path))
  assert parse("owner/some.set-2")[1:] == ("", "", "owner/some.set-2")
  assert parse("owner/set:train")[1:] == ("", "train", "owner/set")


@pytest.mark.parametrize(
    "text, words",
    [
        ("gsm8", "did you mean gsm8k?"),
        ("gsm9k@.", "did you mean gsm8k?"),
        ("nothing@.", "there are gsm8k, "),
        ("gsm8k:dev", "gsm8k has no split 'dev'; it has train, test"),
        ("gsm8k@/no/such", "there is no file or directory /no/such"),
        ("data/rows.jsonl", "neither a known set, nor a file"),
        ("/no/such", "nor a hub id OWNER/REPOSITORY"),
        ("", "neither a known set"),
    ],
)
def test_sources_that_cannot_be(text, words):
  with pytest.raises(DataError) as error:
    datasets.parse(text)
  assert words in str(error.value) and "\n" not in str(error.value)


def test_benchmarks_are_all_that_is_not_a_training_split():
  def splits(benchmark):
    return {
        f"{name}:{split}"
        for name, known in datasets.KNOWN.items()
        for split in known.splits
        if datasets.parse(f"{name}:{split}").benchmark == benchmark
    }

  assert splits(False) == {
      *("gsm8k:train", "math:train", "svamp:train", "dapo_math_17k:train"),
      *("deepmath:train", "mbpp:train", "code_contests:train"),
      *("strategyqa:train", "commonsenseqa:train"),
  }
  assert {"aime24:test", "humaneval:test", "math500:test"} <= splits(True)
  assert not datasets.parse("owner/set").benchmark


@pytest.mark.parametrize(
    "names, wanted",
    [
        (["main/train-0.parquet", "socratic/train-0.parquet"], [0]),
        (["train.jsonl", "test.jsonl", "extra.jsonl"], [0]),
        (["rows.jsonl"], [0]),  # the only one, and no other split's
        (["main/train-1.parquet", "main/train-0.parquet"], [1, 0]),
        (["test.jsonl"], None),
        (["a.jsonl", "b.jsonl"], None),
    ],
)
def test_files_of_a_split(tmp_path, names, wanted):
  for name in names:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"")
  source = datasets.parse(f"gsm8k:train@{tmp_path}")
  if wanted is None:
    with pytest.raises(DataError, match="is the split 'train', it has"):
      datasets.files(source)
  else:
    found = datasets.files(source)
    assert [name for name, _ in found] == [names[i] for i in wanted]


def test_the_hub_is_asked_for_data_of_the_split_only(tmp_path, monkeypatch):
  asked = []

  def snapshot(repo, repo_type, allow_patterns):
    asked.append((repo, repo_type, allow_patterns))
    return str(tmp_path)

  monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
  (tmp_path / "main").mkdir()
  write_parquet(tmp_path / "main" / "train-00000-of-00001.parquet", ROWS)
  write_parquet(tmp_path / "main" / "test-00000-of-00001.parquet", ROWS[:2])
  assert [row for _, row in read("gsm8k")] == ROWS
  assert [row for _, row in read("gsm8k", "test")] == ROWS[:2]
  assert [row for _, row in read("owner/set:test")] == ROWS[:2]
  assert [x[:2] for x in asked] == [
      ("openai/gsm8k", "dataset"),
      ("openai/gsm8k", "dataset"),
      ("owner/set", "dataset"),
  ]
  assert "main/train*.parquet" in asked[0][2]
  assert "*test*.jsonl.gz" in asked[2][2]
  assert not any("train" in pattern for pattern in asked[1][2])


def test_a_hub_that_does_not_answer(monkeypatch):
  def snapshot(*args, **kwargs):
    raise ConnectionError("no route\nto host")

  monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
  with pytest.raises(DataError) as error:
    read("gsm8k")
  assert str(error.value) == (
      "gsm8k: the hub does not give openai/gsm8k (no route to host);"
      " download the files yourself and write gsm8k@PATH"
  )


# --- examples ----------------------------------------------------------------


def test_columns_are_mapped(tmp_path):
  path = tmp_path / "x.jsonl"
  rows = [{"q": " Two? ", "meta": {"result": 2.0}, "level": "Level 4"}]
  path.write_bytes(lines(rows))
  [one] = examples(path, "question=q,answer=meta.result, difficulty = level")
  assert one.question == "Two?" and one.answer == "2"
  assert one.difficulty == 4 and one.kind == "math"
  assert one.source == str(path) and one.where == "x.jsonl:1"
  assert one.response == one.rejected == "" and one.tolerance == 0


def test_columns_that_cannot_be():
  for text in ("question", "question=", "prompt=x", "question=a,result=b"):
    with pytest.raises(DataError, match="is no column; write for instance"):
      datasets.columns(text)


def test_pairs(tmp_path):
  """A demonstration; a preference, once as texts and once as chats."""
  path = tmp_path / "x.jsonl"
  user = {"role": "user", "content": "Two?"}
  chats = [[user, {"role": "assistant", "content": x}] for x in ("2", "3")]
  path.write_bytes(
      lines(
          [
              {"question": "Two?", "response": "It is 2."},
              {"question": "Two?", "chosen": "2", "rejected": "3"},
              {"question": [user], "chosen": chats[0], "rejected": chats[1]},
          ]
      )
  )
  found = [(x.question, x.response, x.rejected) for x in examples(path)]
  assert found == [
      ("Two?", "It is 2.", ""),
      ("Two?", "2", "3"),
      ("Two?", "2", "3"),
  ]


def test_rows_that_are_no_example(tmp_path):
  path = tmp_path / "x.jsonl"
  rows = [{"question": {"a": 1}, "answer": "2"}, {"question": ["x"]}]
  path.write_bytes(lines(rows) + b"nothing\n" + lines([{"other": 1}]))
  found = examples(path)
  assert [type(x) for x in found[:3]] == [Malformed] * 3
  assert "dict is no text" in found[0].why and found[2].why == "no JSON object"
  assert [x.where for x in found] == [f"x.jsonl:{n}" for n in (1, 2, 3, 4)]
  assert found[3].question == found[3].answer == ""  # screening drops it


@pytest.mark.parametrize(
    "cell",
    [
        *[{"question": "\ud800"}, {"answer": float("nan")}, {"answer": [2]}],
        *[{"answer": float("inf")}, {"difficulty": "9" * 400}],
        *[{"response": {}}, {"chosen": [{}]}, {"rejected": [{"content": 0}]}],
    ],
)
def test_cells_of_no_use(tmp_path, cell):
  path = tmp_path / "x.jsonl"
  path.write_bytes(lines([{"question": "?", "answer": "2"} | cell]))
  [one] = examples(path)
  if cell == {"rejected": [{"content": 0}]}:
    assert one.rejected == "0"  # a text as good as any
  else:
    assert isinstance(one, Malformed) and one.where == "x.jsonl:1"


@pytest.mark.parametrize("error", ["nan", "-1", "inf", "1e400", "0.1,x", []])
def test_a_tolerance_that_is_none(tmp_path, error):
  path = tmp_path / "x.jsonl"
  row = KNOWN_ROWS["olympiadbench"][0]
  path.write_bytes(lines([row | {"error": error}]))
  [one] = examples(f"olympiadbench@{path}")
  if error == []:
    assert one.tolerance == 0  # says nothing
  else:
    assert isinstance(one, Malformed)


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
  path = tmp_path / "x.jsonl"
  path.write_bytes(lines([{"question": "?", "answer": cell}]))
  [one] = examples(path)
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
}


def test_every_known_set_has_a_row_here():
  assert KNOWN_ROWS.keys() == datasets.KNOWN.keys()


@pytest.mark.parametrize("name", datasets.KNOWN)
@pytest.mark.parametrize("file", ["rows.jsonl", "rows.parquet"])
def test_known_sets(tmp_path, name, file):
  row, question, answer, difficulty = KNOWN_ROWS[name]
  WRITERS[file.replace("rows", "a")](tmp_path / file, [row])
  [one] = examples(f"{name}@{tmp_path / file}")
  found = json.loads(one.answer) if isinstance(answer, dict) else one.answer
  assert (one.question, found, one.difficulty) == (question, answer, difficulty)
  assert one.kind == datasets.KNOWN[name].kind and one.source == name
  assert one.tolerance == (0.1 if name == "olympiadbench" else 0)


def test_copies_with_other_columns(tmp_path):
  path = tmp_path / "x.jsonl"
  path.write_bytes(lines([{"prompt": "1+1?", "ground_truth": "2"}]))
  [one] = examples(f"deepmath@{path}")
  assert (one.question, one.answer) == ("1+1?", "2")
  path.write_bytes(
      lines(
          [{"prompt": "Go.", "test_list": ["a"], "test_imports": ["import b"]}]
      )
  )
  [one] = examples(f"mbpp@{path}")
  assert json.loads(one.answer)["prompt"] == "import b"


def test_a_known_set_without_its_columns(tmp_path):
  path = tmp_path / "x.jsonl"
  path.write_bytes(lines([{"text": "?"}, {"prompt": 1, "entry_point": 2}]))
  assert [x.why for x in examples(f"humaneval@{path}")] == [
      "no field 'prompt'",
      "no field 'test'",
  ]
