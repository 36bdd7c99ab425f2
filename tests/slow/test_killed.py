"""Whatever kills a run, the same command ends with the same bits.

test_resume.py has cheap ones.
"""

import resource
import signal
import time

import kills
import pytest
from conftest import ROOT
from kills import equal, finish, outcome

pytestmark = pytest.mark.slow

KILLER = str(ROOT / "tests" / "slow" / "killer.py")


def start(workdir, cache, *how, more=(), file_bytes=None):
  """A run of DAPO that replays groups."""
  limit = file_bytes and (
      lambda: resource.setrlimit(resource.RLIMIT_FSIZE, [file_bytes] * 2)
  )
  how = how or ("-m", "rl_reason.main")
  flags = (*kills.RUNS["dapo"], *more)
  return kills.start(workdir, cache, *flags, how=how, preexec_fn=limit)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
  return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, cache):
  workdir = tmp_path_factory.mktemp("undisturbed")
  finish(start(workdir, cache))
  return workdir


def test_killed_at_every_kind_of_instant(tmp_path, cache, undisturbed):
  """Inside SFT, a save, a manifest, a line, a rollout: one run, five kills."""
  for place, count in (
      ("sft", 15),
      ("manifest", 2),
      ("jsonl", 8),
      ("save", 2),
      ("rollout", 3),
  ):
    process = start(tmp_path, cache, KILLER, place, str(count), "--")
    finish(process, -signal.SIGKILL)
  out = finish(start(tmp_path, cache))
  assert "resumes at step" in out
  equal(tmp_path, undisturbed)
  assert "is complete" in finish(start(tmp_path, cache))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_first(tmp_path, cache, undisturbed, number):
  """Within 10 s, in SFT and in RL; and the run goes on from there."""
  for marker, saved in (("sft", "sft"), ('"rl"', "rl")):
    process = start(tmp_path, cache)
    log = tmp_path / "metrics.jsonl"
    while not (log.exists() and marker in log.read_text()):
      time.sleep(0.05)
      assert process.poll() is None
    process.send_signal(number)
    began = time.monotonic()
    out = finish(process, 143)
    assert time.monotonic() - began < 10
    assert "stopped by a signal" in out
    newest = max(
        (tmp_path / "checkpoints" / saved).iterdir(), key=lambda p: int(p.name)
    )
    assert (newest / "manifest.json").exists()
    page = (tmp_path / "report.html").read_text()
    assert ": stopped or still running." in page
  finish(start(tmp_path, cache))
  equal(tmp_path, undisturbed)


def test_a_full_disk_ends_the_run_in_one_line(tmp_path, cache, undisturbed):
  """The checkpoint before is whole, and the end is the same without it."""
  process = start(tmp_path, cache, KILLER, "rollout", "3", "--")
  finish(process, -signal.SIGKILL)
  out = finish(start(tmp_path, cache, file_bytes=100_000), 1)
  [line] = [x for x in out.splitlines() if x.startswith("error: ")]
  assert f"{tmp_path}: cannot be written (File too large" in line
  assert "Traceback" not in out
  assert "damaged" not in finish(start(tmp_path, cache))
  equal(tmp_path, undisturbed)


def test_a_resumed_run_may_offload_its_moments(tmp_path, cache, undisturbed):
  """Killed in RL, it goes on with optimizer.offload, and ends as it would."""
  # Five manifests of SFT, and that of RL at steps 0, 3 and 6.
  process = start(tmp_path, cache, KILLER, "manifest", "8", "--")
  finish(process, -signal.SIGKILL)
  out = finish(start(tmp_path, cache, more=["--config.optimizer.offload=True"]))
  assert "RL: resumes at step 3 of 7" in out
  got, wanted = outcome(tmp_path), outcome(undisturbed)
  assert got[1].pop("config") != wanted[1].pop("config")
  assert got == wanted


def test_killed_at_random_instants(tmp_path):
  """A few kills of a few algorithms; the command has 200 of all."""
  done = kills.main(tmp_path, 6, ("dapo", "vapo", "lora"))
  assert sum(done.values()) == 6
  assert kills.main(tmp_path, 6) == done  # it goes on where it ended
