"""Does memory grow with the number of requests? `python -m benchmarks.memory_bench`.

200,000 short answers in one process; its memory every half second, from the first request to
the last.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import product
from benchmarks.ground_truth.truth import Truth, ground_truth
from benchmarks.process_tree import Usage, measured
from benchmarks.publish import circumstances, publish, table
from benchmarks.stream_bench import CLIENT_CORE, SERVER_CORE, prepare

REQUESTS, USERS, TOKENS = 200_000, 64, 4


def one_run(requests: int) -> tuple[Truth, Usage, dict[str, Any]]:
    """Many short requests, as fast as one core sends them."""
    content = product.workload(
        kind="openai-completions", users=USERS, requests=requests,
        input_tokens=32, output_tokens=TOKENS,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ground_truth(core=SERVER_CORE, ttft_ms=2, itl_ms=1, prompt_usage=0) as truth:
            command = product.command(content, truth.url, folder)
            usage = measured(command, core=CLIENT_CORE, log=folder / "log", timeout_s=1200)
        product.require_answers(usage.code, folder, truth.served)
        return truth, usage, product.summary(folder)


def at_share(samples: list[tuple[float, float]], share: float) -> float:
    """Memory when a share of the requests had been received."""
    return min(samples, key=lambda sample: abs(sample[0] - share))[1]


def by_progress(truth: Truth, usage: Usage) -> list[tuple[float, float]]:
    """(share of the requests received, MB) for each sample during the load."""
    received = sorted(s.received for s in truth.of_length(TOKENS))
    samples, done = [], 0
    for t, size in usage.memory:
        while done < len(received) and received[done] <= t:
            done += 1
        if 0 < done < len(received):
            samples.append((done / len(received), size / 1e6))
    return samples


def figure(samples: list[tuple[float, float]], requests: int) -> Any:
    """Memory against requests done."""
    from plotly.graph_objects import Figure  # slow to import, wanted only at the end

    drawing = Figure()
    drawing.add_scatter(
        x=[share * requests for share, _ in samples], y=[mb for _, mb in samples],
        mode="lines", line_color="#2f6fdf",
    )  # fmt: skip
    drawing.update_xaxes(title_text="requests received by the server", tickformat=",")
    drawing.update_yaxes(title_text="memory, MB", rangemode="tozero")
    drawing.update_layout(
        width=900, height=340, template="plotly_white", font_size=13,
        margin={"l": 60, "r": 20, "t": 20, "b": 60},
    )  # fmt: skip
    return drawing


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    requests = parser.parse_args().requests
    prepare()
    print(f"{requests:,} requests of {TOKENS} tokens, {USERS} at once", flush=True)
    truth, usage, summary = one_run(requests)
    served, samples = truth.of_length(TOKENS), by_progress(truth, usage)
    seconds = max(s.last for s in served) - min(s.received for s in served)
    data = {
        "requests": len(served),
        "counted": summary["requests"]["ok"],
        "seconds": seconds,
        "mb_by_share": {f"{q:.0%}": at_share(samples, q) for q in (0.05, 0.25, 0.5, 0.75, 1.0)},
        "peak_mb": usage.peak_mb,
        "samples": [(round(share, 4), round(mb, 1)) for share, mb in samples],
    }
    row = {
        "requests": f"{data['requests']:,}",
        "requests/s": f"{len(served) / seconds:,.0f}",
        **{f"MB at {share}": f"{mb:.0f}" for share, mb in data["mb_by_share"].items()},
        "peak, end of run included": f"{usage.peak_mb:.0f}",
    }
    publish("memory", circumstances(), data, table([row]), figure(samples, requests))


if __name__ == "__main__":
    main()
