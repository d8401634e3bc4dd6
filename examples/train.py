"""Prepare data and train a small model from Python: python -m examples.train FOLDER"""

import json
import sys
from pathlib import Path

from megatape.config import load_config
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.sources.source import Source
from megatape.training.pretrain import pretrain
from megatape.training.start import Start

ROOT = Path(__file__).parents[1]


def main(folder: Path, *overrides: str) -> int:
    """Train on the text of Python's standard library, with overrides `section.key=value`. Returns the exit status."""
    data = folder / "data"
    run = folder / "run"
    if not data.exists():
        source = Source("python", max_documents=100)
        prepare(PreparationOptions(source, validation_share=0.1, tokenizer=None, vocab_size=1024), data)
    settings = [f"data.path={data}", f"run.directory={run}", "model.vocab_size=1024", "zero.stage=1", "training.steps=20"]
    config = load_config(ROOT / "configs/tape_tiny.json", [*settings, *overrides])
    # If `deepspeed` or `torchrun` started this script, it trains on all ranks.
    status = pretrain(config, Start(resume="auto"))
    for line in (run / "metrics.jsonl").read_text().splitlines()[-3:]:
        step = json.loads(line)
        print(f"step {step['step']}: loss {step['loss']:.3f} nats")
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
