"""Perplexity at several context lengths, on the same text."""

import argparse
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from megatape.data.dataset import TokenDataset
from megatape.tasks.lengths import parse_lengths
from megatape.tasks.task import Task

if TYPE_CHECKING:
    from megatape.hf.loading import LoadedModel

MAX_TOKENS = 2**15  # of the text of `evaluate_perplexity`
AUTHORS_STRIDE = 256
NUM_POSITIONS = 64  # points of the curve over positions


@dataclass(frozen=True)
class Plan:
    """Windows of `size` tokens at `begins`, each of which predicts the `size` tokens from its second one on; the last
    `num_scored` predictions count."""

    size: int
    begins: range
    num_scored: int


@dataclass(frozen=True)
class LengthScore:
    """Results at one length.

    nats: mean loss of a token. nats_per_byte: of a byte of the text that the scored tokens stand for; None where windows score
    a token more than once. by_position: mean loss at the positions of the windows that count, in NUM_POSITIONS ranges."""

    length: int
    tokens: int
    nats: float
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

    def describe(self) -> dict[str, Any]:
        """All results, for a JSON file."""
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
class Perplexity(Task):
    """The perplexity task of `megatape evaluate`; its fields are arguments of `measure`."""

    data: Path
    lengths: tuple[int, ...]
    mode: str
    stride: int | None
    max_tokens: int

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--data",
            type=Path,
            required=True,
            metavar="PATH",
            help="data directory (its validation split), text file, or .bin file of token ids (uint16, as nanoGPT has them)",
        )
        parser.add_argument("--lengths", type=parse_lengths, required=True, metavar="L,L,...", help="context lengths in tokens")
        parser.add_argument(
            "--mode",
            choices=tuple(_MODES),
            default="disjoint",
            help="windows side by side; windows that move by --stride and score that many tokens; or as in the paper's code, "
            "windows every 256 tokens of which all predictions count (default %(default)s)",
        )
        parser.add_argument("--stride", type=int, metavar="S", help="tokens that sliding windows move by (default: 256)")
        parser.add_argument(
            "--max-tokens",
            type=int,
            default=2**17,
            metavar="N",
            help="use the first N tokens of the text (default %(default)s)",
        )

    def evaluate(self, loaded: "LoadedModel") -> PerplexityScores:
        return measure(loaded, self.data, self.lengths, self.mode, self.stride, self.max_tokens)


def measure(
    loaded: "LoadedModel",
    data: Path,
    lengths: tuple[int, ...],
    mode: str = "disjoint",
    stride: int | None = None,
    max_tokens: int = 2**17,
) -> PerplexityScores:
    """Measure a model at ascending lengths, on the same scored tokens (but for mode "authors").

    data, mode, stride, max_tokens: as the command's options. Raises FileNotFoundError, or ValueError for a text that is too
    short or not in the model's tokens, lengths that do not divide the longest in mode "disjoint", and a stride elsewhere than
    in mode "sliding" or above a length."""
    if stride is not None and mode != "sliding":
        raise ValueError(f"--stride has no effect with --mode {mode}: leave it out, or choose sliding")
    tokens = read_tokens(loaded, data, max_tokens)
    if tokens.size <= max(lengths):
        raise ValueError(
            f"--lengths {max(lengths)}: {data} has {tokens.size} tokens (--max-tokens {max_tokens}), and one more than the "
            "longest length is needed: give shorter lengths, or more text"
        )
    scores = []
    for length in lengths:
        plan = _MODES[mode](length, max(lengths), tokens.size, stride or AUTHORS_STRIDE)
        scores.append(_score(loaded, tokens, length, plan))
    return PerplexityScores(mode, scores)


