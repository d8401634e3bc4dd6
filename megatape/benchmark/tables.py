"""table.md: the results of a benchmark as docs/benchmarks.md has them.

Ratios are to the fastest RoPE: of its ways to run the same thing the one that took least, and each way was measured in the same
rounds as one that is common to all.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from megatape.benchmark.journal import Result, measured
from megatape.tables import markdown
from megatape.units import format_bytes

Results = dict[str, Result]

# TAPE over the fastest RoPE in a whole training step, at most, by shape.
STEP_TARGETS = {"155m": 1.10, "1b": 1.08, "7b": 1.07}
LAYER_TARGET = 1.23  # attention layer, forward: what the paper's fused one takes
SAVED_TARGET = 1.08  # bytes that a training step keeps for its backward pass
MFU_TARGET = ("1b", 0.45)
TOP_KERNELS = 12


def report(results: Results) -> str:
    """All tables, and what is missing."""
    sections = (
        _machine,
        _targets,
        _steps,
        _attention,
        _update,
        _ceilings,
        _fp8,
        _pretrain,
        _serving,
        _precision,
        _profile,
        _tests,
    )
    paragraphs = [paragraph for section in (*sections, _missing) for paragraph in section(results)]
    return "\n\n".join(paragraphs) + "\n"


def _of(results: Results, part: str) -> Iterator[tuple[list[str], Result]]:
    """The words of each key of a part behind the part's name, and what was measured."""
    for key, result in results.items():
        name, *words = key.split("/")
        if name == part and words and measured(result):
            yield words, result


