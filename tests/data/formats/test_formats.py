"""Token files of other systems: theirs are read, ours are theirs to the byte, and nothing changes on the way there and back."""

import json
import os
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from tests.helpers.processes.command import Command
from tests.helpers.runs.run_data import open_run_data

THEIRS = Path(__file__).parent / "token_files"
DOCUMENTS = [np.array([1, *range(3, 3 + length), 2]) for length in (5, 0, 300, 70)]
STREAM = np.concatenate(DOCUMENTS)
IDS = np.dtype("<u2")


@pytest.mark.parametrize("name", ["documents", "wide", "sentences"])
def test_reads_megatron(name: str) -> None:
    """By each of the three names that a user may give."""
    for path in (THEIRS / "megatron" / f"{name}{suffix}" for suffix in ("", ".bin", ".idx")):
        for ids, expected in zip(Megatron().read(path, IDS), DOCUMENTS, strict=True):
            assert np.array_equal(ids, expected)


@pytest.mark.parametrize("name, pieces", [("documents", 4), ("foundry", 3), ("other", 4)])
def test_reads_mds(name: str, pieces: int) -> None:
    """llm-foundry leaves out the last 83 tokens, which fill no sample."""
    found = list(Mds().read(THEIRS / "mds" / name, IDS))
    assert len(found) == pieces
    assert np.array_equal(np.concatenate(found), STREAM[: 300 if name == "foundry" else None])


def test_writes_what_the_authors_write(tmp_path: Path) -> None:
    Mds().write(tmp_path / "mds", iter(DOCUMENTS), IDS)
    for file in (THEIRS / "mds/documents").iterdir():
        assert (tmp_path / "mds" / file.name).read_bytes() == file.read_bytes()
    for name, dtype in (("documents", IDS), ("wide", np.dtype("<u4"))):
        Megatron().write(tmp_path / name, iter(DOCUMENTS), dtype)
        for suffix in ("bin", "idx"):
            assert (tmp_path / f"{name}.{suffix}").read_bytes() == (THEIRS / f"megatron/{name}.{suffix}").read_bytes()
    Flat().write(tmp_path / "flat", iter(DOCUMENTS), IDS)
    assert np.array_equal(np.memmap(tmp_path / "flat.bin", np.uint16, "r"), STREAM)


