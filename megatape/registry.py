"""Tables of everything that a configuration or a command selects by name, with one line per part.

To add a part, write its file and its line here (see the table in CONTRIBUTING.md). A program outside this package adds its
entries when starting (examples/add_encoding.py). Nothing here imports torch, so neither does checking a configuration or
printing help. megatape/entries.py has the types of entries.
"""

from dataclasses import replace

from megatape import encoding_traits as shared
from megatape.entries import EncodingEntry, EncodingTraits, Entry, FamilyEntry, OptimizerEntry, ScheduleEntry, SinkEntry

_TAPE = "contextualized equivariant position encoding (TAPE, https://arxiv.org/abs/2501.00712)"


def _encoding(location: str, description: str, traits: EncodingTraits) -> EncodingEntry:
    """Return the entry of an encoding in megatape/encodings/. location: "module:class"."""
    return EncodingEntry.with_traits(f"megatape.encodings.{location}", description, traits)


# Position encodings, in megatape/encodings/. megatape/encoding_traits.py has the traits that several of them share.
ENCODINGS: dict[str, EncodingEntry] = {
    "tape": _encoding("tape:Tape", _TAPE, replace(shared.UPDATED_ANGLES, scalable=True)),
    "tape_attention_only": _encoding("tape:TapeAttentionOnly", f"{_TAPE}, updated by attention only", shared.UPDATED_ANGLES),
    "tape_mlp_only": _encoding("tape:TapeMlpOnly", f"{_TAPE}, updated by the feed-forward network only", shared.UPDATED_ANGLES),
    "tape_no_rotation_equivariance": _encoding(
        "tape_ablations:TapeNoRotationEquivariance", f"{_TAPE}, without rotation equivariance", shared.UPDATED_ANGLES
    ),
    "tape_vector": _encoding(
        "tape_ablations:TapeVector", f"{_TAPE}, updated along the head size instead of the channels", shared.WIDE_ANGLES
    ),
    "tape_vector_no_rotation_equivariance": _encoding(
        "tape_ablations:TapeVectorNoRotationEquivariance",
        f"{_TAPE}, updated along the head size, without rotation equivariance",
        shared.WIDE_ANGLES,
    ),
    "tape_no_equivariance": _encoding(
        "tape_ablations:TapeNoEquivariance", f"{_TAPE}, without equivariance", shared.WIDE_ANGLES
    ),
    "tape_fox": _encoding(
        "tape_combinations:TapeFox",
        f"{_TAPE}, with forget gates (FoX)",
        replace(shared.ROTATION_BY_SUM, layer_state="angles", updates_state=True),
    ),
    "tape_selective_rope": _encoding(
        "tape_combinations:TapeSelectiveRope",
        f"{_TAPE}, from Selective RoPE's angles",
        replace(shared.SELECTIVE, layer_state="angles of content", updates_state=True),
    ),
    "rope": _encoding("rope:Rope", "rotary position encoding", replace(shared.ANGLES, scalable=True, shiftable=True)),
    "rope_conv": _encoding(
        "rope_conv:RopeConv",
        "rotary position encoding, with a short convolution on the keys",
        replace(shared.ROTATION_BY_CONVOLUTION, layer_state="angles"),
    ),
    "randpe": _encoding(
        "randpe:RandPE", "rotary encoding of random positions (RandPE)", replace(shared.ROTATION, layer_state="random angles")
    ),
    # Beyond 2^18 positions xPos scales overflow float32.
    "xpos": _encoding(
        "xpos:XPos", "xPos position encoding", replace(shared.ROTATION, layer_state="scaled angles", max_positions=2**18)
    ),
    "alibi": _encoding("alibi:Alibi", "ALiBi attention biases", shared.BIAS),
    "t5": _encoding("t5:T5", "T5's relative attention biases", shared.BIAS),
    "fire": _encoding("fire:Fire", "FIRE attention biases", replace(shared.BIAS, layer_state="position ids")),
    "kerple_log": _encoding("kerple_log:KerpleLog", "KERPLE's logarithmic attention biases", shared.BIAS),
    "fox": _encoding("fox:Fox", "forget gates (FoX)", shared.SUM),
    "grape_ap": _encoding(
        "grape_ap:GrapeAP", "biases summed by content along the way (GRAPE-AP)", replace(shared.SUM, layer_state="position ids")
    ),
    "cope": _encoding("cope:Cope", "positions counted by content (CoPE)", shared.SUM_OF_SCORES),
    "cope_scaled": _encoding("cope:CopeScaled", "CoPE divided by the root of the head size", shared.SUM_OF_SCORES),
    "pope": _encoding("pope:Pope", "polar position encoding (PoPE)", shared.POLAR),
    "pope_uniform": _encoding("pope:PopeUniform", "PoPE whose phases start anywhere", shared.POLAR),
    "repo": _encoding(
        "repo:RePo", "rotary encoding of positions learned from content (RePo)", replace(shared.ROTATION, layer_state="")
    ),
    "path": _encoding("path:Path", "products of reflections by the content (PaTH)", shared.SUM),
    "path_fox": _encoding("path_fox:PathFox", "products of reflections, and forget gates (PaTH-FoX)", shared.SUM),
    "path_fox_scaled": _encoding("path_fox:PathFoxScaled", "PaTH-FoX divided by the root of the head size", shared.SUM),
    "selective_rope": _encoding("selective_rope:SelectiveRope", "rotations by the content (Selective RoPE)", shared.SELECTIVE),
    "selective_rope_linear": _encoding("selective_rope:SelectiveRopeLinear", "Selective RoPE without SiLU", shared.SELECTIVE),
    "selective_rope_linear_32": _encoding(
        "selective_rope:SelectiveRopeLinear32", "Selective RoPE without SiLU, of rank 32", shared.SELECTIVE
    ),
    "selective_rope_constant": _encoding(
        "selective_rope:SelectiveRopeConstant", "Selective RoPE with a constant step", shared.SELECTIVE
    ),
    "selective_rope_gated": _encoding(
        "selective_rope:SelectiveRopeGated", "Selective RoPE with a constant step and gates", shared.SELECTIVE
    ),
    "sinusoidal": _encoding(
        "sinusoidal:Sinusoidal", "sinusoidal position embeddings", replace(shared.NO_LAYER, paired_embedding=True)
    ),
    "nope": _encoding("nope:NoPE", "no position encoding (NoPE)", shared.NO_LAYER),
}

