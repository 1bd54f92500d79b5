"""The engine's own view: pages of every engine read, and a run's account beside the client's."""

import gevent
import pytest
import yaml
from simulator_harness import call, engine
from socket_server import Server

from tokenswarm import server_side, server_side_names, workload
from tokenswarm.records import BadInput
from tokenswarm.server_side import Page, Watch, account, between, pages, split
from tokenswarm.server_side_names import Distribution, Reading, read, together
from tokenswarm.target import parse_url
from tokenswarm.transport import Transport

VLLM = b"""# HELP vllm:num_requests_running Running.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:prompt_tokens_total{engine="0",model_name="odd \\"name\\", {x}"} 1.5e+03
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 400
vllm:prefix_cache_hits_total{engine="0"} 100
vllm:prefix_cache_queries_total{engine="0"} 400
vllm:num_preemptions_total{engine="0"} 2
vllm:request_success_total{finished_reason="stop"} 3
vllm:request_success_total{finished_reason="length"} 7
vllm:time_to_first_token_seconds_bucket{le="0.1",engine="0"} 4
vllm:time_to_first_token_seconds_bucket{le="0.25",engine="0"} 8
vllm:time_to_first_token_seconds_bucket{le="+Inf",engine="0"} 10
vllm:time_to_first_token_seconds_sum{engine="0"} 2.5
vllm:time_to_first_token_seconds_count{engine="0"} 10
"""
PAGES = {
    "vllm": (VLLM, {
        "running": 5, "waiting": 1, "kv_use": 0.5, "requests": 10, "prompt_tokens": 1500,
        "output_tokens": 400, "prefix_cache_hits": 100, "prefix_cache_queries": 400,
        "preemptions": 2,
    }),
    "sglang": (b"""sglang:num_running_reqs{model_name="m"} 4
sglang:num_queue_reqs{model_name="m"} 2
sglang:token_usage{model_name="m"} 0.3
sglang:prompt_tokens_total{model_name="m"} 900
sglang:generation_tokens_total{model_name="m"} 300
sglang:cached_tokens_total{model_name="m"} 90
sglang:num_requests_total{model_name="m"} 9
""", {
        "running": 4, "waiting": 2, "kv_use": 0.3, "requests": 9, "prompt_tokens": 900,
        "output_tokens": 300, "prefix_cache_hits": 90, "prefix_cache_queries": 900,
    }),
    "tgi": (b"""# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 4
tgi_queue_size 7
tgi_request_success{method="generate_stream"} 12
tgi_request_input_length_sum 640
tgi_request_input_length_count 12
tgi_request_generated_tokens_sum 240
tgi_request_generated_tokens_count 12
""", {
        "running": 4, "waiting": 7, "requests": 12, "prompt_tokens": 640, "output_tokens": 240,
    }),
    "llamacpp": (b"""llamacpp:prompt_tokens_total 60
llamacpp:prompt_tokens_cached_total 40
llamacpp:tokens_predicted_total 55
llamacpp:requests_processing 2
llamacpp:requests_deferred 1
""", {
        "running": 2, "waiting": 1, "prompt_tokens": 100, "output_tokens": 55,
        "prefix_cache_hits": 40, "prefix_cache_queries": 100,
    }),
    "tensorrt-llm": (b"""trtllm_num_requests_running 3
trtllm_num_requests_waiting 0
trtllm_kv_cache_utilization 0.125
trtllm_request_success_total{finished_reason="length"} 5
""", {"running": 3, "waiting": 0, "kv_use": 0.125, "requests": 5}),
    "triton": (b"""nv_trt_llm_request_metrics{model="t",request_type="context",version="1"} 1
nv_trt_llm_request_metrics{model="t",request_type="scheduled",version="1"} 6
nv_trt_llm_request_metrics{model="t",request_type="waiting",version="1"} 2
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm"} 90
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm"} 0.4
nv_inference_request_success{model="ensemble",version="1"} 33
nv_gpu_utilization{gpu_uuid="a"} 0.5
nv_gpu_utilization{gpu_uuid="b"} 1
nv_gpu_power_usage{gpu_uuid="a"} 300
""", {
        "running": 6, "waiting": 2, "kv_use": 0.4, "requests": 33, "gpu_use": 0.75,
        "gpu_power_w": 300,
    }),
    "dcgm": (b"""DCGM_FI_DEV_GPU_UTIL{gpu="0",Hostname="n"} 90
DCGM_FI_DEV_GPU_UTIL{gpu="1",Hostname="n"} 70
DCGM_FI_DEV_POWER_USAGE{gpu="0"} 400.5
DCGM_FI_DEV_POWER_USAGE{gpu="1"} 300.5
DCGM_FI_DEV_FB_USED{gpu="0"} 1024
""", {"gpu_use": 0.8, "gpu_power_w": 701, "gpu_memory_bytes": 1 << 30}),
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_every_engine_is_known_by_its_page_and_read_under_neutral_names(name):
    page, values = PAGES[name]
    reading = read(page)
    assert reading.engine == name
    assert reading.values == pytest.approx(values)


def test_there_is_a_page_for_every_row_of_the_table():
    assert set(PAGES) == set(server_side_names.ENGINES)


def test_histograms_are_added_up_over_labels():
    doubled = VLLM + VLLM.replace(b'engine="0"', b'engine="2"')
    ttft = read(doubled).histograms["ttft_s"]
    assert (ttft.count, ttft.sum, ttft.buckets[0.1], ttft.mean) == (20, 5.0, 8, 0.25)


def test_names_with_underscores_and_older_names_are_known():
    page = b"vllm_gpu_cache_usage_perc 0.5\nvllm_num_requests_running 1\n"
    assert read(page).values == {"kv_use": 0.5, "running": 1}
    assert read(b"llamacpp:prompt_tokens_total 60\n").values == {"prompt_tokens": 60}


@pytest.mark.parametrize(
    "page", [b"", b"<html>no</html>", b"go_goroutines 5\n", b"vllm:num_requests_running NaN\n",
             b"vllm:num_requests_running{ 5", b"\xff\xfe\x00"]
)  # fmt: skip
def test_a_page_of_nothing_known_is_empty(page):
    assert read(page).empty


def test_a_quantile_is_told_only_where_the_bucket_has_two_edges():
    d = Distribution({0.1: 10, 0.2: 30, 0.4: 40, float("inf"): 50}, 9.0, 50)
    assert d.quantile(0.1) is None  # somewhere below 0.1
    assert d.quantile(0.4) == pytest.approx(0.15)
    assert d.quantile(0.7) == pytest.approx(0.3)
    assert d.quantile(0.9) is None  # somewhere above 0.4
    assert Distribution().quantile(0.5) is None
    assert Distribution().mean is None


def test_counts_of_an_engine_that_was_started_anew_begin_at_nought():
    first, last = Reading("x", {"requests": 100}), Reading("x", {"requests": 7})
    assert server_side.grown(first, last, "requests") == 7
    assert server_side.grown(first, last, "waiting") is None
    assert Distribution(sum=1, count=2).since(Distribution(sum=9, count=9)).count == 2


def test_several_engines_are_one():
    a = Reading("vllm", {"running": 3, "kv_use": 0.2}, {"ttft_s": Distribution({0.1: 1}, 0.1, 1)})
    b = Reading("vllm", {"running": 1, "kv_use": 0.6}, {"ttft_s": Distribution({0.1: 2}, 0.2, 2)})
    whole = together([Reading("dcgm", {"gpu_use": 0.5}), a, Reading(), b])
    assert whole.engine == "vllm"
    assert whole.values == pytest.approx({"running": 4, "kv_use": 0.4, "gpu_use": 0.5})
    assert whole.histograms["ttft_s"].count == 3


def test_a_line_of_the_timeline():
    before = Reading("vllm", {"output_tokens": 100, "prefix_cache_hits": 0,
                              "prefix_cache_queries": 0, "preemptions": 1},
                     {"ttft_s": Distribution(sum=1.0, count=10)})  # fmt: skip
    now = Reading("vllm", {"running": 4, "output_tokens": 300, "prefix_cache_hits": 30,
                           "prefix_cache_queries": 120, "preemptions": 3},
                  {"ttft_s": Distribution(sum=3.0, count=20)})  # fmt: skip
    assert between(before, now, 4.0) == {
        "running": 4, "output_tokens_per_s": 50.0, "preemptions": 2,
        "prefix_cache_hit_ratio": 0.25, "ttft_mean_s": 0.2,
    }  # fmt: skip


def test_the_account_puts_both_sides_beside_each_other():
    first = Reading("vllm", {"prompt_tokens": 10, "output_tokens": 1},
                    {"ttft_s": Distribution({0.1: 1, 0.2: 1}, 0.1, 1)})  # fmt: skip
    last = Reading("vllm", {"prompt_tokens": 110, "output_tokens": 51},
                   {"ttft_s": Distribution({0.1: 1, 0.2: 11}, 1.6, 11)})  # fmt: skip
    found = account(first, last, {"prompt_tokens": 100, "output_tokens": 48}, 0.17)
    assert found["counts"] == {"prompt_tokens": 100, "output_tokens": 50}
    assert found["tokens"]["output_tokens"] == {"client": 48, "server": 50, "difference": 2}
    assert found["latencies"]["ttft_s"] == pytest.approx(
        {"count": 10, "mean": 0.15, "p50": 0.15, "p90": 0.19, "p99": 0.199}
    )
    assert found["ttft"] == pytest.approx(
        {"client_mean_s": 0.17, "server_mean_s": 0.15, "outside_engine_s": 0.02}
    )


def test_an_engine_without_ttft_leaves_it_unknown():
    found = account(Reading("tgi"), Reading("tgi", {"output_tokens": 5}), {"output_tokens": 5}, 1.0)
    assert found["ttft"] == {
        "client_mean_s": 1.0, "server_mean_s": None, "outside_engine_s": None,
    }  # fmt: skip
    assert "prompt_tokens" not in found["tokens"]


def asked(host="http://h:8000", urls=(), metrics_url=None, gpu_url=None):
    """(base, path, may have the key) of every page."""
    keys = []

    def transport(target, same):
        keys.append(same)

    made = pages(host, urls, "/metrics", metrics_url, gpu_url, transport)
    return [(p.target.url, p.path, key) for p, key in zip(made, keys, strict=True)]


def test_where_metrics_are_looked_for_and_where_the_key_may_go():
    assert asked("http://h:8000/v1/") == [("http://h:8000", "/metrics", True)]
    assert asked("http://h:8000/proxy") == [("http://h:8000/proxy", "/metrics", True)]
    assert asked(urls=("http://a:1", "http://b:2")) == [
        ("http://a:1", "/metrics", True), ("http://b:2", "/metrics", True),
    ]  # fmt: skip
    assert asked(metrics_url="http://h:8002/metrics", gpu_url="http://gpu:9400") == [
        ("http://h:8002", "/metrics", False), ("http://gpu:9400", "/metrics", False),
    ]  # fmt: skip
    assert asked(metrics_url="http://h:8000/a/b")[0] == ("http://h:8000", "/a/b", True)


def test_an_ipv6_address_is_split_as_well():
    target, path = split("http://[::1]:8000/m")
    assert (target.host, target.port, target.prefix, path) == ("::1", 8000, "", "/m")


def page_at(url, is_asked_for=False):
    target = parse_url(url)
    return Page(target, "/metrics", Transport(target, server_side.TIMEOUTS), is_asked_for)


def test_a_watch_counts_what_a_real_engine_did_meanwhile():
    with engine() as running:
        call(running, "POST", "/v1/completions", {"prompt": "before", "max_tokens": 5})
        watch = Watch([page_at(f"http://127.0.0.1:{running.port}")], interval_s=0.02)
        watch.start()
        body = {"prompt": "Hi", "max_tokens": 7, "ignore_eos": True}
        threads = gevent.get_hub().threadpool
        jobs = [threads.spawn(call, running, "POST", "/v1/completions", body) for _ in range(3)]
        gevent.joinall(jobs)
        while watch.found["now"] is None:
            gevent.sleep(0.01)
        assert "running" in watch.found["now"]
        watch.finish(prompt_tokens=6, output_tokens=21, ttft_mean_s=0.5)
    found = watch.found
    assert (found["engine"], found["counts"]["requests"], found["counts"]["output_tokens"]) == (
        "vllm", 3, 21,
    )  # fmt: skip
    assert found["tokens"]["output_tokens"]["difference"] == 0
    assert found["latencies"]["ttft_s"]["count"] == 3
    assert found["gauges"]["running"]["max"] >= 0
    assert "now" not in found
    assert watch.warnings == []


@pytest.mark.parametrize("is_asked_for", [False, True])
def test_no_metrics_is_a_quiet_note_unless_they_were_asked_for(is_asked_for):
    missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"

    def script(peer):
        peer.sock.recv(65536)
        peer.send(missing)

    with Server(script) as server:
        watch = Watch([page_at(server.url, is_asked_for)], 5.0)
        watch.start()
        watch.finish(0, 0, None)
    note = f"no server-side metrics: {server.url}/metrics: HTTP 404"
    assert (watch.found.get("notes", []), watch.warnings) == (
        ([], [note]) if is_asked_for else ([note], [])
    )


def test_an_engine_that_goes_away_ends_the_account_and_says_so():
    page = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(VLLM) + VLLM
    looks = []

    def script(peer):
        peer.sock.recv(65536)
        looks.append(1)
        if len(looks) == 1:
            peer.send(page)

    with Server(script) as server:
        watch = Watch([page_at(server.url)], 5.0)
        watch.start()
        watch.finish(5, 5, None)
    assert "server-side metrics end before the run" in watch.warnings[0]
    assert watch.found["counts"]["output_tokens"] == 0
    assert watch.found["looks_failed"] == 1


def test_more_tokens_than_the_run_got_are_noted():
    watch = Watch([], 5.0)
    watch._pages = [page_at("http://127.0.0.1:1")]  # nobody there: the figures stay as they are
    watch._first = Reading("vllm", {"output_tokens": 0})
    watch._last = Reading("vllm", {"output_tokens": 500})
    watch.finish(0, 100, None)
    assert "400 output tokens more" in watch.found["notes"][0]


def test_a_page_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr(server_side, "MAX_PAGE_BYTES", 100_000)
    head = b"HTTP/1.1 200 OK\r\n\r\n"

    def script(peer):
        peer.sock.recv(65536)
        peer.send(head + b"x" * 300_000)
        peer.until_closed()

    with Server(script) as server:
        watch = Watch([page_at(server.url)], 5.0)
        watch.start()
        watch.close()
    assert "malformed: a page of more than 100000 bytes" in watch.found["notes"][0]


def of_workload(server):
    return workload.parse(yaml.safe_dump({
        "backend": {"model": "m"}, "prompts": {"input_tokens": 8, "output_tokens": 4},
        "tokenizer": {"source": "tiktoken", "path": "cl100k_base"}, "server": server,
    })).server  # fmt: skip


def test_the_section_of_a_workload():
    default = of_workload({})
    assert (default.off, default.metrics_url, default.gpu_url, default.interval) == (
        False, None, None, 5.0,
    )  # fmt: skip
    assert of_workload({"off": True, "interval": "500ms"}).interval == 0.5
    with pytest.raises(BadInput, match=r"server\.metrics_url: must be a base URL"):
        of_workload({"metrics_url": "h:8002"})
    with pytest.raises(BadInput, match=r"server\.intervall: .*interval"):
        of_workload({"intervall": "5s"})
