"""Ablations that are resumed, extended, or stopped by a signal."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from ablate_runs import SMOKE, fake_command, ladder, write_config
from conftest import ROOT

from rl_reason.checks.config_files import read
from rl_reason.lab import ablate, comparison, jobs

pytestmark = pytest.mark.slow


@pytest.fixture
def child(tmp_path, monkeypatch):
  return fake_command(tmp_path, monkeypatch, ROOT)


def test_run_resume_and_extend(child, tmp_path, capsys):
  c = ladder()
  found, finished = ablate.plan(c, tmp_path, "try"), []

  def starts():
    lines = (tmp_path / "starts.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]

  def run(found):
    return jobs.run(
        found,
        threading.Event(),
        parallel=2,
        main=child,
        on_finished=lambda: finished.append(
            len(
                comparison.collect(c, found, ablate.measures(c), "", {})["runs"]
            )
        ),
    )

  assert run(found) == [] and len(finished) == finished[-1] == 4
  seen = starts()
  end = {name: end for stage, name, _, end, _ in seen if stage == "sft"}
  assert len(end) == 2 and len(seen) == 6
  start = {name: start for _, name, start, _, _ in seen}
  for job in found:
    if job.row:  # its base had ended
      assert start[job.workdir.name] > end[job.bases[0].name]
  shares = [set(x) for x in {tuple(cores) for *_, cores in seen}]
  assert len(shares) == 1 or not shares[0] & shares[1]  # its own cores each
  assert run(found) == [] and len(starts()) == 6
  longer = ablate.plan(ladder(common={"rl.steps": 6}), tmp_path, "try")
  assert run(longer) == [] and len(starts()) == 10
  assert "4 to do; 2 at a time" in capsys.readouterr().out


def test_stop_ends_the_processes_gently(child, tmp_path):
  c = ladder(common={"log.samples_every": 888}, seeds=(1,))
  found = ablate.plan(c, tmp_path, "try")
  stop, start = threading.Event(), time.monotonic()

  def watch():
    while len(list(tmp_path.glob("try/*/waits"))) < 2:
      time.sleep(0.05)
    stop.set()

  threading.Thread(target=watch, daemon=True).start()
  flags = dict(parallel=2, main=child)
  assert jobs.run(found, stop, **flags) == []  # stopped is not failed
  assert time.monotonic() - start < 30
  assert [x.finished() for x in found] == [True, False, False]
  assert found[1].record()["seconds"] > 0


@pytest.fixture
def started(child, tmp_path):
  """The arguments and the process of a command whose run waits."""
  config = write_config(
      tmp_path,
      f"""title="Clips", question="?", seeds=(1,), reference="low",
  rows=[("low", {SMOKE!r}, {{"log.samples_every": 888}})]""",
  )
  argv = [config, f"--out={tmp_path}", f"--workdir={tmp_path}"]
  ablate.plan(read(config.partition("=")[2]), tmp_path, "clips")
  code = "from rl_reason.lab import ablate\n"
  code += f"exit(ablate.main({argv}, {child}))"
  process = subprocess.Popen(
      [sys.executable, "-c", code],
      stdout=subprocess.PIPE,
      text=True,
      start_new_session=True,
  )
  for _ in range(600):
    if list(tmp_path.glob("clips/*/waits")):
      break
    time.sleep(0.05)
  return argv, process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command(started, tmp_path, number):
  _, process = started
  os.killpg(process.pid, number)  # as Ctrl-C does: all in the group
  out, _ = process.communicate(timeout=30)
  assert process.returncode == 143 and "low, seed 1: stopped" in out
  assert list(tmp_path.glob("clips/*/saved"))
  assert not (tmp_path / "clips.json").exists()  # no run has finished


def test_a_killed_command_ends_its_runs(started, child, tmp_path, capsys):
  argv, process = started
  assert ablate.main(argv, child) == 2
  assert "clips: another run writes to it (pid" in capsys.readouterr().err
  process.kill()
  process.wait()
  for _ in range(600):
    if list(tmp_path.glob("clips/*/saved")):
      break
    time.sleep(0.05)
  else:
    raise AssertionError("the run goes on")
  process.communicate(timeout=30)  # the run held the pipe, or has ended
