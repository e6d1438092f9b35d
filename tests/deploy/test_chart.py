"""The Helm chart: rendered by helm, checked against Kubernetes's schemas, and by the programs it starts."""

from __future__ import annotations

import argparse
import copy
import json
import re
import shlex
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter import cli as exporter_cli
from exporter import config as exporter_config
from snapshotter import cli as snapshotter_cli
from snapshotter import config as snapshotter_config
from snapshotter.web.auth import TokenFile

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "hangscope"
TOOLS = Path(__file__).parent / "tools"
IMAGE = {"image": {"repository": "registry.example.org/hangscope"}}
EVERYTHING: dict[str, Any] = IMAGE | {
    "imagePullSecrets": [{"name": "pull"}],
    "commonLabels": {"team": "ml"},
    "tokens": {"existingSecret": "mine"},
    "node": {"hostNetwork": True, "affinity": {"nodeAffinity": {}}, "podAnnotations": {"a": "b"}},
    "exporter": {
        "config": {"limits": {"floor": "2m"}, "logs": [{"path": "/logs/**/*.log"}]},
        "logFolders": ["/var/log/pods", "/logs"],
        "webConfigSecret": "exporter-web",
        "extraArgs": ["--log.level=debug"],
    },
    "agent": {"config": {"capture": {"process_timeout": "20s"}}, "webConfigSecret": "agent-web"},
    "snapshotter": {
        "replicas": 3,
        "externalUrl": "https://hangscope.example.org/",
        "config": {
            "storage": {"index": "postgresql://db/hangscope", "bundles": "s3://bucket/hangscope"},
            "agents": {"total_timeout": "3m"},
        },
        "webConfigSecret": "snapshotter-web",
        "agentTlsSecret": "agent-tls",
        "env": [{"name": "AWS_REGION", "value": "eu"}],
        "envFrom": [{"secretRef": {"name": "s3"}}],
        "tolerations": [{"operator": "Exists"}],
    },
    "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "tls"},
    "serviceMonitor": {"labels": {"release": "x"}, "exporterEndpoint": {"scheme": "https"}},
    "alertmanagerConfig": {"enabled": True},
}
NOTHING: dict[str, Any] = IMAGE | {
    "agent": {"enabled": False},
    "snapshotter": {"enabled": False},
    "serviceMonitor": {"enabled": False},
    "prometheusRule": {"enabled": False},
    "dashboards": {"enabled": False},
    "networkPolicy": {"enabled": False},
}


