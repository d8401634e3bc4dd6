"""Forging checkpoint manifests."""

import hashlib
import json
from pathlib import Path
from typing import Any

# Base of a checkpoint, without any file or tensor
BASE: dict[str, Any] = {"folder": "/base", "relative": "../base", "files": {}, "tensors": {}}


def rewrite(path: Path, content: dict[str, Any]) -> None:
    """Write a manifest with its own hash."""
    content = {key: value for key, value in content.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(content | {"sha256": digest}))
