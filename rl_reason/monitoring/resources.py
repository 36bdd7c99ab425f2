"""The resources of a step: time, tokens, FLOPs, memory and energy."""

import contextlib
import ctypes
import datetime
import math
import os
import pathlib
import resource
import sys
import time
from typing import Any, NamedTuple

import jax

from rl_reason.base.structs import Experience
from rl_reason.monitoring.run_log import read_metrics, starts

# Peak FLOP/s of dense bfloat16 products of one device, from the data sheets, by
# the prefix of its `device_kind`; longer prefixes first.
PEAK_FLOPS = {
    "TPU v6 lite": 918e12,
    "TPU v5 lite": 197e12,
    "TPU v5p": 459e12,
    "TPU v5": 459e12,
    "TPU v4": 275e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA H200": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100": 989e12,
    "NVIDIA A100": 312e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA L4": 121e12,
    "NVIDIA GeForce RTX 4090": 165e12,
}


# --- time ---------------------------------------------------------------------


class Clock:
  """Splits time into laps; all time counts for exactly one name.

  Attributes:
    seconds: by name, since the last `take`.
  """

  def __init__(self):
    self.seconds: dict[str, float] = {}
    self._since = time.monotonic()

  def lap(self, name: str) -> None:
    """Adds the time since the last lap to `name`."""
    now = time.monotonic()
    self.seconds[name] = self.seconds.get(name, 0) + now - self._since
    self._since = now

  def skip(self) -> None:
    """Discards the time since the last lap."""
    self._since = time.monotonic()

  def take(self) -> dict[str, float]:
    """Returns the seconds by name and resets them."""
    out, self.seconds = self.seconds, {}
    return out


def times(seconds: dict[str, float]) -> dict[str, float]:
  """The laps of a step, their sum, and the idle time of the device."""
  out = {f"timing_s/{name}": value for name, value in seconds.items()}
  idle = seconds.get("score", 0) + seconds.get("host", 0)
  return out | {"timing_s/idle": idle, "timing_s/step": sum(seconds.values())}


class Goodput:
  """Goodput: the share of the wall-clock time that was spent on useful steps.

  The wall-clock time begins with the first start of the run in its work
  directory. It includes evaluations, checkpoints, steps that a kill discarded,
  and the time until the next start. Useful are the steps of all stages with a
  line in metrics.jsonl.

  Args:
    workdir: of the run.
  """

  def __init__(self, workdir: pathlib.Path):
    self._workdir, self._seconds, self._begin = workdir, 0.0, 0.0

  def add(self, seconds: float) -> float:
    """Adds a step of some seconds; returns the share so far."""
    if not self._begin:  # the steps of earlier processes and stages
      for x in read_metrics(self._workdir):
        self._seconds += x.get("timing_s/step") or x.get("timing_s/steps") or 0
      first = starts(self._workdir)[:1]
      date = first[0]["date"] if first else ""
      self._begin = (
          datetime.datetime.fromisoformat(date).timestamp()
          if date
          else time.time() - self._seconds - seconds
      )
    self._seconds += seconds
    return min(self._seconds / max(time.time() - self._begin, 1e-9), 1.0)


# --- tokens and FLOPs ---------------------------------------------------------


def no_counters() -> dict[str, float]:
  """The counters of a run that has not begun."""
  return dict(tokens=0, flops=0.0)


def totals(counters: dict[str, float]) -> dict[str, float]:
  """The counters as metrics."""
  return {
      "tokens/generated": counters["tokens"],
      "flops/total": counters["flops"],
  }


class Counter(NamedTuple):
  """Counts generated tokens and analytic FLOPs, without padding.

  Attributes:
    flops_per_token: of one forward pass.
    passes: forward passes over a training batch; a backward pass counts as two.
    max_prompt: slots of a prompt.
    group_size: responses to a prompt.
  """

  flops_per_token: float
  passes: float
  max_prompt: int
  group_size: int

  def add(
      self,
      counters: dict[str, float],
      rows: Experience,
      generated: int,
      responses: int,
  ) -> dict[str, float]:
    """The counters after one more step.

    `generated` and `responses` are sampled tokens and responses, discarded
    groups included.
    """
    length_B = self.max_prompt - rows.rollouts.start_B + rows.rollouts.lengths_B
    trained = int(length_B[rows.age_B >= 0].sum())
    prompts = responses * self.max_prompt // self.group_size
    tokens = generated + prompts + self.passes * trained
    flops = self.flops_per_token * tokens
    return dict(
        tokens=counters["tokens"] + generated, flops=counters["flops"] + flops
    )


# --- memory, FLOP/s and energy of the machine ---------------------------------


