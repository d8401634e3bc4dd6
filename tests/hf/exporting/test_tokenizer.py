"""An imported tokenizer from data to checkpoint to export to generated text."""

import gzip
import io
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from megatape.checkpoint.load.reader import verified_checkpoint
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.hf.exporting.exporter import export
from megatape.hf.exporting.sentencepiece import build_tokenizer, read_proto
from megatape.hf.exporting.tokenizer import write_tokenizer
from megatape.hf.generation.continuations import continue_prompts
from megatape.hf.generation.prompts import Prompt
from megatape.hf.generation.sampling import Sampling
from megatape.hf.generation.streamed_text import Continuation
from megatape.hf.loading.load import load_exported
from megatape.hf.special_tokens import special_tokens
from tests.helpers.models.imported import EDGE_CASES, FAMILIES, TEXTS, sentencepiece_llama2, write_llama3
from tests.helpers.models.memory_checkpoint import memory_checkpoint
from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.small_run import small_config
from tests.helpers.runs.training_cases import TRAIN_CASES


def prepare(command: Command, tokenizer: Path, folder: Path) -> tuple[int, str]:
    """Prepare TEXTS in folder/data. Return the exit status and errors."""
    texts = folder / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": text[:2000]}) + "\n" for text in TEXTS), encoding="utf-8")
    words = ("--source", "jsonl", "--input", texts, "--output", folder / "data", "--validation-share", 0.2)
    status, _, errors = command("prepare", "corpus", *words, "--tokenizer", tokenizer)
    return status, errors


@pytest.mark.parametrize("family", FAMILIES)
def test_export_returns_the_files(family: str, tmp_path: Path) -> None:
    """Files are equal byte for byte. Generation and evaluation read prompts with the ids of training."""
    source = FAMILIES[family](tmp_path / family)
    checkpoint, _ = memory_checkpoint(source, vocab_size=640)
    export(checkpoint, tmp_path / "out")
    for path in source.iterdir():
        if path.name != "generation_config.json":
            assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    ours = load_tokenizer(source)
    loaded = load_exported(tmp_path / "out").tokenizer
    for text in TEXTS[:10] + EDGE_CASES:
        expected = [*ours.begin, *ours.encode(text)]
        assert loaded(text).input_ids == expected
        assert loaded.decode(expected, skip_special_tokens=True) == ours.decode(expected)
    again = AutoTokenizer.from_pretrained(tmp_path / "out", split_special_tokens=True)
    assert again(TEXTS[0]).input_ids == [*ours.begin, *ours.encode(TEXTS[0])]
    stops = GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id
    assert stops == {"llama3": [602, 601], "qwen": 600, "llama2": 2}[family]
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] == stops


def test_generation_ends_at_every_end_token(tmp_path: Path) -> None:
    """generation_config.json adds the token ending a turn, which is not the token ending documents."""
    checkpoint, _ = memory_checkpoint(write_llama3(tmp_path / "llama3"), vocab_size=640)
    for end in (601, 602):
        for name, weight in checkpoint.weights.items():
            if name.startswith("blocks.") and name.endswith(("output.weight", "down.weight")):
                weight.zero_()  # the hidden state is the embedding
        checkpoint.weights["embedding.weight"] = torch.ones(640, 32)
        checkpoint.weights["head.weight"] = torch.zeros(640, 32)
        checkpoint.weights["head.weight"][end] = 1
        export(checkpoint, tmp_path / str(end))
        loaded = load_exported(tmp_path / str(end))
        assert continue_prompts(loaded, [Prompt([600, 5, 6])], Sampling()) == [[Continuation("", "end token")]]
        prompt = torch.tensor([[600, 5, 6]])
        found = loaded.model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20)
        assert found[0].tolist() == [600, 5, 6, end]


@pytest.mark.parametrize(
    ("stops", "found"),
    [(None, 601), (602, [601, 602]), ([601], 601), ([602, 601], [602, 601]), ([640], None), ("<|eot|>", None), ([True], None)],
)
def test_end_ids(stops: Any, found: int | list[int] | None, tmp_path: Path) -> None:
    folder = write_llama3(tmp_path / "llama3")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    if found is None:
        with pytest.raises(ValueError, match="generation_config.json: eos_token_id is .*, not of the 603 tokens"):
            special_tokens(load_tokenizer(folder))
    else:
        assert special_tokens(load_tokenizer(folder)).eos_token_id == found


