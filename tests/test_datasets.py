"""Rows of files: every format, damage, and sources."""

import bz2
import csv
import functools
import gzip
import itertools
import json
import lzma
import zipfile

import huggingface_hub
import pyarrow
import pyarrow.parquet
import pytest
from array_record.python import array_record_module

from rl_reason.data import datasets
from rl_reason.data.datasets import DataError

ROWS = [
    {"question": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(5)
]


def lines(rows):
  return "".join(json.dumps(row) + "\n" for row in rows).encode()


def write_parquet(path, rows):
  pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def write_arrow(path, rows, new=pyarrow.ipc.new_stream):
  table = pyarrow.Table.from_pylist(rows)
  with new(str(path), table.schema) as writer:
    writer.write_table(table, 2)  # rows of a batch


def write_array_record(path, rows):
  writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
  for row in rows:
    writer.write(json.dumps(row).encode())
  writer.close()


def write_csv(path, rows, delimiter=""):
  opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
  with opener(path, "wt", newline="") as file:
    usual = "\t" if ".tsv" in path.name else ","
    writer = csv.DictWriter(file, rows[0], delimiter=delimiter or usual)
    writer.writeheader()
    writer.writerows(rows)


def write_packed(path, data):
  with pyarrow.CompressedOutputStream(str(path), "zstd") as file:
    file.write(data)


def write_zip(path, data):
  with zipfile.ZipFile(path, "w") as archive:
    archive.writestr("rows.jsonl", data)
    archive.writestr("__MACOSX/._rows.jsonl", "")


def write_encoded(encoding, path, rows):
  WRITERS[f"a{path.suffix}"](path, rows)
  path.write_bytes(path.read_bytes().decode().encode(encoding))


def write_row_a_line(before, path, rows):
  path.write_text(before + ",\n".join(map(json.dumps, rows)) + "]}")


# Without the time, which would be part of the names of tests.
EMPTY = gzip.compress(b"", mtime=0)
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
    "a.csv": write_csv,
    "a.tsv.gz": write_csv,
    "a.parquet": write_parquet,
    "a.arrow": lambda path, rows: write_arrow(path, rows, pyarrow.ipc.new_file),
    "b.arrow": lambda path, rows: write_arrow(path, rows),
    "c.json": lambda path, rows: path.write_text(
        json.dumps(dict(version="1", data=rows))
    ),
    "d.json": lambda path, rows: path.write_text(
        json.dumps(dict(mine=rows), indent=1)
    ),
    "a.array_record": write_array_record,
    "A.JSONL": lambda path, rows: path.write_bytes(lines(rows)),
    "a.ndjson": lambda path, rows: path.write_bytes(lines(rows)),
    "a.jsonl.bz2": lambda path, rows: path.write_bytes(
        bz2.compress(lines(rows))
    ),
    "a.csv.xz": write_csv,
    "a.jsonl.zst": lambda path, rows: write_packed(path, lines(rows)),
    "a.json.zst": lambda path, rows: write_packed(
        path, json.dumps(rows).encode()
    ),
    "a.jsonl.zip": lambda path, rows: write_zip(path, lines(rows)),
    "a.zip": lambda path, rows: write_zip(path, lines(rows)),
    # A list, or objects over several lines, under the name of JSON lines.
    "list.jsonl": lambda path, rows: path.write_text(json.dumps(rows)),
    "list2.jsonl": lambda path, rows: path.write_text(
        json.dumps(rows, indent=2)
    ),
    "jq.jsonl": lambda path, rows: path.write_text(
        "\n".join(json.dumps(row, indent=2) for row in rows)
    ),
    "data.jsonl": lambda path, rows: path.write_text(
        json.dumps({"data": rows}, indent=2)
    ),
    "commas.jsonl": lambda path, rows: path.write_bytes(
        lines(rows).replace(b"}\n", b"},\r\n")
    ),
    # Columns, as datasets and pandas write them; rows by their names.
    "columns.json": lambda path, rows: path.write_text(
        json.dumps({x: [row[x] for row in rows] for x in rows[0]})
    ),
    "pandas.json": lambda path, rows: path.write_text(
        json.dumps(
            {x: {i: row[x] for i, row in enumerate(rows)} for x in rows[0]}
        )
    ),
    "split.json": lambda path, rows: path.write_text(
        json.dumps(
            dict(
                columns=list(rows[0]),
                index=list(range(len(rows))),
                data=[list(x.values()) for x in rows],
            )
        )
    ),
    "viewer.json": lambda path, rows: path.write_text(
        json.dumps(
            dict(
                features=[dict(name="question")],
                rows=[dict(row_idx=i, row=row) for i, row in enumerate(rows)],
            )
        )
    ),
    # An object with a list, of which each line has a row.
    **{
        name: functools.partial(write_row_a_line, before)
        for name, before in (
            ("train.json", '{"train": [\n'),
            ("rows.json", '{"rows": [\n'),
            ("braces.json", '{\n"version": 1, "data": [\n'),
        )
    },
    "ids.json": lambda path, rows: path.write_text(
        json.dumps({f"id-{i}": row for i, row in enumerate(rows)})
    ),
    **{
        f"{encoding}.{ending}": functools.partial(write_encoded, encoding)
        for encoding in ("utf-16", "utf-16-le", "utf-32", "utf-8-sig")
        for ending in ("jsonl", "json", "csv")
    },
    **{
        f"{name}.csv": functools.partial(write_csv, delimiter=delimiter)
        for name, delimiter in (("semi", ";"), ("tab", "\t"), ("bar", "|"))
    },
    "comma.tsv": functools.partial(write_csv, delimiter=","),
}


