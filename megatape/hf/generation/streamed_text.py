"""Decodes generated text token by token."""

from typing import Any, NamedTuple

from megatape.data.tokenizers.byte_tokens import REPLACEMENT


class Continuation(NamedTuple):
    """Text after a prompt.

    Attributes:
        text: Generated text, without the end token or stop string.
        end: Reason for ending: "end token", "stop string" or "length".
    """

    text: str
    end: str


class StreamedText:
    """Text being generated token by token.

    Args:
        tokenizer: Transformers tokenizer.
        ends: Token ids that end the text.
        stop: Stop strings. The text ends before them.

    Attributes:
        text: Text so far, without an incomplete character at its end.
        end: Reason for ending (see Continuation), None until then.
    """

    def __init__(self, tokenizer: Any, ends: set[int], stop: tuple[str, ...]) -> None:
        self.text = ""
        self.end: str | None = None
        self._tokenizer = tokenizer
        self._ends = ends
        self._stop = stop
        # Latest tokens. The first `num_decoded` of them are already in the text. Before the first token of the text, there is
        # an unrelated one, because a tokenizer may drop a space at the beginning of a decoded text.
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
        """End the text because of its length, unless it has ended, and return it."""
        if not self.end:
            self._decode(is_complete=True)
        self.end = self.end or "length"
        return Continuation(self.text, self.end)

    def num_settled(self) -> int:
        """Return the number of characters that later tokens cannot change. Those after them may begin a stop string."""
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
        """Decode the tokens after the last complete character, and search for stop strings.

        Args:
            is_complete: Whether no more tokens follow, so that an incomplete character is decoded as well.
        """
        before = self._tokenizer.decode(self._ids[: self._num_decoded], skip_special_tokens=True)
        now = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        if now.endswith(REPLACEMENT) and not is_complete:
            return
        if len(now) > len(before):
            self.text += now[len(before) :]
            self._ids = self._ids[self._num_decoded :]
            self._num_decoded = len(self._ids)

        stop_begins = [self.text.find(stop) for stop in self._stop if stop in self.text]
        if stop_begins:
            self.text = self.text[: min(stop_begins)]
            self.end = "stop string"
