"""Readers of JSON of unknown origin, in which each value in turn is replaced by one of another type or size.

It is read, or there is an error in one line that names the folder; never another exception, a hang, or memory for a number in
the file."""

import copy
import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from megatape.accounting.gpus import GPUS, load_gpu
from megatape.checkpoint.compatibility import check_order
from megatape.checkpoint.reader import CheckpointReader
from megatape.config import load_config
from megatape.config.batches import BatchSizes
from megatape.data.formats.mds import Mds
from megatape.data.prepare.command import prepare
from megatape.data.prepare.folder import PartialFolder
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.part_summary import Part
from megatape.data.prepare.preparation import Preparation
from megatape.data.shards.entries import Answers
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.sources.source import Source
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.training.document_dataset import DocumentDataset
from megatape.data.training.example_dataset import read_answers
from megatape.data.training.order import SampleLocation, ShuffledOrder, samples_digest
from megatape.data.training.token_dataset import TokenDataset
from megatape.hf.importing.record import read_record
from megatape.lab.study.results.text_result import TextResult
from megatape.lab.tasks.engine.journal import Journal
from megatape.lab.tasks.passkey.task import Prediction as PasskeyPrediction
from megatape.reliability.lease import LeaseTimeouts
from megatape.tools.ledger import prove
from megatape.training.steps.spike_policy import SpikePolicy

TESTS = Path(__file__).parents[1]
FIXTURES = TESTS / "compatibility" / "fixtures"
VALUES: tuple[Any, ...] = (None, -1, 2**63, 10**400, 0.5, "..", [], {"a": 1})


class Malformed(NamedTuple):
    """A JSON file and how it is read. whole: keys in whose values nothing is replaced."""

    path: Path
    read: Callable[[], object]
    whole: tuple[str, ...] = ()
    write: Callable[[Path, str], object] = Path.write_text


def mutations(value: Any, whole: tuple[str, ...]) -> Iterator[Any]:
    """Copies of a JSON value in which one value is another one, or is gone. Of a list the first value is enough."""
    yield from VALUES
    for key, part in value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ():
        for changed in VALUES if key in whole else mutations(part, whole):
            mutated = copy.copy(value)
            mutated[key] = changed
            yield mutated
        if isinstance(value, dict):
            yield {name: other for name, other in value.items() if name != key}


def data_index(folder: Path) -> Malformed:
    data = shutil.copytree(FIXTURES / "data", folder / "data")

    def read() -> None:
        TokenDataset(StoredSplit(data, "train"), 16, mask_documents=True).sample(0)
        DocumentDataset(StoredSplit(data, "validation"), 500).split.tokenizer()

    return Malformed(data / "index.json", read)


def mds_index(folder: Path) -> Malformed:
    data = shutil.copytree(TESTS / "data/formats/token_files/mds/other", folder / "mds")
    return Malformed(data / "index.json", lambda: list(Mds().read(data, np.dtype("<u2"))))


