"""Bubbles of pipelines, by formula."""

import pytest

from studies.pipeline import run as pipeline

pytestmark = pytest.mark.slow


def test_bubbles_by_hand():
  # 100 layers of 10 parameters, 20 in each of the two matrices of tokens.
  found = pipeline.pipeline(1040, 20, 100, devices=64, stages=4)
  assert found["micro"] == 2**21 // (8192 * 64 // (4 * 4))
  assert found["bubble"] == 3 / 67 and found["uneven"] == 2 / 27
  assert found["idle"] == pytest.approx(1 - 64 / 67 * 25 / 27)
  # 8 bytes a parameter; 8 operations for each of its tokens.
  assert pipeline.gathering(2.0, 1.0, 100) == 0.01
