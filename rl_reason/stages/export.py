"""Exports networks: parameters alone, whole or not there, with their config."""

import shutil

import jax

from rl_reason import checkpoint, config as config_lib
from rl_reason.stages import Run, rl


def run(run: Run, which: str) -> None:
  """Writes export/policy, and export/critic if there is one.

  Each is a checkpoint of its own (see `checkpoint`); critic.path of another run
  takes the latter with critic.init = 'exported'.

  Args:
    run: everything that the stages share.
    which: 'newest', 'best', or a step of RL.

  Raises:
    RunError: there is no such checkpoint.
  """
  policy, critic, at = rl.load(run, which)
  for name, params in dict(policy=policy, critic=critic).items():
    if params is not None:
      path = run.workdir / "export" / name
      if jax.process_index() == 0:  # else the higher step would stay
        shutil.rmtree(path, ignore_errors=True)
      out = checkpoint.Checkpoints(path)
      out.save(at, params, dict(config=config_lib.flat(run.config)))
      out.close()
      run.display.say(f"step {at} written to {path}")
