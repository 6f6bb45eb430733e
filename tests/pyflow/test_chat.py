"""Chat templates: what they say, what they may not do, and who can write control tokens."""

from collections.abc import Callable

import pytest

from pyflow.chat import ChatTemplate
from pyflow.chat.guardrail import GUARDRAIL, guarded
from pyflow.errors import FormatError, GenerationWarning, PyflowError, UnsupportedError
from pyflow.tokenizer import Tokenizer

Tokenizers = Callable[[str], Tokenizer]
Metadata = Callable[[str], dict[str, object]]

# Gemma's own, which the base model's file lacks: enough to put its vocabulary to the same tests.
GEMMA = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}"
    "{{ message.content | trim }}{{ '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)


@pytest.fixture(params=["smollm2", "gemma3", "qwen2.5-coder-1.5b"])
def chat(
    request: pytest.FixtureRequest, tokenizer_of: Tokenizers, metadata_of: Metadata
) -> tuple[ChatTemplate, Tokenizer]:
    name = request.param
    tokenizer = tokenizer_of(name)
    metadata = dict(metadata_of(name))
    metadata.setdefault("tokenizer.chat_template", GEMMA)
    return ChatTemplate.from_metadata(metadata, tokenizer, source=name), tokenizer


@pytest.fixture
def make(tokenizer_of: Tokenizers) -> Callable[[str], ChatTemplate]:
    return lambda text: ChatTemplate(
        text, tokenizer_of("smollm2"), source="m.gguf: tokenizer.chat_template"
    )


def turns(*contents: str) -> list[dict[str, object]]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]


HONEST = [
    "Hello",
    "  leading and trailing blanks \n\n",
    "\nnewline first",
    "a < b, <b>bold</b>, [x], <|, |>, <im_end>, im_end|>",
    "def f(x):\n    return x  # ünïcode 👩🏽‍🚀 你好",
    "",
    "▁ and \ue000 and \U0010f000",
]


@pytest.mark.model
@pytest.mark.parametrize("text", HONEST)
def test_ordinary_text_gives_the_tokens_of_the_whole_rendering(
    chat: tuple[ChatTemplate, Tokenizer], text: str
) -> None:
    template, tokenizer = chat
    messages = turns(text, "Answer: " + text, text)
    whole = tokenizer.encode(template.render(messages), add_special=False, parse_special=True)
    if tokenizer.add_bos:
        assert whole[0] == tokenizer.bos_id
        assert whole.count(whole[0]) == 1
    assert template.encode(messages) == whole


@pytest.mark.model
@pytest.mark.parametrize("wrap", ["{}", "x {} y", "{}{}", "<{}>", "{}\n", "<|im_{}"])
def test_control_tokens_in_a_message_are_text(
    chat: tuple[ChatTemplate, Tokenizer], wrap: str
) -> None:
    template, tokenizer = chat
    plain = template.encode(turns("hello"))
    for special in ("<|im_end|>", "<|im_start|>", "<end_of_turn>", "<bos>", "<|endoftext|>"):
        attack = wrap.replace("{}", special)
        ids = template.encode(turns(attack))
        assert [i for i in ids if tokenizer.is_control(i)] == [
            i for i in plain if tokenizer.is_control(i)
        ]
        assert attack.strip() in tokenizer.decode(ids)


@pytest.mark.model
def test_bos_is_added_once_whether_or_not_the_template_writes_it(
    tokenizer_of: Tokenizers,
) -> None:
    tokenizer = tokenizer_of("gemma3")
    for text in (GEMMA, GEMMA.replace("{{ bos_token }}", "")):
        ids = ChatTemplate(text, tokenizer, source="g").encode(turns("hi"))
        assert ids[0] == tokenizer.bos_id
        assert ids[1] != tokenizer.bos_id


@pytest.mark.model
def test_smollm2_adds_its_system_prompt(tokenizer_of: Tokenizers, metadata_of: Metadata) -> None:
    template = ChatTemplate.from_metadata(
        metadata_of("smollm2"), tokenizer_of("smollm2"), source="s"
    )
    assert template.render(turns("Hi")) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    system = [{"role": "system", "content": "Be brief."}, *turns("Hi", "Yo")]
    assert template.render(system, add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nYo<|im_end|>\n"
    )


@pytest.mark.model
def test_qwen_is_told_of_tools_in_plain_json(
    tokenizer_of: Tokenizers, metadata_of: Metadata
) -> None:
    name = "qwen2.5-coder-1.5b"
    template = ChatTemplate.from_metadata(metadata_of(name), tokenizer_of(name), source=name)
    tool = {"name": "f", "text": "é <|im_end|> <b> & '"}
    variables = {"tools": [tool]}
    text = template.render(turns("Hi"), variables=variables)
    assert '\n{"name": "f", "text": "é <|im_end|> <b> & \'"}\n</tools>' in text
    ids = template.encode(turns("Hi"), variables=variables)
    assert ids.count(tokenizer_of(name).eos_id) == 2  # system and user; not the one in the tool


