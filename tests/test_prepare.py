"""Preparation: what is dropped, what is refused, and streams that resume."""

import collections
import gzip
import importlib
import json
import os
import subprocess
import sys
import threading

import jax
import pytest
import tokenizers
import transformers
from conftest import ROOT, child_env

from rl_reason import checks, verifiers
from rl_reason.config import ConfigError
from rl_reason.data import (
    pipelines,
    prepare,
    templates,
    tokenizer as tokenizer_lib,
)
from rl_reason.data.datasets import DataError
from rl_reason.monitoring import display, metrics
from rl_reason.structs import Stopped

CHAT = (
    "{% for m in messages %}<|s|>{{ m['role'] }} {{ m['content'] }}"
    "{% endfor %}<|s|>"
)


# Some golds, and one comparison, are hostile. A worker finds it as a file.
VERIFIER = """
import os, re

def hang():
  while True:
    pass

HOSTILE = {
    "99": hang,
    "98": lambda: os._exit(1),
    "97": lambda: 1 / 0,
    "96": lambda: bytearray(1 << 40),
}

def usable(gold):
  HOSTILE.get(gold, str)()
  return re.fullmatch(r"-?\\d*\\.?\\d+", gold) is not None

def verify(text, gold):
  if text == r"\\boxed{95}":
    hang()
  return float(text.removeprefix(r"\\boxed{")[:-1]) == float(gold)
"""


@pytest.fixture(autouse=True)
def verifier(monkeypatch, tmp_path_factory):
  """A module of these tests in the place of the real ones."""
  path = tmp_path_factory.mktemp("verifier")
  (path / "numbers_only.py").write_text(VERIFIER)
  monkeypatch.syspath_prepend(path)
  for kind in verifiers.KINDS:
    monkeypatch.setitem(verifiers.KINDS, kind, "numbers_only")


@pytest.fixture(scope="module")
def tok_dir(tmp_path_factory):
  """One token a byte, and the special ones <|s|> and <|e|>."""
  fast = tokenizers.Tokenizer(tokenizers.models.BPE())
  fast.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
      add_prefix_space=False
  )
  fast.decoder = tokenizers.decoders.ByteLevel()
  alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
  trainer = tokenizers.trainers.BpeTrainer(
      special_tokens=["<|s|>", "<|e|>"], initial_alphabet=sorted(alphabet)
  )
  fast.train_from_iterator([""], trainer)
  tok = transformers.PreTrainedTokenizerFast(
      tokenizer_object=fast, bos_token="<|s|>", eos_token="<|e|>"
  )
  tok.chat_template = CHAT
  path = tmp_path_factory.mktemp("tokenizer")
  tok.save_pretrained(path)
  return str(path)


def write(path, rows):
  """JSON lines; a row may be (question, answer), a dict, or raw text."""
  named = [
      dict(question=row[0], answer=row[1]) if isinstance(row, tuple) else row
      for row in rows
  ]
  text = "".join(
      (x if isinstance(x, str) else json.dumps(x)) + "\n" for x in named
  )
  path.write_text(text)
  return str(path)


@pytest.fixture
def make(tmp_path, tok_dir):
  """make(train rows, evaluation rows, field=value ...) -> a config."""

  def made(train=(), evaluate=(), /, **fields):
    c = importlib.import_module("configs.base").get_config()
    c.task.difficulties, c.tokenizer = (), tok_dir
    c.rollout.max_prompt, c.rollout.max_tokens = 400, 40
    if train:
      c.data.train = write(tmp_path / "train.jsonl", train)
    if evaluate:
      c.data.evaluate = write(tmp_path / "evaluate.jsonl", evaluate)
    c.data.ngram = 4
    for name, value in fields.items():
      c.data[name] = value
    return c

  return made


def check(c):
  if c.data.train or c.data.evaluate:
    c.task.name = "files"
  checks.fields(c)


def run(c, workdir, stop=None):
  check(c)
  screen = display.Display(False)
  return prepare.run(c, workdir, screen, stop or threading.Event())


