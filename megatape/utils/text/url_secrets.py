"""Hides passwords and signatures in URLs when text leaves the process, for a run's files, terminals, pages or trackers."""

import re
from typing import Any

MASK = "***"
URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>\\]+", re.IGNORECASE)
# Chained URLs (`zip://a::https://...`) and lists have several.
# A password may contain slashes and other characters that would end a host. Digits before one of them are a port.
PASSWORD = re.compile(r"(\w[\w+.-]*://[^/:@?#]*):(?!:|\d+(?:[/?#]|$))\S*@")
# A user name without a password is a token on web servers, but not a secret for ssh.
TOKEN = re.compile(r"(https?://)[^/:@?#]+@", re.IGNORECASE)
# Parameters used by S3, Google Cloud Storage, Azure, CloudFront and web servers with tokens. Pages separate them with &amp;.
SECRET_NAMES = "sig|token|key|secret|pass|pw|cred|auth|policy|session|jwt|hmac|hdn|code"
SECRET_PARAMETER = re.compile(rf"([?&;#][^=&;#\s]*(?:{SECRET_NAMES})[^=&;#\s]*=)[^&;#\s]+", re.IGNORECASE)


def mask_secrets(text: str) -> str:
    """Replace passwords, tokens and signatures in a text's URLs by MASK. Masking again changes nothing."""
    if "://" not in text:
        return text
    return URL.sub(lambda match: _mask_url(match[0]), text)


def mask_secrets_in_json(value: Any) -> Any:
    """Mask all strings in a JSON value, including keys. Tuples become lists."""
    if isinstance(value, str):
        return mask_secrets(value)
    if isinstance(value, dict):
        return {mask_secrets_in_json(key): mask_secrets_in_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [mask_secrets_in_json(part) for part in value]
    return value


def is_masked(url: str) -> bool:
    """Whether a URL has been masked, so nothing can be read from it."""
    return "://" in url and MASK in url and mask_secrets(url) == url


def _mask_url(url: str) -> str:
    url = PASSWORD.sub(rf"\1:{MASK}@", url)
    url = TOKEN.sub(rf"\1{MASK}@", url)
    return SECRET_PARAMETER.sub(rf"\1{MASK}", url)
