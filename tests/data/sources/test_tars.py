"""WebDataset tars: samples, and hostile members and archives."""

import io
import tarfile
from pathlib import Path

import pytest
from backports import zstd

from megatape.data.counts import CorpusCounts
from megatape.data.sources.document import Document
from megatape.data.sources.reading import read_documents
from megatape.data.sources.source import Source
from megatape.errors import UserError
from tests.helpers.data.sources import read, special, tar_of


def documents_in(folder: Path) -> tuple[list[Document], CorpusCounts]:
    source = Source("webdataset", (str(folder),))
    counts = CorpusCounts()
    return list(read_documents(source, counts)), counts


def test_samples_of_tars(tmp_path: Path) -> None:
    """A sample may have a text and a record, a record only, or no text. Names of folders may have any length."""
    long_name = "folder/" * 30 + "c" * 90
    members = [
        (f"{long_name}.txt", b"long"),
        ("b/0.jpg", b"\xff"),
        ("b/0.txt", b"zero"),
        ("b/0.json", b'{"url": "http://host/0", "text": "not this"}'),
        ("b/1.json", b'{"text": "one"}'),
        ("b/2.jpg", b"\xff"),
    ]
    archive = tmp_path / "a.tar"
    archive.write_bytes(tar_of(*members))
    (tmp_path / "b.tar.zst").write_bytes(zstd.compress(tar_of(("3.TXT", b"three"))))

    documents, _ = documents_in(tmp_path)

    assert [document.text for document in documents] == ["long", "zero", "one", "three"]
    assert documents[0].location.endswith(f"{long_name}.txt")
    assert documents[1].location == f"{archive}:b/0.txt"
    assert documents[1].url == "http://host/0"
    assert documents[2].location == f"{archive}:b/1.json"


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_in_every_format(tmp_path: Path, form: int) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=form) as tar:
        tar.add(__file__, "x/" * 60 + "y" * 80 + ".txt")

    assert read("webdataset", tmp_path / "a.tar")[0] == [Path(__file__).read_text()]


def test_names_with_several_dots(tmp_path: Path) -> None:
    """WebDataset's rule would make names such as arXiv's numbers members of one sample, and lose texts."""
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

    documents, counts = documents_in(tmp_path)

    assert [document.text for document in documents] == ["first", "second", "third", "fourth", "fifth", "sixth"]
    assert documents[2].url == "http://host/2"
    assert counts.total.dropped == {}


def test_samples_without_text_are_counted_and_limited(tmp_path: Path) -> None:
    """Too many samples without text are an error, so a folder of notes in Markdown can't silently give no documents."""
    notes = [(f"{number}.md", b"lost") for number in range(11)]
    texts = [(f"{number}.txt", b"text") for number in range(11, 111)]
    (tmp_path / "a.tar").write_bytes(tar_of(*notes, *texts))
    _, counts = read("webdataset", tmp_path)
    assert counts.total.dropped == {"samples without text": 11}
    assert counts.total.read == 111

    (tmp_path / "a.tar").write_bytes(tar_of(*notes, *texts[:50]))
    with pytest.raises(UserError, match=r"of 61 samples 11 have no member named .txt or .json, .*/a.tar:0.md. Rename"):
        read("webdataset", tmp_path)
    accepted, _ = read("webdataset", tmp_path, max_skipped_fraction=0.2)
    assert len(accepted) == 50


def test_scattered_members_of_a_sample_are_bad_records(tmp_path: Path) -> None:
    """In a tar sorted by extension, a text would lose its record, and the record would be a second document."""
    members = [("a.txt", b"a"), ("b.txt", b"b"), ("a.json", b'{"url": "u", "text": "a"}'), ("c.txt", b"c")]
    (tmp_path / "a.tar").write_bytes(tar_of(*members))

    texts, counts = read("webdataset", tmp_path)

    assert texts == ["a", "b", "c"]
    reason = "apart from the other members of its sample: pack the archive again, sorted by name"
    assert counts.bad_examples == [f"{tmp_path}/a.tar:a.json: {reason}"]


def test_malformed_extended_headers_are_refused(tmp_path: Path) -> None:
    """From Python 3.11.10 on, tarfile refuses them. Earlier versions would give the member a name with a null byte."""
    malformed = special("x", type=tarfile.XHDTYPE, size=9) + b"99 path=x".ljust(512, b"\0") + special("5.txt")
    archive = tmp_path / "a.tar"
    archive.write_bytes(malformed + tar_of(("a.txt", b"a")))
    with pytest.raises(UserError, match="corrupted or truncated tar file"):
        read("webdataset", archive)


