"""Damaged checkpoints are refused in one line that names the file or tensor."""

import fnmatch
import json

import checkpoints
import huggingface_hub
import numpy as np
import pytest
from checkpoints import checkpoint

from rl_reason import hf
from rl_reason.base.errors import ConfigError
from rl_reason.data import tokenizer
from rl_reason.hf import model_files

NORM = "model.norm.weight"


def edit_header(change):
  """Damage: edits the header of the file; the tensors stay."""

  def damage(path):
    data = (path / model_files.SINGLE).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header[NORM])
    text = json.dumps(header).encode()
    length = len(text).to_bytes(8, "little")
    (path / model_files.SINGLE).write_bytes(length + text + data[8 + size :])

  return damage


def entry(**change):
  return edit_header(lambda fields: fields.update(change))


def shift(by):
  def change(fields):
    fields["data_offsets"] = [x + by for x in fields["data_offsets"]]

  return edit_header(change)


def cut(size):
  def damage(path):
    file = path / model_files.SINGLE
    file.write_bytes(file.read_bytes()[:size])

  return damage


def overwrite(start, data):
  def damage(path):
    file = bytearray((path / model_files.SINGLE).read_bytes())
    file[start : start + len(data)] = data
    (path / model_files.SINGLE).write_bytes(file)

  return damage


def config_bytes(data):
  return lambda path: (path / "config.json").write_bytes(data)


def to_pickle(path):
  (path / model_files.SINGLE).rename(path / "pytorch_model.bin")


def remove_all(path):
  for file in path.iterdir():
    file.unlink()


@pytest.fixture(scope="module")
def weights():
  return checkpoints.weights_of(checkpoints.config_of("qwen2"))


def find_damaged(path, damage):
  """The error of a damaged checkpoint, which was in order before."""
  hf.find(str(path))
  damage(path)
  with pytest.raises(ConfigError) as e:
    hf.find(str(path))
  text = str(e.value)
  assert text.startswith(f"model.path = {str(path)!r}: ") and "\n" not in text
  return text


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut(0), "model.safetensors: Error while deserializing header"),
        (cut(300), "truncated or damaged; download it again"),
        (cut(-7), "file not fully covered: truncated or damaged"),
        (overwrite(0, b"\xff" * 8), "header too large"),
        (overwrite(8, b"\xff\xfe"), "invalid UTF-8 in header"),
        (overwrite(9, b"}"), "invalid JSON in header"),
        (shift(4), "invalid offset for tensor `model.norm.weight`"),
        (entry(data_offsets=[-96, 0]), "integer `-96`, expected usize"),
        (entry(shape=[2] * 20_000), "overflow computing buffer size"),
        (entry(shape=[25]), "invalid shape, data type, or offset"),
        (entry(shape=[2, 12]), "model.norm.weight has shape [2, 12]"),
        (entry(dtype="I32"), "model.norm.weight is I32: must be one of F32"),
        (to_pickle, "pickles (*.bin, *.pt) can run code and are not read"),
        (remove_all, "has no config.json (it has no files)"),
        (config_bytes(b"{'a': 1}"), "config.json: is not JSON: "),
        (config_bytes(b"[]"), "config.json: is not a JSON object"),
        (config_bytes(b"\xff\x00{"), "config.json: is not JSON: "),
    ],
)
def test_a_damaged_file_is_named(damage, words, tmp_path, weights):
  config = checkpoints.config_of("qwen2")
  path = checkpoints.write(tmp_path / "x", config, weights)
  assert words in find_damaged(path, damage)


