"""Data sets that are known by name, and the layout of their rows."""

import ast
import contextlib
import datetime
import decimal
import hashlib
import json
import math
import re
import string
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from rl_reason.verifiers import final_answer, thoughts

Field = Callable[[dict], Any]  # reads one field of a raw row


# Where chats of reasoning models keep the thought of a turn: DeepSeek's API,
# Ollama and Harmony, and newer versions of vLLM. Also columns of rows with a
# response.
THOUGHTS = "reasoning_content", "thinking", "reasoning"


class Unclear(ValueError):
  """A row does not say what its field is; the message is the reason.

  Args:
    why: the reason.
    allowed: what may be there, which is the same for all rows.
  """

  def __init__(self, why: str, allowed: str = ""):
    super().__init__(why)
    self.allowed = allowed


# --- fields of a row ---------------------------------------------------------


def text(cell) -> str:
  """A cell as stripped text; for a chat, the content of its last message.

  Raises:
    TypeError, ValueError: the cell is not text, a number, a date or a truth
      value; the message says which part of an object or a list to name.
  """
  if isinstance(cell, list) and cell and isinstance(cell[-1], dict):
    if (turn := _turn(cell[-1])).keys() >= {"content"}:
      cell = spoken(turn)
  elif isinstance(cell, dict) and cell.keys() >= {"role", "content"}:
    cell = spoken(_turn(cell))
  if isinstance(cell, float | decimal.Decimal):
    if not math.isfinite(cell):
      raise ValueError(f"{cell} is no number")
    # All digits, none of them an exponent: 18 for 18.0, 0.5 for 0.50.
    digits = f"{decimal.Decimal(str(cell)):f}"
    cell = digits.rstrip("0").rstrip(".") if "." in digits else digits
    cell = "0" if cell == "-0" else cell
  if isinstance(cell, bool):
    cell = "yes" if cell else "no"
  if isinstance(cell, bytes):
    cell = cell.decode()
  if isinstance(cell, dict):
    part = next(iter(cell), "a")
    raise TypeError(f"an object: data.columns names a part, COLUMN.{part}")
  if isinstance(cell, list):
    raise TypeError("a list: data.columns names an item, COLUMN.0")
  if not isinstance(cell, str | int | datetime.date | datetime.time):
    raise TypeError(f"{type(cell).__name__} is no text")
  stripped = str(cell).strip()
  stripped.encode()  # raises on unpaired surrogates
  return stripped


def spoken(turn: dict) -> Any:
  """The content of a turn of `_turn`, after its thought, if it has one.

  Raises:
    Unclear: the turn calls tools.
  """
  if turn.get("tool_calls"):
    raise Unclear(
        "a response calls tools outside of its text: write the calls into its"
        " content, or leave the turn out"
    )
  thought, content = turn.get(THOUGHTS[0], ""), turn["content"]
  if not (isinstance(thought, str) and isinstance(content, str)):
    return content
  return thoughts.joined(thought.strip(), content)


# Names of roles in ShareGPT, in its copies, and in other sets.
_ROLES = {
    **{x: x for x in ("system", "user", "assistant", "tool", "developer")},
    "human": "user",
    "prompter": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "bot": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "function_response": "tool",
}


# Types of parts whose text is read, in the APIs of chats and of responses.
_TEXTS = "text", "input_text", "output_text", "refusal"


def _turn(turn: dict[str, Any]) -> dict[str, Any]:
  """A turn with `role` and `content`, which is a text.

  ShareGPT writes {"from": "human", "value": "..."}, copies of it mix these keys
  with others; see also `in_form`.

  Raises:
    Unclear: the content is no text.
  """
  # Parquet fills in the keys that only other turns, and other parts, have.
  turn = {name: x for name, x in turn.items() if x is not None}
  for wanted, others in ("role", ("from",)), ("content", _CONTENTS):
    found = [x for x in others if x in turn]
    if wanted not in turn and found:
      turn[wanted] = turn.pop(found[0])
  if isinstance(role := turn.get("role"), str):
    turn["role"] = _ROLES.get(role.lower(), role)
  turn = in_form(turn)
  return {x: turn[x] for x in ("role", "content") if x in turn} | turn


