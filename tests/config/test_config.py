"""Complete configurations: the error for every kind of mistake, and micro-batches per step."""

from typing import Any

import pytest

from megatape.errors import ConfigError
from tests.helpers.runs.raw_config import MIXTURE, RAW, mixed, parse


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"trainig": {}}, ["trainig: unknown key", "did you mean training?"]),
        ({"model__hiden_size": 3}, ["model.hiden_size: unknown key", "did you mean hidden_size?", "num_layers"]),
        ({"optimizer__lr": 3}, ["optimizer.lr: unknown key", "learning_rate"]),
        ({"optimizer": {"kind": "adam", "betas": [0.9]}}, ["optimizer.kind is 'adam'", "choose one of adamw"]),
        ({"schedule": {"kind": "poly", "power": 2}}, ["schedule.kind is 'poly'"]),
        ({"optimizer": {"kind": ["muon"]}}, ["optimizer.kind: must be a valid string, got a list"]),
        ({"run__directory": "~/run"}, ["run.directory", "begins with ~", "write the whole path"]),
        ({"run__directory": "--wrap=x"}, ["run.directory", "'--wrap=x' begins with -", "write ./--wrap=x or another name"]),
        ({"data__path": "-d"}, ["data.path", "'-d' begins with -"]),
        ({"data__cache": "-c"}, ["data.cache", "'-c' begins with -"]),
        ({"training__init_from": "-i"}, ["training.init_from", "'-i' begins with -"]),
        ({"model__num_layers": "2"}, ["model.num_layers: must be a valid integer, got '2'"]),
        ({"model__num_layers": 2.5}, ["model.num_layers: must be a valid integer, got 2.5"]),
        ({"model__num_layers": 0}, ["model.num_layers: must be greater than 0, got 0"]),
        ({"model__tie_embeddings": 1}, ["model.tie_embeddings: must be a valid boolean, got 1"]),
        ({"model__encoding": "tpae"}, ["model.encoding is 'tpae': did you mean tape?"]),
        ({"model__encoding": "ntk"}, ["model.encoding is 'ntk': choose one of tape, tape_attention_only", "rope", "nope"]),
        (
            {"schedule": {"kind": "cosine", "decay_fraction": 0.1}},
            ["schedule.decay_fraction: not a key of kind cosine, but of wsd: remove it, or set schedule.kind to wsd"],
        ),
        ({"schedule": {"decay_fraction": 0.1}}, ["schedule.decay_fraction: not a key of kind linear, but of wsd"]),
        ({"optimizer": {"learning_rate": 1, "momentum": 0.9}}, ["optimizer.momentum: not a key of kind adamw, but of muon"]),
        (
            {"schedule": {"kind": "wsd", "decay_fration": 0.1}},
            ["schedule.decay_fration: unknown key; did you mean decay_fraction?"],
        ),
        (
            {"model__encoding": "alibi", "model__scaling": {"kind": "linear", "factor": 2.0}},
            ["scaling does not support encoding alibi", "tape, rope"],
        ),
        ({"model__encoding": "tape_vector", "model__scaling": {"kind": "linear", "factor": 2.0}}, ["encoding tape_vector"]),
        ({"model__scaling": {"kind": "linear"}}, ["model.scaling.factor: Field required"]),
        ({"model__scaling": {"kind": "linear", "factr": 2.0}}, ["model.scaling.factr: unknown key; did you mean factor?"]),
        (
            {"model__scaling": {"kind": "ntk", "factor": 2.0}},
            ["model.scaling.kind: must be 'linear', 'theta', 'yarn' or 'llama3', got 'ntk'"],
        ),
        ({"model__scaling": {"kind": "linear", "factor": 1.0}}, ["model.scaling.factor: must be greater than 1, got 1.0"]),
        ({"model__scaling": {"kind": "yarn", "factor": 2.0}}, ["model.scaling.original_length: Field required"]),
        (
            {"model__scaling": {"kind": "theta", "factor": 2.0, "original_length": 8}},
            ["model.scaling.original_length: not a key of kind theta, but of yarn and llama3: remove it, or set model.scaling"],
        ),
        (
            {"model__scaling": {"kind": "linear", "factor": 2.0, "beta_fast": 8.0}},
            ["scaling.beta_fast: not a key of kind linear"],
        ),
        (
            {"model__scaling": {"kind": "llama3", "factor": 2.0, "original_length": 8}},
            ["low_freq_factor: Field required"],
        ),
        (
            {"model__scaling": {"kind": "yarn", "factor": 2.0, "original_length": 8, "beta_slow": 64.0}},
            ["beta_slow 64.0 is not below beta_fast 32.0"],
        ),
        ({"export__family": "llama"}, ["export.family llama has no model with encoding tape", "choose one of tape"]),
        ({"export__family": "gpt"}, ["export.family is 'gpt'", "choose one of llama, mistral, qwen2, qwen3, tape"]),
        ({"export": {"push": "user/tape"}}, ["export push needs interval, the steps between exports: set it, or remove push"]),
        (
            {"export__interval": 30, "checkpoint__interval": 20},
            ["export.interval 30 is not a multiple of checkpoint.interval 20: change one of them"],
        ),
        ({"model__attention_bias": "kv"}, ["model.attention_bias: must be 'none', 'qkv' or 'qkvo', got 'kv'"]),
        ({"model__head_dim": 2, "model__scaling": {"kind": "theta", "factor": 2.0}}, ["head_dim above 2"]),
        (
            {"model__encoding": "sinusoidal", "model__hidden_size": 63, "model__head_dim": 16},
            ["hidden_size 63 is not a multiple"],
        ),
        ({"model__encoding": "xpos", "model__max_positions": 2**19}, ["max_positions 524288", "xpos", "the most that"]),
        ({"zero__stage": 4}, ["zero.stage: must be 0, 1, 2 or 3, got 4"]),
        ({"training": {"steps": 1}}, ["training.global_batch_size: Field required"]),
        ({"training": 3}, ["training: must be an object, got 3"]),
        (
            {"model__lora": {"rank": 2, "alpha": 2.0, "targets": ["key", "up", "key"]}, "training__trainable": ["adapters"]},
            ["model.lora", "targets names key twice"],
        ),
        (
            {"model__lora": {"rank": 2, "alpha": 2.0}},
            ['does not support training.trainable ["all"], which trains every weight'],
        ),
        (
            {"model__lora": {"rank": 2, "alpha": 2.0, "targets": ["head"]}, "training__trainable": ["adapters"]},
            ["model.lora.targets.0: must be 'query'", "got 'head'"],
        ),
        ({"model__num_heads": 5}, ["hidden_size 64", "num_heads 5"]),
        ({"model__num_kv_heads": 3}, ["num_heads 4", "num_kv_heads 3"]),
        ({"model__head_dim": 7}, ["head_dim 7 is not a multiple of 2: encoding tape"]),
        ({"model__head_dim": 7, "model__encoding": "xpos"}, ["head_dim 7 is not a multiple of 2: encoding xpos"]),
        ({"data__sequence_length": 64}, ["data.sequence_length 64", "model.max_positions 32"]),
        ({"data__samples": "files"}, ["data.samples: must be 'packed', 'best_fit', 'documents' or 'examples', got 'files'"]),
        ({"data__samples": "documents", "data__mask_documents": True}, ["mask_documents true has no effect"]),
        ({"data__prompt_end": "="}, ["prompt_end '=' needs samples documents"]),
        ({"data__prompt_end": "=", "data__samples": "examples"}, ["prompt_end '=' needs samples", "samples is examples"]),
        (
            {"data__samples": "documents", "data__prompt_end": ""},
            ["data.prompt_end: String should have at least 1 character, got ''"],
        ),
        ({"data__missing_prompt_end": "skip"}, ["missing_prompt_end skip needs prompt_end: set it"]),
        ({"data__path": "https://x/y"}, ["data https://x/y is read by way of a cache: set cache"]),
        ({"data": mixed(a={"path": "s3://x/y"})}, ["data s3://x/y is read by way of a cache"]),
        ({"data__cache_bytes": 9}, ["cache_bytes 9 limits cache, which is empty"]),
        ({"data__samples": "best_fit"}, ["samples best_fit needs mask_documents true"]),
        ({"data__length_warmup": [{"tokens": 9, "length": 5}]}, ["length_warmup has length 5: choose a divisor of", "32"]),
        (
            {"data__length_warmup": [{"tokens": 9, "length": 8}, {"tokens": 10, "length": 4}]},
            ["length_warmup has tokens=10 length=4 after tokens=9 length=8: both must grow"],
        ),
        (
            {"data__length_warmup": [{"tokens": 9, "length": 8}], "data__samples": "documents"},
            ["length_warmup cuts samples, which are whole with samples documents"],
        ),
        (
            {"data__length_warmup": [{"tokens": 9, "length": 2}], "parallel__tp": 4},
            ["data.length_warmup 2 is not a multiple of parallel.tp 4"],
        ),
        (
            {"data__length_warmup": [{"tokens": 9, "length": 4}], "training__num_shifted_groups": 4, "model__encoding": "rope"},
            ["data.length_warmup 4 is not a multiple of 8"],
        ),
        (
            {"data__window": 2, "data__samples": "documents"},
            ["window 2 needs samples packed or best_fit, samples is documents"],
        ),
        ({"data": {"sequence_length": 32}}, ["data path and mixture are both missing"]),
        ({"data__mixture": MIXTURE}, ["path and mixture are both given"]),
        ({"data": mixed(a={"path": "x", "weight": 1})}, ["no weight for b", "for every corpus, or for none"]),
        ({"data": mixed(a={"path": "x", "weigth": 1})}, ["data.mixture.a.weigth: unknown key; did you mean weight?"]),
        ({"data": mixed(**{"a.b": {"path": "x"}})}, ["data.mixture.a.b", "String should match"]),
        ({"data": mixed(a={"path": "x", "weight": 0}, b={"path": "y", "weight": 0})}, ["all weights of a mixture are 0"]),
        (
            {"data": mixed(a={"path": "x", "weight": 1}, b={"path": "y", "weight": 0}) | {"temperature": 2}},
            ["temperature 2.0 is for a mixture without weights"],
        ),
        ({"data__annealing": [{"tokens": 9, "weights": {"a": 1}}]}, ["annealing changes the weights of a mixture"]),
        (
            {"data": mixed() | {"annealing": [{"tokens": 9, "weights": {"a": 1}}]}},
            ["at 9 tokens has weights of a; mixture has a, b"],
        ),
        (
            {"data": mixed() | {"annealing": [{"tokens": 9, "weights": {"a": 1, "b": -1}}]}},
            ["annealing.0.weights.b: must be greater than or equal to 0, got -1"],
        ),
        ({"data": mixed() | {"annealing": [{"token": 9}]}}, ["annealing.0.token: unknown key; did you mean tokens?"]),
        (
            {"data": mixed() | {"annealing": [{"tokens": tokens, "weights": {"a": 1, "b": 1}} for tokens in (9, 9)]}},
            ["annealing at 9 tokens follows 9"],
        ),
        ({"training__precision": "bfloat16", "zero__stage": 0}, ["bfloat16", "zero.stage 0"]),
        ({"training__precision": "bfloat16", "zero__stage": 0}, ["bfloat16", "zero.stage 0", "use stage 1, 2 or 3"]),
        ({"optimizer__learning_rate": float("inf")}, ["optimizer.learning_rate", "finite"]),
        ({"parallel__tp": 3}, ["model.num_heads 4 is not a multiple of parallel.tp 3"]),
        ({"parallel__tp": 4, "model__num_kv_heads": 2}, ["model.num_kv_heads 2", "parallel.tp 4"]),
        ({"parallel__sp": 3}, ["model.num_heads 4 is not a multiple of parallel.tp 1 x parallel.sp 3 = 3"]),
        ({"parallel__sp": 4, "model__num_kv_heads": 2}, ["model.num_kv_heads 2", "x parallel.sp 4 = 4", "lower parallel.sp"]),
        ({"parallel__sp": 2, "parallel__tp": 4}, ["model.num_heads 4 is not a multiple of parallel.tp 4 x parallel.sp 2 = 8"]),
        (
            {"data__length_warmup": [{"tokens": 9, "length": 2}], "parallel__sp": 4},
            ["data.length_warmup 2 is not a multiple of parallel.tp 1 x parallel.sp 4"],
        ),
        (
            {"parallel__cp": 3},
            ["data.sequence_length 32 is not a multiple of parallel.cp 3 x 2 = 6: each of these ranks has two"],
        ),
        (
            {"parallel__cp": 2, "parallel__sp": 4, "data__sequence_length": 28},
            ["28 is not a multiple of parallel.cp 2 x 4 = 8"],
        ),
        (
            {"parallel__cp": 2, "data__length_warmup": [{"tokens": 9, "length": 2}]},
            ["data.length_warmup 2 is not a multiple of parallel.cp 2 x 2 = 4"],
        ),
        (
            {"parallel__cp": 2, "model__encoding": "fox"},
            [
                "parallel.cp 2 does not support encoding fox, because the ranks do not exchange what it sums up",
                "or set parallel.cp to 1",
            ],
        ),
        (
            {"parallel__cp": 2, "model__encoding": "alibi"},
            ["parallel.cp 2 does not support encoding alibi, because the ring of ranks computes no"],
        ),
        (
            {"parallel__cp": 2, "model__encoding": "rope", "training__num_shifted_groups": 2},
            ["parallel.cp 2 does not support training.num_shifted_groups 2", "remove it"],
        ),
        (
            {"parallel__cp": 2, "model__attention_scale": "log_n"},
            ["parallel.cp 2 does not support model.attention_scale log_n", "remove it"],
        ),
        ({"training__num_shifted_groups": 1}, ["training.num_shifted_groups: must be greater than or equal to 2, got 1"]),
        (
            {"training__num_shifted_groups": 4},
            ["groups 4 does not support encoding tape: remove it, or choose rope"],
        ),
        (
            {"training__num_shifted_groups": 5, "model__encoding": "rope"},
            ["data.sequence_length 32 is not a multiple of 10: the groups of training.num_shifted_groups 5"],
        ),
        (
            {"training__num_shifted_groups": 4, "model__encoding": "rope", "model__num_kv_heads": 1},
            ["model.num_kv_heads 1 is not a multiple of 2: training.num_shifted_groups 4"],
        ),
        ({"zero__stage": 0, "zero__offload_optimizer": True}, ["offload_optimizer", "stage"]),
        ({"model__scaling": "linear"}, ["model.scaling: must be an object, got 'linear'"]),
        ({"zero__zero_hpz_partition_size": 2}, ["zero.zero_hpz_partition_size: unknown key", "allowed: stage"]),
        ({"training__train_batch_size": 2}, ["training.train_batch_size: unknown key", "global_batch_size"]),
        ({"cluster": {"nodes": 1, "gpus_per_node": 8}}, ["cluster.gpu: Field required"]),
        ({"zero__stage": 2, "zero__offload_parameters": True}, ["offload_parameters", "stage is 2"]),
        ({"zero__stage": 2, "zero__hpz_ranks": 2}, ["hpz_ranks 2 needs stage 3; stage is 2"]),
        (
            {"zero__hpz_ranks": 2, "parallel__tp": 2},
            ["hpz_ranks 2 does not support parallel.tp 2", "set parallel.tp to 1"],
        ),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        parse(**changes)
    for part in ["here.json", *parts]:
        assert part in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"run__directory": "runs/x\ntouch injected\n#"},
        {"data__path": "data\rx"},
        {"data": mixed(a={"path": "x\ny"})},
        {"data__cache": "/tmp\x00"},
        {"training__init_from": "base\x1b[2J"},
    ],
    ids=str,
)
def test_a_path_stays_within_its_line(changes: dict[str, Any]) -> None:
    """Batch scripts contain these values."""
    with pytest.raises(ValueError, match="has the control character"):
        parse(**changes)


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(ValueError, match=r"(?s)model\.num_layers.*training\.steps"):
        parse(model__num_layers="2", training__steps=0)


