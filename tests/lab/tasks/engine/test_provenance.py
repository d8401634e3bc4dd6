"""Hashes that decide whether a folder belongs to an evaluation."""

import hashlib
import json

import numpy as np

from megatape.lab.tasks.engine.provenance import examples_hash
from megatape.lab.tasks.perplexity.windows import Window


def test_examples_of_an_earlier_version_have_the_same_hash() -> None:
    """Fields that are not compared do not count, so that an evaluation of an earlier version resumes."""
    window = Window(32, 0, np.array([1, 2, 3]), 2, text_bytes=7)
    earlier = [{"length": 32, "begin": 0, "tokens": [1, 2, 3], "num_scored": 2}]
    text = json.dumps(earlier, separators=(",", ":"))
    assert examples_hash([[window]]) == hashlib.sha256(text.encode()).hexdigest()
