"""Token files of other systems: we read their files, write equal bytes, and lose nothing by exporting and importing again."""

import json
import os
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from megatape.config import Config
from megatape.data.formats.documents import divided
from megatape.data.formats.flat import Flat
from megatape.data.formats.mds import Mds
from megatape.data.formats.megatron import Megatron
from megatape.data.shards.index import load_index
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.registry import TOKEN_FORMATS
from tests.helpers.data.json_edits import set_file_entry
from tests.helpers.processes.command import Command, assert_refused
from tests.helpers.runs.run_data import open_run_data

TOKEN_FILES = Path(__file__).parent / "token_files"
"""Files that Megatron-LM, MosaicML streaming and llm-foundry wrote of DOCUMENTS."""

DOCUMENTS = [np.array([1, *range(3, 3 + length), 2]) for length in (5, 0, 300, 70)]
STREAM = np.concatenate(DOCUMENTS)
IDS = np.dtype("<u2")


class CommandResult(NamedTuple):
    """Exit status and printed text of a command."""

    status: int
    output: str
    errors: str


Import = Callable[..., CommandResult]


@pytest.mark.parametrize("name", ["documents", "wide", "sentences"])
@pytest.mark.parametrize("suffix", ["", ".bin", ".idx"], ids=["name", "bin", "idx"])
def test_megatron_is_read_by_any_of_its_names(name: str, suffix: str) -> None:
    path = TOKEN_FILES / "megatron" / f"{name}{suffix}"
    for ids, expected in zip(Megatron().read(path, IDS), DOCUMENTS, strict=True):
        assert np.array_equal(ids, expected)


@pytest.mark.parametrize(
    ("name", "num_pieces", "num_tokens"),
    [("documents", 4, STREAM.size), ("foundry", 3, 300), ("other", 4, STREAM.size)],
)
def test_mds_is_read(name: str, num_pieces: int, num_tokens: int) -> None:
    """llm-foundry drops the last 83 tokens, which do not fill a sample."""
    pieces = list(Mds().read(TOKEN_FILES / "mds" / name, IDS))
    assert len(pieces) == num_pieces
    assert np.array_equal(np.concatenate(pieces), STREAM[:num_tokens])


def test_mds_is_written_as_its_authors_write_it(tmp_path: Path) -> None:
    Mds().write(tmp_path / "mds", iter(DOCUMENTS), IDS)
    for expected in (TOKEN_FILES / "mds/documents").iterdir():
        assert (tmp_path / "mds" / expected.name).read_bytes() == expected.read_bytes(), expected.name


@pytest.mark.parametrize("name, dtype", [("documents", IDS), ("wide", np.dtype("<u4"))])
def test_megatron_is_written_as_its_authors_write_it(tmp_path: Path, name: str, dtype: np.dtype[Any]) -> None:
    Megatron().write(tmp_path / name, iter(DOCUMENTS), dtype)
    for file in (f"{name}.bin", f"{name}.idx"):
        assert (tmp_path / file).read_bytes() == (TOKEN_FILES / "megatron" / file).read_bytes(), file


def test_a_flat_file_is_the_stream_of_ids(tmp_path: Path) -> None:
    Flat().write(tmp_path / "flat", iter(DOCUMENTS), IDS)
    assert np.array_equal(np.memmap(tmp_path / "flat.bin", np.uint16, "r"), STREAM)


class Exported(NamedTuple):
    """Exported splits of the data directory, and the words of a command that imports the training split."""

    train: Path
    validation: Path
    import_words: list[object]


