"""Everything that a configuration or a command selects by name. A line says where it is defined and what constrains its use.

To add something, write its file and its line here (the table in CONTRIBUTING.md). A program outside of this package
adds its entries when it starts (examples/add_encoding.py). Nothing here imports torch, so checking a configuration or
printing help does not either.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A named definition.

    target: its "package.module:attribute". description: a phrase for help texts, tables and model cards.
    """

    target: str
    description: str

    def load(self) -> Any:
        """Import and return the definition."""
        return resolve_name(self.target)


@dataclass(frozen=True)
class EncodingEntry(Entry):
    """A position encoding: a subclass of megatape.encodings.encoding.Encoding.

    rotates           it rotates pairs of a head's channels, so head_dim must be even
    scalable          model.scaling may rescale its frequencies
    shiftable         training.num_shifted_groups may divide its attention into groups
    divides_heads     its per-head weights follow sequence-parallel ranks by EncodingModule.local_heads, for parallel.sp above 1
    whole_samples     why attention with it needs all tokens of a sample on one rank, which rules out parallel.cp above 1; ""
                      if it rotates each token on its own
    sliced            it divides the hidden state into a slice for each key/value head, so hidden_size must be a multiple
    by_layer          layers apply it, so that model.nope_every may leave some without it
    reads_scores      its positions depend on the scores, which model.attention_scale would change
    paired_embedding  it adds pairs of a sine and a cosine to the embedding, so hidden_size must be even
    max_positions     upper limit of model.max_positions, or None
    """

    rotates: bool = False
    scalable: bool = False
    shiftable: bool = False
    divides_heads: bool = False
    whole_samples: str = 'its registry entry does not set whole_samples to ""'
    sliced: bool = False
    by_layer: bool = True
    reads_scores: bool = False
    paired_embedding: bool = False
    max_positions: int | None = None


@dataclass(frozen=True)
class FamilyEntry(Entry):
    """An architecture of transformers: a subclass of megatape.hf.families.family.Family.

    encodings       the position encodings that it has; None for all
    attention_bias  the values of model.attention_bias that it has
    qk_norm         those of model.qk_norm
    normalizations  those of model.normalization
    switches        whether it may have model.logit_softcap, nope_every, rotary_fraction and attention_scale
    whole_heads     hidden_size must be a multiple of num_heads
    windows         whether it may have model.sliding_window
    """

    encodings: tuple[str, ...] | None = ("rope",)
    attention_bias: tuple[str, ...] = ("none",)
    qk_norm: tuple[bool, ...] = (False,)
    normalizations: tuple[str, ...] = ("rms",)
    switches: bool = False
    whole_heads: bool = False
    windows: bool = False


@dataclass(frozen=True)
class ConfigurableEntry(Entry):
    """A definition with a section of its own in the configuration.

    Attributes:
        options: "module:class" of the section.
    """

    options: str

    def load_options(self) -> Any:
        """Import and return the type of the section."""
        return resolve_name(self.options)


