"""The Kubernetes manifests: valid by the API's schemas, and every pod is a task that the cluster knows."""

import functools
import importlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from globalstep.cluster.cluster import from_tf_config
from globalstep.deploy.pod import tf_config
from globalstep.runtime.metrics_port import metrics_address

yaml = pytest.importorskip("yaml")
FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
OVERLAYS = {"small": (2, 2), "large": (8, 32)}


def built(folder):
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl, which has kustomize in it, is not installed")
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def build(name):
    return built(FOLDER / name)


#: The run whose name the manifests have.
RUN = "digits-1"


def by_name(text):
    """Give the objects of a run by their kinds, and their names without its name."""
    found = list(yaml.safe_load_all(text))
    assert all(RUN in one["metadata"]["name"] for one in found)
    return {(one["kind"], one["metadata"]["name"].removesuffix(f"-{RUN}")): one for one in found}


def container(workload):
    return workload["spec"]["template"]["spec"]["containers"][0]


def expanded(text, values):
    """Do what the kubelet does with $(NAME)."""
    return re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], text)


def environment(workload, found, given=()):
    """Give the variables of a pod as the kubelet makes them, one after the other, and TF_CONFIG as its program does."""
    labels = workload["spec"]["template"]["metadata"]["labels"]
    maps = {one["metadata"]["name"]: one["data"] for one in found.values() if one["kind"] == "ConfigMap"}
    environ = dict(given)
    for one in container(workload)["env"]:
        source = one.get("valueFrom", {})
        if "value" in one:
            environ[one["name"]] = expanded(one["value"], environ)
        elif "app.kubernetes.io/instance" in json.dumps(source):
            environ[one["name"]] = labels["app.kubernetes.io/instance"]
        elif "configMapKeyRef" in source:
            environ[one["name"]] = maps[source["configMapKeyRef"]["name"]][source["configMapKeyRef"]["key"]]
    python, flag, module, *command = container(workload)["command"]
    if (python, flag, module) == ("python", "-m", "globalstep.deploy.pod"):
        environ["TF_CONFIG"] = tf_config(command[0], environ)
    return environ


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_overlays_are_valid(name, tmp_path):
    validate = pytest.importorskip("kubernetes_validate")
    for manifest in yaml.safe_load_all(build(name)):
        validate.validate(manifest, "1.32", strict=True)


def test_a_typo_is_not_valid():
    validate = pytest.importorskip("kubernetes_validate")
    manifest = by_name(build("small"))["Job", "globalstep-chief"]
    manifest["spec"]["backofLimit"] = 3
    with pytest.raises(validate.ValidationError, match="backofLimit"):
        validate.validate(manifest, "1.31", strict=True)


@pytest.mark.parametrize(("name", "sizes"), OVERLAYS.items())
def test_every_pod_of_an_overlay_is_a_task(name, sizes):
    found = by_name(build(name))
    ps, workers = sizes
    sizes = found["ConfigMap", "globalstep-sizes"]["data"]
    assert {key: int(value) for key, value in sizes.items()} == {"ps": ps, "ps-kept": ps - 1, "workers": workers}
    assert found["PodDisruptionBudget", "globalstep-ps"]["spec"]["minAvailable"] == ps - 1
    worker = found["Job", "globalstep-worker"]
    for job, size in ((found["Job", "globalstep-ps"]["spec"], ps), (worker["spec"], workers)):
        assert (job["completions"], job["parallelism"], job["completionMode"]) == (size, size, "Indexed")
    for workload, job, index in [
        (found["Job", "globalstep-chief"], "chief", 0),
        *((worker, "worker", index) for index in range(workers)),
    ]:
        config = from_tf_config({"TF_CONFIG": environment(workload, found, {"INDEX": str(index)})["TF_CONFIG"]})
        assert (config.job, config.index) == (job, index)
        assert [config.cluster.num_tasks(one) for one in ("ps", "worker")] == [ps, workers]
        assert config.cluster.task_address("ps", ps - 1) == f"globalstep-ps-{RUN}-{ps - 1}.globalstep-ps-{RUN}:2222"


