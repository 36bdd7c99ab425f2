"""Checkpoints: whole or not there, and never silently wrong."""

import contextlib
import pathlib
import resource
import shutil
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base
from rl_reason.base import config, errors
from rl_reason.base.errors import Stopped
from rl_reason.base.structs import TrainState
from rl_reason.checkpointing import checkpoint, resumable
from rl_reason.checks import config_checks, exit_status
from rl_reason.monitoring import display, run_log


def state(step):
  return {"w": jnp.arange(6.0).reshape(2, 3) * step, "step": jnp.int32(step)}


def save_some(directory, steps, scores=None, **keep):
  c = checkpoint.Checkpoints(directory, **keep)
  for i, step in enumerate(steps):
    c.save(step, state(step), {"at": step}, scores[i] if scores else None)
  c.close()
  return checkpoint.Checkpoints(directory, **keep)


def test_round_trip(tmp_path):
  c = save_some(tmp_path, [3, 7], keep_last=2)
  assert c.newest() == 7 and c.host(7) == {"at": 7}
  found = c.restore(7, jax.tree.map(jnp.zeros_like, state(0)))
  jax.tree.map(np.testing.assert_array_equal, found, state(7))


def test_entries_that_earlier_versions_saved_as_none(tmp_path):
  """Of parts of the state that have left it, in runs that did not use them."""
  c = checkpoint.Checkpoints(tmp_path)
  c.save(1, state(1) | dict(kept=None, history=None), {})
  c.close()
  found = checkpoint.Checkpoints(tmp_path).restore(1, state(0))
  assert found.pop("kept") is None and found.pop("history") is None
  jax.tree.map(np.testing.assert_array_equal, found, state(1))


def test_a_copy_beside_the_checkpoints_is_none(tmp_path):
  """One with another name than a step; a kill may leave a whole STEP.new."""
  assert checkpoint.newest_host(tmp_path) is None
  save_some(tmp_path, [3, 7], keep_last=2)
  for name in ("backup", "9.old"):
    shutil.copytree(tmp_path / "3", tmp_path / name)
  assert checkpoint.newest_host(tmp_path) == (7, {"at": 7})
  (tmp_path / "7").rename(tmp_path / "7.new")
  assert checkpoint.newest_host(tmp_path) == (7, {"at": 7})


def test_keeps_the_last_and_the_best(tmp_path):
  c = save_some(
      tmp_path,
      [1, 2, 3, 4, 5, 6],
      [0.1, 0.9, 0.3, 0.9, None, 0.2],
      keep_last=2,
      keep_best=1,
  )
  assert c.steps() == [2, 5, 6]  # of equal scores the earlier
  assert c.best() == 2


@pytest.mark.parametrize("name", ["_remove", "shutil.rmtree"])
def test_a_kill_while_old_ones_are_removed_leaves_none_for_ever(
    tmp_path, monkeypatch, name
):
  """Neither a whole one nor a part, whether the run is complete or goes on."""

  def die(*_, **__):
    raise KeyboardInterrupt

  first, on = tmp_path / "first", tmp_path / "on"
  c = save_some(first, [1, 2], keep_last=2)
  with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
    c.save(3, state(3), {})
    m.setattr(c, "_rename", lambda new: new.rename(first / "3"))
    m.setattr(f"{checkpoint.__name__}.{name}", die)
    c.close()
  assert len(list(first.iterdir())) == 3
  shutil.copytree(first, on)
  checkpoint.Checkpoints(first, keep_last=2).prune(3)
  assert sorted(p.name for p in first.iterdir()) == ["2", "3"]
  c = save_some(on, [4], keep_last=2)
  assert sorted(p.name for p in on.iterdir()) == ["3", "4"] and c.newest() == 4


@pytest.mark.parametrize("name", ["shutil.rmtree", "pathlib.Path.rename"])
@pytest.mark.parametrize("calls", [0, 1])
def test_a_kill_leaves_no_part_under_the_name_of_a_checkpoint(
    tmp_path, monkeypatch, name, calls
):
  """SFT saves its last step again: at any moment a whole one is there."""
  c, count = save_some(tmp_path, [30]), 0
  rename, remove = pathlib.Path.rename, shutil.rmtree

  def die(*args, **kwargs):
    nonlocal count
    if name == "shutil.rmtree" and not pathlib.Path(args[0]).exists():
      return None
    count += 1
    if count > calls:
      raise KeyboardInterrupt
    return (remove if "rmtree" in name else rename)(*args, **kwargs)

  with monkeypatch.context() as m, contextlib.suppress(KeyboardInterrupt):
    c.save(30, state(2), {"at": "second"})
    c._orbax.wait_until_finished()
    m.setattr(f"{checkpoint.__name__}.{name}", die)
    c.close()
  whole = not checkpoint.Checkpoints(tmp_path).fault(30)
  assert whole or not (tmp_path / "30").exists()
  again = checkpoint.Checkpoints(tmp_path)
  again.tidy()
  assert [x.name for x in tmp_path.iterdir()] == ["30"]
  assert again.newest() == 30 and again.host(30) == {"at": "second"}


