"""megatape benchmark loader: its readers and its table."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.datasets.token_dataset import TokenDataset
from megatape.lab.benchmark.data import loader
from tests.helpers.checks.cells import cells
from tests.helpers.processes.command import Command


def stored_tokens(data_directory: Path) -> np.ndarray:
    """Return all tokens in the training split."""
    dataset = TokenDataset(StoredSplit(data_directory, "train"), 1)
    first_tokens = [dataset.tokens(index)[0] for index in range(dataset.num_samples)]
    last_token = dataset.tokens(dataset.num_samples - 1)[1]
    return np.array([*first_tokens, last_token])


@pytest.mark.parametrize("consumed", [0, 3 * loader.BATCH])
def test_webdataset_reads_our_shards(data_directory: Path, consumed: int) -> None:
    """webdataset reads shards in file order, starting at any batch, across the end of an epoch."""
    epoch = stored_tokens(data_directory)
    expected = np.concatenate([epoch, epoch, epoch])
    batch_tokens = loader.BATCH * 64

    batches = islice(loader.webdataset(data_directory, 64)(consumed), 12)

    begin = consumed * 64
    for tokens, targets in batches:
        assert np.array_equal(tokens.flatten(), expected[begin : begin + batch_tokens])
        assert np.array_equal(targets.flatten(), expected[begin + 1 : begin + 1 + batch_tokens])
        begin += batch_tokens
    assert begin == (consumed + 12 * loader.BATCH) * 64


def test_command_compares_readers(command: Command, data_directory: Path) -> None:
    status, printed, errors = command("benchmark", "loader", "--data", data_directory, "--length", 64)

    assert status == 0, errors
    header, *rows = [cells(line) for line in printed.splitlines() if line.startswith("| ")]
    assert header[0] == "reader"
    assert [row[0].split(",")[0] for row in rows] == ["packed", "packed", "packed", "best_fit", "webdataset", "numpy"]
    assert float(rows[0][3]) == 1
    for row in rows:
        assert float(row[1]) > 0
        assert float(row[4]) > 0


def test_length_beyond_the_data_is_refused(command: Command, data_directory: Path) -> None:
    status, _, errors = command("benchmark", "loader", "--data", data_directory, "--length", 512)

    assert status == 2
    assert "give 64 or more" in errors
