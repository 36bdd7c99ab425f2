"""The ladder from PPO to VAPO on rare long chains: signs, and the first token.

  python -m rl_reason.ablate --config=configs/ablations/chain.py      # first
  python -m rl_reason.ablate --config=configs/ablations/chain.py:128
  python -m rl_reason.ablate --config=configs/ablations/chain.py:256
  python -m studies.chain.run           # replays a step of each run; resumable
  python -m studies.chain.run --table   # only the page, from the data

The page compares the signs of the paper with ours, for each length, from the
data of the ablations. A replay of RL step 5 gives the values and rewards of all
responses, hence the advantage that the first token has at any lambda. Writes
chain_signs.json and .md; plan.md has the hypotheses.
"""

import itertools
import pathlib
import subprocess
import sys

import numpy as np

from bench import results
from rl_reason.lab import ablate, comparison

NAME = "chain_signs"
# Tokens of a chain -> ablation.
LADDERS = {64: "chain", 128: "chain-128", 256: "chain-256"}
AT = (15, 30)  # RL steps
STEP = 5  # that is replayed
LAMBDAS = (0.5, 0.95, 1.0)
LAST, TOKEN_LEVEL = "+ group sampling (VAPO)", "PPO + token-level loss"
DECOUPLED = "+ decoupled GAE"
LABELS = {LAST: "VAPO", DECOUPLED: "PPO, value pretraining, decoupled GAE"}
REPLAYED = ("PPO", "+ value pretraining", LAST)


def advantages(values_T, reward: float) -> list[float]:
  """The advantage of the first token at each of LAMBDAS; gamma is 1.

  Args:
    values_T: the critic's value before each token of a response.
    reward: of the response.
  """
  ahead_T = np.append(values_T[1:], reward)
  errors_T = ahead_T - values_T
  powers = np.arange(len(errors_T))
  return [float((lam**powers * errors_T).sum()) for lam in LAMBDAS]


def first_token(path: pathlib.Path) -> dict[str, dict]:
  """Chains and guesses of a replayed step: numbers of their first tokens."""
  arrays = np.load(path)
  out = {}
  lengths_B = arrays["mask_BT"].sum(1)
  for name, chosen_B in (("chain", lengths_B > 2), ("guess", lengths_B == 2)):
    found, rows = [], np.flatnonzero(chosen_B)
    for b in rows:
      values_T = arrays["values_BT"][b][arrays["mask_BT"][b] > 0]
      found.append(advantages(values_T, arrays["rewards_B"][b]))
    out[name] = dict(count=len(rows))
    if found:
      values_BT = arrays["values_BT"][rows]
      out[name] |= dict(
          advantage=np.mean(found, 0).round(4).tolist(),
          value=[round(float(x), 4) for x in values_BT[:, :2].mean(0)],
      )
  return out


def flags(parser) -> None:
  """The flags."""
  parser.add_argument(
      "--runs",
      type=pathlib.Path,
      default=results.RUNS / "ablations",
      help="the work directory of the ablations",
  )


def measure(given) -> dict:
  """Replays a step of each finished run; returns the numbers of its tokens.

  Of runs without a work directory, the numbers of an earlier call are kept.
  """
  known = {
      (x["tokens"], x["row"], x["seed"]): x
      for x in results.read(NAME).get("runs", ())
  }
  found, lost = [], 0
  for tokens, name in LADDERS.items():
    for run in results.read(name).get("runs", ()):
      if run["row"] not in REPLAYED:
        continue
      place = f"{ablate.slug(run['row'])}-{run['seed']}"
      workdir = given.runs / name / place
      if not workdir.exists():
        of_run = known.get((tokens, run["row"], run["seed"]))
        found += [of_run] * bool(of_run)
        lost += not of_run
        continue
      arrays = workdir / "replay" / f"step-{STEP}" / "arrays.npz"
      if not arrays.exists():
        stage = ["--stage=replay", f"--step={STEP}", f"--workdir={workdir}"]
        command = [sys.executable, "-m", "rl_reason.main", *stage]
        subprocess.run(command, check=True)
      found.append(
          dict(tokens=tokens, row=run["row"], seed=run["seed"])
          | first_token(arrays)
      )
  if lost:
    print(f"{lost} runs have no work directory in {given.runs}: left out")
  if not found:
    raise SystemExit("there are no finished runs; run the two ablations first")
  environment = results.read(LADDERS[found[0]["tokens"]])["environment"]
  return dict(
      command="python -m studies.chain.run", environment=environment, runs=found
  )


# --- page --------------------------------------------------------------------


def _accuracy(data: dict, row: str, at: int) -> dict[int, float]:
  """{seed: mean@4 at an RL step, in percent} of a row."""
  return {
      x["seed"]: 100
      * comparison.value_at(x, "accuracy", at, "step", "evaluate")
      for x in data["runs"]
      if x["row"] == row
  }


def _text(values, form: str = "+.1f") -> tuple[str, str]:
  """Mean and half the width of its interval; the verdict on a positive sign."""
  if not values:
    return "", ""
  mean, half = comparison.interval(values)
  if half is None:
    return f"{mean:{form}}", "one seed"
  verdict = "reproduced" if mean > half else "not reproduced"
  verdict = "opposite" if -mean > half else verdict
  return f"{mean:{form}} ± {half:{form.strip('+')}}", verdict


def _differences(data: dict, row: str, other: str, at: int) -> dict[int, float]:
  of_row, before = _accuracy(data, row, at), _accuracy(data, other, at)
  return {k: of_row[k] - before[k] for k in of_row if k in before}


