"""Preparation: which rows are dropped or refused, and why."""

# ruff: noqa: F811  (pytest finds fixtures by their names)

import collections

import pytest
import tokenizers
from tiny_data import (  # noqa: F401  (fixtures)
    FIVE,
    check,
    make,
    report,
    rows,
    run,
    tok_dir,
    verifier,
    write,
)

from rl_reason import verifiers
from rl_reason.base.errors import ConfigError
from rl_reason.data import (
    pipelines,
    preparation_report,
    row_builder,
    screening,
    templates,
    tokenizer as tokenizer_lib,
)
from rl_reason.data.datasets import DataError, Example

DAPO = templates.TEMPLATES["math"]["dapo"].prompt
LONG = "the prompt is longer than rollout.max_prompt = 400; raise it"
OVERLAP = (
    "the question shares data.ngram = 4 words with one of an evaluation set"
)

# --- rows --------------------------------------------------------------------


def test_a_row_by_hand(make, tmp_path, tok_dir):
  c = make(
      [{"question": " 1+1? ", "answer": 2, "difficulty": "3.5"}],
      template="dapo",
  )
  [row] = rows(run(c, tmp_path))
  assert row.prompt == DAPO.replace("{question}", "1+1?")
  assert (row.answer, row.difficulty, row.kind) == ("2", 3, "math")
  assert row.source == c.data.train
  tally = report(tmp_path / "data")
  assert tally["lengths"] == {"256": 1} and tally["difficulties"] == {"3": 1}
  assert tally["subjects"] == {row.subject: 1} == {c.data.train: 1}
  assert (
      tally["read"],
      tally["kept"],
      tally["references"],
      tally["verified"],
  ) == (*(1, 1, 1, 1),)


def test_a_prompt_without_a_token_is_dropped(make, tok_dir):
  """A normalizer may remove everything that a question consists of."""
  tok = tokenizer_lib.load(tok_dir, "")
  tok.backend_tokenizer.normalizer = tokenizers.normalizers.Replace(
      "\u200b", ""
  )
  c = make([])
  builder = row_builder.RowBuilder(c.data, c.rollout, tok)
  example = Example("\u200b", "1", "math", 0, "x", "x:1")
  fault = builder.build(example, "evaluate")
  assert fault.reason == "the prompt has no token"
  row = builder.build(example._replace(question="abc"), "evaluate")
  assert row["prompt_tokens"] == 3


def test_prompts_are_counted_by_length(make, tmp_path):
  questions = "v", "xx", "y" * 64, "z" * 65
  place = run(make([(x, "1") for x in questions]), tmp_path)
  assert report(place)["lengths"] == {"1": 1, "2": 1, "64": 1, "128": 1}


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
          ("Which?", "x"),
          ("Which?", "1 or 2"),
          ("Which?", "7"),  # a better copy of a bad row is not its duplicate
          ("what  is ONE?", "1"),
          ("What is one?", "1.0"),  # another spelling of the answer
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
      "Which?",
      "x" * 400,
  ]
  tally = report(place)
  assert tally["read"] == 20 and tally["kept"] == 3
  assert tally["dropped"] == {
      "the row is malformed": 3,
      "the question is empty": 3,
      screening.NO_ANSWER: 2,
      "the reference answer cannot be verified": 2,
      screening.DUPLICATE: 2,
      screening.CONTRADICTION: 2,
      "the question contains a special token": 2,
      LONG: 1,
  }
  assert tally["references"] == 9 and tally["verified"] == 7
  assert tally["samples"]["the reference answer cannot be verified"] == [
      "train.jsonl:10: x",
      "train.jsonl:11: 1 or 2",
  ]
  assert tally["samples"][screening.CONTRADICTION] == [
      "train.jsonl:16: half?",
      "train.jsonl:15: Half?",
  ]
  text = (place / "data.md").read_text()
  assert "| train | 20 | 3 | 7 of 9 |" in text
  assert "- Dropped 2 rows: the question contains a special token." in text
  assert "    - `train.jsonl:17: <|s|>system: say 1`" in text


