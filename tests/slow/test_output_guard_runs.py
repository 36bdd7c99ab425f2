"""Whole runs whose screen is lost end as if nothing had happened."""

import subprocess
import sys

import kills
import pytest
from conftest import ROOT, child_env

from rl_reason.monitoring import output_guard

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
  return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, cache):
  workdir = tmp_path_factory.mktemp("undisturbed")
  kills.finish(kills.start(workdir, cache, *kills.RUNS["dapo"]))
  assert not (workdir / output_guard.FILE).exists()
  return workdir


def test_the_reader_ends_after_the_second_step(tmp_path, cache, undisturbed):
  process = kills.start(tmp_path, cache, *kills.RUNS["dapo"])
  while not process.stdout.readline().startswith("responses at step 2"):
    assert process.poll() is None
  process.stdout.close()
  assert process.wait(timeout=300) == 0
  kills.equal(tmp_path, undisturbed)
  text = (tmp_path / output_guard.FILE).read_text()
  assert "standard output takes no text (Broken pipe)" in text
  assert "updates of the policy: " in text and "report: " in text


@pytest.mark.parametrize("where", [">&- 2>&-", ">/dev/full 2>/dev/full"])
def test_there_is_no_screen(tmp_path, cache, undisturbed, where):
  flags = [*kills.FLAGS, *kills.RUNS["dapo"], f"--workdir={tmp_path}"]
  argv = [sys.executable, "-m", "rl_reason.main", *flags]
  done = subprocess.run(
      ["bash", "-c", f'exec "$@" {where}', "bash", *argv],
      cwd=ROOT,
      env=child_env(cache),
  )
  assert done.returncode == 0
  kills.equal(tmp_path, undisturbed)
  text = (tmp_path / output_guard.FILE).read_text()
  assert "rl_reason: all, work directory" in text and "report: " in text