# Normalizations of the hidden state and of query and key heads: modules that take the number of channels, model.norm_eps and
# the tensor axis.
NORMALIZATIONS: dict[str, Entry] = {
    "rms": Entry("megatape.nn.norm:RMSNorm", "root mean square normalization (RMSNorm)"),
}

# Architectures of exported and imported models, by the model_type in their config.json. Exporting uses the first one that has
# all parts of the model, unless export.family names another.
FAMILIES: dict[str, FamilyEntry] = {
    "llama": FamilyEntry(
        "megatape.hf.families.llama:Llama",
        "transformers' Llama",
        encodings=("rope",),
        attention_bias=("none", "qkvo"),
        qk_norm=(False,),
        normalizations=("rms",),
        whole_heads=True,
    ),
    "mistral": FamilyEntry(
        "megatape.hf.families.mistral:Mistral",
        "transformers' Mistral",
        encodings=("rope",),
        attention_bias=("none",),
        qk_norm=(False,),
        normalizations=("rms",),
        windows="one",
    ),
    "qwen2": FamilyEntry(
        "megatape.hf.families.qwen2:Qwen2",
        "transformers' Qwen2",
        encodings=("rope",),
        attention_bias=("qkv",),
        qk_norm=(False,),
        normalizations=("rms",),
        windows="some",
    ),
    "qwen3": FamilyEntry(
        "megatape.hf.families.qwen3:Qwen3",
        "transformers' Qwen3",
        encodings=("rope",),
        attention_bias=("none", "qkvo"),
        qk_norm=(True,),
        normalizations=("rms",),
        windows="some",
    ),
    "tape": FamilyEntry(
        "megatape.hf.families.tape:Tape",
        "a transformer with any position encoding, exported with its code",
        encodings=None,
        attention_bias=("none", "qkv", "qkvo"),
        qk_norm=(False, True),
        normalizations=("rms",),
        switches=True,
        windows="any",
    ),
}

# Functions in megatape/hf that training calls. They are loaded by name, because training does not import hf.
INITIAL_WEIGHTS = Entry("megatape.hf.model_folder:open_weights", "opens the weights of training.init_from")
EXPORT_CHECK = Entry("megatape.hf.families:export_obstacle", "says why the model of a run cannot be exported")
UPLOAD_CHECK = Entry("megatape.hf.exporting.upload:check_repository", "checks that export.push can be uploaded to")

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
    "linear": ScheduleEntry("megatape.optim.schedules:linear", "linear decay to final_fraction of the peak"),
    "cosine": ScheduleEntry("megatape.optim.schedules:cosine", "cosine decay to final_fraction of the peak"),
    "constant": ScheduleEntry("megatape.optim.schedules:constant", "no decay"),
    "wsd": ScheduleEntry(
        "megatape.optim.schedules:wsd", "the peak, then a decay at the end (WSD)", "megatape.optim.schedules:WsdOptions"
    ),
}

