"""Prompt templates: what is asked for, chats, and tokens nobody may write."""

import copy
import datetime
import functools
import inspect
import sys

import pytest
import tiny_data

from rl_reason.base import functions
from rl_reason.data import templates, tokenizer
from rl_reason.features.environments import observations

CHATML = (
    "{% for m in messages %}<|s|>{{ m['role'] }}\n{{ m['content'] }}<|e|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|s|>assistant\n{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('no system role') }}{% endif %}"
)
TAGS = ["<think>", "</think>", "<answer>", "</answer>", "User: "]
LINE, BLOCK = "2+2=4\nAnswer: 4", "```python\n2+2=4\n```"
TAGGED = "<think>2+2=4</think>\n<answer>4</answer>"
BOXED = ["\\boxed{}", "step by step"], "2+2=4\n\\boxed{4}"
# Kind, style -> words of the prompt, and a demonstration.
FORMATS = {
    ("math", "plain"): ([], LINE),
    ("math", "dapo"): (["Answer: $Answer", "math", "step"], LINE),
    ("math", "r1_zero"): (TAGS, TAGGED),
    ("math", "qwen_boxed"): BOXED,
    ("code", "code"): (["```python", "Python"], BLOCK),
    ("code", "plain"): ([], BLOCK),
    ("code", "r1_zero"): (
        [*TAGS, "```python"],
        f"<think>\n</think>\n<answer>\n{BLOCK}\n</answer>",
    ),
    ("choice", "choice"): (["Answer: X", "yes or no"], LINE),
    ("choice", "plain"): ([], LINE),
    ("choice", "r1_zero"): (TAGS, TAGGED),
    ("choice", "qwen_boxed"): BOXED,
    ("none", "plain"): ([], LINE),
    ("none", "r1_zero"): (TAGS, TAGGED),
    ("none", "qwen_boxed"): BOXED,
}
FORMATS |= {  # of lists in their order, as of math
    ("ordered", style): FORMATS["math", style]
    for style in ("plain", "dapo", "r1_zero", "qwen_boxed")
}
FORMATS |= {  # of sets without a published prompt
    (kind, "published"): FORMATS[kind, style]
    for kind, style in (
        *(("math", "plain"), ("code", "code")),
        *(("choice", "choice"), ("none", "plain"), ("ordered", "plain")),
    )
}


def render(question, tok, style="plain", kind="math", chat=False, system=""):
  template = templates.choose(style, kind)
  turns = templates.messages(question, template, system)
  return templates.render(turns, tok, chat=chat)


@pytest.fixture
def tok():
  """Bytes, two special tokens, and two that are merely added."""
  tok = tiny_data.byte_tokenizer()
  tok.add_tokens(["<think>", "   "])
  tok.chat_template = CHATML
  return tok


@pytest.mark.parametrize(
    ("kind", "style"),
    [(kind, x) for kind, known in templates.TEMPLATES.items() for x in known],
)
def test_templates_say_their_format(kind, style, tok):
  words, demonstration = FORMATS[kind, style]
  question = r"What is {x} + \frac{1}{2} if {question} = {0}?"
  text = render(question, tok, style, kind)
  assert text.count(question) == 1
  assert all(word in text for word in words)
  assert words or text == question
  assert ("math" in text) == (style == "dapo")
  assert "{question}" not in text.replace(question, "")
  template = templates.choose(style, kind)
  assert templates.complete("2+2=4", "4", template) == demonstration
  odd = templates.complete("{answer} {solution}", "4", template)
  assert "{answer} {solution}" in odd, "the words of a set are kept"
  if style == "r1_zero":
    assert text.endswith("?\nAssistant:") or kind == "code"
    assert text.endswith("\nAssistant:")