def read(text, split="train"):
  return list(datasets.read(datasets.parse(str(text), split)))


# --- files -------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_rows(tmp_path, name):
  WRITERS[name](tmp_path / name, ROWS)
  expected = [(f"{name}:{i}", row) for i, row in enumerate(ROWS, 1)]
  assert read(tmp_path / name) == expected


def test_a_directory_is_its_files_in_order(tmp_path):
  (tmp_path / "part").mkdir()
  write_parquet(tmp_path / "part" / "1.parquet", ROWS[3:])
  (tmp_path / "0.jsonl").write_bytes(lines(ROWS[:3]))
  (tmp_path / "README.md").write_text("no data")
  found = read(tmp_path)
  assert [row for _, row in found] == ROWS
  assert [where for where, _ in found][2:4] == ["0.jsonl:3", "part/1.parquet:1"]


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_rows_that_are_no_object_are_numbered(tmp_path, ending):
  text = b'{"a": 1}\n\n{"a": \n[1]\n"x"\n\xff\xfe\n' + b"[" * 100_000 + b"\n3"
  text += b'\n{"a": 2}\n{"a": 1, "a": 2}'  # which of the two is not known
  path = tmp_path / f"x.jsonl{ending}"
  path.write_bytes(gzip.compress(text) if ending else text)
  found = {int(where.rpartition(":")[2]): row for where, row in read(path)}
  nothing = dict.fromkeys((3, 4, 5, 6, 7, 8, 10))
  assert found == {1: {"a": 1}, 9: {"a": 2}} | nothing
  (tmp_path / "x.json").write_text('[{"a": 1}, 2, null, {"a": 3}]')
  found = [row for _, row in read(tmp_path / "x.json")]
  assert found == [{"a": 1}, None, None, {"a": 3}]


@pytest.mark.parametrize(
    "name",
    ["a.jsonl.gz", "a.json", "a.parquet", "a.arrow", "b.arrow"]
    + ["a.array_record"],
)
@pytest.mark.parametrize("damage", ["cut", "garbage", "empty", "flipped bit"])
def test_a_damaged_file_is_one_line_with_its_name(tmp_path, name, damage):
  path = tmp_path / name
  WRITERS[name](path, ROWS * 200)
  data = bytearray(path.read_bytes())
  middle = len(data) // 2
  data[middle] ^= 0xFF
  damaged = {
      "cut": data[:middle],
      "garbage": b"no data " * 999,
      "empty": b"",
      "flipped bit": data,
  }
  path.write_bytes(damaged[damage])
  if damage == "flipped bit" and name.endswith((".parquet", ".arrow")):
    return  # their library checks no sums
  if damage == "empty" and name in ("a.json", "a.jsonl.gz"):
    assert read(path) == []
  elif damage == "garbage" and name == "a.json":  # read as lines
    assert {row for _, row in read(path)} == {None}
  else:
    with pytest.raises(DataError) as error:
      read(path)
    text = str(error.value)
    assert str(path) in text and "fetch it again" in text and "\n" not in text


