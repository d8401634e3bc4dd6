"""What a trained variant of a comparison is measured by, kept in a file beside its training."""

import itertools
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from megatape.config import Config
from megatape.data.addition import KIND as ADDITION
from megatape.data.addition import AdditionTask, longest_document
from megatape.data.index import load_index
from megatape.evaluation.addition import evaluate_addition
from megatape.evaluation.perplexity import evaluate_perplexity
from megatape.export.generation import load_trained
from megatape.study.variants import with_scaling

LENGTHS = (128, 256, 512, 1024)  # of sequences whose perplexity is measured, as far as model.max_positions goes


@dataclass(frozen=True)
class Outcome:
    """figures: by name, a column of the table each. curve: a figure by length (tokens, or digits), a line of the picture; axes: the
    names of its two axes."""

    figures: dict[str, float]
    curve: dict[int, float]
    axes: tuple[str, str]

    def write(self, path: Path) -> None:
        """All or nothing: a file that is there is complete."""
        partial = path.with_suffix(".tmp")
        partial.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        partial.rename(path)

    @classmethod
    def read(cls, path: Path) -> "Outcome":
        """What `write` wrote. Raises ValueError if it is damaged."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            curve = {int(length): value for length, value in content.pop("curve").items()}
            return cls(curve=curve, axes=tuple(content.pop("axes")), **content)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} is damaged ({error}): remove it, and the same command measures again") from None


def is_addition(config: Config) -> bool:
    """Whether exact match is measured; otherwise it is perplexity by length.

    Raises ValueError if the data allows neither."""
    data = Path(config.data.path)
    if load_index(data).source.get("kind") == ADDITION:
        return True
    if config.data.samples == "documents":
        raise ValueError(
            f"data.samples is documents and data.path {data} holds no additions, so there is nothing to measure beside the loss: set "
            "data.samples to packed"
        )
    return False


def measure(config: Config, checkpoint: Path, scaling: str | None) -> Outcome:
    """Measure a checkpoint of this configuration, its frequencies scaled in this way where a test is longer than training was."""
    return (_addition if is_addition(config) else _perplexity)(config, checkpoint, scaling)


def _addition(config: Config, checkpoint: Path, scaling: str | None) -> Outcome:
    data, trained = Path(config.data.path), config.data.sequence_length
    longest = longest_document(2 * AdditionTask.of(data).digits) - 1
    model = with_scaling(config.model, scaling, trained, longest) if scaling else config.model
    with load_trained(checkpoint, model) as loaded:
        grid = evaluate_addition(loaded, data)
    beyond = {} if grid.beyond is None else {"beyond (%)": 100 * grid.beyond}
    return Outcome(
        figures={"trained lengths (%)": 100 * grid.inside, **beyond, "all (%)": 100 * grid.mean},
        curve={digits: 100 * share for digits, share in grid.by_longer_operand.items()},
        axes=("digits of the longer operand", "exact match (%)"),
    )


def _perplexity(config: Config, checkpoint: Path, scaling: str | None) -> Outcome:
    trained = config.data.sequence_length
    lengths = [length for length in LENGTHS if length <= config.model.max_positions] or [trained]
    curve = {}
    # The weights are one model for each amount of scaling.
    models = [with_scaling(config.model, scaling, trained, length) if scaling else config.model for length in lengths]
    for model, group in itertools.groupby(zip(models, lengths, strict=True), key=lambda pair: pair[0]):
        with load_trained(checkpoint, model) as loaded:
            for _, length in group:
                curve[length] = evaluate_perplexity(loaded, Path(config.data.path), length, lengths[-1])
    figures = {f"perplexity at {length}": value for length, value in curve.items()}
    return Outcome(figures, curve, axes=("tokens", "perplexity"))
