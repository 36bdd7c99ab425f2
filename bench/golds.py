"""Do the golds of data sets verify against themselves?

  python -m bench.golds gsm8k@FILE humaneval@FILE ...     # any sources
  python -m bench.golds --table                           # from JSON

Math and choices: the gold alone as a response, in a box and after "Answer:".
Code: the set's own solution, in a sandbox. Adds to results/golds.json, then
writes results/golds.md.
"""

import argparse
import collections
import concurrent.futures
import importlib
import json
import pathlib
import time

from rl_reason import verifiers
from rl_reason.data import datasets, templates
from rl_reason.report import environment

OUT = pathlib.Path(__file__).parents[1] / "results" / "golds.json"
FORMS = {"box": "qwen_boxed", "Answer:": "dapo"}
SAMPLES = 5  # golds of a kind that the table shows


def responses(example: datasets.Example) -> dict[str, str]:
  """Forms of a response that is right."""
  if example.kind == "code":
    text = example.solution and templates.complete(example.solution, "", "code")
    return {"solution": text} if text else {}
  return {
      form: templates.complete("", example.answer, template)
      for form, template in FORMS.items()
  }


def judge(example: datasets.Example) -> dict[str, bool]:
  """usable, and the verdict on each form."""
  verifier = importlib.import_module(verifiers.KINDS[example.kind])
  out = {"usable": verifier.usable(example.answer)}
  for form, text in responses(example).items():
    out[form] = out["usable"] and verifier.verify(text, example.answer)
  return out


def study(text: str) -> dict:
  """Counts over one source."""
  source = datasets.parse(text, "test")
  began = time.monotonic()
  items = list(datasets.examples(source, datasets.columns(""), "math"))
  examples = [x for x in items if isinstance(x, datasets.Example) and x.answer]
  # Threads: math is quick, and code waits for other processes.
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    verdicts = list(pool.map(judge, examples))
  yes: collections.Counter = collections.Counter()
  failed = collections.defaultdict(list)
  for example, found in zip(examples, verdicts, strict=True):
    for name, good in found.items():
      yes[name] += good
      if not good and example.kind != "code":
        failed[name].append(example.answer[:80])
  return dict(
      set=source.name or pathlib.Path(source.place).name,
      split=source.split,
      kind=examples[0].kind,
      rows=len(items),
      golds=len(examples),
      yes=dict(yes),
      failed={name: some[:SAMPLES] for name, some in failed.items()},
      seconds=round(time.monotonic() - began, 1),
  )


def table(result: dict) -> str:
  """Markdown."""
  out = [
      "# Golds against themselves",
      "",
      "Made by `python -m bench.golds SET@FILE ...`. A gold is usable if the"
      " verifier can read it and finds it equal to itself. Then the gold alone"
      " is a response, in a box and after `Answer:`; for code it is the set's"
      " own solution, run against its tests.",
      "",
      "| set | split | kind | rows | with a gold | usable | right |",
      "|---|---|---|---|---|---|---|",
  ]
  for x in result["sets"]:
    right = ", ".join(
        f"{form} {count}"
        for form, count in x["yes"].items()
        if form != "usable"
    )
    cells = [x["set"], x["split"], x["kind"], x["rows"], x["golds"]]
    cells += [x["yes"].get("usable", 0), right]
    out.append("| " + " | ".join(map(str, cells)) + " |")
  out += ["", "Golds that fail, some of each set:", ""]
  for x in result["sets"]:
    for name, some in x["failed"].items():
      shown = ", ".join(f"`{text}`" for text in some)
      out.append(f"- {x['set']}, {name}: {shown}")
  out += ["", f"Commit {result['commit']}.", ""]
  return "\n".join(out)


def main() -> None:
  """Studies the sources, then writes the table."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("sources", nargs="*")
  parser.add_argument("--table", action="store_true")
  given = parser.parse_args()
  result = json.loads(OUT.read_text()) if OUT.exists() else dict(sets=[])
  for text in given.sources:
    new = study(text)
    key = new["set"], new["split"]
    rest = [x for x in result["sets"] if (x["set"], x["split"]) != key]
    result["sets"] = sorted([*rest, new], key=lambda x: (x["kind"], x["set"]))
    result["commit"] = environment.describe()["git commit"]
    OUT.write_text(json.dumps(result, indent=1))
    print(new["set"], new["split"], new["yes"], flush=True)
  OUT.with_suffix(".md").write_text(table(result))


if __name__ == "__main__":
  main()