def test_a_mark_of_byte_order_is_no_damage(tmp_path):
  for name in ("a.json", "a.jsonl", "b.json"):
    WRITERS[name](tmp_path / name, ROWS)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + data)
    assert [row for _, row in read(tmp_path / name)] == ROWS


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
  (tmp_path / "a.xml").write_text("<question>1</question>")
  with pytest.raises(
      DataError, match=r"a.xml: must end in .jsonl, .json, .csv"
  ):
    read(tmp_path / "a.xml")
  with pytest.raises(DataError, match=r"no file in .* ends in .jsonl"):
    read(tmp_path)


def test_cells_of_a_table(tmp_path):
  """Quoted cells keep newlines; rows of another length are no rows."""
  text = '\ufeffquestion,answer\n"1,\n""one""?",2\n3?\n4?,5,6\n' + "7" * 200_000
  path = tmp_path / "x.csv"
  path.write_text(f"{text},8\n", encoding="utf-8")
  first, *none, last = (row for _, row in read(path))
  assert first == {"question": '1,\n"one"?', "answer": "2"}
  assert none == [None, None]
  assert last == {"question": "7" * 200_000, "answer": "8"}
  path.write_text("a,a\n1,2\n")
  with pytest.raises(DataError, match="x.csv: cannot .*same column twice"):
    read(path)


@pytest.mark.parametrize(
    "header",
    [
        'sep=;\n"question";answer\n',
        "question ; answer\n",
        '"question";answer\n',
    ],
)
def test_tables_of_other_programs(tmp_path, header):
  path = tmp_path / "x.csv"
  path.write_bytes(f'\r\n{header}"1; 2?";1,5\r\n\r\n3?;4\r\n'.encode())
  rows = [row for _, row in read(path)]
  assert rows == [
      {"question": "1; 2?", "answer": "1,5"},
      {"question": "3?", "answer": "4"},
  ]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("x.csv", "question,answer\n é?,1\n".encode("latin-1"), "is not UTF-8"),
        (
            "x.json",
            '[{"a": "é"}]'.encode("latin-1"),
            "iconv -f LATIN1 -t UTF-8",
        ),
        ("x.jsonl", '{"a": "é"}\n'.encode("latin-1") * 9, "(byte 0xe9)"),
        ("x.csv", b'a,b\n"1 \\"2\\"",3\n', "after line 1 is no CSV"),
        ("x.json", b'[{"a": 1},\n {"a": 2},\n]', "at line 3, column 1"),
        ("y.json", b'[{"a": 1},\n {"a": 2},\n]', "after a comma that is one"),
        ("x.jsonl", b'[{"a": 1},\n {"a": 2}', "is no JSON at line 2"),
        (
            "x.jsonl",
            b"version https://git-lfs.github.com/spec/v1\n",
            "lfs pull",
        ),
        ("x.parquet", b"version https://git-lfs.github.com/spec/v1", "pointer"),
        (
            "x.jsonl.gz",
            b"version https://git-lfs.github.com/spec/v1",
            "Git LFS",
        ),
        ("x.parquet", b"<!DOCTYPE html>\n<html>", "a web page"),
        ("x.parquet.gz", EMPTY, "compression of its own: unpack"),
        ("x.xlsx.gz", EMPTY, "also in .gz, .bz2"),
    ],
)
def test_what_cannot_be_read_names_its_remedy(tmp_path, name, data, words):
  (tmp_path / name).write_bytes(data)
  with pytest.raises(DataError) as error:
    read(tmp_path / name)
  assert words in str(error.value) and str(tmp_path / name) in str(error.value)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{}", "[]", " \n"])
def test_files_without_rows(tmp_path, text):
  for name in ("x.json", "x.jsonl", "x.csv"):
    (tmp_path / name).write_text(
        text if name == "x.json" else text.strip("{}[]")
    )
    assert read(tmp_path / name) == []


def test_an_archive_of_several_files_is_unzipped_by_the_user(tmp_path):
  with zipfile.ZipFile(tmp_path / "x.jsonl.zip", "w") as archive:
    archive.writestr("a.jsonl", "{}")
    archive.writestr("b.jsonl", "{}")
  with pytest.raises(DataError, match="holds 2 files, not 1: unzip it"):
    read(tmp_path / "x.jsonl.zip")


