"""Opens and checks a run's data: training and validation datasets of every corpus."""

from collections.abc import Mapping
from dataclasses import dataclass

from megatape.config.sections.data import DataConfig
from megatape.config.sections.run import EvaluationConfig
from megatape.config.sections.training import TrainingConfig
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.datasets.dataset import Dataset
from megatape.data.training.datasets.open_dataset import open_dataset
from megatape.data.training.inputs import group_by_input
from megatape.data.training.mixing.epoch_limits import check_epochs
from megatape.data.training.mixing.mixture import Mixture
from megatape.data.training.selection import SELECTIONS, SampleGroups, Selection, select_samples
from megatape.errors import UserError, path_errors


@dataclass(frozen=True)
class RunData:
    """Training and validation data.

    Attributes:
        train: Training datasets of all corpora, and their order.
        validation: Validation datasets by corpus, in the order of `train.corpora`.
        evaluated: Evaluation samples by corpus and input, for each selection.
        tokenizer: Tokenizer, held in memory so that changing its files during the run does not affect checkpoints.
    """

    train: Mixture
    validation: dict[str, Dataset]
    evaluated: dict[Selection, dict[str, SampleGroups]]
    tokenizer: Tokenizer

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes recorded in checkpoints: a run only resumes on the same training data."""
        return {"data": self.train.fingerprint, "tokenizer": self.train.tokenizer_hash}


@path_errors()
def open_data(data: DataConfig, training: TrainingConfig, evaluation: EvaluationConfig, vocab_size: int) -> RunData:
    """Open both splits of every corpus.

    Args:
        data: Configuration section `data`.
        training: Section `training`, with the seed and the samples needed.
        evaluation: Section `evaluation`, saying how many samples to evaluate on.
        vocab_size: Vocabulary size of the model.

    Raises:
        UserError, FileNotFoundError: The data are missing or do not fit the configuration.
    """
    corpora = {}
    for name, settings in data.corpora.items():
        corpora[name] = open_dataset(data, settings.path, "train")
    for name, corpus in corpora.items():
        _check_corpus(corpus, data.corpora[name].path, data.samples, vocab_size)

    first, *others = corpora.values()
    for corpus in others:
        # Reading a tokenizer checks its ids. Equal entries have the ids of the first tokenizer, which is read below.
        if corpus.split.tokenizer_entry != first.split.tokenizer_entry:
            corpus.split.tokenizer()

    mixture = Mixture(data, corpora, training.seed)
    batches = training.batch_sizes(data.sequence_length)
    check_epochs(mixture, data.corpora, training.steps, batches)
    validation = {}
    for name in mixture.corpora:
        validation[name] = open_dataset(data, data.corpora[name].path, "validation")
    evaluated = {}
    for selection in SELECTIONS:
        evaluated[selection] = _evaluated_samples(validation, evaluation.samples, selection)
    return RunData(mixture, validation, evaluated, first.split.tokenizer())


def _evaluated_samples(validation: Mapping[str, Dataset], count: int, selection: Selection) -> dict[str, SampleGroups]:
    """Select `count` evaluation samples from each validation dataset, by corpus and input.

    The selection `first` is not grouped by input, because most of its samples belong to one input.
    """
    selected: dict[str, SampleGroups] = {}
    for name, dataset in validation.items():
        samples = select_samples(dataset.num_samples, count, selection)
        selected[name] = {"": samples}
        if selection == "spread":
            selected[name] = group_by_input(dataset, samples)
    return selected


def _check_corpus(corpus: Dataset, path: str, samples: str, vocab_size: int) -> None:
    """Raise UserError if a training dataset does not fit `data.samples` or `model.vocab_size`."""
    if corpus.split.answers and samples != "examples":
        raise UserError(
            f"data {path} holds prompts and answers, but data.samples is {samples}, which would learn the prompts too: set it "
            "to examples, or use other data"
        )
    if corpus.split.vocab_size > vocab_size:
        raise UserError(
            f"the tokenizer of data {path} has {corpus.split.vocab_size} ids, but model.vocab_size is {vocab_size}: raise "
            "model.vocab_size, or use data with another tokenizer"
        )
