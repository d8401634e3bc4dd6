"""Adopted tokenizers: every text has the ids of transformers, and unfit files are refused with the reason."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from megatape.data.shards.hashes import split_of
from megatape.data.shards.index import load_index
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.huggingface import JsonTokenizer
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer
from megatape.data.training.datasets.document_dataset import DocumentDataset
from megatape.data.training.datasets.token_dataset import TokenDataset
from megatape.errors import UserError
from tests.helpers.data.json_edits import REMOVED, edit_json, set_entry
from tests.helpers.models.imported import EDGE_CASES, FAMILIES, TEXTS, sentencepiece_llama2, write_qwen
from tests.helpers.processes.command import Command, run_command

# Only the last token is not special.
MARKS = " </s><|endoftext|><tool>"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tokenizer folder of each family."""
    root = tmp_path_factory.mktemp("adopted")
    return {name: write(root / name) for name, write in FAMILIES.items()}


@pytest.fixture
def edited(folders: dict[str, Path], tmp_path: Path) -> Callable[..., Path]:
    """edited("qwen", "tokenizer.json", change): copy a folder, and change the JSON of one of its files."""

    def edit(family: str, file: str, change: Callable[[dict[str, Any]], object]) -> Path:
        folder = shutil.copytree(folders[family], tmp_path / family)
        edit_json(folder / file, change)
        return folder

    return edit


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_those_of_transformers(folders: dict[str, Path], family: str) -> None:
    """Compares single texts and batches. Special tokens written out in a text are text."""
    tokenizer = load_tokenizer(folders[family])
    reference = PreTrainedTokenizerFast.from_pretrained(folders[family], split_special_tokens=True)
    texts = TEXTS + EDGE_CASES
    documents = tokenizer.encode_documents(texts)
    for text, document in zip(texts, documents, strict=True):
        expected = reference(text).input_ids
        assert [*tokenizer.begin, *tokenizer.encode(text)] == expected, repr(text[:60])
        assert document.dtype == np.int32
        assert document.tolist() == [*expected, reference.eos_token_id]
        assert tokenizer.eos_id not in expected


@pytest.mark.parametrize(
    ("family", "changed_text"),
    [("llama3", None), ("qwen", "e\u0301"), ("llama2", "\u2581")],
)
def test_texts_survive_a_round_trip(folders: dict[str, Path], family: str, changed_text: str | None) -> None:
    """Qwen's tokenizer normalizes to NFC, and Llama 2's replaces U+2581 by a space."""
    tokenizer = load_tokenizer(folders[family])
    all_texts = TEXTS + EDGE_CASES
    texts = all_texts
    if changed_text is not None:
        texts = [text for text in all_texts if changed_text not in text]
    assert len(texts) >= len(all_texts) - 1
    for text in texts:
        assert tokenizer.decode(tokenizer.encode_documents([text])[0]) == text


