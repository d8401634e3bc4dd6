"""The training loop."""

import time
from dataclasses import replace

from megatape.optim.schedules import learning_rate
from megatape.training.evaluation import Validation
from megatape.training.faults import Faults
from megatape.training.hardware import peak_memory
from megatape.training.interrupt import Interrupt
from megatape.training.metrics import Metrics
from megatape.training.profile import Profile
from megatape.training.run import DataUnreadable, Run
from megatape.training.saves import Saves
from megatape.training.step import StepMetrics


def train(run: Run, profiled_steps: int = 0) -> bool:
    """Run to training.steps, or until a signal asks to stop (training/interrupt.py); either way a checkpoint is left.

    profiled_steps: how many steps to trace, once (training/profile.py).
    A checkpoint that cannot be written is tried again at the next interval (training/saves.py). While the run's folder cannot
    be reached training continues, until another run may have taken it over: then it waits (runtime/lease.py). A step whose
    loss or gradient is not finite is left out (training/faults.py).
    Returns whether a scheduler stopped it before its end, so that it should be started again. Raises TrainingDiverged when too
    many steps in a row were left out, NotSaved when the last checkpoint could not be written, LeaseLost or ValueError when
    another run has taken the folder."""
    config, steps = run.config, run.config.training.steps
    save_due = False
    with (
        Interrupt() as interrupt,
        Metrics(config, run.folder, run.lease, run.topology, run.step, run.data.train.unigram_entropy) as metrics,
        Profile(profiled_steps, run.folder.trace(run.topology.rank), run.engine, metrics.say) as profile,
        Saves(run, metrics) as saves,
        run.feed,
    ):
        faults = Faults(run, metrics, saves)

        def asked() -> bool:
            """Whether a signal reached any rank. Collective, so that all stop at the same step."""
            return run.engine.sum_over_ranks(interrupt.requested)[0] > 0

        def evaluation_due() -> bool:
            return run.step == steps or run.step % config.evaluation.interval == 0

        def evaluate() -> Validation:
            run.pace.enter("evaluation", f"the evaluation after step {run.step}")
            return run.evaluate()

        ranks = f"{run.topology.world_size} rank{'s' * (run.topology.world_size > 1)} on {run.engine.device.type}"
        metrics.begin(ranks, run.origin)
        if run.step >= steps:
            metrics.say(
                f"already at step {run.step} of training.steps {steps}: nothing to do; raise training.steps to continue"
            )
        stop = asked()
        if not stop and evaluation_due() and (unevaluated := metrics.unevaluated()):  # a stop came before its evaluation
            unevaluated = replace(unevaluated, validation=evaluate())
            run.lease.check()
            metrics.write(unevaluated)
            stop = asked()
        while run.step < steps and not stop:
            run.pace.enter("step", f"step {run.step + 1}", run.sequence_length)
            with run.pace.waiting("the writing of the profile"):
                profile.step()
            started = time.perf_counter()
            lr = learning_rate(run.step, steps, config.optimizer.learning_rate, config.schedule)
            made = run.train_step(lr, interrupt)
            seconds, stop = time.perf_counter() - started, made.stop
            run.pace.worked(made.own / seconds)
            while run.pace.remarks:
                remark = run.pace.remarks.popleft()
                metrics.warn(remark)
                metrics.record("slow rank", remark)
            if faults.went_back(made, lr):
                continue

            validation = unreadable = None
            if evaluation_due() and (not stop or run.step == steps):
                try:
                    validation = evaluate()
                except DataUnreadable as error:
                    unreadable = error  # the step has been made all the same, and is about to be saved
                else:
                    stop = asked()  # evaluations and saves take long: a signal meanwhile must not cost another step
            with run.pace.waiting(f"the metrics of step {run.step}"):
                run.lease.wait(lambda: interrupt.requested, metrics.warn)
                metrics.write(
                    StepMetrics(
                        run.step,
                        made.loss,
                        made.grad_norm,
                        lr,
                        run.tokens,
                        run.samples,
                        seconds,
                        peak_memory(),
                        validation,
                        run.data.counts(run.samples),
                        made.fault,
                        made.digest,
                    )
                )
            if unreadable:
                raise unreadable
            faults.count(made, lr)

            if run.step % config.training.replica_check_interval == 0:
                run.engine.check_replicas()
            if run.save_ended:
                saves.settle()
            save_due = save_due or run.step % config.checkpoint.interval == 0
            # While steps are left out nothing is gained, and weights that make all of them fail must not replace older ones.
            if stop or run.step == steps or (save_due and not made.fault):
                save_due = not saves.write(last=stop or run.step == steps)
                stop = asked()
        saves.settle()
        if run.step > run.saved:  # the signal came when the step's own save had begun, and that failed
            saves.write(last=True)
        if stop:
            metrics.say(f"stopped on request after step {run.step}; --resume auto continues")
            metrics.record("stopped", "on request")
            return run.step < steps and not run.engine.sum_over_ranks(interrupt.by_user)[0]
        metrics.record("finished")
    return False
