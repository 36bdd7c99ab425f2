"""Where a name in a config becomes a function.

An algorithm is a set of functions that the config names: `advantage.name`,
`surrogate.name`, ... Each owns its keyword arguments, which are the section's
`args`; defaults, bounds and choices are those of its signature. A name is that
of a function of the package, or a `module:function` that can be imported.

Signatures are read from the source, by `ast`: nothing here imports jax, so an
error in a config appears within half a second. `bind` imports the function.
"""

import ast
import functools
import importlib
import importlib.util
import inspect
import pathlib
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from rl_reason.base.errors import ConfigError, did_you_mean, one_line
from rl_reason.base.fields import COMPUTED, NAMES_OF_TYPES, REQUIRED, Spec
from rl_reason.base.kinds import KINDS

PACKAGE = pathlib.Path(__file__).parents[1]


_TYPES = {x.__name__: x for x in NAMES_OF_TYPES}


class Signature(NamedTuple):
  """What a function takes.

  Attributes:
    module: full name of its module; '' if the name stands for no function.
    function: its name there.
    inputs: names of its positional parameters, which the run supplies.
    arguments: its keyword-only parameters, which are the user's.
  """

  module: str = ""
  function: str = ""
  inputs: tuple[str, ...] = ()
  arguments: Mapping[str, Spec] = {}


def names(kind: str) -> tuple[str, ...]:
  """Names that the package has for a kind of function."""
  known = KINDS[kind]
  found = [
      name
      for module in known.modules
      for name, one in _definitions(_path(module)).items()
      if name[0] != "_"
      # The other functions of these modules start with another input.
      and one.inputs[:1] in (known.inputs[:1], known.inputs[1:2])
      and set(one.inputs) <= set(known.inputs)
      and name not in known.aliases.values()
  ]
  return (*filter(None, [known.off]), *known.aliases, *found)


def signature(kind: str, name: str) -> Signature:
  """What the function of a name takes.

  Raises:
    ConfigError: the package has no such function; it is no 'module:function'.
  """
  known = KINDS[kind]
  if ":" in name:
    return _of_user(name, f"{known.field}.name")
  if name == known.off and name:
    return Signature()
  for module in known.modules:
    found = _definitions(_path(module)).get(known.aliases.get(name, name))
    if found:
      return found._replace(module=f"rl_reason.{module}")
  there = names(kind)
  raise ConfigError(
      f"{known.field}.name = {name!r}: there is no such function"
      f"{did_you_mean(name, there) or ';'} there are {', '.join(there)}, and"
      " module:function of your own"
  )


def check(kind: str, section: Any) -> None:
  """Checks the name of a function and its arguments.

  Raises:
    ConfigError: the first thing that is wrong.
  """
  known, found = KINDS[kind], signature(kind, section.name)
  for name in found.inputs:
    if name not in known.inputs:
      raise ConfigError(
          f"{known.field}.name = {section.name!r}: takes {name}, which does not"
          f" exist{did_you_mean(name, known.inputs) or ';'} there are"
          f" {', '.join(known.inputs)}; arguments of your own are keyword-only,"
          " behind a *"
      )
  check_arguments(f"{known.field}.args", section.name, found, section.args)


def check_arguments(
    field: str, function: str, found: Signature, args: Mapping[str, Any]
) -> None:
  """Checks the arguments of a function.

  Args:
    field: where they are set, for the error.
    function: its name.
    found: its signature.
    args: by name.

  Raises:
    ConfigError: one is unknown, out of bounds, or missing.
  """
  takes = ", ".join(found.arguments) or "no arguments"
  for name, value in args.items():
    if name not in found.arguments:
      hint = did_you_mean(name, found.arguments)
      problem = f"{function} takes {takes}{hint}"
    else:
      problem = found.arguments[name].problem(value)
    if problem:
      raise ConfigError(f"{field}.{name} = {value!r}: {problem}")
  for name, spec in found.arguments.items():
    if spec.default is REQUIRED and name not in args:
      raise ConfigError(f"{field}.{name}: {function} needs it")


def arguments(kind: str, section: Any) -> dict[str, Any]:
  """The arguments of a function: those that are set, and the defaults."""
  found = signature(kind, section.name).arguments
  defaults = {name: spec.default for name, spec in found.items()}
  # The function itself has the defaults that are no literals.
  literal = {k: v for k, v in defaults.items() if v not in (REQUIRED, COMPUTED)}
  return literal | dict(section.args)


def bind(kind: str, section: Any) -> Any:
  """Imports the function that a section names and binds its arguments.

  Returns:
    The function, for `structs.call_by_name`; None if the name stands for none.
  """
  found = signature(kind, section.name)
  if not found.module:
    return None
  function = getattr(importlib.import_module(found.module), found.function)
  return functools.partial(function, **dict(section.args))


# --- source files ------------------------------------------------------------


def _path(module: str) -> pathlib.Path:
  return PACKAGE.joinpath(*module.split(".")).with_suffix(".py")


@functools.cache
def _definitions(path: pathlib.Path) -> dict[str, Signature]:
  """Functions that a file defines; none if there is no such file."""
  if not path.exists():
    return {}
  tree = ast.parse(path.read_text(encoding="utf-8"))
  aliases = _aliases(tree)
  return {
      node.name: _signature(node, aliases)
      for node in tree.body
      if isinstance(node, ast.FunctionDef)
  }


