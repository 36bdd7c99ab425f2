"""The server: the sampler's tokens, OpenAI's routes, limits and feedback."""

import asyncio
import concurrent.futures
import contextlib
import copy
import json
import queue
import re
import resource
import signal
import subprocess
import sys
import threading
import time

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from tiny_serve import running

from rl_reason.base import errors
from rl_reason.checks import config_files
from rl_reason.data import datasets, pipelines, tokenizer
from rl_reason.devices import randomness
from rl_reason.models import attention
from rl_reason.rollout import sampler, sampling_filters
from rl_reason.serve import (
    device_programs,
    engine as engine_lib,
    feedback,
    filters,
    liveness,
    prompt_tokens,
    protocol,
    requirements,
    responses,
    template_processes,
)

app = pytest.importorskip("rl_reason.serve.app")
testclient = pytest.importorskip("starlette.testclient")

NAME, KEY = "tiny", "a-key"
TEXTS = ["12+34=", "5+6+7=", "99+1=", "3+4+5+6="]


@pytest.fixture(scope="module")
def engine():
  with running() as engine:
    yield engine


@pytest.fixture
def serve(engine, tmp_path):
  """Makes a client of a server with this engine."""

  def make(
      key="",
      max_body=10_000,
      rules=(),
      timeout=900.0,
      silent=lambda: 0,
      tok=tiny.TOK,
      stall=30.0,
  ):
    server = app.Server(
        engine,
        tok,
        name=NAME,
        timeout=timeout,
        rules=list(rules),
        ratings=feedback.Feedback(tmp_path, said.append),
        silent=silent,
        say=said.append,
        stall=stall,
    )
    servers.append(server)
    said.clear()
    return testclient.TestClient(
        app.app(server, key=key, hosts=requirements.LOCAL, max_body=max_body),
        base_url="http://127.0.0.1:8000",
        raise_server_exceptions=False,
    )

  said: list[str] = []
  servers: list[app.Server] = []
  make.said = said
  yield make
  for server in servers:
    server.close()


def post(client, path, status=200, **body):
  answer = client.post(path, json=body)
  assert answer.status_code == status, answer.text
  return answer.json()


def complete(client, prompt, **body):
  usual = dict(model=NAME, seed=7, max_tokens=tiny.T, logprobs=0, tools=[])
  usual |= dict(response_format=dict(type="text"))
  return post(client, "/v1/completions", prompt=prompt, **usual | body)


def events(answer):
  lines = [x[6:] for x in answer.text.splitlines() if x]
  assert lines[-1] == "[DONE]"
  return [json.loads(x) for x in lines[:-1]]


def encoded(text):
  return tiny.TOK(text, add_special_tokens=False)["input_ids"]


def generate(client, ids, n):
  how = dict(seed=7, n=n, logprobs=1)
  path = "/inference/v1/generate"
  return post(client, path, token_ids=ids, sampling_params=how)["choices"]


def logps_of(choice):
  return [x["logprob"] for x in choice["logprobs"]["content"]]