@pytest.mark.model
@pytest.mark.parametrize("role", ["", "user<|im_end|>", "a b", "x" * 65, None, 3])
def test_a_role_is_a_plain_name(chat: tuple[ChatTemplate, Tokenizer], role: object) -> None:
    with pytest.raises(FormatError, match="message 0: role"):
        chat[0].encode([{"role": role, "content": "x"}])


def test_the_dialect_of_hugging_face_is_understood(make: Callable[[str], ChatTemplate]) -> None:
    template = make(
        "{% for m in messages %}\n"
        "  {% if loop.first %}\n"
        "first {{ loop.length }}\n"
        "  {% endif %}\n"
        "{% if m.content == 'skip' %}{% continue %}{% endif %}\n"
        "{% generation %}{{ m.content ~ '!' }}{% endgeneration %}\n"
        "{% endfor %}\n"
        "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{{ twice('ab') }}"
        "{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}"
        "{{ ns.n }}{{ undefined }}{{ [1, 'é<'] | tojson }}{{ strftime_now('%Y') | length }}"
    )
    assert template.render(turns("a", "skip", "c")) == 'first 3\na!c!abab3[1, "é<"]4'


def test_a_template_that_makes_nothing_is_to_blame_itself(
    make: Callable[[str], ChatTemplate],
) -> None:
    with pytest.raises(FormatError, match=r"m\.gguf"):
        make("{% if false %}x{% endif %}").encode(turns("hi"))


def test_messages_longer_than_any_context_are_refused_before_the_template(
    make: Callable[[str], ChatTemplate],
) -> None:
    with pytest.raises(PyflowError, match=r"1,100,\d+"):
        make("{{ messages }}").encode(turns("x" * 1_100_000))


def test_a_template_that_refuses_is_quoted(make: Callable[[str], ChatTemplate]) -> None:
    with pytest.raises(UnsupportedError, match=r"m\.gguf: .*roles must alternate"):
        make("{{ raise_exception('roles must alternate') }}").render([])


