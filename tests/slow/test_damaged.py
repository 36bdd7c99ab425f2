"""No damage of a checkpoint passes in silence: a thousand, at random."""

import random

import pytest
from test_checkpoint import save_some

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("how", ["flip", "truncate"])
def test_a_thousand_damages_are_named(tmp_path, how):
  """One bit, or the end of one file; the checkpoint before is used."""
  c = save_some(tmp_path, [1, 2], [0.5, 0.75], keep_last=2)
  files = [x for x in sorted((tmp_path / "2").rglob("*")) if x.is_file()]
  files = [x for x in files if x.stat().st_size]
  assert {"manifest.json", "host.json"} < {x.name for x in files}
  rng, silent = random.Random(0), []
  for number in range(1000):
    path = files[number % len(files)]
    whole = path.read_bytes()
    at = rng.randrange(len(whole))
    part = whole[:at]
    if how == "flip":
      part += bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :]
    path.write_bytes(part)
    said = []
    if c.newest(said.append) != 1 or len(said) != 1 or c.best() == 2:
      silent.append((path, at))
    path.write_bytes(whole)
  assert not silent
  assert c.newest() == 2
