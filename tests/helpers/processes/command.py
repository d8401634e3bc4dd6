"""What the fixture `command` is."""

from collections.abc import Callable

Command = Callable[..., tuple[int, str, str]]