def test_a_response_does_not_depend_on_what_is_beside_it(serve):
  """12 responses in 4 slots, 4 prompts in 3 places; then each alone."""
  client = serve()
  together = complete(client, TEXTS, n=3)["choices"]
  assert {x["finish_reason"] for x in together} == {"stop", "length"}
  for index, choice in enumerate(together):
    number = index % 3
    alone = generate(client, encoded(TEXTS[index // 3]), number + 1)[number]
    ends = alone["finish_reason"] == "stop"
    ids = alone["token_ids"]
    assert choice["text"] == tiny.TOK.decode(ids[: len(ids) - ends])
    assert len(choice["logprobs"]["tokens"]) == len(ids)
    assert choice["finish_reason"] == alone["finish_reason"]
    logps = choice["logprobs"]["token_logprobs"]
    np.testing.assert_allclose(logps_of(alone), logps, atol=1e-5)


@pytest.mark.slow
def test_few_responses_decode_in_few_slots(engine):
  """Alone in one, with others in more; the tokens are the same as in all."""
  ids = [tuple(encoded(x)) for x in TEXTS]

  def sample(engine, together):
    events, got = queue.Queue(), [([], []) for _ in range(12)]
    jobs = [
        engine_lib.Job(
            prompt=ids[index % 4],
            sample=index,
            seed=7,
            max_tokens=3 + 2 * index % tiny.T,
            deliver=lambda *x, index=index: events.put((index, *x)),
        )
        for index in range(12)
    ]
    for some in [jobs] if together else [[job] for job in jobs]:
      engine.submit(some)
      ended = 0
      while ended < len(some):
        index, tokens, _, finish = events.get(timeout=60)
        got[index][0].extend(tokens)
        got[index][1].extend([finish] if finish else [])
        ended += bool(finish)
    return got

  want = sample(engine, True)
  with running(widths=(1, 2)) as other:
    used, decode = [], other._decode
    other._decode = lambda new, width: used.append(width) or decode(new, width)
    assert sample(other, True) == want
    assert used.count(4) and used.count(1)  # many first, and at last one
    used.clear()
    assert sample(other, False) == want
    assert set(used) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["same", "int8"])
def test_tokens_are_those_of_the_sampler(cache):
  """Of training, with the same key, prompt ids and samples."""
  ids = [tuple(encoded(x)) for x in TEXTS]
  prompts = tiny.prompts(len(TEXTS)).replace(
      tokens_NP=np.array([(0,) * (tiny.P - len(x)) + x for x in ids], np.int32),
      start_N=np.array([tiny.P - len(x) for x in ids], np.int32),
      ids_N=np.array([engine_lib.prompt_id(x) for x in ids], np.int32),
  )
  rows = jax.device_get(
      sampler.sample(
          tiny.params(),
          prompts,
          randomness.key(None, 7, "serve"),
          1.0,
          group_size=3,
          max_tokens=tiny.T,
          cache=cache,
          **tiny.SAMPLER,
      )
  )
  events = queue.Queue()
  got = [([], [], []) for _ in range(12)]
  with running(cache=cache) as engine:
    engine.submit(
        [
            engine_lib.Job(
                prompt=ids[index // 3],
                sample=index % 3,
                seed=7,
                max_tokens=tiny.T,
                deliver=lambda *x, index=index: events.put((index, *x)),
            )
            for index in range(12)
        ]
    )
    while not all(ends for *_, ends in got):
      index, tokens, logps, finish = events.get(timeout=900)
      got[index][0].extend(tokens)
      got[index][1].extend(logps)
      got[index][2].extend([finish] if finish else [])
  for index, (tokens, logps, (finish,)) in enumerate(got):
    length = rows.lengths_B[index]
    assert tokens == rows.tokens_BL[index, tiny.P :][:length].tolist()
    assert finish == ("length" if rows.truncated_B[index] else "stop")
    # int8 rounds a key at a tie to another step.
    close = 1e-5 if cache == "same" else 1e-3
    np.testing.assert_allclose(logps, rows.logps_BT[index, :length], atol=close)


def test_a_stream_is_the_whole_answer(serve):
  client = serve()
  whole = complete(client, TEXTS[0], n=2)
  answer = client.post(
      "/v1/completions",
      json=dict(
          prompt=TEXTS[0],
          seed=7,
          n=2,
          max_tokens=tiny.T,
          logprobs=0,
          stream=True,
          stream_options=dict(include_usage=True),
      ),
  )
  *parts, last = events(answer)
  assert last["usage"] == whole["usage"] and last["choices"] == []
  assert {x["object"] for x in (*parts, last)} == {"text_completion"}
  assert {x["usage"] for x in parts} == {None}
  assert len(parts) > len(whole["choices"]), "a response in several events"
  for want in whole["choices"]:
    mine = [x["choices"][0] for x in parts]
    mine = [x for x in mine if x["index"] == want["index"]]
    assert "".join(x["text"] for x in mine) == want["text"]
    assert [y for x in mine for y in x["logprobs"]["token_logprobs"]] == want[
        "logprobs"
    ]["token_logprobs"]
    ends = [x["finish_reason"] for x in mine]
    assert ends == [None] * (len(ends) - 1) + [want["finish_reason"]]
    offsets = [y for x in mine for y in x["logprobs"]["text_offset"]]
    assert offsets == want["logprobs"]["text_offset"]


@pytest.mark.parametrize("counted", [True, False])
def test_every_event_of_a_stream_is_a_chunk(serve, counted):
  """The token counts come last, in a chunk without choices."""
  answer = serve().post(
      "/v1/chat/completions",
      json=dict(
          messages=[dict(role="user", content=TEXTS[0])],
          n=2,
          seed=7,
          max_tokens=4,
          stream=True,
          stream_options=dict(include_usage=counted),
      ),
  )
  parts = events(answer)
  assert {x["object"] for x in parts} == {"chat.completion.chunk"}
  assert len({(x["id"], x["model"], x["created"]) for x in parts}) == 1
  assert [not x["choices"] for x in parts[-2:]] == [False, counted]
  found = [x.get("usage", "none") for x in parts]
  if counted:
    assert found.pop()["completion_tokens"] > 2
  assert set(found) == {None if counted else "none"}


@pytest.mark.slow
def test_filters_of_a_request(serve):
  """As the sampler's, whatever other requests ask for at the same time."""
  client = serve()
  text = "8+4="  # whose greedy response is long
  prompts = pipelines.pack_prompts(tiny.TOK, [text], [0], tiny.P)

  def sampled(**how):
    return complete(client, text, **how)["choices"][0]["text"]

  greedy, free = sampled(temperature=0), sampled(top_k=-1, min_p=0)
  assert sampled(top_k=1) == sampled(min_p=1) == greedy != free
  penalty = dict(repetition_penalty=3.0)
  rows = sampler.sample(
      *(tiny.params(), prompts, jax.random.key(0), 0.0),
      **tiny.SAMPLER | dict(group_size=1, max_tokens=tiny.T),
      filters=sampling_filters.Filters(**penalty),
  )
  ids = rows.tokens_BL[0, tiny.P :][rows.mask_BT[0]].tolist()
  want = tiny.TOK.decode([x for x in ids if x != tiny.TOK.eos_token_id])
  kinds = [dict(penalty, temperature=0), dict(top_k=3, top_p=0.7), {}]
  with concurrent.futures.ThreadPoolExecutor() as pool:
    together = list(pool.map(lambda how: sampled(**how), kinds))
  assert together == [want, sampled(top_k=3, top_p=0.7), free]
  assert want != greedy and together[1] != free


def test_keywords_of_the_chat_template_of_a_request(serve, engine):
  chat, messages = "/v1/chat/completions", [dict(role="user", content="1+1=")]
  args = dict(chat_template_kwargs=dict(think=True))
  got = post(serve(), chat, 400, messages=messages, **args)
  assert "chat_template_kwargs: the tokenizer has no" in got["error"]["message"]
  tok = copy.copy(tiny.TOK)
  tok.chat_template = "{{ messages[0].content }}{{ '2=' if think }}"
  prompts = prompt_tokens.Prompts(tok, engine.programs, 9, print)
  body = protocol.Chat(messages=messages)
  assert prompts.of_chat(body)[0].text == "1+1="
  body = protocol.Chat(messages=messages, **args)
  assert prompts.of_chat(body)[0].text == "1+1=2="
  body = protocol.Chat(messages=messages, chat_template_kwargs=dict(tools=[]))
  with pytest.raises(protocol.ApiError, match="tools is an argument of"):
    prompts.of_chat(body)


LOOP = (
    "{% if messages[0].content == '2' %}{% for i in range(99999) %}"
    "{% for i in range(99999) %}{% endfor %}{% endfor %}{% endif %}"
)
GIGABYTES = "{{ 'x' * 3000000000 if messages[0].content == '2' }}"
LONG = "{{ '1' * 9999 if messages[0].content == '2' }}"
DOUBLES = (
    "{% set ns = namespace(x='1') %}{% if messages[0].content == '2' %}"
    "{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
    "{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (LOOP, "more than 1 second of CPU"),
        pytest.param(GIGABYTES, "more than 512 MiB", marks=pytest.mark.slow),
        pytest.param(DOUBLES, "more than 512 MiB", marks=pytest.mark.slow),
        (LONG, "makes 10,001 characters of these messages, and"),
        ("{% if messages[0].content == '2' %}{{ 1 / 0 }}{% endif %}", "Zero"),
    ],
)
def test_a_chat_template_has_limits(serve, monkeypatch, template, words):
  """Three chats at once; others are answered meanwhile, and afterwards."""
  seconds = 1.0 if template == LOOP else 20.0
  monkeypatch.setattr(template_processes, "SECONDS", seconds)
  known = template_processes._LIMITS
  limits = known | dict(time="more than 1 second of CPU time")
  monkeypatch.setattr(template_processes, "_LIMITS", limits)
  tok = copy.copy(tiny.TOK)
  tok.chat_template = template + "{{ messages[0].content }}="
  client, chat = serve(tok=tok), "/v1/chat/completions"
  complete(client, "1+1=", max_tokens=1)  # compiles

  def ask(content):
    turns = [dict(role="user", content=content)]
    return client.post(chat, json=dict(messages=turns, max_tokens=1))

  with concurrent.futures.ThreadPoolExecutor(3) as pool:
    refused = [pool.submit(ask, "2") for _ in range(3)]
    assert client.get("/health").status_code == 200
    complete(client, "1+1=", max_tokens=1)
    if template == LOOP:  # the loops have not ended yet
      assert not all(x.done() for x in refused)
  for future in refused:
    answer = future.result()
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
  if template != LOOP:  # a new process needs longer here
    assert ask("1").status_code == 200


class Panic(BaseException):
  """As `pyo3_runtime.PanicException`."""


@pytest.mark.parametrize("error", [Panic, SystemExit, KeyboardInterrupt])
def test_a_panic_is_answered(serve, monkeypatch, error):
  """Of a tokenizer before and while a response is sampled, and of a rule."""

  def fails(*args, **options):
    raise error("a panic")

  client = serve()
  with monkeypatch.context() as patch:
    patch.setattr(tokenizer, "encode", fails)
    got = post(client, "/v1/completions", 400, prompt="1+1=")
    assert "cannot be tokenised: a panic" in got["error"]["message"]
  with monkeypatch.context() as patch:
    patch.setattr(protocol, "read", fails)
    post(client, "/v1/completions", 500, prompt="1+1=")
  if error is Panic:  # the event loop itself takes the others for its end
    with monkeypatch.context() as patch:
      patch.setattr(responses.Response, "add", fails)
      post(client, "/v1/completions", 500, prompt="1+1=")
      body = dict(prompt="1+1=", stream=True)
      text = client.post("/v1/completions", json=body).text
      assert "an error of the server" in text and "[DONE]" not in text
  client = serve(rules=[fails])
  assert complete(client, TEXTS[0])["choices"][0]["finish_reason"] == (
      "content_filter"
  )
  assert complete(serve(), "1+1=", max_tokens=1)["choices"]


@pytest.mark.parametrize("what", ["requests", "functions of serve.filter"])
def test_health_asks_the_threads(serve, monkeypatch, what):
  """A tokenizer, or a rule, that does not return."""
  free, begun = threading.Event(), threading.Semaphore(0)

  def hangs(*args):
    begun.release()
    free.wait(60)
    return ""

  client = serve(stall=0.2, rules=[hangs] if "filter" in what else ())
  health = lambda: client.get("/health")  # noqa: E731
  body = dict(prompt="1+1=", max_tokens=1)
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    if what == "requests":
      monkeypatch.setattr(tokenizer, "encode", hangs)
    first = pool.submit(client.post, "/v1/completions", json=body)
    begun.acquire()
    time.sleep(0.3)
    assert health().status_code == 200  # one is free
    second = pool.submit(client.post, "/v1/completions", json=body)
    begun.acquire()
    wait_for(lambda: health().status_code == 503)
    assert f"threads for {what} have" in health().json()["error"]["message"]
    free.set()
    wait_for(lambda: first.done() and second.done())
    wait_for(lambda: health().status_code == 200)


def test_a_server_ends_though_its_main_thread_hangs():
  """In a call that no handler of Python interrupts; and exits join nobody."""
  code = """
import asyncio, hashlib, os, signal, sys, threading, time
from rl_reason import run
from rl_reason.serve import liveness, request_threads
busy = request_threads.Threads(1, 60.0)
async def hang():
  asyncio.ensure_future(busy.call(time.sleep, 600))
  await asyncio.sleep(.1)
asyncio.run(hang())
if sys.argv[1] == "exit":
  sys.exit(0)
with run.stopping("serve") as stop, liveness.killed_after(stop, 0.5):
  threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
  hashlib.pbkdf2_hmac("sha256", b"a", b"b", 2 * 10**9)
"""
  for name, status in (("exit", 0), ("signal", 1)):
    found = subprocess.run(
        [sys.executable, "-c", code, name],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.returncode == status, found.stderr
  assert "has not ended 0.5 seconds after a signal" in found.stderr


def test_no_message_vanishes(engine):
  """`developer` becomes `system`, said once; unknown roles are refused."""
  tok, said = copy.copy(tiny.TOK), []
  tok.chat_template = (
      "{% for m in messages if m.role in ('system', 'user') %}{{ m.content }}"
      "{% endfor %}="
  )
  prompts = prompt_tokens.Prompts(tok, engine.programs, 9, said.append)

  def prompt(role):
    turns = [dict(role=role, content="1+"), dict(role="user", content="2")]
    return prompts.of_chat(protocol.Chat(messages=turns))[0]

  assert prompt("system").text == "1+2=" and not said
  assert [prompt("developer").text for _ in "ab"] == ["1+2="] * 2
  assert prompt("developer").kept[0]["role"] == "developer"
  assert len(said) == 1 and "'developer'" in said[0]
  for role in ("critic", "assistant", "tool"):
    with pytest.raises(protocol.ApiError, match=f"the role '{role}'"):
      prompt(role)


def test_stop_texts_end_a_response_and_are_cut_off(serve):
  client = serve()
  (whole,) = complete(client, TEXTS[0])["choices"]
  text, stop = whole["text"], "".join(whole["logprobs"]["tokens"][5:7])
  end = text.find(stop) + len(stop)
  got = complete(client, TEXTS[0], stop=["never", stop], echo=True)
  assert got["choices"][0]["text"] == TEXTS[0] + text[: text.find(stop)]
  assert got["choices"][0]["finish_reason"] == "stop"
  offsets = whole["logprobs"]["text_offset"]
  assert got["usage"]["completion_tokens"] == sum(x < end for x in offsets)
  answer = client.post(
      "/v1/chat/completions",
      json=dict(
          messages=[dict(role="user", content=TEXTS[0])],
          seed=7,
          stop=stop,
          stream=True,
      ),
  )
  sent = [x["choices"][0]["delta"]["content"] for x in events(answer)]
  assert "".join(sent) == text[: text.find(stop)]


def test_echoed_log_probs_and_alternatives_are_those_of_the_model(serve):
  """What lm-eval reads: a greedy token is the likeliest of its place."""
  client = serve()
  got = complete(
      client, TEXTS[0], echo=True, logprobs=2, temperature=0, max_tokens=6
  )
  (choice,) = got["choices"]
  listed, size = choice["logprobs"], len(TEXTS[0])
  assert listed["tokens"][:size] == list(TEXTS[0])
  assert listed["token_logprobs"][0] is listed["top_logprobs"][0] is None
  assert listed["text_offset"][: size + 1] == list(range(size + 1))
  for logp, top in zip(
      listed["token_logprobs"][1:], listed["top_logprobs"][1:], strict=True
  ):
    assert 2 <= len(top) <= 3 and max(top.values()) >= logp
  for logp, top in zip(
      listed["token_logprobs"][size:],
      listed["top_logprobs"][size:],
      strict=True,
  ):
    assert max(top.values()) == logp
  # Scored and sampled log-probs are those of one model.
  ids = tiny.TOK(TEXTS[0], add_special_tokens=False)["input_ids"]
  how = dict(temperature=0, max_tokens=6)
  sampled = post(
      client, "/inference/v1/generate", token_ids=ids, sampling_params=how
  )["choices"][0]["token_ids"]
  scored = complete(client, ids + sampled, echo=True, max_tokens=0)
  np.testing.assert_allclose(
      scored["choices"][0]["logprobs"]["token_logprobs"][1:],
      listed["token_logprobs"][1:],
      atol=1e-4,
  )


BAD = [
    (dict(prompt="1" * 99), 400, "serve.max_prompt"),
    (dict(prompt=""), 400, "no token"),
    (dict(prompt="1+x="), 400, "cannot be tokenised"),
    (dict(prompt=[10**6]), 400, "no id below"),
    (dict(max_tokens=999), 400, "serve.max_tokens"),
    (dict(top_p=0), 400, "top_p: "),
    (dict(top_k=-2), 400, "top_k: "),
    (dict(min_p=1.5), 400, "min_p: "),
    (dict(repetition_penalty=0), 400, "repetition_penalty: "),
    (dict(presence_penalty=0.5), 400, "presence_penalty: is not supported"),
    (dict(model="other"), 404, "only 'tiny'"),
    (dict(model="m" * 4000), 404, "characters ...]"),
    (dict(tools=[dict(type="function")]), 400, "tools: is not supported"),
    (dict(response_format=dict(type="json_object")), 400, "response_format: "),
    (dict(stream=True, logprobs=2), 400, "leave out stream"),
    (dict(n=100), 400, "serve.queue"),
    (dict(prompt="1" * 20_000), 413, "serve.max_body"),
]


@pytest.mark.parametrize(("change", "status", "text"), BAD)
def test_errors_say_what_is_wrong(serve, change, status, text):
  body = dict(prompt="1+1=", presence_penalty=0, user="me") | change
  got = post(serve(), "/v1/completions", status, **body)
  assert text in got["error"]["message"]


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (dict(tools=[], tool_choice="auto", parallel_tool_calls=True), ""),
        (dict(functions=None, function_call="none", modalities=["text"]), ""),
        (dict(stop=None, n=None, logprobs=None, stream_options=None), ""),
        (dict(stream_options=dict(continuous_usage_stats=False)), ""),
        (dict(stream_options=dict(include_usage=None)), ""),
        (dict(tool_choice="required"), "tool_choice"),
        (dict(stream_options=dict(continuous_usage_stats=True)), "usage_stats"),
        (dict(modalities=["text", "audio"]), "modalities"),
    ],
)
def test_fields_that_clients_write(change, refused):
  body = dict(messages=[dict(role="user", content="1+1=")]) | change
  if not refused:
    assert protocol.read(protocol.Chat, json.dumps(body).encode()).n == 1
    return
  with pytest.raises(protocol.ApiError, match=refused):
    protocol.read(protocol.Chat, json.dumps(body).encode())


ASKING = [
    ({}, 200),
    (dict(host="localhost:9"), 200),
    (dict(host="[::1]:8000"), 200),
    (dict(host="evil.example"), 403),  # a name that leads to this machine
    (dict(host="localhost.evil.example"), 403),
    (dict(origin="http://127.0.0.1:3000"), 200),
    (dict(origin="https://evil.example"), 403),
    (dict(origin="null"), 403),
    ({"content-type": "application/json; charset=utf-8"}, 200),
    ({"content-type": "text/plain"}, 415),  # a page needs not ask for it
    ({"content-type": "application/x-www-form-urlencoded"}, 415),
]


@pytest.mark.parametrize(("heads", "status"), ASKING)
def test_no_page_of_the_web_can_ask_a_server_without_a_key(
    serve, heads, status
):
  """Other names and origins are refused; with a key any name will do."""
  body = json.dumps(dict(prompt="1+1=", max_tokens=1))
  heads = {"content-type": "application/json"} | heads
  ask = dict(content=body, headers=heads)
  assert serve().post("/v1/completions", **ask).status_code == status
  heads["authorization"] = f"Bearer {KEY}"
  status = status if status == 415 else 200
  assert serve(key=KEY).post("/v1/completions", **ask).status_code == status


def test_a_request_is_bounded_before_it_is_tokenised(serve, monkeypatch):
  """Nor is a response made; what is at the bound is answered."""
  client, seen = serve(), []
  encode, make = tokenizer.encode, responses.Run

  def watched(tok, texts):
    seen.extend(texts)
    return encode(tok, texts)

  monkeypatch.setattr(tokenizer, "encode", watched)
  monkeypatch.setattr(app, "Run", lambda *x: seen.append(x))
  longest = tiny.P * len(tokenizer.PAD)
  chat = "/v1/chat/completions"
  user = dict(role="user", content="1" * (longest + 1))
  for path, body in (
      ("/v1/completions", dict(prompt=["1"] * 65)),
      ("/v1/completions", dict(prompt=["1", "2"], n=33, max_tokens=0)),
      ("/v1/completions", dict(prompt="1" * (longest + 1))),
      ("/v1/completions", dict(prompt="1", stop="1" * 257)),
      ("/v1/completions", dict(prompt="1", stop=["1"] * 17)),
      ("/v1/completions", dict(prompt="1", stop_token_ids=[1] * 65)),
      (chat, dict(messages=[user])),
      (chat, dict(messages=[dict(role="user", content="1")], n=65)),
  ):
    post(client, path, 400, **body)
  assert not seen
  monkeypatch.setattr(app, "Run", make)
  body = dict(prompt=["1", "2"], n=32, max_tokens=0, stop=["1" * 256] * 16)
  assert len(post(client, "/v1/completions", **body)["choices"]) == 64
  assert seen == ["1", "2"]


def test_a_long_answer_comes_in_parts_that_are_the_whole(serve, monkeypatch):
  client = serve()
  how = dict(n=4, logprobs=2, max_tokens=4)
  whole = complete(client, TEXTS[:2], **how)
  monkeypatch.setattr(app, "WHOLE", 500)
  answer = client.post(
      "/v1/completions",
      json=dict(prompt=TEXTS[:2], model=NAME, seed=7) | how,
  )
  assert "content-length" not in answer.headers
  parts = answer.json()
  for answer in (whole, parts):
    del answer["id"], answer["created"]
  assert parts == whole and len(whole["choices"]) == 8


@hypothesis.given(
    st.text("ab", max_size=12),
    st.lists(st.text("ab", max_size=5), max_size=4),
)
def test_pending_text_is_the_longest_start_of_a_stop(text, texts):
  starts = [x[:n] for x in texts for n in range(1, len(x))]
  want = max((len(x) for x in starts if text.endswith(x)), default=0)
  assert responses.Stops((), texts).pending(text) == want


def test_a_key_and_a_time_out(serve):
  client = serve(key=KEY, timeout=1e-9)
  assert client.get("/health").status_code == 200
  assert client.get("/v1/models").status_code == 401
  client.headers["Authorization"] = f"Bearer {KEY}"
  (card,) = client.get("/v1/models").json()["data"]
  assert card["id"] == NAME and card["max_model_len"] == tiny.P + tiny.T
  got = post(client, "/v1/completions", 504, prompt="1+1=")
  assert "serve.timeout" in got["error"]["message"]


def test_a_client_that_is_gone_frees_its_slots(serve, engine, monkeypatch):
  monkeypatch.setattr(responses, "LOOK", 0.0)
  body = json.dumps(dict(prompt="1+1=", n=48, max_tokens=tiny.T)).encode()
  messages = [dict(type="http.request", body=body)]
  sent, before = [], engine.tokens

  async def receive():
    return messages.pop() if messages else dict(type="http.disconnect")

  async def send(message):
    sent.append(message)

  heads = [(b"host", b"localhost"), (b"content-type", b"application/json")]
  scope = dict(type="http", method="POST", path="/v1/completions")
  scope |= dict(headers=heads)
  scope |= dict(query_string=b"", http_version="1.1", scheme="http")
  asyncio.run(serve().app(scope, receive, send))
  assert sent[0]["status"] == 499
  while engine.waiting or engine.running:
    time.sleep(0.01)
  assert engine.tokens - before < 48 * tiny.T / 4


def test_rules_withhold_responses_and_are_counted(serve, tmp_path):
  path = tmp_path / "rules.json"
  text = complete(serve(), TEXTS[0])["choices"][0]["text"]
  rule = dict(name="known", forbid=re.escape(text))
  path.write_text(json.dumps([rule]))
  client = serve(rules=filters.load(str(path)))
  for stream in (False, True):
    body = dict(prompt=TEXTS[:2], seed=7, max_tokens=tiny.T, stream=stream)
    answer = client.post("/v1/completions", json=body)
    parts = events(answer) if stream else [answer.json()]
    ends = {}
    for choice in (y for x in parts for y in x["choices"]):
      ends.setdefault(choice["index"], []).append(choice)
    (refused,) = ends[0]
    assert refused["finish_reason"] == "content_filter"
    assert refused["text"] == "" != ends[1][-1]["text"]
    rating = dict(id=parts[0]["id"], rating=1)
    said = post(client, "/feedback", 404, **rating, index=0)["error"]["message"]
    assert said == (
        f"response 0 of {rating['id']} was withheld (serve.filter): it has no"
        " text to rate"
    )
    post(client, "/feedback", **rating, index=1)
  page = client.get("/metrics").text
  assert 'rl_reason_refusals_total{rule="known"} 2.0' in page
  assert "rl_reason_response_tokens_count 4.0" in page
  assert "rl_reason_confidence_count 4.0" in page
  assert "rl_reason_queue 0.0" in page

  def broken(prompt, text):
    raise KeyError("no such rule")

  client = serve(rules=[broken])
  assert complete(client, TEXTS[0])["choices"][0]["text"] == ""
  assert "no such rule" in serve.said[0]


def test_ratings_become_preference_pairs(serve, tmp_path):
  """Also with a rating of before a restart; `prepare` reads the pairs."""
  client = serve()
  first = complete(client, TEXTS[0], n=2)
  a, b = (x["text"] for x in first["choices"])
  other = complete(client, TEXTS[0], seed=8)
  c = other["choices"][0]["text"]
  assert len({a, b, c}) == 3
  rate = "/feedback"
  prefer = dict(id=first["id"], chosen=1, rejected=0)
  assert post(client, rate, **prefer) == dict(pairs=1)
  assert post(client, rate, id=first["id"], rating=1) == dict(pairs=0)
  assert post(client, rate, 400, id=first["id"], rating=1, chosen=0)
  assert post(client, rate, 404, id="cmpl-other", rating=1)
  client = serve()
  other = complete(client, TEXTS[0], seed=8)
  assert post(client, rate, id=other["id"], rating=-1) == dict(pairs=1)
  (source, _), *_ = datasets.parse_all(
      str(tmp_path / "preferences.jsonl"), "train"
  )
  rows = datasets.examples(source, datasets.columns(""), "none")
  got = [(x.question, x.response, x.rejected) for x in rows]
  assert got == [(TEXTS[0], b, a), (TEXTS[0], a, c)]


@pytest.mark.parametrize("name", feedback.FILES)
@pytest.mark.parametrize("size", [1, 30, 1000])
def test_a_half_written_line_loses_no_other(tmp_path, name, size):
  """Neither the rows before it, nor the next one, nor the next start."""
  said = []

  def rate(number):
    ratings = feedback.Feedback(tmp_path, said.append)
    for index in range(2):
      answer = feedback.Answer(["1+1="], [f"{number} {index}"])
      ratings.remember("a", answer, 8)
      ratings.rate("a", 0, index + number, "")

  def rows(name):
    lines = (tmp_path / name).read_bytes().splitlines()
    return [json.loads(line) for line in lines]

  rate(0)
  path = tmp_path / name
  whole = path.read_bytes()
  last = whole.splitlines(keepends=True)[-1]
  path.write_bytes(whole + last[: min(size, len(last) - 1)])
  rate(2)
  if size < len(last) - 1:
    assert len(said) == 1 and str(path) in said[0]
  else:  # only the end of the line is missing
    assert not said
  want = [0, 1, *([1] if size > 999 and "rat" in name else []), 2, 3]
  assert [x["rating"] for x in rows("ratings.jsonl")] == want
  assert len(rows("preferences.jsonl")) >= 6
  (tmp_path / "ratings.jsonl").write_text("half\n")
  said.clear()
  feedback.Feedback(tmp_path, said.append)
  assert "line 1 is not a rating" in said[0]


def test_a_full_disk_leaves_no_half_line(tmp_path, monkeypatch):
  ratings = feedback.Feedback(tmp_path, print)
  answer = feedback.Answer(["1+1="], ["2", "3"])
  ratings.remember("a", answer, 6)
  ratings.rate("a", 0, 1, "")
  before = (tmp_path / "ratings.jsonl").read_bytes()
  limit = resource.getrlimit(resource.RLIMIT_FSIZE)
  handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  try:
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limit[1]))
    with pytest.raises(OSError):
      ratings.rate("a", 1, 2, "")
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    signal.signal(signal.SIGXFSZ, handler)
  assert (tmp_path / "ratings.jsonl").read_bytes() == before
  assert ratings.rate("a", 1, 2, "") == 1