@pytest.mark.parametrize(("name", "how"), [("small", "GLOBALSTEP_INSECURE"), ("large", "GLOBALSTEP_TLS_CERT")])
def test_an_overlay_says_how_strangers_are_kept_out(name, how):
    found = by_name(build(name))
    settings = found["ConfigMap", "globalstep-settings"]["data"]
    assert {one for one in settings if one in ("GLOBALSTEP_INSECURE", "GLOBALSTEP_TLS_CERT")} == {how}
    for kind, task in (("Job", "ps"), ("Job", "chief"), ("Job", "worker")):
        pod = found[kind, f"globalstep-{task}"]["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert {"configMapRef": {"name": f"globalstep-settings-{RUN}"}} in pod["containers"][0]["envFrom"]
        mounts = {one["name"] for one in pod["containers"][0]["volumeMounts"]}
        assert mounts == {one["name"] for one in pod["volumes"]}
        assert ("tls" in mounts) == (name == "large")
        assert ("tokens" in mounts) == (task == "ps")


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_gives_each_role_its_own_token(name):
    found = by_name(build(name))
    for task in ("chief", "worker"):
        environ = {one["name"]: one for one in container(found["Job", f"globalstep-{task}"])["env"]}
        assert environ["GLOBALSTEP_TOKEN"]["valueFrom"]["secretKeyRef"] == {
            "name": f"globalstep-tokens-{RUN}",
            "key": task,
        }
    pod = found["Job", "globalstep-ps"]["spec"]["template"]["spec"]
    assert_lets_in_by_tokens(pod, f"globalstep-tokens-{RUN}")
    # No token that is known to all is in the repository.
    assert not any(found["Secret", "globalstep-tokens"].get("stringData", {}).values())


def assert_lets_in_by_tokens(pod, secret):
    """The file of tokens that a PS task reads is that of a Secret."""
    environ = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    (mount,) = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "tokens"]
    (volume,) = [one["secret"] for one in pod["volumes"] if one["name"] == "tokens"]
    assert volume["secretName"] == secret
    (item,) = volume["items"]
    assert environ["GLOBALSTEP_TOKENS_FILE"] == f"{mount['mountPath']}/{item['path']}"


@pytest.mark.parametrize("name", ["jobset", "tfjob"])
def test_a_custom_resource_gives_each_role_its_own_token(name):
    found = list(yaml.safe_load_all(build(name)))
    (secret,) = [one for one in found if one["kind"] == "Secret"]
    assert set(secret["stringData"]) == {"chief", "worker", "tokens"}
    assert not any(secret["stringData"].values())
    keys = set()
    for pod in (pod for one in found for pod in _pods(one)):
        environ = {one["name"]: one for one in pod["containers"][0]["env"]}
        if "GLOBALSTEP_TOKEN" in environ:
            of = environ["GLOBALSTEP_TOKEN"]["valueFrom"]["secretKeyRef"]
            assert of["name"] == secret["metadata"]["name"]
            keys.add(of["key"])
        else:
            assert_lets_in_by_tokens(pod, secret["metadata"]["name"])
    assert keys == {"chief", "worker"}


def test_the_large_overlay_gives_each_role_its_own_key():
    """A worker that had the PS tasks' key could pose as one, and would be shown the chief's token."""
    found = by_name(build("large"))
    for kind, task in (("Job", "ps"), ("Job", "chief"), ("Job", "worker")):
        volumes = found[kind, f"globalstep-{task}"]["spec"]["template"]["spec"]["volumes"]
        (secret,) = [one["secret"]["secretName"] for one in volumes if one["name"] == "tls"]
        assert secret == f"globalstep-tls-{task}-{RUN}"


def test_ps_tasks_are_told_to_have_a_token_for_each_other():
    """Without one, what became of a dead worker's pushes is never asked."""
    for name in ("tokens", "jobset", "tfjob"):
        assert '"ps TOKEN"' in (FOLDER / name / "tokens.yaml").read_text()


def _pods(node):
    """Give the specs of all pods in a manifest."""
    if isinstance(node, dict):
        if "containers" in node:
            yield node
        for value in node.values():
            yield from _pods(value)
    elif isinstance(node, list):
        for value in node:
            yield from _pods(value)


MANIFESTS = ["base/ps.yaml", "base/chief.yaml", "base/workers.yaml", "jobset/jobset.yaml", "tfjob/tfjob.yaml"]


