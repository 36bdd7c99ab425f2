"""Servers of others: one deadline, one bound of size, and checked numbers."""

import asyncio
import time
import tracemalloc

import hostile
import pytest

from rl_reason.base import servers
from rl_reason.base.errors import RunError
from rl_reason.rollout import vllm
from rl_reason.tasks import judge

SECONDS = 0.5  # deadline of a request here
HEAD = hostile.HEAD
ENCODED = b"Content-Encoding: %s\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"

# What a server sends -> a word of the error.
TRANSPORT = {
    "a drip of the body": (lambda: hostile.drip(HEAD + b"\r\n{"), "within"),
    "a drip of the head": (lambda: hostile.drip(b"HTTP/1.1 200"), "within"),
    "silence": (lambda: hostile.drip(b"", 9.0), "within"),
    "a half": (
        lambda: hostile.endless(HEAD + b"Content-Length: 9\r\n\r\n{", b""),
        "within",
    ),
    "no end": (
        lambda: hostile.endless(HEAD + b"\r\n[", b"0," * 4096),
        "more than 1,0.* bytes",
    ),
    "no end in chunks": (
        lambda: hostile.endless(CHUNKED, b"1000\r\n" + b"0," * 2048 + b"\r\n"),
        "more than",
    ),
    "no end of the head": (
        lambda: hostile.endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 99),
        "more than|within",  # on a busy machine
    ),
    "a huge length": (
        lambda: HEAD + b"Content-Length: %d\r\n\r\n{}" % 10**13,
        "bytes too early",
    ),
    "a cut chunk": (lambda: CHUNKED + b"99\r\n{}", "not an answer of HTTP"),
    "a chunk of -9": (lambda: CHUNKED + b"-9\r\n{}", "not an answer of HTTP"),
    "no HTTP": (lambda: b"220 mail.example ESMTP\r\n", "not an answer of HTTP"),
    "nothing": (lambda: b"", "closed connection"),
    "HTML": (lambda: hostile.answer(b"<html>"), "not JSON"),
    "half of JSON": (lambda: hostile.answer(b'{"data": ['), "not JSON"),
    "deep JSON": (lambda: hostile.answer(b"[" * 99_999), "not JSON"),
    "bytes": (lambda: hostile.answer(b"\xff\xfe{"), "not JSON"),
    "a long number": (lambda: hostile.answer(b"1" * 9999), "not JSON"),
    **{
        name: (
            lambda x=name: hostile.answer(b"[", head=ENCODED % x),
            "compress",
        )
        for name in (b"gzip", b"br", b"Deflate")
    },
    "a name twice": (
        lambda: hostile.answer(b'{"data": [{"id": "m"}], "data": []}'),
        "'data' twice",
    ),
    "a long line": (lambda: b"x" * 9999 + b"\r\n", r"HTTP \(x{200}\)"),
    "a long place": (
        lambda: hostile.answer(
            b"", b"307 No", b"Location: " + b"a" * 9999 + b"\r\n"
        ),
        "to a{200}: give",
    ),
    "NaN": (lambda: hostile.answer(b'{"data": [NaN]}'), "the number NaN"),
    "an error": (
        lambda: hostile.answer(
            dict(error=dict(message="no such model")), b"404 Not Found"
        ),
        "404: no such model",
    ),
    "an error in a drip": (
        lambda: hostile.drip(b"HTTP/1.1 400 No\r\n\r\nx", 0.001),
        "400: No|within",  # on a busy machine
    ),
    "a redirect": (
        lambda: hostile.answer(
            b"", b"302 Found", b"Location: http://127.0.0.2/v1\r\n"
        ),
        "302: .* to http://127.0.0.2/v1: give that",
    ),
}


@pytest.mark.parametrize("name", TRANSPORT)
def test_one_deadline_and_one_bound_of_every_client(name):
  """Each client's error is one line with the address."""
  send, words = TRANSPORT[name]
  request = vllm.Request([5], 0, 9, 1.0, 1.0, (1,))
  with hostile.serving(lambda *_: send()) as url:
    client = vllm.vllm(url=url, model="m", parallel=2, seconds=SECONDS)

    def judged():
      one = judge.Judge(f"{url}/v1", seconds=SECONDS)
      asyncio.run(one.score("Is it?", "a", "b"))

    for call in (lambda: dict(client.generate([request])), judged):
      begun = time.monotonic()
      with pytest.raises((RunError, ValueError), match=words) as e:
        call()
      assert time.monotonic() - begun < SECONDS + 1.5
      assert url in str(e.value) and "\n" not in str(e.value)