@pytest.mark.parametrize("form", TOKEN_FORMATS)
def test_there_and_back(
    form: str,
    data_directory: Path,
    raw_config: dict[str, Any],
    tmp_path: Path,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same shards to the byte, which a run can train on; blocks and shards of these formats end anywhere."""
    monkeypatch.setattr("megatape.data.formats.flat.BLOCK_IDS", 1009)
    monkeypatch.setattr("megatape.data.formats.mds.SHARD_BYTES", 5000)
    status, output, errors = command("data", "export", data_directory, "--format", form, "--output", tmp_path / "out")
    assert status == 0, errors
    assert "train: " in output, errors
    suffix = ".bin" if form == "flat" else ""
    train, validation = (tmp_path / f"out/{split}{suffix}" for split in ("train", "validation"))
    words = ["data", "import", "--format", form, "--tokenizer", tmp_path / "out/tokenizer.model", "--input", train]
    status, output, errors = command(*words, "--validation", validation, "--output", tmp_path / "back")
    assert status == 0, errors
    assert "note" not in output, errors
    before = load_index(data_directory)
    after = load_index(tmp_path / "back")
    for split, content in before.splits.items():
        assert (content.documents, content.shards) == (after.splits[split].documents, after.splits[split].shards)
        assert content.unigram_entropy == after.splits[split].unigram_entropy
    raw_config["data"]["path"] = str(tmp_path / "back")
    assert open_run_data(Config.model_validate(raw_config)).train.num_tokens == before.splits["train"].tokens

    status, _, errors = command(*words, "--validation-share", "0.3", "--output", tmp_path / "share")
    assert status == 0, errors
    splits = load_index(tmp_path / "share").splits.values()
    assert sum(split.tokens for split in splits) == before.splits["train"].tokens
    assert all(0 < split.documents < before.splits["train"].documents for split in splits)
    assert command("data", "report", tmp_path / "share", "--verify")[0] == 0


@pytest.fixture
def import_command(tokenizer: Tokenizer, tmp_path: Path, command: Command) -> Callable[..., tuple[int, str, str]]:
    """import_command(format, path, ...): of the data at `path`, half of it for validation, under a tokenizer of 320 ids."""
    (tmp_path / "tokenizer.model").write_bytes(tokenizer.files["tokenizer.model"])

    def run(form: str, path: Path, *words: object) -> tuple[int, str, str]:
        given = ["--format", form, "--input", path, "--tokenizer", tmp_path / "tokenizer.model", "--output", tmp_path / "out"]
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        status, output, errors = command("data", "import", *given, "--validation-share", 0.5, *words)
        assert status in (0, 2)
        assert (tmp_path / "out").exists() == (status == 0)
        return status, output, errors

    return run


def test_documents_without_end_tokens(import_command: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    bare = [ids[1:-1] for ids in DOCUMENTS]
    Megatron().write(tmp_path / "bare", iter(bare), IDS)
    status, _, errors = import_command("megatron", tmp_path / "bare")
    assert status == 2
    assert "bare: document 0 has the end token of" in errors
    assert "nowhere" in errors
    assert "--append-eos" in errors
    status, output, _ = import_command("megatron", tmp_path / "bare", "--append-eos")
    assert status == 0
    assert "skipped 1 empty document\n" in output
    assert "note: 3 of 3 documents do not begin with token 1" in output
    splits = load_index(tmp_path / "out").splits.values()
    assert sum(split.tokens for split in splits) == sum(len(ids) + 1 for ids in bare if len(ids))
    assert "--append-eos: files of format flat do not say" in import_command("flat", tmp_path / "x", "--append-eos")[2]


def test_a_stream_that_ends_within_a_document(import_command: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    """llm-foundry's last document does not go on with the next input."""
    path = THEIRS / "mds/foundry"
    status, output, errors = import_command("mds", path, "--input", path, path)
    assert status == 0, errors
    assert "2 inputs end within a document, to which the end token was added" in output, errors
    splits = load_index(tmp_path / "out").splits.values()
    assert sum(split.tokens for split in splits) == 602
    assert sum(split.documents for split in splits) == 6


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def change(path: Path, offset: int, content: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[offset : offset + len(content)] = content
    path.write_bytes(whole)


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        (
            "documents",
            lambda p: p["bin"].write_bytes(p["bin"].read_bytes()[:-2]),
            "documents.bin: truncated, documents.idx has",
        ),
        (
            "documents",
            lambda p: p["bin"].write_bytes(p["bin"].read_bytes() + b"\0\0"),
            "its documents end after 4 of 4 sequences",
        ),
        (
            "documents",
            lambda p: p["idx"].write_bytes(p["idx"].read_bytes()[:-8]),
            "documents.idx: corrupted: 114 bytes, 4 sequ",
        ),
        ("documents", lambda p: p["idx"].write_bytes(b"TNTIDX\0\0" + bytes(30)), "documents.idx: no index of Megatron-LM"),
        ("documents", lambda p: p["idx"].write_bytes(b"MMIDIDX"), "documents.idx: no index of Megatron-LM"),
        ("documents", lambda p: p["idx"].unlink(), "documents.idx"),
        ("documents", lambda p: change(p["idx"], 17, b"\7"), "version 1 with ids of type 7: what is read is"),
        ("documents", lambda p: change(p["idx"], 9, b"\2"), "version 2 with ids"),
        ("documents", lambda p: change(p["idx"], 58, b"\7"), "sequence 1 does not begin where the one before it ends"),
        ("documents", lambda p: change(p["idx"], 34, struct.pack("<i", -1)), "sequence 0 does not begin where"),
        ("documents", lambda p: pipe(p["idx"]), "documents.idx: a pipe or a device, not a file"),
        ("documents", lambda p: pipe(p["bin"]), "documents.bin: a pipe or a device, not a file"),
        ("documents", lambda p: change(p["idx"], 82, b"\1"), "its first document does not begin with the first sequence"),
        ("documents", lambda p: change(p["idx"], 114, b"\3"), "its documents end after 3 of 4 sequences"),
        # The second document is empty, the third has its sequence too.
        ("documents", lambda p: change(p["idx"], 98, b"\1"), "document 2 has the end token of"),
        ("documents", lambda p: change(p["idx"], 98, b"\0"), "a document ends with sequence 0 of 4, after 1"),
        ("documents", lambda p: change(p["bin"], 2, b"\2\0"), "document 0 has the end token of"),
        ("documents", lambda p: change(p["bin"], 2, b"\x40\1"), "documents: token ids 1..320, but"),
        ("wide", lambda p: change(p["bin"], 4, b"\xff\xff\xff\xff"), "wide: token ids -1..7, but"),
    ],
)
def test_hostile_megatron(
    name: str,
    spoil: Callable[[dict[str, Path]], object],
    message: str,
    import_command: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
) -> None:
    paths = {suffix: tmp_path / f"{name}.{suffix}" for suffix in ("bin", "idx")}
    for suffix, path in paths.items():
        shutil.copyfile(THEIRS / f"megatron/{name}.{suffix}", path)
    spoil(paths)
    status, _, errors = import_command("megatron", tmp_path / name)
    assert status == 2, errors
    assert message in errors, errors


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((folder / "index.json").read_text())
    change(content)
    (folder / "index.json").write_text(json.dumps(content))


