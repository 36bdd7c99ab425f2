"""A teacher on a server: its log-probs, its tokenizer, and its failures."""

import http.server
import json
import threading

import jax
import numpy as np
import pytest
import test_privileged
import tiny
import tiny_session

from configs import distill
from rl_reason.base.errors import ConfigError, RunError
from rl_reason.checks import config_checks, file_checks, path_contents
from rl_reason.checks.rules import Faults
from rl_reason.data import tokenizer
from rl_reason.features.distillation import scoring, teacher, teacher_server
from rl_reason.lab import memory_formula
from rl_reason.stages import observers, rl
from rl_reason.training import packing

URL = "http://127.0.0.1:8000"
LIMITS = dict(model="", parallel=4, seconds=9.0, patience=0.0, key_env="")
encode = tiny.TOK.encode


def card(**more):
  return dict(data=[dict(id="teacher") | more])


def scored(ids, tok=tiny.TOK, extra=0):
  """What a server returns: the log-prob of a token is minus its id."""
  ids = [*ids, *[0] * (1 + extra)]
  logps = [None, *(-float(x) for x in ids[1:])]
  named = dict(tokens=[tok.decode([x]) for x in ids], token_logprobs=logps)
  return dict(choices=[dict(logprobs=named)])


def scorer(monkeypatch, send, **changes):
  """A client whose requests `send` answers, and the lines that it shows."""
  said: list[str] = []
  monkeypatch.setattr(scoring.Scorer, "_send", lambda _, *args: send(*args))
  options = LIMITS | dict(say=said.append, pause=1e-3) | changes
  return scoring.Scorer(URL, **options), said


def test_sequences_and_their_log_probs(monkeypatch):
  """Tokens of prompt and response go out, and numbers come back in place."""
  r = test_privileged.rollouts(np.random.default_rng(0))
  plan = packing.plan(r, packed_rows=2, minibatches=3)
  rows, first_B = teacher_server.sequences(plan)
  prompt_B, response_B = packing.spans(
      r.start_B, r.mask_BT, r.tokens_BL.shape[1]
  )
  assert first_B == prompt_B.tolist()
  for b, row in enumerate(rows):
    start = r.start_B[b]
    whole = r.tokens_BL[b, start : tiny.P + response_B[b]]
    assert row == whole.tolist() * bool(response_B[b])
  asked = []

  def send(path, body):
    if path == "v1/models":
      return card(max_model_len=200)
    prompt = body["prompt"]
    asked.append(prompt)
    return scored(encode(prompt) if isinstance(prompt, str) else prompt)

  monkeypatch.setattr(scoring.Scorer, "_send", lambda _, *args: send(*args))
  c = tiny_session.tiny_config()
  c.kl.reference, c.rollout.max_tokens = URL + "/v1/", tiny.T
  screen = tiny_session.display.Display(False)
  of = teacher_server.log_probs(c, tiny.TOK, screen, ["1+1="])
  assert asked[0] == "1+1=" and len(asked) > 2  # the comparison of tokenizers
  asked.clear()
  logps_BT = of(plan, None, 0)
  assert len(asked) == 5  # none for padding
  wanted = np.where(r.mask_BT, -r.tokens_BL[:, tiny.P :], 0)
  np.testing.assert_array_equal(logps_BT, wanted)


