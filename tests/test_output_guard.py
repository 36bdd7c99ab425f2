"""The screen stops no run: what it does not take is in a file."""

import fcntl
import io
import os
import pty
import subprocess
import sys
import time

import pytest
from conftest import ROOT, child_env

from rl_reason.monitoring import output_guard

WORK = """
import pathlib, sys, time
from rl_reason.monitoring import display, output_guard
with output_guard.guarded() as lost:
  show = display.Display()
  show.say("before there is a directory")
  sys.stdin.read()  # until the reader is gone
  print("still none")
  lost.directory = pathlib.Path(sys.argv[1])
  show.stage("RL", 9)
  show.table("samples", ["a"], [["\u4e2d"]])
  for step in range(3):
    show.step(step)
    show.say(f"warning: step {step}")
  print("an error", file=sys.stderr, flush=True)
  show.close()
  (lost.directory / "metrics.jsonl").write_text("whole")
sys.exit(3)
"""
LINES = [f"warning: step {t}" for t in range(3)]


def work(tmp_path, **options):
  """A process that writes, and ends with code 3 if nothing stops it."""
  return subprocess.Popen(
      [sys.executable, "-c", WORK, str(tmp_path)],
      env=child_env() | {"PYTHONUNBUFFERED": ""},
      **{"stdin": subprocess.DEVNULL} | options,
  )


def left(tmp_path):
  assert (tmp_path / "metrics.jsonl").read_text() == "whole"
  file = tmp_path / output_guard.FILE
  return file.read_text() if file.exists() else ""


def test_a_reader_that_ends_stops_nothing(tmp_path):
  """As `| head -1`: what comes later is in the file, what was read is not."""
  pipe = subprocess.PIPE
  process = work(tmp_path, stdin=pipe, stdout=pipe, stderr=pipe)
  assert b"before there is" in process.stdout.readline()
  process.stdout.close()
  process.stdin.close()
  assert process.stderr.read() == b"an error\n"
  assert process.wait() == 3
  text = left(tmp_path)
  assert "standard output takes no text (Broken pipe)" in text.splitlines()[0]
  assert all(x in text for x in [*LINES, "still none", "\u4e2d"])
  assert "before there is" not in text and "an error" not in text


@pytest.mark.parametrize("error", ["", "2>&-", "2>/dev/full"])
@pytest.mark.parametrize("out", [">&-", ">/dev/full"])
def test_a_screen_that_takes_nothing_stops_nothing(tmp_path, out, error):
  """No file of the run takes the number of a stream that is closed."""
  shell = f'exec "$@" {out} {error}'
  argv = ["bash", "-c", shell, "bash", sys.executable, "-c", WORK]
  done = subprocess.run(
      [*argv, str(tmp_path)],
      env=child_env(),
      stdin=subprocess.DEVNULL,
      capture_output=True,
      text=True,
  )
  assert done.returncode == 3 and not done.stdout
  assert done.stderr == ("" if error else "an error\n")
  text = left(tmp_path)
  why = "it is closed" if out == ">&-" else "No space left on device"
  assert f"standard output takes no text ({why})" in text
  assert all(x in text for x in [*LINES, "before there is", "still none"])
  assert ("an error" in text) == bool(error)
  assert text.count("takes no text") == 1 + bool(error)


def test_whoever_reads_finds_everything(tmp_path):
  """Also where the screen cannot show a character."""
  process = work(tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
  text = process.communicate()[0].decode()
  assert all(x in text for x in [*LINES, "\u4e2d"]) and not left(tmp_path)
  process = subprocess.Popen(
      [sys.executable, "-c", WORK, str(tmp_path)],
      env=child_env() | {"PYTHONIOENCODING": "ascii"},
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
  )
  assert b"\\u4e2d" in process.communicate()[0]
  assert process.returncode == 3 and not left(tmp_path)


def test_a_reader_that_stops_reading_stops_nothing(tmp_path, monkeypatch):
  """It is waited for once; when it reads again, it gets what is written then.

  Text beyond its pipe is in the file: none is written twice.
  """
  monkeypatch.setattr(output_guard, "PATIENCE", 0.2)
  there, here = os.pipe()
  fcntl.fcntl(here, fcntl.F_SETPIPE_SZ, 4096)
  lost = output_guard.Lost(tmp_path)
  raw = output_guard._Stream("standard output", here, lost)
  stream = io.TextIOWrapper(io.BufferedWriter(raw), write_through=True)
  begin = time.monotonic()
  for k in range(3000):
    stream.write(f"{k:07}\n")
  assert 0.2 <= time.monotonic() - begin < 2
  stream.flush()
  text = os.read(there, 1 << 16).decode()
  header, _, rest = (tmp_path / output_guard.FILE).read_text().partition("\n")
  assert "(its reader has stopped reading)" in header
  assert text + rest == "".join(f"{k:07}\n" for k in range(3000))
  stream.write("goes on\n")
  stream.flush()
  assert os.read(there, 99) == b"goes on\n"
  os.close(there)
  os.close(here)


def test_a_disk_that_is_full_is_tried_again(tmp_path):
  """Of what could not be written the end is kept, and bounded."""
  lost = output_guard.Lost(tmp_path / "later")
  lost.add(b"first\n")
  lost.directory.mkdir()
  lost.add(b"second\n")
  assert (lost.directory / output_guard.FILE).read_text() == "first\nsecond\n"
  nowhere = output_guard.Lost()
  nowhere.add(bytes(10 * output_guard.KEPT))
  nowhere.directory = tmp_path
  nowhere.add(b"end")
  assert (tmp_path / output_guard.FILE).stat().st_size == output_guard.KEPT


def test_a_terminal_that_is_closed_gets_no_bar(tmp_path):
  """Frames of a progress bar are not lines of a file."""
  ours, theirs = pty.openpty()
  raw = output_guard._Stream(
      "standard output", theirs, output_guard.Lost(tmp_path)
  )
  assert raw.isatty() and raw.fileno() == theirs
  raw.write(b"one")
  os.close(ours)
  assert raw.write(b"two") == 3 and not raw.isatty()
  os.close(theirs)
  assert "(Input/output error)" in (tmp_path / output_guard.FILE).read_text()


def test_streams_of_others_are_left_alone(capsys):
  with output_guard.guarded():
    print("captured")
  assert capsys.readouterr().out == "captured\n"


@pytest.mark.slow
def test_the_command_keeps_its_exit_code(tmp_path):
  """An error line that nobody reads changes it as little."""
  argv = f"{sys.executable} -m rl_reason.main --config=configs/dapo.py"
  for redirected in (">&- 2>&-", ">/dev/full 2>/dev/full"):
    done = subprocess.run(
        f"{argv} --config.seed=no {redirected}",
        shell=True,
        cwd=ROOT,
        env=child_env(),
        capture_output=True,
    )
    assert done.returncode == 2
