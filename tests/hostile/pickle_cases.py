"""Pickles that would run code where pickles are run, and such that break their format."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from cases import Case
from torch_builder import (
    EMPTY_DICT,
    EMPTY_LIST,
    EMPTY_TUPLE,
    FALSE,
    HOOKS,
    MARK,
    NONE,
    PICKLE,
    REDUCE,
    archive,
    dict_of,
    named,
    number,
    pickled,
    storage,
    stream,
    tensor,
    text,
    tuple_of,
    zipped,
)

MARKER = "/tmp/pyflow-hostile-pickle-ran"


class Evil:
    """What pickles to a call of anything."""

    def __init__(self, call: object, *arguments: object) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> Any:
        return self.call, self.arguments


_GLOBALS = [
    ("os", "system"),
    ("posix", "system"),
    ("subprocess", "Popen"),
    ("builtins", "eval"),
    ("builtins", "exec"),
    ("builtins", "getattr"),
    ("builtins", "__import__"),
    ("__builtin__", "eval"),
    ("torch", "load"),
    ("torch", "storage"),
    ("torch", "floatstorage"),
    ("torch", ""),
    ("", "OrderedDict"),
    ("torch.storage", "_load_from_bytes"),
    ("torch._utils", "_rebuild_tensor_v2.__globals__"),
    ("torch._utils", "_rebuild_tensor_v4"),
    ("torch.hub", "load"),
    ("torch.serialization", "load"),
    ("collections", "OrderedDict.fromkeys"),
    ("collections", "defaultdict"),
    ("numpy", "load"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
    ("functools", "partial"),
    ("operator", "attrgetter"),
    ("copyreg", "_reconstructor"),
    ("argparse", "Namespace"),
    ("runpy", "_run_code"),
    ("\x1b[2J", "x"),
]


def global_cases() -> Iterator[Case]:
    """Pickles that would run code where pickles are run: each is refused by the global's name."""
    touch = tuple_of(text(f"touch {MARKER}"))

    def case(name: str, found: str, *body: bytes) -> Case:
        mentions = ("global at byte", "expected functions that rebuild tensors", f"found {found}")
        return Case(f"global_{name}", archive(*body), mentions)

    for module, name in _GLOBALS:
        shown = f"{module}.{name}".replace("\x1b", r"\x1b")
        label = f"{module}_{name}".replace(".", "_").replace("\x1b[", "_")
        yield case(label, f"{shown};", named(module, name) + touch + REDUCE)
    system = named("os", "system")
    yield case("uncalled", "os.system", system)
    yield case(
        "in_dict", "os.system", dict_of(text("w"), tensor(), text("x"), system + touch + REDUCE)
    )
    yield case("as_argument", "os.system", tensor(of=system + touch + REDUCE))
    yield case("as_hooks", "os.system", tensor(more=FALSE + system + touch + REDUCE))
    yield case("as_storage_class", "os.system", tensor(of=storage(system)))
    yield case("as_key", "os.system", dict_of(system + touch + REDUCE, NONE))
    yield case("as_shape", "os.system", tensor(shape_op=system + touch + REDUCE))
    yield case("built", "os.system", system + touch + REDUCE + dict_of(text("a"), NONE) + b"b")
    yield case("appended_to", "os.system", system + EMPTY_TUPLE + REDUCE + NONE + b"a")
    yield case("new_object", "os.system", system + touch + b"\x81")
    yield case("popped", "os.system", system + touch + REDUCE + b"0" + EMPTY_DICT)
    yield case("by_stack", "os.system", b"\x8c\2os\x8c\6system\x93" + touch + REDUCE)
    yield case("by_memo", "os.system", b"\x8c\2os\x94\x8c\6system\x940h\0h\1\x93" + touch + REDUCE)
    yield case("as_instance", "os.system", MARK + text("true") + b"ios\nsystem\n")
    yield case("then_broken", "os.system", system + touch + REDUCE + b"\xff")
    yield case("then_cut", "os.system", system + text("", length=1 << 31))
    yield case("two", "os.system, builtins.eval", system + b"0" + named("builtins", "eval"))
    many = b"".join(named("m", f"g{i}") + b"0" for i in range(9))
    yield case("nine", "m.g0, m.g1, m.g2, m.g3, m.g4 and 4 more", many + NONE)
    for protocol in (2, 3, 4, 5):
        data = pickle.dumps({"w": Evil(print, MARKER)}, protocol)
        mentions = ("global at byte", "print;")
        yield Case(f"global_plain_{protocol}", data, mentions)
        yield Case(f"global_stream_{protocol}", stream(data), mentions)
        yield Case(f"global_zip_{protocol}", zipped([replace(PICKLE, data=data)]), mentions)
    for part in ("magic", "version", "machine", "keys"):
        evil = {part: pickled(system + touch + REDUCE)}
        yield Case(f"global_in_{part}", stream(**evil), ("found os.system",))  # type: ignore[arg-type]


