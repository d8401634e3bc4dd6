"""Readers of untrusted JSON, in which each value in turn is replaced by one of another type or size.

A file is read, or there is an error in one line that names the folder. There is never another exception, a hang, or memory
allocated for a number in the file.
"""

import copy
import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from megatape.accounting.gpus import GPUS, load_gpu
from megatape.checkpoint.load.compatibility import check_order
from megatape.checkpoint.load.reader import CheckpointReader
from megatape.config import load_config
from megatape.config.sections.batches import BatchSizes
from megatape.data.formats.mds import Mds
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.part_summary import Part
from megatape.data.prepare.preparation import Preparation
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.shards.entries import Answers
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.sources.source import Source
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.training.datasets.document_dataset import DocumentDataset
from megatape.data.training.datasets.example_dataset import read_answers
from megatape.data.training.datasets.token_dataset import TokenDataset
from megatape.data.training.mixing.order import SampleLocation, ShuffledOrder, samples_digest
from megatape.hf.importing.record import read_record
from megatape.lab.study.results.text_result import TextResult
from megatape.lab.tasks.engine.journal import EvaluationJournal
from megatape.lab.tasks.passkey.task import Prediction as PasskeyPrediction
from megatape.reliability.lease import LeaseTimeouts
from megatape.tools.ledger import prove
from megatape.training.steps.spike_policy import SpikePolicy

TESTS = Path(__file__).parents[1]
FIXTURES = TESTS / "compatibility" / "fixtures"
VALUES: tuple[Any, ...] = (None, -1, 2**63, 10**400, 0.5, "..", [], {"a": 1})


class Malformed(NamedTuple):
    """A JSON file and how it is read.

    Attributes:
        path: Path of the valid file.
        read: Reads the file.
        opaque_keys: Keys whose values are replaced as a whole, because they are tested elsewhere.
        write: Writes a text to the file, and what depends on it, such as hashes.
    """

    path: Path
    read: Callable[[], object]
    opaque_keys: tuple[str, ...] = ()
    write: Callable[[Path, str], object] = Path.write_text


def mutations(value: Any, opaque_keys: tuple[str, ...]) -> Iterator[Any]:
    """Yield copies of a JSON value in which one value is replaced or removed. Of a list only the first value is changed."""
    yield from VALUES
    parts: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, list):
        parts = list(enumerate(value[:1]))
    for key, part in parts:
        replacements: Iterable[Any] = VALUES
        if key not in opaque_keys:
            replacements = mutations(part, opaque_keys)
        for replacement in replacements:
            mutated = copy.copy(value)
            mutated[key] = replacement
            yield mutated
        if isinstance(value, dict):
            mutated = dict(value)
            del mutated[key]
            yield mutated