def in_form(turn: dict[str, Any]) -> dict[str, Any]:
  """The turn as chat templates read it.

  Clients, Parquet and multimodal sets write fields without a value, a thought
  or a call of a tool under other names, and the content as parts,
  [{"type": "text", "text": "..."}]. A call of a tool may have no content.

  Raises:
    Unclear: the content is no text.
  """
  turn = {name: x for name, x in turn.items() if x is not None}
  if turn.get("role") == "function":  # the former name, as of function_call
    turn["role"] = "tool"
  if call := turn.pop("function_call", None):
    turn.setdefault("tool_calls", [dict(type="function", function=call)])
  if calls := turn.pop("tool_calls", None):
    turn["tool_calls"] = _parsed(calls)
    turn.setdefault("content", "")
  for name in THOUGHTS[1:]:  # templates read the first one
    if name in turn:
      turn.setdefault(THOUGHTS[0], turn.pop(name))
  if isinstance(parts := turn.get("content"), list):
    texts, before = [], []
    for part in parts:
      part = part if isinstance(part, dict) else dict(text=part)
      part = {name: x for name, x in part.items() if x is not None}
      kind = part.get("type", "text")
      thought = kind in THOUGHTS
      content = part.get(kind if thought or kind == "refusal" else "text")
      known = thought or kind in _TEXTS
      if not known or not isinstance(content, str):
        raise Unclear(
            f"a turn has a part of type {kind}, and only text is read"
        )
      (before if thought else texts).append(content)
    turn["content"] = "\n".join(texts)
    if before:
      turn.setdefault(THOUGHTS[0], "\n".join(before))
  return turn


_CONTENTS = "value", "text", "parts"  # names of the content of a turn


def _turns(cell: Any) -> Any:
  """The turns of a chat that is stored by columns; else the cell itself.

  A sequence of objects in an old file of Hugging Face is an object of lists,
  {"role": ["user"], "content": ["1+1?"]}.
  """
  if not isinstance(cell, dict) or not cell.keys() & {"role", "from"}:
    return cell
  lists = [*cell.values()]
  if not all(isinstance(x, list) and len(x) == len(lists[0]) for x in lists):
    return cell
  return [dict(zip(cell, x, strict=True)) for x in zip(*lists, strict=True)]


def chat(cell, system: Any = None) -> tuple[tuple[dict, ...], str, str]:
  """Splits a prompt and the response that may follow it.

  Args:
    cell: a text, or the turns of a chat: {"role", "content"} each, or
      {"from", "value"}.
    system: text of a system turn, which another column has; or any other value.

  Returns:
    the turns before the question; the question, which is the last turn of the
    user; the assistant's turn after the question with its thought, or ''.

  Raises:
    TypeError, ValueError: the cell is neither text nor a chat with a question.
  """
  if isinstance(cell, str) and cell.lstrip().startswith("[{"):
    cell = _chat_of_text(cell)
  cell = _turns(cell)
  if not (isinstance(cell, list) and cell and isinstance(cell[0], dict)):
    return (), text(cell), ""
  turns = [_turn(x) for x in cell]
  if isinstance(system, str) and system.strip():
    if turns[0].get("role") != "system":
      turns.insert(0, dict(role="system", content=system.strip()))
  for turn in turns:
    if not {"role", "content"} <= turn.keys():
      raise ValueError("a turn of a chat has a role and a content")
    if not isinstance(turn["content"], str):
      raise TypeError("the content of a turn is no text")
    turn["content"].encode()  # raises on unpaired surrogates
  reply = turns.pop() if turns[-1]["role"] == "assistant" else None
  if not turns or turns[-1]["role"] != "user":
    raise ValueError("the last turn of a prompt is not the user's")
  question = text(turns.pop()["content"])
  return tuple(turns), question, text(spoken(reply)) if reply else ""


def _parsed(cell: Any) -> Any:
  """The list or the object that a text consists of, as in CSV; or the cell."""
  if not (isinstance(cell, str) and cell.lstrip().startswith(("[", "{"))):
    return cell
  try:
    return json.loads(cell)
  except (ValueError, RecursionError):
    return cell


def _chat_of_text(cell: str) -> Any:
  """The turns that a text of CSV consists of; the text if these are no turns.

  Raises:
    Unclear: the turns are not written as JSON.
  """
  found = _parsed(cell)
  if found is cell and re.match(r"\s*\[\{'(role|content|from|value)'", cell):
    raise Unclear("the turns of a chat in a text are JSON, with double quotes")
  keys = found[0].keys() if isinstance(found, list) else ()
  is_chat = {"role", "content"} <= {*keys} or {"from", "value"} <= {*keys}
  return found if is_chat else cell


