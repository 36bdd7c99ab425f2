"""The command that writes the pages of results/."""

import pytest

from bench import pages


def test_a_check_writes_nothing(monkeypatch):
  """The flag that writes more pages is refused with the one that checks."""
  monkeypatch.setattr("sys.argv", ["pages", "--check", "--interactive"])
  for name in ("interactive", "differences"):
    monkeypatch.setattr(pages, name, lambda *args, **kwargs: [])
  with pytest.raises(SystemExit, match="2"):
    pages.main()
