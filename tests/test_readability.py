"""For readers: letters of shapes are in a legend, and long loops say why."""

import ast
import io
import pathlib
import re
import tokenize

PACKAGE = pathlib.Path(__file__).parents[1] / "rl_reason"


def letters_of(tree: ast.Module) -> set[str]:
  """Letters of the suffixes of all names: variables, fields, arguments."""
  names = {
      getattr(node, kind, None)
      for node in ast.walk(tree)
      for kind in ("id", "arg", "attr", "name")
  }
  found = (
      re.fullmatch(r"_?[a-z]\w*_([A-Z\d]+)", x) for x in names if type(x) is str
  )
  return {letter for match in found if match for letter in match[1]}


def local_legend(tree: ast.Module) -> set[str]:
  """Letters that a file's docstring defines: "Shapes here: N rows; ..."."""
  text = " ".join((ast.get_docstring(tree) or "").split())
  return set(
      re.findall(r"(?:[:;,]) ([A-Z])\b", text.partition("Shapes here")[2])
  )


def legend() -> set[str]:
  table = ast.get_docstring(ast.parse((PACKAGE / "structs.py").read_text()))
  rows = re.findall(r"(?m)^\| ([A-Z](?:, [A-Z])*) +\|", table)
  letters = [letter for row in rows for letter in row.split(", ")]
  assert len(letters) == len(set(letters)), "one meaning a letter"
  return set(letters)


def test_letters_are_read_from_names_and_docstrings():
  tree = ast.parse(
      '"""A.\n\nShapes here: N rows;\nZ blocks."""\nx.a_B1Z = _b_TQ'
  )
  assert letters_of(tree) == set("B1ZTQ")
  assert local_legend(tree) == set("NZ")


def test_every_letter_is_in_a_legend():
  known = legend() | set("0123456789")
  unknown = {}
  for path in PACKAGE.rglob("*.py"):
    tree = ast.parse(path.read_text())
    if left := letters_of(tree) - known - local_legend(tree):
      unknown[str(path.relative_to(PACKAGE))] = left
  assert not unknown


def test_long_loops_say_why():
  """Every loop of 16 or more lines has a comment."""
  silent = []
  for path in PACKAGE.rglob("*.py"):
    text = path.read_text()
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = {x.start[0] for x in tokens if x.type == tokenize.COMMENT}
    for node in ast.walk(ast.parse(text)):
      if isinstance(node, ast.For | ast.While | ast.AsyncFor):
        lines = range(node.lineno, node.end_lineno + 1)
        if len(lines) >= 16 and not comments.intersection(lines):
          silent.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
  assert not silent