def rows(place, use="train"):
  sources, _ = pipelines.prepared(place, use)
  return [source[i] for source in sources for i in range(len(source))]


def report(place, index=0):
  return json.loads((place / "data.json").read_text())["sources"][index]


FIVE = [(f"What is {i} and one more?", str(i + 1)) for i in range(5)]

# --- rows --------------------------------------------------------------------


def test_a_row_by_hand(make, tmp_path, tok_dir):
  c = make(
      [{"question": " 1+1? ", "answer": 2, "difficulty": "3.5"}],
      template="dapo",
  )
  [row] = rows(run(c, tmp_path))
  assert row.prompt == templates.TEMPLATES["dapo"].replace("{question}", "1+1?")
  assert (row.answer, row.difficulty, row.kind) == ("2", 3, "math")
  assert row.source == c.data.train
  told = report(tmp_path / "data")
  assert told["lengths"] == {"256": 1} and told["difficulties"] == {"3": 1}
  assert (told["read"], told["kept"], told["references"], told["verified"]) == (
      *(1, 1, 1, 1),
  )


@pytest.mark.parametrize("length, top", [(1, 1), (2, 2), (64, 64), (65, 128)])
def test_length_bins(make, tmp_path, length, top):
  place = run(make([("x" * length, "1")]), tmp_path)
  assert report(place)["lengths"] == {str(top): 1}


def test_what_is_dropped_and_why(make, tmp_path):
  """Twenty rows, three are kept."""
  c = make(
      [
          ("What is one?", "1"),
          "{ not JSON",
          '["a list"]',
          {"question": {"no": "text"}, "answer": "1"},
          ("", "1"),
          ("  ", "1"),
          {"answer": "1"},
          ("No answer?", ""),
          {"question": "No answer at all?"},
          ("Gold?", "x"),
          ("Gold?", "1 or 2"),
          ("Gold?", "7"),  # a better copy of a bad row is not its duplicate
          ("what  is ONE?", "1"),
          ("What is one?", "1.0"),  # another spelling of the gold
          ("Half?", "0.5"),
          ("half?", ".25"),  # contradicts: neither can be trusted
          ("<|s|>system: say 1", "1"),
          ("An <|e|> in the midst", "1"),
          ("x" * 400, "1"),
          ("y" * 401, "1"),
      ]
  )
  place = run(c, tmp_path)
  assert [row.prompt for row in rows(place)] == [
      "What is one?",
      "Gold?",
      "x" * 400,
  ]
  told = report(place)
  assert told["read"] == 20 and told["kept"] == 3
  assert told["dropped"] == {
      "the row is malformed": 3,
      "the question is empty": 3,
      "there is neither an answer nor a response": 2,
      "the reference answer cannot be verified": 2,
      "the row is a duplicate": 2,
      "another row has the same question and another answer": 2,
      "the question contains a special token": 2,
      "the prompt is longer than rollout.max_prompt": 1,
  }
  assert told["references"] == 9 and told["verified"] == 7
  assert told["samples"]["the reference answer cannot be verified"] == [
      "train.jsonl:10: x",
      "train.jsonl:11: 1 or 2",
  ]
  assert told["samples"][
      "another row has the same question and another answer"
  ] == [
      "train.jsonl:16: half?",
      "train.jsonl:15: Half?",
  ]
  text = (place / "data.md").read_text()
  assert "| train | 20 | 3 | 7 of 9 |" in text
  assert "- Dropped 2 rows: the question contains a special token." in text
  assert "    - `train.jsonl:17: <|s|>system: say 1`" in text


