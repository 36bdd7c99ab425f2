"""The policy of kl.reference: a run, or a checkpoint of transformers.

It reads the tokens that the policy writes. With another tokenizer or another
template it would score text that it has never seen, and say so by no error: the
policy would learn from noise. Such a reference is refused.
"""

import pathlib
from typing import Any

import ml_collections

from rl_reason import hf, tasks
from rl_reason.base import config as config_lib, resume_rules
from rl_reason.base.config import at
from rl_reason.checks import config_facts, named_code, rules
from rl_reason.checks.run_directory import MODEL, TOKENIZER
from rl_reason.data import tokenizer

FIELD = "kl.reference"
TEMPLATE = (
    *("data.template", "data.chat", "data.system", "data.template_args"),
    "rollout.add_special_tokens",
)
# Fields of the model that its weights do not decide.
OURS = ("dtype", "remat", "logprob_chunk", "attention")


def find(c) -> tuple[ml_collections.ConfigDict, hf.Source | None]:
  """The config of the reference, and its checkpoint of transformers.

  Returns:
    A config whose section `model` is the shape of the reference. And the
    checkpoint, without weights if a run started from it; None if the run
    started from random parameters.

  Raises:
    ConfigError: there is none, or it is damaged.
  """
  place = pathlib.Path(c.kl.reference)
  if not place.is_dir():
    rules.refuse(
        c,
        FIELD,
        "there is no such directory; name the work directory of a run, or a"
        " checkpoint of transformers (`hf download` fetches one)",
    )
  if is_run(c):
    fields = resume_rules.complete(config_lib.load(_config_of(c, place)))
    head = {"critic.head.name": fields["critic.head.name"]}
    named_code.refuse_code(f"{FIELD} = {place}", head)
    theirs = config_lib.unflat(fields)
    source = None
    if any((place / MODEL).glob("*")):
      source = hf.model_description.read(place / MODEL)
  else:
    theirs = c.copy_and_resolve_references()
    source = hf.find(str(place), FIELD)
    shape = hf.architecture.fields(source.cfg)
    del shape["vocab"]
    theirs.model.update(shape)
  theirs.mesh = c.mesh
  theirs.model.update({name: c.model[name] for name in OURS})
  return theirs, source


def is_run(c) -> bool:
  """Whether the reference is a work directory."""
  return (pathlib.Path(c.kl.reference) / "checkpoints").is_dir()


def check(c, tok: Any) -> None:
  """Refuses a reference that reads other tokens than the policy writes.

  Args:
    c: the config.
    tok: the tokenizer of the policy.

  Raises:
    ConfigError: its tokenizer, template, end of a response or context differs.
  """
  theirs, source = find(c)
  other = tokenizer.load(_tokenizer_of(c), "")
  same = "use a teacher of the policy's family"
  if difference := tokenizer.difference(tok, other):
    rules.refuse(c, FIELD, f"has another tokenizer: {difference}; {same}")
  if other.eos_token_id not in tokenizer.response_ends(tok).ids:
    rules.refuse(
        c,
        FIELD,
        f"ends its responses with {other.eos_token!r}, and the policy with"
        f" {tok.eos_token!r}: {same}, or add it to rollout.stop_tokens",
    )
  templates = tok.chat_template, other.chat_template
  if c.data.chat and templates[0] != templates[1]:
    rules.refuse(c, FIELD, f"has another chat template: {same}")
  for name in TEMPLATE:
    if is_run(c) and at(theirs, name) != at(c, name):
      rules.refuse(
          c,
          FIELD,
          f"{name} is {at(theirs, name)!r} there and {at(c, name)!r} here: it"
          " would score prompts that it was not trained on; make them equal",
      )
  length = config_facts.row_slots(c)
  if source and length > source.context:
    prompts = config_facts.longest_prompts(c)
    prompt = max(prompts, key=prompts.__getitem__)
    rules.refuse(
        c,
        FIELD,
        f"takes {source.context} tokens, and {prompt} and"
        f" rollout.max_tokens make {length}: lower one of them, or use a"
        " teacher with a longer context",
    )


def check_files(c, tok: Any) -> None:
  """`check`, as far as local files tell: before a device is used.

  `tok` is None if the tokenizer of the policy is on the hub, or if the task has
  its own.
  """
  if tok is None and (c.tokenizer or c.model.path):
    find(c)
  else:
    check(c, tok or tokenizer.characters(tasks.get(c.task.name).ALPHABET))


def _config_of(c, place: pathlib.Path) -> pathlib.Path:
  """The file with the config of a work directory."""
  if not (place / "config.json").is_file():
    rules.refuse(c, FIELD, "has checkpoints and no config.json of their run")
  return place / "config.json"


def _tokenizer_of(c) -> str:
  """The directory with the tokenizer of the reference."""
  for name in (TOKENIZER, MODEL, ""):
    place = pathlib.Path(c.kl.reference) / name
    if any((place / x).is_file() for x in hf.TOKENIZERS):
      return str(place)
  rules.refuse(
      c, FIELD, "has no tokenizer; add its own, which must be the policy's"
  )