# --- sources -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "split", "parsed"),
    [
        ("gsm8k", "train", ("gsm8k", "train", "openai/gsm8k")),
        ("gsm8k", "test", ("gsm8k", "test", "openai/gsm8k")),
        ("gsm8k:test", "train", ("gsm8k", "test", "openai/gsm8k")),
        ("aime24", "train", ("aime24", "test", "HuggingFaceH4/aime_2024")),
        ("gsm8k:train@DIR", "test", ("gsm8k", "train", "DIR")),
        # The name of a file says its split where the source does not.
        ("gsm8k@DIR/test.jsonl", "train", ("gsm8k", "test", "DIR/test.jsonl")),
        ("DIR", "train", ("", "", "DIR")),
        ("DIR:dev", "train", ("", "dev", "DIR")),
        ("owner/some.set-2", "train", ("", "", "owner/some.set-2")),
        ("owner/set:train", "test", ("", "train", "owner/set")),
    ],
)
def test_sources(tmp_path, text, split, parsed):
  (tmp_path / "test.jsonl").write_bytes(b"")
  source = datasets.parse(text.replace("DIR", str(tmp_path)), split)
  wanted = tuple(x.replace("DIR", str(tmp_path)) for x in parsed)
  assert source[1:-1] == wanted and source.revision == ""


@pytest.mark.parametrize(
    "place", ["data@v2/rows.jsonl", "gsm8k@rows.jsonl", "x/@home/a@b.jsonl"]
)
def test_paths_with_an_at_sign(tmp_path, monkeypatch, place):
  monkeypatch.chdir(tmp_path)
  path = tmp_path / place
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(lines(ROWS))
  for text in (place, str(path)):
    [(source, weight)] = datasets.parse_all(f"{text}*2", "train")
    assert (source.name, source.place, weight) == ("", text, 2)
    known = datasets.parse(f"gsm8k:test@{text}")
    assert (known.name, known.place) == ("gsm8k", text)
  folder = path.parent if "/" in place else path
  assert [row for _, row in read(str(folder))] == ROWS
  (tmp_path / "rows.jsonl").write_bytes(lines(ROWS))
  if place.startswith("gsm8k@"):  # the known set, if there is such a file
    assert datasets.parse(place).name == "gsm8k"


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
        ("owner/set@v2", "hub.revisions = 'owner/set=v2' names a revision"),
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
      *("strategyqa:train", "commonsenseqa:train", "folio:train"),
  }
  assert {"aime24:test", "humaneval:test", "math500:test"} <= splits(True)
  assert not datasets.parse("owner/set").benchmark


@pytest.mark.parametrize(
    "names, expected",
    [
        (["main/train-0.parquet", "socratic/train-0.parquet"], [0]),
        (["train.jsonl", "test.jsonl", "extra.jsonl"], [0]),
        (["rows.jsonl"], [0]),  # the only one, and no other split's
        (["main/train-1.parquet", "main/train-0.parquet"], [1, 0]),
        (["test.jsonl"], None),
        (["a.jsonl", "b.jsonl"], None),
    ],
)
def test_files_of_a_split(tmp_path, names, expected):
  for name in names:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"")
  source = datasets.parse(f"gsm8k:train@{tmp_path}")
  if expected is None:
    with pytest.raises(DataError, match="is the split 'train', it has"):
      datasets.files(source)
  else:
    found = datasets.files(source)
    assert [name for name, _ in found] == [names[i] for i in expected]


def test_the_hub_is_asked_for_data_of_the_split_only(tmp_path, monkeypatch):
  asked, revisions = [], []

  def snapshot(repo, repo_type, revision, allow_patterns):
    revisions.append(revision)
    asked.append((repo, repo_type, allow_patterns))
    return str(tmp_path)

  monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
  (tmp_path / "main").mkdir()
  write_parquet(tmp_path / "main" / "train-00000-of-00001.parquet", ROWS)
  write_parquet(tmp_path / "main" / "test-00000-of-00001.parquet", ROWS[:2])
  assert [row for _, row in read("gsm8k")] == ROWS
  assert [row for _, row in read("gsm8k", "test")] == ROWS[:2]
  assert [row for _, row in read("owner/set:test")] == ROWS[:2]
  assert {x[:2] for x in asked} == {
      ("openai/gsm8k", "dataset"),
      ("owner/set", "dataset"),
  }
  assert "main/train*.parquet" in asked[0][2]
  assert "*test*.jsonl.gz" in asked[2][2]
  assert not any("train" in pattern for pattern in asked[1][2])
  assert revisions == [None] * 3
  given = {"openai/gsm8k": "e53f048", "an/other": "v1"}
  parts = datasets.parse_all("gsm8k*2,owner/set:test", "train", given)
  for source, _ in parts:
    datasets.files(source)
  assert revisions[3:] == ["e53f048", None]


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
