"""Runs rl_reason.main and kills the process at one exact instant.

  python killer.py PLACE COUNT -- <arguments of rl_reason.main>

PLACE is passed COUNT times; the last time is the process's last:
  sft        inside SFT, with an update under way
  save       inside a save, orbax still writing
  manifest   half of a manifest written
  jsonl      half of a line of metrics.jsonl written
  rollout    responses sampled, nothing done with them yet
"""

import os
import signal
import sys

from rl_reason import main
from rl_reason.base import json_files
from rl_reason.checkpointing import checkpoint
from rl_reason.collect import grading
from rl_reason.monitoring import run_log
from rl_reason.stages import supervised


def die():
  os.kill(os.getpid(), signal.SIGKILL)


def countdown(count, last, otherwise):
  """A function like `otherwise`, but `last` at the count-th call."""
  calls = 0

  def call(*args, **kwargs):
    nonlocal calls
    calls += 1
    return (last if calls == count else otherwise)(*args, **kwargs)

  return call


def half_a_manifest(path, value):
  path.with_name(path.name + ".tmp").write_text('{"step": 1, "fi')
  die()


def half_a_line(self, index, line):
  self._files[index].file.write('{"stage": "rl", "st')
  self._files[index].file.flush()
  die()


def patch(place, count):
  if place == "sft":
    supervised._log = countdown(count, lambda *_, **__: die(), supervised._log)
  elif place == "save":
    checks = checkpoint.Checkpoints
    checks._finish = countdown(count, lambda *_: die(), checks._finish)
  elif place == "manifest":
    written = json_files.write_json
    half = countdown(count, half_a_manifest, written)
    checkpoint.json_files.write_json = lambda path, value: (
        half if path.name == checkpoint.MANIFEST else written
    )(path, value)
  elif place == "jsonl":
    run_log.Log._write = countdown(count, half_a_line, run_log.Log._write)
  elif place == "rollout":
    start = grading.start_grading
    grading.start_grading = countdown(count, lambda *_: die(), start)
  else:
    raise ValueError(place)


if __name__ == "__main__":
  split = sys.argv.index("--")
  patch(sys.argv[1], int(sys.argv[2]))
  sys.argv[1:] = sys.argv[split + 1 :]
  main.main()
