"""Prompt templates: the form of prompts and of responses to imitate.

Each kind of row (math, ordered, code, choice, none) has its own templates by
the name of a style. `plain` is the question alone. The others ask for
a format of the response in which the final answer can be found: `dapo` a last
line "Answer: ..." (Yu et al. 2025, arXiv:2503.14476), `r1_zero` think and
answer tags (DeepSeek-AI 2025, arXiv:2501.12948), `qwen_boxed` a box (Yang et
al. 2024, arXiv:2409.12122), `code` a program in a block, `choice` a letter, yes
or no. The formats are from the papers, the wording is not. `published` is the
verbatim prompt of a known set (`data/published.py`), and of other sets the
first style of their kind.
"""

import ast
import datetime
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rl_reason import verifiers
from rl_reason.base import functions
from rl_reason.data import datasets


class Template(NamedTuple):
  """The form of a prompt and of a response.

  Attributes:
    prompt: a text with {question}; or a function of the question that returns
      a text or the turns of a chat.
    response: a text with {solution}, followed by {answer} if the solution does
      not contain the answer.
    published: whether the prompt of a known set has priority, if there is one.
  """

  prompt: str | Callable[[str], Any]
  response: str
  published: bool = False


_ANSWER_LINE = "{solution}\nAnswer: {answer}"
_PROGRAM = (
    "Give the whole program in one block that begins with ```python and ends"
    " with ```."
)
_BLOCK = "```python\n{solution}\n```"
_R1_ZERO = (
    "The user asks, the assistant answers. The assistant first reasons between"
    " <think> and </think>, then gives the result between <answer> and"
    " </answer>.\nUser: {question}\nAssistant:"
)
_PLAIN = Template("{question}", _ANSWER_LINE)
_TAGS = Template(
    _R1_ZERO, "<think>{solution}</think>\n<answer>{answer}</answer>"
)
_BOXED = Template(
    "{question}\n\nReason step by step and put the final answer into"
    " \\boxed{}.",
    "{solution}\n\\boxed{{answer}}",
)

# Kind -> style -> template. The first style is the default of a kind that lacks
# the style in data.template.
TEMPLATES = {
    "math": {
        "plain": _PLAIN,
        "dapo": Template(
            "Work out the math problem below, one step after the other. End"
            " with a line of the form Answer: $Answer, where $Answer is the"
            " result and nothing else.\n\n{question}\n\nDo not forget the line"
            ' that begins with "Answer:".',
            _ANSWER_LINE,
        ),
        "r1_zero": _TAGS,
        "qwen_boxed": _BOXED,
    },
    "code": {
        "code": Template(
            f"Solve this task in Python.\n\n{{question}}\n\n{_PROGRAM}", _BLOCK
        ),
        "plain": Template("{question}", _BLOCK),
        "r1_zero": Template(
            _R1_ZERO.replace("{question}", f"{{question}}\n\n{_PROGRAM}"),
            f"<think>\n</think>\n<answer>\n{_BLOCK}\n</answer>",
        ),
    },
    "choice": {
        "choice": Template(
            "{question}\n\nThink first. End with a line of the form Answer: X,"
            " where X is one of the choices: a letter, or yes or no.",
            _ANSWER_LINE,
        ),
        "plain": _PLAIN,
        "r1_zero": _TAGS,
        "qwen_boxed": _BOXED,
    },
    verifiers.NONE: {"plain": _PLAIN, "r1_zero": _TAGS, "qwen_boxed": _BOXED},
}
TEMPLATES["ordered"] = dict(TEMPLATES["math"])
PUBLISHED = "published"
for _known in TEMPLATES.values():
  _known[PUBLISHED] = next(iter(_known.values()))._replace(published=True)
# Rows with a verifier of the user can have any style.
_ALL = {
    x: t for known in reversed(TEMPLATES.values()) for x, t in known.items()
}

# Wordings of the same question; the first one leaves it unchanged.
PARAPHRASES = (
    "{question}",
    "Here is a problem.\n\n{question}",
    "Consider the following.\n\n{question}",
    "{question}\n\nWhat is the solution?",
    "Please solve this one:\n\n{question}",
)


