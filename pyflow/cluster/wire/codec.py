"""Messages as bytes and back: nothing is executed, and no size is used before it is checked.

    offset  bytes
    0       4      magic, "PFWM"
    4       2      version of this format
    6       2      columns of the rows behind the message, 0 if there are none
    8       4      their number
    12      4      n, the bytes of the message
    16      4      crc32 of the 16 bytes before and of all bytes after
    20      n      the message as MessagePack, as messages.py orders and bounds its fields
    20 + n  0 to 3 zeros, up to a multiple of 4
            ...    rows of f32: Frame.hidden or Ping.rows, which are None in the message

All little-endian. A message has one encoding, and no other bytes decode to it: what decodes is
encoded again and compared. The checksum finds damage, not forgery: a peer can send anything that
is within bounds.

Structs are arrays of their fields; the class name comes first if one of several may stand there.
Only Begin.sampling is a map, from names to values.
"""

from __future__ import annotations

import re
import reprlib
import struct
import zlib
from itertools import pairwise
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from pyflow.cluster.wire.messages import (
    MAX_TOKENS,
    Begin,
    Drafted,
    DraftRequest,
    Frame,
    Message,
    Questions,
    Read,
    Result,
    Run,
    Setup,
)
from pyflow.cluster.wire.parts import I32_MAX
from pyflow.cluster.wire.surveys import Ping
from pyflow.errors import PyflowError

VERSION = 17  # of the bytes: change it with any field of a message
MAX_EMBD = 65_535

_MAGIC = b"PFWM"
_HEADER = struct.Struct("<4sHHII")
_CRC = struct.Struct("<I")
_START = _HEADER.size + _CRC.size
_ROWS: dict[type, str] = {Frame: "hidden", Ping: "rows"}


class WireError(PyflowError, ValueError):
    """Bytes that are no message, or a message that must not be sent."""


def encode(message: Message) -> bytearray:
    """The bytes of a message, to be sent as they are; a copy of its hidden states is in them.

    A WireError names the field that is out of bounds, what was expected, and what was found.
    """
    name = _ROWS.get(type(message))
    rows: NDArray[Any] | None = getattr(message, name) if name else None
    n_rows = n_columns = 0
    if name and rows is not None:
        if rows.dtype != np.float32 or rows.ndim != 2:
            where, found = f"{type(message).__name__}.{name}", f"{rows.ndim} of {rows.dtype}"
            raise WireError(f"{where}: expected 2 dimensions of float32, found {found}")
        n_rows, n_columns = rows.shape
        message = replace(message, **{name: None})
    # Decoding validates, and makes plain numbers of NumPy's and floats of integers.
    known = _unpacked(_packed(message))
    _check(known, n_rows, n_columns)
    packed = _packed(known)
    out = bytearray(_START) + packed + bytes(-len(packed) % 4)
    if rows is not None:
        out += np.ascontiguousarray(rows, "<f4").data.cast("B")
    _HEADER.pack_into(out, 0, _MAGIC, VERSION, n_columns, n_rows, len(packed))
    _CRC.pack_into(out, _HEADER.size, _crc(memoryview(out)))
    return out


def decode(data: bytes | bytearray | memoryview) -> Message:
    """The message that data is. Its hidden states are a read-only view of data, not a copy.

    A WireError says what makes data no message.
    """
    view = memoryview(data).toreadonly().cast("B")
    if len(view) < _START:
        raise WireError(f"header: expected {_START} bytes, found {len(view)}")
    magic, version, n_columns, n_rows, nbytes = _HEADER.unpack_from(view)
    if magic != _MAGIC:
        raise WireError(f"magic: expected {_MAGIC!r}, found {magic!r}: the sender is not pyflow")
    if version != VERSION:
        advice = "run the same pyflow on all ranks"
        raise WireError(f"version: expected {VERSION}, found {version}: {advice}")
    end = _START + nbytes
    first = end + -end % 4
    _within("bytes after the header", len(view), first + 4 * n_rows * n_columns)
    crc, expected = _crc(view), _CRC.unpack_from(view, _HEADER.size)[0]
    if crc != expected:
        raise WireError(f"crc32: expected {expected:#010x}, found {crc:#010x}: damaged in transit")
    packed = view[_START:end]
    message = _unpacked(packed)
    _check(message, n_rows, n_columns)
    if _packed(message) != packed or any(view[end:first]):
        kind = type(message).__name__
        raise WireError(f"{kind}: expected its only encoding, found another one")
    if n_rows:
        rows = np.frombuffer(view[first:], "<f4").reshape(n_rows, n_columns)
        message = replace(message, **{_ROWS[type(message)]: rows})
    return message


def _plain(value: Any) -> int | float:
    if isinstance(value, np.integer | np.floating):
        return value.item()
    raise TypeError(f"a value of type {type(value).__name__}")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def _packed(message: Message) -> bytes:
    try:
        return _ENCODER.encode(message)
    except (TypeError, ValueError, OverflowError) as e:
        raise WireError(f"{type(message).__name__}: cannot be encoded: {e}") from None


def _unpacked(packed: bytes | memoryview) -> Message:
    try:
        return _DECODER.decode(packed)
    except msgspec.ValidationError as e:
        raise _refusal(str(e), packed) from None
    except (ValueError, RecursionError) as e:
        raise WireError(f"message: expected MessagePack ({e})") from None
    except PyflowError as e:
        raise WireError(f"Begin.sampling.{e}") from None


