"""Who computes what the papers say, and who has the documented faults.

python -m bench.peers --install trl                      # once, for each peer
python -m conformance.run                                # all installed ones
python -m conformance.run --against=trl --against=verl   # these ones
python -m conformance.run --against=mytrainer.adapter:Adapter --python=PYTHON

Cases are in `cases.py`. An adapter maps an operation to the
library's own function (`adapters/__init__.py`). A library that differs from the
formula either fails, or differs by a convention that has an option:
`adapters/differences.toml` says which, where in its source and why, with the
number that this explanation predicts. A difference that is not explained there
fails.

The results of adapters of your own are printed, and are not part of
conformance.json here; the exit code is 1 if a case fails.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import pathlib
import subprocess
import sys
import tomllib

import numpy as np

from bench import harness, results
from conformance.cases import CASES, Case

PEERS = ("trl", "verl", "tunix", "openrlhf")
OURS = "rl_reason"
DIFFERENCES = pathlib.Path(__file__).parent / "adapters" / "differences.toml"
VERDICTS = {  # verdict: its sign in the table, what is said of a difference
    "pass": ("yes", "passes"),
    "fail": ("**no**", "fails"),
    "convention": ("differs", "differs"),
    "absent": ("-", ""),
    "not asked": ("?", ""),
}
LEGEND = """\
- **yes**: the library computes the formula.
- **no**: it does not, and the difference is a fault, or not explained.
- **differs**: the default follows a paper, or is meant for another place (the
  KL in the reward), and an option gives the formula.
- **-**: the library has no function for the case, or the function does not run
  apart from its trainer."""
NOT_ASKED = "- **?**: not asked; the case is newer than the library's last run."
ABOUT_OURS = """\
The operations are those of this package, so it has no "-"; {alone} cases are
answered by this package alone. `dynamic_sampling/order` holds by construction
here, since a round is complete before prompts are chosen, and
`old_policy/several_updates` asks whether log-probs are kept, not what the
update computes."""


# --- verdicts ----------------------------------------------------------------


def agree(wanted: dict, values: dict, rtol: float, atol: float) -> bool:
  """Whether results are the wanted numbers; None is any number, NaN is NaN."""
  for name, numbers in wanted.items():
    want = np.array(numbers, np.float64)
    known = np.not_equal(np.array(numbers, object), None)
    try:
      got = np.array(values.get(name), np.float64)
    except (TypeError, ValueError):  # text, or rows of different lengths
      return False
    if got.shape != want.shape or not np.allclose(
        got[known], want[known], rtol, atol, equal_nan=True
    ):
      return False
  return True


def judge(case: Case, answer: dict, difference: dict | None) -> dict:
  """The verdict on an answer: pass, convention, fail or absent.

  Args:
    case: the case.
    answer: of `adapters.__main__.run`.
    difference: the row of differences.toml of this library and case, or None.

  Returns:
    verdict, and note or the difference where there is one.
  """
  if "absent" in answer:
    return dict(verdict="absent", note=answer["absent"])
  if "error" in answer:
    last = answer["error"].strip().splitlines()[-1]
    return dict(verdict="fail", note=f"raises {last}")
  calls = dict(calls=answer["calls"])
  if agree(case.expected, answer["values"], case.rtol, case.atol):
    if difference:
      return calls | dict(
          verdict="pass", note="differences.toml is out of date"
      )
    return calls | dict(verdict="pass")
  out = calls | dict(verdict="fail", values=answer["values"])
  if difference is None:
    return out | dict(note="not explained")
  # The explanation predicts what the library computes, in its digits.
  if not agree(difference["values"], answer["values"], 2e-3, 1e-6):
    return out | dict(note="differs from its explanation in differences.toml")
  more = {k: x for k, x in difference.items() if k != "values"}
  return out | more


def differences() -> dict[str, dict]:
  """Rows of differences.toml: {library: {case: row}}."""
  return tomllib.loads(DIFFERENCES.read_text())


# --- running -----------------------------------------------------------------


def ask(python: str, adapter: str, cases=CASES) -> dict:
  """Runs the cases with an adapter, in the environment of the interpreter."""
  questions = [
      dict(name=x.name, operation=x.operation, inputs=x.inputs) for x in cases
  ]
  try:
    done = subprocess.run(
        [python, "-m", "conformance.adapters", adapter],
        input=json.dumps(questions),
        capture_output=True,
        cwd=results.ROOT,
        text=True,
        check=False,
    )
  except OSError as e:
    raise SystemExit(f"--python={python}: {e.strerror}") from None
  if done.returncode:
    said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
    raise SystemExit(f"--against={adapter}: {python} died: {said[-1]}")
  return json.loads(done.stdout)


def verdicts(answers: dict, known: dict) -> dict[str, dict]:
  """By case: the verdicts on the answers of a library."""
  return {
      case.name: judge(
          case, answers["results"][case.name], known.get(case.name)
      )
      for case in CASES
  }


def kept(before: dict) -> dict[str, dict]:
  """The libraries of the last run.

  Its verdicts on cases that are new, or whose numbers were others then, become
  'not asked'.
  """
  asked = ("operation", "inputs", "expected", "rtol", "atol")
  old = {x["name"]: x for x in before.get("cases", [])}
  same = {
      x["name"]
      for x in case_data()
      if all(x[k] == old.get(x["name"], {}).get(k) for k in asked)
  }
  return {
      name: library
      | dict(
          verdicts={
              x.name: library["verdicts"][x.name]
              if x.name in same
              else dict(verdict="not asked")
              for x in CASES
          }
      )
      for name, library in before.get("libraries", {}).items()
  }


def case_data() -> list[dict]:
  """The cases as JSON has them."""
  cases = portable([dataclasses.asdict(x) for x in CASES])
  return json.loads(json.dumps(cases))


def interpreter(name: str) -> pathlib.Path:
  """The interpreter of a peer's environment."""
  return harness.ENVIRONMENTS / name / "bin" / "python"


def flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags of the command."""
  parser.add_argument(
      "--against",
      action="append",
      default=[],
      metavar="PEER|MODULE:ADAPTER",
      help=f"{', '.join(PEERS)}, or an adapter of your own; default: all peers"
      " that are installed",
  )
  parser.add_argument(
      "--python",
      default=sys.executable,
      help="interpreter for an adapter of your own",
  )


def measure(given: argparse.Namespace) -> dict:
  """Runs ours and the peers; keeps the answers of peers that did not run."""
  own = [x for x in given.against if x not in PEERS]
  if own and len(own) < len(given.against):
    raise SystemExit(
        f"--against={own[0]}: an adapter of your own and a peer need a command"
        " each"
    )
  if own:
    sys.exit(max(own_adapter(x, given.python) for x in own))
  names = given.against or [x for x in PEERS if interpreter(x).exists()]
  for name in names:
    if not interpreter(name).exists():
      raise SystemExit(
          f"--against={name}: {interpreter(name)} does not exist; run python -m"
          f" bench.peers --install {name}"
      )
  libraries, known = kept(results.read("conformance")), differences()

  def answered(name: str) -> dict:
    if name == OURS:
      return ask(sys.executable, "conformance.adapters.ours")
    return ask(str(interpreter(name)), f"conformance.adapters.{name}")

  names = [OURS, *names]
  with concurrent.futures.ThreadPoolExecutor() as pool:
    found = dict(zip(names, pool.map(answered, names), strict=True))
  for name, answers in found.items():
    libraries[name] = dict(
        versions=answers["versions"],
        verdicts=verdicts(answers, known.get(name, {})),
    )
  order = [x for x in (OURS, *PEERS) if x in libraries]
  return portable(
      dict(
          cases=case_data(),
          libraries={x: libraries[x] for x in order},
          environment=results.environment(),
      )
  )


def portable(x):
  """The value with 'nan', 'inf' and '-inf' as text, and six digits."""
  if isinstance(x, dict):
    return {k: portable(v) for k, v in x.items()}
  if isinstance(x, list):
    return [portable(v) for v in x]
  if isinstance(x, float):
    return float(f"{x:.6g}") if np.isfinite(x) else str(x)
  return x


def own_adapter(adapter: str, python: str) -> int:
  """Prints the verdicts on an adapter of your own; returns the exit code."""
  found = verdicts(ask(python, adapter), {})
  for case in CASES:
    row = found[case.name]
    note = row.get("note", "")
    print(f"{row['verdict']:6} {case.name}  {note}".rstrip())
    if row["verdict"] == "fail":
      print(f"       {case.formula}")
      if case.fault:
        print(f"       known fault: {case.fault} ({case.issue})")
      for name, wanted in case.expected.items():
        print(f"       {name}: {row.get('values', {}).get(name)}, not {wanted}")
  count = {x: sum(r["verdict"] == x for r in found.values()) for x in VERDICTS}
  print(f"{count['pass']} pass, {count['fail']} fail, {count['absent']} absent")
  return int(count["fail"] > 0)


# --- the page ----------------------------------------------------------------


def page(result: dict) -> list[str]:
  """Returns the page."""
  libraries, cases = result["libraries"], result["cases"]
  threads = [x["issue"] for x in cases if x["issue"]]
  signs = [
      [x["verdicts"][case["name"]]["verdict"] for x in libraries.values()]
      for case in cases
  ]
  alone = sum(set(row[1:]) <= {"absent"} for row in signs)
  titles = [
      f"{name} {next(iter(x['versions'].values()))}"
      for name, x in libraries.items()
  ]
  lines = [
      "Which library computes the formulas of the papers, and which has a known"
      " fault, is asked by"
      f" {len(cases)} cases: formulas of the papers, with numbers worked by"
      f" hand or in float64 NumPy. {len(threads)} of them test faults that"
      f" public libraries had, documented in {len(set(threads))} threads. Each"
      " library is asked for its own function; given log-probs replace the"
      " forward pass of the model. All run on a CPU in float32. Data in"
      " `conformance.json`: the inputs of each case, the expected numbers, and"
      " what each library computes. [Your own trainer](README.md) can be"
      " tested.",
      "",
      *LEGEND.splitlines(),
      *([NOT_ASKED] if any("not asked" in row for row in signs) else []),
      "",
      *ABOUT_OURS.format(alone=alone).splitlines(),
      "",
      results.row("", *titles),
      results.row("---", *("---" for _ in titles)),
  ]
  for verdict, (sign, _) in VERDICTS.items():
    counts = [x.count(verdict) for x in zip(*signs, strict=True)]
    if any(counts) or verdict != "not asked":
      lines.append(results.row(sign.strip("*"), *counts))
  lines += ["", "## Cases", "", results.row("case", *libraries)]
  lines.append(results.row("---", *("---" for _ in libraries)))
  for case, row in zip(cases, signs, strict=True):
    name, cells = case["name"], [VERDICTS[x][0] for x in row]
    lines.append(results.row(f"[{name}](#{anchor(name)})", *cells))
  lines += ["", "## Differences", ""]
  for name, library in libraries.items():
    version = next(iter(library["versions"].values()))
    rows = {
        case: row
        for case, row in library["verdicts"].items()
        if "note" in row and row["verdict"] != "absent"
    }
    lines += [f"### {name} {version}", ""]
    if not rows:
      lines += ["None.", ""]
    for case, row in rows.items():
      text = f"- `{case}` {VERDICTS[row['verdict']][1]}: {row['note']}"
      for key, label in (("option", "Option"), ("reach", "When")):
        if key in row:
          text += f" {label}: {row[key]}"
      if "where" in row:
        text += f" (`{row['where']}`)"
      lines.append(text)
    lines += [""] if rows else []
  lines += ["## Formulas and sources", ""]
  for case in cases:
    lines += [f"### {case['name']}", "", f"{sentence(case['formula'])}."]
    lines.append(f"Source: {case['source']}.")
    if case["fault"]:
      lines.append(f"Fault: {case['fault']} ([thread]({case['issue']})).")
    lines.append("")
  peers = {k: x["versions"] for k, x in libraries.items() if k != OURS}
  return results.document(
      "Conformance",
      _finding(titles, signs),
      lines,
      made="Made by `python -m conformance.run`.",
      versions=results.footer(result | dict(peers=peers)),
  )


def _finding(titles: list[str], signs: list[list[str]]) -> str:
  """How many cases each library passes, of those that it has a function for."""
  words = []
  for title, column in zip(titles, zip(*signs, strict=True), strict=True):
    had = sum(x not in ("absent", "not asked") for x in column)
    words.append(f"{title} in {column.count('pass')} of {had}")
  return (
      "Cases in which a library computes the formula by default, of those that"
      f" it has a function for: {', '.join(words)}."
  )


def sentence(text: str) -> str:
  """The text with a capital where it begins with a word."""
  word = text.split()[0]
  return (
      text[0].upper() + text[1:] if word.isalpha() and len(word) > 1 else text
  )


def anchor(name: str) -> str:
  """The anchor of a heading on GitHub."""
  return name.replace("/", "").lower()


if __name__ == "__main__":
  results.main(__doc__, "conformance", measure, page, flags=flags)
