"""Atomic checkpoints: orbax writes the arrays, a manifest completes them.

  DIR/STEP/state/         the pytree of arrays, which orbax writes
                          asynchronously
  DIR/STEP/host.json      all other state of the run
  DIR/STEP/manifest.json  SHA-256 of the files above, and of itself; written
                          last

A save writes DIR/STEP.new, which is renamed to DIR/STEP when its manifest is
complete: an interrupted save loses no checkpoint. What is removed is first
renamed to DIR/STEP.old: a kill leaves no part of a checkpoint under its name,
and the next start of the stage, or its next save, removes or renames the rest.

Orbax does not detect corrupt data, so a restore first verifies the hash of
every file. A checkpoint without a manifest is unfinished.
"""

import concurrent.futures
import hashlib
import json
import logging
import pathlib
import shutil
import sys
from collections.abc import Callable

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from rl_reason.base import json_files
from rl_reason.base.structs import Tree

MANIFEST = "manifest.json"
# Each thread of orbax logs the traceback of a failed save, which `wait` raises.
logging.getLogger("absl").addFilter(
    lambda record: not (record.exc_info and "orbax" in record.pathname)
)
_report = sys.unraisablehook


def _report_others(error) -> None:
  """Reports unraisable exceptions, except from writes after a failed save.

  The threads of tensorstore report to an event loop that has ended.
  """
  if error.object is not None or str(error.exc_value) != "Event loop is closed":
    _report(error)


sys.unraisablehook = _report_others


