"""The embedded engine: behaves like a continuous-batching inference server, needs no GPU.

Reading order: settings (what an engine is), answer (words and scripts), openai_api and
native_apis (protocols), faults, batch and prefix_cache (scheduling), job and engine (one request,
all of them), wire, connection and server (HTTP and the loop), command (the CLI).
"""
