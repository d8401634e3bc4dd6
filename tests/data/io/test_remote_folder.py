"""Listing folders on a web server."""

import pytest

from megatape.data.io import retries
from megatape.data.io.inputs import find_files
from megatape.data.io.retries import Retries
from tests.helpers.processes.web import Fault, Web


def test_a_listing_is_complete(web: Web) -> None:
    """If listing a folder below fails, it is tried again instead of being skipped."""
    web.files |= {"a/one.jsonl": b"1", "a/b/two.jsonl": b"2"}

    web.faults = [Fault(), Fault(then="reset")]
    assert len(find_files([web.url("a/")], "*.jsonl")) == 2

    web.faults = [Fault(), *[Fault(status=503)] * 4]
    with pytest.raises(OSError, match="a/: the server answers 503"):
        find_files([web.url("a/")], "*.jsonl")


def test_links_to_folders_above_are_not_followed(web: Web) -> None:
    """Files above the input are no part of it."""
    web.files |= {"a/one.jsonl": b"1"}
    web.links = ["../", "../two.jsonl", "b/../"]

    assert find_files([web.url("a/")], "*.jsonl") == [web.url("a/one.jsonl")]


@pytest.mark.timeout(60)
def test_a_listing_without_end_is_refused(web: Web) -> None:
    """Every page links to pages below it."""
    web.files |= {"a/one.jsonl": b"1"}
    web.links = ["b/", "c/"]

    with pytest.raises(ValueError, match=rf"{web.url('a/')}: folders more than 32 deep"):
        find_files([web.url("a/")], "*.jsonl")
    assert len(web.requests) < 100


@pytest.mark.timeout(60)
def test_a_listing_sent_byte_by_byte_is_an_error(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    web.files |= {"a/one.jsonl": b"1"}
    web.always = Fault(after=5, then="trickle")
    monkeypatch.setattr(retries, "RETRIES", Retries(count=1, wait=0.01, timeout=0.1))

    with pytest.raises(OSError, match=r"a/: no answer for 0.1 s, after 2 attempts"):
        find_files([web.url("a/")], "*.jsonl")
