"""What a run records of the model that it starts from: WORKDIR/origin.

Checkpoints of a run hold parameters. Export, serving and evaluation also need
the tokenizer and, of a model of transformers, config.json and the dtypes. With
a record of these a work directory is enough, also where it was moved, or where
model.path is gone.
"""

import pathlib
import shutil
from typing import Any

from rl_reason import hf
from rl_reason.checks.run_directory import MODEL, TOKENIZER


def record(
    workdir: pathlib.Path, source: hf.Source | None, tok: Any | None
) -> None:
  """Records a checkpoint of transformers, and a tokenizer of its own.

  Args:
    workdir: of the run.
    source: the checkpoint of model.path, and its tokenizer; None without.
    tok: the tokenizer, if the checkpoint does not bring it.
  """
  new = workdir / "origin.new"
  shutil.rmtree(new, ignore_errors=True)
  for name in (MODEL, TOKENIZER):
    (new / name).mkdir(parents=True)
  if source is not None:
    hf.model_description.write(new / MODEL, source)
  if tok is not None:
    tok.save_pretrained(new / TOKENIZER)
  shutil.rmtree(workdir / "origin", ignore_errors=True)
  (new / "origin").rename(workdir / "origin")
  new.rmdir()


def source(workdir: pathlib.Path | None) -> hf.Source | None:
  """The recorded checkpoint, without weights; None if there is no record.

  Raises:
    ConfigError: the record is damaged.
  """
  path = model(workdir)
  return hf.model_description.read(pathlib.Path(path)) if path else None


def model(workdir: pathlib.Path | None) -> str:
  """The directory of the recorded checkpoint; '' if there is no record."""
  return _filled(workdir, MODEL)


def tokenizer(workdir: pathlib.Path | None) -> str:
  """The directory of the recorded tokenizer; '' if the checkpoint has it."""
  return _filled(workdir, TOKENIZER)


def _filled(workdir: pathlib.Path | None, name: str) -> str:
  path = workdir and workdir / name
  return str(path) if path and any(path.glob("*")) else ""
