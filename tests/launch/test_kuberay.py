"""`launch/kuberay.yaml`, without Kubernetes: its fields and types, and that its run is one that agentrl starts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from agentrl.config import RunConfig
from agentrl.overrides import parse_words, validate

MANIFEST = Path(__file__).parents[2] / "launch" / "kuberay.yaml"
QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?(\d+(\.\d*)?|\.\d+))?")
STRINGS, QUANTITIES = {"*": str}, {"*": QUANTITY}
POD: dict[str, Any] = {
    "spec": {
        "containers!": [
            {
                "name!": str,
                "image": str,
                "env": [{"name!": str, "value": str}],
                "resources": {"requests": QUANTITIES, "limits": QUANTITIES},
                "volumeMounts": [{"name!": str, "mountPath!": str}],
            }
        ],
        "volumes": [{"name!": str, "persistentVolumeClaim": {"claimName!": str}}],
    }
}
GROUP = {"rayStartParams!": STRINGS, "template!": POD}
JOB: dict[str, Any] = {
    "entrypoint": str,
    "shutdownAfterJobFinishes": bool,
    "backoffLimit": int,
    "rayClusterSpec": {
        "rayVersion": str,
        "enableInTreeAutoscaling": bool,
        "headGroupSpec!": GROUP,
        "workerGroupSpecs": [
            {"groupName!": str, "replicas": int, "minReplicas!": int, "maxReplicas!": int, **GROUP},
        ],
    },
}
"""Of the fields of KubeRay's RayJob, version ray.io/v1, those that the manifest has, their types, and (!) which of them
are required: from `rayjobs.ray.io` of KubeRay's chart, the definition between its releases 1.2 and 1.3 (commit 037e91b
of its repository); the Go types of 1.3 and later (3275ee0, f6ef3f7, 0057210) agree in these."""


def manifest() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(MANIFEST.read_text())
    return found


def faults(value: Any, wanted: Any, place: str) -> Iterator[str]:
    """Where a value is none of what the API wants."""
    if isinstance(wanted, list):
        if not isinstance(value, list):
            yield f"{place} is no list"
            return
        for number, each in enumerate(value):
            yield from faults(each, wanted[0], f"{place}[{number}]")
    elif isinstance(wanted, dict):
        if not isinstance(value, dict):
            yield f"{place} is no object"
            return
        types = {name.rstrip("!"): kind for name, kind in wanted.items()}
        yield from (f"{place}.{name[:-1]} is missing" for name in wanted if name[-1] == "!" and name[:-1] not in value)
        for name, each in value.items():
            if (kind := types.get(name, types.get("*"))) is None:
                yield f"{place}.{name} is unknown"
            else:
                yield from faults(each, kind, f"{place}.{name}")
    elif isinstance(wanted, re.Pattern):
        if type(value) is not int and not (isinstance(value, str) and wanted.fullmatch(value)):
            yield f"{place}={value!r} is no quantity"
    elif type(value) is not wanted:
        yield f"{place}={value!r} is no {wanted.__name__}"


def test_its_fields_and_their_types_are_those_of_kuberays_api() -> None:
    job = manifest()
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert list(faults(job["spec"], JOB, "spec")) == []


def test_a_wrong_field_is_noticed() -> None:
    spec = manifest()["spec"]
    (worker,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    spec["backoffLimit"] = "0"
    worker["minReplica"] = worker.pop("minReplicas")
    worker["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] = "16GiB"
    assert sorted(faults(spec, JOB, "spec")) == [
        "spec.backoffLimit='0' is no int",
        "spec.rayClusterSpec.workerGroupSpecs[0].minReplica is unknown",
        "spec.rayClusterSpec.workerGroupSpecs[0].minReplicas is missing",
        "spec.rayClusterSpec.workerGroupSpecs[0].template.spec.containers[0].resources.limits.memory='16GiB' "
        "is no quantity",
    ]


def test_every_pod_has_the_shared_folder_that_the_run_is_in() -> None:
    cluster = manifest()["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]} == {"runs": "/runs"}
        assert [volume["name"] for volume in pod["volumes"]] == ["runs"]


def test_its_command_is_a_run_on_the_jobs_cluster() -> None:
    program, command, *words = shlex.split(manifest()["spec"]["entrypoint"])
    assert (program, command) == ("agentrl", "train")
    config = validate(parse_words(words), RunConfig)
    assert (config.cluster.name, config.cluster.address) == ("ray", "auto")
    assert str(config.run_dir).startswith("/runs/")
