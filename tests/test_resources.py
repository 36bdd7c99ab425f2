"""What a run says of its machine: memory, utilization, versions."""

import datetime
import json
import subprocess
import types

import numpy as np
import pytest

from rl_reason.monitoring import resources
from rl_reason.report import machine


def test_memory_and_utilization(monkeypatch):
  assert 0.05 < resources.memory_gib() < 100  # of this process
  assert resources.utilization(1e12, 1.0) is None  # of a CPU
  device = types.SimpleNamespace(
      device_kind="NVIDIA H100 80GB HBM3",
      memory_stats=lambda: dict(peak_bytes_in_use=3 * 2**30),
  )
  monkeypatch.setattr(resources.jax, "devices", lambda: [device] * 2)
  monkeypatch.setattr(resources.jax, "local_devices", lambda: [device])
  monkeypatch.setattr(resources.jax, "device_count", lambda: 2)
  assert resources.memory_gib() == 3
  assert resources.utilization(989e12, 2.0) == 0.25


def test_the_machine(tmp_path, monkeypatch):
  monkeypatch.setenv("XLA_FLAGS", "")
  values = machine.describe()
  json.dumps(values)
  for name in (*machine.PACKAGES, "python", "platform", "device kind"):
    assert values[name]
  assert values["device count"] >= 1 and values["process count"] == 1
  assert machine.commit(tmp_path) is None  # no repository, no failure


def test_the_commit_says_edits_but_not_results(tmp_path):
  """A study writes its data while its runs record the commit."""

  def git(*words):
    names = ("-c", "user.name=n", "-c", "user.email=e")
    subprocess.run(["git", *names, "-C", tmp_path, *words], check=True)

  package = tmp_path / "package"
  data = (tmp_path / "results" / "a.json", tmp_path / "studies/x/a.json")
  for path in (package / "__init__.py", *data):
    path.parent.mkdir(parents=True)
    path.write_text("1")
  git("init", "-q")
  assert machine.commit(package) is None  # not part of the repository
  git("add", ".")
  git("commit", "-q", "-m", "first")
  clean = machine.commit(package)
  assert clean and len(clean) == 40
  for path in data:
    path.write_text("2")
  assert machine.commit(package) == clean
  (package / "__init__.py").write_text("2")
  assert machine.commit(package) == f"{clean}-dirty"


def test_host_memory_is_that_of_now():
  before = resources.host_memory_gib()
  block = np.ones(40 * 2**20, np.uint8)
  grown = resources.host_memory_gib() - before
  assert 0.03 < grown < 0.2 and block.all()


def test_energy_of_cpus(tmp_path):
  """Packages count; what they hold, and a platform around them, does not."""
  for zone, name in (("0", "package-0"), ("1", "package-1"), ("2", "psys")):
    folder = tmp_path / f"intel-rapl:{zone}"
    folder.mkdir()
    (folder / "name").write_text(name)
    (folder / "energy_uj").write_text("9000000")
    (folder / "max_energy_range_uj").write_text("10000000")
  energy = resources.Energy(str(tmp_path))
  (tmp_path / "intel-rapl:0" / "energy_uj").write_text("9500000")
  (tmp_path / "intel-rapl:1" / "energy_uj").write_text("1000000")  # was full
  (tmp_path / "intel-rapl:2" / "energy_uj").write_text("9900000")
  assert energy.joules() == pytest.approx(0.5 + 2)
  assert energy.joules() == 0
  (tmp_path / "intel-rapl:1" / "energy_uj").unlink()  # as without the right
  assert energy.joules() == 0
  assert resources.Energy(str(tmp_path / "none")).joules() is None


def test_energy_of_gpus(monkeypatch):
  """Those of the process, by NVML; its arguments are filled as C does."""
  asked, millijoules = [], iter((1000, 5000, 4000, 6500))
  nvml = types.SimpleNamespace(
      nvmlInit_v2=lambda: 0,
      nvmlDeviceGetHandleByIndex_v2=lambda index, _: asked.append(index) or 0,
      nvmlDeviceGetHandleByUUID=lambda uuid, _: asked.append(uuid) or 0,
  )

  def total(_, pointer):
    pointer._obj.value = next(millijoules)
    return 0

  nvml.nvmlDeviceGetTotalEnergyConsumption = total
  devices = [
      types.SimpleNamespace(platform="gpu", local_hardware_id=n) for n in (0, 1)
  ]
  monkeypatch.setattr(resources.jax, "local_devices", lambda: devices)
  monkeypatch.setattr(resources.ctypes, "CDLL", lambda _: nvml)
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-7")
  energy = resources.Energy("/none")
  assert asked == [3, b"GPU-7"]
  assert energy.joules() == pytest.approx(3.0 + 1.5)


def test_goodput_counts_from_the_first_start(tmp_path, monkeypatch):
  """Lines of all stages; the wall clock runs while the run is down, too."""
  lines = [
      {"stage": "sft", "step": 1, "timing_s/steps": 10},
      {"stage": "rl", "step": 1, "timing_s/step": 20},
      {"stage": "evaluate", "step": 1, "timing_s/testing": 5},
  ]
  text = "".join(json.dumps(x) + "\n" for x in lines)
  (tmp_path / "metrics.jsonl").write_text(text)
  dates = ("2026-01-01 00:00:00+00:00", "2026-01-01 00:01:00+00:00")
  text = "".join(json.dumps(dict(date=x, command="x")) + "\n" for x in dates)
  (tmp_path / "starts.jsonl").write_text(text)
  now = datetime.datetime.fromisoformat(dates[0]).timestamp() + 80
  monkeypatch.setattr(resources.time, "time", lambda: now)
  goodput = resources.Goodput(tmp_path)
  assert goodput.add(10) == pytest.approx(40 / 80)
  now += 20
  assert goodput.add(15) == pytest.approx(55 / 100)
  assert resources.Goodput(tmp_path / "new").add(3) == 1  # no run was begun


def test_the_machine_of_an_earlier_run(tmp_path):
  """Earlier versions wrote environment.json."""
  assert machine.read(tmp_path) == {}
  (tmp_path / "environment.json").write_text('{"python": "3.10"}')
  assert machine.read(tmp_path) == {"python": "3.10"}
  (tmp_path / "machine.json").write_text('{"python": "3.11"}')
  assert machine.read(tmp_path) == {"python": "3.11"}
