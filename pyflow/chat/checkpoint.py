"""The chat template of a checkpoint: in its file, or in files beside it."""

from __future__ import annotations

import warnings
from pathlib import Path

import msgspec

from pyflow.chat.template import KEY, ChatTemplate
from pyflow.errors import FilesWarning, FormatError
from pyflow.formats import Checkpoint
from pyflow.formats.side_files import is_there, read_json, read_text
from pyflow.tokenizer import Tokenizer
from pyflow.tokenizer.base.settings import Settings, read_settings

_MAX_NBYTES = 1 << 20


class _Json(msgspec.Struct):
    chat_template: str


def from_checkpoint(
    checkpoint: Checkpoint, tokenizer: Tokenizer, *, template: tuple[str, str] | None = None
) -> ChatTemplate | None:
    """The model's chat template; None if it has none, as base models.

    template: (source, text) of one to use instead. FormatError: a file is broken.
    """
    if checkpoint.format == "GGUF":
        source = str(checkpoint.path)
        if template is not None:
            return ChatTemplate(template[1], tokenizer, source=template[0])
        if KEY not in checkpoint.metadata:
            return None
        return ChatTemplate.from_metadata(checkpoint.metadata, tokenizer, source=source)
    settings = read_settings(checkpoint.path.parent)
    found = text_of(checkpoint, template)
    if found is None:
        return None
    source, text = found
    names = {f"{role}_token": token for role, token in settings.named.items()}
    return ChatTemplate(text, tokenizer, source=source, names=names)


def text_of(
    checkpoint: Checkpoint, template: tuple[str, str] | None = None
) -> tuple[str, str] | None:
    """Where the template of a folder is, and its text. Parameters and errors as of
    `from_checkpoint`."""
    folder = checkpoint.path.parent
    return template or _find(folder, read_settings(folder))


def _find(folder: Path, settings: Settings) -> tuple[str, str] | None:
    """Of several places the first has the newest one."""
    given, source = settings.config.chat_template, f"{settings.source}: chat_template"
    newer: tuple[str, str] | None = None
    path = folder / "chat_template.jinja"
    if is_there(path):
        newer = str(path), read_text(path, max_nbytes=_MAX_NBYTES)
    elif is_there(path := folder / "chat_template.json"):
        newer = str(path), read_json(path, _Json, max_nbytes=_MAX_NBYTES).chat_template
    if newer is not None:
        if isinstance(given, str) and given.strip() != newer[1].strip():
            warnings.warn(
                f"{source}: left aside for {path.name}, which has another one",
                FilesWarning,
                stacklevel=2,
            )
        return newer
    if given is None or isinstance(given, str):
        return None if given is None else (source, given)
    for one in given:
        if one.name == "default":
            return source, one.template
    names = ", ".join(repr(one.name) for one in given[:8])
    raise FormatError(f"{source}: expected one that is called 'default', found {names or 'none'}")
