"""Models with layers on a device: the texts of the CPU, and errors that say what to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pyflow
from pyflow.cli import main
from pyflow.cli.bench.timing import backends
from pyflow.devices import Device, Found, Probe, find
from pyflow.engine import offload
from pyflow.errors import PlacementWarning, PyflowError, ResourceError, UnsupportedError
from pyflow.sampling import SamplingParams
from pyflow.speculate import Speculation, Speculator, speculator

from ..speculate.trained.methods import heads
from ..tiny_models import write_model

PROMPTS = ["One, two, three, four,", "The capital of France is", "a b a b a b a", "Rivers:"]
GPU = Device(
    number=1,
    api="OpenCL",
    name="A Graphics Card",
    vendor="",
    driver="",
    kind="gpu",
    memory=8 << 30,
    largest_buffer=2 << 30,
    compute_units=8,
    unified=False,
)
CPU = replace(GPU, number=0, name="Some CPU", kind="cpu")


def test_texts_are_those_of_the_cpu(tmp_path: Path, devices: list[int]) -> None:
    """On one device, and on several one after the other, side by side, and both."""
    assert len(devices) == 4
    path = write_model(tmp_path / "tiny.gguf", n_layers=4, window=24, has_tokenizer=True)
    places = [pyflow.Offload(n_layers=3, device=names) for names in ("0", "0;1", "0&1", "0&1;2&3")]
    check_texts(path, places, n=6)


@pytest.mark.model
@pytest.mark.accept
@pytest.mark.parametrize("n_layers", [1, 15, "all"])
def test_longer_texts_are_those_of_the_cpu(
    model_path: Callable[[str], Path], device: int, n_layers: Any
) -> None:
    placed = pyflow.Offload(n_layers=n_layers, device=str(device))
    check_texts(model_path("smollm2"), [placed], n=32)


def check_texts(path: Path, places: Sequence[pyflow.Offload], n: int) -> None:
    """Greedy and sampled, one and four at a time, with drafts and without."""
    kinds = [SamplingParams(temperature=0, n_logprobs=2), SamplingParams(seed=3, n_logprobs=2)]
    with pyflow.load(path, n_threads=2) as cpu:
        expected = [cpu.generate(PROMPTS, n_predict=n, sampling=kind) for kind in kinds]
    for placed in places:
        with pyflow.load(path, n_threads=2, offload=placed) as model:
            for kind, texts in zip(kinds, expected, strict=True):
                together = model.generate(PROMPTS, n_predict=n, sampling=kind)
                for one, other in zip(texts, together, strict=True):
                    assert (one.tokens, one.logprobs) == (other.tokens, other.logprobs), placed
            alone = expected[1][2]
            for drafts in (
                speculator(model, Speculation(method="auto", fixed=True)),
                Speculator(heads(model, "mlp"), fixed=True),
            ):
                with drafts:
                    drafted = model.generate(
                        PROMPTS[2], n_predict=n, sampling=kinds[1], speculator=drafts
                    )
                assert (drafted.tokens, drafted.logprobs) == (alone.tokens, alone.logprobs), placed
            assert drafted.speculation.drafted > 0


def test_devices_are_named_by_texts_and_memory_may_be_large() -> None:
    assert pyflow.Offload(memory=6 << 30).memory == 6 << 30
    with pytest.raises(
        PyflowError, match=r"Offload\.device: expected a number or a name in a text"
    ):
        pyflow.Offload(device=0)  # type: ignore[arg-type]


def test_a_measurement_names_the_device() -> None:
    placed = SimpleNamespace(n_layers=12, groups=((GPU,),))
    model: Any = SimpleNamespace(isa="avx2", placed=placed)
    assert backends(model) == "CPU avx2, 12 layers on gpu 1 (A Graphics Card)"
    placed.n_layers = 1
    assert "1 layer on" in backends(model)


@pytest.mark.model
def test_the_command_line_offers_devices(
    model_path: Callable[[str], Path], device: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(model_path("smollm2"))
    asked = ["generate", "-m", path, "--raw", "-p", PROMPTS[0], "-n", "3", "--seed", "1", "--json"]
    tokens = []
    for more in ([], ["--gpu-layers", "1", "--gpu", str(device)]):
        assert main([*asked, *more]) == 0
        tokens.append(json.loads(capsys.readouterr().out)["tokens"])
    assert tokens[0] == tokens[1]

    memory = ["inspect", path, "--memory", "--json"]
    assert main([*memory, "--gpu-layers", "all", "--gpu", str(device)]) == 0
    there = json.loads(capsys.readouterr().out)
    assert main(memory) == 0
    here = json.loads(capsys.readouterr().out)
    assert there["device"] > there["weights"]
    assert there["weights"] < here["weights"]
    assert "device" not in here

    for wrong, code, text in [
        (
            ["--gpu-layers", "31", "--gpu", str(device)],
            3,
            "expected 1 to 30, all or auto, found 31",
        ),
        (["--gpu-layers", "-1"], 2, "--gpu-layers: expected a number of layers, all or auto"),
        (["--gpu-layers", "1", "--gpu", "nothing like it"], 3, "a device that 'pyflow doctor'"),
        (["--gpu", str(device)], 2, "--gpu needs --gpu-layers"),
        (["--gpu-layers", "1", "--gpu-experts", "some"], 2, "--gpu-experts: expected a number"),
        (["--gpu-memory", "6"], 2, "--gpu-memory needs --gpu-layers"),
        (["--gpu-layers", "1", "--gpu-memory", "6 apples"], 2, "expected a size such as 6GiB"),
        (
            ["--gpu-layers", "30", "--gpu", str(device), "--gpu-memory", "60MiB"],
            4,
            "choose --gpu-layers 2 or less",
        ),
        (["--gpu-layers", "1", "--pipeline", "auto", "--stages", "2"], 2, "gives a rank a device"),
    ]:
        assert main([*asked, *wrong]) == code
        assert text in capsys.readouterr().err


@pytest.mark.model
def test_a_device_that_is_too_small_says_how_many_layers_fit(
    model_path: Callable[[str], Path], device: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model_path("smollm2")
    small = replace(find().devices[device], memory=offload._SPARE + (60 << 20))
    monkeypatch.setattr(offload, "find", lambda: Found((small,), ()))
    probed = Probe(read_bandwidth=1e12, free_memory=small.memory)
    monkeypatch.setattr(offload, "probe", lambda *_: probed)
    auto = pyflow.Offload(n_layers="auto", device=str(device), n_ctx=512)
    planned = pyflow.plan(path, offload=auto, n_ctx=512)
    with pyflow.load(path, offload=auto) as model, model.context(512):
        assert model.placed is not None
        assert 0 < model.placed.n_layers == planned.gpu_layers < 14
        assert f"{planned.gpu_layers} of 30 layers and the head" in model.placement_note
        assert 0 < planned.device <= planned.device_available
    most = planned.gpu_layers
    with pytest.raises(ResourceError, match=rf"choose --gpu-layers {most} or less"):
        pyflow.load(path, offload=replace(auto, n_layers="all"))
    with (
        pyflow.load(path, offload=replace(auto, n_layers=most)) as model,
        pytest.raises(ResourceError, match=r"a context of 8192 .* choose"),
    ):
        model.context(8192)


def test_a_device_is_chosen_by_number_or_name_and_never_a_cpu_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offload, "find", lambda: Found((CPU, GPU), ()))
    assert offload.choose("") == ((GPU,),)
    assert offload.choose("0") == ((CPU,),)
    assert offload.choose("graphics") == ((GPU,),)
    assert offload.choose("0,1") == offload.choose("0; graphics") == ((CPU,), (GPU,))
    assert offload.choose("1&0") == ((GPU, CPU),)
    with pytest.raises(UnsupportedError, match="the name of one device"):
        offload.choose("c")
    for name, why in ("0;0", "each device once, found gpu 0"), ("0;", "gpu ''"), ("&1", "gpu ''"):
        with pytest.raises(UnsupportedError, match=why):
            offload.choose(name)
    monkeypatch.setattr(offload, "find", lambda: Found((CPU,), ()))
    with pytest.raises(
        UnsupportedError, match=r"expected a GPU .* found device 0: Some CPU \(cpu\)"
    ):
        offload.choose("")
    monkeypatch.setattr(offload, "find", lambda: Found((), ("OpenCL: no library",)))
    with pytest.raises(UnsupportedError, match="found none: OpenCL: no library"):
        offload.choose("1")


def test_a_cache_that_cannot_be_written_is_told_once(
    tmp_path: Path, devices: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert devices
    path = write_model(tmp_path / "tiny.gguf", n_layers=2, window=0)
    monkeypatch.setattr(offload, "cache_dir", lambda: path)  # a file
    with pytest.warns(PlacementWarning) as told:
        pyflow.load(path, n_threads=1, offload=pyflow.Offload(device="0;1")).close()
    (warning,) = told
    assert "compiled programs are not kept" in str(warning.message)


@pytest.mark.parametrize(
    ("probed", "told"),
    [
        (Probe(read_bandwidth=9e9, free_memory=8 << 30), "gpu 1 (A Graphics Card): 8 of 8 layers"),
        (Probe(read_bandwidth=9e9, free_memory=(256 << 20) + 35), "3 of 8 layers and the head"),
        (Probe(read_bandwidth=9e9, free_memory=1 << 20), "no layer fits into 0.00 GB"),
        (Probe(read_bandwidth=1e9), "reads 1.0 GB/s, the CPU 2.0"),
        (Probe(fault="fma(1, 2, 3)", read_bandwidth=9e9), "not exact: fma"),
        (Probe(error="it is asleep"), "it is asleep"),
    ],
)
def test_auto_takes_a_gpu_that_is_exact_and_faster(
    monkeypatch: pytest.MonkeyPatch, probed: Probe, told: str
) -> None:
    monkeypatch.setattr(offload, "find", lambda: Found((CPU, GPU), ()))
    monkeypatch.setattr(offload, "probe", lambda *_: probed)
    auto = pyflow.Offload(n_layers="auto")
    placed, note = offload.place_auto(auto, 8, False, lambda p: [10 * p.n_layers], lambda: 2e9)
    assert told in note
    assert (placed is None) == note.startswith("all layers on the CPU; ")
    if placed is not None:
        assert placed.groups == ((GPU,),)
        (group,) = placed.native["groups"]
        assert group["layers"] == [*range(8 - placed.n_layers, 8)]


@pytest.mark.parametrize(
    ("n_experts", "expected"),
    [("all", (3, 3)), ("auto", (8, 1)), (1, (8, 1)), (2, (6, 2)), (0, (8, 0))],
)
def test_auto_takes_experts_last(
    monkeypatch: pytest.MonkeyPatch, n_experts: Any, expected: tuple[int, int]
) -> None:
    monkeypatch.setattr(offload, "find", lambda: Found((GPU,), ()))
    probed = Probe(read_bandwidth=9e9, free_memory=(256 << 20) + 100)
    monkeypatch.setattr(offload, "probe", lambda *_: probed)
    auto = pyflow.Offload(n_layers="auto", n_experts=n_experts)
    placed, note = offload.place_auto(
        auto, 8, True, lambda p: [10 * p.n_layers + 20 * p.n_experts], lambda: 2e9
    )
    assert placed is not None
    assert (placed.n_layers, placed.n_experts) == expected
    assert f"{expected[0]} of 8 layers, experts of {expected[1]} and the head" in note
    assert placed.native["experts"] == [*range(8 - expected[1], 8)]


def test_layers_go_to_groups_of_devices_by_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device of a group holds a share of its layers, so the least memory counts."""
    spare = offload._SPARE
    cards = [replace(GPU, number=i, memory=spare + n) for i, n in enumerate((100, 60, 90, 30))]
    monkeypatch.setattr(offload, "find", lambda: Found(tuple(cards), ()))
    placed = offload.place(pyflow.Offload(n_layers=9, device="0&1;2&3"), 10)
    assert placed.counts == (6, 3)
    assert [g["layers"] for g in placed.native["groups"]] == [[*range(1, 7)], [7, 8, 9]]
    assert [g["head"] for g in placed.native["groups"]] == [False, True]
    assert placed.available == (100, 60, 90, 30)
    placed.check([100, 60, 90, 30], "weights")
    with pytest.raises(ResourceError, match=r"gpu 3 .* of 3 layers take 31 .* --gpu-layers 5 or"):
        placed.check([100, 60, 90, 31], "weights", lambda: 5)
    bounded = pyflow.Offload(n_layers=10, device="0;3", memory=40)
    assert offload.place(bounded, 10).available == (40, 30)
    assert offload.place(bounded, 10).counts == (6, 4)