@pytest.fixture(params=TOKEN_FORMATS)
def exported(
    request: pytest.FixtureRequest,
    data_directory: Path,
    tmp_path: Path,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> Exported:
    """The data directory in each format, in blocks and shards that end within documents."""
    monkeypatch.setattr("megatape.data.formats.flat.BLOCK_IDS", 1009)
    monkeypatch.setattr("megatape.data.formats.mds.SHARD_BYTES", 5000)
    form = request.param
    folder = tmp_path / "out"
    status, output, errors = command("data", "export", data_directory, "--format", form, "--output", folder)
    assert status == 0, errors
    assert "train: " in output, errors

    suffix = ""
    if form == "flat":
        suffix = ".bin"
    train = folder / f"train{suffix}"
    validation = folder / f"validation{suffix}"
    words = ["data", "import", "--format", form, "--tokenizer", folder / "tokenizer.model", "--input", train]
    return Exported(train, validation, words)


def test_export_and_import_give_the_same_shards(
    exported: Exported, data_directory: Path, raw_config: dict[str, Any], tmp_path: Path, command: Command
) -> None:
    """The shards are equal to the byte, and a run can train on them."""
    folder = tmp_path / "back"
    status, output, errors = command(*exported.import_words, "--validation", exported.validation, "--output", folder)
    assert status == 0, errors
    assert "note" not in output, errors

    imported = load_index(folder).splits
    original = load_index(data_directory).splits
    for split, expected in original.items():
        assert imported[split].documents == expected.documents
        assert imported[split].shards == expected.shards
        assert imported[split].unigram_entropy == expected.unigram_entropy
    raw_config["data"]["path"] = str(folder)
    assert open_run_data(Config.model_validate(raw_config)).train.num_tokens == original["train"].tokens


def test_import_can_hold_out_a_share_of_one_input(
    exported: Exported, data_directory: Path, tmp_path: Path, command: Command
) -> None:
    folder = tmp_path / "share"
    status, _, errors = command(*exported.import_words, "--validation-share", "0.3", "--output", folder)
    assert status == 0, errors

    original = load_index(data_directory).splits["train"]
    splits = load_index(folder).splits.values()
    assert sum(split.tokens for split in splits) == original.tokens
    for split in splits:
        assert 0 < split.documents < original.documents
    status, _, errors = command("data", "report", folder, "--verify")
    assert status == 0, errors


@pytest.fixture
def import_data(tokenizer: Tokenizer, tmp_path: Path, command: Command) -> Import:
    """import_data(format, path, ...): import a file or folder with a tokenizer of 320 ids, half of it for validation.

    Checks that the output exists if and only if the command succeeds.
    """
    tokenizer_file = tmp_path / "tokenizer.model"
    tokenizer_file.write_bytes(tokenizer.files["tokenizer.model"])
    folder = tmp_path / "out"

    def run(form: str, path: Path, *options: object) -> CommandResult:
        shutil.rmtree(folder, ignore_errors=True)
        words = ["data", "import", "--format", form, "--input", path, "--tokenizer", tokenizer_file, "--output", folder]
        result = CommandResult(*command(*words, "--validation-share", 0.5, *options))
        assert result.status in (0, 2)
        assert folder.exists() == (result.status == 0)
        return result

    return run


@pytest.fixture
def bare_documents(tmp_path: Path) -> Path:
    """A Megatron-LM file of DOCUMENTS without begin and end tokens. One of the four is empty."""
    Megatron().write(tmp_path / "bare", (ids[1:-1] for ids in DOCUMENTS), IDS)
    return tmp_path / "bare"


def test_documents_without_end_tokens_are_refused(import_data: Import, bare_documents: Path) -> None:
    result = import_data("megatron", bare_documents)
    assert_refused(result, "bare: document 0 has the end token of")
    assert "nowhere" in result.errors
    assert "--append-eos" in result.errors


def test_end_tokens_are_appended_on_request(import_data: Import, bare_documents: Path, tmp_path: Path) -> None:
    result = import_data("megatron", bare_documents, "--append-eos")
    assert result.status == 0, result.errors
    assert "skipped 1 empty document\n" in result.output
    assert "note: 3 of 3 documents do not begin with token 1" in result.output
    splits = load_index(tmp_path / "out").splits.values()
    assert sum(split.tokens for split in splits) == (5 + 1) + (300 + 1) + (70 + 1)


def test_end_tokens_cannot_be_appended_to_a_flat_file(import_data: Import, tmp_path: Path) -> None:
    result = import_data("flat", tmp_path / "x", "--append-eos")
    assert "--append-eos: files of format flat do not say" in result.errors


def test_a_stream_that_ends_within_a_document_gets_an_end_token(import_data: Import, tmp_path: Path) -> None:
    """The last document of llm-foundry's file does not continue in the next input."""
    path = TOKEN_FILES / "mds/foundry"
    result = import_data("mds", path, "--input", path, path)
    assert result.status == 0, result.errors
    assert "2 inputs end within a document, to which the end token was added" in result.output
    splits = load_index(tmp_path / "out").splits.values()
    assert sum(split.tokens for split in splits) == 602
    assert sum(split.documents for split in splits) == 6


def overwrite(path: Path, offset: int, content: bytes) -> None:
    """Replace some bytes of a file."""
    changed = bytearray(path.read_bytes())
    changed[offset : offset + len(content)] = content
    path.write_bytes(changed)


class MegatronCase(NamedTuple):
    """Bytes overwritten in a file of Megatron-LM, and the message that refuses it."""

    file: str
    offset: int
    content: bytes
    message: str


MEGATRON_CASES = [
    MegatronCase("documents.idx", 17, b"\7", "version 1 with ids of type 7: what is read is"),
    MegatronCase("documents.idx", 9, b"\2", "version 2 with ids"),
    MegatronCase("documents.idx", 58, b"\7", "sequence 1 does not begin where the one before it ends"),
    MegatronCase("documents.idx", 34, struct.pack("<i", -1), "sequence 0 does not begin where"),
    MegatronCase("documents.idx", 82, b"\1", "its first document does not begin with the first sequence"),
    MegatronCase("documents.idx", 114, b"\3", "its documents end after 3 of 4 sequences"),
    # The second document is empty, and the third has its sequence too.
    MegatronCase("documents.idx", 98, b"\1", "document 2 has the end token of"),
    MegatronCase("documents.idx", 98, b"\0", "a document ends with sequence 0 of 4, after 1"),
    MegatronCase("documents.bin", 2, b"\2\0", "document 0 has the end token of"),
    MegatronCase("documents.bin", 2, b"\x40\1", "documents: token ids 1..320, but"),
    MegatronCase("wide.bin", 4, b"\xff\xff\xff\xff", "wide: token ids -1..7, but"),
]


@pytest.fixture
def megatron(tmp_path: Path) -> Path:
    """Folder with copies of Megatron-LM's files."""
    return shutil.copytree(TOKEN_FILES / "megatron", tmp_path / "megatron")


@pytest.mark.parametrize(("file", "offset", "content", "message"), MEGATRON_CASES)
def test_overwritten_megatron_files_are_refused(
    import_data: Import, megatron: Path, file: str, offset: int, content: bytes, message: str
) -> None:
    path = megatron / file
    overwrite(path, offset, content)
    assert_refused(import_data("megatron", path.with_suffix("")), message)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("documents.bin", STREAM.astype(IDS).tobytes()[:-2], "documents.bin: truncated, documents.idx has"),
        ("documents.bin", STREAM.astype(IDS).tobytes() + b"\0\0", "its documents end after 4 of 4 sequences"),
        ("documents.idx", b"TNTIDX\0\0" + bytes(30), "documents.idx: no index of Megatron-LM"),
        ("documents.idx", b"MMIDIDX", "documents.idx: no index of Megatron-LM"),
    ],
    ids=["short ids", "long ids", "other index", "short index"],
)
def test_replaced_megatron_files_are_refused(
    import_data: Import, megatron: Path, file: str, content: bytes, message: str
) -> None:
    (megatron / file).write_bytes(content)
    assert_refused(import_data("megatron", megatron / "documents"), message)


