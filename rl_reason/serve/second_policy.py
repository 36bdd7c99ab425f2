"""A second policy beside the one that is served, to compare both: serve.beside.

Both have one shape and one tokenizer, and thus the same device programs.
"""

import pathlib
from typing import Any, NamedTuple

from rl_reason.base import config as config_lib
from rl_reason.base.errors import ConfigError, RunError
from rl_reason.base.structs import Tree
from rl_reason.checks import model_directory, saved_config
from rl_reason.serve.engine import Engine
from rl_reason.stages import starting_model, trained_parameters
from rl_reason.stages.model import Model
from rl_reason.stages.run_output import Output

AUTO, BEFORE = "auto", "sft"
# Weights of a model that 'auto' serves twice without being asked.
SMALL = 2 << 30  # bytes


class Second(NamedTuple):
  """The second policy.

  Attributes:
    name: of the model, for clients.
    about: what it is.
    params: of the policy.
  """

  name: str
  about: str
  params: Tree


def find(
    c,
    which: str,
    name: str,
    model: Model,
    output: Output,
    tok: Any,
    serving: Engine,
) -> Second | None:
  """The policy of `serve.beside`; None if there is none.

  Args:
    c: the config.
    which: the step of the policy that is served.
    name: its name for clients.
    model: shapes and devices.
    output: work directory and screen.
    tok: the tokenizer.
    serving: its engine.

  Raises:
    RunError, ConfigError: there is no such policy, or it does not fit.
  """
  asked, say = c.serve.beside, output.display.say
  if not asked:
    return None
  if asked != AUTO:
    if pathlib.Path(asked).is_dir():
      return _of_run(pathlib.Path(asked), c, name, model, output, tok)
    if asked not in (BEFORE, "best", "newest") and not asked[0].isdigit():
      raise ConfigError(
          f"serve.beside = {asked!r}: is neither a step of this run ('sft',"
          " 'best', 'newest', 20) nor a work directory; '' is no second policy"
      )
    params, *_, about = trained_parameters.policy(
        c, asked, model=model, output=output
    )
    what = "before-rl" if asked == BEFORE else asked
    return Second(f"{name}-{what}", about, params)
  if trained_parameters.starts(c, which, output):
    return None
  size = serving.weight_bytes
  if size > SMALL:
    say(
        f"the weights have {size / 2**30:.1f} GiB: only this policy is served;"
        f" --config.serve.beside={BEFORE} serves the policy before RL as well"
    )
    return None
  try:
    params, *_, about = trained_parameters.policy(
        c, BEFORE, model=model, output=output
    )
  except (RunError, ConfigError, OSError) as e:
    say(f"the policy before RL is not served beside it: {e}")
    return None
  return Second(f"{name}-before-rl", f"{about}, before RL", params)


def _of_run(
    workdir: pathlib.Path,
    c,
    name: str,
    model: Model,
    output: Output,
    tok: Any,
) -> Second:
  """The newest policy of another run, whose shape and tokenizer are equal."""
  theirs = saved_config.recorded(workdir)
  where = f"serve.beside = {workdir}"
  here = config_lib.flat(c)
  del here["model.path"], here["model.family"]  # their shape counts
  trained_parameters.require_equal(
      where, here, config_lib.flat(theirs), ("model.", "task.name")
  )
  theirs.mesh, theirs.rollout = c.mesh, c.rollout
  theirs.tokenizer = starting_model.tokenizer(workdir) or theirs.tokenizer
  source = starting_model.source(workdir)
  if source or theirs.tokenizer:  # others have the characters of the task
    other = model_directory.load_tokenizer(theirs, source, "")
    if other.get_vocab() != tok.get_vocab():
      raise RunError(
          f"{where}: its tokenizer is another one: name a run with the"
          " tokenizer of this one"
      )
  own = output._replace(workdir=workdir)
  params, *_, about = trained_parameters.policy(
      theirs, "newest", model=model, output=own
  )
  called = workdir.absolute().name
  return Second(called if called != name else f"{name}-2", about, params)
