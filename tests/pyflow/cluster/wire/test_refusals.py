"""What is damaged, too large or contradictory is refused by name, received or to be sent."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from pyflow.cluster.wire import codec as wire
from pyflow.cluster.wire.codec import WireError, decode, encode
from pyflow.cluster.wire.messages import (
    Begin,
    Drafted,
    DraftRequest,
    Failure,
    Frame,
    Goodbye,
    Hello,
    Questions,
    Result,
    Share,
)
from pyflow.cluster.wire.parameters import to_json
from pyflow.errors import PyflowError
from pyflow.sampling import SamplingParams

from .samples import (
    BEGIN,
    CANCEL,
    DRAFT_REQUEST,
    DRAFTED,
    FAILURE,
    FRAME,
    GOODBYE,
    HELLO,
    HIDDEN,
    I32_MAX,
    MEASURE,
    MEASURED,
    OPS,
    PING,
    PROFILE,
    RESULT,
    RUN,
    SAMPLES,
    SAMPLING,
    SETUP,
    sealed,
    words,
)

ZERO = struct.pack("<q", 0)  # a number of a frame, run or request
RUN_OF_ONE = ZERO + words(0, 0) + words(1, 5) + words(0) + words(1, 1) + words(0)
ASKING = ZERO + words(0, 0, 1) + ZERO
WITH_ROWS = ZERO + words(0) + words(1) + RUN_OF_ONE + words(0) + words(1)


def hello(model: str) -> bytes:
    names = [struct.pack("<I", len(name)) + name.encode() for name in ("h", "0.1", model, "avx2")]
    return words(1) + names[0] + words(9) + b"".join(names[1:])


def begin(json: str) -> tuple[int, bytes, str]:
    return BEGIN, words(len(json)) + json.encode() + words(0, 0), "sampling: "


JSON = to_json(SAMPLING)
LIES: dict[str, tuple[int, bytes, str]] = {
    "ops": (FRAME, ZERO + words(2**32 - 1), "length of Frame.ops: expected 0 to 4096, found 42949"),
    "op": (FRAME, ZERO + words(1, 3), "Frame.ops: expected 0 to 2, found 3"),
    "accepted": (FRAME, ZERO + words(1, 2, 65537), "Accept.tokens: expected 0 to 65536, found 655"),
    "flag": (FRAME, ZERO + words(0, 2), "Frame.run: expected 0 to 1, found 2"),
    "none": (FRAME, ZERO + words(0, 1) + ZERO + words(0, 0, 0), "Run.tokens: expected 1 to 65536"),
    "many": (FRAME, ZERO + words(0, 1) + ZERO + words(0, 0, 65537), "Run.tokens: .* found 65537"),
    "no rows": (FRAME, WITH_ROWS + words(0, 5), "rows of Frame.hidden: expected 1 to .* found 0"),
    "rows": (FRAME, WITH_ROWS + words(65537, 1), "rows of Frame.hidden: expected 1 to 65536"),
    "columns": (FRAME, WITH_ROWS + words(1, 65537), "columns of Frame.hidden: expected 1 to"),
    "16 GiB": (FRAME, WITH_ROWS + words(65536, 65536), "expected 17179869184 more bytes, found 0"),
    "other rows": (FRAME, WITH_ROWS + words(2, 1, 0, 0), "its run's: expected 1, found 2"),
    "no run": (FRAME, ZERO + words(0, 0, 0, 1, 1, 1, 0), "its run's: expected 0, found 1"),
    "token": (RESULT, ZERO + words(1, 2**31) + words(0), "Result.draws: expected 0 to .* found -2"),
    "draws": (RESULT, ZERO + words(65536), "Result.draws: expected 4 more bytes, found 0"),
    "run": (CANCEL, words(1) + b"\xff" * 8, "Cancel.runs: expected 0 to .* found -1"),
    "runs": (CANCEL, words(4097), "length of Cancel.runs: expected 0 to 4096, found 4097"),
    "nan": (DRAFT_REQUEST, ZERO + words(0, 0, 0) + struct.pack("<d", np.nan), "found nan"),
    "inf": (DRAFT_REQUEST, ZERO + words(0, 0, 0) + struct.pack("<d", np.inf), "found inf"),
    "-inf": (DRAFT_REQUEST, ZERO + words(0, 0, 0) + struct.pack("<d", -np.inf), "found -inf"),
    "surely": (DRAFTED, ZERO + words(1, 0, 1) + struct.pack("<d", 1.5), "0 to 1, found 1.5"),
    "uneven": (DRAFTED, ZERO + words(1, 0, 0, 0), "probabilities: expected 1, found 0"),
    "parents": (DRAFTED, ASKING + words(1, 5, 0, 0), "parents: expected 1, found 0"),
    "itself": (DRAFTED, ASKING + words(1, 5, 1, 0, 0), "are rows before: expected -1, found 0"),
    "asked": (
        DRAFTED,
        ASKING + words(1, 5, 1, 2**32 - 1, 1, 1),
        "asked: expected -1 to 0, found 1",
    ),
    "text": (FAILURE, words(0, 4097) + b"x" * 4097, "bytes of Failure.reason: expected 0 to 4096"),
    "half a character": (FAILURE, words(0, 1) + b"\xc3", "Failure.reason: expected UTF-8"),
    "surrogate": (FAILURE, words(0, 3) + b"\xed\xa0\x80", "Failure.reason: expected UTF-8"),
    "digest": (HELLO, hello("0" * 63), "Hello.model: expected a sha256 in hex, found '000"),
    "cuts": (SETUP, words(2, 3, 2, 1, 1, 1, 0), "Setup.cuts: expected 3 to 2147483647, found 2"),
    "cache": (SETUP, words(2, 0, 9, 1, 1, 1, 2), "Setup.cache_type: expected 0 to 1, found 2"),
    "no json": begin("{"),
    "no parameters": begin("[1,2]"),
    "deep": begin("[" * 100_000),
    "a word": begin(JSON.replace('"top_k":40', '"top_k":"40"')),
    "a flag": begin(JSON.replace('"top_k":40', '"top_k":true')),
    "a biased word": begin(JSON.replace("-0.25", '"-0.25"')),
    "biases of no token": begin(JSON.replace('"7":', '"7.5":')),
    "biases without names": begin(JSON.replace('{"3":-1e999,"7":-0.25}', "[1]")),
    "no seed": begin(JSON.replace(f"{2**64 - 1}", "null")),
    "seed": begin(JSON.replace(f"{2**64 - 1}", f"{2**64}")),
    "digits": begin(JSON.replace(f"{2**64 - 1}", "1" * 5000)),
    "constant": begin(JSON.replace("-1e999", "-Infinity")),
    "other name": begin(JSON.replace("top_k", "top_q")),
    "twice": begin(JSON.replace("{", '{"top_k":40,', 1)),
    "spaces": begin(JSON.replace(",", ", ")),
    "out of range": begin(JSON.replace('"top_p":0.1', '"top_p":1.1')),
    "rank": (MEASURE, words(2**31), "Measure.to: expected 0 to"),
    "no layer": (
        PROFILE,
        words(1, 0, 0),
        "length of RankProfile.layer_ms: expected 1 to 64, found",
    ),
    "no time": (PROFILE, words(1, 0, 1) + bytes(8), "RankProfile.layer_ms: expected 1e-06 to"),
    "never": (MEASURED, words(1, 2) + struct.pack("<d", np.inf), "Link.latency_s: .* found inf"),
    "stopped": (MEASURED, words(1, 2) + bytes(16), "Link.bytes_per_s: expected 1 to .* found 0.0"),
    "echo": (PING, words(1, 0, 65537, 1), "rows of Ping.rows: expected 1 to 65536, found 65537"),
    "type": (16, b"", "type of message: expected 0 to 15, found 16"),
}


@pytest.mark.parametrize(("place", "payload", "says"), LIES.values(), ids=LIES.keys())
def test_a_size_or_value_that_lies_is_refused_by_its_name(
    place: int, payload: bytes, says: str
) -> None:
    with pytest.raises(WireError, match=says):
        decode(sealed(place, payload))


def test_a_length_that_is_not_the_messages_is_refused() -> None:
    payload = ZERO + words(0, 0)
    for n in (0, 15, 17, 2**32, 2**64 - 1):
        start = struct.pack("<4sHHIQ", b"PFWM", wire.VERSION, RESULT, 0, n)
        data = start + struct.pack("<I", zlib.crc32(start + payload)) + payload
        with pytest.raises(WireError, match=f"bytes of payload: expected {n}, found 16"):
            decode(data)


def test_another_version_another_protocol_and_damage_are_told_apart() -> None:
    with pytest.raises(WireError, match="version: expected 9, found 3: run the same pyflow"):
        decode(sealed(GOODBYE, b"", version=3))
    with pytest.raises(WireError, match="magic: expected b'PFWM', found b'GET '"):
        decode(b"GET / HTTP/1.1\r\nHost: 10.0.0.2\r\n\r\n")
    with pytest.raises(WireError, match=r"crc32: expected 0x\w+, found 0x"):
        decode(sealed(GOODBYE, b"")[:-1] + b"\xaa")
    with pytest.raises(WireError, match="header: expected 24 bytes, found 0"):
        decode(b"")


# --- messages that must not be sent ---


def run(**changes: Any) -> Frame:
    return Frame(0, 0, run=replace(RUN, **changes))


def rows(hidden: Any) -> Frame:
    return Frame(0, 0, run=RUN, hidden=hidden)


ASKS = Questions(1, (5,), (-1,), (0,))
LONG = Questions(1, (5,) * 65536, (-1,) * 65536, ())
NO_MATRIX = "Frame.hidden: expected 2 dimensions of float32, found "
BAD: dict[str, tuple[Any, str]] = {
    "epoch": (Goodbye(-1), "epoch: expected 0 to 4294967295, found -1"),
    "late epoch": (Goodbye(2**32), "epoch: expected 0 to 4294967295, found 4294967296"),
    "number": (Frame(0, -1), "Frame.number: expected 0 to"),
    "large number": (Frame(0, 2**63), "Frame.number: expected a number .* found 9223372036854"),
    "share": (Frame(0, 0, ops=(Share(0, -1, 0, 0),)), "Share.dst: expected 0 to .* found -1"),
    "end": (Frame(0, 0, ops=(Share(0, 1, 0, -1),)), "Share.p1: expected 0 to .* found -1"),
    "ops": (Frame(0, 0, ops=OPS[:1] * 4097), "length of Frame.ops: expected 0 to 4096"),
    "op": (Frame(0, 0, ops=(cast(Any, RUN),)), "Frame.ops: expected one of .*'Share'.* .*Run"),
    "no op": (Frame(0, 0, ops=(cast(Any, None),)), "Frame.ops: expected a number .* found None"),
    "tokens": (run(tokens=(0,) * 65537), "length of Run.tokens: expected 1 to 65536, found 65537"),
    "no tokens": (run(tokens=(), n_draws=0), "length of Run.tokens: expected 1 to 65536, found 0"),
    "token": (run(tokens=(1, -1)), "Run.tokens: expected 0 to 2147483647, found -1"),
    "draws": (run(n_draws=3), "Run.n_draws: expected 0 to 2, found 3"),
    "last position": (run(position=I32_MAX - 1), "Run.position: expected 0 to 2147483645"),
    "rows of a run": (run(questions=LONG), "rows of a Run: expected 1 to 65536, found 65538"),
    "parent": (run(questions=replace(ASKS, parents=(0,))), "which are rows before: expected -1"),
    "asked": (run(questions=replace(ASKS, asked=(1,))), "Questions.asked: expected -1 to 0"),
    "regime": (run(regime="x"), "Run.regime: expected one of .*'prefill', 'decode'.* found 'x'"),
    "half": (rows(HIDDEN.astype(np.float16)), NO_MATRIX + "2 of float16"),
    "double": (rows(HIDDEN.astype(np.float64)), NO_MATRIX + "2 of float64"),
    "one row": (rows(HIDDEN[0]), NO_MATRIX + "1 of float32"),
    "rows": (rows(HIDDEN[:1]), "rows of Frame.hidden, .*: expected 2, found 1"),
    "no columns": (rows(HIDDEN[:, :0]), "columns of Frame.hidden: expected 1 to 65536, found 0"),
    "no run": (Frame(0, 0, hidden=HIDDEN), "rows of Frame.hidden, .*: expected 0, found 2"),
    "least": (DraftRequest(0, 0, 0, (), 1, float("nan")), "DraftRequest.least: .* found nan"),
    "unlikely": (DraftRequest(0, 0, 0, (), 1, -0.1), "least: expected 0 to 1, found -0.1"),
    "huge": (DraftRequest(0, 0, 0, (), 1, 10**400), "DraftRequest.least: expected a number"),
    "surely": (Drafted(0, 0, (1,), (1.01,)), "Drafted.probabilities: expected 0 to 1, found 1.01"),
    "nan": (Drafted(0, 0, (1,), (float("nan"),)), "Drafted.probabilities: .* found nan"),
    "inf": (Drafted(0, 0, (1,), (float("inf"),)), "Drafted.probabilities: .* found inf"),
    "uneven": (Drafted(0, 0, (1, 2), (0.5,)), "Drafted.probabilities: expected 2, found 1"),
    "reason": (Failure(0, 0, "x" * 4097), "bytes of Failure.reason: expected 0 to 4096"),
    "surrogate": (Failure(0, 0, "\ud800"), "Failure.reason: expected UTF-8"),
    "word": (Result(0, 0, (cast(Any, "a"),)), "Result.draws: expected a number .* found 'a'"),
    "none": (Failure(0, cast(Any, None), ""), "Failure.rank: expected a number .* found None"),
    "no seed": (Begin(0, SamplingParams(), 0, 0), "sampling.seed: expected a number, found None"),
    "stream": (Begin(0, SAMPLING, 2**32, 0), "Begin.stream: expected a number .* found 4294967296"),
    "model": (
        replace(cast(Hello, SAMPLES["hello"]), model="A" * 64),
        "Hello.model: expected a sha",
    ),
    "no message": (Share(0, 0, 0, 0), "message: expected one of .*'Frame'.*, found Share"),
}


@pytest.mark.parametrize(("message", "says"), BAD.values(), ids=BAD.keys())
def test_a_message_that_would_be_refused_is_not_sent(message: Any, says: str) -> None:
    with pytest.raises(WireError, match=says) as caught:
        encode(message)
    assert isinstance(caught.value, PyflowError)