def sha256_of(value: Any) -> str:
    """Return the hash of a JSON value as manifests have it."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


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
    state = json.loads(path.read_text())
    state["attention"] = "sdpa"
    state["guard"] = {"spikes": {"loss": [1.0], "gradient norm": [1.0]}, "left_out": [[0, 1]], "troubled": [1]}
    state["last_step"] = {"first": 0, "last": 0, "digest": samples_digest([SampleLocation("", 0)])}
    path.write_text(json.dumps(state))
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    del manifest["sha256"]
    training = load_config(FIXTURES / "run/config.json").training

    def write(path: Path, text: str) -> None:
        path.write_text(text)
        manifest["files"]["state.json"] = {"bytes": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
        (checkpoint / "manifest.json").write_text(json.dumps(manifest | {"sha256": sha256_of(manifest)}))

    def read() -> None:
        state = CheckpointReader(checkpoint).state
        for fingerprint in state.fingerprints.values():
            assert isinstance(fingerprint, str)
        SpikePolicy(training, BatchSizes(8)).restore(state.spike_policy)
        check_order(checkpoint, state.last_step, ShuffledOrder("", 1, 0))

    return Malformed(path, read, ("config",), write)


def gpu(folder: Path) -> Malformed:
    path = folder / "gpu.json"
    path.write_text(GPUS["h100"].model_dump_json())
    return Malformed(path, lambda: load_gpu(str(path)))


def outcome(folder: Path) -> Malformed:
    content = {
        "fingerprints": {"data": "x"},
        "scaling": None,
        "figures": {"validation loss": 1.0, "perplexity at 4": 2.0},
        "losses": {"3": 1.0},
        "config": json.loads((FIXTURES / "run/config.json").read_text()),
        "curve": {"4": 2.0},
        "axes": ["tokens", "perplexity"],
    }
    path = folder / "outcome.json"
    path.write_text(json.dumps(content))
    return Malformed(path, lambda: TextResult.read(path).summary, ("config",))


def imported(folder: Path) -> Malformed:
    content = {
        "format": 1,
        "source": "/",
        "family": "llama",
        "dtype": "float32",
        "difference": 0.0,
        "tokenizer": ["a"],
        "model": json.loads((FIXTURES / "run/config.json").read_text())["model"],
        "files": {"a": {"bytes": 1, "sha256": ""}},
        "tensors": {"norm.weight": {"file": "a", "name": "a", "shape": [1]}},
    }
    path = folder / "import.json"
    path.write_text(json.dumps(content))

    def read() -> None:
        record = read_record(folder)
        assert ".." not in record.files
        assert ".." not in record.tokenizer
        assert ".." not in [tensor.file for tensor in record.tensors.values()]

    return Malformed(path, read, ("model",))


def metrics(folder: Path) -> Malformed:
    run = shutil.copytree(FIXTURES / "run", folder / "run")
    config = json.loads((run / "config.json").read_text())
    config["data"]["path"] = str(FIXTURES / "data")
    (run / "config.json").write_text(json.dumps(config))
    path = run / "metrics.jsonl"
    path.write_text(path.read_text().splitlines()[0])
    return Malformed(path, lambda: prove(run))


def samples(folder: Path) -> Malformed:
    """Return a journal of predictions, whose line is always written with the right hash."""
    journal = EvaluationJournal(folder, PasskeyPrediction)
    prediction = PasskeyPrediction(32, None, 20, "a", "1", "2", False)
    journal.add(0, [0], [prediction])
    path = folder / "samples-0.jsonl"
    line = json.loads(path.read_text())
    del line["sha256"]

    def write(path: Path, text: str) -> None:
        value = json.loads(text)
        if isinstance(value, dict):
            value["sha256"] = hashlib.sha256(json.dumps(value).encode()).hexdigest()
            text = json.dumps(value)
        path.write_text(text)

    def read() -> None:
        predictions = journal.read()
        # The journal leaves such a line out, and the evaluation computes its predictions again.
        if not predictions:
            raise ValueError(f"{folder}: the line is left out")
        for number, prediction in predictions.items():
            assert type(number) is int
            assert type(prediction.tokens) is int
            assert isinstance(prediction.reference, str)

    path.write_text(json.dumps(line))
    return Malformed(path, read, write=write)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", [data_index, mds_index, checkpoint_state, gpu, outcome, imported, metrics, samples])
def test_values_of_other_types_and_sizes(kind: Callable[[Path], Malformed], tmp_path: Path) -> None:
    check_mutations(kind(tmp_path))


@pytest.fixture
def partial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PartialFolder:
    """Folder of a preparation that was stopped when all of its units were finished."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": f"text {number}"}) for number in range(20)]
    path.write_text("\n".join(lines) + "\n")
    source = Source("jsonl", (str(path),))
    tokenizer = load_tokenizer(FIXTURES / "data/tokenizer.model")
    monkeypatch.setattr(Preparation, "finish", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare(PreparationOptions(source, 0.5, tokenizer, 0), tmp_path / "out")
    return PartialFolder(tmp_path / "out", LeaseTimeouts())


@pytest.mark.timeout(120)
def test_the_plan_of_a_preparation(partial: PartialFolder) -> None:
    check_mutations(Malformed(partial.path / "plan.json", partial.plan))


@pytest.mark.timeout(120)
def test_the_summary_of_a_unit(partial: PartialFolder) -> None:
    unit = partial.unit_folder(0)
    # An index has splits and tables of the same form. Their faults are tested there.
    check_mutations(Malformed(unit / "summary.json", lambda: Part.load(unit), ("splits", "tables")))


def test_truncated_token_counts_of_a_unit(partial: PartialFolder) -> None:
    unit = partial.unit_folder(0)
    path = unit / "token_counts.npz"
    content = path.read_bytes()
    for size in (0, 1, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match=f"{unit}: corrupted"):
            Part.load(unit)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2,), "<i8"), ((0, 3), "<i8"), ((10**15, 3), "<i8"), ((2, 3), "|O")],
    ids=["one dimension", "no answers", "more than the file", "objects"],
)
def test_answers_with_a_wrong_header(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    """The file has the recorded hash, but not the content."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    path = tmp_path / "answers.npy"
    path.write_bytes(file.getvalue() + bytes(48))
    entry = Answers(path.name, hashlib.sha256(path.read_bytes()).hexdigest(), 1, 1, 2, 0.0)

    with pytest.raises(ValueError, match=f"{path}: .*prepare the data again"):
        read_answers(path, entry, 8)


def check_mutations(malformed: Malformed) -> None:
    """Read every mutation of a file, then the file as it was.

    An error must be one line that names the folder. Readers that accept everything
    would pass that, so at least as many mutations must be refused as there are values to replace a file with.
    """
    path = malformed.path
    num_refused = 0
    content = json.loads(malformed.path.read_text())
    for mutated in mutations(content, malformed.opaque_keys):
        malformed.write(path, json.dumps(mutated))
        try:
            malformed.read()
        except (ValueError, OSError) as error:
            assert str(path.parent) in str(error), mutated
            assert "\n" not in str(error), mutated
            num_refused += 1
        except Exception as error:
            raise AssertionError(f"{error!r} for {json.dumps(mutated)[:300]}") from error
    assert num_refused >= len(VALUES)
    malformed.write(path, json.dumps(content))
    malformed.read()
