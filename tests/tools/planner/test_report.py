"""megatape plan: its report, advice and errors."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from megatape.accounting.gpus import GPUS, load_gpu
from megatape.config import load_config, parse_config, save_config
from megatape.tools.planner.measured import nearest_step
from megatape.tools.planner.report import report
from megatape.tools.planner.search_report import search_report
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


def test_command(plan: Command, raw_config: dict[str, Any], tmp_path: Path) -> None:
    gpu = {"name": "X", "memory": 8e9, "bfloat16_flops": 1e14, "memory_bandwidth": 1e12, "node_bandwidth": 1e11}
    (tmp_path / "x.json").write_text(json.dumps(gpu | {"network_bandwidth": 1e10}))
    raw_config["cluster"] = {"nodes": 3, "gpus_per_node": 1, "gpu": "h100"}
    raw_config["parallel"] = {"tp": 2}
    options = ("--nodes", "2", "--gpus-per-node", "2", "--gpu", str(tmp_path / "x.json"))
    status, printed, errors = plan(*options)
    assert status == 0, errors
    for text in ("2 nodes x 2", "8 = 4 micro x 2 data-parallel ranks x 1 accumulated", "fits", "all-to-all", "MFU", "assumed:"):
        assert text in printed, text


def test_without_a_cluster(plan: Command) -> None:
    status, printed, errors = plan()
    assert (status, errors) == (0, "")
    assert "1 data-parallel x 1 tensor-parallel ranks" in printed
    assert "MFU" not in printed
    assert "--nodes, --gpus-per-node and --gpu" in printed


def test_weights_trained(plan: Command) -> None:
    """Five norms over 32 channels are trained, except the last one, which is frozen."""
    _, printed, _ = plan("--set", 'training.trainable=["norms"]', "--set", 'training.frozen=["norm.weight"]')
    assert ["trained", "128"] in [line.split() for line in printed.splitlines()]


def test_dry_run_prints_the_plan(plan: Command, command: Command, raw_config: dict[str, Any], tmp_path: Path) -> None:
    """With FP8 the report also says that its speed is not modeled."""
    raw_config["model"]["mlp_size"] = 48
    raw_config |= {"training": raw_config["training"] | {"precision": "bfloat16", "fp8": "rowwise"}, "zero": {"stage": 2}}
    planned = plan("--nodes", "1", "--gpus-per-node", "2", "--gpu", "h100")[1]
    assert "FP8 products, with the scaling" in planned
    assert "bfloat16, FP8 rowwise" in planned
    changes = [word for change in ("nodes=1", "gpus_per_node=2", "gpu=h100") for word in ("--set", f"cluster.{change}")]
    assert command("pretrain", "--config", tmp_path / "config.json", "--dry-run", *changes) == (0, planned, "")


def test_errors(plan: Command, tmp_path: Path) -> None:
    assert "cluster.gpu: Field required" in plan("--nodes", "1", "--gpus-per-node", "2")[2]
    cluster = ("--nodes", "1", "--gpus-per-node", "2", "--gpu")
    for gpu, message in (
        ("h9000", "GPU 'h9000' is unknown: did you mean h200? choose one of a100-40g"),
        ("none.json", "no GPU description at none.json"),
        (str(tmp_path / "config.json"), "does not describe a GPU"),
    ):
        status, _, errors = plan(*cluster, gpu)
        assert status == 2, errors
        assert message in errors, errors
    errors = plan(*cluster, "h100", "--set", "parallel.tp=4")[2]
    assert "parallel.tp 4 and 2 GPUs" not in errors
    assert "not a multiple of parallel.tp 4" in errors
    errors = plan("--nodes", "2", "--gpus-per-node", "3", "--gpu", "h100", "--set", "parallel.tp=2")[2]
    assert "parallel.tp 2 and 3 GPUs per node" in errors
    errors = plan("--nodes", "2", "--gpus-per-node", "3", "--gpu", "h100", "--set", "parallel.sp=2")[2]
    assert "parallel.tp x parallel.sp 2 and 3 GPUs per node" in errors


def test_sequence_ranks(plan: Command) -> None:
    """Sequence-parallel ranks have a row of bytes, and a warning if a node has only some ranks of a sample."""
    for nodes, of_node, warned in (("1", "4", False), ("2", "2", True)):
        printed = plan("--nodes", nodes, "--gpus-per-node", of_node, "--gpu", "h100", "--set", "parallel.sp=4")[1]
        assert "1 data-parallel x 4 sequence-parallel x 1 tensor-parallel ranks" in printed
        assert "  sequence-parallel ranks " in printed
        assert "    all-to-all " in printed
        assert ("warning: the 4 ranks of a sample" in printed) == warned


@pytest.mark.slow
def test_context_ranks(plan: Command) -> None:
    """Context-parallel ranks send most of their bytes while they compute, and they must fill nodes."""
    cluster = ("--nodes", "2", "--gpus-per-node", "2", "--gpu", "h100", "--set")
    printed = plan(*cluster, "parallel.cp=4")[1]
    assert "1 data-parallel x 4 context-parallel x 1 tensor-parallel ranks" in printed
    assert "  context-parallel ranks " in printed
    assert "    shift " in printed
    assert "data- and context-parallel ranks, ZeRO" in printed
    assert re.search(r"shift +\S+ .*\n +of these overlapped with computation +89%", printed)
    errors = plan("--nodes", "2", "--gpus-per-node", "3", "--gpu", "h100", "--set", "parallel.cp=2")[2]
    assert "parallel.tp x parallel.sp x parallel.cp 2 and 3 GPUs per node" in errors


@pytest.mark.slow
def test_offloading(plan: Command) -> None:
    """Offloading costs time and host memory, which is compared with the node's."""
    cluster = ("--nodes", "1", "--gpus-per-node", "2", "--gpu", "h100")
    offload = ("--set", "zero.offload_optimizer=true", "--set", "zero.stage=3")
    assert "host" not in plan(*cluster)[1]
    for given, said in ((), "(--host-gib) compares"), (("--host-gib", "9"), "KiB of 9.00 GiB: fits"):
        printed = plan(*cluster, *offload, *given)[1]
        assert said in printed
        assert "that it waits for the host" in printed
        assert "to make it fit" not in printed
        assert "host memory at 30% to 60%" in printed
    printed = plan(*cluster, *offload, "--host-gib", "0.0001")[1]
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
        assert _number(low) < _number(high) or name == "MFU"  # both are 0%, because the model is small