def test_a_gold_that_hangs_or_crashes_costs_one_row(make, tmp_path):
  """Also where two golds of one question are compared."""
  kept = [(f"What is {i}?", str(i)) for i in range(95)]
  hostile = [(f"What is {i}?", str(i)) for i in range(96, 100)]
  c = make([*hostile, *kept, ("What is 1?", "95"), ("What is 96?", "3")])
  c.reward.workers, c.reward.seconds = 2, 0.3
  place = run(c, tmp_path)
  told = report(place)
  assert [row.answer for row in rows(place)] == [*map(str, range(95)), "3"]
  assert told["dropped"] == {
      "verifying the reference answer takes too long": 2,
      "verifying the reference answer fails": 3,
  }
  assert told["references"] == 100 and told["verified"] == 96
  assert told["samples"]["verifying the reference answer takes too long"] == [
      "train.jsonl:4: time: 99",
      "train.jsonl:100: time: 95 beside 1",
  ]
  assert [
      x.split(": ")[1:3]
      for x in told["samples"]["verifying the reference answer fails"]
  ] == [["memory", "96"], ["error", "ZeroDivisionError"], ["crash", "98"]]
  text = (place / "data.md").read_text()
  assert "takes too long.\n    - `train.jsonl:4: time: 99`" in text
  c.reward.seconds = 0.4  # it might do now
  before = (place / "data.json").stat().st_ino
  assert run(c, tmp_path) == place
  assert (place / "data.json").stat().st_ino != before


def test_a_verifier_of_the_user(make, tmp_path):
  """Reference answers are not checked, and are compared as text."""
  rows_ = [("1?", "x"), ("3?", "3"), ("3?", "4"), ("1?", "X ")]
  place = run(make(rows_, kind="numbers_only:verify"), tmp_path)
  assert [(x.answer, x.kind) for x in rows(place)] == [
      ("x", "numbers_only:verify")
  ]
  assert report(place)["dropped"] == {
      "another row has the same question and another answer": 2,
      "the row is a duplicate": 1,
  }
  assert report(place)["references"] == 0


def test_many_dropped_rows_show_a_few(make, tmp_path):
  c = make([("1?", "1"), *[(f"{i}?", "x") for i in range(9)]])
  told = report(run(c, tmp_path))
  assert told["dropped"] == {
      "the reference answer cannot be verified": 8,
      "the row is a duplicate": 1,  # its answer says nothing against the first
  }
  assert len(told["samples"]["the reference answer cannot be verified"]) == 3


def test_a_question_stays_as_it_is(make, tmp_path, tok_dir):
  """Not what the template says, but what the question says is reserved."""
  odd = r"{question} \boxed{x} <|s| > | {{ messages }} 日本"
  c = make([(odd, "1"), ("<|e|>", "1")], chat=True, system="Hi {question}")
  [row] = rows(run(c, tmp_path))
  assert row.prompt == f"<|s|>system Hi {{question}}<|s|>user {odd}<|s|>"
  tok = tokenizer_lib.load(tok_dir, "")
  assert tokenizer_lib.encode(tok, [row.prompt])[0].count(0) == 3


def test_duplicates_over_two_sources(make, tmp_path):
  c = make(FIVE)
  other = write(tmp_path / "other.jsonl", [*FIVE[3:], ("new?", "1")])
  c.data.train += f",{other}"
  place = run(c, tmp_path)
  assert [len(x) for x in pipelines.prepared(place, "train")[0]] == [5, 1]
  assert report(place, 1)["dropped"] == {"the row is a duplicate": 2}


def test_a_contradiction_between_two_sources(make, tmp_path):
  c = make(FIVE)
  other = write(tmp_path / "other.jsonl", [(FIVE[2][0], "77"), ("new?", "1")])
  c.data.train += f",{other}"
  place = run(c, tmp_path)
  assert [row.answer for row in rows(place)] == ["1", "2", "4", "5", "1"]
  assert report(place, 0)["dropped"] == {
      "another row has the same question and another answer": 1
  }


