from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hand_made import MS, S, objectives, record, run, worker
from prometheus_client.parser import text_string_to_metric_families

from exporters import prometheus
from exporters.kit import Kit
from exporters.prometheus import LINGER_SCRAPES, Prometheus, parse_address
from tokenswarm import measure
from tokenswarm.records import BadInput, Outcome
from tokenswarm.run import Run, StageWindow

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def served() -> Iterator[Prometheus]:
    exporter = Prometheus("0")
    yield exporter
    exporter.close()


def get(exporter: Prometheus) -> str:
    assert exporter.url is not None
    with urllib.request.urlopen(exporter.url, timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def series(text: str) -> Series:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Series, name: str, **labels: str) -> float:
    return found[f"tokenswarm_{name}", frozenset(labels.items())]


def busy_run(**over: object) -> Run:
    rs = [record(k, ttft_ms=1 + k, due_s=10.0) for k in range(100)]
    rs += [record(200, Outcome.HTTP_ERROR), record(300, stage=0, due_s=1.0, ttft_ms=5000)]
    return run(worker(0, *rs[::2]), worker(1, *rs[1::2]), **over)


def test_counters_are_those_of_the_run(served: Prometheus) -> None:
    found = busy_run()
    stage = found.workers["w0"].snapshot.stage(1)
    stage.dropped, stage.coalesced_reads, stage.lost = 7, 3, 2
    stage.outcomes["lost"] = 2
    stage.slo_evaluated["ttft"], stage.slo_met["ttft"] = 50, 49
    served.start(found)
    got = series(get(served))
    assert value(got, "requests_total", outcome="ok") == 101
    assert value(got, "requests_total", outcome="http_error") == 1
    assert value(got, "requests_total", outcome="lost") == 2
    assert {dict(labels)["outcome"] for name, labels in got if name.endswith("requests_total")} == {
        o.value for o in Outcome
    }
    assert value(got, "prompt_tokens_total") == 10_200
    assert value(got, "output_tokens_total") == 1_111
    assert value(got, "arrivals_dropped_total") == 7
    assert value(got, "coalesced_reads_total") == 3
    assert value(got, "slo_evaluated_total", slo="ttft") == 50
    assert value(got, "slo_met_total", slo="ttft") == 49