class Row(dict):
  """A row whose columns are found whatever their case, if one has no other."""

  def __missing__(self, name: str) -> Any:
    for other in self:
      if other.casefold() == name.casefold():
        return self[other]
    raise KeyError(name)

  def get(self, name: str, default: Any = None) -> Any:
    """The cell of a column, or the default."""
    try:
      return self[name]
    except KeyError:
      return default


def _cell(row: dict, name: str) -> Any:
  """The cell of a column, None without; 'a.b' is the field b of a.

  'a.0' is the first item of a list. Where no column has the name, one in
  another case does.
  """
  if name in row:  # a name with a dot
    return row[name]
  cell: Any = row
  for part in name.split("."):
    cell = _parsed(cell)
    if isinstance(cell, list) and part.isdigit():
      cell = cell[int(part)] if int(part) < len(cell) else None
    else:
      cell = Row(cell).get(part) if isinstance(cell, dict) else None
  return cell


def column(*names: str) -> Field:
  """Reads the first column that is not empty; 'a.b' is the field b of a.

  A name with braces is a template of several columns, as in `filled`.
  """
  readers = [filled(x) if "{" in x else None for x in names]

  def read(row):
    for name, reader in zip(names, readers, strict=True):
      cell = reader(row) if reader else _cell(row, name)
      if cell not in (None, ""):
        return cell
    return ""

  return read


def with_thought(thought: Field, response: Field) -> Field:
  """Reads a response after its thought, which another column may hold."""

  def read(row):
    found, said = thought(row), response(row)
    return thoughts.joined(text(found), text(said)) if found and said else said

  return read


_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


def columns_of(name: str) -> list[str]:
  """The columns that a name of `column` reads.

  Raises:
    ValueError: the name is a template, and a brace in it is not closed.
  """
  if "{" not in name:
    return [name]
  found = list(_BRACES.finditer(name))
  if any(x[0] in ("{", "}") for x in found):
    raise ValueError(
        f"{name!r} has a brace alone: columns are written as {{column}}, and"
        " braces of the text twice, {{ and }}"
    )
  return [x[1] for x in found if x[1]]


def filled(template: str) -> Field:
  """Reads a text with columns in braces: 'Context: {context}'.

  A cell with a list of texts is written one text a line, and '{{' is a brace.
  The function raises KeyError where a row lacks one of the columns.
  """
  columns_of(template)  # raises now, not in each row

  def read(row):
    def cell(brace):
      if not brace[1]:
        return brace[0][0]
      found = _cell(row, brace[1])
      if found is None:
        raise KeyError(brace[1])
      return "\n".join(map(text, found if isinstance(found, list) else [found]))

    return _BRACES.sub(cell, template)

  return read


# How an answer names one of the choices: by its label, by its number, counted
# from 0 or from 1, or by its text.
MEANINGS = ("letter", "index0", "index1", "text")
NUMBERS = ("index0", "index1", "text")  # of these, what a number may be
DETECT = "detect"


def meanings(
    given: str, labels: Sequence[str], texts: Sequence[str]
) -> dict[str, list[int]]:
  """The choices that an answer names, for each way to read it.

  Args:
    given: the answer; also a label with its text, 'B) green'.
    labels: of the choices.
    texts: of the choices.

  Returns:
    for each of MEANINGS with which the answer names a choice, these choices.
  """
  label = given.strip("().: ").upper()
  out = {"letter": [n for n, x in enumerate(labels) if x == label]}
  if not out["letter"] and (found := _LABELLED.fullmatch(given)):
    pair = found[1].upper(), _same(found[2])
    pairs = zip(labels, map(_same, texts), strict=True)
    out["letter"] = [n for n, x in enumerate(pairs) if x == pair]
  out["text"] = [n for n, x in enumerate(texts) if x == given]
  if not any(out.values()):
    out["text"] = [n for n, x in enumerate(texts) if _same(x) == _same(given)]
  if given.isdecimal() and label not in labels:
    for name, first in (("index0", 0), ("index1", 1)):
      out[name] = [n for n in range(len(texts)) if n == int(given) - first]
  return {name: found for name, found in out.items() if found}


_LABELLED = re.compile(r"\(?(\w)\s*[).:]\s*(.+)", re.DOTALL)  # 'B) green'


