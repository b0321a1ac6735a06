"""`gs.train`: optimizers, schedules, sessions, hooks, savers, clusters and queues.

Floor: face.
"""

from globalstep.absent import ABSENT_IN_TRAIN
from globalstep.lazy import face, namespace

_NAMES = {
    "globalstep.chief.checkpoint": "NewCheckpointReader",
    "globalstep.chief.checkpoint_state": (
        "CheckpointState checkpoint_exists generate_checkpoint_state_proto get_checkpoint_mtimes "
        "get_checkpoint_state latest_checkpoint update_checkpoint_state"
    ),
    "globalstep.chief.checkpoint_variables": "list_variables load_checkpoint load_variable",
    "globalstep.chief.hooks": (
        "CheckpointSaverHook CheckpointSaverListener ClusterStatisticsHook FeedFnHook FinalOpsHook "
        "GlobalStepWaiterHook LoggingTensorHook NanLossDuringTrainingError NanTensorHook PrefetchLookupHook "
        "ProfilerHook ProgressHook SecondOrStepTimer StepCounterHook StopAtStepHook SummarySaverHook"
    ),
    "globalstep.chief.monitored_session": "MonitoredSession SingularMonitoredSession",
    "globalstep.chief.saver": "Saver",
    "globalstep.chief.scaffold": "Scaffold",
    "globalstep.chief.session_creators": "ChiefSessionCreator SessionCreator WorkerSessionCreator",
    "globalstep.chief.session_manager": "SessionManager",
    "globalstep.chief.summaries": "SummaryWriter SummaryWriterCache summary_iterator",
    "globalstep.chief.supervisor": "Supervisor",
    "globalstep.chief.training_session": "MonitoredTrainingSession",
    "globalstep.chief.write_graph": "write_graph",
    "globalstep.cluster": "ClusterDef ClusterSpec JobDef TaskConfig from_tf_config",
    "globalstep.deploy.server": "Server",
    "globalstep.device": "replica_device_setter",
    "globalstep.example": "BytesList Example Feature Features FloatList Int64List",
    "globalstep.moving_averages": "ExponentialMovingAverage",
    "globalstep.optimizer": "Optimizer",
    "globalstep.optimizers": (
        "AdadeltaOptimizer AdagradOptimizer AdamOptimizer GradientDescentOptimizer MomentumOptimizer RMSPropOptimizer"
    ),
    "globalstep.optimizers_modern": "AdamWOptimizer LambOptimizer LazyAdamOptimizer LionOptimizer",
    "globalstep.optimizers_online": (
        "AdagradDAOptimizer FtrlOptimizer ProximalAdagradOptimizer ProximalGradientDescentOptimizer"
    ),
    "globalstep.schedules": (
        "cosine_decay cosine_decay_restarts exponential_decay inverse_time_decay linear_cosine_decay "
        "linear_warmup natural_exp_decay noisy_linear_cosine_decay piecewise_constant "
        "piecewise_constant_decay polynomial_decay"
    ),
    "globalstep.slurm": "from_slurm",
    "globalstep.training_util": (
        "assert_global_step create_global_step get_global_step get_or_create_global_step global_step"
    ),
    "globalstep.worker.batching": ("batch batch_join maybe_batch maybe_shuffle_batch shuffle_batch shuffle_batch_join"),
    "globalstep.worker.coordinator": "Coordinator LooperThread",
    "globalstep.worker.inputs": (
        "input_producer limit_epochs match_filenames_once range_input_producer slice_input_producer "
        "string_input_producer"
    ),
    "globalstep.worker.queue_runner": "QueueRunner add_queue_runner start_queue_runners",
    "globalstep.worker.session_run_hook": "SessionRunArgs SessionRunContext SessionRunHook SessionRunValues",
}

__all__ = face(__name__, _NAMES, absent=ABSENT_IN_TRAIN)

#: The module by which old programs reach these.
queue_runner = namespace(
    f"{__name__}.queue_runner",
    {"globalstep.worker.queue_runner": "QueueRunner add_queue_runner start_queue_runners"},
)
