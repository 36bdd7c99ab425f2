"""What `launch/vllm.sh` adds to the workers of vLLM (--worker-extension-cls).

It runs in the environment of vLLM and imports nothing of rl_reason. The client
is `rl_reason/rollout/vllm.py`, which calls it by the route /collective_rpc.
"""

import os
import zlib

import torch


class Extension:
  """Methods of a worker; tensors have the names of transformers."""

  rl_updates = 0  # that have ended
  rl_fault = ""  # of an update that has failed

  def rl_update(self, path: str) -> None:
    """Loads the safetensors of a directory; a failure is for good.

    vLLM loads layer by layer: after a failure some layers are new, some old.
    """
    self._rl_sound()
    if not os.path.isdir(path):
      raise ValueError(f"this server does not see the directory {path}")
    self.rl_fault = "it has not ended"
    try:
      self.reload_weights(weights_path=path)
      self._rl_pack_head()
    except BaseException as e:
      self.rl_fault = f"{type(e).__name__}: {e}"
      raise
    self.rl_fault = ""
    self.rl_updates += 1

  def rl_dtype(self) -> dict:
    """The type of the weights."""
    self._rl_sound()
    return {"dtype": str(self.model_config.dtype).removeprefix("torch.")}

  def rl_held(self) -> dict:
    """The number of updates, and the CRC-32 of each tensor that computes.

    The checksums are {} for models that are split over workers, quantized, or
    have experts: their tensors are no longer those of transformers.
    """
    self._rl_sound()
    return {"updates": self.rl_updates, "crcs": self._rl_crcs()}

  def _rl_sound(self) -> None:
    if self.rl_fault:
      raise RuntimeError(
          f"an update of the weights has failed ({self.rl_fault}), and a part"
          " of them may be old: start the server anew"
      )

  def _rl_tied(self) -> bool:
    config = self.model_config.hf_text_config
    return bool(getattr(config, "tie_word_embeddings", False))

  def _rl_pack_head(self) -> None:
    """Packs a tied head for a CPU again: vLLM reloads only the table."""
    for module in self.model_runner.get_model().modules():
      if self._rl_tied() and type(module).__name__ == "ParallelLMHead":
        module.quant_method.process_weights_after_loading(module)

  @torch.inference_mode()
  def _rl_crcs(self) -> dict:
    model = self.model_runner.get_model()
    split = self.vllm_config.parallel_config.world_size > 1
    if split or self.model_config.quantization:
      return {}
    merged = getattr(model, "packed_modules_mapping", {})
    dtype, crcs = self.model_config.dtype, {}
    for name, module in model.named_modules():
      before, _, last = name.rpartition(".")
      for kind, x in module.named_parameters(recurse=False):
        if x.ndim > 2:
          return {}
        if kind == "weight" and hasattr(module, "cpu_linear"):
          x = _unpacked(module, dtype)
        if hasattr(module, "org_vocab_size"):  # the rest is padding
          x = x[: module.org_vocab_size]
        parts, names = [x], [last]
        if len(merged.get(last, ())) > 1:
          parts, names = x.split(module.output_sizes), merged[last]
        for part, one in zip(parts, names, strict=True):
          place = ".".join(y for y in (before, one, kind) if y)
          crcs[place] = _crc(part, dtype)
    head, table = "lm_head.weight", "model.embed_tokens.weight"
    if self._rl_tied() and crcs.pop(head, crcs[table]) != crcs[table]:
      crcs[table] = -1  # the head computes with another table
    return crcs


def _unpacked(module: torch.nn.Module, dtype: torch.dtype) -> torch.Tensor:
  """The matrix that a CPU's kernel has packed: its product with the identity.

  Each element is one number times 1 plus zeros, which is exact.
  """
  width = getattr(module, "input_size", None) or module.embedding_dim
  eye = torch.eye(width, dtype=dtype)
  return module.cpu_linear(eye, module.weight, None).T


def _crc(x: torch.Tensor, dtype: torch.dtype) -> int:
  # + 0.0: a product with the identity loses the sign of a zero.
  x = (x.to("cpu", dtype) + 0.0).contiguous()
  return zlib.crc32(x.view(torch.uint8).numpy())
