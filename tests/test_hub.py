"""Pushing to a stand-in for the Hugging Face hub; revisions fetched from it."""

import base64
import http.server
import json
import threading

import huggingface_hub
import pytest
import transformers
from huggingface_hub import constants

from rl_reason import main
from rl_reason.base import config, errors, hub_connection
from rl_reason.base.errors import RunError
from rl_reason.checks import config_checks, model_directory
from rl_reason.configs import dapo
from rl_reason.hf import hub
from rl_reason.lab import model_shapes
from rl_reason.report import machine

REPOSITORY = "me/model"
TOKEN = "hf_of_me"


class Hub(http.server.BaseHTTPRequestHandler):
  """What the hub answers to create_repo and to a push; keeps the files."""

  def log_message(self, *_):
    pass

  def _answer(self, value, code=200):
    data = json.dumps(value).encode()
    self.send_response(code)
    self.send_header("Content-Length", str(len(data)))
    self.end_headers()
    self.wfile.write(data)

  def _body(self) -> bytes:
    return self.rfile.read(int(self.headers["Content-Length"] or 0))

  def do_PUT(self):
    self.server.stored[self.path.rpartition("/")[2]] = self._body()
    self._answer({})

  def do_GET(self):
    path = self.path.partition("?")[0]
    if path == f"/api/models/{REPOSITORY}/tree/main":
      found = [
          dict(type="file", path=name, size=len(data), oid="0")
          for name, data in self.server.files.items()
      ]
      self._answer(found)
    else:
      self._answer(dict(error="not found"), 404)

  def do_POST(self):
    url, body = f"http://{self.headers['Host']}", self._body()
    if self.headers.get("Authorization") != f"Bearer {TOKEN}":
      self._answer(dict(error="Invalid credentials"), 401)
    elif self.path == "/api/repos/create":
      self.server.created.append(json.loads(body))
      self._answer(dict(url=f"{url}/{REPOSITORY}", name=REPOSITORY))
    elif self.path.endswith("/preupload/main"):
      modes = {"safetensors": "lfs"}
      files = [
          dict(
              path=x["path"],
              uploadMode=modes.get(x["path"].rpartition(".")[2], "regular"),
              shouldIgnore=False,
          )
          for x in json.loads(body)["files"]
      ]
      self._answer(dict(files=files))
    elif self.path.endswith("/info/lfs/objects/batch"):
      objects = [
          x | dict(actions=dict(upload=dict(href=f"{url}/put/{x['oid']}")))
          for x in json.loads(body)["objects"]
      ]
      self._answer(dict(transfer="basic", objects=objects))
    elif self.path == f"/api/models/{REPOSITORY}/commit/main":
      lines = [json.loads(line) for line in body.splitlines()]
      for key, value in ((x["key"], x["value"]) for x in lines[1:]):
        if key == "deletedFile":
          del self.server.files[value["path"]]
          continue
        self.server.files[value["path"]] = (
            self.server.stored[value["oid"]]
            if "oid" in value
            else base64.b64decode(value["content"])
        )
      self.server.messages.append(lines[0]["value"]["summary"])
      commit = dict(commitOid="abc", commitUrl=f"{url}/{REPOSITORY}/commit/abc")
      self._answer(commit | dict(success=True))
    else:
      self._answer(dict(error="not found"), 404)


@pytest.fixture
def server(monkeypatch):
  """The server; the hub of this process is there, with the token of `me`."""
  it = http.server.ThreadingHTTPServer(("localhost", 0), Hub)
  it.created, it.stored, it.files, it.messages = [], {}, {}, []
  address = f"http://localhost:{it.server_port}"
  monkeypatch.setattr(constants, "ENDPOINT", address)
  monkeypatch.setenv("HF_TOKEN", TOKEN)
  monkeypatch.setenv("NO_PROXY", "localhost")
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
  # The stand-in takes plain uploads only.
  monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
  thread = threading.Thread(target=it.serve_forever, args=(0.01,), daemon=True)
  thread.start()
  yield it
  it.shutdown()
  it.server_close()


def test_a_directory_becomes_one_commit(server, tmp_path):
  files = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 9}
  for name, data in files.items():
    (tmp_path / name).write_bytes(data)
  hub.create(REPOSITORY, private=True)
  [created] = server.created
  assert (created["name"], created["organization"]) == ("model", "me")
  assert created.get("private") or created.get("visibility") == "private"
  url = hub.push(REPOSITORY, tmp_path, "Step 7 of RL")
  assert server.files == files and server.messages == ["Step 7 of RL"]
  assert url.endswith(f"/{REPOSITORY}/commit/abc")