def _refusal(why: str, packed: bytes | memoryview) -> WireError:
    """msgspec's "Expected `int` >= 0 - at `$[4][4][2]`", with names of fields and the value."""
    expected, _, place = why.partition(" - at ")
    expected, _, got = expected.replace("`", "").partition(", got ")
    expected = expected[:1].lower() + expected[1:]
    path = place.partition("$")[2].rstrip("`")
    try:
        # Raw proves that the items which arrays claim are there, before any memory is taken.
        msgspec.msgpack.decode(packed, type=msgspec.Raw)
        message = msgspec.msgpack.decode(packed)
        where, found = _look_up(message, path, "length" in expected)
    except (ValueError, LookupError, TypeError, RecursionError):
        return WireError(f"message{path}: {expected}")
    found = int(got) if got.isdigit() else found  # msgspec may count fields without the class name
    kind = message[0] if isinstance(message, list) and message else None
    name = kind[:40] if isinstance(kind, str) else "message"
    where += " (a key)" * place.startswith("`key`")
    return WireError(f"{name}{where}: {expected}, found {reprlib.repr(found)}")


def _look_up(value: Any, path: str, of_length: bool) -> tuple[str, Any]:
    """Names the fields on a path of msgspec, and finds the value there, or its length."""
    hint: Any = Message
    where = ""
    for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        fields = _fields(hint, value)
        if key:
            step, hint, value = f".{key}", Any, value[key]
        elif fields:
            name, hint = fields[int(index)]
            step, value = f".{name}", value[int(index)]
        else:
            step, hint, value = f"[{index}]", next(iter(get_args(hint)), Any), value[int(index)]
        where += step
    if not of_length:
        return where, value
    fields, n = _fields(hint, value), len(value)
    return where + (f".{fields[n][0]}" if n < len(fields) else ""), n


def _fields(hint: Any, value: Any) -> list[tuple[str, Any]]:
    """Names and types of the items that a struct of this type has, none if it is no struct."""
    union = () if get_origin(hint) is tuple else get_args(hint)
    kinds = [kind for kind in union or (hint,) if hasattr(kind, "__struct_config__")]
    tags = [kind.__struct_config__.tag for kind in kinds]
    if not any(tags):
        return [item for kind in kinds for item in get_type_hints(kind).items()]
    fields: list[tuple[str, Any]] = [("type", Any)]
    for kind, tag in zip(kinds, tags, strict=True):
        if value[:1] == [tag]:
            fields += get_type_hints(kind).items()
    return fields


def _within(where: str, found: int, low: int, high: int | None = None) -> None:
    high = low if high is None else high
    if not low <= found <= high:
        expected = f"{low} to {high}" if low < high else f"{low}"
        raise WireError(f"{where}: expected {expected}, found {found}")


def _check(message: Message, n_rows: int, n_columns: int) -> None:
    """Refuses fields that contradict each other, or the rows behind the message."""
    kind = type(message).__name__
    expected = 0
    match message:
        case Frame(run=run):
            if run is not None:
                _check_run(run)
            read = [len(op.tokens) for op in message.ops if isinstance(op, Read)]
            _within("sources of a Frame, which comes without a run", len(read), 0, run is None)
            expected = sum(read) + (0 if run is None else run.n_rows)
            if not (n_rows or n_columns):
                expected = 0
            _within("rows of Frame.hidden, as many as of its run or source", n_rows, expected)
        case Result(draws=draws, guesses=guesses):
            _within("length of Result.probabilities", len(message.probabilities), len(guesses))
            if guesses and not draws:
                raise WireError("Result.guesses: expected none without draws")
        case DraftRequest(guessed=guessed) if guessed is not None:
            n = max(1, len(guessed.tokens))
            _within("length of Guessed.tokens", len(guessed.tokens), n)
            _within("length of Guessed.probabilities", len(guessed.probabilities), n - 1)
        case Ping():
            _within("rows of Ping.rows", n_rows, 1, MAX_TOKENS)
        case Drafted():
            n = len(message.tokens)
            _within("length of Drafted.probabilities", len(message.probabilities), n)
            if message.questions is not None:
                _check_questions(message.questions)
        case Begin() if message.sampling.seed is None:
            raise WireError("Begin.sampling.seed: expected a number, found None: call seeded()")
        case Setup():
            for low, high in pairwise(message.cuts):
                _within("Setup.cuts, each not below the one before", high, low, I32_MAX)
            for group in message.groups:
                _within("length of Group.speeds", len(group.speeds), len(group.ranks))
    if type(message) in _ROWS and n_rows:
        _within(f"columns of {kind}.{_ROWS[type(message)]}", n_columns, 1, MAX_EMBD)
    else:
        _within(f"rows behind a {kind}", n_rows, 0)
        _within(f"columns behind a {kind}", n_columns, 0)


def _check_run(run: Run) -> None:
    _within("rows of Frame.run", run.n_rows, 1, MAX_TOKENS)
    _within("Frame.run.position", run.position, 0, I32_MAX - run.n_rows)
    _within("Frame.run.n_draws", run.n_draws, 0, len(run.tokens))
    if run.questions is not None:
        _check_questions(run.questions)


def _check_questions(questions: Questions) -> None:
    n = len(questions.tokens)
    _within("length of questions.parents", len(questions.parents), n)
    for row, parent in enumerate(questions.parents):
        _within("questions.parents, which are earlier rows", parent, -1, row - 1)
    for row in questions.asked:
        _within("questions.asked", row, -1, n - 1)


def _crc(message: memoryview) -> int:
    return zlib.crc32(message[_START:], zlib.crc32(message[: _HEADER.size]))
