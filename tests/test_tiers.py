"""Tiers of the sandbox: which is used, what a probe sees, and the lockdown."""

import json
import os
import platform

import pytest
from test_sandbox import PROBLEMS, output

from rl_reason.verifiers import candidate, code, lockdown, sandbox


def test_the_lowest_tier_has_to_be_allowed(monkeypatch):
  monkeypatch.setattr(
      sandbox, "probe", lambda name: "" if name == "rlimits" else "broken"
  )
  with pytest.raises(RuntimeError, match="rlimits: needs .* no run gives"):
    sandbox.tier("rlimits")
  with pytest.raises(RuntimeError, match="bubblewrap: broken"):
    code.grade("def f(): return 1", code.Calls("assert f() == 1"))
  assert sandbox.tier(allow_unsafe=True) == "rlimits"
  monkeypatch.setattr(platform, "machine", lambda: "x86_64")
  monkeypatch.setattr(sandbox.shutil, "which", lambda name: name)
  with pytest.raises(RuntimeError, match=": allow user namespaces"):
    sandbox.tier()
  monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
  with pytest.raises(RuntimeError, match=": install bubblewrap"):
    sandbox.tier()
  monkeypatch.setattr(platform, "machine", lambda: "riscv64")
  with pytest.raises(RuntimeError, match=": use Linux on x86-64$"):
    sandbox.tier()


def test_the_best_tier_is_taken(monkeypatch):
  monkeypatch.setattr(sandbox, "probe", lambda name: "")
  assert sandbox.tier() == "bubblewrap"
  assert sandbox.tier("landlock") == "landlock"
  missing = {"bubblewrap": "bwrap is not installed"}
  monkeypatch.setattr(sandbox, "probe", lambda name: missing.get(name, ""))
  assert sandbox.tier() == "landlock"
  with pytest.raises(RuntimeError, match="bwrap is not installed"):
    sandbox.tier("bubblewrap")


def test_a_machine_without_bubblewrap_or_filter_is_seen(monkeypatch):
  monkeypatch.setenv("PATH", "/nowhere")
  assert "apt-get install bubblewrap" in sandbox.probe.__wrapped__("bubblewrap")
  monkeypatch.setattr(platform, "machine", lambda: "riscv64")
  assert "riscv64" in sandbox.probe.__wrapped__("landlock")


@pytest.mark.skipif(bool(PROBLEMS["rlimits"]), reason=PROBLEMS["rlimits"])
def test_a_probe_tells_what_leaks(monkeypatch):
  """Limits alone, said to be Landlock: the probe gets at files."""
  real = sandbox._lockdown
  monkeypatch.setattr(
      sandbox, "_lockdown", lambda tier, limits: real("rlimits", limits)
  )
  if platform.machine() == "x86_64":
    assert sandbox.probe.__wrapped__("landlock") == (
        "leaks: reads files, writes files"
    )


@pytest.mark.skipif(not sandbox._is_root(), reason="not root")
def test_root_keeps_no_powers(monkeypatch):
  """Nor gets them back; looked at without the filter, which hides it."""
  real = sandbox._lockdown
  monkeypatch.setattr(
      sandbox,
      "_lockdown",
      lambda tier, limits: real(tier, limits) | dict(seccomp=False),
  )
  program = """
import os
def powers():
  with open("/proc/self/status") as f:
    return [line.split()[1] for line in f if line.startswith("Cap")][:3]
print(*powers(), os.getuid() > 1 << 30)
os.setresuid(0, 0, 0)
print(*powers())
"""
  none = " ".join(3 * ["0" * 16])
  assert output(program, "rlimits")[0] == f"{none} True\n{none}\n"


def test_a_lockdown_that_fails_is_the_end(monkeypatch):
  """No program runs in less than what was asked for."""
  real = sandbox._lockdown
  broken = dict(files=1 << 40)  # more than the kernel allows
  monkeypatch.setattr(
      sandbox, "_lockdown", lambda tier, limits: real(tier, limits) | broken
  )
  name = sandbox.tier(allow_unsafe=True)
  assert output("print('ran')", name) == ("", "error")


def test_a_job_cannot_be_changed():
  fd = sandbox.memory_file(b"job")
  try:
    assert os.read(fd, 9) == b"job"
    with pytest.raises(OSError):
      os.write(fd, b"x")
    with pytest.raises(OSError):
      os.ftruncate(fd, 0)
  finally:
    os.close(fd)


def test_roles_and_limits_are_what_the_inside_takes():
  """The two sides of the sandbox agree; JSON carries all of it."""
  for name in sandbox.TIERS:
    lock = sandbox._lockdown(name, sandbox.Limits())
    assert json.loads(json.dumps(lock)) == lock
    assert set(lock) == set(lockdown.apply.__kwdefaults__ or lock)
  assert candidate.EXITS[0] == ""
