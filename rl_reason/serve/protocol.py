"""Requests and errors in the form of OpenAI's clients and of vLLM's.

A field that this server does not support is refused by name, unless its value
has no effect: `presence_penalty = 0` is accepted, 0.5 is not. Every list has a
maximum length, and its check ends at the first wrong entry, so that the size of
the body bounds the work of a refusal.
"""

from typing import Annotated, Any

import pydantic
import pydantic_core
from pydantic import AfterValidator, Discriminator, Field, Tag
from starlette.responses import JSONResponse

from rl_reason.data import known_sets
from rl_reason.monitoring.display import excerpt
from rl_reason.rollout.sampling_filters import Filters

FIELDS = 64  # maximum number of fields of one object
# Maximum number of lists and objects of a body: Python's garbage collector
# visits all of them repeatedly while more are created.
CONTAINERS = 1 << 14
PROMPTS = 4096  # of one request; serve.queue bounds their responses
MESSAGES = 4096  # maximum number of messages of one chat
STOPS, STOP_LENGTH = 16, 256  # maximum number of stop texts, and their length
STOP_IDS = 64
NOTE = 4096  # maximum characters of a comment, an id or a name

# Fields without an effect on the tokens here.
IGNORED = {
    *("user", "metadata", "store", "service_tier", "safety_identifier"),
    *("skip_special_tokens", "spaces_between_special_tokens", "detokenize"),
    *(
        "routed_experts_prompt_start",
        "priority",
        "cache_salt",
        "request_id",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",
        "include_obfuscation",
    ),
}
# Values of fields that have no effect.
NEUTRAL: dict[str, tuple] = dict(
    presence_penalty=(0,),
    frequency_penalty=(0,),
    length_penalty=(1,),
    logit_bias=({},),
    min_tokens=(0,),
    tools=([],),
    tool_choice=("none", "auto"),
    functions=([],),
    function_call=("none", "auto"),
    modalities=(["text"],),
    verbosity=("medium",),
    bad_words=([],),
    add_generation_prompt=(True,),
    continue_final_message=(False,),
    continuous_usage_stats=(False,),
    return_token_ids=(False,),
    include_reasoning=(True,),
    response_format=({"type": "text"},),
    use_beam_search=(False,),
    ignore_eos=(False,),
    include_stop_str_in_output=(False,),
    suffix=("",),
    add_special_tokens=(False,),
    stream=(False,),
    echo=(False,),
)

LEAST_TEMPERATURE = 1e-4  # smaller ones are greedy: logits would overflow
INT32 = 2**31
Count = Annotated[int, Field(ge=0, lt=INT32)]  # also indices and ids
Ids = Annotated[list[Count], Field(fail_fast=True)]
Note = Annotated[str, Field(max_length=NOTE)]
Stop = Annotated[str, Field(max_length=STOP_LENGTH)]


def _form(value: Any) -> str:
  """The form of a prompt or of stop texts, which errors name, too."""
  if not isinstance(value, list):
    return "text"
  first = value[0] if value else ""
  forms = {int: "ids", list: "lists"}
  return forms.get(type(first), "texts")


Stops = Annotated[
    Annotated[Stop, Tag("text")]
    | Annotated[
        list[Stop], Field(max_length=STOPS, fail_fast=True), Tag("texts")
    ],
    Discriminator(_form),
]
Prompts = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[Ids, Tag("ids")]
    | Annotated[
        list[str], Field(max_length=PROMPTS, fail_fast=True), Tag("texts")
    ]
    | Annotated[
        list[Ids], Field(max_length=PROMPTS, fail_fast=True), Tag("lists")
    ],
    Discriminator(_form),
]


def _greedy(temperature: float) -> float:
  return temperature if temperature >= LEAST_TEMPERATURE else 0.0


class Body(pydantic.BaseModel):
  """A JSON object; unknown fields are errors."""

  model_config = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)

  @pydantic.model_validator(mode="before")
  @classmethod
  def _asking(cls, data: Any) -> Any:
    """Removes fields without an effect."""
    if not isinstance(data, dict):
      return data
    if len(data) > FIELDS:
      raise ValueError(f"has {len(data)} fields, more than {FIELDS}")
    return {
        name: value
        for name, value in data.items()
        if value is not None
        if name in cls.model_fields
        or not (name in IGNORED or value in NEUTRAL.get(name, ()))
    }


class Sampling(Body):
  """Sampling parameters.

  Attributes:
    n: number of responses to each prompt.
    max_tokens: maximum tokens of each response; each route has its default.
    temperature: 0 is greedy, as are values below LEAST_TEMPERATURE.
    top_p: nucleus sampling; 1 is all tokens.
    top_k: number of the likeliest tokens to sample from; 0 and -1 are all.
    min_p: least probability of a token, as a share of the likeliest token's.
    repetition_penalty: of tokens of the prompt and of the response; 1 is off.
    seed: seed of the noise; random by default.
    stop: texts that end a response and are cut off.
    stop_token_ids: ids that end a response, besides EOS of the model.
  """

  n: Annotated[int, Field(ge=1, le=1024)] = 1
  max_tokens: Count | None = None
  temperature: Annotated[float, Field(ge=0), AfterValidator(_greedy)] = 1.0
  top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
  top_k: Annotated[int, Field(ge=-1, lt=INT32)] = 0
  min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
  repetition_penalty: Annotated[float, Field(ge=1e-2, le=100)] = 1.0
  seed: Annotated[int | None, Field(ge=-(2**63), lt=2**63)] = None
  stop: Stops = []
  stop_token_ids: Annotated[Ids, Field(max_length=STOP_IDS)] = []

  @property
  def stops(self) -> list[str]:
    """`stop` as a list."""
    return [self.stop] if isinstance(self.stop, str) else self.stop

  @property
  def filters(self) -> Filters:
    """The filters of the next token."""
    values = {name: getattr(self, name) for name in Filters._fields}
    return Filters(**values)._replace(top_k=max(self.top_k, 0))


