"""Published protocols of known sets: the prompt, and how scores are averaged.

The prompts are verbatim, because a score is comparable only with the same
prompt. `data.template = "published"` asks with them. `source` says which paper,
or which evaluation code, has prompt and sampling.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from rl_reason.data import templates


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
    shots: task_id of the rows of the set whose solutions the source puts before
      the question; they are not scored.
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
  shots: tuple[int, ...] = ()
  chat: bool = True

  @property
  def metric(self) -> str:
    """The name of the published score among the metrics of a set."""
    return f"mean@{self.samples}" if self.temperature else "greedy"

  @property
  def sampling(self) -> dict[str, Any]:
    """Fields of a config for sampling as the source does."""
    out: dict[str, Any] = {"evaluate.repetition_penalty": 1.0}
    if self.temperature:
      out |= {
          "evaluate.samples": self.samples,
          "evaluate.mean_of": self.samples,
          "evaluate.temperature": self.temperature,
          "evaluate.top_p": self.top_p,
          "evaluate.top_k": 0,
          "evaluate.min_p": 0.0,
      }
    if self.tokens:
      out["rollout.max_tokens"] = self.tokens
    return out

  @property
  def end(self) -> str:
    """What ends a solution."""
    return self.response.partition("{solution}")[2]

  def template(
      self, row: Mapping[str, Any], solved: str = ""
  ) -> templates.Template:
    """The template of a row; `solved` are the solved tasks before it."""
    prompt = self.prompt
    if isinstance(prompt, str):
      return templates.Template(prompt, self.response)
    return templates.Template(
        lambda question: solved + prompt(row), self.response
    )

  def solved(self, rows: Iterable[Mapping[str, Any]]) -> str:
    """The solved tasks before a question; '' if the rows lack one of them."""
    assert callable(self.prompt)
    found: dict[int, str] = {}
    for row in rows:
      if row.get("task_id") in self.shots and row.get("code"):
        solution = f"{self.prompt(row)}{row['code']}{self.end}\n\n"
        found.setdefault(row["task_id"], solution)
      if len(found) == len(self.shots):
        return "".join(found[x] for x in self.shots)
    return ""


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
        shots=(2, 3, 4),
        chat=False,
    ),
}


def sampling(source: str, fields: Mapping[str, Any]) -> dict[str, Any]:
  """Fields that replace those of a config for the protocol of a set.

  They are {} without a protocol. The maximum length stays that of the config,
  if that is shorter: the sampler has room for no more tokens.

  Args:
    source: of the rows of the set.
    fields: the flat config.
  """
  protocol = PUBLISHED.get(source)
  if protocol is None or not protocol.prompts:
    return {}
  out, name = protocol.sampling, "rollout.max_tokens"
  if name in out:
    out[name] = min(out[name], fields[name])
  return out


def differences(
    protocol: Protocol,
    kind: str,
    prompts: int,
    fields: Mapping[str, Any],
    prompt: str = "",
) -> list[str]:
  """In what an evaluation differs from a protocol, 'field = value, not value'.

  Args:
    protocol: of the set.
    kind: of its rows.
    prompts: number of prompts that were evaluated.
    fields: the flat config of the evaluation.
    prompt: one of them, which shows how many solved tasks it begins with.
  """
  used: dict[str, Any] = dict(fields)
  wanted: dict[str, Any] = {"data.chat": protocol.chat, "data.system": ""}
  if not templates.choose(used["data.template"], kind).published:
    wanted["data.template"] = templates.PUBLISHED
  wanted |= protocol.sampling
  if protocol.temperature:  # samples beyond its own are not in the mean
    most = max(protocol.samples, used["evaluate.samples"])
    wanted["evaluate.samples"] = most
  out = [
      f"{name} = {used[name]!r}, not {value!r}"
      for name, value in wanted.items()
      if name in used and used[name] != value
  ]
  wanted_shots = len(protocol.shots)
  shots = prompt.count(protocol.end) if wanted_shots else 0
  if shots != wanted_shots:
    out.append(
        f"{shots or 'no'} solved tasks in the prompt, not {wanted_shots}"
    )
  if prompts != protocol.prompts:
    out.append(f"{prompts:,} prompts, not {protocol.prompts:,}")
  return out


def line(name: str, row: Any, prompts: int, fields: Mapping[str, Any]) -> str:
  """What the screen says of the scores of a set; '' without a protocol.

  Args:
    name: of the set in metrics.
    row: one of its rows, with `source`, `kind` and `prompt`.
    prompts: number of prompts that were evaluated.
    fields: the flat config of the evaluation.
  """
  protocol = PUBLISHED.get(row.source)
  if protocol is None or not protocol.prompts:
    return ""
  score = f"{protocol.metric} of {protocol.source}"
  found = differences(protocol, row.kind, prompts, fields, row.prompt)
  if found:
    return f"{name}: not comparable with {score}: {'; '.join(found)}"
  return f"{name}: {protocol.metric} is the score of {protocol.source}"
