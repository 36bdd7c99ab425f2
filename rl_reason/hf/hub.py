"""Pushes an exported model to the Hugging Face hub, as one commit."""

import pathlib

import huggingface_hub

from rl_reason.base.errors import RunError


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

  Raises:
    RunError: the token has no write access, or the hub cannot be reached.
  """
  files = [
      huggingface_hub.CommitOperationAdd(path.name, path)
      for path in sorted(directory.iterdir())
  ]
  try:
    commit = huggingface_hub.HfApi().create_commit(
        repository, files, commit_message=message
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
