"""Reference answers of data sets, graded by the verifiers.

  python -m bench.verifiers.reference_answers gsm8k@FILE humaneval@FILE ...
  python -m bench.verifiers.reference_answers --table     # from JSON

Math and multiple choice: the reference answer alone is the response, in a box
and after "Answer:". Code: the reference solution, run in the sandbox. Adds to
results/reference_answers.json, then writes results/reference_answers.md.
"""

import collections
import concurrent.futures
import importlib
import pathlib
import time

from bench import results
from rl_reason import verifiers
from rl_reason.data import datasets, templates

FORMS = {"box": "qwen_boxed", "Answer:": "dapo"}
SAMPLES = 5  # rejected answers of a kind in the table


def responses(example: datasets.Example) -> dict[str, str]:
  """Returns correct responses by their form."""
  if example.kind == "code":
    template = templates.choose("code", "code")
    text = templates.complete(example.solution, "", template)
    return {"solution": text} if example.solution else {}
  return {
      form: templates.complete("", example.answer, templates.choose(x, "math"))
      for form, x in FORMS.items()
  }


def grade(example: datasets.Example) -> dict[str, bool]:
  """Returns `usable` and the verdict on each form of the answer."""
  verifier = importlib.import_module(verifiers.KINDS[example.kind])
  verdicts = {"usable": verifier.usable(example.answer)}
  for form, text in responses(example).items():
    verdicts[form] = verdicts["usable"] and verifier.verify(
        text, example.answer
    )
  return verdicts


def graded(text: str) -> dict:
  """Returns the counts of one source."""
  source = datasets.parse(text, "test")
  start = time.monotonic()
  rows = list(datasets.examples(source, datasets.columns(""), "math"))
  examples = [x for x in rows if isinstance(x, datasets.Example) and x.answer]
  # Threads suffice: math takes no time, and code waits for its sandbox.
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    verdicts = list(pool.map(grade, examples))
  accepted: collections.Counter = collections.Counter()
  rejected = collections.defaultdict(list)
  for example, by_form in zip(examples, verdicts, strict=True):
    for form, correct in by_form.items():
      accepted[form] += correct
      if not correct and example.kind != "code":
        rejected[form].append(example.answer[:80])
  return dict(
      set=source.name or pathlib.Path(source.place).name,
      split=source.split,
      kind=examples[0].kind,
      rows=len(rows),
      answers=len(examples),
      accepted=dict(accepted),
      rejected={form: found[:SAMPLES] for form, found in rejected.items()},
      seconds=round(time.monotonic() - start, 1),
  )


def page(result: dict) -> list[str]:
  """Returns the table in Markdown."""
  about = (
      "Are the reference answers of data sets right answers to the verifiers? A"
      " reference answer is usable if the verifier can parse it and finds it"
      " equal to itself. The reference answer alone is then graded as a"
      " response, in a box and after `Answer:`; for code, the reference"
      " solution is run against its tests."
  )
  out = [
      "| set | split | kind | rows | reference answers | usable | correct |",
      "|---|---|---|---|---|---|---|",
  ]
  for x in result["sets"]:
    correct = ", ".join(
        f"{form} {count}"
        for form, count in x["accepted"].items()
        if form != "usable"
    )
    cells = [x["set"], x["split"], x["kind"], x["rows"], x["answers"]]
    cells += [x["accepted"].get("usable", 0), correct]
    out.append(results.row(*cells))
  out += ["", f"Rejected reference answers, at most {SAMPLES} of a kind:", ""]
  for x in result["sets"]:
    for form, answers in x["rejected"].items():
      shown = ", ".join(f"`{text}`" for text in answers)
      out.append(f"- {x['set']}, {form}: {shown}")
  sets = result["sets"]
  usable = sum(x["accepted"].get("usable", 0) for x in sets)
  total = sum(x["answers"] for x in sets)
  return results.document(
      "Reference answers graded by the verifiers",
      f"{usable:,} of {total:,} reference answers of {len(sets)} sets are"
      f" usable ({usable / total:.2%}).",
      about,
      out,
      made="Made by `python -m bench.verifiers.reference_answers SET@FILE"
      " ...`.",
      versions=[f"Commit {result['commit']}."],
  )


def flags(parser) -> None:
  """The flags."""
  parser.add_argument("sources", nargs="*")


def measure(given) -> dict:
  """Grades the sources, each of which is kept at once."""
  result = results.read("reference_answers") or dict(sets=[])
  for text in given.sources:
    new = graded(text)
    key = new["set"], new["split"]
    rest = [x for x in result["sets"] if (x["set"], x["split"]) != key]
    result["sets"] = sorted([*rest, new], key=lambda x: (x["kind"], x["set"]))
    result["commit"] = results.commit()
    results.write_data("reference_answers", result)
    print(new["set"], new["split"], new["accepted"], flush=True)
  return result


if __name__ == "__main__":
  results.main(__doc__, "reference_answers", measure, page, flags=flags)
