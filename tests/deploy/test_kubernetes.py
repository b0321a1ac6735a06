"""The Kubernetes manifests: valid by the API's schemas, and every pod is a task that the cluster knows."""

import importlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from globalstep.cluster import from_tf_config

yaml = pytest.importorskip("yaml")
FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
OVERLAYS = {"small": (2, 2), "large": (8, 32)}


def build(name):
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl, which has kustomize in it, is not installed")
    done = subprocess.run(["kubectl", "kustomize", FOLDER / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def by_name(text):
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text)}


def container(workload):
    return workload["spec"]["template"]["spec"]["containers"][0]


def expanded(text, values):
    """Do what the kubelet does with $(NAME)."""
    return re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], text)


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_overlays_are_valid(name, tmp_path):
    validate = pytest.importorskip("kubernetes_validate")
    for manifest in yaml.safe_load_all(build(name)):
        validate.validate(manifest, "1.31", strict=True)


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
    cluster = found["ConfigMap", "globalstep-cluster"]["data"]["cluster"]
    assert found["StatefulSet", "globalstep-ps"]["spec"]["replicas"] == ps
    worker = found["Job", "globalstep-worker"]
    assert worker["spec"]["completions"] == worker["spec"]["parallelism"] == workers
    for workload, job, index in [
        (found["Job", "globalstep-chief"], "chief", 0),
        *((worker, "worker", index) for index in range(workers)),
    ]:
        environ = {one["name"]: one.get("value") for one in container(workload)["env"]}
        config = from_tf_config(
            {"TF_CONFIG": expanded(environ["TF_CONFIG"], {"CLUSTER": cluster, "INDEX": str(index)})}
        )
        assert (config.job, config.index) == (job, index)
        assert [config.cluster.num_tasks(one) for one in ("ps", "worker")] == [ps, workers]
        assert config.cluster.task_address("ps", ps - 1) == f"globalstep-ps-{ps - 1}.globalstep-ps:2222"


@pytest.mark.parametrize(("name", "how"), [("small", "GLOBALSTEP_INSECURE"), ("large", "GLOBALSTEP_TLS_CERT")])
def test_an_overlay_says_how_strangers_are_kept_out(name, how):
    found = by_name(build(name))
    settings = found["ConfigMap", "globalstep-settings"]["data"]
    assert {one for one in settings if one in ("GLOBALSTEP_INSECURE", "GLOBALSTEP_TLS_CERT")} == {how}
    for kind, task in (("StatefulSet", "ps"), ("Job", "chief"), ("Job", "worker")):
        pod = found[kind, f"globalstep-{task}"]["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert {"configMapRef": {"name": "globalstep-settings"}} in pod["containers"][0]["envFrom"]
        mounts = {one["name"] for one in pod["containers"][0]["volumeMounts"]}
        assert mounts == {one["name"] for one in pod["volumes"]}
        assert ("tls" in mounts) == (name == "large")


def test_the_large_overlay_gives_each_role_its_own_token():
    found = by_name(build("large"))
    for task in ("chief", "worker"):
        environ = {one["name"]: one for one in container(found["Job", f"globalstep-{task}"])["env"]}
        assert environ["GLOBALSTEP_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "globalstep-tokens", "key": task}
    # No token that is known to all is in the repository.
    assert not any(found["Secret", "globalstep-tokens"].get("stringData", {}).values())


def test_the_large_overlay_gives_each_role_its_own_key():
    """A worker that had the PS tasks' key could pose as one, and would be shown the chief's token."""
    found = by_name(build("large"))
    for kind, task in (("StatefulSet", "ps"), ("Job", "chief"), ("Job", "worker")):
        volumes = found[kind, f"globalstep-{task}"]["spec"]["template"]["spec"]["volumes"]
        (secret,) = [one["secret"]["secretName"] for one in volumes if one["name"] == "tls"]
        assert secret == f"globalstep-tls-{task}"


def test_ps_tasks_are_told_to_have_a_token_for_each_other():
    """Without one, what became of a dead worker's pushes is never asked."""
    text = (FOLDER / "large" / "secrets.yaml").read_text()
    assert '"ps TOKEN"' in text


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
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": {label: job}}}]}]


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
    labels = found["StatefulSet", "globalstep-ps"]["spec"]["template"]["metadata"]["labels"]
    disruption = found["PodDisruptionBudget", "globalstep-ps"]["spec"]
    assert disruption["selector"]["matchLabels"].items() <= labels.items()
    assert disruption["maxUnavailable"] == 1
    service = found["Service", "globalstep-ps"]["spec"]
    assert service["clusterIP"] == "None"
    assert service["selector"].items() <= labels.items()
    reached = found["NetworkPolicy", "globalstep-ps"]["spec"]
    assert reached["podSelector"]["matchLabels"].items() <= labels.items()
    (allowed,) = reached["ingress"][0]["from"][0]["podSelector"]["matchExpressions"]
    own = {
        found[kind, f"globalstep-{task}"]["spec"]["template"]["metadata"]["labels"][allowed["key"]]
        for kind, task in (("StatefulSet", "ps"), ("Job", "chief"), ("Job", "worker"))
    }
    assert set(allowed["values"]) == own
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
