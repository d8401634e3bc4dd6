"""The training and validation split of a synthetic task as a data directory of examples (docs/finetuning_data.md).

Tests are not written: they are drawn again where a model is scored.
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
from megatape.errors import UserError
from megatape.utils.files import new_folder
from megatape.utils.targets import HIDES_ANSWERS

KIND = "synthetic"


class Encoder:
    """Samples of a task to examples, one token for each character.

    Attributes:
        tokenizer: Of the task's alphabet, without byte tokens, which would be most of a small model's vocabulary.
    """

    def __init__(self, task: SyntheticTask) -> None:
        model = train_tokenizer([task.alphabet], task.vocab_size, byte_fallback=False)
        self.tokenizer: Tokenizer = SentencePieceTokenizer(model)
        self._ids = {character: self.tokenizer.encode(character)[0] for character in task.alphabet}
        self._ending = [self.tokenizer.eos_id] if task.answers_end else []

    def example(self, sample: SyntheticSample) -> Example:
        """The example: <s>, the text, and the end token if that belongs to the last answer."""
        begin = self.tokenizer.begin
        ids = [*begin, *(self._ids[character] for character in sample.text), *self._ending]
        answers = [(len(begin) + answer.begin, len(begin) + answer.end) for answer in sample.answers]
        answers[-1] = (answers[-1][0], len(ids))
        return Example(ids, answers, sample.text[: sample.answers[0].begin])


def write_task(task: SyntheticTask, counts: dict[str, int], output: Path) -> Index:
    """Write a data directory, all or nothing, and return its index.

    Args:
        task: Whose samples are written.
        counts: Samples of `train` and of `validation`.
        output: The data directory.

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
    """The source that the index of a task's data directory records."""
    source = {"kind": KIND, "task": task.name, "size": task.size, "definition": task.definition, "samples": counts}
    return source | ({HIDES_ANSWERS: True} if task.hides_answers else {})


def check_folder(task: SyntheticTask, counts: dict[str, int], directory: Path) -> None:
    """Raise UserError if the data directory is not the one that `write_task` writes."""
    found = load_index(directory).source
    expected = describe(task, counts)
    for name, value in expected.items():
        if found.get(name) != value:
            raise UserError(
                f"{directory} was written for {name} {found.get(name)}, now it is {value}: results of both would not be "
                "comparable; choose another folder"
            )
