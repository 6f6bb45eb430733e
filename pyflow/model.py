"""Models as a user has them: loaded weights that write text, or make vectors of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pyflow.adapters import Given
from pyflow.batch.local_runner import LocalRunner
from pyflow.embed.model import EmbeddingModel
from pyflow.engine.context import CacheType
from pyflow.engine.members.choice import NumaChoice
from pyflow.engine.offload import Offload
from pyflow.engine.session_file import SessionFile
from pyflow.engine.sources import reads_sources
from pyflow.errors import UnsupportedError
from pyflow.formats import Overrides
from pyflow.generate import Options
from pyflow.generate.any_model import Prompt, Run, asked_languages, checked
from pyflow.generate.beams import Beams, Hypothesis
from pyflow.generate.local import run_model, search
from pyflow.speculate import Speculator


def load(
    path: str | Path,
    *,
    n_threads: int | None = None,
    numa: NumaChoice | None = None,
    quantize: str | None = None,
    overrides: Overrides | None = None,
    layers: Sequence[int] = (),
    offload: Offload | None = None,
    adapters: Sequence[Given] = (),
) -> Model:
    """A model from the path of a checkpoint or a name, ready to run.

    path: as for `-m`: a file, a folder, a pulled name, hf:ORG/REPO[:QUANT], or a name of another
    program's store, as in ollama:llama3.2:1b. Nothing is fetched: FormatError names the command
    that pulls a model.
    n_threads: None chooses by `topology.choose_threads`. numa: where weights and threads go on a
    machine with several memory nodes: a mode of `--numa`, or a plan of one's own; None chooses by
    `topology.default_numa`, and auto measures whether members would be faster. What the system
    refuses of it, or the model, is a PlacementWarning. quantize: a weight
    format such as "q8_0": weights in F32, F16 or BF16 become that format while they are loaded;
    quantized weights stay as they are. overrides: what replaces the model's
    configuration. layers: load only these layers of the model, as a draft model by some of its
    layers does; an empty list loads all. offload: what runs on a device, as in Offload(n_layers=8);
    results are those of the CPU, bit for bit. adapters: folders of PEFT's LoRA, or GGUF files of
    adapters for a model in GGUF, each a path or (path, factor). They apply to all texts that choose
    no others.
    Raises FormatError or UnsupportedError for a file that is not such a model or has nothing to
    quantize, ResourceError if its weights do not fit into memory, ShapeError for layers that the
    model does not have, UnsupportedError for a device that is not here or not exact.
    """
    return Model(
        path,
        n_threads=n_threads,
        numa=numa,
        quantize=quantize,
        overrides=overrides,
        layers=layers,
        offload=offload,
        adapters=adapters,
    )


class Model(EmbeddingModel):
    """Weights, tokenizer and chat template of one model. Immutable; safe to share between threads.

    Also a context manager: leaving it frees the weights once no context uses them.
    """

    def run(self, lengths: Sequence[int], n_predict: int, options: Options) -> Run:
        return run_model(self, lengths, n_predict, options)

    def beam_search(
        self,
        prompt: Prompt | Sequence[Prompt],
        beams: Beams | None = None,
        *,
        n_predict: int = 256,
        from_language: str | None = None,
        to_language: str | None = None,
    ) -> list[list[Hypothesis]]:
        """For each source the best texts of at most n_predict tokens, as `beams` says, with scores.

        Rules and scores are those of transformers; without `beams` so is how to search, as the
        model's files say. Languages are as in `generate`. UnsupportedError: the model reads no
        source.
        """
        options: Options = {
            "n_predict": n_predict,
            "from_language": from_language,
            "to_language": to_language,
        }
        how = beams or Beams(**self.defaults.search)
        if (first := asked_languages(self, options).first) is not None:
            how = replace(how, forced_first=first)
        return search(self, checked(self, prompt, options).prompts, n_predict, how)

    def text_of(self, tokens: Sequence[int]) -> tuple[str, list[int]]:
        """The text of a hypothesis, and its tokens without those that end it."""
        stops = self.tokenizer.stop_ids
        kept = [token for token in tokens if token not in stops]
        return self.tokenizer.decode(kept, skip_special=True), kept

    def conversation(
        self,
        n_ctx: int | None = None,
        *,
        cache_type: CacheType = "f16",
        speculator: Speculator | None = None,
        session: SessionFile | None = None,
    ) -> Run:
        """The cache behind a `ChatSession`: a context of its own, sized as `context` says."""
        if self.spec.source:
            raise UnsupportedError(reads_sources(self.spec))
        context = self.context(n_ctx, cache_type=cache_type)
        runner = LocalRunner(context, speculator, session=session)
        return Run(runner, [context.n_ctx], owned=True)
