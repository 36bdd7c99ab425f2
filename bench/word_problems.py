"""Writes the rows of configs/smollm2.py: word problems of one step.

  python -m bench.word_problems

A row has a question, its answer, its kind as the subject, and a brief response
to imitate: half of the responses write the equation before the answer. All
texts are ours, made from templates. Questions are distinct, and answers are
spread, so that no constant answer is worth giving.
"""

import json
import pathlib
import random

from absl import app

OUT = pathlib.Path(__file__).parents[1] / "configs" / "word_problems.json"
SEED, TRAIN, TEST = 0, 1200, 250
NAMES = (
    *("Anna", "Ben", "Clara", "David", "Emma", "Finn", "Grace", "Henry", "Ivy"),
    *("Jack", "Lena", "Max", "Nora", "Oscar", "Rosa", "Sam", "Tina", "Victor"),
)
THINGS = (
    *("apples", "books", "coins", "cards", "stamps", "marbles", "pencils"),
    *("shells", "stickers", "cookies"),
)
# a and b are the two numbers of the question, p and q are persons, x things.
QUESTIONS = {
    "join": (
        "{p} has {a} {x} and gets {b} more. How many {x} does {p} have now?",
        "{p} has {a} {x}. {q} has {b} {x}. How many {x} do they have together?",
        "There are {a} {x} on the table and {b} {x} in the box. How many {x}"
        " are there in all?",
    ),
    "leave": (
        "{p} had {a} {x} and gave {b} of them to {q}. How many {x} does {p}"
        " have left?",
        "There were {a} {x} in a bag. {p} took {b} of them out. How many {x}"
        " are still in the bag?",
        "{p} needs {a} {x} and has {b}. How many more {x} does {p} need?",
    ),
    "compare": (
        "{p} has {a} {x} and {q} has {b}. How many more {x} does {p} have than"
        " {q}?",
        "{q} is {b} years old and {p} is {a}. How many years older is {p}?",
    ),
    "groups": (
        "{p} has {a} boxes with {b} {x} in each. How many {x} does {p} have?",
        "One book costs {b} dollars. How many dollars do {a} books cost?",
        "{p} reads {b} pages every day. How many pages does {p} read in {a}"
        " days?",
    ),
    "share": (
        "{p} shares {a} {x} equally among {b} friends. How many {x} does each"
        " friend get?",
        "{p} puts {a} {x} into {b} bags, the same number into each. How many"
        " {x} are in each bag?",
    ),
}


def numbers(kind: str, rng: random.Random) -> tuple[int, str, int, int]:
  """The numbers of a question, the sign between them, and its answer."""
  if kind == "join":
    a, b = rng.randint(3, 20), rng.randint(3, 20)
    return a, "+", b, a + b
  if kind in ("leave", "compare"):
    b, answer = rng.randint(3, 15), rng.randint(2, 20)
    return b + answer, "-", b, answer
  b, other = rng.randint(2, 9), rng.randint(3, 9)
  if kind == "groups":
    return b, "*", other, b * other
  return b * other, "/", b, other


def rows(count: int, seed: int = SEED) -> list[dict[str, str]]:
  """`count` rows with distinct questions."""
  rng, out = random.Random(seed), {}
  while len(out) < count:
    kind = rng.choice(list(QUESTIONS))
    a, sign, b, answer = numbers(kind, rng)
    p, q = rng.sample(NAMES, 2)
    question = rng.choice(QUESTIONS[kind]).format(
        p=p, q=q, x=rng.choice(THINGS), a=a, b=b
    )
    equation = f"{a} {sign} {b} = {answer}. " * (rng.random() < 0.5)
    row = dict(question=question, answer=str(answer), subject=kind)
    row["response"] = f"{equation}The answer is {answer}."
    out.setdefault(question, row)
  return list(out.values())


def text() -> str:
  """The file: one row a line, the held-out ones as a split of their own."""
  made = rows(TRAIN + TEST)
  splits = dict(train=made[:TRAIN], test=made[TRAIN:])
  parts = (
      f"{json.dumps(name)}: [\n" + ",\n".join(map(json.dumps, x)) + "\n]"
      for name, x in splits.items()
  )
  return "{" + ",\n".join(parts) + "}\n"


def main(_) -> None:
  """Writes the file."""
  OUT.write_text(text())


if __name__ == "__main__":
  app.run(main)
