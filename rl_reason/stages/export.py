"""The export stage: writes networks that transformers and vLLM load."""

import functools
import json
import pathlib

import jax
import jinja2

from rl_reason.base import config as config_lib
from rl_reason.hf import hub
from rl_reason.models import critic as critic_lib, decoder, lora
from rl_reason.monitoring import run_log
from rl_reason.stages import initial_state, sft
from rl_reason.stages.session import Session, save_checkpoint, save_network


def run(session: Session, which: str) -> None:
  """Writes export/policy, and export/critic if the run has a critic.

  The critic is a token classifier whose labels are the outputs of its head.
  Beside it is a checkpoint of ours, from which critic.path of another run
  starts with critic.init = 'exported'. `which` is 'newest', 'best', or a step.
  With export.push_to the policy is then pushed to the hub.

  Raises:
    RunError: there is no such checkpoint, or the hub refuses.
    ConfigError: transformers has no architecture of that shape.
  """
  c, workdir, display = session.config, session.workdir, session.display
  pushes = c.export.push_to and jax.process_index() == 0
  if pushes:  # a wrong token fails before the weights are gathered
    hub.create(c.export.push_to, c.export.private)
  sft_params = functools.partial(sft.load, session)
  policy, critic, step = initial_state.load(session, which, sft_params)
  networks = {
      "policy": (
          jax.jit(lora.merge)(policy) if c.lora.rank else policy,
          decoder.table(session.cfg),
      )
  }
  if critic is not None:
    networks["critic"] = critic, critic_lib.table(session.critic_cfg)
  card = model_card(c, workdir, step)
  for name, (params, table) in networks.items():
    path = workdir / "export" / name
    save_network(session, path, params, table, session.cfg, card=card)
    display.say(f"{name} of step {step} written to {path}")
  if critic is not None:
    save_checkpoint(session, workdir / "export" / "critic", step, critic)
  if pushes:
    policy = workdir / "export" / "policy"
    url = hub.push(c.export.push_to, policy, f"Step {step} of RL")
    display.say(f"policy of step {step} pushed to {url}")


def model_card(config, workdir: pathlib.Path, step: int) -> str:
  """Returns README.md: origin of the model, accuracy before and after, config.

  The accuracies are those that the run logged, before RL and at this step.
  """
  evaluated = {
      line["step"]: line
      for line in run_log.read_metrics(workdir)
      if line["stage"] == "evaluate" and line["step"] in (0, step)
  }
  steps, path = sorted(evaluated), config.model.path
  names = evaluated[steps[-1]] if steps else {}
  text = (pathlib.Path(__file__).parent / "model_card.md.in").read_text()
  return jinja2.Template(text, keep_trailing_newline=True).render(
      base_model=path if not pathlib.Path(path).exists() else "",
      name=workdir.absolute().name,
      step=step,
      task=config.task.name,
      start=path,
      rank=config.lora.rank,
      steps=steps,
      scores={
          name: [json.dumps(evaluated[x].get(name)) for x in steps]
          for name in sorted(names)
          if name.startswith("val-core/")
      },
      config={k: json.dumps(x) for k, x in config_lib.flat(config).items()},
  )
