"""results/papers.md: each number with an interval is in a linked result."""

import re

from conftest import ROOT

PAGE = (ROOT / "results" / "papers.md").read_text()


def test_numbers_with_intervals_are_in_the_linked_results():
  pages = re.findall(r"\]\((\w+\.md|\.\./studies/[^)#]+\.md)", PAGE)
  known = " ".join(
      word
      for name in sorted({"README.md", *pages})
      for word in (ROOT / "results" / name).read_text().split()
  )
  numbers = re.findall(
      r"\d+(?:\.\d+)? ± \d+(?:\.\d+)?", PAGE.replace("\n", " ")
  )
  assert len(numbers) > 25
  assert [x for x in numbers if x not in known.replace("%", "")] == []
