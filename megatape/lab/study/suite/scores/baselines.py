"""Baselines of a suite's tasks: predictions without a position encoding, showing what scores mean.

The oracle shows the best possible score. If another baseline is far above chance, the task leaks its answers.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from megatape.data.synthetic.task import TRAIN, SyntheticSample, SyntheticTask
from megatape.lab.study.suite.scores.answers import count_answers, token_places
from megatape.lab.study.suite.scores.record import Record, ScoredSplit

# Number of training samples for fitting a baseline.
NUM_TRAINING_SAMPLES = 1000
BEGIN = "<s>"
END = "</s>"

# Predicts the tokens of all answers in a sample, in order. Each prediction may depend on all preceding tokens.
Predict = Callable[[SyntheticSample], list[str]]


def oracle(task: SyntheticTask, training: Sequence[SyntheticSample]) -> Predict:
    """Knows the answers. Its score is 1 unless scoring is wrong."""
    return partial(_answer_tokens, task)


def majority(task: SyntheticTask, training: Sequence[SyntheticSample]) -> Predict:
    """Predicts the most frequent token at the same place among a sample's answers.

    At a place that no training sample has, it predicts the most frequent token of all.
    """
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for sample in training:
        for place, token in enumerate(_answer_tokens(task, sample)):
            counts[place][token] += 1
    most_frequent_at = {place: _most_frequent(tokens) for place, tokens in counts.items()}
    most_frequent = _most_frequent(sum(counts.values(), Counter()))

    def predict(sample: SyntheticSample) -> list[str]:
        num_tokens = len(_answer_tokens(task, sample))
        return [most_frequent_at.get(place, most_frequent) for place in range(num_tokens)]

    return predict


def bag_of_tokens(task: SyntheticTask, training: Sequence[SyntheticSample]) -> Predict:
    """Sees how often each token precedes the answer's, in no order: softmax regression on those counts."""
    tokens = [BEGIN, *task.alphabet, END]
    ids = {token: index for index, token in enumerate(tokens)}

    def preceding_counts(sample: SyntheticSample) -> Tensor:
        """Count the tokens preceding each answer token, [answer tokens, tokens]. <s> is the constant feature."""
        text = torch.tensor([ids[token] for token in (BEGIN, *sample.text)])
        if task.hides_answers:
            for answer in sample.answers:
                text[answer.begin + 1 : answer.end + 1] = ids[END]
        counts = one_hot(text, len(tokens)).double().cumsum(0)
        return counts[token_places(task, sample)]

    inputs = torch.cat([preceding_counts(sample) for sample in training])
    target_ids = []
    for sample in training:
        target_ids += [ids[token] for token in _answer_tokens(task, sample)]
    targets = torch.tensor(target_ids)
    weight = torch.zeros(len(tokens), len(tokens), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        # A little weight decay keeps the weights finite if the task can be solved.
        value = cross_entropy(inputs @ weight, targets) + 1e-4 * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)

    def predict(sample: SyntheticSample) -> list[str]:
        logits = preceding_counts(sample) @ weight
        return [tokens[token] for token in logits.argmax(1)]

    return predict


# The page of a suite shows the docstrings.
BASELINES = {"oracle": oracle, "majority": majority, "bag of tokens": bag_of_tokens}


def baseline_records(task: SyntheticTask, count: int) -> Iterator[Record]:
    """Score all baselines on the first `count` samples of each test split."""
    training = list(task.samples(TRAIN, NUM_TRAINING_SAMPLES))
    splits = {split: list(task.samples(split, count)) for split in task.tests}
    for contender, baseline in BASELINES.items():
        predict = baseline(task, training)
        for split, samples in splits.items():
            predicted = []
            for sample in samples:
                tokens = zip(predict(sample), _answer_tokens(task, sample), strict=True)
                predicted.append([guess == token for guess, token in tokens])
            scored_split = ScoredSplit(
                task=task.name,
                split=split,
                contender=contender,
                kind="baseline",
                seed=None,
                learning_rate=None,
            )
            yield scored_split.scored(count_answers(task, samples, predicted))


def _answer_tokens(task: SyntheticTask, sample: SyntheticSample) -> list[str]:
    tokens = [*sample.text, END]
    return [tokens[place] for place in token_places(task, sample)]


def _most_frequent(counts: Counter[str]) -> str:
    """Return the most frequent token. Ties go to the first in alphabetical order."""
    return min(counts, key=lambda token: (-counts[token], token))