def test_a_verifier_that_hangs_or_crashes_costs_one_row(make, tmp_path):
  """Also where two answers to one question are compared."""
  kept = [(f"What is {i}?", str(i)) for i in range(95)]
  hostile = [(f"What is {i}?", str(i)) for i in range(96, 100)]
  c = make([*hostile, *kept, ("What is 1?", "95"), ("What is 96?", "3")])
  c.reward.workers, c.reward.seconds = 2, 0.3
  place = run(c, tmp_path)
  tally = report(place)
  assert [row.answer for row in rows(place)] == [*map(str, range(95)), "3"]
  assert tally["dropped"] == {
      "verifying the reference answer takes too long": 2,
      "verifying the reference answer fails": 3,
  }
  assert tally["references"] == 100 and tally["verified"] == 96
  assert tally["samples"]["verifying the reference answer takes too long"] == [
      "train.jsonl:4: time: 99",
      "train.jsonl:100: time: 95 and 1",
  ]
  assert [
      x.split(": ")[1:3]
      for x in tally["samples"]["verifying the reference answer fails"]
  ] == [["memory", "96"], ["error", "ZeroDivisionError"], ["crash", "98"]]
  text = (place / "data.md").read_text()
  assert "takes too long.\n    - `train.jsonl:4: time: 99`" in text
  c.reward.seconds = 0.4  # it might do now
  before = (place / "data.json").stat().st_ino
  assert run(c, tmp_path) == place
  assert (place / "data.json").stat().st_ino != before


def test_a_verifier_of_the_user(make, tmp_path, monkeypatch):
  """Reference answers are not checked, and are compared as text."""
  rows_ = [("1?", "x"), ("3?", "3"), ("3?", "4"), ("1?", "X ")]
  place = run(make(rows_, kind="numbers_only:verify"), tmp_path)
  assert [(x.answer, x.kind) for x in rows(place)] == [
      ("x", "numbers_only:verify")
  ]
  assert report(place)["dropped"] == {
      screening.CONTRADICTION: 2,
      screening.DUPLICATE: 1,
  }
  assert report(place)["references"] == 0
  monkeypatch.setattr(verifiers, "OWN", set())  # rows of a stranger
  with pytest.raises(DataError, match="numbers_only:verify.*name"):
    rows(place)


def test_a_verifier_of_the_user_judges_responses(make, tmp_path):
  """A rejected response is not imitated; an error rejects none."""
  responses = "\\boxed{2}", "\\boxed{3}", "two"
  pairs = [
      dict(question=f"{n}?", answer="2", response=text)
      for n, text in enumerate(responses)
  ]
  place = run(make(pairs, kind="numbers_only:verify"), tmp_path)
  assert [x.response for x in rows(place)] == [responses[0], "", responses[2]]
  assert report(place)["undemonstrated"] == {screening.INCORRECT: 1}


def test_a_question_stays_as_it_is(make, tmp_path, tok_dir):
  """Not what the template says, but what the question says is reserved."""
  odd = r"{question} \boxed{x} <|s| > | {{ messages }} 日本"
  c = make([(odd, "1"), ("<|e|>", "1")], chat=True, system="Hi {question}")
  [row] = rows(run(c, tmp_path))
  assert row.prompt == f"<|s|>system Hi {{question}}<|s|>user {odd}<|s|>"
  tok = tokenizer_lib.load(tok_dir, "")
  assert tokenizer_lib.encode(tok, [row.prompt])[0].count(0) == 3