def page(result: dict) -> list[str]:
  """Returns the tables in Markdown."""
  ladders = {k: results.read(x) for k, x in LADDERS.items()}
  ladders = {k: x for k, x in ladders.items() if x}
  about = [
      "Which technique of VAPO gains where the first token decides, and in"
      " which"
      " direction? [plan.md](plan.md) has"
      " the hypotheses and what would refute them. After SFT, 97% of the"
      " responses guess a value at once (right one time in ten), and 3% write"
      " out a chain of 64, 128 or 256 tokens (nearly always right). RL has to"
      " find out that the first token of a chain is better"
      " (`rl_reason/tasks/chain.py`).",
      "",
      "Each technique is added to the row before. The paper (arXiv:2504.05118,"
      " table 1) removes one technique at a time from VAPO, and each has a"
      " positive sign. Differences of mean@4 in points on the same seeds, with"
      " 95% intervals (Student's t).",
  ]
  out: list[str] = []
  for tokens, data in ladders.items():
    for at in AT:
      out += _signs(data, tokens, at)
  out += _gap(ladders)
  out += _first(result)
  return results.document(
      "The ladder from PPO to VAPO, where the first token decides",
      _finding(ladders),
      about,
      out,
      made="Made by `python -m studies.chain.run`.",
      versions=results.footer(result),
  )


def _finding(ladders: dict[int, dict]) -> str:
  """VAPO - PPO, and the techniques whose interval excludes 0."""
  at, words = AT[0], []
  for tokens, data in ladders.items():
    gap, _ = _text(list(_differences(data, LAST, "PPO", at).values()))
    rows = [row[0] for row in data["rows"]]
    clear = []
    for before, row in itertools.pairwise(rows):
      values = list(_differences(data, row, before, at).values())
      text, verdict = _text(values)
      if row.startswith("+") and verdict in ("reproduced", "opposite"):
        clear.append(f"{row.removeprefix('+ ')} {text}")
    words.append(
        f"{gap} with chains of {tokens} tokens (techniques whose interval"
        f" excludes 0: {', '.join(clear) or 'none'})"
    )
  if not words:
    return "No ladder has been run yet."
  return f"VAPO - PPO after {at} RL steps, in points: {'; '.join(words)}."


def _signs(data: dict, tokens: int, at: int) -> list[str]:
  """Each technique against the row before it, and rows against PPO."""
  rows = [row[0] for row in data["rows"]]
  seeds = len(data["seeds"])
  out = [
      "",
      f"## Chains of {tokens} tokens, after {at} RL steps",
      "",
      f"| | mean@4 | against the row before | sign | seeds of {seeds} |",
      "|---|---|---|---|---|",
  ]
  for before, row in zip(["", *rows], rows, strict=False):
    values = list(_accuracy(data, row, at).values())
    if not values:
      continue
    cells = ("", "")
    if row.startswith("+"):
      cells = _text(list(_differences(data, row, before, at).values()))
    out.append(results.row(row, _text(values, ".1f")[0], *cells, len(values)))
  out += ["", "| | difference |", "|---|---|"]
  for row, other in (
      (LAST, "PPO"),
      (TOKEN_LEVEL, "PPO"),
      (DECOUPLED, "PPO"),
      (TOKEN_LEVEL, DECOUPLED),
      (LAST, DECOUPLED),
      (LAST, TOKEN_LEVEL),
      (LAST, "PPO, twice the learning rate"),
  ):
    text, _ = _text(list(_differences(data, row, other, at).values()))
    label = " - ".join(LABELS.get(x, x) for x in (row, other))
    if text:
      out.append(results.row(label, text))
  return out


def _gap(ladders: dict[int, dict]) -> list[str]:
  """Whether VAPO - PPO grows with the length."""
  if len(ladders) < 2:
    return []
  out = [
      "",
      "## The gap and the length",
      "",
      "VAPO - PPO at one length, less VAPO - PPO at a shorter one, in points on"
      " the same seeds.",
      "",
      "| tokens"
      + "".join(f" | after {at} RL steps" for at in AT)
      + " | seeds |",
      "|---" * (2 + len(AT)) + "|",
  ]
  for short, long in itertools.combinations(ladders, 2):
    cells, pairs = [], []
    for at in AT:
      before = _differences(ladders[short], LAST, "PPO", at)
      after = _differences(ladders[long], LAST, "PPO", at)
      pairs = [after[k] - before[k] for k in after if k in before]
      cells.append(_text(pairs)[0])
    out.append(results.row(f"{long} less {short}", *cells, len(pairs)))
  return out


def _first(result: dict) -> list[str]:
  """The advantage of the first token by lambda."""
  out = [
      "",
      "## What the first token is told",
      "",
      f"At RL step {STEP}, before whitening: the critic's value before and"
      " after the first token of a chain, and the advantage of this token at"
      " several lambdas. Means over seeds of the means over the chains of a"
      " batch.",
      "",
      "| tokens | row | chains | V before | V after |"
      + "".join(f" A at {x} |" for x in LAMBDAS),
      "|---" * (5 + len(LAMBDAS)) + "|",
  ]
  for tokens in LADDERS:
    for row in REPLAYED:
      of_row = [
          x["chain"]
          for x in result["runs"]
          if x["tokens"] == tokens and x["row"] == row and x["chain"]["count"]
      ]
      if not of_row:
        continue
      count = sum(x["count"] for x in of_row)
      values = np.mean([x["value"] for x in of_row], 0)
      found = np.mean([x["advantage"] for x in of_row], 0)
      cells = [f"{x:+.2f}" for x in (*values, *found)]
      out.append(results.row(tokens, row, count, *cells))
  return out


if __name__ == "__main__":
  results.main(__doc__, NAME, measure, page, flags=flags)