def sha256(path: pathlib.Path) -> str:
  """The SHA-256 of a file, which is read in chunks."""
  with path.open("rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def _hashes(directory: pathlib.Path) -> dict[str, str]:
  return {
      str(path.relative_to(directory)): sha256(path)
      for path in sorted(directory.rglob("*"))
      if path.is_file() and path.name != MANIFEST
  }


def _digest(manifest: dict) -> str:
  text = json.dumps(manifest, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def _manifest(directory: pathlib.Path) -> tuple[dict, float | None] | None:
  """Hashes and score of a checkpoint; None if unreadable or changed."""
  try:
    manifest = json.loads((directory / MANIFEST).read_text())
    # Manifests of earlier versions have no digest, and no further entries.
    digest = manifest.pop("digest", None)
    if digest is None and set(manifest) == {"step", "score", "files"}:
      digest = _digest(manifest)
    if digest != _digest(manifest):
      return None
    return dict(manifest["files"]), manifest.get("score")
  except (ValueError, KeyError, TypeError, OSError, RecursionError):
    return None


def _is_whole(directory: pathlib.Path) -> bool:
  return (directory / MANIFEST).exists()


def newest_host(directory: pathlib.Path) -> tuple[int, dict] | None:
  """Step and JSON of the newest finished checkpoint, without verification."""
  found = [
      path.parent
      for path in directory.glob(f"*/{MANIFEST}")
      if path.parent.name.removesuffix(".new").isdigit()
  ]
  if not found:
    return None
  newest = max(found, key=lambda path: int(path.stem))
  try:
    return int(newest.stem), dict(
        json.loads((newest / "host.json").read_text())
    )
  except (ValueError, OSError):  # damaged, but the step is known
    return int(newest.stem), {}


def _remove(directory: pathlib.Path) -> None:
  """Removes a checkpoint; what a kill leaves has another name."""
  old = directory.with_suffix(".old")
  shutil.rmtree(old, ignore_errors=True)  # left by a kill
  if directory.exists() and directory != old:
    directory.rename(old)
    shutil.rmtree(old, ignore_errors=True)


class Checkpoints:
  """The checkpoints of one stage.

  Args:
    directory: created by the first save.
    keep_last: number of newest checkpoints to keep.
    keep_best: number of checkpoints with the highest `score` to keep besides.
  """

  def __init__(
      self, directory: pathlib.Path, keep_last: int = 1, keep_best: int = 0
  ):
    self._dir = directory.absolute()
    self.name = directory.name
    self._keep = keep_last, keep_best
    self._orbax = ocp.StandardCheckpointer()
    self._pool = concurrent.futures.ThreadPoolExecutor(1)
    self._saving: concurrent.futures.Future | None = None
    self.saved: int | None = None  # last step that was saved or restored
    self._first = jax.process_index() == 0

  def steps(self) -> list[int]:
    """Steps with a directory, oldest first; some may be unfinished."""
    names = [p.name for p in self._dir.glob("*") if p.name.isdigit()]
    names += [p.stem for p in self._dir.glob("*.new") if _is_whole(p)]
    return sorted(set(map(int, names)))

  def fault(self, step: int) -> str | None:
    """Why a checkpoint is unusable, or None."""
    directory = self._path(step)
    if not _is_whole(directory):
      return "unfinished (it has no manifest)"
    manifest = _manifest(directory)
    if manifest is None:
      return "damaged (its manifest cannot be read, or has changed)"
    expected, _ = manifest
    found = _hashes(directory)
    for name, digest in expected.items():
      if name not in found:
        return f"damaged ({name} is missing)"
      if found[name] != digest:
        return f"damaged ({name} has changed)"
    return None

  def _path(self, step: int) -> pathlib.Path:
    """The directory of a checkpoint, even after a kill before its renaming."""
    new = self._dir / f"{step}.new"
    return new if _is_whole(new) else self._dir / str(step)

  def _rename(self, new: pathlib.Path) -> None:
    """Renames a complete checkpoint, and removes an older one of this name."""
    _remove(new.with_suffix(""))
    new.rename(new.with_suffix(""))

  def save(
      self, step: int, state: Tree, host: dict, score: float | None = None
  ) -> None:
    """Starts a save; the state may be donated as soon as this returns.

    Args:
      step: names the checkpoint.
      state: arrays on the mesh, or NumPy arrays equal in all processes.
      host: JSON.
      score: higher is better; None never counts as best.
    """
    self.wait()
    self.saved = step
    path = self._dir / f"{step}.new"
    self.tidy()
    if self._first:
      path.mkdir(parents=True)
      json_files.write_json(path / "host.json", host)
    multihost_utils.sync_global_devices("save")
    self._orbax.save(path / "state", state)
    self._saving = self._pool.submit(self._finish, path, step, score)

  def tidy(self) -> None:
    """Ends what a kill has interrupted; only the run that saves may call it."""
    if self._first:
      for left in self._dir.glob("*.new"):
        self._rename(left) if _is_whole(left) else _remove(left)
      for left in self._dir.glob("*.old"):
        _remove(left)

  def _finish(self, path, step, score) -> None:
    self._orbax.wait_until_finished()
    if self._first:
      manifest = dict(step=step, score=score, files=_hashes(path))
      manifest["digest"] = _digest(manifest)
      json_files.write_json(path / MANIFEST, manifest)
      self._rename(path)
      self.prune(step)

  def prune(self, newest: int) -> None:
    """Removes old checkpoints, except for the ones to keep.

    A kill may have left too many checkpoints, or a part of one. `newest` is the
    step of a complete checkpoint; newer ones are not removed.
    """
    if not self._first:
      return
    last, best = self._keep
    older = [s for s in self.steps() if s <= newest]
    finished = [s for s in older if _is_whole(self._path(s))]
    keep = {*finished[-last:], *self._by_score(finished)[:best]}
    for step in set(older) - keep:
      _remove(self._path(step))

  def _by_score(self, steps: list[int]) -> list[int]:
    """Steps with a score, the highest score and the earliest step first."""
    scores = {}
    for step in steps:
      _, score = _manifest(self._path(step)) or ({}, None)
      if isinstance(score, int | float):
        scores[step] = score
    return sorted(scores, key=lambda step: (-scores[step], step))

  def wait(self) -> None:
    """Waits until the current save is complete."""
    if self._saving is not None:
      self._saving.result()
      self._saving = None

  def newest(self, warn: Callable[[str], None] = print) -> int | None:
    """The newest complete step; warns of newer ones that are unusable."""
    found = -1
    if self._first:
      for step in reversed(self.steps()):
        problem = self.fault(step)
        if problem is None:
          found = step
          break
        warn(f"checkpoint {self.name}/{step} is {problem}: skipped")
    found = int(multihost_utils.broadcast_one_to_all(np.int32(found)))
    return None if found < 0 else found

  def best(self) -> int | None:
    """The complete step with the highest score."""
    complete = [step for step in self.steps() if not self.fault(step)]
    return next(iter(self._by_score(complete)), None)

  def host(self, step: int) -> dict:
    """The contents of host.json of a checkpoint."""
    return json.loads((self._path(step) / "host.json").read_text())

  def restore(self, step: int, like: Tree) -> Tree:
    """Restores the arrays of the checkpoint of a step.

    `like` has arrays or ShapeDtypeStructs with the requested shapes and
    shardings.
    """
    self.saved = step
    if isinstance(like, dict):  # earlier versions saved more entries, as None
      there = self.contents(step).items()
      like = {name: None for name, x in there if x is None} | like
    return self._orbax.restore(self._path(step) / "state", like)

  def contents(self, step: int) -> Tree:
    """What the checkpoint of a step holds: None where the state had None."""
    return self._orbax.metadata(self._path(step) / "state").item_metadata.tree

  def restore_part(self, step: int, like: Tree) -> Tree:
    """Restores some arrays of the checkpoint of a step.

    `like` is a part of the state as nested dicts, by the names of its fields;
    its leaves are as in `restore`.
    """
    with ocp.PyTreeCheckpointer() as reader:
      return reader.restore(
          self._path(step) / "state",
          args=ocp.args.PyTreeRestore(
              item=like,
              restore_args=ocp.checkpoint_utils.construct_restore_args(like),
              partial_restore=True,
          ),
      )

  def close(self) -> None:
    """Waits for the current save, and ends the background thread."""
    self.wait()
    self._pool.shutdown()
    self._orbax.close()