def test_a_tokenizer_larger_than_the_embedding(tmp_path: Path) -> None:
    checkpoint, _ = memory_checkpoint(write_llama3(tmp_path / "llama3"), vocab_size=600)
    with pytest.raises(ValueError, match="llama3 has 603 tokens, but model.vocab_size is 600"):
        export(checkpoint, tmp_path / "out")


def test_scores_that_tie_prepare_data_but_are_not_exported(command: Command, tmp_path: Path) -> None:
    proto = ModelProto.FromString(sentencepiece_llama2())
    merged = [piece for piece in proto.pieces if piece.type == ModelProto.SentencePiece.NORMAL and len(piece.piece) > 1]
    merged[1].score = merged[0].score
    path = tmp_path / "llama2" / "tokenizer.model"
    path.parent.mkdir()
    path.write_bytes(proto.SerializeToString())
    tokenizer = load_tokenizer(path)
    documents = tokenizer.encode_documents(TEXTS)
    assert [tokenizer.decode(document) for document in documents] == TEXTS
    status, errors = prepare(command, path.parent, tmp_path)
    assert status == 0
    assert "warning: a model trained on this data cannot be exported" in errors
    assert "two merged pieces" in errors
    with pytest.raises(
        ValueError, match="llama2/tokenizer.model: two merged pieces have the same score, .* prepare the data with"
    ):
        special_tokens(tokenizer)


def test_a_run_on_imported_data(command: Command, tmp_path: Path) -> None:
    """Train, checkpoint, resume and export in real processes. The checkpoint needs neither the data nor the source folder."""
    source = write_llama3(tmp_path / "llama3")
    files = load_tokenizer(source).files
    status, errors = prepare(command, source, tmp_path)
    assert status == 0
    assert "warning" not in errors
    raw = small_config(tmp_path / "data", tmp_path / "runs")
    raw["model"]["vocab_size"] = 640
    raw["training"]["steps"] = 2
    cases = [
        {"name": "small", "set": {"model.vocab_size": 602}},
        {"name": "run", "set": {"checkpoint.interval": 1}},
        {
            "name": "again",
            "resume": str(tmp_path / "runs/run/checkpoints/step-00000001"),
            "remove": str(tmp_path / "data"),
            "only_save": True,
        },
    ]
    small, run, again = run_workers(TRAIN_CASES, 1, {"config": raw, "cases": cases}, tmp_path / "w")[0]
    assert "has 603 ids, but model.vocab_size is 602: raise model.vocab_size" in small["error"]
    assert run == {"step": 0, "samples": 0}
    assert again == {"step": 1, "samples": 8}
    checkpoint = verified_checkpoint(tmp_path / "runs/again/checkpoints/step-00000001")
    assert checkpoint.tokenizer().files == files
    export(checkpoint, tmp_path / "out")
    assert (tmp_path / "out" / "chat_template.jinja").read_bytes() == files["chat_template.jinja"]
    assert "began\nwith `<|begin|>` and ended with `<|end|>`" in (tmp_path / "out" / "README.md").read_text()
    path = checkpoint.directory / "tokenizer_config.json"
    path.write_bytes(path.read_bytes().replace(b"<|end|>", b"<|eot|>"))
    with pytest.raises(ValueError, match="tokenizer_config.json: sha256 is"):
        checkpoint.tokenizer()


