"""The page of the server: its route, its headers, two policies beside."""

import html.parser
import json
import re
import types

import pytest
import tiny
from tiny_serve import running

from rl_reason.base import errors
from rl_reason.serve import feedback, requirements

app = pytest.importorskip("rl_reason.serve.app")
chat_page = pytest.importorskip("rl_reason.serve.chat_page")
second_policy = pytest.importorskip("rl_reason.serve.second_policy")
testclient = pytest.importorskip("starlette.testclient")

KEY, AFTER, BEFORE = "a-key", "tiny", "tiny-before-rl"


@pytest.fixture(scope="module")
def engines():
  with running(several=True) as engines:
    yield engines


@pytest.fixture
def serve(engines, tmp_path):
  def make(key=""):
    server = app.Server(
        engines[0],
        tiny.TOK,
        name=AFTER,
        timeout=900.0,
        rules=[],
        ratings=feedback.Feedback(tmp_path, print),
        silent=lambda: 0,
        say=print,
        beside={BEFORE: engines[1]},
        about={BEFORE: "the policy of SFT"},
    )
    servers.append(server)
    return testclient.TestClient(
        app.app(server, key=key, hosts=requirements.LOCAL, max_body=10_000),
        base_url="http://127.0.0.1:8000",
    )

  servers = []
  yield make
  for server in servers:
    server.close()


def test_the_page_comes_without_a_key_and_nothing_else_does(serve):
  client = serve(KEY)
  answer = client.get("/")
  assert answer.status_code == 200 and answer.text == chat_page.TEXT
  assert answer.headers["content-type"] == "text/html; charset=utf-8"
  assert KEY not in answer.text
  assert client.get("/v1/models").status_code == 401
  assert serve().get("/", headers=dict(host="evil.example")).status_code == 403


def test_a_browser_runs_its_script_alone_and_asks_this_server_alone(serve):
  policy = serve().get("/").headers["content-security-policy"]
  rules = dict(x.strip().split(" ", 1) for x in policy.split(";"))
  assert rules["default-src"] == rules["base-uri"] == "'none'"
  assert rules["connect-src"] == "'self'"
  assert rules["frame-ancestors"] == rules["form-action"] == "'none'"
  for name in ("script-src", "style-src"):
    assert re.fullmatch("'sha256-[A-Za-z0-9+/=]{44}'", rules[name])


def test_the_page_is_whole_and_makes_no_html_of_text():
  text = chat_page.TEXT
  assert not re.search(r"https?://|@import|url\(|<link[^>]* src", text)
  assert not re.search(
      r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Storage"
      r"|cookie|new Function",
      text,
  )
  found = []

  class Labels(html.parser.HTMLParser):

    def handle_starttag(self, tag, attrs):
      found.append(tag)
      assert not [name for name, _ in attrs if name.startswith("on")]
      assert "style" not in dict(attrs)
      if tag in ("input", "textarea"):
        assert "label" in found[-3:], attrs

  Labels().feed(text.partition("<script>")[0])
  assert {"main", "textarea", "button", "summary"} <= {*found}


def ask(client, name, **more):
  body = dict(prompt="12+34=", model=name, seed=3, max_tokens=8, logprobs=0)
  return client.post("/v1/completions", json=body | more)


def test_two_policies_answer_by_their_names(serve, engines):
  client = serve()
  cards = client.get("/v1/models").json()["data"]
  assert [x["id"] for x in cards] == [AFTER, BEFORE]
  assert [x["description"] for x in cards] == ["", "the policy of SFT"]
  assert not cards[0]["chat_template"]
  found = {}
  for name in (AFTER, BEFORE, None):
    answer = ask(client, name).json()
    assert answer["model"] == (name or AFTER)
    found[name] = answer["choices"][0]
  assert found[None] == found[AFTER]
  assert found[AFTER]["logprobs"] != found[BEFORE]["logprobs"]
  lines = ask(client, BEFORE, stream=True).text.split("\n\n")
  events = [json.loads(x[6:]) for x in lines if "{" in x]
  text = "".join(x["choices"][0]["text"] for x in events)
  assert text == found[BEFORE]["text"]
  assert {x["model"] for x in events} == {BEFORE}
  error = ask(client, "other").json()["error"]["message"]
  assert error.endswith(f"only '{AFTER}' and '{BEFORE}'")
  # Counters are of both.
  assert re.search(r"rl_reason_prefills 2\.0", client.get("/metrics").text)


@pytest.mark.parametrize(
    ("beside", "which", "size", "want"),
    [
        ("", "newest", 1, None),
        ("auto", "newest", 1, ("run-before-rl", "sft")),
        ("auto", "sft", 1, None),
        ("auto", "newest", second_policy.SMALL + 1, None),
        ("sft", "newest", second_policy.SMALL + 1, ("run-before-rl", "sft")),
        ("2", "newest", 1, ("run-2", "2")),
        ("best", "newest", 1, ("run-best", "best")),
        ("a-typo", "newest", 1, "is neither a step of this run"),
        ("lost", "newest", 1, "neither"),
    ],
)
def test_the_second_policy(monkeypatch, beside, which, size, want):
  """Which one; the default says why there is none."""
  said = []
  c = types.SimpleNamespace(serve=types.SimpleNamespace(beside=beside))
  display = types.SimpleNamespace(say=said.append)
  output = types.SimpleNamespace(display=display)
  trained = second_policy.trained_parameters
  monkeypatch.setattr(trained, "starts", lambda c, which, _: which == "sft")
  policy = lambda c, step, **_: (step, None, 0, f"of {step}")  # noqa: E731
  monkeypatch.setattr(trained, "policy", policy)
  serving = types.SimpleNamespace(weight_bytes=size)

  def find():
    return second_policy.find(c, which, "run", None, output, None, serving)

  if isinstance(want, str):
    with pytest.raises(errors.ConfigError, match=want):
      find()
    return
  found = find()
  assert (found and (found.name, found.params)) == want
  assert bool(said) == (beside == "auto" and size > 1)
  if beside == "auto" and want:  # lost: the server starts without it
    monkeypatch.setattr(trained, "policy", lost)
    assert find() is None and "is gone" in said[0]


def lost(*_, **__):
  raise errors.RunError("it is gone")
