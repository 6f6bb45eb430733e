"""Messages as bytes and back: nothing is executed, and no size is used before it is checked.

    offset  bytes
    0       4      magic, "PFWM"
    4       2      version of this format
    6       2      type of the message, its place in _MESSAGES
    8       4      epoch
    12      8      n, the bytes of payload
    20      4      crc32 of the 20 bytes before and of the payload
    24      n      payload: the other fields, as layouts.py says, in the order of the table below

All little-endian. A message has one encoding, and no other bytes decode to it. The checksum finds
what was damaged, not who wrote it: any peer can send what is within bounds.
"""

from __future__ import annotations

import re
import struct
import zlib
from itertools import pairwise
from typing import cast, get_args

from pyflow.cluster.wire.layouts import (
    Reader,
    Record,
    WireError,
    Writer,
    choice,
    flag,
    matrix,
    maybe,
    number,
    one_of,
    several,
    text,
    within,
)
from pyflow.cluster.wire.messages import (
    Accept,
    Answers,
    Begin,
    Begun,
    Cancel,
    Cut,
    Drafted,
    DraftRequest,
    Failure,
    Frame,
    Goodbye,
    Hello,
    Link,
    Measure,
    Measured,
    Message,
    Ping,
    Profile,
    Pulse,
    Questions,
    RankProfile,
    Remove,
    Result,
    Run,
    Setup,
    Share,
)
from pyflow.cluster.wire.parameters import parameters
from pyflow.engine.context import CacheType

__all__ = [
    "MAX_EMBD",
    "MAX_ITEMS",
    "MAX_JSON_NBYTES",
    "MAX_PROFILED",
    "MAX_TEXT_NBYTES",
    "MAX_TOKENS",
    "VERSION",
    "WireError",
    "decode",
    "encode",
    "frame_nbytes",
]

VERSION = 9
MAX_TOKENS = 65_536  # of a run, a path, a text
MAX_EMBD = 65_536
MAX_ITEMS = 4_096  # ops of a frame, runs of a cancellation
MAX_PROFILED = 64  # rows of a run
MAX_TEXT_NBYTES = 4_096
MAX_JSON_NBYTES = 1 << 20  # of sampling parameters: a bias for each of 32,768 tokens
_I32_MAX = (1 << 31) - 1

_MAGIC = b"PFWM"
_HEADER = struct.Struct("<4sHHIQ")
_CRC = struct.Struct("<I")
_START = _HEADER.size + _CRC.size


def _questions_agree(questions: Questions) -> None:
    n = len(questions.tokens)
    within("length of Questions.parents", len(questions.parents), n, n)
    for row, parent in enumerate(questions.parents):
        within("Questions.parents, which are rows before", parent, -1, row - 1)
    for row in questions.asked:
        within("Questions.asked", row, -1, n - 1)


def _run_agrees(run: Run) -> None:
    within("rows of a Run", run.n_rows, 1, MAX_TOKENS)
    within("Run.position", run.position, 0, _I32_MAX - run.n_rows)
    within("Run.n_draws", run.n_draws, 0, len(run.tokens))


def _frame_agrees(frame: Frame) -> None:
    if frame.hidden is not None:
        n = 0 if frame.run is None else frame.run.n_rows
        within("rows of Frame.hidden, which are its run's", len(frame.hidden), n, n)


def _drafted_agrees(drafted: Drafted) -> None:
    n = len(drafted.tokens)
    within("length of Drafted.probabilities", len(drafted.probabilities), n, n)


def _hello_agrees(hello: Hello) -> None:
    if not re.fullmatch("[0-9a-f]{64}", hello.model):
        raise WireError(f"Hello.model: expected a sha256 in hex, found {hello.model!r:.80}")


def _setup_agrees(setup: Setup) -> None:
    for first, last in pairwise(setup.cuts):
        within("the next of Setup.cuts", last, first, _I32_MAX)


_I32 = number("i", 0, _I32_MAX)
_SIZE = number("i", 1, _I32_MAX)
_NUMBER = number("q", 0, (1 << 63) - 1)
_COUNT = number("I", 0, MAX_TOKENS)
_TOKENS = several(_I32, MAX_TOKENS)
_CHANCE = number("d", 0, 1)
_NAME = text(255)
# What is measured is finite, and what others divide by is not 0.
_MS = number("d", 0, 1e12)
_RATE = number("d", 1, 1e30)

