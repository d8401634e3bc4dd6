"""Scores a trained model of a suite.

Greedy decoding gives an answer exactly if each of its tokens is the likeliest one after all that precedes it, so one forward
pass over the whole sample scores it, and nothing is generated.

Baselines are rows that no position encoding has anything to do with: they show what scores mean. A task on which one of the two
that know little comes far above chance leaks its answers.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from megatape.checkpoint.reader import CheckpointReader, load_model
from megatape.config import Config, load_config
from megatape.data.shards.index import load_index
from megatape.data.synthetic.folder import KIND, Encoder
from megatape.data.synthetic.task import TRAIN, SyntheticSample, SyntheticTask
from megatape.errors import UserError
from megatape.lab.study.suite.records import Record, Score, Scores, answer_places, score_answers
from megatape.model.transformer import Transformer
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from megatape.run_folder import RunFolder, read_steps

BATCH_TOKENS = 2**13  # of a forward pass
TRAINING = 1000  # samples that baselines are fitted on
BEGIN = "<s>"
END = "</s>"

Predict = Callable[[SyntheticSample], list[str]]  # the tokens of all answers, in order, each given all before it in the text


def measure(directory: str, row: str, splits: list[str], count: int) -> Scores:
    """Score the last checkpoint of a run on `count` samples of each split. row: the label of its encoding.

    Raises UserError or FileNotFoundError if the run is not complete, or the task is no longer as it was.
    """
    began = time.monotonic()
    folder = RunFolder(Path(directory))
    config, task, checkpoint = open_run(folder)
    model = load_model(checkpoint).to("cuda" if torch.cuda.is_available() else "cpu").eval()
    encoding = config.model.encoding
    seed = config.training.seed
    rate = config.optimizer.learning_rate
    records = []
    for split in splits:
        found = inapplicable(task, split, encoding) or score_split(model, task, split, count, seed)
        records.append(Record.of(found, task=task.name, split=split, row=row, kind="encoding", seed=seed, learning_rate=rate))
    steps = list(read_steps(folder.metrics))
    seconds = sum(step["seconds"] for step in steps) + time.monotonic() - began
    loss = steps[-1]["validation_loss"]
    return Scores(config, checkpoint.state["fingerprints"], task.definition, loss, seconds, records)


def open_run(folder: RunFolder) -> tuple[Config, SyntheticTask, CheckpointReader]:
    """Configuration, task and last checkpoint of a run of a suite.

    Raises UserError or FileNotFoundError if it is none, the run is not complete, or the task is no longer as it was.
    """
    config = load_config(folder.config)
    source = load_index(config.data.directory).source
    if source.get("kind") != KIND:
        raise UserError(
            f"{folder.directory} was not trained on a task of the suite, but on {config.data.path}: choose another run"
        )
    task: SyntheticTask = SYNTHETIC_TASKS[source["task"]].load()(source["task"], source["size"])
    if task.definition != source["definition"]:
        raise UserError(f"{config.data.path} has another definition of {task.name} than this version: choose another folder")
    return config, task, CheckpointReader(folder.checkpoint(config.training.steps))


def inapplicable(task: SyntheticTask, split: str, encoding: str) -> str | None:
    """Why the encoding can't do the split, None if it can."""
    most = ENCODINGS[encoding].max_positions
    tokens = task.tokens(split) - 1
    if most is None or tokens <= most:
        return None
    return f"not applicable because its samples have {tokens} tokens and {encoding} represents at most {most} positions"


