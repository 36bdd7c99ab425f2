"""Engines of others: weights by name, responses, vLLM's wire format."""

import functools
import http.server
import itertools
import json
import re
import threading
import types
import zlib

import jax
import numpy as np
import pytest
import tiny

from rl_reason.base.errors import ConfigError, RunError
from rl_reason.base.structs import Prompts
from rl_reason.hf import tensor_names
from rl_reason.models import checksums, decoder
from rl_reason.rollout import sampler, vllm
from rl_reason.rollout.external import Completion, ExternalEngine, Held

T, EOS = 12, tiny.TOK.eos_token_id


class StandIn:
  """Our sampler behind the interface, which gets its weights by name."""

  def __init__(self, cfg):
    self.cfg, self.calls, self.received = cfg, [], {}

  def start_weight_update(self):
    self.calls.append("start")

  def update_weights(self, tensors):
    self.received = dict(tensors)
    self.calls.append("update")

  def finish_weight_update(self):
    """Puts the tensors back into the parameters of our model."""
    self.calls.append("finish")
    table = decoder.table(self.cfg)
    leaves, tree = jax.tree.flatten(jax.tree.map(np.zeros_like, self.like))
    for name, place in tensor_names.placements(table).items():
      x = self.received[name]
      x = x.T if place.transposed else x
      leaves[place.param][place.at] = x
    self.params = jax.tree.unflatten(tree, leaves)

  def generate(self, requests):
    """The last one first: responses come in any order."""
    self.calls.append(len(requests))
    self.seeds = [x.seed for x in requests]
    width = max(len(x.prompt) for x in requests)
    rows = [[0] * (width - len(x.prompt)) + x.prompt for x in requests]
    prompts = Prompts(
        tokens_NP=np.array(rows, np.int32),
        start_N=np.array([width - len(x.prompt) for x in requests], np.int32),
        ids_N=np.arange(len(requests), dtype=np.int32),
    )
    out = jax.device_get(
        sampler.sample(
            self.params,
            prompts,
            jax.random.key(0),
            requests[0].temperature,
            group_size=1,
            max_tokens=requests[0].max_tokens,
            cfg=self.cfg,
            eos=requests[0].stop,
            pad=0,
        )
    )
    for n in reversed(range(len(requests))):
      k = out.lengths_B[n]
      tokens, logps = out.tokens_BL[n, width : width + k], out.logps_BT[n, :k]
      yield (
          n,
          Completion(tokens.tolist(), logps.tolist(), not out.truncated_B[n]),
      )


def external(engine):
  """Without a mesh: an engine of others has devices of its own."""
  static = dict(eos=tiny.TOK.eos_token_id, pad=tiny.TOK.pad_token_id)
  named = dict(
      names=tensor_names.names(tiny.CFG),
      tensors=functools.partial(tensor_names.named_tensors, cfg=tiny.CFG),
  )
  return ExternalEngine(
      engine, None, max_tokens=T, vocab=tiny.CFG.vocab, **named, **static
  )


def sampled(engine, params):
  *_, (rollouts, ended_B, *_) = engine.stream(
      params, tiny.prompts(3), jax.random.key(1), 0.0, group_size=2
  )
  assert ended_B.all()
  return rollouts


@pytest.mark.slow
def test_responses_are_those_of_our_sampler():
  """Greedy: weights by name, prompts without padding, rows in their order."""
  stand_in = StandIn(tiny.CFG)
  stand_in.like = tiny.params()
  engine = external(stand_in)
  for seed in (0, 1):
    params = tiny.params(seed)
    got = sampled(engine, params)
    again = sampled(engine, params)  # no second update
    jax.tree.map(np.testing.assert_array_equal, got, again)
    static = dict(group_size=2, max_tokens=T, **tiny.SAMPLER)
    args = tiny.prompts(3), jax.random.key(1), 0.0
    want = jax.device_get(sampler.sample(params, *args, **static))
    np.testing.assert_allclose(got.logps_BT, want.logps_BT, atol=1e-5)
    for name in ("tokens_BL", "start_B", "ids_B", "mask_BT", "truncated_B"):
      wanted = getattr(want, name)
      np.testing.assert_array_equal(getattr(got, name), wanted, name)
  assert stand_in.calls == ["start", "update", "finish", 6, 6] * 2
  assert len(set(stand_in.seeds)) == 6


class Canned:
  """Returns the same response to some of the requests."""

  def __init__(self, completion, answered=6):
    self.completion, self.answered, self.updates = completion, answered, 0

  def start_weight_update(self):
    self.updates += 1

  def update_weights(self, tensors):
    pass

  def finish_weight_update(self):
    pass

  def generate(self, requests):
    self.requests = requests
    for n in range(self.answered):
      yield n, self.completion


