"""Checkpoints in the layout of transformers (Hugging Face).

  config.json             the architecture, in the field names of transformers
  model.safetensors       or several, with model.safetensors.index.json
  tokenizer.json, ...     the tokenizer and its chat template
  generation_config.json  sampling defaults

`find` reads headers only and refuses unsupported checkpoints before any array
is made; `load` streams the weights into sharded arrays; `save` writes them.
Nothing is unpickled, and no code of a checkpoint runs.
"""

# ruff: noqa: F401
from rl_reason.hf import architecture, model_description, quantization
from rl_reason.hf.architecture import CONFIG, SEQUENCE_CLASSIFIER
from rl_reason.hf.loading import TOKENIZERS, Source, find, is_hub_id, load
from rl_reason.hf.saving import save