def test_a_truncated_megatron_index_is_refused(import_data: Import, megatron: Path) -> None:
    path = megatron / "documents.idx"
    path.write_bytes(path.read_bytes()[:-8])
    assert_refused(import_data("megatron", megatron / "documents"), "documents.idx: corrupted: 114 bytes, 4 sequ")


def test_a_missing_megatron_index_is_refused(import_data: Import, megatron: Path) -> None:
    (megatron / "documents.idx").unlink()
    assert_refused(import_data("megatron", megatron / "documents"), "documents.idx")


@pytest.mark.parametrize("file", ["documents.idx", "documents.bin"])
def test_a_pipe_in_place_of_a_megatron_file_is_refused(import_data: Import, megatron: Path, file: str) -> None:
    """Reading a pipe would wait forever."""
    (megatron / file).unlink()
    os.mkfifo(megatron / file)
    assert_refused(import_data("megatron", megatron / "documents"), f"{file}: a pipe or a device, not a file")


class MdsCase(NamedTuple):
    """A changed entry in the index of an MDS data set, and the message that refuses it."""

    name: str
    entry: str
    value: Any
    message: str


MDS_CASES = [
    MdsCase("documents", "version", 1, "version 1, not 2"),
    MdsCase("documents", "shards.0.format", "json", "format json with columns"),
    MdsCase("documents", "shards.0.column_names", ["text"], "read is mds with tokens or"),
    MdsCase("documents", "shards.0.column_encodings", ["pkl"], "its ids are pkl: what is"),
    MdsCase("documents", "shards.0.column_encodings", [None], "column_encodings.0: must"),
    MdsCase("documents", "shards.0.column_encodings", ["ndarray:float32"], "ids are ndarray:float32"),
    MdsCase("documents", "shards.0.samples", 2**40, "shards.0.samples: must be less than or equal to"),
    MdsCase("documents", "shards.0.samples", 5, "corrupted (its samples are not where"),
    MdsCase("documents", "shards.0.raw_data.hashes", [], "raw_data.hashes: must"),
    MdsCase("documents", "shards.0.raw_data.basename", "..", "'..': not a plain file name"),
    MdsCase("documents", "shards.0.raw_data.basename", "../x", "'../x': not a plain file name"),
    MdsCase("other", "shards.0.compression", "br", "compression br: what is read is zstd, gz"),
]


