"""The rules by promtool's own tests, and their copy for the Prometheus Operator."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporters.rules import operator

RULES = operator.RULES
TESTS = sorted((RULES.parent / "tests").glob("*_test.yaml"))


def promtool(*arguments: str) -> str:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    done = subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_rules_are_valid() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", str(RULES))


def test_rules_do_what_they_say() -> None:
    assert promtool("test", "rules", *map(str, TESTS)).count("SUCCESS") == len(TESTS) == 2


def test_a_wrong_threshold_is_noticed(tmp_path: Path) -> None:
    """The unit tests really hold the rules: a limit moved fails them."""
    text = RULES.read_text()
    changed = text.replace("ratio_rate5m > 0.01", "ratio_rate5m > 0.5")
    assert changed != text
    (tmp_path / "tests").mkdir()
    (tmp_path / RULES.name).write_text(changed)
    (tests,) = (file for file in TESTS if file.name == "tokenswarm_test.yaml")
    (tmp_path / "tests" / tests.name).write_text(tests.read_text())
    with pytest.raises(AssertionError, match="TokenswarmErrorRatioHigh"):
        promtool("test", "rules", str(tmp_path / "tests" / tests.name))


def test_every_alert_has_a_test_that_fires_it() -> None:
    fired = {
        check["alertname"]
        for file in TESTS
        for case in yaml.safe_load(file.read_text())["tests"]
        for check in case.get("alert_rule_test", ())
        if check["exp_alerts"]
    }
    assert fired == {rule["alert"] for rule in rules() if "alert" in rule}


def test_every_alert_says_what_and_where() -> None:
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("critical", "warning")
            assert set(rule["annotations"]) == {"summary", "description"}
            assert "$labels" in rule["annotations"]["summary"] + rule["annotations"]["description"]
            assert 'state="running"' in rule["expr"] or "state=~" in rule["expr"]
        else:
            assert re.fullmatch(r"(stage|instance|slo):tokenswarm_\w+:\w+", rule["record"])


def test_the_operators_copy_is_up_to_date() -> None:
    assert operator.FILE.read_text() == operator.text()
    assert yaml.safe_load(operator.text())["spec"] == yaml.safe_load(RULES.read_text())
