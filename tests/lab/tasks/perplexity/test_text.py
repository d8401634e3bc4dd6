"""Reading the tokens of a text."""

from pathlib import Path
from types import SimpleNamespace

from megatape.lab.tasks.perplexity.text import read_tokens


def test_of_a_huge_text_only_the_beginning_is_read(tmp_path: Path) -> None:
    """Reading and tokenizing all of it would take its size in memory."""
    texts: list[str] = []

    def tokenize(text: str) -> dict[str, list[int]]:
        texts.append(text)
        return {"input_ids": [*map(ord, text)]}

    path = tmp_path / "huge.txt"
    model = SimpleNamespace(name="a model", tokenizer=tokenize, vocab_size=256, max_positions=64)
    path.write_bytes(b"0123456789" * 10_000 + b"\xff")  # not UTF-8, where nobody reads
    tokens = read_tokens(model, path, 50)
    assert tokens.tolist() == [ord("0") + number % 10 for number in range(50)] and len(texts[0]) == 64 * 50
