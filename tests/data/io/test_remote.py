"""Files behind URLs: the same bytes as on disk whatever a server does, or an error that says what the server did."""

import errno
import gzip
import importlib.util
import os
import random
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from megatape.commands.cli.extras import EXTRAS
from megatape.data.io import retries
from megatape.data.io.files import copy_file, file_states, is_url, open_file
from megatape.data.io.inputs import find_files, relative
from megatape.data.io.retries import Attempts, Retries
from megatape.errors import PathError, UserError
from tests.helpers.processes.web import Fault, Web, served

QUICK = Retries(count=3, wait=0.01, timeout=0.5)
CONTENT = random.Random(0).randbytes(3_000_000)


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "RETRIES", QUICK)


@pytest.fixture(scope="module")
def server() -> Iterator[Web]:
    with served() as web:
        yield web


@pytest.fixture
def web(server: Web) -> Web:
    """The server of this module, without the faults and requests of earlier tests."""
    server.files = {"data.bin": CONTENT}
    server.faults = []
    server.always = Fault()
    server.requests = []
    server.links = []
    return server


def read(web: Web) -> bytes:
    with open_file(web.url("data.bin")) as file:
        return file.read()


def requested_starts(web: Web) -> list[int]:
    """Return the first byte of each GET request."""
    starts = []
    for method, _, byte_range in web.requests:
        if method == "GET":
            starts.append(int(byte_range.removeprefix("bytes=").removesuffix("-") or 0))
    return starts


@pytest.mark.parametrize(
    "faults",
    [
        [],
        [Fault(status=503), Fault(status=429), Fault(status=500)],
        [Fault(after=70_000, then="reset"), Fault(after=900_000, then="reset")],
        [Fault(after=1_000_000, then="end"), Fault(after=0, then="end"), Fault(status=502)],
        [Fault(after=123_456, then="stall")],
        [Fault(after=2_999_999, then="reset"), Fault(ranges=False)],
        [Fault(after=1_000_000, then="end"), Fault(after=500_000, then="end", ranges=False), Fault(ranges=False)],
        [Fault(after=1_000_000, then="end"), Fault(most=100_000), Fault(most=1)],
    ],
    ids=["none", "busy", "reset", "ends early", "stalls", "ignores ranges", "ignores ranges and ends early", "sends parts"],
)
def test_a_stream_continues_where_it_was_interrupted(web: Web, faults: list[Fault]) -> None:
    """Every byte arrives once and in order. Received bytes are not requested again."""
    web.faults = list(faults)

    assert read(web) == CONTENT

    assert web.faults == []
    starts = requested_starts(web)
    assert starts == sorted(starts)
    if faults and faults[0].after > 100_000:
        assert starts[1] > 0


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault(status=503), "the server answers 503 .* at byte 0 of 3,000,000, after 4 attempts"),
        (Fault(then="stall"), "no answer for 0.5 s at byte 0 of .*, after 4 attempts"),
        (Fault(encoding="br"), "the server compresses it on the way .br.: download it"),
        (Fault(announced=10), r"has changed .* 3,000,010 bytes, 3,000,000 before"),
    ],
    ids=["busy", "stalls", "compresses", "announces another length"],
)
def test_a_server_that_keeps_failing_is_an_error(web: Web, fault: Fault, message: str) -> None:
    web.always = fault
    with pytest.raises(OSError, match=rf"^{web.url('data.bin')}: {message}"):
        read(web)


