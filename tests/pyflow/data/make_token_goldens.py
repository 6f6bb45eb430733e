"""Writes token_goldens.json.xz: token ids from llama.cpp.

Run with a Python that has llama-cpp-python 0.3.36 and gguf:
    python tests/pyflow/data/make_token_goldens.py WIKI.TEST.RAW.XZ NAME=MODEL.gguf...
"""

import hashlib
import json
import lzma
import sys
import tempfile
from array import array
from pathlib import Path

import gguf
import llama_cpp

HERE = Path(__file__).parent
# Bytes that are not UTF-8. (Code points past U+10FFFF are missing: they end llama.cpp.)
INVALID = [
    b"\x80",
    b"\xff\xfe",
    b"caf\xe9 au lait",
    b"cut \xe2\x82",
    b"cut \xf0\x9f\x98",
    b"\xe2\x41\x42 \xe2\x82\x41\xc3\xa9",
    b"\xf0\x9f\x41\x42\x43\xc3",
    b"overlong \xc0\xaf \xe0\x80\xaf \xc1\x81",
    b"surrogates \xed\xa0\xbd\xed\xb8\x80 \xed\xa0\x80x",
    b"<|im_end|>\xff</s>\xfe<table>\xfd</table> \xc3 \xa9",
    bytes(range(0x80, 0xF4)),
    b"\xf8\x88\x80\x80\x80 \xfc\x84\x80\x80\x80\x80",
]


def tokenize(
    model: llama_cpp.Llama, text: bytes, *, bos: bool = False, special: bool = False
) -> list[int]:
    return model.tokenize(text, add_bos=bos, special=special) if text else []


def every_character() -> bytes:
    """Each code point of two planes between a letter and a space, after a digit, and alone."""
    points = (chr(point) for point in range(0x20000) if not 0xD800 <= point < 0xE000)
    return "".join(f"a{c} 1{c} {c} " for c in points).encode()


def digest(ids: list[int]) -> str:
    return hashlib.sha256(array("i", ids).tobytes()).hexdigest()


# One name of each family; they are tried on the vocabulary of the last model.
PRE_TOKENIZERS = (
    "default falcon gpt-2 smollm llama-bpe dbrx glm4 qwen2 qwen35 ufakzeka".split()  # noqa: SIM905
)


def with_pre_tokenizer(path: str, name: str, folder: str) -> str:
    """A file with only the byte-level BPE vocabulary of `path`, but another pre-tokenizer."""
    fields = {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items()}
    out = Path(folder) / f"{name}.gguf"
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(name)
    writer.add_token_list(fields["tokenizer.ggml.tokens"])
    writer.add_token_types(fields["tokenizer.ggml.token_type"])
    writer.add_token_merges(fields["tokenizer.ggml.merges"])
    writer.add_bos_token_id(fields["tokenizer.ggml.bos_token_id"])
    writer.add_eos_token_id(fields["tokenizer.ggml.eos_token_id"])
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_head_count(1)
    writer.add_feed_forward_length(64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(out)


def main(wiki_path: str, *models: str) -> None:
    wiki = lzma.decompress(Path(wiki_path).read_bytes())
    hostile = (HERE / "hostile.txt").read_bytes()
    goldens = {
        "command": "python tests/pyflow/data/make_token_goldens.py ../shared/data/wiki.test.raw.xz "
        + " ".join(f"{model.partition('=')[0]}=MODEL.gguf" for model in models),
        "peer": f"llama-cpp-python {llama_cpp.__version__}",
        "invalid": [raw.hex() for raw in INVALID],
        "models": {},
        "pre_tokenizers": {},
    }
    for argument in models:
        name, _, path = argument.partition("=")
        model = llama_cpp.Llama(path, vocab_only=True, verbose=False)
        vocab = llama_cpp.llama_model_get_vocab(model.model)
        ids = tokenize(model, wiki)
        goldens["models"][name] = {
            "wiki": {
                "count": len(ids),
                "sha256": digest(ids),
                "first": ids[:64],
                "last": ids[-64:],
            },
            "every_character": digest(tokenize(model, every_character())),
            "hostile": tokenize(model, hostile),
            "hostile_special": tokenize(model, hostile, bos=True, special=True),
            "invalid": [tokenize(model, raw) for raw in INVALID],
            "stop_ids": [
                i
                for i in range(llama_cpp.llama_vocab_n_tokens(vocab))
                if llama_cpp.llama_vocab_is_eog(vocab, i)
            ],
        }
    with tempfile.TemporaryDirectory() as folder:
        for name in PRE_TOKENIZERS:
            altered = with_pre_tokenizer(path, name, folder)
            model = llama_cpp.Llama(altered, vocab_only=True, verbose=False)
            ids = tokenize(model, hostile, bos=True)
            goldens["pre_tokenizers"][name] = {"count": len(ids), "sha256": digest(ids)}
    (HERE / "token_goldens.json.xz").write_bytes(lzma.compress(json.dumps(goldens).encode()))


main(*sys.argv[1:])