def test_members_that_are_not_trusted(tmp_path: Path) -> None:
    """Links, devices, names that lead elsewhere and repeated members are bad records. The other members are read."""
    (tmp_path / "secret").write_text("secret")
    hostile = {
        special("0.txt", type=tarfile.SYMTYPE, linkname=str(tmp_path / "secret")): "0.txt: it is a link, no file",
        special("1.txt", type=tarfile.LNKTYPE, linkname="good.txt"): "1.txt: it is a link, no file",
        special("2.txt", type=tarfile.CHRTYPE): "2.txt: it is a device, a file with holes or the like",
        special("../3.txt"): "../3.txt: its name leads out of the archive",
        special("/4.txt"): "/4.txt: its name leads out of the archive",
    }
    first_member = tar_of(("good.txt", b"good"))[:1024]
    last_members = tar_of(("\x1b[2J.txt", b"odd"), ("good.txt", b"second"))
    archive = tmp_path / "a.tar"
    archive.write_bytes(first_member + b"".join(hostile) + last_members)

    texts, counts = read("webdataset", archive)

    assert texts == ["good", "odd"]
    assert counts.bad == 6
    assert counts.bad_examples == [f"{archive}:{reason}" for reason in hostile.values()]


def test_malformed_members_are_bad_records(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar"
    archive.write_bytes(tar_of(("a.json", b"{"), ("b.txt", b"\xff"), ("c.json", b"[]"), ("d.txt", b"d")))

    texts, counts = read("webdataset", archive)

    assert texts == ["d"]
    malformed_json, malformed_text, record_without_text = counts.bad_examples
    assert malformed_json.startswith(f"{archive}:a.json: malfo")
    assert malformed_text.startswith(f"{archive}:b.txt: malfor")
    assert record_without_text.startswith(f"{archive}:c.json: `text")


def test_members_with_names_that_are_not_utf8_are_read(tmp_path: Path) -> None:
    """Names that are not UTF-8 are escaped."""
    with tarfile.open(tmp_path / "a.tar", "w", encoding="latin-1", format=tarfile.GNU_FORMAT) as archive:
        for name, content in {"ä.json": b'{"text": "one"}', "ö.json": b"{"}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))

    (document,), counts = documents_in(tmp_path)

    assert document.text == "one"
    assert document.location == f"{tmp_path}/a.tar:\\udce4.json"
    assert counts.bad == 1
    assert counts.bad_examples[0].startswith(f"{tmp_path}/a.tar:\\udcf6.json: malformed")


def with_size(content: bytes, size: bytes) -> bytes:
    """Change the size of the first member. The checksum of its header stays right."""
    header = bytearray(content[:512])
    header[124:136] = size
    header[148:156] = f"{sum(header[:148]) + 256 + sum(header[156:]):06o}\0 ".encode()
    return bytes(header) + content[512:]


def extended(record: bytes) -> bytes:
    """Return an extended header with one record."""
    return special("x", type=tarfile.XHDTYPE, size=len(record)) + record.ljust(512, b"\0")


TAR = tar_of(("0.txt", b"0" * 600), ("1.txt", b"1"))
LONG_NAME = special("x", type=tarfile.GNUTYPE_LONGNAME)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(TAR[:1024], "truncated", id="ends inside a member"),
        pytest.param(TAR[:1536], "truncated", id="ends between two members"),
        pytest.param(TAR[:2560], "truncated", id="has no end"),
        pytest.param(TAR[:100] + b"x" + TAR[101:], "bad checksum", id="changed header"),
        pytest.param(with_size(TAR, b"\xff" * 10 + b"\xfe\x00"), "a member of -512 bytes", id="negative size"),
        pytest.param(
            with_size(TAR, b"\x80\0\0\0\x80" + bytes(7)), "a member of 9,223,372,036,854,775,808 bytes", id="size of 64 bits"
        ),
        pytest.param(
            with_size(TAR, b"\x80" + b"\xff" * 11),
            "a member of 309,485,009,821,345,068,724,781,055 bytes",
            id="largest size",
        ),
        pytest.param(extended(b"29 size=99999999999999999999\n") + TAR, "a member of", id="large extended size"),
        pytest.param(extended(b"14 size=-5120\n") + TAR, "a member of -5,120 bytes", id="negative extended size"),
        pytest.param(extended(b"23 GNU.sparse.size=x=y\n") + TAR, "is corrupted .invalid literal", id="malformed size"),
        pytest.param(TAR + TAR, "there is more after its end", id="two archives"),
        pytest.param(
            special("x", type=tarfile.XHDTYPE, size=2**40) + TAR,
            "extended headers of more than 65,536 bytes",
            id="long extended header",
        ),
        pytest.param(
            special("x", type=tarfile.GNUTYPE_LONGNAME, size=2**30) + TAR, "extended headers of more than", id="long name"
        ),
        pytest.param(LONG_NAME * 129 + TAR, "extended headers of more than", id="many long names"),
        pytest.param(b"{}\n" * 1000, "invalid header", id="no tar"),
    ],
)
def test_tars_that_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(ValueError, match=rf"a.tar: corrupted or truncated tar file \(.*({reason})"):
        read("webdataset", tmp_path)