def test_received_bytes_reset_the_count_of_failures(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two failures with megabytes in between are a first failure each."""
    monkeypatch.setattr(retries, "RETRIES", Retries(count=1, wait=0.01))
    web.files["large.bin"] = 2 * CONTENT
    web.faults = [Fault(after=2_500_000, then="end")] * 2

    with open_file(web.url("large.bin")) as file:
        assert file.read() == 2 * CONTENT


def test_a_final_answer_is_not_requested_again(web: Web) -> None:
    web.always = Fault(status=403)

    with pytest.raises(OSError, match="the server answers 403"):
        read(web)

    assert [method for method, _, _ in web.requests] == ["HEAD", "GET"]


@pytest.mark.parametrize("then", ["end", "reset"])
def test_a_server_that_always_cuts_its_answers(web: Web, then: str) -> None:
    """Received bytes are never requested again. A read once lost part of each 70 KB, and failed after eight answers."""
    web.always = Fault(after=70_000, then=then)

    assert read(web) == CONTENT

    assert requested_starts(web) == list(range(0, len(CONTENT), 70_000))


def retry_after(seconds: int, as_date: bool) -> str:
    """Return the value of the header Retry-After."""
    if as_date:
        return formatdate(time.time() + seconds, usegmt=True)
    return str(seconds)


# A date is rounded down to a second, so that two seconds from now may be one.
@pytest.mark.parametrize(("as_date", "seconds"), [(False, 1), (True, 2)], ids=["seconds", "date"])
def test_the_wait_that_a_server_asks_for_is_kept(web: Web, as_date: bool, seconds: int) -> None:
    """An invalid wait is ignored."""
    web.faults = [
        Fault(status=429, retry_after=retry_after(seconds, as_date)),
        Fault(status=503, retry_after="soon"),
    ]

    start = time.monotonic()
    assert read(web) == CONTENT
    waited = time.monotonic() - start

    assert 0.9 < waited < 10


@pytest.mark.parametrize("as_date", [False, True], ids=["seconds", "date"])
def test_too_long_a_wait_is_an_error(web: Web, as_date: bool) -> None:
    web.faults = [Fault(status=503, retry_after=retry_after(7200, as_date))]

    with pytest.raises(OSError, match=r"the server answers 503 .* and asks to wait 7,[12]\d\d s: give the same command again"):
        read(web)


def test_a_body_that_is_always_shorter_than_announced_is_an_error(web: Web) -> None:
    web.faults = [Fault(after=2_000_000, then="end")]
    web.always = Fault(after=0, then="end")
    with pytest.raises(OSError, match="at byte 2,000,000 of 3,000,000, after 4 attempts"):
        read(web)


@pytest.mark.parametrize("fault", [Fault(tag="another"), Fault(tag="another", ranges=False), Fault(announced=1)])
def test_a_file_that_changes_while_being_read_is_refused(web: Web, fault: Fault) -> None:
    web.faults = [Fault(after=1_000_000, then="reset"), fault]
    with pytest.raises(OSError, match="data.bin: has changed since it was opened"):
        read(web)


def test_a_compressed_file_is_read_as_stored(web: Web) -> None:
    """Many servers announce such a file as compressed on the way."""
    web.files["a.json.gz"] = gzip.compress(b"text")
    web.always = Fault(encoding="gzip")
    with open_file(web.url("a.json.gz")) as file:
        assert gzip.decompress(file.read()) == b"text"


def test_a_missing_file_is_named(web: Web) -> None:
    with pytest.raises(FileNotFoundError, match="nothing.bin: the server answers 404"):
        open_file(web.url("nothing.bin"))
    with pytest.raises(FileNotFoundError, match="input memory://none: no such file"):
        find_files(["memory://none"], "*")


def test_a_missing_server_is_named() -> None:
    with pytest.raises(OSError, match="127.0.0.1:9/x: .*Connect.*, after 4 attempts"):
        file_states(["http://127.0.0.1:9/x"])


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ValueError, match="Protocol not known: gopher"):
        open_file("gopher://host/x")


@pytest.mark.skipif(importlib.util.find_spec("gcsfs") is not None, reason="gcsfs is installed")
def test_a_missing_package_of_a_protocol_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="gs://bucket/x: Please install gcsfs") as error:
        open_file("gs://bucket/x")

    assert error.value.name in EXTRAS


@pytest.mark.parametrize("braces", ["{1..99999999}", "{1..999}{1..999}", "{0001..200000}", "{a,{-9..99999999}}"])
def test_braces_that_stand_for_too_many_names_are_refused(braces: str) -> None:
    with pytest.raises(UserError, match=r"its braces stand for more than 100,000 names"):
        find_files([f"memory://host/{braces}.jsonl"])


def test_a_listing_is_complete(web: Web) -> None:
    """If listing a folder below fails, it is tried again instead of skipped."""
    web.files |= {"a/one.jsonl": b"1", "a/b/two.jsonl": b"2"}

    web.faults = [Fault(), Fault(then="reset")]
    assert len(find_files([web.url("a/")], "*.jsonl")) == 2

    web.faults = [Fault(), *[Fault(status=503)] * 4]
    with pytest.raises(OSError, match="a/: the server answers 503"):
        find_files([web.url("a/")], "*.jsonl")


def list_names(web: Web, names: list[str]) -> list[str]:
    """Let the server have these files in x/. Return their URLs as listed."""
    web.files = dict.fromkeys((f"x/{name}" for name in names), b"1")
    return find_files([web.url("x/")], "*")


@pytest.mark.parametrize(
    "names",
    [
        # Fingerprints of files on the hub are no part of the name of a set.
        ["train-00000-of-00002-0123456789abcdef.parquet", "train-00001-of-00002-fedcba9876543210.parquet"],
        ["a-1-of-2.jsonl", "a-2-of-2.jsonl", "b_0_of_1.jsonl", "7-of-nine.jsonl"],
    ],
)
def test_complete_sets_of_numbered_files(web: Web, names: list[str]) -> None:
    """Numbers start with 0 or 1."""
    urls = list_names(web, names)

    assert len(urls) == len(names)
    assert find_files([web.url("x/")], "*", partial=False) == urls
    assert find_files(urls, partial=False) == urls


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["en/a-0-of-2.jsonl", "de/a-1-of-2.jsonl"], r"2 files a-\*-of-2.jsonl these are missing: [01]\."),
        (["a-0-of-2.jsonl", "a-1-of-2.json"], r"2 files a-\*-of-2.jsonl? these are missing: [01]\."),
        (["a-2-of-3.jsonl"], r".*missing: 0-1\."),
        (["a-3-of-3.jsonl"], r".*missing: 1-2\."),
        (["a-5-of-999999999999.jsonl"], r".*missing: 0-4, 6-999999999998\."),
    ],
)
def test_incomplete_sets_of_numbered_files_are_refused(web: Web, names: list[str], message: str) -> None:
    """A set has one folder and one extension. Files named one by one are accepted."""
    urls = list_names(web, names)

    assert len(urls) == len(names)
    assert find_files(urls, partial=False) == urls
    with pytest.raises(UserError, match=rf"^input {web.url('x/')}: of the {message}"):
        find_files([web.url("x/")], "*", partial=False)


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
def test_a_file_sent_byte_by_byte_is_an_error(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a server is never silent. A busy machine takes some of the time."""
    web.always = Fault(after=5, then="trickle")
    monkeypatch.setattr(retries, "RETRIES", Retries(count=1, wait=0.01, timeout=0.5))

    with pytest.raises(OSError, match=r"ConnectionError: only \d+ bytes in .* at byte \d+ of 3,000,000, after 2 attempts"):
        read(web)


@pytest.mark.timeout(60)
def test_a_listing_sent_byte_by_byte_is_an_error(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    web.files |= {"a/one.jsonl": b"1"}
    web.always = Fault(after=5, then="trickle")
    monkeypatch.setattr(retries, "RETRIES", Retries(count=1, wait=0.01, timeout=0.1))

    with pytest.raises(OSError, match=r"a/: no answer for 0.1 s, after 2 attempts"):
        find_files([web.url("a/")], "*.jsonl")


@pytest.mark.parametrize("location", ["file:///etc/passwd", "gopher://host/x", "http://[::x", "/data.bin"])
def test_redirects_away_from_the_web_or_to_itself_are_refused(web: Web, location: str) -> None:
    """They are not tried again."""
    web.always = Fault(status=302, location=location)

    with pytest.raises(OSError, match=rf"^{web.url('data.bin')}: the server redirects"):
        read(web)

    assert sum(method == "GET" for method, *_ in web.requests) < 15


def client_error(name: str, base: type[Exception] = Exception, status: int = 0, **more: int) -> Exception:
    """Return an error like those of botocore, httpx and gcsfs. Most are no OSErrors, and are recognized by their names."""
    if name == "ConnectError":
        base = type("TransportError", (base,), {})
    error: Any = type(name, (base,), more)("why\nit failed")
    error.response = None
    if status:
        error.response = SimpleNamespace(status_code=status)
    return error


@pytest.mark.parametrize(
    ("error", "num_attempts", "message"),
    [
        (
            client_error("NoCredentialsError"),
            1,
            r"s3://b/x: access denied \(NoCredentialsError: why it failed\): set AWS_ACCESS_KEY",
        ),
        (client_error("HfHubHTTPError", OSError, 401), 1, "access denied .*: set AWS_ACCESS_KEY_ID"),
        (PermissionError("Forbidden"), 1, r"access denied \(PermissionError: Forbidden\)"),
        (client_error("HfHubHTTPError", OSError, 400), 1, "s3://b/x: HfHubHTTPError: why it failed$"),
        (client_error("ParamValidationError"), 1, "s3://b/x: ParamValidationError: why it failed$"),
        (client_error("OfflineModeIsEnabled", ConnectionError), 1, "s3://b/x: OfflineModeIsEnabled: why it failed$"),
        (ValueError("Invalid endpoint: x"), 1, "s3://b/x: ValueError: Invalid endpoint: x$"),
        (client_error("HfHubHTTPError", OSError, 503), 4, "HfHubHTTPError: why it failed, after 4 attempts: check the network"),
        (client_error("HttpError", code=503), 4, "HttpError: why it failed, after 4 attempts"),
        (client_error("HttpError", code=403), 1, "access denied"),
        (client_error("ConnectError"), 4, "ConnectError: why it failed, after 4 attempts: check the network"),
        (OSError(5, "Input/output error"), 4, "Input/output error, after 4 attempts"),
    ],
    ids=lambda value: f"{type(value).__name__}" if isinstance(value, Exception) else None,
)
def test_errors_of_clients(error: Exception, num_attempts: int, message: str) -> None:
    """They become one line, and are tried again where that may help."""
    num_calls = 0

    def fail() -> None:
        nonlocal num_calls
        num_calls += 1
        raise error

    with pytest.raises(PathError, match=message):
        Attempts("s3://b/x").run(fail)

    assert num_calls == num_attempts


def test_a_bug_of_the_program_keeps_its_traceback() -> None:
    with pytest.raises(KeyError):
        Attempts("s3://b/x").run(lambda: {}["x"])


def test_any_part_of_a_file_is_read(web: Web) -> None:
    """Forwards and backwards, by positions from the start and from the end."""
    with open_file(web.url("data.bin")) as file:
        for position in (2_500_000, 10, 200_000, 2_999_990, 3_000_000, 0):
            assert file.seek(position) == position
            assert file.tell() == position
            assert file.read(100) == CONTENT[position : position + 100]
        assert file.seek(-5, 2) == 2_999_995
        assert file.read() == CONTENT[-5:]


SAME_FILES = {"a/one.jsonl": b"1", "a/two.jsonl": b"22", "a/b/three.jsonl": b"333", "a/other.txt": b""}


@pytest.fixture(params=["path", "file URL", "object storage", "web server"])
def root(request: pytest.FixtureRequest, web: Web, tmp_path: Path) -> str:
    """A folder with the same files, of every kind."""
    memory = fsspec.filesystem("memory")
    for name, content in SAME_FILES.items():
        path = tmp_path / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        memory.pipe_file(f"/sources/{name}", content)
        web.files[name] = content
    roots = {
        "path": f"{tmp_path}/files",
        "file URL": f"file://{tmp_path}/files",
        "object storage": "memory://sources",
        "web server": web.address,
    }
    return roots[request.param]


def test_the_same_files_by_path_and_by_url(root: str, tmp_path: Path) -> None:
    """Files of every kind are listed, measured, read and copied alike."""
    one, two = find_files([f"{root}/a/"], "*.jsonl", recursive=False)
    assert one.endswith("/one.jsonl")
    assert two.endswith("/two.jsonl")
    assert [state.size for state in file_states([one, two])] == [1, 2]

    with open_file(two) as file:
        assert file.read() == b"22"
    copy_file(two, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"22"

    names = find_files([f"{root}/a/"], "*.jsonl")
    assert [name.partition("/a/")[2] for name in names] == ["b/three.jsonl", "one.jsonl", "two.jsonl"]
    with pytest.raises(ValueError, match=r"no file named \*.parquet in this directory"):
        find_files([f"{root}/a/"], "*.parquet")


@pytest.mark.parametrize("root", ["object storage", "web server"], indirect=True)
def test_patterns_on_servers_name_files(root: str) -> None:
    """A pattern of the user takes precedence over the one of the source."""
    _, two = find_files([f"{root}/a/"], "*.jsonl", recursive=False)

    assert find_files([f"{root}/a/{{one,two}}.jsonl"]) == [f"{root}/a/one.jsonl", f"{root}/a/two.jsonl"]
    assert find_files([f"{root}/a/t*.jsonl"], "*.txt") == [two]
    assert is_url(two)
    with pytest.raises(ValueError, match=r"a/x\*.jsonl: no file"):
        find_files([f"{root}/a/x*.jsonl"])


def test_paths_are_no_urls() -> None:
    assert not is_url("/data/a")
    assert not is_url("C4/{a,b}")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("a%20b", "a b"),
        ("a b", "a b"),
        ("d%20e", "d%20e"),  # an existing unquoted name has precedence
        ("d%2520e", "d%20e"),
    ],
)
@pytest.mark.parametrize("scheme", ["file://", "file://localhost"])
def test_file_urls_are_quoted_or_not(tmp_path: Path, url: str, name: str, scheme: str) -> None:
    """Programs write file URLs with quoted spaces and a host, people without."""
    for folder in ("a b", "d%20e"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "c.jsonl").write_bytes(b"1")
    expected = f"{tmp_path}/{name}/c.jsonl"

    assert find_files([f"{scheme}{tmp_path}/{url}"], "*.jsonl") == [expected]
    assert find_files([f"{scheme}{tmp_path}/{url}/c.jsonl"], "*.jsonl") == [expected]
    assert relative(expected, f"file://{tmp_path}/{url}") == "c.jsonl"


def test_another_content_of_the_same_size_is_another_version(web: Web, tmp_path: Path) -> None:
    """Paths, a web server and object storage all tell the two contents apart."""
    memory = fsspec.filesystem("memory")
    path = tmp_path / "a"
    names = [str(path), web.url("a"), "memory://versions/a"]

    def write(content: bytes) -> None:
        path.write_bytes(content)
        web.files["a"] = content
        memory.pipe_file("/versions/a", content)

    write(b"one")
    before = file_states(names)
    assert file_states(names) == before

    write(b"two")
    after = file_states(names)
    assert [state.size for state in after] == [state.size for state in before]
    for number in range(len(names)):
        assert after[number].version != before[number].version


@pytest.mark.parametrize(
    ("name", "source_input", "path"),
    [
        ("c4/en/a.gz", "c4/", "en/a.gz"),
        ("c4/a.gz", "./c4/a.gz", ""),
        ("a.gz", ".", "a.gz"),
        ("/c4/a.gz", "file:///c4", "a.gz"),
        ("c4/a.gz", "c", None),
        ("http://host/c4/a.gz", "http://host/c4", "a.gz"),
        ("http://host/c4/1.gz", "http://host/c4/{0..2}.gz", ""),
        ("http://host/c4/3.gz", "http://host/c4/{0..2}.gz", None),
        ("http://host/c4/900000.gz", "http://host/c4/{0..1000000..100000}.gz", ""),
        ("http://host/c4/a.gz", "http://host/c4/*.gz", ""),
        ("http://host/c4/a.gz", ".", None),
        ("c4/a.gz", "http://host/c4", None),
    ],
)
def test_the_path_of_a_file_within_an_input(name: str, source_input: str, path: str | None) -> None:
    """It is empty for the input itself, and None for files outside of it."""
    assert relative(name, source_input) == path


def test_an_object_that_changes_while_being_read_is_refused() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/changing", b"1" * 5_000_000)
    with open_file("memory://changing") as file:
        file.read(10)
        memory.pipe_file("/changing", b"2" * 5_000_000)
        file.seek(4_000_000)
        with pytest.raises(OSError, match="memory://changing: has changed since it was opened"):
            file.read(10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files of lines, unfinished preparations, a broken link and a link to a folder."""
    for name in ("a/0.jsonl", "b/c/1.jsonl", "out.partial/units/2.jsonl", "in.partial/3.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "broken.jsonl").symlink_to("nowhere")
    (tmp_path / "a" / "linked").symlink_to(tmp_path / "b")
    return tmp_path


def test_files_of_a_folder(folder: Path) -> None:
    """A broken link is listed, so that reading it fails. Links to folders and unfinished preparations are not entered."""
    expected = [f"{folder}/{name}" for name in ("a/0.jsonl", "a/broken.jsonl", "b/c/1.jsonl")]

    assert find_files([str(folder)], "*.jsonl") == expected


def test_an_unfinished_preparation_is_entered_on_request(folder: Path) -> None:
    assert find_files([str(folder / "in.partial")], "*.jsonl") == [f"{folder}/in.partial/3.jsonl"]


def test_a_folder_without_files_is_refused(folder: Path) -> None:
    """Files in folders below do not count if the listing is not recursive."""
    with pytest.raises(UserError, match="no file named"):
        find_files([str(folder / "b")], "*.jsonl", recursive=False)


def test_a_file_of_two_inputs_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match=f"input: {folder}/b/c/1.jsonl is given twice"):
        find_files([f"{folder}/b/../b/c/1.jsonl", str(folder / "b")], "*.jsonl")


def test_a_folder_that_cannot_be_listed_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files must not be missing silently."""
    scandir = os.scandir

    def refuse_folder_b(path: str) -> Any:
        if str(path).endswith("b"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse_folder_b)

    with pytest.raises(PermissionError):
        find_files([str(folder)], "*.jsonl")
