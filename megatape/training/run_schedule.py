"""Schedule of a run: last step, intervals between evaluations, saves and checks, and how many steps in a row it may skip."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RunSchedule:
    """Last step of a run, the intervals between evaluations, saves and checks, and how many steps in a row it may skip.

    Attributes:
        num_steps: Number of steps (training.steps).
        evaluation_interval: Steps between evaluations (evaluation.interval).
        save_interval: Steps between saves (checkpoint.interval).
        replica_check_interval: Steps between checks that replicas are equal (training.replica_check_interval).
        computation_check_interval: Steps between checks that replicas compute the same numbers
            (training.computation_check_interval), 0 for none.
        max_skipped_steps: Consecutive skipped steps after which the run still continues (training.max_skipped_steps).
    """

    num_steps: int
    evaluation_interval: int
    save_interval: int
    replica_check_interval: int
    computation_check_interval: int
    max_skipped_steps: int

    def is_finished(self, step: int) -> bool:
        """Whether no steps remain after `step`: it is the last one, or training.steps was lowered since."""
        return step >= self.num_steps

    def is_last(self, step: int) -> bool:
        """Whether `step` is the last one."""
        return step == self.num_steps

    def is_evaluation_due(self, step: int) -> bool:
        """Whether to evaluate after `step`."""
        return self.is_last(step) or step % self.evaluation_interval == 0

    def is_replica_check_due(self, step: int) -> bool:
        """Whether to compare replicas after `step`."""
        return step % self.replica_check_interval == 0

    def is_computation_check_due(self, step: int) -> bool:
        """Whether to compare the computations of replicas after `step`, which is not the last one."""
        return self.computation_check_interval > 0 and step % self.computation_check_interval == 0 and step < self.num_steps
