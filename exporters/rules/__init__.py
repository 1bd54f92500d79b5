"""Prometheus rules, and their copy for the Prometheus Operator."""
