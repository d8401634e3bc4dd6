"""WebDataset tars: samples, and members and archives that are not trusted."""

import io
import tarfile
from pathlib import Path

import pytest
from backports import zstd

from megatape.data.counts import CorpusCounts
from megatape.data.sources.reading import read_documents
from megatape.data.sources.source import Source
from megatape.errors import UserError
from tests.helpers.data.sources import read, special, tar_of


def test_samples_of_tars(tmp_path: Path) -> None:
    """Text beside its record, a record alone, and what has none, in folders with names of any length."""
    long = "folder/" * 30 + "c" * 90
    (tmp_path / "a.tar").write_bytes(
        tar_of(
            (f"{long}.txt", b"long"),
            ("b/0.jpg", b"\xff"),
            ("b/0.txt", b"zero"),
            ("b/0.json", b'{"url": "http://host/0", "text": "not this"}'),
            ("b/1.json", b'{"text": "one"}'),
            ("b/2.jpg", b"\xff"),
        )
    )
    (tmp_path / "b.tar.zst").write_bytes(zstd.compress(tar_of(("3.TXT", b"three"))))
    source = Source("webdataset", (str(tmp_path),))
    found = list(read_documents(source, CorpusCounts()))
    assert [document.text for document in found] == ["long", "zero", "one", "three"]
    assert [document.place.partition(f"{tmp_path}/")[2] for document in found[1:3]] == ["a.tar:b/0.txt", "a.tar:b/1.json"]
    assert found[1].url == "http://host/0" and found[0].place.endswith(f"{long}.txt")
    for form in (tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT):
        with tarfile.open(tmp_path / "c.tar", "w", format=form) as tar:
            tar.add(__file__, "x/" * 60 + "y" * 80 + ".txt")
        assert read("webdataset", tmp_path / "c.tar")[0] == [Path(__file__).read_text()]


def test_names_with_several_dots(tmp_path: Path) -> None:
    """With WebDataset's rule, names such as arXiv's numbers would be members of one sample, and texts would be lost."""
    members = [
        ("2501.00000.txt", b"first"),
        ("2501.00001.json", b'{"text": "second"}'),
        ("2501.00002.jpg", b"\xff"),
        ("2501.00002.json", b'{"url": "http://host/2"}'),
        ("2501.00002.txt", b"third"),
        ("note_0.txt", b"fourth"),
        ("note_1.cls", b"0"),
        ("note_1.txt", b"fifth"),
        ("._note_1.txt", b"\xff"),
        (".txt", b"sixth"),
    ]
    (tmp_path / "a.tar").write_bytes(tar_of(*members))
    source = Source("webdataset", (str(tmp_path),))
    counts = CorpusCounts()
    found = list(read_documents(source, counts))
    assert [document.text for document in found] == ["first", "second", "third", "fourth", "fifth", "sixth"]
    assert found[2].url == "http://host/2" and counts.total.dropped == {}


def test_samples_without_text_are_counted_and_limited(tmp_path: Path) -> None:
    """Otherwise a folder of notes in Markdown would silently give no documents."""
    notes = [(f"{number}.md", b"lost") for number in range(11)]
    texts = [(f"{number}.txt", b"text") for number in range(11, 111)]
    (tmp_path / "a.tar").write_bytes(tar_of(*notes, *texts))
    counts = read("webdataset", tmp_path)[1]
    assert counts.total.dropped == {"samples without text": 11} and counts.total.read == 111
    (tmp_path / "a.tar").write_bytes(tar_of(*notes, *texts[:50]))
    with pytest.raises(UserError, match=r"of 61 samples 11 have no member named .txt or .json, .*/a.tar:0.md. Rename"):
        read("webdataset", tmp_path)
    assert len(read("webdataset", tmp_path, max_skipped_fraction=0.2)[0]) == 50


def test_members_of_a_sample_that_are_apart(tmp_path: Path) -> None:
    """Sorted by extension, each member would be a sample: a text without its record, and the record as a second document."""
    members = [("a.txt", b"a"), ("b.txt", b"b"), ("a.json", b'{"url": "u", "text": "a"}'), ("c.txt", b"c")]
    (tmp_path / "a.tar").write_bytes(tar_of(*members))
    texts, counts = read("webdataset", tmp_path)
    assert texts == ["a", "b", "c"]
    reason = "apart from the other members of its sample: pack the archive again, sorted by name"
    assert counts.bad_examples == [f"{tmp_path}/a.tar:a.json: {reason}"]


def test_malformed_extended_headers_are_refused(tmp_path: Path) -> None:
    """On every Python: from 3.11.10 on, tarfile refuses them, and earlier ones give the member a name with a null byte."""
    malformed = special("x", type=tarfile.XHDTYPE, size=9) + b"99 path=x".ljust(512, b"\0") + special("5.txt")
    archive = tmp_path / "a.tar"
    archive.write_bytes(malformed + tar_of(("a.txt", b"a")))
    with pytest.raises(UserError, match="corrupted or truncated tar file"):
        read("webdataset", archive)


