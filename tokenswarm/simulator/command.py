"""`tokenswarm simulate`: options, signals, the line that says it is ready.

Knows nothing about what the engine does. Subtle: SIGTERM and SIGINT only wake the loop, which
ends in order: log on disk, exit code 0.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import resource
import signal
import ssl
import sys
from collections.abc import Sequence

from tokenswarm.records import BadInput
from tokenswarm.simulator.faults import FAULTS
from tokenswarm.simulator.server import Server
from tokenswarm.simulator.settings import ENGINES, Settings, load

EXAMPLES = """examples:
  tokenswarm simulate
  tokenswarm simulate --engine h100-like --set max_batch=64
  tokenswarm simulate --port 0 --log engine.jsonl --set faults.reset_mid_stream=0.01
"""


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    options = argparse.ArgumentParser(
        prog="tokenswarm simulate",
        description="Run the embedded engine: every protocol tokenswarm speaks, without a GPU.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = options.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    add("--port", type=int, default=8000, help="port, 0 for a free one (default 8000)")
    add("--engine", default="default", help=f"{', '.join(ENGINES)}, or a YAML file")
    add("--set", action="append", default=[], nargs="+", metavar="KEY=VALUE", help="change a key")
    add("--log", metavar="FILE", help="one JSON line a request: what was really done")
    add("--seed", type=int, help="seed of faults, jitter and lengths (default 1)")
    add("--tls-cert", metavar="FILE", help="serve TLS with this certificate (PEM)")
    add("--tls-key", metavar="FILE", help="its key (PEM; default: in the certificate's file)")
    add("--api-key-env", metavar="NAME", help="ask for the API key in this environment variable")
    add("--list", action="store_true", help="print engines, keys and faults, and end")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = parser().parse_args(argv)
    if arguments.list:
        print(_listing())  # noqa: T201 - what was asked for
        return 0
    try:
        server = _server(arguments)
    except BadInput as error:
        print(error, file=sys.stderr)  # noqa: T201 - for the person at the terminal
        return 2
    _raise_file_limit()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    signal.set_wakeup_fd(server.wake_fd, warn_on_full_buffer=False)
    # What is loaded by now stays: the collector need not walk it while tokens are due.
    gc.collect()
    gc.freeze()
    name = arguments.engine
    print(f"tokenswarm engine listening on {server.url} (engine {name})", flush=True)  # noqa: T201
    try:
        server.run()
    finally:
        signal.set_wakeup_fd(-1)
    return 0


def _server(arguments: argparse.Namespace) -> Server:
    overrides = {}
    if arguments.seed is not None:
        overrides["seed"] = arguments.seed
    if arguments.api_key_env is not None:
        overrides["api_key_env"] = arguments.api_key_env
    sets = [text for group in arguments.set for text in group]
    settings = load(arguments.engine, sets, **overrides)
    tls = _tls(arguments.tls_cert, arguments.tls_key)
    return Server(settings, arguments.host, arguments.port, log_path=arguments.log, tls=tls)


def _tls(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    if certificate is None:
        if key is not None:
            raise BadInput("--tls-key: needs --tls-cert as well")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise BadInput(f"--tls-cert {certificate}: cannot be used: {error}") from None
    return context


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _listing() -> str:
    engines = [f"  {name}: {values}" for name, values in ENGINES.items()]
    keys = [f"  {name} = {field.default}" for name, field in Settings.model_fields.items()]
    faults = [f"  {name}: {row.about} -> {row.outcome}" for name, row in FAULTS.items()]
    how = (
        "Faults (--set faults.NAME=PROBABILITY, or for one request: header X-Tokenswarm-Fault, "
        "body key tokenswarm_fault, ?fault=NAME, model NAME#FAULT):"
    )
    parts = ["Engines (--engine):", *engines, "", "Keys (--set):", *keys, "", how, *faults]
    return "\n".join(parts)
