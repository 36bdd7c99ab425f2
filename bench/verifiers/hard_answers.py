"""Right answers in another form, and wrong ones that look like them.

  python -m bench.verifiers.hard_answers                   # ours
  python -m bench.verifiers.hard_answers --by=math-verify  # that library

The pairs are tests/hard_answers.txt. A hash of the reference answer puts half
of them aside: the verifier was written with the other half in view. Adds to
results/hard_answers.json, then writes results/hard_answers.md. `--show` prints
the misjudged pairs of the half in view.
"""

import collections
import functools
import hashlib
import re
import time
from collections.abc import Callable
from typing import NamedTuple

from bench import results

PAIRS = results.ROOT / "tests" / "hard_answers.txt"
HALVES = ("in view", "held out")


class Pair(NamedTuple):
  """A response, a reference answer, and what a reader would say."""

  kind: str
  reference: str
  response: str
  correct: bool

  @property
  def half(self) -> str:
    """'in view' or 'held out', by a hash of the reference answer."""
    digest = hashlib.sha256(self.reference.encode()).digest()
    return HALVES[digest[0] % 2]


def pairs() -> list[Pair]:
  """The table: `reference == right  right != wrong  wrong` in each line.

  An answer without a box of its own gets one; `# ...` begins a class.
  """
  out, kind = [], ""
  for line in PAIRS.read_text(encoding="utf-8").splitlines():
    if line.startswith("# "):
      kind = line[2:]
      continue
    reference, answers = line.split(" == ", 1)
    right, wrong = answers.rsplit(" != ", 1)
    for correct, texts in ((True, right), (False, wrong)):
      for text in texts.split("  "):
        # In a line of prose the boxes are there already.
        has_box = "\\boxed" in text
        response = text if has_box else f"So it is $\\boxed{{{text}}}$."
        out.append(Pair(kind, reference, response, correct))
  return out


def _ours() -> Callable[[str, str], bool]:
  from rl_reason.verifiers import math

  return math.verify


def _math_verify() -> Callable[[str, str], bool]:
  """As its README has it: both sides parsed, time limits by signals."""
  import math_verify

  @functools.cache
  def reference(text: str) -> list:
    bare = not re.search(r"\$|\\boxed|####", text)
    return math_verify.parse(f"${text}$" if bare else text)

  return lambda text, gold: bool(
      math_verify.verify(reference(gold), math_verify.parse(text))
  )


SYSTEMS = {"rl_reason": _ours, "math-verify": _math_verify}


def graded(system: str, *, show: bool = False) -> dict:
  """Verdicts counted by class, half and what a reader would say."""
  verify, start = SYSTEMS[system](), time.monotonic()
  counts: dict = collections.defaultdict(lambda: [0, 0, 0, 0])
  for pair in pairs():
    accepted = verify(pair.response, pair.reference)
    at = 0 if pair.correct else 2
    for key in (pair.half, f"{pair.half}: {pair.kind}"):
      counts[key][at] += accepted
      counts[key][at + 1] += 1
    if show and accepted != pair.correct and pair.half == HALVES[0]:
      verdict = "refused" if pair.correct else "ACCEPTED"
      print(f"{verdict}: {pair.response}   for   {pair.reference}")
  return dict(counts=dict(counts), seconds=round(time.monotonic() - start, 1))


def page(result: dict) -> list[str]:
  """Returns the tables in Markdown."""
  names = list(result)
  about = (
      "How many right answers in another form are accepted, and how many wrong"
      " ones that look like them? Of each reference answer the pairs in"
      " [tests/hard_answers.txt](../tests/hard_answers.txt) have several"
      " responses that a reader would accept, and several that"
      " no reader would. A hash of the reference answer puts half of the pairs"
      " aside; the verifier was written with the other half in view. One author"
      " wrote the pairs, before the verifier was changed, and the verifier. The"
      " column `first attempt` is from before anything of the half held out"
      " was looked at; the three wrong answers accepted there, sets of the"
      " empty set, have been mended since."
  )
  out = []
  for half in HALVES:
    out.append(f"## The half {half}")
    head = results.row("class", *names)
    out += ["", head, "|---|" + "---|" * len(names)]
    first = result[names[0]]["counts"]
    kinds = [x for x in first if x.startswith(f"{half}: ")]
    for key in [*kinds, half]:
      cells = []
      for name in names:
        right, rights, wrong, wrongs = result[name]["counts"][key]
        share = f" ({right / rights:.1%})" if key == half else ""
        cells.append(f"{right} of {rights}{share}, {wrong} of {wrongs} false")
      label = "all" if key == half else key.removeprefix(f"{half}: ")
      out.append(results.row(label, *cells))
    out.append("")
  words = []
  for name in (x for x in SYSTEMS if x in result):
    right, rights, wrong, wrongs = result[name]["counts"][HALVES[-1]]
    words.append(
        f"{name} accepts {right} of {rights} right answers"
        f" ({right / rights:.1%}) and {wrong} of {wrongs} wrong ones"
    )
  made = (
      f"{k}: commit {x['commit']}, {x['seconds']} s." for k, x in result.items()
  )
  return results.document(
      "Right answers in another form, and wrong ones that look like them",
      f"Of the half {HALVES[-1]}, {results.joined(words)}.",
      about,
      out,
      made="Made by `python -m bench.verifiers.hard_answers`.",
      versions=[*made],
  )


def flags(parser) -> None:
  """The flags."""
  parser.add_argument("--by", choices=SYSTEMS, default="rl_reason")
  parser.add_argument("--name", help="of the column; the name of the system")
  parser.add_argument("--show", action="store_true")


def measure(given) -> dict:
  """Grades the pairs: adds a column."""
  found = graded(given.by, show=given.show)
  found["commit"] = results.commit()
  print({half: found["counts"][half] for half in HALVES})
  return results.read("hard_answers") | {given.name or given.by: found}


if __name__ == "__main__":
  results.main(__doc__, "hard_answers", measure, page, flags=flags)
