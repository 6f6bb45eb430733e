"""Help of commands with many options: the main ones on one screen, the others by topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from pyflow.cli.group import Group

ALL = "all"
_MAIN = ""
_CHOSEN = "pyflow.help"
_OTHERS = "output"
"""The topic of options that no group has."""
_ORDER = ("model", "prompt", "tests", "sampling", "speculation", "pipeline", "server", _OTHERS)
_METAVARS = {"text": "TEXT", "choice": "NAME", "float": "X", "float range": "X"}


class TopicOption(click.Option):
    """An option that a screen of help may show.

    topic: the topic that lists it. short: its text on the first screen, at most 48 characters;
    without one it is on no first screen.
    """

    def __init__(self, *args: Any, topic: str = "", short: str = "", **how: Any) -> None:
        super().__init__(*args, **how)
        self.topic, self.short = topic, short


class _Topical(click.Command):
    """--help shows one screen, --help TOPIC the options of a topic, --help all every one."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        def show(ctx: click.Context, _param: click.Parameter, topic: str | None) -> None:
            if topic is None or ctx.resilient_parsing:
                return
            topics = [*self._by_topic(), ALL]
            if topic not in (_MAIN, *topics):
                raise click.BadParameter(f"expected {', '.join(topics)}, found {topic!r}", ctx)
            ctx.meta[_CHOSEN] = topic
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

        return click.Option(
            self.get_help_option_names(ctx),
            is_flag=False,
            flag_value=_MAIN,
            metavar="[TOPIC]",
            is_eager=True,
            expose_value=False,
            callback=show,
            help="Show the main options, those of a topic, or all.",
        )

    def _by_topic(self) -> dict[str, list[click.Option]]:
        topics: dict[str, list[click.Option]] = {}
        for param in self.params:
            if isinstance(param, click.Option) and not param.hidden:
                topics.setdefault(getattr(param, "topic", "") or _OTHERS, []).append(param)
        return {topic: topics[topic] for topic in sorted(topics, key=_ORDER.index)}

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if ctx.meta.get(_CHOSEN, ALL) == ALL:
            super().format_help_text(ctx, formatter)
            return
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text((self.help or "").partition("\n\n")[0].replace("\n", " "))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        chosen, topics = ctx.meta.get(_CHOSEN, ALL), self._by_topic()
        if chosen == _MAIN:
            shown = [one for params in topics.values() for one in params if _short(one)]
            rows = [(_flags(one), _short(one)) for one in shown]
            rows.append(("-h, --help TOPIC", f"More: {', '.join([*topics, ALL])}"))
            with formatter.section("Options"):
                formatter.write_dl(rows)
        for topic, params in topics.items():
            if chosen in (topic, ALL):
                records = [one.get_help_record(ctx) for one in params]
                with formatter.section(f"Options, {topic}"):
                    formatter.write_dl([record for record in records if record is not None])
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)


class TopicCommand(_Topical):
    pass


class TopicGroup(_Topical, Group):
    pass


def name_topic(params: Sequence[click.Parameter], topic: str) -> None:
    """Gives options their topic, where they have none."""
    for param in params:
        if isinstance(param, TopicOption):
            param.topic = param.topic or topic


def _short(param: click.Option) -> str:
    return param.short if isinstance(param, TopicOption) else ""


def _flags(param: click.Option) -> str:
    """The first two spellings of an option, and what follows it."""
    flags = ", ".join(param.opts[:2])
    if param.is_flag:
        return flags
    return f"{flags} {param.metavar or _METAVARS.get(param.type.name, 'N')}"