MARK = "\u2581"
SPACES_AND_MARKS = [
    "",
    " ",
    "     ",
    "  leading and trailing   ",
    "\n\n\ttabs\tand\r\nnew\rlines\n",
    "0123456789 3.14 1,000,000 ٣٤٥ ½²",
    "<s> <unk> </s> <s></s> <0x41> <pad> <|endoftext|> [CLS]",
    f"{MARK} the space mark {MARK}{MARK} itself{MARK}",
    f"{MARK}",
    "😀👩‍👩‍👧‍👦🏳️‍🌈 emoji👍🏽",
    "漢字かな交じり文 한국어 中文，。",
    "e\u0301 a\u0308\u0323 combining, naïve ﬁ Ⅳ ß",
    "עברית العربية \u202eright to left\u202c",
    "zero\u200bwidth\u200d\ufeff\u2060 joiners",
    "".join(map(chr, range(32))) + "\x7f\x80\xa0\xad",
    "\u2028\u2029\u3000\u00a0 \u1680 spaces",
    "\ufffd\ufffe\U0010ffff\ue000 private and none",
    "\u2585 SentencePiece's own signs \u2047",
    "x" * 20_000,
    " x" * 5_000,
    "ab" * 3000 + "aba" * 3000,
]


def python_files() -> list[str]:
    """Return 100 files of the standard library."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))[:100]
    assert len(files) == 100
    return [path.read_text(encoding="utf-8") for path in files]


def c4_texts() -> list[str]:
    if "MEGATAPE_C4" not in os.environ:
        pytest.skip("MEGATAPE_C4 does not name a folder with files of C4 (*.json.gz)")
    files = sorted(Path(os.environ["MEGATAPE_C4"]).glob("**/*.json.gz"))
    assert files
    return [json.loads(line)["text"] for path in files for line in gzip.open(path)]


def load(model: bytes, folder: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of `model` with transformers, from `folder` with a Llama's config.json."""
    write_tokenizer(SentencePieceTokenizer(model), 10**9, folder)
    # A tokenizer class registered for Llama would change ids.
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, PreTrainedTokenizerBase]:
    """Return a tokenizer of 2,000 tokens trained on Python code, and its export."""
    model = train_tokenizer(python_files()[:20], 2000)
    return SentencePieceTokenizer(model), load(model, tmp_path_factory.mktemp("tokenizer"))


def check(ours: Tokenizer, theirs: PreTrainedTokenizerBase, texts: list[str], num_decoded: int = 40) -> None:
    """Compare ids of all texts, and the first decoded texts: an export's decoder takes microseconds per token."""
    for number, text in enumerate(texts):
        expected = [*ours.begin, *ours.encode(text)]
        found = theirs(text).input_ids
        assert found == expected, f"ids of {text[:60]!r} differ"
        if number < num_decoded:
            assert theirs.decode(found, skip_special_tokens=True) == text


@pytest.mark.parametrize(
    ("texts", "num_decoded"),
    [(lambda: SPACES_AND_MARKS, len(SPACES_AND_MARKS)), (python_files, 5), (c4_texts, 40)],
    ids=["edge cases", "Python", "C4"],
)
def test_ids_and_texts(
    real: tuple[Tokenizer, PreTrainedTokenizerBase], texts: Callable[[], list[str]], num_decoded: int
) -> None:
    check(*real, texts(), num_decoded)


def test_characters_beside_a_stray_byte(real: tuple[Tokenizer, PreTrainedTokenizerBase]) -> None:
    """A wrong byte written by a model must not lose the characters around it."""
    ours, theirs = real
    stray = theirs.convert_tokens_to_ids("<0xE4>")
    for text in ("你好，世界", "def é(): 漢字 😀\n"):
        ids = ours.encode(text)
        for place in (0, len(ids)):
            found = [*ids[:place], stray, *ids[place:]]
            assert theirs.decode(found) == ours.decode(found), "SentencePiece decodes the same"
            assert theirs.decode(found).replace("\ufffd", "") == text


def test_unicode_characters(real: tuple[Tokenizer, PreTrainedTokenizerBase]) -> None:
    """All characters of two and three bytes are checked, and some of four."""
    codes = [*range(0xD800), *range(0xE000, 0x10000), *range(0x10000, sys.maxunicode, 37)]
    ours, theirs = real
    text = "".join(map(chr, codes))
    assert theirs(text, add_special_tokens=False).input_ids == ours.encode(text)
    assert theirs.decode(ours.encode(text)) == text


