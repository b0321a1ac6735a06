"""What TFJob and JobSet may say: their own fields, by their definitions; pods and Jobs within are Kubernetes'.

Read off the openAPIV3Schema of kubeflow/training-operator, manifests/base/crds/kubeflow.org_tfjobs.yaml (v1), and of
kubernetes-sigs/jobset, config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml (v1alpha2). An API server drops a field
that these do not name, without a word: so a typo is an error here.
"""

import jsonschema


def _object(required=(), **properties):
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _one_of(*values):
    return {"type": "string", "enum": list(values)}


_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}
_COUNT = {"type": "integer", "minimum": 0}
_NAMES = {"type": "array", "items": _TEXT}
#: Checked by Kubernetes' own schema: see `pods` and `jobs`.
_OF_KUBERNETES = {"type": "object"}


def _resource(version, kind, spec):
    metadata = {"type": "object", "required": ["name"]}
    return _object(
        ["apiVersion", "kind", "metadata", "spec"],
        apiVersion=_one_of(version), kind=_one_of(kind), metadata=metadata, spec=spec,
    )  # fmt: skip


_REPLICA = _object(
    ["template"],
    replicas=_COUNT,
    restartPolicy=_one_of("Always", "OnFailure", "Never", "ExitCode"),
    template=_OF_KUBERNETES,
)
TF_JOB = _resource(
    "kubeflow.org/v1",
    "TFJob",
    _object(
        ["tfReplicaSpecs"],
        enableDynamicWorker=_FLAG,
        successPolicy=_one_of("", "AllWorkers"),
        runPolicy=_object(
            activeDeadlineSeconds=_COUNT,
            backoffLimit=_COUNT,
            cleanPodPolicy=_one_of("None", "Running", "All"),
            schedulingPolicy={"type": "object"},
            suspend=_FLAG,
            ttlSecondsAfterFinished=_COUNT,
        ),
        # The definition takes any name; the operator knows these.
        tfReplicaSpecs=_object(Chief=_REPLICA, Master=_REPLICA, PS=_REPLICA, Worker=_REPLICA, Evaluator=_REPLICA),
    ),
)
JOB_SET = _resource(
    "jobset.x-k8s.io/v1alpha2",
    "JobSet",
    _object(
        coordinator=_object(["replicatedJob"], replicatedJob=_TEXT, jobIndex=_COUNT, podIndex=_COUNT),
        failurePolicy=_object(
            maxRestarts=_COUNT,
            restartStrategy=_one_of("Recreate", "BlockingRecreate"),
            rules={
                "type": "array",
                "items": _object(
                    ["action", "name"],
                    action=_one_of("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"),
                    name=_TEXT, onJobFailureReasons=_NAMES, targetReplicatedJobs=_NAMES,
                ),
            },
        ),
        managedBy=_TEXT,
        network=_object(enableDNSHostnames=_FLAG, publishNotReadyAddresses=_FLAG, subdomain=_TEXT),
        replicatedJobs={
            "type": "array",
            "items": _object(
                ["name", "template"],
                name=_TEXT, replicas=_COUNT, dependsOn={"type": "array"},
                template=_object(["spec"], metadata={"type": "object"}, spec=_OF_KUBERNETES),
            ),
        },
        startupPolicy=_object(["startupPolicyOrder"], startupPolicyOrder=_one_of("AnyOrder", "InOrder")),
        successPolicy=_object(["operator"], operator=_one_of("All", "Any"), targetReplicatedJobs=_NAMES),
        suspend=_FLAG,
        ttlSecondsAfterFinished=_COUNT,
    ),
)  # fmt: skip


def check(manifest):
    """Check a TFJob or a JobSet, all but its pods and Jobs; a jsonschema.ValidationError names the field."""
    jsonschema.validate(manifest, {"TFJob": TF_JOB, "JobSet": JOB_SET}[manifest["kind"]])


def pods(tf_job):
    """Give the pods of a TFJob, as the operator makes them."""
    for role, replica in tf_job["spec"]["tfReplicaSpecs"].items():
        name = f"{tf_job['metadata']['name']}-{role.lower()}-0"
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": replica["template"]["spec"]}


def jobs(job_set):
    """Give the Jobs of a JobSet, as its controller makes them."""
    for replicated in job_set["spec"]["replicatedJobs"]:
        name = f"{job_set['metadata']['name']}-{replicated['name']}-0"
        yield {
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
            "spec": replicated["template"]["spec"],
        }  # fmt: skip
