"""Perplexity at several context lengths, on the same text."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.dataset import TokenDataset
from megatape.data.training.selection import NEW_SELECTION, Selection, select_samples
from megatape.errors import MissingPath, UserError
from megatape.lab.paper import EXTENSION_NAMES, EXTENSION_PERPLEXITY
from megatape.lab.tasks.engine.lengths import LengthList, equal_lengths, usual_lengths
from megatape.lab.tasks.engine.task import EvaluationModel, Measure, ModelOutline, Task
from megatape.utils.options import Count, option

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_TOKENS = 2**15  # of the text of `evaluate_perplexity`
AUTHORS_STRIDE = 256  # of the paper's windows, and the default of sliding ones
MAX_CHARACTERS = 64  # of a token, more than the mean of any text has
NUM_POSITIONS = 64  # points of the curve over positions
MAX_NATS = 700  # exp of more than 709 is no float
BATCH_TOKENS = 2**12  # per forward pass, whose logits are [4096, V]


@dataclass(frozen=True)
class Window:
    """A window of the text, of which the last predictions count.

    Attributes:
        length: The context length that it belongs to.
        begin: Number of its first token in the text.
        tokens: int64 [N + 1], of which N are predicted.
        num_scored: The predictions that count.
        text_bytes: Bytes of the text that the windows of this length score; None if they score a token more than once.
    """

    length: int
    begin: int
    tokens: np.ndarray
    num_scored: int
    text_bytes: int | None = field(compare=False)


@dataclass(frozen=True)
class Prediction:
    """Losses of a window.

    Attributes:
        length: Of the window.
        begin: Of the window.
        size: Tokens that are predicted.
        scored: Predictions that count.
        losses: Sums (nats) of those that count, in up to NUM_POSITIONS ranges of positions.
        text_bytes: Of the window.
    """

    length: int
    begin: int
    size: int
    scored: int
    losses: list[float]
    text_bytes: int | None


@dataclass(frozen=True)
class LengthScore:
    """Results at one length.

    Attributes:
        length: In tokens.
        tokens: Predictions that count.
        nats: Mean loss of a token.
        error: Its standard error, from the means of the windows; None where these overlap.
        nats_per_byte: Mean loss of a byte of the text that is scored; None where windows score a token more than once.
        positions: Tokens before those that count: the middles of NUM_POSITIONS ranges.
        by_position: Mean loss in each range.
        errors_by_position: Their standard errors, as `error`.
    """

    length: int
    tokens: int
    nats: float
    error: float | None
    nats_per_byte: float | None
    positions: list[float]
    by_position: list[float]
    errors_by_position: list[float] | None

    @property
    def perplexity(self) -> float:
        """exp(nats), at most exp(MAX_NATS)."""
        return math.exp(min(MAX_NATS, self.nats))


@dataclass(frozen=True)
class PerplexityScores:
    """Results at all lengths, ascending."""

    mode: str
    scores: list[LengthScore]

    @property
    def summary(self) -> str:
        """One line with the perplexity at each length."""
        parts = (f"{score.length} tokens {score.perplexity:.4g}" for score in self.scores)
        return f"perplexity ({self.mode}): {', '.join(parts)}"

    @property
    def measures(self) -> list[Measure]:
        """Perplexity and, where every token counts once, nats per byte at each length."""
        measures = []
        for score in self.scores:
            error = None if score.error is None else score.perplexity * score.error
            measures.append(Measure(_name(score.length), score.perplexity, error, score.tokens))
        for score in self.scores:
            if score.nats_per_byte is not None:
                error = None if score.error is None else score.nats_per_byte / score.nats * score.error
                measures.append(Measure(f"nats per byte at {score.length}", score.nats_per_byte, error, score.tokens))
        return measures

    def describe(self) -> dict[str, Any]:
        """The results of each length."""
        return {"lengths": [asdict(score) | {"perplexity": score.perplexity} for score in self.scores]}

    def draw(self, figure: "Figure") -> None:
        """Perplexity over lengths, and loss over positions of the windows of each length."""
        figure.set_size_inches(11, 4.5)
        over_lengths, over_positions = figure.subplots(1, 2)
        lengths = [score.length for score in self.scores]
        over_lengths.plot(lengths, [score.perplexity for score in self.scores], marker=".")
        over_lengths.set_xscale("log", base=2)
        over_lengths.set_xticks(lengths, map(str, lengths))
        over_lengths.set(xlabel="tokens", ylabel="perplexity")
        for score in self.scores:
            over_positions.errorbar(
                score.positions, score.by_position, score.errors_by_position, marker=".", label=f"{score.length} tokens"
            )
        over_positions.set_xscale("log", base=2)
        over_positions.set(xlabel="position in the window", ylabel="loss (nats)")
        over_positions.legend()


@dataclass(frozen=True)
class Perplexity(Task[Window, Prediction, PerplexityScores]):
    """The perplexity task of `megatape evaluate`.

    Attributes:
        data: data directory; perplexity takes its validation split, or a text file, or a .bin file
            of token ids (uint16, in nanoGPT's format)
        lengths: context lengths in tokens (default: powers of two from 256 to the model's maximum)
        mode: windows side by side; windows that move by --stride and score that many tokens; or as
            in the paper's code, windows every 256 tokens of which all predictions count
        stride: tokens that sliding windows move by (default: 256)
        max_tokens: use the first N tokens of the text
    """

    data: Annotated[Path, option(metavar="PATH")]
    lengths: Annotated[LengthList | None, option(metavar="L,L,...")] = None
    mode: Literal["disjoint", "sliding", "authors"] = "disjoint"
    stride: Annotated[int | None, option(metavar="S")] = None
    max_tokens: Annotated[Count, option(metavar="N")] = 2**17

    prediction = Prediction

    def batches(self, model: ModelOutline) -> list[list[Window]]:
        """Windows of equal length, which score the same tokens at all lengths but for mode "authors".

        Raises:
            FileNotFoundError: There is no such text.
            UserError: The text is too short or not in the model's tokens, lengths do not divide the longest in mode "disjoint",
                or a stride is given for another mode than "sliding" or above a length.
        """
        if self.stride is not None and self.mode != "sliding":
            raise UserError(f"stride has no effect with `mode` {self.mode}: leave it out, or choose sliding")
        lengths = self.lengths or usual_lengths(model.max_positions)
        tokens = read_tokens(model, self.data, self.max_tokens)
        if tokens.size <= max(lengths):
            raise UserError(
                f"lengths {max(lengths)}: {self.data} has {tokens.size} tokens (`max_tokens` {self.max_tokens}), and one "
                "more than the longest length is needed: give shorter lengths, or more text"
            )
        batches = []
        stride = AUTHORS_STRIDE if self.stride is None else self.stride
        for length in lengths:
            windows = _windows(tokens, self.mode, length, max(lengths), stride)
            text_bytes = _text_bytes(model, tokens, windows)
            batches += _batched([replace(window, text_bytes=text_bytes) for window in windows])
        return batches

    def run(self, model: EvaluationModel, batch: list[Window]) -> list[Prediction]:
        """The losses of each window."""
        predictions = []
        for window, losses in zip(batch, _losses(model, batch), strict=True):
            sums = [float(part.sum()) for part in np.array_split(losses, min(NUM_POSITIONS, losses.size))]
            size = window.tokens.size - 1
            predictions.append(Prediction(window.length, window.begin, size, window.num_scored, sums, window.text_bytes))
        return predictions

    def result(self, predictions: list[Prediction]) -> PerplexityScores:
        by_length = groupby(predictions, lambda each: each.length)
        return PerplexityScores(self.mode, [_score(length, list(windows)) for length, windows in by_length])

    def paper(self) -> dict[str, dict[str, float]]:
        """Table 4, which has other texts than most evaluations: both of its sets."""
        return {
            f"{EXTENSION_NAMES[method]}, Llama 2 7B on {text}": dict(zip(map(_name, table.lengths), values, strict=True))
            for text, table in EXTENSION_PERPLEXITY.items()
            for method, values in table.rows.items()
            if self.mode == "authors"
        }


def evaluate_perplexity(
    model: EvaluationModel, data: Path, length: int, longest: int, selection: Selection = NEW_SELECTION
) -> float:
    """Compute the perplexity on text of the validation split, in disjoint windows.

    Every length has the same text: up to 32,768 tokens, in whole sequences of `longest` tokens. The text is packed as in
    training, and every window starts without context.

    Args:
        model: Model to evaluate.
        data: Data directory.
        length: Number of tokens per window.
        longest: Number of tokens per sequence, a multiple of `length`.
        selection: Selection of the sequences from the split.

    Returns:
        Exponential of the mean loss per token (nats).

    Raises:
        UserError: The split is shorter than `longest`.
    """
    dataset = TokenDataset(data, "validation", longest)
    windows: list[Window] = []
    for sequence in select_samples(dataset.num_samples, max(1, MAX_TOKENS // longest), selection):
        windows += _windows(dataset.tokens(sequence), "disjoint", length, longest)
    batches = _batched(windows)
    return math.exp(min(MAX_NATS, fmean(float(losses.mean()) for batch in batches for losses in _losses(model, batch))))


def read_tokens(model: ModelOutline, path: Path, max_tokens: int) -> np.ndarray:
    """The first ids of a text, int64 [at most max_tokens]: a data directory's validation split, a .bin file, or a text file.

    Raises:
        FileNotFoundError: There is no such text.
        UserError: Ids are not the model's.
    """
    if path.is_dir():
        split = StoredSplit(path, "validation")
        tokens = split.stream(0, min(split.num_tokens, max_tokens))
        _check_tokenizer(model, split, tokens)
    elif not path.exists():
        raise MissingPath(f"data {path}: no such file or folder: give a text file, a .bin file or a data directory")
    elif path.suffix == ".bin":
        tokens = np.fromfile(path, np.uint16, max_tokens).astype(np.int64)
    elif not path.is_file():
        raise UserError(f"data {path} is a device or a pipe: give a text file, a .bin file or a folder")
    else:
        try:
            with path.open(encoding="utf-8") as file:
                text = file.read(MAX_CHARACTERS * max_tokens)  # of a huge corpus, only its beginning
        except UnicodeDecodeError as error:
            raise UserError(f"data {path} is not UTF-8 text ({error}): give a text file, a .bin file or a folder") from None
        tokens = np.array(model.tokenizer(text)["input_ids"][:max_tokens], np.int64)
    if tokens.size and tokens.max() >= model.vocab_size:
        raise UserError(
            f"data {path} has the token id {tokens.max()}, but {model.name} has {model.vocab_size} tokens: "
            "give text of the model's tokenizer"
        )
    return tokens


def _check_tokenizer(model: ModelOutline, split: StoredSplit, tokens: np.ndarray) -> None:
    """Raise UserError if the data's tokenizer is not the model's, by the first document of the text."""
    text = tokens[1:] if tokens.size and tokens[0] == split.bos_id else tokens
    ends = np.flatnonzero(text == split.eos_id)
    ours = text[: ends[0] if ends.size else text.size].tolist()
    tokenizer = split.tokenizer()
    theirs = model.tokenizer(tokenizer.decode(ours), add_special_tokens=False)["input_ids"]
    if ours[:-1] != theirs[: len(ours) - 1]:  # a text that is cut off may end in another token
        raise UserError(
            f"data was prepared with another tokenizer than that of {model.name}, which gives its text other ids: give a "
            "text file, or data that was prepared with the model's"
        )


def _windows(tokens: np.ndarray, mode: str, length: int, longest: int, stride: int = AUTHORS_STRIDE) -> list[Window]:
    """Windows of `length` tokens of a text, whose longest windows have `longest`. stride: of mode "sliding"."""
    size = num_scored = length
    if mode == "authors":  # L tokens make L - 1 predictions
        size = num_scored = length - 1
        begins = range(0, tokens.size - length + 1, AUTHORS_STRIDE)
    elif mode == "sliding":
        if not 1 <= stride <= length:
            raise UserError(f"stride is {stride}: give 1 to the shortest of `lengths` ({length} is less)")
        # Every length has the whole context of each block of `stride` targets, which ends at longest, longest + stride, ...
        begins = range(longest - length, tokens.size - length, stride)
        num_scored = stride
    else:
        if longest % length:
            raise UserError(
                f"lengths: {length} does not divide {longest}, so not all lengths would score the same tokens: give lengths "
                "that divide the longest, or `mode` sliding"
            )
        begins = range(0, (tokens.size - 1) // longest * longest, length)
    return [Window(length, begin, tokens[begin : begin + size + 1], num_scored, None) for begin in begins]


def _text_bytes(model: ModelOutline, tokens: np.ndarray, windows: list[Window]) -> int | None:
    """Bytes of the text that the windows score; None if they score a token more than once."""
    num_scored = windows[0].num_scored
    first, last = (window.begin + window.tokens.size for window in (windows[0], windows[-1]))
    if len(windows) * num_scored != last - first + num_scored:
        return None
    return len(model.tokenizer.decode(tokens[first - num_scored : last].tolist(), skip_special_tokens=True).encode())


def _batched(windows: list[Window]) -> list[list[Window]]:
    return equal_lengths(windows, lambda window: window.length, BATCH_TOKENS)


def _losses(model: EvaluationModel, batch: list[Window]) -> Iterator[np.ndarray]:
    """The losses that count, float64 [num_scored], of each window of a batch."""
    import torch
    from torch.nn.functional import cross_entropy

    samples = torch.from_numpy(np.stack([window.tokens for window in batch]))
    logits = model.logits(samples[:, :-1])
    losses = cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten().to(logits.device), reduction="none")
    for window, row in zip(batch, losses.view(len(batch), -1).cpu().double().numpy(), strict=True):
        yield row[row.size - window.num_scored :]


def _score(length: int, windows: list[Prediction]) -> LengthScore:
    num_scored = windows[0].scored
    text_bytes = windows[0].text_bytes
    sums = np.array([window.losses for window in windows])
    total = float(sums.sum())
    num_tokens = len(windows) * num_scored
    sizes = np.array([part.size for part in np.array_split(np.empty(num_scored), sums.shape[1])])
    # The token after the first input has one token before it; only the last predictions of a window count.
    positions = windows[0].size - num_scored + np.cumsum(sizes) - (sizes - 1) / 2
    nats_per_byte = error = errors = None
    if text_bytes is not None:
        nats_per_byte = total / text_bytes
        if len(windows) > 1:
            error = _error(sums.sum(1) / num_scored)
            errors = _error(sums / sizes)
    by_position = (sums.mean(0) / sizes).tolist()
    mean = total / num_tokens
    return LengthScore(length, num_tokens, mean, error, nats_per_byte, positions.tolist(), by_position, errors)


def _error(means: np.ndarray) -> Any:
    """The standard error of the mean of windows, [windows, ...]: a number, or a list."""
    return (means.std(0, ddof=1) / math.sqrt(len(means))).tolist()


def _name(length: int) -> str:
    return f"perplexity at {length}"
