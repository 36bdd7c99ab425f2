"""Pushes an exported model to the Hugging Face hub, as one commit."""

import pathlib

import huggingface_hub

from rl_reason.base.errors import RunError


def create(repository: str, private: bool) -> None:
  """Creates the repository, unless it exists; a token without rights fails.

  Args:
    repository: 'owner/name'.
    private: whether only its owner sees a repository that is created.

  Raises:
    RunError: the hub refuses, or cannot be reached.
  """
  try:
    api = huggingface_hub.HfApi()
    api.create_repo(repository, private=private, exist_ok=True)
  except Exception as e:  # those of its HTTP library differ by version
    raise _refused(repository, e) from e


def push(repository: str, directory: pathlib.Path, message: str) -> str:
  """Uploads the files of a directory; returns the address of the commit.

  Args:
    repository: 'owner/name'.
    directory: of `hf.save`.
    message: of the commit.

  Raises:
    RunError: the hub refuses, or cannot be reached.
  """
  files = [
      huggingface_hub.CommitOperationAdd(path.name, path)
      for path in sorted(directory.iterdir())
  ]
  try:
    commit = huggingface_hub.HfApi().create_commit(
        repository, files, commit_message=message
    )
  except Exception as e:  # those of its HTTP library differ by version
    raise _refused(repository, e) from e
  return commit.commit_url


def _refused(repository: str, error: Exception) -> RunError:
  text = " ".join(str(error).split())
  return RunError(
      f"export.push_to = {repository!r}: {text}; check that the token may write"
      " there, and the connection"
  )
