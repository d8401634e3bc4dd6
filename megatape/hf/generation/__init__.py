"""Generates text with a loaded model, from prompts or in conversations."""

from typing import TYPE_CHECKING

from megatape.moved_modules import old_names

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
