"""Steps with a spike or a fault in a training loop: what is told of them, and what follows."""

from megatape.training.metrics import Metrics
from megatape.training.run import MadeStep, Run
from megatape.training.saves import Saves
from megatape.zero.engine import TrainingDiverged


class Faults:
    """Tells of steps that were left out or are unusual, undoes those that led to a spike, and ends a run of faults alone.
    Collective, like its methods."""

    def __init__(self, run: Run, metrics: Metrics, saves: Saves) -> None:
        self.run, self.metrics, self.saves = run, metrics, saves
        self._left_out = 0  # in a row

    def went_back(self, made: MadeStep, lr: float) -> bool:
        """Tell of the step, before its metrics are written. After a spike the run may go back to a checkpoint
        (training.on_spike): then there is no such step any more."""
        if made.remark or (made.fault and not made.planned):
            self.metrics.warn(_place(made, lr) + (made.remark or made.fault) + "; the step is left out" * bool(made.fault))
        if made.remark:
            self.metrics.record("spike", _place(made, lr) + made.remark)
        if not (made.remark and made.fault and self.run.config.training.on_spike == "rewind"):
            return False
        self.saves.settle()
        origin = self.run.rewind()
        if origin is None:
            self.metrics.warn("there is no checkpoint to go back to: the run continues without the step")
            return False
        first, last = self.run.guard.left_out[-1]
        self.metrics.go_back(self.run.step)
        self.metrics.record("rewound", f"to {origin}; samples {first} to {last} will be left out")
        self.metrics.say(f"went back to {origin}; samples {first} to {last} will be left out")
        return True

    def count(self, made: MadeStep, lr: float) -> None:
        """Note the step, once its metrics are written. Raises TrainingDiverged when more than training.max_skipped_steps in a
        row were left out for their faults."""
        if made.fault:
            self.metrics.record("skipped", _place(made, lr) + made.fault)
        if made.planned:
            return
        self._left_out = self._left_out + 1 if made.fault else 0
        config = self.run.config.training
        if self._left_out > config.max_skipped_steps:
            raise TrainingDiverged(
                f"{_place(made, lr)}{made.fault}. {self._left_out} step{'s' * (self._left_out > 1)} in a row had such faults, "
                f"training.max_skipped_steps allows {config.max_skipped_steps}. Checkpoints in {self.run.folder.checkpoints} "
                "are valid; lower optimizer.learning_rate or training.gradient_clip, lengthen the warm-up, and continue with "
                "--resume auto"
            )


def _place(made: MadeStep, lr: float) -> str:
    return f"step {made.step} (learning rate {lr:.2e}, samples {made.samples[0]} to {made.samples[-1]}): "
