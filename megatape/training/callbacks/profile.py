"""Traces training steps with named ranges, and summarizes time and traffic."""

from contextlib import ExitStack
from operator import attrgetter

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from megatape.distributed.traffic import TrafficCounter
from megatape.encodings.encoding import LayerBias, PositionEmbedding, SequenceFeatures, StateUpdate, TokenFeatures
from megatape.model.attention import Attention
from megatape.model.mlp import MLP
from megatape.nn.vocabulary import VocabularyEmbedding, VocabularyHead
from megatape.training.callbacks.callback import Callback, RunContext
from megatape.utils.text.tables import columns
from megatape.utils.text.units import format_bytes, plural

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

# Steps before the first profiled one. DeepSpeed prefetches weights only after seeing the order of modules.
WARM_UP = 3

# Operations listed in the summary.
OPERATIONS = 10


class Profile(Callback):
    """Profiles `profiled_steps` steps after WARM_UP steps.

    Every rank writes a trace for Perfetto or chrome://tracing, and the main rank prints a summary. The trace includes
    evaluations and checkpoints between the profiled steps.
    """

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        self.steps = run.profiled_steps
        self.path = run.folder.trace(run.topology.rank)
        # Steps started by this process.
        self.num_started = 0
        self.recording = ExitStack()

    def close(self) -> None:
        self.recording.close()
        if self.steps and self.num_started <= WARM_UP:
            steps = plural(self.num_started, "step")
            self.run.log.info(f"nothing profiled: the run took {steps}, and the first {WARM_UP} warm up")

    def before_step(self, step: int) -> None:
        self.num_started += 1
        if self.steps and self.num_started == WARM_UP + 1:
            self._start()
        elif self.num_started == WARM_UP + self.steps + 1:
            self.recording.close()

    def _start(self) -> None:
        """Start recording."""
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        recorder = profile(activities=activities)
        mesh = self.run.engine.mesh
        traffic = TrafficCounter(mesh["tensor"], mesh["sequence"], mesh["context"], mesh["replicate"])
        # The stack closes in reverse order, so `finish` is called after recording has ended.
        self.recording.enter_context(self.run.engine.replays.suspended())
        self.recording.callback(self.finish, recorder, traffic)
        self.recording.enter_context(recorder)
        self.recording.enter_context(traffic)
        for module in self.run.engine.deepspeed_engine.module.modules():
            for kind, name in RANGES.items():
                if isinstance(module, kind):
                    _name_passes(module, name, self.recording)

    def finish(self, recorder: profile, traffic: TrafficCounter) -> None:
        """Write the trace and print the summary."""
        steps = min(self.steps, self.num_started - WARM_UP)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            recorder.export_chrome_trace(str(self.path))
            trace = f"trace {self.path} (and its siblings of other ranks)"
        except OSError as error:
            trace = f"no trace: {error}"
        self.run.log.info(f"{summarize(recorder, traffic, steps)}\n{trace}")


class Range:
    """A named range in the profile, opened and closed by module hooks."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._open: list[record_function] = []

    def enter(self, *_: object) -> None:
        """Open the range."""
        self._open.append(record_function(self._label))
        self._open[-1].__enter__()

    def leave(self, *_: object) -> None:
        """Close the range opened last, if one is open."""
        if self._open:
            self._open.pop().__exit__(None, None, None)


def _name_passes(module: nn.Module, name: str, recording: ExitStack) -> None:
    """Open ranges around a module's passes while recording."""
    forward = Range(name)
    backward = Range(name + BACKWARD)
    recording.enter_context(module.register_forward_pre_hook(forward.enter))
    # always_call: activation checkpointing stops recomputing by raising an exception, as soon as it has all it needs.
    recording.enter_context(module.register_forward_hook(forward.leave, always_call=True))
    # Skip embeddings: their input has no gradient, so no hook fires when their backward pass ends.
    if not isinstance(module, VocabularyEmbedding):
        recording.enter_context(module.register_full_backward_pre_hook(backward.enter))
        recording.enter_context(module.register_full_backward_hook(backward.leave))


def summarize(recorder: profile, traffic: TrafficCounter, steps: int) -> str:
    """Return a table of milliseconds and bytes per step on this rank.

    Args:
        recorder: Profiler of the steps.
        traffic: Bytes sent in the steps.
        steps: Number of profiled steps.
    """
    device = "cpu"
    if torch.cuda.is_available():
        device = "device"
    total = attrgetter(f"{device}_time_total")
    exclusive = attrgetter(f"self_{device}_time_total")

    labels = set(traffic.labels)
    for name in RANGES.values():
        labels |= {name, name + BACKWARD}
    averages = recorder.key_averages()
    ranges = [event for event in averages if event.key in labels]
    ranges.sort(key=total, reverse=True)
    operations = [event for event in averages if event.key not in labels]
    operations.sort(key=exclusive, reverse=True)

    rows = [("range, with all inside it", "calls", "ms")]
    for event in ranges:
        rows.append((event.key, f"{event.count / steps:g}", f"{total(event) / steps / 1e3:.2f}"))
    rows.append(("operation, by itself", "calls", "ms"))
    for event in operations[:OPERATIONS]:
        rows.append((event.key, f"{event.count / steps:g}", f"{exclusive(event) / steps / 1e3:.2f}"))
    rows.append(("bytes sent", "", ""))
    for group, sent in traffic.sent.items():
        if not sent:
            continue
        for collective, count in sent.items():
            rows.append((f"{group} ranks, {collective}", "", format_bytes(count / steps)))
        overlapped = format_bytes(traffic.overlapped[group] / steps)
        rows.append((f"{group} ranks, of these overlapped with computation", "", overlapped))
    table = columns(rows, align=("left", "right", "right"))
    return f"profile of {plural(steps, 'step')}, for one step on this rank:\n{table}"
