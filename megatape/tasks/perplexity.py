"""Perplexity at several context lengths, on the same text."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

import numpy as np

from megatape.data.training.dataset import TokenDataset
from megatape.errors import UserError
from megatape.options import option
from megatape.tasks.lengths import LengthList, usual_lengths
from megatape.tasks.model import EvaluationModel
from megatape.tasks.task import Measure, Sample, Task

MAX_TOKENS = 2**15  # of the text of `evaluate_perplexity`
AUTHORS_STRIDE = 256
NUM_POSITIONS = 64  # points of the curve over positions
BATCH_TOKENS = 2**12  # per forward pass, whose logits are [4096, V]

# Table 4 of the paper: Llama 2 7B, from 4096 to 8192 tokens, at PAPER_LENGTHS.
PAPER_LENGTHS = (1024, 2048, 4096, 8192)
PAPER = {
    "Proof-pile": {
        "LoRA": (3.828, 3.369, 3.064, 2.867),
        "LongLoRA": (3.918, 3.455, 3.153, 2.956),
        "Theta": (3.864, 3.415, 3.121, 2.934),
        "TAPE": (3.641, 3.196, 2.901, 2.708),
    },
    "PG19": {
        "LoRA": (9.791, 9.098, 8.572, 8.199),
        "LongLoRA": (9.989, 9.376, 8.948, 8.645),
        "Theta": (9.257, 8.640, 8.241, 7.999),
        "TAPE": (8.226, 7.642, 7.278, 7.063),
    },
}


@dataclass(frozen=True)
class Window:
    """A window of N + 1 tokens of the text, of which N are predicted and the last `num_scored` predictions count.

    tokens: int64 [N + 1], from the token number `begin` of the text on. length: the context length that it belongs to.
    """

    length: int
    begin: int
    tokens: np.ndarray
    num_scored: int


@dataclass(frozen=True)
class LengthScore:
    """Results at one length.

    nats: mean loss of a token. error: its standard error, from the means of the windows; None where these overlap.
    nats_per_byte: of a byte of the text that the scored tokens stand for; None where windows score
    a token more than once. by_position: mean loss at the positions of the windows that count, in NUM_POSITIONS ranges.
    """

    length: int
    tokens: int
    nats: float
    error: float | None
    nats_per_byte: float | None
    by_position: list[float]

    @property
    def perplexity(self) -> float:
        """exp(nats)."""
        return math.exp(self.nats)


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
        found = []
        for score in self.scores:
            error = None if score.error is None else score.perplexity * score.error
            found.append(Measure(_name(score.length), score.perplexity, error, score.tokens))
        for score in self.scores:
            if score.nats_per_byte is not None:
                error = None if score.error is None else score.nats_per_byte / score.nats * score.error
                found.append(Measure(f"nats per byte at {score.length}", score.nats_per_byte, error, score.tokens))
        return found

    def describe(self) -> dict[str, Any]:
        """The results of each length."""
        return {"lengths": [asdict(score) | {"perplexity": score.perplexity} for score in self.scores]}

    def draw(self, title: str, path: Path) -> None:
        """Write a PNG: perplexity over lengths, and loss over positions of the longest windows."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11, 4.5), layout="constrained")
        over_lengths, over_positions = figure.subplots(1, 2)
        lengths = [score.length for score in self.scores]
        over_lengths.plot(lengths, [score.perplexity for score in self.scores], ".-")
        over_lengths.set_xscale("log", base=2)
        over_lengths.set_xticks(lengths, map(str, lengths))
        over_lengths.set(xlabel="tokens", ylabel="perplexity")
        longest = self.scores[-1]
        width = longest.length / len(longest.by_position)
        over_positions.plot([width * (number + 0.5) for number in range(len(longest.by_position))], longest.by_position, ".-")
        over_positions.set(xlabel=f"position in {longest.length} tokens", ylabel="loss (nats)")
        figure.suptitle(title, fontsize="small")
        figure.savefig(path, dpi=150)


