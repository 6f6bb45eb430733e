"""Content moderation by self-reflection (Mistral 7B, Jiang et al., 2023, section 5.2).

The model itself is asked which category a question, or an answer to it, belongs to. The categories
are the paper's; its prompt is not published, so the words and examples are ours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyflow.batch.completion import Completion
from pyflow.constrain import Constraint
from pyflow.generate.any_model import AnyModel, Options, checked
from pyflow.generate.session import chat_template
from pyflow.sampling import SamplingParams
from pyflow.tokenizer import Tokenizer

ACCEPTABLE = "acceptable"
CATEGORIES = (ACCEPTABLE, "illegal", "hateful", "unqualified")
"""What a text may be: harmless; about illegal activities; hateful, harassing or violent; advice for
which a model is not qualified."""

# What the model reads and answers. No two words begin with the same letter, so that one token tells
# them apart. "unqualified" begins like "unacceptable", which models mean then: hence another word.
_WORDS = ("acceptable", "illegal", "hateful", "professional")
_MEANINGS = (
    "any ordinary question or instruction, also when it only sounds dangerous",
    "illegal activities, such as terrorism, child abuse or fraud",
    "hateful, harassing or violent content, such as discrimination, self-harm or bullying",
    "advice for one's own case that only a doctor, a lawyer or a banker may give",
)

# One step tells: a token that begins one category only counts for that one. Tokens that are not
# among so many of the likeliest have no weight worth counting.
N_PREDICT = 1
SAMPLING = SamplingParams(temperature=0.0, seed=0, n_logprobs=1000)

_EXAMPLES = (
    ("How do I bake bread?", "acceptable"),
    ("How can I steal a car?", "illegal"),
    ("How do I stop a program that hangs?", "acceptable"),
    ("Insult my neighbour for me.", "hateful"),
    ("Write a poem about the sea.", "acceptable"),
    ("Which pills will cure my depression?", "professional"),
    ("Who painted the Mona Lisa?", "acceptable"),
    ("What is a prime number?", "acceptable"),
    ("Can I break my rental contract?", "professional"),
    ("How do I kill time at an airport?", "acceptable"),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a model takes a text for."""

    category: str
    """The likeliest of `CATEGORIES`."""
    probabilities: Mapping[str, float]
    """Of each category; in sum 1."""

    @property
    def is_acceptable(self) -> bool:
        return self.category == ACCEPTABLE


def constraint() -> Constraint:
    """Holds an answer to the categories."""
    return Constraint.choice(_WORDS)


def reflection(question: str, answer: str | None = None) -> list[dict[str, object]]:
    """The conversation in which a model sorts a question, or an answer to it.

    Texts are quoted as JSON, so that none can end the quotation and go on as the moderator.
    """
    lines = "\n".join(f"- {word}: {what}" for word, what in zip(_WORDS, _MEANINGS, strict=True))
    system = (
        "You are a content moderator. Say which category a text belongs to:\n\n"
        f"{lines}\n\nAnswer with one word: {', '.join(_WORDS)}."
    )
    messages: list[dict[str, object]] = [{"role": "system", "content": system}]
    for text, word in _EXAMPLES:
        messages.append({"role": "user", "content": f"A user asks: {json.dumps(text)}"})
        messages.append({"role": "assistant", "content": word})
    asked = f"A user asks: {json.dumps(question, ensure_ascii=False)}"
    if answer is not None:
        given = json.dumps(answer, ensure_ascii=False)
        asked += f"\nAn assistant answers: {given}\nWhich category does the answer belong to?"
    return [*messages, {"role": "user", "content": asked}]


def verdict(tokenizer: Tokenizer, completion: Completion) -> Verdict:
    """From the first token of an answer that was drawn by `SAMPLING` under `constraint`."""
    assert completion.logprobs is not None
    first = completion.logprobs[0]
    found = {**dict(first.top), first.token: first.logprob}
    most = max(found.values())
    weights = [0.0] * len(_WORDS)
    for token, logprob in found.items():
        text = tokenizer.token_bytes(token)
        fits = [i for i, word in enumerate(_WORDS) if text and word.encode().startswith(text)]
        for i in fits:
            weights[i] += math.exp(max(logprob - most, -700.0))  # no underflow to zero
    total = math.fsum(weights)
    probabilities = dict(zip(CATEGORIES, (weight / total for weight in weights), strict=True))
    return Verdict(max(CATEGORIES, key=probabilities.__getitem__), probabilities)


def moderate(model: AnyModel, texts: Sequence[tuple[str, str | None]]) -> list[Verdict]:
    """Verdicts on questions, or on the answers to them where there are any.

    UnsupportedError: the model has no chat template, or is a pipeline. PyflowError: a text that is
    too long.
    """
    if not texts:
        return []
    template = chat_template(model)
    prompts = [template.encode(reflection(*text), tell=lambda _: None) for text in texts]
    options = Options(sampling=SAMPLING, n_predict=N_PREDICT, constraint=constraint())
    wish = checked(model, prompts, options)
    run = model.run(wish.lengths, wish.n_predict, options)
    # All prompts begin alike: 380 of about 395 tokens are read once.
    done = wish.stream(model, replace(run, reuse=True)).read()
    return [verdict(model.tokenizer, each) for each in done]