def copy_mds(name: str, tmp_path: Path) -> Path:
    return shutil.copytree(TOKEN_FILES / "mds" / name, tmp_path / "mds")


@pytest.mark.parametrize(("name", "entry", "value", "message"), MDS_CASES)
def test_mds_with_a_changed_index_is_refused(
    import_data: Import, tmp_path: Path, name: str, entry: str, value: Any, message: str
) -> None:
    folder = copy_mds(name, tmp_path)
    set_file_entry(folder / "index.json", entry, value)
    assert_refused(import_data("mds", folder), message)


@pytest.mark.parametrize(
    ("name", "num_bytes", "message"),
    [
        ("documents", 8, "shard.00000.mds: corrupted"),  # up to the beginning of its first sample
        ("documents", 22, "shard.00000.mds: corrupted ("),
        ("documents", 900, "shard.00000.mds: corrupted (truncated)"),
        ("foundry", 200, "shard.00000.mds.zstd: corrupted ("),
    ],
)
def test_a_truncated_mds_shard_is_refused(import_data: Import, tmp_path: Path, name: str, num_bytes: int, message: str) -> None:
    """The index agrees with the truncated shard."""
    folder = copy_mds(name, tmp_path)
    path = next(folder.glob("shard.00000.*"))
    path.write_bytes(path.read_bytes()[:num_bytes])
    section = "shards.0.zip_data"
    if path.suffix == ".mds":
        section = "shards.0.raw_data"
    set_file_entry(folder / "index.json", f"{section}.bytes", num_bytes)
    set_file_entry(folder / "index.json", f"{section}.hashes", {})
    assert_refused(import_data("mds", folder), message)


def test_a_changed_mds_shard_is_refused(import_data: Import, tmp_path: Path) -> None:
    folder = copy_mds("documents", tmp_path)
    overwrite(folder / "shard.00000.mds", 500, b"xx")
    assert_refused(import_data("mds", folder), "corrupted, sha256 is")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("index.json", "index.json: not found: give the folder of one split"),
        ("shard.00000.mds", "shard.00000.mds: not found, index.json lists it"),
    ],
)
def test_a_missing_mds_file_is_refused(import_data: Import, tmp_path: Path, file: str, message: str) -> None:
    folder = copy_mds("documents", tmp_path)
    (folder / file).unlink()
    assert_refused(import_data("mds", folder), message)


