"""Weights of a vLLM server by files; the server is a stand-in.

Its worker is that of launch/vllm_worker.py over a model of torch.
"""

import contextlib
import importlib.util
import pathlib
import re
import sys
import types
import zlib
from unittest import mock

import hostile
import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import tiny
from test_engines import external as made

from rl_reason.base.errors import ConfigError, RunError
from rl_reason.rollout import external, vllm

PATH = pathlib.Path(__file__).parents[1] / "launch/vllm_worker.py"
STALE = "model.layers.1.mlp.up_proj.weight"
BROKEN = b"500 Internal Server Error"


def extension():
  """The class of the script; only checksums need torch."""
  spec = importlib.util.spec_from_file_location("vllm_worker", PATH)
  module = importlib.util.module_from_spec(spec)
  with mock.patch.dict(sys.modules, torch=mock.MagicMock()):
    spec.loader.exec_module(module)
  return module.Extension


class Worker(extension()):
  """A worker of vLLM, which keeps tensors.

  Attributes:
    fault: what goes wrong with an update: 'base', 'lost', 'stale' or 'half'.
  """

  fault = ""

  def __init__(self, tensors):
    self.tensors = tensors
    self.model_config = types.SimpleNamespace(dtype="torch.bfloat16")

  def reload_weights(self, weights_path):
    new = {}
    for path in sorted(pathlib.Path(weights_path).iterdir()):
      new |= safetensors.numpy.load_file(path)
    assert {x.dtype.name for x in new.values()} == {"bfloat16"}
    if self.fault == "half":
      raise OSError("a file ends too early")
    if self.fault == "stale":
      new.pop(STALE)
    if self.fault not in ("base", "lost"):
      self.tensors = self.tensors | new

  def rl_update(self, path):
    super().rl_update(path)
    self.rl_updates -= self.fault == "lost"

  def _rl_pack_head(self):
    pass

  def _rl_crcs(self):
    bits = {k: x.astype(ml_dtypes.bfloat16) for k, x in self.tensors.items()}
    return {k: zlib.crc32(x.view(np.uint8)) for k, x in bits.items()}


def worker():
  return Worker(dict(made(None)._tensors(tiny.params(7))))


@contextlib.contextmanager
def served(worker, directory):
  """A client of a server with this worker, and the requests it has seen."""
  seen = []

  def respond(path, body):
    seen.append(path + ":" + str((body or {}).get("method", "")))
    if path == "/v1/completions":
      ids = [5, tiny.TOK.eos_token_id]
      logps = dict(token_logprobs=[-1.0, -1.0])
      one = dict(token_ids=ids, logprobs=logps, finish_reason="stop")
      return hostile.answer(dict(choices=[one]))
    if path != "/collective_rpc":
      return hostile.answer(b"")
    try:
      found = getattr(worker, body["method"])(*body["args"])
    except Exception as e:
      words = f"Worker failed with error '{e}'"
      return hostile.answer(dict(error=dict(message=words)), BROKEN)
    return hostile.answer(dict(results=[found]))

  with hostile.serving(respond) as url:
    yield (
        vllm.vllm(url=url, model="m", directory=str(directory), seconds=20),
        seen,
    )


def step(engine, seed):
  args = tiny.params(seed), tiny.prompts(3), jax.random.key(1), 0.0
  *_, last = engine.stream(*args, group_size=2)
  return last.held().fault


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("", None),
        ("base", "in 15 of 20 tensors .*, which are those before the run's fi"),
        ("lost", "counts 1 updates of its weights in place of 2"),
        (
            "stale",
            rf"in 1 of 20 tensors \({STALE}\), which are those of the up",
        ),
    ],
)
def test_what_the_server_holds_is_what_was_sent(fault, words, tmp_path):
  """Each fault of an update is named; the next update mends it."""
  one = worker()
  with served(one, tmp_path / "files") as (client, seen):
    engine = made(client)
    if fault != "base":
      assert not step(engine, 0)
    one.fault = fault
    found = step(engine, 1)
    assert re.search(words, found) if words else not found
    one.fault = ""
    assert not step(engine, 2)
  assert not list((tmp_path / "files").iterdir())
  update = [x for x in seen if "completions" not in x][-7:-1]
  assert update == [
      "/collective_rpc:rl_held",
      "/collective_rpc:rl_dtype",
      "/pause?mode=wait:",
      "/collective_rpc:rl_update",
      "/reset_prefix_cache:",
      "/resume:",
  ]


def test_a_failed_update_is_for_good(tmp_path):
  """The server stays paused; it takes no further update."""
  one = worker()
  one.fault = "half"
  with served(one, tmp_path) as (client, seen):
    engine = made(client)
    for words in ("a file ends too early", "an update .* has failed"):
      with pytest.raises(RunError, match=words) as e:
        step(engine, 0)
      assert "start the server anew" in str(e.value) and client.url in str(
          e.value
      )
      one.fault = ""
  assert "/resume:" not in seen and not list(tmp_path.iterdir())


def test_a_crash_while_files_are_written_leaves_nothing_to_load(
    tmp_path, monkeypatch
):
  monkeypatch.setattr(vllm, "FILE_BYTES", 1)  # a file for each tensor
  one = worker()
  with served(one, tmp_path) as (client, seen):
    client.start_weight_update()

    def tensors():
      yield "one", client.encode(np.ones(2, np.float32))
      raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
      client.update_weights(tensors())
    (left,) = tmp_path.iterdir()
    assert left.suffix == ".part" and len(list(left.iterdir())) == 1
    assert not step(made(client), 0)
  assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
  (tmp_path / "file").write_text("")
  one = worker()
  with served(one, tmp_path / "file") as (client, _):
    with pytest.raises(RunError, match="args.directory: .* with room for"):
      step(made(client), 0)


def test_a_wrong_name_and_a_server_without_the_worker_are_named():
  def respond(path, body):
    words = dict(error=dict(message=f"no {path}"))
    return hostile.answer(words, b"404 Not Found")

  request = external.Request([5], 0, 9, 1.0, 1.0, (1,))
  with hostile.serving(respond) as url:
    client = vllm.vllm(url=url, model="nope", seconds=9)
    with pytest.raises(RunError, match="engine.args.model, 'nope', to a name"):
      dict(client.generate([request]))
    with pytest.raises(RunError, match="started by /.*launch/vllm.sh DIR"):
      client.held()


def test_a_question_without_a_transfer_is_refused():
  with pytest.raises(ConfigError, match="args.held = 'a:b': without"):
    vllm.vllm(model="m", held="a:b")
