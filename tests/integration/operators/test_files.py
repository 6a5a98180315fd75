"""The files for operators in conf/operators: each is checked by the tool that reads it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.repository import ROOT
from txpool.metrics import FAMILIES, MetricKind

if TYPE_CHECKING:
    from tests.conftest import Require

FOLDER = ROOT / "conf" / "operators"
RULES = FOLDER / "prometheus-rules.yml"
UNIT = FOLDER / "txpool-recovery.service"
#: systemd's measure of what a service may do, from 0 to 100 here: most services without hardening have 90 and more.
EXPOSED_AT_MOST = 20

SCENES = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'txpool_heuristic_transactions{{instance="a"}}', values: '0 0 1 1 1'}}
      - {{series: 'txpool_recovery_datasource_reachable{{instance="a", datasource="orders"}}', values: '1 0x30'}}
      - {{series: 'txpool_prepared_slots{{instance="a", datasource="orders"}}', values: '10x30'}}
      - {{series: 'txpool_prepared_slots_taken{{instance="a", datasource="orders"}}', values: '9x30'}}
      - {{series: 'txpool_prepared_slots{{instance="a", datasource="ledger"}}', values: '0x30'}}
      - {{series: 'txpool_prepared_slots_taken{{instance="a", datasource="ledger"}}', values: '0x30'}}
      - {{series: 'txpool_recovery_last_scan_timestamp_seconds{{instance="a"}}', values: '0x60'}}
      - {{series: 'txpool_transactions_total{{instance="a", job="app", outcome="in_doubt"}}', values: '0 0 0 2x30'}}
      - {{series: 'txpool_recovery_healthy{{instance="a"}}', values: '1 1 0x30'}}
      - {{series: 'txpool_recovery_scans_total{{instance="a", result="completed"}}', values: '1x30'}}
      - {{series: 'up{{instance="a", job="txpool-recovery"}}', values: '1x9 0x9'}}
    alert_rule_test:
      - {{eval_time: 4m, alertname: TxpoolRecoveryUnhealthy, exp_alerts: []}}
      - eval_time: 8m
        alertname: TxpoolRecoveryUnhealthy
        exp_alerts: [{{exp_labels: {{severity: critical, instance: a}}}}]
      - {{eval_time: 9m, alertname: TxpoolRecoveryGone, exp_alerts: []}}
      - eval_time: 17m
        alertname: TxpoolRecoveryGone
        exp_alerts: [{{exp_labels: {{severity: critical, instance: a, job: txpool-recovery}}}}]
      - eval_time: 40m
        alertname: TxpoolRecoveryGone
        exp_alerts: [{{exp_labels: {{severity: critical, job: txpool-recovery}}}}]
      - {{eval_time: 1m, alertname: TxpoolHeuristicOutcome, exp_alerts: []}}
      - eval_time: 3m
        alertname: TxpoolHeuristicOutcome
        exp_alerts: [{{exp_labels: {{severity: critical, instance: a}}}}]
      - {{eval_time: 8m, alertname: TxpoolDatasourceUnreachable, exp_alerts: []}}
      - eval_time: 12m
        alertname: TxpoolDatasourceUnreachable
        exp_alerts: [{{exp_labels: {{severity: warning, instance: a, datasource: orders}}}}]
      - eval_time: 6m
        alertname: TxpoolPreparedSlotsFew
        exp_alerts: [{{exp_labels: {{severity: warning, instance: a, datasource: orders}}}}]
      - {{eval_time: 16m, alertname: TxpoolRecoveryNotScanning, exp_alerts: []}}
      - eval_time: 25m
        alertname: TxpoolRecoveryNotScanning
        exp_alerts: [{{exp_labels: {{severity: critical, instance: a}}}}]
      - {{eval_time: 2m, alertname: TxpoolTransactionsInDoubt, exp_alerts: []}}
      - eval_time: 5m
        alertname: TxpoolTransactionsInDoubt
        exp_alerts: [{{exp_labels: {{severity: warning, instance: a, job: app}}}}]
"""


def _run(*command: str | Path) -> str:
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@pytest.fixture
def promtool(require: Require) -> str:
    found = shutil.which("promtool")
    require(found, "promtool: apt-get install prometheus")
    return str(found)


@pytest.fixture
def systemd_analyze(require: Require) -> str:
    found = shutil.which("systemd-analyze")
    require(found, "systemd-analyze: apt-get install systemd")
    return str(found)


def test_the_rules_are_prometheus_own(promtool: str) -> None:
    assert "SUCCESS" in _run(promtool, "check", "rules", RULES)


def test_the_alerts_go_off_when_they_should(promtool: str, tmp_path: Path) -> None:
    # Only the labels are compared, not the texts: those are for people, and promtool wants them word for word.
    bare = re.sub(r"(?m)^        annotations:\n(?:          .*\n)+", "", RULES.read_text())
    (tmp_path / "rules.yml").write_text(bare)
    (tmp_path / "scenes.yml").write_text(SCENES.format(rules=tmp_path / "rules.yml"))
    _run(promtool, "test", "rules", tmp_path / "scenes.yml")


def test_the_page_of_alarms_and_the_rules_wait_as_long() -> None:
    page = (ROOT / "docs" / "operations" / "alarms.md").read_text()
    named = [re.search(r"last_scan_timestamp_seconds > (\d+)", text) for text in (page, RULES.read_text())]
    assert named[0] is not None
    assert named[1] is not None
    assert named[0][1] == named[1][1]


def test_rules_and_dashboard_ask_for_metrics_that_there_are() -> None:
    known = set()
    for family in FAMILIES:
        endings = ("_bucket", "_count", "_sum") if family.kind is MetricKind.HISTOGRAM else ("",)
        known |= {family.name + ending for ending in endings}
    asked = {name for text in (RULES.read_text(), *_expressions()) for name in re.findall(r"\btxpool_\w+", text)}
    assert asked
    assert asked - known == set()


def test_the_dashboards_queries_are_prometheus_own(promtool: str, tmp_path: Path) -> None:
    queries = [each.replace("$__rate_interval", "5m").replace("$job", ".*") for each in _expressions()]
    assert len(queries) > 10
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    _run(promtool, "check", "rules", tmp_path / "rules.yml")


def _expressions() -> Iterator[str]:
    dashboard: dict[str, Any] = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def _installed_unit(folder: Path) -> Path:
    """The unit as an operator would install it, with the command of this environment."""
    command = Path(sys.executable).parent / "txpool-recovery"
    unit = folder / UNIT.name
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/txpool-recovery", str(command)))
    return unit


def test_systemd_takes_the_unit(systemd_analyze: str, tmp_path: Path) -> None:
    said = _run(systemd_analyze, "verify", "--man=no", _installed_unit(tmp_path))
    assert UNIT.name not in said


def test_the_unit_may_do_little(systemd_analyze: str, tmp_path: Path) -> None:
    threshold = f"--threshold={EXPOSED_AT_MOST}"
    _run(systemd_analyze, "security", "--offline=true", "--no-pager", threshold, _installed_unit(tmp_path))


def test_the_container_is_built_of_what_there_is() -> None:
    lines = [line for line in (FOLDER / "Containerfile").read_text().splitlines() if not line.startswith("#")]
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    assert all((ROOT / each).exists() for sources in copied for each in sources)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"/src\[(.*?)\]", "\n".join(lines))
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    (entry,) = re.findall(r'ENTRYPOINT \["/opt/txpool/bin/(.*?)"\]', "\n".join(lines))
    assert entry in project["scripts"]
    assert "USER 10001" in lines