def test_begin_and_end_tokens_of_llama3(folders: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(folders["llama3"])
    assert tokenizer.bos_id == 600
    assert tokenizer.eos_id == 601
    assert tokenizer.vocab_size == 603
    assert tokenizer.begin == [600]


def test_begin_and_end_tokens_of_qwen(folders: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(folders["qwen"])
    assert tokenizer.bos_id is None
    assert tokenizer.eos_id == 600
    assert tokenizer.vocab_size == 604
    assert tokenizer.begin == []


def test_begin_and_end_tokens_of_llama2(folders: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(folders["llama2"])
    assert tokenizer.bos_id == 1
    assert tokenizer.eos_id == 2
    assert tokenizer.vocab_size == 600


def prepare(tokenizer: Path, folder: Path) -> Path:
    """Prepare TEXTS with a tokenizer by the command. Return the data directory."""
    source = folder / "texts.jsonl"
    source.write_text("".join(json.dumps({"text": text + MARKS}) + "\n" for text in TEXTS), encoding="utf-8")
    words = ("--source", "jsonl", "--input", source, "--output", folder / "data", "--validation-share", 0.2)
    assert run_command("prepare", "corpus", *words, "--tokenizer", tokenizer) == 0
    return folder / "data"


class Prepared(NamedTuple):
    """A data directory prepared with a tokenizer folder."""

    tokenizer_folder: Path
    data: Path


@pytest.fixture(scope="module")
def large_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Data with ids above 65,536, from a tokenizer without a beginning token."""
    parent = tmp_path_factory.mktemp("large-vocabulary")
    folder = write_qwen(parent / "qwen", unused=66_000)
    return Prepared(folder, prepare(folder, parent))


def test_the_index_describes_a_large_vocabulary_without_a_beginning_token(large_vocabulary: Prepared) -> None:
    index = load_index(large_vocabulary.data)
    assert index.dtype == "uint32"
    assert index.tokenizer.vocab_size == 66_604
    assert index.tokenizer.bos_id is None
    assert index.tokenizer.eos_id == 66_600
    assert json.loads((large_vocabulary.data / "index.json").read_text())["version"] == 4


def test_the_files_of_a_tokenizer_are_copied_to_the_data(large_vocabulary: Prepared) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        expected = (large_vocabulary.tokenizer_folder / name).read_bytes()
        assert (large_vocabulary.data / name).read_bytes() == expected


def test_documents_without_a_beginning_token_are_found_by_their_end(large_vocabulary: Prepared) -> None:
    tokenizer = load_tokenizer(large_vocabulary.tokenizer_folder)
    texts = list(dict.fromkeys(text + MARKS for text in TEXTS))  # preparation drops duplicates
    documents = [tokenizer.encode(text) for text in texts if split_of(text.encode(), 0.2) == "train"]
    dataset = DocumentDataset(StoredSplit(large_vocabulary.data, "train"), max(map(len, documents)))
    assert dataset.num_samples == len(documents)
    assert dataset.split.bos_id is None
    for number, ids in enumerate(documents):
        assert ids[-1] == 66_603
        tokens = dataset.sample(number).tokens.tolist()
        assert tokens[: len(ids)] == ids
        assert set(tokens[len(ids) :]) <= {tokenizer.eos_id}


def test_the_report_names_the_tokenizer(command: Command, large_vocabulary: Prepared) -> None:
    """The first line of the report has no text of documents."""
    status, report, _ = command("data", "report", large_vocabulary.data, "--verify")
    assert status == 0
    assert load_tokenizer(large_vocabulary.tokenizer_folder).sha256 in report
    first_line = report.split("\n")[0]
    assert TEXTS[0][:20] not in first_line


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_a_changed_or_missing_tokenizer_file_in_the_data_is_refused(
    folders: dict[str, Path], file: str, tmp_path: Path
) -> None:
    data = prepare(folders["llama3"] / "tokenizer.json", tmp_path)
    split = TokenDataset(StoredSplit(data, "train"), 8).split
    assert split.tokenizer().files == load_tokenizer(folders["llama3"]).files

    with (data / file).open("ab") as changed_file:
        changed_file.write(b" ")
    with pytest.raises(ValueError, match=rf"{file}: sha256 is .*, expected .*: the file was changed"):
        split.tokenizer()

    (data / file).unlink()
    with pytest.raises(FileNotFoundError, match=rf"{file}: missing, a file of the tokenizer"):
        split.tokenizer()


class UnfitCase(NamedTuple):
    """A changed entry in a tokenizer's file, and the message that refuses it."""

    family: str
    file: str
    entry: str
    value: Any
    message: str


CONFIG = "tokenizer_config.json"
UNFIT_CASES = [
    UnfitCase("llama2", CONFIG, "eos_token", REMOVED, f"eos_token of {CONFIG} or special_tokens_map.json is None"),
    UnfitCase("llama2", CONFIG, "eos_token", "<|no|>", r"is '<\|no\|>': documents need a token to end with"),
    UnfitCase("llama2", CONFIG, "eos_token", 2, "eos_token is 2, no token"),
    UnfitCase("llama2", CONFIG, "eos_token", "<s>", r"texts begin with \['<s>'\]: documents can begin"),
    UnfitCase("qwen", CONFIG, "added_tokens_decoder", 3, "the files are not of one tokenizer"),
    UnfitCase("qwen", "tokenizer.json", "model.type", "Rune", "not a tokenizer that the tokenizers library .* can read"),
    UnfitCase("qwen", "tokenizer.json", "model.dropout", 0.1, "dropout is 0.1"),
    UnfitCase(
        "llama2",
        "tokenizer.json",
        "post_processor.single.0.SpecialToken.id",
        "<no>",
        "corrupted, its template cannot be applied",
    ),
]


@pytest.mark.parametrize("case", UNFIT_CASES, ids=lambda case: f"{case.family} {case.entry}")
def test_unfit_files(edited: Callable[..., Path], case: UnfitCase) -> None:
    folder = edited(case.family, case.file, lambda content: set_entry(content, case.entry, case.value))
    with pytest.raises(ValueError, match=case.message):
        load_tokenizer(folder)


def test_files_with_different_ids_of_a_token_are_refused(edited: Callable[..., Path]) -> None:
    def add_tool_token(content: dict[str, Any]) -> None:
        content["added_tokens_decoder"]["7"] = {"content": "<tool>"}

    folder = edited("qwen", CONFIG, add_tool_token)
    with pytest.raises(ValueError, match="'<tool>' as id 7, tokenizer.json has it as 603"):
        load_tokenizer(folder)


def test_a_merge_of_unknown_tokens_is_refused(edited: Callable[..., Path]) -> None:
    folder = edited("qwen", "tokenizer.json", lambda content: content["model"]["merges"].append(["zz", "qq"]))
    with pytest.raises(ValueError, match="not a tokenizer that the tokenizers library"):
        load_tokenizer(folder)


def test_without_a_template_there_is_no_beginning_token(edited: Callable[..., Path]) -> None:
    """transformers also adds a beginning token only if the template of tokenizer.json says so."""
    folder = edited("llama3", "tokenizer.json", lambda content: content["post_processor"].update(processors=[]))
    assert load_tokenizer(folder).bos_id is None


@pytest.mark.parametrize("size", [1, 100, -20])
def test_a_truncated_file_is_refused(folders: dict[str, Path], size: int, tmp_path: Path) -> None:
    """The message names the file, whatever it is called."""
    folder = shutil.copytree(folders["qwen"], tmp_path / "qwen")
    path = folder / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:size])
    copy = Path(shutil.copy(path, folder / "mine.json"))
    with pytest.raises(ValueError, match=r"tokenizer.json: not a tokenizer that .* copy the file again"):
        load_tokenizer(path)
    with pytest.raises(ValueError, match=r"qwen/mine.json: not a tokenizer that"):
        load_tokenizer(copy)

    (folder / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ValueError):
        load_tokenizer(folder)


def test_an_end_that_is_not_special_stays_text(edited: Callable[..., Path]) -> None:
    """transformers marks the declared end token as special, so that split_special_tokens keeps it text."""

    def make_ordinary(content: dict[str, Any]) -> None:
        for token in content["added_tokens"]:
            token["special"] = False

    folder = edited("qwen", "tokenizer.json", make_ordinary)
    tokenizer = load_tokenizer(folder)
    reference = PreTrainedTokenizerFast.from_pretrained(folder, split_special_tokens=True)
    ids = tokenizer.encode("a<|endoftext|>b")
    assert ids == reference("a<|endoftext|>b").input_ids
    assert tokenizer.eos_id not in ids


@pytest.fixture
def both_kinds(folders: dict[str, Path], tmp_path: Path) -> Path:
    """A folder with tokenizer.json and a tokenizer.model of other pieces."""
    folder = shutil.copytree(folders["llama2"], tmp_path / "both")
    (folder / "tokenizer.model").write_bytes(sentencepiece_llama2())
    return folder


def test_a_folder_with_two_different_tokenizers_is_refused(both_kinds: Path) -> None:
    message = r"token \d+ is '.*' in tokenizer.model and '.*' in tokenizer.json. transformers reads"
    with pytest.raises(ValueError, match=message):
        load_tokenizer(both_kinds)


def test_one_of_two_tokenizers_is_chosen_by_its_file(both_kinds: Path) -> None:
    from_json = load_tokenizer(both_kinds / "tokenizer.json")
    assert list(from_json.files) == ["tokenizer.json", "tokenizer_config.json"]
    assert isinstance(load_tokenizer(both_kinds / "tokenizer.model"), SentencePieceTokenizer)


def test_a_folder_with_equal_tokenizers_of_both_kinds_keeps_all_files(both_kinds: Path) -> None:
    """tokenizer.json is read, as in transformers."""
    pieces = SentencePieceTokenizer(sentencepiece_llama2()).pieces()
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    edit_json(both_kinds / "tokenizer.json", lambda content: content["model"].update(vocab=vocabulary, merges=[]))
    tokenizer = load_tokenizer(both_kinds)
    assert tokenizer.file == "tokenizer.json"
    assert set(tokenizer.files) == {"tokenizer.json", "tokenizer_config.json", "tokenizer.model"}


def test_tokenizer_model_is_read_without_tokenizer_json(both_kinds: Path) -> None:
    (both_kinds / "tokenizer.json").unlink()
    assert load_tokenizer(both_kinds).file == "tokenizer.model"


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither tokenizer.json nor tokenizer.model"):
        load_tokenizer(tmp_path)


def test_a_pattern_that_exceeds_its_engines_limit_is_an_error(edited: Callable[..., Path]) -> None:
    """The library panics, which is no Python exception. The error names file and text."""
    pattern = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    folder = edited("llama3", "tokenizer.json", lambda content: content.update(pre_tokenizer=pattern))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("harmless")
    message = r"tokenizer.json: cannot be applied to a text that begins 'xxx.*retry-limit-in-match over"
    with pytest.raises(ValueError, match=message):
        tokenizer.encode("x" * 100)
    with pytest.raises(ValueError, match=message):
        tokenizer.encode_documents(["harmless", "x" * 100, "harmless"])


@pytest.mark.parametrize(
    ("entry", "value"),
    [("model.vocab.</s>", 2**31), ("post_processor.special_tokens.<s>.ids", [2**31])],
    ids=["vocabulary", "template"],
)
def test_ids_beyond_31_bits_are_refused(edited: Callable[..., Path], entry: str, value: object) -> None:
    folder = edited("llama2", "tokenizer.json", lambda content: set_entry(content, entry, value))
    with pytest.raises(ValueError, match=r"tokenizer.json: .* 2147483648"):
        load_tokenizer(folder)


@pytest.mark.parametrize("name", ["weight-00000.safetensors", "state.json", "manifest.json", "config.json", "../x"])
def test_files_not_belonging_to_a_tokenizer_are_refused(folders: dict[str, Path], name: str) -> None:
    """Checkpoints and exports copy all files of a tokenizer, so such a file would replace one of their own."""
    tokenizer = load_tokenizer(folders["qwen"])
    with pytest.raises(UserError, match=re.escape(f"'{name}' (not a file of a tokenizer, which are tokenizer.json, ")):
        JsonTokenizer({**tokenizer.files, name: b"weights of another model"})
