"""Actor-critic in the style of the A3C programs in which every worker says is_chief=True.

Each wants its own net initialized, whose name bears the task's number, and which lies on no device. The global net and
its optimizers are placed by replica_device_setter. Nobody gives a directory for checkpoints, unless told. The workers
begin together: whoever came after the last step would have played nothing.
"""

import threading

import numpy as np

import globalstep as tf

flags = tf.app.flags
FLAGS = flags.FLAGS
flags.DEFINE_string("ps_hosts", "", "Comma-separated host:port of the PS")
flags.DEFINE_string("worker_hosts", "", "Comma-separated host:port of the workers")
flags.DEFINE_string("job_name", "", "ps or worker")
flags.DEFINE_integer("task_index", 0, "Index within the job")
flags.DEFINE_string("session", "monitored", "monitored, creator or supervisor")
flags.DEFINE_integer("last_step", 300, "Global step to stop at")
flags.DEFINE_string("run_dir", None, "Where checkpoints go")
STATES, ACTIONS = 6, 3


class ActorCritic:
    def __init__(self, scope, optimizers=(), shared=None):
        with tf.variable_scope(scope):
            self.state = tf.placeholder(tf.float32, [None, STATES], "state")
            init = tf.random_normal_initializer(0.0, 0.1)
            with tf.variable_scope("actor"):
                layer = tf.layers.dense(self.state, 16, tf.nn.relu6, kernel_initializer=init, name="la")
                self.policy = tf.layers.dense(layer, ACTIONS, tf.nn.softmax, kernel_initializer=init, name="ap")
            with tf.variable_scope("critic"):
                layer = tf.layers.dense(self.state, 16, tf.nn.relu6, kernel_initializer=init, name="lc")
                self.value = tf.layers.dense(layer, 1, kernel_initializer=init, name="v")
        parts = [tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, f"{scope}/{part}") for part in ("actor", "critic")]
        self.params = parts
        if shared is None:
            return
        self.action = tf.placeholder(tf.int32, [None], "action")
        self.reward = tf.placeholder(tf.float32, [None, 1], "reward")
        difference = tf.subtract(self.reward, self.value)
        critic_loss = tf.reduce_mean(tf.square(difference))
        log_prob = tf.reduce_sum(tf.log(self.policy + 1e-8) * tf.one_hot(self.action, ACTIONS), axis=1, keep_dims=True)
        actor_loss = -tf.reduce_mean(log_prob * tf.stop_gradient(difference))
        self.global_step = tf.train.get_or_create_global_step()
        pairs = [
            pair for mine, theirs in zip(parts, shared.params, strict=True) for pair in zip(mine, theirs, strict=True)
        ]
        self.pull = [mine.assign(theirs) for mine, theirs in pairs]
        actor, critic = (tf.gradients(loss, mine) for loss, mine in zip((actor_loss, critic_loss), parts, strict=True))
        self.push = [
            optimizers[0].apply_gradients(zip(actor, shared.params[0], strict=True), global_step=self.global_step),
            optimizers[1].apply_gradients(zip(critic, shared.params[1], strict=True)),
        ]


def begin(session, present, arrive, workers):
    """Say that this worker is here, and wait for the others."""
    session.run(arrive)
    while session.run(present) < workers:
        threading.Event().wait(0.01)


def play(session, net, random, should_stop):
    """Play with the own net, push to the global one, pull it; give the mean reward of each round."""
    rewards = []
    while not should_stop():
        states = np.eye(STATES, dtype=np.float32)[random.integers(STATES, size=20)]
        policy = session.run(net.policy, {net.state: states})
        if policy is None or should_stop():
            break
        actions = np.array([random.choice(ACTIONS, p=row / row.sum()) for row in policy])
        reward = (actions == states.argmax(1) % ACTIONS).astype(np.float32)
        session.run(net.push, {net.state: states, net.action: actions, net.reward: reward[:, np.newaxis]})
        if should_stop():
            break
        session.run(net.pull)
        rewards.append(float(reward.mean()))
    return rewards


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
    worker_device = f"/job:worker/task:{FLAGS.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=worker_device, cluster=cluster)):
        optimizers = [tf.train.RMSPropOptimizer(0.01, name=name) for name in ("opt_a", "opt_c")]
        shared = ActorCritic("global_net")
        present = tf.get_variable("present", [], tf.int32, tf.zeros_initializer(), trainable=False)
        arrive = present.assign_add(1)
    net = ActorCritic(f"local_ac{FLAGS.task_index}", optimizers, shared)
    workers = cluster.num_tasks("worker")
    random = np.random.default_rng(FLAGS.task_index)
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.last_step)]
    if FLAGS.session == "supervisor":
        supervisor = tf.train.Supervisor(is_chief=True, logdir=FLAGS.run_dir, global_step=net.global_step)
        with supervisor.managed_session(server.target) as session:
            begin(session, present, arrive, workers)
            rewards = play(
                session, net, random,
                lambda: supervisor.should_stop() or session.run(net.global_step) >= FLAGS.last_step,
            )  # fmt: skip
    elif FLAGS.session == "creator":
        creator = tf.train.ChiefSessionCreator(master=server.target, checkpoint_dir=FLAGS.run_dir)
        with tf.train.MonitoredSession(session_creator=creator, hooks=hooks) as session:
            begin(session, present, arrive, workers)
            rewards = play(session, net, random, session.should_stop)
    else:
        with tf.train.MonitoredTrainingSession(
            master=server.target, is_chief=True, hooks=hooks, checkpoint_dir=FLAGS.run_dir
        ) as session:
            begin(session, present, arrive, workers)
            rewards = play(session, net, random, session.should_stop)
    print("rewards", np.mean(rewards[:5]), np.mean(rewards[-10:]))


if __name__ == "__main__":
    tf.app.run()
