"""Files that stand for others: pointers of Git LFS, and pages of a hub."""

import codecs
import pathlib

_LFS = tuple(
    b"version https://%s/spec/" % host
    for host in (b"git-lfs.github.com", b"hawser.github.com")
)
_ANSWERS = (
    *(b"entry not found", b"repository not found", b"access to dataset"),
    *(b"invalid credentials", b"invalid username", b"<?xml"),
)


def problem(path: pathlib.Path) -> str:
  """Why a file is not the one that was wanted, with the remedy; else ''."""
  with path.open("rb") as file:
    start = file.read(64).removeprefix(codecs.BOM_UTF8).lstrip().lower()
  if start.startswith(_LFS):
    return (
        "is a pointer of Git LFS, not the file itself: run git lfs pull in the"
        " repository that has it"
    )
  if start.startswith((b"/annex/objects/", b"../.git/annex/")):
    return (
        "is a pointer of git-annex, not the file itself: run git annex get in"
        " the repository that has it"
    )
  if start.startswith(_ANSWERS):
    return (
        "is a server's answer that it does not give the file: fetch it again,"
        " with a token if its repository is private or gated"
    )
  if start.startswith((b"<!doctype html", b"<html")):
    return (
        "is a web page, not the file itself: the address of a file on the hub"
        " has /resolve/ where its page has /blob/"
    )
  return ""