def test_buckets_are_exact_cumulative_and_in_seconds(served: Prometheus) -> None:
    served.start(busy_run())
    got = series(get(served))
    labels = {"workload": "hand-made", "stage": "main"}
    name = "time_to_first_token_seconds"
    for bound_ns in measure.TTFT_BOUNDS_NS:  # TTFTs are 1, 2, ... 100 ms
        expected = min(100, bound_ns // MS)
        assert value(got, f"{name}_bucket", le=str(bound_ns / S), **labels) == expected
    assert value(got, f"{name}_bucket", le="+Inf", **labels) == 100
    assert value(got, f"{name}_count", **labels) == 100
    assert value(got, f"{name}_sum", **labels) == pytest.approx(5.05)
    assert value(got, f"{name}_count", workload="hand-made", stage="warmup") == 1
    for other, count in (("inter_token_latency", 1000), ("time_per_output_token", 100),
                         ("request_duration", 100), ("send_delay", 101)):  # fmt: skip
        assert value(got, f"{other}_seconds_count", **labels) == count


def test_stages_after_the_fourth_share_a_label(served: Prometheus) -> None:
    stages = [StageWindow(f"s{k}", False, k, k + 1.0) for k in range(6)]
    rs = [record(k, stage=k, due_s=k) for k in range(6)]
    served.start(run(worker(0, *rs), stages=stages))
    got = series(get(served))
    name = "time_to_first_token_seconds_count"
    counts = {dict(ls)["stage"]: v for (n, ls), v in got.items() if n.endswith(name)}
    assert counts == {"s0": 1, "s1": 1, "s2": 1, "s3": 1, "other": 2}


def test_every_family_is_there_before_anything_was_counted(served: Prometheus) -> None:
    served.start(run(objectives=objectives({"ttft": "<1s", "p99(tpot)": "<1s"})))
    got = series(get(served))
    assert [dict(ls)["slo"] for n, ls in got if n.endswith("slo_met_total")] == [
        "ttft", "p99(tpot)",
    ]  # fmt: skip
    assert value(got, "requests_total", outcome="ok") == 0
    assert value(got, "time_to_first_token_seconds_count", workload="hand-made", stage="main") == 0


def test_without_a_run_the_state_is_idle(served: Prometheus) -> None:
    got = series(get(served))
    assert value(got, "run_state", state="idle") == 1
    assert value(got, "run_state", state="running") == 0


def test_gauges_show_the_moment(served: Prometheus) -> None:
    found = busy_run(state="running", planned_rate=20.0, achieved_rate=19.5)
    w = found.workers["w0"]
    w.state, w.snapshot.health.cpu = "running", 0.25
    w.snapshot.health.users, w.snapshot.health.in_flight = 8, 5
    found.workers["w1"].snapshot.health.users = 8
    served.start(found)
    w.snapshot.health.lag.record(2 * MS, 1000)
    served.interval(found)
    w.snapshot.health.lag.record(30 * MS, 100)
    served.interval(found)
    got = series(get(served))
    assert value(got, "users") == 16
    assert value(got, "requests_in_flight") == 5
    assert value(got, "arrival_rate_planned") == 20
    assert value(got, "arrival_rate_achieved") == 19.5
    assert value(got, "workers", state="running") == 1
    assert value(got, "workers", state="ready") == 1
    assert value(got, "workers", state="lost") == 0
    assert value(got, "worker_cpu_ratio", worker="w0") == 0.25
    # of the last interval alone: over the whole run p99 would be 30 ms at the very edge only
    assert value(got, "worker_loop_lag_seconds", worker="w0") == pytest.approx(0.03, rel=1e-3)
    assert value(got, "run_state", state="running") == 1
    assert value(got, "run_state", state="done") == 0
    info = {"run_id": "r1", "workload": "hand-made", "backend": "openai-completions", "model": "m"}
    assert value(got, "run_info", **info) == 1


def test_counters_never_go_back_over_several_runs(served: Prometheus) -> None:
    first = busy_run()
    served.start(first)
    before = series(get(served))
    served.finish(first, {})
    second = busy_run(id="r2")
    second.workers.clear()
    served.start(second)
    between = series(get(served))
    for key, was in before.items():
        if key[0].endswith(("_total", "_bucket", "_count", "_sum")):
            assert between[key] == was
    second.workers.update(busy_run().workers)
    after = series(get(served))
    assert value(after, "requests_total", outcome="ok") == 202
    assert (
        value(after, "time_to_first_token_seconds_count", workload="hand-made", stage="main") == 200
    )
    assert [dict(ls)["run_id"] for n, ls in after if n.endswith("run_info")] == ["r2"]


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_promtool_finds_nothing_to_complain_about(served: Prometheus) -> None:
    served.start(busy_run())
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=get(served), text=True, capture_output=True,
        check=False,
    )  # fmt: skip
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_no_series_of_creation_times(served: Prometheus) -> None:
    served.start(busy_run())
    request = urllib.request.Request(
        str(served.url), headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        text = answer.read().decode()
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    assert "_created" not in text
    assert text.endswith("# EOF\n")


def test_label_values_are_escaped(served: Prometheus) -> None:
    found = busy_run()
    found.workload.name = 'a "b" \\ c\nd'
    served.start(found)
    labels = {dict(ls).get("workload") for n, ls in series(get(served)) if n.endswith("run_info")}
    assert labels == {'a "b" \\ c\nd'}


def test_only_metrics_count_as_scrapes(served: Prometheus) -> None:
    root = str(served.url).removesuffix("metrics")
    urllib.request.urlopen(root, timeout=10).read()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{root}nothing", timeout=10)
    assert served.scrapes == 0
    get(served)
    wait_for(lambda: served.scrapes == 1)


def wait_for(condition: object) -> None:
    end = time.monotonic() + 10
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("arg", "address"),
    [
        (None, ("127.0.0.1", 9646)),
        ("9700", ("127.0.0.1", 9700)),
        ("0.0.0.0:9700", ("0.0.0.0", 9700)),
        ("[::1]:0", ("::1", 0)),
        ("off", None),
    ],
)
def test_addresses(arg: str | None, address: tuple[str, int] | None) -> None:
    assert parse_address(arg) == address