def test_rows_of_responses():
  """Three prompts, two responses each; tokens of others are padding."""
  canned = Canned(Completion([5, EOS], [-0.5, -1.5], True))
  engine, params = external(canned), tiny.params()
  rollouts = sampled(engine, params)
  # New weights are sent once, also if only the last array is another one.
  for norm, updates in ((params["norm"], 1), (params["norm"] + 1, 2)):
    sampled(engine, params | dict(norm=norm))
    assert canned.updates == updates
  prompts = tiny.prompts(3)
  texts = [
      row[start:].tolist()
      for row, start in zip(prompts.tokens_NP, prompts.start_N, strict=True)
  ]
  assert [x.prompt for x in canned.requests] == [x for x in texts for _ in "ab"]
  assert len({x.seed for x in canned.requests}) == 6
  assert rollouts.ids_B.tolist() == [0, 0, 1, 1, 2, 2]
  assert (
      rollouts.tokens_BL[:, tiny.P :].tolist()
      == [[5, EOS] + [tiny.TOK.pad_token_id] * (T - 2)] * 6
  )
  assert rollouts.mask_BT.sum(1).tolist() == [2] * 6
  assert not rollouts.truncated_B.any()


@pytest.mark.parametrize(
    ("canned", "words"),
    [
        (Canned(Completion([5, 6], [-0.5], True)), "needs as many of both"),
        (Canned(Completion([], [], True)), "has 0 tokens"),
        (Canned(Completion([5] * 13, [-0.5] * 13, True)), "has 13 tokens"),
        (
            Canned(Completion([5], [-0.5], False), 4),
            "2 of 6 responses are miss",
        ),
    ],
)
def test_what_an_engine_gets_wrong_is_named(canned, words):
  with pytest.raises(RunError, match=words):
    sampled(external(canned), tiny.params())


class Raw(Canned):
  """Yields what it is given."""

  def generate(self, requests):
    yield from self.completion


def whole(tokens=(5, EOS), logps=(-0.5, -1.5), stopped=True):
  return Completion(tokens, logps, stopped)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (None, "response 0: entry 0 of 1 is None, not a log-prob"),
        *(
            ([(0, whole(logps=[-0.5, x]))], "entry 1 of 2 is .*, not a log-pro")
            for x in (
                *(
                    np.nan,
                    -np.inf,
                    5,
                    -1e300,
                    True,
                    "-0.5",
                    None,
                    [-0.5],
                    1e400,
                ),
                *(np.float32("nan"), 1j, np.bool_(True)),
            )
        ),
        *(
            (
                [(0, whole(tokens=[x, EOS]))],
                "entry 0 of 2 is .*, not a token id",
            )
            for x in (-1, 10**6, 2**70, 5.0, True, "5", None, np.float32(5))
        ),
        ([(0, whole("51"))], "'51' is no list with a token id per entry"),
        ([(0, whole({5: 1}))], "is no list with a token id per entry"),
        ([(0, whole(np.int32(5)))], "no list with a token id per entry"),
        (
            [(0, whole([5, 6]))],
            "stopped at the token 6, which is none of the st",
        ),
        ([(0, whole([EOS, 6]))], "goes on after the stop token 1"),
        ([(0, whole()), (0, whole())], "response 0: it comes a second time"),
        *(
            ([(x, whole())], "an answer: entry 0 of 1 is .*, not an index from")
            for x in (6, -1, 0.0, True, "0", None)
        ),
        ([whole()], "an answer: it is not \\(index of the request, response"),
        ([(0, (5, EOS))], "response 0: it is a tuple"),
    ],
)
def test_numbers_of_an_engine_are_not_believed(answers, words):
  """The error names the engine's server, and what it may serve instead."""
  engine = Raw(answers or [(0, whole([5], [None], False))])
  engine.url = "http://127.0.0.1:9"
  with pytest.raises(RunError, match=words) as e:
    sampled(external(engine), tiny.params())
  assert "rollout.engine.name (http://127.0.0.1:9): " in str(e.value)
  assert "resumes the run" in str(e.value) and "\n" not in str(e.value)


def test_arrays_of_an_engine_and_a_stop_at_the_last_token():
  """Whether a stop token ended a response is read from its last token."""
  arrays = np.array([5, EOS]), np.array([-0.5, 0.0], np.float32)
  rows = [whole(*arrays), whole(stopped=False), whole([5, 6], stopped=False)]
  engine = Raw([(np.int64(n), x) for n, x in enumerate(rows * 2)])
  rollouts = sampled(external(engine), tiny.params())
  assert rollouts.truncated_B.tolist() == [False, False, True] * 2


@pytest.mark.parametrize("found", [None, {}, (3, {}), Held("3"), Held(3, None)])
def test_an_answer_about_weights_has_a_form(found):
  engine = Canned(whole())
  engine.held = lambda: found
  with pytest.raises(RunError, match="must return an `external.Held`"):
    sampled(external(engine), tiny.params())


