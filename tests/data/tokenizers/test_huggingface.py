"""Adopted tokenizers: ids of transformers for every text, and clear errors for files that cannot serve."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from megatape.data.shards.hashes import split_of
from megatape.data.shards.index import load_index
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.huggingface import JsonTokenizer
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer
from megatape.data.training.document_dataset import DocumentDataset
from megatape.data.training.token_dataset import TokenDataset
from megatape.errors import UserError
from tests.helpers.models.imported import EDGE_CASES, FAMILIES, TEXTS, sentencepiece_llama2, write_qwen
from tests.helpers.processes.command import Command

MARKS = " </s><|endoftext|><tool>"  # only the last one is not special


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = tmp_path_factory.mktemp("adopted")
    return {name: write(made / name) for name, write in FAMILIES.items()}


@pytest.fixture
def edited(folders: dict[str, Path], tmp_path: Path) -> Callable[..., Path]:
    """edited("qwen", "tokenizer.json", change): a copy of the folder with `change` made to the JSON of a file."""

    def edit(family: str, file: str, change: Callable[[dict[str, Any]], object]) -> Path:
        folder = shutil.copytree(folders[family], tmp_path / family)
        content = json.loads((folder / file).read_text(encoding="utf-8"))
        change(content)
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
        return folder

    return edit


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_those_of_transformers(folders: dict[str, Path], family: str) -> None:
    """On 79 texts and edge cases; also in batches, and where special tokens are written out in a text."""
    ours = load_tokenizer(folders[family])
    theirs = PreTrainedTokenizerFast.from_pretrained(folders[family], split_special_tokens=True)
    texts = TEXTS + EDGE_CASES
    documents = ours.encode_documents(texts)
    for text, document in zip(texts, documents, strict=True):
        expected = theirs(text).input_ids
        assert [*ours.begin, *ours.encode(text)] == expected, repr(text[:60])
        assert document.dtype == np.int32
        assert document.tolist() == [*expected, theirs.eos_token_id]
        assert ours.eos_id not in expected
    exact = [text for text in texts if not (family == "qwen" and "e\u0301" in text or family == "llama2" and "\u2581" in text)]
    assert len(exact) >= len(texts) - 1
    for text in exact:
        assert ours.decode(ours.encode_documents([text])[0]) == text


def test_beginnings_ends_and_sizes(folders: dict[str, Path]) -> None:
    llama3, qwen, llama2 = (load_tokenizer(folders[family]) for family in ("llama3", "qwen", "llama2"))
    assert (llama3.bos_id, llama3.eos_id, llama3.vocab_size, llama3.begin) == (600, 601, 603, [600])
    assert (qwen.bos_id, qwen.eos_id, qwen.vocab_size, qwen.begin) == (None, 600, 604, [])
    assert (llama2.bos_id, llama2.eos_id, llama2.vocab_size) == (1, 2, 600)


def prepare(command: Command, tokenizer: Path, folder: Path) -> Path:
    """Data of TEXTS under this tokenizer, by the command."""
    source = folder / "texts.jsonl"
    source.write_text("".join(json.dumps({"text": text + MARKS}) + "\n" for text in TEXTS), encoding="utf-8")
    words = ("--source", "jsonl", "--input", source, "--output", folder / "data", "--validation-share", 0.2)
    status, _, errors = command("prepare", "corpus", *words, "--tokenizer", tokenizer)
    assert status == 0, errors
    return folder / "data"


def test_data_without_a_beginning_token_and_ids_above_65536(command: Command, tmp_path: Path) -> None:
    """From the command to samples: uint32 shards, documents found by their end, and the folder's files in the data."""
    folder = write_qwen(tmp_path / "qwen", unused=66_000)
    data = prepare(command, folder, tmp_path)
    index = load_index(data)
    assert (index.dtype, index.tokenizer.vocab_size, index.tokenizer.bos_id) == (
        "uint32",
        66_604,
        None,
    )
    assert index.tokenizer.eos_id == 66_600
    assert json.loads((data / "index.json").read_text())["version"] == 4
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (data / name).read_bytes() == (folder / name).read_bytes()
    tokenizer = load_tokenizer(folder)
    texts = list(dict.fromkeys(text + MARKS for text in TEXTS))  # preparation leaves out duplicates
    expected = [tokenizer.encode(text) for text in texts if split_of(text.encode(), 0.2) == "train"]
    dataset = DocumentDataset(StoredSplit(data, "train"), max(map(len, expected)))
    assert dataset.num_samples == len(expected)
    assert dataset.split.bos_id is None
    for number, ids in enumerate(expected):
        tokens = dataset.sample(number).tokens
        assert tokens[: len(ids)].tolist() == ids
        assert ids[-1] == 66_603
        assert set(tokens[len(ids) :].tolist()) <= {tokenizer.eos_id}
    status, report, _ = command("data", "report", data, "--verify")
    assert status == 0
    assert tokenizer.sha256 in report
    assert texts[0][:20] not in report.split("\n")[0]


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_a_changed_file_in_a_data_folder(command: Command, folders: dict[str, Path], file: str, tmp_path: Path) -> None:
    data = prepare(command, folders["llama3"] / "tokenizer.json", tmp_path)
    dataset = TokenDataset(StoredSplit(data, "train"), 8)
    assert dataset.split.tokenizer().files == load_tokenizer(folders["llama3"]).files
    content = (data / file).read_bytes()
    (data / file).write_bytes(content + b" ")
    with pytest.raises(ValueError, match=rf"{file}: sha256 is .*, expected .*: the file was changed"):
        dataset.split.tokenizer()
    (data / file).unlink()
    with pytest.raises(FileNotFoundError, match=rf"{file}: missing, a file of the tokenizer"):
        dataset.split.tokenizer()