@pytest.mark.parametrize(
    ("count", "prompt", "text", "most"),
    [
        (612, "1+1=", "2", 1 << 20),  # was 15 MB
        (256, "1+1=" * 2000, "2" * 60, 5 << 20),  # was 253 MB
        (100, [dict(role="user", content="1" * 99_999)], "2", 11 << 20),
    ],
)
def test_ratings_take_bounded_bytes(tmp_path, count, prompt, text, most):
  """Linear in the ratings; a prompt stands once among the ratings."""
  said = []
  ratings = feedback.Feedback(tmp_path, said.append)
  texts = [f"{text} {n}" for n in range(count)]
  ratings.remember("a", feedback.Answer([prompt], texts), 8)
  pairs = [ratings.rate("a", n, n, "") for n in range(count)]
  sizes = [(tmp_path / name).stat().st_size for name in feedback.FILES]
  assert sum(sizes) < most and 1 <= pairs[-1] <= feedback.PAIRS
  assert sizes[0] < len(json.dumps(prompt)) + count * (len(text) + 250)
  assert len(said) == 1 and "forms at most 8 pairs" in said[0]
  # Another start forms pairs with what was rated before.
  again = feedback.Feedback(tmp_path, said.append)
  again.remember("b", feedback.Answer([prompt], ["other"]), 8)
  assert again.rate("b", 0, -1, "") == pairs[-1] and len(said) == 2


