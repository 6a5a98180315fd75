"""The files for Kubernetes: by the API's own schemas, offline, and by the readers of what they configure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.support.repository import ROOT
from txpool.config.settings import CoordinatorSettings, DataSourceSettings, RecoverySettings

FOLDER = ROOT / "conf" / "operators" / "kubernetes"
FILES = ("recovery.yaml", "coordinators.yaml")
#: Versions of Kubernetes that are served, and one that has left service.
VERSIONS = ("1.29", "1.33", "1.36")


def documents(name: str) -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in yaml.safe_load_all((FOLDER / name).read_text())}


def container(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    (workload,) = [each for each in found.values() if each["kind"] in ("Deployment", "StatefulSet")]
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


@pytest.fixture(params=FILES)
def found(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    return documents(request.param)


@pytest.fixture
def written(found: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that a pod sees; the secrets that the file's first comment names are in the environment."""
    for name, text in found["ConfigMap"]["data"].items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    for variable in re.findall(r"--from-literal=(\w+)", (FOLDER / "recovery.yaml").read_text()):
        monkeypatch.setenv(variable, "change me")
    for each in container(found).get("env", ()):
        monkeypatch.setenv(each["name"], each.get("value", "orders-0"))
    monkeypatch.setenv("TXPOOL_CONF", "")
    return tmp_path


def test_every_file_is_checked() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(FILES)


@pytest.mark.parametrize("version", VERSIONS)
def test_they_are_what_the_api_takes(found: dict[str, dict[str, Any]], version: str) -> None:
    for each in found.values():
        kubernetes_validate.validate(each, version, strict=True)


def test_a_key_that_the_api_does_not_have_is_refused() -> None:
    deployment = documents("recovery.yaml")["Deployment"]
    deployment["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, VERSIONS[-1], strict=True)


def test_names_of_objects_and_labels_lead_to_each_other(found: dict[str, dict[str, Any]]) -> None:
    (workload,) = [each for each in found.values() if each["kind"] in ("Deployment", "StatefulSet")]
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert workload["spec"]["selector"]["matchLabels"] == labels == found["Service"]["spec"]["selector"]
    volumes = workload["spec"]["template"]["spec"]["volumes"]
    assert [each["configMap"]["name"] for each in volumes] == [found["ConfigMap"]["metadata"]["name"]]
    assert {each["name"] for each in container(found)["volumeMounts"]} == {each["name"] for each in volumes}
    if "PodDisruptionBudget" in found:
        assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    if workload["kind"] == "StatefulSet":
        assert workload["spec"]["serviceName"] == found["Service"]["metadata"]["name"]


def test_the_files_in_them_are_right_and_their_secrets_are_named(written: Path) -> None:
    read = []
    for path in sorted(written.iterdir()):
        if path.name == "recovery.properties":
            settings: Any = RecoverySettings.load(path)
            assert settings.recovery_nodes == ("*",)
            assert {each.name for each in settings.datasources} == {"orders.properties", "billing.properties"}
        elif path.name == "txpool.properties":
            settings = CoordinatorSettings.load(path)
            assert settings.node_name == "orders-0", "of the pod"
        else:
            settings = DataSourceSettings.load(path)
            assert settings.password is not None
            assert settings.password.reveal() == "change me"
        read.append(path.name)
    assert len(read) == 3


def test_probes_and_scrape_ask_for_what_is_served_without_the_token(tmp_path: Path, monkeypatch: Any) -> None:
    found = documents("recovery.yaml")
    path = tmp_path / "recovery.properties"
    path.write_text(found["ConfigMap"]["data"][path.name])
    monkeypatch.setenv("TXPOOL_CONF", "")
    settings = RecoverySettings.load(path)
    assert settings.status_address is not None
    daemon = container(found)
    assert daemon["args"] == ["run", "--conf", f"{daemon['volumeMounts'][0]['mountPath']}/recovery.properties"]
    (port,) = daemon["ports"]
    asked = {daemon[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")}
    assert {daemon[probe]["httpGet"]["port"] for probe in ("readinessProbe", "livenessProbe")} == {port["name"]}
    scrape = found["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    asked.add(scrape["prometheus.io/path"])
    assert asked == {f"/{name}" for name in settings.status_public}
    assert int(scrape["prometheus.io/port"]) == port["containerPort"] == settings.status_address.port
