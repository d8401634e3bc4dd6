"""Data of a run: training and validation splits of every corpus, opened and checked."""

from collections.abc import Mapping
from dataclasses import dataclass

from megatape.config.data import DataConfig
from megatape.config.run import EvaluationConfig
from megatape.config.training import TrainingConfig
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.dataset import Dataset
from megatape.data.training.epoch_limits import check_epochs
from megatape.data.training.inputs import group_by_input
from megatape.data.training.mixture import Mixture
from megatape.data.training.open_dataset import open_dataset
from megatape.data.training.selection import SELECTIONS, SampleGroups, Selection, select_samples
from megatape.errors import UserError, path_errors


@dataclass(frozen=True)
class RunData:
    """Both splits of a run.

    Attributes:
        train: Training splits of all corpora, and their order.
        validation: Validation splits by corpus, in the order of `train.corpora`.
        evaluated: Evaluation samples by corpus and input, for each selection.
        tokenizer: Tokenizer in memory, so changes of its files during the run do not reach the checkpoints.
    """

    train: Mixture
    validation: dict[str, Dataset]
    evaluated: dict[Selection, dict[str, SampleGroups]]
    tokenizer: Tokenizer

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes for checkpoints: a run only resumes on the same training data."""
        return {"data": self.train.fingerprint, "tokenizer": self.train.tokenizer_hash}


@path_errors()
def open_data(data: DataConfig, training: TrainingConfig, evaluation: EvaluationConfig, vocab_size: int) -> RunData:
    """Open the data of a run.

    Args:
        data: Section `data` of the configuration.
        training: Section `training`: the seed, and the number of samples that the data must suffice for.
        evaluation: Section `evaluation`: the number of evaluation samples.
        vocab_size: Number of token ids of the model.

    Returns:
        Both splits of every corpus.

    Raises:
        UserError, FileNotFoundError: The data do not fit the configuration, or are missing.
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
    """Select `count` evaluation samples of each validation split, by corpus and input.

    With the selection `first` there are no losses by input, because most of these samples belong to one input.
    """
    selected: dict[str, SampleGroups] = {}
    for name, split in validation.items():
        samples = select_samples(split.num_samples, count, selection)
        selected[name] = {"": samples}
        if selection == "spread":
            selected[name] = group_by_input(split, samples)
    return selected


def _check_corpus(corpus: Dataset, path: str, samples: str, vocab_size: int) -> None:
    """Raise UserError if a training split does not fit the configuration.

    Args:
        corpus: Training split.
        path: Path or URL of its data directory.
        samples: Setting `data.samples`.
        vocab_size: Setting `model.vocab_size`.
    """
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
