"""What a place in a file is called."""

from tokenswarm import yaml_source


def test_a_key_as_long_as_a_page_is_cut_in_messages() -> None:
    assert yaml_source.dotted(("load", "stages", 0, "k" * 5000)) == f"load.stages.0.{'k' * 60}..."
    assert yaml_source.dotted(("load", "users")) == "load.users"
