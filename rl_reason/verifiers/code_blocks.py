"""The program of a response: the blocks of code that belong to it.

A response may have a thought, a draft, imports and functions in several blocks,
an example that calls the function, expected output, or code without a block.
Nothing here runs a program: texts are only parsed.
"""

import ast
import builtins
import re
import textwrap
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from rl_reason.verifiers import code_prompts, thoughts

# A line that opens or closes a block: three or more backticks or tildes, in
# lists and quotations as well. The upper limits bound the time of a match.
FENCE = re.compile(
    r"^(?P<before>[ \t]*(?:>[ \t]?){0,9}(?:(?:[-*+]|\d{1,3}[.)])[ \t]+)?)"
    r"(?P<mark>`{3,9}(?!`)|~{3,9}(?!~))[ \t]*(?P<info>[^\n`]*)$",
    re.MULTILINE,
)
# "Here it is: ```python" opens a block as well.
_LATE = re.compile(
    r"(?P<before>[^\n`]*)(?P<mark>```)(?P<info>python3?|py)[ \t]*$", re.I
)
_PYTHON = re.compile(
    r"(?:\{\s*\.?|lang(?:uage)?-)?i?py(?:thon)?[\d.]*(?![\w-])", re.I
)
_LANGUAGE = re.compile(r"[\w+#.-]+\s*$")
# Infos that name no language, and a text that has blocks of its own.
_NEUTRAL = re.compile(
    r"(?:\{\s*\.?)?(?:text|txt|plain(?:text)?|none|code|source|program|solution"
    r"|answer|output|tool_(?:code|call)|[\w./-]*\.py)\b(?!\.)",
    re.I,
)
_NESTED = re.compile(r"(?:markdown|md)\b", re.I)
_SESSION = re.compile(r"[ \t]*(?:>>>|\.\.\.)(?: |$)")
_STARTS = re.compile(r"\s*(?:async\s|def\s|class\s|import\s|from\s|@)")
_DEFINITION = re.compile(
    r"^(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)[^\n]*\n\s*\S", re.MULTILINE
)
_KEYWORD = re.compile(r"\b(?:print|def|import|input)\b")
# A line of a program in a text without blocks.
_STATEMENT = re.compile(
    r"(?:async|def|class|import|from|if|for|while|try|with|print)\b|@"
    r"|[A-Za-z_][\w, .\[\]]{0,99}[-+*/]?=(?!=)"
)
_LARGEST = 100_000  # characters of a text that is parsed
_BLOCKS = 100  # blocks that are read, from the end
_TRIES = 16  # ends of an unfinished block that are tried
_CHUNKS = 10  # places of a text without blocks where a program may begin
_WRITE = ("print", "write", "writelines")
_READ = ("input", "stdin", "open", "read", "readline")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def _parse(source: str) -> ast.Module:
  """The tree of a source.

  Raises:
    SyntaxError: it is no Python, or too large.
  """
  if len(source) > _LARGEST:
    raise SyntaxError("too large")
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      return ast.parse(source)
  except (ValueError, RecursionError, MemoryError) as e:
    raise SyntaxError(str(e)) from None


def _tree(source: str) -> ast.Module | None:
  try:
    return _parse(source)
  except SyntaxError:
    return None


def _signature(source: str) -> ast.Module | None:
  """The tree of a source that ends with the signature of a function."""
  try:
    return _parse(code_prompts.module(source[:_LARGEST]))
  except ValueError:
    return None


def _outside(tree: ast.Module) -> Iterator[ast.AST]:
  """The nodes of a module that are not within a function or a class."""
  rest: list[ast.AST] = [tree]
  while rest:
    for child in ast.iter_child_nodes(rest.pop()):
      yield child
      if not isinstance(child, _SCOPES):
        rest.append(child)


def _binds(node: ast.AST) -> set[str]:
  """The name that a node binds, if any."""
  if isinstance(node, _SCOPES[:3]):
    return {node.name}
  if isinstance(node, ast.alias):
    return {(node.asname or node.name).partition(".")[0]}
  if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
    return {node.id}
  return {node.arg} if isinstance(node, ast.arg) else set()


def _named(tree: ast.AST) -> set[str]:
  """Names and attributes within a node."""
  nodes = list(ast.walk(tree))
  names = {x.id for x in nodes if isinstance(x, ast.Name)}
  return names | {x.attr for x in nodes if isinstance(x, ast.Attribute)}


