"""Keeps version 0.1's names of modules and definitions working, for users' own files.

`import megatape.parallel.mesh` imports megatape.distributed.mesh, and `from megatape.nn.parameters import Share` returns Shard.
Both warn with the new name. CHANGELOG.md lists the moves.

Two finders in sys.meta_path do this, so that the modules themselves need no lines for their old names. Their methods import
what they need, because this module is imported before the current directory leaves the search path (megatape/search_path.py).
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

# Package in version 0.1 or later -> module that has left it -> present name. "*" stands for all other modules in the package.
MOVED = {
    "megatape": {
        "files": "megatape.utils.files.files",
        "masking": "megatape.utils.text.url_secrets",
        "options": "megatape.utils.values.options",
        "paper": "megatape.lab.paper",
        "pictures": "megatape.lab.pictures",
        "tables": "megatape.utils.text.tables",
        "targets": "megatape.nn.targets",
        "torch_internals": "megatape.utils.pytorch.torch_internals",
        "units": "megatape.utils.text.units",
    },
    "megatape.accounting": {
        "flops": "megatape.accounting.whole_model.flops",
        "kv_cache": "megatape.accounting.whole_model.kv_cache",
        "parameters": "megatape.accounting.whole_model.parameters",
    },
    "megatape.attention": {
        "flex": "megatape.attention.backends.flex",
        "fused": "megatape.attention.backends.triton",
        "fused_rotation": "megatape.attention.rotating_backend",
        "operation": "megatape.attention.attend",
        "sdpa": "megatape.attention.backends.sdpa",
    },
    "megatape.benchmark": {
        "loader": "megatape.lab.benchmark.data.loader",
        "memory": "megatape.lab.benchmark.ranks.memory",
        "models": "megatape.lab.benchmark.models.shapes",
        "preparation": "megatape.lab.benchmark.data.preparation",
        "results": "megatape.lab.benchmark.gpu.results",
        "roofline": "megatape.lab.benchmark.roofline.roofline",
        "timing": "megatape.lab.benchmark.figures.timing",
        "*": "megatape.lab.benchmark.*",
    },
    "megatape.checkpoint": {
        "environment": "megatape.run_environment",
        "manifest": "megatape.checkpoint.format.manifest",
        "reader": "megatape.checkpoint.load.reader",
        "tensors": "megatape.checkpoint.format.tensors",
        "writer": "megatape.checkpoint.save.writer",
    },
    "megatape.checkpoint.format": {"base": "megatape.checkpoint.format.frozen_weights"},
    "megatape.cluster": {
        "job": "megatape.tools.cluster.slurm.job",
        "preflight": "megatape.tools.cluster.preflight.preflight",
        "*": "megatape.tools.cluster.*",
    },
    "megatape.config": {
        "batches": "megatape.config.sections.batches",
        "data": "megatape.config.sections.data",
        "distribution": "megatape.config.sections.distribution",
        "layer_pattern": "megatape.config.layers.layer_pattern",
        "lora": "megatape.config.sections.lora",
        "model": "megatape.config.sections.model",
        "run": "megatape.config.sections.run",
        "scaling": "megatape.config.sections.scaling",
        "training": "megatape.config.sections.training",
    },
    "megatape.hf": {
        "export": "megatape.hf.exporting.exporter",
        "folder_weights": "megatape.hf.weights.folder_weights",
        "importer": "megatape.hf.importing.importer",
        "model_card": "megatape.hf.exporting.model_card",
        "sampling": "megatape.hf.generation.sampling",
        "tokenizer": "megatape.hf.exporting.tokenizer",
    },
    "megatape.lab.report": {
        "runs": "megatape.lab.report.setup_tables",
        "suite_page": "megatape.lab.study.suite.page",
    },
    "megatape.lab.study.comparison": {"variants": "megatape.lab.study.variants"},
    "megatape.model": {
        "accounting": "megatape.accounting.whole_model.parameters",
        "backends": "megatape.model.smoke_test",
        "norm": "megatape.nn.norm",
    },
    "megatape.data.cleaning": {
        "classifier": "megatape.data.cleaning.rules.classifier",
        "decontamination": "megatape.data.cleaning.rules.decontamination",
        "distinct": "megatape.data.cleaning.rules.distinct",
        "quality": "megatape.data.cleaning.rules.quality",
        "repeated_lines": "megatape.data.cleaning.rules.repeated_lines",
        "urls": "megatape.data.cleaning.rules.urls",
    },
    "megatape.data.formats": {"format": "megatape.data.formats.token_format"},
    "megatape.data.shards": {
        "cache": "megatape.data.shards.reading.cache",
        "reader": "megatape.data.shards.reading.reader",
    },
    "megatape.data.training": {
        "dataset": "megatape.data.training.datasets.dataset",
        "loader": "megatape.data.training.batches.loader",
        "mixture": "megatape.data.training.mixing.mixture",
        "order": "megatape.data.training.mixing.order",
        "positions": "megatape.data.training.batches.positions",
    },
    "megatape.data.prepare": {
        "addition": "megatape.data.synthetic.addition_problems",
        "corpus": "megatape.data.prepare.options",
    },
    "megatape.model.encodings": {"*": "megatape.encodings.*"},
    "megatape.model.kernels": {"*": "megatape.encodings.kernels.*"},
    "megatape.nn": {"product": "megatape.nn.linear_function"},
    "megatape.parallel": {
        "collectives": "megatape.distributed.collectives",
        "launch": "megatape.nn.kernels.launch",
        "layout": "megatape.distributed.layout",
        "loss_kernel": "megatape.nn.kernels.loss",
        "mesh": "megatape.distributed.mesh",
        "recompute": "megatape.nn.remat.recompute",
        "remat": "megatape.nn.remat.remat",
        "traffic": "megatape.distributed.traffic",
        "*": "megatape.nn.*",
    },
    "megatape.plan": {
        "gpus": "megatape.accounting.gpus",
        "matrices": "megatape.accounting.sharding.whole_matrices",
        "memory": "megatape.accounting.memory.rank_memory",
        "needs": "megatape.tools.planner.memory_requirements",
        "operations": "megatape.tools.planner.kernels.operations",
        "remedy": "megatape.accounting.memory.fitting_change",
        "report": "megatape.tools.planner.report.report",
        "search": "megatape.tools.planner.search.search",
        "speed": "megatape.tools.planner.step_time.speed",
        "trace": "megatape.accounting.shapes.trace",
        "traffic": "megatape.accounting.traffic.rank_traffic",
        "work": "megatape.tools.planner.kernels.step_work",
        "zero3": "megatape.accounting.sharding.gathered_weights",
    },
    "megatape.report": {
        "runs": "megatape.lab.report.setup_tables",
        "suite_page": "megatape.lab.study.suite.page",
        "*": "megatape.lab.report.*",
    },
    "megatape.runtime": {
        "diagnosis": "megatape.reliability.watch.diagnosis",
        "encoding": "megatape.distributed.values.serialization",
        "exchange": "megatape.distributed.values.exchange",
        "launchers": "megatape.distributed.launch.launchers",
        "pace": "megatape.reliability.watch.pace",
        "private_folder": "megatape.utils.files.private_folder",
        "python_process": "megatape.utils.processes.python_process",
        "software": "megatape.software",
        "store": "megatape.distributed.launch.store",
        "topology": "megatape.distributed.topology",
        "waiting": "megatape.utils.processes.waiting",
        "watch": "megatape.reliability.watch.watch",
        "*": "megatape.reliability.*",
    },
    "megatape.study": {"*": "megatape.lab.study.*"},
    "megatape.study.suite": {
        "measure": "megatape.lab.study.suite.scores.measure",
        "records": "megatape.lab.study.suite.scores.record",
        "run": "megatape.lab.study.suite.suite",
        "statistics": "megatape.lab.study.suite.analysis.hypothesis_tests",
        "table": "megatape.lab.study.suite.tables.sections",
        "*": "megatape.lab.study.suite.*",
    },
    "megatape.training": {
        "build": "megatape.training.startup.engine.build_engine",
        "evaluation": "megatape.training.validation.evaluator",
        "hardware": "megatape.training.reporting.hardware",
        "position_view": "megatape.training.position_views.view",
        "prefetch": "megatape.training.steps.prefetch",
        "spike_policy": "megatape.training.steps.spike_policy",
        "state": "megatape.training.progress",
        "step": "megatape.training.reporting.step_metrics",
    },
    "megatape.tasks": {
        "lm_eval": "megatape.lab.tasks.lm_eval.task",
        "lm_eval_lengths": "megatape.lab.tasks.lm_eval.lengths",
        "lm_eval_model": "megatape.lab.tasks.lm_eval.model",
        "passkey": "megatape.lab.tasks.passkey.task",
        "perplexity": "megatape.lab.tasks.perplexity.task",
        "scrolls": "megatape.lab.tasks.scrolls.task",
        "*": "megatape.lab.tasks.*",
    },
    "megatape.tasks.engine": {"*": "megatape.lab.tasks.engine.*"},
    "megatape.utils": {"options": "megatape.utils.values.options"},
    "megatape.zero": {
        "compiler": "megatape.zero.setup.compiler_import",
        "distributed": "megatape.zero.setup.process_group",
        "internals": "megatape.zero.setup.internals",
        "matrices": "megatape.zero.update.whole_matrices",
        "matrix_state": "megatape.zero.state.matrix_state",
        "replicas": "megatape.zero.state.replica_check",
        "stopwatch": "megatape.zero.passes.stopwatch",
    },
}

# Present module -> name of a definition in version 0.1 -> present module and name.
RENAMED = {
    "megatape.attention.backend": {
        "Mask": "megatape.attention.backend:DocumentStarts",
        "Need": "megatape.attention.backend:AttentionRequirements",
    },
    "megatape.attention.backends.triton": {"Fused": "megatape.attention.backends.triton:TritonKernels"},
    "megatape.checkpoint.format.frozen_weights": {"Base": "megatape.checkpoint.format.frozen_weights:FrozenWeights"},
    "megatape.checkpoint.format.tensors": {
        "StoredWeights": "megatape.checkpoint.format.stored_weights:StoredWeights",
        "names_in_base": "megatape.checkpoint.format.stored_weights:names_in_base",
    },
    "megatape.checkpoint.load.reader": {"load_model": "megatape.hf.weights.checkpoint_weights:load_model"},
    "megatape.config.sections.training": {
        "OptimizerConfig": "megatape.config.sections.optimizer:OptimizerConfig",
        "ScheduleConfig": "megatape.config.sections.optimizer:ScheduleConfig",
    },
    "megatape.data.cleaning.near_duplicates": {
        "NearDuplicates": "megatape.data.cleaning.near_duplicates.near_duplicates:NearDuplicates",
    },
    "megatape.data.cleaning.rules.quality": {
        "PersonalData": "megatape.data.cleaning.rules.personal_data:PersonalData",
    },
    "megatape.data.prepare.options": {"Corpus": "megatape.data.prepare.options:PreparationOptions"},
    "megatape.distributed.layout": {
        "own_rows": "megatape.distributed.layout:local_rows",
        "whole_vocabulary": "megatape.distributed.layout:gather_vocabulary",
    },
    "megatape.distributed.traffic": {"CountTraffic": "megatape.distributed.traffic:TrafficCounter"},
    "megatape.distributed.launch.launchers": {
        "discover": "megatape.distributed.launch.launchers:set_up_ranks",
        "quiet_launcher": "megatape.distributed.launch.launcher_logs:quiet_launcher",
    },
    "megatape.distributed.launch.store": {"Messages": "megatape.distributed.values.messages:Messages"},
    "megatape.errors": {
        "check_line": "megatape.errors.text_checks:check_line",
        "check_text": "megatape.errors.text_checks:check_text",
        "did_you_mean": "megatape.errors.suggestions:did_you_mean",
    },
    "megatape.hf.generation": {
        "Continuation": "megatape.hf.generation.streamed_text:Continuation",
        "ConversationPrompts": "megatape.hf.generation.prompts:ConversationPrompts",
        "Prompt": "megatape.hf.generation.prompts:Prompt",
        "check_room": "megatape.hf.generation.prompts:check_room",
        "continue_prompts": "megatape.hf.generation.continuations:continue_prompts",
        "read_prompt": "megatape.hf.generation.prompts:read_prompt",
    },
    "megatape.hf.loading": {
        "LoadedModel": "megatape.hf.loading.loaded_model:LoadedModel",
        "load_exported": "megatape.hf.loading.load:load_exported",
        "load_trained": "megatape.hf.loading.load:load_trained",
        "read_model": "megatape.hf.loading.installed_model:read_model",
        "read_tokenizer": "megatape.hf.loading.exact_tokenizer:read_tokenizer",
    },
    "megatape.lab.tasks.engine.task": {
        "Interval": "megatape.lab.tasks.engine.result:Interval",
        "Measure": "megatape.lab.tasks.engine.result:Measure",
        "Result": "megatape.lab.tasks.engine.result:TaskScores",
        "wilson": "megatape.lab.tasks.engine.result:wilson",
    },
    "megatape.model.block": {"swiglu": "megatape.model.mlp:swiglu"},
    "megatape.nn.linear": {
        "VocabularyEmbedding": "megatape.nn.vocabulary:VocabularyEmbedding",
        "VocabularyHead": "megatape.nn.vocabulary:VocabularyHead",
    },
    "megatape.nn.parameters": {
        "Settings": "megatape.nn.parameters:ParameterSpec",
        "Share": "megatape.nn.parameters:Shard",
        "matrix": "megatape.nn.parameters:matrix_shape",
        "settings": "megatape.nn.parameters:spec_of",
        "share_of": "megatape.nn.parameters:shard_of",
    },
    "megatape.nn.remat.remat": {
        "in_chunks": "megatape.nn.remat.recompute:in_chunks",
        "keep_on_host": "megatape.nn.remat.recompute:keep_on_host",
        "linear": "megatape.nn.linear_function:linear",
        "recompute": "megatape.nn.remat.recompute:recompute",
    },
    "megatape.nn.targets": {"HIDES_ANSWERS": "megatape.data.training.datasets.example_dataset:HIDES_ANSWERS"},
    "megatape.optim.schedules": {
        "CosineRestartsOptions": "megatape.optim.legacy_schedules:CosineRestartsOptions",
        "InverseSqrtOptions": "megatape.optim.legacy_schedules:InverseSqrtOptions",
        "LearningRate": "megatape.optim.learning_rate:LearningRate",
        "check_new_run": "megatape.optim.legacy_schedules:check_new_run",
        "learning_rate": "megatape.optim.learning_rate:learning_rate",
    },
    "megatape.registry": {"TASKS": "megatape.lab.tasks.registry:TASKS"},
    "megatape.training.callbacks.callback": {"Sink": "megatape.training.sinks.sink:Sink"},
    "megatape.training.progress": {"TrainState": "megatape.training.progress:Progress"},
    "megatape.training.trainer": {"Start": "megatape.training.start:Start"},
    "megatape.zero.state": {
        "EMA": "megatape.zero.state.kinds:EMA",
        "Piece": "megatape.zero.state.piece:Piece",
        "Snapshot": "megatape.zero.state.snapshot:Snapshot",
        "WEIGHT": "megatape.zero.state.kinds:WEIGHT",
        "ZeroState": "megatape.zero.state.zero_state:ZeroState",
    },
}


def install() -> None:
    """Let imports find old names. Called before importing any other module in the package."""
    sys.meta_path.insert(0, OldDefinitions)
    sys.meta_path.append(OldModules)


class OldDefinitions:
    """Finds the modules in RENAMED, which get a `__getattr__` for old names of definitions once their code has run.

    It comes first in sys.meta_path, and asks the other finders for the module.
    """

    @staticmethod
    def find_spec(name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None) -> "ModuleSpec | None":
        """Return the spec of a module with renamed or moved definitions, or None."""
        if name not in RENAMED:
            return None
        for finder in sys.meta_path:
            # Python skips finders without `find_spec` as well.
            if finder is OldDefinitions or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _add_old_names(spec)
                return spec
        return None


def _add_old_names(spec: "ModuleSpec") -> None:
    """Let a spec's loader add the `__getattr__` to its module."""
    loader = spec.loader
    assert loader is not None
    run = loader.exec_module

    def exec_module(module: "ModuleType") -> None:
        run(module)
        module.__getattr__ = _old_names(spec.name)  # type: ignore[method-assign]

    loader.exec_module = exec_module  # type: ignore[method-assign]