def test_ratings_are_refused_when_the_files_are_full(serve, monkeypatch):
  client = serve()
  answer = complete(client, TEXTS[0], n=2)
  monkeypatch.setattr(feedback, "BYTES", 600)
  rating = dict(id=answer["id"], rating=1, comment="c" * 200)
  post(client, "/feedback", **rating)
  for body in (rating, rating, dict(id=answer["id"], chosen=0, rejected=1)):
    if body is rating:
      got = post(client, "/feedback", 507, **rating)
      assert "move them out of the work dir" in got["error"]["message"]
  assert [x for x in serve.said if "is refused" in x] == serve.said
  assert len(serve.said) == 1


def test_remembered_answers_have_a_bound_of_text(tmp_path, monkeypatch):
  monkeypatch.setattr(feedback, "CHARACTERS", 25)
  ratings = feedback.Feedback(tmp_path, print)
  for number in range(4):
    ratings.remember(str(number), feedback.Answer(["1"], ["2" * 9]), 10)
  with pytest.raises(feedback.Unknown):
    ratings.rate("1", 0, 1, "")
  assert ratings.rate("2", 0, 1, "") == 0


def test_health_tells_an_engine_that_hangs(serve, engine):
  """The watchdog asks an idle engine for a token, and says what it sees."""
  client, read = serve(silent=lambda: dog.silent), engine._read
  complete(client, "1+2=")  # compiles the programs
  said, before, tokens = [], engine.progressed, engine.tokens
  dog = liveness.Watchdog(engine, 1.0, said.append, every=0.1)
  look = lambda: client.get("/health").status_code  # noqa: E731
  free = threading.Event()
  with contextlib.closing(dog):
    # Nobody else has asked for a token.
    wait_for(lambda: engine.progressed > before + 0.1)
    assert engine.tokens == tokens  # nor counts what the server asks
    assert look() == 200 and not said
    try:
      engine._read = lambda *x: (free.wait(60), read(*x))
      wait_for(lambda: look() == 503)
      assert "serve.stall" in said[0]
    finally:
      free.set()
      engine._read = read
    wait_for(lambda: look() == 200)
    assert "samples again" in said[1]


