"""Scores a trained model of the suite.

Nothing is generated: greedy decoding gives an answer exactly if each of its tokens is the likeliest one after the preceding
tokens, so scoring a sample takes one forward pass.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from megatape.checkpoint.reader import CheckpointReader
from megatape.config import Config, load_config
from megatape.data.shards.index import load_index
from megatape.data.synthetic.folder import KIND, Encoder
from megatape.data.synthetic.task import SyntheticSample, SyntheticTask
from megatape.errors import UserError
from megatape.hf.weights.checkpoint_weights import load_model
from megatape.lab.study.results.training_metrics import TrainingMetrics
from megatape.lab.study.suite.scores.answers import AnswerCounts, count_answers, token_places
from megatape.lab.study.suite.scores.record import ScoredSplit
from megatape.lab.study.suite.scores.task_result import TaskResult
from megatape.model.transformer import Transformer
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from megatape.run_folder import RunFolder

# Maximum tokens per forward pass.
BATCH_TOKENS = 2**13


def measure(directory: str, contender: str, splits: list[str], count: int) -> TaskResult:
    """Score the last checkpoint of a run.

    Args:
        directory: Run directory.
        contender: Encoding label.
        splits: Splits to score.
        count: Samples per split.

    Raises:
        UserError: The run does not belong to a suite, or the task definition has changed.
        FileNotFoundError: The run is not complete.
    """
    started = time.monotonic()
    folder = RunFolder(Path(directory))
    config, task, checkpoint = open_run(folder)
    device = "cpu"
    if torch.cuda.is_available():
        device = "cuda"
    model = load_model(checkpoint).to(device).eval()
    encoding = config.model.encoding
    seed = config.training.seed
    records = []
    for split in splits:
        scored_split = ScoredSplit(
            task=task.name,
            split=split,
            contender=contender,
            kind="encoding",
            seed=seed,
            learning_rate=config.optimizer.learning_rate,
        )
        reason = inapplicable(task, split, encoding)
        if reason is None:
            counts = score_split(model, task, split, count, seed)
            records.append(scored_split.scored(counts))
        else:
            records.append(scored_split.not_scored(reason))
    metrics = TrainingMetrics.read(folder)
    seconds = sum(metrics.seconds) + time.monotonic() - started
    return TaskResult(
        config=config,
        fingerprints=checkpoint.state.fingerprints,
        definition=task.definition,
        validation_loss=metrics.validation_loss,
        seconds=seconds,
        records=records,
    )


def open_run(folder: RunFolder) -> tuple[Config, SyntheticTask, CheckpointReader]:
    """Return the configuration, task and last checkpoint of a suite's run.

    Raises:
        UserError: The run does not belong to a suite, or the task definition has changed.
        FileNotFoundError: The run is not complete.
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
    """Return the reason why an encoding does not support a split, or None."""
    max_positions = ENCODINGS[encoding].max_positions
    tokens = task.tokens(split) - 1
    if max_positions is None or tokens <= max_positions:
        return None
    return (
        f"not applicable because its samples have {tokens} tokens and {encoding} represents at most {max_positions} positions"
    )


@torch.no_grad()
def score_split(
    model: Transformer,
    task: SyntheticTask,
    split: str,
    count: int,
    seed: int,
    batch_tokens: int = BATCH_TOKENS,
) -> AnswerCounts:
    """Count a model's right answers on the first samples of a split.

    Args:
        model: Trained model.
        task: The model's task.
        split: Split name.
        count: Number of samples.
        seed: Seed for encodings that draw positions.
        batch_tokens: Maximum tokens per forward pass, unless a single sample is longer.
    """
    encoder = Encoder(task)
    length = task.tokens(split) - 1
    device = next(model.parameters()).device
    evaluated_positions = model.encoding.positions(random_offset=False).evaluation(length, seed)
    positions = torch.as_tensor(evaluated_positions, device=device)[None]
    samples = list(task.samples(split, count))
    predicted = []
    batch_size = max(1, batch_tokens // length)
    for first in range(0, count, batch_size):
        batch = samples[first : first + batch_size]
        inputs, targets = _encode(task, encoder, batch, length)
        logits = model(torch.from_numpy(inputs).to(device), positions.expand(len(batch), -1))
        is_right = logits.argmax(-1).cpu().numpy() == targets
        for sample, right in zip(batch, is_right, strict=True):
            # A token's place in the text is also its target's place, because the first input is <s>.
            predicted.append([bool(right[place]) for place in token_places(task, sample)])
    return count_answers(task, samples, predicted)


def _encode(
    task: SyntheticTask,
    encoder: Encoder,
    batch: Sequence[SyntheticSample],
    length: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets, int64 [samples, length]. Padding follows a sample, so the sample never attends to it."""
    padding = encoder.tokenizer.eos_id
    targets = np.full((len(batch), length + 1), padding)
    inputs = np.full((len(batch), length + 1), padding)
    for row, sample in enumerate(batch):
        example = encoder.example(sample)
        targets[row, : len(example.ids)] = example.ids
        inputs[row, : len(example.ids)] = example.ids
        if task.hides_answers:
            for begin, end in example.answers:
                inputs[row, begin:end] = padding
    return inputs[:, :-1], targets[:, 1:]