def remove_end(content: dict[str, Any]) -> None:
    del content["eos_token"]


@pytest.mark.parametrize(
    ("family", "file", "change", "message"),
    [
        (
            "llama2",
            "tokenizer_config.json",
            remove_end,
            "eos_token of tokenizer_config.json or special_tokens_map.json is None",
        ),
        (
            "llama2",
            "tokenizer_config.json",
            lambda c: c.update(eos_token="<|no|>"),
            r"is '<\|no\|>': documents need a token to end with",
        ),
        ("llama2", "tokenizer_config.json", lambda c: c.update(eos_token=2), "eos_token is 2, no token"),
        (
            "llama2",
            "tokenizer_config.json",
            lambda c: c.update(eos_token="<s>"),
            r"texts begin with \['<s>'\]: documents can begin",
        ),
        (
            "qwen",
            "tokenizer_config.json",
            lambda c: c["added_tokens_decoder"].update({"7": {"content": "<tool>"}}),
            "'<tool>' as id 7, tokenizer.json has it as 603",
        ),
        ("qwen", "tokenizer_config.json", lambda c: c.update(added_tokens_decoder=3), "the files are not of one tokenizer"),
        (
            "qwen",
            "tokenizer.json",
            lambda c: c["model"].update(type="Rune"),
            "not a tokenizer that the tokenizers library .* can read",
        ),
        (
            "qwen",
            "tokenizer.json",
            lambda c: c["model"]["merges"].append(["zz", "qq"]),
            "not a tokenizer that the tokenizers library",
        ),
        ("qwen", "tokenizer.json", lambda c: c["model"].update(dropout=0.1), "dropout is 0.1"),
        ("llama3", "tokenizer.json", lambda c: c["post_processor"].update(processors=[]), None),
        (
            "llama2",
            "tokenizer.json",
            lambda c: c["post_processor"]["single"][0]["SpecialToken"].update(id="<no>"),
            "corrupted, its template cannot be applied",
        ),
    ],
)
def test_unfit_files(
    edited: Callable[..., Path], family: str, file: str, change: Callable[[dict[str, Any]], object], message: str | None
) -> None:
    folder = edited(family, file, change)
    if message is None:  # no template, no beginning token, as in transformers
        assert load_tokenizer(folder).bos_id is None
        return
    with pytest.raises(ValueError, match=message):
        load_tokenizer(folder)


