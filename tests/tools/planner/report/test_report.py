"""megatape plan: its report, advice and errors."""

import copy
import json
import re
import time
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from megatape.accounting.gpus import GPUS, load_gpu
from megatape.config import load_config, parse_config, save_config
from megatape.tools.planner.planned_cluster import PlannedCluster
from megatape.tools.planner.report.report import report
from megatape.tools.planner.report.search_report import search_report, smallest_change_advice
from megatape.tools.planner.search.search_space import SearchSpace
from megatape.tools.planner.step_time.measured import nearest_step
from tests.helpers.planner.plan_cases import configure
from tests.helpers.processes.command import Command


@pytest.fixture
def plan(command: Command, raw_config: dict[str, Any], tmp_path: Path) -> Command:
    """Return a function that runs megatape plan on `raw_config` with options. It returns status, output and errors."""

    def run(*options: str) -> tuple[int, str, str]:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(raw_config))
        return command("plan", "--config", path, *options)

    return run


def test_report_of_a_cluster(plan: Command, raw_config: dict[str, Any], tmp_path: Path) -> None:
    gpu = {"name": "X", "memory": 8e9, "bfloat16_flops": 1e14, "memory_bandwidth": 1e12, "node_bandwidth": 1e11}
    (tmp_path / "x.json").write_text(json.dumps(gpu | {"network_bandwidth": 1e10}))
    raw_config["cluster"] = {"nodes": 3, "gpus_per_node": 1, "gpu": "h100"}
    raw_config["parallel"] = {"tp": 2}
    options = ("--nodes", "2", "--gpus-per-node", "2", "--gpu", str(tmp_path / "x.json"))
    status, printed, errors = plan(*options)
    assert status == 0, errors
    assert "2 nodes x 2" in printed
    assert "8 = 4 micro x 2 data-parallel ranks x 1 accumulated" in printed
    assert "fits" in printed
    assert "all-to-all" in printed
    assert "MFU" in printed
    assert "assumed:" in printed


def test_report_without_a_cluster(plan: Command) -> None:
    status, printed, errors = plan()
    assert (status, errors) == (0, "")
    assert "1 data-parallel x 1 tensor-parallel ranks" in printed
    assert "MFU" not in printed
    assert "--nodes, --gpus-per-node and --gpu" in printed


def test_trained_weights_are_counted(plan: Command) -> None:
    """Five norms over 32 channels are trained, except the last one, which is frozen."""
    _, printed, _ = plan("--set", 'training.trainable=["norms"]', "--set", 'training.frozen=["norm.weight"]')
    assert ["trained", "128"] in [line.split() for line in printed.splitlines()]


def test_dry_run_prints_the_plan(plan: Command, command: Command, raw_config: dict[str, Any], tmp_path: Path) -> None:
    """With FP8 the report also says that its speed is not modeled."""
    raw_config["model"]["mlp_size"] = 48
    raw_config |= {"training": raw_config["training"] | {"precision": "bfloat16", "fp8": "rowwise"}, "zero": {"stage": 2}}
    _, planned, _ = plan("--nodes", "1", "--gpus-per-node", "2", "--gpu", "h100")
    assert "FP8 products, with the scaling" in planned
    assert "bfloat16, FP8 rowwise" in planned
    cluster = ("--set", "cluster.nodes=1", "--set", "cluster.gpus_per_node=2", "--set", "cluster.gpu=h100")
    assert command("pretrain", "--config", tmp_path / "config.json", "--dry-run", *cluster) == (0, planned, "")


def plan_error(plan: Command, *options: str) -> str:
    status, _, errors = plan(*options)
    assert status == 2, errors
    return errors


def test_a_cluster_needs_a_gpu(plan: Command) -> None:
    assert "cluster.gpu: Field required" in plan_error(plan, "--nodes", "1", "--gpus-per-node", "2")


@pytest.mark.parametrize(
    ("gpu", "message"),
    [
        ("h9000", "GPU 'h9000' is unknown: did you mean h200? choose one of a100-40g"),
        ("none.json", "no GPU description at none.json"),
        ("{folder}/config.json", "does not describe a GPU"),
    ],
)
def test_unknown_gpus_are_refused(plan: Command, tmp_path: Path, gpu: str, message: str) -> None:
    name = gpu.format(folder=tmp_path)
    assert message in plan_error(plan, "--nodes", "1", "--gpus-per-node", "2", "--gpu", name)