# Schedules of earlier versions, for resuming their runs. New runs are not offered these.
LEGACY_SCHEDULES: dict[str, ScheduleEntry] = {
    "cosine_restarts": ScheduleEntry(
        "megatape.optim.legacy_schedules:cosine_restarts",
        "cosine decay that starts again from the peak",
        "megatape.optim.legacy_schedules:CosineRestartsOptions",
    ),
    "inverse_sqrt": ScheduleEntry(
        "megatape.optim.legacy_schedules:inverse_sqrt",
        "inverse square root of the steps since the start",
        "megatape.optim.legacy_schedules:InverseSqrtOptions",
    ),
}

# Callbacks, subclasses of megatape.training.callbacks.callback.Callback. These four are part of every run, and
# logging.callbacks selects others.
CALLBACKS: dict[str, Entry] = {
    "metrics": Entry("megatape.training.callbacks.metrics:Metrics", "passing metrics on to the sinks"),
    "position_views": Entry("megatape.training.callbacks.position_views:PositionViews", "files of the position tensors"),
    "profile": Entry("megatape.training.callbacks.profile:Profile", "a trace of some steps, with --profile"),
    "exports": Entry("megatape.training.callbacks.exports:Exports", "exports while training, with export.interval"),
}

SINKS: dict[str, SinkEntry] = {
    "jsonl": SinkEntry("megatape.training.sinks.json_lines:JsonLines", "metrics.jsonl in the run directory"),
    "tensorboard": SinkEntry("megatape.training.sinks.tensorboard:TensorBoard", "TensorBoard, in the run directory"),
    "console": SinkEntry("megatape.training.sinks.console:Console", "a line on the terminal"),
    "wandb": SinkEntry("megatape.training.sinks.trackers:WeightsAndBiases", "Weights & Biases", "wandb"),
    "trackio": SinkEntry("megatape.training.sinks.trackers:Trackio", "Trackio", "trackio"),
}

# Value of training.attention for the first backend that supports the model and works.
AUTO = "auto"

# Attention backends in order of preference.
BACKENDS: dict[str, Entry] = {
    "sdpa": Entry("megatape.attention.backends.sdpa:Sdpa", "torch's scaled_dot_product_attention: no biases, no masks on GPUs"),
    "flex": Entry(
        "megatape.attention.backends.flex:Flex", "torch's flex_attention, compiled: masks and biases by distance, on GPUs"
    ),
    "fa4": Entry(
        "megatape.attention.backends.fa4:FlashAttention4", "FlashAttention-4 (megatape[fa4]): no biases, on Hopper GPUs"
    ),
    "triton": Entry(
        "megatape.attention.backends.triton:TritonKernels", "our Triton kernels: masks and biases by distance, on GPUs"
    ),
    "blocked": Entry(
        "megatape.attention.backends.blocked:Blocked", "blocks of query rows in plain PyTorch: any bias, any device"
    ),
}

# Sources of documents, subclasses of megatape.data.sources.source.Reader.
SOURCES: dict[str, Entry] = {
    "c4": Entry("megatape.data.sources.json_lines:C4", "files of C4 (c4-train.*.json.gz)"),
    "hub": Entry("megatape.data.sources.hub:Hub", "a dataset of the Hugging Face hub, streamed"),
    "jsonl": Entry("megatape.data.sources.json_lines:JsonLines", "lines of JSON with a field of text"),
    "documents": Entry("megatape.data.sources.json_lines:Documents", "documents written by --keep-documents"),
    "parquet": Entry("megatape.data.sources.parquet:Parquet", "Parquet files with a column of text"),
    "arrow": Entry("megatape.data.sources.arrow_files:ArrowFiles", "Arrow and Feather files with a column of text"),
    "csv": Entry("megatape.data.sources.csv_files:Csv", "CSV and TSV files with a column of text"),
    "webdataset": Entry("megatape.data.sources.tars:Tars", "WebDataset tars with members .txt or .json"),
    "text": Entry("megatape.data.sources.text_files:TextFiles", "text files, one document a file"),
    "code": Entry("megatape.data.sources.text_files:Code", "source files of programs, one document a file"),
    "python": Entry("megatape.data.sources.text_files:PythonLibrary", "Python's own standard library, without a download"),
}

