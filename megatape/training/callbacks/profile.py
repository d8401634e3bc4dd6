"""A trace of some training steps with named ranges, and a summary of where the time and the bytes went."""

from contextlib import ExitStack
from operator import attrgetter

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from megatape.distributed.traffic import CountTraffic
from megatape.encodings.encoding import LayerBias, PositionEmbedding, SequenceFeatures, StateUpdate, TokenFeatures
from megatape.model.block import MLP, Attention
from megatape.nn.linear import VocabularyEmbedding, VocabularyHead
from megatape.training.callbacks.callback import Callback, RunContext
from megatape.utils.tables import columns
from megatape.utils.units import format_bytes, plural

RANGES: dict[type[nn.Module], str] = {
    VocabularyEmbedding: "embedding",
    Attention: "attention",
    PositionEmbedding: "position embedding",
    TokenFeatures: "features of tokens",
    SequenceFeatures: "features along the sequence",
    LayerBias: "bias",
    StateUpdate: "position update",
    MLP: "MLP",
    VocabularyHead: "head and loss",
}
BACKWARD = " backward"
WARM_UP = 3  # steps before: DeepSpeed gathers ahead only after it has seen the order of the modules
OPERATIONS = 10  # lines of the summary that name single operations


class Profile(Callback):
    """Profiles `profiled_steps` steps, or none at 0, after some to warm up.

    Every rank writes a trace, for Perfetto or chrome://tracing, and the main rank prints a summary. What happens between
    steps (evaluation, checkpoints) is in the trace if it falls among them.
    """

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        self.steps = run.profiled_steps
        self.path = run.folder.trace(run.topology.rank)
        self.begun = 0  # steps
        self.recording = ExitStack()

    def close(self) -> None:
        self.recording.close()
        if self.steps and self.begun <= WARM_UP:
            self.run.log.say(f"nothing profiled: the run took {plural(self.begun, 'step')}, and the first {WARM_UP} warm up")

    def before_step(self, step: int) -> None:
        self.begun += 1
        if self.steps and self.begun == WARM_UP + 1:
            self._start()
        elif self.begun == WARM_UP + self.steps + 1:
            self.recording.close()

    def _start(self) -> None:
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
        # Closed in the opposite order: the report comes when all recording has stopped.
        mesh = self.run.engine.mesh
        axes = (mesh[name] for name in ("tensor", "sequence", "context", "replicate"))
        recorder = profile(activities=activities)
        traffic = CountTraffic(*axes)
        self.recording.callback(self._finish, recorder, traffic)
        self.recording.enter_context(recorder)
        self.recording.enter_context(traffic)
        for module in self.run.engine.deepspeed.module.modules():
            for kind, name in RANGES.items():
                if isinstance(module, kind):
                    _name_passes(module, name, self.recording)

    def _finish(self, recorder: profile, traffic: CountTraffic) -> None:
        steps = min(self.steps, self.begun - WARM_UP)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            recorder.export_chrome_trace(str(self.path))
            trace = f"trace {self.path} (and its siblings of other ranks)"
        except OSError as error:
            trace = f"no trace: {error}"
        self.run.log.say(f"{_summary(recorder, traffic, steps)}\n{trace}")


class Range:
    """A named range of the profile, which hooks of a module open and close."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._open: list[record_function] = []

    def enter(self, *_: object) -> None:
        """Open the range."""
        self._open.append(record_function(self._label))
        self._open[-1].__enter__()

    def leave(self, *_: object) -> None:
        """Close the range that was opened last, if one is open."""
        if self._open:
            self._open.pop().__exit__(None, None, None)


def _name_passes(module: nn.Module, name: str, recording: ExitStack) -> None:
    """Run the module's passes inside ranges of this name until the recording ends."""
    forward = Range(name)
    backward = Range(name + BACKWARD)
    recording.enter_context(module.register_forward_pre_hook(forward.enter))
    # always_call: a recomputation under activation checkpointing stops in the middle, by an exception, when it has what it
    # needs.
    recording.enter_context(module.register_forward_hook(forward.leave, always_call=True))
    if not isinstance(module, VocabularyEmbedding):  # which has no differentiable input, so that nothing tells its end
        recording.enter_context(module.register_full_backward_pre_hook(backward.enter))
        recording.enter_context(module.register_full_backward_hook(backward.leave))


def _summary(recorder: profile, traffic: CountTraffic, steps: int) -> str:
    """Milliseconds and bytes of one step, on average, on this rank."""
    averages = recorder.key_averages()
    device = "device" if torch.cuda.is_available() else "cpu"
    total = attrgetter(f"{device}_time_total")
    exclusive = attrgetter(f"self_{device}_time_total")
    labels = {name + suffix for name in RANGES.values() for suffix in ("", BACKWARD)} | traffic.labels
    ranges = sorted((event for event in averages if event.key in labels), key=total, reverse=True)
    operations = sorted((event for event in averages if event.key not in labels), key=exclusive, reverse=True)[:OPERATIONS]
    rows = [("range, with all inside it", "calls", "ms")]
    rows += [(event.key, f"{event.count / steps:g}", f"{total(event) / steps / 1e3:.2f}") for event in ranges]
    rows += [("operation, by itself", "calls", "ms")]
    rows += [(event.key, f"{event.count / steps:g}", f"{exclusive(event) / steps / 1e3:.2f}") for event in operations]
    rows += [("bytes sent", "", "")]
    for group, sent in traffic.sent.items():
        rows += [(f"{group} ranks, {collective}", "", format_bytes(count / steps)) for collective, count in sent.items()]
        overlapped = format_bytes(traffic.overlapped[group] / steps)
        rows += [(f"{group} ranks, of these overlapped with computation", "", overlapped)] if sent else []
    table = columns(rows, align=("left", "right", "right"))
    return f"profile of {plural(steps, 'step')}, for one step on this rank:\n{table}"
