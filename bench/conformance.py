"""Who computes what the papers say, and who has the documented faults.

python -m bench.peers --install trl                        # once, for each peer
python -m bench.conformance                                # all installed ones
python -m bench.conformance --against=trl --against=verl   # these ones
python -m bench.conformance --against=mytrainer.adapter:Adapter --python=PYTHON

Cases are in `conformance_cases.py`. An adapter maps an operation to the
library's own function (`adapters/__init__.py`). A library that differs from the
formula either fails, or differs by a convention that has an option:
`adapters/differences.toml` says which, where in its source and why, with the
number that this explanation predicts. A difference that is not explained there
fails.

The results of adapters of your own are printed, and are not part of
results/conformance.json; the exit code is 1 if a case fails.
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
from bench.conformance_cases import CASES, Case

PEERS = ("trl", "verl", "tunix", "openrlhf")
OURS = "rl_reason"
DIFFERENCES = pathlib.Path(__file__).parent / "adapters" / "differences.toml"
VERDICTS = {  # in the table
    "pass": "yes",
    "convention": "differs",
    "fail": "**no**",
    "absent": "-",
}


# --- verdicts ----------------------------------------------------------------


def deviations(expected: dict, values: dict, rtol: float, atol: float):
  """The results that differ: (name, largest absolute difference)."""
  out = []
  for name, wanted in expected.items():
    want = np.array(wanted, np.float64)
    got = np.array(values.get(name), np.float64)
    if got.shape != want.shape:
      out.append((name, float("nan")))
      continue
    known = ~np.isnan(want)
    if not np.allclose(got[known], want[known], rtol, atol):
      out.append((name, float(np.abs(got - want)[known].max())))
  return out


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
  found = deviations(case.expected, answer["values"], case.rtol, case.atol)
  if not found:
    if difference:
      return calls | dict(
          verdict="pass", note="differences.toml is out of date"
      )
    return calls | dict(verdict="pass")
  out = calls | dict(verdict="fail", values=answer["values"])
  if difference is None:
    return out | dict(note="not explained")
  # The explanation predicts what the library computes.
  if not predicts(difference["values"], answer["values"]):
    return out | dict(note="differs from its explanation in differences.toml")
  more = {k: x for k, x in difference.items() if k != "values"}
  return out | more


def predicts(predicted: dict, values: dict) -> bool:
  """Whether the numbers are the predicted ones, to the digits of the latter."""
  return all(
      np.allclose(
          np.array(values[name], np.float64),
          np.array(wanted, np.float64),
          rtol=2e-3,
          atol=1e-6,
          equal_nan=True,
      )
      for name, wanted in predicted.items()
  )


def differences() -> dict[str, dict]:
  """Rows of differences.toml: {library: {case: row}}."""
  return tomllib.loads(DIFFERENCES.read_text())


# --- running -----------------------------------------------------------------


def ask(python: str, adapter: str, cases=CASES) -> dict:
  """Runs the cases with an adapter, in the environment of the interpreter."""
  questions = [
      dict(name=x.name, operation=x.operation, inputs=x.inputs) for x in cases
  ]
  done = subprocess.run(
      [python, "-m", "bench.adapters", adapter],
      input=json.dumps(questions),
      capture_output=True,
      cwd=results.ROOT,
      text=True,
      check=False,
  )
  if done.returncode:
    tail = done.stderr.strip().splitlines()[-1:]
    raise SystemExit(f"--against={adapter}: {python} died: {tail}")
  return json.loads(done.stdout)


def verdicts(answers: dict, known: dict) -> dict[str, dict]:
  """By case: the verdicts on the answers of a library."""
  return {
      case.name: judge(
          case, answers["results"][case.name], known.get(case.name)
      )
      for case in CASES
  }


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
  if own:
    sys.exit(max(own_adapter(x, given.python) for x in own))
  names = given.against or [x for x in PEERS if interpreter(x).exists()]
  for name in names:
    if not interpreter(name).exists():
      raise SystemExit(
          f"--against={name}: {interpreter(name)} does not exist; run python -m"
          f" bench.peers --install {name}"
      )
  before, known = results.read("conformance"), differences()
  libraries = before.get("libraries", {})

  def answered(name: str) -> dict:
    if name == OURS:
      return ask(sys.executable, "bench.adapters.ours")
    return ask(str(interpreter(name)), f"bench.adapters.{name}")

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
          cases=[dataclasses.asdict(x) for x in CASES],
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
  faults = sum(bool(x["issue"]) for x in cases)
  titles = [
      f"{name} {next(iter(x['versions'].values()))}"
      for name, x in libraries.items()
  ]
  lines = [
      "# Conformance",
      "",
      "Made by `python -m bench.conformance`; data in `conformance.json`: the"
      " inputs of each case, the expected numbers, and what each library"
      " computes. [Your own trainer](../docs/conformance.md) can be tested.",
      "",
      f"{len(cases)} cases: formulas of the papers, with numbers worked by"
      f" hand or in float64 NumPy; {faults} of them are faults that a public"
      " library had, with the thread that documents the fault. Each library"
      " is asked for its own function; given log-probs replace the forward"
      " pass of the model. All run on a CPU in float32.",
      "",
      "- **yes**: the library computes the formula.",
      "- **no**: it does not, and the difference is a fault, or not explained.",
      "- **differs**: it follows another convention, which an option changes.",
      "- **-**: it has no function for the case, or the function does not run"
      " apart from its trainer.",
      "",
      results.row("", *titles),
      results.row("---", *("---" for _ in titles)),
  ]
  for verdict, text in (
      ("pass", "yes"),
      ("fail", "no"),
      ("convention", "differs"),
      ("absent", "-"),
  ):
    counts = [
        sum(r["verdict"] == verdict for r in x["verdicts"].values())
        for x in libraries.values()
    ]
    lines.append(results.row(text, *counts))
  lines += ["", "## Cases", "", results.row("case", *libraries)]
  lines.append(results.row("---", *("---" for _ in libraries)))
  for case in cases:
    name = case["name"]
    cells = [
        VERDICTS[x["verdicts"][name]["verdict"]] for x in libraries.values()
    ]
    lines.append(results.row(f"[{name}](#{anchor(name)})", *cells))
  lines += ["", "## Differences", ""]
  for name, library in libraries.items():
    version = next(iter(library["versions"].values()))
    rows = {
        case: row
        for case, row in library["verdicts"].items()
        if row["verdict"] in ("fail", "convention")
    }
    lines += [f"### {name} {version}", ""]
    if not rows:
      lines += ["None.", ""]
    for case, row in rows.items():
      word = "fails" if row["verdict"] == "fail" else "differs"
      text = f"- `{case}` {word}: {row['note']}"
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
      text = f"Fault: {case['fault']}"
      lines.append(
          text + (f" ([thread]({case['issue']}))." if case["issue"] else ".")
      )
    lines.append("")
  lines += results.footer(
      result
      | dict(
          peers={
              name: x["versions"]
              for name, x in libraries.items()
              if name != OURS
          }
      )
  )
  return lines


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
