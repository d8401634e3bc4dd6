"""Resources of a Slurm job, which are options of `megatape submit`."""

from megatape.utils.values.options import CommandOptions, Count, option

# Default number of cores per rank with a GPU. Slurm's default is a single core, which prefetching, checkpoints and NCCL's
# threads would share.
CPUS_PER_GPU = 8


class Job(CommandOptions):
    """A Slurm job. None means the cluster's default.

    Attributes:
        nodes: number of nodes
        gpus_per_node: GPUs per node, one rank on each
        cpu_ranks_per_node: ranks per node, for training without GPUs
        cpus_per_rank: CPU cores per rank (default: 8 with a GPU; with --exclusive, its share of the
            node; otherwise Slurm's default)
        mem: memory per node, such as 400G (default: Slurm's; with --exclusive, all of it)
        exclusive: reserve whole nodes, with all their cores and memory
        partition: Slurm partition
        time: time limit of each start, such as 24:00:00; the job is requeued until the run is
            complete
        restarts: maximum number of restarts within the job if a rank dies; only while the run
            completes checkpoints
        account: Slurm account
        name: name of the job and its logs
        checkpoint_seconds: write the last checkpoint S seconds before the time limit
        interface: network interface for gloo and NCCL (default: the one that leads to rank 0)
        pyxis: container image to run with the pyxis plugin
        apptainer: container image to run with apptainer
        sbatch: other option of sbatch, such as --sbatch=--qos=high; repeatable
    """

    exactly_one = (("gpus_per_node", "cpu_ranks_per_node"),)
    at_most_one = (("pyxis", "apptainer"),)

    nodes: Count = option(metavar="N")
    gpus_per_node: Count | None = option(None, metavar="G")
    cpu_ranks_per_node: Count | None = option(None, metavar="R")
    cpus_per_rank: Count | None = option(None, metavar="C")
    mem: str | None = option(None, metavar="SIZE")
    exclusive: bool = False
    partition: str | None = None
    time: str | None = None
    restarts: int = option(0, ge=0, metavar="N")
    account: str | None = None
    name: str = "megatape"
    checkpoint_seconds: Count = option(300, metavar="S")
    interface: str | None = option(None, metavar="NAME")
    pyxis: str | None = option(None, metavar="IMAGE")
    apptainer: str | None = option(None, metavar="IMAGE")
    sbatch: tuple[str, ...] = option((), metavar="OPTION", repeatable=True)

    @property
    def ranks_per_node(self) -> int:
        """Number of ranks per node: one per GPU, or the number of ranks without GPUs."""
        ranks = self.gpus_per_node or self.cpu_ranks_per_node
        assert ranks is not None
        return ranks

    @property
    def requested_cpus(self) -> int | None:
        """Number of CPU cores to request per rank. None: Slurm's default, or all cores if the node is exclusive."""
        if self.cpus_per_rank:
            return self.cpus_per_rank
        if self.gpus_per_node and not self.exclusive:
            return CPUS_PER_GPU
        return None
