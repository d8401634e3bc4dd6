"""The JSON configuration: every section, its fields with default and meaning, and all checks.

One file describes a run completely. Parsing is strict: an unknown key or a value of the wrong type is an error with path, value
and what is allowed. Missing values get their fields' defaults, and the resolved configuration is saved with the run. Nothing in
this package imports torch.

* config.py puts the sections together: model.py (with lora.py and scaling.py), data.py, training.py (with batches.py),
  distribution.py and run.py. section.py has their base class, and kinds.py the keys that take registry names.
* limits.py checks combinations of settings, such as those in distribution_limits.py.
* file.py reads and writes configurations, and changes.py makes variants.
* annotations.py, differences.py and explanation.py read the fields, for help, for resuming and for errors.
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
