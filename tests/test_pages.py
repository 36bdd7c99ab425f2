"""The command that writes all pages, and the index of the studies."""

import re

import pytest
from conftest import ROOT

from bench import pages


def test_a_check_writes_nothing(monkeypatch):
  """The flag that writes more pages is refused with the one that checks."""
  monkeypatch.setattr("sys.argv", ["pages", "--check", "--interactive"])
  for name in ("interactive", "differences"):
    monkeypatch.setattr(pages, name, lambda *args, **kwargs: [])
  with pytest.raises(SystemExit, match="2"):
    pages.main()


def test_the_index_has_all_studies_and_their_pages():
  """Questions, then pages and plans; nothing else is in the folders."""
  folder = ROOT / "studies"
  linked = set(
      re.findall(r"\]\((\w[^)]*)\)", (folder / "README.md").read_text())
  )
  made = {str(x.relative_to(folder)) for x in folder.glob("*/*.md")}
  made |= {str(x.relative_to(folder)) for x in folder.glob("*/*.html")}
  assert linked == made
  assert {x.split("/")[0] for x in made} == {
      x.parent.name for x in folder.glob("*/*.*") if x.suffix != ".pyc"
  }