@pytest.mark.slow
def test_a_served_policy_is_the_teacher_that_a_checkpoint_is(tmp_path):
  """The package's own server: log-probs of the trainer's forward pass."""
  import tiny_serve

  from rl_reason.serve import app, feedback, requirements
  from rl_reason.training import step

  testclient = pytest.importorskip("starlette.testclient")
  r = test_privileged.rollouts(np.random.default_rng(0))
  plan = packing.plan(r, packed_rows=2, minibatches=1)
  program = step.logps_program(tiny.CFG, 1.0)
  wanted_BT, _ = step.forward(None, program, tiny.params(), plan)
  with (
      tiny_serve.running(max_prompt=tiny.P + tiny.T) as engine,
      pytest.MonkeyPatch.context() as patch,
  ):
    server = app.Server(
        engine,
        tiny.TOK,
        name="tiny",
        timeout=900.0,
        rules=[],
        ratings=feedback.Feedback(tmp_path, print),
        silent=lambda: 0,
        say=print,
    )
    asgi = app.app(server, key="", hosts=requirements.LOCAL, max_body=99_999)
    client = testclient.TestClient(asgi, base_url=URL)

    def send(_, path, body):
      method = "GET" if body is None else "POST"
      answer = client.request(method, f"/{path}", json=body)
      assert answer.status_code == 200, answer.text
      return answer.json()

    patch.setattr(scoring.Scorer, "_send", send)
    c = tiny_session.tiny_config()
    c.kl.reference, c.rollout.max_tokens = URL, tiny.T
    screen = tiny_session.display.Display(False)
    of = teacher_server.log_probs(c, tiny.TOK, screen, ["1+1="])
    logps_BT = of(plan, None, 0)
    other = tokenizer.characters(tiny.TASK.ALPHABET[::-1])
    with pytest.raises(ConfigError, match="has another tokenizer: the log-pro"):
      teacher_server.log_probs(c, other, screen, ["1+1="])
  np.testing.assert_allclose(
      logps_BT[r.mask_BT], wanted_BT[r.mask_BT], atol=2e-5
  )


@pytest.mark.slow
def test_a_run_asks_its_teacher_for_every_response(tmp_path, monkeypatch):
  """The advantage of a token is minus its id minus its own log-prob."""
  asked = []

  def send(_, path, body):
    if path == "v1/models":
      return card(max_prompt_len=99)
    prompt = body["prompt"]
    asked.append(prompt)
    return scored(encode(prompt) if isinstance(prompt, str) else prompt)

  monkeypatch.setattr(scoring.Scorer, "_send", send)
  c, own = tiny_session.tiny_config(), distill.get_config("sampled")
  for name in ("kl", "reward", "advantage", "reduction"):
    c[name] = own[name]
  c.dynamic_sampling.update(enabled=False, max_rounds=10)
  c.kl.reference, c.rollout.group_size, c.rl.steps = URL, 1, 1
  session = tiny_session.make_session(tmp_path, c)
  with jax.set_mesh(session.mesh):
    params = tiny_session.random_params(session)
    tiny_session.call(rl.train, session, params)
  lines = tiny_session.logged(tmp_path)
  [line] = [x for x in lines if x["stage"] == "rl"]
  texts = teacher_server.PROBES + teacher.PROMPTS
  assert 0 < len(asked) - c.rollout.batch <= 2 * texts
  assert line["kl/reference"] > 3  # mean id minus entropy


def test_another_tokenizer_is_refused(monkeypatch):
  other = tokenizer.characters(tiny.TASK.ALPHABET[::-1])

  def client(tok, extra=0):
    def send(path, body):
      if path == "v1/models":
        return card(max_prompt_len=60)
      prompt, text = body["prompt"], isinstance(body["prompt"], str)
      ids = tok.encode(prompt) if text else prompt
      return scored(ids, tok, extra * text)

    return scorer(monkeypatch, send)[0]

  def difference(tok, extra=0):
    ours = lambda texts: [encode(x) for x in texts]  # noqa: E731
    texts = ["12+3=", *teacher_server.probes(tiny.TOK)]
    return scoring.check_tokenizer(client(tok, extra), texts, ours)

  assert difference(tiny.TOK) == ""
  assert "of '12+3=' differ by" in difference(other)
  assert "makes 6 tokens of '12+3=', and the policy 5" in difference(
      tiny.TOK, extra=1
  )
  found = "".join(teacher_server.probes(tiny.TOK))
  assert set(found) >= set(tiny.TASK.ALPHABET)


def test_a_server_that_comes_back_costs_a_line(monkeypatch):
  faults = [ConnectionRefusedError("refused"), TimeoutError("slow")]

  def send(path, body):
    if path == "v1/models":
      return card()
    if faults:
      raise faults.pop(0)
    return scored(body["prompt"])

  client, said = scorer(monkeypatch, send, patience=9.0, parallel=1)
  [(_, logps)] = client.logps([[5, 6, 7]], "at step 3 of RL")
  assert logps == [-6, -7] and client.longest is None
  assert said == [
      f"kl.reference: {URL}/v1/completions, at step 3 of RL: refused; trying"
      " again"
  ]


