"""Temporary memory against depth, of compiled programs."""

import dataclasses

import pytest

from studies.remat import run as remat

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("kind", "inputs"), [("full", 32), ("sqrt", 8)])
def test_memory_grows_with_the_layers_or_their_root(kind, inputs):
  """From 2 groups of 2 layers to 6 of 6; sqrt has weights of a group, too."""
  few, many = (
      remat.temporary(dataclasses.replace(remat.CFG, layers=layers, remat=kind))
      for layers in (4, 36)
  )
  size = 4 * remat.ROWS * remat.LENGTH * remat.CFG.width
  assert inputs <= (many - few) / size < inputs + 2.5
