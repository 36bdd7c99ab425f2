"""What the suite says about itself."""

import os
import subprocess
import sys

from conftest import ROOT

SKIPS = """
import pytest

@pytest.mark.parametrize("x", range(2))
def test_needs_a_package(x):
  pytest.importorskip("no_such_package.part")

@pytest.mark.skipif(True, reason="not on this machine")
def test_needs_a_machine():
  raise AssertionError

def test_runs():
  pass
"""


def test_a_run_ends_with_what_was_skipped_and_why(tmp_path):
  (tmp_path / "test_some.py").write_text(SKIPS)
  module = "import pytest\npytest.importorskip('no_such_package')\n"
  (tmp_path / "test_file.py").write_text(module)
  done = subprocess.run(
      [sys.executable, "-m", "pytest", "-q", "-p", "conftest", str(tmp_path)],
      env=os.environ | dict(PYTHONPATH=str(ROOT / "tests")),
      cwd=tmp_path,
      capture_output=True,
      text=True,
  )
  *_, counted, last = done.stdout.splitlines()
  assert counted == (
      "4 skipped: 2 without no_such_package; 1 file without no_such_package;"
      " 1 not on this machine"
  )
  assert last.startswith("1 passed, 4 skipped in ")  # the line that CI reads
