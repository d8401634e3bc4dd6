"""Scores a trained model of the suite.

Nothing is generated: greedy decoding gives an answer exactly if each of its tokens is the likeliest one after the preceding
tokens, so scoring a sample takes one forward pass.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from megatape.checkpoint.load.reader import CheckpointReader
from megatape.config import Config, load_config
from megatape.data.shards.index import load_index
from megatape.data.synthetic.folder import KIND, Encoder
from megatape.data.synthetic.task import SyntheticSample, SyntheticTask
from megatape.errors import UserError
from megatape.hf.weights.checkpoint_weights import load_model
from megatape.lab.study.execution.one_process.answer_tokens import logits_at
from megatape.lab.study.execution.one_process.training import TrainedModel
from megatape.lab.study.results.numerical_environment import numerical_environment
from megatape.lab.study.results.training_metrics import TrainingMetrics
from megatape.lab.study.suite.scores.answers import AnswerCounts, count_answers, token_places
from megatape.lab.study.suite.scores.record import Record, ScoredSplit
from megatape.lab.study.suite.scores.task_result import TaskResult
from megatape.model.transformer import Transformer
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from megatape.run_folder import RunFolder

# Maximum tokens per forward pass.
BATCH_TOKENS = 2**13

# Returns the likeliest next token at places, [n], given a model, tokens and position ids [B, N], and places as indices into the
# flattened samples, [n].
Predict = Callable[[Transformer, Tensor, Tensor, Tensor], Tensor]


def predict_all(model: Transformer, tokens: Tensor, positions: Tensor, places: Tensor) -> Tensor:
    """Compute the logits of all tokens, see Predict."""
    return model(tokens, positions).argmax(-1).flatten()[places]


def predict_answers(model: Transformer, tokens: Tensor, positions: Tensor, places: Tensor) -> Tensor:
    """Compute the logits at the places alone, see Predict."""
    return logits_at(model, tokens, positions, places).argmax(-1)


def score_run(directory: str, contender: str, splits: list[str], count: int) -> TaskResult:
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
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_model(checkpoint).to(device).eval()
    records = _records(model, config, task, contender, splits, count, predict_all)
    metrics = TrainingMetrics.read(folder)
    seconds = sum(metrics.seconds) + time.monotonic() - started
    return TaskResult(
        config=config,
        fingerprints=checkpoint.state.fingerprints,
        definition=task.definition,
        validation_loss=metrics.validation_loss,
        seconds=seconds,
        records=records,
        origin=numerical_environment(),
    )


def score_trained_model(trained: TrainedModel, contender: str, splits: list[str], count: int) -> TaskResult:
    """Score a model in the process that trained it. Arguments as in `score_run`.

    Raises:
        UserError: The data do not belong to a suite, or the task definition has changed.
    """
    started = time.monotonic()
    task = _task_of(trained.config, "the run")
    records = _records(trained.model.eval(), trained.config, task, contender, splits, count, predict_answers)
    return TaskResult(
        config=trained.config,
        fingerprints=trained.fingerprints,
        definition=task.definition,
        validation_loss=trained.validation_loss,
        seconds=trained.seconds + time.monotonic() - started,
        records=records,
        engine="one_process",
        origin=numerical_environment(),
    )


def _records(
    model: Transformer,
    config: Config,
    task: SyntheticTask,
    contender: str,
    splits: list[str],
    count: int,
    predict: Predict,
) -> list[Record]:
    """Return a model's record on each split. Arguments as in `score_run` and `score_split`."""
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
            counts = score_split(model, task, split, count, seed, predict=predict)
            records.append(scored_split.scored(counts))
        else:
            records.append(scored_split.not_scored(reason))
    return records


def open_run(folder: RunFolder) -> tuple[Config, SyntheticTask, CheckpointReader]:
    """Return the configuration, task and last checkpoint of a suite's run.

    Raises:
        UserError: The run does not belong to a suite, or the task definition has changed.
        FileNotFoundError: The run is not complete.
    """
    config = load_config(folder.config)
    task = _task_of(config, str(folder.directory))
    return config, task, CheckpointReader(folder.checkpoint(config.training.steps))


def _task_of(config: Config, run: str) -> SyntheticTask:
    """Return the task of a run, which `run` names in messages. Raises UserError, see `open_run`."""
    source = load_index(config.data.directory).source
    if source.get("kind") != KIND:
        raise UserError(f"{run} was not trained on a task of the suite, but on {config.data.path}: choose another run")
    task: SyntheticTask = SYNTHETIC_TASKS[source["task"]].load()(source["task"], source["size"])
    if task.definition != source["definition"]:
        raise UserError(f"{config.data.path} has another definition of {task.name} than this version: choose another folder")
    return task


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
    predict: Predict = predict_all,
) -> AnswerCounts:
    """Count a model's right answers on the first samples of a split.

    Args:
        model: Trained model.
        task: The model's task.
        split: Split name.
        count: Number of samples.
        seed: Seed for encodings that draw positions.
        batch_tokens: Maximum tokens per forward pass, unless a single sample is longer.
        predict: Computes the likeliest tokens.
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
        # A token's place in the text is also its target's place, because the first input is <s>.
        places = [token_places(task, sample) for sample in batch]
        flat_places = np.concatenate([np.array(places_of, np.int64) + row * length for row, places_of in enumerate(places)])
        tokens = predict(
            model,
            torch.from_numpy(inputs).to(device),
            positions.expand(len(batch), -1),
            torch.from_numpy(flat_places).to(device),
        )
        is_right = iter(tokens.cpu().numpy() == targets.reshape(-1)[flat_places])
        for places_of in places:
            predicted.append([bool(next(is_right)) for _ in places_of])
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