@pytest.mark.parametrize("size", [1, 100, -20])
def test_a_truncated_file(folders: dict[str, Path], size: int, tmp_path: Path) -> None:
    folder = shutil.copytree(folders["qwen"], tmp_path / "qwen")
    path = folder / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"tokenizer.json: not a tokenizer that .* copy the file again"):
        load_tokenizer(path)
    with pytest.raises(ValueError, match=r"qwen/mine.json: not a tokenizer that"):
        load_tokenizer(Path(shutil.copy(path, folder / "mine.json")))
    (folder / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ValueError):
        load_tokenizer(folder)


def test_an_end_that_is_not_special_stays_text(edited: Callable[..., Path]) -> None:
    """transformers marks the declared end token as special, so that split_special_tokens keeps it text."""
    folder = edited("qwen", "tokenizer.json", lambda c: [t.update(special=False) for t in c["added_tokens"]])
    ours = load_tokenizer(folder)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder, split_special_tokens=True)
    text = "a<|endoftext|>b"
    assert ours.encode(text) == theirs(text).input_ids
    assert ours.eos_id not in ours.encode(text)


def test_a_folder_with_both_kinds(folders: dict[str, Path], tmp_path: Path) -> None:
    """tokenizer.json counts, as in transformers, unless tokenizer.model is a tokenizer of other pieces."""
    folder = shutil.copytree(folders["llama2"], tmp_path / "both")
    (folder / "tokenizer.model").write_bytes(sentencepiece_llama2())
    with pytest.raises(
        ValueError, match=r"token \d+ is '.*' in tokenizer.model and '.*' in tokenizer.json. transformers reads"
    ):
        load_tokenizer(folder)
    assert list(load_tokenizer(folder / "tokenizer.json").files) == ["tokenizer.json", "tokenizer_config.json"]
    assert isinstance(load_tokenizer(folder / "tokenizer.model"), SentencePieceTokenizer)

    pieces = SentencePieceTokenizer(sentencepiece_llama2()).pieces()
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"] |= {"vocab": {piece: number for number, piece in enumerate(pieces)}, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    assert set(load_tokenizer(folder).files) == {"tokenizer.json", "tokenizer_config.json", "tokenizer.model"}

    (folder / "tokenizer.json").unlink()
    assert load_tokenizer(folder).file == "tokenizer.model"
    (folder / "tokenizer.model").unlink()
    with pytest.raises(ValueError, match="neither tokenizer.json nor tokenizer.model"):
        load_tokenizer(folder)


def test_a_pattern_that_exceeds_its_engines_limit(edited: Callable[..., Path]) -> None:
    """An error that names file and text, where the library panics, which no handler of errors expects."""
    pattern = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    folder = edited("llama3", "tokenizer.json", lambda content: content.update(pre_tokenizer=pattern))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("harmless")
    message = r"tokenizer.json: cannot be applied to a text that begins 'xxx.*retry-limit-in-match over"
    with pytest.raises(ValueError, match=message):
        tokenizer.encode("x" * 100)
    with pytest.raises(ValueError, match=message):
        tokenizer.encode_documents(["harmless", "x" * 100, "harmless"])


@pytest.mark.parametrize("place", ["vocabulary", "template"])
def test_ids_beyond_31_bits(edited: Callable[..., Path], place: str) -> None:
    def change(content: dict[str, Any]) -> None:
        if place == "vocabulary":
            content["model"]["vocab"]["</s>"] = 2**31
        else:
            content["post_processor"]["special_tokens"]["<s>"]["ids"] = [2**31]

    with pytest.raises(ValueError, match=r"tokenizer.json: .* 2147483648"):
        load_tokenizer(edited("llama2", "tokenizer.json", change))


@pytest.mark.parametrize("name", ["weight-00000.safetensors", "state.json", "manifest.json", "config.json", "../x"])
def test_names_that_no_file_of_a_tokenizer_has(folders: dict[str, Path], name: str) -> None:
    """Checkpoints and exports copy all files of a tokenizer, so such a file would replace one of their own."""
    tokenizer = load_tokenizer(folders["qwen"])
    with pytest.raises(UserError, match=re.escape(f"'{name}' (not a file of a tokenizer, which are tokenizer.json, ")):
        JsonTokenizer({**tokenizer.files, name: b"weights of another model"})