def edit_index(change):
  def damage(path):
    index = json.loads((path / model_files.INDEX).read_text())
    change(index, index["weight_map"])
    (path / model_files.INDEX).write_text(json.dumps(index))

  return damage


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            lambda path: (path / "part-1.safetensors").unlink(),
            "part-1.safetensors is missing",
        ),
        (
            lambda path: (path / model_files.INDEX).write_text("weights"),
            "model.safetensors.index.json: is not JSON: ",
        ),
        (edit_index(lambda x, _: x.pop("weight_map")), "weight_map must map"),
        (edit_index(lambda _, m: m.update({NORM: 3})), "weight_map must map"),
        (
            edit_index(lambda _, m: m.update({NORM: "../part-0.safetensors"})),
            "weight_map must map",
        ),
        (
            edit_index(lambda _, m: m.update(x="part-0.safetensors")),
            "x is in none of the files; download them again",
        ),
        (
            edit_index(lambda _, m: m.update({NORM: "part-0.safetensors"})),
            "model.norm.weight is in part-1.safetensors, and the index",
        ),
    ],
)
def test_an_index_that_contradicts_the_files_is_named(
    damage, words, tmp_path, weights
):
  config = checkpoints.config_of("qwen2")
  path = checkpoints.write(tmp_path / "x", config, weights, 2)
  assert words in find_damaged(path, damage)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_named(bad, tmp_path, weights):
  name = "model.layers.1.mlp.up_proj.weight"
  damaged = weights[name].copy()
  damaged[-1, -1] = bad
  config = checkpoints.config_of("qwen2")
  checkpoints.write(tmp_path / "x", config, weights | {name: damaged})
  with pytest.raises(ConfigError, match="layers.1.mlp.up_proj.weight has weig"):
    checkpoints.load(tmp_path / "x")


def test_a_path_that_does_not_exist(tmp_path):
  (tmp_path / "file").write_text("")
  for name in (str(tmp_path / "nowhere"), "./nowhere", "a/b/c"):
    with pytest.raises(ConfigError, match="there is no such directory"):
      hf.find(name)
  with pytest.raises(ConfigError, match="is a file"):
    hf.find(str(tmp_path / "file"))


def test_weights_with_names_of_their_own_are_fetched_by_the_index(
    tmp_path, monkeypatch
):
  path, calls = tmp_path / "x", []
  checkpoint(path)
  whole = path / "model.safetensors"
  names = list(hf.find(str(path)).tensors)
  index = {"weight_map": dict.fromkeys(names, "weights-1.safetensors")}
  (path / "model.safetensors.index.json").write_text(json.dumps(index))
  held = whole.read_bytes()
  whole.unlink()

  def fetch(_, *, revision, allow_patterns):
    calls.append(allow_patterns)
    if "weights-1.safetensors" in allow_patterns:
      (path / "weights-1.safetensors").write_bytes(held)
    return str(path)

  monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
  assert {*hf.find("some-one/a.model").tensors} == {*names}
  assert calls[1:] == [["weights-1.safetensors"]]
  hf.find("some-one/a.model")
  assert len(calls) == 3  # all are there
  (path / "model.safetensors.index.json").write_text("{")
  with pytest.raises(ConfigError, match="index.json: is not JSON"):
    hf.find("some-one/a.model")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_pointer_of_git_lfs_is_named(tmp_path, name):
  path = checkpoint(tmp_path / "x")
  pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
  (path / name).write_text(pointer)
  words = f"{name}:? is a pointer of Git LFS.*git lfs pull"
  with pytest.raises(ConfigError, match=words):
    if name == "tokenizer.json":
      tokenizer.load(str(path), "")
    else:
      hf.find(str(path))


def test_a_hub_id_is_fetched_without_code_or_pickles(tmp_path, monkeypatch):
  path, calls = checkpoint(tmp_path / "x"), []

  def fetch(name, *, revision, allow_patterns):
    calls.append((name, revision, allow_patterns))
    return str(path)

  monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
  assert hf.find("some-one/a.model").path == path
  ((name, revision, patterns),) = calls
  assert name == "some-one/a.model" and revision is None
  hf.find("some-one/a.model", revision="v2")
  assert calls[1][1] == "v2"

  def is_fetched(file):
    return any(fnmatch.fnmatch(file, p) for p in patterns)

  for file in ("config.json", "model-1.safetensors", "tokenizer.json"):
    assert is_fetched(file)
  for file in (  # the same weights again
      *("consolidated.safetensors", "consolidated-00001-of-2.safetensors"),
      *("model.fp16.safetensors", "original/model-1.safetensors"),
  ):
    assert not is_fetched(file)
  for file in ("pytorch_model.bin", "modeling_x.py", "x.pkl", "x.pt", "x.gguf"):
    assert not is_fetched(file)

  def refuse(name, **_):
    raise OSError("no\nnetwork")

  monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
  with pytest.raises(ConfigError, match="failed .no network.; check the name"):
    hf.find("some-one/a.model")
