"""The start form of Locust's web UI: what it changes of a workload, and what is wrong with it.

Users (or the rate) and the duration of a workload without stages can be set there, and which
workload it is. It knows nothing of runs: a form becomes `--set` texts.

The one subtle rule: a form is checked before Locust sees it, as the workload it would be, so
that a mistake is said in the form and nothing is started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenswarm import target, workload
from tokenswarm.records import BadInput

CHANGE = "a run is going on and its plan is fixed; stop it, then start another"
STAGES = "the workload has stages, which say how long each lasts; leave it empty"


def settings(load: Any, users: int | None, rate_per_s: float, run_time: float | None) -> list[str]:
    """`--set` texts for what a form says of load. Raises BadInput for what it cannot change."""
    problems = []
    if run_time and load.stages:
        problems.append(f"run time: {STAGES}")
    if rate_per_s and load.mode != "open":
        problems.append("rate per s: the workload is a closed loop; set users, and 0 here")
    elif rate_per_s and load.stages:
        problems.append("rate per s: the workload has stages, which say the rate; set 0 here")
    if problems:
        raise BadInput(*problems)
    if load.stages:
        return []
    sets = []
    if load.mode == "closed" and users is not None:
        sets.append(f"load.users={users}")
    if load.mode == "open" and rate_per_s:
        sets.append(f"load.rate_per_s={rate_per_s}")
    if run_time:
        sets += ["load.requests=null", f"load.duration={run_time}"]
    return sets


def problems(
    form: Mapping[str, str], file: str, sets: Sequence[str], host: str | None = None
) -> list[str]:
    """What is wrong with a submitted form. file and host: those where the form names none."""
    from locust.util.timespan import parse_timespan

    found: list[str] = []
    numbers: dict[str, float] = {}
    for key, label in (("user_count", "users"), ("rate_per_s", "rate per s")):
        text = form.get(key) or "0"
        try:
            numbers[key] = int(text) if key == "user_count" else float(text)
        except ValueError:
            found.append(f"{label}: must be a number, got '{text}'")
    run_time = 0
    try:
        run_time = parse_timespan(form["run_time"]) if form.get("run_time") else 0
    except ValueError:
        found.append(f"run time: must be such as 90, 90s, 15m or 1h30m, got '{form['run_time']}'")
    try:
        target.parse_url(form.get("host") or host or "")
    except BadInput as error:
        found += error.problems
    if found:
        return found
    path = form.get("workload") or file
    try:
        load = workload.load(path, sets).load
        changed = settings(load, int(numbers["user_count"]), numbers["rate_per_s"], run_time)
        workload.load(path, (*sets, *changed))
    except BadInput as error:
        return list(error.problems)
    return []


def refuse_bad(
    environment: Any,
    sets: Sequence[str],
    active: Callable[[], bool],
    refuse: Callable[[tuple[str, ...]], None],
) -> None:
    """Answer a form that cannot be run with what is wrong, in Locust's own way.

    refuse: told what is wrong with a change of a run that goes on, since Locust's form for that
    closes whatever the answer is.
    """
    from flask import jsonify, request

    ui = environment.web_ui
    base = (environment.parsed_options.web_base_path or "").rstrip("/")

    def check() -> Any:
        if active():
            found = [CHANGE]
            refuse((CHANGE,))
        else:
            parsed = environment.parsed_options
            found = problems(request.form, parsed.workload, sets, environment.host)
        if not found:
            return None
        return jsonify({"success": False, "message": "\n".join(found), "host": environment.host})

    allowed_to_check = ui.auth_required_if_enabled(check)

    def before() -> Any:
        start = request.method == "POST" and request.path == f"{base}/swarm"
        return allowed_to_check() if start else None

    ui.app.before_request(before)