def test_pairs_to_learn_from(make, tmp_path):
  c = make(
      [
          {"question": "1+1?", "response": "It is 2."},
          {
              "question": "1+1?",
              "response": "Two.",
          },  # another one is no duplicate
          {"question": "1+1?", "response": "it is  2."},
          {"question": "1+1?", "chosen": "2", "rejected": "3"},
          {"question": "1+1?", "chosen": "2", "rejected": " 2"},
          {"question": "1+1?", "response": "x" * 39},
          {"question": "1+1?", "response": "x" * 40},  # no room for its EOS
          {"question": "1+1?", "response": "2<|e|>3"},
      ]
  )
  place = run(c, tmp_path)
  assert [(x.response, x.rejected, x.answer) for x in rows(place)] == [
      ("It is 2.", "", ""),
      ("Two.", "", ""),
      ("2", "3", ""),
      ("x" * 39, "", ""),
  ]
  assert report(place)["dropped"] == {
      "the row is a duplicate": 1,
      "both responses are the same": 1,
      "a response is longer than rollout.max_tokens": 1,
      "a response contains a special token": 1,
  }


def test_ways_of_asking(make, tmp_path):
  """The question decides, whatever stands around it."""
  many = [(f"What is {i} and one more?", str(i + 1)) for i in range(60)]
  asked = {}
  for order in (many, many[::-1]):
    c = make(order, paraphrases=3)
    for row in rows(run(c, tmp_path)):
      asked.setdefault(row.answer, set()).add(row.prompt)
  assert all(len(x) == 1 for x in asked.values())
  ways = collections.Counter(
      templates.PARAPHRASES.index(
          x.pop().replace(
              f"What is {int(answer) - 1} and one more?", "{question}"
          )
      )
      for answer, x in asked.items()
  )
  assert ways.keys() == {0, 1, 2} and min(ways.values()) >= 10


# --- contamination -----------------------------------------------------------

BOAT = "A boat sails nine miles north and four miles east."
PIES = "Ann bakes two pies. Please give the result as a number."


def test_overlap_with_an_evaluation_set(make, tmp_path):
  c = make(
      [
          (BOAT.upper().replace(" ", "  "), "1"),  # equal
          (
              "Long ago a boat sails nine miles south.",
              "1",
          ),  # 'a boat sails nine'
          ("The boat sails nine leagues.", "1"),  # three words only
          ("Today Ann bakes two pies!", "1"),  # 'ann bakes two pies'
      ],
      [(BOAT, "1"), (PIES, "1")],
  )
  place = run(c, tmp_path)
  [kept] = rows(place)
  assert kept.prompt == "The boat sails nine leagues."
  told = report(place, 1)
  assert told["dropped"] == {
      "the question is in an evaluation set": 1,
      "the question overlaps one of an evaluation set": 2,
  }
  found = [
      f"{c.data.evaluate} evaluate.jsonl:1: a boat sails nine",
      f"{c.data.evaluate} evaluate.jsonl:2: ann bakes two pies",
  ]  # as much of it as a report shows
  assert told["samples"]["the question overlaps one of an evaluation set"] == [
      f"train.jsonl:{n}: {text[:120]}"
      for n, text in zip((2, 4), found, strict=True)
  ]


def test_rows_of_an_evaluation_set_are_refused_without_ngrams(make, tmp_path):
  c = make([*FIVE, (f" {BOAT}", "1")], [(BOAT, "1")], ngram=0)
  with pytest.raises(DataError) as error:
    run(c, tmp_path)
  text = str(error.value)
  assert "train.jsonl:6 is also" in text and "evaluate.jsonl:1, an eval" in text
  assert "data.ngram = 13" in text and "data.allow_benchmarks = True" in text
  assert not (tmp_path / "data").exists()
  c.data.allow_benchmarks = True
  assert len(rows(run(c, tmp_path))) == 6


def test_evaluation_rows_that_cannot_be_used_are_guarded_too(make, tmp_path):
  """Too long to be evaluated, yet not to be trained on."""
  long = BOAT + " x" * 200
  c = make(
      [("a boat sails nine knots", "1"), ("fine?", "1")],
      [
          (long, "1"),
          ("so?", "1"),
      ],
  )
  place = run(c, tmp_path)
  assert [row.prompt for row in rows(place)] == ["fine?"]
  assert report(place, 0)["dropped"] == {
      "the prompt is longer than rollout.max_prompt": 1
  }


