"""The engine's pure parts: words and scripts, batch, prefix cache, settings, HTTP reader."""

import random
from dataclasses import dataclass

import pytest

from tokenswarm.records import BadInput
from tokenswarm.simulator.answer import Answer, Ask, End, Vocabulary, Wait, coalesced
from tokenswarm.simulator.batch import Batch
from tokenswarm.simulator.command import main
from tokenswarm.simulator.metrics import Buckets
from tokenswarm.simulator.prefix_cache import PrefixCache, block_hashes
from tokenswarm.simulator.request_log import RequestLog
from tokenswarm.simulator.settings import ENGINES, capacity_per_s, load
from tokenswarm.simulator.wire import RequestReader, WireError, chunk


def answer(tokens, size=1):
    ask = Ask("openai-completions", "m", "p")
    made = Answer(0, 0, ask, Vocabulary((" a", " b", " c"), (7, 8, 9)), 5, tokens)
    made.shape.tokens_per_event = size
    return made


def test_groups_cover_all_tokens_in_order():
    assert list(answer(5, 2).groups()) == [
        (" a b", 2, 2, False),
        (" c a", 2, 4, False),
        (" b", 1, 5, True),
    ]
    assert answer(5, 2).text() == " a b c a b"
    assert [answer(5).token_id(i) for i in range(4)] == [7, 8, 9, 7]


def test_a_stop_string_cuts_within_a_word():
    made = answer(5)
    made.stop_at(("c a",))
    assert (made.text(), made.output_tokens, made.finish) == (" a b ", 3, "stop")
    unstopped = answer(5)
    unstopped.stop_at(("x",))
    assert (unstopped.output_tokens, unstopped.finish) == (5, "length")


def test_coalesced_holds_back_and_lets_go():
    wait = Wait(5)
    script = [(b"r", 0, 0), (b"1", 1, 1), (b"2", 1, 1), (b"3", 1, 1), wait, (b"d", 0, 0)]
    assert list(coalesced(iter(script), 2)) == [
        (b"r", 0, 0),
        (b"12", 2, 2),
        (b"3", 1, 1),
        wait,
        (b"d", 0, 0),
    ]
    assert list(coalesced(iter([(b"1", 1, 1), End.RESET]), 4)) == [(b"1", 1, 1), End.RESET]


@dataclass
class Load:
    kv_tokens: int


def test_the_batch_is_first_come_first_served():
    batch = Batch(2, 100)
    a, b, big, small = Load(60), Load(30), Load(90), Load(5)
    assert batch.submit(a) == [a]
    assert batch.submit(b) == [b]
    assert (batch.running, batch.kv_used, batch.kv_usage) == (2, 90, 0.9)
    assert batch.submit(big) == []
    assert batch.submit(small) == []
    assert not batch.has_room(1)
    assert batch.release(b) == []  # big is first and does not fit yet: small must not pass it
    assert batch.release(a) == [big, small]
    assert (batch.running, batch.kv_used, list(batch.waiting)) == (2, 95, [])


def test_withdrawing_the_first_lets_others_in():
    batch = Batch(2, 100)
    a, big, small = Load(60), Load(90), Load(5)
    batch.submit(a)
    batch.submit(big)
    batch.submit(small)
    assert batch.withdraw(big) == [small]
    assert batch.can_ever_run(100)
    assert not batch.can_ever_run(101)


def test_prefix_blocks_depend_on_all_before():
    assert block_hashes([1, 2, 3, 4, 5], 2)[0] == block_hashes([1, 2, 9, 9], 2)[0]
    assert block_hashes([1, 2, 3, 4], 2)[1] != block_hashes([9, 9, 3, 4], 2)[1]
    assert len(block_hashes(b"abcdefg", 3)) == 2
    whole = block_hashes(b"abcdefghi", 3)
    assert block_hashes(b"ghi", 3, whole[1]) == whole[2:]


def test_prefix_hits_are_counted_in_tokens_and_never_cover_the_whole_prompt():
    cache = PrefixCache(4, None)
    hashes = block_hashes(list(range(8)), 4)
    assert cache.look_up(hashes, 8) == 0
    cache.insert(hashes)
    assert cache.look_up(hashes, 8) == 4
    assert cache.look_up(hashes, 9) == 8
    assert (cache.queries, cache.hits) == (25, 12)


def test_the_least_recently_used_block_goes_first():
    cache = PrefixCache(1, 2)
    cache.insert([1])
    cache.insert([2])
    assert cache.look_up([1], 2) == 1
    cache.insert([3])
    assert [cache.look_up([block], 2) for block in (1, 2, 3)] == [1, 0, 1]


def test_histogram_bounds_are_inclusive():
    buckets = Buckets((0.001, 0.01))
    for value in (1_000_000, 1_000_001, 20_000_000):
        buckets.record(value)
    assert buckets.counts == [1, 1, 1]
    assert buckets.lines("x", 'a="b"')[1] == 'x_bucket{le="0.01",a="b"} 2'


@pytest.mark.parametrize("name", ENGINES)
def test_every_named_engine_is_valid(name):
    assert load(name).max_batch >= 1


def test_settings_from_file_and_sets(tmp_path):
    path = tmp_path / "engine.yaml"
    path.write_text("engine: slow\nitl_ms: 7\nfaults: {empty: 0.1}\n")
    settings = load(str(path), ["faults.truncated=0.2", "max_batch=3"], seed=9)
    assert (settings.base_ms, settings.itl_ms, settings.max_batch, settings.seed) == (200, 7, 3, 9)
    assert settings.faults == {"empty": 0.1, "truncated": 0.2}