def test_an_answer_without_end_takes_little_memory():
  send = lambda *_: hostile.endless(HEAD + b"\r\n", b" " * 65536)  # noqa: E731
  with hostile.serving(send) as url:
    tracemalloc.start()
    with pytest.raises(servers.Fault, match="more than 1,148,928"):
      servers.ask(url, {}, headers={}, seconds=60.0, tokens=100_000 // 1024 + 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
  assert peak < 8 << 20


def test_a_slow_answer_within_the_deadline_is_read():
  body = hostile.answer(dict(a=[1, -2.5, "x"]))
  with hostile.serving(lambda *_: iter([body[:30], body[30:]])) as url:
    got = servers.ask(url, {}, headers={}, seconds=60.0)
  assert got == dict(a=[1, -2.5, "x"])
  with hostile.serving(lambda *_: hostile.answer(b"")) as url:
    assert servers.ask(url, headers={}, seconds=60.0) is None


# Beside the response that was asked for.
SECOND = [
    (dict(choices=[{}, {}]), "has 2 choices in place of 1"),
    *((dict(choices=[dict(index=x)]), "not an index") for x in (1, True, "0")),
    (dict(choices=[{}], error=dict(message="no memory")), "says .*no memory"),
]
ENGINES = [
    *SECOND,
    (dict(choices=[]), "has no choices.0"),
    (dict(choices=[3]), "has no finish_reason"),
    (dict(choices=[dict(finish_reason="abort")]), "finish_reason 'abort'"),
    (dict(choices=[dict(finish_reason=None)]), "finish_reason None"),
    (dict(choices=[dict(finish_reason="stop")]), "has no token_ids"),
    (
        dict(
            choices=[dict(finish_reason="stop", token_ids=[5], logprobs=None)]
        ),
        "no logprobs.token_logp",
    ),
    ([1], "has no choices"),
    (b"", "has no choices"),
    (b"null", "has no choices"),
]


@pytest.mark.parametrize(("body", "words"), ENGINES)
def test_strange_answers_of_vllm_are_one_line(body, words):
  request = vllm.Request([5], 0, 9, 1.0, 1.0, (1,))
  with hostile.serving(lambda *_: hostile.answer(body)) as url:
    client = vllm.vllm(url=url, model="m", parallel=2, seconds=9.0)
    with pytest.raises(RunError, match=words) as e:
      dict(client.generate([request]))
  assert f"{url}/v1/completions: " in str(e.value)


@pytest.mark.parametrize(
    ("found", "type_words", "held_words"),
    [
        (None, "its weights are None", "has no updates: None"),
        (["float32"], "its weights are", "has no updates"),
        (dict(dtype=["float32"], updates=-1), r"are \['fl", "not an index"),
        (dict(dtype={}, updates=True), "are {}", "True, not an index"),
        (dict(dtype="int4", updates=1), "are 'int4'", "has no crcs"),
        (dict(dtype=7, updates=1, crcs=[1]), "are 7", "held: .*crcs"),
        (dict(updates=1, crcs=dict(a=2**32)), "are None", "not an index from"),
        (dict(updates=1, crcs=dict(a="7")), "are None", "is '7', not an index"),
    ],
)
def test_what_vllm_says_of_its_weights_is_checked(
    found, type_words, held_words
):
  body = hostile.answer(dict(results=[found]))
  with hostile.serving(lambda *_: body) as url:
    client = vllm.vllm(url=url, model="m", parallel=2, seconds=9.0)
    with pytest.raises(RunError, match=f"/rl_dtype: .*{type_words}"):
      client.start_weight_update()
    with pytest.raises(RunError, match=f"rl_.*{held_words}"):
      client.held()


def listed(*pairs, **more):
  top = [dict(token=token, logprob=logp) for token, logp in pairs]
  return dict(choices=[dict(logprobs=dict(content=[dict(top_logprobs=top)]))])


JUDGES = [
    *SECOND,
    *(
        (listed(*pairs), "yes and no have the sum")
        for pairs in (
            [("yes", -0.1), ("yes", -0.1)],
            [("Yes", -0.1), (" no", -0.2)],
            [("no", 0.0), ("No", -3.0)],
        )
    ),
    *(
        (listed(("no", -0.5), ("Yes", x)), "entry 0 of 1 is .*, not a log-prob")
        for x in (5, 1e300, -1e300, True, None, "-1", [1])
    ),
    (listed((7, -1.0)), "is 7, not a text"),
    (
        dict(choices=[dict(logprobs=dict(content=[dict(top_logprobs=[4])]))]),
        "has no token",
    ),
    (dict(choices=[]), "has no choices.0"),
    (dict(choices=[dict(message=dict(content=["yes"]))]), "not a text"),
    (dict(choices=[dict(message=None)]), "has no message.content"),
    (dict(choices=[dict(message=dict(content="Perhaps"))]), "neither yes nor"),
]


@pytest.mark.parametrize(("body", "words"), JUDGES)
def test_numbers_of_a_judge_are_not_believed(body, words):
  with hostile.serving(lambda *_: hostile.answer(body)) as url:
    with pytest.raises(ValueError, match=words) as e:
      asyncio.run(judge.Judge(f"{url}/v1").score("Is it?", "a", "b"))
    assert str(e.value).startswith(f"the judge {url}/v1/chat/completions: ")


@pytest.mark.parametrize(
    ("body", "score"),
    [
        (listed(("yes", 0.0), ("no", -9999.0)), 1.0),
        (listed(("Yes", -1.0), (" no", -1.0), ("maybe", None)), 0.5),
        (dict(choices=[dict(logprobs=None, message=dict(content="No."))]), 0.0),
    ],
)
def test_a_judge_is_read(body, score):
  with hostile.serving(lambda *_: hostile.answer(body)) as url:
    one = judge.Judge(f"{url}/v1")
    assert asyncio.run(one.score("Is it?", "a", "b")) == score
