"""megatape submit: megatape submit --config configs/tape_155m.json --nodes 4 --gpus-per-node 8 --time 24:00:00 --partition gpu"""

import argparse
from pathlib import Path

from megatape.commands import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    options.add_config(parser)
    parser.add_argument("--resume", choices=["auto"], help="continue in a folder that already holds checkpoints")
    parser.add_argument("--print", action="store_true", help="check everything, show the batch script, and stop")
    parser.add_argument("--nodes", type=options.positive, required=True, metavar="N")
    ranks = parser.add_mutually_exclusive_group(required=True)
    ranks.add_argument("--gpus-per-node", type=options.positive, metavar="G", help="GPUs of a node, one rank on each")
    ranks.add_argument("--cpu-ranks-per-node", type=options.positive, metavar="R", help="ranks of a node without GPUs")
    parser.add_argument("--cpus-per-rank", type=options.positive, metavar="C")
    parser.add_argument("--partition")
    parser.add_argument("--time", help="limit of one start; the run is queued again as often as it needs")
    parser.add_argument("--account")
    parser.add_argument("--name", default="megatape", help="of the job and its logs (default: %(default)s)")
    parser.add_argument(
        "--checkpoint-seconds",
        type=options.positive,
        default=300,
        metavar="S",
        help="write the last checkpoint this long before the time limit (default: %(default)s)",
    )
    parser.add_argument(
        "--study", type=Path, metavar="FILE", help="job array: one line of SECTION.KEY=VALUE changes for each run"
    )
    parser.add_argument("--interface", metavar="NAME", help="network interface for gloo and NCCL instead of the chosen one")
    image = parser.add_mutually_exclusive_group()
    image.add_argument("--pyxis", metavar="IMAGE", help="run in this container by the pyxis plugin")
    image.add_argument("--apptainer", metavar="IMAGE", help="run in this container by apptainer")
    parser.add_argument(
        "--sbatch", action="append", default=[], metavar="OPTION", help="any other option, --sbatch=--mem=0; repeatable"
    )


def run(args: argparse.Namespace) -> int:
    """Check, then print the batch script or queue it."""
    from megatape.cluster.slurm import Container, Job, check, plan_study, render, submit

    image = args.pyxis or args.apptainer
    job = Job(
        name=args.name,
        nodes=args.nodes,
        ranks_per_node=args.gpus_per_node or args.cpu_ranks_per_node,
        gpus=args.gpus_per_node is not None,
        partition=args.partition,
        time=args.time,
        account=args.account,
        cpus_per_rank=args.cpus_per_rank,
        checkpoint_seconds=args.checkpoint_seconds,
        interface=args.interface,
        container=Container("pyxis" if args.pyxis else "apptainer", image) if image else None,
        options=tuple(args.sbatch),
    )
    study = plan_study(args.config, args.set, args.study)
    check(study, job, resume=args.resume is not None)
    if args.print:
        print(render(study, job, study.directory / "submissions" / "TIME"), end="")
        return 0
    number, folder = submit(study, job)
    print(f"job {number}; what it runs: {folder}; its logs: {study.directory / 'logs'}")
    return 0
