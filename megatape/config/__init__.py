"""The JSON configuration: every section, its fields with default and meaning, and all checks.

One file describes a run completely. Parsing is strict: an unknown key or a value of the wrong type is an error with path, value
and what is allowed. Missing values get their fields' defaults, and the resolved configuration is saved with the run. Nothing in
this package imports torch.

* config.py puts the sections together. sections/ has them with their limits, and reads the patterns of model.layers by layers/.
* section.py has the base class of sections, kinds.py the keys that take registry names, and limits.py the check of
  combinations of settings.
* file.py reads and writes configurations, and changes.py makes variants, and the options for them.
* fields/ reads the fields, for help and documentation, for resuming and for errors.
"""

from megatape.config.changes import SettingValues, as_overrides, set_options, value_text, with_sections, with_settings
from megatape.config.config import Config
from megatape.config.fields.differences import Difference, differences, shared_values
from megatape.config.file import load_config, load_recorded_config, parse_config, parse_model, save_config
from megatape.config.section import ResumeRule, Section
from megatape.config.sections.data import DataConfig
from megatape.config.sections.distribution import ClusterConfig, ParallelConfig, ZeroConfig
from megatape.config.sections.families import families_with
from megatape.config.sections.lora import LoraConfig
from megatape.config.sections.model import ModelConfig
from megatape.config.sections.optimizer import OptimizerConfig, ScheduleConfig
from megatape.config.sections.run import CheckpointConfig, EvaluationConfig, ExportConfig, LoggingConfig, RunConfig
from megatape.config.sections.scaling import Llama3Scaling, ScalingConfig, YarnScaling
from megatape.config.sections.training import ActivationCheckpointing, Fp8Recipe, TrainingConfig
