"""Files of samples: what is read of them, and what is left out."""

import hashlib
import json

import pytest

from rl_reason.data import sample_files, tokenizer
from rl_reason.data.datasets import DataError
from rl_reason.tasks import arithmetic

TOK = tokenizer.characters(arithmetic.ALPHABET + " ")


def written(tmp_path, rows):
  path = tmp_path / "samples.jsonl"
  path.write_text("".join(json.dumps(x) + "\n" for x in rows))
  return str(path)


def test_samples_are_read_as_they_are_and_counted(tmp_path):
  good = [dict(prompt="1+2=", response=x) for x in (" 3", "#3", "#3")]
  good[0]["correct"] = None  # nobody knows
  bad = [
      dict(prompt="1+2=", response="#3", truncated=True),
      dict(prompt="1+2=", response="#4", correct=False),
      dict(prompt="1+2=", response="123456789"),
      dict(prompt="1+2+3+4=", response="#3"),
      dict(prompt="1+2="),
      [1],
      dict(prompt=[dict(role="user", content="1")], response="1"),
  ]
  said = []
  path = written(tmp_path, good + bad)
  args = "sft.samples", path, TOK, (4, 9), said.append
  parts, weights = sample_files.read(*args)
  assert parts == [[("1+2=", " 3"), ("1+2=", "#3")]] and weights == [2]
  (line,) = said
  assert line.startswith(
      f"sft.samples: 2 of 10 rows of {path} (1 have no end, "
  )
  for words in (
      "1 are incorrect",
      "2 lack prompt, response",
      "1 have a prompt that cannot be rendered: the tokenizer has no chat",
      "1 are repeated",
      "2 are longer than rollout.max_prompt or rollout.max_tokens",
  ):
    assert words in line
  with pytest.raises(DataError, match="none is left; raise generate.prompts"):
    sample_files.read(*args, pairs=True)


def test_samples_with_an_answer_and_no_verdict_are_said(tmp_path):
  """Of rows that are imitated; without an answer, there is no verdict."""
  texts = "#4", "#3", "#2", "#1", "#0", "123456789"
  rows = [dict(prompt="1+2=", response=x, answer="3") for x in texts]
  rows[1]["correct"], rows[2]["correct"] = True, None
  rows[3]["answer"], rows[4]["answer"] = "", None
  said = []
  path = written(tmp_path, rows)
  args = "sft.samples", path, TOK, (4, 9), said.append
  sample_files.read(*args)
  assert said[1].startswith(
      f"warning: sft.samples: 2 of the 5 rows of {path} that are left have an"
  )


def test_generated_files_are_those_of_their_manifest(tmp_path):
  out = tmp_path / "generated" / "3"
  out.mkdir(parents=True)
  part = out / "part-000000000.jsonl"
  part.write_text('{"prompt": "1+2=", "response": "#3"}\n')
  digest = hashlib.sha256(part.read_bytes()).hexdigest()
  manifest = dict(files={part.name: dict(sha256=digest)})
  out.with_name("3.json").write_text(json.dumps(manifest))
  args = "f", str(out), TOK, (4, 9), lambda _: None
  assert sample_files.read(*args) == ([[("1+2=", "#3")]], [1])
  part.write_text('{"prompt": "1+2=", "response": "#4"}\n')
  for _ in range(2):
    with pytest.raises(DataError, match="is missing or damaged, says 3.json"):
      sample_files.read(*args)
    part.unlink(missing_ok=True)
    (out / "part-1.jsonl").write_text("{}\n")


def test_pairs_may_be_rejected_for_having_no_end(tmp_path):
  rows = [
      dict(prompt=f"{i}+2=", chosen="#3", rejected="1" * size)
      for i, size in enumerate((8, 9, 10))
  ]
  text = f"{written(tmp_path, rows)}*0.5"
  parts, weights = sample_files.read(
      "f", text, TOK, (4, 9), lambda _: None, pairs=True
  )
  assert [x[2] for x in parts[0]] == ["1" * 8, "1" * 9] and weights == [0.5]


def test_pairs_of_a_prompt_are_learned_or_held_out():
  rows = [(f"{i % 25}=", "a", str(i)) for i in range(50)]
  (learned,), (held,) = sample_files.split("sft.samples", [rows])
  assert sorted(learned + held) == sorted(rows)
  assert not {x[0] for x in learned} & {x[0] for x in held}
  assert len({x[0] for x in held}) == 3
  with pytest.raises(DataError, match="too few prompts"):
    sample_files.split("sft.samples", [rows[:1]])


def test_batches_have_the_shares_of_the_weights():
  parts = [[(f"a{i}", "x") for i in range(30)], [("b", "y")]]
  stream = sample_files.iterate(parts, [0.75, 0.25], 0, 40)
  first = next(stream)
  assert [x[0] for x in first].count("b") == 10
  assert len({x for x in first if x[0] != "b"}) == 30
