import json
import logging as python_logging
import subprocess
import sys

import pytest

from globalstep import logging


@pytest.fixture(autouse=True)
def verbosity():
    before = python_logging.getLogger("globalstep").level
    logging.set_verbosity(logging.INFO)
    yield
    python_logging.getLogger("globalstep").setLevel(before)


def run(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stderr


def test_lines_read_as_the_seeds_show_them():
    program = (
        "import logging, globalstep as tf; tf.logging.set_verbosity(tf.logging.INFO); "
        "tf.logging.info('loss = %f at step %d', 1.39697, 1); "
        "logging.getLogger('globalstep.tf1.hooks.step').warning('beware')"
    )
    assert run(program) == "INFO:globalstep:loss = 1.396970 at step 1\nWARNING:globalstep:beware\n"


def test_only_warnings_by_default():
    assert run("import globalstep as tf; tf.logging.info('a'); tf.logging.warn('b')") == "WARNING:globalstep:b\n"


def test_lines_of_a_program_that_logs_nothing_itself_look_the_same():
    program = (
        "import logging, globalstep as tf; tf.Session; "
        "logging.getLogger('globalstep.worker.client.calls').warning('beware')"
    )
    assert run(program) == "WARNING:globalstep:beware\n"
    line = json.loads(run("import os; os.environ['GLOBALSTEP_LOG_FORMAT'] = 'json'; " + program))
    assert (line["level"], line["logger"], line["message"]) == ("WARNING", "globalstep.worker.client.calls", "beware")


def test_a_program_that_sets_up_logging_gets_each_record_once():
    program = (
        "import logging, globalstep as tf; logging.basicConfig(format='mine %(message)s'); tf.logging.warning('once')"
    )
    assert run(program) == "mine once\n"


def test_verbosity():
    assert logging.get_verbosity() == logging.INFO
    logging.set_verbosity(logging.ERROR)
    assert logging.get_verbosity() == python_logging.ERROR
    assert logging.get_logger().name == "globalstep"


def test_each_level(caplog):
    logging.set_verbosity(logging.DEBUG)
    for function in (logging.debug, logging.info, logging.warn, logging.error, logging.fatal):
        function("x %d", 1)
    logging.vlog(logging.INFO, "y")
    levels = [record.levelname for record in caplog.records]
    assert levels == ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "INFO"]
    logging.flush()


def test_log_if(caplog):
    logging.log_if(logging.INFO, "yes %d", True, 1)
    logging.log_if(logging.INFO, "no", False)
    assert caplog.messages == ["yes 1"]


def test_log_every_n_counts_for_each_line(caplog):
    for i in range(7):
        logging.log_every_n(logging.INFO, "a %d", 3, i)
        logging.log_every_n(logging.INFO, "b %d", 5, i)
    assert caplog.messages == ["a 0", "b 0", "a 3", "b 5", "a 6"]


def test_log_first_n(caplog):
    for i in range(5):
        logging.log_first_n(logging.INFO, "%d", 2, i)
    assert caplog.messages == ["0", "1"]
