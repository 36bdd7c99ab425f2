"""Environments that other processes import; nothing here imports jax."""

import os
import pathlib
import subprocess
import sys
import time

import numpy as np

from rl_reason.features.environments import tools


class Counts:
  """Ends after some turns of its own; says how long the response was."""

  def reset(self, row, rng):
    self.rng, self.turns = rng, 0
    self.fault = ""

  def step(self, response):
    self.turns += 1
    over = self.turns > 4 or not self.rng.integers(4)
    return f"{len(response) % 10}=", float(self.rng.integers(-2, 3)), over


class Messages(Counts):
  """Its values have the types of NumPy."""

  def step(self, response):
    said, reward, over = super().step(response)
    return said, np.float32(reward), np.bool_(over)

  def correct(self):
    return np.bool_(self.turns % 2)


class Faulty(Counts):
  """Fails in the ways of its row."""

  FAULTS = ("hangs", "exits", "crashes", "fine", "raises", "recurses")

  def reset(self, row, rng):
    super().reset(row, rng)
    self.fault = self.FAULTS[int(row.prompt) % len(self.FAULTS)]

  def step(self, response):
    match self.fault:
      case "hangs":
        child = subprocess.Popen(["sleep", "1000"])
        pathlib.Path(os.environ["PLAYS"], f"{child.pid}").touch()
        while True:
          time.sleep(100)
      case "exits":
        sys.exit(3)
      case "crashes":
        os.kill(os.getpid(), 9)
      case "raises":
        raise KeyboardInterrupt("stop")
      case "recurses":
        self.step(response)
    return super().step(response)


class Shop(tools.Tools):
  """Tools that answer, raise and exit."""

  def price(self, item: str) -> float:
    """The price of an item.

    Args:
      item: its name.
    """
    if item == "exit":
      sys.exit(f"no {item}")
    return dict(tea=2.5)[item]

  def score(self, response):
    return float(self.row.answer in response)
