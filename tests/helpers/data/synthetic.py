"""A synthetic task by its name."""

from megatape.data.synthetic.task import Size, SyntheticTask
from megatape.registry import SYNTHETIC_TASKS


def task(name: str, size: Size = "tiny") -> SyntheticTask:
    made = SYNTHETIC_TASKS[name].load()(name, size)
    assert isinstance(made, SyntheticTask)
    return made
