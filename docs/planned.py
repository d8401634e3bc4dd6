"""Writes the planner's tables into docs/results/planned.md: `python docs/planned.py`.

Each table lies between a comment with its name and `<!-- end -->`. The comments stay.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from megatape.accounting.gpus import load_gpu
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.memory_parts import MemoryPart
from megatape.accounting.memory.rank_memory import plan_memory
from megatape.accounting.whole_model.parameters import count_parameters
from megatape.config import ClusterConfig, Config, load_config, parse_config
from megatape.tools.planner.memory_requirements import memory_requirements
from megatape.tools.planner.planned_cluster import PlannedCluster
from megatape.tools.planner.report.stages import plan_stages
from megatape.tools.planner.step_time.links import sent_by_link
from megatape.tools.planner.step_time.speed import plan_speed
from megatape.utils.files.json_lines import read_lines
from megatape.utils.text.units import format_bytes, format_range

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/results/planned.md"
SPEEDS = ROOT / "docs/results/published_speeds.jsonl"

# Files of configs/ in the order of the table, and of configs/long/ without their encodings.
LADDER = ("155m", "350m", "1b", "3b", "7b", "8b_gqa", "13b", "70b_gqa")
LONG = ("155m_8k", "1b_32k", "7b_32k", "8b_gqa_128k")

# Modes of training.activation_checkpointing, and their chunks.
CHECKPOINTING = (("none", None), ("selective", None), ("full", None), ("full", 8192), ("offload", 8192))

# Sequence-parallel ranks of the longest samples.
SEQUENCE_RANKS = {"155m": 4, "350m": 8, "1b": 8, "3b": 8, "7b": 4, "8b_gqa": 4, "13b": 2, "70b_gqa": 1}

# Lengths that DeepSpeed's ALST publishes for Llama 3 8B, by number of GPUs.
ALST = {1: "500K", 8: "3.7M", 32: "15M"}

END = "<!-- end -->"

Row = list[str]


def speeds() -> str:
    """Return the table of published and measured speeds, next to the estimates."""
    rows = []
    for _, entry in read_lines(SPEEDS):
        config = parse_config(entry["config"], entry["run"])
        cluster = cluster_of(config)
        gpu = load_gpu(cluster.gpu).model_copy(update=entry.get("gpu", {}))
        layout = TrainingLayout.from_config(config, cluster.world_size)
        seconds = plan_speed(layout, PlannedCluster(cluster, gpu)).seconds
        tokens = config.step_tokens / cluster.world_size
        middle = tokens / seconds.middle
        published = entry["tokens/s per GPU"]
        source = "published"
        if not entry["source"].startswith("https://"):
            source = "measured"
        name = f"{entry['run']}, stage {config.zero.stage}, {cluster.world_size} {cluster.gpu}"
        link = f"[{source}]({entry['source'].removeprefix('docs/results/')})"
        estimate = f"{tokens / seconds.high:,.0f} to {tokens / seconds.low:,.0f}"
        rows.append([name, link, f"{published:,.0f}", estimate, f"{published / middle:.2f}"])
    header = ["run", "source", "tokens/s per GPU", "estimate", "over the middle of the estimate"]
    return markdown(header, rows)


def ladder(sizes: Sequence[str] = LADDER) -> str:
    """Return the table of TAPE's files in configs/, at their own ZeRO stage."""
    rows = [ladder_row(f"tape_{size}") for size in sizes]
    return markdown(["file", "parameters", "cluster", "T", "micro-batch", "GiB per GPU, needed of available", "MFU"], rows)


def ladder_row(name: str) -> Row:
    """Return a file's row in the table `ladder`."""
    config = load_config(ROOT / f"configs/{name}.json")
    cluster = cluster_of(config)
    gpu = load_gpu(cluster.gpu)
    layout = TrainingLayout.from_config(config, cluster.world_size)
    needed = memory_requirements(plan_memory(layout, on_gpu=True), PlannedCluster(cluster, gpu)).gpu.bytes
    worst, best = plan_speed(layout, PlannedCluster(cluster, gpu)).utilization
    micro = str(config.training.micro_batch_size)
    if config.training.activation_checkpointing != "none":
        micro += " and checkpointing"
    return [
        name,
        f"{count_parameters(config.model).total:,}",
        f"{cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu}",
        str(config.parallel.tp),
        micro,
        f"{needed / 2**30:.2f} of {gpu.memory / 2**30:.2f}",
        f"{worst:.0%} to {best:.0%}",
    ]


