"""The report of a run in a browser."""

import json
import shutil

import pytest
from conftest import found_in_browser
from test_report import HOSTILE, put, rl_line, sample

from rl_reason.report import page

pytestmark = pytest.mark.slow


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
def test_in_a_browser(tmp_path):
  """Hovered numbers are those of the file, and hostile text does nothing."""
  rows = [sample("rl", 1, text) for text in HOSTILE[:3]]
  rows.insert(0, sample("evaluate", 0, HOSTILE[1]))
  path = page.write(put(tmp_path, [rl_line(1), rl_line(3)], rows))
  probe = """<script>
    document.querySelectorAll(".token")[2].focus();
    const details = [...document.querySelectorAll("#details dd")];
    document.body.textContent = "FOUND" + JSON.stringify([document.title,
      document.images.length, document.querySelectorAll("#charts path").length,
      ...details.map(node => node.textContent)]) + "FOUND";
  </script>"""
  found = found_in_browser(path, probe)
  title, images, paths, token, position, *numbers = found
  assert title == f"{tmp_path.name}: RL report" and not images and paths > 5
  assert json.loads(token) == HOSTILE[0] and position == "3 of 3"
  names = ("advantage", "logp", "entropy")
  assert [float(x) for x in numbers] == [rows[1][name][2] for name in names]