def test_what_is_newer_than_the_restored_one_is_not_counted(tmp_path):
  """It is damaged: the whole one before it must not make room for it."""
  c = save_some(tmp_path, [1, 2], keep_last=2)
  files(tmp_path / "2")[0].write_text("")
  c = checkpoint.Checkpoints(tmp_path, keep_last=1)
  assert c.newest(lambda _: None) == 1
  c.prune(1)
  assert c.steps() == [1, 2] and c.fault(1) is None


def files(directory):
  return [
      p
      for p in sorted(directory.rglob("*"))
      if p.name != "manifest.json" and p.is_file()
  ]


def test_every_file_is_covered(tmp_path):
  """One bit flipped in any file at all: named, and the one before is used."""
  c = save_some(tmp_path, [1, 2], keep_last=2)
  assert len(files(tmp_path / "2")) >= 5
  for path in files(tmp_path / "2"):
    whole = path.read_bytes()
    if not whole:
      continue
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    path.write_bytes(flipped)
    said = []
    assert c.newest(said.append) == 1
    assert len(said) == 1
    assert path.name in said[0] and "/2 is damaged" in said[0]
    path.write_bytes(whole)
  assert c.newest() == 2


def edit(directory, old, new):
  path = directory / "manifest.json"
  path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    "harm, words",
    [
        (lambda d: (d / "manifest.json").unlink(), "unfinished"),
        (lambda d: (d / "manifest.json").write_text("{"), "manifest cannot be"),
        (lambda d: (d / "manifest.json").write_text("[]"), "manifest cannot"),
        (
            lambda d: (d / "manifest.json").write_text('{"files": {}}'),
            "manifest cannot be read",
        ),
        (
            lambda d: (d / "manifest.json").write_text('{"files": 3}'),
            "manifest cannot be read",
        ),
        (lambda d: edit(d, '"score": null', '"score": 2e9'), "has changed"),
        (lambda d: edit(d, '"digest"', '"dihest"'), "has changed"),
        (lambda d: (d / "host.json").unlink(), "host.json is missing"),
        (lambda d: files(d / "state")[0].unlink(), "is missing"),
    ],
)
def test_damage_is_named(tmp_path, harm, words):
  c = save_some(tmp_path, [1, 2], keep_last=2)
  harm(tmp_path / "2")
  said = []
  assert c.newest(said.append) == 1
  assert words in said[0]
  assert c.best() is None  # nothing was scored


def test_a_save_beside_a_damaged_manifest(tmp_path):
  """What is wrong with an old checkpoint does not stop a run."""
  save_some(tmp_path, [1, 2], keep_last=2)
  (tmp_path / "1" / "manifest.json").write_text("{")
  c = checkpoint.Checkpoints(tmp_path, keep_last=2)
  c.save(3, state(3), {}, score=1.0)
  c.close()
  assert c.steps() == [2, 3] and c.newest() == c.best() == 3


def test_nothing_whole_is_nothing(tmp_path):
  assert checkpoint.Checkpoints(tmp_path / "none").newest() is None
  save_some(tmp_path, [1])
  (tmp_path / "1" / "manifest.json").unlink()
  assert checkpoint.Checkpoints(tmp_path).newest(lambda _: None) is None


def test_an_unfinished_checkpoint_is_written_again(tmp_path):
  save_some(tmp_path, [1, 2], keep_last=2)
  (tmp_path / "2" / "manifest.json").unlink()
  c = checkpoint.Checkpoints(tmp_path, keep_last=2)
  c.save(2, state(5), {"at": "again"})
  c.close()
  assert checkpoint.Checkpoints(tmp_path).newest() == 2
  assert c.host(2) == {"at": "again"}


@pytest.mark.parametrize(
    ("where", "function", "found"),
    [
        (checkpoint, "_hashes", "first"),  # before its manifest
        (checkpoint, "_remove", "second"),  # complete, not renamed yet
        (checkpoint.pathlib.Path, "rename", "second"),
    ],
)
def test_a_kill_while_the_only_checkpoint_is_written_again(
    tmp_path, monkeypatch, where, function, found
):
  """The one before is there until the next one is complete."""

  def die(*_):
    raise KeyboardInterrupt

  c = save_some(tmp_path, [1])
  with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
    c.save(1, state(2), {"at": "second"})
    m.setattr(where, function, die)
    c.close()
  c = checkpoint.Checkpoints(tmp_path)
  host, scale = dict(first=({"at": 1}, 1), second=({"at": "second"}, 2))[found]
  assert c.newest() == 1 and c.host(1) == host
  restored = c.restore(1, state(0))
  jax.tree.map(np.testing.assert_array_equal, restored, state(scale))
  c.save(2, state(3), {})
  c.close()
  assert [p.name for p in tmp_path.iterdir()] == ["2"]


