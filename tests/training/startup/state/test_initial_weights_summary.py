"""Lines about the weights that a run starts from."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from megatape.checkpoint.initial_weights import InitialWeights
from megatape.config import parse_config
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.hf.exporting.tokenizer import write_tokenizer
from megatape.training.startup.state.initial_weights_summary import summarize_initial_weights

ENGLISH = ["The quick brown fox jumps over the lazy dog, twice."] * 9


def test_a_tokenizer_with_another_script_is_a_warning(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Code in English, which was compared before, has the same ids."""
    model = parse_config(raw_config, "test").model
    english = SentencePieceTokenizer(train_tokenizer(ENGLISH, 300))
    write_tokenizer(english, 64, tmp_path)
    weights = cast("InitialWeights", SimpleNamespace(directory=tmp_path, model=model))

    (line,) = summarize_initial_weights(weights, model, 0, english)
    assert line == f"starting from the weights in {tmp_path}"

    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text().replace('"special": true', '"special": true', 1))
    content = path.read_text()
    assert '"<0xD0>"' in content
    path.write_text(content.replace('"<0xD0>"', '"<0xDX>"').replace('"<0xD1>"', '"<0xD0>"').replace('"<0xDX>"', '"<0xD1>"'))
    *_, warning = summarize_initial_weights(weights, model, 0, english)
    assert warning.startswith("warning: the tokenizer of the data (")
    assert "is '<0xD0>' and '<0xD1>'" in warning
