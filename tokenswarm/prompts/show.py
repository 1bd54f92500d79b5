"""Print synthesised prompts with token counts that were verified by a recount.

Knows prompts and text output. The subtle rule: the count shown is a new count of the finished
prompt, not the one it was made for.
"""

from __future__ import annotations

import json
import secrets
from typing import IO, Any

from tokenswarm.prompts import open_source
from tokenswarm.records import BadInput, Prompt

_WIDTH = 160


def show(workload: Any, n: int, as_json: bool, out: IO[str]) -> None:
    """Write the first n prompts of a workload; as_json: one object a line.

    A workload without a nonce gets a fresh one, as a run does.
    """
    fresh = workload.nonce is None
    if fresh:
        workload = workload.model_copy(update={"nonce": secrets.token_hex(4)})
    source = open_source(workload)
    for prompt in source.prompts(range(n)):
        counted = verified(source, prompt)
        line = json.dumps(as_object(prompt, counted), ensure_ascii=False) if as_json else ""
        out.write(f"{line or as_text(prompt, counted)}\n")
    if not as_json:
        if fresh:
            out.write(f"note: drawn with nonce {workload.nonce}; set it to see the same again\n")
        for warning in (*workload.notes, *source.warnings):
            out.write(f"note: {warning}\n")


def verified(source: Any, prompt: Prompt) -> int | None:
    """The recounted length; BadInput when it is not the promised one."""
    if prompt.input_tokens is None:
        return None
    counted: int = source.count(prompt)
    if counted != prompt.input_tokens:
        raise BadInput(
            f"prompt {prompt.index}: promised {prompt.input_tokens} tokens, recounted {counted}."
            " Please report this with the workload file; set prompts.options.verify: full."
        )
    return counted


def as_object(prompt: Prompt, counted: int | None) -> dict[str, Any]:
    """What --json prints of a prompt."""
    shown: dict[str, Any] = {"index": prompt.index}
    if prompt.messages is not None:
        shown["messages"] = list(prompt.messages)
    elif prompt.token_ids is not None:
        shown["prompt"] = list(prompt.token_ids)
    else:
        shown["prompt"] = prompt.text
    if prompt.session is not None:
        shown |= {"session": prompt.session, "turn": prompt.turn}
    return shown | {"input_tokens": counted, "output_tokens": prompt.output_tokens}


def as_text(prompt: Prompt, counted: int | None) -> str:
    """A line for people: number, lengths, the beginning of the text."""
    if prompt.messages is not None:
        text = " / ".join(f"{m.get('role')}: {m.get('content')}" for m in prompt.messages)
    elif prompt.token_ids is not None:
        text = f"token ids {list(prompt.token_ids[:20])}"
    else:
        text = prompt.text or ""
    text = " ".join(text.split())
    if len(text) > _WIDTH:
        text = f"{text[:_WIDTH]}..."
    shown = "?" if counted is None else str(counted)
    wanted = "free" if prompt.output_tokens is None else str(prompt.output_tokens)
    return f"{prompt.index:>6}  in {shown:>6}  out {wanted:>5}  {text}"
