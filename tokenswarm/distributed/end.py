"""The end of a run: what its numbers still lack, filled in before it is judged.

Knows the run and what was still open; who listens to the verdict is the master's business.

The one subtle rule: nothing may come in any more when this begins. A report that came now would
undo what is filled in.
"""

from __future__ import annotations

import logging

from tokenswarm import server_side, steady
from tokenswarm.clock import NS
from tokenswarm.distributed.accounts import account_for_the_lost
from tokenswarm.distributed.spool import RecordFile, mark_warmup
from tokenswarm.offload import offload
from tokenswarm.run import Run

logger = logging.getLogger(__name__)


def count_up(
    run: Run, stopped_ns: int | None, records: RecordFile, server: server_side.Watch | None
) -> None:
    """Make the numbers of a run final. stopped_ns: instant of the plan where it was cut short."""
    account_for_the_lost(run, stopped_ns)
    cancelled = run.merged.total(run.measured).outcomes["cancelled"]
    if cancelled and stopped_ns is None:
        run.fault(
            "cut_short",
            f"{cancelled} requests of measured stages were still running when load.drain "
            f"({run.workload.load.drain:g} s) was over",
        )
    if records.error is not None:
        run.warnings.append(
            f"{records.unwritten} request records were not written: {records.error}"
        )
    records.close()
    _find_steady_state(run)
    if server is not None:
        _finish_server(run, server)
    run.state = "done"
    run.planned_rate = run.achieved_rate = 0.0


def _find_steady_state(run: Run) -> None:
    """Leave out what came before the steady state, where the workload wants that."""
    stage = run.workload.load.steady_stage
    if stage is None:
        return
    found = steady.detect(run, stage)
    run.steady_state = found.to_json() if found is not None else None
    if found is None:
        run.warnings.append(f"no steady state looked for: not all of stage {stage} took place")
    elif found.discarded is None:
        run.warnings.append(f"stage {stage} came to no steady state: nothing of it was discarded")
    elif found.discarded and run.out is not None:
        names = found.names[: found.discarded]
        offload(mark_warmup, run.out / "requests.jsonl", names)


def _finish_server(run: Run, server: server_side.Watch) -> None:
    """The last look at the engine, and the two sides beside each other."""
    stats = run.totals()
    ttft = stats.histograms.get("ttft_s")
    mean_s = ttft.sum / ttft.n / NS if ttft is not None and ttft.n else None
    try:
        server.finish(stats.prompt_tokens, stats.output_tokens, mean_s)
    except Exception as e:
        logger.exception("The engine's metrics could not be summed up")
        run.warnings.append(f"server-side metrics: {type(e).__name__}: {e}")
    run.warnings += server.warnings