# Arguments of transformers' `apply_chat_template` itself.
RESERVED = frozenset(
    "conversation messages chat_template tools documents tokenize"
    " add_generation_prompt continue_final_message padding truncation"
    " max_length return_tensors return_dict return_assistant_tokens_mask"
    " tokenizer_kwargs sanitize_control_tokens".split()
)
# Values of JSON and of Jinja that are no literals of Python.
_WORDS = dict(true=True, false=False, null=None, none=None)


class PromptError(ValueError):
  """A prompt cannot be rendered; the message is one line with the remedy."""


def _fill(template: str, question: str) -> str:
  return template.replace("{question}", question, 1)  # keeps other braces


def choose(text: str, kind: str) -> Template:
  """The template of the rows of a kind.

  Args:
    text: text of the config: STYLE for all kinds that have the style, or
      KIND=STYLE separated by commas; a style is a name or the user's
      `module:function`.
    kind: kind of the row.

  Raises:
    ValueError: there is no such kind or style.
  """
  styles = datasets.assignments(text)
  for name, style in styles.items():
    _find(style, name)
    if name and name not in TEMPLATES and ":" not in name:
      raise ValueError(f"{name!r} is none of the kinds {', '.join(TEMPLATES)}")
  style = styles.get(kind, styles.get("", ""))
  known = TEMPLATES.get(kind, _ALL)
  if style not in known and ":" not in style:
    return next(iter(TEMPLATES.get(kind, TEMPLATES["none"]).values()))
  return _find(style, kind)


def _find(style: str, kind: str) -> Template:
  """The template of a style for a kind."""
  known = TEMPLATES.get(kind, _ALL)
  if style in known:
    return known[style]
  if ":" not in style:
    raise ValueError(
        f"must be one of {', '.join(known)}, module:function, or pairs such as"
        " math=dapo,code=plain"
    )
  found = functions.load(style)
  if not callable(found):
    raise ValueError(f"{style} is not a function")
  return Template(found, known["plain"].response)


def complete(solution: str, answer: str, template: Template) -> str:
  """A response to imitate, in the format of a template.

  Args:
    solution: the reasoning, or the program.
    answer: the final answer.
    template: template of `choose`.
  """
  before, _, after = template.response.partition("{solution}")
  return before + solution + after.replace("{answer}", answer, 1)


def paraphrase(question: str, number: int) -> str:
  """The question in one of PARAPHRASES, by `number` modulo their count."""
  return _fill(PARAPHRASES[number % len(PARAPHRASES)], question)


