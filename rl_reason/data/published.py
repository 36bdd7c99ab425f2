"""Published protocols of known sets: the prompt, and how scores are averaged.

The prompts are verbatim, because a score is comparable only with the same
prompt. `data.template = "published"` asks with them. `source` says which paper,
or which evaluation code, has prompt and sampling.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from rl_reason.data import templates
from rl_reason.verifiers import choice


class Shots(NamedTuple):
  """Solved tasks of a prompt, which are rows of the set and not scored.

  Attributes:
    column: the column whose value names a row.
    rows: the values of that column, in the order of the prompt.
    solution: the column that has the solution.
    split: the split that has the rows.
    text: the task with its solution, from the raw row.
    head: what precedes the first of them, also where there are none.
  """

  column: str
  rows: tuple[int, ...]
  solution: str
  split: str
  text: Callable[[Mapping[str, Any]], str]
  head: str = ""

  def find(self, rows: Iterable[Mapping[str, Any]]) -> str:
    """The solved tasks of a prompt; '' if the rows lack one of them.

    A row without one of the columns of its task is lacking.
    """
    found: dict[int, str] = {}
    for row in rows:
      if row.get(self.column) in self.rows and row.get(self.solution):
        with contextlib.suppress(KeyError, TypeError, AttributeError):
          found.setdefault(row[self.column], self.text(row))
      if len(found) == len(self.rows):
        return "".join(found[x] for x in self.rows)
    return ""


class Protocol(NamedTuple):
  """How a set was evaluated.

  Attributes:
    source: paper or code that says so.
    prompt: a text with {question}; or a function of the raw row, for prompts
      that have other parts than the question.
    response: form of a response, as in `templates.Template`.
    prompts: number of prompts of the set; 0 for a set that only trains.
    samples: responses to each prompt, whose mean accuracy is the score.
    temperature, top_p: of sampling; temperature 0 is greedy.
    tokens: maximum length of a response; 0 where the source has none.
    shots: the solved tasks that the source puts before the question.
    stop: texts that end the response of a base model, in evaluations. Those of
      code are part of its reference answers (`data/known_sets.py`).
    answer: the reference answer to this prompt, from the raw row; None for the
      answer of the set.
    chat: whether the prompt is a turn of a chat; base models continue a text.
  """

  source: str
  prompt: str | Callable[[Mapping[str, Any]], str]
  response: str
  prompts: int = 0
  samples: int = 1
  temperature: float = 0.0
  top_p: float = 1.0
  tokens: int = 0
  shots: Shots | None = None
  stop: tuple[str, ...] = ()
  answer: Callable[[Mapping[str, Any]], str] | None = None
  chat: bool = True

  def template(
      self, row: Mapping[str, Any], solved: str = ""
  ) -> templates.Template:
    """The template of a row; `solved` are the solved tasks before it."""
    prompt = self.prompt
    if isinstance(prompt, str):
      return templates.Template(prompt, self.response)
    before = self.shots.head + solved if self.shots else ""
    return templates.Template(
        lambda question: before + prompt(row), self.response
    )

  def solved(self, prompt: str) -> int:
    """The number of solved tasks with which a prompt begins."""
    if not self.shots:
      return 0
    end, head = self.response.rpartition("}")[2], self.shots.head
    return (prompt.partition(head)[2] if head else prompt).count(end)


_ANSWER = "{solution}\nAnswer: {answer}"
_DAPO = (
    "Solve the following math problem step by step. The last line of your"
    " response should be of the form Answer: $Answer (without quotes) where"
    " $Answer is the answer to the problem.\n\n{question}\n\nRemember to put"
    ' your answer on its own line after "Answer:".'
)


def _mbpp(row: Mapping[str, Any]) -> str:
  """The task, and the first three of its tests."""
  tests = "\n".join(row["test_list"][:3])
  return (
      "You are an expert Python programmer, and here is your task:"
      f" {row.get('text') or row['prompt']} Your code should pass these tests:"
      f"\n\n{tests}\n[BEGIN]\n"
  )


def _folio(row: Mapping[str, Any]) -> str:
  """The premises in one paragraph, the conclusion, and the three options."""
  premises = row["premises"]
  lines = premises.split("\n") if isinstance(premises, str) else premises
  context = " ".join(x.strip() for x in lines)
  return (
      f"Context:\n{context}\n\nQuestion: Based on the above information, is the"
      " following statement true, false, or uncertain?"
      f" {row['conclusion'].strip()}\n\nOptions:\nA) True\nB) False\nC)"
      " Uncertain\n\nThe correct option is:"
  )


def _option(row: Mapping[str, Any]) -> str:
  """The letter of the label of FOLIO; a label of another form stays."""
  letters = {"yes": "A", "no": "B", "uncertain": "C"}
  return letters.get(choice.answer(str(row["label"])) or "", row["label"])


PUBLISHED = {
    "dapo_math_17k": Protocol("DAPO, arXiv:2503.14476", _DAPO, _ANSWER),
    "aime24": Protocol(
        "DAPO, arXiv:2503.14476, sec 4.1",
        _DAPO,
        _ANSWER,
        prompts=30,
        samples=32,
        temperature=1.0,
        top_p=0.7,
        tokens=20480,
    ),
    "gsm8k": Protocol(
        "verl, examples/data_preprocess/gsm8k.py and its greedy validation",
        "{question} Let's think step by step and output the final answer after"
        ' "####".',
        "{solution}\n#### {answer}",
        prompts=1319,
    ),
    "math500": Protocol(
        "openai/simple-evals, math_eval.py",
        "Solve the following math problem step by step. The last line of your"
        " response should be of the form Answer: $ANSWER (without quotes) where"
        " $ANSWER is the answer to the problem.\n\n{question}\n\nRemember to"
        ' put your answer on its own line after "Answer:", and you do not need'
        " to use a \\boxed command.",
        _ANSWER,
        prompts=500,
        samples=10,
        temperature=0.5,
        tokens=2048,
    ),
    "gpqa": Protocol(
        "openai/simple-evals, gpqa_eval.py",
        "Answer the following multiple choice question. The last line of your"
        " response should be of the following format: 'Answer: $LETTER'"
        " (without quotes) where LETTER is one of ABCD. Think step by step"
        " before answering.\n\n{question}",
        _ANSWER,
        prompts=198,
        samples=10,
        temperature=0.5,
        tokens=2048,
    ),
    "humaneval": Protocol(
        "Codex, arXiv:2107.03374, sec 3",
        lambda row: row["prompt"],
        "{solution}",
        prompts=164,
        samples=200,
        temperature=0.2,
        top_p=0.95,
        chat=False,
    ),
    "mbpp": Protocol(
        "lm-evaluation-harness, mbpp.yaml, greedy with the three-shot prompt of"
        " Austin et al. 2021, arXiv:2108.07732",
        _mbpp,
        "{solution}\n[DONE]",
        prompts=500,
        shots=Shots(
            *("task_id", (2, 3, 4), "code", "prompt"),
            lambda row: f"{_mbpp(row)}{row['code']}\n[DONE]\n\n",
        ),
        chat=False,
    ),
    "folio": Protocol(
        "Logic-LM, arXiv:2305.12295, its standard two-shot prompt",
        _folio,
        " {solution}{answer}\n------",
        prompts=204,
        tokens=16,
        shots=Shots(
            *("example_id", (1131, 641), "label", "train"),
            lambda row: f"{_folio(row)} {_option(row)}\n------\n",
            head=(
                "Given a problem statement as contexts, the task is to answer a"
                " logical reasoning question. \n------\n"
            ),
        ),
        stop=("------",),
        answer=_option,
        chat=False,
    ),
}
