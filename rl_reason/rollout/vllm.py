"""A vLLM server as the engine. Its wire format is tested, vLLM itself is not.

vLLM (0.32) and its TPU backend tpu-inference share the routes that control an
update, /start_weight_update, /update_weights and /finish_weight_update
(VLLM_SERVER_DEV_MODE=1). A backend transfers the bytes: NCCL or CUDA IPC on
GPUs; on TPUs the trainer writes into the sampler's buffers, and /update_weights
does nothing. No backend of vLLM sends from JAX on a CPU or GPU, so a function
of the user transfers the bytes.
"""

import concurrent.futures
import os
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import numpy as np

from rl_reason.base import errors, functions, servers
from rl_reason.base.errors import RunError
from rl_reason.rollout.external import Completion, Request
from rl_reason.rollout.sampling_filters import Filters

Seconds = Annotated[float, (1e-3, None)]


class VLLM:
  """A client of one vLLM server; arguments as of `vllm`.

  Attributes:
    url: of the server.
  """

  def __init__(
      self,
      url: str,
      model: str,
      transfer: str,
      held: str,
      parallel: int,
      seconds: float,
      key: str,
  ):
    self.url, self._model = url.rstrip("/"), model
    self._transfer = functions.load(transfer)
    self._headers = {"Content-Type": "application/json"}
    if key:
      self._headers["Authorization"] = f"Bearer {key}"
    self._parallel, self._seconds = parallel, seconds
    if held:
      self.held = functions.load(held)

  def start_weight_update(self) -> None:
    """Begins an update."""
    self._post("reset_prefix_cache", {})
    self._post("start_weight_update", {})

  def update_weights(self, tensors: Iterable[tuple[str, np.ndarray]]) -> None:
    """Lets the user's function send the tensors, then tells the server."""
    for info in self._transfer(tensors):
      self._post("update_weights", dict(update_info=info))

  def finish_weight_update(self) -> None:
    """Ends the update."""
    self._post("finish_weight_update", {})

  def generate(
      self, requests: list[Request]
  ) -> Iterator[tuple[int, Completion]]:
    """Yields responses as the server returns them."""
    pool = concurrent.futures.ThreadPoolExecutor(self._parallel)
    try:
      index = {
          pool.submit(self._complete, request): n
          for n, request in enumerate(requests)
      }
      for future in concurrent.futures.as_completed(index):
        yield index[future], future.result()
    finally:  # after a request has failed, the others are not waited for
      pool.shutdown(wait=False, cancel_futures=True)

  def _complete(self, request: Request) -> Completion:
    answer = self._post(
        "v1/completions",
        dict(
            model=self._model,
            prompt=request.prompt,
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            **{name: getattr(request, name) for name in Filters._fields},
            seed=request.seed,
            stop_token_ids=list(request.stop),
            logprobs=1,
            return_token_ids=True,
        ),
        len(request.prompt) + request.max_tokens,
    )
    try:
      return _completion(answer)
    except servers.Fault as e:
      raise self._error("v1/completions", e) from None

  def _post(self, path: str, body: dict[str, Any], tokens: int = 0) -> Any:
    try:
      return servers.ask(
          f"{self.url}/{path}",
          body,
          headers=self._headers,
          seconds=self._seconds,
          tokens=tokens,
      )
    except (OSError, servers.Fault) as e:
      raise self._error(path, e) from None

  def _error(self, path: str, e: Exception) -> RunError:
    return RunError(
        f"rollout.engine: {self.url}/{path}: {errors.one_line(e)}; does vLLM"
        " run there, with VLLM_SERVER_DEV_MODE=1, and with the key of"
        " rollout.engine.args.key_env? The same command resumes the run"
    )


def _completion(answer: Any) -> Completion:
  """The response of an answer; `ExternalEngine` checks its numbers.

  Raises:
    Fault: the answer has no response, or one that was interrupted.
  """
  choice = servers.get(answer, "choices", 0)
  finish = servers.get(choice, "finish_reason")
  if finish not in ("stop", "length"):
    raise servers.Fault(
        f"a response ended with finish_reason {finish!r:.80}, neither with"
        " 'stop' nor with 'length'"
    )
  return Completion(
      servers.get(choice, "token_ids"),
      servers.get(choice, "logprobs", "token_logprobs"),
      finish == "stop",
  )


def vllm(
    *,
    transfer: str,
    model: str,
    held: str = "",
    url: str = "http://127.0.0.1:8000",
    parallel: Annotated[int, (1, None)] = 256,
    seconds: Seconds = 3600.0,
    key_env: str = "",
) -> VLLM:
  """A vLLM server.

  The server must run with `--logprobs-mode processed_logprobs`, unless the
  temperature is 1: by default, log-probs are taken before the temperature. With
  filters (`rollout.allow_filters`) leave the mode at its default and the
  temperature at 1: processed log-probs would be those after the filters.

  Args:
    transfer: 'module:function', which gets an iterator of (name in
      transformers, array), sends the tensors, and yields the update_info of
      each /update_weights; it yields nothing if the server needs no call.
    model: name under which the server serves the model.
    held: 'module:function', which asks the server, for instance by its route
      /collective_rpc, and returns `external.Held`; '': none.
    url: of the server.
    parallel: requests at a time.
    seconds: deadline of a request and its whole answer.
    key_env: environment variable with the key of the server (`--api-key`); the
      key itself appears in no config and no log. '': no key.

  Raises:
    ConfigError: the variable is not set.
  """
  key = os.environ.get(key_env, "").strip()
  if key_env and not key:
    raise errors.ConfigError(
        f"rollout.engine.args.key_env = {key_env!r}: this environment variable"
        " is not set; export it with the key of the server, or leave the field"
        " empty"
    )
  return VLLM(url, model, transfer, held, parallel, seconds, key)
