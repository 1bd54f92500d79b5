"""tokenswarm: a distributed load tester for LLM inference servers, built on Locust."""

__version__ = "0.1.0"