def _same(choice: str) -> str:
  """A text of a choice, without what does not tell it from another one."""
  return " ".join(choice.casefold().split()).rstrip(".")


def is_number(given: str, named: Collection[str]) -> bool:
  """Whether an answer is a number that is no label of a choice."""
  return given.isdecimal() and "letter" not in named


class Choices(NamedTuple):
  """Reads a question with lettered choices, and the letter of the answer.

  The answer may be a list of one item, or a list of truth values or of 0 and 1,
  one for each choice. The functions raise KeyError where a row lacks a column,
  and Unclear where it is not clear which choice is meant.

  Attributes:
    question: reads the question.
    answer: reads the answer, which names the correct choice.
    names: one column for each choice; or the one column that has them, as a
      list, as {"label", "text"}, or as {"A": text, ...}.
    correct: the column among `names` that is always correct. The choices are
      then put into an order that depends on a hash of question and choices.
    meaning: which of MEANINGS the answers have, or DETECT: each is a label, a
      text or a number.
    detect: returns which of MEANINGS the numbers have.
  """

  question: Field
  answer: Field
  names: Sequence[str]
  correct: str = ""
  meaning: str = DETECT
  detect: Callable[[], str] = lambda: DETECT

  def named(self, row: dict) -> tuple[str, list[str], dict[str, list[int]]]:
    """The answer, the choices, and the `meanings` of the answer."""
    labels, texts = _labelled(row, self.names)
    if len(texts) < 2:
      raise Unclear(f"there are no two choices in {', '.join(self.names)}")
    if self.correct:
      return "", texts, {}
    answer = _parsed(self.answer(row))
    if isinstance(answer, list) and len(answer) == 1:
      [answer] = answer
    if isinstance(answer, list):
      places = [n for n, x in enumerate(answer) if x in (1, True)]
      marks = all(x in (0, 1) for x in answer) and len(answer) == len(texts)
      if not marks or len(places) != 1:
        raise Unclear(f"the answer {answer} is not one choice")
      return labels[places[0]], texts, dict.fromkeys(MEANINGS, places)
    given = text(answer)
    return given, texts, meanings(given, labels, texts)

  def offers(self, row: dict) -> bool:
    """Whether a row has choices."""
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
      return len(_labelled(row, self.names)[1]) > 1
    return False

  def shown(self, row: dict) -> bool:
    """Whether the question of a row shows its choices, with their letters."""
    asked = text(self.question(row))
    pairs = zip(_LETTERS, _labelled(row, self.names)[1], strict=False)
    return all(
        re.search(rf"\b{a}\W{{1,4}}{re.escape(x)}", asked) for a, x in pairs
    )

  def _read(self, row: dict) -> tuple[str, str]:
    asked = text(self.question(row))
    given, texts, named = self.named(row)
    if self.correct:
      [right] = texts[(n := self.names.index(self.correct)) : n + 1] or [""]
      if not right:
        raise KeyError(self.correct)
      if texts.count(right) > 1:
        raise Unclear(f"two choices are {right!r}")
      texts.sort(
          key=lambda x: hashlib.sha256(f"{asked}\0{x}".encode()).digest()
      )
      found = {texts.index(right)}
    else:
      meaning = self.meaning
      if meaning == DETECT and is_number(given, named):
        meaning = self.detect()
      if meaning != DETECT:
        named = {meaning: named.get(meaning, [])}
      found = {n for places in named.values() for n in places}
      if len(found) != 1:
        what = "label or the text" if meaning == DETECT else meaning
        raise Unclear(f"the answer {given!r} is not the {what} of one choice")
    lines = [f"{a}) {x}" for a, x in zip(_LETTERS, texts, strict=False)]
    return "\n".join([f"{asked}\n", *lines]), _LETTERS[found.pop()]

  def fields(self) -> tuple[Field, Field]:
    """Functions that read the question, with its choices, and the letter."""
    return lambda row: self._read(row)[0], lambda row: self._read(row)[1]


_LETTERS = string.ascii_uppercase[:10]  # those that the verifier knows


