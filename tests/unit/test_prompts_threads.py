"""Prompts are made in real threads of a gevent process while its loop goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

CODE = """
from gevent import monkey; monkey.patch_all()
import json, sys, time
import gevent
from gevent import get_hub
from small_tokenizers import make_workload
from tokenswarm.prompts import open_source

pool = get_hub().threadpool
ticks = []

def tick():
    while True:
        ticks.append(time.monotonic())
        gevent.sleep(0.001)

ticking = gevent.spawn(tick)
source = pool.apply(open_source, (make_workload("cl100k_base", input_tokens=2000),))
before = len(ticks)
parts = [pool.spawn(source.prompts, range(k, 240, 3)) for k in range(3)]
made = sorted((p for part in parts for p in part.get()), key=lambda p: p.index)
print(json.dumps({
    "ticks": len(ticks) - before,
    "same": made == source.prompts(range(240)),
    "exact": all(source.count(p) == 2000 for p in made[::20]),
}))
"""


def test_threads_of_gevents_pool_make_the_same_prompts_while_the_loop_turns(
    tmp_path: Path,
) -> None:
    environment = {
        **os.environ,
        "TOKENSWARM_CACHE": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parent),
    }
    ran = subprocess.run(
        [sys.executable, "-c", CODE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = json.loads(ran.stdout)
    assert found["same"]
    assert found["exact"]
    assert found["ticks"] > 3
