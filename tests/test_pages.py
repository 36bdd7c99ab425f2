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


HAND_WRITTEN = {"README", "plan"}  # an index, and what precedes a study
# What follows the command: machine and versions, commits.
LAST = re.compile(r"(Ours|Versions|[\w.' -]+): |(- )?Commits? |jax \d|Nothing ")


def _pages():
  """The pages, by name: their paragraphs after the title."""
  folders = [ROOT / "results", ROOT / "conformance", *ROOT.glob("studies/*/")]
  for path in (x for y in folders for x in sorted(y.glob("*.md"))):
    if path.stem not in HAND_WRITTEN:
      title, *paragraphs = path.read_text().strip().split("\n\n")
      assert title.startswith("# ") and "\n" not in title, path
      yield path, paragraphs


@pytest.mark.parametrize("form", ["svg", "pdf"])
def test_figures_for_papers_are_beside_the_pages(monkeypatch, form):
  """A check writes none of them."""
  drawn = []
  page = pages.Page("seeds", lambda data: [], lambda data: dict(width=1))
  both = [page, page._replace(figure=None)]
  monkeypatch.setattr(pages, "pages", lambda: both)
  monkeypatch.setattr(pages.figures, "draw", lambda *x: drawn.append(x))
  path = ROOT / "results" / f"seeds.{form}"
  assert pages.for_papers(form) == [path] and drawn == [(dict(width=1), path)]
  monkeypatch.setattr("sys.argv", ["pages", "--check", f"--figures={form}"])
  with pytest.raises(SystemExit, match="2"):
    pages.main()


def test_a_page_begins_with_its_finding():
  """The first paragraph has a number, or says that there is no difference."""
  for path, (first, *_) in _pages():
    assert re.search(r"\d|\b(no|none|null)\b", first, re.IGNORECASE), path
    assert first[0].isupper() or first[0].isdigit(), path
    assert not re.search("Made by|python -m", first), path


def test_a_page_ends_with_its_command_and_the_versions():
  """Pages that are made from data; the command is named once, near the end."""
  for path, paragraphs in _pages():
    if not path.with_suffix(".json").exists():
      continue
    places = [i for i, x in enumerate(paragraphs) if "Made by" in x]
    assert len(places) == 1, path
    assert paragraphs[places[0]].startswith("Made by `python "), path
    for text in paragraphs[places[0] + 1 :]:
      assert LAST.match(text), (path, text[:80])


def test_the_index_has_all_studies_and_their_pages():
  """Questions, then pages and plans; nothing else is in the folders."""
  folder = ROOT / "studies"
  linked = set(
      re.findall(r"\]\((\w[^)]*)\)", (folder / "README.md").read_text())
  )
  made = {str(x.relative_to(folder)) for x in folder.glob("*/*.md")}
  # Ablations write an interactive page, too, which git ignores.
  interactive = {str(x.relative_to(folder)) for x in folder.glob("*/*.html")}
  made |= interactive & linked
  assert linked == made
  assert {x.split("/")[0] for x in made} == {
      x.parent.name for x in folder.glob("*/*.*") if x.suffix != ".pyc"
  }
