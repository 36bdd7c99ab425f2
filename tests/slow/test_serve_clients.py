"""The server by its command, asked by the clients that users have."""

import asyncio
import concurrent.futures
import contextlib
import json
import random
import re
import signal
import socket
import subprocess
import sys
import time

import jax
import pytest
import tiny
from conftest import ROOT, child_env

from rl_reason import hf
from rl_reason.data import tokenizer
from rl_reason.models import decoder

pytestmark = pytest.mark.slow
openai = pytest.importorskip("openai")
pytest.importorskip("uvicorn")

NAME, LIMIT = "tiny", 64
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}="


class Server:
  """A server process; `url` is where it listens."""

  def __init__(self, model, workdir, *flags, files=""):
    limits = ("prlimit", f"--nofile={files}") if files else ()
    self.process = subprocess.Popen(
        [
            *limits,
            *(sys.executable, "-m", "rl_reason.main", "--stage=serve"),
            *("--config=configs/serve.py", f"--config.model.path={model}"),
            *(
                f"--config.rollout.max_{x}={LIMIT}"
                for x in ("prompt", "tokens")
            ),
            *("--config.serve.port=0", f"--config.serve.name={NAME}"),
            *(f"--workdir={workdir}", *flags),
        ],
        cwd=ROOT,
        env=child_env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    self.lines = []
    for line in self.process.stdout:
      self.lines.append(line)
      if found := re.search(r"listening at (http\S+)/v1", line):
        self.url = found[1]
        return
    raise AssertionError("".join(self.lines))

  def client(self, **options):
    return openai.OpenAI(
        base_url=f"{self.url}/v1", api_key="none", timeout=1800, **options
    )

  def end(self):
    self.process.send_signal(signal.SIGTERM)
    self.lines += self.process.stdout
    return self.process.wait(600)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  """A random model of tiny size, with a chat template."""
  directory = tmp_path_factory.mktemp("model")
  tok = tokenizer.load("", tiny.TASK.ALPHABET)
  tok.chat_template = TEMPLATE
  # Clients also encode texts of other chat templates.
  tok.backend_tokenizer.model.unk_token = tokenizer.PAD
  table = decoder.table(tiny.CFG)
  params = decoder.init(tiny.CFG, jax.random.key(0))
  hf.save(
      directory / "m", params, table, tiny.CFG, tokenizer=tok, context=2 * LIMIT
  )
  return directory / "m"


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
  server = Server(
      model, tmp_path_factory.mktemp("run"), "--config.serve.slots=8"
  )
  yield server
  assert server.end() == 0, "".join(server.lines)
  assert "stopped; " in server.lines[-1]


def test_the_package_of_openai(server):
  client = server.client()
  (card,) = client.models.list().data
  assert card.id == NAME
  usual = dict(model=NAME, seed=3, max_tokens=24, n=4)
  text = client.completions.create(prompt="5+6+7=", logprobs=2, **usual)
  assert text.usage.completion_tokens > 20
  ask = [dict(role="user", content="5+6+7")]
  chat = client.chat.completions.create(
      messages=ask, logprobs=True, top_logprobs=2, **usual
  )
  # The template makes the same prompt of it.
  assert [x.text for x in text.choices] == [
      x.message.content for x in chat.choices
  ]
  assert text.choices[0].logprobs.token_logprobs == [
      x.logprob for x in chat.choices[0].logprobs.content
  ]
  assert all(len(x.top_logprobs) >= 2 for x in chat.choices[0].logprobs.content)
  assert text.usage.completion_tokens == chat.usage.completion_tokens
  parts = [""] * 4
  counted = dict(stream=True, stream_options=dict(include_usage=True))
  for event in client.chat.completions.create(messages=ask, **counted, **usual):
    assert event.object == "chat.completion.chunk"
    assert (event.usage is None) == bool(event.choices)
    for choice in event.choices:
      parts[choice.index] += choice.delta.content or ""
  assert parts == [x.message.content for x in chat.choices]
  assert event.usage == chat.usage and event.model == NAME
  *_, last = client.completions.create(prompt="5+6+7=", **counted, **usual)
  assert last.object == "text_completion" and last.choices == []
  assert last.usage == text.usage
  with pytest.raises(openai.BadRequestError, match="serve.max_prompt"):
    client.completions.create(model=NAME, prompt="1" * 99)
  with pytest.raises(openai.NotFoundError, match="no model"):
    client.completions.create(model="gpt", prompt="1")


def test_64_clients_get_what_each_gets_alone(server):
  client, rng = server.client(max_retries=0), random.Random(0)
  requests = [
      dict(
          model=NAME,
          prompt="+".join(str(rng.randrange(99)) for _ in range(1 + n % 7)),
          seed=n % 5,
          n=1 + n % 3,
          temperature=[0, 0.7, 1.0, 1.3][n % 4],
          top_p=[1.0, 0.8][n // 4 % 2],
          max_tokens=rng.randrange(8, LIMIT + 1),
          logprobs=0,
      )
      for n in range(64)
  ]

  def ask(request):
    choices = client.completions.create(**request).choices
    return [(x.text, x.logprobs.tokens, x.finish_reason) for x in choices]

  with concurrent.futures.ThreadPoolExecutor(64) as pool:
    together = list(pool.map(ask, requests))
  assert sum(len(x[1]) for answer in together for x in answer) > 2000
  assert list(map(ask, requests)) == together


def test_lm_eval_on_a_local_task(server, model, tmp_path):
  """Generation, and log-probs of given answers, by local-completions."""
  lm_eval = pytest.importorskip("lm_eval")
  rows = [dict(q=f"{n}+{n}=", a=str(2 * n)) for n in range(1, 9)]
  data = tmp_path / "rows.jsonl"
  data.write_text("".join(json.dumps(row) + "\n" for row in rows))
  usual = dict(
      dataset_path="json",
      dataset_kwargs=dict(data_files=dict(test=str(data))),
      test_split="test",
      doc_to_text="{{q}}",
      target_delimiter="",
      metadata=dict(version=1),
  )
  tasks = [
      usual
      | dict(
          task="sums",
          output_type="generate_until",
          doc_to_target="{{a}}",
          generation_kwargs=dict(until=[";"], max_gen_toks=16),
          metric_list=[dict(metric="exact_match")],
      ),
      usual
      | dict(
          task="which",
          output_type="multiple_choice",
          doc_to_choice=["2", "4", "6", "8"],
          doc_to_target=1,
          metric_list=[dict(metric="acc")],
      ),
  ]
  found = lm_eval.simple_evaluate(
      model="local-completions",
      model_args=dict(
          model=NAME,
          base_url=f"{server.url}/v1/completions",
          tokenizer=str(model),
          tokenizer_backend="huggingface",
          num_concurrent=4,
          max_length=2 * LIMIT,
      ),
      tasks=tasks,
      log_samples=True,
  )
  client = server.client()
  for sample in found["samples"]["sums"]:
    want = client.completions.create(
        model=NAME,
        prompt=sample["doc"]["q"],
        temperature=0,
        max_tokens=16,
        stop=[";"],
    )
    assert sample["resps"] == [[want.choices[0].text]]
  for sample in found["samples"]["which"]:
    prompt = sample["doc"]["q"]
    for choice, ((logp, greedy),) in zip("2468", sample["resps"], strict=True):
      want = (
          client.completions.create(
              model=NAME,
              prompt=prompt + choice,
              echo=True,
              logprobs=1,
              max_tokens=0,
          )
          .choices[0]
          .logprobs
      )
      assert float(logp) == pytest.approx(want.token_logprobs[-1], abs=1e-4)
      best = max(want.top_logprobs[-1].values())
      assert (greedy in (True, "True")) == (want.token_logprobs[-1] == best)


def test_the_token_route_by_the_training_client_of_verifiers(server, model):
  """It renders the prompt, and keeps ids and log-probs for training."""
  train = pytest.importorskip("verifiers.v1.clients.train")
  from verifiers.v1.configs.client import TrainClientConfig
  from verifiers.v1.dialects.chat import ChatDialect
  from verifiers.v1.types import SamplingConfig

  async def ask():
    client = train.TrainClient(
        TrainClientConfig(
            base_url=f"{server.url}/v1", renderer_model_name=str(model)
        )
    )
    body = dict(model=NAME, messages=[dict(role="user", content="1+2+3")])
    how = SamplingConfig(seed=seed, max_tokens=24, temperature=1.0)
    try:
      return await client.get_response(ChatDialect(), body, how)
    finally:
      await client.close()

  create = server.client().completions.create
  usual = dict(model=NAME, prompt="1+2+3=", max_tokens=24, logprobs=0)
  for seed in range(20):  # not a response that ends at once
    want = create(seed=seed, **usual).choices[0]
    if len(want.logprobs.tokens) > 5:
      break
  got = asyncio.run(ask())
  tok = tokenizer.load(str(model), "")
  assert tok.decode(got.tokens.prompt_ids) == "1+2+3="
  assert len(got.tokens.completion_ids) == len(want.logprobs.tokens)
  assert got.tokens.completion_logprobs == want.logprobs.token_logprobs
  assert got.finish_reason == want.finish_reason


def test_sigterm_ends_after_what_was_begun(model, tmp_path):
  """A stream that has begun comes whole, and the program ends with code 0."""
  grace = "--config.serve.grace=600"
  server = Server(model, tmp_path, "--config.serve.slots=2", grace)
  client = server.client(max_retries=0)
  how = dict(model=NAME, prompt="9+9=", n=8, seed=1, max_tokens=LIMIT)
  whole = client.completions.create(**how).choices
  stream = client.completions.create(stream=True, **how)
  parts = [""] * 8
  for number, event in enumerate(stream):
    if not number:
      server.process.send_signal(signal.SIGTERM)
    for choice in event.choices:
      parts[choice.index] += choice.text
  assert parts == [x.text for x in whole]
  assert server.process.wait(600) == 0
  lines = server.process.stdout.read()
  assert "stopping: " in lines and "stopped; " in lines
  with pytest.raises(openai.APIConnectionError):
    client.models.list()


def test_a_few_files_and_many_connections_that_never_end(model, tmp_path):
  """Others are served, and SIGTERM ends the program within its grace."""
  server = Server(model, tmp_path, "--config.serve.slots=2", files="320:320")
  address = server.url.rpartition("//")[2].split(":")
  head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
  half = b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
  with contextlib.ExitStack() as stack:
    for number in range(600):
      place = stack.enter_context(socket.create_connection(address, 60))
      with contextlib.suppress(OSError):
        place.sendall(head + half * (number % 2))
    begun = time.monotonic()
    how = dict(model=NAME, prompt="1+2=", max_tokens=8)
    client = server.client(max_retries=0)
    assert client.completions.create(**how).usage.completion_tokens
    assert time.monotonic() - begun < 8  # others wait 10 seconds
    begun = time.monotonic()
    assert server.end() == 0
    assert time.monotonic() - begun < 20
  assert "stopped; " in server.lines[-1] and "Traceback" not in server.lines
