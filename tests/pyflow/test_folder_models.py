"""Models in the folders of `transformers`: weights, tokenizer and chat template in files of their
own."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyflow.formats
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer as Library

import pyflow
from pyflow import chat
from pyflow.cli import main
from pyflow.engine.loaded import plan
from pyflow.errors import (
    FilesWarning,
    FormatError,
    GenerationWarning,
    ResourceError,
    ShapeError,
    UnsupportedError,
)
from pyflow.model import load
from pyflow.tokenizer import from_checkpoint

from .tiny_folders import CONFIG, N_EMBD, N_FF, N_LAYERS, N_VOCAB, write, write_folder

TOKENS = [1, 2, 3, 200, 7]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path)


def test_a_folder_is_a_model_that_writes_and_chats(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with load(folder, n_threads=1) as model:
        assert model.tokenizer.n_vocab == 258
        assert model.tokenizer.stop_ids == {257}
        done = model.generate("Hello", n_predict=8)
        assert done.text == model.tokenizer.decode(done.tokens, skip_special=True)
        assert model.chat_template is not None
        asked = model.chat_template.encode([{"role": "user", "content": "<end>?"}])
    assert asked.count(257) == 1
    assert main(["generate", "-m", str(folder), "-p", "Hi", "-n", "4", "-t", "1"]) == 0
    assert main(["tokenize", "-m", str(folder), "-p", "é<end>", "--special"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[-3:]][-1] == "257"


def test_a_model_without_a_tokenizer_takes_token_ids(folder: Path) -> None:
    with load(folder, n_threads=1) as model:
        expected = model.logits(TOKENS)
    (folder / "tokenizer.json").unlink()
    with load(folder, n_threads=1) as model:
        assert np.array_equal(model.logits(TOKENS), expected)
        assert model.generate(TOKENS, n_predict=1).text == ""
        for ask in (lambda: model.tokenizer, lambda: model.generate("Hi", n_predict=1)):
            with pytest.raises(FormatError, match="tokenizer"):
                ask()
    assert main(["generate", "-m", str(folder), "-p", "Hi", "-n", "4", "-t", "1"]) == 3


@pytest.mark.filterwarnings("ignore::pyflow.errors.GenerationWarning")
def test_a_tokenizer_of_more_tokens_than_rows_does_not_fit(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def check() -> tuple[int, dict[str, Any]]:
        code = main(["spec", "check", str(folder), "--json"])
        return code, json.loads(capsys.readouterr().out)

    code, found = check()
    assert (code, found["fits"], found["tokenizer"]["n_tokens"]) == (0, True, 258)
    whole = json.loads((folder / "tokenizer.json").read_text())
    whole["model"]["vocab"] |= {f"<{i}>": 256 + i for i in range(N_VOCAB)}
    write(folder, "tokenizer.json", whole)
    with pytest.raises(ShapeError, match=r"576 .* 320") as caught:
        load(folder, n_threads=1)
    code, found = check()
    assert (code, found["fits"]) == (3, False)
    said = str(caught.value)
    assert found["tokenizer"]["problem"] == said
    assert main(["spec", "check", str(folder)]) == 3
    out = capsys.readouterr().out
    assert said in out
    assert out.endswith("\nit does not fit\n")
    (folder / "tokenizer.json").unlink()
    code, found = check()
    assert (code, found["fits"], found["tokenizer"]["found"]) == (0, True, False)


def test_added_tokens_past_the_embedding_are_left_out_and_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = Library.from_file(str(folder / "tokenizer.json"))
    library.add_tokens([f"<{i}>" for i in range(N_VOCAB)])
    library.save(str(folder / "tokenizer.json"))
    write(folder, "tokenizer_config.json", {"eos_token": "<end>", "pad_token": "<none>"})
    with pytest.warns(GenerationWarning) as said:
        model = load(folder, n_threads=1)
    assert len(said) == 2
    assert model.tokenizer.encode("<61>") == [N_VOCAB - 1]
    for text in ("<62>", "<none>"):
        assert max(model.tokenizer.encode(text, parse_special=True)) < 256
    model.close()
    assert main(["spec", "check", str(folder)]) == 0
    assert f"'<62>', '<63>', '<64>', '<65>' and {N_VOCAB - 66} more past" in capsys.readouterr().out


def test_what_does_not_fit_is_told_to_be_quantized(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyflow.engine.loaded.available_nbytes", lambda: 200_000)
    for more, advice in (([], "--quantize q8_0 or fewer bits, or "), (["--quantize", "q8_0"], "")):
        assert main(["inspect", str(folder), "--memory", "-c", "64", *more]) == 0
        out = capsys.readouterr().out
        assert f"does not fit, whatever the context: take {advice}a smaller model\n" in out
    with pytest.raises(ResourceError, match="q8_0"):
        load(folder, n_threads=1)


def test_floats_of_a_folder_may_be_quantized_on_one_or_several_ranks(
    folder: Path, mpiexec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "generate",
        "-m",
        str(folder),
        "--quantize",
        "q4_0",
        "--raw",
        "-p",
        "Hello",
        "-n",
        "8",
    ]
    command += ["--temp", "0", "--json", "-t", "1"]
    assert main(command) == 0
    want = json.loads(capsys.readouterr().out)["tokens"]
    pipeline = ["--pipeline", "iterative", "--layers", "even"]
    ran = subprocess.run(
        [mpiexec, "-n", "2", sys.executable, "-m", "pyflow", *command, *pipeline],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(ran.stdout)["tokens"] == want
    assert plan(folder, quantize="q4_0").weights < plan(folder).weights / 6


@pytest.mark.parametrize("form", ["F16", "BF16", "Q4_0", "Q5_1", "Q8_0", "IQ4_NL"])
def test_a_quantized_model_takes_the_memory_that_was_planned(folder: Path, form: str) -> None:
    with load(folder, n_threads=1, quantize=form.lower()) as model:
        assert model.stage.weight_bytes == plan(folder, quantize=form).weights
        assert np.isfinite(model.logits([1, 2, 3])).all()


def test_what_cannot_be_quantized_is_refused(
    folder: Path, model_path: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UnsupportedError, match=r"64 .* Q4_K"):
        load(folder, quantize="q4_k")
    assert main(["generate", "-m", str(folder), "--quantize", "q9", "-p", "x"]) == 2
    assert "'q9': expected one of F32, F16, BF16, Q4_0" in capsys.readouterr().err
    assert main(["inspect", str(folder), "--quantize", "q8_0"]) == 2
    assert "--quantize needs --memory" in capsys.readouterr().err
    smollm2 = str(model_path("smollm2"))
    assert main(["inspect", smollm2, "--memory", "--quantize", "q8_0"]) == 3
    assert "expected weights in F32, F16 or BF16, found Q4_1, Q8_0; " in capsys.readouterr().err


def test_shards_are_one_model(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    parts = tmp_path_factory.mktemp("shards")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (parts / name).write_bytes((folder / name).read_bytes())
    tensors = load_file(folder / "model.safetensors")
    places = {name: f"part-{i % 3}.safetensors" for i, name in enumerate(tensors)}
    for file in set(places.values()):
        save_file({n: t for n, t in tensors.items() if places[n] == file}, parts / file)
    write(parts, "model.safetensors.index.json", {"weight_map": places})
    with load(folder, n_threads=1) as whole, load(parts, n_threads=1) as several:
        assert several.logits(TOKENS).tobytes() == whole.logits(TOKENS).tobytes()


def test_llama2c_runs_by_the_spec_in_the_documentation(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stories = tmp_path_factory.mktemp("stories")
    tensors = load_file(folder / "model.safetensors")
    heads, kv_heads = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
    dims = {"n_embd": N_EMBD, "n_ff": N_FF, "n_layers": N_LAYERS, "n_heads": heads}
    dims |= {"n_kv_heads": kv_heads, "n_vocab": N_VOCAB, "n_ctx": 512, "head_dim": N_EMBD // heads}
    with (stories / "model.bin").open("wb") as file:
        file.write(np.array([*dims.values()][:7], "<i4").tobytes())
        file.write(tensors["model.embed_tokens.weight"].tobytes())
        for name in ("input_layernorm", *(f"self_attn.{m}_proj" for m in "qkvo")):
            file.writelines(tensors[f"model.layers.{i}.{name}.weight"] for i in range(N_LAYERS))
        for name in ("post_attention_layernorm", "mlp.gate_proj", "mlp.down_proj", "mlp.up_proj"):
            file.writelines(tensors[f"model.layers.{i}.{name}.weight"] for i in range(N_LAYERS))
        file.write(tensors["model.norm.weight"].tobytes())
        file.write(bytes(4 * dims["n_ctx"] * dims["head_dim"]))  # angles
    (stories / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    text = (Path(__file__).parents[2] / "docs/add-a-model.md").read_text()
    spec = text.split("### llama2.c")[1].split("```toml\n")[1].split("```")[0]
    for name, size in dims.items():
        spec, n = re.subn(rf"^{name} = \d+$", f"{name} = {size}", spec, flags=re.MULTILINE)
        assert n == 1
    (stories / "pyflow.toml").write_text(spec)
    # The same weights with pairs side by side.
    pairs = '[hf.ropes.main]\nlayout = "interleaved"\n'
    (folder / "pyflow.toml").write_text(f'spec = 1\nname = "x"\nextends = "llama"\n{pairs}')
    with load(folder, n_threads=1) as hub, load(stories, n_threads=1) as model:
        assert model.logits(TOKENS).tobytes() == hub.logits(TOKENS).tobytes()
    file = tmp_path_factory.mktemp("gguf") / "f32.gguf"
    assert main(["quantize", str(stories), str(file), "--type", "f32"]) == 0
    with load(stories, n_threads=1) as model, load(file, n_threads=1) as made:
        assert made.logits(TOKENS).tobytes() == model.logits(TOKENS).tobytes()
    file.unlink()
    # Layers that lie in one tensor become blocks together.
    q8 = tmp_path_factory.mktemp("q8")
    assert main(["quantize", str(stories), str(q8), "--type", "q8_0", "--pure", "--force"]) == 0
    with load(stories, n_threads=1, quantize="q8_0") as loaded, load(q8, n_threads=1) as stored:
        assert stored.logits(TOKENS).tobytes() == loaded.logits(TOKENS).tobytes()


def test_memory_of_the_tokenizer_is_planned(folder: Path) -> None:
    assert plan(folder).tokenizer == 430 * N_VOCAB


@pytest.fixture
def template(folder: Path) -> Callable[[], chat.ChatTemplate | None]:
    def read() -> chat.ChatTemplate | None:
        checkpoint = pyflow.formats.open(folder)
        return chat.from_checkpoint(checkpoint, from_checkpoint(checkpoint))

    return read


def test_the_newest_place_of_a_chat_template_counts(folder: Path, template: Any) -> None:
    write(folder, "tokenizer_config.json", {})
    assert template() is None
    write(folder, "tokenizer_config.json", {"chat_template": "one"})
    assert template().render([]) == "one"
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "two"}]
    write(folder, "tokenizer_config.json", {"chat_template": several})
    assert template().render([]) == "two"
    write(folder, "chat_template.json", {"chat_template": "three"})
    assert template().render([]) == "three"
    write(folder, "chat_template.jinja", "four")
    assert template().render([]) == "four"


def test_files_beside_the_weights_that_disagree_or_are_not_there_are_told(
    folder: Path, template: Any
) -> None:
    write(folder, "tokenizer_config.json", {"chat_template": "one"})
    write(folder, "chat_template.jinja", "two")
    with pytest.warns(FilesWarning, match=r"tokenizer_config\.json: chat_template: left aside"):
        assert template().render([]) == "two"
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.jinja").symlink_to("../none")
    with pytest.warns(FilesWarning, match=r"chat_template\.jinja: is a link to \.\./none"):
        assert template().render([]) == "one"
    (folder / "chat_template.jinja").unlink()
    write(folder, "chat_template.jinja", "version https://git-lfs.github.com/spec/v1\noid x")
    with pytest.raises(FormatError, match=r"chat_template\.jinja: .*git lfs pull"):
        template()


def test_a_command_tells_of_files_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "tokenizer_config.json").unlink(missing_ok=True)
    (folder / "tokenizer_config.json").symlink_to("../none")
    (folder / "pytorch_model.bin").touch()
    generate = ["generate", "-p", "x", "-n", "1", "-t", "1", "-m", str(folder)]
    for command in (["inspect", str(folder)], ["spec", "check", str(folder)], generate):
        assert main(command) == 0
        told = capsys.readouterr()
        assert told.err.count("left aside: pytorch_model.bin") == 1
        told_of_link = f"{told.out}{told.err}".count("link to ../none")
        assert told_of_link == int(command[0] != "inspect")


def test_a_chat_template_may_ask_for_tokens_by_their_roles(folder: Path, template: Any) -> None:
    config = {"eos_token": "<end>", "pad_token": {"content": "<turn>"}}
    write(folder, "tokenizer_config.json", config)
    write(folder, "chat_template.jinja", "{{ eos_token }}{{ pad_token }}{{ unk_token }}")
    assert template().render([]) == "<end><turn>"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("chat_template.jinja", "{% for %}", r"chat_template\.jinja, line 1: "),
        ("chat_template.jinja", "x" * (1 << 21), r"chat_template\.jinja: expected up to"),
        ("chat_template.json", [], r"chat_template\.json: expected `object`"),
        ("tokenizer_config.json", {"chat_template": 5}, r"at `\$\.chat_template`"),
        ("tokenizer_config.json", {"chat_template": []}, "called 'default', found none"),
        ("tokenizer_config.json", {"chat_template": "{{"}, r"config\.json: chat_template, line 1"),
    ],
)
def test_a_broken_chat_template_is_a_format_error_that_names_its_place(
    folder: Path, template: Any, name: str, content: object, message: str
) -> None:
    write(folder, "tokenizer_config.json", {"eos_token": "<end>"})
    write(folder, name, content)
    with pytest.raises(FormatError, match=message):
        template()