@dataclass(frozen=True)
class Perplexity(Task[Window, PerplexityScores]):
    """The perplexity task of `megatape evaluate`.

    data: a data directory, a text file or a .bin file. lengths: context lengths in tokens, ascending; None: usual_lengths.
    mode: one of _MODES. stride: tokens that sliding windows move by; None: 256. max_tokens: of the text.
    """

    data: Annotated[
        Path,
        option(
            "data directory; perplexity takes its validation split, or a text file, or a .bin file of token ids (uint16, in "
            "nanoGPT's format)",
            metavar="PATH",
        ),
    ]
    lengths: Annotated[
        LengthList | None,
        option("context lengths in tokens (default: powers of two from 256 to the model's maximum)", metavar="L,L,..."),
    ] = None
    mode: Annotated[
        Literal["disjoint", "sliding", "authors"],
        option(
            "windows side by side; windows that move by --stride and score that many tokens; or as in the paper's code, "
            "windows every 256 tokens of which all predictions count"
        ),
    ] = "disjoint"
    stride: Annotated[int | None, option("tokens that sliding windows move by (default: 256)", metavar="S")] = None
    max_tokens: Annotated[int, option("use the first N tokens of the text", metavar="N")] = 2**17

    def batches(self, model: EvaluationModel) -> list[list[Window]]:
        """Windows of equal length, which score the same tokens at all lengths but for mode "authors".

        Raises FileNotFoundError, or UserError for a text that is too short or not in the model's tokens, lengths that do not
        divide the longest in mode "disjoint", and a stride elsewhere than in mode "sliding" or above
        a length.
        """
        if self.stride is not None and self.mode != "sliding":
            raise UserError(f"stride has no effect with `mode` {self.mode}: leave it out, or choose sliding")
        lengths, tokens = self._lengths(model), read_tokens(model, self.data, self.max_tokens)
        if tokens.size <= max(lengths):
            raise UserError(
                f"lengths {max(lengths)}: {self.data} has {tokens.size} tokens (`max_tokens` {self.max_tokens}), and one "
                "more than the longest length is needed: give shorter lengths, or more text"
            )
        windows = []
        for length in lengths:
            windows += _batched(_MODES[self.mode](length, max(lengths), tokens, self.stride or AUTHORS_STRIDE))
        return windows

    def run(self, model: EvaluationModel, batch: list[Window]) -> list[Sample]:
        """The sum of the losses (nats) of each window, in up to NUM_POSITIONS ranges of positions."""
        samples = []
        for window, losses in zip(batch, _losses(model, batch), strict=True):
            parts = np.array_split(losses, min(NUM_POSITIONS, losses.size))
            said = {"length": window.length, "begin": window.begin, "size": window.tokens.size - 1, "scored": window.num_scored}
            samples.append(said | {"losses": [float(part.sum()) for part in parts]})
        return samples

    def result(self, model: EvaluationModel, samples: list[Sample]) -> PerplexityScores:
        tokens = read_tokens(model, self.data, self.max_tokens)
        scores = [_score(model, tokens, list(group)) for _, group in groupby(samples, lambda sample: sample["length"])]
        return PerplexityScores(self.mode, scores)

    def paper(self) -> dict[str, dict[str, float]]:
        """Table 4, which has other texts than most evaluations: both of its sets."""
        if self.mode != "authors":
            return {}
        return {
            f"{row}, Llama 2 7B on {text}": {_name(length): value for length, value in zip(PAPER_LENGTHS, values, strict=True)}
            for text, rows in PAPER.items()
            for row, values in rows.items()
        }

    def _lengths(self, model: EvaluationModel) -> tuple[int, ...]:
        return self.lengths or usual_lengths(model.max_positions)


