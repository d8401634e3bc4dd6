"""Documents that a classifier prefers."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from megatape.data.cleaning.rule import ScoreRule
from megatape.errors import UserError, content_errors

MAX_TOKENS = 512  # of a text that a model of transformers reads
MAX_CHARACTERS = 64 * MAX_TOKENS  # of which the tokens are made


@dataclass(frozen=True)
class Classifier(ScoreRule):
    """The probability of the class `label` by a model is at least `minimum`.

    model: File or folder of the model.
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
        """Number of the class. Raises UserError."""
        if self.label not in labels:
            found = "is missing" if self.label is None else f"is {self.label!r}"
            raise UserError(f"{self.model}: label {found}: give one of {', '.join(labels[:20])}")
        return labels.index(self.label)

    @cached_property
    @abstractmethod
    def _loaded(self) -> Any:
        """The model, which each process loads when it first needs it. Raises UserError."""


@dataclass(frozen=True)
class FastTextClassifier(Classifier):
    """By a model file of fastText (.bin, .ftz). A label may lack its prefix, `__label__`."""

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
        return dict(zip(labels, map(float, scores), strict=True)).get(f"{self.PREFIX}{self.label}", 0.0)


@dataclass(frozen=True)
class TransformersClassifier(Classifier):
    """By a folder of transformers with a sequence classifier, which reads the first MAX_TOKENS of a text.

    The score of a model with one output, such as FineWeb-Edu's (arXiv 2406.17557), is that output, and it has no label.
    """

    packages = ("torch", "transformers")

    @cached_property
    def _loaded(self) -> Any:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        torch.set_num_threads(1)  # a worker has one core, and sums of any number of workers are in the same order
        try:
            model, info = AutoModelForSequenceClassification.from_pretrained(
                self.model, local_files_only=True, use_safetensors=True, output_loading_info=True
            )
            tokenizer = AutoTokenizer.from_pretrained(self.model, local_files_only=True)
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{self.model}: no sequence classifier of transformers ({reason}): give its folder") from None
        if missing := sorted(info["missing_keys"]):
            raise UserError(f"{self.model}: no sequence classifier, its files lack {', '.join(missing[:3])}: give its folder")
        limit = min(MAX_TOKENS, tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", MAX_TOKENS))
        labels = [model.config.id2label[number] for number in range(model.config.num_labels)]
        label = self.find_label(labels) if len(labels) > 1 else None
        if len(labels) == 1 and self.label is not None:
            raise UserError(f"{self.model}: label is {self.label!r}, but the model has a single output: leave the label out")
        return model.eval(), tokenizer, limit, label

    def score(self, text: str) -> float:
        import torch

        model, tokenizer, limit, label = self._loaded
        tokens = tokenizer(text[:MAX_CHARACTERS], truncation=True, max_length=limit, return_tensors="pt")
        with torch.no_grad():
            logits = model(**tokens).logits[0].float()
        return float(logits[0] if label is None else logits.softmax(0)[label])