def _number(text: str) -> float:
    """Return a number of the report, such as 3%, 4.5 or 6.7K."""
    number = float(text.rstrip("%KMBT"))
    units = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
    return number * units.get(text[-1], 1.0)


def test_gpu_hours_and_money(plan: Command) -> None:
    """GPU-hours are the hours of the run times the number of GPUs, and the cost is GPU-hours times the price."""
    run = ("--set", "training.steps=1000000", "--set", "training.global_batch_size=32")
    cluster = ("--nodes", "2", "--gpus-per-node", "4", "--gpu", "h100", *run)
    _, printed, errors = plan(*cluster, "--price", "2.5")
    assert errors == ""
    hours = _numbers(printed, "hours for the run")
    gpu_hours = _numbers(printed, "GPU-hours for the run")
    money = _numbers(printed, "  cost at 2.5 a GPU-hour")
    assert gpu_hours == pytest.approx([8 * number for number in hours], rel=0.01)
    assert money == pytest.approx([2.5 * number for number in gpu_hours], rel=0.01)
    assert "cost at" not in plan(*cluster)[1]
    assert "cost at 2.5" in plan("--search", "--nodes", "1", "--gpus-per-node", "1", "--gpu", "h100", "--price", "2.5")[1]
    assert "--price needs a cluster" in plan("--price", "2")[2]
    for price in ("-1", "nan"):
        assert plan(*cluster, "--price", price)[0] == 2


def _numbers(printed: str, row: str) -> list[float]:
    """Return the ends of the range in a row of the report."""
    [line] = [line for line in printed.splitlines() if line.startswith(f"{row} ")]
    low, _, high = line.removeprefix(row).partition(" to ")
    return [float(number.replace(",", "")) for number in (low, high)]


