import subprocess
import sys

from globalstep.runtime.process_env import tuned

FORKS = """
import os, threading
from concurrent.futures import ThreadPoolExecutor
import grpc

forked = threading.Event()
called = threading.Semaphore(0)


class Waits(grpc.GenericRpcHandler):
    def service(self, details):
        def answer(request, context):
            called.release()
            forked.wait()
            return request

        return grpc.unary_unary_rpc_method_handler(answer)


with ThreadPoolExecutor(3) as pool:
    server = grpc.server(pool, handlers=[Waits()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        threads = [threading.Thread(target=channel.unary_unary("/a/b"), args=[b"x"]) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            called.acquire()
        for _ in range(5):
            if not (child := os.fork()):
                os._exit(0)
            os.waitpid(child, 0)
        forked.set()
        for thread in threads:
            thread.join()
    server.stop(None).wait()
print("ended")
"""


def test_what_is_set_stays():
    assert tuned({"GRPC_EXPERIMENTS": "mine", "A": "b"})["GRPC_EXPERIMENTS"] == "mine"


def test_threads_are_left_alone_unless_asked_for():
    assert "OMP_NUM_THREADS" not in tuned({})
    assert tuned({}, threads=2)["OPENBLAS_NUM_THREADS"] == "2"


def test_the_installed_grpc_takes_the_settings_without_a_word():
    program = "import grpc; grpc.insecure_channel('127.0.0.1:1').close(); print('ok')"
    done = subprocess.run([sys.executable, "-c", program], env=tuned({}), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_a_fork_beside_calls_of_grpc_neither_hangs_nor_is_logged():
    """Of a DataLoader, say, in a worker whose other threads call the PS tasks."""
    command = [sys.executable, "-W", "ignore", "-c", FORKS]  # Python 3.12 warns of any fork beside threads
    done = subprocess.run(command, env=tuned({}), capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("ended\n", "")
