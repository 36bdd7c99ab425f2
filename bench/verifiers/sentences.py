"""Answers in sentences, without a box, a tag or "Answer:": right and wrong.

  python -m bench.verifiers.sentences                 # the committed sentences
  python -m bench.verifiers.sentences --gsm8k=FOLDER  # and texts of GSM8K

The sentences are tests/sentences.txt. FOLDER has `train.jsonl.gz` and
`example_model_solutions.jsonl.gz` of github.com/openai/grade-school-math: the
reference solutions of the training set without their last line, and the
solutions of four models without theirs, with their labels. Each text is graded
by `rl_reason.verifiers.math` and by math-verify. Adds to
results/sentences.json, then writes results/sentences.md.
"""

import gzip
import json
import pathlib
import re
import time
from collections.abc import Iterator

from bench import results
from bench.verifiers import hard_answers

SENTENCES = results.ROOT / "tests" / "sentences.txt"
MODELS = [f"{x}_{y}" for x in ("6b", "175b") for y in ("finetuning",)]
MODELS += [x.replace("finetuning", "verification") for x in MODELS]
Text = tuple[str, str]  # response, reference answer


def sentences(correct: bool) -> list[Text]:
  """The committed sentences that are right, or wrong."""
  sign, out = (" == " if correct else " != "), []
  for line in SENTENCES.read_text(encoding="utf-8").splitlines():
    if not line.startswith("# ") and sign in line:
      reference, sentence = line.split(sign, 1)
      out.append((sentence, reference))
  return out


def _rows(path: pathlib.Path) -> list[dict]:
  with gzip.open(path, "rt", encoding="utf-8") as lines:
    return [json.loads(line) for line in lines]


def corpora(folder: str) -> Iterator[tuple[str, list[Text]]]:
  """Yields names of corpora and their texts."""
  yield "sentences, right", sentences(True)
  yield "sentences, wrong", sentences(False)
  if not folder:
    return
  place = pathlib.Path(folder)
  solutions = []
  for row in _rows(place / "train.jsonl.gz"):
    text, _, gold = row["answer"].rpartition("\n#### ")
    solutions.append((text, gold))
  plain = [(re.sub("<<.*?>>", "", text), gold) for text, gold in solutions]
  yield "GSM8K, reference solutions, right", plain
  yield "GSM8K, the same with `<<9*2=18>>`, right", solutions
  labelled: dict = {True: [], False: []}
  for row in _rows(place / "example_model_solutions.jsonl.gz"):
    gold = row["ground_truth"].rpartition("\nA: ")[2].replace(",", "")
    for model in MODELS:
      text = row[model]["solution"].rpartition("\nA: ")[0]
      text = re.sub("<<.*?>>", "", text)
      labelled[row[model]["is_correct"]].append((text, gold))
  yield "GSM8K, solutions of models, right", labelled[True]
  yield "GSM8K, solutions of models, wrong", labelled[False]


def flags(parser) -> None:
  """The flags."""
  parser.add_argument("--gsm8k", default="", help="folder of the two files")


def measure(given) -> dict:
  """Grades the corpora by both verifiers."""
  out: dict = dict(results.read("sentences"), commit=results.commit())
  for name, texts in corpora(given.gsm8k):
    out[name] = {"texts": len(texts)}
    for system, load in hard_answers.SYSTEMS.items():
      verify, start = load(), time.monotonic()
      out[name][system] = sum(verify(*text) for text in texts)
      seconds = time.monotonic() - start
      out[name][f"ms: {system}"] = round(1000 * seconds / len(texts), 2)
    print(name, out[name])
  return out


def page(result: dict) -> list[str]:
  """Returns the table in Markdown."""
  systems = list(hard_answers.SYSTEMS)
  head = ["texts", "of", *systems, *(f"ms a text, {x}" for x in systems)]
  about = (
      "How many responses without a box, a tag or an `Answer:`, whose answer is"
      " in their last sentence, does each verifier accept? The sentences are"
      " [tests/sentences.txt](../tests/sentences.txt), by the author of the"
      " verifier; the other texts are"
      " [GSM8K](https://github.com/openai/grade-school-math): its reference"
      " solutions, and labelled solutions of four models, all without their"
      " last line. The label of a solution is of that line: a few solutions"
      " labelled as wrong state the right value in their last sentence."
  )
  out = [results.row(*head), "|---|" + "---|" * (len(head) - 1)]
  kinds = ("right", [k for k in result if k.startswith("sentences, r")]), (
      "wrong",
      [k for k in result if k.startswith("sentences, w")],
  )
  words = [
      f"{system} accepts "
      + results.joined(
          [
              f"{sum(result[k][system] for k in keys)} of"
              f" {sum(result[k]['texts'] for k in keys)} {kind} ones"
              for kind, keys in kinds
          ]
      )
      for system in systems
  ]
  for name, x in result.items():
    if isinstance(x, dict):
      cells = [x[y] for y in systems] + [x[f"ms: {y}"] for y in systems]
      out.append(results.row(name, x["texts"], *cells))
  return results.document(
      "Answers in sentences",
      f"Of the sentences {results.joined(words)}.",
      about,
      out,
      made="Made by `python -m bench.verifiers.sentences --gsm8k=FOLDER`.",
      versions=[f"Commit {result['commit']}."],
  )


if __name__ == "__main__":
  results.main(__doc__, "sentences", measure, page, flags=flags)
