"""The data section: which data a run reads, and how to cut them into samples."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from megatape.config.section import Compared, FixedSamples, Free, JsonList, Local, PathText, Section, check_growing
from megatape.errors import ConfigError

CorpusName = Annotated[str, Field(pattern=r"^[\w-]+$")]


class CorpusConfig(Section):
    """One corpus of a mixture, by its name (docs/mix_and_pack.md).

    Attributes:
        path: data directory of the corpus; all corpora of a mixture have the same tokenizer
        weight: share of samples from this corpus, relative to the others; set it for all corpora,
            or for none to let data.temperature decide
        max_epochs: maximum passes over this corpus; a run that needs more does not start; default:
            no limit
    """

    path: Local[PathText] = Field(min_length=1)
    weight: FixedSamples[float | None] = Field(None, ge=0)
    max_epochs: Free[int | None] = Field(None, ge=1)


class ReweightingConfig(Section):
    """A change of the mixture's weights.

    Attributes:
        tokens: tokens trained on before these weights apply
        weights: weights of all corpora, by name
    """

    tokens: Compared[PositiveInt]
    weights: Compared[dict[CorpusName, NonNegativeFloat]]


class LengthConfig(Section):
    """A stage of the sequence-length warm-up.

    Attributes:
        tokens: tokens trained on when the stage ends; the step that reaches them is its last
        length: tokens per sequence, a divisor of sequence_length
    """

    tokens: FixedSamples[PositiveInt]
    length: FixedSamples[PositiveInt]


class DataConfig(Section):
    """Training data, and how to cut them into samples.

    Attributes:
        path: data directory written by `megatape prepare`, the folder with index.json, or its URL
            (http, s3, gs and other protocols of fsspec); set either `path` or `mixture`
        mixture: several data directories instead of `path`, and the share of each
            (docs/mix_and_pack.md)
        temperature: T, for a mixture without weights: a corpus gets a share proportional to its
            tokens^(1/T), so 1 mixes by size, and a large T equally
        annealing: later weights of the mixture, each from a number of tokens on; those still ahead
            may change on resume
        cache: folder on each node's local disk: each node copies the shards there once and reads
            the copies; needed if `path` is a URL; empty: read from `path`
        cache_bytes: maximum bytes of shards in `cache`, besides those in transfer; the least
            recently used ones are evicted; default: no limit
        window: W, for remote shards: training reads shards in a random order and mixes the samples
            of W shards at a time; 0 mixes all samples (docs/mix_and_pack.md)
        sequence_length: N, tokens per sample
        length_warmup: shorter sequences at the beginning: the samples of a step are cut into
            sequences of `length`, until the run has seen `tokens` (docs/mix_and_pack.md)
        samples: packed cuts the stream of documents every N tokens; best_fit packs whole documents
            into samples (docs/mix_and_pack.md); documents pads each document to a sample; examples
            pads each pair of prompt and answer, with only the answer as target
            (docs/chat_data.md), and packs several with mask_documents
        prompt_end: text of a single token, such as `=`: only the tokens after it are targets
            (default: all tokens); needs samples documents
        missing_prompt_end: documents without `prompt_end`: error ends a run that opens such data,
            skip drops these documents
        mask_documents: stop attention, positions and targets at document boundaries
        random_offset: add a random offset from 0 .. 2 max_positions to the positions of a training
            sample (`rope` and the `tape` family)
    """

    path: Local[PathText] = ""
    mixture: dict[CorpusName, CorpusConfig] = Field({})
    temperature: FixedSamples[PositiveFloat] = 1.0
    annealing: Compared[JsonList[ReweightingConfig]] = ()
    cache: Local[PathText] = ""
    cache_bytes: Local[int | None] = Field(None, ge=1)
    window: FixedSamples[int] = Field(0, ge=0)
    sequence_length: FixedSamples[int] = Field(ge=2)
    length_warmup: FixedSamples[JsonList[LengthConfig]] = ()
    samples: FixedSamples[Literal["packed", "best_fit", "documents", "examples"]] = "packed"
    prompt_end: FixedSamples[str | None] = Field(None, min_length=1)
    missing_prompt_end: FixedSamples[Literal["error", "skip"]] = "error"
    mask_documents: FixedSamples[bool] = False
    random_offset: FixedSamples[bool] = True

    @property
    def corpora(self) -> dict[str, CorpusConfig]:
        """Corpora of `mixture` by name, or the one at `path` under the name ""."""
        return self.mixture or {"": CorpusConfig(path=self.path)}

    @property
    def paths(self) -> list[str]:
        """All data directories."""
        return [corpus.path for corpus in self.corpora.values()]

    @property
    def lengths(self) -> list[tuple[str, int]]:
        """Setting and tokens per sequence, for every phase of a run."""
        lengths = [("data.sequence_length", self.sequence_length)]
        for stage in self.length_warmup:
            lengths.append(("data.length_warmup", stage.length))
        return lengths

    @property
    def directory(self) -> Path:
        """The only data directory.

        Raises:
            ConfigError: The data are a mixture, or the directory is a URL.
        """
        if self.mixture:
            raise ConfigError("this works on one data directory, but data.mixture names several: set data.path to one of them")
        if "://" in self.path:
            raise ConfigError(f"this works on a local data directory, but data.path is {self.path}: copy it, and give the copy")
        return Path(self.path)

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_source()
        self._check_samples()
        self._check_weights()
        self._check_annealing()
        self._check_paths()
        self._check_length_warmup()
        return self

    def _check_source(self) -> None:
        if self.path and self.mixture:
            raise ConfigError("path and mixture are both given: give a data directory, or several with their weights")
        if not self.path and not self.mixture:
            raise ConfigError("path and mixture are both missing: give a data directory, or several with their weights")
        if self.annealing and not self.mixture:
            raise ConfigError(
                "annealing changes the weights of a mixture, and there is none: give mixture, or remove annealing"
            )
        if self.cache_bytes is not None and not self.cache:
            raise ConfigError(f"cache_bytes {self.cache_bytes} limits cache, which is empty: set cache, or remove cache_bytes")

    def _check_samples(self) -> None:
        samples = self.samples
        if self.window > 0 and samples not in ("packed", "best_fit"):
            raise ConfigError(f"window {self.window} needs samples packed or best_fit, samples is {samples}: set it to 0")
        if self.length_warmup and samples != "packed":
            raise ConfigError(f"length_warmup cuts samples, which are whole with samples {samples}: set samples to packed")
        if samples == "best_fit" and not self.mask_documents:
            raise ConfigError("samples best_fit needs mask_documents true: its documents have nothing to do with each other")
        if samples == "documents" and self.mask_documents:
            raise ConfigError(
                "mask_documents true has no effect with samples documents, where each sample holds one document: remove it, "
                "or set samples to packed"
            )
        if samples != "documents" and self.prompt_end is not None:
            raise ConfigError(
                f"prompt_end {self.prompt_end!r} needs samples documents, where every sample begins with a prompt; samples is "
                f"{samples}: change it, or remove prompt_end"
            )
        if self.missing_prompt_end == "skip" and self.prompt_end is None:
            raise ConfigError("missing_prompt_end skip needs prompt_end: set it, or remove missing_prompt_end")

    def _check_weights(self) -> None:
        weights = [corpus.weight for corpus in self.mixture.values()]
        missing = [name for name, corpus in self.mixture.items() if corpus.weight is None]
        if missing and len(missing) < len(weights):
            raise ConfigError(f"mixture gives no weight for {', '.join(missing)}: give one for every corpus, or for none")
        if self.temperature != 1.0 and not missing:
            raise ConfigError(f"temperature {self.temperature} is for a mixture without weights: remove it, or the weights")
        if weights and not missing:
            _check_positive(weights)

    def _check_annealing(self) -> None:
        for change in self.annealing:
            if change.weights.keys() != self.mixture.keys():
                raise ConfigError(
                    f"annealing at {change.tokens} tokens has weights of {', '.join(change.weights)}; mixture has "
                    f"{', '.join(self.mixture)}: give a weight for each of them, 0 for none"
                )
            _check_positive(list(change.weights.values()))
        for earlier, later in pairwise(self.annealing):
            if earlier.tokens >= later.tokens:
                raise ConfigError(f"annealing at {later.tokens} tokens follows {earlier.tokens}: give changes in their order")

    def _check_paths(self) -> None:
        for path in self.paths:
            if "://" in path and not self.cache:
                raise ConfigError(f"{path} is read by way of a cache: set cache to a folder on each node's local disk")

    def _check_length_warmup(self) -> None:
        for stage in self.length_warmup:
            is_divisor = self.sequence_length % stage.length == 0
            if not is_divisor or stage.length == self.sequence_length:
                raise ConfigError(
                    f"length_warmup has length {stage.length}: choose a divisor of sequence_length {self.sequence_length}, "
                    "below it"
                )
        check_growing("length_warmup", self.length_warmup)


def _check_positive(weights: Sequence[float | None]) -> None:
    """Raise ConfigError if all weights of a mixture are 0."""
    if not any(weights):
        raise ConfigError("all weights of a mixture are 0: give at least one that is not")
