"""Replaces personal data."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from megatape.data.cleaning.rule import TextRule

if TYPE_CHECKING:
    from datatrove.pipeline.formatters.pii import PIIFormatter

# datatrove's first replacements. It alternates between several, so its result would depend on the order of documents.
EMAIL = "email@example.com"
IP = "22.214.171.124"
# Part of an e-mail address before its @, in datatrove's pattern: words separated by single dots.
WORD = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
REVERSED = re.compile(rf"{WORD}++(?:\.{WORD}++)*+")
BEGIN = re.compile(rf"\b{WORD}")


@dataclass(frozen=True)
class PersonalData(TextRule):
    """Replaces e-mail addresses and public IPv4 addresses by EMAIL and IP.

    The patterns are datatrove's, as in FineWeb (Penedo et al., arXiv 2406.17557). datatrove searches for an address from each
    word on, which takes quadratic time if words follow each other without space. An address has a single @, so starting at each
    @ instead gives the same result in linear time.
    """

    packages: ClassVar[tuple[str, ...]] = ("datatrove",)

    @cached_property
    def _formatter(self) -> "PIIFormatter":
        from datatrove.pipeline.formatters.pii import PIIFormatter

        return PIIFormatter(ip_replacement=IP)

    def apply(self, text: str) -> str:
        address = self._formatter.emails_replacer.regex
        parts: list[str] = []
        address_end = 0
        sign_end = 0
        for sign in re.finditer("@", text):
            at = sign.start()
            name_limit = max(address_end, sign_end)
            sign_end = sign.end()
            longest = REVERSED.match(text[name_limit:at][::-1])
            if longest is None:
                continue
            begin = BEGIN.search(text, at - longest.end(), at)
            if begin is None:
                continue
            match = address.match(text, begin.start())
            if match is None:
                continue
            parts += [text[address_end : match.start()], EMAIL]
            address_end = match.end()
        return self._formatter.ip_replacer.replace("".join(parts) + text[address_end:])