@pytest.mark.parametrize(
    ("engine", "sets", "said"),
    [
        ("defalt", [], "--engine defalt: no such engine or file.*Did you mean 'default'"),
        ("missing.yaml", [], "missing.yaml: cannot be read"),
        ("default", ["itl_msx=1"], "--set itl_msx=1: unknown key 'itl_msx'. Did you mean 'itl_ms'"),
        ("default", ["itl_ms=fast"], "--set itl_ms=fast: itl_ms: .*number.* got 'fast'"),
        ("default", ["itl_ms=-1"], "--set itl_ms=-1: itl_ms: .*greater than or equal to 0"),
        ("default", ["itl_ms"], "--set itl_ms: expected key=value"),
        ("default", ["itl_ms=[1"], "not YAML"),
        ("default", ["faults.empt=1"], "unknown fault 'empt'. Did you mean 'empty'"),
        ("default", ["faults.empty=2"], "faults.empty: a probability from 0 to 1, got 2"),
        ("default", ["faults.empty=0.7", "faults.crlf=0.7"], "may sum to 1"),
        ("default", ["model.x=1"], "unknown key 'model.x'"),
    ],
)
def test_wrong_settings_are_explained(engine, sets, said):
    with pytest.raises(BadInput, match=said):
        load(engine, sets)


def test_an_engine_file_must_hold_keys(tmp_path):
    path = tmp_path / "engine.yaml"
    path.write_text("- 1\n")
    with pytest.raises(BadInput, match="expected keys and values, got a list"):
        load(str(path))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--engine", "nope"], "no such engine"),
        (["--log", "/proc/nowhere/log"], "--log /proc/nowhere/log: cannot be written"),
        (["--port", "70000"], "--port 70000: cannot listen"),
        (["--tls-key", "x"], "--tls-key: needs --tls-cert"),
        (["--tls-cert", "/nowhere.pem"], "--tls-cert /nowhere.pem: cannot be used"),
        (["--set", "tokenizer={source: nope, path: x}"], "unknown source 'nope'"),
        (["--set", "tokenizer={sauce: nope}"], "unexpected keyword argument 'sauce'"),
    ],
)
def test_the_command_refuses_bad_options_in_words(argv, said, capsys):
    assert main(["--port", "0", *argv]) == 2
    assert said in capsys.readouterr().err


def test_the_command_lists_engines_and_faults(capsys):
    assert main(["--list"]) == 0
    out = capsys.readouterr().out
    assert "h100-like" in out
    assert "reset_mid_stream: connection reset in the middle -> connection_lost" in out


def test_capacity_by_hand():
    settings = load(
        "default", ["max_batch=10", "base_ms=100", "prefill_ms_per_token=1", "itl_ms=1"]
    )
    assert capacity_per_s(settings, 100, 101) == pytest.approx(10 / 0.3)
    smaller = settings.model_copy(update={"kv_tokens": 404})
    assert capacity_per_s(smaller, 100, 101) == pytest.approx(2 / 0.3)
    slower = settings.model_copy(update={"itl_ms_per_running": 0.1})
    assert capacity_per_s(slower, 100, 101) == pytest.approx(10 / 0.4)


def test_the_reader_gives_the_same_requests_however_the_bytes_are_cut():
    raw = (
        b"POST /a?x=1 HTTP/1.1\r\nContent-Length: 3\r\nX-Y: z\r\n\r\nabc"
        b"GET /b HTTP/1.1\r\n\r\n"
        b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nde\r\n1\r\nf\r\n0\r\n\r\n"
        b"GET /d HTTP/1.0\r\n\r\n"
    )
    rng = random.Random(4)
    for _ in range(30):
        reader = RequestReader(1000)
        cuts = sorted(rng.randrange(len(raw)) for _ in range(rng.randrange(12)))
        pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
        requests = [request for piece in pieces for request in reader.feed(piece)]
        assert [(r.method, r.path, r.query, r.body) for r in requests] == [
            ("POST", "/a", "x=1", b"abc"),
            ("GET", "/b", "", b""),
            ("POST", "/c", "", b"def"),
            ("GET", "/d", "", b""),
        ]
        assert [r.keep_alive for r in requests] == [True, True, True, False]
        assert [r.chunked_answers for r in requests] == [True, True, True, False]
        assert requests[0].headers == {"content-length": "3", "x-y": "z"}


def test_the_reader_takes_absolute_urls_as_proxies_get_them():
    (request,) = RequestReader(10).feed(b"GET http://host:80/v1/models?a=b HTTP/1.1\r\n\r\n")
    assert (request.path, request.query) == ("/v1/models", "a=b")


def test_the_reader_asks_to_continue_only_while_the_body_is_missing():
    head = b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n"
    reader = RequestReader(10)
    assert reader.feed(head) == []
    assert reader.wants_continue
    assert len(reader.feed(b"x")) == 1
    assert not reader.wants_continue
    assert len(reader.feed(head + b"x")) == 1
    assert not reader.wants_continue


def test_the_reader_has_limits():
    with pytest.raises(WireError) as error:
        RequestReader(10).feed(b"POST / HTTP/1.1\r\nContent-Length: 11\r\n\r\n" + b"x" * 11)
    assert error.value.status == 413
    with pytest.raises(WireError) as error:
        RequestReader(10).feed(b"GET /" + b"x" * 70_000)
    assert error.value.status == 431


def test_chunks_are_framed_in_hex():
    assert chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"


def test_the_log_can_be_read_while_it_is_written(tmp_path):
    log = RequestLog(str(tmp_path / "deep" / "log.jsonl"))
    log.write({"id": 1})
    size, pieces = log.read()
    log.write({"id": 2})
    assert b"".join(pieces) == b'{"id":1}\n'
    assert size == 9
    log.close()
    assert (tmp_path / "deep" / "log.jsonl").read_bytes() == b'{"id":1}\n{"id":2}\n'
