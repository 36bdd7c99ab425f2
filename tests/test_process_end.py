"""The end of a command is said, its exit code is right, and it comes."""

import pathlib
import subprocess
import sys
import time

import pytest
from conftest import ROOT, child_env

# A command in little: the guard, a module of the user, a line, the end.
COMMAND = """
import sys
from rl_reason import main, run
from rl_reason.base import functions
from rl_reason.monitoring import display, process_end

process_end.PATIENCE, process_end.LIMIT = 0.2, 0.6
def stages(config, workdir, screen, *_, **__):
  work = functions.load("mine:work")
  work()
  print("text of the user")
  screen.say("the run is finished")
  return None, None
def prepared(argv):
  functions.load("mine")
  return None, main.pathlib.Path(".")
run.stages, main._prepare = stages, prepared
main.FLAGS(["main"])
main.main()
"""
ENDS = {
    "exit": ("import sys\nsys.exit(0)", 2),
    "quit": ("\nquit()", 2),
    "raised": ("raise SystemExit('done')", 1),
    "argparse": (
        "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--x', required=True)\np.parse_args([])",
        4,
    ),
    "a script": ("import sys\ndef main():\n  sys.exit()\nmain()", 3),
    "called": ("import sys\ndef work():\n  sys.exit(0)", 3),
    "os._exit": ("import os\nos._exit(0)", 2),
    "in a thread": (
        "import os, threading, time\ndef end():\n  os._exit(0)\n"
        "def work():\n  threading.Thread(target=end).start()\n  time.sleep(9)",
        3,
    ),
}


def command(tmp_path, text, **options):
  (tmp_path / "mine.py").write_text(text)
  return subprocess.run(
      [sys.executable, "-c", COMMAND],
      cwd=tmp_path,
      env=child_env(),
      capture_output=True,
      text=True,
      timeout=60,
      **options,
  )


@pytest.mark.parametrize("name", ENDS)
def test_code_that_ends_the_process_is_named(tmp_path, name):
  text, line = ENDS[name]
  ended = command(tmp_path, text)
  assert ended.returncode == 1
  said = ended.stderr.splitlines()[-1]
  assert said.startswith("error: ") and f"mine.py:{line}" in said
  assert "ended the process" in said


@pytest.mark.parametrize(
    ("when", "text"),
    [
        ("", "sys.stdout = sys.stderr = None"),
        ("", "sys.stdout.close()"),
        ("", "sys.stdout = io.StringIO()"),
        ("def work():\n  ", "sys.stdout = None"),
        ("def work():\n  ", "sys.stdout.buffer.close()"),
        ("def work():\n  ", "sys.__stdout__.close()"),
    ],
)
def test_a_stream_that_is_gone_hides_nothing(tmp_path, text, when):
  code = f"import io, os, sys\n{when}{text}\nif 'work' not in dir():\n"
  ended = command(tmp_path, code + "  def work(): pass")
  assert ended.returncode == 0, ended.stderr
  assert "the run is finished" in ended.stdout and not ended.stderr


def test_a_descriptor_that_is_closed_stops_nothing(tmp_path):
  ended = command(tmp_path, "import os\ndef work():\n  os.close(1)")
  assert ended.returncode == 0, ended.stderr
  assert "the run is finished" in (tmp_path / "screen.txt").read_text()


def test_a_caller_that_catches_the_end_goes_on(tmp_path):
  """A cell of a notebook, which IPython ends, and not the kernel."""
  (tmp_path / "mine.py").write_text("def work(): pass")
  code = COMMAND.replace(
      "main.main()",
      "import time\ntry:\n  main.main()\nexcept SystemExit:\n"
      "  time.sleep(1.5)\nprint('goes on')",
  )
  ended = subprocess.run(
      [sys.executable, "-c", code],
      cwd=tmp_path,
      env=child_env(),
      capture_output=True,
      text=True,
      timeout=60,
  )
  assert ended.returncode == 0 and "goes on" in ended.stdout
  assert not ended.stderr


@pytest.mark.parametrize(
    "text",
    [
        "import atexit, os\natexit.register(os._exit, 0)",
        "import sys\nsys.exit = lambda *_: None",
        "import sys\nsys.excepthook = print",
    ],
)
def test_the_exit_code_is_of_the_command(tmp_path, text):
  ended = command(tmp_path, f"{text}\ndef work():\n  1 / 0")
  assert ended.returncode == 1 and "ZeroDivisionError" in ended.stderr


def test_an_import_may_raise_anything(tmp_path):
  text = "class Panic(BaseException): pass\nraise Panic('at line 3')"
  ended = command(tmp_path, text)
  assert ended.returncode == 2
  assert "Panic: at line 3 (mine.py:2)" in ended.stderr
  assert "Traceback" not in ended.stderr


LOOP = "import threading, time\ndef loop():\n  while True: time.sleep(0.01)\n"


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (
            "import concurrent.futures\ndef work():\n"
            "  concurrent.futures.ThreadPoolExecutor().submit(loop)",
            "mine.py:3, in loop",
        ),
        (
            "def work():\n  threading.Thread(target=loop).start()",
            "mine.py:3, in loop",
        ),
        ("import atexit\natexit.register(loop)\ndef work(): pass", "atexit"),
        (
            "def work():\n  threading.Thread(target=loop).start()\n"
            "  raise ValueError('3')",
            "mine.py:3, in loop",
        ),
    ],
)
def test_what_never_ends_does_not_keep_the_process(tmp_path, start, words):
  ended = command(tmp_path, LOOP + start)
  fails = "raise" in start
  assert ended.returncode == int(fails)
  assert fails or "the run is finished" in ended.stdout
  assert words in ended.stderr and "ends in 0.4 s without it" in ended.stderr


def test_threads_that_end_in_time_are_waited_for(tmp_path):
  text = (
      "import threading, time, pathlib\ndef end():\n  time.sleep(0.1)\n"
      "  pathlib.Path('done').touch()\n"
      "def work():\n  threading.Thread(target=end).start()"
  )
  ended = command(tmp_path, text)
  assert ended.returncode == 0 and not ended.stderr
  assert pathlib.Path(tmp_path / "done").exists()


def test_a_config_that_ends_the_process(tmp_path):
  """The whole command, also with a module that the config names."""
  (tmp_path / "c.py").write_text("import sys\nsys.exit(0)")
  (tmp_path / "mine.py").write_text("\n\nexit(0)")
  start, run = time.monotonic(), [sys.executable, "-m", "rl_reason"]
  for flags, words in (
      (["--config=c.py"], "c.py:2"),
      (["--config=grpo", "--config.task.name=mine"], "mine.py:3"),
      (["--config=grpo", "--config.reward.functions=mine:f"], "mine.py:3"),
      (["--config=grpo", "--config.surrogate.name=mine:f"], "mine.py:3"),
  ):
    ended = subprocess.run(
        [*run, *flags],
        cwd=tmp_path,
        env=child_env() | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1 and words in ended.stderr, ended.stderr
  assert time.monotonic() - start < 120