@pytest.mark.slow
def test_advice_leads_to_a_plan_that_fits(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """A model that is too large for the GPU fits with the changes that are advised."""
    shape = {"hidden_size": 2048, "mlp_size": 8192, "num_heads": 16, "num_layers": 2, "vocab_size": 20000, "max_positions": 512}
    changes = {f"model.{key}": value for key, value in shape.items()} | {
        "data.sequence_length": 512,
        "training.micro_batch_size": 8,
    }
    changes |= {"zero.stage": 1, "zero.bucket_size": 1_000_000}
    small = load_gpu("h100").model_copy(update={"memory": 4 * 2**30})
    (tmp_path / "small.json").write_text(small.model_dump_json())
    raw_config["cluster"] = {"nodes": 1, "gpus_per_node": 1, "gpu": str(tmp_path / "small.json")}
    config = configure(raw_config, "x", changes)
    text = report(config)
    assert "DOES NOT FIT" in text
    advice = text.rpartition("the smallest change that makes it fit:")[2].partition(":")[0].split()[1::2]
    assert advice, text
    save_config(config, tmp_path / "config.json")
    advised = load_config(tmp_path / "config.json", advice)
    assert "DOES NOT FIT" not in report(advised)
    for searched, said in ((config, f"makes it fit:\n  --set {advice[0]}"), (advised, "the file's own: ")):
        found = search_report(searched)
        assert said in found, found
        assert "advised: " in found, found


def test_search(plan: Command) -> None:
    """A search needs a cluster, and prints a row for each of the best settings."""
    assert "search needs a cluster" in plan("--search")[2]
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
    assert "the search ended at its limit of 0 seconds: there may be faster settings" in printed
    assert "advised: the settings of the file" in printed  # all that was looked at


@pytest.mark.parametrize("name", GPUS)
def test_gpus_are_plausible(name: str) -> None:
    """An error by a power of ten in the table would pass all other tests."""
    gpu = load_gpu(name)
    assert 30 * 2**30 < gpu.memory < 300 * 2**30
    assert 1e14 < gpu.bfloat16_flops < 1e16
    assert gpu.network_bandwidth < gpu.node_bandwidth * 1.001 < gpu.memory_bandwidth
    assert 3e10 < gpu.host_link < 1e12
    assert 3e10 < gpu.host_bandwidth < 1e12


@pytest.mark.slow
def test_measured_steps_correct_the_time(plan: Command, raw_config: dict[str, Any], tmp_path: Path) -> None:
    """The fastest step of the nearest measured size decides, and links account for the remaining range. FP8 needs FP8 steps."""
    options = ("--nodes", "1", "--gpus-per-node", "1", "--gpu", "h100")
    raw_config["model"]["mlp_size"] = 48
    small, large, rounded = (json.loads(json.dumps(raw_config)) for _ in range(3))
    large["model"] |= {"hidden_size": 256, "num_layers": 4}
    rounded |= {"training": small["training"] | {"precision": "bfloat16", "fp8": "rowwise"}, "zero": {"stage": 2}}
    entries: list[dict[str, Any]] = [{"key": "machine/device", "name": "NVIDIA H100 80GB HBM3"}]
    for key, seconds, config in [
        ("step small/tape/sdpa/eager", 5.0, small),
        ("step small/tape/sdpa/compiled", 4.0, small),
        ("step small/rope/sdpa/eager", 1.0, small | {"model": small["model"] | {"encoding": "rope"}}),
        ("step large/tape/sdpa/eager", 2.0, large),
        ("fp8/small/tape/rowwise", 3.0, rounded),
    ]:
        entries.append({"key": key, "seconds": seconds, "config": config})
    results = tmp_path / "results.jsonl"
    results.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    status, printed, errors = plan(*options, "--measured", str(results))
    assert status == 0, errors
    assert re.search(r"measured on one H100: 0 M, 4 x 32 +4, estimated \S+ \(-100%\)", printed)
    assert re.search(r"corrected by it +4 to 4\n", printed)
    assert nearest_step(results, parse_config(rounded, "x")).seconds == 3.0

    for changes, message in [
        ({"encoding": "fire"}, "holds no training step with encoding fire and training.fp8 none"),
        ({}, "was measured on a potato, whose rates are not known"),
    ]:
        raw_config["model"] |= changes
        if not changes:
            entries[0]["name"] = "a potato"
            results.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        status, _, errors = plan(*options, "--measured", str(results))
        assert status == 2
        assert message in errors
    results.write_text("{}\n")
    assert "names no device: give the results.jsonl of" in plan(*options, "--measured", str(results))[2]
    assert "no measurements at nowhere" in plan(*options, "--measured", "nowhere")[2]
    assert "--measured corrects the time of a step on a cluster" in plan("--measured", str(results))[2]