class Block:
  """A block of code.

  Attributes:
    source: its text.
    marked: 2 if it is marked as Python, 1 if it has no mark, and 0 if its mark
      names no language, such as `text`.
    parses: whether it is Python.
    defines: names that it binds outside of functions; a function that has only
      a signature does not count.
    imports: those of them that it imports.
    uses: names that it uses and does not bind.
    body: whether it is the body of a function.
    acts: whether it writes output or calls its functions, outside of them.
    reads: whether it reads input.
    writes: whether it writes output.
    rank: 2 if it may be a program, 1 if it consists of values and assignments,
      0 if it is no Python.

  Args:
    text: the text of the block.
    marked: see above.
    dedent: whether the indentation of all lines is that of the block.
  """

  def __init__(self, text: str, marked: int, dedent: bool = False):
    if _SESSION.match(text.lstrip("\n")):
      kept = [x for x in text.split("\n") if _SESSION.match(x)]
      text = "\n".join([_SESSION.sub("", x, count=1) for x in kept] + [""])
    self.source, self.marked = text, marked
    self.defines: set[str] = set()
    self.imports: set[str] = set()
    self.uses: set[str] = set()
    self.acts = self.reads = self.writes = False
    whole = textwrap.dedent(text)
    tree = _tree(text)
    indented = tree is None and text.lstrip("\r\n")[:1] in (" ", "\t")
    tree = _tree(whole) if indented else tree
    self.parses = tree is not None
    if tree is None:
      self.defines |= set(_DEFINITION.findall(text))
      if text.rstrip().endswith(":") and (signature := _signature(text)):
        self.defines -= code_prompts.unwritten_in(signature)
      self.body = indented and _tree(f"if 1:\n{text}") is not None
      self.writes = self.reads = bool(_KEYWORD.search(text))
      self.rank = 2 if self.body or self.writes else 0
      return
    outside = list(_outside(tree))
    returns = any(isinstance(x, ast.Return) for x in outside)
    if indented and not returns and (dedent or _STARTS.match(whole)):
      self.source, indented = whole, False
    self.body = returns or indented
    bound = {name for x in ast.walk(tree) for name in _binds(x)}
    used = {x.id for x in ast.walk(tree) if isinstance(x, ast.Name)}
    self.defines = {name for x in outside for name in _binds(x)}
    self.defines -= code_prompts.unwritten_in(tree)
    imports = [x for x in outside if isinstance(x, ast.alias)]
    others = [x for x in outside if not isinstance(x, ast.alias)]
    self.imports = {name for x in imports for name in _binds(x)}
    self.imports -= {name for x in others for name in _binds(x)}
    self.uses = used - bound - set(dir(builtins))
    self.reads = not _named(tree).isdisjoint(_READ)
    self.writes = not _named(tree).isdisjoint(_WRITE)
    scopes = [x for x in outside if isinstance(x, _SCOPES[:3])]
    effects = {*_WRITE, *(name for x in scopes for name in _binds(x))}
    self.acts = any(
        isinstance(x, ast.Expr) and not _named(x).isdisjoint(effects)
        for x in outside
    )
    kinds = (*_SCOPES, ast.Return, ast.Import, ast.ImportFrom, ast.Call)
    self.rank = 1 + any(isinstance(x, kinds) for x in ast.walk(tree))


# --- from a text to its blocks -----------------------------------------------


class _Open(NamedTuple):
  """A block that is not closed yet, with its lines so far."""

  mark: str
  indent: int
  info: str
  lines: list[str]

  def is_closed_by(self, fence: re.Match[str]) -> bool:
    """Whether a fence ends this block; a text in it may have fences, too."""
    same = fence["mark"].startswith(self.mark)
    return same and len(fence["before"]) <= self.indent + 3

  def blocks(self, closed: bool) -> list[Block]:
    """Its blocks; [] if it is empty, or marked as of another language."""
    # Within a list or a quotation its lines begin as the fence does.
    before = re.compile(rf"[ \t>]{{0,{self.indent}}}")
    lines = [before.sub("", x, count=1) for x in self.lines]
    if _NESTED.match(self.info):
      return _fenced("\n".join(lines))[0]
    if _PYTHON.match(self.info):
      marked = 2
    elif not self.info or _NEUTRAL.match(self.info):
      marked = int(not self.info)
    else:
      return []
    if closed:
      return [Block("\n".join([*lines, ""] if lines else lines), marked)]
    source = re.split(r"```[ \t]*(?:\n|$)", "\n".join(lines), maxsplit=1)[0]
    source = _beginning(source) or source
    return [Block(source, marked)] if source.strip() else []


def _beginning(source: str) -> str:
  """The longest beginning of a source that is Python, found by its errors.

  A block that is not closed may end within a statement, or in prose.
  """
  lines = source.split("\n")
  for _ in range(_TRIES):
    try:
      _parse("\n".join(lines))
      return "\n".join(lines)
    except SyntaxError as e:
      end = min((e.lineno or len(lines)) - 1, len(lines) - 1)
      del lines[max(end, 0) :]
  return ""