@dataclass(frozen=True)
class OptimizerEntry(ConfigurableEntry):
    """An optimizer: a function that takes parameter groups and its section, and returns a torch optimizer.

    Its section is a subclass of megatape.config.OptimizerConfig.

    Attributes:
        state: names of the float32 tensors that it keeps for each element of a weight, in torch's
            state_dict and in checkpoints.
        counts_steps: whether it also keeps `step`, the number of steps, beside these tensors.
        matrix_state: "module:function" from the shape of a whole matrix to the shape of each tensor
            that it keeps for one, by name. Such an optimizer is a subclass of
            megatape.optim.matrices.MatrixOptimizer; `state` is that of the other weights.
        matrix_flops: "module:function" from the shape of a whole matrix to the FLOPs of its update, by which
            matrices are divided over ranks and plans estimate time; by elements, and none, without it.
    """

    state: tuple[str, ...] = ()
    counts_steps: bool = False
    matrix_state: str | None = None
    matrix_flops: str | None = None

    def matrix_shapes(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Shape of each float32 tensor that it keeps for a whole matrix of this shape."""
        return resolve_name(self.matrix_state or "")(shape)

    def update_flops(self, shape: tuple[int, ...]) -> int:
        """FLOPs of the update of a whole matrix of this shape, 0 if they are not known."""
        return resolve_name(self.matrix_flops)(shape) if self.matrix_flops else 0


@dataclass(frozen=True)
class SinkEntry(Entry):
    """A receiver of metrics: a subclass of megatape.training.callbacks.callback.Sink.

    Attributes:
        package: that it needs beside those of every installation, which an extra of the same name installs, or "".
    """

    package: str = ""


@dataclass(frozen=True)
class ScheduleEntry(ConfigurableEntry):
    """A decay of the learning rate: a function of progress and its section.

    Its section is a megatape.config.ScheduleConfig or a subclass.
    """

    options: str = "megatape.config:ScheduleConfig"


def _in(package: str) -> Callable[[str, str], Entry]:
    """Makes entries of a package from "module:attribute" there and a description."""
    return lambda target, description: Entry(f"{package}.{target}", description)


def _family(target: str, description: str, **properties: Any) -> FamilyEntry:
    """Entry of "file:class" in megatape/hf/families/."""
    return FamilyEntry(f"megatape.hf.families.{target}", description, **properties)


def _schedule(name: str, description: str, options: str = "") -> ScheduleEntry:
    """Entry of a function in megatape/optim/schedules.py. options: the class of its section there, if it has its own."""
    module = "megatape.optim.schedules"
    return ScheduleEntry(f"{module}:{name}", description, f"{module}:{options}" if options else ScheduleEntry.options)


_TAPE = "contextualized equivariant position encoding (TAPE, https://arxiv.org/abs/2501.00712)"


_BIAS = "the ring of ranks computes no bias on scores"
_SUM = "the ranks do not exchange what it sums up along the sequence"


def _encoding(target: str, description: str, whole_samples: str = "", **properties: Any) -> EncodingEntry:
    """Entry of "file:class" in megatape/encodings/."""
    target = f"megatape.encodings.{target}"
    return EncodingEntry(target, description, divides_heads=True, whole_samples=whole_samples, **properties)


def _ablation(target: str, description: str) -> EncodingEntry:
    """Entry of an ablation of TAPE."""
    return _encoding(target, f"{_TAPE}, {description}", rotates=True)


def _selective(name: str, description: str) -> EncodingEntry:
    """Entry of a form of Selective RoPE."""
    return _encoding(f"selective_rope:{name}", description, _SUM, rotates=True, sliced=True)


ENCODINGS: dict[str, EncodingEntry] = {
    "tape": _encoding("tape:Tape", _TAPE, rotates=True, scalable=True),
    "tape_attention_only": _ablation("tape:TapeAttentionOnly", "updated by attention only"),
    "tape_mlp_only": _ablation("tape:TapeMlpOnly", "updated by the feed-forward network only"),
    "tape_no_rotation_equivariance": _ablation("tape_ablations:TapeNoRotationEquivariance", "without rotation equivariance"),
    "tape_vector": _ablation("tape_ablations:TapeVector", "updated along the head size instead of the channels"),
    "tape_vector_no_rotation_equivariance": _ablation(
        "tape_ablations:TapeVectorNoRotationEquivariance", "updated along the head size, without rotation equivariance"
    ),
    "tape_no_equivariance": _ablation("tape_ablations:TapeNoEquivariance", "without equivariance"),
    "tape_fox": _encoding("tape_combinations:TapeFox", f"{_TAPE}, with forget gates (FoX)", _SUM, rotates=True),
    "tape_selective_rope": _encoding(
        "tape_combinations:TapeSelectiveRope", f"{_TAPE}, from Selective RoPE's angles", _SUM, rotates=True, sliced=True
    ),
    "rope": _encoding("rope:Rope", "rotary position encoding", rotates=True, scalable=True, shiftable=True),
    "randpe": _encoding("randpe:RandPE", "rotary encoding of random positions (RandPE)", rotates=True),
    # Beyond 2^18 positions xPos scales overflow float32.
    "xpos": _encoding("xpos:XPos", "xPos position encoding", rotates=True, max_positions=2**18),
    "alibi": _encoding("alibi:Alibi", "ALiBi attention biases", _BIAS),
    "t5": _encoding("t5:T5", "T5's relative attention biases", _BIAS),
    "fire": _encoding("fire:Fire", "FIRE attention biases", _BIAS),
    "fox": _encoding("fox:Fox", "forget gates (FoX)", _SUM),
    "cope": _encoding("cope:Cope", "positions counted by content (CoPE)", _SUM, reads_scores=True),
    "cope_scaled": _encoding("cope:CopeScaled", "CoPE divided by the root of the head size", _SUM, reads_scores=True),
    "pope": _encoding("pope:Pope", "polar position encoding (PoPE)"),
    "pope_uniform": _encoding("pope:PopeUniform", "PoPE whose phases start anywhere"),
    "path": _encoding("path:Path", "products of reflections by the content (PaTH)", _SUM),
    "path_fox": _encoding("path_fox:PathFox", "products of reflections, and forget gates (PaTH-FoX)", _SUM),
    "path_fox_scaled": _encoding("path_fox:PathFoxScaled", "PaTH-FoX divided by the root of the head size", _SUM),
    "selective_rope": _selective("SelectiveRope", "rotations by the content (Selective RoPE)"),
    "selective_rope_linear": _selective("SelectiveRopeLinear", "Selective RoPE without SiLU"),
    "selective_rope_constant": _selective("SelectiveRopeConstant", "Selective RoPE with a constant step"),
    "selective_rope_gated": _selective("SelectiveRopeGated", "Selective RoPE with a constant step and gates"),
    "sinusoidal": _encoding("sinusoidal:Sinusoidal", "sinusoidal position embeddings", paired_embedding=True, by_layer=False),
    "nope": _encoding("nope:NoPE", "no position encoding (NoPE)", by_layer=False),
}

# Normalizations of the content and of query and key heads: modules made of the number of channels, model.norm_eps and the
# tensor axis.
NORMALIZATIONS: dict[str, Entry] = {
    "rms": Entry("megatape.nn.norm:RMSNorm", "root mean square normalization (RMSNorm)"),
}

# Architectures of exported and imported models, by the model_type of their config.json. Unless export.family says otherwise,
# the first that has a model's parts is used.
FAMILIES: dict[str, FamilyEntry] = {
    "llama": _family("llama:Llama", "transformers' Llama", attention_bias=("none", "qkvo"), whole_heads=True),
    "mistral": _family("mistral:Mistral", "transformers' Mistral", windows=True),
    "qwen2": _family("qwen2:Qwen2", "transformers' Qwen2", attention_bias=("qkv",)),
    "qwen3": _family("qwen3:Qwen3", "transformers' Qwen3", attention_bias=("none", "qkvo"), qk_norm=(True,)),
    "tape": _family(
        "tape:Tape",
        "a transformer with any position encoding, exported with its code",
        encodings=None,
        attention_bias=("none", "qkv", "qkvo"),
        qk_norm=(False, True),
        switches=True,
    ),
}

OPTIMIZERS: dict[str, OptimizerEntry] = {
    "adamw": OptimizerEntry(
        "megatape.optim.adamw:adamw",
        "AdamW",
        "megatape.optim.adamw:AdamWOptions",
        state=("exp_avg", "exp_avg_sq"),
        counts_steps=True,
    ),
    "muon": OptimizerEntry(
        "megatape.optim.muon:Muon",
        "Muon for matrices, AdamW for the other weights",
        "megatape.optim.muon_options:MuonOptions",
        state=("exp_avg", "exp_avg_sq"),
        counts_steps=True,
        matrix_state="megatape.optim.muon_options:matrix_state",
        matrix_flops="megatape.optim.muon_options:matrix_flops",
    ),
}

SCHEDULES: dict[str, ScheduleEntry] = {
    "linear": _schedule("linear", "linear decay to final_fraction of the peak"),
    "cosine": _schedule("cosine", "cosine decay to final_fraction of the peak"),
    "constant": _schedule("constant", "no decay"),
    "wsd": _schedule("wsd", "the peak, then a decay at the end (WSD)", "WsdOptions"),
    "cosine_restarts": _schedule("cosine_restarts", "cosine decay that starts again from the peak", "CosineRestartsOptions"),
    "inverse_sqrt": _schedule("inverse_sqrt", "inverse square root of the steps since the start", "InverseSqrtOptions"),
}

# What follows a run, subclasses of megatape.training.callbacks.callback.Callback. The first three follow every run.
CALLBACKS: dict[str, Entry] = {
    "metrics": Entry("megatape.training.callbacks.metrics:Metrics", "passes metrics on to the sinks"),
    "position_views": Entry("megatape.training.callbacks.position_views:PositionViews", "files of the position tensors"),
    "profile": Entry("megatape.training.callbacks.profile:Profile", "a trace of some steps, with --profile"),
}

SINKS: dict[str, SinkEntry] = {
    "jsonl": SinkEntry("megatape.training.sinks.json_lines:JsonLines", "metrics.jsonl in the run's folder"),
    "tensorboard": SinkEntry("megatape.training.sinks.tensorboard:TensorBoard", "TensorBoard, in the run's folder"),
    "console": SinkEntry("megatape.training.sinks.console:Console", "a line on the terminal"),
    "wandb": SinkEntry("megatape.training.sinks.trackers:WeightsAndBiases", "Weights & Biases", "wandb"),
    "trackio": SinkEntry("megatape.training.sinks.trackers:Trackio", "Trackio", "trackio"),
}

# Attention backends in order of preference: with training.attention "auto", the first that supports the model and works runs.
AUTO = "auto"
BACKENDS: dict[str, Entry] = {
    "sdpa": Entry("megatape.attention.backends.sdpa:Sdpa", "torch's scaled_dot_product_attention: no biases, no masks on GPUs"),
    "flex": Entry(
        "megatape.attention.backends.flex:Flex", "torch's flex_attention, compiled: masks and biases by distance, on GPUs"
    ),
    "triton": Entry("megatape.attention.backends.fused:Fused", "our Triton kernels: masks and biases by distance, on GPUs"),
    "blocked": Entry(
        "megatape.attention.backends.blocked:Blocked", "blocks of query rows in plain PyTorch: any bias, any device"
    ),
}

# Evaluation tasks, subclasses of megatape.lab.tasks.engine.task.Task.
_task = _in("megatape.lab.tasks")
TASKS: dict[str, Entry] = {
    "perplexity": _task("perplexity:Perplexity", "perplexity at several context lengths, on the same text"),
    "passkey": _task("passkey:Passkey", "retrieval of a number from a long text"),
    "scrolls": _task("scrolls:Scrolls", "questions and summaries of SCROLLS, scored by F1, exact match or ROUGE"),
    "lm-eval": _task("lm_eval:LmEval", "tasks of lm-eval: MMLU, ARC, HellaSwag and others"),
    "addition": _task("addition:Addition", "exact match on addition problems, for every pair of operand lengths"),
}

# Sources of documents, subclasses of megatape.data.sources.source.Reader.
SOURCES: dict[str, Entry] = {
    "c4": Entry("megatape.data.sources.json_lines:C4", "C4's training files"),
    "hub": Entry("megatape.data.sources.hub:Hub", "a data set of the Hugging Face hub, streamed"),
    "jsonl": Entry("megatape.data.sources.json_lines:JsonLines", "lines of JSON with a field of text"),
    "documents": Entry("megatape.data.sources.json_lines:Documents", "what --keep-documents has written"),
    "parquet": Entry("megatape.data.sources.parquet:Parquet", "Parquet files with a column of text"),
    "webdataset": Entry("megatape.data.sources.tars:Tars", "WebDataset tars with members .txt or .json"),
    "text": Entry("megatape.data.sources.text_files:TextFiles", "one document a file"),
    "code": Entry("megatape.data.sources.text_files:Code", "source code, one document a file"),
    "python": Entry("megatape.data.sources.text_files:PythonLibrary", "the standard library of Python"),
}

# Rules by which documents are left out or changed, subclasses of megatape.data.cleaning.rule.Rule.
_rule = _in("megatape.data.cleaning")
RULES: dict[str, Entry] = {
    "length": _rule("filters:Length", "at least and at most so many characters"),
    "language": _rule("filters:Language", "languages by fastText's model"),
    "c4_quality": _rule("quality:C4Quality", "C4's rules about lines and sentences"),
    "gopher_quality": _rule("quality:GopherQuality", "Gopher's rules about words"),
    "gopher_repetition": _rule("quality:GopherRepetition", "Gopher's rules about repetition"),
    "fineweb_quality": _rule("quality:FineWebQuality", "FineWeb's rules about lines"),
    "decontaminate": _rule("decontamination:Decontaminate", "no 13 words of an evaluation in a row"),
    "personal_data": _rule("quality:PersonalData", "e-mail and IP addresses replaced"),
    "urls": _rule("urls:Urls", "domains and URLs of lists"),
    "license": _rule("filters:License", "licences by a field of the record"),
    "repeated_lines": _rule("repeated_lines:RepeatedLines", "lines that an earlier document has"),
    "repeated_paragraphs": _rule("repeated_lines:RepeatedParagraphs", "paragraphs that an earlier document has"),
    "fasttext_classifier": _rule("classifier:FastTextClassifier", "scores by a model of fastText"),
    "transformers_classifier": _rule("classifier:TransformersClassifier", "scores by a model of transformers"),
    "distinct": _rule("distinct:Distinct", "no documents of data directories"),
    "near_duplicates": _rule("near_duplicates:NearDuplicates", "no resemblance of an earlier document"),
}

# Formats of fine-tuning data, subclasses of megatape.data.finetuning.prompt_format.Format.
_format = _in("megatape.data.finetuning")
FORMATS: dict[str, Entry] = {
    "pairs": _format("prompt_format:Pairs", "fields `prompt` and `answer`"),
    "scrolls_qa": _format("prompt_format:Answering", "SCROLLS' fields `input` and `output`: answer the question in `input`"),
    "scrolls_summary": _format("prompt_format:Summarizing", "SCROLLS' fields `input` and `output`: summarize `input`"),
    "chat": _format("chat:Chat", "field `messages`, a list of `role` and `content`"),
    "sharegpt": _format("chat:ShareGPT", "field `conversations`, a list of `from` and `value`"),
    "alpaca": _format("prompt_format:Alpaca", "fields `instruction`, `input` if there is one, and `output`"),
}

# Token ids in the files of other systems, subclasses of megatape.data.formats.format.TokenFormat.
TOKEN_FORMATS: dict[str, Entry] = {
    "megatron": Entry("megatape.data.formats.megatron:Megatron", "PATH.bin and PATH.idx of Megatron-LM"),
    "mds": Entry("megatape.data.formats.mds:Mds", "a folder of MosaicML streaming (MDS)"),
    "flat": Entry("megatape.data.formats.format:Flat", "PATH.bin of ids alone, as nanoGPT and LongLoRA have it"),
}

# Tasks of the suite that compares encodings, subclasses of megatape.data.synthetic.task.SyntheticTask.
_task = _in("megatape.data.synthetic")
SYNTHETIC_TASKS: dict[str, Entry] = {
    "flip_flop": _task("flip_flop:FlipFlop", "read the bit that was written last"),
    "copy": _task("by_length:Copy", "write a string again"),
    "reverse": _task("by_length:Reverse", "write a string backwards"),
    "sort": _task("by_length:Sort", "write the letters of a string in order"),
    "nth_after_marker": _task("nth_after_marker:NthAfterMarker", "the n-th token after a marker"),
    "recall": _task("recall:Recall", "the value of a key that was given before"),
    "counting": _task("counting:Counting", "how often a variable was incremented"),
    "selective_copy": _task("selective_copy:SelectiveCopy", "write a text again without its blanks"),
    "parity": _task("by_length:Parity", "whether the number of ones is odd"),
    "induction": _task("induction:Induction", "go on as the same letters did before"),
    "passkey": _task("passkey:Passkey", "several numbers hidden in a text"),
    "addition": _task("addition:Addition", "the sum of two numbers with reversed digits"),
    "state_s3": _task("state_tracking:S3", "the product of permutations of three points"),
    "state_a5": _task("state_tracking:A5", "the product of even permutations of five points"),
    "state_s5": _task("state_tracking:S5", "the product of permutations of five points"),
    "word_a5": _task("state_tracking:WordA5", "whether a word of permutations is the identity"),
    "reassigned_recall": _task("recall:ReassignedRecall", "the last value of a key (MQRAR)"),
    "two_back": _task("recall:TwoBack", "the last value but one of a key"),
    "three_back": _task("recall:ThreeBack", "the last value but two of a key"),
    "four_back": _task("recall:FourBack", "the last value but three of a key"),
    "indirect_indexing": _task("indirect_indexing:IndirectIndexing", "the letter at a distance from a letter"),
    "many_keys": _task("recall:ManyKeys", "the value of one of 256 keys"),
    "ring": _task("navigation:Ring", "the symbol of a place to which a walk on a ring returns"),
    "torus": _task("navigation:Torus", "the symbol of a place to which a walk on a torus returns"),
    "dyck": _task("dyck:Dyck", "close the last bracket that is open"),
    "contextual_counting": _task("contextual_counting:ContextualCounting", "the number of ones between brackets"),
}