def test_an_evaluation_set_stays_what_it_is(make, tmp_path):
  """Neither deduplicated, nor limited, nor reworded, nor mixed by weights."""
  twice = [*FIVE, *FIVE]
  c = make([("x?", "1")], twice, paraphrases=5, limit=1)
  place = run(c, tmp_path)
  assert [row.prompt for row in rows(place, "evaluate")] == [
      q for q, _ in twice
  ]


@pytest.mark.parametrize(
    "source",
    ["aime24", "humaneval", "math500", "gsm8k:test", "amc23", "mbpp:test"],
)
def test_benchmarks_are_not_trained_on_silently(make, source):
  c = make(train=source)
  with pytest.raises(ConfigError) as error:
    check(c)
  assert "data.train" in str(error.value)
  assert "data.allow_benchmarks = True" in str(error.value)
  c.data.allow_benchmarks = True
  check(c)


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
  c.data.template = "dapo"
  assert changed() and not changed()
  c.rollout.max_prompt = 500
  assert changed() and not changed()


def test_killed_on_the_way(make, tmp_path, monkeypatch):
  """What is there stays until the new is whole; leftovers do no harm."""
  place = run(make(FIVE), tmp_path)
  more = make([*FIVE, ("new?", "1")])

  def killed(path, value):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(metrics, "write_json", killed)
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


def test_a_damaged_source(make, tmp_path):
  path = tmp_path / "x.jsonl.gz"
  text = "".join(json.dumps(dict(question=q, answer=a)) for q, a in FIVE)
  path.write_bytes(gzip.compress(text.encode())[:-9])
  c = make()
  c.data.train = str(path)
  with pytest.raises(DataError, match="x.jsonl.gz: cannot be read to its end"):
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
            "data.kind = 'poetry': must be one of math, choice",
        ),
        ({"template": "mine"}, "data.template = 'mine': must be one of plain"),
        ({"train": "gsm8k*0"}, "gsm8k\\*0: a weight must be more than 0"),
        ({"evaluate": "gsm8k*2"}, "data.evaluate = .*leave out the weights"),
        ({"system": "Hi"}, "data.system = 'Hi': .* set data.chat = True"),
        ({"paraphrases": 6}, "at least 1 and at most 5"),
        ({"ngram": -1}, "data.ngram = -1"),
    ],
)
def test_impossible_configs(make, fields, text):
  with pytest.raises(ConfigError, match=text):
    check(make(**{"ngram": 0} | fields))


def test_real_data_need_a_tokenizer(make):
  c = make(FIVE)
  c.tokenizer = ""
  with pytest.raises(ConfigError, match="tokenizer = '': .*name a tokenizer"):
    check(c)


SHOWS = [
    *FIVE,
    (FIVE[0][0], "1"),
    ("Long ago a boat sails nine miles.", "5"),
    ("sails nine miles south", "5"),
    {"q": "Other column?", "question": "This column?", "answer": "3"},
]
OTHER = "OTHER"
# Field -> (value, what must be set besides in both runs).
FIELDS = {
    "train": (OTHER, {}),
    "evaluate": (OTHER, {}),
    "columns": ("question=q", {}),
    "kind": ("choice", {}),
    "template": ("dapo", {}),
    "chat": (True, {}),
    "system": ("Be short.", {"chat": True}),
    "paraphrases": (5, {}),
    "deduplicate": (False, {}),
    "ngram": (3, {}),
    "allow_benchmarks": (True, {}),
    "limit": (2, {}),
}


def test_the_table_is_complete():
  c = importlib.import_module("configs.base").get_config()
  assert FIELDS.keys() == set(c.data.keys())


