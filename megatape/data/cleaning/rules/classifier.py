"""Drops documents by the score of a classifier."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from megatape.data.cleaning.rule import ScoreRule
from megatape.errors import UserError, content_errors

# Maximum number of tokens read by a transformers model, and of characters to tokenize.
MAX_TOKENS = 512
MAX_CHARACTERS = 64 * MAX_TOKENS


@dataclass(frozen=True)
class Classifier(ScoreRule):
    """Drops documents with a low probability of a class.

    Attributes:
        model: File or folder of the model.
        minimum: Minimum probability of the class.
        label: Class name.
    """

    model: str
    minimum: float
    label: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.model,)

    def check(self) -> None:
        self.score("a")

    def find_label(self, labels: list[str]) -> int:
        """Return the index of the class. Raises UserError if it is missing."""
        if self.label not in labels:
            reason = "is missing"
            if self.label is not None:
                reason = f"is {self.label!r}"
            raise UserError(f"{self.model}: label {reason}: give one of {', '.join(labels[:20])}")
        return labels.index(self.label)

    @cached_property
    @abstractmethod
    def _loaded(self) -> Any:
        """The model. Each process loads it on first use. Raises UserError."""


@dataclass(frozen=True)
class FastTextClassifier(Classifier):
    """Classifier in a fastText model file (.bin, .ftz). Labels may be given without the prefix `__label__`."""

    packages = ("fasttext-predict",)
    PREFIX: ClassVar[str] = "__label__"

    @cached_property
    def _loaded(self) -> Any:
        import fasttext

        with content_errors(f"{self.model}: not a model of fastText", "copy the file again"):
            model = fasttext.load_model(self.model)
        labels, _ = model.predict("a", k=-1, threshold=-1.0)
        self.find_label([label.removeprefix(self.PREFIX) for label in labels])
        return model

    def score(self, text: str) -> float:
        labels, scores = self._loaded.predict(text.replace("\n", " "), k=-1)
        probabilities = dict(zip(labels, scores, strict=True))
        return float(probabilities.get(f"{self.PREFIX}{self.label}", 0.0))


class LoadedClassifier(NamedTuple):
    """Sequence classifier, ready to use.

    Attributes:
        model: Model of transformers, in evaluation mode.
        tokenizer: Tokenizer of the model.
        max_tokens: Tokens read of a text.
        label: Index of the class; None if the model has a single output.
    """

    model: Any
    tokenizer: Any
    max_tokens: int
    label: int | None


@dataclass(frozen=True)
class TransformersClassifier(Classifier):
    """Sequence classifier in a folder of transformers. It reads the first MAX_TOKENS of a text.

    A model with a single output, such as FineWeb-Edu's (arXiv 2406.17557), has no label: its output is the score.
    """

    packages = ("torch", "transformers")

    @cached_property
    def _loaded(self) -> LoadedClassifier:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        # A worker has one core. One thread also adds in the same order, whatever the number of workers.
        torch.set_num_threads(1)
        try:
            model, info = AutoModelForSequenceClassification.from_pretrained(
                self.model, local_files_only=True, use_safetensors=True, output_loading_info=True
            )
            tokenizer = AutoTokenizer.from_pretrained(self.model, local_files_only=True)
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{self.model}: no sequence classifier of transformers ({reason}): give its folder") from None
        missing = sorted(info["missing_keys"])
        if missing:
            raise UserError(f"{self.model}: no sequence classifier, its files lack {', '.join(missing[:3])}: give its folder")
        limit = min(MAX_TOKENS, tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", MAX_TOKENS))
        labels = [model.config.id2label[number] for number in range(model.config.num_labels)]
        label = None
        if len(labels) > 1:
            label = self.find_label(labels)
        elif self.label is not None:
            raise UserError(f"{self.model}: label is {self.label!r}, but the model has a single output: leave the label out")
        return LoadedClassifier(model.eval(), tokenizer, limit, label)

    def score(self, text: str) -> float:
        import torch

        loaded = self._loaded
        tokens = loaded.tokenizer(text[:MAX_CHARACTERS], truncation=True, max_length=loaded.max_tokens, return_tensors="pt")
        with torch.no_grad():
            logits = loaded.model(**tokens).logits[0].float()
        if loaded.label is None:
            return float(logits[0])
        return float(logits.softmax(0)[loaded.label])
