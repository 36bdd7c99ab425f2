"""Where a name in a config becomes a function.

An algorithm is a set of functions that the config names: `advantage.name`,
`surrogate.name`, ... Each function owns its keyword arguments, which are the
section's `args`; its signature has their defaults, bounds and choices. A name
is a function of the package, or a `module:function` that can be imported.

`function_kinds.KINDS` names modules by string: they are imported, and jax with
them, when the first signature is asked for.
"""

import functools
import importlib
import inspect
import math
import pathlib
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from rl_reason.base import own_code
from rl_reason.base.errors import ConfigError, RunError, did_you_mean, one_line
from rl_reason.base.fields import NAMES_OF_TYPES, REQUIRED, Spec, taken_out
from rl_reason.base.function_kinds import KINDS


class Signature(NamedTuple):
  """What a function takes.

  Attributes:
    function: None if the name stands for no function.
    inputs: names of its positional parameters, which the run supplies.
    arguments: its keyword-only parameters, which are the user's.
  """

  function: Callable[..., Any] | None = None
  inputs: tuple[str, ...] = ()
  arguments: Mapping[str, Spec] = {}


@functools.cache
def _signatures(module: str) -> dict[str, Signature]:
  """The functions that a module of the package defines; it is imported."""
  found = importlib.import_module(f"rl_reason.{module}")
  return {
      name: signature_of(value)
      for name, value in vars(found).items()
      if inspect.isfunction(value) and value.__module__ == found.__name__
  }


def names(kind: str) -> tuple[str, ...]:
  """Names that the package has for a kind of function."""
  known = KINDS[kind]
  found = [
      name
      for module in known.modules
      for name, one in _signatures(module).items()
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
    if found := _signatures(module).get(known.aliases.get(name, name)):
      return found
  if name in known.removed:
    raise ConfigError(
        f"{known.field}.name = {name!r}: {taken_out(known.removed[name])}",
        fields=[f"{known.field}.name"],
    )
  there = names(kind)
  near, dot, last = name.rpartition(".")
  near = f"; did you mean {near}:{last}?" if dot else did_you_mean(last, there)
  raise ConfigError(
      f"{known.field}.name = {name!r}: there is no such function"
      f"{near or ';'} there are {', '.join(there)}, and"
      " module:function of your own",
      fields=[f"{known.field}.name"],
  )


def check(kind: str, section: Any) -> None:
  """Checks the name of a function and its arguments.

  Raises:
    ConfigError: there is no such function, or it has other parameters; or the
      arguments are wrong: a line for each.
  """
  known, found = KINDS[kind], signature(kind, section.name)
  field = f"{known.field}.name"
  check_inputs(f"{field} = {section.name!r}", found.inputs, known.inputs, field)
  check_arguments(f"{known.field}.args", section.name, found, section.args)


def check_inputs(
    what: str, inputs: Iterable[str], known: Collection[str], field: str = ""
) -> None:
  """Checks the positional parameters of a function; `what` names it.

  Raises:
    ConfigError: one is none of the known inputs.
  """
  for name in inputs:
    if name not in known:
      raise ConfigError(
          f"{what}: takes {name}, which does not exist"
          f"{did_you_mean(name, known) or ';'} there are {', '.join(known)};"
          " arguments of your own are keyword-only, after a *",
          fields=[field],
      )


def check_arguments(
    field: str, function: str, found: Signature, args: Mapping[str, Any]
) -> None:
  """Checks the arguments of a function; `field` is where they are set.

  Raises:
    ConfigError: some are unknown, out of bounds, or missing.
  """
  takes, lines = ", ".join(found.arguments) or "no arguments", {}
  for name, value in args.items():
    if name not in found.arguments:
      hint = did_you_mean(name, found.arguments)
      problem = f"{function} takes {takes}{hint}"
    else:
      problem = found.arguments[name].problem(value)
    if problem:
      lines[f"{field}.{name}"] = f"{field}.{name} = {value!r}: {problem}"
  for name, spec in found.arguments.items():
    if spec.default is REQUIRED and name not in args:
      lines[f"{field}.{name}"] = f"{field}.{name}: {function} needs it"
  if lines:
    raise ConfigError(*lines.values(), fields=lines)


def arguments(kind: str, section: Any) -> dict[str, Any]:
  """The arguments of a function: those that are set, and the defaults."""
  found = signature(kind, section.name).arguments
  defaults = {name: spec.default for name, spec in found.items()}
  # The function itself has the defaults that a config cannot record.
  plain = {k: v for k, v in defaults.items() if _is_plain(v)}
  return plain | dict(section.args)


def _is_plain(value: Any) -> bool:
  """Whether JSON has a value."""
  if isinstance(value, tuple):
    return all(map(_is_plain, value))
  if isinstance(value, float):
    return math.isfinite(value)
  return value is None or isinstance(value, bool | int | str)


def bind(kind: str, section: Any) -> Any:
  """Binds the arguments of the function that a section names.

  Returns:
    The function, for `structs.call_by_name`; None if the name stands for none.
  """
  function = signature(kind, section.name).function
  return function and functools.partial(function, **dict(section.args))


# --- signatures --------------------------------------------------------------


def signature_of(called: Callable[..., Any]) -> Signature:
  """The signature of anything that can be called."""
  try:
    found = inspect.signature(called, eval_str=True)
  except Exception:  # an annotation that is no expression here
    found = inspect.signature(called)
  inputs, specs = [], {}
  for name, x in found.parameters.items():
    if x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD):
      inputs.append(name)
    elif x.kind is x.KEYWORD_ONLY:
      default = REQUIRED if x.default is x.empty else x.default
      specs[name] = _values(x.annotation)._replace(default=default)
  return Signature(called, tuple(inputs), specs)