def memory_gib() -> float:
  """Peak memory of the fullest local device; on a CPU, of the process."""
  found = [device.memory_stats() or {} for device in jax.local_devices()]
  peaks = [x["peak_bytes_in_use"] for x in found if "peak_bytes_in_use" in x]
  if peaks:
    return max(peaks) / 2**30
  unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
  used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return used * unit / 2**30


def host_memory_gib() -> float | None:
  """Present memory of this process without its workers; None if unknown."""
  path = pathlib.Path("/proc/self/statm")  # only Linux has it
  if not path.exists():
    return None
  return int(path.read_text().split()[1]) * resource.getpagesize() / 2**30


def utilization(flops: float, seconds: float) -> float | None:
  """Model FLOPs utilization of all devices, of 1; None if no peak is known.

  `flops` of a step are analytic, without padding and recomputation.
  """
  kind = jax.devices()[0].device_kind
  peaks = [x for name, x in PEAK_FLOPS.items() if kind.startswith(name)]
  if not peaks or seconds <= 0:
    return None
  return flops / seconds / (peaks[0] * jax.device_count())


def _gpus() -> tuple[Any, list[ctypes.c_void_p]]:
  """NVML and its handles of the GPUs of this process."""
  ids = [
      x.local_hardware_id for x in jax.local_devices() if x.platform == "gpu"
  ]
  try:
    nvml = ctypes.CDLL("libnvidia-ml.so.1") if ids else None
  except OSError:  # GPUs of another vendor
    nvml = None
  if nvml is None or nvml.nvmlInit_v2():
    return None, []
  visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, ids))
  names = dict(zip(sorted(ids), visible.split(","), strict=False))
  out = []
  for name in names.values():
    handle = ctypes.c_void_p()
    if name.isdecimal():
      by_index = nvml.nvmlDeviceGetHandleByIndex_v2
      failed = by_index(int(name), ctypes.byref(handle))
    else:
      by_uuid = nvml.nvmlDeviceGetHandleByUUID
      failed = by_uuid(name.encode(), ctypes.byref(handle))
    out += [] if failed else [handle]
  return nvml, out


class Energy:
  """Energy of the CPUs of the machine, and of the GPUs of this process.

  RAPL counts the energy of CPUs for all processes; often only root may read it.
  NVML counts the energy of GPUs (NVIDIA since Volta). Devices without a counter
  are left out.

  Args:
    powercap: directory of Linux with the counters of RAPL.
  """

  def __init__(self, powercap: str = "/sys/class/powercap"):
    self._zones = sorted(pathlib.Path(powercap).glob("*-rapl:?"))
    self._nvml, self._gpus = _gpus()
    self._before = self._counters()

  def joules(self) -> float | None:
    """Joules since the last call, or the start; None without any counter."""
    before, self._before = self._before, self._counters()
    changes = [
        (now - before[name][0]) % full  # a counter that overflows begins at 0
        for name, (now, full) in self._before.items()
        if name in before
    ]
    return sum(changes) if changes else None

  def _counters(self) -> dict[str, tuple[float, float]]:
    """Joules of each device so far, and the maximum of its counter."""
    out = {}
    for zone in self._zones:
      with contextlib.suppress(OSError, ValueError):
        if (zone / "name").read_text().startswith("package"):
          now, full = (
              int((zone / name).read_text()) / 1e6
              for name in ("energy_uj", "max_energy_range_uj")
          )
          out[zone.name] = now, full
    for index, gpu in enumerate(self._gpus):
      used = ctypes.c_ulonglong()  # millijoules
      total = self._nvml.nvmlDeviceGetTotalEnergyConsumption
      if not total(gpu, ctypes.byref(used)):
        out[f"gpu {index}"] = used.value / 1e3, math.inf
    return out


class StepResources:
  """Measures the resources of RL steps.

  Args:
    workdir: of the run.
  """

  def __init__(self, workdir: pathlib.Path):
    self._goodput, self._energy = Goodput(workdir), Energy()
    self._flops: float | None = None  # total at the step before

  def metrics(
      self, seconds: float, tokens: float, flops: float
  ) -> dict[str, float]:
    """The metrics of a step, without the ones that are unknown.

    Args:
      seconds: duration of the step.
      tokens: generated tokens of the step.
      flops: of the run so far, including this step.
    """
    before, self._flops = self._flops, flops
    found = {
        "perf/throughput": tokens / seconds,
        "perf/memory_gib": memory_gib(),
        "perf/goodput": self._goodput.add(seconds),
        "perf/host_memory_gib": host_memory_gib(),
        "perf/energy_j": self._energy.joules(),
        "perf/mfu": None
        if before is None
        else utilization(flops - before, seconds),
    }
    return {name: x for name, x in found.items() if x is not None}
