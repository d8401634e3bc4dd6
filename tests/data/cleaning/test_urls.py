"""Lists of domains and URLs."""

from pathlib import Path

import pytest

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.rule import parse_rules
from megatape.data.sources.document import Document
from megatape.errors import UserError

LIST = "# a comment\n\nBad.example\nblog.example/private/\nhttps://shop.example/item?id=7\n"


@pytest.mark.parametrize(
    ("url", "blocked"),
    [
        ("https://bad.example/page", True),
        ("http://user@www.BAD.example:8080", True),  # a subdomain
        ("bad.example.", True),
        ("https://notbad.example/", False),
        ("https://bad.example.org/", False),
        ("https://blog.example/private", True),
        ("https://blog.example/private/diary?page=2", True),
        ("https://blog.example/privateer", False),
        ("https://blog.example/Private", False),  # a path has its case
        ("https://shop.example/item?id=7", True),
        ("https://shop.example/item?id=77", False),
        ("https://good.example/?from=https://bad.example/", False),
        ("http://[broken", False),
        ("", False),
    ],
)
def test_an_entry_stands_for_subdomains_and_all_below_a_path(tmp_path: Path, url: str, blocked: bool) -> None:
    """As a list to block, and the other way round as a list to allow."""
    (tmp_path / "list.txt").write_text(LIST)
    for option, dropped, reason in (("block", blocked, "blocked"), ("allow", not blocked, "not allowed")):
        decision = Cleaning(parse_rules([f"urls:{option}={tmp_path / 'list.txt'}"])).decide(Document("text", "", url))
        assert (decision.text is None) == dropped and decision.reason == reason * dropped


def test_folders_are_read_whole_and_decide_the_result(tmp_path: Path) -> None:
    """All files of a folder and below, hidden ones excepted; what is blocked is not allowed, either."""
    lists = tmp_path / "lists"
    (lists / "adult").mkdir(parents=True)
    (lists / "adult" / "domains").write_text("adult.example")
    (lists / "domains").write_text("first.example")
    (lists / ".hidden").write_text("hidden.example")
    (tmp_path / "allow").write_text("example")
    cleaning = Cleaning(parse_rules([f"urls:block={lists},allow={tmp_path / 'allow'}"]))
    hosts = "adult.example", "first.example", "hidden.example", "other.org"
    reasons = [cleaning.decide(Document("text", "", f"https://{host}/")).reason for host in hosts]
    assert reasons == ["blocked", "blocked", "", "not allowed"]
    (before,) = cleaning.describe()
    (lists / "adult" / "domains").write_text("another.example")
    (after,) = cleaning.describe()
    assert {name for name in before["sha256"] if before["sha256"][name] != after["sha256"][name]} == {str(lists)}


@pytest.mark.parametrize(
    ("content", "option", "message"),
    [
        (
            "a.example\ntwo words\n",
            "block={file}",
            "rule urls: {file}:2: 'two words' is not a domain or a URL",
        ),
        ("http://[x\n", "allow={file}", "{file}:1: "),
        ("/path\n", "allow={file}", "{file}:1: "),
        ("a.example\n*.b.example\n", "block={file}", "{file}:2: '*.b.example' is not a domain or a URL"),
        ("||ads.example^\n", "block={file}", "{file}:1: "),
        (".example\n", "block={file}", "{file}:1: "),
        (
            "a.example",
            "block={file}.missing",
            "rule urls: {file}.missing: no such file, nor a folder with",
        ),
        ("a.example", "", "rule urls: give lists to `block` or to `allow`"),
    ],
)
def test_what_is_refused(tmp_path: Path, content: str, option: str, message: str) -> None:
    """Before a document is read."""
    file = tmp_path / "list"
    file.write_text(content)
    with pytest.raises(UserError) as error:
        parse_rules([f"urls:{option.format(file=file)}"])
    assert message.format(file=file) in str(error.value)
