"""Resources of a Slurm job, as a part of the options of `megatape submit`."""

from megatape.utils.options import CommandOptions, Count, option

# Default number of cores of a rank with a GPU. By Slurm's own default, prefetching, checkpoints and NCCL's threads would share
# one core.
CPUS_PER_GPU = 8


class Job(CommandOptions):
    """A Slurm job. None means the cluster's default.

    Attributes:
        nodes: number of nodes
        gpus_per_node: GPUs per node, with one rank on each
        cpu_ranks_per_node: ranks per node without GPUs
        cpus_per_rank: CPU cores per rank (default: 8 with a GPU; with --exclusive, its share of the
            node; else Slurm's)
        mem: memory per node, as 400G (default: Slurm's; with --exclusive, all of it)
        exclusive: take whole nodes, with all their cores and memory
        partition: Slurm partition
        time: time limit of each start; the job is requeued until the run is complete
        restarts: start the run again in the same job if a rank dies, at most N times, while it
            advances
        account: Slurm account
        name: name of the job and its logs
        checkpoint_seconds: seconds before the time limit at which to write the last checkpoint
        interface: network interface of gloo and NCCL (default: the one to rank 0)
        pyxis: container image, run by the pyxis plugin
        apptainer: container image, run by apptainer
        sbatch: other sbatch option, as --sbatch=--qos=high; repeatable
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
        """Number of ranks on each node: one per GPU, or the ranks without GPUs."""
        ranks = self.gpus_per_node or self.cpu_ranks_per_node
        assert ranks is not None
        return ranks

    @property
    def requested_cpus(self) -> int | None:
        """CPU cores per rank to request. None: Slurm's default, or all cores of an exclusive node."""
        if self.cpus_per_rank:
            return self.cpus_per_rank
        if self.gpus_per_node and not self.exclusive:
            return CPUS_PER_GPU
        return None