class Chart:
    """The chart and the program that renders it."""

    def __init__(self, helm: Path, folder: Path) -> None:
        self._helm = helm
        self._folder = folder

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self._helm, *arguments], capture_output=True, text=True, timeout=240)

    def template(self, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        file = self._folder / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        return self.run("template", "hs", CHART, "--namespace", "hangscope", "--values", file)

    def objects(self, values: dict[str, Any]) -> list[dict[str, Any]]:
        done = self.template(values)
        assert done.returncode == 0, done.stderr
        return [one for one in yaml.safe_load_all(done.stdout) if one]


@pytest.fixture(scope="module")
def chart(helm: Path, tmp_path_factory: pytest.TempPathFactory) -> Chart:
    return Chart(helm, tmp_path_factory.mktemp("chart"))


@pytest.fixture(scope="module")
def plain(chart: Chart) -> list[dict[str, Any]]:
    return chart.objects(IMAGE)


@pytest.fixture(scope="module")
def everything(chart: Chart) -> list[dict[str, Any]]:
    return chart.objects(EVERYTHING)


def pick(objects: list[dict[str, Any]], kind: str, end: str = "") -> dict[str, Any]:
    (found,) = (one for one in objects if one["kind"] == kind and one["metadata"]["name"].endswith(end))
    return found


def pod(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    spec: dict[str, Any] = pick(objects, kind)["spec"]["template"]["spec"]
    return spec


def container(objects: list[dict[str, Any]], name: str) -> dict[str, Any]:
    kind = "Deployment" if name == "snapshotter" else "DaemonSet"
    (found,) = (one for one in pod(objects, kind)["containers"] if one["name"] == name)
    return dict(found)


def test_lint_has_nothing_to_say(chart: Chart, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(IMAGE))
    done = chart.run("lint", "--strict", "--values", tmp_path / "values.yaml", CHART)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_of_the_page_renders(chart: Chart) -> None:
    page = (ROOT / "deploy" / "README.md").read_text()
    (command,) = re.findall(r"^    helm install ((?:.*\\\n)*.*)", page, re.MULTILINE)
    name, _, *flags = shlex.split(command.replace("\\\n", " "))
    done = chart.run("template", name, CHART, *flags)
    assert done.returncode == 0, done.stderr
    node = pick(list(yaml.safe_load_all(done.stdout)), "DaemonSet")
    assert node["spec"]["template"]["spec"]["nodeSelector"]["nvidia.com/gpu.present"] == "true"


def test_objects_fit_the_schemas(
    modules: Path,
    chart: Chart,
    plain: list[dict[str, Any]],
    everything: list[dict[str, Any]],
    tmp_path: Path,
) -> None:
    """By Kubernetes's validators, and by its types, which know no key that Kubernetes does not."""
    wrong, misspelt = (copy.deepcopy(pick(plain, "DaemonSet")) for _ in range(2))
    wrong["metadata"]["name"] = "wrong"
    wrong["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"] = "metrics"
    misspelt["spec"]["template"]["spec"]["hostPid"] = True
    objects = [*plain, *everything, *chart.objects(NOTHING), wrong, misspelt]
    checked = subprocess.run(
        ["node", TOOLS / "validate.mjs", modules],
        input=json.dumps(objects),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert checked.stderr == ""
    (line,) = checked.stdout.splitlines()
    assert "DaemonSet wrong" in line and "containerPort" in line

    (tmp_path / "node_modules").symlink_to(modules)
    text = []
    for number, one in enumerate(objects):
        group, _, version = one["apiVersion"].rpartition("/")
        home = (
            "@kubernetes-models/prometheus-operator"
            if group == "monitoring.coreos.com"
            else "kubernetes-models"
        )
        where = "/".join(part for part in (home, group, version, one["kind"]) if part)
        text.append(f"import type {{ I{one['kind']} as T{number} }} from '{where}';")
        text.append(f"export const x{number}: T{number} = {json.dumps(one)};")
    (tmp_path / "objects.ts").write_text("\n".join(text))
    options = "--noEmit --strict --skipLibCheck --target es2022 --module esnext --moduleResolution bundler"
    done = subprocess.run(
        [modules / ".bin" / "tsc", *options.split(), "objects.ts"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    faults = [one for one in done.stdout.splitlines() if one.startswith("objects.ts(")]
    assert len(faults) == 2, done.stdout
    assert faults[0].startswith(f"objects.ts({len(text) - 2},")
    assert faults[1].startswith(f"objects.ts({len(text)},") and "hostPid" in faults[1]


def test_every_name_is_used_once(everything: list[dict[str, Any]]) -> None:
    names = [(one["kind"], one["metadata"]["name"]) for one in everything]
    assert len(names) == len(set(names))
    assert {one["metadata"]["labels"]["team"] for one in everything} == {"ml"}


def test_references_lead_somewhere(plain: list[dict[str, Any]], everything: list[dict[str, Any]]) -> None:
    """Volumes to their objects, mounts to their volumes, Services to their pods and ports."""
    given = {"mine", "exporter-web", "agent-web", "snapshotter-web", "agent-tls"}
    for objects in (plain, everything):
        made = {one["metadata"]["name"] for one in objects} | (given if objects is everything else set())
        for kind in ("DaemonSet", "Deployment"):
            spec = pod(objects, kind)
            for volume in spec["volumes"]:
                for key, name in (
                    ("configMap", "name"),
                    ("secret", "secretName"),
                    ("persistentVolumeClaim", "claimName"),
                ):
                    if key in volume:
                        assert volume[key][name] in made, volume
            mounted = {mount["name"] for one in spec["containers"] for mount in one["volumeMounts"]}
            assert mounted == {volume["name"] for volume in spec["volumes"]}
            assert spec["serviceAccountName"] in made
        pods = [pick(objects, kind)["spec"]["template"] for kind in ("DaemonSet", "Deployment")]
        for service in (one for one in objects if one["kind"] == "Service"):
            selected = [
                one
                for one in pods
                if service["spec"]["selector"].items() <= one["metadata"]["labels"].items()
            ]
            (target,) = selected
            ports = {port["name"] for one in target["spec"]["containers"] for port in one.get("ports", ())}
            assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
        for monitor in (one for one in objects if one["kind"] == "ServiceMonitor"):
            chosen = [
                one
                for one in objects
                if one["kind"] == "Service"
                and monitor["spec"]["selector"]["matchLabels"].items() <= one["metadata"]["labels"].items()
            ]
            (service,) = chosen
            assert monitor["spec"]["endpoints"][0]["port"] in {
                port["name"] for port in service["spec"]["ports"]
            }


def test_programs_understand_their_arguments(
    plain: list[dict[str, Any]], everything: list[dict[str, Any]]
) -> None:
    parsers: dict[str, argparse.ArgumentParser] = {
        "hangscope-exporter": exporter_cli._parser(),
        "hangscope-snapshotter": snapshotter_cli._parser(),
    }
    for objects in (plain, everything):
        for name in ("exporter", "agent", "snapshotter"):
            one = container(objects, name)
            program, *words = one["command"]
            options = parsers[program].parse_args([*words, *one["args"]])
            mounts = [mount["mountPath"] for mount in one["volumeMounts"]]
            for path in (options.config, options.web_config, getattr(options, "token_file", None)):
                assert path is None or str(path.parent) in mounts
            assert int(options.listen.rpartition(":")[2]) in [port["containerPort"] for port in one["ports"]]


def test_programs_understand_their_files(
    plain: list[dict[str, Any]], everything: list[dict[str, Any]], tmp_path: Path
) -> None:
    for objects in (plain, everything):
        node = pick(objects, "ConfigMap", "-node")["data"]
        for name, text in (node | pick(objects, "ConfigMap", "-snapshotter")["data"]).items():
            (tmp_path / name).write_text(text)
        exporter_config.load(tmp_path / "exporter.yaml")
        snapshotter_config.load(tmp_path / "agent.yaml")
        read = snapshotter_config.load(tmp_path / "snapshotter.yaml")
        assert read.prometheus.url == "http://prometheus-operated.monitoring.svc:9090"
        assert read.agents.token_file == "/etc/hangscope/tokens/agent"
    assert read.agents.server_name == "hangscope-agent"
    assert read.agents.tls and read.agents.ca_file == "/etc/hangscope/agent-tls/ca.crt"
    assert read.agents.total_timeout == 180 and read.storage.bundles == "s3://bucket/hangscope"


def test_agents_are_where_the_snapshotter_looks(plain: list[dict[str, Any]], tmp_path: Path) -> None:
    (endpoint,) = pick(plain, "ServiceMonitor", "-exporter")["spec"]["endpoints"]
    made = {one["targetLabel"]: one for one in endpoint["relabelings"] if "targetLabel" in one}
    (tmp_path / "f").write_text(pick(plain, "ConfigMap", "-snapshotter")["data"]["snapshotter.yaml"])
    agents = snapshotter_config.load(tmp_path / "f").agents
    assert made[agents.address_label]["sourceLabels"] == ["__meta_kubernetes_pod_ip"]
    assert agents.port in [port["containerPort"] for port in container(plain, "agent")["ports"]]


def test_labels_of_the_operator_hide_none_of_ours(plain: list[dict[str, Any]]) -> None:
    """A target's label wins over a metric's of the same name; `pod` is both the Operator's and ours."""
    from exporter.metrics import TABLE

    (endpoint,) = pick(plain, "ServiceMonitor", "-exporter")["spec"]["endpoints"]
    dropped = next(one["regex"] for one in endpoint["relabelings"] if one.get("action") == "labeldrop")
    operators = {"namespace", "service", "pod", "container", "endpoint", "job", "instance"}
    ours = {label for spec in TABLE for label in spec.labels}
    assert "pod" in ours and operators & ours <= set(dropped.split("|"))


def test_nobody_has_more_than_it_needs(plain: list[dict[str, Any]], everything: list[dict[str, Any]]) -> None:
    for objects in (plain, everything):
        for kind in ("DaemonSet", "Deployment"):
            spec = pod(objects, kind)
            assert spec["automountServiceAccountToken"] is False
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert all(
                mount.get("readOnly") or mount["name"] in ("tmp", "data")
                for one in spec["containers"]
                for mount in one["volumeMounts"]
            )
            for one in spec["containers"]:
                assert one["securityContext"]["allowPrivilegeEscalation"] is False
                assert one["securityContext"]["readOnlyRootFilesystem"] is True
                assert one["securityContext"]["capabilities"]["drop"] == ["ALL"]
                assert "memory" in one["resources"]["limits"]
    added = {
        name: container(plain, name)["securityContext"]["capabilities"].get("add")
        for name in ("exporter", "agent", "snapshotter")
    }
    assert added == {
        "exporter": ["SYS_PTRACE", "DAC_READ_SEARCH"],
        "agent": ["SYS_PTRACE", "DAC_READ_SEARCH", "KILL"],
        "snapshotter": None,
    }
    assert pod(plain, "Deployment")["securityContext"]["runAsNonRoot"] is True
    assert pod(plain, "Deployment").get("hostPID") is None
    exporter_volumes = {mount["name"] for mount in container(plain, "exporter")["volumeMounts"]}
    assert "token" not in exporter_volumes


def test_tokens_are_mounted_so_that_they_are_accepted(plain: list[dict[str, Any]], tmp_path: Path) -> None:
    """Kubernetes mounts secrets with the mode of the volume; a token that everyone may read is refused."""
    secret = pick(plain, "Secret")["data"]
    assert len(set(secret.values())) == 2
    for kind in ("DaemonSet", "Deployment"):
        for volume in pod(plain, kind)["volumes"]:
            if "secret" in volume:
                file = tmp_path / volume["name"]
                file.write_text(secret["agent"])
                file.chmod(volume["secret"]["defaultMode"])
                assert TokenFile(file).token == secret["agent"]


def test_agent_answers_the_snapshotter_alone(plain: list[dict[str, Any]]) -> None:
    policy = pick(plain, "NetworkPolicy", "-node")["spec"]
    assert policy["egress"] == [] and set(policy["policyTypes"]) == {"Ingress", "Egress"}
    (rule,) = (one for one in policy["ingress"] if one["ports"] == [{"port": "agent"}])
    (peer,) = rule["from"]
    labels = pick(plain, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()


def test_rules_are_those_of_the_repository(plain: list[dict[str, Any]]) -> None:
    rules = {one["metadata"]["name"]: one for one in plain if one["kind"] == "PrometheusRule"}
    files = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "rules").glob("*_*.yaml")}
    files["settings"] = yaml.safe_load((ROOT / "rules" / "settings.yaml").read_text())
    assert {f"hs-hangscope-{name.replace('_', '-')}" for name in files} == set(rules)
    for name, content in files.items():
        spec = rules[f"hs-hangscope-{name.replace('_', '-')}"]["spec"]
        if name == "settings":
            addresses = spec["groups"][0]["rules"][0]["labels"]
            assert set(addresses) == set(content["groups"][0]["rules"][0]["labels"])
            assert addresses["snapshotter_url"] == "http://hs-hangscope-snapshotter.hangscope.svc:11029"
            assert spec["groups"][0]["rules"][1:] == content["groups"][0]["rules"][1:]
        else:
            assert spec == content


def test_dashboards_are_those_of_the_repository(plain: list[dict[str, Any]]) -> None:
    found = {
        name: json.loads(text)
        for one in plain
        if one["kind"] == "ConfigMap" and "grafana_dashboard" in one["metadata"]["labels"]
        for name, text in one["data"].items()
    }
    assert found == {
        path.name: json.loads(path.read_text()) for path in (ROOT / "dashboards").glob("hangscope-*.json")
    }


def test_package_holds_what_the_links_point_to(chart: Chart, tmp_path: Path) -> None:
    done = chart.run("package", CHART, "--destination", tmp_path)
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tgz")
    with tarfile.open(archive) as packed:
        for link in (CHART / "files").iterdir():
            file = packed.extractfile(f"hangscope/files/{link.name}")
            assert file is not None and file.read() == link.read_bytes()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "image.repository is empty"),
        (IMAGE | {"snapshotter": {"replicas": 2}}, "storage.index"),
        (IMAGE | {"snaphotter": {}}, "snaphotter"),
        (IMAGE | {"exporter": {"capabilities": ["ALL"]}}, "/exporter/capabilities/0"),
        (IMAGE | {"exporter": {"logFolders": ["logs"]}}, "/exporter/logFolders/0"),
        (IMAGE | {"serviceMonitor": {"interval": "15"}}, "/serviceMonitor/interval"),
    ],
)
def test_wrong_values_are_refused_with_their_place(chart: Chart, values: dict[str, Any], said: str) -> None:
    done = chart.template(values)
    assert done.returncode != 0
    assert said in done.stderr.replace("at '", "/").replace(".capabilities", "/capabilities")
