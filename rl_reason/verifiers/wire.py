"""The protocol between tests and candidate: plain data in frames.

A frame is its length in four bytes, and JSON of this length. None, bool, float,
str, lists and small integers are sent unchanged, other values as `{tag:
content}` with a tag of `_DECODE`, and numbers of numpy as Python's. No code of
the sender runs in the receiver, so a hostile frame is either a value or an
error.
"""

import functools
import importlib
import itertools
import json
import operator
import os
import sys
from collections.abc import Callable, Iterator

MAX_FRAME = 16 << 20  # bytes
MAX_DEPTH = 200
MAX_ITEMS = 10_000  # of an iterator
_SMALL = 1 << 53
_ARRAYS = "biufcU"  # kinds of arrays of numpy that are sent
# Functions of an object that tests call through Python's syntax.
SPECIAL: dict[str, Callable] = {
    "getattr": getattr,
    "__bool__": bool,
    "__call__": lambda function, *args, **kwargs: function(*args, **kwargs),
    "__contains__": operator.contains,
    "__getitem__": operator.getitem,
    "__iter__": iter,
    "__len__": len,
    "__str__": str,
}
KEPT: list = []  # objects and iterators of this process, if it is a candidate
_COLLECTIONS: tuple[type, ...] = (
    *(tuple, set, frozenset),
    *(type({}.keys()), type({}.values()), type({}.items())),
)
# Types of the standard library; sent as the arguments of `__reduce__`.
_LIBRARY = (
    *("collections.deque", "decimal.Decimal", "fractions.Fraction"),
    *("datetime.date", "datetime.datetime", "datetime.time"),
    *("datetime.timedelta", "datetime.timezone"),
)


class Kept:
  """An object that stays in the candidate's process, by its index in KEPT."""

  def __init__(self, number: int):
    self.number = number


def encode(value, depth: int = 0):
  """Returns plain data in a form that JSON can represent.

  An object of a subclass is sent as an object of its base class: a Counter as a
  dict, a named tuple as a tuple. An object that equals everything is refused.

  Raises:
    TypeError: a part of the value is not plain data.
    ValueError: the value is nested deeper than MAX_DEPTH or contains itself, or
      an iterator has more than MAX_ITEMS items.
  """
  if depth > MAX_DEPTH:
    raise ValueError(f"nested deeper than {MAX_DEPTH}")
  if value is None or isinstance(value, bool | float | str):
    return value  # JSON writes a subclass as its base, too
  if isinstance(value, int):
    value = int.__index__(value)
    # JSON in decimal is quadratic, and Python refuses more than 4300 digits.
    return value if -_SMALL < value < _SMALL else {"int": hex(value)}
  if isinstance(value, dict):
    return {"dict": encode([[key, value[key]] for key in value], depth + 1)}
  if isinstance(value, complex):
    return {"complex": [value.real, value.imag]}
  if isinstance(value, range):
    return {"range": [hex(n) for n in (value.start, value.stop, value.step)]}
  if isinstance(value, bytes | bytearray):
    name = "bytes" if isinstance(value, bytes) else "bytearray"
    return {name: bytes(value).hex()}
  if isinstance(value, list):
    return [encode(item, depth + 1) for item in value]
  if isinstance(value, Kept):
    return {"kept": value.number}
  for kind in _COLLECTIONS:
    if isinstance(value, kind):
      return {kind.__name__: [encode(item, depth + 1) for item in value]}
  for name in _LIBRARY:
    module, _, attribute = name.partition(".")
    if type(value) is getattr(sys.modules.get(module), attribute, None):
      deque = attribute == "deque"
      args = [list(value), value.maxlen] if deque else value.__reduce__()[1]
      return {name: encode(list(args), depth + 1)}
  if numpy := sys.modules.get("numpy"):
    if isinstance(value, numpy.generic):
      return encode(value.item(), depth + 1)
    if isinstance(value, numpy.ndarray) and value.dtype.kind in _ARRAYS:
      items = encode(value.ravel().tolist(), depth + 1)
      return {"array": [value.dtype.str, value.shape, items]}
  if isinstance(value, Iterator):
    items = list(itertools.islice(value, MAX_ITEMS + 1))
    if len(items) > MAX_ITEMS:
      raise ValueError(f"an iterator of more than {MAX_ITEMS} items")
    return {"iterator": encode(items, depth + 1)}
  raise TypeError(f"{type(value).__name__} is not plain data")


def _items(content) -> list:
  if type(content) is not list:
    raise ValueError("a list was due")
  return [decode(item) for item in content]


def _array(content):
  kind, shape, items = content
  if type(kind) is not str or kind[1:2] not in _ARRAYS:
    raise ValueError(f"an array of the kind {kind}")
  array = importlib.import_module("numpy").array(_items(items), kind)
  return array.reshape([int(size) for size in shape])


def _range(content) -> range:
  return range(*(int(n, 16) for n in content))


def _library(name: str, content):
  module, _, attribute = name.partition(".")
  return getattr(importlib.import_module(module), attribute)(*_items(content))


_DECODE = {
    "int": lambda content: int(content, 16),
    "complex": lambda content: complex(*map(float, content)),
    "range": _range,
    "array": _array,
    "kept": lambda content: KEPT[content],
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "tuple": lambda content: tuple(_items(content)),
    "set": lambda content: set(_items(content)),
    "frozenset": lambda content: frozenset(_items(content)),
    "dict": lambda content: dict(_items(content)),
    "dict_keys": lambda content: dict.fromkeys(_items(content)).keys(),
    "dict_values": lambda content: dict(enumerate(_items(content))).values(),
    "dict_items": lambda content: dict(_items(content)).items(),
    "iterator": lambda content: iter(_items(content)),
} | {name: functools.partial(_library, name) for name in _LIBRARY}


def decode(content):
  """Returns the value that `encode` was given, with built-in types only.

  Raises:
    ArithmeticError, LookupError, RecursionError, TypeError, ValueError: the
      content is not a result of `encode`.
  """
  if type(content) is list:
    return _items(content)
  if type(content) is dict:
    ((tag, inner),) = content.items()
    return _DECODE[tag](inner)
  return content


def send(fd: int, message) -> None:
  """Writes one frame.

  Raises:
    ValueError: the frame would be longer than MAX_FRAME bytes.
    OSError: the other process has closed its end.
  """
  # With ensure_ascii, two unpaired surrogates would arrive as one character.
  body = json.dumps(message, ensure_ascii=False).encode(errors="surrogatepass")
  if len(body) > MAX_FRAME:
    raise ValueError(f"more than {MAX_FRAME} bytes")
  rest = memoryview(len(body).to_bytes(4, "big") + body)
  while rest:
    rest = rest[os.write(fd, rest) :]


def _read(fd: int, size: int) -> bytes:
  parts = []
  while size:
    part = os.read(fd, min(size, 1 << 16))
    if not part:
      raise EOFError("the other side is gone")
    parts.append(part)
    size -= len(part)
  return b"".join(parts)


def receive(fd: int):
  """Reads one frame.

  Raises:
    EOFError: the other process has closed its end.
    ValueError: the bytes are no frame, or a frame longer than MAX_FRAME.
  """
  size = int.from_bytes(_read(fd, 4), "big")
  if size > MAX_FRAME:
    raise ValueError(f"a frame of {size} bytes")
  return json.loads(_read(fd, size).decode(errors="surrogatepass"))