OWN = """
def ask(question):
  return f"Q: {question}"

def turns(question):
  return [dict(role="system", content="Two words."),
          dict(role="user", content=question)]

def broken(question):
  return {}["no"]

number = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
  """A module with templates of the user."""
  (tmp_path / "own_prompts.py").write_text(OWN)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("plain", "code", ("code", "plain")),
        ("dapo", "code", ("code", "code")),  # code is no math problem
        ("dapo", "choice", ("choice", "choice")),
        ("qwen_boxed", "choice", ("choice", "qwen_boxed")),
        ("code", "math", ("math", "plain")),
        ("math=qwen_boxed, code=plain", "math", ("math", "qwen_boxed")),
        ("math=qwen_boxed,code=plain", "code", ("code", "plain")),
        ("math=qwen_boxed,code=plain", "choice", ("choice", "choice")),
        ("math=dapo,plain", "choice", ("choice", "plain")),
        ("dapo", "my:check", ("math", "dapo")),  # a kind of the user takes all
        ("my:check=choice,dapo", "my:check", ("choice", "choice")),
        ("math=dapo", "my:check", ("none", "plain")),
        ("dapo", "none", ("none", "plain")),
        ("dapo,none=r1_zero", "none", ("none", "r1_zero")),
    ],
)
def test_a_template_by_kind(text, kind, expected):
  style = templates.TEMPLATES[expected[0]][expected[1]]
  assert templates.choose(text, kind) == style


def test_a_template_of_the_user(own, tok):
  assert render("1+1?", tok, "math=own_prompts:ask") == "Q: 1+1?"
  assert render("1+1?", tok, "math=own_prompts:ask", "code") != "Q: 1+1?"
  text = render("1+1?", tok, "own_prompts:turns", chat=True, system="Unused.")
  assert text.startswith("<|s|>system\nTwo words.<|e|>\n<|s|>user\n1+1?<|e|>")
  template = templates.choose("own_prompts:turns", "math")
  instruction = dict(role="system", content="Be terse.")
  before = [
      dict(role="user", content="0?"),
      dict(role="assistant", content="0"),
  ]
  for earlier, system in (
      (before, "Two words."),
      ([instruction, *before], "Be terse."),
      ([instruction | dict(role="developer"), *before], "Be terse."),
  ):
    turns = templates.messages("1+1?", template, "Unused.", earlier)
    assert [x["role"] for x in turns[1:]] == ["user", "assistant", "user"]
    assert turns[0]["content"] == system
  template = templates.choose("own_prompts:ask", "code")
  assert templates.complete("2+2=4", "", template) == BLOCK
  (file,) = functions.files(["own_prompts:ask", "plain"])
  assert file.name == "own_prompts.py"
  with pytest.raises(templates.PromptError, match="data.template.*KeyError"):
    render("1+1?", tok, "own_prompts:broken")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "mine",
            "must be one of plain, .* or pairs such as math=dapo,code",
        ),
        (
            "math=code",
            "must be one of plain, dapo, r1_zero, qwen_boxed, published",
        ),
        ("maht=plain", "'maht' is none of the kinds math, code, choice, none"),
        ("math=dapo,math=plain", "is not of the form"),
        ("math=", "is not of the form"),
        ("=dapo", "is not of the form"),
        ("", "is not of the form"),
        ("own_prompts:number", "own_prompts:number is not a function"),
        ("own_prompts:no", "own_prompts has no no; it has ask"),
    ],
)
def test_a_template_that_is_none(own, text, error):
  with pytest.raises(ValueError, match=error):
    templates.choose(text, "math")


def test_paraphrases_are_different_and_the_first_is_none():
  assert templates.paraphrase("1+1?", 0) == "1+1?"
  asked = {templates.paraphrase("1+1?", n) for n in range(12)}
  assert len(asked) == len(templates.PARAPHRASES) == 5
  assert all("1+1?" in text for text in asked)


def test_chat(tok):
  """By hand, and as transformers tokenises it: no token more or less."""
  text = render("1+1?", tok, chat=True, system="Be short.")
  assert text == (
      "<|s|>system\nBe short.<|e|>\n<|s|>user\n1+1?<|e|>\n<|s|>assistant\n"
  )
  turns = [dict(role="user", content="1+1?")]
  expected = tok.apply_chat_template(turns, add_generation_prompt=True)
  [ids] = tokenizer.encode(tok, [render("1+1?", tok, chat=True)])
  assert ids == list(expected["input_ids"])
  assert ids.count(tok.bos_token_id) == 2  # two turns


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, "no chat template: set data.chat = False"),
        ("{{ 1 / 0 }}", "refuses this.*data.chat = F"),
        ("{% if %}", "refuses this.*data.chat = F"),
        ("{{ x.y.z }}", "refuses this.*data.chat = F"),
        (NO_SYSTEM, "no system role.*data.system"),
    ],
)
def test_a_chat_template_that_cannot_be_used(tok, template, words):
  tok.chat_template = template
  assert render("1+1?", tok) == "1+1?"
  with pytest.raises(templates.PromptError, match=words):
    render("1+1?", tok, chat=True, system="Be short.")


THINKS = CHATML + "{% if think is defined and think %}<think>{% endif %}"


def test_keywords_of_a_chat_template_have_types():
  text = "a=False,b=false, c=high,n=3,xs=[1,2],s='x,y', e=null"
  assert templates.arguments(text) == dict(
      a=False, b=False, c="high", n=3, xs=[1, 2], s="x,y", e=None
  )
  assert templates.arguments(" ") == {}
  for text in ("x", "1", "a=1,a=2", "a=2-1", "a=1)+call(b=2", "**{}", "a='"):
    with pytest.raises(ValueError, match="must look like enable_thinking=F"):
      templates.arguments(text)
  with pytest.raises(ValueError, match="tokenize is an argument of apply"):
    templates.arguments("tokenize=True")


def test_every_argument_of_apply_chat_template_is_reserved(tok):
  names = set(inspect.signature(tok.apply_chat_template).parameters)
  assert names - {"kwargs"} <= templates.RESERVED


def test_a_tokenizer_passes_keywords_to_its_chat_template(tok, tmp_path):
  tok.chat_template = THINKS
  tok.save_pretrained(tmp_path)
  loaded = tokenizer.load(str(tmp_path), "", None, dict(think=True))
  turns = [dict(role="user", content="1+1?")]
  text = templates.render(turns, tok, chat=True)
  thinking = text + "<think>"
  assert templates.render(turns, loaded, chat=True) == thinking
  other = templates.render(turns, loaded, chat=True, args=dict(think=False))
  assert other == text
  # As the prompt of an environment, and tokenised by transformers.
  assert observations.prompt_text(loaded, turns, []) == thinking
  loaded.save_pretrained(tmp_path / "again")
  again = tokenizer.load(str(tmp_path / "again"), "")
  assert templates.render(turns, again, chat=True) == text


def test_keywords_that_a_chat_template_does_not_read(tok):
  tok.chat_template = THINKS + "{# effort #} level "
  assert templates.unread(tok, ["think", "effort", "level"]) == [
      "effort",
      "level",
  ]
  tok.chat_template = "{% if"
  assert templates.unread(tok, ["think"]) == ["think"]
  tok.chat_template = None
  assert templates.unread(tok, ["think"]) == []


@pytest.mark.parametrize(
    ("template", "dated"),
    [
        ("{{ strftime_now('%Y') }}", True),
        ("{% set d = d or strftime_now('%d %b %Y') %}{{ d }}", True),
        ("{{ date_string or strftime_now('%Y-%m-%d') }}", True),
        ("{% if tools %}{{ strftime_now('%Y') }}{% endif %}", False),
        ("{{ messages[-1].content }}", False),
        (None, False),
    ],
)
def test_a_template_with_the_date_of_today(tok, template, dated):
  tok = copy.copy(tok)
  tok.chat_template = template
  assert templates.is_dated(tok, {}) == dated
  assert not templates.is_dated(tok, dict(date_string="26 Jul 2024"))
  tok.chat_template = f"Written in {datetime.date.today().year}."
  assert not templates.is_dated(tok, {})


def test_reserved_tokens(tok):
  """Special ones, and added ones but for blanks."""
  ids = {x: tok.convert_tokens_to_ids(x) for x in ("<|s|>", "<|e|>", "<think>")}
  assert templates.reserved(tok) == set(ids.values())
  assert templates.reserved(tok, special=True) == {ids["<|s|>"], ids["<|e|>"]}
  [hostile, harmless] = tokenizer.encode(tok, ["1<|e|>1", "1 < | e |   > 1"])
  assert templates.reserved(tok) & set(hostile) == {ids["<|e|>"]}
  assert not templates.reserved(tok) & set(harmless)


def test_an_unknown_character_is_not_reserved(tok):
  tok.unk_token = "<think>"
  assert tok.unk_token_id not in templates.reserved(tok)


def chat(*turns):
  return [dict(role=role, content=content) for role, content in turns]


_TURN = "<{{ m.role }}>{{ m.content | trim }}\n"
SOME = f"""{{% for m in messages %}}
{{%- if m.role in ("user", "assistant") or (m.role == "system") %}}
{_TURN}{{% endif %}}{{% endfor %}}<assistant>"""
STRICT = f"""{{% for m in messages %}}
{{%- if m.role == "system" and loop.index0 %}}
{{{{ raise_exception("the system message is the first") }}}}{{% endif %}}
{{% if m.role not in ("user", "assistant", "system") %}}
{{{{ raise_exception("unexpected role") }}}}{{% endif %}}
{_TURN}{{% endfor %}}"""
LAST_SYSTEM = f"""{{% set ns = namespace(first="") %}}
{{%- for m in messages if m.role == "system" %}}
{{%- set ns.first = m.content %}}{{% endfor %}}{{{{ ns.first }}}}
{{%- for m in messages if m.role != "system" %}}{_TURN}{{% endfor %}}"""
PARTS = """{% for m in messages %}<{{ m.role }}>{% for x in m.content %}
{{- x.text if x.type == "text" }}{% endfor %}{% endfor %}"""
ANY = f"{{% for m in messages %}}{_TURN}{{% endfor %}}"
JSON = """{% for m in messages %}{% if m.content[-1:] not in "0123456789" %}
{{ raise_exception("no number") }}{% endif %}{{ m.content }}{% endfor %}"""


CALLS = """{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}
{{- c.function.name }}{{ c.function.arguments | items | list }}{% endfor %}
{%- endfor %}"""
TEXT_CALLS = CALLS.replace("arguments | items | list", "arguments.strip()")
FLAT_CALLS = CALLS.replace("c.function.", "c.")


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        (CALLS, "1+1?double[('x', '\u00e9')]2"),
        (TEXT_CALLS, '1+1?double{"x": "\u00e9"}2'),
        (SOME, ""),
        (ANY, ""),
        (f"{{% for m in messages if m.content %}}{_TURN}{{% endfor %}}", ""),
    ],
)
@pytest.mark.parametrize("said", ["", "Let me see. "])
@pytest.mark.parametrize(
    "arguments", [dict(x="\u00e9"), '{"x": "\u00e9"}'], ids=["object", "json"]
)
def test_a_call_of_a_tool_is_shown(tok, template, shown, said, arguments):
  tok = copy.copy(tok)
  tok.chat_template = template
  render = functools.partial(templates.render, tok=tok, chat=True)
  first, last = chat(("user", "1+1?"), ("user", "2"))
  function = dict(name="double", arguments=arguments)
  calls = [dict(type="function", function=function)]
  turn = dict(role="assistant", content=said, tool_calls=calls)
  if shown:
    text = templates.render_all([first, turn, last], render).text
    assert text == shown.replace("?", "?" + said)
  else:
    with pytest.raises(templates.PromptError, match="1 of 3 .* calls tools"):
      templates.render_all([first, turn, last], render)
  tok.chat_template = FLAT_CALLS
  turn["tool_calls"] = [function]
  assert "double[('x', '\u00e9')]" in templates.render_all([turn], render).text
  for unknown in (["double"], "double", dict(double=1)):
    turn["tool_calls"] = unknown
    with pytest.raises(templates.PromptError):
      templates.render_all([turn], render)


@pytest.mark.parametrize(
    ("template", "turns", "words", "renamed"),
    [
        # The default system text of some templates holds a client's text.
        (f"You are here. {SOME}", [("developer", "You are here.")], "", 1),
        (SOME, [("developer", " be brief "), ("user", "1")], "<system>be", 1),
        (SOME, [("critic", "no"), ("user", "no")], "role 'critic'", -1),
        (SOME, [("user", "1"), ("function", "2")], "role 'function'", -1),
        (SOME, [("System", "be brief"), ("user", "1")], "role 'System'", -1),
        (SOME, [("critic", " "), ("user", "1")], "", 0),  # nothing is lost
        (STRICT, [("developer", "be brief"), ("user", "1")], "<system>be", 1),
        (STRICT, [("user", "1"), ("developer", "2")], "unexpected role", -1),
        (ANY, [("developer", "be brief"), ("user", "1")], "<developer>be", 0),
        (
            LAST_SYSTEM,
            [("system", "be brief"), ("system", "be kind"), ("user", "1")],
            "leaves out 1 of 3 messages, the first with the role 'system'",
            -1,
        ),
        (PARTS, [("user", "1+1?")], "leaves out 1 of 1 messages", -1),
        (JSON, [("user", "1"), ("tool", "25")], "125", 0),
    ],
)
def test_a_template_leaves_out_no_message(tok, template, turns, words, renamed):
  """A role becomes `system`, or the turns are refused."""
  tok = copy.copy(tok)
  tok.chat_template = template
  render = functools.partial(templates.render, tok=tok, chat=True)
  if renamed < 0:
    with pytest.raises(templates.PromptError, match=words):
      templates.render_all(chat(*turns), render)
    return
  shown = templates.render_all(chat(*turns), render)
  assert words in shown.text and shown.renamed == renamed
  if not renamed:
    assert shown.text == render(chat(*turns))
