"""The page of the server in a browser, which it asks two tiny policies from."""

import json
import os
import re
import shutil
import threading
import time

import pytest
import tiny
from tiny_serve import running

from rl_reason.serve import feedback, requirements

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium"),
]
playwright = pytest.importorskip("playwright.sync_api")
uvicorn = pytest.importorskip("uvicorn")
app = pytest.importorskip("rl_reason.serve.app")

KEY, AFTER, BEFORE = "a-key", "tiny", "tiny-before-rl"
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2'
CHAT, TEXT = "**/v1/chat/completions", "**/v1/completions"
# Pictures for a reader, if this names a folder.
PICTURES = os.environ.get("RL_REASON_PICTURES", "")


@pytest.fixture(scope="module")
def browser():
  with playwright.sync_playwright() as p:
    browser = p.chromium.launch(
        executable_path=shutil.which("chromium"), args=["--no-sandbox"]
    )
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def engines():
  with running(several=True, max_waiting=8) as engines:
    yield engines


@pytest.fixture
def address(engines, tmp_path, request):
  """A server; its key is the parameter of the test, if it has one."""
  server = app.Server(
      engines[0],
      tiny.TOK,
      name=AFTER,
      timeout=60.0,
      rules=[],
      ratings=feedback.Feedback(tmp_path, print),
      silent=lambda: 0,
      say=print,
      beside={BEFORE: engines[1]},
      about={BEFORE: "the policy of SFT"},
  )
  asgi = app.app(
      server,
      key=getattr(request, "param", ""),
      hosts=requirements.LOCAL,
      max_body=10_000,
  )
  http = uvicorn.Server(uvicorn.Config(asgi, port=0, log_level="error"))
  thread = threading.Thread(target=http.run)
  thread.start()
  while not http.started:
    time.sleep(0.01)
  yield f"http://127.0.0.1:{http.servers[0].sockets[0].getsockname()[1]}"
  http.should_exit = True
  thread.join()
  server.close()


@pytest.fixture
def page(browser):
  """A page that fails if its console has an error of the script or the CSP."""
  page, wrong = browser.new_page(), []
  page.set_default_timeout(30_000)
  page.on("pageerror", lambda e: wrong.append(str(e)))
  page.on(
      "console",
      lambda x: wrong.append(x.text)
      if "Content Security" in x.text or "Trusted" in x.text
      else None,
  )
  yield page
  page.close()
  assert not wrong


def picture(page, name):
  if PICTURES:
    page.screenshot(path=f"{PICTURES}/{name}.png")


def open_page(page, address):
  page.goto(address)
  page.wait_for_selector("#send:enabled")


def wait_for(page, expression):
  """The CSP of the page refuses `wait_for_function`, which evaluates text."""
  end = time.monotonic() + 30
  while not page.evaluate(expression):
    assert time.monotonic() < end, expression
    time.sleep(0.02)


def send(page, text, wait=True):
  page.fill("#message", text)
  page.press("#message", "Enter")
  if wait:
    wait_for(page, "turns.length && !running.size")


def answers(page):
  return page.eval_on_selector_all(
      ".card",
      "all => all.map(x => [x.querySelector('h2').textContent,"
      " [...x.querySelectorAll('.token:not(.end)')].map(y => y.textContent)"
      ".join('')])",
  )


def test_two_policies_at_three_seeds(page, address):
  """The page shows what the server answers, and log-probs of its tokens."""
  open_page(page, address)
  page.click("summary")
  page.fill("#count", "3")
  page.fill("#seed", "4")
  send(page, "12+34=")
  shown = answers(page)
  assert [x for x, _ in shown] == [
      f"{name}, seed {seed}" for name in (AFTER, BEFORE) for seed in (4, 5, 6)
  ]
  assert len({text for _, text in shown}) > 3
  listed = {}
  for name, text in shown:
    model, _, seed = name.partition(", seed ")
    body = dict(prompt="12+34=", model=model, seed=int(seed), logprobs=0)
    body |= dict(max_tokens=tiny.T)
    got = page.request.post(f"{address}/v1/completions", data=body).json()
    (choice,) = got["choices"]
    assert choice["text"] == text
    listed[name] = choice["logprobs"]
  page.uncheck(f"#policies input[value='{BEFORE}']")
  send(page, "12+34=")
  assert answers(page)[6:] == shown[:3]
  page.check(f"#policies input[value='{BEFORE}']")
  first = page.locator(".card .text").first
  first.locator(".token").nth(1).hover()
  logprobs = listed[f"{AFTER}, seed 4"]
  want = f'"{logprobs["tokens"][1]}"  log-prob'
  want += f" {logprobs['token_logprobs'][1]:.3f}"
  assert page.inner_text("#tip").startswith(want)
  picture(page, "hover")
  page.keyboard.press("Escape")
  assert page.is_hidden("#tip")
  first.focus()
  page.keyboard.press("ArrowRight")
  page.keyboard.press("ArrowRight")
  assert page.inner_text("#tip").startswith(want)
  assert page.text_content("#status").startswith(want)
  # The same question and seeds have the same answers.
  send(page, "12+34=")
  assert answers(page)[9:] == shown