# Opcodes that torch.save does not write.
_CODES = (
    b"I1\n",
    b"L1L\n",
    b"F1.0\n",
    b"S'a'\n",
    b"Va\n",
    b"P0\n",
    b"p0\n",
    b"g0\n",
    b"l",
    b"d",
    b"o",
    b"\x82\1",
    b"\x83\1\0",
    b"\x84\1\0\0\0",
    b"\x92",
    b"\x97",
    b"\x98",
    b"\0",
    b"\xff",
)
# A body of a pickle, and what is said of it.
_PICKLE_FAULTS = [
    ("stop_empty", b"", "marks at the end, found 0"),
    ("stop_two", NONE + NONE, "marks at the end, found 2"),
    ("stop_mark", MARK + NONE, "found 1 values and 1 marks"),
    ("pop_empty", b"0", "stack at byte"),
    ("dup_empty", b"2", "a value, found none"),
    ("dup_below_mark", NONE + MARK + b"2", "a value, found none"),
    ("tuple_without_mark", NONE + b"t", "a mark, found none"),
    ("pop_mark_without", b"1", "a mark, found none"),
    ("tuple3_of_2", NONE + NONE + b"\x87", "3 values, found fewer"),
    ("tuple1_below_mark", NONE + MARK + b"\x85", "1 values, found fewer"),
    ("append_empty", b"a", "1 values, found fewer"),
    ("append_to_nothing", NONE + b"a", "a value, found none"),
    ("append_to_dict", EMPTY_DICT + NONE + b"a", "a list, found a dict"),
    ("append_to_text", text("x") + NONE + b"a", "a list, found a text"),
    ("appends_to_number", number(1) + MARK + NONE + b"e", "a list, found a number"),
    ("append_to_itself", EMPTY_LIST + b"2a0", "marks at the end, found 0"),
    ("set_item_of_list", EMPTY_LIST + NONE + NONE + b"s", "a dict, found a list"),
    ("set_items_odd", EMPTY_DICT + MARK + NONE + b"u", "a key without value"),
    ("add_items_to_list", EMPTY_LIST + MARK + NONE + b"\x90", "a set, found a list"),
    (
        "get_nothing",
        b"h\0",
        "memo at byte",
    ),
    ("get_far", b"j\xff\xff\xff\xff", "an index that is in use, found 4,294,967,295"),
    ("get_hole", NONE + b"q\2h\1", "an index that is in use, found 1"),
    ("put_empty", b"q\0", "a value, found none"),
    ("put_far", NONE + b"r\xff\xff\xff\xff", "below the number of bytes read"),
    ("put_below_mark", NONE + MARK + b"q\0", "a value, found none"),
    ("memoize_empty", b"\x94", "a value, found none"),
    (
        "text_past_end",
        text("a", length=1000),
        "length at byte",
    ),
    ("text_max", text("a", length=(1 << 32) - 1), "length at byte"),
    ("text_64_bits", b"\x8d" + bytes([255] * 8), "length at byte"),
    ("text_63_bits", b"\x8d" + bytes([255] * 7) + b"\x7f", "length at byte"),
    ("text_not_utf8", text(b"\xff"), "expected UTF-8"),
    ("text_surrogate", text(b"\xed\xa0\x80"), "expected UTF-8"),
    ("bytes_past_end", b"C\xff", "length at byte"),
    ("bytes_64_bits", b"\x8e" + bytes([255] * 8), "length at byte"),
    ("array_64_bits", b"\x96" + bytes([255] * 8), "length at byte"),
    ("long_past_end", b"\x8b\xff\xff\xff\xff", "length at byte"),
    ("long_negative", b"\x8b\xff\xff\xff\x7f", "length at byte"),
    ("frame_past_end", b"\x95" + struct.pack("<Q", 1 << 60) + NONE, "frame at byte"),
    ("float_cut", b"G\0", "number at byte"),
    ("global_open", b"ctorch", "a name of at most 256 bytes"),
    ("global_long", b"c" + b"a" * 300 + b"\nb\n", "a name of at most 256 bytes"),
    ("global_half", b"ctorch\n", "a name of at most 256 bytes"),
    ("stack_global_empty", b"\x93", "a value, found none"),
    ("stack_global_number", number(1) + number(2) + b"\x93", "two texts, found a number"),
    ("stack_global_long", text("a" * 300) + text("b") + b"\x93", "at most 256 bytes of UTF-8"),
    ("reduce_empty", b"R", "a value, found none"),
    ("reduce_text", text("os.system") + EMPTY_TUPLE + REDUCE, "a global, found a text"),
    ("reduce_list", HOOKS[:-2] + EMPTY_LIST + REDUCE, "a tuple, found a list"),
    ("reduce_dtype", named("torch", "int8") + EMPTY_TUPLE + REDUCE, "a global, found a dtype"),
    (
        "reduce_storage",
        named("torch", "FloatStorage") + EMPTY_TUPLE + REDUCE,
        "a function that rebuilds",
    ),
    ("build_text", text("a") + NONE + b"b", "a dict, found a text"),
    ("build_tensor", tensor() + NONE + b"b", "found a tensor"),
    ("build_empty", NONE + b"b", "a value, found none"),
    (
        "ordered_dict_pairs",
        HOOKS[:-2] + tuple_of(EMPTY_LIST + NONE + b"a") + REDUCE,
        "a list of pairs",
    ),
    (
        "ordered_dict_two",
        HOOKS[:-2] + tuple_of(NONE, NONE) + REDUCE,
        "0 to 1 for collections.OrderedDict",
    ),
    ("ordered_dict_text", HOOKS[:-2] + tuple_of(text("a")) + REDUCE, "a list of pairs"),
    (
        "parameter_of_text",
        named("torch._utils", "_rebuild_parameter") + tuple_of(text("a")) + REDUCE,
        "a tensor, found a text",
    ),
    (
        "size_of_number",
        named("torch", "Size") + tuple_of(number(1)) + REDUCE,
        "a tuple, found a number",
    ),
    (
        "device_of_number",
        named("torch", "device") + tuple_of(number(1)) + REDUCE,
        "a text, found a number",
    ),
    ("marks", MARK * 1025, "marks at byte"),
    ("deep", (EMPTY_LIST + MARK) * 5000, "marks at byte"),
    ("nested", EMPTY_LIST * 70 + b"a" * 69, "at most 64 containers in each other"),
    ("cycle_by_memo", EMPTY_LIST + b"q\0h\0a", "at most 64 containers in each other"),
    ("bombs_of_names", dict_of(text("n" * 5000), tensor()), "at most 4,096 bytes of UTF-8"),
    ("after", NONE + b"." + NONE, "the end of the pickle"),
    ("name_twice", dict_of(text("a"), tensor(), text("a"), tensor()), "each name once"),
    (
        "name_in_model",
        dict_of(text("w"), tensor(), text("model"), dict_of(text("w"), tensor())),
        "'w': name at",
    ),
]


def opcode_cases() -> Iterator[Case]:
    def case(name: str, body: bytes, *mentions: str) -> Case:
        return Case(f"pickle_{name}", archive(body), ("data.pkl", *mentions))

    for code in _CODES:
        words = f"expected an opcode that torch.save writes, found 0x{code[0]:02x}"
        yield case(f"opcode_{code[0]:02x}", MARK + NONE + code, "opcode at byte", words)
    for n in (0, 1, 6, 255):
        yield Case(
            f"protocol_{n}",
            archive(b"\x80" + bytes([n]) + NONE),
            ("protocol at byte", f"2 to 5, found {n}"),
        )
    for name, body, words in _PICKLE_FAULTS:
        yield case(name, body, words)
    laughs = (
        EMPTY_LIST
        + b"q\0"
        + tensor()
        + b"a0"
        + b"".join(
            EMPTY_LIST + bytes([0x71, i, 40]) + bytes([0x68, i - 1]) * 9 + b"e0"
            for i in range(1, 20)
        )
    )
    yield case("laughs_shared", laughs + b"h\x13", "contents at byte")
    yield case("globals", b"".join(named("m", f"{i}") + b"0" for i in range(300)), "found m.0, m.1")


CASES = [*global_cases(), *opcode_cases()]