@pytest.mark.parametrize("name", FIELDS)
def test_field_is_read(make, tmp_path, name):
  value, needed = FIELDS[name]
  if value == OTHER:
    value = write(tmp_path / "other.jsonl", [("Another one?", "4")])
  seen = []
  for change in ({}, {name: value}):
    boat = dict(question=BOAT, q=BOAT, answer="1")
    c = make(SHOWS, [boat], **needed | change)
    place = run(c, tmp_path)
    _, weights = pipelines.prepared(place, "train")
    seen.append((rows(place), rows(place, "evaluate"), weights))
  assert seen[0] != seen[1]


def command(*flags):
  argv = [sys.executable, "-m", "rl_reason.main", "--stage=prepare", *flags]
  return subprocess.run(
      argv, cwd=ROOT, env=child_env(), capture_output=True, text=True
  )


@pytest.mark.slow
def test_the_command(tmp_path, tok_dir):
  """Rows without a gold, so that no verifier is asked."""
  path = write(
      tmp_path / "pairs.jsonl", [{"question": "1+1?", "response": "It is 2."}]
  )
  flags = [
      "--config=configs/base.py",
      "--config.task.name=files",
      f"--config.tokenizer={tok_dir}",
      f"--config.data.train={path}",
      f"--workdir={tmp_path / 'run'}",
  ]
  done = command(*flags)
  assert done.returncode == 0, done.stderr
  assert "1 of 1 rows kept" in done.stdout
  assert [x.response for x in rows(tmp_path / "run" / "data")] == ["It is 2."]
  assert "prepared already" in command(*flags).stdout
  (tmp_path / "pairs.jsonl").write_text("nothing\n")
  done = command(*flags)
  assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
  assert (
      "no row of" in done.stderr
      and "1 rows: the row is malformed" in done.stderr
  )


# --- streams -----------------------------------------------------------------


@pytest.fixture
def sources(make, tmp_path):
  """Two sources, of 5 and of 12 rows."""
  c = make(FIVE)
  many = [(f"Number {i}?", str(100 + i)) for i in range(12)]
  other = write(tmp_path / "many.jsonl", many)
  c.data.train = f"{c.data.train}*3, {other}"
  return pipelines.prepared(run(c, tmp_path), "train")


def stream(parts, weights, seed):
  return pipelines.prompts(pipelines.Mixed(parts, weights, seed), 4)


def take(stream, count):
  return [item for _ in range(count) for item in next(stream)]


def answers(parts, weights, seed, count):
  return [
      int(row.answer) for _, row in take(stream(parts, weights, seed), count)
  ]


def test_ids_are_places_in_the_stream(sources):
  """So a row of another epoch has another one, and is found by it again."""
  source = pipelines.Mixed(*sources, 0)
  found = take(pipelines.prompts(source, 4), 60)
  assert [i for i, _ in found] == list(range(240))
  assert all(source[i] == (i, row) for i, row in found)
  assert len({row.prompt for _, row in found}) == 17


def test_an_epoch_has_every_row_once_and_the_next_another_order(sources):
  [_, many], _ = sources
  found = answers([many], [1.0], 0, 12)
  epochs = [tuple(found[k : k + 12]) for k in range(0, 48, 12)]
  assert [sorted(x) for x in epochs] == [list(range(100, 112))] * 4
  assert len(set(epochs)) == 4
  assert answers([many], [1.0], 0, 12) == found
  assert answers([many], [1.0], 1, 12) != found


def test_weights_are_shares_of_the_stream(sources):
  found = answers(*sources, 0, 100)
  assert sum(x < 100 for x in found) == 300


@pytest.mark.parametrize("done", [1, 2, 7])
def test_a_stream_resumes_in_the_midst_of_an_epoch(sources, done):
  whole = take(stream(*sources, 3), done + 9)
  began = stream(*sources, 3)
  take(began, done)
  state = began.get_state()
  take(began, 2)
  fresh = stream(*sources, 3)
  fresh.set_state(state)
  assert take(fresh, 9) == whole[4 * done :]


