"""What a run says of its machine: memory, utilization, versions."""

import json
import types

from rl_reason.monitoring import machine
from rl_reason.report import environment


def test_memory_and_utilization(monkeypatch):
  assert 0.05 < machine.memory_gib() < 100  # of this process
  assert machine.utilization(1e12, 1.0) is None  # of a CPU
  device = types.SimpleNamespace(
      device_kind="NVIDIA H100 80GB HBM3",
      memory_stats=lambda: dict(peak_bytes_in_use=3 * 2**30),
  )
  monkeypatch.setattr(machine.jax, "devices", lambda: [device] * 2)
  monkeypatch.setattr(machine.jax, "local_devices", lambda: [device])
  monkeypatch.setattr(machine.jax, "device_count", lambda: 2)
  assert machine.memory_gib() == 3
  assert machine.utilization(989e12, 2.0) == 0.25


def test_environment(tmp_path, monkeypatch):
  monkeypatch.setenv("XLA_FLAGS", "")
  values = environment.describe()
  json.dumps(values)
  for name in (*environment.PACKAGES, "python", "platform", "device kind"):
    assert values[name]
  assert values["device count"] >= 1 and values["process count"] == 1
  assert environment.commit(tmp_path) is None  # no repository, no failure