def test_too_few_ranks_are_refused(plan: Command) -> None:
    errors = plan_error(plan, "--nodes", "1", "--gpus-per-node", "2", "--gpu", "h100", "--set", "parallel.tp=4")
    assert "parallel.tp 4 and 2 GPUs" not in errors
    assert "not a multiple of parallel.tp 4" in errors


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("parallel.tp=2", "parallel.tp 2 and 3 GPUs per node"),
        ("parallel.sp=2", "parallel.tp x parallel.sp 2 and 3 GPUs per node"),
        ("parallel.cp=2", "parallel.tp x parallel.sp x parallel.cp 2 and 3 GPUs per node"),
    ],
)
def test_ranks_that_do_not_fill_nodes_are_refused(plan: Command, setting: str, message: str) -> None:
    assert message in plan_error(plan, "--nodes", "2", "--gpus-per-node", "3", "--gpu", "h100", "--set", setting)


@pytest.mark.parametrize(("nodes", "gpus_per_node", "is_warned"), [("1", "4", False), ("2", "2", True)])
def test_sequence_ranks(plan: Command, nodes: str, gpus_per_node: str, is_warned: bool) -> None:
    """Sequence-parallel ranks have a row of bytes, and a warning if a node has only some ranks of a sample."""
    cluster = ("--nodes", nodes, "--gpus-per-node", gpus_per_node, "--gpu", "h100")
    _, printed, _ = plan(*cluster, "--set", "parallel.sp=4")
    assert "1 data-parallel x 4 sequence-parallel x 1 tensor-parallel ranks" in printed
    assert "  sequence-parallel ranks " in printed
    assert "    all-to-all " in printed
    assert ("warning: the 4 ranks of a sample" in printed) == is_warned


@pytest.mark.slow
def test_context_ranks(plan: Command) -> None:
    """Context-parallel ranks send most of their bytes while they compute."""
    cluster = ("--nodes", "2", "--gpus-per-node", "2", "--gpu", "h100")
    _, printed, _ = plan(*cluster, "--set", "parallel.cp=4")
    assert "1 data-parallel x 4 context-parallel x 1 tensor-parallel ranks" in printed
    assert "  context-parallel ranks " in printed
    assert "    shift " in printed
    assert "data- and context-parallel ranks, ZeRO" in printed
    assert re.search(r"shift +\S+ .*\n +of these overlapped with computation +89%", printed)


TWO_GPUS = ("--nodes", "1", "--gpus-per-node", "2", "--gpu", "h100")
OFFLOAD = ("--set", "zero.offload_optimizer=true", "--set", "zero.stage=3")


@pytest.mark.slow
def test_without_offloading_no_host_is_mentioned(plan: Command) -> None:
    _, printed, _ = plan(*TWO_GPUS)
    assert "host" not in printed


@pytest.mark.slow
@pytest.mark.parametrize(("options", "text"), [((), "(--host-gib) compares"), (("--host-gib", "9"), "KiB of 9.00 GiB: fits")])
def test_offloading(plan: Command, options: tuple[str, ...], text: str) -> None:
    """Offloading costs time and host memory, which is compared with the node's."""
    _, printed, _ = plan(*TWO_GPUS, *OFFLOAD, *options)
    assert text in printed
    assert "that it waits for the host" in printed
    assert "to make it fit" not in printed
    assert "host memory at 30% to 60%" in printed


@pytest.mark.slow
def test_offloading_beyond_the_hosts_memory(plan: Command) -> None:
    """Advice is the smallest change: not to offload."""
    _, printed, _ = plan(*TWO_GPUS, *OFFLOAD, "--host-gib", "0.0001")
    assert "KiB of 104.86 KiB: DOES NOT FIT" in printed
    assert "makes it fit:\n  --set zero.offload_optimizer=false --set " not in printed
    assert "makes it fit:\n  --set zero.offload_optimizer=false: " in printed


def test_ranges_ascend(plan: Command) -> None:
    printed = plan("--nodes", "1", "--gpus-per-node", "2", "--gpu", "a100-80g")[1]
    ranges = re.findall(r"^(.*?)  +(\S+) to (\S+)$", printed, re.MULTILINE)
    assert [name for name, _, _ in ranges] == [
        "seconds per step",
        "MFU",
        "tokens/s per GPU",
        "hours for the run",
        "GPU-hours for the run",
    ]
    for name, low, high in ranges:
        # With so small a model, both have an MFU of 0%.
        if name != "MFU":
            assert _number(low) < _number(high), name


def _number(text: str) -> float:
    """Return a number of the report, such as 3%, 4.5 or 6.7K."""
    number = float(text.rstrip("%KMBT"))
    units = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
    return number * units.get(text[-1], 1.0)


LONG_RUN = ("--set", "training.steps=1000000", "--set", "training.global_batch_size=32")
EIGHT_GPUS = ("--nodes", "2", "--gpus-per-node", "4", "--gpu", "h100", *LONG_RUN)