def test_a_save_that_cannot_be_written_is_raised_once(tmp_path, capfd):
  """Without the tracebacks of orbax's threads; the one before is whole."""
  c = save_some(tmp_path, [1])
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  large = dict(w=jax.random.normal(jax.random.key(0), (1000, 1000)))
  resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
  try:
    with pytest.raises(Exception, match="File too large") as caught:
      c.save(2, large, {})
      c.wait()
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  code, line, _ = exit_status.ending(caught.value, tmp_path)
  assert code == 1
  assert f"error: {tmp_path}: cannot be written (File too large; " in line
  assert "Traceback" not in capfd.readouterr().err
  assert checkpoint.Checkpoints(tmp_path).newest() == 1


def test_a_failed_save_is_told_once(monkeypatch):
  """Not by each of the writes that were under way; other errors are told."""
  told = []
  monkeypatch.setattr(checkpoint, "_report", lambda x: told.append(x.exc_value))
  for text in ("Event loop is closed", "another"):
    # As threads of tensorstore report it, which no object owns.
    error = types.SimpleNamespace(exc_value=RuntimeError(text), object=None)
    checkpoint._report_others(error)
  assert [str(x) for x in told] == ["another"]


def test_the_state_may_be_donated_at_once(tmp_path):
  """A save holds its own copy: training goes on in the same buffers."""
  bump = jax.jit(lambda x: jax.tree.map(lambda y: y + 1, x), donate_argnums=0)
  now = state(1)
  c = checkpoint.Checkpoints(tmp_path)
  c.save(1, now, {})
  for _ in range(50):
    now = bump(now)
  c.close()
  found = checkpoint.Checkpoints(tmp_path).restore(1, state(0))
  np.testing.assert_array_equal(found["w"], state(1)["w"])


# --- parameters that are not finite ------------------------------------------


def network(x):
  step = jnp.zeros((), jnp.int32)
  return TrainState({"a": jnp.ones(2), "b": [jnp.array(x)]}, (), step, step)


class State:
  """Of RL with a critic, whose last step broke one of the networks."""

  step = 0
  rows, critic = np.float32(np.nan), 3e38  # padding may hold anything

  def arrays(self):
    policy = network(1.0)
    return dict(kept=self.rows, policy=policy, critic=network(self.critic))

  def host(self):
    return {}


def test_parameters_that_are_not_finite_are_named():
  state = State()
  assert resumable.not_finite(state.arrays()) == []
  assert resumable.not_finite(network(np.inf)) == ["b.0"]
  state.critic = np.nan
  assert resumable.not_finite(state.arrays()) == ["critic.b.0"]


@pytest.mark.parametrize("ends", ["by a save", "by a signal"])
def test_a_network_that_is_not_finite_replaces_no_checkpoint(tmp_path, ends):
  fields = config.flat(base.get_config())
  stage = resumable.ResumableStage(
      "rl",
      tmp_path,
      fields=fields,
      log=run_log.Log(tmp_path),
      display=display.Display(False),
      stop=threading.Event(),
      keep_last=1,
  )
  state, logged = State(), []
  with (
      pytest.raises(resumable.NotFinite) as error,
      stage.running("RL", 9, state, lambda: logged.append(state.step)),
  ):
    stage.save(state)
    state.step, state.critic = 1, np.inf
    if ends == "by a signal":
      raise Stopped
    stage.save(state)
  assert logged == [0, 1]
  assert str(error.value) == (
      "checkpoints/rl: parameters are not finite at step 1 (critic.b.0),"
      " so the step is not saved, and step 0 stays the newest. An update was"
      " too large, although its gradient was finite: lower critic.lr (now"
      " 0.001), set optimizer.clip_norm = 1.0, in another --workdir"
  )
  assert stage.checkpoints.steps() == [0] and not list(tmp_path.rglob("*.new"))
  assert stage.checkpoints.fault(0) is None


@pytest.mark.parametrize("field", ["optimizer.lr", "critic.lr", "sft.lr"])
def test_learning_rates_are_bounded(field):
  config_checks.checked("ppo", {field: "1.0", "optimizer.name": "sgd"})
  with pytest.raises(errors.ConfigError, match=f"{field} = 1.0: .* 'adamw'"):
    config_checks.checked("ppo", {field: "1.0"})
  with pytest.raises(errors.ConfigError, match=f"{field} = 1e.39: .* most 1:"):
    config_checks.checked("ppo", {field: "1e39"})