@pytest.mark.parametrize("name", MANIFESTS)
def test_pods_have_no_more_than_they_need(name):
    pods = [pod for one in yaml.safe_load_all((FOLDER / name).read_text()) for pod in _pods(one)]
    assert pods
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        (one,) = pod["containers"]
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {mount["name"] for mount in one["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_workers_cannot_write_to_the_run():
    """They could write checkpoints, logs and journals without any role."""
    workers = [
        *_pods(yaml.safe_load((FOLDER / "base/workers.yaml").read_text())),
        *_pods(yaml.safe_load((FOLDER / "tfjob/tfjob.yaml").read_text())["spec"]["tfReplicaSpecs"]["Worker"]),
        *_pods(yaml.safe_load((FOLDER / "jobset/jobset.yaml").read_text())["spec"]["replicatedJobs"][2]),
    ]
    assert len(workers) == 3
    for pod in workers:
        (run,) = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "run"]
        assert run["readOnly"] is True


@pytest.mark.parametrize(
    ("name", "label"), [("jobset", "jobset.sigs.k8s.io/jobset-name"), ("tfjob", "training.kubeflow.org/job-name")]
)
def test_only_the_jobs_own_pods_reach_its_tasks(name, label):
    policy = yaml.safe_load((FOLDER / name / "network.yaml").read_text())["spec"]
    job = yaml.safe_load((FOLDER / name / f"{name}.yaml").read_text())["metadata"]["name"]
    assert policy["podSelector"]["matchLabels"] == {label: job}
    (ingress,) = policy["ingress"]
    assert ingress["from"] == [{"podSelector": {"matchLabels": {label: job}}}]


#: The ports that a PS task serves: gRPC, and the TCP connections beside it.
PORTS = {2222, 2223}


@pytest.mark.parametrize("name", ["base", "jobset", "tfjob"])
def test_the_ports_of_a_ps_task_are_fixed_and_let_through(name):
    """A policy with one of them alone would leave values and gradients to gRPC, after a wait of every worker."""
    found = list(yaml.safe_load_all(build(name)))
    commands = [pod["containers"][0]["command"] for one in found for pod in _pods(one)]
    (serves,) = [command for command in commands if "globalstep.ps" in command]
    assert {f"--bind=0.0.0.0:{min(PORTS)}", f"--tcp-port={max(PORTS)}"} <= set(serves)
    (ingress,) = [rule for one in found if one["kind"] == "NetworkPolicy" for rule in one["spec"].get("ingress", ())]
    assert ingress["ports"] == [{"protocol": "TCP", "port": port} for port in sorted(PORTS)]
    for service in (one for one in found if one["kind"] == "Service"):
        assert {port["port"] for port in service["spec"]["ports"]} == PORTS


def test_the_tf_job_fits_what_the_operator_asks_for():
    job = yaml.safe_load((FOLDER / "tfjob" / "tfjob.yaml").read_text())
    assert job["spec"]["runPolicy"]["cleanPodPolicy"] == "Running"
    assert set(job["spec"]["tfReplicaSpecs"]) == {"Chief", "PS", "Worker"}
    for replica in job["spec"]["tfReplicaSpecs"].values():
        # By exit codes: 1 to 127 is the program's failure, 128 and above (143 when it was asked to end) a restart.
        assert replica["restartPolicy"] == "ExitCode"
        assert container({"spec": replica})["name"] == "tensorflow"
        assert {"name": "tfjob-port", "containerPort": 2222} in container({"spec": replica})["ports"]
        assert not [one for one in container({"spec": replica})["env"] if one["name"] == "TF_CONFIG"]


#: What the operator writes for such a job, by its release 1.9; before that, evaluators were left out of the cluster.
_HOSTS = {"chief": 1, "ps": 2, "worker": 2, "master": 1, "evaluator": 1}


def written_by_the_operator(jobs, task, index):
    cluster = {job: [f"digits-{job}-{i}.ml.svc:2222" for i in range(_HOSTS[job])] for job in jobs}
    return {
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task, "index": index}, "environment": "cloud"})
    }


@pytest.mark.parametrize(
    ("jobs", "task", "is_chief", "address"),
    [
        (("chief", "ps", "worker"), "chief", True, "digits-chief-0.ml.svc:2222"),
        (("master", "ps", "worker"), "master", True, "digits-master-0.ml.svc:2222"),
        (("ps", "worker"), "worker", True, "digits-worker-0.ml.svc:2222"),
        (("chief", "ps", "worker"), "worker", False, "digits-worker-0.ml.svc:2222"),
        (("chief", "ps", "worker"), "ps", False, "digits-ps-0.ml.svc:2222"),
        (("chief", "ps", "worker", "evaluator"), "evaluator", False, "digits-evaluator-0.ml.svc:2222"),
        (("chief", "ps", "worker"), "evaluator", False, ""),
    ],
)
def test_the_dense_form(jobs, task, is_chief, address):
    config = from_tf_config(written_by_the_operator(jobs, task, 0))
    assert (config.job, config.is_chief, config.address, config.environment) == (task, is_chief, address, "cloud")


