"""Blocking by lists of domains and URLs."""

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
        ("http://user@www.BAD.example:8080", True),
        ("bad.example.", True),
        ("https://notbad.example/", False),
        ("https://bad.example.org/", False),
        ("https://blog.example/private", True),
        ("https://blog.example/private/diary?page=2", True),
        ("https://blog.example/privateer", False),
        ("https://blog.example/Private", False),
        ("https://shop.example/item?id=7", True),
        ("https://shop.example/item?id=77", False),
        ("https://good.example/?from=https://bad.example/", False),
        ("http://[broken", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("option", ["block", "allow"])
def test_an_entry_stands_for_subdomains_and_all_below_a_path(tmp_path: Path, url: str, blocked: bool, option: str) -> None:
    """Domains are compared without case, paths with case. A list to allow keeps exactly what a list to block drops."""
    (tmp_path / "list.txt").write_text(LIST)
    cleaning = Cleaning(parse_rules([f"urls:{option}={tmp_path / 'list.txt'}"]))

    decision = cleaning.decide(Document("text", "", url))

    expected_reason = ""
    if option == "block" and blocked:
        expected_reason = "blocked"
    if option == "allow" and not blocked:
        expected_reason = "not allowed"
    assert decision.reason == expected_reason
    assert (decision.text is None) == bool(expected_reason)


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    """Write a folder with lists of domains to block, one in a folder below and one hidden."""
    folder = tmp_path / "lists"
    (folder / "adult").mkdir(parents=True)
    (folder / "adult" / "domains").write_text("adult.example")
    (folder / "domains").write_text("first.example")
    (folder / ".hidden").write_text("hidden.example")
    return folder


def test_all_lists_of_a_folder_are_read_but_hidden_ones(tmp_path: Path, lists: Path) -> None:
    """A blocked URL is dropped even if it is allowed as well."""
    (tmp_path / "allow").write_text("example")
    cleaning = Cleaning(parse_rules([f"urls:block={lists},allow={tmp_path / 'allow'}"]))

    def reason_for(host: str) -> str:
        return cleaning.decide(Document("text", "", f"https://{host}/")).reason

    assert reason_for("adult.example") == "blocked"
    assert reason_for("first.example") == "blocked"
    assert reason_for("hidden.example") == ""
    assert reason_for("other.org") == "not allowed"


def test_the_content_of_lists_is_part_of_the_rule(tmp_path: Path, lists: Path) -> None:
    allowed = tmp_path / "allow"
    allowed.write_text("example")
    cleaning = Cleaning(parse_rules([f"urls:block={lists},allow={allowed}"]))

    (before,) = cleaning.describe()
    (lists / "adult" / "domains").write_text("another.example")
    (after,) = cleaning.describe()

    assert after["sha256"][str(lists)] != before["sha256"][str(lists)]
    assert after["sha256"][str(allowed)] == before["sha256"][str(allowed)]


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
def test_malformed_lists_are_refused_before_a_document_is_read(tmp_path: Path, content: str, option: str, message: str) -> None:
    file = tmp_path / "list"
    file.write_text(content)

    with pytest.raises(UserError) as error:
        parse_rules([f"urls:{option.format(file=file)}"])

    assert message.format(file=file) in str(error.value)
