"""Shapes of models without their weights, without network for known ones."""

import pathlib

from rl_reason import tasks
from rl_reason.base import errors
from rl_reason.base.errors import ConfigError, one_line
from rl_reason.checks import config_facts
from rl_reason.data import tokenizer
from rl_reason.hf import architecture, model_files
from rl_reason.models import decoder
from rl_reason.stages.model import model_config


def _qwen(width: int, layers: int, heads: int, kv: int, mlp: int, vocab=151936):
  return dict(
      model_type="qwen2",
      hidden_size=width,
      num_hidden_layers=layers,
      num_attention_heads=heads,
      num_key_value_heads=kv,
      intermediate_size=mlp,
      vocab_size=vocab,
      tie_word_embeddings=vocab == 151936,
      rope_theta=1e6,
  )


# Fields of config.json that determine the memory, for models of configs/ and
# bench/.
KNOWN = {
    "Qwen/Qwen2.5-0.5B": _qwen(896, 24, 14, 2, 4864),
    "Qwen/Qwen2.5-1.5B": _qwen(1536, 28, 12, 2, 8960),
    "Qwen/Qwen2.5-3B": _qwen(2048, 36, 16, 2, 11008),
    "Qwen/Qwen2.5-7B": _qwen(3584, 28, 28, 4, 18944, 152064),
    "Qwen/Qwen2.5-14B": _qwen(5120, 48, 40, 8, 13824, 152064),
    "Qwen/Qwen2.5-32B": _qwen(5120, 64, 40, 8, 27648, 152064),
    "meta-llama/Llama-3.1-70B": dict(
        model_type="llama",
        hidden_size=8192,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        intermediate_size=28672,
        vocab_size=128256,
    ),
    "deepseek-ai/deepseek-math-7b-instruct": dict(
        model_type="llama",
        hidden_size=4096,
        num_hidden_layers=30,
        num_attention_heads=32,
        intermediate_size=11008,
        vocab_size=102400,
    ),
}


def shape(config) -> decoder.ModelConfig:
  """The static shape of the model of a config; downloads only config.json.

  Args:
    config: checked; config.model is set to the shape of model.path.

  Raises:
    ConfigError: model.path names no model.
  """
  path = config.model.path
  if not path:
    alphabet = tasks.get(config.task.name).ALPHABET
    revision = config_facts.revision(config, config.tokenizer)
    tok = tokenizer.load(config.tokenizer, alphabet, revision)
    vocab = 1 + max(tok.get_vocab().values())
    return model_config(config, vocab=vocab, tokens=vocab)
  label = f"model.path = {path!r}"
  try:
    if pathlib.Path(path).is_dir():
      entries = model_files.read_json(pathlib.Path(path) / architecture.CONFIG)
    else:
      entries = KNOWN.get(path) or _fetch(
          path, label, config_facts.revision(config, path)
      )
    found = architecture.read(entries)
  except model_files.CheckpointError as e:
    raise ConfigError(f"{label}: {one_line(e)}") from None
  fields = architecture.fields(found)
  vocab = fields.pop("vocab")
  config.model.update(fields)
  return model_config(config, vocab=vocab, tokens=None)


def _fetch(path: str, label: str, revision: str | None):
  import huggingface_hub  # imported late: takes seconds

  try:
    name = huggingface_hub.hf_hub_download(
        path, architecture.CONFIG, revision=revision
    )
  except (OSError, ValueError, RuntimeError) as e:
    raise errors.ConfigError(
        f"{label}: there is no such directory, and downloading its"
        f" {architecture.CONFIG} from the hub failed ({one_line(e)[:300]})"
    ) from None
  return model_files.read_json(pathlib.Path(name))