# Rules that drop or change documents, subclasses of megatape.data.cleaning.rule.Rule.
RULES: dict[str, Entry] = {
    "length": Entry("megatape.data.cleaning.rules.length:Length", "drops texts that are too short or too long"),
    "language": Entry("megatape.data.cleaning.rules.language:Language", "drops other languages, identified by fastText"),
    "c4_quality": Entry("megatape.data.cleaning.rules.quality:C4Quality", "removes lines and drops texts by C4's rules"),
    "gopher_quality": Entry(
        "megatape.data.cleaning.rules.quality:GopherQuality", "drops texts unlike prose, by Gopher's rules"
    ),
    "gopher_repetition": Entry(
        "megatape.data.cleaning.rules.quality:GopherRepetition", "drops repetitive texts, by Gopher's rules"
    ),
    "fineweb_quality": Entry(
        "megatape.data.cleaning.rules.quality:FineWebQuality", "drops lists and fragments, by FineWeb's rules"
    ),
    "decontaminate": Entry(
        "megatape.data.cleaning.rules.decontamination:Decontaminate", "drops texts that share 13 words with an evaluation"
    ),
    "personal_data": Entry(
        "megatape.data.cleaning.rules.personal_data:PersonalData", "replaces e-mail and public IPv4 addresses"
    ),
    "urls": Entry("megatape.data.cleaning.rules.urls:Urls", "drops or keeps listed domains and URLs"),
    "license": Entry("megatape.data.cleaning.rules.license:License", "drops other licenses, by a field of the record"),
    "repeated_lines": Entry("megatape.data.cleaning.rules.repeated_lines:RepeatedLines", "removes lines of earlier documents"),
    "repeated_paragraphs": Entry(
        "megatape.data.cleaning.rules.repeated_lines:RepeatedParagraphs", "removes paragraphs of earlier documents"
    ),
    "fasttext_classifier": Entry(
        "megatape.data.cleaning.rules.classifier:FastTextClassifier", "drops texts with a low score of a fastText model"
    ),
    "transformers_classifier": Entry(
        "megatape.data.cleaning.rules.classifier:TransformersClassifier", "drops texts with a low score of a transformers model"
    ),
    "distinct": Entry("megatape.data.cleaning.rules.distinct:Distinct", "drops documents that other data directories have"),
    "near_duplicates": Entry(
        "megatape.data.cleaning.near_duplicates.near_duplicates:NearDuplicates", "drops near duplicates (MinHash)"
    ),
}

# Formats of fine-tuning data, subclasses of megatape.data.finetuning.format.Format.
FORMATS: dict[str, Entry] = {
    "pairs": Entry("megatape.data.finetuning.prompt_format:Pairs", "fields `prompt` and `answer`"),
    "scrolls_qa": Entry(
        "megatape.data.finetuning.scrolls:Answering", "SCROLLS' fields `input` and `output`: answer the question in `input`"
    ),
    "scrolls_summary": Entry(
        "megatape.data.finetuning.scrolls:Summarizing", "SCROLLS' fields `input` and `output`: summarize `input`"
    ),
    "chat": Entry("megatape.data.finetuning.chat:Chat", "field `messages`, a list of `role` and `content`"),
    "sharegpt": Entry("megatape.data.finetuning.chat:ShareGPT", "field `conversations`, a list of `from` and `value`"),
    "alpaca": Entry(
        "megatape.data.finetuning.prompt_format:Alpaca", "fields `instruction`, `input` if there is one, and `output`"
    ),
}

# Files of token ids written by other systems, subclasses of megatape.data.formats.token_format.TokenFormat.
TOKEN_FORMATS: dict[str, Entry] = {
    "megatron": Entry("megatape.data.formats.megatron:Megatron", "PATH.bin and PATH.idx of Megatron-LM"),
    "mds": Entry("megatape.data.formats.mds:Mds", "a folder of MosaicML streaming (MDS)"),
    "flat": Entry("megatape.data.formats.flat:Flat", "PATH.bin with ids only, as in nanoGPT and LongLoRA"),
}