def _old_names(module: str) -> "Callable[[str], object]":
    """Return the `__getattr__` for a module with renamed or moved definitions."""

    def __getattr__(name: str) -> object:
        target = RENAMED[module].get(name)
        if target is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        import warnings
        from importlib import import_module

        new_module, _, new_name = target.partition(":")
        warnings.warn(f"{module}.{name} is now {new_module}.{new_name}", FutureWarning, stacklevel=2)
        return getattr(import_module(new_module), new_name)

    return __getattr__


def current_name(module: str) -> str:
    """Return the present name of a module, which differs from `module` if it has moved since version 0.1."""
    package, _, name = module.rpartition(".")
    moves = MOVED.get(package, {})
    if name in moves:
        return moves[name]
    if "*" in moves and module not in MOVED:
        return moves["*"].replace("*", name)
    return module


class OldModules:
    """Finds moved modules under their old names, and empty packages in place of removed ones.

    It comes last in sys.meta_path, so Python only asks it about modules that are nowhere else.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        """Return the spec of a moved module, or None."""
        from importlib.machinery import ModuleSpec
        from importlib.util import find_spec

        if name in MOVED:
            return ModuleSpec(name, EmptyPackage(), is_package=True)  # type: ignore[arg-type]
        new_name = current_name(name)
        if new_name == name or find_spec(new_name) is None:
            return None
        return ModuleSpec(name, MovedModule(new_name))  # type: ignore[arg-type]


class EmptyPackage:
    """Loader for a package without own modules."""

    @staticmethod
    def create_module(spec: "ModuleSpec") -> None:
        """Let Python create the package."""

    @staticmethod
    def exec_module(module: "ModuleType") -> None:
        """Leave the package empty."""


class MovedModule:
    """Loader for a moved module, which is the same object under both names."""

    def __init__(self, new_name: str) -> None:
        self.new_name = new_name
        self.spec: ModuleSpec | None = None

    def create_module(self, spec: "ModuleSpec") -> "ModuleType":
        """Import the module, and warn about the old name."""
        import warnings
        from importlib import import_module

        module = import_module(self.new_name)
        # Python gives every loaded module a new spec. Remember the true one.
        self.spec = module.__spec__
        warnings.warn(f"{spec.name} has moved: import {self.new_name} instead", FutureWarning, stacklevel=2)
        return module

    def exec_module(self, module: "ModuleType") -> None:
        """Restore the module's spec. Its code has already run."""
        module.__spec__ = self.spec
