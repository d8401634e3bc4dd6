"""Decoding of generated text, token by token."""

from typing import Any, NamedTuple

from megatape.data.tokenizers.byte_tokens import REPLACEMENT


class Continuation(NamedTuple):
    """Text after a prompt.

    Attributes:
        text: The text.
        end: Reason for its end: "end token", "stop string" or "length".
    """

    text: str
    end: str


class StreamedText:
    """Continuation that is generated token by token.

    Args:
        tokenizer: Tokenizer of transformers.
        ends: Token ids that end the text.
        stop: Strings that end the text before them.

    Attributes:
        text: Text so far, without an incomplete character at its end.
        end: Reason for its end (`Continuation`), "" until then.
    """

    def __init__(self, tokenizer: Any, ends: set[int], stop: tuple[str, ...]) -> None:
        self.text = ""
        self.end = ""
        self._tokenizer = tokenizer
        self._ends = ends
        self._stop = stop
        # Last tokens, of which the first `num_decoded` are in the text. They start with a token before the text, because a
        # tokenizer may drop a space at the beginning of a decoded text.
        self._ids: list[int] = tokenizer("a", add_special_tokens=False)["input_ids"]
        self._num_decoded = len(self._ids)

    def add(self, token: int) -> None:
        """Add a token. Tokens after the end are ignored."""
        if self.end:
            return
        if token in self._ends:
            self._decode(is_complete=True)
            self.end = self.end or "end token"
            return
        self._ids.append(token)
        self._decode(is_complete=False)

    def finished(self) -> Continuation:
        """End the text, and return it."""
        if not self.end:
            self._decode(is_complete=True)
        self.end = self.end or "length"
        return Continuation(self.text, self.end)

    def num_settled(self) -> int:
        """Return the number of characters that no later token can change. The rest may be the beginning of a stop string."""
        if self.end:
            return len(self.text)
        num_open = 0
        for stop in self._stop:
            for size in range(len(stop) - 1, num_open, -1):
                if self.text.endswith(stop[:size]):
                    num_open = size
                    break
        return len(self.text) - num_open

    def _decode(self, is_complete: bool) -> None:
        """Decode the tokens after the last whole character, and look for stop strings.

        Args:
            is_complete: Whether no more tokens follow. Then an incomplete character is decoded as well.
        """
        before = self._tokenizer.decode(self._ids[: self._num_decoded], skip_special_tokens=True)
        now = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        if now.endswith(REPLACEMENT) and not is_complete:
            return
        if len(now) > len(before):
            self.text += now[len(before) :]
            self._ids = self._ids[self._num_decoded :]
            self._num_decoded = len(self._ids)

        found = [self.text.find(stop) for stop in self._stop]
        starts = [start for start in found if start >= 0]
        if starts:
            self.text = self.text[: min(starts)]
            self.end = "stop string"