def shorten(folder: Path, left: int) -> None:
    """Truncate the first shard, with an index that says so."""
    path = next(folder.glob("shard.00000.*"))
    path.write_bytes(path.read_bytes()[:left])
    kind = "raw_data" if path.suffix == ".mds" else "zip_data"
    edit(folder, lambda c: c["shards"][0][kind].update(bytes=left, hashes={}))


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("documents", lambda p: (p / "index.json").unlink(), "index.json: not found: give the folder of one split"),
        ("documents", lambda p: (p / "index.json").write_text("[]"), "index.json: no index of MosaicML streaming"),
        ("documents", lambda p: edit(p, lambda c: c.update(version=1)), "version 1, not 2"),
        ("documents", lambda p: edit(p, lambda c: c["shards"][0].update(format="json")), "format json with columns"),
        ("documents", lambda p: edit(p, lambda c: c["shards"][0].update(column_names=["text"])), "read is mds with tokens or"),
        ("documents", lambda p: edit(p, lambda c: c["shards"][0].update(column_encodings=["pkl"])), "its ids are pkl: what is"),
        ("documents", lambda p: edit(p, lambda c: c["shards"][0].update(column_encodings=[None])), "column_encodings.0: must"),
        (
            "documents",
            lambda p: edit(p, lambda c: c["shards"][0].update(samples=2**40)),
            "shards.0.samples: must be less than or equal to",
        ),
        ("documents", lambda p: edit(p, lambda c: c["shards"][0]["raw_data"].update(hashes=[])), "raw_data.hashes: must"),
        (
            "documents",
            lambda p: edit(p, lambda c: c["shards"][0]["raw_data"].update(basename="..")),
            "'..': not a plain file name",
        ),
        ("documents", lambda p: shorten(p, 8), "shard.00000.mds: corrupted"),  # to the beginning of its first sample
        (
            "documents",
            lambda p: edit(p, lambda c: c["shards"][0].update(column_encodings=["ndarray:float32"])),
            "ids are ndarray:float32",
        ),
        (
            "documents",
            lambda p: edit(p, lambda c: c["shards"][0]["raw_data"].update(basename="../x")),
            "'../x': not a plain file name",
        ),
        ("documents", lambda p: edit(p, lambda c: c["shards"][0].update(samples=5)), "corrupted (its samples are not where"),
        ("documents", lambda p: (p / "shard.00000.mds").unlink(), "shard.00000.mds: not found, index.json lists it"),
        ("documents", lambda p: change(p / "shard.00000.mds", 500, b"xx"), "corrupted, sha256 is"),
        ("documents", lambda p: shorten(p, 900), "shard.00000.mds: corrupted (truncated)"),
        ("documents", lambda p: shorten(p, 22), "shard.00000.mds: corrupted ("),
        ("foundry", lambda p: shorten(p, 200), "shard.00000.mds.zstd: corrupted ("),
        (
            "other",
            lambda p: edit(p, lambda c: c["shards"][0].update(compression="br")),
            "compression br: what is read is zstd, gz",
        ),
    ],
)
def test_hostile_mds(
    name: str,
    spoil: Callable[[Path], object],
    message: str,
    import_command: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
) -> None:
    folder = shutil.copytree(THEIRS / "mds" / name, tmp_path / "mds")
    spoil(folder)
    status, _, errors = import_command("mds", folder)
    assert status == 2, errors
    assert message in errors, errors