_OP = one_of(
    Record(Share, src=_I32, dst=_I32, p0=_I32, p1=_I32),
    Record(Remove, seq=_I32, p0=_I32, p1=number("i", -1 - _I32_MAX, _I32_MAX)),
    Record(Accept, tokens=_TOKENS),
)
_ROW = number("i", -1, MAX_TOKENS)
_QUESTIONS = Record(
    Questions,
    _questions_agree,
    number=_NUMBER,
    tokens=_TOKENS,
    parents=several(_ROW, MAX_TOKENS),
    asked=several(_ROW, MAX_TOKENS),
)
_RUN = Record(
    Run,
    _run_agrees,
    number=_NUMBER,
    seq=_I32,
    position=_I32,
    tokens=several(_I32, MAX_TOKENS, least=1),
    path=_TOKENS,
    n_draws=_COUNT,
    regime=choice("prefill", "decode"),
    questions=maybe(_QUESTIONS),
)
# Every field but the epoch, which is in the header. Whoever changes a line changes VERSION.
# All that comes before hidden has a multiple of 4 bytes: its rows are aligned if the message is.
_MESSAGES = (
    Record(
        Frame,
        _frame_agrees,
        number=_NUMBER,
        ops=several(_OP, MAX_ITEMS),
        run=maybe(_RUN),
        skipped=flag,
        hidden=maybe(matrix(MAX_TOKENS, MAX_EMBD)),
    ),
    Record(Result, run=_NUMBER, draws=_TOKENS, skipped=flag, answers=_TOKENS),
    Record(Cancel, runs=several(_NUMBER, MAX_ITEMS)),
    Record(
        DraftRequest,
        number=_NUMBER,
        keep=_I32,
        tokens=_TOKENS,
        n=_COUNT,
        least=_CHANCE,
        n_ahead=_COUNT,
        answers=maybe(Record(Answers, number=_NUMBER, position=_I32, tokens=_TOKENS)),
    ),
    Record(
        Drafted,
        _drafted_agrees,
        request=_NUMBER,
        tokens=_TOKENS,
        probabilities=several(_CHANCE, MAX_TOKENS),
        questions=maybe(_QUESTIONS),
    ),
    Record(Goodbye),
    Record(Failure, rank=_I32, reason=text(MAX_TEXT_NBYTES), kind=_NAME),
    Record(
        Hello,
        _hello_agrees,
        rank=_I32,
        host=_NAME,
        pid=_I32,
        version=_NAME,
        model=_NAME,
        isa=_NAME,
    ),
    Record(
        Setup,
        _setup_agrees,
        cuts=several(_I32, MAX_ITEMS, least=2),
        n_ctx=_SIZE,
        n_seq_max=_SIZE,
        n_batch=_SIZE,
        cache_type=choice(*get_args(CacheType)),
    ),
    Record(
        Begin,
        sampling=parameters(MAX_JSON_NBYTES),
        stream=number("I", 0, (1 << 32) - 1),
        keep=_I32,
        cut=maybe(Record(Cut, first=_I32, n=_I32)),
    ),
    Record(Begun, keep=_I32, resident_nbytes=_NUMBER),
    Record(Pulse, phase=_NAME),
    Record(
        Profile,
        profile=Record(
            RankProfile,
            rank=_I32,
            host=_NAME,
            layer_ms=several(number("d", 1e-6, 1e12), MAX_PROFILED, least=1),
            max_nbytes=_NUMBER,
            embedding_ms=_MS,
            head_ms=_MS,
        ),
        read_bytes_per_s=_RATE,
        draft_ms=_MS,
    ),
    Record(Measure, to=_I32),
    Record(Ping, rank=_I32, is_back=flag, rows=matrix(MAX_TOKENS, MAX_EMBD)),
    Record(
        Measured,
        rank=_I32,
        to=_I32,
        link=Record(Link, latency_s=number("d", 0, 1e6), bytes_per_s=_RATE),
    ),
)
_PLACES = {record.kind: place for place, record in enumerate(_MESSAGES)}


def encode(message: Message) -> bytearray:
    """The bytes of a message, to be sent as they are. Hidden states are copied into them, so their
    array may be written again at once.

    A WireError says which field is out of bounds.
    """
    place = _PLACES.get(type(message))
    if place is None:
        kinds = [kind.__name__ for kind in _PLACES]
        raise WireError(f"message: expected one of {kinds}, found {type(message).__name__}")
    within("epoch", message.epoch, 0, (1 << 32) - 1)
    out = bytearray(_START)
    _MESSAGES[place](Writer(out), message, "message", epoch=message.epoch)
    _HEADER.pack_into(out, 0, _MAGIC, VERSION, place, message.epoch, len(out) - _START)
    _CRC.pack_into(out, _HEADER.size, _crc(memoryview(out)))
    return out


def decode(data: bytes | bytearray | memoryview) -> Message:
    """The message that data is. Its hidden states are a read-only view of data, not a copy.

    A WireError says what makes data no message.
    """
    view = memoryview(data).toreadonly().cast("B")
    if len(view) < _START:
        raise WireError(f"header: expected {_START} bytes, found {len(view)}")
    magic, version, place, epoch, nbytes = _HEADER.unpack_from(view)
    if magic != _MAGIC:
        raise WireError(f"magic: expected {_MAGIC!r}, found {magic!r}: who sent it is no pyflow")
    if version != VERSION:
        advice = "run the same pyflow on all ranks"
        raise WireError(f"version: expected {VERSION}, found {version}: {advice}")
    within("bytes of payload", len(view) - _START, nbytes, nbytes)
    crc, expected = _crc(view), _CRC.unpack_from(view, _HEADER.size)[0]
    if crc != expected:
        raise WireError(f"crc32: expected {expected:#010x}, found {crc:#010x}: damaged on its way")
    within("type of message", place, 0, len(_MESSAGES) - 1)
    reader = Reader(view[_START:])
    message = _MESSAGES[place](reader, None, "message", epoch=epoch)
    within("bytes of payload", nbytes, reader.at, reader.at)
    return cast(Message, message)


def frame_nbytes(n_rows: int, n_embd: int) -> int:
    """The bytes of a frame that carries a run of n_rows tokens and their hidden states.

    A token of the run's path adds 4, an op 4 and its fields.
    """
    without = encode(Frame(0, 0, run=Run(0, 0, 0, (0,) * n_rows)))
    return len(without) + 2 * 4 + 4 * n_rows * n_embd


def _crc(message: memoryview) -> int:
    return zlib.crc32(message[_START:], zlib.crc32(message[: _HEADER.size]))
