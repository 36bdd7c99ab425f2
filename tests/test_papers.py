"""docs/papers.md: each number with an interval is in a linked result."""

import re

from conftest import ROOT

PAGE = (ROOT / "docs" / "papers.md").read_text()


def test_numbers_with_intervals_are_in_the_linked_results():
  text = PAGE.partition("## Errata")[0]
  pages = re.findall(r"\]\((\.\./(?:results|studies)/[^)#]+\.md)", text)
  known = " ".join(
      word
      for name in sorted({"../results/README.md", *pages})
      for word in (ROOT / "docs" / name).read_text().split()
  )
  numbers = re.findall(
      r"\d+(?:\.\d+)? ± \d+(?:\.\d+)?", text.replace("\n", " ")
  )
  assert len(numbers) > 25
  assert [x for x in numbers if x not in known.replace("%", "")] == []