@functools.cache
def _shared_aliases() -> dict[str, ast.expr]:
  return _aliases(ast.parse((PACKAGE / "base" / "structs.py").read_text()), {})


def _aliases(tree: ast.Module, shared=None) -> dict[str, ast.expr]:
  """Names of types: UnitInterval -> Annotated[float, (0, 1)]."""
  found = {
      node.targets[0].id: node.value
      for node in tree.body
      if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
  }
  return (_shared_aliases() if shared is None else shared) | found


def _signature(node: ast.FunctionDef, aliases) -> Signature:
  """The signature of a definition."""
  args = node.args
  specs = {}
  for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
    spec = _annotation(arg.annotation, aliases)
    if default is not None:
      spec = spec._replace(default=_value(default))
    specs[arg.arg] = spec
  inputs = tuple(x.arg for x in (*args.posonlyargs, *args.args))
  return Signature("", node.name, inputs, specs)


def _value(node: ast.expr) -> Any:
  """A literal."""
  try:
    return ast.literal_eval(node)
  except ValueError:
    return COMPUTED


def _annotation(node: ast.expr | None, aliases) -> Spec:
  """Type, bounds and choices of an annotation; those not understood are any."""
  match node:
    case ast.Constant(value=str(text)):
      return _annotation(ast.parse(text, mode="eval").body, aliases)
    case ast.Name(id=name) | ast.Attribute(attr=name):
      if name in _TYPES:
        return Spec(kind=_TYPES[name])
      if name in aliases:
        # Without the alias itself, so that a circle of names ends.
        rest = {k: v for k, v in aliases.items() if k != name}
        return _annotation(aliases[name], rest)
    case ast.BinOp(left=left, op=ast.BitOr(), right=right):
      # `float | Array`: the config sets the part that has a plain type.
      spec = _annotation(left, aliases)
      return spec if spec.kind else _annotation(right, aliases)
    case ast.Subscript(value=outer, slice=inner):
      name = getattr(outer, "id", getattr(outer, "attr", ""))
      parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
      if name == "Literal":
        return Spec(choices=tuple(map(_value, parts)))
      if name == "Annotated":
        spec, bounds = _annotation(parts[0], aliases), _value(parts[1])
        if isinstance(bounds, tuple) and len(bounds) == 2:
          return spec._replace(low=bounds[0], high=bounds[1])
        return spec
      return Spec(kind=_TYPES.get(name))
  return Spec()


def load(path: str) -> Any:
  """A user's module `module`, or its object `module:name`.

  Raises:
    ConfigError: there is none; the text says why.
  """
  module, mark, name = path.partition(":")
  if not module or mark and not name:
    raise ConfigError(f"{path!r}: must look like module:function")
  search_working_directory()
  try:
    found = importlib.import_module(module)
    _refuse_hidden(module, getattr(found, "__file__", None))
    return getattr(found, name) if mark else found
  except ConfigError as e:
    raise ConfigError(f"{path!r}: {e}") from None
  except Exception as e:  # the user's module may raise anything
    raise ConfigError(f"{path!r}: {type(e).__name__}: {one_line(e)}") from None


def signature_of(called: Any) -> Signature:
  """The signature of anything that can be called."""
  found, empty = inspect.signature(called), inspect.Parameter.empty
  try:
    (node,) = ast.parse(f"def _{found}: pass").body
  except SyntaxError:  # a default or an annotation whose repr is no source
    bare = [x.replace(annotation=empty) for x in found.parameters.values()]
    bare = [x if x.default is empty else x.replace(default=...) for x in bare]
    (node,) = ast.parse(f"def _{inspect.Signature(bare)}: pass").body
  assert isinstance(node, ast.FunctionDef)
  return _signature(node, _shared_aliases())


def search_working_directory() -> None:
  """Lets modules and configs of the working directory be imported.

  It is searched last: its files replace no module of Python or of a library.
  """
  if str(pathlib.Path.cwd()) not in sys.path:
    sys.path.append(str(pathlib.Path.cwd()))


def _refuse_hidden(module: str, origin: str | None) -> None:
  """Refuses a module of Python or of a library that hides the user's file.

  Args:
    module: the name that the user gave.
    origin: the file that is imported by this name; None: it has none.

  Raises:
    ConfigError: the working directory has a file of that name, too.
  """
  own = pathlib.Path.cwd() / f"{module}.py"
  libraries = {"site-packages", "dist-packages"}
  hides = libraries & set(pathlib.Path(origin or "").parts)
  if own.is_file() and (hides or module in sys.stdlib_module_names):
    raise ConfigError(
        f"{own} is hidden by {origin or 'a module of Python'}: give the file"
        " another name"
    )


def _of_user(name: str, field: str) -> Signature:
  """The signature of 'module:function'.

  A plain `def` is read from the source. Anything else that can be called (a
  function imported from elsewhere, a functools.partial) is imported.
  """
  module, _, function = name.partition(":")
  search_working_directory()
  try:
    spec = importlib.util.find_spec(module)
    _refuse_hidden(module, spec.origin if spec else None)
    path = pathlib.Path((spec and spec.origin) or "")
    defined = _definitions(path) if path.suffix == ".py" else {}
    found = defined.get(function) or signature_of(load(name))
  except ConfigError as e:
    raise ConfigError(f"{field} = {e}") from None
  except Exception as e:  # the user's module may raise anything
    raise ConfigError(f"{field} = {name!r}: {one_line(e)}") from None
  return found._replace(module=module, function=function)