LOOP = "{% set n = namespace(x='x', y=[]) %}{% for i in range(50) %}"
HOSTILE = [
    "{% for x in %}",
    "{{ 1 / 0 }}",
    "{{ messages.nothing.at_all }}",
    "{{ 7() }}",
    "{% include 'x' %}",
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.append(1) }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ " + "(" * 5000 + " }}",
    "{{ " + "[" * 5000 + "]" * 5000 + " }}",
    "x" * 300_000,
    # Time
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) }}{% endmacro %}{{ f(99) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for a in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    # Memory
    "{{ 'x' * 9999999999 }}",
    "{{ [0] * 9999999999 }}",
    "{{ 9 ** 9 ** 9 }}",
    "{{ 'x' | center(9999999999) }}",
    "{{ 'x'.center(9999999999) }}",
    "{{ 'x'.ljust(9999999999) }}",
    "{{ '%9999999999d' % 1 }}",
    "{{ '{:9999999999}'.format(1) }}",
    "{{ '{:{}}'.format(1, 9999999999) }}",
    "{{ 'x' | indent(9999999999, true) }}",
    "{{ [[1]] | tojson(indent=9999999999) }}",
    "{{ [1] | batch(9999999999, 1) | list }}",
    "{{ range(9) | batch(9999999999, 1) | list }}",
    "{{ range(9) | slice(9999999999) | list }}",
    "{{ strftime_now('%9999999999d') }}",
    LOOP + "{% set n.x = n.x ~ n.x %}{% endfor %}",
    LOOP + "{% set n.x = n.x + n.x %}{% endfor %}",
    LOOP + "{% set n.x = n.x.replace('x', 'xxxxxxxxx') %}{% endfor %}",
    LOOP + "{% set n.x = n.x | replace('x', 'xxxxxxxxx') %}{% endfor %}",
    LOOP + "{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
    LOOP + "{% set n.y = [n.y, n.y] %}{% endfor %}{{ n.y }}",
    LOOP + "{% set n.y = {1: n.y, 2: n.y} %}{% endfor %}{{ n.y == n.y }}",
    LOOP + "{% set n.y = dict(a=n.y, b=n.y) %}{% endfor %}{{ n.y | tojson }}",
    "{% set s = 'x' * 9999999 %}{% for i in range(9999) %}{{ s }}{% endfor %}",
    "{% set s = 'x' * 9999999 %}{{ s.join(range(9999) | map('string') | list) }}",
    "{% set s = 'x' * 9999999 %}{{ range(9999) | join(s) }}",
    "{% macro f() %}{% for i in range(99999) %}" + "x" * 9999 + "{% endfor %}{% endmacro %}"
    "{% set y = f() %}",
    "{{ lipsum(n=100000000) }}",
    "{% autoescape true %}{{ 'a' * 2000000 }}{% endautoescape %}",
    "{{ 'hello world ' * 400000 }}",
    "{{ ('%(a)s' * 9999) % {'a': 'x' * 99999} }}",
    "{{ ('{0}' * 9999).format('x' * 99999) }}",
    "{{ ('x' * 99999).translate({120: 'y' * 99999}) }}",
    "{{ ('x' * 99999) | join('y' * 99999) }}",
    "{{ ('y' * 99999).join('x' * 99999) }}",
    "{{ range(9999) | join(d='y' * 99999) }}",
    "{{ ('x' * 99999) | replace(old='x', new='y' * 99999) }}",
    "{{ [[[1]] * 99] | tojson(indent=999999) }}",
    "{{ ('<' * 99999) | indent(width=99999) }}",
    "{% set a = 'x' * 2000000 %}{{ [a] * 9999 == [a ~ ''] * 9999 }}",
    "{% set s = 'x' * 2000000 %}{% set n = namespace() %}"
    + "".join(f"{{% set n.a{i} = s %}}" for i in range(999))
    + "{{ n }}{{ n ~ s ~ s }}",
    LOOP + "{% set n.x = 'x' * 2000000 %}{% set n.y = n.y + [n.x[1:]] %}{% endfor %}",
    "".join(f"{{% set a{i} = s[{i}:] %}}" for i in range(99)).join(
        ("{% set s = 'x' * 2000000 %}", "")
    ),
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_template_ends_in_one_clear_line(
    make: Callable[[str], ChatTemplate], text: str
) -> None:
    with pytest.raises(FormatError, match=r"^m\.gguf: tokenizer\.chat_template") as caught:
        make(text).render(turns("hi"))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


REFUSES = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
TURNS = "{% for m in messages %}{{ '<|im_start|>' + m.role + ':' + m.content }}{% endfor %}"
DROPS = TURNS.replace("messages %", "messages if m.role != 'system' %")


@pytest.mark.model
@pytest.mark.parametrize("text", [REFUSES + TURNS, DROPS])
def test_a_system_message_without_a_place_stands_before_the_first_question(
    make: Callable[[str], ChatTemplate], text: str
) -> None:
    template = make(text)
    system = {"role": "system", "content": "x <|im_end|>"}
    rest = turns("x", "Yo", "x")
    merged = [{"role": "user", "content": "x <|im_end|>\n\nx"}, *rest[1:]]
    with pytest.warns(GenerationWarning, match="system message"):
        found = template.encode([system, *rest])
    assert found == template.encode([system, *rest]) == template.encode(merged)  # told once
    told: list[str] = []
    assert template.encode([system, *rest], tell=told.append) == found
    assert len(told) == 1
    # Others are not touched.
    assert make(TURNS).encode([system, *rest]) != found


@pytest.mark.model
def test_a_template_that_refuses_more_than_the_system_message_says_why(
    make: Callable[[str], ChatTemplate],
) -> None:
    system = {"role": "system", "content": "x"}
    template = make(REFUSES + "{{ raise_exception('never') }}")
    for messages in (
        [system, *turns("Hi")],
        [system],
        [system, {"role": "user", "content": ["x"]}],
    ):
        with pytest.raises(UnsupportedError, match="no system role"):
            template.encode(messages)


@pytest.mark.model
@pytest.mark.filterwarnings("ignore::pyflow.errors.GenerationWarning")
def test_the_guardrail_stands_before_a_conversation(chat: tuple[ChatTemplate, Tokenizer]) -> None:
    template, _ = chat
    own = {"role": "system", "content": "Be brief."}
    for messages in (turns("Hello"), [own, *turns("Hello")]):
        assert template.guarded().encode(messages) == template.encode(guarded(messages))
    assert template.guarded().encode(turns("Hello")) != template.encode(turns("Hello"))


def test_a_system_message_follows_the_guardrail() -> None:
    question = turns("Hello")
    for content, joined in [
        ("Be brief.", f"{GUARDRAIL}\n\nBe brief."),
        ("", GUARDRAIL),
        ([{"type": "text", "text": "x"}], [{"type": "text", "text": t} for t in (GUARDRAIL, "x")]),
    ]:
        found = guarded([{"role": "system", "content": content, "name": "n"}, *question])
        assert found == [{"role": "system", "content": joined, "name": "n"}, *question]
    assert guarded(question) == [{"role": "system", "content": GUARDRAIL}, *question]
