"""A vLLM server as the engine.

By default, weights go through a directory that both see: safetensors, which the
server loads between two requests (`launch/vllm_worker.py`). A function of the
user may send them instead, through the routes that vLLM (0.32) and its TPU
backend tpu-inference share: /start_weight_update, /update_weights and
/finish_weight_update. The backends of these routes (NCCL, CUDA IPC) do not send
from JAX.
"""

import concurrent.futures
import os
import pathlib
import shutil
import zlib
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import ml_dtypes
import numpy as np
import safetensors.numpy

from rl_reason.base import errors, functions, servers
from rl_reason.base.errors import RunError
from rl_reason.rollout.external import Completion, Held, Request
from rl_reason.rollout.sampling_filters import Filters

COMPLETIONS = "v1/completions"
Seconds = Annotated[float, (1e-3, None)]
COUNT = 1 << 40  # updates of a server
LISTED = 1 << 13  # KiB of an answer about all tensors
FILE_BYTES = 2 << 30  # of a file; its tensors are in memory until it is written
# The script of a wheel, or that of a clone.
_PACKAGE = pathlib.Path(__file__).parents[1]
_SCRIPTS = [x / "launch/vllm.sh" for x in (_PACKAGE, _PACKAGE.parent)]
SCRIPT = next((x for x in _SCRIPTS if x.exists()), "launch/vllm.sh")
FAILED = (
    "a part of its weights may be old, and it stays paused: start the server"
    f" anew with {SCRIPT}, which sees rollout.engine.args.directory, too"
)
DTYPES = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}


class VLLM:
  """A client that samples; arguments as of `vllm`.

  Attributes:
    url: of the server.
  """

  def __init__(
      self, *, url: str, model: str, parallel: int, seconds: float, key: str
  ):
    self.url, self._model = url.rstrip("/"), model
    self._headers = {"Content-Type": "application/json"}
    if key:
      self._headers["Authorization"] = f"Bearer {key}"
    self._parallel, self._seconds = parallel, seconds

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
        COMPLETIONS,
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
      raise self._error(COMPLETIONS, e) from None

  def _post(
      self, path: str, body: dict[str, Any], tokens: int = 0, remedy: str = ""
  ) -> Any:
    try:
      return servers.ask(
          f"{self.url}/{path}",
          body,
          headers=self._headers,
          seconds=self._seconds,
          tokens=tokens,
      )
    except (OSError, servers.Fault) as e:
      raise self._error(path, e, remedy) from None

  def _error(self, path: str, e: Exception, remedy: str = "") -> RunError:
    status = getattr(e, "status", 0)
    if path == COMPLETIONS and status == 404:
      remedy = (
          f"set rollout.engine.args.model, {self._model!r}, to a name that the"
          " server serves"
      )
    remedy = remedy or (
        f"does the server run there, started by {SCRIPT} DIR, and with the key"
        " of rollout.engine.args.key_env? Its log says more"
    )
    return RunError(
        f"rollout.engine: {self.url}/{path}: {errors.one_line(e)}; {remedy}."
        " The same command resumes the run"
    )


def _completion(answer: Any) -> Completion:
  """The response of an answer; `ExternalEngine` checks its numbers.

  Raises:
    Fault: the answer has no response, or one that was interrupted.
  """
  choice = servers.choice(answer)
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


class Routes(VLLM):
  """A client of the routes of vLLM for an update; arguments as of `vllm`."""

  def __init__(self, transfer: str, held: str, **options: Any):
    super().__init__(**options)
    self._transfer = functions.load(transfer)
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