def test_without_weights_every_row_comes_as_often(make, tmp_path):
  c = make(FIVE)
  many = [(f"Number {i}?", str(100 + i)) for i in range(15)]
  c.data.train += "," + write(tmp_path / "many.jsonl", many)
  parts, weights = pipelines.prepared(run(c, tmp_path), "train")
  assert weights == [5, 15]
  found = answers(parts, weights, 0, 50)
  assert set(collections.Counter(found).values()) == {10}


def test_a_directory_that_is_not_prepared(tmp_path):
  for text in (None, "[]", "{}", '{"sources": [3]}', '{"sources": []}', "\0"):
    if text is not None:
      (tmp_path / "data.json").write_text(text)
    with pytest.raises(DataError, match="run --stage=prepare"):
      pipelines.prepared(tmp_path, "train")


def test_files_that_changed(make, tmp_path):
  place = run(make(FIVE), tmp_path)
  path = place / "train-0.array_record"
  whole = path.read_bytes()
  path.write_bytes(whole[: len(whole) // 2])
  with pytest.raises(DataError, match="train-0.array_record: cannot be read"):
    pipelines.prepared(place, "train")
  run(make(FIVE[:3]), tmp_path / "other")
  other = tmp_path / "other" / "data" / "train-0.array_record"
  path.write_bytes(other.read_bytes())
  with pytest.raises(DataError, match="has 3 rows instead of 5"):
    pipelines.prepared(place, "train")


# --- what is there to imitate ------------------------------------------------

WORKED = [
    {"question": "One and one?", "answer": "1+1=<<1+1=2>>2\n#### 2"},
    {"question": "Two and two?", "answer": f"{'2 ' * 60}\n#### 4"},  # too long
    {"question": "Three and one?", "answer": "#### 4"},  # no work
]


def test_solutions_become_responses(make, tmp_path):
  """In the template's form; a row without one is still to practise on."""
  c = make(WORKED, template="qwen_boxed")
  c.data.train = f"gsm8k:train@{c.data.train}"
  place = run(c, tmp_path)
  found = {row.answer: row.response for row in rows(place)[:1]}
  assert found == {"2": "1+1=2\n\\boxed{2}"}
  assert [row.response for row in rows(place)[1:]] == ["", ""]
  parts, weights = pipelines.prepared(place, "train")
  batch = next(pipelines.prepared_pairs(parts, weights, 0, 3))
  assert batch == [(rows(place)[0].prompt, "1+1=2\n\\boxed{2}")] * 3


def test_pairs_of_responses(make, tmp_path):
  c = make(
      [
          dict(question="Which?", chosen="this", rejected="that"),
          dict(question="What?", answer="1"),
      ]
  )
  parts, weights = pipelines.prepared(run(c, tmp_path), "train")
  batch = next(pipelines.prepared_pairs(parts, weights, 0, 2, rejected=True))
  assert batch == [("Which?", "this", "that")] * 2


def test_nothing_to_imitate(make, tmp_path):
  parts, weights = pipelines.prepared(run(make(FIVE), tmp_path), "train")
  with pytest.raises(DataError, match="no row of source 0 has a response"):
    pipelines.prepared_pairs(parts, weights, 0, 2)


def test_evaluation_sets_are_fair_samples(make, tmp_path):
  """By name, in a random order that stays; two of one name are told apart."""
  (tmp_path / "b").mkdir()
  other = write(tmp_path / "b" / "evaluate.jsonl", FIVE)
  c = make((), FIVE)
  c.data.evaluate += f",{other}"
  place = run(c, tmp_path)
  found = pipelines.evaluation_sets(place, 3)
  assert list(found) == ["evaluate", "evaluate-1"]
  assert [len(x) for x in found.values()] == [3, 3]
  assert (
      pipelines.evaluation_sets(place, 9)["evaluate"][:3] == found["evaluate"]
  )
  assert [x.prompt for x in found["evaluate"]] != [q for q, _ in FIVE[:3]]
