"""megatape benchmark loader: its readers and its table."""

from itertools import islice
from pathlib import Path

import numpy as np

from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.token_dataset import TokenDataset
from megatape.lab.benchmark import loader
from tests.helpers.processes.command import Command


def test_webdataset_reads_our_shards(data_directory: Path) -> None:
    """In the order of the files, from any batch, across the end of an epoch."""
    dataset = TokenDataset(StoredSplit(data_directory, "train"), 1)
    stream = np.r_[
        [dataset.tokens(index)[0] for index in range(dataset.num_samples)], dataset.tokens(dataset.num_samples - 1)[1]
    ]
    wanted = np.concatenate([stream, stream, stream])
    for consumed in (0, 3 * loader.BATCH):
        for number, (tokens, targets) in enumerate(islice(loader.webdataset(data_directory, 64)(consumed), 12)):
            begin = (consumed + number * loader.BATCH) * 64
            assert np.array_equal(tokens.flatten(), wanted[begin : begin + loader.BATCH * 64])
            assert np.array_equal(targets.flatten(), wanted[begin + 1 : begin + 1 + loader.BATCH * 64])


def test_command(command: Command, data_directory: Path) -> None:
    code, printed, errors = command("benchmark", "loader", "--data", data_directory, "--length", 64)
    assert code == 0, errors
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines() if line.startswith("| ")]
    assert [row[0].split(",")[0] for row in rows] == ["reader", "packed", "packed", "best_fit", "webdataset"]
    assert float(rows[1][3]) == 1
    assert all(float(row[1]) > 0 and float(row[4]) > 0 for row in rows[1:])
    code, _, errors = command("benchmark", "loader", "--data", data_directory, "--length", 512)
    assert code == 2
    assert "give 64 or more" in errors
