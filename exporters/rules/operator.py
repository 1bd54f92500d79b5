"""Wraps tokenswarm.yaml for the Prometheus Operator: `python -m exporters.rules.operator`.

The operator wants the same groups inside an object of its own and kustomize cannot embed a file
in one, so the object is a committed copy; a test compares the two.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
RULES = HERE / "tokenswarm.yaml"
FILE = HERE / "prometheusrule.yaml"

_HEAD = """\
# Made from tokenswarm.yaml by `python -m exporters.rules.operator`: edit that file.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: tokenswarm
  labels:
    app.kubernetes.io/part-of: tokenswarm
spec:
"""


def text() -> str:
    """The PrometheusRule with every group of the rules file, comments included."""
    lines = RULES.read_text(encoding="utf-8").splitlines()
    groups = lines[lines.index("groups:") :]
    return _HEAD + "".join(f"  {line}\n" if line else "\n" for line in groups)


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
