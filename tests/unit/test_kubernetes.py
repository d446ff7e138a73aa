"""The example for Kubernetes describes one job: workers find each other, and have an image."""

import json
import re

import pytest
import yaml

from tests.support.programs import ROOT


@pytest.fixture(scope="module")
def objects():
    text = (ROOT / "examples" / "kubernetes" / "job.yaml").read_text()
    return {item["kind"]: item for item in yaml.safe_load_all(text)}


@pytest.fixture(scope="module")
def container(objects):
    (container,) = objects["Job"]["spec"]["template"]["spec"]["containers"]
    return container


def test_each_pod_is_a_worker_that_the_others_find(objects, container):
    job, service = objects["Job"], objects["Service"]
    name = job["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert service["spec"]["clusterIP"] == "None"
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    # Kubernetes replaces only variables that come before.
    assert list(variables) == ["INDEX", "TF_CONFIG"]
    for index in range(job["spec"]["completions"]):
        config = json.loads(variables["TF_CONFIG"].replace("$(INDEX)", str(index)))
        assert config["task"] == {"type": "worker", "index": index}
        addresses = config["cluster"]["worker"]
        port = container["ports"][0]["containerPort"]
        assert addresses[index] == f"{name}-{index}.{service['metadata']['name']}:{port}"
        assert len(addresses) == job["spec"]["parallelism"] == job["spec"]["completions"]


def test_the_image_has_the_program_and_backups_are_on_the_volume(objects, container):
    dockerfile = (ROOT / "Dockerfile").read_text()
    (source,) = re.findall(r"^COPY (\S+) \.$", dockerfile, re.MULTILINE)
    assert (ROOT / source).name == container["command"][1]
    assert f"!{source}" in (ROOT / ".dockerignore").read_text().splitlines()
    assert container["image"] in re.findall(r"docker build --tag (\S+) \.", dockerfile)
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    spec = objects["Job"]["spec"]["template"]["spec"]
    (volume,) = spec["volumes"]
    claim = volume["persistentVolumeClaim"]["claimName"]
    assert claim == objects["PersistentVolumeClaim"]["metadata"]["name"]
    assert mounts[volume["name"]] == container["command"][-1]
    assert spec["securityContext"]["fsGroup"] == int(
        re.search(r"^USER (\d+)$", dockerfile, re.MULTILINE)[1]
    )
