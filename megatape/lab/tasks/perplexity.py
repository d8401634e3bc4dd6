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
from megatape.lab.tasks.engine.model import EvaluationModel, ModelOutline
from megatape.lab.tasks.engine.result import Measure
from megatape.lab.tasks.engine.task import Task
from megatape.utils.options import Count, option

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Maximum number of tokens in the text of `evaluate_perplexity`.
MAX_TOKENS = 2**15
# Stride of the paper's windows, and the default for sliding windows.
AUTHORS_STRIDE = 256
# Characters per token, more than the mean of any text.
MAX_CHARACTERS = 64
# Maximum number of points of the curve over positions.
NUM_POSITIONS = 64
# Largest loss whose perplexity is computed. exp overflows above 709.
MAX_NATS = 700
# Maximum number of tokens in a forward pass, whose logits are [4096, V].
BATCH_TOKENS = 2**12


@dataclass(frozen=True)
class Window:
    """A window of the text. Only its last predictions count.

    Attributes:
        length: Context length of the window.
        begin: Index of the window's first token in the text.
        tokens: Ids, int64 [N + 1]. The last N are predicted.
        num_scored: Number of predictions that count.
        text_bytes: Bytes of the text scored by all windows of this length, None if they score a token more than once.
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
        length: Context length of the window.
        begin: Index of the window's first token in the text.
        size: Number of predicted tokens.
        scored: Number of predictions that count.
        losses: Sums of the losses that count (nats), in up to NUM_POSITIONS ranges of positions.
        text_bytes: Bytes of the text scored by all windows of this length, None if they score a token more than once.
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
        length: Context length in tokens.
        tokens: Number of predictions that count.
        nats: Mean loss per token.
        error: Standard error of the loss from the means of the windows, None if windows overlap.
        nats_per_byte: Mean loss per byte of the scored text, None if windows score a token more than once.
        positions: Number of tokens before the predictions that count: the middles of up to NUM_POSITIONS ranges.
        by_position: Mean loss in each range.
        errors_by_position: Standard error in each range, None if windows overlap.
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
        """Perplexity and, if every token counts once, nats per byte at each length."""
        measures = []
        for score in self.scores:
            error = None
            if score.error is not None:
                error = score.perplexity * score.error
            measures.append(Measure(_name(score.length), score.perplexity, error, score.tokens))
        for score in self.scores:
            if score.nats_per_byte is None:
                continue
            error = None
            if score.error is not None:
                error = score.nats_per_byte / score.nats * score.error
            measures.append(Measure(f"nats per byte at {score.length}", score.nats_per_byte, error, score.tokens))
        return measures

    def describe(self) -> dict[str, Any]:
        """Return the results of each length."""
        return {"lengths": [asdict(score) | {"perplexity": score.perplexity} for score in self.scores]}

    def draw(self, figure: "Figure") -> None:
        """Draw the perplexity over lengths, and the loss over positions in the windows of each length."""
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
        """Make batches of windows of equal length. Except in mode "authors", all lengths score the same tokens.

        Raises:
            FileNotFoundError: The text is missing.
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
        stride = self.stride
        if stride is None:
            stride = AUTHORS_STRIDE
        batches = []
        for length in lengths:
            windows = _windows(tokens, self.mode, length, max(lengths), stride)
            text_bytes = _text_bytes(model, tokens, windows)
            batches += _batched([replace(window, text_bytes=text_bytes) for window in windows])
        return batches

    def run(self, model: EvaluationModel, batch: list[Window]) -> list[Prediction]:
        """Compute the losses of each window."""
        predictions = []
        for window, losses in zip(batch, _losses(model, batch), strict=True):
            ranges = np.array_split(losses, min(NUM_POSITIONS, losses.size))
            sums = [float(part.sum()) for part in ranges]
            size = window.tokens.size - 1
            predictions.append(Prediction(window.length, window.begin, size, window.num_scored, sums, window.text_bytes))
        return predictions

    def result(self, predictions: list[Prediction]) -> PerplexityScores:
        by_length = groupby(predictions, lambda each: each.length)
        return PerplexityScores(self.mode, [_score(length, list(windows)) for length, windows in by_length])

    def paper(self) -> dict[str, dict[str, float]]:
        """Return both sets of the paper's Table 4, which has other texts than most evaluations."""
        if self.mode != "authors":
            return {}
        rows = {}
        for text, table in EXTENSION_PERPLEXITY.items():
            names = [_name(length) for length in table.lengths]
            for method, values in table.rows.items():
                rows[f"{EXTENSION_NAMES[method]}, Llama 2 7B on {text}"] = dict(zip(names, values, strict=True))
        return rows


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
    num_sequences = max(1, MAX_TOKENS // longest)
    windows: list[Window] = []
    for sequence in select_samples(dataset.num_samples, num_sequences, selection):
        windows += _windows(dataset.tokens(sequence), "disjoint", length, longest)

    means = []
    for batch in _batched(windows):
        for losses in _losses(model, batch):
            means.append(float(losses.mean()))
    return math.exp(min(MAX_NATS, fmean(means)))


def read_tokens(model: ModelOutline, path: Path, max_tokens: int) -> np.ndarray:
    """Read the first token ids of a text.

    Args:
        model: Outline of the model.
        path: Data directory, whose validation split is read, .bin file or text file.
        max_tokens: Maximum number of tokens to read.

    Returns:
        Token ids, int64 [at most max_tokens].

    Raises:
        FileNotFoundError: The text is missing.
        UserError: The ids are not the model's.
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
                # The file may be a huge corpus, so only its beginning is read.
                text = file.read(MAX_CHARACTERS * max_tokens)
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
    """Compare the data's tokenizer with the model's on the first document. Raise UserError if they differ.

    Args:
        model: Outline of the model.
        split: Split of the data directory.
        tokens: First tokens of the split.
    """
    document = tokens
    if document.size and document[0] == split.bos_id:
        document = document[1:]
    ends = np.flatnonzero(document == split.eos_id)
    if ends.size:
        document = document[: ends[0]]

    ours = document.tolist()
    text = split.tokenizer().decode(ours)
    theirs = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    # A document that is cut off may end in another token.
    if ours[:-1] != theirs[: len(ours) - 1]:
        raise UserError(
            f"data was prepared with another tokenizer than that of {model.name}, which gives its text other ids: give a "
            "text file, or data that was prepared with the model's"
        )


def _windows(tokens: np.ndarray, mode: str, length: int, longest: int, stride: int = AUTHORS_STRIDE) -> list[Window]:
    """Cut a text into windows.

    Args:
        tokens: Ids of the text.
        mode: Mode of the task.
        length: Tokens of a window.
        longest: Tokens of the longest windows on this text.
        stride: Number of tokens between windows in mode "sliding".
    """
    # Predictions of a window.
    size = length
    num_scored = length
    if mode == "authors":
        # L tokens make L - 1 predictions.
        size = length - 1
        num_scored = length - 1
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
    """Count the bytes of the text that the windows score. Return None if they score a token more than once."""
    first = windows[0]
    last = windows[-1]
    begin = first.begin + first.tokens.size - first.num_scored
    end = last.begin + last.tokens.size
    if len(windows) * first.num_scored != end - begin:
        return None
    text = model.tokenizer.decode(tokens[begin:end].tolist(), skip_special_tokens=True)
    return len(text.encode())


def _batched(windows: list[Window]) -> list[list[Window]]:
    return equal_lengths(windows, lambda window: window.length, BATCH_TOKENS)


def _losses(model: EvaluationModel, batch: list[Window]) -> Iterator[np.ndarray]:
    """Yield the losses that count of each window in a batch, float64 [num_scored]."""
    import torch
    from torch.nn.functional import cross_entropy

    samples = torch.from_numpy(np.stack([window.tokens for window in batch]))
    logits = model.logits(samples[:, :-1])
    targets = samples[:, 1:].flatten().to(logits.device)
    losses = cross_entropy(logits.flatten(0, 1), targets, reduction="none")
    rows = losses.view(len(batch), -1).cpu().double().numpy()
    for window, row in zip(batch, rows, strict=True):
        yield row[row.size - window.num_scored :]


def _score(length: int, windows: list[Prediction]) -> LengthScore:
    """Compute the results at one length from the losses of its windows."""
    num_scored = windows[0].scored
    text_bytes = windows[0].text_bytes
    # Sums by window and range of positions.
    sums = np.array([window.losses for window in windows])
    total = float(sums.sum())
    num_tokens = len(windows) * num_scored
    ranges = np.array_split(np.empty(num_scored), sums.shape[1])
    sizes = np.array([part.size for part in ranges])
    # The first predicted token has one token before it. Only the last predictions of a window count.
    positions = windows[0].size - num_scored + np.cumsum(sizes) - (sizes - 1) / 2

    nats_per_byte = None
    error = None
    errors = None
    if text_bytes is not None:
        nats_per_byte = total / text_bytes
        if len(windows) > 1:
            error = _error(sums.sum(1) / num_scored)
            errors = _error(sums / sizes)
    return LengthScore(
        length=length,
        tokens=num_tokens,
        nats=total / num_tokens,
        error=error,
        nats_per_byte=nats_per_byte,
        positions=positions.tolist(),
        by_position=(sums.mean(0) / sizes).tolist(),
        errors_by_position=errors,
    )


def _error(means: np.ndarray) -> Any:
    """Return the standard error of the mean over windows, [windows, ...], as a number or a list."""
    return (means.std(0, ddof=1) / math.sqrt(len(means))).tolist()


def _name(length: int) -> str:
    return f"perplexity at {length}"
