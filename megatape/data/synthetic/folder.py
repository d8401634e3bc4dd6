"""Writes the training and validation split of a synthetic task as a data directory of examples (docs/chat_data.md).

Tests are not written, but drawn again when scoring a model.
"""

from pathlib import Path
from typing import Any

from megatape.data.finetuning.example_folder import ExampleFolder
from megatape.data.finetuning.format import Example
from megatape.data.shards.entries import SPLITS, Index
from megatape.data.shards.index import load_index
from megatape.data.synthetic.task import SyntheticSample, SyntheticTask
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.datasets.example_dataset import HIDES_ANSWERS
from megatape.errors import UserError
from megatape.utils.files.atomic import new_folder

KIND = "synthetic"


class Encoder:
    """Converts a task's samples to examples, with one token per character.

    Attributes:
        tokenizer: Tokenizer for the alphabet. It has no byte tokens, which would dominate a small model's vocabulary.
    """

    def __init__(self, task: SyntheticTask) -> None:
        model = train_tokenizer([task.alphabet], task.vocab_size, byte_fallback=False)
        self.tokenizer: Tokenizer = SentencePieceTokenizer(model)
        self._ids = {character: self.tokenizer.encode(character)[0] for character in task.alphabet}
        self._ending: list[int] = []
        if task.answers_end:
            self._ending = [self.tokenizer.eos_id]

    def example(self, sample: SyntheticSample) -> Example:
        """Return `<s> text` as an example, with an end token if it belongs to the last answer."""
        begin = self.tokenizer.begin
        text_ids = [self._ids[character] for character in sample.text]
        ids = [*begin, *text_ids, *self._ending]
        offset = len(begin)
        answers = [(offset + answer.begin, offset + answer.end) for answer in sample.answers]
        last_begin, _ = answers[-1]
        answers[-1] = (last_begin, len(ids))
        prompt = sample.text[: sample.answers[0].begin]
        return Example(ids, answers, prompt)


def write_task(task: SyntheticTask, counts: dict[str, int], output: Path) -> Index:
    """Write a task's data directory, all or nothing, and return its index.

    Args:
        task: Task to draw samples from.
        counts: Number of samples in `train` and `validation`.
        output: Data directory to write.

    Raises:
        FileExistsError: `output` exists.
    """
    encoder = Encoder(task)
    with new_folder(output) as directory:
        folder = ExampleFolder(directory, encoder.tokenizer)
        for split in SPLITS:
            for sample in task.samples(split, counts[split]):
                folder.writers[split].add(encoder.example(sample))
        return folder.close(describe(task, counts))


def describe(task: SyntheticTask, counts: dict[str, int]) -> dict[str, Any]:
    """Return the record of the source for the index of a task's data directory."""
    source: dict[str, Any] = {
        "kind": KIND,
        "task": task.name,
        "size": task.size,
        "definition": task.definition,
        "samples": counts,
    }
    if task.hides_answers:
        source[HIDES_ANSWERS] = True
    return source


def check_folder(task: SyntheticTask, counts: dict[str, int], directory: Path) -> None:
    """Raise UserError if `write_task` would write another data directory."""
    recorded = load_index(directory).source
    expected = describe(task, counts)
    for name, value in expected.items():
        if recorded.get(name) != value:
            raise UserError(
                f"{directory} was written for {name} {recorded.get(name)}, now it is {value}: results of both would not be "
                "comparable; choose another folder"
            )