class Files(VLLM):
  """A client whose server gets its weights as files.

  Nothing but a whole update is ever loaded: files are written under another
  name first, and the server waits for its running requests, loads and drops its
  caches before it takes further requests. If a part of this fails, the server
  stays paused, and answers no later update with a success.

  Args:
    directory: that this process and the server see.
  """

  def __init__(self, directory: str, **options: Any):
    super().__init__(**options)
    # One directory for each server: what a killed run has left is replaced.
    name = f"vllm-{zlib.crc32(self.url.encode()):08x}"
    self._files = pathlib.Path(directory) / name
    self._dtype = DTYPES["float32"]

  def held(self) -> Held:
    """The server's count of updates and checksums of its tensors."""
    found = self._call("rl_held")
    try:
      updates = servers.index(servers.get(found, "updates"), COUNT)
      crcs = dict(servers.get(found, "crcs"))
      return Held(
          updates, {k: servers.index(x, 1 << 32) for k, x in crcs.items()}
      )
    except (TypeError, ValueError, servers.Fault) as e:
      fault = servers.Fault(f"{errors.one_line(e)}: {found!r:.80}")
      raise self._error("rl_held", fault) from None

  def encode(self, x: np.ndarray) -> np.ndarray:
    """A tensor in the server's type; -0, which its kernels lose, is 0."""
    return x.astype(self._dtype) + self._dtype.type(0)

  def start_weight_update(self) -> None:
    """Asks for the type of the weights."""
    found = self._call("rl_dtype")
    name = found.get("dtype") if isinstance(found, dict) else found
    if not isinstance(name, str) or name not in DTYPES:
      raise self._error(
          "rl_dtype", servers.Fault(f"its weights are {name!r:.40}")
      )
    self._dtype = DTYPES[name]

  def update_weights(self, tensors: Iterable[tuple[str, np.ndarray]]) -> None:
    """Writes the tensors, which the server does not see yet."""
    part = self._files.with_suffix(".part")
    try:
      for old in (part, self._files):
        if old.exists():
          shutil.rmtree(old)
      part.mkdir(parents=True)
      held: dict[str, np.ndarray] = {}
      count = 0
      for name, x in tensors:
        held[name] = x
        if sum(y.nbytes for y in held.values()) >= FILE_BYTES:
          safetensors.numpy.save_file(held, part / f"{count:05}.safetensors")
          held, count = {}, count + 1
      if held:
        safetensors.numpy.save_file(held, part / f"{count:05}.safetensors")
      part.rename(self._files)
    except OSError as e:
      raise RunError(
          f"rollout.engine.args.directory: {self._files}: {errors.one_line(e)};"
          " name a directory with room for the weights, which this process and"
          " the server see. The same command resumes the run"
      ) from None

  def finish_weight_update(self) -> None:
    """Lets the server load the files, and removes them."""
    try:
      self._post("pause?mode=wait", {})
      self._call("rl_update", str(self._files), remedy=FAILED)
      self._post("reset_prefix_cache", {})
      self._post("resume", {})
    finally:
      shutil.rmtree(self._files, ignore_errors=True)

  def _call(self, method: str, *args: str, remedy: str = "") -> Any:
    """What the first worker returns."""
    body = dict(method=method, args=args)
    answer = self._post("collective_rpc", body, LISTED, remedy)
    try:
      return servers.get(answer, "results", 0)
    except servers.Fault as e:
      raise self._error("collective_rpc", e) from None


def vllm(
    *,
    model: str,
    directory: str = "/dev/shm/rl_reason",
    transfer: str = "",
    held: str = "",
    url: str = "http://127.0.0.1:8000",
    parallel: Annotated[int, (1, None)] = 256,
    seconds: Seconds = 3600.0,
    key_env: str = "",
) -> Routes | Files:
  """A vLLM server, which `launch/vllm.sh` starts.

  Another one must run with `--logprobs-mode processed_logprobs`, unless the
  temperature is 1: by default, log-probs are taken before the temperature. With
  filters (`rollout.allow_filters`) leave the mode at its default and the
  temperature at 1: processed log-probs would be those after the filters.

  Args:
    model: name under which the server serves the model.
    directory: for the weights of each update, which the server reads: in memory
      on one machine, of a shared file system for a server on another machine.
    transfer: '' for these files, or 'module:function', which gets an iterator
      of (name in transformers, array), sends the tensors, and yields the
      update_info of each /update_weights; it yields nothing if the server needs
      no call.
    held: of a `transfer` of your own: 'module:function', which asks the server,
      for instance by its route /collective_rpc, and returns `external.Held`;
      '': none.
    url: of the server.
    parallel: requests at a time.
    seconds: deadline of a request and its whole answer.
    key_env: environment variable with the key of the server (`--api-key`); the
      key itself appears in no config and no log. '': no key.

  Raises:
    ConfigError: the variable is not set, or `held` has no `transfer`.
  """
  key = os.environ.get(key_env, "").strip()
  if key_env and not key:
    raise errors.ConfigError(
        f"rollout.engine.args.key_env = {key_env!r}: this environment variable"
        " is not set; export it with the key of the server, or leave the field"
        " empty"
    )
  options: dict[str, Any] = dict(
      url=url, model=model, parallel=parallel, seconds=seconds, key=key
  )
  if transfer:
    return Routes(transfer, held, **options)
  if held:
    raise errors.ConfigError(
        f"rollout.engine.args.held = {held!r}: without rollout.engine.args."
        "transfer the server itself says what it holds; leave the field empty"
    )
  return Files(directory, **options)
