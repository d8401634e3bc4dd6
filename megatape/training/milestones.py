"""Steps of a run after which more is due than the next step."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Milestones:
    """Last step of a run, and intervals of what is done between its steps.

    Attributes:
        num_steps: Number of steps of the run (training.steps).
        evaluation_interval: Number of steps from one evaluation to the next (evaluation.interval).
        replica_check_interval: Number of steps from one check of the replicas to the next (training.replica_check_interval).
    """

    num_steps: int
    evaluation_interval: int
    replica_check_interval: int

    def is_finished(self, step: int) -> bool:
        """Whether a run has no steps left after `step`, because it is the last one or training.steps was lowered since."""
        return step >= self.num_steps

    def is_last(self, step: int) -> bool:
        """Whether `step` is the last one of the run."""
        return step == self.num_steps

    def is_evaluated(self, step: int) -> bool:
        """Whether the run is evaluated after `step`."""
        return self.is_last(step) or step % self.evaluation_interval == 0

    def is_checked(self, step: int) -> bool:
        """Whether replicas are compared after `step`."""
        return step % self.replica_check_interval == 0