def test_a_push_deletes_the_weights_of_earlier_ones(server, tmp_path):
  """And no other file; readers take model.safetensors first."""
  stay = ("README.md", "adapter_model.safetensors", "old/model.safetensors")
  names = ("model.safetensors", "model-00002-of-00002.safetensors")
  server.files |= dict.fromkeys((*stay, *names), b"old")
  new = ("model-00001-of-00001.safetensors", "model.safetensors.index.json")
  for push in (new, names[:1]):
    place = tmp_path / push[0]
    place.mkdir()
    for name in push:
      (place / name).write_bytes(b"new")
    hub.push(REPOSITORY, place, "a step")
    want = dict.fromkeys(stay, b"old") | dict.fromkeys(push, b"new")
    assert server.files == want


def test_what_the_hub_refuses_is_named(server, monkeypatch):
  monkeypatch.setenv("HF_TOKEN", "hf_of_nobody")
  with pytest.raises(RunError, match="export.push_to = 'me/model': .*40"):
    hub.create(REPOSITORY, private=True)


def test_a_token_and_a_name_are_asked_for_before_anything(
    tmp_path, monkeypatch, capsys
):
  """The export of a finished run needs no --config, and takes export.*."""
  c = dapo.get_config()
  fields = config.flat(c)
  del fields["export.push_to"]  # of a run that is older than the field
  (tmp_path / "config.json").write_text(json.dumps(fields))
  monkeypatch.delenv("HF_TOKEN", raising=False)
  monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
  argv = ["main", "--stage=export", f"--workdir={tmp_path}"]
  main.FLAGS.unparse_flags()
  monkeypatch.setattr(
      "sys.argv", [*argv, f"--config.export.push_to={REPOSITORY}"]
  )
  with pytest.raises(SystemExit) as e:
    main.main()
  for name in ("stage", "workdir"):
    main.FLAGS[name].unparse()
  assert e.value.code == 2
  error = capsys.readouterr().err
  assert "export.push_to = 'me/model': there is no token" in error
  for name in ("model", "me/my model", "a/b/c"):
    c.export.push_to = name
    with pytest.raises(
        errors.ConfigError, match="export.push_to.*'owner/name'"
    ):
      config_checks.fields(c)


def test_revisions_reach_what_is_fetched(monkeypatch):
  """The model for a run and for its size, and the tokenizer."""
  asked = []

  def refuse(name, *_, revision, **__):
    asked.append((name, revision))
    raise OSError("no network")

  for name in ("snapshot_download", "hf_hub_download"):
    monkeypatch.setattr(huggingface_hub, name, refuse)
  auto = transformers.AutoTokenizer
  monkeypatch.setattr(auto, "from_pretrained", refuse)
  monkeypatch.setattr(hub_connection, "unreachable", lambda: "")
  c = dapo.get_config()
  c.tokenizer, c.model.path = "me/words", REPOSITORY
  c.hub.revisions = f"{REPOSITORY}=v1.5, me/words=0123abc"
  config_checks.fields(c)
  for fetch in (model_directory.resolve, model_shapes.shape):
    with pytest.raises(errors.ConfigError, match="no network"):
      fetch(c)
  c.model.path = ""
  with pytest.raises(errors.ConfigError, match="no network"):
    model_shapes.shape(c)
  assert asked == [(REPOSITORY, "v1.5")] * 2 + [("me/words", "0123abc")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("me/modle=v1", "'me/modle' is no repository .* mean me/model?"),
        (f"{REPOSITORY}", "must look like 'OWNER/REPOSITORY=REVISION,...'"),
        (f"{REPOSITORY}=", "must look like"),
        (f"{REPOSITORY}=a,{REPOSITORY}=b", "names a repository twice"),
    ],
)
def test_revisions_that_fetch_nothing_are_refused(text, words):
  c = dapo.get_config()
  c.model.path, c.hub.revisions = REPOSITORY, text
  with pytest.raises(errors.ConfigError, match=f"hub.revisions = .*{words}"):
    config_checks.fields(c)
  c.model.path, c.hub.revisions = "", "openai/gsm8k=e53f048,you/judge=v2"
  c.task.name, c.data.train, c.tokenizer = "files", "gsm8k*2", "me/words"
  c.data.evaluate, c.reward.functions = "gsm8k:test", "you/judge*0.5"
  c.sft.habits.steps = 0
  config_checks.fields(c)


def test_the_commit_of_a_model_is_recorded(tmp_path):
  cached = tmp_path / "models--me--model" / "snapshots" / "0123abc"
  assert machine.describe(cached)["model commit"] == "0123abc"
  assert machine.describe(tmp_path)["model commit"] is None
