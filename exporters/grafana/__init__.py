"""The Grafana dashboard: what it shows (panels), and how it becomes JSON (build)."""