@pytest.mark.parametrize("address", [KEY], indirect=True)
def test_the_key_is_asked_for_and_kept_in_memory(page, address):
  page.goto(address)
  page.wait_for_selector("#keyrow:visible")
  assert "RL_REASON_API_KEY" in page.inner_text("#trouble")
  page.fill("#key", "wrong")
  page.click("#connect")
  page.wait_for_timeout(200)
  assert page.is_disabled("#send")
  picture(page, "key")
  page.fill("#key", KEY)
  page.press("#key", "Enter")
  page.wait_for_selector("#send:enabled")
  assert page.is_hidden("#trouble")
  send(page, "1+1=")
  assert len(answers(page)) == 2
  kept = page.evaluate(
      "[localStorage.length, sessionStorage.length, document.cookie,"
      " location.href.includes('key')]"
  )
  assert kept == [0, 0, "", False]
  page.reload()
  page.wait_for_selector("#keyrow:visible")


def test_errors_are_sentences_with_the_remedy(page, address, engines):
  open_page(page, address)
  for text, words in (
      ("1" * 40, "Shorten the message, or begin a new conversation."),
      ("what?", "or choose a tokenizer that has a token for it."),
  ):
    page.click("#fresh")
    send(page, text)
    found = page.locator(".card .error").all_inner_texts()
    assert len(found) == 2
    for line in found:
      assert line[0].isupper() and line.endswith(words)
  # A full queue, and again when it has room.
  page.click("#fresh")
  for engine in engines:
    engine.max_waiting = 0
  try:
    send(page, "1+1=")
  finally:
    for engine in engines:
      engine.max_waiting = 8
  found = page.locator(".card .error").all_inner_texts()
  assert (
      found
      == ["The queue of this server is full (serve.queue): try again later."]
      * 2
  )
  picture(page, "error")
  for _ in found:
    page.locator(".again").first.click()
    wait_for(page, "!running.size")
  assert not page.locator(".card .error").count()
  assert all(text for _, text in answers(page))
  # More tokens than the server samples, and no server.
  page.click("summary")
  page.fill("#longest", "999")
  send(page, "1+1=", wait=False)
  assert re.search("from 1 to 24; change it", page.inner_text("#trouble"))
  page.fill("#longest", "4")
  page.route(TEXT, lambda route: route.abort())
  send(page, "1+1=")
  lines = page.locator(".card .error").all_inner_texts()
  assert (
      lines
      == [
          "The server cannot be reached. See whether it still runs at this"
          " address, and try again."
      ]
      * 2
  )


def streamed(tokens, *, error=None):
  """Events of a chat with these (text, token, log-prob)."""
  events = [
      dict(
          choices=[
              dict(
                  index=0,
                  delta=dict(content=text),
                  finish_reason=None,
                  logprobs=dict(content=[dict(token=token, logprob=logp)]),
              )
          ]
      )
      for text, token, logp in tokens
  ]
  lines = [json.dumps(x) for x in (*events, *([error] if error else []))]
  end = [] if error else ["[DONE]"]
  return "".join(f"data: {x}\n\n" for x in (*lines, *end))


def card(name, **more):
  return dict(id=name, max_response_len=64, chat_template=True, **more)


def test_hostile_text_stays_text(page, address):
  """Of a model in answers and tokens, and of names; also parts of a letter."""
  names = dict(data=[card(HOSTILE, description=HOSTILE)])
  page.route("**/v1/models", lambda route: route.fulfill(json=names))
  tokens = [
      (HOSTILE, HOSTILE, -0.5),
      ("", "\ufffd", -1.0),
      ("\U0001f600", "\U0001f600", -2.0),
      ("", "</s>", -0.25),
  ]
  page.route(
      CHAT,
      lambda route: route.fulfill(
          body=streamed(tokens), content_type="text/event-stream"
      ),
  )
  open_page(page, address)
  send(page, HOSTILE)
  assert answers(page) == [[f"{HOSTILE}, seed 1", f"{HOSTILE}\U0001f600"]]
  page.locator(".token").first.hover()
  assert "onerror" in page.inner_text("#tip")
  page.locator(".token").nth(1).hover()
  assert page.inner_text("#tip").count("log-prob") == 2
  assert page.inner_text(".token.end") == "</s>"
  assert not page.locator("img").count() and "Talk to" in page.title()
  assert page.evaluate("document.scripts.length") == 1
  picture(page, "hostile")