def test_batch_arithmetic_prints_the_equation() -> None:
    config = parse()
    assert config.num_micro_batches(2) == 2
    assert parse(parallel__tp=2).num_micro_batches(2) == 4
    for world_size in (0, -2):
        with pytest.raises(ValueError, match=f"{world_size} processes"):
            config.check_divides(world_size)
    with pytest.raises(ValueError, match=r"3 processes .* parallel.tp 2"):
        parse(parallel__tp=2).num_micro_batches(3)
    assert parse(parallel__sp=2).num_micro_batches(2) == 4
    assert parse(parallel__sp=2).num_replicas(2) == 2
    with pytest.raises(ValueError, match=r"2 processes .* parallel.tp 2 x parallel.sp 2 = 4: .* or parallel.sp"):
        parse(parallel__tp=2, parallel__sp=2).num_micro_batches(2)
    assert parse(parallel__cp=2).num_micro_batches(2) == 4
    assert parse(parallel__cp=2, parallel__sp=2).num_replicas(8) == 8
    with pytest.raises(ValueError, match=r"2 processes .* parallel.tp 2 x parallel.cp 2 = 4: .* or parallel.cp"):
        parse(parallel__tp=2, parallel__cp=2).num_micro_batches(2)
    with pytest.raises(
        ValueError, match=r"global_batch_size 8 = micro_batch_size 2 x data-parallel ranks 3 x accumulation 1\.333"
    ):
        config.check_divides(3)


def test_a_misspelled_field_is_not_missing_as_well() -> None:
    """One typo of a required field is one line, which suggests the field. A field that is missing besides has its own line."""
    model = dict(RAW["model"])
    model["hiden_size"] = model.pop("hidden_size")
    del model["mlp_size"]
    with pytest.raises(ConfigError) as caught:
        parse(model=model)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert "model.mlp_size: Field required" in lines[1]
    assert "model.hiden_size: unknown key; did you mean hidden_size?" in lines[2]