def test_the_sparse_form_of_workers_that_come_and_go():
    cluster = {
        "worker": {"1": "digits-worker-1.ml.svc:2222"},
        "ps": ["digits-ps-0.ml.svc:2222", "digits-ps-1.ml.svc:2222"],
    }
    config = from_tf_config({"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}})})
    assert config.address == "digits-worker-1.ml.svc:2222"
    assert config.cluster.task_indices("worker") == [1]
    assert config.cluster.num_tasks("ps") == 2
    own = {"worker": {}, "ps": {"1": "digits-ps-1.ml.svc:2222"}}
    config = from_tf_config({"TF_CONFIG": json.dumps({"cluster": own, "task": {"type": "ps", "index": 1}})})
    assert config.address == "digits-ps-1.ml.svc:2222"


def test_a_job_of_one_replica_has_no_tf_config():
    assert from_tf_config({}).is_chief


def test_every_pod_of_the_job_set_is_a_task():
    job_set = yaml.safe_load((FOLDER / "jobset" / "jobset.yaml").read_text())
    name = job_set["metadata"]["name"]
    assert job_set["spec"]["successPolicy"]["targetReplicatedJobs"] == ["chief"]
    for replicated in job_set["spec"]["replicatedJobs"]:
        role, spec = replicated["name"], replicated["template"]["spec"]
        environ = {one["name"]: one.get("value") for one in container({"spec": spec})["env"]}
        assert spec["completionMode"] == "Indexed"
        assert spec["completions"] == spec["parallelism"]
        if role == "ps":
            continue
        for index in range(spec["completions"]):
            config = from_tf_config({"TF_CONFIG": expanded(environ["TF_CONFIG"], {"INDEX": str(index)})})
            assert (config.job, config.address) == (role, f"{name}-{role}-0-{index}.{name}:2222")
            assert (
                config.cluster.num_tasks("ps")
                == job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"]
            )


@pytest.fixture(params=["tfjob", "jobset"])
def custom(request):
    return yaml.safe_load((FOLDER / request.param / f"{request.param}.yaml").read_text())


def test_the_custom_resources_are_valid(custom):
    validate = pytest.importorskip("kubernetes_validate")
    resources = importlib.import_module("custom_resources")
    resources.check(custom)
    for manifest in {"TFJob": resources.pods, "JobSet": resources.jobs}[custom["kind"]](custom):
        validate.validate(manifest, "1.31", strict=True)


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        (("spec",), "replicatedJob", []),
        (("spec",), "tfReplicaSpecs", {"Ps": {}}),
        (("spec",), "runPolicy", {"cleanPodPolicy": "Never"}),
        (("spec",), "failurePolicy", {"maxRestarts": "3"}),
        (("metadata",), "name", None),
    ],
)
def test_a_typo_in_a_custom_resource_is_not_valid(custom, where, name, value):
    pytest.importorskip("kubernetes_validate")
    jsonschema = pytest.importorskip("jsonschema")
    resources = importlib.import_module("custom_resources")
    place = custom
    for field in where:
        place = place[field]
    if value is None:
        del place[name]
    else:
        place[name] = value
    with pytest.raises(jsonschema.ValidationError, match=name if value is None else None):
        resources.check(custom)


def test_the_plain_manifests_keep_strangers_out_and_let_nodes_be_drained():
    found = by_name(build("large"))
    labels = found["Job", "globalstep-ps"]["spec"]["template"]["metadata"]["labels"]
    disruption = found["PodDisruptionBudget", "globalstep-ps"]["spec"]
    assert disruption["selector"]["matchLabels"].items() <= labels.items()
    assert disruption["minAvailable"] == 7
    service = found["Service", "globalstep-ps"]["spec"]
    assert service["clusterIP"] == "None"
    assert service["selector"].items() <= labels.items()
    reached = found["NetworkPolicy", "globalstep-ps"]["spec"]
    assert reached["podSelector"]["matchLabels"].items() <= labels.items()
    (allowed,) = reached["ingress"][0]["from"]
    for kind, task in (("Job", "ps"), ("Job", "chief"), ("Job", "worker")):
        assert picks(
            allowed["podSelector"], found[kind, f"globalstep-{task}"]["spec"]["template"]["metadata"]["labels"]
        )
    assert "ingress" not in found["NetworkPolicy", "globalstep-sessions"]["spec"]
    secrets = {"globalstep-tokens", *(f"globalstep-tls-{role}" for role in ("ps", "chief", "worker"))}
    assert {name for kind, name in found if kind == "Secret"} == secrets