def test_the_wire_format_of_vllm(monkeypatch, tmp_path):
  """An update, then two requests; the server is a stand-in."""
  seen, keys = [], set()
  monkeypatch.setenv("KEY_OF_TEST", "secret-of-test\n")

  class Handler(http.server.BaseHTTPRequestHandler):

    def do_POST(self):
      body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
      seen.append((self.path, body))
      keys.add(self.headers["Authorization"])
      answer = b""
      if self.path == "/v1/completions":
        tokens = [*body["prompt"], 7]
        choice = dict(
            token_ids=tokens,
            logprobs=dict(token_logprobs=[-0.5] * len(tokens)),
            finish_reason="stop" if body["seed"] else "length",
        )
        answer = json.dumps(dict(choices=[choice])).encode()
      self.send_response(200)
      self.send_header("Content-Length", str(len(answer)))
      self.end_headers()
      self.wfile.write(answer)

    def log_message(self, *args):
      pass

  (tmp_path / "my_transfer.py").write_text(
      "def send(tensors):\n"
      "  yield dict(names=[name for name, _ in tensors])\n"
      "\n\ndef held():\n"
      "  return 'asked'\n"
  )
  monkeypatch.syspath_prepend(tmp_path)
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  try:
    client = vllm.vllm(
        transfer="my_transfer:send",
        model="policy",
        held="my_transfer:held",
        url=f"http://127.0.0.1:{server.server_port}/",
        key_env="KEY_OF_TEST",
    )
    assert client.held() == "asked"
    client.start_weight_update()
    client.update_weights([("norm", np.ones(2))])
    client.finish_weight_update()
    request = vllm.Request([5, 6], 0, 9, 0.5, 1.0, (1, 2))
    other = request._replace(seed=3, repetition_penalty=1.2)
    found = dict(client.generate([request, other]))
  finally:
    server.shutdown()
    server.server_close()
  with pytest.raises(
      RunError, match="v1/completions: .* does the server run"
  ) as e:
    dict(client.generate([request]))
  assert keys == {"Bearer secret-of-test"} and "secret" not in str(e.value)
  want = Completion([5, 6, 7], [-0.5] * 3, False)
  assert found == {0: want, 1: want._replace(stopped=True)}
  assert [path for path, _ in seen[:4]] == [
      "/reset_prefix_cache",
      "/start_weight_update",
      "/update_weights",
      "/finish_weight_update",
  ]
  assert seen[2][1] == dict(update_info=dict(names=["norm"]))
  sent = seen[4][1]
  assert "secret" not in json.dumps(seen)
  assert sent["stop_token_ids"] == [1, 2] and sent["return_token_ids"]
  assert sent["temperature"] == 0.5 and sent["max_tokens"] == 9
  assert (sent["top_k"], sent["top_p"]) == (0, 1.0)
  assert {x["repetition_penalty"] for _, x in seen[4:]} == {1.0, 1.2}


@pytest.mark.parametrize("value", [None, " "])
def test_a_key_that_is_not_there_is_named(monkeypatch, value):
  monkeypatch.delenv("KEY_OF_TEST", raising=False)
  if value is not None:
    monkeypatch.setenv("KEY_OF_TEST", value)
  with pytest.raises(ConfigError, match="key_env = 'KEY_OF_TEST': .* not set"):
    vllm.vllm(transfer="json:dumps", model="x", key_env="KEY_OF_TEST")


class Answering(Canned):
  """Says which weights it holds: it keeps a part of what it was sent."""

  def __init__(self):
    super().__init__(Completion([5, EOS], [-0.5, -1.5], True))
    self.crcs, self.count = {}, 3  # it has served another run

  def update_weights(self, tensors):
    self.crcs = {name: zlib.crc32(x.tobytes()) for name, x in tensors}

  def finish_weight_update(self):
    self.count += 1

  def held(self):
    return Held(self.count, self.crcs)


class Lazy(Answering):
  """Takes two tensors of each update."""

  held = None

  def update_weights(self, tensors):
    super().update_weights(itertools.islice(tensors, 2))


def restarted(engine):
  engine.count = 0


def one_tensor(engine):
  engine.crcs |= {"model.layers.1.self_attn.q_proj.weight": 7}


def nothing(engine):
  pass


@pytest.mark.parametrize(
    ("engine", "fault", "words"),
    [
        (Answering(), nothing, ""),
        (Answering(), restarted, "counts 0 updates of its weights in place of"),
        (
            Answering(),
            one_tensor,
            r"other numbers in 1 of 20 tensors \(model.layers.1.self_attn.q_pr",
        ),
        (Lazy(), nothing, "the engine did not take 18 of 20 tensors"),
    ],
)
def test_an_engine_says_which_weights_it_holds(engine, fault, words):
  """The answer of each round is compared with what was sent."""
  one = external(engine)
  assert one.answers == isinstance(engine.held, types.MethodType)
  for seed in (0, 1):  # two updates
    params = tiny.params(seed)
    args = params, tiny.prompts(3), jax.random.key(1), 0.0
    *_, last = one.stream(*args, group_size=2)
    assert bool(last.held().fault) == isinstance(engine, Lazy)
  fault(engine)
  *_, last = one.stream(*args, group_size=2)
  held = last.held()
  assert re.search(words, held.fault) and bool(words) == bool(held.fault)
  want = checksums.on_device(params)
  jax.tree.map(np.testing.assert_array_equal, held.checksums, want)
