"""All hooks in one namespace; each is defined in the module of its kind."""

from globalstep.chief.hooks.checkpoint import CheckpointSaverListener
from globalstep.chief.hooks.timers import SecondOrStepTimer
from globalstep.tf1.hooks.checkpoint import CheckpointSaverHook
from globalstep.tf1.hooks.prefetch import PrefetchLookupHook
from globalstep.tf1.hooks.profile import ProfilerHook
from globalstep.tf1.hooks.step import GlobalStepWaiterHook, StepCounterHook, StopAtStepHook
from globalstep.tf1.hooks.summary import SummarySaverHook
from globalstep.tf1.hooks.values import (
    FeedFnHook,
    FinalOpsHook,
    LoggingTensorHook,
    NanLossDuringTrainingError,
    NanTensorHook,
)

__all__ = [
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "FeedFnHook",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
    "LoggingTensorHook",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "PrefetchLookupHook",
    "ProfilerHook",
    "SecondOrStepTimer",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
]
