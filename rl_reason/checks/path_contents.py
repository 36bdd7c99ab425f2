"""The content of the paths of a config: a run resumes where it is equal."""

import hashlib
import pathlib
from typing import Any

import ml_collections

from rl_reason.base import config as config_lib, feature, resume_rules
from rl_reason.data import datasets
from rl_reason.tasks import reward_terms

# Files of a model or a tokenizer that decide a number.
MODEL_FILES = (".safetensors", ".json", ".jinja", ".txt", ".model")
# A larger file is compared by BLOCKS blocks of BLOCK bytes, spread over it.
BLOCK = 1 << 20
BLOCKS = 64


def record(config: ml_collections.ConfigDict, model: Any = None) -> None:
  """Adds hashes of the content of paths to a config, so that paths may move.

  Args:
    config: gets fields such as content.model.path.
    model: the local directory of model.path, if that is the id of a hub.
  """
  found = {
      f"content.{name}": digest
      for name in resume_rules.movable()
      if (digest := content(config, name))
  }
  if config.model.path and model:
    found["content.model.path"] = of_files([model], MODEL_FILES)
  with config.unlocked():
    config.update(config_lib.unflat(found))


def content(config, name: str) -> str:
  """A hash of the local files that a field names; '' if there are none."""
  value = config_lib.at(config, name)
  rows = name.startswith("data.") or name.endswith(".samples")
  if rows or name in feature.marked("sources"):
    use = "test" if name == "data.evaluate" else "train"
    try:
      parsed, parts = datasets.parse_all(value, use), []
    except datasets.DataError:  # a file is gone
      return ""
    for source, weight in parsed:
      if not pathlib.Path(source.place).exists():
        return ""
      files = [path for _, path in datasets.files(source)]
      parts.append(f"{source.name}:{source.split}*{weight} {of_files(files)}")
    return " ".join(parts)
  if name == "reward.functions":
    return _terms(value)
  if not value:
    return ""
  if of_feature := feature.marked("content").get(name):
    return of_feature(value)
  if not (root := pathlib.Path(value)).exists():
    return ""
  if name.endswith(".reuse"):  # a work directory, to which later stages add
    stages = ("value",) if name == "critic.reuse" else ("sft", "habits")
    return of_files([root / "checkpoints" / stage for stage in stages])
  of_model = name in ("model.path", "tokenizer")
  return of_files([root], MODEL_FILES if of_model else ())


def _terms(text: str) -> str:
  """Terms of the reward with hashes for their files; '' if they name none."""
  out, found = [], False
  for part in reward_terms.parts(text):
    place, models = part.rpartition("*")[0] or part, []
    if (rules := place.partition("(")[0]).endswith(".json"):
      place, models = rules, reward_terms.models_of(rules)
    if pathlib.Path(place).exists():
      digest = of_files([pathlib.Path(x) for x in (place, *models)])
      part, found = digest + part.removeprefix(place), True
    out.append(part)
  return ",".join(out) if found else ""


def of_files(roots: list[pathlib.Path], suffixes: tuple[str, ...] = ()) -> str:
  """A hash of the names, sizes and bytes (or blocks) of files; '' without any.

  Args:
    roots: files and directories, which may be missing.
    suffixes: files of directories that count; () for all.
  """
  digest, count = hashlib.sha256(), 0
  for root in roots:
    inside = sorted(x for x in root.rglob("*") if x.is_file())
    files = [x for x in inside if not suffixes or x.suffix in suffixes]
    for path in [root] if root.is_file() else files:
      count += 1
      size = path.stat().st_size
      relative = path.relative_to(root) if path != root else path.name
      digest.update(f"{relative} {size}\n".encode())
      step = max(BLOCK, (size - BLOCK) // (BLOCKS - 1))
      with path.open("rb") as f:
        for start in range(0, size, step):
          f.seek(start)
          digest.update(f.read(BLOCK))
  return digest.hexdigest()[:16] if count else ""
