"""What the server is asked before the load: is it there, is it ready, what does it tell of itself.

Knows the servers of a workload and the probe; nothing of workers.

The one subtle rule: every server is asked, for one that is down among several would only show as
failures; the first one's finding is kept, as they are meant to be alike.
"""

from __future__ import annotations

from collections.abc import Callable

from tokenswarm import backends, probe, server_side
from tokenswarm.distributed.servers import make_metrics_transport, make_transports
from tokenswarm.records import Prompt
from tokenswarm.run import Run
from tokenswarm.server_side_nvml import LocalGpus
from tokenswarm.transport import Transport


def ask(run: Run, prompt: Prompt, wait_ready_s: float | None, say: Callable[[str], None]) -> None:
    """Wait for each server where asked to, then probe it. Raises BadInput."""
    for transport in make_transports(run.workload, run.host):
        try:
            _ask_one(run, transport, prompt, wait_ready_s, say)
        finally:
            transport.close()


def _ask_one(
    run: Run,
    transport: Transport,
    prompt: Prompt,
    wait_ready_s: float | None,
    say: Callable[[str], None],
) -> None:
    work = run.workload
    backend = backends.make(work)
    if transport.target.proxy is not None:
        proxy = transport.target.proxy
        run.warnings.append(
            f"requests to {transport.target.url} go through the proxy {proxy.host}:"
            f"{proxy.port} (environment), whose time is in every latency"
        )
    if wait_ready_s:
        probe.wait_ready(transport, backend, prompt, wait_ready_s, say)
    if not work.prompts.probe:
        probe.reach(transport)
        return
    found, warnings = probe.probe(transport, backend, prompt, work.prompts.probe)
    run.probe = run.probe or found
    run.warnings += [w for w in warnings if w not in run.warnings]


def server_watch(run: Run, gpu: str | None) -> server_side.Watch | None:
    """What looks at the engine's own metrics and the GPUs; None where nobody wants that."""
    work = run.workload
    sources: list[server_side.Source] = []
    if not work.server.off:
        sources += server_side.pages(
            run.host, work.backend.urls, backends.make(work).metrics_path,
            work.server.metrics_url, work.server.gpu_url,
            lambda to, same: make_metrics_transport(work, to, same),
        )  # fmt: skip
    if gpu:
        sources.append(LocalGpus())
    return server_side.Watch(sources, work.server.interval) if sources else None