@torch.no_grad()
def score_split(model: Transformer, task: SyntheticTask, split: str, count: int, seed: int) -> Score:
    """The score on the first `count` samples of a split. seed: of positions that an encoding draws."""
    encoder = Encoder(task)
    length = task.tokens(split) - 1
    device = next(model.parameters()).device
    positions = torch.as_tensor(model.encoding.positions(random_offset=False).evaluation(length, seed), device=device)[None]
    samples = list(task.samples(split, count))
    predicted = []
    size = max(1, BATCH_TOKENS // length)
    for first in range(0, count, size):
        batch = samples[first : first + size]
        # Padding follows the samples, so nothing in them sees it.
        tokens, inputs = np.full((2, len(batch), length + 1), encoder.tokenizer.eos_id)
        for row, read, sample in zip(tokens, inputs, batch, strict=True):
            example = encoder.example(sample)
            row[: len(example.ids)] = read[: len(example.ids)] = example.ids
            for begin, end in example.answers if task.hides_answers else ():
                read[begin:end] = encoder.tokenizer.eos_id
        logits = model(torch.from_numpy(inputs[:, :-1]).to(device), positions.expand(len(batch), -1))
        # After <s>, the place of a token in the text is that of the input before it.
        for sample, right in zip(batch, logits.argmax(-1).cpu().numpy() == tokens[:, 1:], strict=True):
            predicted.append([bool(right[place]) for places in answer_places(task, sample) for place in places])
    return score_answers(task, samples, predicted)


def oracle(task: SyntheticTask, training: Sequence[SyntheticSample]) -> Predict:
    """Knows the answers. Its score is 1 unless scoring is wrong."""
    return partial(_answer_tokens, task)


def majority(task: SyntheticTask, training: Sequence[SyntheticSample]) -> Predict:
    """The token that most often has the same place among a sample's answers.

    Where training has no such place, it is the most frequent of all.
    """
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for sample in training:
        for place, token in enumerate(_answer_tokens(task, sample)):
            counts[place][token] += 1
    by_place = {place: _most_frequent(found) for place, found in counts.items()}
    of_all = _most_frequent(sum(counts.values(), Counter()))
    return lambda sample: [by_place.get(place, of_all) for place, _ in enumerate(_answer_tokens(task, sample))]


def bag_of_tokens(task: SyntheticTask, training: Sequence[SyntheticSample]) -> Predict:
    """Sees how often each token precedes the answer's, in no order: softmax regression on those counts."""
    tokens = [BEGIN, *task.alphabet, END]
    ids = {token: index for index, token in enumerate(tokens)}

    def counts(sample: SyntheticSample) -> Tensor:
        """How often each token precedes those of the answers, [tokens of answers, tokens]. The one <s> is the constant."""
        text = torch.tensor([ids[token] for token in (BEGIN, *sample.text)])
        for answer in sample.answers if task.hides_answers else ():
            text[answer.begin + 1 : answer.end + 1] = ids[END]
        before = torch.nn.functional.one_hot(text, len(tokens)).double().cumsum(0)
        return before[[place for places in answer_places(task, sample) for place in places]]

    inputs = torch.cat([counts(sample) for sample in training])
    targets = torch.tensor([ids[token] for sample in training for token in _answer_tokens(task, sample)])
    weight = torch.zeros(len(tokens), len(tokens), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        # A little decay: without it the weights of a solvable task would grow without bound.
        value = cross_entropy(inputs @ weight, targets) + 1e-4 * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return lambda sample: [tokens[token] for token in (counts(sample) @ weight).argmax(1)]


BASELINES = {"oracle": oracle, "majority": majority, "bag of tokens": bag_of_tokens}


def baseline_records(task: SyntheticTask, count: int) -> Iterator[Record]:
    """The scores of all baselines on the first `count` samples of each test split."""
    training = list(task.samples(TRAIN, TRAINING))
    splits = {split: list(task.samples(split, count)) for split in task.tests}
    for row, baseline in BASELINES.items():
        predict = baseline(task, training)
        for split, samples in splits.items():
            right = [
                [guess == token for guess, token in zip(predict(sample), _answer_tokens(task, sample), strict=True)]
                for sample in samples
            ]
            scored = score_answers(task, samples, right)
            yield Record.of(scored, task=task.name, split=split, row=row, kind="baseline", seed=None, learning_rate=None)


def _answer_tokens(task: SyntheticTask, sample: SyntheticSample) -> list[str]:
    tokens = [*sample.text, END]
    return [tokens[place] for places in answer_places(task, sample) for place in places]


def _most_frequent(counts: Counter[str]) -> str:
    """Of equally frequent ones the first in alphabetical order."""
    return min(counts, key=lambda token: (-counts[token], token))
