"""What a server says to the client of a teacher: its form and its numbers."""

import time

import hostile
import pytest
from test_servers import SECONDS, TRANSPORT

from rl_reason.base.errors import ConfigError, RunError
from rl_reason.features.distillation import scoring


@pytest.mark.parametrize("name", TRANSPORT)
def test_one_deadline_and_one_bound(name):
  """The error is one line with the address."""
  send, words = TRANSPORT[name]
  limits = dict(model="", parallel=2, patience=0.0, key_env="")
  with hostile.serving(lambda *_: send()) as url:
    begun = time.monotonic()
    with pytest.raises(RunError, match=words) as e:
      scoring.Scorer(url, seconds=SECONDS, say=print, **limits)
    assert time.monotonic() - begun < SECONDS + 1.5
    assert url in str(e.value) and "\n" not in str(e.value)


CARDS = [
    ({}, "has no data"),
    ([], "has no data"),
    (dict(data=None), "not of OpenAI's form"),
    (dict(data=[{}]), "has no id"),
    (dict(data=[dict(id=[1])]), "not of OpenAI's form"),
    (dict(data=[dict(id=7)]), "is 7, not a text"),
    (dict(data=[]), "has none: name one"),
    (dict(data=[dict(id="a" * 999), dict(id="b")]), "has a{80}, b: name"),
    (dict(data=[dict(id=f"a{n}") for n in range(99)]), "a7 and 91 more: name"),
    *(
        (dict(data=[dict(id="a", max_model_len=x)]), "max_model_len = ")
        for x in (-5, 2.5, "many", True, [4096])
    ),
]


@pytest.mark.parametrize(("body", "words"), CARDS)
def test_a_list_of_models_has_a_form(body, words):
  limits = dict(model="", parallel=2, patience=9.0, key_env="", seconds=9.0)
  with (
      hostile.serving(lambda *_: hostile.answer(body)) as url,
      pytest.raises(ConfigError, match=words),
  ):
    scoring.Scorer(url, say=print, **limits)


def logprobs(*values, tokens=("a", "b", "c", "d")):
  return dict(
      choices=[dict(logprobs=dict(tokens=tokens, token_logprobs=values))]
  )


# Of a prompt of three tokens and a sampled one.
TEACHERS = [
    *(
        (logprobs(None, -1.0, x, -1.0), "entry 1 of 2 is .*, not a log-prob")
        for x in (5, -1e300, True, None, "-1", [-1.0], {}, 0.5)
    ),
    (
        b'{"choices": [{"logprobs": {"tokens": ["a", "b", "c", "d"], '
        b'"token_logprobs": [null, -1, 1e999, 0]}}]}',
        "entry 1 of 2 is inf",
    ),
    (b'{"a": Infinity}', "the number Infinity"),
    *(
        (logprobs(x, -1.0, -1.0, -1.0), "first token has the log-prob")
        for x in (-1.0, "NaN", [], 1)
    ),
    (logprobs(None, -1.0, -1.0), "returns 2 tokens for a prompt of 3"),
    (logprobs(None, -1, -1, 0, tokens="abcd"), "'abcd' is no list"),
    (logprobs(None, -1, -1, 0, tokens=[1, 2, 3, 4]), "is 1, not a text"),
    (dict(choices=[]), "has no choices.0"),
    (dict(choices={"0": 1}), "has no choices.0"),
    (dict(choices=[dict(logprobs=None)]), "has no tokens"),
    (dict(choices=[dict(logprobs=dict(tokens=["a"] * 4))]), "token_logprobs"),
    (dict(error="x"), "the server says 'x'"),
    ("text", "has no choices"),
]


@pytest.mark.parametrize(("body", "words"), TEACHERS)
def test_numbers_of_a_teacher_are_not_believed(body, words):
  def respond(path, _):
    return hostile.answer(
        dict(data=[dict(id="m")]) if path == "/v1/models" else body
    )

  limits = dict(model="", parallel=2, patience=9.0, key_env="", seconds=9.0)
  with hostile.serving(respond) as url:
    client = scoring.Scorer(url, say=print, **limits)
    with pytest.raises(RunError, match=words) as e:
      client.logps([[5, 6, 7]], "at step 3 of RL")
    assert url in str(e.value) and "at step 3 of RL" in str(e.value)