@pytest.mark.parametrize("arg", ["abc", "1:2:x", ":9646", "70000", "-1", "localhost:"])
def test_a_wrong_address_is_refused_with_an_example(arg: str) -> None:
    with pytest.raises(BadInput, match=r"expected PORT, HOST:PORT or off"):
        parse_address(arg)


def test_off_serves_nothing_and_lingers_never() -> None:
    exporter = Prometheus("off")
    exporter.start(busy_run())
    exporter.interval(busy_run())
    start = time.monotonic()
    exporter.linger(30)
    exporter.linger()
    assert time.monotonic() - start < 1
    assert exporter.url is None
    exporter.close()


def test_the_address_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    exporter = Prometheus("0")
    url = exporter.url
    exporter.close()
    assert capsys.readouterr().err == f"tokenswarm: Prometheus metrics at {url}\n"


def test_ipv6(request: pytest.FixtureRequest) -> None:
    try:
        exporter = Prometheus("[::1]:0")
    except BadInput as error:
        pytest.skip(f"no IPv6 here: {error}")
    request.addfinalizer(exporter.close)
    exporter.start(busy_run())
    assert str(exporter.url).startswith("http://[::1]:")
    assert "tokenswarm_run_info" in get(exporter)


def test_a_taken_port_is_an_error_when_it_was_asked_for(served: Prometheus) -> None:
    with pytest.raises(BadInput, match=rf"127.0.0.1:{served.port}: Address already in use"):
        Prometheus(str(served.port))


def test_a_taken_default_port_is_an_error_when_it_was_asked_for(
    served: Prometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exporters.prometheus.DEFAULT_PORT", served.port)
    with pytest.raises(BadInput, match=rf"127.0.0.1:{served.port}: Address already in use"):
        Kit(SimpleNamespace(exports=("prometheus",)))


def test_a_taken_default_port_is_a_warning(
    served: Prometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exporters.prometheus.DEFAULT_PORT", served.port)
    exporter = Kit(SimpleNamespace(exports=())).open(None)[0]
    found = run()
    exporter.start(found)
    assert isinstance(exporter, Prometheus)
    assert exporter.url is None
    assert "Address already in use" in found.warnings[0]
    assert "prometheus=off" in found.warnings[0]


def test_an_unknown_host_is_an_error() -> None:
    with pytest.raises(BadInput, match=r"cannot serve Prometheus metrics on 203\.0\.113\.1:0"):
        Prometheus("203.0.113.1:0")


def test_nobody_scraped_so_nobody_is_waited_for(served: Prometheus) -> None:
    start = time.monotonic()
    served.linger()
    assert time.monotonic() - start < 1


def test_it_lingers_until_two_more_scrapes_were_seen(served: Prometheus) -> None:
    served.start(busy_run())
    get(served)
    wait_for(lambda: served.scrapes == 1)
    waiting = threading.Thread(target=served.linger, daemon=True)
    waiting.start()
    get(served)
    wait_for(lambda: served.scrapes == 2)
    waiting.join(0.3)
    assert waiting.is_alive()
    get(served)
    waiting.join(10)
    assert not waiting.is_alive()
    assert served.scrapes == 1 + LINGER_SCRAPES


def test_linger_as_long_as_asked(served: Prometheus, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    start = time.monotonic()
    served.linger(0.3)
    assert 0.3 <= time.monotonic() - start < 5
    said = "tokenswarm: waiting 0.3 s for Prometheus' last scrapes (--linger 0 ends at once)\n"
    assert capsys.readouterr().err == said
    served.linger(0)
    assert capsys.readouterr().err == ""


def test_why_it_waits_is_said_only_where_it_waits(
    served: Prometheus, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "LINGER_S", 0.2)
    capsys.readouterr()
    served.linger()  # nobody scraped
    assert capsys.readouterr().err == ""
    served.start(busy_run())
    get(served)
    wait_for(lambda: served.scrapes == 1)
    served.linger()
    assert capsys.readouterr().err == (
        "tokenswarm: waiting up to 0.2 s for Prometheus' last scrapes (--linger 0 ends at once)\n"
    )


def test_closing_frees_the_port(served: Prometheus) -> None:
    port = served.port
    served.close()
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))