def stages(sizes: Sequence[str] = LADDER) -> str:
    """Return the table comparing ZeRO stages 3 and 1 for TAPE's files in configs/."""
    header = ["file", "GiB per GPU at stage 3", "at stage 1", "GiB sent in a step at stage 3", "at stage 1"]
    header += ["seconds per step at stage 3", "at stage 1"]
    return markdown(header, [stages_row(f"tape_{size}") for size in sizes])


def stages_row(name: str) -> Row:
    """Return a file's row in the table `stages`."""
    config = load_config(ROOT / f"configs/{name}.json")
    cluster = cluster_of(config)
    plans = {plan.stage: plan for plan in plan_stages(config, PlannedCluster.load(cluster))}
    both = (plans[3], plans[1])
    memory = [f"{plan.requirements.gpu.bytes / 2**30:.1f}" for plan in both]
    sent = [f"{plan.data_bytes / 2**30:.1f}" for plan in both]
    seconds = [format_range(*plan.seconds) for plan in both]
    return [name, *memory, *sent, *seconds]


def long_samples() -> str:
    """Return the table of configs/long/, TAPE and RoPE."""
    header = [
        "file",
        "cluster",
        "S",
        "micro-batch, checkpointing",
        "GiB per GPU, of 79",
        "bytes a GPU sends in a step in its node",
    ]
    header += ["to other nodes", "seconds per step"]
    return markdown(header, [long_row(name) for name in LONG])


def long_row(name: str) -> Row:
    """Return the row of TAPE's and RoPE's file in the table `long samples`."""
    pair = [load_config(ROOT / f"configs/long/{encoding}_{name}.json") for encoding in ("tape", "rope")]
    config = pair[0]
    cluster = cluster_of(config)
    gpu = load_gpu(cluster.gpu)
    memory = []
    inside = []
    outside = []
    seconds = []
    for each in pair:
        layout = TrainingLayout.from_config(each, cluster.world_size)
        requirements = memory_requirements(plan_memory(layout, on_gpu=True), PlannedCluster(cluster, gpu))
        sent = sent_by_link(layout, cluster.gpus_per_node).values()
        memory.append(f"{requirements.gpu.bytes / 2**30:.1f}")
        inside.append(format_bytes(sum(in_node for in_node, _ in sent)))
        outside.append(format_bytes(sum(to_others for _, to_others in sent)))
        seconds.append(format_range(*plan_speed(layout, PlannedCluster(cluster, gpu)).seconds))
    columns = [" / ".join(values) for values in (memory, inside, outside, seconds)]
    training = config.training
    return [
        name,
        f"{cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu}",
        str(config.parallel.sp),
        f"{training.micro_batch_size}, {training.activation_checkpointing}",
        *columns,
    ]


def checkpointing() -> str:
    """Return the table of memory for long samples, by activation checkpointing."""
    header = ["checkpointing", "N = 8k", "32k", "128k", "largest temporary at 128k", "in host memory at 128k"]
    header.append("GPU's bytes at 128k")
    return markdown(header, [checkpointing_row(mode, chunk) for mode, chunk in CHECKPOINTING])


def checkpointing_row(mode: str, chunk: int | None) -> Row:
    """Return the row for values of training.activation_checkpointing and training.chunk_tokens."""
    name = f"`{mode}`"
    if chunk is not None:
        name += f", chunks of {chunk:,} tokens"
    activations = []
    for length in (8192, 32768, 131072):
        changes = [f"model.max_positions={length}", f"data.sequence_length={length}", "parallel.tp=1", "parallel.sp=8"]
        changes += [f"training.activation_checkpointing={mode}", f"training.chunk_tokens={chunk or 'null'}"]
        config = load_config(ROOT / "configs/tape_8b_gqa.json", changes)
        layout = TrainingLayout.from_config(config, cluster_of(config).world_size)
        memory = plan_memory(layout, on_gpu=True)
        activations.append(_gib(memory.device[MemoryPart.ACTIVATIONS] + memory.device[MemoryPart.POSITION_ENCODING]))
    host = ""
    if MemoryPart.ACTIVATIONS in memory.host:
        host = _gib(memory.host[MemoryPart.ACTIVATIONS])
    return [name, *activations, _gib(memory.device[MemoryPart.LARGEST_TEMPORARY]), host, _gib(memory.device_total)]