def _values(annotation: Any) -> Spec:
  """Type, bounds and choices of an annotation; any if it is another one."""
  if isinstance(annotation, str):  # which could not be evaluated
    by_name = {x.__name__: x for x in NAMES_OF_TYPES}
    return Spec(kind=by_name.get(annotation))
  outer = typing.get_origin(annotation) or annotation
  parts = typing.get_args(annotation)
  if isinstance(outer, type) and outer in NAMES_OF_TYPES:
    return Spec(kind=outer)
  if outer is typing.Literal:
    return Spec(choices=parts)
  if outer is typing.Annotated:
    spec, bounds = _values(parts[0]), parts[1]
    if isinstance(bounds, tuple) and len(bounds) == 2:
      spec = spec._replace(low=bounds[0], high=bounds[1])
    return spec
  if outer in (typing.Union, types.UnionType):
    # `float | Array`: the config sets the part that has a plain type.
    return next((x for x in map(_values, parts) if x.kind), Spec())
  return Spec()


# --- functions of the user ---------------------------------------------------


def _of_user(name: str, field: str) -> Signature:
  """The signature of 'module:function'.

  Raises:
    ConfigError: it cannot be imported, or cannot be called.
  """
  try:
    return signature_of(load(name))
  except ConfigError as e:
    problem = str(e)
  except (TypeError, ValueError) as e:
    problem = f"{name!r}: {one_line(e)}"
  raise ConfigError(f"{field} = {problem}", fields=[field])


def load(path: str) -> Any:
  """A user's module `module`, or its object `module:name`.

  Raises:
    ConfigError: there is none; the text says why.
    RunError: it ends the process.
  """
  module, mark, name = path.partition(":")
  if not module or mark and not name:
    raise ConfigError(f"{path!r}: must look like module:function")
  own_code.search_working_directory()
  try:
    found = importlib.import_module(module)
    own_code.refuse_hidden(module, getattr(found, "__file__", None))
  except KeyboardInterrupt:
    raise
  except SystemExit as e:
    raise RunError(f"{path!r}: {own_code.ended(e)}") from None
  except BaseException as e:  # the user's module may raise anything
    problem = own_code.not_imported(module, e)
    raise ConfigError(f"{path!r}: {problem}") from None
  if mark and not hasattr(found, name):
    raise ConfigError(f"{path!r}: {own_code.lacks(found, name)}")
  return getattr(found, name) if mark else found


def files(names: Iterable[str]) -> list[pathlib.Path]:
  """Files of the user's functions, `module:function`, among names."""
  return [pathlib.Path(_file(x)) for x in names if ":" in x]


def _file(name: str) -> str:
  """The file of 'module:function'."""
  try:
    return inspect.getfile(load(name))
  except TypeError:  # a callable object, such as functools.partial
    return inspect.getfile(load(name.partition(":")[0]))