def test_gpu_hours_and_cost(plan: Command) -> None:
    """GPU-hours are the hours of the run times the number of GPUs, and the cost is GPU-hours times the price."""
    _, printed, errors = plan(*EIGHT_GPUS, "--price", "2.5")
    assert errors == ""
    hours = _numbers(printed, "hours for the run")
    gpu_hours = _numbers(printed, "GPU-hours for the run")
    cost = _numbers(printed, "  cost at 2.5 per GPU-hour")
    assert gpu_hours == pytest.approx([8 * number for number in hours], rel=0.01)
    assert cost == pytest.approx([2.5 * number for number in gpu_hours], rel=0.01)


def test_there_is_no_cost_without_a_price(plan: Command) -> None:
    _, printed, _ = plan(*EIGHT_GPUS)
    assert "cost at" not in printed


def test_a_search_has_a_cost(plan: Command) -> None:
    _, printed, _ = plan("--search", "--nodes", "1", "--gpus-per-node", "1", "--gpu", "h100", "--price", "2.5")
    assert "cost at 2.5" in printed


def test_a_price_needs_a_cluster(plan: Command) -> None:
    assert "--price needs a cluster" in plan_error(plan, "--price", "2")


@pytest.mark.parametrize("price", ["-1", "nan"])
def test_invalid_prices_are_refused(plan: Command, price: str) -> None:
    plan_error(plan, *EIGHT_GPUS, "--price", price)


def _numbers(printed: str, row: str) -> list[float]:
    """Return the ends of the range in a row of the report."""
    [line] = [line for line in printed.splitlines() if line.startswith(f"{row} ")]
    low, _, high = line.removeprefix(row).partition(" to ")
    return [float(number.replace(",", "")) for number in (low, high)]


MODEL_OF_4_GIB: dict[str, Any] = {
    "model.hidden_size": 2048,
    "model.mlp_size": 8192,
    "model.num_heads": 16,
    "model.num_layers": 2,
    "model.vocab_size": 20000,
    "model.max_positions": 512,
    "data.sequence_length": 512,
    "training.micro_batch_size": 8,
    "zero.stage": 1,
    "zero.bucket_size": 1_000_000,
}


