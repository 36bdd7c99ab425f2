"""Builds the row of a run from an example of a file."""

import functools
import types
from typing import Any

from rl_reason.base import errors
from rl_reason.data import published, screening, templates, tokenizer
from rl_reason.data.datasets import Example
from rl_reason.data.screening import Fault
from rl_reason.verifiers import thoughts

THINKING = (
    "let the chat template leave it open, as with data.template_args ="
    " 'enable_thinking=True', or leave the thoughts out of the responses"
)


class RowBuilder:
  """Builds rows from examples: renders, tokenises, measures.

  Args:
    data: the section `data` of the config.
    rollout: the section `rollout`.
    tok: the tokenizer.
    solved: name of a set -> the solved tasks of its published prompt.

  Raises:
    ConfigError: the chat template refuses every prompt.
  """

  def __init__(self, data, rollout, tok, solved=types.MappingProxyType({})):
    self._data, self._rollout, self._tok = data, rollout, tok
    self._solved = solved
    self._reserved = templates.reserved(tok)
    self._special = templates.reserved(tok, special=True)
    self._renamed = dict[tuple, bool]()  # by roles, and whether they call tools
    self._ends = tok.eos_token, templates.end_of_turn(tok, {})
    probe = [dict(role="user", content="1+1?")]
    if self._data.system:
      probe.insert(0, dict(role="system", content=self._data.system))
    try:
      templates.render(probe, tok, chat=self._data.chat)
    except templates.PromptError as e:
      value = self._data.chat
      raise errors.ConfigError(f"data.chat = {value}: {e}") from None

  def _encode(self, text: str) -> list[int]:
    return tokenizer.encode(self._tok, [text])[0]

  def answered(self, example: Example) -> Example:
    """The example with the reference answer to its published prompt, if any."""
    protocol = published.PUBLISHED.get(example.source)
    template = templates.choose(self._data.template, example.kind)
    if not (template.published and protocol and protocol.answer):
      return example
    if not example.answer:  # the row is dropped, and the reason is said
      return example
    return example._replace(answer=protocol.answer(example.columns))

  def build(
      self, example: Example, use: str, *, incorrect: bool = False
  ) -> dict | Fault:
    """The row to write, for 'train' or 'evaluate', or why there is none.

    A response that is `incorrect` is left out, and so is what it is preferred
    to: RL needs the question only.
    """
    d, limit = self._data, self._rollout.max_prompt
    # Of earlier turns of the user as well; the others may have thoughts.
    texts = [(example.question, self._reserved)]
    texts += [
        (x["content"], self._reserved if x["role"] == "user" else self._special)
        for x in example.turns
    ]
    for text, refused in texts:
      if not refused.isdisjoint(self._encode(text)):
        return Fault("the question contains a special token", text)
    key = screening.key(example)
    paraphrases = d.paraphrases if use == "train" else 1
    question = templates.paraphrase(
        example.question, int(key, 16) % paraphrases
    )
    template = templates.choose(d.template, example.kind)
    protocol = published.PUBLISHED.get(example.source)
    if template.published and protocol:
      solved = self._solved.get(example.source, "")
      shots, row = protocol.shots, example.columns
      if solved and shots and row.get(shots.column) in shots.rows:
        reason = "it is a solved task of the published prompt"
        return Fault(reason, example.question)
      template = protocol.template(row, solved)
    try:
      turns = templates.messages(question, template, d.system, example.turns)
      if len(turns) > 1 and not d.chat:
        reason = "the prompt has several turns; data.chat = True keeps it"
        return Fault(reason, example.question)
      prompt, turns, notes = self._rendered(turns)
    except templates.PromptError as e:
      return Fault(screening.UNRENDERED, f"{e}: {example.question}")
    if any(map(_are_schemas, map(example.columns.get, ("tools", "functions")))):
      notes.append(screening.TOOLS)
    ids = self._encode(prompt)
    if not ids:
      return Fault(screening.NO_TOKEN, example.question)
    ids = tokenizer.begun(self._tok, ids)
    if len(ids) > limit:
      return Fault(
          f"{screening.LONG} = {limit}; raise it",
          f"{len(ids)} tokens: {example.question}",
          len(ids),
      )
    response, left_out = example.response, None
    if incorrect:
      code = example.kind == "code"
      reason = screening.FAILING if code else screening.INCORRECT
      left_out = Fault(reason, response or example.solution)
      response, example = "", example._replace(rejected="")
    wrong_program = incorrect and example.kind == "code"
    if example.solution and not response and not wrong_program:
      response = templates.complete(example.solution, example.answer, template)
      if left_out := self._response_fault(response):
        response = ""  # RL needs the question only
    try:
      response, rejected = (
          thoughts.continued(prompt, self._before_end(x))
          for x in (response, example.rejected)
      )
    except ValueError as e:
      return Fault(f"{e}; {THINKING}", response or example.rejected)
    example = example._replace(rejected=rejected)
    opened = thoughts.opened(prompt)
    if opened and response and not thoughts.closed(response):
      notes.append(screening.UNCLOSED)
    # A prompt is evaluated whatever its response; a pair needs both of them.
    if use == "evaluate" and not example.rejected:
      if fault := self._response_fault(response):
        response, left_out = "", fault
    for text in (response, example.rejected):
      if fault := self._response_fault(text):
        return fault
    return example._asdict() | dict(
        response=response,
        no_response=left_out.reason if left_out else "",
        notes=notes,
        key=key,
        prompt=prompt,
        messages=turns if d.chat else [],
        prompt_tokens=len(ids),
    )

  def _rendered(self, turns: list[dict]) -> tuple[str, list[dict], list[str]]:
    """The prompt, its turns as the template shows them, and what to say.

    Raises:
      PromptError: the template refuses the turns, or leaves out one of them.
    """
    render = functools.partial(
        templates.render, tok=self._tok, chat=self._data.chat
    )
    if not self._data.chat:
      return render(turns), turns, []
    roles = tuple((x["role"], bool(x.get("tool_calls"))) for x in turns)
    if roles not in self._renamed:  # rendering twice takes time
      self._renamed[roles] = bool(templates.render_all(turns, render).renamed)
    if not self._renamed[roles]:
      return render(turns), turns, []
    turns = templates.as_system(turns)
    return render(turns), turns, [screening.RENAMED]

  def _before_end(self, response: str) -> str:
    """The response without the tokens that ended it, and blanks after that."""
    text = response.rstrip()
    while end := next((x for x in self._ends if x and text.endswith(x)), ""):
      response = text.removesuffix(end)
      text = response.rstrip()
    return response

  def _response_fault(self, text: str) -> Fault | None:
    ids, limit = self._encode(text), self._rollout.max_tokens
    if not self._special.isdisjoint(ids):
      return Fault("a response contains a special token", text)
    if len(ids) + 1 > limit:  # with its EOS
      return Fault(
          f"a response is longer than rollout.max_tokens = {limit}; raise it",
          f"{len(ids)} tokens: {text}",
          len(ids) + 1,
      )
    return None


def _are_schemas(cell: Any) -> bool:
  """Whether a cell has schemas of tools: objects, or a text with these."""
  if isinstance(cell, str):
    return cell.lstrip().startswith("[{")
  return isinstance(cell, list) and bool(cell) and isinstance(cell[0], dict)
