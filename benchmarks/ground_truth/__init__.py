"""A server in C that logs what it really sent, and the cheapest possible reader of its streams."""
