"""Measurements behind docs/benchmarks.md.

python launch/benchmark.py precision                            drift of bfloat16, by precision of the position residual
python launch/benchmark.py loss                                 bytes of the loss: by chunks, and all logits at once
python launch/benchmark.py memory                               resident memory per rank by ZeRO stage and tensor ranks
python launch/benchmark.py scaling                              step time by layers, length and processes
python launch/benchmark.py startup                              seconds from the command to the first step of tape_tiny
"""

import argparse
import subprocess
import sys
import tempfile
import time

import torch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    precision = commands.add_parser("precision")
    precision.add_argument("--layers", type=int, default=12)
    for name in ("loss", "memory", "scaling", "startup"):
        commands.add_parser(name)
    args = parser.parse_args()
    if args.command == "precision":
        show_precision(args.layers)
    else:
        {"loss": show_loss, "memory": show_memory, "scaling": show_scaling, "startup": show_startup}[args.command]()
    return 0


def show_precision(layers: int) -> None:
    from megatape.study.precision import drift

    rows = drift(layers)
    print(f"bfloat16 against float32, {layers} layers of the 155M shape: relative difference behind each layer")
    print(
        "| layer | "
        + " | ".join(f"{part}, E in {str(row.state_dtype)[6:]}" for row in rows for part in ("norm of E", "E"))
        + " |"
    )
    print("|---" * (1 + 2 * len(rows)) + "|")
    for layer in range(layers):
        values = [f"{value:.1e}" for row in rows for value in (row.norm[layer], row.state[layer])]
        print(f"| {layer} | " + " | ".join(values) + " |")
    print("logits: " + ", ".join(f"{row.logits:.2e} with E in {str(row.state_dtype)[6:]}" for row in rows))


def show_loss() -> None:
    from megatape.study.loss_memory import peaks

    print(
        "Peak bytes of the loss, forward and backward, N 8192, C 4096, beyond hidden states, output matrix and their gradients (on shapes)"
    )
    print("| vocabulary | precision | by chunks | all logits | ratio |")
    print("|---|---|---|---|---|")
    for vocab_size in (32_000, 65_536, 131_072):
        for dtype in (torch.float32, torch.bfloat16):
            chunked, plain = peaks(8192, 4096, vocab_size, dtype)
            sizes = f"{chunked / 2**30:.2f} GiB | {plain / 2**30:.2f} GiB | {chunked / plain:.2f}"
            print(f"| {vocab_size} | {str(dtype)[6:]} | {sizes} |", flush=True)


def show_memory() -> None:
    from megatape.model.accounting import count_parameters
    from megatape.study.ranks import measure, planned_bytes, settings

    print("Resident memory per rank in MiB, 155M shape, float32, N 128, one sequence a data rank, buckets of 5 M elements")
    print("| ZeRO stage | data x tensor ranks | peak initializing | initialized | peak of training | planned |")
    print("|---|---|---|---|---|---|")
    cases = [(stage, ranks, 1) for stage in (0, 1, 2, 3) for ranks in (1, 2, 4)]
    cases += [(3, size, size) for size in (2, 4)]
    for stage, world_size, tensor_size in cases:
        changes = {"zero.stage": stage, "parallel.tp": tensor_size}
        found = measure(world_size, changes)
        measured = (found.peak_initializing, found.initialized, found.peak)
        sizes = _mebibytes(*measured, planned_bytes(world_size, changes))
        print(f"| {stage} | {world_size // tensor_size} x {tensor_size} | {sizes} |", flush=True)

    print("\nInitialization at stage 3 on four ranks: the float32 weights of the whole model, and one rank, in MiB")
    print("| layers | data x tensor ranks | whole model's weights | peak initializing | initialized |")
    print("|---|---|---|---|---|")
    for layers in (6, 12, 24):
        for tensor_size in (1, 2, 4):
            changes = {"model.num_layers": layers, "parallel.tp": tensor_size}
            found = measure(4, changes)
            weights = 4 * count_parameters(settings(4, changes).model).total
            sizes = _mebibytes(weights, found.peak_initializing, found.initialized)
            print(f"| {layers} | {4 // tensor_size} x {tensor_size} | {sizes} |", flush=True)


def _mebibytes(*sizes: float) -> str:
    return " | ".join(f"{size / 2**20:.0f}" for size in sizes)


def show_scaling() -> None:
    from megatape.study.ranks import measure

    print("Seconds per step, width of the 155M shape, float32, ZeRO stage 3, one sequence a data rank")
    print("| layers | N | data x tensor ranks | seconds | over the first of its kind |")
    print("|---|---|---|---|---|")
    for kind in (
        [(layers, 256, 1, 1) for layers in (2, 4, 8)],
        [(4, length, 1, 1) for length in (256, 512, 1024, 2048)],
        [(4, 512, ranks, 1) for ranks in (1, 2, 4)],
        [(4, 512, size, size) for size in (1, 2, 4)],
    ):
        first = 0.0
        for layers, length, world_size, tensor_size in kind:
            changes = {"model.num_layers": layers, "data.sequence_length": length, "parallel.tp": tensor_size}
            seconds = measure(world_size, changes).seconds
            first = first or seconds
            ranks = f"{world_size // tensor_size} x {tensor_size}"
            print(f"| {layers} | {length} | {ranks} | {seconds:.2f} | {seconds / first:.2f} |", flush=True)


def show_startup() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = ["deepspeed", "--num_accelerators", "2", "launch/pretrain.py", "--config", "configs/tape_tiny.json"]
        command += ["--set", "training.steps=2", "--set", f"run.directory={folder}/run", "--set", "data.path=runs/data/python"]
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        output = []
        for line in process.stdout:
            output.append(line)
            if line.startswith("step 1/"):
                print(f"{time.perf_counter() - started:.1f} s from the command to the end of the first step")
        if process.wait():
            sys.exit("".join(output[-20:]) + "the run failed; it needs runs/data/python, which launch/quickstart.py prepares")


if __name__ == "__main__":
    sys.exit(main())
