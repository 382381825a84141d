"""How a run goes, as settings."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from unmask.config import Settings
from unmask.train.freeze import FreezeSettings
from unmask.train.optimizer import OptimizerSettings
from unmask.train.precision import Precision
from unmask.train.schedule import ScheduleSettings
from unmask.train.world import Engine

Count = Annotated[int, Field(ge=1)]


class LoopSettings(Settings):
    """How a run goes, whatever its length."""

    accumulate: Count = 1
    """Micro-batches for one update, over all processes together."""
    clip: Annotated[float, Field(gt=0.0)] | None = 1.0
    """The greatest norm of all gradients together."""
    seed: int = 0
    """Of dropout; data and first values have seeds of their own."""
    log_every: Count = 10
    save_every: Count = 500
    keep: Count = 2
    """How many of the newest checkpoints stay."""
    evaluate_every: Count | None = None
    """Updates between evaluations, if there is something to evaluate on; None: only at the end."""
    patience: Count | None = None
    """Stop after so many evaluations without a better score."""
    average: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Decay of a moving average of the weights (EMA), which is then what is evaluated and kept."""
    fgm: Annotated[float, Field(gt=0.0)] | None = None
    """Learn also from token embeddings moved by this much in the direction that hurts (FGM)."""
    freeze: FreezeSettings = FreezeSettings()
    precision: Precision = "fp32"
    checkpoint_activations: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, more time."""
    compile: bool = False
    """Let torch.compile translate each block; needs a C++ compiler, and minutes at the start."""
    engine: Engine = "ddp"
    """How several processes share the work: copies (ddp) or parts (fsdp) of the model."""
    workers: Annotated[int, Field(ge=0)] = 0
    """Processes that make batches ahead."""
    optimizer: OptimizerSettings = OptimizerSettings()
    schedule: ScheduleSettings = ScheduleSettings()


class TrainSettings(LoopSettings):
    """How a run of so many updates goes."""

    updates: Count

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.patience is not None and self.evaluate_every is None:
            raise ValueError("patience counts evaluations: set evaluate_every too")
        return self