def test_an_mds_index_that_is_no_object_is_refused(import_data: Import, tmp_path: Path) -> None:
    folder = copy_mds("documents", tmp_path)
    (folder / "index.json").write_text("[]")
    assert_refused(import_data("mds", folder), "index.json: no index of MosaicML streaming")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (STREAM.astype(IDS).tobytes()[:-1], "a.bin: 765 bytes are no whole number of uint16 ids"),
        (STREAM[:-1].astype(IDS).tobytes() + b"\x40\1", "a.bin: token ids 1..320, but"),
        (np.full(1000, 7, IDS).tobytes(), "a.bin: 1,000 tokens without the end token, 2: give the tokenizer"),
        (b"", "the train split got none of the 0 documents: change --validation-share"),
    ],
    ids=["odd bytes", "unknown id", "no end token", "empty"],
)
def test_unfit_flat_files_are_refused(import_data: Import, tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(content)
    assert_refused(import_data("flat", path), message)


def test_a_flat_file_of_32_bit_ids_is_noted(import_data: Import, tmp_path: Path) -> None:
    """Reading the file as 16-bit ids makes every second id 0, <unk>, so documents do not start with the beginning token."""
    path = tmp_path / "a.bin"
    path.write_bytes(STREAM.astype("<u4").tobytes())
    result = import_data("flat", path)
    assert result.status == 0, result.errors
    assert "documents do not begin with token 1" in result.output


def test_a_missing_flat_file_is_refused(import_data: Import, tmp_path: Path) -> None:
    assert_refused(import_data("flat", tmp_path / "missing.bin"), "missing.bin")


def test_prompts_and_answers_are_not_exported(data_directory: Path, tmp_path: Path, command: Command) -> None:
    folder = shutil.copytree(data_directory, tmp_path / "answers")
    numbers = {"sha256": "", "examples": 1, "tokens": 1, "longest": 2, "unigram_entropy": 0.0}
    answers = {split: {"file": f"{split}.npy", **numbers} for split in ("train", "validation")}
    set_file_entry(folder / "index.json", "answers", answers)
    status, _, errors = command("data", "export", folder, "--format", "flat", "--output", tmp_path / "out")
    assert status == 2
    assert "holds prompts and answers" in errors
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("form", "file"),
    [(Flat, "x.bin"), (Mds, "x"), (Megatron, "x")],
    ids=["Flat", "Mds", "Megatron"],
)
def test_reading_and_writing_need_little_memory(form: Any, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than 8 MB of 20 MB are in memory at once."""
    monkeypatch.setattr("megatape.data.formats.mds.SHARD_BYTES", 2**20)
    # The reader of untrusted JSON would reserve 64 MB.
    monkeypatch.setattr("megatape.data.formats.mds.read_json", lambda path: json.loads(path.read_text()))
    ids = np.arange(10_000, dtype=IDS) + 2
    documents = (ids[::-1] for _ in range(1000))
    path = tmp_path / file
    tracemalloc.start()
    try:
        form().write(tmp_path / "x", documents, IDS)
        num_tokens = sum(document.size for document in divided(form().read(path, IDS), 2, path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_tokens == 10_000_000
    assert peak < 8e6


def test_a_document_without_end_is_not_collected() -> None:
    endless = (np.full(1000, 7) for _ in iter(int, 1))
    with pytest.raises(ValueError, match=r"x: 6,000 tokens without the end token, 2"):
        list(divided(endless, 2, Path("x"), max_tokens=5000))


def test_an_index_that_promises_gigabytes_needs_little_memory(tmp_path: Path) -> None:
    """Memory is allocated for the ids in the file, not for those that the index announces."""
    num_sequences = 8
    length = 2**31 - 1
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, num_sequences, 2)
    lengths = np.full(num_sequences, length, "<i4")
    offsets = np.arange(num_sequences, dtype="<i8") * 2 * length
    document_ends = np.array([0, num_sequences], "<i8")
    parts = [header, lengths.tobytes(), offsets.tobytes(), document_ends.tobytes()]
    (tmp_path / "a.idx").write_bytes(b"".join(parts))
    (tmp_path / "a.bin").write_bytes(bytes(100))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="a.bin: truncated, a.idx has 34,359,738,352 bytes"):
            list(Megatron().read(tmp_path / "a", IDS))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**24
