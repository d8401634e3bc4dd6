"""Replays of recorded passes compute the bits of the passes themselves, and a run continues where passes cannot be recorded."""

import copy
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from megatape.config import parse_config
from megatape.distributed.topology import SINGLE_PROCESS, Topology
from megatape.errors import OutOfMemory, UserError
from megatape.registry import ENCODINGS
from megatape.training.trainer import Trainer
from megatape.utils.pytorch.recorder import Replay, Work
from megatape.zero.passes.replays import Recording, Replays
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.cpu_recorder import CpuRecorder
from tests.helpers.runs.trainers import trainer_without_lease

# Name -> settings for a run
RUNS: dict[str, dict[str, dict[str, Any]]] = {
    "stage 0": {"zero": {"stage": 0}},
    "stage 1": {"zero": {"stage": 1}},
    "stage 1, bfloat16": {"zero": {"stage": 1}, "training": {"precision": "bfloat16"}},
    "stage 2, bfloat16": {"zero": {"stage": 2}, "training": {"precision": "bfloat16"}},
    "offloaded": {"zero": {"stage": 2, "offload_optimizer": True}},
    "tied": {"zero": {"stage": 2}, "model": {"tie_embeddings": True}},
    "selective": {"zero": {"stage": 2}, "training": {"activation_checkpointing": "selective"}},
    "full": {"zero": {"stage": 1}, "training": {"activation_checkpointing": "full", "chunk_tokens": 8}},
    "frozen": {"zero": {"stage": 1}, "training": {"trainable": ["position", "norms"]}},
    "z-loss": {"zero": {"stage": 2}, "training": {"z_loss": 1e-3}},
    "lora": {
        "zero": {"stage": 2},
        "model": {"lora": {"rank": 2, "alpha": 4.0, "dropout": 0.5}},
        "training": {"trainable": ["adapters"]},
    },
    "length warm-up": {"zero": {"stage": 1}, "data": {"length_warmup": [{"tokens": 128, "length": 16}]}},
}
QUICK_RUNS = ["stage 0", "stage 2, bfloat16", "length warm-up"]
SLOW_RUNS = [name for name in RUNS if name not in QUICK_RUNS]

NUM_STEPS = 4
# Step with a NaN in its first loss.
FAULTY_STEP = 2


@pytest.mark.parametrize("names", [QUICK_RUNS, pytest.param(SLOW_RUNS, marks=pytest.mark.slow)], ids=["quick", "slow"])
def test_steps_have_the_same_bits(raw_config: dict[str, Any], tmp_path: Path, names: list[str]) -> None:
    """Replayed steps equal plain ones bit for bit, including a skipped step and the steps after it.

    Each step has two micro-batches.
    """
    raw_config["training"] |= {"micro_batch_size": 4, "steps": NUM_STEPS}
    payload = {"config": raw_config, "runs": {name: RUNS[name] for name in names}}
    (differences,) = run_workers("tests.zero.passes.test_replays:find_differences", 1, payload, tmp_path / "workers")
    assert differences == []


