"""A model held to a constraint: its texts obey, and drafts change none of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pyflow
from pyflow.cli import main
from pyflow.constrain import Constraint, Matcher
from pyflow.engine.context import Context
from pyflow.errors import MatcherError, PyflowError, UnsupportedError
from pyflow.generate import Completion
from pyflow.sampling import SamplingParams
from pyflow.speculate import Speculation, Speculator, speculator

pytestmark = pytest.mark.model
COUNTRY = {
    "type": "object",
    "properties": {
        "name_of_the_country": {"type": "string", "maxLength": 12},
        "population_in_millions": {"type": "integer", "minimum": 0, "maximum": 99},
        "languages_spoken": {"type": "array", "items": {"enum": ["fr", "de"]}, "maxItems": 3},
    },
    "required": ["name_of_the_country", "population_in_millions", "languages_spoken"],
    "additionalProperties": False,
}
SCHEMA = Constraint.json_schema(COUNTRY)
PROMPT = "Facts about France as JSON:\n"
GREEDY = SamplingParams(temperature=0, n_logprobs=2)


@pytest.fixture(scope="module")
def model(model_path: Callable[[str], Path]) -> Iterator[pyflow.Model]:
    with pyflow.load(model_path("smollm2"), n_threads=2) as loaded:
        yield loaded


def write(model: pyflow.Model, sampling: SamplingParams = GREEDY, **options: Any) -> Completion:
    return model.generate(
        PROMPT, sampling=sampling, **{"n_predict": 80, "constraint": SCHEMA} | options
    )


def obeys(text: str) -> bool:
    value = json.loads(text)
    return (
        list(value) == COUNTRY["required"]
        and len(value["name_of_the_country"]) <= 12
        and 0 <= value["population_in_millions"] <= 99
        and len(value["languages_spoken"]) <= 3
        and set(value["languages_spoken"]) <= {"fr", "de"}
    )


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_drafts_change_no_token_of_a_constrained_text(
    model: pyflow.Model, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    sampling = SamplingParams(temperature=temperature, top_k=0, seed=5, n_logprobs=2)
    n_steps = [0]

    def counted(context: Context, *args: Any, **options: Any) -> Any:
        n_steps[-1] += 1
        return step(context, *args, **options)

    step = Context.step
    monkeypatch.setattr(Context, "step", counted)
    with Speculator([], fixed=True) as grammar:  # its drafts run whatever a row costs here
        forced = write(model, sampling, speculator=grammar)
    assert obeys(forced.text)
    assert forced.stop_reason == "eos"
    n_steps.append(0)
    by_costs = write(model, sampling)
    assert (by_costs.tokens, by_costs.logprobs) == (forced.tokens, forced.logprobs)
    for method in ("auto", "jacobi"):
        with speculator(model, Speculation(method=method, fixed=True)) as drafting:
            drafted = write(model, sampling, speculator=drafting)
        assert (drafted.tokens, drafted.logprobs) == (forced.tokens, forced.logprobs)
    n_steps.append(0)
    monkeypatch.setattr(Matcher, "forced", lambda _: [])
    plain = write(model, sampling)
    assert (plain.tokens, plain.logprobs) == (forced.tokens, forced.logprobs)
    assert n_steps[2] >= len(plain.tokens) > n_steps[0] > 1


def test_other_policies_obey_too(model: pyflow.Model) -> None:
    options = Speculation(method="lookup", policy="rejection", fixed=True)
    with speculator(model, options) as drafting:
        for seed in range(2):
            sampling = SamplingParams(temperature=1.2, seed=seed)
            assert obeys(write(model, sampling, speculator=drafting).text)


def test_each_prompt_has_a_grammar_of_its_own(model: pyflow.Model) -> None:
    prompts = ["The capital of France is", "The capital of Italy is", "A story:"]
    options: Any = {
        "n_predict": 8,
        "sampling": GREEDY,
        "constraint": Constraint.choice([" Paris", " Rome"]),
    }
    together = model.generate(prompts, **options)
    assert [done.text for done in together[:2]] == [" Paris", " Rome"]
    for prompt, done in zip(prompts, together, strict=True):
        assert model.generate(prompt, **options).tokens == done.tokens


def test_a_text_that_is_cut_short_ends_by_its_length(model: pyflow.Model) -> None:
    whole, cut = write(model), write(model, n_predict=9)
    assert cut.stop_reason == "length"
    assert whole.text.startswith(cut.text)
    stopped = write(model, stop="_in_")
    assert (stopped.text, stopped.stop_reason) == (whole.text.split("_in_")[0], "stop")


def test_a_grammar_that_explodes_ends_its_text_alone(model: pyflow.Model) -> None:
    pattern = Constraint.lark('start: /[b-z ]{20,30}/ "!" /(a{1,1000}){300,1000}/')
    with pytest.raises(PyflowError) as error:
        write(model, constraint=pattern, n_predict=300)
    assert isinstance(error.value.__cause__ or error.value, MatcherError)
    assert obeys(write(model).text)


def test_what_is_no_constraint_is_refused(model: pyflow.Model, fake_model: Any) -> None:
    with pytest.raises(PyflowError, match="Constraint"):
        write(model, constraint=COUNTRY)
    with pytest.raises(UnsupportedError):  # a model whose tokens are drawn elsewhere
        fake_model.generate("x", constraint=SCHEMA)


def test_the_command_line_holds_answers_to_files(
    model_path: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema, grammar = tmp_path / "country.json", tmp_path / "town.gbnf"
    schema.write_text(json.dumps(COUNTRY))
    grammar.write_text('root ::= " Paris" | " Rome"\n')
    command = ["generate", "-m", str(model_path("smollm2")), "--raw", "-p", PROMPT, "--temp", "0"]

    def run(*options: str) -> str:
        assert main([*command, *options]) == 0
        return capsys.readouterr().out

    assert run("--grammar", str(grammar)) in (" Paris\n", " Rome\n")
    done = json.loads(run("--json", "--json-schema", str(schema), "--spec", "auto"))
    assert obeys(done["text"])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--json-schema", '{"minLenght": 3}'], "minLenght"),
        (["--json-schema", "nowhere.json"], "nowhere.json"),
        (["--grammar", "town.txt"], ".gbnf"),
        (["--json-schema", "{}", "--grammar", "a.lark"], "--grammar"),
        (["--json-schema", "{}", "--pipeline", "iterative", "--stages", "2"], "--pipeline"),
    ],
)
def test_the_command_line_refuses_by_name(
    run: Callable[..., tuple[int, str, str]], options: list[str], named: str
) -> None:
    code, out, err = run("generate", "-p", "x", *options)
    assert (code, out) == (2, "")
    assert named in err
