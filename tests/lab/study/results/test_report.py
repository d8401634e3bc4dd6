"""Files of a report that are written again while others read them."""

from pathlib import Path

from matplotlib.figure import Figure

from megatape.lab.study.results.report import write_report


def draw(figure: Figure) -> None:
    figure.add_subplot().plot([1, 2])


def test_a_reader_sees_a_complete_file(tmp_path: Path) -> None:
    """A file is replaced, so that an open one keeps its content."""
    write_report("report", ["old"], draw, tmp_path)
    names = ("report.md", "report.png", "report-dark.png")
    before = {name: (tmp_path / name).stat().st_ino for name in names}
    with (tmp_path / "report.md").open() as reader:
        write_report("report", ["new"], draw, tmp_path)
        assert reader.read() == "old\n"
    assert (tmp_path / "report.md").read_text() == "new\n"
    for name, inode in before.items():
        assert (tmp_path / name).stat().st_ino != inode, name
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
