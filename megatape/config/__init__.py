"""The JSON configuration: every section, its fields with unit, default and meaning, and all checks.

One file describes a run completely. Parsing is strict: an unknown key or a value of the wrong type is an error that
names its path, its value and what is allowed. Missing values get the defaults of their fields; the resolved
configuration is saved with the run. Nothing in this package imports torch.

The sections are classes of model.py, lora.py, scaling.py, data.py, training.py, distribution.py and run.py, with their base in
section.py. config.py puts them together. limits.py checks them against tables of what excludes what. file.py reads and writes
configurations, and changes.py makes variants. annotations.py, differences.py and explanation.py read the fields for help, for
resuming and for errors.
"""

from megatape.config.changes import with_sections, with_settings
from megatape.config.config import Config
from megatape.config.data import DataConfig
from megatape.config.differences import Difference, differences, shared_values
from megatape.config.distribution import ClusterConfig, ParallelConfig, ZeroConfig
from megatape.config.file import load_config, load_recorded_config, parse_config, parse_model, save_config
from megatape.config.lora import LoraConfig
from megatape.config.model import ModelConfig
from megatape.config.run import CheckpointConfig, EvaluationConfig, ExportConfig, LoggingConfig, RunConfig, families_with
from megatape.config.scaling import Llama3Scaling, ScalingConfig, YarnScaling
from megatape.config.section import ResumeRule, Section
from megatape.config.training import ActivationCheckpointing, Fp8Recipe, OptimizerConfig, ScheduleConfig, TrainingConfig
