"""Published and measured training speeds, which the planner's estimates must contain."""

from dataclasses import dataclass

from megatape.accounting.gpus import Gpu, load_gpu
from megatape.config import ClusterConfig, Config, parse_config
from megatape.utils.files.json_lines import read_lines
from tests.helpers.processes.workers import ROOT

RESULTS = ROOT / "docs/results"


@dataclass(frozen=True)
class PublishedSpeed:
    """One training run's speed.

    Attributes:
        name: Name of the run.
        config: Its configuration.
        cluster: Its cluster.
        gpu: The cluster's GPU, with rates as stated by the source.
        tokens: Tokens per second and GPU.
    """

    name: str
    config: Config
    cluster: ClusterConfig
    gpu: Gpu
    tokens: float

    def __str__(self) -> str:
        return f"{self.name}, {self.cluster.world_size} {self.cluster.gpu}, stage {self.config.zero.stage}"


def published_speeds() -> list[PublishedSpeed]:
    """Read docs/results/published_speeds.jsonl."""
    runs = []
    for _, entry in read_lines(RESULTS / "published_speeds.jsonl"):
        config = parse_config(entry["config"], entry["run"])
        cluster = config.cluster
        assert cluster is not None
        gpu = load_gpu(cluster.gpu).model_copy(update=entry.get("gpu", {}))
        runs.append(PublishedSpeed(entry["run"], config, cluster, gpu, entry["tokens/s per GPU"]))
    return runs
