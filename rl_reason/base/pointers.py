"""Files that stand for others: pointers of Git LFS, and pages of a hub."""

import pathlib


def problem(path: pathlib.Path) -> str:
  """Why a file is not the one that was wanted, with the remedy; else ''."""
  with path.open("rb") as file:
    start = file.read(64).lstrip().lower()
  if start.startswith(b"version https://git-lfs.github.com/spec/"):
    return (
        "is a pointer of Git LFS, not the file itself: run git lfs pull in the"
        " repository that has it"
    )
  if start.startswith((b"<!doctype html", b"<html")):
    return (
        "is a web page, not the file itself: the address of a file on the hub"
        " has /resolve/ where its page has /blob/"
    )
  return ""
