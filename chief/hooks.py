"""All hooks under one roof; each stands in the module of its kind.

Floor: chief.
"""

from globalstep.chief.hooks_checkpoint import CheckpointSaverHook, CheckpointSaverListener
from globalstep.chief.hooks_prefetch import PrefetchLookupHook
from globalstep.chief.hooks_profile import ProfilerHook
from globalstep.chief.hooks_progress import ProgressHook
from globalstep.chief.hooks_statistics import ClusterStatisticsHook
from globalstep.chief.hooks_step import GlobalStepWaiterHook, StepCounterHook, StopAtStepHook
from globalstep.chief.hooks_summary import SummarySaverHook
from globalstep.chief.hooks_values import (
    FeedFnHook,
    FinalOpsHook,
    LoggingTensorHook,
    NanLossDuringTrainingError,
    NanTensorHook,
)
from globalstep.chief.timers import SecondOrStepTimer

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