def evaluate_perplexity(model: EvaluationModel, data: Path, length: int, longest: int) -> float:
    """Exponential of the mean loss (nats) on the start of the validation split, in disjoint windows of `length` tokens.

    Every length sees the same text: up to 32,768 tokens, in whole sequences of `longest` tokens, a multiple of `length`. The
    text is packed as in training, and every sequence starts without context. Raises UserError if the split is shorter
    than `longest`.
    """
    num_tokens = min(TokenDataset(data, "validation", longest).num_samples, max(1, MAX_TOKENS // longest)) * longest
    tokens = TokenDataset(data, "validation", num_tokens).tokens(0)
    windows = _batched(_disjoint(length, longest, tokens, 0))
    return math.exp(fmean(float(losses.mean()) for batch in windows for losses in _losses(model, batch)))


def read_tokens(model: EvaluationModel, path: Path, max_tokens: int) -> np.ndarray:
    """The first ids of a text, int64 [at most max_tokens]: a data directory's validation split, a .bin file, or a text file.

    Raises FileNotFoundError, or UserError for ids that are not the model's.
    """
    if path.is_dir():
        size = TokenDataset(path, "validation", 1).num_tokens
        dataset = TokenDataset(path, "validation", min(size, max_tokens) - 1)
        tokens = dataset.tokens(0)
        _check_tokenizer(model, dataset, tokens)
    elif path.suffix == ".bin":
        tokens = np.fromfile(path, np.uint16, max_tokens).astype(np.int64)
    elif path.exists() and not path.is_file():
        raise UserError(f"data {path} is a device or a pipe: give a text file, a .bin file or a folder")
    else:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"data {path} is not UTF-8 text ({error}): give a text file, a .bin file or a folder") from None
        tokens = np.array(model.tokenizer(text)["input_ids"][:max_tokens], np.int64)
    if tokens.size and tokens.max() >= model.vocab_size:
        raise UserError(
            f"data {path} has the token id {tokens.max()}, but {model.name} has {model.vocab_size} tokens: "
            "give text of the model's tokenizer"
        )
    return tokens


def _check_tokenizer(model: EvaluationModel, dataset: TokenDataset, tokens: np.ndarray) -> None:
    """Raise UserError if the data's tokenizer is not the model's, by the first document of the text."""
    own = tokens[1:] if tokens[0] == dataset.bos_id else tokens
    ends = np.flatnonzero(own == dataset.eos_id)
    ours = own[: ends[0] if ends.size else own.size].tolist()
    tokenizer = dataset.tokenizer()
    theirs = model.tokenizer(tokenizer.decode(ours), add_special_tokens=False)["input_ids"]
    if ours[:-1] != theirs[: len(ours) - 1]:  # a text that is cut off may end in another token
        raise UserError(
            f"data was prepared with another tokenizer than that of {model.name}, which gives its text other ids: give a "
            "text file, or data that was prepared with the model's"
        )


def _disjoint(length: int, longest: int, tokens: np.ndarray, stride: int) -> list[Window]:
    if longest % length:
        raise UserError(
            f"lengths: {length} does not divide {longest}, so not all lengths would score the same tokens: give lengths that "
            "divide the longest, or `mode` sliding"
        )
    return _windows(length, tokens, range(0, (tokens.size - 1) // longest * longest, length), length, length)


def _sliding(length: int, longest: int, tokens: np.ndarray, stride: int) -> list[Window]:
    if not 1 <= stride <= length:
        raise UserError(f"stride is {stride}: give 1 to the shortest of `lengths` ({length} is less)")
    # Blocks of `stride` targets that every length has the whole context of: they end at tokens longest, longest + stride, ...
    return _windows(length, tokens, range(longest - length, tokens.size - length, stride), length, stride)


def _authors(length: int, longest: int, tokens: np.ndarray, stride: int) -> list[Window]:
    # L tokens make L - 1 predictions.
    return _windows(length, tokens, range(0, tokens.size - length + 1, AUTHORS_STRIDE), length - 1, length - 1)


# (length, longest, tokens of the text, stride) -> windows
_MODES: dict[str, Callable[[int, int, np.ndarray, int], list[Window]]] = {
    "disjoint": _disjoint,
    "sliding": _sliding,
    "authors": _authors,
}


def _windows(length: int, tokens: np.ndarray, begins: range, size: int, num_scored: int) -> list[Window]:
    return [Window(length, begin, tokens[begin : begin + size + 1], num_scored) for begin in begins]


def _batched(windows: list[Window]) -> list[list[Window]]:
    most = max(1, BATCH_TOKENS // windows[0].length)
    return [windows[first : first + most] for first in range(0, len(windows), most)]


def _losses(model: EvaluationModel, batch: list[Window]) -> Iterator[np.ndarray]:
    """The losses that count, float64 [num_scored], of each window of a batch."""
    import torch

    losses = model.losses(torch.from_numpy(np.stack([window.tokens for window in batch])))
    for window, row in zip(batch, losses.double().numpy(), strict=True):
        yield row[row.size - window.num_scored :]


def _score(model: EvaluationModel, tokens: np.ndarray, samples: list[Sample]) -> LengthScore:
    sample = samples[0]
    size, num_scored = sample["size"], sample["scored"]
    sums = np.array([sample["losses"] for sample in samples])
    nats = float(sums.sum()) / (len(samples) * num_scored)
    first, last = (samples[end]["begin"] + size + 1 for end in (0, -1))
    nats_per_byte = error = None
    if len(samples) * num_scored == last - first + num_scored:  # each token once
        text = model.tokenizer.decode(tokens[first - num_scored : last].tolist(), skip_special_tokens=True)
        nats_per_byte = float(sums.sum()) / len(text.encode())
        if len(samples) > 1:
            error = float(sums.sum(1).std(ddof=1)) / num_scored / math.sqrt(len(samples))
    sizes = [part.size for part in np.array_split(np.empty(num_scored), sums.shape[1])]
    curve = [float(value) for value in sums.mean(0) / sizes]
    return LengthScore(sample["length"], len(samples) * num_scored, nats, error, nats_per_byte, curve)


def _name(length: int) -> str:
    return f"perplexity at {length}"
