"""Decoding byte tokens: characters next to stray bytes appear as in SentencePiece."""

import sys

import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.decoders import Decoder, DecodeStream
from tokenizers.models import BPE

from megatape.data.tokenizers.byte_tokens import byte_decoders, byte_letters, split_decoder

LLAMA2 = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]


def byte_tokens(text: bytes) -> list[str]:
    return [f"<0x{byte:02X}>" for byte in text]


@pytest.fixture(params=["export", "llama2"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    if request.param == "llama2":
        exact = split_decoder(decoders.Sequence(LLAMA2)).exact
        assert exact is not None
        return exact
    return decoders.Sequence(byte_decoders())


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (byte_tokens(b"\xe4" + "你好，世界".encode()), "\ufffd你好，世界"),
        (byte_tokens("你好".encode() + b"\xff" + "，世界".encode()), "你好\ufffd，世界"),
        (byte_tokens("é😀".encode() + b"\xf0"), "é😀\ufffd"),
        (byte_tokens(b"A\xf5\nB\xc0\x80"), "A\ufffd\nB\ufffd\ufffd"),
        ([*byte_tokens(b"\xe4"), "café", *byte_tokens("é\n".encode()), "ção", " 漢字", "é"], "\ufffdcaféé\nção 漢字é"),
        (["a<0xE4>", "<0xE4>b", "<0xZZ>", *byte_tokens("ä".encode())], "a<0xE4><0xE4>b<0xZZ>ä"),
        (["Ġ", "Ã", "<s>", *byte_tokens(b"\x00\x7f")], "ĠÃ<s>\x00\x7f"),
    ],
)
def test_a_stray_byte_costs_only_itself(decoder: Decoder, tokens: list[str], text: str) -> None:
    assert decoder.decode(tokens) == text


def test_every_character_is_decoded(decoder: Decoder) -> None:
    """Each character is given as byte tokens and as one token. U+2581 is a space in Llama 2's tokens, so it is skipped."""
    two_bytes = range(0x800)
    three_bytes = [*range(0x800, 0xD800, 7), *range(0xE000, 0x10000, 7)]
    four_bytes = range(0x10000, sys.maxunicode + 1, 997)
    codes = [*two_bytes, *three_bytes, *four_bytes]
    characters = [chr(code) for code in codes if code != 0x2581]
    text = "".join(characters)
    assert decoder.decode(["a", *byte_tokens(text.encode())]) == "a" + text
    assert decoder.decode(["a", *characters]) == "a" + text


def test_a_stream_of_tokens_is_decoded_character_by_character(decoder: Decoder) -> None:
    """A server decodes token by token: each character appears with its last byte."""
    vocabulary = {token: number for number, token in enumerate(byte_tokens(bytes(range(256))))}
    tokenizer = Tokenizer(BPE(vocabulary, []))
    tokenizer.decoder = decoder
    stream = DecodeStream(skip_special_tokens=True)
    pieces = [stream.step(tokenizer, token) for token in b"\xe4" + "你好".encode()]
    assert [piece for piece in pieces if piece] == ["\ufffd你", "好"]


def test_letters_are_those_of_the_library() -> None:
    letters = byte_letters()
    assert sorted(letters) == sorted(pre_tokenizers.ByteLevel.alphabet())
    for byte, letter in enumerate(letters[:128]):
        assert decoders.ByteLevel().decode([letter]) == chr(byte)


@pytest.mark.parametrize(
    "steps",
    [[decoders.ByteFallback(), decoders.Fuse()], byte_decoders()],
    ids=["quick", "exact"],
)
def test_a_file_with_either_decoder_gets_both(steps: list[Decoder]) -> None:
    """Exports have the exact decoder, which is slow. Other files have the quick one."""
    split = split_decoder(decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)]))
    tokens = [" a", *byte_tokens(b"\xe4" + "你好".encode())]
    assert split.quick.decode(tokens) == "a" + "\ufffd" * 7
    assert split.exact is not None
    assert split.exact.decode(tokens) == "a\ufffd你好"


@pytest.mark.parametrize(
    "other",
    [decoders.ByteLevel(), decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]), decoders.Metaspace()],
    ids=["bytes", "words after bytes", "words"],
)
def test_other_decoders_are_not_split(other: Decoder) -> None:
    """A decoder that needs single tokens after the byte decoder would get their joined text."""
    assert split_decoder(other) == (other, None)
