import subprocess
import sys

from globalstep.runtime.process_env import tuned


def test_what_is_set_stays():
    assert tuned({"GRPC_EXPERIMENTS": "mine", "A": "b"})["GRPC_EXPERIMENTS"] == "mine"


def test_threads_are_left_alone_unless_asked_for():
    assert "OMP_NUM_THREADS" not in tuned({})
    assert tuned({}, threads=2)["OPENBLAS_NUM_THREADS"] == "2"


def test_the_installed_grpc_takes_the_settings_without_a_word():
    program = "import grpc; grpc.insecure_channel('127.0.0.1:1').close(); print('ok')"
    done = subprocess.run([sys.executable, "-c", program], env=tuned({}), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
