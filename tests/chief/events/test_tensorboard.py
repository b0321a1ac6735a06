"""A real TensorBoard shows what is written here: through its HTTP API, and on a screen."""

import io
import json
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import SessionLog

import globalstep as gs
from globalstep.tf1.ops.file_writer import FileWriter
from globalstep.tf1.ops.summaries import histogram, image, merge_all, scalar, text

pytestmark = pytest.mark.processes

WAIT_SECS = 60
LOSSES = [4.0, 2.0, 1.0, 0.5]
PICTURE = np.linspace(0.0, 1.0, 12, dtype=np.float32).reshape(1, 3, 4, 1)


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    """The event files of a small run that was rolled back from step 9 to step 3."""
    directory = tmp_path_factory.mktemp("logs")
    with gs.Graph().as_default() as graph, gs.Session(graph=graph) as sess:
        with gs.device(gs.train.replica_device_setter(ps_tasks=1)):
            step = gs.train.get_or_create_global_step()
            weights = gs.Variable(np.array([1.0, 2.0, 3.0], np.float32), name="weights")
        feed = gs.placeholder(gs.float32, [], name="feed")
        loss = gs.reduce_sum(weights) * feed
        gs.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step, name="train")
        with gs.name_scope("model"):
            scalar("loss", feed)
        histogram("layer", weights)
        image("digits", PICTURE, max_outputs=1)
        text("notes", gs.constant("some *text*"))
        merged = merge_all()
        sess.run(gs.global_variables_initializer())
        run = str(directory / "run")
        with FileWriter(run, graph) as writer:
            # TensorBoard takes the second START of a run, not the first, for a resumption.
            writer.add_session_log(SessionLog(status=SessionLog.START), 1)
            for number, value in enumerate([*LOSSES, 77.0], start=1):
                writer.add_summary(sess.run(merged, {feed: value}), 9 if value == 77.0 else number)
        # Two files of one second are read in the order of their names, as TensorBoard reads them.
        with FileWriter(run, filename_suffix=".resumed") as writer:
            writer.add_session_log(SessionLog(status=SessionLog.START), 4)
            writer.add_summary(sess.run(merged, {feed: 0.5}), 4)
    return directory


class Server:
    """A TensorBoard process on a port of its own choice."""

    def __init__(self, logdir):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host", "127.0.0.1",
             "--port", "0", "--load_fast", "false", "--reload_interval", "1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        self.lines = []
        self.address = None
        self.known = threading.Event()
        self.reader = threading.Thread(target=self._read, name="tensorboard-stderr")
        self.reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"at (http://[^ ]+)", line)
            if found:
                self.address = found.group(1).rstrip("/")
                self.known.set()
        self.known.set()

    def get(self, path, **query):
        with urllib.request.urlopen(f"{self.address}{path}?{urllib.parse.urlencode(query)}", timeout=30) as reply:
            return reply.read()

    def get_json(self, path, **query):
        return json.loads(self.get(path, **query))

    def wait_for(self, path, is_there, **query):
        """Asks until the answer is as wanted: TensorBoard reads files in the background."""
        end = time.monotonic() + WAIT_SECS
        answer = None
        while time.monotonic() < end:
            try:
                answer = self.get_json(path, **query)
                if is_there(answer):
                    return answer
            except urllib.error.HTTPError as error:
                answer = error
            self.process_pause.wait(0.2)
        raise AssertionError(f"{path} still gives {answer}; {''.join(self.lines[-20:])}")

    process_pause = threading.Event()

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join()
        self.process.stderr.close()


@pytest.fixture(scope="module")
def server(logdir):
    server = Server(logdir)
    try:
        assert server.known.wait(WAIT_SECS), "TensorBoard said no address"
        assert server.address is not None, "".join(server.lines)
        server.wait_for("/data/plugin/scalars/tags", lambda tags: "model/loss" in tags.get("run", {}))
        yield server
    finally:
        server.close()


def test_scalars_without_what_was_rolled_back(server):
    points = server.wait_for(
        "/data/plugin/scalars/scalars", lambda points: len(points) == 4, tag="model/loss", run="run"
    )
    assert [(step, value) for _, step, value in points] == list(enumerate(LOSSES, start=1))


def test_histograms(server):
    assert "layer" in server.get_json("/data/plugin/histograms/tags")["run"]
    points = server.get_json("/data/plugin/histograms/histograms", tag="layer", run="run")
    assert [step for _, step, _ in points] == [1, 2, 3, 4]
    buckets = points[-1][2]
    assert sum(count for _, _, count in buckets) == pytest.approx(3.0)
    for number in (1.0, 2.0, 3.0):
        assert any(low <= number <= high and count > 0 for low, high, count in buckets)


def test_images(server):
    assert "digits/image" in server.get_json("/data/plugin/images/tags")["run"]
    entries = server.get_json("/data/plugin/images/images", tag="digits/image", run="run", sample=0)
    assert [entry["step"] for entry in entries] == [1, 2, 3, 4]
    data = server.get(f"/data/plugin/images/individualImage?{entries[-1]['query']}&")
    with Image.open(io.BytesIO(data)) as picture:
        assert np.asarray(picture).tolist() == np.floor(PICTURE[0, :, :, 0] * 255 + 1e-5).astype(int).tolist()


def test_text(server):
    assert "notes" in server.get_json("/data/plugin/text/tags")["run"]
    entries = server.get_json("/data/plugin/text/text", tag="notes", run="run")
    assert "<em>text</em>" in entries[-1]["text"]


def test_the_graph(server):
    assert server.get_json("/data/plugin/graphs/info")["run"]["run_graph"]
    drawn = server.get("/data/plugin/graphs/graph", run="run", limit_attr_size=1024, large_attrs_key="_large").decode()
    assert 'name: "weights/train/ApplyGradientDescent"' in drawn
    assert 'device: "/job:ps/task:0"' in drawn
    assert 'input: "^train/update"' in drawn


def test_the_loader_of_tensorboard_reads_the_files(logdir):
    loaded = EventAccumulator(str(logdir / "run"))
    loaded.Reload()
    assert [(event.step, event.value) for event in loaded.Scalars("model/loss")] == list(enumerate(LOSSES, start=1))
    assert loaded.Histograms("layer")[0].histogram_value.num == 3
    assert loaded.Images("digits/image")[0].width == 4
    assert {node.name for node in loaded.Graph().node} >= {"weights", "global_step", "train"}


def chromium():
    return shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.skipif(chromium() is None, reason="chromium is not installed (apt-get install chromium)")
@pytest.mark.parametrize("tab", ["scalars", "graphs"])
def test_a_browser_draws_it(server, tmp_path, tab):
    picture = tmp_path / f"{tab}.png"
    # Without 3D the tab draws its lines as SVG, which a screen without a graphics card shows too.
    subprocess.run(
        [chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-3d-apis",
         "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
         f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,1000", "--virtual-time-budget=20000",
         f"--screenshot={picture}", f"{server.address}/#{tab}"],
        check=True,
        timeout=100,
        capture_output=True,
    )  # fmt: skip
    with Image.open(picture) as screen:
        # Below the bar and right of the settings: a page that failed has nothing there.
        drawn = np.asarray(screen.convert("RGB")).astype(int)[130:600, 360:1350]
    assert np.count_nonzero(np.abs(drawn - drawn[-1, -1]).sum(axis=-1) > 60) > 2000
    # The line of the run, or the edge from the update to the step's Variable.
    color = {"scalars": (255, 112, 67), "graphs": (255, 179, 71)}[tab]
    assert np.count_nonzero(np.abs(drawn - color).sum(axis=-1) < 60) > 20
