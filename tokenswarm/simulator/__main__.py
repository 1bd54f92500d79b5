"""`python -m tokenswarm.simulator`: the same as `tokenswarm simulate`."""

import sys

from tokenswarm.simulator.command import main

sys.exit(main())
