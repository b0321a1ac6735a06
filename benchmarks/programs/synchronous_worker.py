"""One task of a job of TensorFlow 1.x, by globalstep or by TensorFlow: synchronous steps, or plain pushes.

The same program for both, as somebody would write it for TensorFlow. The loss is half the sum of squares of all
Variables, so each gradient is the values themselves, and what they are after so many steps is known. The chief says how
quick the steps were, as one line of JSON.

Imports globalstep or TensorFlow, not both: TensorFlow's environment need not have globalstep.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

#: A power of two, small enough that the values stay normal numbers for as long as is measured.
_RATE = 2.0**-14
_VARIABLES = 10


def _library(name: str) -> Any:
    if name == "globalstep":
        import globalstep

        return globalstep
    import tensorflow

    tensorflow.compat.v1.disable_v2_behavior()
    return tensorflow.compat.v1


def _train(tf: Any, server: Any, args: argparse.Namespace) -> None:
    """Train up to the last step, and say how many steps a second there were but for the first tenth of them."""
    chief = args.index == 0
    worker = f"/job:worker/task:{args.index}"
    with tf.device(tf.train.replica_device_setter(ps_tasks=args.counts[0], worker_device=worker)):
        count = tf.train.get_or_create_global_step()
        shape = [args.size // _VARIABLES]
        variables = [
            tf.get_variable(f"weights_{at}", shape, initializer=tf.ones_initializer()) for at in range(_VARIABLES)
        ]
        loss = tf.add_n([0.5 * tf.reduce_sum(tf.square(variable)) for variable in variables])
        optimizer = tf.train.GradientDescentOptimizer(_RATE)
        hooks = [tf.train.StopAtStepHook(last_step=args.steps)]
        if args.mode == "sync":
            optimizer = tf.train.SyncReplicasOptimizer(
                optimizer, replicas_to_aggregate=args.counts[1], total_num_replicas=args.counts[1]
            )
        train_op = optimizer.minimize(loss, global_step=count)
        if args.mode == "sync":
            hooks.append(optimizer.make_session_run_hook(chief))
    began = now = 0.0
    first = step = 0
    with tf.train.MonitoredTrainingSession(server.target, is_chief=chief, hooks=hooks) as session:
        while not session.should_stop():
            _, step = session.run([train_op, count])
            now = time.perf_counter()
            if not began and step >= args.steps // 10:
                began, first = now, step
            if step >= 0.98 * args.steps:
                # Before the end, in which some of TensorFlow's workers hang.
                break
        if chief:
            print(json.dumps({"rate": float((step - first) / (now - began)), "step": int(step)}), flush=True)


def main() -> None:
    """Be a PS or a worker."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.synchronous_worker", description=__doc__)
    parser.add_argument("--library", choices=("globalstep", "tensorflow"), required=True)
    parser.add_argument("--mode", choices=("sync", "async"), required=True)
    parser.add_argument("--job", choices=("ps", "worker"), required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--counts", type=int, nargs=2, required=True, metavar="N", help="PS and workers")
    parser.add_argument("--ports", type=int, nargs="+", required=True, metavar="PORT", help="of all PS, then workers")
    parser.add_argument("--size", type=int, required=True, help="parameters")
    parser.add_argument("--steps", type=int, required=True, help="the last step")
    args = parser.parse_args()
    tf = _library(args.library)
    tf.logging.set_verbosity(tf.logging.ERROR)
    addresses = [f"127.0.0.1:{port}" for port in args.ports]
    cluster = tf.train.ClusterSpec({"ps": addresses[: args.counts[0]], "worker": addresses[args.counts[0] :]})
    server = tf.train.Server(cluster, job_name=args.job, task_index=args.index)
    if args.job == "ps":
        server.join()
    else:
        _train(tf, server, args)
    sys.stdin.read()  # until it is killed


if __name__ == "__main__":
    main()