@pytest.mark.slow
def test_encodings_have_the_same_bits(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Notices an encoding that computes with a Python number from its inputs, or waits for the device."""
    raw_config["training"] |= {"micro_batch_size": 4, "steps": NUM_STEPS}
    runs = {name: {"zero": {"stage": 1}, "model": {"encoding": name}} for name in ENCODINGS}
    payload = {"config": raw_config, "runs": runs}
    (differences,) = run_workers("tests.zero.passes.test_replays:find_differences", 1, payload, tmp_path / "workers")
    assert differences == []


@pytest.mark.slow
def test_ranks_have_the_same_bits(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """With more than two ranks, sums depend on the order in which gradients fill buckets."""
    raw_config["training"] |= {"micro_batch_size": 2, "steps": NUM_STEPS, "global_batch_size": 12}
    names = ["stage 1, bfloat16", "stage 2, bfloat16"]
    payload = {"config": raw_config, "runs": {name: RUNS[name] for name in names}}
    differences = run_workers("tests.zero.passes.test_replays:find_differences", 3, payload, tmp_path / "workers")
    assert differences == [[], [], []]


def find_differences(payload: dict[str, Any], topology: Topology) -> list[str]:
    """Return what differs between steps that replay passes and steps that compute them, run by run."""
    differences = []
    for name, settings in payload["runs"].items():
        computed = _make_run(payload["config"], name, settings, topology, replayed=False)
        replayed = _make_run(payload["config"], name, settings, topology, replayed=True)
        arrivals = [_noting_arrivals(computed), _noting_arrivals(replayed)]
        for step in range(1, NUM_STEPS + 1):
            outputs = []
            for run in (computed, replayed):
                with _spoiled_loss(run) if step == FAULTY_STEP else nullcontext():
                    outputs.append(run.train_step())
            expected, output = outputs
            if repr((expected.loss, expected.grad_norm)) != repr((output.loss, output.grad_norm)):
                differences.append(f"{name}, step {step}: loss or gradient norm")
            if expected.is_applied != output.is_applied or output.is_applied != (step != FAULTY_STEP):
                differences.append(f"{name}, step {step}: skipped")
            if not _have_equal_state(computed, replayed):
                differences.append(f"{name}, step {step}: weights or optimizer state")
        if arrivals[0] != arrivals[1]:
            differences.append(f"{name}: order of gradients")
    return differences


def _make_run(
    raw: dict[str, Any], name: str, settings: dict[str, dict[str, Any]], topology: Topology, *, replayed: bool
) -> Trainer:
    changed = copy.deepcopy(raw)
    for section, values in settings.items():
        changed[section] = changed.get(section, {}) | values
    changed["training"]["cuda_graphs"] = replayed
    changed["run"]["directory"] += f"/{name} {replayed}"
    return trainer_without_lease(parse_config(changed, name), topology, make_recorder=CpuRecorder)


def _noting_arrivals(run: Trainer) -> list[str]:
    """Return a list that from now on gets the name of each parameter whose gradient arrives."""
    arrivals: list[str] = []
    for name, parameter in run.engine.state.parameters.items():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: arrivals.append(name))
    return arrivals


def _spoiled_loss(run: Trainer) -> AbstractContextManager[Any]:
    """Make all losses NaN."""
    return run.engine.deepspeed_engine.module.register_forward_hook(lambda module, inputs, output: output * torch.nan)


def _have_equal_state(run: Trainer, other: Trainer) -> bool:
    for kind, names in run.engine.state.names_by_kind.items():
        for name in names:
            values = run.engine.state.piece(name, kind).values
            if not values.equal(other.engine.state.piece(name, kind).values):
                return False
    parameters = zip(run.engine.state.parameters.values(), other.engine.state.parameters.values(), strict=True)
    return all(parameter.equal(other_parameter) for parameter, other_parameter in parameters)


class Small(nn.Module):
    """Module with a shared, an unused and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(16, 8)
        self.shared = nn.Linear(8, 8)
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(8))

    def forward(self, tokens: Tensor, scale: Tensor | None = None) -> Tensor:
        x = self.shared(self.shared(self.embedding(tokens) * self.frozen).tanh())
        if scale is not None:
            x = x * scale[:, None, None]
        return x.square().sum()


class Random(Small):
    """Module with torch's dropout."""

    def forward(self, tokens: Tensor, scale: Tensor | None = None) -> Tensor:
        return F.dropout(self.shared(self.embedding(tokens)), 0.5).square().sum()


class Counting(Small):
    """Module that computes with a Python number of its own."""

    calls = 0

    def forward(self, tokens: Tensor, scale: Tensor | None = None) -> Tensor:
        self.calls += 1
        return super().forward(tokens) * self.calls


class Branching(Small):
    """Module that decides by a tensor's value."""

    def forward(self, tokens: Tensor, scale: Tensor | None = None) -> Tensor:
        if tokens.sum() > 0:
            return super().forward(tokens)
        return super().forward(tokens) * 2


class Hooked(Small):
    """Module with a function that changes a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.shared.weight.register_hook(lambda gradient: gradient * 2)


class FailingRecorder(CpuRecorder):
    """Recorder that runs out of memory, as a GPU does."""

    def record(self, work: Work) -> Replay:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        finally:
            # torch.cuda.graph ends the recording, which fails, too.
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


def tokens_of(seed: int, length: int = 6) -> Tensor:
    return torch.randint(16, (3, length), generator=torch.Generator().manual_seed(seed))


def gradients_after(module: nn.Module, replays: Replays, batches: list[dict[str, Tensor | None]]) -> list[Any]:
    """Return losses, and the gradients accumulated over batches."""
    results: list[Any] = []
    for inputs in batches:
        with replays.replacing_forward():
            loss = module(**inputs)
        (loss * 0.5).backward()
        results.append(loss.item())
    results += [parameter.grad for parameter in module.parameters()]
    return results


def assert_same(results: list[Any], expected: list[Any]) -> None:
    for result, value in zip(results, expected, strict=True):
        if isinstance(value, Tensor):
            assert torch.equal(result, value)
        else:
            assert result == value


def replays_of(
    module: nn.Module, make_recorder: Callable[[], CpuRecorder] | None = CpuRecorder, is_required: bool = False
) -> Replays:
    recording = None
    if make_recorder is not None:
        recording = Recording(make_recorder, is_required)
    return Replays(module, recording, SINGLE_PROCESS)


class Recorders(list[CpuRecorder]):
    """Makes recorders, and lists them."""

    def __call__(self) -> CpuRecorder:
        self.append(CpuRecorder())
        return self[-1]


def test_gradients_accumulate() -> None:
    """The second replay overwrites the memory of the first one's gradients, which must have been copied."""

    recorders = Recorders()
    batches: list[dict[str, Tensor | None]] = [
        {"tokens": tokens_of(seed), "scale": torch.full((1,), seed + 1.0).expand(3)} for seed in range(3)
    ]
    module = Small()
    expected = gradients_after(module, replays_of(module, None), batches)
    module = Small()
    assert_same(gradients_after(module, replays_of(module, recorders), batches), expected)

    (recorder,) = recorders
    assert recorder.num_recorded == 2
    # Two replays check both recordings.
    assert recorder.num_replayed == 2 * (2 + len(batches))


