"""One malformed file per branch of the loader, and every field of a valid file cut short."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from cases import Case
from gguf_builder import (
    ARRAY,
    BOOL,
    F64,
    I16,
    NUMBERS,
    STRING,
    TYPE_F32,
    TYPE_Q1_0,
    TYPE_Q4_K,
    TYPE_Q8_0,
    TYPE_UNKNOWN,
    U8,
    U32,
    U64,
    Gguf,
    Part,
    Tensor,
    array,
    array_head,
    boolean,
    booleans,
    number,
    numbers,
    string,
    strings,
    text,
    u32,
    u64,
)

HUGE = 1 << 60
MAX = (1 << 64) - 1


def everything(version: int = 3) -> Gguf:
    """A valid file with every value type, arrays in arrays, and tensors of all three kinds."""
    values = [(f"number.{kind}", number(kind, 7)) for kind in NUMBERS]
    arrays = [(f"numbers.{kind}", numbers(kind, 1, 2, 3)) for kind in NUMBERS]
    inner = [*array_head(U8, 2), Part("array values", b"\1\2")]
    nested = array(ARRAY, 2, *inner, *array_head(STRING, 1), Part("string length", text("in")))
    return Gguf(
        [
            ("general.architecture", string("llama")),
            *values,
            *arrays,
            ("truth", boolean(1)),
            ("truths", booleans(1, 0, 1)),
            ("words", strings("a", "", "ü", b"\xff\xfe", "tail")),
            ("nothing", array(I16, 0)),
            ("nested", nested),
        ],
        [
            Tensor("embed", (32, 4), TYPE_Q8_0, 0),
            Tensor("norm", (3,), TYPE_F32, 160),
            Tensor("scalar", (), TYPE_F32, 192),
            Tensor("listed", (256,), TYPE_Q1_0, 224),
            Tensor("unknown", (5, 1, 1, 2), TYPE_UNKNOWN, 320),
        ],
        data=bytes(range(256)) + bytes(96),
        version=u32(version),
    )


def header_cases() -> Iterator[Case]:
    empty = bytes(64)
    yield Case("magic_wrong", Gguf(magic=b"GGUG").build(), ("header: magic at byte 0", "'GGUG'"))
    yield Case("magic_reversed", Gguf(magic=b"FUGG").build(), ("header: magic at byte 0",))
    yield Case("version_0", Gguf(version=u32(0)).build(), ("header: version at byte 4", "found 0"))
    for name, version, found in [
        ("version_1", u32(1), "found 1;"),
        ("version_4", u32(4), "found 4;"),
        ("version_255", u32(255), "found 255;"),
        ("big_endian_2", struct.pack(">I", 2), "found a big-endian file of version 2;"),
        ("big_endian_3", struct.pack(">I", 3), "found a big-endian file of version 3;"),
    ]:
        mentions = ("header: version at byte 4: expected 2 or 3", found)
        yield Case(name, Gguf(version=version).build(), mentions, "UnsupportedError")
    for n in (256, (1 << 31) + 1, 0x73525101):
        mentions = ("header: version at byte 4: expected 2 or 3", f"found {n:,};")
        yield Case(f"version_{n:x}", Gguf(version=u32(n)).build(), mentions)
    for n in (1, HUGE, MAX):
        yield Case(
            f"tensor_count_{n:x}", Gguf(n_tensors=n).build(), ("header: tensor count at byte 8",)
        )
        yield Case(
            f"metadata_count_{n:x}", Gguf(n_entries=n).build(), ("metadata count at byte 16",)
        )
    yield Case(
        "tensor_count_just_too_many",
        Gguf(n_tensors=3).build() + empty,
        ("tensor count at byte 8: expected at most 2 ", "found 3;"),
    )
    yield Case(
        "metadata_count_just_too_many",
        Gguf(n_entries=5).build() + empty,
        ("metadata count at byte 16: expected at most 4 ", "found 5;"),
    )


def key_cases() -> Iterator[Case]:
    value = number(U32, 1)
    where = "metadata entry 1 of 1: key"
    for n in (9, HUGE, MAX):
        yield Case(
            f"key_length_{n:x}",
            Gguf([("", value)], key_length=n).build(),
            (f"{where} length at byte 24", f"found {n:,};"),
        )
    for name, key, found in [
        ("key_empty", b"", "0 bytes ''"),
        ("key_not_ascii", "schlüssel".encode(), "10 bytes 'schlüssel'"),
        ("key_not_utf8", b"a\xffb", r"3 bytes 'a\xffb'"),
        ("key_control_character", b"a\x1b[2J", r"5 bytes 'a\x1b[2J'"),
        ("key_delete_character", b"a\x7f", r"2 bytes 'a\x7f'"),
        ("key_zero_byte", b"a\0", r"2 bytes 'a\x00'"),
        ("key_too_long", b"k" * 65536, "65,536 bytes 'kkk"),
    ]:
        yield Case(name, Gguf([(key, value)]).build(), (f"{where} at byte 24", found))
    twins = [("a", value), ("b", value), ("a", string("other"))]
    yield Case("key_twice", Gguf(twins).build(), ("metadata 'a': key at byte 58", "key at byte 24"))


def value_cases() -> Iterator[Case]:
    def case(name: str, value: list[Part], *mentions: str, tail: bytes = b"") -> Case:
        return Case(name, Gguf([("k", value)]).build() + tail, ("metadata 'k': ", *mentions))

    for kind in (13, 255, (1 << 32) - 1):
        yield case(
            f"value_type_{kind}", [Part("value type", u32(kind) + u64(0))], f"found {kind:,};"
        )
        yield case(f"array_type_{kind}", array(kind, 0), "value type at byte 37", f"{kind:,};")
    for kind in NUMBERS:
        short = [Part("value type", u32(kind))]
        data = Gguf([("kkkkkkkkkk", short)]).build()
        yield Case(f"value_missing_{kind}", data, ("metadata 'kkkkkkkkkk': value at byte 46",))
    for n in (2, 128, 255):
        yield case(f"bool_{n}", boolean(n), "bool at byte 37: expected 0 or 1", f"found {n};")
    yield case("bool_in_array_2", booleans(0, 1, 2, 1), "bool at byte 51", "found 2;")
    for n in (6, HUGE, MAX):
        yield case(
            f"string_length_{n:x}",
            string("hello", length=n),
            "string length at byte 37",
            f"{n:,};",
        )
        inner = [Part("", text("ok")), Part("", text("hello", length=n))]
        yield case(
            f"string_in_array_length_{n:x}",
            array(STRING, 2, *inner),
            "string length at byte 59",
            f"found {n:,};",
        )
    # 2^61 values of 8 bytes are 2^64 bytes, which is 0 to a program that does not look.
    for kind in (U8, U32, U64, F64, BOOL, STRING, ARRAY):
        for n in (100, 1 << 61, MAX):
            value = array(kind, n, Part("", bytes(64)))
            yield case(f"array_of_{kind}_count_{n:x}", value, "array count at byte 41", f"{n:,};")
    yield case(
        "array_in_array_count",
        array(ARRAY, 1, *array_head(U64, HUGE), Part("", bytes(64))),
        "array count at byte 53",
    )
    yield case("array_in_array_type", array(ARRAY, 1, *array_head(99, 0)), "found 99;")
    for depth in (9, 64, 5000):
        nested = [part for _ in range(depth - 1) for part in array_head(ARRAY, 1)]
        value = [Part("value type", u32(ARRAY)), *nested, *array_head(U8, 0)]
        yield case(f"arrays_{depth}_deep", value, "array at byte 133", "at most 8 nested arrays")


def alignment_cases() -> Iterator[Case]:
    where = "metadata 'general.alignment': value at byte 49"
    for name, value, found in [
        ("u64", number(U64, 32), "a value of type 10"),
        ("string", string("32"), "a value of type 8"),
        ("0", number(U32, 0), "0"),
        ("4", number(U32, 4), "4"),
        ("48", number(U32, 48), "48"),
        ("2_to_the_22", number(U32, 1 << 22), "4,194,304"),
        ("2_to_the_31", number(U32, 1 << 31), "2,147,483,648"),
    ]:
        data = Gguf([("general.alignment", value)]).build()
        yield Case(f"alignment_{name}", data, (where, f"found {found};"))


def tensor_cases() -> Iterator[Case]:
    def case(name: str, *tensors: Tensor, mentions: tuple[str, ...], data: int = 64) -> Case:
        return Case(name, Gguf(tensors=tensors, data=bytes(data)).build(), mentions)

    first = "tensor entry 1 of 1: name"
    for n in (200, HUGE, MAX):
        tensor = Tensor("t", name_length=n)
        found = (f"{first} length at byte 24", f"found {n:,};")
        yield case(f"name_length_{n:x}", tensor, mentions=found)
    for label, name, found in [
        ("empty", b"", "0 bytes ''"),
        ("too_long", b"n" * 65, "65 bytes 'nnn"),
        ("not_utf8", b"a\xc3", r"2 bytes 'a\xc3'"),
        ("surrogate", b"\xed\xa0\x80", r"3 bytes '\xed\xa0\x80'"),
        ("overlong", b"\xc0\xaf", r"2 bytes '\xc0\xaf'"),
        ("beyond_unicode", b"\xf4\x90\x80\x80", r"4 bytes '\xf4\x90\x80\x80'"),
    ]:
        yield case(f"name_{label}", Tensor(name), mentions=(f"{first} at byte 24", found))
    yield case(
        "name_twice",
        Tensor("t"),
        Tensor("s", offset=32),
        Tensor("t", offset=64),
        mentions=("tensor 't': name at byte 90", "name at byte 24"),
        data=96,
    )

    for n in (5, (1 << 32) - 1):
        tensor, found = Tensor(n_dims=n), ("number of dimensions at byte 33", f"found {n:,};")
        yield case(f"n_dims_{n}", tensor, mentions=("tensor 't': ", *found))
    for d in range(4):
        dims = tuple(0 if i == d else 4 for i in range(4))
        found = (f"tensor 't': dimension {d} at byte {37 + 8 * d}", "found 0;")
        yield case(f"dimension_{d}_zero", Tensor(dims=dims), mentions=found)
    for label, dims in {
        "dimension_max": (MAX,),
        "dimension_2_to_the_63": (1 << 63,),
        "dimensions_multiply_to_2_to_the_63": (1 << 31, 1 << 32),
        "dimensions_multiply_to_2_to_the_64": (1 << 32, 1 << 32),
        "dimensions_multiply_past_2_to_the_64": (MAX // 2, 2, 2, 2),
    }.items():
        where = (f"tensor 't': dimension {0 if len(dims) == 1 else 1} at", "fewer than 2^63")
        yield case(label, Tensor(dims=dims), mentions=where)
    yield case(
        "size_past_2_to_the_64",
        Tensor(dims=(1 << 62,)),
        mentions=("tensor 't': size at byte 45", "4,611,686,018,427,387,904 weights of F32"),
    )
    for label, dims, kind, expected in [
        ("q8_0", (33,), TYPE_Q8_0, "a multiple of 32 for Q8_0, found 33;"),
        ("q8_0_scalar", (), TYPE_Q8_0, "a multiple of 32 for Q8_0, found 1;"),
        ("q8_0_rows_make_it_up", (16, 2), TYPE_Q8_0, "a multiple of 32 for Q8_0, found 16;"),
        ("q4_k", (288,), TYPE_Q4_K, "a multiple of 256 for Q4_K, found 288;"),
        ("q1_0", (64,), TYPE_Q1_0, "a multiple of 128 for Q1_0, found 64;"),
    ]:
        tensor = Tensor(dims=dims, type=kind)
        yield case(f"row_{label}", tensor, mentions=("tensor 't': row length at", expected))


def placement_cases() -> Iterator[Case]:
    def case(name: str, *tensors: Tensor, mentions: tuple[str, ...], data: int = 64) -> Case:
        return Case(name, Gguf(tensors=tensors, data=bytes(data)).build(), mentions)

    for n in (1, 16, MAX):
        yield case(
            f"offset_{n:x}_misaligned",
            Tensor(offset=n),
            mentions=(
                "tensor 't': data offset at byte 49: expected a multiple of the alignment 32",
            ),
        )
    past = (
        "tensor 't': data offset at byte 49: expected data that end within the file (128 bytes)",
    )
    for n in (64, 96, 1 << 32, 1 << 62, MAX - 31):
        found = f"found 64 + {n:,} + 16 bytes;"
        yield case(f"offset_{n:x}_past_the_end", Tensor(offset=n), mentions=(*past, found))
    found = "found 64 + 32 + 36 bytes;"
    yield case("last_byte_missing", Tensor(dims=(9,), offset=32), mentions=(*past, found))
    found = "found 64 + 0 + 9,223,372,036,854,775,804 bytes;"
    yield case("size_2_to_the_63", Tensor(dims=((1 << 61) - 1,)), mentions=(*past, found))
    unknown = Tensor(type=TYPE_UNKNOWN, offset=64)
    yield case("unknown_type_past_the_end", unknown, mentions=(*past, "64 + 64 + 0 bytes"))
    listed = Tensor(type=TYPE_Q1_0, dims=(512,))
    yield case("listed_type_past_the_end", listed, mentions=(*past, "64 + 0 + 72 bytes"))
    table = Gguf(tensors=[Tensor()]).build()[:57]
    yield Case("no_padding", table, ("tensor 't': data offset at byte 49", "(57 bytes)"))

    wide = Tensor("wide", (16,))
    for label, a, b in [
        ("same_offset", Tensor("a"), Tensor("b")),
        ("tail", wide, Tensor("b", offset=32)),
        ("inside_out_of_order", Tensor("b", offset=32), Tensor("wide", (24,))),
        ("listed_type", Tensor("x", (256,), TYPE_Q1_0), Tensor("b", offset=32)),
        ("unknown_type", Tensor("u", type=TYPE_UNKNOWN), Tensor("b")),
        ("by_unknown_type", wide, Tensor("u", type=TYPE_UNKNOWN, offset=32)),
    ]:
        mentions = ("data offset at byte", "overlap", "inside tensor '")
        yield case(f"overlap_{label}", a, b, mentions=mentions, data=128)


def cut_cases() -> Iterator[Case]:
    """A valid file that ends in the middle of each of its fields, and right before it."""
    whole = everything()
    start = 0
    for i, part in enumerate(whole.parts):
        for label, at in {"before": start, "inside": start + (len(part.data) + 1) // 2}.items():
            if 0 < at < start + len(part.data):
                # A count that the rest of the file cannot hold is refused before what it counts.
                any_of = (f": {part.field}", "header: tensor count", "header: metadata count")
                name = f"cut_{label}_{i}_{part.field.replace(' ', '_')}"
                yield Case(name, whole.build()[:at], (), any_of=(*any_of, ": array count"))
        start += len(part.data)


CASES = [
    *header_cases(),
    *key_cases(),
    *value_cases(),
    *alignment_cases(),
    *tensor_cases(),
    *placement_cases(),
]
CUTS = list(cut_cases())
VALID = {
    "version_2": everything(2).build(),
    "version_3": everything(3).build(),
    "nothing": Gguf().build(),
    "only_metadata": Gguf([("k", number(U32, 1))]).build(),
    "only_a_tensor": Gguf(tensors=[Tensor()], data=bytes(16)).build(),
}
