"""Secrets in the words of servers are taken out before anyone keeps them."""

import pytest

from tokenswarm.stream_secrets import redactor

redact = redactor(["my-own-key", ""])


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Incorrect API key provided: my-own-key.", "Incorrect API key provided: ***."),
        ("no my-own-key here", "no *** here"),
        ("Authorization: Bearer abcdef123456", "Authorization: Bearer ***"),
        ("wrong sk-proj-abc123DEF456", "wrong ***"),
        ("wrong sk-ab***********yz", "wrong ***"),
        ("hf_abcdefghijk expired", "*** expired"),
        ('{"api_key": "abcdef123"}', '{"api_key": "***"}'),
        ("token=abcdef123&x=1", "token=***&x=1"),
        ("max_tokens: 4096 is too many", None),
        ("This model's maximum context length is 4096 tokens", None),
        ("CUDA out of memory", None),
    ],
)
def test_texts(text, clean):
    assert redact(text) == (text if clean is None else clean)