def test_other_shapes_are_recorded_again() -> None:
    recorders = Recorders()
    lengths = [4, 4, 8, 8]
    batches: list[dict[str, Tensor | None]] = [{"tokens": tokens_of(0, length), "scale": None} for length in lengths]
    module = Small()
    expected = gradients_after(module, replays_of(module, None), batches)
    module = Small()
    assert_same(gradients_after(module, replays_of(module, recorders), batches), expected)
    assert len(recorders) == 2


def test_random_numbers_are_those_without_replays() -> None:
    batches: list[dict[str, Tensor | None]] = [{"tokens": tokens_of(seed)} for seed in range(3)]
    results = []
    states = []
    for make_recorder in (None, CpuRecorder):
        module = Random()
        torch.manual_seed(5)
        results.append(gradients_after(module, replays_of(module, make_recorder), batches))
        states.append(torch.get_rng_state())
    assert_same(*results)
    assert torch.equal(*states)
    assert results[0][0] != results[0][1]


def test_hooks_are_called_while_replays_are_suspended() -> None:
    recorders = Recorders()
    module = Small()
    replays = replays_of(module, recorders)
    batch: dict[str, Tensor | None] = {"tokens": tokens_of(0)}
    gradients_after(module, replays, [batch])
    calls: list[int] = []
    module.embedding.register_forward_hook(lambda *_: calls.append(1))

    gradients_after(module, replays, [batch])
    assert not calls
    with replays.suspended():
        gradients_after(module, replays, [batch])
    assert calls == [1]

    gradients_after(module, replays, [batch])
    assert len(recorders) == 2


@pytest.mark.parametrize(
    ("module_type", "make_recorder", "reason"),
    [
        (Small, FailingRecorder, "out of memory"),
        (Branching, CpuRecorder, "RuntimeError: aten._local_scalar_dense.default: the host waits for a value of the device"),
        (Counting, CpuRecorder, "RuntimeError: the loss of a replay is "),
        (Hooked, CpuRecorder, "RuntimeError: a weight has a hook"),
    ],
)
def test_unrecordable_passes_run_as_they_are_or_are_refused(
    module_type: type[Small], make_recorder: Callable[[], CpuRecorder], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`auto` says once what runs instead, and the passes run as they are. `true` is an error with the reason."""
    batches: list[dict[str, Tensor | None]] = [{"tokens": tokens_of(seed)} for seed in range(2)]
    failure = f"forward and backward pass cannot be recorded as a CUDA graph ({reason}"
    module = module_type()
    replays = replays_of(module, make_recorder)
    with caplog.at_level(logging.WARNING):
        results = gradients_after(module, replays, batches)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"training.cuda_graphs auto: {failure}")
    assert record.getMessage().endswith("): kernels are launched one by one instead")
    assert not replays.are_planned
    if module_type is not Counting:
        module = module_type()
        assert_same(results, gradients_after(module, replays_of(module, None), batches))

    error_type = UserError
    if reason == "out of memory":
        error_type = OutOfMemory
    module = module_type()
    with pytest.raises(UserError) as raised:
        gradients_after(module, replays_of(module, make_recorder, is_required=True), batches)
    assert type(raised.value) is error_type
    assert str(raised.value).startswith(f"training.cuda_graphs true: {failure}")
    assert raised.value.everywhere


@pytest.mark.slow
def test_a_rank_that_cannot_record_stops_all(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Ranks must not differ: a forced setting ends all of them, and with it the message names the rank."""
    raw_config["training"] |= {"micro_batch_size": 2}
    payload = {"config": raw_config}
    results = run_workers("tests.zero.passes.test_replays:record_on_first_rank", 2, payload, tmp_path / "workers")
    failure = "forward and backward pass cannot be recorded as a CUDA graph on rank 1 (out of memory)"
    for error in results:
        assert error.startswith(f"training.cuda_graphs true: {failure}: lower training.micro_batch_size")


def record_on_first_rank(payload: dict[str, Any], topology: Topology) -> str:
    """Train with a recorder that fails on rank 1. Return the error."""
    raw = payload["config"]
    raw["training"]["cuda_graphs"] = True
    raw["zero"] = {"stage": 1}
    make_recorder = FailingRecorder if topology.rank else CpuRecorder
    run = trainer_without_lease(parse_config(raw, "test"), topology, make_recorder=make_recorder)
    try:
        run.train_step()
    except OutOfMemory as error:
        return str(error)
    return ""
