"""The export stage: writes networks that transformers and vLLM load."""

import json
import pathlib
from typing import Any

import jax
import jinja2

from rl_reason import features, hf
from rl_reason.base import config as config_lib
from rl_reason.base.structs import Tree
from rl_reason.checkpointing import averaging
from rl_reason.checkpointing.checkpoint import Checkpoints
from rl_reason.data import tokenizer
from rl_reason.hf import hub
from rl_reason.models import critic as critic_lib, decoder
from rl_reason.monitoring import run_log
from rl_reason.stages import card_fields, lower_precision, trained_parameters
from rl_reason.stages.session import Session


def run(c, session: Session, which: str) -> None:
  """Writes export/policy, and export/critic if the run has a critic.

  With export.precision the policy is export/policy-PRECISION, and the screen
  says by how much the log-probs of the run's newest responses change. The
  critic is a token classifier whose labels are the outputs of its head.
  With it comes a checkpoint of this package, from which critic.path of another
  run starts with critic.init = 'exported'. With export.push_to the policy is
  then pushed to the hub. `which` is as in `trained_parameters.policy`.

  Raises:
    RunError: there is no such checkpoint, or the hub refuses.
    ConfigError: transformers has no architecture of that shape.
  """
  source, tok = session.source, session.tok
  model, output = session.model, session.output
  workdir, display, cfg = output.workdir, output.display, model.cfg
  pushes = c.export.push_to and jax.process_index() == 0
  if pushes:  # a wrong token fails before the weights are gathered
    hub.create(c.export.push_to, c.export.private)
  policy, critic, step, about = trained_parameters.policy(
      c, which, model=model, output=output
  )
  precision = c.export.precision
  merged = trained_parameters.merged(policy)
  chosen = "policy" if precision == "same" else f"policy-{precision}"
  networks = {chosen: (merged, decoder.table(cfg), precision)}
  if critic is not None:
    networks["critic"] = critic, critic_lib.table(model.critic_cfg), "same"
  fields = _fields(c, workdir)
  for name, (params, table, kind) in networks.items():
    path = workdir / "export" / name
    of_card = fields | {"export.precision": kind}
    card = model_card(of_card, workdir, step, averaging.parse(which))
    options = dict(card=card, precision=kind)
    save_network(c, source, tok, path, params, table, cfg, **options)
    shown = about if name == chosen else f"{name} of step {step}"
    display.say(f"{shown} written to {path}")
  if critic is not None:
    save_checkpoint(fields, workdir / "export" / "critic", step, critic)
  if precision != "same":
    display.say(lower_precision.cost(c, merged, model, output, tok))
  if pushes:
    path = workdir / "export" / chosen
    of_mean = f", mean of {which}" if averaging.parse(which) else ""
    message = f"Step {step} of RL{of_mean}"
    url = hub.push(c.export.push_to, path, message)
    display.say(f"{about} pushed to {url}")


def _fields(c, workdir: pathlib.Path) -> dict[str, Any]:
  """The fields of the run: an export may leave out code that they name."""
  saved = workdir / "config.json"
  return config_lib.load(saved) if saved.exists() else config_lib.flat(c)


def save_network(
    c,
    source: hf.Source | None,
    tok: Any,
    path: pathlib.Path,
    params: Tree,
    table: Tree,
    cfg: decoder.ModelConfig,
    **options: Any,
) -> None:
  """`hf.save` with dtypes and tokenizer of the run's start, and its ends."""
  ends = tokenizer.response_ends(tok)
  hf.save(
      path,
      params,
      table,
      cfg,
      source=source,
      tokenizer=tok if c.tokenizer or not source else None,
      stop_ids=ends.ids,
      stop_strings=ends.strings,
      context=c.rollout.max_prompt + c.rollout.max_tokens,
      **options,
  )


def save_checkpoint(
    fields: dict[str, Any], path: pathlib.Path, step: int, params: Tree
) -> None:
  """Writes a checkpoint of parameters from which another run can start.

  `fields` are of the config of this run, flat.
  """
  checkpoints = Checkpoints(path)
  checkpoints.save(step, params, dict(config=fields))
  checkpoints.close()


def model_card(
    fields: dict[str, Any],
    workdir: pathlib.Path,
    step: int,
    several: averaging.Average | None = None,
) -> str:
  """Returns README.md: origin of the model, accuracy before and after, config.

  The accuracies are those that the run logged, before RL and at this step. Of
  the mean of `several` steps the run has logged none. A card is published: it
  says what `card_fields.published` lets through.
  """
  evaluated = {
      line["step"]: line
      for line in run_log.read_metrics(workdir)
      if line["stage"] == "evaluate"
      and line["step"] in ((0,) if several else (0, step))
  }
  steps, config = sorted(evaluated), card_fields.published(fields)
  start = card_fields.sources(fields["model.path"])
  names = evaluated[steps[-1]] if steps else {}
  of_features = (x.of_model(fields, short=True) for x in features.declared())
  text = (pathlib.Path(__file__).parent / "model_card.md.in").read_text()
  return jinja2.Template(text, keep_trailing_newline=True).render(
      base_model=start if start != card_fields.LOCAL else "",
      # The name of a work directory ends with fields and their values.
      name=workdir.absolute().name.partition(",")[0],
      step=step,
      averaged=several,
      task=json.loads(config.get("task.name", '"of the user"')),
      start=start,
      learned=[x for x in of_features if x],
      precision=fields["export.precision"],
      steps=steps,
      scores={
          card_fields.metric(name, fields): [
              json.dumps(evaluated[x].get(name)) for x in steps
          ]
          for name in sorted(names)
          if name.startswith("val-core/")
      },
      config=config,
  )