@pytest.mark.slow
def test_advice_leads_to_a_plan_that_fits(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """A model that is too large for the GPU fits with the advised changes."""
    gpu = tmp_path / "small.json"
    gpu.write_text(load_gpu("h100").model_copy(update={"memory": 4 * 2**30}).model_dump_json())
    raw_config["cluster"] = {"nodes": 1, "gpus_per_node": 1, "gpu": str(gpu)}
    config = configure(raw_config, "x", MODEL_OF_4_GIB)
    save_config(config, tmp_path / "config.json")

    printed = report(config)
    _, _, advice = printed.rpartition("the smallest change that makes it fit:")
    options, _, _ = advice.partition(":")
    settings = options.split()[1::2]  # --set SETTING --set SETTING ...

    assert "DOES NOT FIT" in printed
    assert settings, printed
    advised = load_config(tmp_path / "config.json", settings)
    assert "DOES NOT FIT" not in report(advised)
    search = search_report(config)
    assert f"makes it fit:\n  --set {settings[0]}" in search
    assert "advised: " in search
    search_of_advised = search_report(advised)
    assert "the file's own: " in search_of_advised
    assert "advised: " in search_of_advised


def test_a_search_needs_a_cluster(plan: Command) -> None:
    assert "search needs a cluster" in plan_error(plan, "--search")


def test_a_search_prints_a_row_for_each_of_the_best_settings(plan: Command) -> None:
    cluster = ("--nodes", "1", "--gpus-per-node", "2", "--gpu", "h100", "--set", "training.global_batch_size=3")
    status, printed, errors = plan("--search", *cluster)
    assert status == 0, errors
    header, *rows = printed.partition("\n\n")[0].splitlines()
    assert header.split()[:5] == ["tp", "stage", "sp", "cp", "micro_batch_size"]
    assert 1 <= len(rows) <= 5
    assert "the file's own settings do not divide evenly" in printed


def test_search_report_mentions_its_time_limit(raw_config: dict[str, Any]) -> None:
    raw_config["cluster"] = {"nodes": 1, "gpus_per_node": 2, "gpu": "h100"}
    printed = search_report(parse_config(raw_config, "x"), limit=0.0)
    assert "the search ended at its limit of 0 seconds of processor time: there may be faster settings" in printed
    assert "advised: the settings of the file" in printed  # Everything that was examined


def test_advice_mentions_its_time_limit(raw_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that advances at each look, the search ends after one fitting change, before it has tried all others."""
    raw_config["cluster"] = {"nodes": 1, "gpus_per_node": 1, "gpu": "h100"}
    config = configure(raw_config, "x", MODEL_OF_4_GIB)
    gpu = load_gpu("h100").model_copy(update={"memory": 4 * 2**30})
    assert config.cluster is not None
    space = SearchSpace(config, PlannedCluster(config.cluster, gpu))
    printed = []
    for limit in count(1):
        monkeypatch.setattr(time, "process_time", partial(next, count()))
        printed = smallest_change_advice(space, float(limit))
        if "ran out of time" not in printed[0]:
            break
    assert printed[-1].startswith(
        f"the search ended at its limit of {limit} seconds of processor time: there may be faster settings"
    )


@pytest.mark.parametrize("name", GPUS)
def test_gpus_are_plausible(name: str) -> None:
    """An error by a power of ten in the table would pass all other tests."""
    gpu = load_gpu(name)
    assert 30 * 2**30 < gpu.memory < 300 * 2**30
    assert 1e14 < gpu.bfloat16_flops < 1e16
    assert gpu.network_bandwidth < gpu.node_bandwidth * 1.001 < gpu.memory_bandwidth
    assert 3e10 < gpu.host_link < 1e12
    assert 3e10 < gpu.host_bandwidth < 1e12


ONE_GPU = ("--nodes", "1", "--gpus-per-node", "1", "--gpu", "h100")


class Measurements(NamedTuple):
    """File of measured steps, its entries, and the configuration of the entry with FP8."""

    path: Path
    entries: list[dict[str, Any]]
    fp8_config: dict[str, Any]

    def write(self) -> None:
        self.path.write_text("".join(json.dumps(entry) + "\n" for entry in self.entries))


@pytest.fixture
def measurements(raw_config: dict[str, Any], tmp_path: Path) -> Measurements:
    """Write measured steps of `raw_config`, another encoding, a larger model and FP8."""
    raw_config["model"]["mlp_size"] = 48
    rope = raw_config | {"model": raw_config["model"] | {"encoding": "rope"}}
    large = raw_config | {"model": raw_config["model"] | {"hidden_size": 256, "num_layers": 4}}
    fp8_training = raw_config["training"] | {"precision": "bfloat16", "fp8": "rowwise"}
    fp8 = raw_config | {"training": fp8_training, "zero": {"stage": 2}}
    steps = [
        ("step small/tape/sdpa/eager", 5.0, raw_config),
        ("step small/tape/sdpa/compiled", 4.0, raw_config),
        ("step small/rope/sdpa/eager", 1.0, rope),
        ("step large/tape/sdpa/eager", 2.0, large),
        ("fp8/small/tape/rowwise", 3.0, fp8),
    ]
    entries: list[dict[str, Any]] = [{"key": "machine/device", "name": "NVIDIA H100 80GB HBM3"}]
    entries += [{"key": key, "seconds": seconds, "config": copy.deepcopy(config)} for key, seconds, config in steps]
    measured = Measurements(tmp_path / "results.jsonl", entries, fp8)
    measured.write()
    return measured


@pytest.mark.slow
def test_measured_steps_correct_the_time(plan: Command, measurements: Measurements) -> None:
    """The fastest step of the nearest measured size decides. Links account for the remaining range."""
    status, printed, errors = plan(*ONE_GPU, "--measured", str(measurements.path))
    assert status == 0, errors
    assert re.search(r"measured on one H100: 0 M, 4 x 32 +4, estimated \S+ \(-100%\)", printed)
    assert re.search(r"corrected by it +4 to 4\n", printed)


def test_measured_steps_of_fp8_are_for_fp8(measurements: Measurements) -> None:
    assert nearest_step(measurements.path, parse_config(measurements.fp8_config, "x")).seconds == 3.0


def test_an_encoding_without_measurements_is_refused(
    plan: Command, raw_config: dict[str, Any], measurements: Measurements
) -> None:
    raw_config["model"]["encoding"] = "fire"
    message = "holds no training step with encoding fire and training.fp8 none"
    assert message in plan_error(plan, *ONE_GPU, "--measured", str(measurements.path))


def test_measurements_on_an_unknown_gpu_are_refused(plan: Command, measurements: Measurements) -> None:
    measurements.entries[0]["name"] = "a potato"
    measurements.write()
    message = "was measured on a potato, whose rates are not known"
    assert message in plan_error(plan, *ONE_GPU, "--measured", str(measurements.path))


def test_measurements_without_a_device_are_refused(plan: Command, measurements: Measurements) -> None:
    measurements.path.write_text("{}\n")
    errors = plan_error(plan, *ONE_GPU, "--measured", str(measurements.path))
    assert "names no device: give the results.jsonl of" in errors


def test_missing_measurements_are_refused(plan: Command) -> None:
    assert "no measurements at nowhere" in plan_error(plan, *ONE_GPU, "--measured", "nowhere")


def test_measurements_need_a_cluster(plan: Command, measurements: Measurements) -> None:
    errors = plan_error(plan, "--measured", str(measurements.path))
    assert "--measured corrects the time of a step on a cluster" in errors
