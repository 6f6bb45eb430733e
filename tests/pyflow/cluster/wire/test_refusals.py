"""What is damaged, too large or contradictory is refused by name, received or to be sent."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

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
from pyflow.cluster.wire.surveys import Ping
from pyflow.errors import PyflowError
from pyflow.sampling import SamplingParams

from .samples import (
    HIDDEN,
    I32_MAX,
    OPS,
    RUN,
    SAMPLES,
    SAMPLING,
    START,
    packed,
    positions,
    sealed,
)

NAN, INF = float("nan"), float("inf")
BIASES = ("sampling", "logit_bias")


def changed(sample: str, path: tuple[Any, ...], value: Any) -> bytes:
    """A sample as MessagePack, the field at a path of names changed or added."""
    plain = inner = msgspec.msgpack.decode(packed(SAMPLES[sample]))
    *before, last = positions(SAMPLES[sample], path)
    for key in before:
        inner = inner[key]
    if isinstance(inner, list):
        inner[last : last + 1] = [value]
    else:
        inner[last] = value
    return msgspec.msgpack.encode(plain)


# A sample, a field of it, a value that it must not have, and words of the refusal.
LIES: dict[str, tuple[str, tuple[Any, ...], Any, list[str]]] = {
    "epoch": ("goodbye", ("epoch",), 2**32, ["Goodbye.epoch", "4294967295", "4294967296"]),
    "ops": ("frame, empty", ("ops",), [None] * 4097, ["Frame.ops", "4096", "4097"]),
    "op": ("frame", ("ops", 1), ["Swap"], ["Frame.ops[1].type", "Swap"]),
    "no op": ("frame", ("ops", 1), None, ["Frame.ops[1]", "None"]),
    "accepted": ("frame", ("ops", 2, "tokens"), [0] * 65537, ["ops[2].tokens", "65536", "65537"]),
    "flag": ("frame", ("skipped",), 2, ["Frame.skipped", "bool", "2"]),
    "none": ("frame", ("run", "tokens"), [], ["Frame.run.tokens", ">= 1", "found 0"]),
    "many": ("frame", ("run", "tokens"), [0] * 65537, ["Frame.run.tokens", "65536", "65537"]),
    "draws of a run": ("frame", ("run", "n_draws"), 3, ["Frame.run.n_draws", "0 to 2", "found 3"]),
    "position": ("frame", ("run", "position"), I32_MAX, ["Frame.run.position", str(I32_MAX - 2)]),
    "regime": ("frame", ("run", "regime"), "x", ["Frame.run.regime", "'x'"]),
    "rows inside": ("frame", ("hidden",), [[0.0]], ["Frame.hidden", "array"]),
    "token": ("result", ("draws", 1), 2**31, ["Result.draws[1]", str(I32_MAX), str(2**31)]),
    "negative": ("result", ("draws", 0), -1, ["Result.draws[0]", ">= 0", "found -1"]),
    "a word": ("result", ("draws", 0), "a", ["Result.draws[0]", "int", "'a'"]),
    "a float": ("result", ("draws", 0), 1.5, ["Result.draws[0]", "int", "1.5"]),
    "run": ("cancel", ("runs", 0), -1, ["Cancel.runs[0]", ">= 0", "found -1"]),
    "runs": ("cancel", ("runs",), [0] * 4097, ["Cancel.runs", "4096", "4097"]),
    "nan": ("draft request", ("least",), NAN, ["DraftRequest.least", "0.0", "nan"]),
    "inf": ("draft request", ("least",), INF, ["DraftRequest.least", "1.0", "inf"]),
    "-inf": ("draft request", ("least",), -INF, ["DraftRequest.least", "0.0", "-inf"]),
    "surely": ("drafted", ("probabilities", 1), 1.5, ["Drafted.probabilities[1]", "1.0", "1.5"]),
    "uneven": ("drafted", ("tokens",), [4], ["Drafted.probabilities", "expected 1, found 2"]),
    "parents": ("drafted, asking", ("questions", "parents"), [], ["questions.parents", "found 0"]),
    "itself": (
        "drafted, asking",
        ("questions", "parents", 1),
        1,
        ["parents", "-1 to 0", "found 1"],
    ),
    "asked": ("drafted, asking", ("questions", "asked", 0), 3, ["asked", "-1 to 2", "found 3"]),
    "a guess alone": ("result, guessing", ("probabilities",), [], ["probabilities", "expected 2"]),
    "guesses after nothing": ("result, guessing", ("draws",), [], ["Result.guesses", "draws"]),
    "no root": (
        "draft request, guessing",
        ("guessed", "tokens"),
        [],
        ["Guessed.tokens", "found 0"],
    ),
    "text": ("failure", ("reason",), "x" * 4097, ["Failure.reason", "4096", "4097"]),
    "digest": ("hello", ("model",), "0" * 63, ["Hello.model", "[0-9a-f]{64}", "000"]),
    "digest and a line": ("hello", ("model",), "0" * 64 + "\n", ["Hello.model", "64", "65"]),
    "cuts": ("setup", ("cuts", 1), 31, ["Setup.cuts", "31", "found 10"]),
    "one cut": ("setup", ("cuts",), [0], ["Setup.cuts", ">= 2", "found 1"]),
    "cache": ("setup", ("cache_type",), "f32", ["Setup.cache_type", "'f32'"]),
    "no sampling": ("begin", ("sampling",), [1, 2], ["Begin.sampling", "object", "[1, 2]"]),
    "top_k": ("begin", ("sampling", "top_k"), "40", ["Begin.sampling.top_k", "int", "'40'"]),
    "top_k, a flag": ("begin", ("sampling", "top_k"), True, ["Begin.sampling.top_k", "True"]),
    "a biased word": ("begin", (*BIASES, 7), "-0.25", ["logit_bias", "float"]),
    "a word's bias": ("begin", (*BIASES, "7"), 0.5, ["Begin.sampling.logit_bias", "key", "int"]),
    "biases without tokens": ("begin", BIASES, [1], ["Begin.sampling.logit_bias", "[1]"]),
    "no seed": ("begin", ("sampling", "seed"), None, ["Begin.sampling.seed", "None"]),
    "out of range": ("begin", ("sampling", "top_p"), 1.1, ["Begin.sampling", "top_p", "1.1"]),
    "other parameter": ("begin", ("sampling", "top_q"), 0.5, ["Begin", "encoding"]),
    "whole": ("begin", ("sampling", "top_p"), 1, ["Begin", "encoding"]),
    "rank": ("measure", ("to",), 2**31, ["Measure.to", str(I32_MAX), str(2**31)]),
    "no layer": ("profile", ("profile", "layer_ms"), [], ["Profile.profile.layer_ms", "found 0"]),
    "no time": (
        "profile",
        ("profile", "layer_ms", 0),
        0.0,
        ["layer_ms[0]", "1e-06", "0.0"],
    ),
    "never": ("measured", ("link", "latency_s"), INF, ["Measured.link.latency_s", "inf"]),
    "stopped": ("measured", ("link", "bytes_per_s"), 0.0, ["Measured.link.bytes_per_s", "1.0"]),
    "type": ("goodbye", ("type",), "Hallo", ["type", "'Hallo'"]),
    "a number as type": ("goodbye", ("type",), 5, ["type", "5"]),
    "another field": ("goodbye", ("why",), 1, ["Goodbye", "at most length", "found 2"]),
    "another field of a part": ("frame", ("run", "why"), 1, ["Frame.run", "length 9", "found 10"]),
    "a field of an op": ("frame", ("ops", 1), ["Remove", 2], ["Frame.ops[1].p0", "found 2"]),
    "a field of a part": ("frame", ("run",), [7, 3, 100], ["Frame.run.tokens", "found 3"]),
    "a field with a default": ("frame", ("run",), [7, 3, 100, [5, 6]], ["Frame", "encoding"]),
    "fields by name": ("measured", ("link",), {"latency_s": 1.0}, ["Measured.link", "array"]),
}


@pytest.mark.parametrize(("sample", "path", "value", "words"), LIES.values(), ids=LIES.keys())
def test_a_field_that_lies_is_refused_by_its_name(
    sample: str, path: tuple[Any, ...], value: Any, words: list[str]
) -> None:
    data = encode(SAMPLES[sample])
    rows = bytes(data[START + -(-len(packed(SAMPLES[sample])) // 4) * 4 :])
    shape = struct.unpack_from("<I", data, 8) + struct.unpack_from("<H", data, 6)
    with pytest.raises(WireError) as caught:
        decode(sealed(changed(sample, path, value), rows, shape))
    assert [word for word in words if word not in str(caught.value)] == [], caught.value


def test_a_field_that_is_missing_is_refused_by_its_name() -> None:
    for message in SAMPLES.values():
        plain = msgspec.msgpack.decode(packed(message))
        for i in range(len(plain)):
            for rest in (plain[:i], plain[:i] + plain[i + 1 :]):
                with pytest.raises(WireError):
                    decode(sealed(msgspec.msgpack.encode(rest)))
    with pytest.raises(WireError, match=r"Goodbye.*epoch"):
        decode(sealed(msgspec.msgpack.encode(["Goodbye"])))


ASKING = packed(SAMPLES["ping"])
ROWS: dict[str, tuple[str, tuple[int, int], list[str]]] = {
    "none": ("ping", (0, 0), ["Ping.rows", "found 0"]),
    "many": ("ping", (65537, 1), ["Ping.rows", "65536", "65537"]),
    "no columns": ("ping", (2, 0), ["columns of Ping.rows", "found 0"]),
    "columns alone": ("ping", (0, 3), ["Ping.rows", "found 0"]),
    "other rows": ("frame", (3, 5), ["Frame.hidden", "expected 2, found 3"]),
    "no run": ("frame, empty", (1, 1), ["Frame.hidden", "expected 0, found 1"]),
    "columns of no run": ("frame, empty", (0, 1), ["Frame", "columns", "found 1"]),
    "of a result": ("result", (1, 1), ["Result", "expected 0, found 1"]),
}


@pytest.mark.parametrize(("sample", "shape", "words"), ROWS.values(), ids=ROWS.keys())
def test_rows_that_contradict_the_message_are_refused(
    sample: str, shape: tuple[int, int], words: list[str]
) -> None:
    data = sealed(packed(SAMPLES[sample]), bytes(4 * shape[0] * shape[1]), shape)
    with pytest.raises(WireError) as caught:
        decode(data)
    assert [word for word in words if word not in str(caught.value)] == [], caught.value


HUGE = [b"\xdd" + b"\xff" * 4, b"\xdf" + b"\xff" * 4, b"\xdb" + b"\xff" * 4, b"\xc6" + b"\xff" * 4]
GOODBYE = b"\x92\xa7Goodbye"
GOODBYE_AND = b"\x93\xa7Goodbye\x00"
HOLLOW = [
    *HUGE,
    *(GOODBYE + huge for huge in HUGE),
    *(GOODBYE_AND + huge for huge in HUGE),
    *(b"\x96\xa6Result\x00\x00" + huge for huge in HUGE),
    b"\x96\xa6Result\x00\x00\xdd\x00\x01\x00\x00",  # as many as may be, and none there
    b"\x97\xa5Frame\x00\x00\xdc\x10\x00\x92\xa6Accept\xdd\x00\x01\x00\x00",
    b"\x91" * 100_000,
    GOODBYE_AND + b"\x91" * 100_000,
    GOODBYE + b"\xa1\xff",
    b"\x92\xa1\xff\x00",
    b"\xc1",
]


@pytest.mark.parametrize("message", HOLLOW, ids=lambda data: data[:40].hex())
def test_what_is_claimed_and_not_there_takes_no_memory(message: bytes) -> None:
    data = sealed(message)
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000 + 10 * len(data)
    finally:
        tracemalloc.stop()


def test_a_size_that_is_not_that_of_what_came_is_refused() -> None:
    message = packed(SAMPLES["result"])
    right = sealed(message)
    for at, form, value in ((12, "<I", 0), (12, "<I", 2**32 - 1), (8, "<I", 1), (6, "<H", 1)):
        data = bytearray(right)
        struct.pack_into(form, data, at, value)
        with pytest.raises(WireError):
            decode(data)
    with pytest.raises(WireError, match=rf"bytes after the header.*found {len(right)}"):
        decode(sealed(message, b"", (2**32 - 1, 65535)))


def test_another_version_another_protocol_and_damage_are_told_apart() -> None:
    goodbye = packed(SAMPLES["goodbye"])
    with pytest.raises(WireError, match=rf"version.*{wire.VERSION}.*found 3.*pyflow"):
        decode(sealed(goodbye, version=3))
    with pytest.raises(WireError, match=r"magic.*b'PFWM'.*b'GET '"):
        decode(b"GET / HTTP/1.1\r\nHost: 10.0.0.2\r\n\r\n")
    with pytest.raises(WireError, match=r"crc32.*0x\w+.*0x"):
        decode(sealed(goodbye)[:-1] + b"\xaa")
    with pytest.raises(WireError, match=rf"header.*{START}.*0"):
        decode(b"")


# --- messages that must not be sent ---


def run(**changes: Any) -> Frame:
    return Frame(0, 0, run=replace(RUN, **changes))


def rows(hidden: Any) -> Frame:
    return Frame(0, 0, run=RUN, hidden=hidden)


ASKS = Questions(1, (5,), (-1,), (0,))
LONG = Questions(1, (5,) * 65536, (-1,) * 65536, ())
BAD: dict[str, tuple[Any, list[str]]] = {
    "epoch": (Goodbye(-1), ["Goodbye.epoch", ">= 0", "-1"]),
    "late epoch": (Goodbye(2**32), ["Goodbye.epoch", "4294967295", "4294967296"]),
    "number": (Frame(0, -1), ["Frame.number", ">= 0", "-1"]),
    "large number": (Frame(0, 2**63), ["Frame.number", str(2**63 - 1), str(2**63)]),
    "huge number": (Frame(0, 2**64), ["Frame", "2**64"]),
    "share": (Frame(0, 0, ops=(Share(0, -1, 0, 0),)), ["Frame.ops[0].dst", ">= 0", "-1"]),
    "end": (Frame(0, 0, ops=(Share(0, 1, 0, -1),)), ["Frame.ops[0].p1", ">= 0", "-1"]),
    "ops": (Frame(0, 0, ops=OPS[:1] * 4097), ["Frame.ops", "4096", "4097"]),
    "op": (Frame(0, 0, ops=(cast(Any, RUN),)), ["Frame.ops[0]", "type"]),
    "no op": (Frame(0, 0, ops=(cast(Any, None),)), ["Frame.ops[0]", "None"]),
    "tokens": (run(tokens=(0,) * 65537), ["Frame.run.tokens", "65536", "65537"]),
    "no tokens": (run(tokens=(), n_draws=0), ["Frame.run.tokens", ">= 1", "found 0"]),
    "token": (run(tokens=(1, -1)), ["Frame.run.tokens[1]", ">= 0", "-1"]),
    "draws": (run(n_draws=3), ["Frame.run.n_draws", "0 to 2", "found 3"]),
    "last position": (run(position=I32_MAX - 1), ["Frame.run.position", f"0 to {I32_MAX - 2}"]),
    "rows of a run": (run(questions=LONG), ["rows of Frame.run", "1 to 65536", "65538"]),
    "parent": (run(questions=replace(ASKS, parents=(0,))), ["parents", "expected -1", "found 0"]),
    "asked": (run(questions=replace(ASKS, asked=(1,))), ["asked", "-1 to 0", "found 1"]),
    "regime": (run(regime="x"), ["Frame.run.regime", "'x'"]),
    "half": (rows(HIDDEN.astype(np.float16)), ["Frame.hidden", "float32", "float16"]),
    "double": (rows(HIDDEN.astype(np.float64)), ["Frame.hidden", "float32", "float64"]),
    "one row": (rows(HIDDEN[0]), ["Frame.hidden", "2 dimensions", "found 1"]),
    "rows": (rows(HIDDEN[:1]), ["Frame.hidden", "expected 2, found 1"]),
    "no columns": (rows(HIDDEN[:, :0]), ["columns of Frame.hidden", "1 to 65535", "found 0"]),
    "columns": (rows(np.zeros((2, 65536), np.float32)), ["columns of Frame.hidden", "65536"]),
    "no run": (Frame(0, 0, hidden=HIDDEN), ["Frame.hidden", "expected 0, found 2"]),
    "no rows": (Ping(0, 2, None), ["Ping.rows", "found 0"]),
    "least": (DraftRequest(0, 0, 0, (), 1, NAN), ["DraftRequest.least", "nan"]),
    "unlikely": (DraftRequest(0, 0, 0, (), 1, -0.1), ["DraftRequest.least", "0.0", "-0.1"]),
    "huge": (DraftRequest(0, 0, 0, (), 1, 10**400), ["DraftRequest"]),
    "surely": (Drafted(0, 0, (1,), (1.01,)), ["Drafted.probabilities[0]", "1.0", "1.01"]),
    "nan": (Drafted(0, 0, (1,), (NAN,)), ["Drafted.probabilities[0]", "nan"]),
    "inf": (Drafted(0, 0, (1,), (INF,)), ["Drafted.probabilities[0]", "inf"]),
    "uneven": (Drafted(0, 0, (1, 2), (0.5,)), ["Drafted.probabilities", "expected 2, found 1"]),
    "reason": (Failure(0, 0, "x" * 4097), ["Failure.reason", "4096", "4097"]),
    "surrogate": (Failure(0, 0, "\ud800"), ["Failure", "surrogates"]),
    "word": (Result(0, 0, (cast(Any, "a"),)), ["Result.draws[0]", "int", "'a'"]),
    "none": (Failure(0, cast(Any, None), ""), ["Failure.rank", "int", "None"]),
    "no seed": (Begin(0, SamplingParams(), 0, 0), ["Begin.sampling.seed", "None"]),
    "stream": (Begin(0, SAMPLING, 2**32, 0), ["Begin.stream", "4294967296"]),
    "model": (
        replace(cast(Hello, SAMPLES["hello"]), model="A" * 64),
        ["Hello.model", "[0-9a-f]", "AAA"],
    ),
    "no message": (Share(0, 0, 0, 0), ["Share"]),
    "no struct": (object(), ["object"]),
}


@pytest.mark.parametrize(("message", "words"), BAD.values(), ids=BAD.keys())
def test_a_message_that_would_be_refused_is_not_sent(message: Any, words: list[str]) -> None:
    with pytest.raises(WireError) as caught:
        encode(message)
    assert isinstance(caught.value, PyflowError)
    assert [word for word in words if word not in str(caught.value)] == [], caught.value
