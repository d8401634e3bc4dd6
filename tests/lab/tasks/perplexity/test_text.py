"""Reading the tokens of a text."""

from pathlib import Path
from types import SimpleNamespace

from megatape.lab.tasks.perplexity.text import read_tokens


def test_only_the_beginning_of_a_huge_text_is_read(tmp_path: Path) -> None:
    """Reading and tokenizing all of it would take its size in memory."""
    tokenized: list[str] = []

    def tokenize(text: str) -> dict[str, list[int]]:
        tokenized.append(text)
        return {"input_ids": [*map(ord, text)]}

    model = SimpleNamespace(name="a model", tokenizer=tokenize, vocab_size=256, max_positions=64)
    path = tmp_path / "huge.txt"
    not_utf8 = b"\xff"  # far behind the tokens to read
    path.write_bytes(b"0123456789" * 10_000 + not_utf8)

    tokens = read_tokens(model, path, 50)

    assert tokens.tolist() == [ord("0") + number % 10 for number in range(50)]
    assert len(tokenized[0]) == 64 * 50
