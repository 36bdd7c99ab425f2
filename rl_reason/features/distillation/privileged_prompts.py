"""Prompts with privileged information, which only a teacher reads.

`kl.privileged` is the text of such a prompt: {prompt} is what the policy reads,
{answer} the reference answer of the row, and {solution} its response. In a chat
the text replaces the last turn, so that the chat template stays around it.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from rl_reason.base.structs import Prompts
from rl_reason.data import datasets, pipelines, templates, tokenizer
from rl_reason.tasks import Row

FIELDS = ("prompt", "answer", "solution")
FIELD = "kl.privileged"
_PLACES = re.compile(rf"\{{({'|'.join(FIELDS)})\}}")


def text(template: str, row: Row, tok: Any) -> str:
  r"""The prompt of a row with its privileged information.

  Args:
    template: of the config, in which \n ends a line.
    row: of the prompt.
    tok: the tokenizer, whose chat template a chat gets.

  Raises:
    DataError: the row has no answer or no response, which the template names.
  """
  turns = [dict(x) for x in row.messages]
  values = dict(answer=row.answer, solution=row.response)
  values["prompt"] = turns[-1]["content"] if turns else row.prompt
  named = set(_PLACES.findall(template))
  if missing := [x for x in FIELDS if x in named and not values[x]]:
    name = {"solution": "response"}.get(missing[0], missing[0])
    raise datasets.DataError(
        f"{FIELD}: the row of the prompt {row.prompt[:80]!r} has no {name} for"
        f" {{{missing[0]}}}: leave the row out, or choose another text"
    )
  whole = template.replace("\\n", "\n")
  whole = _PLACES.sub(lambda found: values[found[1]], whole)
  if not turns:
    return whole
  turns[-1]["content"] = whole
  return templates.render(turns, tok, chat=True)


def prompts(
    template: str,
    ids: list[int],
    row: Callable[[int], Row],
    tok: Any,
    slots: int,
) -> Prompts:
  """The prompts of rows by their ids, padded on the left to `slots` tokens.

  Raises:
    DataError: a prompt is longer, or lacks what the template names.
  """
  if not ids:  # a batch of padding
    none_N = np.zeros(0, np.int32)
    return Prompts(np.zeros((0, slots), np.int32), none_N, none_N)
  texts = [text(template, row(x), tok) for x in ids]
  longest = max(map(len, tokenizer.encode_prompts(tok, texts)))
  if longest > slots:
    raise datasets.DataError(
        f"{FIELD}: a prompt with its privileged information has"
        f" {longest} tokens, and there is room for {slots}: set kl.max_prompt ="
        f" {longest} or more; the same command then resumes the run"
    )
  return pipelines.pack_prompts(tok, texts, ids, slots)
