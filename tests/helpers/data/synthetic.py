"""Load synthetic tasks by name."""

from megatape.data.synthetic.task import Size, SyntheticTask
from megatape.registry import SYNTHETIC_TASKS


def task(name: str, size: Size = "tiny") -> SyntheticTask:
    synthetic_task = SYNTHETIC_TASKS[name].load()(name, size)
    assert isinstance(synthetic_task, SyntheticTask)
    return synthetic_task
