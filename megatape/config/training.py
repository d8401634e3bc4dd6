"""The sections of an optimizer step: training, optimizer, schedule."""

from collections import ChainMap
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveInt

from megatape.config.section import Compared, Fixed, FixedSamples, Free, Registered, Section
from megatape.registry import AUTO, BACKENDS, OPTIMIZERS, SCHEDULES, Entry

OptimizerName = Annotated[str, AfterValidator(Registered(OPTIMIZERS))]
BackendName = Annotated[str, AfterValidator(Registered(ChainMap(BACKENDS, {AUTO: Entry("", "the first that can")})))]
ScheduleName = Annotated[str, AfterValidator(Registered(SCHEDULES))]


class TrainingConfig(Section):
    """Batches, precision and length of the run."""

    steps: Compared[PositiveInt] = Field(description="optimizer steps")
    global_batch_size: Compared[PositiveInt] = Field(description="samples of one optimizer step, over all ranks")
    micro_batch_size: Free[PositiveInt] = Field(description="samples of one forward and backward pass on one rank")
    seed: FixedSamples[int] = Field(1234, ge=0, description="everything random derives from it")
    precision: Compared[Literal["float32", "bfloat16"]] = Field(
        "float32", description="of weights and activations in compute; master weights and moments are float32 in both"
    )
    gradient_clip: Compared[float] = Field(1.0, ge=0, description="largest norm of the gradient; 0 turns clipping off")
    attention: Free[BackendName] = Field(
        AUTO, description="attention backend; auto takes the first that supports the encoding, the device and the head size"
    )
    activation_checkpointing: Free[bool] = Field(False, description="keep only each block's input and compute the rest again")


class OptimizerConfig(Section):
    """How weights change. Norms, gains and biases are not decayed; attention gains learn L times faster."""

    kind: Fixed[OptimizerName] = Field("adamw", description="optimizer")
    learning_rate: Compared[float] = Field(gt=0, description="peak of the schedule")
    beta1: Compared[float] = Field(0.9, ge=0, lt=1, description="decay of the first moment")
    beta2: Compared[float] = Field(0.999, ge=0, lt=1, description="decay of the second moment")
    eps: Compared[float] = Field(1e-8, gt=0, description="added to the root of the second moment")
    weight_decay: Compared[float] = Field(
        0.01, ge=0, description="share of a matrix that a step at learning rate 1 would take away"
    )


class ScheduleConfig(Section):
    """Learning rate over the steps: linear warm-up from 0, then a course."""

    kind: Compared[ScheduleName] = Field("linear", description="course after the warm-up")
    warmup_fraction: Compared[float] = Field(0.02, ge=0, lt=1, description="share of all steps")
    final_fraction: Compared[float] = Field(
        0.0, ge=0, le=1, description="share of the peak reached at the last step (linear and cosine)"
    )
