"""`make demo`: the main job against the embedded engine, ended by itself.

Starts `tokenswarm simulate` on a free port and `tokenswarm run` with two workers on the demo
workload, and says where the report is. Both are processes, as they would be in earnest.
"""

from __future__ import annotations

import subprocess
import sys

from tokenswarm.launch import data_folder


def main() -> int:
    """Run the demo; returns the run's exit code."""
    with subprocess.Popen(
        [sys.executable, "-m", "tokenswarm.cli", "simulate", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    ) as engine:
        try:
            assert engine.stdout is not None
            ready = engine.stdout.readline().strip()
            url = next((word for word in ready.split() if word.startswith("http://")), None)
            if url is None:
                print(f"tokenswarm: the embedded engine did not start: {ready}", file=sys.stderr)  # noqa: T201
                return 4
            print(ready, flush=True)  # noqa: T201
            workload = str(data_folder("workloads") / "demo.yaml")
            command = ["run", workload, "--host", url, "--workers", "2", *sys.argv[1:]]
            return subprocess.call([sys.executable, "-m", "tokenswarm.cli", *command])
        finally:
            engine.terminate()


if __name__ == "__main__":
    sys.exit(main())
