"""Actor-critic in the style of the A3C programs: a global net on the PS, a net of its own in each worker's process.

Each worker copies the global net into its own, plays with that, and applies its gradients to the global one. The nets
of all workers have the same names; their device tells them apart. They begin together: whoever came after the last step
would have played nothing.
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
flags.DEFINE_string("session", "monitored", "monitored or supervisor")
flags.DEFINE_string("own_nets", "device", "How a worker's own net is told apart: device or collection")
flags.DEFINE_integer("last_step", 200, "Global step to stop at")
flags.DEFINE_string("run_dir", "", "Where checkpoints go")
STATES, ACTIONS = 6, 3


def in_local_variables(getter, *args, **kwargs):
    return getter(*args, **{**kwargs, "collections": [tf.GraphKeys.LOCAL_VARIABLES]})


class Net:
    def __init__(self, scope, custom_getter=None):
        with tf.variable_scope(scope, custom_getter=custom_getter):
            self.state = tf.placeholder(tf.float32, [None, STATES], "state")
            hidden = tf.layers.dense(self.state, 16, activation=tf.nn.relu, name="hidden")
            self.policy = tf.nn.softmax(tf.layers.dense(hidden, ACTIONS, name="policy"))
            self.value = tf.reshape(tf.layers.dense(hidden, 1, name="value"), [-1])
            self.variables = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope)


class Agent:
    def __init__(self, task):
        worker_device = f"/job:worker/task:{task}/cpu:0"
        with tf.device(tf.train.replica_device_setter(1, worker_device=worker_device)):
            self.shared = Net("global")
            self.global_step = tf.get_variable(
                "global_step", [], tf.int32, initializer=tf.constant_initializer(0, dtype=tf.int32), trainable=False
            )
            self.present = tf.get_variable("present", [], tf.int32, tf.zeros_initializer(), trainable=False)
            self.arrive = self.present.assign_add(1)
        by_collection = FLAGS.own_nets == "collection"
        with tf.device(None if by_collection else worker_device):
            self.own = own = Net("local", in_local_variables if by_collection else None)
            collections = [tf.GraphKeys.LOCAL_VARIABLES] if by_collection else None
            self.mark = tf.get_variable(
                "local/mark", [], tf.int32, tf.zeros_initializer(), trainable=False, collections=collections
            )
            self.action = tf.placeholder(tf.float32, [None, ACTIONS], "action")
            self.reward = tf.placeholder(tf.float32, [None], "reward")
            advantage = tf.stop_gradient(self.reward - own.value)
            chosen = tf.reduce_sum(tf.log(own.policy + 1e-8) * self.action, [1])
            loss = -tf.reduce_mean(chosen * advantage) + 0.5 * tf.reduce_mean(tf.square(own.value - self.reward))
            gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, own.variables), 40.0)
            pairs = zip(own.variables, self.shared.variables, strict=True)
            self.sync = tf.group(*[mine.assign(theirs) for mine, theirs in pairs])
            self.set_mark = self.mark.assign(task)
            optimizer = tf.train.AdamOptimizer(0.03)
            self.train = optimizer.apply_gradients(
                list(zip(gradients, self.shared.variables, strict=True)), global_step=self.global_step
            )
        self.random = np.random.default_rng(task)
        self.rewards = []

    def begin(self, session, workers):
        """Say that this worker is here, and wait for the others."""
        session.run([self.set_mark, self.arrive])
        while session.run(self.present) < workers:
            threading.Event().wait(0.01)

    def play(self, session, should_stop):
        """Copy the global net, play twenty moves with it, apply what they teach to the global net."""
        session.run(self.sync)
        if should_stop():
            return 0
        states = np.eye(STATES, dtype=np.float32)[self.random.integers(STATES, size=20)]
        policy = session.run(self.own.policy, {self.own.state: states})
        if should_stop():
            return 0
        actions = np.array([self.random.choice(ACTIONS, p=row / row.sum()) for row in policy])
        rewards = (actions == states.argmax(1) % ACTIONS).astype(np.float32)
        feeds = {self.own.state: states, self.action: np.eye(ACTIONS)[actions], self.reward: rewards}
        _, step = session.run([self.train, self.global_step], feeds)
        self.rewards.append(float(rewards.mean()))
        return step


def monitored(agent, server, workers, is_chief):
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.last_step)]
    with tf.train.MonitoredTrainingSession(
        server.target, is_chief=is_chief, hooks=hooks, checkpoint_dir=FLAGS.run_dir
    ) as session:
        agent.begin(session, workers)
        while not session.should_stop():
            mark = session.run(agent.mark)
            if not session.should_stop():
                agent.play(session, session.should_stop)
    return mark


def supervised(agent, server, workers, is_chief):
    # Variable names that start with "local" are not saved in checkpoints.
    saved = [v for v in tf.global_variables() if not v.name.startswith("local")]
    init_all_op = tf.global_variables_initializer()
    supervisor = tf.train.Supervisor(
        is_chief=is_chief,
        logdir=FLAGS.run_dir,
        saver=tf.train.Saver(saved),
        summary_op=None,
        init_op=tf.variables_initializer(saved),
        init_fn=lambda session: session.run(init_all_op),
        ready_op=tf.report_uninitialized_variables(saved),
        global_step=agent.global_step,
        save_model_secs=30,
        save_summaries_secs=30,
    )
    config = tf.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{FLAGS.task_index}/cpu:0"])
    with supervisor.managed_session(server.target, config=config) as session, session.as_default():
        session.run(agent.sync)
        agent.begin(session, workers)
        step = 0
        while not supervisor.should_stop() and step < FLAGS.last_step:
            step = agent.play(session, supervisor.should_stop)
        mark = session.run(agent.mark)
    supervisor.stop()
    return mark


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
    agent = Agent(FLAGS.task_index)
    run = monitored if FLAGS.session == "monitored" else supervised
    mark = run(agent, server, cluster.num_tasks("worker"), is_chief=FLAGS.task_index == 0)
    print("mark", mark)
    print("rewards", np.mean(agent.rewards[:5]), np.mean(agent.rewards[-5:]))


if __name__ == "__main__":
    tf.app.run()