def test_hostile_flat(import_command: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    for content, message in (
        (STREAM.astype(IDS).tobytes()[:-1], "a.bin: 765 bytes are no whole number of uint16 ids"),
        (STREAM.astype("<u4").tobytes(), "documents do not begin with token 1"),  # every second id is 0, <unk>
        (STREAM[:-1].astype("<u2").tobytes() + b"\x40\1", "a.bin: token ids 1..320, but"),
        (np.full(1000, 7, IDS).tobytes(), "a.bin: 1,000 tokens without the end token, 2: give the tokenizer"),
        (b"", "the train split got none of the 0 documents: change --validation-share"),
    ):
        path.write_bytes(content)
        status, output, errors = import_command("flat", path)
        assert message in (output if status == 0 else errors)
    assert "missing.bin" in import_command("flat", tmp_path / "missing.bin")[2]


def test_prompts_and_answers_are_not_exported(data_directory: Path, tmp_path: Path, command: Command) -> None:
    folder = shutil.copytree(data_directory, tmp_path / "answers")
    numbers = {"sha256": "", "examples": 1, "tokens": 1, "longest": 2, "unigram_entropy": 0.0}
    answers = {split: {"file": f"{split}.npy", **numbers} for split in ("train", "validation")}
    edit(folder, lambda c: c.update(answers=answers))
    status, _, errors = command("data", "export", folder, "--format", "flat", "--output", tmp_path / "out")
    assert status == 2
    assert "holds prompts and answers" in errors
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", [Flat, Mds, Megatron])
def test_memory(form: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20 MB no more than a few are held, neither in writing nor in reading."""
    monkeypatch.setattr("megatape.data.formats.mds.SHARD_BYTES", 2**20)
    monkeypatch.setattr("megatape.data.formats.mds.read_json", lambda path: json.loads(path.read_text()))  # else room for 64 MB
    ids = np.arange(10_000, dtype=IDS) + 2
    documents = (ids[::-1] for _ in range(1000))
    tracemalloc.start()
    try:
        form().write(tmp_path / "x", documents, IDS)
        path = tmp_path / ("x.bin" if form is Flat else "x")
        assert sum(found.size for found in divided(form().read(path, IDS), 2, path)) == 10_000_000
        assert tracemalloc.get_traced_memory()[1] < 8e6
    finally:
        tracemalloc.stop()


def test_a_document_without_end_is_not_collected() -> None:
    endless = (np.full(1000, 7) for _ in iter(int, 1))
    with pytest.raises(ValueError, match=r"x: 6,000 tokens without the end token, 2"):
        list(divided(endless, 2, Path("x"), max_tokens=5000))


def test_an_index_that_promises_gigabytes(tmp_path: Path) -> None:
    """Memory is taken for what the file of ids holds, whatever its index says."""
    count = 8
    length = 2**31 - 1
    places = np.arange(count) * 2 * length
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, count, 2)
    lengths = np.full(count, length, "<i4")
    ends = np.array([0, count], "<i8")
    (tmp_path / "a.idx").write_bytes(header + lengths.tobytes() + places.astype("<i8").tobytes() + ends.tobytes())
    (tmp_path / "a.bin").write_bytes(bytes(100))
    tracemalloc.start()
    with pytest.raises(ValueError, match="a.bin: truncated, a.idx has 34,359,738,352 bytes"):
        list(Megatron().read(tmp_path / "a", IDS))
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()
