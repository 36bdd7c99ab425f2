"""A checkpoint without its weights: architecture, dtypes and tokenizer.

A run keeps them in its work directory, so that its own checkpoints can be
exported, served and evaluated where model.path is gone.

  config.json, tokenizer.json, ...  as in the checkpoint
  tensors.json                      dtype and shape of each tensor, by name
"""

import json
import pathlib
import shutil

from rl_reason.base.errors import ConfigError, one_line
from rl_reason.hf import architecture, loading, model_files
from rl_reason.hf.architecture import CONFIG
from rl_reason.hf.loading import COMPANIONS, Source
from rl_reason.hf.model_files import CheckpointError, Tensor

TENSORS = "tensors.json"


def write(directory: pathlib.Path, source: Source) -> None:
  """Records a checkpoint in an existing directory."""
  for name in (CONFIG, *COMPANIONS):
    if (source.path / name).is_file():
      shutil.copyfile(source.path / name, directory / name)
  tensors = {x: [t.dtype, t.shape] for x, t in source.tensors.items()}
  (directory / TENSORS).write_text(json.dumps(tensors))


def read(directory: pathlib.Path) -> Source:
  """The checkpoint that `write` recorded; its weights cannot be loaded.

  Raises:
    ConfigError: a file is missing or damaged.
  """
  try:
    config = model_files.read_json(directory / CONFIG)
    tensors = {
        name: Tensor(directory / TENSORS, name, dtype, tuple(shape))
        for name, (dtype, shape) in model_files.read_json(
            directory / TENSORS
        ).items()
    }
    cfg, context = architecture.read(config), architecture.context(config)
    head = architecture.check(config, (architecture.CAUSAL_LM,))
  except (CheckpointError, OSError, ValueError, TypeError) as e:
    message = one_line(e)[: loading.MAX_MESSAGE]
    raise ConfigError(
        f"{directory}: {message}; the record of model.path is damaged: the"
        " training command writes it again"
    ) from None
  label = f"the model of {directory}"
  return Source(label, directory, config, cfg, context, tensors, head)