def random_cases() -> Iterator[tuple[bytes, list[str]]]:
    """Yield tokenizers trained on texts over a few letters, where most merges overlap and compete, with other such texts."""
    generator = random.Random(0)
    for alphabet in ("ab", "a ", "ab ", "abc 1"):
        lines = ["".join(generator.choices(alphabet, k=generator.randint(5, 60))) for _ in range(40)]
        texts = ["".join(generator.choices(alphabet + MARK, k=generator.randint(0, 40))) for _ in range(500)]
        for dummy_prefix in (False, True):
            yield sentencepiece_bpe(lines, add_dummy_prefix=dummy_prefix, split_by_whitespace=False), texts


def sentencepiece_bpe(lines: list[str], **changes: Any) -> bytes:
    """Train a SentencePiece model with our settings, except for `changes`."""
    model = io.BytesIO()
    settings: dict[str, Any] = {
        "model_type": "bpe",
        "vocab_size": 300,
        "hard_vocab_limit": False,
        "byte_fallback": True,
        "split_digits": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
        "allow_whitespace_only_pieces": True,
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, **settings | changes)
    return model.getvalue()


def test_competing_merges_and_dummy_prefix() -> None:
    prefixed = 0
    for model, texts in random_cases():
        ours = SentencePieceTokenizer(model)
        proto = read_proto(ours)
        theirs = build_tokenizer(proto)
        prefixed += proto.normalizer_spec.add_dummy_prefix
        for text in texts:
            assert theirs.encode(text).ids == [1, *ours.encode(text)], repr(text)
    assert prefixed == 4


def test_dummy_prefix_round_trip(tmp_path: Path) -> None:
    """Llama's own tokenizer has such a prefix."""
    model = sentencepiece_bpe(python_files()[:2], vocab_size=500, add_dummy_prefix=True)
    check(SentencePieceTokenizer(model), load(model, tmp_path), [text for text in SPACES_AND_MARKS if MARK not in text])


def test_batches_begin_with_bos_and_are_padded_on_the_left(real: tuple[Tokenizer, PreTrainedTokenizerBase]) -> None:
    ours, theirs = real
    batch = theirs(["def f", "</s>"], padding=True)
    short = [1, *ours.encode("def f")]
    long = [1, *ours.encode("</s>")]
    width = max(len(short), len(long))
    for ids, mask, row in zip(batch.input_ids, batch.attention_mask, (short, long), strict=True):
        assert ids == [0] * (width - len(row)) + row
        assert mask == [0] * (width - len(row)) + [1] * len(row)
    assert len(short) != len(long)
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (1, 2, 0)
    assert theirs.decode([1, *ours.encode("a"), 2, 0], skip_special_tokens=True) == "a"


def test_saving_again_keeps_ids(real: tuple[Tokenizer, PreTrainedTokenizerBase], tmp_path: Path) -> None:
    ours, theirs = real
    theirs.save_pretrained(tmp_path)
    check(ours, AutoTokenizer.from_pretrained(tmp_path), SPACES_AND_MARKS)


TEXT = ["the quick brown fox jumps over the lazy dog"] * 3


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"model_type": "unigram", "vocab_size": 290}, "it is not of type BPE"),
        ({"byte_fallback": False, "vocab_size": 40}, "it has no byte fallback"),
        ({"normalization_rule_name": "nmt_nfkc"}, "it normalizes text"),
        ({"remove_extra_whitespaces": True}, "it removes extra whitespace"),
        ({"treat_whitespace_as_suffix": True}, "it puts whitespace at the end of words"),
        ({"user_defined_symbols": ["<tool>"]}, r"it has user-defined or unused pieces \['<tool>'\]"),
        ({"bos_id": -1, "eos_id": 1}, "it has no <unk>, <s> or </s>"),
    ],
)
def test_what_cannot_be_said_is_refused(changes: dict[str, Any], fault: str) -> None:
    tokenizer = SentencePieceTokenizer(sentencepiece_bpe(TEXT, **changes), "tok.model")
    with pytest.raises(ValueError, match=f"tok.model: {fault}, so tokenizer.json could not give the same ids"):
        special_tokens(tokenizer)
