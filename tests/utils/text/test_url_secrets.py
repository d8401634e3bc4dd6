"""Passwords, tokens and signatures in URLs are hidden, and nothing else is."""

import pytest

from megatape.utils.text.url_secrets import is_masked, mask_secrets, mask_secrets_in_json

MASKED = {
    "https://me:pa55@example.org/data": "https://me:***@example.org/data",
    "https://me:p@ss:w@example.org:8080/data": "https://me:***@example.org:8080/data",
    "https://:pa55@example.org": "https://:***@example.org",
    "https://ghp_t0ken@example.org/data": "https://***@example.org/data",
    "s3://AKIA1:secret@bucket/data": "s3://AKIA1:***@bucket/data",
    "simplecache::sftp://me:pa55@host/data": "simplecache::sftp://me:***@host/data",
    "https://s3.example.org/a?X-Amz-Credential=AKIA1%2Fus&X-Amz-Date=2026&X-Amz-Signature=abc": (
        "https://s3.example.org/a?X-Amz-Credential=***&X-Amz-Date=2026&X-Amz-Signature=***"
    ),
    "https://a.blob.example.net/c?sv=2022&sig=a%2Fb": "https://a.blob.example.net/c?sv=2022&sig=***",
    "https://example.org/c?sv=1&amp;sig=abc&amp;n=2": "https://example.org/c?sv=1&amp;sig=***&amp;n=2",
    "https://example.org/a#access_token=abc": "https://example.org/a#access_token=***",
    "https://u:sec/ret@127.0.0.1:1/x": "https://u:***@127.0.0.1:1/x",
    "s3://AKIA:abc/def+g@bucket/x": "s3://AKIA:***@bucket/x",
    "https://u:p#1@h/x?n=1": "https://u:***@h/x?n=1",
    "zip://a::https://me:pa55@example.org/b": "zip://a::https://me:***@example.org/b",
    "http://h/a,http://me:pa55@example.org/b": "http://h/a,http://me:***@example.org/b",
    "https://example.org/a?next=http://me:pa55@h/b": "https://example.org/a?next=http://me:***@h/b",
    "https://example.org/api?code=abc&pw=d": "https://example.org/api?code=***&pw=***",
    "https://example.org/a?hdnea=exp=1~hmac=ab": "https://example.org/a?hdnea=***",
    "HTTPS://me:pa55@EXAMPLE.ORG/": "HTTPS://me:***@EXAMPLE.ORG/",
    "cannot read 'https://me:pa55@h/a' (404), https://h/b?token=x: try": (
        "cannot read 'https://me:***@h/a' (404), https://h/b?token=*** try"
    ),
    "--set data.path=https://me:pa55@h/a --resume auto": "--set data.path=https://me:***@h/a --resume auto",
}
KEPT = [
    "",
    "ratio 1:2@3, key=value, token: 5",
    "https://example.org:8080/data?page=2&n=3#part",
    "https://example.org:8080/a@b:c@d",
    "sftp://me@host/data",
    "ssh://git@host/data",
    "https://example.org/me:you@there?x=1",
    "s3://bucket/key=1/token=2/part",
    "file:///home/me/data",
]


@pytest.mark.parametrize("text", MASKED)
def test_secrets_are_masked(text: str) -> None:
    assert mask_secrets(text) == MASKED[text]
    assert mask_secrets(mask_secrets(text)) == mask_secrets(text)


@pytest.mark.parametrize("text", KEPT)
def test_other_text_is_kept(text: str) -> None:
    assert mask_secrets(text) == text
    assert not is_masked(text)


def test_a_masked_url_is_known() -> None:
    url = "https://me:pa55@example.org/data"
    assert not is_masked(url)
    assert is_masked(mask_secrets(url))


def test_values() -> None:
    url = "https://me:pa55@example.org/data"
    assert mask_secrets_in_json({url: 1.0}) == {mask_secrets(url): 1.0}
    value = {"data": {"path": url, "mixture": ({"path": url, "weight": 0.5}, None, 3, True)}}
    masked = {"path": mask_secrets(url), "weight": 0.5}
    assert mask_secrets_in_json(value) == {"data": {"path": mask_secrets(url), "mixture": [masked, None, 3, True]}}
