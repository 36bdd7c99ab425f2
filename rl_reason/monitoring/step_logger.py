"""Logs and shows an RL step while the device runs the next one."""

import pathlib
from typing import Any

import jax
import numpy as np

from rl_reason.monitoring.alerts import HEALTH
from rl_reason.monitoring.display import Display
from rl_reason.monitoring.health import HealthMonitor
from rl_reason.monitoring.resources import Clock, StepResources, times
from rl_reason.monitoring.run_log import Log


class StepLogger:
  """Logs RL steps without waiting for the device.

  The metrics of an update are read when the next rollout is already on the
  device, so that the host never waits for an update.

  Args:
    log: receives the metrics.
    display: the screen.
    clock: laps of the training loop.
    health: checks each step.
    workdir: of the run.
  """

  def __init__(
      self,
      log: Log,
      display: Display,
      clock: Clock,
      health: HealthMonitor,
      workdir: pathlib.Path,
  ):
    self._log, self._display, self._clock = log, display, clock
    self._health, self._resources = health, StepResources(workdir)
    self._pending: tuple | None = None

  def dispatched(
      self, step: int, metrics: dict, actor: dict, critic: dict
  ) -> None:
    """Takes the metrics of a step whose update was dispatched.

    Args:
      step: RL steps that are done, this one included.
      metrics: on the host.
      actor: metrics of the policy's update, on the device.
      critic: metrics of the critic's update, on the device; {} without one.
    """
    self.flush()  # so that a pending step is never overwritten
    self._pending = step, metrics, dict(actor=actor, critic=critic)

  def flush(self) -> None:
    """Waits for the pending step and logs it."""
    if self._pending is None:
      return
    (step, metrics, device_metrics), self._pending = self._pending, None
    for prefix, values in jax.device_get(device_metrics).items():
      metrics |= {
          name if "/" in name else f"{prefix}/{name}": value
          for name, value in values.items()
      }
    if not metrics["tokens/trained"]:
      # A mean over no tokens is unknown, and 0 would be a collapse.
      metrics.pop("actor/entropy", None)
    self._clock.lap("update_actor")
    metrics |= times(self._clock.take())
    metrics |= self._resources.metrics(
        seconds=metrics["timing_s/step"],
        tokens=metrics["tokens/step"],
        flops=metrics["flops/total"],
    )
    alerts = self._health.check(step, metrics)
    logged = {
        name: value
        for name, value in metrics.items()
        if not name.startswith(HEALTH)
    }
    self._log.metrics("rl", step, logged | alerts)
    shown = {}
    if "response_length/mean" in metrics:  # the batch has a row
      shown["length"] = float(metrics["response_length/mean"])
    self._display.step(
        step,
        **_headline(metrics),
        **shown,
        tokens_s=f"{metrics['perf/throughput']:.0f}",
    )


def _headline(metrics: dict[str, Any]) -> dict[str, Any]:
  """The first number on the screen: accuracy, or reward without a verifier."""
  if "train/accuracy" in metrics:
    return dict(accuracy=f"{metrics['train/accuracy']:.1%}")
  return dict(reward=float(metrics.get("critic/rewards/mean", np.nan)))
