"""Stream completions as a workload file says: `locust -f stream.py --workload FILE --host URL`."""

from locust import events

from exporters import kit
from tokenswarm.distributed import install
from tokenswarm.users import StreamUser


class Stream(StreamUser):
    """A user of the workload's model."""


install(events, outlets=kit.Kit, log_line=kit.log_line, pages=kit.pages)