def _gib(number: float) -> str:
    return f"{number / 2**30:.2f}"


def longest() -> str:
    """Return the table of TAPE's longest samples by file in configs/ and sequence-parallel ranks."""
    rows = []
    for size, ranks in SEQUENCE_RANKS.items():
        raw = load_config(ROOT / f"configs/tape_{size}.json").model_dump()
        raw["parallel"]["sp"] = ranks
        lengths = [f"{longest_sample(raw, gpu):,}" for gpu in ("h100", "h200")]
        rows.append([f"tape_{size}", str(ranks), *lengths])
    return markdown(["file", "S", "h100, 80 GB", "h200, 141 GB"], rows)


def longest_offloaded() -> str:
    """Return the table of the longest samples for the 8B shape, offloading optimizer and weights."""
    rows = []
    for gpus, published in ALST.items():
        row = [str(gpus)]
        for encoding in ("tape", "rope"):
            raw = load_config(ROOT / "configs/tape_8b_gqa.json").model_dump()
            raw["model"]["encoding"] = encoding
            raw["parallel"] |= {"tp": 1, "sp": min(gpus, 8)}
            raw["zero"] |= {"offload_optimizer": True, "offload_parameters": True}
            raw["cluster"] |= {"nodes": max(1, gpus // 8), "gpus_per_node": min(gpus, 8)}
            row.append(f"{longest_sample(raw, 'h100'):,}")
        rows.append([*row, published])
    return markdown(["h100 GPUs", "TAPE", "RoPE", "ALST"], rows)


def longest_sample(raw: dict[str, Any], gpu: str) -> int:
    """Return the tokens of the longest sample that fits a GPU with full activation checkpointing, a multiple of 1,024.

    Args:
        raw: Configuration as a dictionary, with a cluster.
        gpu: Name of the GPU.
    """

    def needed(thousands: int) -> float:
        """Return the GPU memory needed for samples with this many thousands (1,024) of tokens."""
        config = _with_length(raw, 1024 * thousands)
        cluster = cluster_of(config)
        layout = TrainingLayout.from_config(config, cluster.world_size)
        memory = plan_memory(layout, on_gpu=True)
        return memory_requirements(memory, PlannedCluster(cluster, load_gpu(gpu))).gpu.bytes

    available = load_gpu(gpu).memory
    short = 128
    long = 256
    slope = (needed(long) - needed(short)) / (long - short)  # memory is an affine function of the length
    thousands = short + int((available - needed(short)) / slope)
    while needed(thousands) > available:
        thousands -= 1
    while needed(thousands + 1) <= available:
        thousands += 1
    return 1024 * thousands


def _with_length(raw: dict[str, Any], length: int) -> Config:
    """Return a configuration with one sample of this length per micro-batch."""
    parallel = raw["parallel"]
    cluster = raw["cluster"]
    samples = cluster["nodes"] * cluster["gpus_per_node"] // (parallel["tp"] * parallel["sp"])
    training = {"micro_batch_size": 1, "global_batch_size": samples, "activation_checkpointing": "full"}
    changed = {
        "model": raw["model"] | {"max_positions": length},
        "data": raw["data"] | {"sequence_length": length},
        "training": raw["training"] | training,
    }
    return parse_config(raw | changed, "docs/planned.py")


def cluster_of(config: Config) -> ClusterConfig:
    """Return a configuration's cluster, which must exist."""
    assert config.cluster is not None
    return config.cluster


TABLES: dict[str, Callable[[], str]] = {
    "speeds": speeds,
    "ladder": ladder,
    "stages": stages,
    "long samples": long_samples,
    "checkpointing": checkpointing,
    "longest": longest,
    "longest with offloading": longest_offloaded,
}


def markdown(header: Row, rows: list[Row]) -> str:
    """Return a Markdown table without padding, so that a changed cell changes one line."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def table_of(page: str, name: str) -> str:
    """Return a table's text on the page."""
    match = re.search(rf"<!-- {name} -->\n(.*?){END}", page, re.DOTALL)
    assert match, f"docs/results/planned.md has no table between <!-- {name} --> and {END}"
    return match[1].strip()


def written(page: str) -> str:
    """Return the page with all tables replaced."""
    for name, table in TABLES.items():
        start = f"<!-- {name} -->\n"
        before, _, rest = page.partition(start)
        _, _, after = rest.partition(END)
        page = f"{before}{start}\n{table()}\n\n{END}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
