"""`gs.train`: optimizers, schedules, sessions, hooks, savers, clusters and queues.

Layer: namespace.
"""

from globalstep.lazy import namespace, nested_namespace
from globalstep.tf1.absent import ABSENT_IN_TRAIN

_NAMES = {
    "globalstep.chief.checkpoints.checkpoint": "NewCheckpointReader",
    "globalstep.chief.checkpoints.checkpoint_state": (
        "CheckpointState checkpoint_exists generate_checkpoint_state_proto get_checkpoint_mtimes "
        "get_checkpoint_state latest_checkpoint update_checkpoint_state"
    ),
    "globalstep.tf1.variables.checkpoint_variables": (
        "init_from_checkpoint list_variables load_checkpoint load_variable"
    ),
    "globalstep.tf1.exporting.meta_graph_files": "export_meta_graph import_meta_graph",
    "globalstep.tf1.hooks.hooks": (
        "CheckpointSaverHook CheckpointSaverListener ClusterStatisticsHook FeedFnHook FinalOpsHook "
        "GlobalStepWaiterHook LoggingTensorHook NanLossDuringTrainingError NanTensorHook PrefetchLookupHook "
        "ProfilerHook ProgressHook SecondOrStepTimer StepCounterHook StopAtStepHook SummarySaverHook"
    ),
    "globalstep.tf1.sessions.monitored_session": "MonitoredSession SingularMonitoredSession",
    "globalstep.tf1.sessions.saver": "Saver SaverDef",
    "globalstep.tf1.sessions.scaffold": "Scaffold",
    "globalstep.tf1.sessions.session_creators": "ChiefSessionCreator SessionCreator WorkerSessionCreator",
    "globalstep.tf1.sessions.session_manager": "SessionManager",
    "globalstep.tf1.ops.summaries": "SummaryWriter SummaryWriterCache summary_iterator",
    "globalstep.tf1.sessions.supervisor": "Supervisor",
    "globalstep.tf1.sessions.training_session": "MonitoredTrainingSession",
    "globalstep.tf1.graph.write_graph": "write_graph",
    "globalstep.cluster.cluster": "ClusterDef ClusterSpec JobDef ServerDef TaskConfig from_tf_config",
    "globalstep.deploy.server": "Server",
    "globalstep.tf1.graph.device": "replica_device_setter",
    "globalstep.tf1.data.example": (
        "BytesList Example Feature FeatureList FeatureLists Features FloatList Int64List SequenceExample"
    ),
    "globalstep.tf1.optimizers.moving_averages": "ExponentialMovingAverage",
    "globalstep.tf1.optimizers.optimizer": "Optimizer",
    "globalstep.tf1.optimizers.optimizers": (
        "AdadeltaOptimizer AdagradOptimizer AdamOptimizer GradientDescentOptimizer MomentumOptimizer RMSPropOptimizer"
    ),
    "globalstep.tf1.optimizers.optimizers_modern": "AdamWOptimizer LambOptimizer LazyAdamOptimizer LionOptimizer",
    "globalstep.tf1.optimizers.optimizers_online": (
        "AdagradDAOptimizer FtrlOptimizer ProximalAdagradOptimizer ProximalGradientDescentOptimizer"
    ),
    "globalstep.tf1.optimizers.schedules": (
        "cosine_decay cosine_decay_restarts exponential_decay inverse_time_decay linear_cosine_decay "
        "linear_warmup natural_exp_decay noisy_linear_cosine_decay piecewise_constant "
        "piecewise_constant_decay polynomial_decay"
    ),
    "globalstep.cluster.slurm": "from_slurm",
    "globalstep.tf1.variables.training_util": (
        "assert_global_step create_global_step get_global_step get_or_create_global_step global_step"
    ),
    "globalstep.tf1.inputs.batching": (
        "batch batch_join maybe_batch maybe_batch_join maybe_shuffle_batch maybe_shuffle_batch_join shuffle_batch "
        "shuffle_batch_join"
    ),
    "globalstep.chief.sessions.coordinator": "Coordinator LooperThread",
    "globalstep.tf1.inputs.inputs": (
        "input_producer limit_epochs match_filenames_once range_input_producer slice_input_producer "
        "string_input_producer"
    ),
    "globalstep.tf1.inputs.queue_runner": "QueueRunner add_queue_runner start_queue_runners",
    "globalstep.tf1.optimizers.local_steps_optimizer": "LocalStepsOptimizer",
    "globalstep.tf1.optimizers.sync_replicas_optimizer": (
        "SyncReplicasOptimizer SyncReplicasOptimizerV2=SyncReplicasOptimizer"
    ),
    "globalstep.chief.hooks.session_run_hook": "SessionRunArgs SessionRunContext SessionRunHook SessionRunValues",
}

__all__ = namespace(__name__, _NAMES, absent=ABSENT_IN_TRAIN)

#: The module by which old programs reach these.
queue_runner = nested_namespace(
    f"{__name__}.queue_runner",
    {"globalstep.tf1.inputs.queue_runner": "QueueRunner add_queue_runner start_queue_runners"},
)
