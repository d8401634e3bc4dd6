"""Files of a task, shared by all encodings: data, configuration and baseline scores."""

from dataclasses import dataclass, field
from pathlib import Path

from megatape.data.shards.index import load_index
from megatape.data.synthetic.folder import check_folder, write_task
from megatape.data.synthetic.task import SyntheticTask
from megatape.lab.study.suite.scores.baselines import baseline_records
from megatape.lab.study.suite.scores.record import Record
from megatape.lab.study.suite.scores.record_files import read_records, write_records
from megatape.lab.study.suite.sizes import Sizing
from megatape.utils.files.atomic import write_atomically
from megatape.utils.files.json_files import json_content


@dataclass(frozen=True)
class TaskFolder:
    """Files of a task, shared by all encodings.

    Attributes:
        out: Suite folder.
        task: Task to learn.
        sizing: Sizes of models, training and tests.
    """

    out: Path
    task: SyntheticTask
    sizing: Sizing = field(hash=False)

    @property
    def data(self) -> Path:
        """Data directory."""
        return self.out / "data" / self.task.name

    @property
    def config(self) -> Path:
        """Configuration file, without encoding, seed, learning rate and run directory."""
        return self.out / "config" / f"{self.task.name}.json"

    def check(self) -> None:
        """Raise UserError if existing data has another definition or size."""
        if self.data.exists():
            check_folder(self.task, self.sizing.num_samples(self.task), self.data)

    def prepare(self) -> None:
        """Write the configuration, and the data unless it exists."""
        if not self.data.exists():
            try:
                write_task(self.task, self.sizing.num_samples(self.task), self.data)
            except FileExistsError:
                # Another machine wrote it first.
                self.check()
        vocab_size = load_index(self.data).tokenizer.vocab_size
        content = self.sizing.config(self.task, str(self.data), vocab_size)
        self.config.parent.mkdir(exist_ok=True)
        write_atomically(self.config, json_content(content, str(self.config), indent=1) + b"\n")

    def read_baselines(self) -> list[Record]:
        """Read the baseline scores. The first call computes and writes them."""
        path = self.out / "baselines" / f"{self.task.name}.jsonl"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            write_records(path, baseline_records(self.task, self.sizing.test))
        return read_records(path)
