"""Which files of a repository make a model."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from pyflow.errors import FormatError, ResourceError
from pyflow.hub.choose import Choice, choose
from pyflow.hub.listing import RemoteFile
from pyflow.hub.names import HubName
from pyflow.hub.quants import label_of, quants

GB = 10**9


def files(*names: str, nbytes: int = GB) -> list[RemoteFile]:
    return [RemoteFile(name, nbytes) for name in names]


def chosen(
    listed: Sequence[RemoteFile],
    wanted: str | None = None,
    *,
    available: int | None = 100 * GB,
    index: object = None,
) -> Choice:
    name = HubName("o/r", None, wanted)
    return choose(name, listed, lambda _: json.dumps(index), available=available)


SIZES = {"Q2_K": 3, "Q3_K_M": 4, "Q4_K_M": 5, "Q6_K": 7, "Q8_0": 9, "IQ1_M": 1}
MANY = [RemoteFile(f"m-{label}.gguf", size * GB) for label, size in SIZES.items()]


@pytest.mark.parametrize(
    ("stem", "label"),
    [
        ("SmolLM2-135M-Instruct-Q4_K_M", "Q4_K_M"),
        ("qwen2.5-1.5b-instruct-q8_0", "Q8_0"),
        ("tinyllama-1.1b-chat-v1.0.Q5_K_S", "Q5_K_S"),
        ("x-UD-Q4_K_XL", "UD-Q4_K_XL"),
        ("x-fp16", "F16"),
        ("BF16/model", "BF16"),
        ("x-IQ4_NL-imat", "IQ4_NL"),
        ("gemma-2b-it", ""),
        ("model-32", ""),
    ],
)
def test_a_label_is_found_in_a_name(stem: str, label: str) -> None:
    assert label_of(stem) == label


@pytest.mark.parametrize(
    ("free", "label"), [(100, "Q4_K_M"), (5.5, "Q4_K_M"), (5.4, "Q3_K_M"), (3.4, "Q2_K")]
)
def test_the_usual_quant_or_the_best_that_fits_is_taken(free: float, label: str) -> None:
    choice = chosen(MANY, available=int(free * GB))
    assert choice.label == label
    assert label not in {other.label for other in choice.others}
    assert len(choice.others) == len(MANY) - 1


def test_if_none_fits_the_smallest_is_named() -> None:
    with pytest.raises(ResourceError, match="hf:o/r:Q2_K"):
        chosen(MANY, available=GB)
    assert chosen(MANY[:1], available=GB).label == "Q2_K"


@pytest.mark.parametrize(
    "wanted", ["q8_0", "Q8_0", "m-Q8_0.gguf", "M-q8_0.GGUF", "m-Q8_0", "sub/m-Q8_0.gguf"]
)
def test_a_quant_is_asked_for_by_label_or_file(wanted: str) -> None:
    listed = [*MANY, RemoteFile("sub/m-Q6_K.gguf", GB)]
    if "/" in wanted:
        listed = [RemoteFile(f"sub/{file.name}", file.nbytes) for file in MANY]
    assert chosen(listed, wanted, available=1).label == "Q8_0"


def test_what_is_not_there_is_answered_with_what_is() -> None:
    with pytest.raises(FormatError, match=r"Q6_K.*Q6_K_M"):
        chosen(MANY, "Q6_K_M")


def test_one_label_of_two_models_is_ambiguous() -> None:
    two = files("a-Q4_K_M.gguf", "b-Q4_K_M.gguf")
    for wanted in (None, "Q4_K_M"):
        with pytest.raises(FormatError, match=r"a-Q4_K_M\.gguf.*b-Q4_K_M\.gguf"):
            chosen(two, wanted)
    assert chosen(two, "b-q4_k_m").main == "b-Q4_K_M.gguf"


def test_split_files_are_one_model() -> None:
    names = [f"Q8_0/m-{i:05}-of-00003.gguf" for i in (3, 1, 2)]
    for wanted in (None, "q8_0", "Q8_0", names[0], "m-00002-of-00003.gguf"):
        choice = chosen(files(*names), wanted)
        assert [file.name for file in choice.files] == sorted(names)
        assert choice.main == sorted(names)[0]
        assert choice.nbytes == 3 * GB


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_model_that_lacks_a_part_is_none(lost: int) -> None:
    names = [f"m-{i:05}-of-00003.gguf" for i in (1, 2, 3) if i != lost]
    assert quants(files(*names)) == []
    with pytest.raises(FormatError, match=names[0]):
        chosen(files(*names))


def test_encoders_of_images_are_left_aside() -> None:
    choice = chosen(files("mmproj-model-f16.gguf", "m-Q8_0.gguf", "sub/x.mmproj.gguf"))
    assert (choice.label, choice.others) == ("Q8_0", ())
    assert choice.aside == ("mmproj-model-f16.gguf", "sub/x.mmproj.gguf")


def test_without_memory_to_ask_for_several_models_need_a_name() -> None:
    assert chosen(MANY, available=None).label == "Q4_K_M"
    with pytest.raises(FormatError, match=r"hf:o/r:Q6_K.*hf:o/r:Q8_0"):
        chosen(MANY[3:], available=None)


BESIDE = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
NOT_NEEDED = [
    *("README.md", ".gitattributes", "onnx/model.onnx", "original/consolidated.00.pth"),
    *("flax_model.msgpack", "tf_model.h5", "pytorch_model.bin", "training_args.bin", "logo.png"),
    *("sub/model.safetensors", "consolidated.safetensors", "original/tokenizer.model"),
]


def test_of_safetensors_all_that_is_needed_is_taken_and_nothing_else() -> None:
    choice = chosen(files(*BESIDE, *NOT_NEEDED, "model.safetensors"))
    assert [file.name for file in choice.files] == [*BESIDE, "model.safetensors"]
    assert (choice.main, choice.is_folder) == ("model.safetensors", True)


def test_of_shards_those_of_the_index_are_taken() -> None:
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index = {"weight_map": {"a": shards[0], "b": shards[1], "c": shards[0]}}
    main = "model.safetensors.index.json"
    choice = chosen(files(*BESIDE, *NOT_NEEDED, main, *shards, "x.safetensors"), index=index)
    assert [file.name for file in choice.files] == [*BESIDE, main, *shards]
    for broken in ({"weight_map": {"a": "gone"}}, {"weight_map": {}}, {"weight_map": 1}, [], 0):
        with pytest.raises(FormatError, match=r"index\.json"):
            chosen(files(*BESIDE, main, *shards), index=broken)


def test_pickles_are_taken_only_where_there_is_no_safetensors() -> None:
    choice = chosen(files("config.json", "pytorch_model.bin", "training_args.bin", "optimizer.pt"))
    assert [file.name for file in choice.files] == ["config.json", "pytorch_model.bin"]


def test_weights_beside_gguf_files_are_taken_if_asked_for() -> None:
    listed = files("config.json", "model.safetensors", "m-Q8_0.gguf")
    assert chosen(listed).label == "Q8_0"
    for wanted in ("safetensors", "model.safetensors"):
        assert chosen(listed, wanted).main == "model.safetensors"
    with pytest.raises(FormatError, match=r"model\.safetensors"):
        chosen(listed, "modle.safetensors")


@pytest.mark.parametrize(
    "names", [[], ["README.md"], ["model.safetensors"], ["sub/model.safetensors", "config.json"]]
)
def test_a_repository_without_a_model_is_refused(names: list[str]) -> None:
    with pytest.raises(FormatError, match="o/r"):
        chosen(files(*names))
