"""A run is the teacher of another run, by the command line."""

import subprocess
import sys

import pytest
from conftest import ROOT, child_env

from rl_reason.monitoring import run_log

pytestmark = pytest.mark.slow


def command(config, workdir, *flags):
  return subprocess.run(
      [
          *(sys.executable, "-m", "rl_reason.main", f"--config={config}"),
          *(f"--workdir={workdir}", *flags),
      ],
      cwd=ROOT,
      env=child_env(),
      capture_output=True,
      text=True,
      timeout=300,
      check=False,
  )


@pytest.mark.parametrize("adapter", [(), ("--config.lora.rank=2",)])
def test_a_run_teaches_a_smaller_one(tmp_path, adapter):
  """In both forms; also if the teacher has learned LoRA factors only."""
  teacher = tmp_path / "teacher"
  done = command("configs/dapo.py:smoke", teacher, *adapter)
  assert done.returncode == 0, done.stderr
  named = f"--config.kl.reference={teacher}"
  forms = [(), ("--config.kl.kind=k1", "--config.kl.place=reward")]
  for n, form in enumerate(forms):
    student = tmp_path / f"student-{n}"
    done = command("configs/distill.py:smoke", student, named, *form)
    assert done.returncode == 0, done.stderr
    assert f"kl.reference: the policy of step 3 of RL in {teacher}" in (
        done.stdout
    )
    assert "was not compiled ahead" not in done.stdout
    steps = [x for x in run_log.read_metrics(student) if x["stage"] == "rl"]
    assert all(0 < x["kl/reference"] < 10 for x in steps)
    assert all(x["actor/grad_norm"] > 0 for x in steps)
  other = "--config.data.template=dapo"
  done = command("configs/distill.py:smoke", tmp_path / "no", named, other)
  assert done.returncode == 2 and "'plain' there and 'dapo'" in done.stderr
  assert "compiled" not in done.stdout