def _titled(title: str, header: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    """A table with a title, unless it is empty."""
    if rows := list(rows):
        yield f"**{title}**"
        yield markdown(header, rows)


def _machine(results: Results) -> Iterator[str]:
    device, versions = (results.get(f"machine/{name}", {}) for name in ("device", "versions"))
    known = {name: text for name, text in versions.items() if name not in ("error", "C compiler")}
    if device.get("name"):
        yield f"Measured on {device['name']}, " + ", ".join(f"{name} {text or 'missing'}" for name, text in known.items()) + "."


def _targets(results: Results) -> Iterator[str]:
    rows = []
    for shape, target in STEP_TARGETS.items():
        ratios = _step_ratios(results, shape)
        tape = [ratio for (encoding, _, _), ratio in ratios.items() if encoding == "tape"]
        rows.append(_target(f"training step at {shape}, TAPE over RoPE", min(tape, default=None), target))
    for shape in STEP_TARGETS:
        saved = _saved_ratios(results, shape)
        if shape != "7b":
            rows.append(
                _target(f"saved activations at {shape}, TAPE over RoPE", min(saved.values(), default=None), SAVED_TARGET)
            )
    layers = _over_rope({(w[0], w[1]): r["ratio"] for w, r in _of(results, "step 155m") if w[-1] == "attention layer"})
    tape = [ratio for (encoding, _), ratio in layers.items() if encoding == "tape"]
    rows.append(_target("attention layer forward at 155m, TAPE over RoPE", min(tape, default=None), LAYER_TARGET))
    shape, share = MFU_TARGET
    reached = [r["MFU"] for w, r in _of(results, f"step {shape}") if w[0] == "tape" and "MFU" in r]
    if reached:
        rows.append([f"MFU of TAPE at {shape}", f"{max(reached):.0%}", f"at least {share:.0%}", _met(max(reached) >= share)])
    yield from _titled("Targets", ["", "measured", "target", "met"], [row for row in rows if row])


def _target(name: str, ratio: float | None, target: float) -> list[str]:
    return [] if ratio is None else [name, f"{ratio:.3f}", f"at most {target}", _met(ratio <= target)]


def _met(met: bool) -> str:
    return "yes" if met else "no"


def _over_rope(ratios: dict[Any, float]) -> dict[Any, float]:
    """Ratios to something common to all as ratios to the fastest RoPE. Keys begin with the encoding."""
    fastest = min((ratio for key, ratio in ratios.items() if key[0] == "rope"), default=None)
    return {key: ratio / fastest for key, ratio in ratios.items()} if fastest else {}


def _step_ratios(results: Results, shape: str) -> dict[tuple[str, str, str], float]:
    """Encoding, backend, mode -> time over the fastest RoPE."""
    return _over_rope({(w[0], w[1], w[2]): r["ratio"] for w, r in _of(results, f"step {shape}") if w[2] != "attention layer"})


def _saved_ratios(results: Results, shape: str) -> dict[str, float]:
    """Backend of TAPE -> saved bytes over the least of RoPE, without activation checkpointing."""
    saved = {(w[0], w[1]): r["saved bytes"] for w, r in _of(results, f"step {shape}") if w[2] == "eager" and "saved bytes" in r}
    return {backend: ratio for (encoding, backend), ratio in _over_rope(saved).items() if encoding == "tape"}


def _steps(results: Results) -> Iterator[str]:
    rows = []
    for shape in STEP_TARGETS:
        ratios = _step_ratios(results, shape)
        for words, r in _of(results, f"step {shape}"):
            if (key := (words[0], words[1], words[2])) in ratios:
                bytes_ = [format_bytes(r[name]) if name in r else "" for name in ("saved bytes", "peak bytes", "planned bytes")]
                mfu = f"{r['MFU']:.1%}" if "MFU" in r else ""
                label = f"{shape}, from {' and '.join(r['extrapolated from'])} layers" if "extrapolated from" in r else shape
                numbers = [_milliseconds(r["seconds"]), f"{ratios[key]:.3f}", f"{r['tokens/s']:,.0f}", mfu]
                rows.append([label, *key, *numbers, *bytes_])
    header = ["shape", "encoding", "attention", "", "ms", "over the fastest RoPE", "tokens/s", "MFU"]
    yield from _titled("Training steps", [*header, "saved", "peak of activations", "planned"], rows)


def _attention(results: Results) -> Iterator[str]:
    cases: dict[str, dict[tuple[str, str], Result]] = {}
    for (case, attends, way), r in _of(results, "attention"):
        cases.setdefault(case, {})[{"plain": "rope", "moving": "tape"}.get(attends, attends), way] = r
    rows = []
    for case, ways in cases.items():
        forward, step = (_over_rope({key: r[part]["ratio"] for key, r in ways.items()}) for part in ("forward", "step"))
        for key, r in ways.items():
            if forward:
                times = [_milliseconds(r["forward"]["seconds"]), f"{forward[key]:.2f}"]
                times += [_milliseconds(r["step"]["seconds"]), f"{step[key]:.2f}"]
                rows.append([case, *key, *times, f"{r['error of outputs']:.1e}", f"{r['error of gradients']:.1e}"])
    header = ["shape", "attention", "by", "forward, ms", "over the fastest RoPE", "and backward, ms", "over the fastest RoPE"]
    yield from _titled("Attention with rotation, one layer", [*header, "error of outputs", "of gradients"], rows)


def _update(results: Results) -> Iterator[str]:
    rows = []
    for (shape, name), r in _of(results, "update"):
        parts = [r["forward"], r["step"]]
        numbers = [
            [_milliseconds(part["seconds"]), format_bytes(part["bytes"]), f"{part['ratio to a copy']:.2f}"] for part in parts
        ]
        rows.append([shape, name, *numbers[0], *numbers[1]])
    header = ["shape", "", "forward, ms", "bytes", "over a copy", "and backward, ms", "bytes", "over a copy"]
    yield from _titled("Rotation and position update, beside a copy of the fewest bytes", header, rows)


def _ceilings(results: Results) -> Iterator[str]:
    rows = []
    for words, r in _of(results, "ceilings"):
        rate = f"{r['bytes/s'] / 1e12:.2f} TB/s" if "bytes/s" in r else f"{r['FLOP/s'] / 1e12:.1f} TFLOP/s"
        rows.append([", ".join(words), rate])
    yield from _titled("Ceilings", ["", "rate"], rows)


def _fp8(results: Results) -> Iterator[str]:
    rows = [
        [*words, _milliseconds(r["seconds"]), f"{r['ratio']:.3f}", f"{r['tokens/s']:,.0f}"] for words, r in _of(results, "fp8")
    ]
    yield from _titled("Training steps in FP8", ["shape", "encoding", "recipe", "ms", "over bfloat16", "tokens/s"], rows)


def _pretrain(results: Results) -> Iterator[str]:
    rows = [
        [
            ", ".join(words),
            _milliseconds(r["seconds"]),
            _milliseconds(r["bare seconds"]),
            f"{r['ratio']:.2f}",
            format_bytes(r["peak bytes"]),
            format_bytes(r["planned bytes"]),
        ]
        for words, r in _of(results, "pretrain")
    ]
    yield from _titled("megatape pretrain", ["", "ms a step", "bare, ms", "ratio", "peak", "planned"], rows)


def _serving(results: Results) -> Iterator[str]:
    rows = []
    for words, r in _of(results, "serving"):
        prompt, token = r["prompt"], r["token"]
        times = [_milliseconds(prompt["seconds"]), f"{prompt['ratio']:.2f}", _milliseconds(token["seconds"])]
        rows.append([", ".join(words), *times, f"{token['ratio']:.2f}"])
    header = ["prompts", "prompt, ms", "over Llama", "token, ms", "over Llama"]
    yield from _titled("Exported TAPE", header, rows)


def _precision(results: Results) -> Iterator[str]:
    rows = [[*words, f"{r['last losses']:.4f}"] for words, r in _of(results, "precision")]
    yield from _titled("Mean loss of the last of 200 steps", ["", "", "nats"], rows)


def _profile(results: Results) -> Iterator[str]:
    runs = {", ".join(words): r for words, r in _of(results, "profile")}
    header = ["", "ms a step", "GPU busy", "kernels", "waits of the host"]
    rows = []
    for name, r in runs.items():
        busy = r["busy seconds"] / r["seconds"]
        rows.append([name, _milliseconds(r["seconds"]), f"{busy:.0%}", f"{r['kernels']:.0f}", f"{r['waits']:.0f}"])
    yield from _titled("Profile of a step", header, rows)
    for name, r in runs.items():
        top = r["top"][:TOP_KERNELS]
        rows = [[f"`{each['name']}`", f"{each['calls']:.0f}", _milliseconds(each["seconds"])] for each in top]
        yield from _titled(f"Kernels of a step, {name}", ["", "calls", "ms"], rows)


def _tests(results: Results) -> Iterator[str]:
    of_tests = {key: result for key, result in results.items() if key.startswith("tests/")}
    if of_tests:
        kinds = Counter("failed" if "error" in r else "skipped" if "skipped" in r else "passed" for r in of_tests.values())
        yield f"Tests marked gpu: {', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}."


def _missing(results: Results) -> Iterator[str]:
    rows = [[key, r.get("error") or f"left out: {r['left out']}"] for key, r in results.items() if not measured(r)]
    yield from _titled("Not measured", ["", "why"], [[key, why.replace("|", "/")] for key, why in rows])


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:,.0f}"