@pytest.mark.parametrize("name", ["tfjob", "jobset", "base/ps", "base/chief", "base/workers"])
def test_pods_have_longer_to_end_than_their_tasks(name):
    """What a PS task does on SIGTERM takes up to --grace-secs; then comes 143, and not the kubelet's SIGKILL."""
    path = FOLDER / f"{name}/{name}.yaml" if "/" not in name else FOLDER / f"{name}.yaml"
    text = path.read_text()
    periods = [int(found) for found in re.findall(r"terminationGracePeriodSeconds: (\d+)", text)]
    assert periods
    assert all(int(grace) < min(periods) for grace in re.findall(r"--grace-secs=(\d+)", text))
    assert min(periods) > 10


# ---- Two runs in one namespace -------------------------------------------------------------------


def rendered(name, folder, run):
    """Give the objects of a copy of a folder in which another run's name was written."""
    copied = shutil.copytree(FOLDER, folder / run)
    for file in (copied / name).glob("*.yaml"):
        file.write_text(file.read_text().replace(RUN, run))
    return list(yaml.safe_load_all(built(copied / name)))


def selectors(node):
    """Give all that picks pods by their labels."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("podSelector", "labelSelector") or (key == "selector" and "matchLabels" in value):
                yield value
            elif key == "selector":
                yield {"matchLabels": value}
            if key not in ("podSelector", "labelSelector", "selector"):
                yield from selectors(value)
    elif isinstance(node, list):
        for value in node:
            yield from selectors(value)


def picks(selector, labels):
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    return wanted and all(labels.get(one["key"]) in one["values"] for one in selector.get("matchExpressions", []))


def labels_of_pods(found, run):
    """Give the labels of all pods of some objects, with those that operators add."""
    for one in found:
        if one["kind"] == "Job":
            yield one["spec"]["template"]["metadata"]["labels"]
        if one["kind"] in ("JobSet", "TFJob"):
            name = one["metadata"]["name"]
            yield {"jobset.sigs.k8s.io/jobset-name": name, "training.kubeflow.org/job-name": name}


@pytest.mark.parametrize("name", [*OVERLAYS, "jobset", "tfjob"])
def test_two_runs_in_one_namespace_do_not_meet(name, tmp_path):
    first, second = (rendered(name, tmp_path, run) for run in ("cats", "dogs"))
    names = [{(one["kind"], one["metadata"]["name"]) for one in found} for found in (first, second)]
    assert names[0].isdisjoint(names[1])
    assert len(names[0]) == len(names[1]) == len(first)
    for found, other, run in ((first, second, "dogs"), (second, first, "cats")):
        text = json.dumps(found)
        # Nothing of one speaks of the other: no claim, no Secret, no address.
        assert run not in text
        assert not re.search(r"globalstep-run\b(?!-)", text)
        pods = list(labels_of_pods(other, run))
        assert pods
        mine = list(labels_of_pods(found, run))
        for selector in selectors(found):
            assert any(picks(selector, labels) for labels in mine), selector
            assert not any(picks(selector, labels) for labels in pods), selector


@pytest.mark.parametrize("name", OVERLAYS)
def test_addresses_of_two_runs_do_not_meet_and_are_those_of_their_own_pods(name, tmp_path):
    addresses = []
    for run in ("cats", "dogs"):
        found = {(one["kind"], one["metadata"]["name"]): one for one in rendered(name, tmp_path, run)}
        environ = environment(found["Job", f"globalstep-worker-{run}"], found, {"INDEX": "0"})
        assert environ["GLOBALSTEP_RUN"] == run
        assert environment(found["Job", f"globalstep-ps-{run}"], found)["GLOBALSTEP_RUN"] == run
        service = found["Job", f"globalstep-ps-{run}"]["spec"]["template"]["spec"]["subdomain"]
        assert ("Service", service) in found
        cluster = from_tf_config(environ).cluster.as_dict()
        assert cluster["ps"][0] == f"globalstep-ps-{run}-0.{service}:2222"
        addresses.append({one for tasks in cluster.values() for one in tasks})
    assert addresses[0].isdisjoint(addresses[1])


@pytest.mark.parametrize("name", ["jobset", "tfjob"])
def test_tasks_of_the_operators_know_their_runs_name(name):
    pods = list(_pods(yaml.safe_load((FOLDER / name / f"{name}.yaml").read_text())))
    assert len(pods) == 3
    for pod in pods:
        assert {"name": "GLOBALSTEP_RUN", "value": RUN} in pod["containers"][0]["env"]


# ---- Told in one place ---------------------------------------------------------------------------


def edited(name, folder, old, new):
    """Give the objects of an overlay in whose files one text was replaced, which is in one of them alone."""
    copied = shutil.copytree(FOLDER, folder / "edited")
    (file,) = [one for one in (copied / name).glob("*.yaml") if old in one.read_text()]
    file.write_text(file.read_text().replace(old, new))
    return by_name(built(copied / name))


def test_the_number_of_ps_tasks_is_told_once(tmp_path):
    found = edited("small", tmp_path, 'ps: "2"', 'ps: "5"')
    spec = found["Job", "globalstep-ps"]["spec"]
    assert (spec["completions"], spec["parallelism"]) == (5, 5)
    environ = environment(found["Job", "globalstep-worker"], found, {"INDEX": "1"})
    assert from_tf_config(environ).cluster.num_tasks("ps") == 5


@pytest.mark.parametrize("name", [*OVERLAYS, "jobset", "tfjob"])
def test_images_are_told_once(name, tmp_path):
    found = edited(name, tmp_path, "newTag: latest", 'newTag: "7"')
    images = sorted(re.findall(r'"image": "([^"]*)"', json.dumps([*found.values()])))
    assert images == ["globalstep-ps:7", "globalstep:7", "globalstep:7"]
    ps = [pod for one in yaml.safe_load_all(build(name)) for pod in _pods(one) if "globalstep.ps" in json.dumps(pod)]
    assert [pod["containers"][0]["image"] for pod in ps] == ["globalstep-ps:latest"]


def test_ps_tasks_that_have_ended_with_the_job_stay_ended():
    found = by_name(build("small"))
    for task in ("ps", "chief", "worker"):
        spec = found["Job", f"globalstep-{task}"]["spec"]
        assert spec["ttlSecondsAfterFinished"] == 86400
        assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert found["Job", "globalstep-ps"]["spec"]["podReplacementPolicy"] == "Failed"
    assert not [kind for kind, _ in found if kind == "StatefulSet"]


@pytest.mark.parametrize(("name", "how"), [("small", "grpc"), ("large", "exec"), ("jobset", "grpc"), ("tfjob", "grpc")])
def test_a_ps_task_is_ready_when_its_health_service_says_so(name, how):
    """The kubelet's gRPC probe knows no TLS: where there is TLS, the task's own program asks."""
    (ps,) = [pod for one in yaml.safe_load_all(build(name)) for pod in _pods(one) if "livenessProbe" in str(pod)]
    (one,) = ps["containers"]
    for probe in (one["startupProbe"], one["readinessProbe"]):
        assert set(probe) & {"grpc", "exec", "tcpSocket"} == {how}
        assert "globalstep.deploy.health" in str(probe) if how == "exec" else probe["grpc"] == {"port": min(PORTS)}


def test_a_volume_of_a_class():
    claim = by_name(build("large"))["PersistentVolumeClaim", "globalstep-run"]["spec"]
    assert claim["storageClassName"]
    assert claim["accessModes"] == ["ReadWriteMany"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_monitoring_reads_the_ps_tasks_of_its_run(name, tmp_path):
    validate = pytest.importorskip("kubernetes_validate")
    found = edited(name, tmp_path, "# - ../monitoring", "- ../monitoring")
    monitor = found.pop(("PodMonitor", "globalstep-ps"))["spec"]
    for one in found.values():
        validate.validate(one, "1.32", strict=True)
    ps = found["Job", "globalstep-ps"]["spec"]["template"]
    assert picks(monitor["selector"], ps["metadata"]["labels"])
    assert monitor["selector"]["matchLabels"]["app.kubernetes.io/instance"] == RUN
    (endpoint,) = monitor["podMetricsEndpoints"]
    (port,) = [one["containerPort"] for one in ps["spec"]["containers"][0]["ports"] if one["name"] == endpoint["port"]]
    environ = environment(found["Job", "globalstep-ps"], found)
    assert metrics_address(environ["GLOBALSTEP_METRICS_PORT"]) == ("0.0.0.0", port)
    policy = found["NetworkPolicy", "globalstep-metrics"]["spec"]
    assert picks(policy["podSelector"], ps["metadata"]["labels"])
    (ingress,) = policy["ingress"]
    assert ingress["ports"] == [{"protocol": "TCP", "port": port}]
    assert all("namespaceSelector" in one for one in ingress["from"])
