"""Messages of ranks in the store of their rendezvous: JSON lists, signed so that other processes cannot forge them.

torch's store has no passwords. Any process that reaches its port can read and write every key.
"""

import hmac
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist


class StoreEnded(RuntimeError):
    """The ranks' store has ended or cannot be reached."""


class Messages:
    """Messages between ranks. They are signed once the ranks share a secret.

    All calls raise StoreEnded once the store has ended.

    Args:
        store: Store of the ranks.
        prefix: Prefix of the keys in the store.
    """

    def __init__(self, store: dist.Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._secret: bytes | None = None

    def authenticate(self, secret: bytes) -> None:
        """Sign messages from now on, and ignore messages whose signature is missing or wrong.

        Args:
            secret: Secret known only to the ranks of the run.
        """
        self._secret = secret

    def put(self, name: str, *values: object) -> None:
        """Write a message, replacing an earlier one with this name.

        Args:
            name: Name of the message.
            values: JSON values.
        """
        text = self._seal(name, values)
        with _store_errors():
            self._store.set(self._prefix + name, text)

    def put_first(self, name: str, *values: object) -> bool:
        """Write a message, unless a rank has already written one with this name.

        Args:
            name: Name of the message.
            values: JSON values.

        Returns:
            Whether the message in the store is this one.
        """
        key = self._prefix + name
        text = self._seal(name, values)
        with _store_errors():
            stored = self._store.compare_set(key, "", text)
            if stored != text.encode() and self._open(name, stored) is None:
                # The stored value is not from a rank, so replace it.
                stored = self._store.compare_set(key, stored, text)  # type: ignore[arg-type]  # takes bytes, too
        return bool(stored == text.encode())

    def get(self, name: str) -> list[Any] | None:
        """Return the values of a message, or None if no rank has written one with this name."""
        key = self._prefix + name
        with _store_errors():
            if not self._store.check([key]):
                return None
            text = self._store.get(key)
        return self._open(name, text)

    def _seal(self, name: str, values: object) -> str:
        content = json.dumps(values)
        return self._signature(name, content) + content

    def _open(self, name: str, text: bytes) -> list[Any] | None:
        """Return the values in a stored text, or None if it is not from a rank of this run."""
        try:
            signature, bracket, after_bracket = text.decode().partition("[")
            content = bracket + after_bracket
            if self._secret is not None and not hmac.compare_digest(signature, self._signature(name, content)):
                return None
            values = json.loads(content)
        except (ValueError, TypeError, RecursionError):
            # A TypeError means that the signature has non-ASCII characters.
            return None
        if not isinstance(values, list):
            return None
        return values

    def _signature(self, name: str, content: str) -> str:
        """Return the signature of a message, or "" before the ranks share a secret."""
        if self._secret is None:
            return ""
        return hmac.new(self._secret, f"{name} {content}".encode(), "sha256").hexdigest()


@contextmanager
def _store_errors() -> Iterator[None]:
    """Turn a RuntimeError from the store into StoreEnded."""
    try:
        yield
    except RuntimeError as error:
        raise StoreEnded(str(error)) from error
