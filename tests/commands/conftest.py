"""Fixtures of exported models. No test reaches the hub."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from tests.helpers.models.exports import exported, sentencepiece_model  # noqa: F401 (fixtures)
