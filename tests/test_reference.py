"""The reference is written from the code: it is up to date and complete."""

import importlib.util

import pytest
from conftest import ROOT

from rl_reason.base import fields, function_kinds, functions

SPEC = importlib.util.spec_from_file_location(
    "reference_pages", ROOT / "docs" / "reference_pages.py"
)
reference = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(reference)
PAGES = reference.pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_up_to_date(name):
  assert (ROOT / "docs" / name).read_text() == PAGES[
      name
  ], "`python docs/reference_pages.py` writes it"


def test_every_field_and_every_function_has_a_row():
  for name in fields.FIELDS:
    assert f"\n| `{name}` |" in PAGES["fields.md"]
  for kind in function_kinds.KINDS:
    for name in functions.names(kind):
      if functions.signature(kind, name).function:
        assert f"\n| `{name}` |" in PAGES["functions.md"]
  assert "`coef=0.1` (≥ 0), `decay=1.0` (≥ 0)" in PAGES["functions.md"]


DECLARED = """
def add(c):
  # Above.
  c.a = section(
      "a",
      one=number(1),  # at the end
      # Over two
      # lines.
      two=number(
          2,
          not_with={"a.one": "a reason"},
      ),
      **dict(
          three=number(3),  # of several sections
      ),
      plain=number(4),
  )
  extend(c, "b", four=number(4))  # with the config first
  c.five = function("five")  # a name
"""


def test_comments_are_those_beside_a_declaration(tmp_path, monkeypatch):
  (tmp_path / "x.py").write_text(DECLARED)
  monkeypatch.setattr(reference, "sources", lambda: [tmp_path / "x.py"])
  known = ("a.one", "a.two", "a.three", "a.plain", "b.four", "five.name")
  monkeypatch.setattr(reference.fields, "FIELDS", dict.fromkeys(known))
  assert reference.comments() == {
      "a.one": "at the end",
      "a.two": "Over two lines.",
      "a.three": "of several sections",
      "b.four": "with the config first",
      "five.name": "a name",
  }