def checkpoint_state(folder: Path) -> Malformed:
    checkpoint = shutil.copytree(FIXTURES / "run/checkpoints/step-00000004", folder / "step-00000004")
    path = checkpoint / "state.json"
    guard = {"spikes": {"loss": [1.0], "gradient norm": [1.0]}, "left_out": [[0, 1]], "troubled": [1]}
    added = {
        "attention": "sdpa",
        "guard": guard,
        "last_step": {"first": 0, "last": 0, "digest": samples_digest([SampleLocation("", 0)])},
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | added))
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    del manifest["sha256"]
    training = load_config(FIXTURES / "run/config.json").training

    def write(path: Path, text: str) -> None:
        path.write_text(text)
        manifest["files"]["state.json"] = {"bytes": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
        sha256 = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
        (checkpoint / "manifest.json").write_text(json.dumps(manifest | {"sha256": sha256}))

    def read() -> None:
        state = CheckpointReader(checkpoint).state
        assert all(isinstance(value, str) for value in state.fingerprints.values())
        SpikePolicy(training, BatchSizes(8)).restore(state.guard)
        check_order(checkpoint, state.last_step, ShuffledOrder("", 1, 0))

    return Malformed(path, read, ("config",), write)


def gpu(folder: Path) -> Malformed:
    path = folder / "gpu.json"
    path.write_text(GPUS["h100"].model_dump_json())
    return Malformed(path, lambda: load_gpu(str(path)))


def outcome(folder: Path) -> Malformed:
    config = json.loads((FIXTURES / "run/config.json").read_text())
    content = {
        "fingerprints": {"data": "x"},
        "scaling": None,
        "figures": {"validation loss": 1.0, "perplexity at 4": 2.0},
        "losses": {"3": 1.0},
    }
    path = folder / "outcome.json"
    path.write_text(json.dumps(content | {"config": config, "curve": {"4": 2.0}, "axes": ["tokens", "perplexity"]}))
    return Malformed(path, lambda: TextResult.read(path).summary, ("config",))


def imported(folder: Path) -> Malformed:
    model = json.loads((FIXTURES / "run/config.json").read_text())["model"]
    tensors = {"norm.weight": {"file": "a", "name": "a", "shape": [1]}}
    content = {"format": 1, "source": "/", "family": "llama", "dtype": "float32", "difference": 0.0, "tokenizer": ["a"]}
    path = folder / "import.json"
    path.write_text(json.dumps(content | {"model": model, "files": {"a": {"bytes": 1, "sha256": ""}}, "tensors": tensors}))

    def read() -> None:
        record = read_record(folder)
        assert ".." not in (*record.files, *record.tokenizer, *(tensor.file for tensor in record.tensors.values()))

    return Malformed(path, read, ("model",))


def metrics(folder: Path) -> Malformed:
    run = shutil.copytree(FIXTURES / "run", folder / "run")
    config = json.loads((run / "config.json").read_text())
    config["data"]["path"] = str(FIXTURES / "data")
    (run / "config.json").write_text(json.dumps(config))
    path = run / "metrics.jsonl"
    path.write_text(path.read_text().splitlines()[0])
    return Malformed(path, lambda: list(prove(run)))


def samples(folder: Path) -> Malformed:
    """Lines whose hash is right."""
    journal = Journal(folder, PasskeyPrediction)
    prediction = PasskeyPrediction(32, None, 20, "a", "1", "2", False)
    journal.add(0, [0], [prediction])
    path = folder / "samples-0.jsonl"
    line = json.loads(path.read_text())
    del line["sha256"]

    def write(path: Path, text: str) -> None:
        value = json.loads(text)
        digest = {"sha256": hashlib.sha256(json.dumps(value).encode()).hexdigest()}
        path.write_text(json.dumps(value | digest) if isinstance(value, dict) else text)

    def read() -> None:
        for number, known in journal.read().items():
            assert type(number) is type(known.tokens) is int and isinstance(known.reference, str)

    path.write_text(json.dumps(line))
    return Malformed(path, read, write=write)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", [data_index, mds_index, checkpoint_state, gpu, outcome, imported, metrics, samples])
def test_values_of_other_types_and_sizes(kind: Callable[[Path], Malformed], tmp_path: Path) -> None:
    check(kind(tmp_path))


@pytest.mark.timeout(120)
def test_the_files_of_a_preparation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was stopped when all of its units were finished."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    source = tmp_path / "a.jsonl"
    tokenizer = load_tokenizer(FIXTURES / "data/tokenizer.model")
    source.write_text("".join(json.dumps({"text": f"text {number}"}) + "\n" for number in range(20)))
    monkeypatch.setattr(Preparation, "finish", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare(PreparationOptions(Source("jsonl", (str(source),)), 0.5, tokenizer, 0), tmp_path / "out")
    partial = PartialFolder(tmp_path / "out", LeaseTimeouts())
    check(Malformed(partial.path / "plan.json", partial.plan))
    unit = partial.unit_folder(0)
    # Splits and tables have the form that they have in an index, whose faults are tested there.
    check(Malformed(unit / "summary.json", lambda: Part.load(unit), ("splits", "tables")))
    content = (unit / "token_counts.npz").read_bytes()
    for size in (0, 1, len(content) // 2, len(content) - 1):
        (unit / "token_counts.npz").write_bytes(content[:size])
        with pytest.raises(ValueError, match=f"{unit}: corrupted"):
            Part.load(unit)


@pytest.mark.parametrize("shape, dtype", [((2,), "<i8"), ((0, 3), "<i8"), ((10**15, 3), "<i8"), ((2, 3), "|O")])
def test_answers_that_are_none(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    """The hash is right; header and content are not."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    path = tmp_path / "answers.npy"
    path.write_bytes(file.getvalue() + bytes(48))
    entry = Answers(path.name, hashlib.sha256(path.read_bytes()).hexdigest(), 1, 1, 2, 0.0)
    with pytest.raises(ValueError, match=f"{path}: .*prepare the data again"):
        read_answers(path, entry, 8)


def check(malformed: Malformed) -> None:
    """Read every mutation of a file that can be read."""
    path = malformed.path
    content = json.loads(malformed.path.read_text())
    for mutated in mutations(content, malformed.whole):
        malformed.write(path, json.dumps(mutated))
        try:
            malformed.read()
        except (ValueError, OSError) as error:
            assert str(path.parent) in str(error) and "\n" not in str(error), (error, mutated)
        except Exception as error:
            raise AssertionError(f"{error!r} for {json.dumps(mutated)[:300]}") from error
    malformed.write(path, json.dumps(content))
    malformed.read()
