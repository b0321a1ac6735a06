"""All hooks in one namespace; each is defined in the module of its kind.

Layer: tf1.
"""

from globalstep.chief.hooks.checkpoint import CheckpointSaverHook, CheckpointSaverListener
from globalstep.chief.hooks.progress import ProgressHook
from globalstep.chief.hooks.statistics import ClusterStatisticsHook
from globalstep.chief.hooks.step import GlobalStepWaiterHook, StepCounterHook, StopAtStepHook
from globalstep.chief.hooks.timers import SecondOrStepTimer
from globalstep.tf1.hooks.prefetch import PrefetchLookupHook
from globalstep.tf1.hooks.profile import ProfilerHook
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
    "ClusterStatisticsHook",
    "FeedFnHook",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
    "LoggingTensorHook",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "PrefetchLookupHook",
    "ProfilerHook",
    "ProgressHook",
    "SecondOrStepTimer",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
]
