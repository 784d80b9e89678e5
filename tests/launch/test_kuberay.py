"""`launch/kuberay.yaml`, without Kubernetes: its fields, and that the run in it is one that agentrl would start."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import yaml

from agentrl.config import RunConfig
from agentrl.overrides import parse_words, validate

MANIFEST = Path(__file__).parents[2] / "launch" / "kuberay.yaml"
FIELDS = {
    "job": {"entrypoint", "shutdownAfterJobFinishes", "backoffLimit", "rayClusterSpec"},
    "cluster": {"rayVersion", "headGroupSpec", "workerGroupSpecs"},
    "head": {"rayStartParams", "template"},
    "worker": {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"},
}
"""Of KubeRay's API ray.io/v1: RayJobSpec, RayClusterSpec, HeadGroupSpec, WorkerGroupSpec."""
REQUIRED = {
    "cluster": {"headGroupSpec"},
    "head": {"rayStartParams", "template"},
    "worker": {"groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"},
}
"""Those of them that its types do not call optional."""


def manifest() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(MANIFEST.read_text())
    return found


def test_its_fields_are_those_of_kuberays_api() -> None:
    job = manifest()
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    parts = {"job": [job["spec"]], "cluster": [cluster], "head": [cluster["headGroupSpec"]]}
    for name, found in {**parts, "worker": cluster["workerGroupSpecs"]}.items():
        assert all(REQUIRED.get(name, set()) <= part.keys() <= FIELDS[name] for part in found)
    for group in (*parts["head"], *cluster["workerGroupSpecs"]):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values()), "the API takes strings alone"


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