# Tasks of the suite that compares encodings, subclasses of megatape.data.synthetic.task.SyntheticTask.
SYNTHETIC_TASKS: dict[str, Entry] = {
    "flip_flop": Entry("megatape.data.synthetic.flip_flop:FlipFlop", "read the bit that was written last"),
    "copy": Entry("megatape.data.synthetic.by_length:Copy", "write a string again"),
    "reverse": Entry("megatape.data.synthetic.by_length:Reverse", "write a string backwards"),
    "sort": Entry("megatape.data.synthetic.by_length:Sort", "write the letters of a string in order"),
    "nth_after_marker": Entry("megatape.data.synthetic.nth_after_marker:NthAfterMarker", "the n-th token after a marker"),
    "recall": Entry("megatape.data.synthetic.recall:Recall", "the value of a key that was given before"),
    "counting": Entry("megatape.data.synthetic.counting:Counting", "how often a variable was incremented"),
    "selective_copy": Entry("megatape.data.synthetic.selective_copy:SelectiveCopy", "write a text again without its blanks"),
    "parity": Entry("megatape.data.synthetic.by_length:Parity", "whether the number of ones is odd"),
    "induction": Entry("megatape.data.synthetic.induction:Induction", "go on as the same letters did before"),
    "passkey": Entry("megatape.data.synthetic.passkey:Passkey", "several numbers hidden in a text"),
    "addition": Entry("megatape.data.synthetic.addition:Addition", "the sum of two numbers with reversed digits"),
    "state_s3": Entry("megatape.data.synthetic.state_tracking:S3", "the product of permutations of three points"),
    "state_a5": Entry("megatape.data.synthetic.state_tracking:A5", "the product of even permutations of five points"),
    "state_s5": Entry("megatape.data.synthetic.state_tracking:S5", "the product of permutations of five points"),
    "word_a5": Entry("megatape.data.synthetic.state_tracking:WordA5", "whether a word of permutations is the identity"),
    "reassigned_recall": Entry("megatape.data.synthetic.recall:ReassignedRecall", "the last value of a key (MQRAR)"),
    "two_back": Entry("megatape.data.synthetic.recall:TwoBack", "the last value but one of a key"),
    "three_back": Entry("megatape.data.synthetic.recall:ThreeBack", "the last value but two of a key"),
    "four_back": Entry("megatape.data.synthetic.recall:FourBack", "the last value but three of a key"),
    "indirect_indexing": Entry(
        "megatape.data.synthetic.indirect_indexing:IndirectIndexing", "the letter at a distance from a letter"
    ),
    "many_keys": Entry("megatape.data.synthetic.recall:ManyKeys", "the value of one of 256 keys"),
    "ring": Entry("megatape.data.synthetic.navigation:Ring", "the symbol of a cell to which a walk on a ring returns"),
    "torus": Entry("megatape.data.synthetic.navigation:Torus", "the symbol of a cell to which a walk on a torus returns"),
    "dyck": Entry("megatape.data.synthetic.dyck:Dyck", "close the last bracket that is open"),
    "contextual_counting": Entry(
        "megatape.data.synthetic.contextual_counting:ContextualCounting", "the number of ones between brackets"
    ),
}

# Components of a model, each with the location of a table of settings in the model section that it does not support
# (megatape/config/limits.py). The tables' files import no torch. Users see the first violated limit as an error.
MODEL_LIMITS: dict[str, str] = {
    "layers": "megatape.config.sections.layer_limits:LIMITS",
    "position encoding": "megatape.config.sections.encoding_limits:LIMITS",
}

# Components of a run, each with the location of a table like those above, about the whole configuration. They are checked
# after all sections.
LIMITS: dict[str, str] = {
    "positions": "megatape.model.length_limits:LIMITS",
    "ZeRO": "megatape.config.sections.distribution_limits:ZERO_LIMITS",
    "LoRA": "megatape.model.lora_limits:LIMITS",
    "tensor-parallel ranks": "megatape.config.sections.distribution_limits:TENSOR_LIMITS",
    "sequence-parallel ranks": "megatape.config.sections.distribution_limits:SEQUENCE_LIMITS",
    "context-parallel ranks": "megatape.config.sections.distribution_limits:CONTEXT_LIMITS",
    "shifted sparse attention": "megatape.attention.shifted_limits:LIMITS",
    "compiled blocks": "megatape.model.compile_limits:LIMITS",
    "FP8 products": "megatape.nn.fp8_limits:LIMITS",
    "CUDA graphs": "megatape.zero.graph_limits:LIMITS",
}