def _fenced(text: str) -> tuple[list[Block], bool]:
  """The blocks between fences, and whether there are any fences."""
  found: list[Block] = []
  ended: list[tuple[_Open, bool]] = []  # blocks, and whether they are closed
  fences = len(FENCE.findall(text))
  block: _Open | None = None
  before: list[str] = []  # lines before the first fence
  any_fence = False
  for line in text.split("\n"):
    fence = FENCE.match(line) or (None if block else _LATE.match(line))
    if not fence:
      (block.lines if block else before).append(line)
      continue
    info = fence["info"].strip()
    if not any_fence:
      any_fence = True
      first = Block("\n".join([*before, ""]), 1 if info else 2)
      if first.rank == 2 and (first.defines or first.body or first.acts):
        found.append(first)
        if not info and fences % 2:  # it closes a block of the prompt
          continue
    if block and not block.is_closed_by(fence):
      block.lines.append(line)
      continue
    opens = bool(_PYTHON.match(info) or _LANGUAGE.match(info))
    if block:
      ended.append((block, not opens))
    if block and not opens:
      block = None
    else:
      indent = len(fence["before"]) if fence.re is FENCE else 0
      block = _Open(fence["mark"], indent, info, [])
  if block:
    ended.append((block, False))
  for each, closed in ended[-_BLOCKS:]:
    found += each.blocks(closed)
  return found, any_fence


def _unfenced(text: str) -> list[Block]:
  """The indented blocks and the statements of a text without fences."""
  lines, found, at = text.split("\n"), [], 0
  while at < len(lines) and len(found) < _CHUNKS:
    start, at = at, at + 1
    if lines[start][:4] == "    " or lines[start][:1] == "\t":
      while at < len(lines) and lines[at][:1] in ("", " ", "\t"):
        at += 1
      run = "\n".join([*lines[start:at], ""])
      found.append(Block(run, 1, dedent=True))
    elif _STATEMENT.match(lines[start]):
      part = _beginning("\n".join(lines[start:]))
      found.append(Block(part, 1))
      at = start + max(part.count("\n") + 1, 1)
  return [x for x in found if x.rank == 2]


# --- from blocks to a program ------------------------------------------------


def _needed(
    names: Collection[str], blocks: Sequence[Block], last: int
) -> set[int]:
  """Indices of the blocks that define names, and the names that these use.

  The last definition counts, up to the block with index `last` if there is one.
  An import is one if nothing else defines the name: tests import a solution.
  """
  chosen: set[int] = set()
  rest = [(name, last) for name in names]
  asked = set(names)
  while rest:
    name, end = rest.pop()
    found = [i for i, x in enumerate(blocks) if name in x.defines]
    found = [i for i in found if name not in blocks[i].imports] or found
    found = [i for i in found if i <= end][-1:] or found[:1]
    for index in found:
      chosen.add(index)
      new = blocks[index].uses - asked
      asked |= new
      rest += [(x, index) for x in new]
  return chosen


def _main(blocks: Sequence[Block], names: Collection[str]) -> set[int]:
  """Indices of the blocks of a program, of which none defines a name."""
  best = max(x.rank for x in blocks)
  usual = [i for i, x in enumerate(blocks) if x.rank == best]
  if names and (bodies := [i for i in usual if blocks[i].body]):
    return {bodies[-1]}
  if not names and any(blocks[i].writes for i in usual):
    # Others explain a line of the program; a call may be of what writes.
    usual = [i for i in usual if blocks[i].writes or not blocks[i].defines]
  whole = {i: _needed(blocks[i].uses, blocks, i) | {i} for i in usual}
  # What reads nothing is an example if something else reads the input.
  usual = [i for i in usual if any(blocks[x].reads for x in whole[i])] or usual
  for index in reversed(usual):
    needed = whole[index] - {index}
    earlier = [i for i in needed if i < index]
    # An example of a program that is complete without it.
    if not any(blocks[i].acts for i in earlier):
      return needed | {index}
  return {usual[-1]}


def program(text: str, names: Collection[str] = ()) -> str | None:
  """The program of a response.

  Args:
    text: the response; its thought, up to </think>, does not count.
    names: functions and classes that tests call, if there are any.

  Returns:
    the last definition of each name, with the blocks that it needs. Without
    names, or without a block that defines one, the last block that is more than
    a call of earlier ones, with the blocks that it needs. Blocks without a
    language count if those marked as Python have no such block. A text without
    blocks is returned as it is if it is Python, or if no part of it is. None if
    the response has blocks, but none that may be Python.
  """
  text = thoughts.after(text)
  blocks, fences = _fenced(text)
  if not fences:
    whole = Block(text, 2)
    if whole.parses or whole.body:
      return whole.source
    blocks = _unfenced(text)
    if not blocks:
      return text
  if not blocks:
    return None
  groups = [[x for x in blocks if x.marked >= least] for least in (2, 1, 0)]
  for group in groups:
    if any((x.defines - x.imports).intersection(names) for x in group):
      chosen = _needed(names, group, len(group))
      break
  else:
    group = next(filter(None, groups))
    chosen = _main(group, names)
  return "\n".join(group[i].source for i in sorted(chosen))
