"""Pushes an exported model to the Hugging Face hub, as one commit."""

import pathlib
import re

import huggingface_hub

from rl_reason.base.errors import RunError

# The files of weights that an export may have (`model_files.write`).
_WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?")


def create(repository: str, private: bool) -> None:
  """Creates the repository 'owner/name' if it does not exist.

  Raises:
    RunError: the token has no write access, or the hub cannot be reached.
  """
  try:
    api = huggingface_hub.HfApi()
    api.create_repo(repository, private=private, exist_ok=True)
  except Exception as e:  # exceptions of the HTTP library differ by version
    raise _refused(repository, e) from e


def push(repository: str, directory: pathlib.Path, message: str) -> str:
  """Uploads the files of a directory; returns the URL of the commit.

  The commit deletes weights of earlier pushes, which readers would take for the
  new ones.

  Raises:
    RunError: the token has no write access, or the hub cannot be reached.
  """
  files = [
      huggingface_hub.CommitOperationAdd(path.name, path)
      for path in sorted(directory.iterdir())
  ]
  try:
    api = huggingface_hub.HfApi()
    new = {file.path_in_repo for file in files}
    old = [
        huggingface_hub.CommitOperationDelete(name)
        for name in api.list_repo_files(repository)
        if name not in new and _WEIGHTS.fullmatch(name)
    ]
    commit = api.create_commit(
        repository, [*files, *old], commit_message=message
    )
  except Exception as e:  # exceptions of the HTTP library differ by version
    raise _refused(repository, e) from e
  return commit.commit_url


def _refused(repository: str, error: Exception) -> RunError:
  text = " ".join(str(error).split())
  return RunError(
      f"export.push_to = {repository!r}: {text}; check the connection, and that"
      " the token has write access"
  )