def messages(
    question: str,
    template: Template,
    system: str = "",
    earlier: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
  """The turns of a prompt: {"role", "content"} each.

  Args:
    question: question of the row.
    template: template of `choose`.
    system: content of the system turn, '' for none. A system turn of the user's
      function has priority, and a system turn of the row has priority over
      both.
    earlier: turns of the row before the question.

  Raises:
    PromptError: the user's function fails.
  """
  made: Any
  if isinstance(template.prompt, str):
    made = _fill(template.prompt, question)
  else:
    try:
      made = template.prompt(question)
      if not isinstance(made, str):
        made = [dict(role=x["role"], content=x["content"]) for x in made]
        made[-1]["content"].encode()
    except Exception as e:  # the user's code may raise anything
      raise PromptError(
          f"the function of data.template fails ({type(e).__name__}: {e})"
      ) from None
  if isinstance(made, str):
    made = [dict(role="user", content=made)]
  first = [x for x in made if x["role"] == "system"]
  if system and not first:
    first = [dict(role="system", content=system)]
  if any(x["role"] in ("system", "developer") for x in earlier):
    first = []
  rest = [x for x in made if x["role"] != "system"]
  return [*first, *(dict(x) for x in earlier), *rest]


def render(
    turns: list[dict[str, str]],
    tok,
    *,
    chat: bool = False,
    args: Mapping[str, Any] | None = None,
) -> str:
  """The text of a prompt, with all special tokens, ready to be tokenised.

  Args:
    turns: turns of `messages`.
    tok: the tokenizer; only its chat template is used.
    chat: whether to apply the chat template; otherwise the text is the last
      turn.
    args: keywords of the chat template, which replace the tokenizer's own.

  Raises:
    PromptError: there is no chat template, or it rejects the turns.
  """
  if not chat:
    return turns[-1]["content"]
  if not tok.chat_template:
    raise PromptError(
        "the tokenizer has no chat template: set data.chat = False, or put"
        " chat_template.jinja next to its tokenizer.json"
    )
  refusal: Exception | None = None
  for form in _arguments_as(turns):
    try:
      return tok.apply_chat_template(
          form, tokenize=False, add_generation_prompt=True, **(args or {})
      )
    except Exception as e:  # a template is a program and may raise anything
      refusal = refusal or e
      if isinstance(e, MemoryError):
        break
  raise PromptError(
      "the tokenizer's chat template refuses this"
      f" ({type(refusal).__name__}: {refusal}): give messages that it takes,"
      " correct data.template_args, set data.system = '', or data.chat = False"
  ) from refusal


def _arguments_as(turns: list[dict[str, Any]]) -> Iterator[list]:
  """The turns with arguments of tool calls as objects, then as JSON.

  OpenAI's API has JSON. Most chat templates take objects, and write JSON in
  quotes otherwise; a few take texts alone.
  """
  if not any(x.get("tool_calls") for x in turns):
    yield turns
    return

  def written(value: Any) -> Any:
    if isinstance(value, str):
      return value
    return json.dumps(value, ensure_ascii=False)

  for change in (_parsed, written):
    yield [
        {**x, "tool_calls": [_call(y, change) for y in x["tool_calls"]]}
        if isinstance(x.get("tool_calls"), list)
        else x
        for x in turns
    ]


def _parsed(value: Any) -> Any:
  try:
    found = json.loads(value)
  except (TypeError, ValueError, RecursionError):
    return value
  return found if isinstance(found, dict) else value


def _call(call: Any, change: Callable[[Any], Any]) -> Any:
  """A call of a tool with changed arguments."""
  if not isinstance(call, dict):
    return call
  if isinstance(call.get("function"), dict):
    return {**call, "function": _call(call["function"], change)}
  if "arguments" in call:
    return {**call, "arguments": change(call["arguments"])}
  return call


class Shown(NamedTuple):
  """Turns that a chat template shows, each with its content.

  Attributes:
    text: the rendered prompt.
    renamed: number of turns whose role `developer` became `system`.
  """

  text: str
  renamed: int = 0


def render_all(
    turns: Sequence[Mapping[str, Any]],
    render: Callable[[list[dict[str, Any]]], str],
) -> Shown:
  """Renders turns, none of which the chat template may leave out.

  Many templates pass over a role that they do not know. The role `developer`
  becomes `system` then, which it replaces in OpenAI's API.

  Args:
    turns: {"role", "content"} each.
    render: turns -> text, such as `render` with a tokenizer.

  Raises:
    PromptError: the template refuses the turns, or leaves out one of them.
  """
  given = [dict(x) for x in turns]
  refusal: PromptError | None = None
  try:
    if not (hidden := _left_out(given, render)):
      return Shown(render(given))
  except PromptError as e:
    refusal, hidden = e, []
  renamed = as_system(given)
  if renamed != given:
    try:
      if not (hidden := _left_out(renamed, render)):
        count = sum(x["role"] == "developer" for x in given)
        return Shown(render(renamed), count)
    except PromptError as e:
      refusal = refusal or e
  if not hidden and refusal is not None:
    raise refusal
  first = given[hidden[0]]
  if first.get("tool_calls"):
    raise PromptError(
        f"the tokenizer's chat template leaves out {len(hidden)} of"
        f" {len(given)} messages, the first of which calls tools: write calls"
        " and results into contents of 'assistant' and 'user'"
    )
  raise PromptError(
      f"the tokenizer's chat template leaves out {len(hidden)} of {len(given)}"
      f" messages, the first with the role {first['role']!r}: give"
      " them a role that the template shows where they stand, such as"
      " 'system' at the beginning or 'user'"
  )


def as_system(turns: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """The turns with the role `system` in place of `developer`."""
  return [
      {**x, "role": "system" if x["role"] == "developer" else x["role"]}
      for x in turns
  ]


def _left_out(
    turns: list[dict[str, Any]], render: Callable[[list[dict[str, Any]]], str]
) -> list[int]:
  """Numbers of the turns of which the rendered text lacks something.

  A mark at the end of each content shows this, and one at the end of the name
  of the last tool that a turn calls. The content itself does not: a template
  may trim it, and a short content is part of many texts.
  """
  marked, marks = [], []
  for n, turn in enumerate(turns):
    called, said = f"zt{n}tz", f"zq{n}qz"
    if calls := turn.get("tool_calls"):
      turn = {**turn, "tool_calls": _renamed(calls, called)}
      marks.append((n, called))
    if turn["content"].strip():
      turn = {**turn, "content": f"{turn['content']} {said}"}
      marks.append((n, said))
    marked.append(turn)
  try:
    text = render(marked)
    return sorted({n for n, mark in marks if mark not in text})
  except PromptError:  # of the turns, or of a template that parses contents
    text = render(turns)
    return [n for n, x in enumerate(turns) if x["content"].strip() not in text]


def _renamed(calls: Any, mark: str) -> Any:
  """The calls of tools with a mark at the end of the last name.

  They are unchanged, and hence count as left out, if they have no name where
  chat templates look for it.
  """
  if not isinstance(calls, list) or not isinstance(calls[-1], dict):
    return calls
  *rest, last = calls
  if isinstance(last.get("function"), dict):
    return [*rest, {**last, "function": _renamed([last["function"]], mark)[0]}]
  return [*rest, {**last, "name": f"{last.get('name', '')}{mark}"}]


def arguments(text: str) -> dict[str, Any]:
  """Parses keywords of a chat template, such as 'enable_thinking=False,n=3'.

  A value is a literal of Python, true, false or null, or a single word.

  Raises:
    ValueError: the text has another form, or names an argument of
      `apply_chat_template`.
  """
  try:
    call = ast.parse(f"call({text})", mode="eval").body
    if not isinstance(call, ast.Call) or call.args:
      raise ValueError(text)
    found = {str(x.arg): _value(x.value) for x in call.keywords}
    if len(found) < len(call.keywords) or "None" in found:  # twice, or **
      raise ValueError(text)
  except (ValueError, SyntaxError, TypeError):
    found = {}
  if text.strip() and not found:
    raise ValueError(
        "must look like enable_thinking=False,reasoning_effort='high'"
    )
  check_names(found)
  return found


def _value(node: ast.expr) -> Any:
  if isinstance(node, ast.Name):
    return _WORDS.get(node.id.lower(), node.id)
  return ast.literal_eval(node)


def check_names(names: Iterable[str]) -> None:
  """Raises ValueError if a keyword is one of `apply_chat_template` itself."""
  for name in names:
    if name in RESERVED:
      raise ValueError(
          f"{name} is an argument of apply_chat_template, and no keyword of a"
          " chat template: leave it out"
      )


def unread(tok, names: Iterable[str]) -> list[str]:
  """Keywords that the chat template never mentions, and hence ignores."""
  import jinja2  # only needed here

  try:
    pieces = jinja2.Environment().lex(tok.get_chat_template())
    mentioned = {text for _, kind, text in pieces if kind == "name"}
  except (ValueError, jinja2.TemplateError):  # none, or one that never renders
    return []
  return [name for name in names if name not in mentioned]


def is_dated(tok, args: Mapping[str, Any]) -> bool:
  """Whether prompts of the chat template have the date of today."""
  if unread(tok, ["strftime_now"]) or "date_string" in args:
    return False
  try:
    text = render([dict(role="user", content="1+1?")], tok, chat=True)
  except PromptError:
    return False
  return str(datetime.date.today().year) in text


def end_of_turn(tok, args: Mapping[str, Any]) -> str:
  """The special token with which the chat template ends a response; or ''."""
  turns = [("user", "a question"), ("assistant", "a response")]
  messages = [{"role": role, "content": text} for role, text in turns]
  try:
    text = tok.apply_chat_template(messages, tokenize=False, **args)
  except Exception:  # a template is a program and may raise anything
    return ""
  after = text.rpartition(turns[-1][1])[2].strip()
  ids = tok.encode(after, add_special_tokens=False)
  special = bool(ids) and ids[0] in reserved(tok, special=True)
  return tok.convert_ids_to_tokens(ids[0]) if special else ""


def reserved(tok, *, special: bool = False) -> frozenset[int]:
  """Ids that no text of a data set may contain, such as the end of a turn.

  Added tokens of whitespace are allowed, since they only compress text.

  Args:
    tok: the tokenizer.
    special: whether to return only tokens marked as special. <think>, for
      example, is not marked, and is an ordinary part of demonstrations.
  """
  ids = set(tok.all_special_ids)
  for i, token in tok.added_tokens_decoder.items():
    if str(token).strip() and (token.special or not special):
      ids.add(i)
  return frozenset(ids - {tok.unk_token_id})