def test_a_server_that_stays_away_ends_the_run_with_its_name(monkeypatch):
  def send(path, body):
    if path == "v1/models":
      return card()
    raise ConnectionRefusedError("refused")

  client, _ = scorer(monkeypatch, send, patience=0.01)
  words = f"{URL}/v1/completions, at step 3 of RL: refused; no answer for kl.s"
  with pytest.raises(RunError, match=words):
    client.logps([[5, 6, 7]], "at step 3 of RL")

  def wrong(path, body):
    if path == "v1/models":
      return card()
    return body and scored(body["prompt"], extra=2)

  client, _ = scorer(monkeypatch, wrong)
  with pytest.raises(RunError, match="returns 5 tokens for a prompt of 3, at"):
    client.logps([[5, 6, 7]], "at step 3 of RL")
  client, _ = scorer(
      monkeypatch, lambda path, _: card() if "models" in path else {}
  )
  with pytest.raises(RunError, match="returns no log-probs of the prompt"):
    client.logps([[5, 6, 7]], "at step 3 of RL")


def test_what_goes_over_the_wire(monkeypatch):
  """A real socket: the key, a fault that is not tried again, and its text."""
  seen = []

  class Handler(http.server.BaseHTTPRequestHandler):

    def do_GET(self):
      self._answer(200, dict(data=[dict(id="a"), dict(id="b")]))

    def do_POST(self):
      body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
      seen.append((self.path, self.headers["Authorization"], body))
      self._answer(400, dict(error=dict(message="too  long")))

    def _answer(self, status, body):
      self.send_response(status)
      self.end_headers()
      self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_):
      pass

  server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  url = f"http://127.0.0.1:{server.server_port}/v1"
  options = LIMITS | dict(patience=60.0, say=print)
  try:
    with pytest.raises(
        ConfigError, match="kl.server.model = '': .* has a, b: n"
    ):
      scoring.Scorer(url, **options)
    with pytest.raises(
        ConfigError, match="this environment variable is not se"
    ):
      scoring.Scorer(url, **options | dict(key_env="NO_SUCH_KEY"))
    monkeypatch.setenv("TEACHER_KEY", "secret")
    options |= dict(model="b", key_env="TEACHER_KEY")
    client = scoring.Scorer(url, **options)
    with pytest.raises(RunError, match="400: too long; the server refuses"):
      client.logps([[5, 6]], "at step 1 of RL")
  finally:
    server.shutdown()
    server.server_close()
  [(path, key, body)] = seen
  assert (path, key) == ("/v1/completions", "Bearer secret")
  assert body["prompt"] == [5, 6] and body["echo"] and body["model"] == "b"


def test_a_server_that_takes_shorter_rows_is_refused(monkeypatch):
  monkeypatch.setattr(
      scoring.Scorer, "_send", lambda *_: card(max_model_len=60)
  )
  c = tiny_session.tiny_config()
  c.kl.reference = URL
  screen = tiny_session.display.Display(False)
  with pytest.raises(ConfigError, match="takes 59 .* 60: st.*_tokens by 1$"):
    teacher_server.log_probs(c, tiny.TOK, screen, [])


def test_the_config_of_a_server(tmp_path):
  c = distill.get_config("sampled")
  fields = {"kl.reference": URL, "kl.server.parallel": 2}
  c, _ = config_checks.checked(c, fields)
  faults = Faults()
  file_checks.check(c, "all", faults)
  assert not faults.lines
  assert path_contents.content(c, "kl.reference")  # it may move
  session = tiny_session.make_session(tmp_path, tiny_session.tiny_config())
  session.c.kl = c.kl
  of = memory_formula.estimate(
      session.c, session.cfg, session.critic_cfg, session.mesh
  )
  assert "teacher (kl.reference)" not in of.resident
  assert observers.forward_passes(session.c, session.cfg, on_policy=True) == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"kl.kind": "full", "kl.place": "loss"},
            "kl.kind = 'full': a server g",
        ),
        (
            {"rollout.temperature": 0.5},
            "rollout.temperature = 0.5: the log-prob",
        ),
        ({"kl.reference": "runs/dapo"}, "kl.server.model = 'a': does nothing"),
    ],
)
def test_what_a_server_cannot_do_is_refused(changes, words):
  fields = {"kl.reference": URL, "kl.server.model": "a"}
  with pytest.raises(ConfigError) as e:
    config_checks.checked(distill.get_config("sampled"), fields | changes)
  assert any(words in x for x in e.value.lines), e.value.lines
