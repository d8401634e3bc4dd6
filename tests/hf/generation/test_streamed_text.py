"""Generated text is shown by whole characters, and ends before end tokens and stop strings."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from transformers import PreTrainedTokenizerBase

from megatape.hf.generation.continuations import continue_prompts
from megatape.hf.generation.prompts import Prompt
from megatape.hf.generation.sampling import Sampling
from megatape.hf.generation.streamed_text import Continuation
from megatape.hf.loading.exact_tokenizer import read_tokenizer
from megatape.hf.loading.loaded_model import LoadedModel
from tests.helpers.models.exports import Exported
from tests.helpers.models.imported import FAMILIES
from tests.helpers.models.scripted_model import ScriptedModel

TEXT = " statement\n漢字 \U0001f600 é, the end"
# Stop strings -> the text before the first one
STOPPED = {("the e",): TEXT[: TEXT.index("the e")], ("é", "字"): " statement\n漢", ("t", "s"): " "}


class Streamed(NamedTuple):
    """A continuation, and the pieces of its text as they were shown, without empty ones."""

    continuation: Continuation
    pieces: list[str]


def stream(tokenizer: PreTrainedTokenizerBase, row: list[int], stop: tuple[str, ...] = (), end: int | None = None) -> Streamed:
    """Continue a prompt with scripted ids, and then with the token `end`."""
    if end is not None:
        row = [*row, end]
    model = LoadedModel("a script", ScriptedModel([row], end), tokenizer)
    pieces: list[str] = []
    sampling = Sampling(max_new_tokens=len(row), stop=stop)
    ((continuation,),) = continue_prompts(model, [Prompt([7, 8])], sampling, pieces.append)
    assert "".join(pieces) == continuation.text
    return Streamed(continuation, [piece for piece in pieces if piece])


def ids_after_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the ids of a text that follows another text, so that a leading space stays."""
    letter: list[int] = tokenizer("a", add_special_tokens=False).input_ids
    ids: list[int] = tokenizer(f"a{text}", add_special_tokens=False).input_ids
    assert ids[: len(letter)] == letter
    return ids[len(letter) :]


@pytest.fixture(params=["exported", "llama2"])
def byte_tokenizer(
    request: pytest.FixtureRequest, exported: Callable[..., Exported], tmp_path: Path
) -> PreTrainedTokenizerBase:
    """Return a tokenizer with a token for each byte."""
    if request.param == "exported":
        return read_tokenizer(exported("plain").folder)
    return read_tokenizer(FAMILIES["llama2"](tmp_path / "llama2"))


def test_characters_after_a_stray_byte_are_shown_as_they_come(byte_tokenizer: PreTrainedTokenizerBase) -> None:
    """The tokenizers library alone would hold these characters back and then replace all of them."""
    content = b"\xe4" + "你好".encode()
    row = byte_tokenizer.convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in content])
    assert isinstance(row, list)
    streamed = stream(byte_tokenizer, row)
    assert streamed.continuation.text == "\ufffd你好"
    assert streamed.pieces == ["\ufffd你", "好"]


@pytest.fixture(params=FAMILIES)
def family_tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> PreTrainedTokenizerBase:
    return read_tokenizer(FAMILIES[request.param](tmp_path / request.param))


def test_text_is_shown_by_whole_characters(family_tokenizer: PreTrainedTokenizerBase) -> None:
    streamed = stream(family_tokenizer, ids_after_text(family_tokenizer, TEXT))
    assert streamed.continuation == (TEXT, "length")
    assert len(streamed.pieces) > 5
    assert [piece for piece in streamed.pieces if "\ufffd" in piece] == []


def test_an_end_token_ends_the_text(family_tokenizer: PreTrainedTokenizerBase) -> None:
    streamed = stream(family_tokenizer, ids_after_text(family_tokenizer, TEXT), end=3)
    assert streamed.continuation == (TEXT, "end token")


def test_special_tokens_that_end_nothing_are_not_shown(family_tokenizer: PreTrainedTokenizerBase) -> None:
    over = ids_after_text(family_tokenizer, " over")
    the = ids_after_text(family_tokenizer, " the")
    special = family_tokenizer.eos_token_id
    assert isinstance(special, int)
    assert stream(family_tokenizer, [*over, special, *the]).continuation == (" over the", "length")


def test_the_first_stop_string_ends_the_text(family_tokenizer: PreTrainedTokenizerBase) -> None:
    row = ids_after_text(family_tokenizer, TEXT)
    for stop, text in STOPPED.items():
        assert stream(family_tokenizer, row, stop, end=3).continuation == (text, "stop string")
    assert stream(family_tokenizer, row, ("not there",), end=3).continuation == (TEXT, "end token")


def test_the_start_of_a_stop_string_is_shown_later(family_tokenizer: PreTrainedTokenizerBase) -> None:
    row = ids_after_text(family_tokenizer, " an ENd, an ENDX")
    assert stream(family_tokenizer, row, ("END",)).continuation == (" an ENd, an ", "stop string")