def evaluate_perplexity(loaded: "LoadedModel", data: Path, length: int, longest: int) -> float:
    """Exponential of the mean loss (nats) on the start of the validation split, in disjoint windows of `length` tokens.

    Every length sees the same text: up to 32,768 tokens, in whole sequences of `longest` tokens, a multiple of `length`. The
    text is packed as in training, and every sequence starts without context. Raises ValueError if the split is shorter
    than `longest`."""
    num_tokens = min(TokenDataset(data, "validation", longest).num_samples, max(1, MAX_TOKENS // longest)) * longest
    tokens = TokenDataset(data, "validation", num_tokens).tokens(0)
    return math.exp(_losses(loaded, tokens, _disjoint(length, longest, tokens.size, 0)).mean())


def read_tokens(loaded: "LoadedModel", path: Path, max_tokens: int) -> np.ndarray:
    """The first ids of a text, int64 [at most max_tokens]: a data directory's validation split, a .bin file, or a text file.

    Raises FileNotFoundError, or ValueError for ids that are not the model's."""
    if path.is_dir():
        size = TokenDataset(path, "validation", 1).num_tokens
        dataset = TokenDataset(path, "validation", min(size, max_tokens) - 1)
        tokens = dataset.tokens(0)
        _check_tokenizer(loaded, dataset, tokens)
    elif path.suffix == ".bin":
        tokens = np.fromfile(path, np.uint16, max_tokens).astype(np.int64)
    else:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"--data {path} is not UTF-8 text ({error}): give a text file, a .bin file or a folder") from None
        tokens = np.array(loaded.tokenizer(text)["input_ids"][:max_tokens], np.int64)
    if tokens.size and tokens.max() >= loaded.model.config.vocab_size:
        raise ValueError(
            f"--data {path} has the token id {tokens.max()}, but {loaded.name} has {loaded.model.config.vocab_size} tokens: "
            "give text of the model's tokenizer"
        )
    return tokens


def _check_tokenizer(loaded: "LoadedModel", dataset: TokenDataset, tokens: np.ndarray) -> None:
    """Raise ValueError if the data's tokenizer is not the model's, by the first document of the text."""
    own = tokens[1:] if tokens[0] == dataset.bos_id else tokens
    ends = np.flatnonzero(own == dataset.eos_id)
    ours = own[: ends[0] if ends.size else own.size].tolist()
    tokenizer = dataset.tokenizer()
    theirs = loaded.tokenizer(tokenizer.decode(ours), add_special_tokens=False)["input_ids"]
    if ours[:-1] != theirs[: len(ours) - 1]:  # a text that is cut off may end in another token
        raise ValueError(
            f"--data was prepared with another tokenizer than that of {loaded.name}, which gives its text other ids: give a "
            "text file, or data that was prepared with the model's"
        )


def _disjoint(length: int, longest: int, num_tokens: int, stride: int) -> Plan:
    if longest % length:
        raise ValueError(
            f"--lengths: {length} does not divide {longest}, so not all lengths would score the same tokens: give lengths that "
            "divide the longest, or --mode sliding"
        )
    return Plan(length, range(0, (num_tokens - 1) // longest * longest, length), length)


def _sliding(length: int, longest: int, num_tokens: int, stride: int) -> Plan:
    if not 1 <= stride <= length:
        raise ValueError(f"--stride is {stride}: give 1 to the shortest of --lengths ({length} is less)")
    # Blocks of `stride` targets that every length has the whole context of: they end at tokens longest, longest + stride, ...
    return Plan(length, range(longest - length, num_tokens - length, stride), stride)


def _authors(length: int, longest: int, num_tokens: int, stride: int) -> Plan:
    # L tokens make L - 1 predictions.
    return Plan(length - 1, range(0, num_tokens - length + 1, AUTHORS_STRIDE), length - 1)


# (length, longest, number of tokens, stride) -> windows
_MODES: dict[str, Callable[[int, int, int, int], Plan]] = {"disjoint": _disjoint, "sliding": _sliding, "authors": _authors}


def _score(loaded: "LoadedModel", tokens: np.ndarray, length: int, plan: Plan) -> LengthScore:
    losses, num_windows = _losses(loaded, tokens, plan), len(plan.begins)
    first, last = plan.begins[0] + plan.size - plan.num_scored + 1, plan.begins[-1] + plan.size + 1
    nats_per_byte = None
    if num_windows * plan.num_scored == last - first:  # each token once
        text = loaded.tokenizer.decode(tokens[first:last].tolist(), skip_special_tokens=True)
        nats_per_byte = float(losses.sum()) * num_windows / len(text.encode())
    curve = [float(part.mean()) for part in np.array_split(losses, min(NUM_POSITIONS, losses.size))]
    return LengthScore(length, num_windows * plan.num_scored, float(losses.mean()), nats_per_byte, curve)


def _losses(loaded: "LoadedModel", tokens: np.ndarray, plan: Plan) -> np.ndarray:
    """The mean loss at each scored position of the windows, in nats, float64 [num_scored]."""
    from megatape.tasks.losses import window_losses

    total = np.zeros(plan.num_scored)
    for losses in window_losses(loaded, tokens, plan.begins, plan.size):
        total += losses[:, plan.size - plan.num_scored :].double().sum(0).numpy()
    return total / len(plan.begins)