def test_members_that_are_not_trusted(tmp_path: Path) -> None:
    """Links, devices, names that lead elsewhere and second members are named and counted; the others are read."""
    (tmp_path / "secret").write_text("secret")
    hostile = {
        special("0.txt", type=tarfile.SYMTYPE, linkname=str(tmp_path / "secret")): "0.txt: it is a link, no file",
        special("1.txt", type=tarfile.LNKTYPE, linkname="good.txt"): "1.txt: it is a link, no file",
        special("2.txt", type=tarfile.CHRTYPE): "2.txt: it is a device, a file with holes or the like",
        special("../3.txt"): "../3.txt: its name leads out of the archive",
        special("/4.txt"): "/4.txt: its name leads out of the archive",
    }
    content = (
        tar_of(("good.txt", b"good"))[:1024] + b"".join(hostile) + tar_of(("\x1b[2J.txt", b"odd"), ("good.txt", b"second"))
    )
    (tmp_path / "a.tar").write_bytes(content)
    texts, counts = read("webdataset", tmp_path / "a.tar")
    assert texts == ["good", "odd"] and counts.bad == 6
    assert counts.bad_examples == [f"{tmp_path}/a.tar:{reason}" for reason in hostile.values()]
    (tmp_path / "a.tar").write_bytes(tar_of(("a.json", b"{"), ("b.txt", b"\xff"), ("c.json", b"[]"), ("d.txt", b"d")))
    texts, counts = read("webdataset", tmp_path / "a.tar")
    assert texts == ["d"] and [example.partition("a.tar:")[2][:13] for example in counts.bad_examples] == [
        "a.json: malfo",
        "b.txt: malfor",
        "c.json: `text",
    ]


def test_a_member_whose_name_is_not_utf8(tmp_path: Path) -> None:
    """It is read and named like any other."""
    with tarfile.open(tmp_path / "a.tar", "w", encoding="latin-1", format=tarfile.GNU_FORMAT) as archive:
        for name, content in {"ä.json": b'{"text": "one"}', "ö.json": b"{"}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    counts = CorpusCounts()
    documents = list(read_documents(Source("webdataset", (str(tmp_path),)), counts))
    assert [(document.text, document.place) for document in documents] == [("one", f"{tmp_path}/a.tar:\\udce4.json")]
    assert counts.bad == 1 and counts.bad_examples[0].startswith(f"{tmp_path}/a.tar:\\udcf6.json: malformed")


def sized(content: bytes, size: bytes) -> bytes:
    """The size of the first member is another one, by a header with a right checksum."""
    header = bytearray(content[:512])
    header[124:136] = size
    header[148:156] = f"{sum(header[:148]) + 256 + sum(header[156:]):06o}\0 ".encode()
    return bytes(header) + content[512:]


TAR = tar_of(("0.txt", b"0" * 600), ("1.txt", b"1"))


@pytest.mark.parametrize(
    "content, reason",
    [
        (TAR[:1024], "truncated"),  # inside a member
        (TAR[:1536], "truncated"),  # between two members
        (TAR[:2560], "truncated"),  # without an end
        (TAR[:100] + b"x" + TAR[101:], "bad checksum"),
        (sized(TAR, b"\xff" * 10 + b"\xfe\x00"), "a member of -512 bytes"),
        (sized(TAR, b"\x80\0\0\0\x80" + bytes(7)), "a member of 9,223,372,036,854,775,808 bytes"),
        (sized(TAR, b"\x80" + b"\xff" * 11), "a member of 309,485,009,821,345,068,724,781,055 bytes"),
        (
            special("x", type=tarfile.XHDTYPE, size=29) + b"29 size=99999999999999999999\n".ljust(512, b"\0") + TAR,
            "a member of",
        ),
        (TAR + TAR, "there is more after its end"),
        (special("x", type=tarfile.XHDTYPE, size=2**40) + TAR, "extended headers of more than 65,536 bytes"),
        (special("x", type=tarfile.GNUTYPE_LONGNAME, size=2**30) + TAR, "extended headers of more than"),
        (b"".join([special("x", type=tarfile.GNUTYPE_LONGNAME)] * 129) + TAR, "extended headers of more than"),
        (
            special("x", type=tarfile.XHDTYPE, size=23) + b"23 GNU.sparse.size=x=y\n".ljust(512, b"\0") + TAR,
            "is corrupted .invalid literal",
        ),
        (special("x", type=tarfile.XHDTYPE, size=14) + b"14 size=-5120\n".ljust(512, b"\0") + TAR, "a member of -5,120 bytes"),
        (b"{}\n" * 1000, "invalid header"),
    ],
)
def test_tars_that_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(ValueError, match=rf"a.tar: corrupted or truncated tar file \(.*({reason})"):
        read("webdataset", tmp_path)