def _listed(cell: Any) -> Any:
  """The choices in a cell of text: JSON, Python, or 'A) red, B) green'."""
  found = _parsed(cell)
  if not isinstance(found, str):
    return found
  if found.lstrip().startswith(("[", "{")):  # as pandas writes a list
    with contextlib.suppress(ValueError, SyntaxError, RecursionError):
      return ast.literal_eval(found.strip())
  first = re.match(r"\s*(\(?)[Aa](\s*[).:])\s", found)
  if not first:
    return found
  starts = [first]
  for label in _LETTERS[1:]:
    mark = re.escape(first[1]) + f"[{label}{label.lower()}]"
    mark = rf"(?<=[\s,;|]){mark}{re.escape(first[2])}\s"
    place = re.compile(mark).search(found, starts[-1].end())
    if not place:
      break
    starts.append(place)
  ends = [x.start() for x in starts[1:]] + [len(found)]
  return [
      found[x.end() : end].strip(" \t\r\n,;|")
      for x, end in zip(starts, ends, strict=True)
  ]


def _is_empty(cell: Any) -> bool:
  """Whether a cell has no choice."""
  return cell is None or cell == "" or cell != cell  # NaN of pandas


# Names of the label and of the text in an object for each choice.
_LABELS = "label", "key", "id", "letter", "option"
_CHOICES = "text", "value", "content", "choice", "option_text"


def _labelled(row: dict, names: Sequence[str]) -> tuple[list[str], list[str]]:
  """Labels and texts of the choices of a row."""
  cells: Any = [_cell(row, name) for name in names]
  labels: Sequence[Any] = _LETTERS
  while len(cells) > 2 and _is_empty(cells[-1]):  # a row with fewer choices
    cells.pop()
  if None in cells:
    raise KeyError(names[cells.index(None)])
  if len(names) == 1:
    cells = _listed(cells[0])
    if isinstance(cells, dict) and "text" not in cells and "label" not in cells:
      # {"A": "red", "B": "green"}, with None for the letters of other rows.
      labels = [name for name, x in cells.items() if not _is_empty(x)]
      cells = [cells[name] for name in labels]
    elif isinstance(cells, dict):
      labels, cells = cells["label"], cells["text"]
    elif isinstance(cells, list) and all(isinstance(x, dict) for x in cells):
      # [{"key": "A", "value": "red"}], or with label and text.
      labels = [_first(x, _LABELS, "") for x in cells]
      cells = [_first(x, _CHOICES) for x in cells]
  if not isinstance(cells, list):
    raise Unclear(f"the column {names[0]!r} has no list of choices")
  if len(cells) > len(_LETTERS):
    raise Unclear(f"there are more than {len(_LETTERS)} choices")
  labels = [text(x).upper() for x in labels[: len(cells)]]
  texts = [text(x) for x in cells]
  # AQuA writes the labels into the texts: ["A)21", "B)22"].
  found = [_LABELLED.fullmatch(x) for x in texts]
  if [x and x[1].upper() for x in found] == labels:
    texts = [x[2] for x in found if x]
  return labels, texts


def _first(found: dict, names: Sequence[str], otherwise: Any = None) -> Any:
  """The value of the first of some keys."""
  return next((found[x] for x in names if x in found), otherwise)


def level(cell) -> int:
  """The difficulty: 4 for 4.5, '4.5' and 'Level 4'; 0 without a number."""
  number = re.search(r"-?\d+(\.\d+)?", str(cell))
  return math.floor(float(number[0])) if number else 0


def label(cell) -> str:
  """A cell as the name of a class; an object or a list as JSON text."""
  found = json.dumps(cell) if isinstance(cell, dict | list) else str(cell)
  return found.strip()


def measured(cell, most: float = math.inf) -> float | None:
  """A number from 0 to `most` that was measured; None of an empty cell.

  Raises:
    ValueError: the cell is no such number.
  """
  if cell == "":
    return None
  if not 0 <= float(cell) <= most:
    raise ValueError(f"{cell} is not from 0 to {most:g}")
  return float(cell)


def last_box(solution: str) -> str | None:
  r"""The content of the last \boxed{...} or \boxed x; None without one."""
  boxes = list(re.finditer(r"\\(?:boxed|fbox)(\s*\{|\s+([^\s{}$]+))", solution))
  if not boxes or boxes[-1][2]:
    return boxes[-1][2] if boxes else None
  content = final_answer.box(solution, boxes[-1].start())
  return None if content is None else content.strip()


# What NuminaMath and tables of pandas write where there is no short answer.
_NO_ANSWERS = "proof", "notfound", "not found", "n/a", "nan", "null"


