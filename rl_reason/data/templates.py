"""Prompt templates by name: how a question is presented to the model.

`plain` is the question alone. The others also ask for a format of the response
in which the final answer can be found: `dapo` a last line "Answer: ..." (Yu et
al. 2025, arXiv:2503.14476), `r1_zero` think and answer tags (DeepSeek-AI 2025,
arXiv:2501.12948), `qwen_boxed` a box (Yang et al. 2024, arXiv:2409.12122). The
formats are those of the papers, the wording is not.
"""

TEMPLATES = {
    "plain": "{question}",
    "dapo": (
        "Work out the math problem below, one step after the other. End with a"
        " line of the form Answer: $Answer, where $Answer is the result and"
        " nothing else.\n\n{question}\n\nDo not forget the line that begins"
        ' with "Answer:".'
    ),
    "r1_zero": (
        "The user asks, the assistant answers. The assistant first reasons"
        " between <think> and </think>, then gives the result between <answer>"
        " and </answer>.\nUser: {question}\nAssistant:"
    ),
    "qwen_boxed": (
        "{question}\n\nReason step by step and put the final answer into"
        " \\boxed{}."
    ),
    "code": (
        "Solve this task in Python.\n\n{question}\n\nGive the whole program in"
        " one block that begins with ```python and ends with ```."
    ),
    "choice": (
        "{question}\n\nThink first. End with a line of the form Answer: X,"
        " where X is one of the choices: a letter, or yes or no."
    ),
}

# The format of a response that each template asks for.
_ANSWER_LINE = "{solution}\nAnswer: {answer}"
RESPONSES = {
    "plain": _ANSWER_LINE,
    "dapo": _ANSWER_LINE,
    "r1_zero": "<think>{solution}</think>\n<answer>{answer}</answer>",
    "qwen_boxed": "{solution}\n\\boxed{{answer}}",
    "code": "```python\n{solution}\n```",
    "choice": _ANSWER_LINE,
}

# Wordings of the same question; the first one leaves it unchanged.
PARAPHRASES = (
    "{question}",
    "Here is a problem.\n\n{question}",
    "Consider the following.\n\n{question}",
    "{question}\n\nWhat is the solution?",
    "Please solve this one:\n\n{question}",
)


class PromptError(ValueError):
  """One line: the tokenizer cannot render the prompt, and the remedy."""


def _fill(template: str, question: str) -> str:
  return template.replace("{question}", question, 1)  # keeps other braces


def complete(solution: str, answer: str, template: str) -> str:
  """A response to imitate, in the format that a template asks for.

  Args:
    solution: the reasoning.
    answer: the final answer.
    template: a name in TEMPLATES.
  """
  before, _, after = RESPONSES[template].partition("{solution}")
  return before + solution + after.replace("{answer}", answer, 1)


def paraphrase(question: str, number: int) -> str:
  """The question in wording `number` modulo their count."""
  return _fill(PARAPHRASES[number % len(PARAPHRASES)], question)


def messages(
    question: str, template: str, system: str = ""
) -> list[dict[str, str]]:
  """The turns of a prompt: {"role", "content"} each.

  Args:
    question: of a row.
    template: a name in TEMPLATES.
    system: the system's turn; '' for none.
  """
  turns = [dict(role="system", content=system)] if system else []
  content = _fill(TEMPLATES[template], question)
  return [*turns, dict(role="user", content=content)]


def render(turns: list[dict[str, str]], tok, *, chat: bool = False) -> str:
  """The text of a prompt, with all special tokens, ready to be tokenised.

  Args:
    turns: of `messages`.
    tok: the tokenizer; only its chat template is used.
    chat: whether to apply the chat template; else the text is the last turn.

  Raises:
    PromptError: there is no chat template, or it refuses the turns.
  """
  if not chat:
    return turns[-1]["content"]
  if not tok.chat_template:
    raise PromptError(
        "the tokenizer has no chat template: set data.chat = False, or put"
        " chat_template.jinja beside its tokenizer.json"
    )
  try:
    return tok.apply_chat_template(
        turns, tokenize=False, add_generation_prompt=True
    )
  except Exception as e:  # a template is a program and may raise anything
    raise PromptError(
        "the tokenizer's chat template refuses this"
        f" ({type(e).__name__}: {e}): set data.system = '', or data.chat ="
        " False"
    ) from None


def reserved(tok, *, special: bool = False) -> frozenset[int]:
  """Ids that no text of a data set may contain, such as the end of a turn.

  Added tokens of whitespace only compress text and are allowed.

  Args:
    tok: the tokenizer.
    special: only the tokens marked as special. <think>, for example, is not:
      it is an ordinary part of demonstrations.
  """
  ids = set(tok.all_special_ids)
  for i, token in tok.added_tokens_decoder.items():
    if str(token).strip() and (token.special or not special):
      ids.add(i)
  return frozenset(ids - {tok.unk_token_id})
