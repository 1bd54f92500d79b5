"""Runs what an overlay renders to as local processes: the nearest thing to a cluster without one.

Containers start with their own command, arguments, environment and ConfigMap mounts; only places
are changed: mount paths become folders, ports free ports, Service names and wildcard addresses
127.0.0.1, the image's executables those of this Python. Job rules (backoffLimit, podFailurePolicy)
are applied to exit codes as the Job controller would. Scheduling, images, security contexts and
network policies are not executed.

    python tests/k8s/run_rendered.py smoke-cpu --out /some/folder
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from manifests import ROOT, Object, component, containers, of_kind, pod_template, render_text

LOOPBACK = "127.0.0.1"
_WILDCARDS = ("0.0.0.0", "*")
_TREES = ("k8s", "locustfiles", "workloads", "exporters")


def edited(
    overlay: str, folder: Path, numbers: Mapping[str, str], workload: str | None = None
) -> list[Object]:
    """The objects of an overlay after a user's edits of run.yaml, and with one more workload file.

    The sources are copied to `folder`, edited there and rendered by kubectl, so that everything
    that follows from a number follows.
    """
    for name in _TREES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for run in (folder / "k8s" / "overlays").glob("*/run.yaml"):
        content = yaml.safe_load(run.read_text())
        content["data"].update(numbers)
        run.write_text(yaml.safe_dump(content))
    if workload is not None:
        (folder / "workloads" / "edited.yaml").write_text(workload)
        with (folder / "workloads" / "kustomization.yaml").open("a") as listing:
            listing.write("      - edited.yaml\n")
    return list(yaml.safe_load_all(render_text(folder / "k8s" / "overlays" / overlay)))


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as s:
        s.bind((LOOPBACK, 0))
        return int(s.getsockname()[1])


@dataclass(slots=True)
class Pod:
    """One process that stands for one pod."""

    name: str
    workload: Object
    argv: list[str]
    environment: dict[str, str]
    folder: Path
    log: Path
    process: subprocess.Popen[bytes] | None = None
    ended: bool = False  # told to end, with its Job

    @property
    def exit_code(self) -> int | None:
        """As Kubernetes counts: 128 + signal for a process that a signal ended."""
        code = self.process.poll() if self.process else None
        return code if code is None or code >= 0 else 128 - code

    def signal(self, number: int) -> None:
        """Send a signal to a process that still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def text(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""


@dataclass(slots=True)
class JobStatus:
    """The condition that a Job ends with."""

    complete: bool
    reason: str = ""


def job_status(job: Object, exit_codes: Sequence[int]) -> JobStatus:
    """What the Job controller makes of the exit codes of all pods of a Job."""
    spec = job["spec"]
    failed = [code for code in exit_codes if code != 0]
    if not failed:
        return JobStatus(complete=True)
    for rule in spec["podFailurePolicy"]["rules"]:
        wanted = rule.get("onExitCodes")
        if wanted and any(code in wanted["values"] for code in failed):
            return JobStatus(complete=False, reason="PodFailurePolicy")
    limited = "backoffLimitPerIndex" in spec
    return JobStatus(complete=False, reason="FailedIndexes" if limited else "BackoffLimitExceeded")


def fails_at_once(job: Object) -> bool:
    """Whether one dead pod ends the Job, so that its other pods are terminated."""
    return "backoffLimitPerIndex" not in job["spec"]


@dataclass
class Rendered:
    """An overlay whose containers run here; `with` it, so that nothing is left running.

    replace gives a component another command line (the engine of a machine without a GPU); extra
    appends arguments; paths in both are this machine's own. environment is added to that of every
    container. wrap goes before every command line (a sandbox).
    """

    objects: list[Object]
    folder: Path
    replace: Mapping[str, Sequence[str]] = field(default_factory=dict)
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    wrap: Sequence[str] = ()
    cache: Path | None = None
    pods: dict[str, list[Pod]] = field(init=False, default_factory=dict)
    ports: dict[int, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Choose ports and write the ConfigMaps as files."""
        self.services = {s["metadata"]["name"] for s in of_kind(self.objects, "Service")}
        self.maps = {m["metadata"]["name"]: m["data"] for m in of_kind(self.objects, "ConfigMap")}
        for workload in of_kind(self.objects, "Job", "Deployment"):
            for container in containers(workload):
                for port in container.get("ports", ()):
                    self.ports[port["containerPort"]] = free_port()
        for name, data in self.maps.items():
            (self.folder / "configmaps" / name).mkdir(parents=True)
            for key, value in data.items():
                (self.folder / "configmaps" / name / key).write_text(value)
        for workload in of_kind(self.objects, "Job", "Deployment"):
            self.pods[component(workload)] = list(self._pods_of(workload))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def port(self, number: int) -> int:
        """Where a container port of the manifests is reached here."""
        return self.ports[number]

    # ---- from a container to a process --------------------------------------------------

    def _pods_of(self, workload: Object) -> Iterator[Pod]:
        spec = workload["spec"]
        for number in range(spec.get("parallelism", spec.get("replicas", 1))):
            name = f"{workload['metadata']['name']}-{number}"
            yield self._pod(workload, name, number)

    def _pod(self, workload: Object, name: str, number: int) -> Pod:
        (container,) = containers(workload)
        folder = self.folder / "pods" / name
        folder.mkdir(parents=True)
        mounts = self._mounts(workload, container, folder)
        variables = self._variables(container, name)
        if workload["spec"].get("completionMode") == "Indexed":
            variables["JOB_COMPLETION_INDEX"] = str(number)
        what = component(workload)
        own = [
            self._expand(text, variables) for text in (*container["command"], *container["args"])
        ]
        argv = [self._place(text, mounts) for text in own]
        argv = list(self._local([*self.replace.get(what, argv), *self.extra.get(what, ())]))
        argv[0] = str(Path(sys.executable).parent / argv[0])
        variables = {key: self._place(value, mounts) for key, value in variables.items()}
        return Pod(
            name=name,
            workload=workload,
            argv=argv,
            environment={"PATH": os.environ["PATH"], **variables, **self.environment},
            folder=Path(self._place(container.get("workingDir", "/tmp"), mounts)),
            log=self.folder / "logs" / f"{name}.log",
        )

    def _mounts(self, workload: Object, container: Object, folder: Path) -> dict[str, Path]:
        """mountPath -> folder: ConfigMaps as they are, everything else an empty folder."""
        volumes = {v["name"]: v for v in pod_template(workload)["spec"]["volumes"]}
        mounts = {}
        for mount in container["volumeMounts"]:
            volume = volumes[mount["name"]]
            if "configMap" in volume:
                path = self.folder / "configmaps" / volume["configMap"]["name"]
            elif mount["mountPath"] == "/cache" and self.cache is not None:
                path = self.cache
            else:
                path = folder / mount["name"]
                path.mkdir()
            mounts[mount["mountPath"]] = path
        return mounts

    def _variables(self, container: Object, pod: str) -> dict[str, str]:
        """The environment of a container: ConfigMaps, literal values, the pod's own name."""
        found: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            found.update(self.maps[source["configMapRef"]["name"]])
        for variable in container.get("env", ()):
            source = variable.get("valueFrom", {})
            if "value" in variable:
                found[variable["name"]] = variable["value"]
            elif "configMapKeyRef" in source:
                reference = source["configMapKeyRef"]
                found[variable["name"]] = self.maps[reference["name"]][reference["key"]]
            elif "fieldRef" in source:
                assert source["fieldRef"]["fieldPath"] == "metadata.name"
                found[variable["name"]] = pod
            else:
                assert source["secretKeyRef"]["optional"], "there are no secrets here"
        return found

    @staticmethod
    def _expand(text: str, variables: Mapping[str, str]) -> str:
        """$(NAME) as Kubernetes does it: an unknown name stays as it is."""
        return re.sub(r"\$\((\w+)\)", lambda m: variables.get(m[1], m[0]), text)

    def _local(self, argv: list[str]) -> Iterator[str]:
        """Addresses in arguments, moved to this machine."""
        hosts = "|".join(re.escape(host) for host in (*self.services, *_WILDCARDS))
        address = re.compile(rf"(?<![\w.-])({hosts}):(\d+)\b")

        def moved(match: re.Match[str]) -> str:
            return f"{LOOPBACK}:{self.ports[int(match[2])]}"

        option = ""
        for argument in argv:
            if option.endswith("-host") and argument in {*self.services, *_WILDCARDS}:
                yield LOOPBACK
            elif option.endswith("port") and argument.isdigit():
                yield str(self.ports[int(argument)])
            else:
                yield address.sub(moved, argument)
            option = argument

    @staticmethod
    def _place(text: str, mounts: Mapping[str, Path]) -> str:
        """Mount paths in a text replaced by the folders that stand for them, all in one pass."""
        paths = "|".join(re.escape(path) for path in sorted(mounts, key=len, reverse=True))
        return re.sub(rf"(?<![\w./-])({paths})(?=/|$)", lambda match: str(mounts[match[1]]), text)

    # ---- processes ----------------------------------------------------------------------

    def start(self, *components: str) -> None:
        """Start all pods of the components, in the order given."""
        (self.folder / "logs").mkdir(exist_ok=True)
        for pod in (pod for name in components for pod in self.pods[name]):
            with pod.log.open("wb") as log:
                pod.process = subprocess.Popen(
                    [*self.wrap, *pod.argv],
                    cwd=pod.folder,
                    env=pod.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )

    def wait_ready(self, name: str, seconds: float) -> None:
        """Until the readiness probe of a component succeeds."""
        for pod in self.pods[name]:
            probe = containers(pod.workload)[0]["readinessProbe"]
            self.wait(
                lambda probe=probe, pod=pod: self._probe(pod.workload, probe),
                seconds,
                f"{name} ready",
            )

    def _probe(self, workload: Object, probe: Object) -> bool:
        named = {p["name"]: p["containerPort"] for p in containers(workload)[0]["ports"]}
        action = probe.get("httpGet") or probe["tcpSocket"]
        port = self.ports[named[action["port"]]]
        try:
            if "httpGet" in probe:
                url = f"http://{LOOPBACK}:{port}{action['path']}"
                with urllib.request.urlopen(url, timeout=2) as answer:
                    return bool(answer.status == 200)
            socket.create_connection((LOOPBACK, port), timeout=2).close()
        except OSError:
            return False
        return True

    def wait(self, condition: Callable[[], Any], seconds: float, what: str) -> None:
        """Until the condition holds; pods that would have been ended by their Job are ended."""
        deadline = time.monotonic() + seconds
        while not condition():
            self._end_failed_jobs()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {seconds} s\n{self.logs()}")
            time.sleep(0.05)

    def _end_failed_jobs(self) -> None:
        for pods in self.pods.values():
            jobs = [pod for pod in pods if pod.workload["kind"] == "Job"]
            if any(pod.exit_code for pod in jobs) and fails_at_once(jobs[0].workload):
                for pod in jobs:
                    if not pod.ended:
                        pod.ended = True
                        pod.signal(signal.SIGTERM)

    def finish(self, seconds: float) -> dict[str, JobStatus]:
        """Wait for the Jobs to end; what they end as, by component."""
        jobs = {name: pods for name, pods in self.pods.items() if pods[0].workload["kind"] == "Job"}
        everyone = [pod for pods in jobs.values() for pod in pods]
        self.wait(
            lambda: all(pod.exit_code is not None for pod in everyone), seconds, "the Jobs' end"
        )
        return {
            name: job_status(pods[0].workload, [pod.exit_code or 0 for pod in pods])
            for name, pods in jobs.items()
        }

    def run(self, seconds: float) -> dict[str, JobStatus]:
        """Engine first, workers before the master they look for, then wait for the end."""
        self.start("engine")
        self.wait_ready("engine", 60)
        self.start("worker", "master")
        return self.finish(seconds)

    def results(self) -> Path:
        """The folder of the run: --out of the master."""
        master = self.pods["master"][0]
        return Path(master.argv[master.argv.index("--out") + 1])

    def logs(self) -> str:
        """The end of what every pod printed."""
        return "\n".join(
            f"---- {pod.name} (exit {pod.exit_code})\n{pod.text()[-3000:]}"
            for pods in self.pods.values()
            for pod in pods
        )

    def stop(self, grace: float = 10.0) -> None:
        """End every process that still runs: SIGTERM, then SIGKILL after the grace time."""
        running = [pod for pods in self.pods.values() for pod in pods if pod.process is not None]
        for pod in running:
            pod.signal(signal.SIGTERM)
        deadline = time.monotonic() + grace
        for pod in running:
            assert pod.process is not None
            try:
                pod.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pod.signal(signal.SIGKILL)
                pod.process.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """Run an overlay here; the exit code is the master's."""
    parser = argparse.ArgumentParser(description="Run a rendered overlay as local processes.")
    parser.add_argument("overlay")
    parser.add_argument(
        "--out", type=Path, required=True, help="a new or empty folder for everything"
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                        help="a number of run.yaml")  # fmt: skip
    options = parser.parse_args(argv)
    if options.out.exists() and not (options.out.is_dir() and not any(options.out.iterdir())):
        parser.error(f"--out {options.out}: is not empty; name a new folder")
    numbers = dict(item.split("=", 1) for item in options.set)
    objects = edited(options.overlay, options.out / "source", numbers)
    with Rendered(objects, options.out / "run") as rendered:
        status = rendered.run(float(rendered.maps["tokenswarm-run"]["DEADLINE_SECONDS"]))
        print(rendered.logs())
        for name, ended in status.items():
            print(f"Job of the {name}: {'Complete' if ended.complete else ended.reason}")
        return rendered.pods["master"][0].exit_code or 0


if __name__ == "__main__":
    sys.exit(main())
