"""The options that make a prompt: what is asked, and by which template."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyflow.cli.options import inputs
from pyflow.cli.options.groups import flag, grouped, option
from pyflow.cli.options.rules import Rule
from pyflow.errors import PyflowError
from pyflow.formats.side_files import other_kind

if TYPE_CHECKING:
    from pyflow.chat import ChatTemplate
    from pyflow.generate.any_model import AnyModel
    from pyflow.tokenizer import Tokenizer

_OF_SHELLS = ("/dev/fd/", "/dev/stdin", "/proc/")
"""Where shells put what other commands write, as in <(COMMAND)."""
_ESCAPE = re.compile(r"\\(?:[\\'\"nrtabfv0]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U00[01][0-9A-Fa-f]{5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Templating:
    """The system message and the template of a command."""

    system: str | None
    path: str | None
    """A file with a template in place of the model's own."""
    variables: Mapping[str, object]
    """Of the template."""
    escape: bool
    """Whether backslashes are read in texts."""

    def template(self, model: AnyModel) -> ChatTemplate | None:
        """The template to use, with the variables; None without any.

        UsageError: the template does not use a variable.
        """
        found = model.chat_template if self.path is None else self._given(self.path, model)
        try:
            return found and found.using(self.variables)
        except PyflowError as error:
            raise click.UsageError(f"--template-var: {error}") from None

    def _given(self, path: str, model: AnyModel) -> ChatTemplate:
        from pyflow.chat import ChatTemplate

        with suppress(OSError, ValueError):  # reading says what is wrong
            kind = None if path.startswith(_OF_SHELLS) else other_kind(Path(path))
            if kind is not None:  # a pipe that nobody writes would wait
                raise click.UsageError(f"--chat-template: {path}: expected a file, found {kind}")
        text = inputs.read(path)
        if not text.strip():
            raise click.UsageError(f"--chat-template: {path}: expected a template, found no text")
        return ChatTemplate(text, model.tokenizer, source=path)

    @property
    def needs_template(self) -> bool:
        """Whether options would have no effect without one."""
        return self.system is not None or bool(self.variables)

    def stops(self, texts: Sequence[str]) -> list[str]:
        """The texts of --stop."""
        return [unescape(text) if self.escape else text for text in texts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What `generate` asks."""

    templating: Templating
    prompts: Sequence[inputs.Prompt]
    """None where there is a gap."""
    gap: tuple[str, str] | None
    """The texts before and after what the model is to write."""
    chat: bool | None
    """In the chat template; None: if the model has one."""
    prefill: str
    special: bool

    def encode(self, model: AnyModel) -> list[list[int]]:
        """The tokens of the prompts."""
        if self.gap is not None:
            from pyflow.chat.infill import infill

            return [infill(model.tokenizer, *self.gap, source=model.name)]
        texts = [prompt.text for prompt in self.prompts]
        template = None if self.chat is False else self.templating.template(model)
        needs_one = self.chat or self.prefill or self.templating.needs_template
        if template is None and self.chat is not False and needs_one:
            from pyflow.generate.session import chat_template

            template = chat_template(model)
        if template is None:
            return [raw_tokens(model.tokenizer, text, self.special) for text in texts]
        return as_asked(template, texts, self.templating.system, self.prefill)


def as_asked(
    template: ChatTemplate, texts: Sequence[str], system: str | None = None, prefill: str = ""
) -> list[list[int]]:
    """The tokens of questions, each alone."""
    first = [] if system is None else [{"role": "system", "content": system}]
    return [
        template.encode([*first, {"role": "user", "content": text}], prefill=prefill)
        for text in texts
    ]


def raw_tokens(tokenizer: Tokenizer, text: str, special: bool) -> list[int]:
    """The tokens of a text as it is; control tokens that it spells are read with `special` only.

    Prints a warning, once, where they are read as text.
    """
    if not special and (starts := tokenizer.control_starts(text)):
        click.echo(
            f"warning: the text spells {len(starts)} control tokens, the first at character "
            f"{starts[0]}: {text[starts[0] :][:16]!r}; they are read as text, --special reads them "
            "as tokens",
            err=True,
        )
    return tokenizer.encode(text, parse_special=special)


def text_of(given: str, name: str, escape: bool) -> str:
    """The text of an argument: @FILE is a file's, and @@ begins a text with @."""
    if given == "@":
        raise click.UsageError(
            f"{name}: expected the name of a file after @, found none; @@ is a text that begins"
            " with @"
        )
    if given.startswith("@") and not given.startswith("@@"):
        return inputs.read(given[1:]).removesuffix("\n")
    text = inputs.argument(given.removeprefix("@") if given.startswith("@@") else given, name)
    return unescape(text) if escape else text


def unescape(text: str) -> str:
    """Backslashes read as in C and JSON; those before other characters stay."""
    return _ESCAPE.sub(lambda found: codecs.decode(found[0], "unicode_escape"), text)


def _templating(
    system_prompt: str | None, chat_template: str | None, template_var: Sequence[str], escape: bool
) -> Templating:
    return Templating(
        system=None if system_prompt is None else text_of(system_prompt, "-sys", escape),
        path=chat_template,
        variables=inputs.once("--template-var", map(_variable, template_var)),
        escape=escape,
    )


def _variable(given: str) -> tuple[str, object]:
    name, equals, value = given.partition("=")
    if not equals or not name.isidentifier():
        raise click.UsageError(f"--template-var: expected NAME=VALUE, found {given!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, inputs.argument(value, "--template-var")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Where prompts come from, as given."""

    prompt: str | None
    file: str | None
    stdin: str | None
    jsonl: bool

    def prompts(self, escape: bool) -> list[inputs.Prompt]:
        if self.jsonl and self.file is not None:
            return inputs.json_lines(self.file)
        text = None if self.prompt is None else text_of(self.prompt, "-p", escape)
        return [inputs.Prompt(inputs.prompt(text, self.file, self.stdin))]


def _question(
    *,
    templating: Templating,
    source: _Source,
    gap: dict[str, str | None],
    chat: bool,
    raw: bool,
    prefill: str | None,
    special: bool,
) -> Question:
    ends = {
        name: text_of(given, f"--{name}", templating.escape)
        for name, given in gap.items()
        if given is not None
    }
    return Question(
        templating=templating,
        prompts=[] if ends else source.prompts(templating.escape),
        gap=(ends.get("prefix", ""), ends.get("suffix", "")) if ends else None,
        chat=chat if chat or raw else None,
        prefill="" if prefill is None else text_of(prefill, "--prefill", templating.escape),
        special=special,
    )


_ALONE = ["-p", "-f", "--jsonl", "--chat", "--raw", "-sys", "--prefill", "--special"]
special = flag("--special", 'Read control tokens such as "<|im_end|>" in the text.')
templating = grouped(
    "templating",
    _templating,
    option(
        "-sys --system-prompt",
        "Instructions for the model.",
        metavar="TEXT",
        short="Instructions for the model",
    ),
    option("--chat-template", "A Jinja template in place of the model's own.", metavar="FILE"),
    option(
        "--template-var",
        "A variable of the template, such as enable_thinking=false; VALUE is JSON or text.",
        metavar="NAME=VALUE",
        multiple=True,
    ),
    flag("-e --escape", r"Read \n, \t, \\ and the like in the texts of other options."),
    topic="prompt",
)
question = grouped(
    "question",
    _question,
    grouped(
        "source",
        _Source,
        option(
            "-p --prompt",
            "The text to continue; @FILE reads it, and @@ at its beginning is a plain @.",
            metavar="TEXT",
            short="The text to continue; @FILE reads it",
        ),
        option(
            "-f --file",
            "A file with the text.",
            metavar="FILE",
            short="A file with the text",
        ),
        inputs.stdin,
        flag(
            "--jsonl",
            'FILE has a prompt per line, as JSON text or {"prompt": TEXT, "id": ID}; all run in '
            "one batch, and each gives a line of JSON, with its id if it has one.",
        ),
    ),
    grouped(
        "gap",
        dict,
        option("--prefix", "Fill in the middle: the text before the gap.", metavar="TEXT"),
        option("--suffix", "Fill in the middle: the text after the gap.", metavar="TEXT"),
    ),
    flag(
        "--chat",
        "Ask it as a question with the model's chat template.  [default: if the model has one]",
    ),
    flag("--raw", "Continue the text as it is.", "Continue it as it is, without a template"),
    option(
        "--prefill", "How the answer begins; what is printed goes on from there.", metavar="TEXT"
    ),
    special,
    templating,
    rules=[
        Rule("--jsonl", needs=["-f"]),
        Rule("--jsonl", forbids=["-p"]),
        Rule("--prefix", forbids=_ALONE),
        Rule("--suffix", forbids=_ALONE),
        Rule("--chat", forbids=["--raw"]),
        Rule("--special", needs=["--raw"]),
        Rule("--raw", forbids=["-sys", "--prefill", "--chat-template", "--template-var"]),
    ],
    topic="prompt",
)
