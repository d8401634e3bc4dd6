"""Exported models whose encodings embed positions, add a bias, or sum features of the content."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import DynamicCache

from megatape.hf.exporting.exporter import export
from megatape.imports import import_given
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.exports import Exported, random_tokens
from tests.helpers.models.memory_checkpoint import memory_checkpoint
from tests.helpers.processes.load import scaled
from tests.helpers.processes.workers import ROOT

pytestmark = pytest.mark.numerics


FILES = {
    "kerple": "examples/add_encoding.py",
    "learned_absolute": "examples/learned_absolute.py",
    "forgetting": "examples/forgetting.py",
}


@pytest.fixture
def own(own_modules: None, sentencepiece_model: Path, tmp_path: Path) -> Iterator[Callable[[str], Exported]]:
    """Export a small random model with an encoding, whose query heads share key/value heads."""

    def make(encoding: str) -> Exported:
        import_given(str(ROOT / FILES[encoding]))
        checkpoint, model = memory_checkpoint(sentencepiece_model, encoding=encoding, num_kv_heads=2)
        export(checkpoint, tmp_path / encoding)
        return Exported(tmp_path / encoding, model.eval())

    yield make


@pytest.mark.parametrize("encoding", FILES)
@torch.no_grad()
def test_the_export_is_the_model_and_a_cache_changes_nothing(encoding: str, own: Callable[[str], Exported]) -> None:
    exported = own(encoding)
    tokens = random_tokens(2, 30)
    model = exported.load()
    expected = exported.ours(tokens, exported.positions(tokens))
    assert_close(model(tokens).logits, expected, bounds.EXPORTED)

    cache = DynamicCache()
    pieces = [model(piece, past_key_values=cache).logits for piece in tokens.split([7, 1, 1, 21], dim=1)]
    assert_close(torch.cat(pieces, dim=1), expected, bounds.EXPORTED)

    padding = torch.tensor([0, 9])
    mask = torch.arange(30) >= padding[:, None]
    padded = torch.stack([tokens[0], torch.cat([tokens.new_zeros(9), tokens[1, :21]])])
    cache = DynamicCache()
    first = model(padded[:, :20], attention_mask=mask[:, :20].long(), past_key_values=cache).logits
    last = model(padded[:, 20:], attention_mask=mask.long(), past_key_values=cache).logits
    assert_close(torch.cat([first, last], dim=1)[1, 9:], expected[1, :21], bounds.EXPORTED)

    options = {"max_new_tokens": 8, "min_new_tokens": 8, "num_beams": 3, "do_sample": False}
    cached = model.generate(tokens[:, :9], use_cache=True, **options)
    assert torch.equal(cached, model.generate(tokens[:, :9], use_cache=False, **options))


@torch.no_grad()
def test_unsupported_caches_and_lengths_are_refused(own: Callable[[str], Exported]) -> None:
    exported = own("forgetting")
    model = exported.load()
    tokens = random_tokens(1, 9)
    cache = DynamicCache()
    with pytest.raises(ValueError, match="use transformers' DynamicCache"):
        model.generate(tokens, max_new_tokens=2, cache_implementation="static")
    model(tokens, past_key_values=cache)
    with pytest.raises(ValueError, match="cannot remove tokens"):
        cache.crop(-2)
    with pytest.raises(ValueError, match="position 64 has no embedding: the model only has 64 positions"):
        own("learned_absolute").load()(random_tokens(1, 65))


@pytest.mark.slow
def test_exports_load_without_this_package(own: Callable[[str], Exported]) -> None:
    program = """
import sys
sys.modules["megatape"] = None
import torch
from transformers import AutoModelForCausalLM
for folder in sys.argv[1:]:
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    model.generate(torch.arange(3, 9)[None], max_new_tokens=4)
"""
    folders = [str(own(encoding).folder) for encoding in FILES]
    subprocess.run([sys.executable, "-c", program, *folders], check=True, timeout=scaled(240), cwd="/")
