"""What a step takes of the machine: memory, and model FLOPs utilisation."""

import resource
import sys

import jax

# Peak FLOP/s of dense bfloat16 products of one device, by the beginning of its
# `device_kind`, from the data sheets; longer names first.
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


def memory_gib() -> float:
  """Peak memory of the fullest local device; on a CPU, that of the process."""
  found = [device.memory_stats() or {} for device in jax.local_devices()]
  peaks = [x["peak_bytes_in_use"] for x in found if "peak_bytes_in_use" in x]
  if peaks:
    return max(peaks) / 2**30
  unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
  used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return used * unit / 2**30


def utilization(flops: float, seconds: float) -> float | None:
  """Model FLOPs utilisation of all devices, of 1; None if no peak is known.

  Args:
    flops: analytic ones of a step, without padding and recomputation.
    seconds: that the step took.
  """
  kind = jax.devices()[0].device_kind
  peaks = [x for name, x in PEAK_FLOPS.items() if kind.startswith(name)]
  if not peaks or seconds <= 0:
    return None
  return flops / seconds / (peaks[0] * jax.device_count())
