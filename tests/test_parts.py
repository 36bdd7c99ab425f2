"""Stages by name: each gets the parts of a run that its parameters name."""

import inspect
import pkgutil

import pytest
import tiny_session

from rl_reason import run

OF_THE_COMMAND = {"stage", "which", "earlier"}


@pytest.mark.parametrize(
    "name", sorted(run.STAGES.keys() - {"prepare", "size"})
)
def test_a_stage_names_parts_that_a_run_has(name):
  stage = pkgutil.resolve_name(run.STAGES[name])
  wanted = inspect.signature(stage).parameters.keys()
  assert wanted <= {*tiny_session.PARTS, *OF_THE_COMMAND}


def test_what_a_run_opens_has_these_names(tmp_path):
  session = tiny_session.make_session(tmp_path)
  got = run.with_parts(lambda tok, c: (tok, c), vars(session))
  assert got == (session.tok, session.config)


@pytest.mark.parametrize("path", [*run.CHECKS.values(), run.AUTOMATIC_REMAT])
def test_what_a_run_names_exists(path):
  assert callable(pkgutil.resolve_name(path))
