"""A process that makes several runs, one after another.

  python -m rl_reason.worker

Each line of standard input is a run: {"args": arguments of `rl_reason.main`,
"output": the file of its output}. When the run has ended, its exit code is a
line of standard output. A run equals the run of a process of its own, to the
bit, and costs less: the process imports JAX once, and JAX keeps what it has
traced, compiled and loaded. A stopped run (exit code 143) ends the process.
"""

import json
import os
import sys

from absl import flags

from rl_reason import main
from rl_reason.monitoring import process_end


def run(args: list[str], output: str) -> int:
  """Makes a run; returns its exit code.

  Args:
    args: of `rl_reason.main`.
    output: file to which standard output and standard error of the run go.
  """
  with open(output, "a") as out:
    for stream in (sys.stdout, sys.stderr):
      stream.flush()
      os.dup2(out.fileno(), stream.fileno())
  for name in flags.FLAGS:  # a flag keeps the value of an earlier run
    flags.FLAGS[name].unparse()
  sys.argv[1:] = args  # the record of the start has them
  try:
    return main.command(sys.argv)
  except SystemExit as e:
    return e.code if isinstance(e.code, int) else 1


def serve() -> int:
  """Makes the runs of standard input; returns the exit code."""
  answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
  sys.argv[0] = main.__file__
  for line in sys.stdin:
    code = run(**json.loads(line))
    print(code, file=answers, flush=True)
    if code == 143:
      return code
  return 0


if __name__ == "__main__":
  process_end.leave(serve())