def test_a_chat_sends_its_turns_and_each_policy_its_own(page, address):
  names = dict(data=[card("a"), card("b")])
  page.route("**/v1/models", lambda route: route.fulfill(json=names))
  asked = []

  def answer(route):
    body = route.request.post_data_json
    asked.append(body)
    text = f"of {body['model']}"
    broken = dict(error=dict(message="not finished", code="timeout"))
    error = broken if body["messages"][-1]["content"] == "x" else None
    route.fulfill(
        body=streamed([(text, text, -0.1)], error=error),
        content_type="text/event-stream",
    )

  page.route(CHAT, answer)
  open_page(page, address)
  for text in ("one", "x", "two"):
    send(page, text)
  last = {x["model"]: x["messages"] for x in asked[-2:]}
  for name in "ab":
    assert [(x["role"], x["content"]) for x in last[name]] == [
        ("user", "one"),
        ("assistant", f"of {name}"),
        ("user", "two"),
    ]
  assert page.locator(".card .error").all_inner_texts() == ["Not finished."] * 2
  page.click("#fresh")
  send(page, "three")
  assert [len(x["messages"]) for x in asked[-2:]] == [1, 1]


def test_a_stream_is_shown_as_it_comes_and_stops(page, address, engines):
  """Tokens are there before the end; a stopped answer frees its slots."""
  open_page(page, address)
  page.click("summary")
  page.fill("#count", "3")
  free = threading.Event()
  reads = [engine._read for engine in engines]

  def slow(read):
    return lambda *x: (free.wait(0.4), read(*x))

  try:
    for engine, read in zip(engines, reads, strict=True):
      engine._read = slow(read)
    send(page, "5+6+7=", wait=False)
    wait_for(page, "!!document.querySelector('.card.busy .token')")
    assert page.is_disabled("#send")
    picture(page, "streaming")
    page.click("#stop")
    wait_for(page, "!running.size")
  finally:
    free.set()
    for engine, read in zip(engines, reads, strict=True):
      engine._read = read
  notes = page.locator(".note").all_inner_texts()
  assert any("stopped by you after" in x for x in notes)
  end = time.monotonic() + 30
  while any(x.running or x.waiting for x in engines):
    assert time.monotonic() < end
    time.sleep(0.05)


CONTRAST = """() => {
  const light = c => {
    const [r, g, b] = c.match(/[\\d.]+/g).map(Number).map(x => x / 255).map(
      x => x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const behind = node => {
    for (; node; node = node.parentElement) {
      const c = getComputedStyle(node).backgroundColor;
      if (!/, 0\\)$|transparent/.test(c)) return c;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some(x => x.nodeType === 3
      && x.data.trim());
    if (!own || node.disabled || !node.getClientRects().length
        || ["SCRIPT", "STYLE"].includes(node.tagName)) continue;
    const a = light(getComputedStyle(node).color), b = light(behind(node));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) found.push([node.className, node.textContent, ratio]);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1200])
def test_it_is_readable_in_both_schemes_and_on_a_telephone(
    page, address, scheme, width
):
  page.set_viewport_size(dict(width=width, height=780))
  page.emulate_media(color_scheme=scheme)
  open_page(page, address)
  page.click("summary")
  page.fill("#count", "2")
  page.check("#shade")
  send(page, "12+34=")
  send(page, "what?")
  page.locator("#more").evaluate("x => { x.open = true }")
  assert page.locator("#policies input").count() == 2
  assert all(x.is_visible() for x in page.locator("#policies input").all())
  assert page.evaluate(CONTRAST) == []
  wide = "document.documentElement.scrollWidth - innerWidth"
  assert page.evaluate(wide) <= 0
  tops = page.eval_on_selector_all(
      ".card", "all => all.map(x => x.getBoundingClientRect().left)"
  )
  assert len(set(tops)) == (1 if width < 400 else 2)
  # Every control has a name.
  unnamed = page.eval_on_selector_all(
      "input, textarea, button",
      "all => all.filter(x => !x.labels?.length && !x.textContent.trim())"
      ".length",
  )
  assert unnamed == 0
  picture(page, f"{scheme}-{width}")
