"""Devices that only sample: the batches of a mesh that does both."""

import jax
import pytest
import tiny_session
from tiny_session import call

from rl_reason.base.errors import Stopped
from rl_reason.devices import device_mesh
from rl_reason.stages import interim, rl

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("half_correct")]
half_correct = tiny_session.half_correct


def run(workdir, meshes, stop_at=None):
  c = tiny_session.tiny_config()
  c.rl.update(steps=4, staleness=2)
  session = tiny_session.make_session(workdir, c, *meshes)
  if stop_at is not None:
    session = tiny_session.interrupted(session, stop_at=stop_at)
  with jax.set_mesh(session.mesh):
    call(rl.train, session, tiny_session.random_params(session))
  return tiny_session.logged(workdir)


@pytest.mark.parametrize(
    "split",
    [dict(rollout=4, data=2, fsdp=2), dict(data=4, fsdp=2)],
    ids=["4 + 4", "8 shared"],
)
def test_devices_that_only_sample_change_no_number(
    tmp_path, monkeypatch, split
):
  """Up to the rounding of sums in another order."""
  monkeypatch.setattr(interim, "run", lambda *_: 0.0)
  one = device_mesh.make_mesh(devices=jax.devices()[:1])
  wanted = run(tmp_path / "one", (one, one))
  meshes = device_mesh.make_meshes(**split)
  assert (meshes[0] == meshes[1]) == ("rollout" not in split)
  got = run(tmp_path / "split", meshes)
  assert [line["train/age_max"] for line in got] == [0, 1, 2, 2]
  # The bits of the weights are equal until they are those of an update.
  digest, version = "rollout/policy_digest", "rollout/policy_version"
  assert [line[version] for line in got] == [0, 0, 0, 1]
  for line, like in zip(got[:3], wanted[:3], strict=True):
    assert line[digest] == like[digest]
  for line, like in zip(got, wanted, strict=True):
    for name, value in like.items():
      if name == digest:
        continue
      if not isinstance(value, str):
        value = pytest.approx(value, rel=1e-3, abs=1e-5)
      assert line[name] == value, name
  if "rollout" in split:  # another run, which resumes, is equal to the bit
    with pytest.raises(Stopped):
      run(tmp_path / "again", meshes, stop_at=2)
    assert run(tmp_path / "again", meshes) == got
