"""Every XLA program that a run compiles: name, seconds, read from the cache.

  python -m bench.speed.programs                   # five minutes, on a CPU
  python -m bench.speed.programs --tree=DIR        # of another checkout: before
  python -m bench.speed.programs --table           # from JSON

The default job starts with an empty cache of compiled programs, then again in
another work directory, and its last checkpoint is evaluated with an empty
cache. Writes results/programs.{json,md}.
"""

import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

from bench import results
from rl_reason.report import machine

RUN = "--config=configs/dapo.py"
# Arguments, the cache, and the work directory of each start.
STARTS = {
    "first start": ((RUN,), "one", "a"),
    "second start": ((RUN,), "one", "b"),
    "evaluate, first start": (("--stage=evaluate",), "two", "a"),
}
CHILD = """
import json, sys, threading
import jax
from rl_reason import main
out, local = open(sys.argv.pop(1), "w"), threading.local()
def event(name, **_):
  if name == "/jax/compilation_cache/cache_hits":
    local.hit = True
def duration(name, seconds, **about):
  head = "/jax/core/compile/"
  if not name.startswith(head):
    return
  line = dict(kind=name.removeprefix(head).removesuffix("_duration"))
  line |= dict(name=about.get("fun_name", ""), seconds=round(seconds, 4))
  if line["kind"] == "backend_compile":
    line["hit"], local.hit = getattr(local, "hit", False), False
  print(json.dumps(line), file=out, flush=True)
jax.monitoring.register_event_listener(event)
jax.monitoring.register_event_duration_secs_listener(duration)
main.main()
"""


def start(tree: str, place: pathlib.Path, args, cache: str, work: str) -> dict:
  """Runs one start; returns its seconds and its programs in order."""
  log = place / "programs.jsonl"
  cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
  begun = time.monotonic()
  environ = os.environ | dict(XDG_CACHE_HOME=str(place / cache))
  environ |= dict(PYTHONPATH=tree, PYTHONDONTWRITEBYTECODE="1")
  command = [sys.executable, "-c", CHILD, log, *args]
  command += [f"--workdir={place / work}"]
  subprocess.run(
      command, cwd=tree, env=environ, check=True, stdout=subprocess.DEVNULL
  )
  seconds = time.monotonic() - begun
  end = resource.getrusage(resource.RUSAGE_CHILDREN)
  lines = [json.loads(line) for line in log.read_text().splitlines()]
  programs = [x for x in lines if x.pop("kind") == "backend_compile"]
  return dict(
      seconds=round(seconds, 1),
      cpu_seconds=round(end.ru_utime - cpu.ru_utime, 1),
      programs=programs,
  )


def flags(parser) -> None:
  """The flags."""
  parser.add_argument("--tree", default="", help="a checkout: kept as before")


def measure(given) -> dict:
  """Runs all starts; keeps what another call has measured."""
  result = results.read("programs")
  tree = str(pathlib.Path(given.tree or results.ROOT).resolve())
  load, found = results.load(), {}
  with tempfile.TemporaryDirectory() as place:
    for name, what in STARTS.items():
      found[name] = start(tree, pathlib.Path(place), *what)
      x = found[name]
      print(
          name, x["seconds"], x["cpu_seconds"], len(x["programs"]), flush=True
      )
  environment = results.environment(load)
  found["commit"] = machine.commit(pathlib.Path(tree) / "rl_reason")
  result["before" if given.tree else "after"] = found
  return result | dict(environment=environment)


def _commit(result: dict) -> str:
  """The commit of the tree that was measured as before; '' if unknown."""
  commit = result.get("before", {}).get("commit", "")
  return commit and f" (commit {commit})"


def page(result: dict) -> list[str]:
  """Returns the tables in Markdown."""
  out = [
      "Before: an earlier checkout (`--tree`), in which SFT and the habits had"
      " an update each, the rewards of logged samples were computed operation"
      " by operation, and the cache kept only programs that take at least 0.2"
      f" s to compile{_commit(result)}. After: the commit below.",
      "",
      "| start | | programs | compiled | from the cache | seconds in XLA"
      " | user CPU s | s |",
      "|---|---|---|---|---|---|---|---|",
  ]
  for name in STARTS:
    for when in "before", "after":
      x = result.get(when, {}).get(name)
      if not x:
        continue
      hits = sum(p["hit"] for p in x["programs"])
      count, inside = len(x["programs"]), sum(
          p["seconds"] for p in x["programs"]
      )
      cells = [name, when, count, count - hits, hits, f"{inside:.1f}"]
      out.append(results.row(*cells, x["cpu_seconds"], x["seconds"]))
  out += [
      "",
      "`start`, `decode` and `finish` of the sampler compile twice: an"
      " evaluation samples 256 prompts with 9 responses each, a step of RL 32"
      " prompts with 8. Other numbers of rows may round differently, so one"
      " program for both could change numbers of a run. `first_state` makes the"
      " states of SFT, of the habits (from the cache) and of RL. `rates`"
      " computes the learning rates of all steps of SFT and of the habits,"
      " which differ in number. `rl_update` compiles while SFT runs, on the"
      " same cores, so that the first start has more seconds in XLA than"
      " before, but takes less time in all. Programs of the first start, in"
      " order: seconds in XLA.",
      "",
  ]
  out += ["| program | s |", "|---|---|"]
  shown = result.get("after") or result["before"]
  for p in shown["first start"]["programs"]:
    name = p["name"].removeprefix("jit(").removesuffix(")").strip("<>")
    out.append(results.row(f"`{name}`", f"{p['seconds']:.2f}"))
  return results.document(
      "XLA programs of a run",
      _finding(result),
      results.busy(result["environment"]),
      "Which programs does a run compile, at its first start and at the next?"
      " The default job, `configs/dapo.py`, on a CPU. From the cache: programs"
      " that were read from the cache of compiled programs. User CPU seconds"
      " are of the whole process; on a machine that is busy with other work,"
      " seconds are longer than they would be.",
      out,
      made="Made by `python -m bench.speed.programs`.",
      versions=results.footer(result),
  )


def _finding(result: dict) -> str:
  """How many programs each start of a run compiles."""
  words = []
  for name in STARTS:
    counts = [
        sum(not p["hit"] for p in result[when][name]["programs"])
        for when in ("after", "before")
        if name in result.get(when, {})
    ]
    text = " in place of ".join(map(str, counts))
    words += [f"{text} ({name})"] * bool(counts)
  return f"Programs that a run compiles: {results.joined(words)}."


if __name__ == "__main__":
  results.main(__doc__, "programs", measure, page, flags=flags)