def math_answer(field: Field) -> Field:
  """Reads the text after '####', the last box, or else the whole cell."""

  def read(row):
    found = field(row)
    listed = _parsed(found)  # Skywork-OR1: '["2"]'; '[0, 1]' is an interval
    if isinstance(listed, list) and len(listed) == 1:
      found = listed[0] if isinstance(listed[0], str) else found
    cell = text(found)
    if cell.lower() in _NO_ANSWERS:
      raise Unclear(f"the reference answer is {cell!r}, which is none")
    if "####" in cell:
      return cell.rpartition("####")[2]
    return last_box(cell) or cell

  return read


def json_text(field: Field) -> Field:
  """Reads an object or a list as JSON text, for code and users' verifiers."""

  def read(row):
    cell = field(row)
    return json.dumps(cell) if isinstance(cell, dict | list) else cell

  return read


def _gsm8k_solution(row) -> str:
  """The solution without calculator annotations and without its last line."""
  solution = re.sub(r"<<[^<>]*>>", "", text(row["answer"]))
  return solution.rpartition("####")[0].strip()


def _dapo_question(row) -> str | list[dict]:
  """The problem without the instructions before and after it."""
  turns, prompt, _ = chat(row["prompt"])
  if prompt.startswith("Solve the following math problem"):
    prompt = prompt.partition("\n\n")[2]
  if 'after "Answer:"' in prompt.rpartition("\n\n")[2]:
    prompt = prompt.rpartition("\n\n")[0]
  return [*turns, dict(role="user", content=prompt)] if turns else prompt


def _olympiad_answer(row) -> str:
  """All final answers, with their unit."""
  cell = row["final_answer"]
  answer = ", ".join(cell) if isinstance(cell, list) else text(cell)
  # Number and unit form one formula: '$12$ $cm^2$' would be two.
  unit = row.get("unit")
  return f"{answer} {unit}".replace("$", "") if unit else answer


def _olympiad_tolerance(row) -> float:
  errors = str(row.get("error") or 0)
  tolerance = max(float(x) for x in errors.split(","))
  if not 0 <= tolerance < math.inf:
    raise ValueError(f"{errors} is no tolerance")
  return tolerance


def _choice_question(row) -> str:
  """The question followed by its choices."""
  choices = row["choices"]
  pairs = zip(choices["label"], choices["text"], strict=True)
  return "\n".join(
      [row["question"], *(f"{a}. {choice}" for a, choice in pairs)]
  )


def _mbpp_question(row) -> str:
  """The task with its asserts, which contain the name of the function."""
  tests = "\n".join(row["test_list"])
  return f"{text(column('text', 'prompt')(row))}\n\nIt must pass:\n\n{tests}"


def _mbpp_answer(row) -> str:
  setup = row.get("test_setup_code") or "\n".join(row.get("test_imports") or ())
  tests = "\n".join(row["test_list"])
  stop = ["[DONE]"]  # Austin et al. 2021, arXiv:2108.07732: ends a solution
  return json.dumps(dict(tests=tests, names=[], prompt=setup, stop=stop))


def _humaneval_answer(row) -> str:
  name = row["entry_point"]
  fields = dict(tests=f"{row['test']}\ncheck({name})\n", names=[name])
  # Codex (Chen et al. 2021, arXiv:2107.03374), sec 3.2.
  stop = ["\nclass", "\ndef", "\n#", "\nif", "\nprint"]
  return json.dumps(fields | dict(prompt=row["prompt"], stop=stop))


def _humaneval_solution(row) -> str:
  body = row.get("canonical_solution")
  return row["prompt"] + body if body else ""


def _contests_answer(row) -> str:
  cases = []
  for part in ("public_tests", "private_tests", "generated_tests"):
    tests = row.get(part) or dict(input=[], output=[])
    cases += zip(tests["input"], tests["output"], strict=True)
  return json.dumps(dict(cases=cases)) if cases else ""


# --- the sets ----------------------------------------------------------------

_PROBLEM = column("problem", "question")
_ANSWER = math_answer(column("answer", "solution"))