class StreamOptions(Body):
  """Whether a stream ends with the token counts."""

  include_usage: bool = False


class Streamed(Sampling):
  """Fields that completions and chats share.

  Attributes:
    add_special_tokens: whether a text begins with what the tokenizer adds, such
      as BOS; a chat template may write it, too, and it is there once.
  """

  model: Note | None = None
  stream: bool = False
  stream_options: StreamOptions = StreamOptions()
  add_special_tokens: bool = True


class Completion(Streamed):
  """/v1/completions.

  Attributes:
    prompt: a text, a list of texts, ids, or a list of lists of ids.
    logprobs: number of alternatives to each token; 0 is the token alone.
    echo: whether the text begins with the prompt.
    best_of: must equal n.
  """

  prompt: Prompts
  logprobs: Annotated[int | None, Field(ge=0, le=20)] = None
  echo: bool = False
  best_of: Count | None = None

  @pydantic.model_validator(mode="after")
  def _all_of_them(self):
    if self.best_of not in (None, self.n):
      raise ValueError("best_of is not supported: leave it out, or equal to n")
    return self


class Chat(Streamed):
  """/v1/chat/completions.

  Attributes:
    messages: each {"role", "content"}; a content is a text or a list of texts.
      A message that calls tools needs none.
    logprobs: whether to return log-probs of the tokens.
    top_logprobs: number of alternatives to each token.
    max_completion_tokens: the newer name of max_tokens.
    chat_template_kwargs: keywords of the chat template, as in vLLM; they
      replace those of data.template_args.
  """

  messages: Annotated[
      list[dict[str, Any]],
      Field(min_length=1, max_length=MESSAGES, fail_fast=True),
  ]
  logprobs: bool = False
  top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
  max_completion_tokens: Count | None = None
  chat_template_kwargs: dict[str, Any] = {}

  @property
  def turns(self) -> list[dict[str, str]]:
    """The messages, with each content as one text.

    Raises:
      ValueError: a content is not a text.
    """
    out = []
    for turn in map(known_sets.in_form, self.messages):
      given = turn.get("role"), turn.get("content")
      if not all(isinstance(x, str) for x in given):
        raise ValueError("messages: each needs a role, and a text as content")
      out.append(turn)
    return out


class TokenSampling(Sampling):
  """`Sampling`; log-probs are always returned."""

  logprobs: Annotated[int | None, Field(ge=0, le=1)] = None


class Generate(Body):
  """/inference/v1/generate: takes ids, returns ids and log-probs."""

  token_ids: Annotated[Ids, Field(min_length=1)]
  sampling_params: TokenSampling = TokenSampling()
  model: Note | None = None


class Rating(Body):
  """/feedback.

  Attributes:
    id: id of an answer of this server.
    index: index of one of its responses.
    rating: rating of this response; higher is better.
    chosen, rejected: instead of a rating, indices of the better and the worse
      of two responses.
    comment: stored with the rating.
  """

  id: Note
  index: Count = 0
  rating: float | None = None
  chosen: Count | None = None
  rejected: Count | None = None
  comment: Note = ""

  @pydantic.model_validator(mode="after")
  def _one_kind(self):
    pair = self.chosen is not None, self.rejected is not None
    if (self.rating is not None) == any(pair) or any(pair) != all(pair):
      raise ValueError("give a rating, or both chosen and rejected")
    if self.chosen is not None and self.chosen == self.rejected:
      raise ValueError("chosen and rejected are the same response")
    return self


def _opens(body: bytes) -> int:
  return body.count(b"[") + body.count(b"{")


def _without_texts(body: bytes) -> bytes:
  """JSON without its strings."""
  for escaped in (b"\\\\", b'\\"'):
    body = body.replace(escaped, b"")
  return b"".join(body.split(b'"')[::2])


def read(kind: type[Body], body: bytes) -> Any:
  """Parses a request.

  Raises:
    ApiError: the body is not valid JSON, or a field is invalid; names the
      field.
  """
  if _opens(body) > CONTAINERS < _opens(_without_texts(body)):
    raise ApiError(
        400, f"the body has more than {CONTAINERS:,} lists and objects"
    )
  try:
    return kind.model_validate(pydantic_core.from_json(body))
  except pydantic.ValidationError as e:
    first = e.errors(include_url=False, include_input=False)[0]
  except ValueError as e:  # not JSON, nested too deeply, a number too long
    raise ApiError(400, f"the body is not valid JSON: {e}") from None
  param = ".".join(map(str, first["loc"]))
  message = first["msg"]
  if first["type"] == "extra_forbidden":
    message = "is not supported by this server"
  raise ApiError(
      400, f"{param}: {message}" if param else message, param=param or None
  )


SHOWN = 200  # characters shown of the start and of the end of a long message


class ApiError(Exception):
  """An error response, with the fault of a request and the remedy.

  Attributes:
    body: {"error": {...}}.
  """

  def __init__(
      self,
      status: int,
      message: str,
      *,
      param: str | None = None,
      code: str | None = None,
      headers: dict[str, str] | None = None,
  ):
    super().__init__(message)
    message, param = excerpt(message, SHOWN), param and excerpt(param, SHOWN)
    kind = "invalid_request_error" if status < 500 else "server_error"
    self.body = dict(
        error=dict(message=message, type=kind, param=param, code=code)
    )
    self._status, self._headers = status, headers

  def reply(self) -> JSONResponse:
    """The HTTP response."""
    return JSONResponse(self.body, self._status, self._headers)