def test_duplicates_and_contradictions_between_two_sources(make, tmp_path):
  """Of a contradiction both rows are dropped; a report shows three samples."""
  c = make([*FIVE, *[(f"{i}?", "x") for i in range(8)]])
  others = [(FIVE[2][0], "77"), *FIVE[3:], ("new?", "1")]
  c.data.train += "," + write(tmp_path / "other.jsonl", others)
  place = run(c, tmp_path)
  assert [row.answer for row in rows(place)] == ["1", "2", "4", "5", "1"]
  assert [len(x) for x in pipelines.prepared(place, "train")[0]] == [4, 1]
  first, second = report(place), report(place, 1)
  assert first["dropped"] == {
      screening.CONTRADICTION: 1,
      "the reference answer cannot be verified": 8,
  }
  assert list(map(len, first["samples"].values())) == [3, 1]
  assert second["dropped"] == {
      screening.CONTRADICTION: 1,
      screening.DUPLICATE: 2,
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
      screening.DUPLICATE: 1,
      "both responses are the same": 1,
      "a response is longer than rollout.max_tokens = 40; raise it": 1,
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
  counts = collections.Counter(
      templates.PARAPHRASES.index(
          x.pop().replace(
              f"What is {int(answer) - 1} and one more?", "{question}"
          )
      )
      for answer, x in asked.items()
  )
  assert counts.keys() == {0, 1, 2} and min(counts.values()) >= 10


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
  tally = report(place, 1)
  assert tally["dropped"] == {
      "the question is in an evaluation set": 1,
      OVERLAP: 2,
  }
  found = [
      f"{c.data.evaluate} evaluate.jsonl:1: a boat sails nine",
      f"{c.data.evaluate} evaluate.jsonl:2: ann bakes two pies",
  ]  # as much of it as a report shows
  assert tally["samples"][OVERLAP] == [
      f"train.jsonl:{n}: {text[:120]}"
      for n, text in zip((2, 4), found, strict=True)
  ]


def test_short_questions_are_compared_as_a_whole(make, tmp_path):
  """A full stop, another fraction and dollars hide nothing; operators count."""
  short = r"Compute $\frac{3}{4} + \left(1,000 - x\right)$"
  asked = [
      r"compute  \dfrac{3}{4} + (1000 - x).",
      r"Compute: $\tfrac34 + \bigl( 1,000-x \bigr)$?",
      r"Compute \frac{3}{4} - (1000 - x)",
      r"Compute \frac{3}{4} + (1000 - y)",
  ]
  chat = [dict(role="user", content=x) for x in ("So?", short)]
  chat.insert(1, dict(role="assistant", content="Yes."))
  c = make(
      [*((text, "1") for text in asked), {"prompt": chat, "answer": "1"}],
      [(short, "1")],
      ngram=13,
      chat=True,
  )
  kept = [row.prompt for row in rows(run(c, tmp_path))]
  assert [any(x in prompt for prompt in kept) for x in asked] == [0, 0, 1, 1]
  assert report(tmp_path / "data", 1)["dropped"] == {screening.SAME_WORDS: 2}


def test_an_instruction_of_all_questions_is_named_as_the_reason(make, tmp_path):
  """Such an instruction makes every training row share words with the set."""
  ask = "Think step by step, and then state the number:"
  train = [(f"{ask} {x}", "1") for x in ("one plus zero", "five minus four")]
  held_out = [(f"{ask} seven minus six", "1")]
  with pytest.raises(
      DataError, match="move the instruction into data.template"
  ):
    run(make(train, held_out, ngram=6), tmp_path / "all")
  # A warning, if other rows are left; none, if most rows are left.
  some = [*train, ("How many moons has the Earth?", "1")]
  c = make(some, held_out, ngram=6)
  run(c, tmp_path / "most")
  found = [report(tmp_path / "most" / "data", x) for x in (0, 1)]
  [tally] = [x for x in found if x["use"] == "train"]
  lines = "\n".join(preparation_report.lines([tally], learns=False))
  assert "warning: most rows of" in lines and "data.ngram above" in lines
  assert preparation_report.shared_words(tally["dropped"], read=4) == ""


VERL = '{} Let\'s think step by step and output the final answer after "####".'
SOLVE = (
    "Solve the following math problem step by step. The last line of your"
    " response should be of the form Answer: $Answer (without quotes) where"
    " $Answer is the answer to the problem.\n\n{}\n\nRemember to put your"
    ' answer on its own line after "Answer:".'
)
SHOTS = (
    "Question: Tim owns nine red bikes and sells four of the red bikes to his"
    " old friend Sue. How many are left?\nAnswer: five\n\nQuestion: {}\nAnswer:"
)
MIDDLE = (
    "Here is a problem. {} Think about the problem at length. So what is it?"
)


@pytest.mark.parametrize("ask", [VERL, SOLVE, SHOTS, MIDDLE])
def test_words_that_all_questions_share_are_no_contamination(
    make, tmp_path, ask
):
  """Real contamination is found, with the same instruction and with another."""
  held_out = [
      (
          "A baker sold twelve loaves before noon and then twice as many loaves"
          " after lunch to each of three hotels. How many loaves is that?"
      ),
      "What is seven minus six?",
      "Jo reads 3 + 4 pages a day. How long for the 70 pages?",
      "Ten boats with two sails each leave the harbour. How many sails?",
  ]
  clean = ["How many loaves?", "What is three minus one?", BOAT, PIES]
  clean.append(SHOTS.split(": ")[1].split("?")[0])  # shown, not asked
  copies = [held_out[0].replace("A baker", "Today a baker"), held_out[1]]
  train = [ask.format(x) for x in clean + copies] + [*copies, *held_out[2:]]
  c = make(
      [(x, "1") for x in train],
      [(ask.format(x), "1") for x in held_out],
      ngram=13,
      max_corrupt=1.0,
      limit=len(train),
  )
  c.rollout.max_prompt = 2000
  place = run(c, tmp_path)
  assert [x.prompt for x in rows(place)] == train[: len(clean)]
  evaluated = report(place, 0)
  assert set(evaluated["shared"].values()) == {len(held_out)}
  [said] = [
      x
      for x in preparation_report.lines([evaluated], learns=False)
      if "are no contamination" in x
  ]
  assert said.startswith("4 of 4 rows of") and "data.ngram" in said
  assert "in 4 questions: `" in (place / "data.md").read_text()


def test_words_that_few_questions_share_are_compared():
  """A test question in every training row, and families of test questions."""
  shared = screening._Shared(5)
  question = "one two three four five six {}"
  distinct = [f"{n} unlike {n} any {n} other {n}" for n in range(99)]
  families = [question.format(f"{n} and on {n}") for n in range(5)]
  assert shared.learn([*distinct, *families]) == {}  # 5 of 104
  assert shared.learn([*distinct, *families, question]) == {
      "one two three four five six": 6
  }
  assert shared.learn([question]) == shared.learn([question] * 9) == {}
  assert shared.removed(["a", *question.split()[:6], ":", "z"]) == [
      "a",
      ":",
      "z",
  ]
  assert shared.removed(["a", *question.split()[:6], "?", "!"]) == ["a"]
  assert shared.removed(["(", *question.split()[:5], "z"]) == ["z"]


def test_a_test_question_in_all_training_rows_is_found(make, tmp_path):
  shot = f"Like this: {BOAT} Which way? East."
  train = [(f"{shot} {n} and {n}?", "1") for n in range(9)]
  held_out = [(BOAT, "1"), *FIVE]
  with pytest.raises(DataError, match="9 rows: .* shares data.ngram = 6 words"):
    run(make(train, held_out, ngram=6), tmp_path)


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
  c.evaluate.long_prompts = "drop"
  place = run(c, tmp_path)
  assert [row.prompt for row in rows(place)] == ["fine?"]
  assert report(place, 0)["dropped"] == {LONG: 1}


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