def wait_for(done):
  end = time.monotonic() + 60
  while not done():
    assert time.monotonic() < end
    time.sleep(0.02)


def test_a_host_that_others_reach_needs_a_key(monkeypatch):
  monkeypatch.delenv(requirements.KEY, raising=False)
  c = config_files.read("configs/dapo.py")
  c.serve.host = "0.0.0.0"
  with pytest.raises(errors.ConfigError, match=requirements.KEY):
    requirements.check(c)
  monkeypatch.setenv(requirements.KEY, KEY)
  requirements.check(c)
  for key in (" ", "a key", f"{KEY} ", "schlüssel"):
    monkeypatch.setenv(requirements.KEY, key)
    for c.serve.host in ("127.0.0.1", "0.0.0.0"):
      with pytest.raises(errors.ConfigError, match=f"{requirements.KEY}: has"):
        requirements.check(c)
  monkeypatch.setenv(requirements.KEY, KEY)
  c.serve.filter = "nothing.json"
  with pytest.raises(errors.ConfigError, match="serve.filter"):
    requirements.check(c)


@pytest.mark.slow
def test_attention_in_parts_is_that_of_the_whole_text():
  """300 tokens are two parts and a half; the last 20 are padding."""
  rng = np.random.default_rng(0)
  q, k, v = (
      jnp.asarray(rng.normal(size=(1, 300, 2, *n, 8)), jnp.float32)
      for n in ((3,), (), ())
  )
  segments_1P = (jnp.arange(300) < 280).astype(jnp.int32)[None]
  whole, parts = (
      make(segments_1P)("xla", 0, q, k, v, None)[0]
      for make in (attention.packed, device_programs.packed_in_parts)
  )
  assert parts.shape == whole.shape
  np.testing.assert_allclose(parts[:, :280], whole[:, :280], atol=1e-5)
