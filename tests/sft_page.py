"""The files that the commands of docs/sft.md read, for a tiny model."""

import json
import re
import shlex

import checkpoints
import tiny_data
from conftest import ROOT

PAGE = (ROOT / "docs" / "sft.md").read_text()


def commands():
  """The arguments of each printed command, in the order of the page."""
  text = PAGE.replace("\\\n", " ")
  found = re.findall(r"(?m)^    python -m rl_reason\.main (.*)$", text)
  return [shlex.split(x) for x in found]


def row(i):
  a, b = 10 + i // 22, 10 + i % 22
  return dict(
      prompt=f"What is {a} + {b}?",
      response=f"{a} + {b} = {a + b}. The answer is {a + b}.",
      answer=f"{a + b}",
  )


def write(directory):
  """model/, rows.jsonl and held_out.jsonl."""
  model = checkpoints.checkpoint(
      directory / "model", vocab_size=300, max_position_embeddings=1024
  )
  tiny_data.byte_tokenizer().save_pretrained(model)
  rows = [row(i) for i in range(477)]
  long = dict(row(0), prompt="Count.", response="7" * 600, answer="7")
  train = [*rows[40:], rows[50], long, dict(rows[0])]
  for name, found in (("rows", train), ("held_out", rows[:40])):
    lines = "".join(f"{json.dumps(x)}\n" for x in found)
    (directory / f"{name}.jsonl").write_text(lines)