class Known(NamedTuple):
  """A data set whose layout is known.

  Attributes:
    hub: id of its repository on the Hugging Face hub.
    splits: name of a split -> pattern of its file names. Every split except
      'train' is a benchmark.
    question: a function that reads this field of `datasets.Example` from a raw
      row; so do answer, difficulty, tolerance, solution, response, rejected,
      subject, pass_rate and response_tokens.
    kind: name of the verifier.
  """

  hub: str
  splits: dict[str, str]
  question: Field = _PROBLEM
  answer: Field = _ANSWER
  difficulty: Field = lambda row: 0
  tolerance: Field = lambda row: 0.0
  solution: Field = lambda row: ""
  response: Field = lambda row: ""
  rejected: Field = lambda row: ""
  subject: Field = column("subject", "data_source")
  pass_rate: Field = column("pass_rate")
  response_tokens: Field = column("response_tokens")
  kind: str = "math"


_TRAIN, _TEST = {"train": "*train*"}, {"test": "*test*"}
_GPQA = (
    "Correct Answer",
    *(f"Incorrect Answer {number}" for number in (1, 2, 3)),
)

KNOWN = {
    "gsm8k": Known(
        "openai/gsm8k",
        {"train": "main/train*", "test": "main/test*"},
        solution=_gsm8k_solution,
    ),
    "svamp": Known(
        "ChilleD/SVAMP",
        _TRAIN | _TEST,
        lambda row: f"{row['Body'].strip().rstrip('.')}. {row['Question']}",
        column("Answer"),
    ),
    "math": Known(
        "EleutherAI/hendrycks_math",
        {"train": "*/train*", "test": "*/test*"},
        answer=math_answer(column("solution", "answer")),
        difficulty=column("level"),
        solution=column("solution"),
        subject=column("type", "subject"),
    ),
    "math500": Known(
        "HuggingFaceH4/MATH-500", _TEST, difficulty=column("level")
    ),
    # Some benchmarks call the split of their only file 'train'.
    "aime24": Known("HuggingFaceH4/aime_2024", {"test": "*train*"}),
    "aime25": Known("math-ai/aime25", _TEST),
    "amc23": Known("math-ai/amc23", _TEST),
    "minerva": Known("math-ai/minervamath", _TEST),
    "olympiadbench": Known(
        "Hothan/OlympiadBench",
        {"test": "*OE_TO_maths_en_COMP*"},
        column("question"),
        _olympiad_answer,
        tolerance=_olympiad_tolerance,
    ),
    "gaokao2023en": Known(
        "MARIO-Math-Reasoning/Gaokao2023-Math-En", {"test": "*train*"}
    ),
    "dapo_math_17k": Known(
        "BytedTsinghua-SIA/DAPO-Math-17k",
        {"train": "*"},
        _dapo_question,
        column("reward_model.ground_truth"),
    ),
    "deepmath": Known(
        "zwhe99/DeepMath-103K",
        _TRAIN,
        column("question", "prompt"),
        column("final_answer", "ground_truth"),
        column("difficulty"),
        subject=column("topic"),
    ),
    "humaneval": Known(
        "openai/openai_humaneval",
        _TEST,
        lambda row: f"Complete this function:\n\n{row['prompt']}",
        _humaneval_answer,
        solution=_humaneval_solution,
        kind="code",
    ),
    "mbpp": Known(
        "google-research-datasets/mbpp",
        {x: f"full/{x}*" for x in ("prompt", "train", "validation", "test")},
        _mbpp_question,
        _mbpp_answer,
        solution=column("code"),
        kind="code",
    ),
    "code_contests": Known(
        "deepmind/code_contests",
        _TRAIN | {"valid": "*valid*"} | _TEST,
        column("description"),
        _contests_answer,
        column("difficulty"),
        kind="code",
    ),
    "strategyqa": Known(
        "ChilleD/StrategyQA",
        _TRAIN | _TEST,
        lambda row: f"{text(row['question'])} Yes or no?",
        column("answer"),
        kind="choice",
    ),
    "commonsenseqa": Known(
        "tau/commonsense_qa",
        _TRAIN | {"validation": "*validation*"},
        _choice_question,
        column("answerKey"),
        kind="choice",
    ),
    "gpqa": Known(  # the last subset is the default
        "Idavidrein/gpqa",
        {x: f"*gpqa_{x}*" for x in ("extended", "main", "diamond")},
        *Choices(column("Question"), column(), _GPQA, _GPQA[0]).fields(),
        kind="choice",
    ),
    "folio": Known(
        "yale-nlp/FOLIO",
        _TRAIN | {"validation": "*validation*"},
        filled(
            "{premises}\n\nIs the following conclusion True, False or Uncertain"
            " by these premises?\n\n{conclusion}"
        ),
        column("label"),
        kind="choice",
    ),
}
