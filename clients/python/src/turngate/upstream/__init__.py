"""Answer calls with vLLM or SGLang. It needs httpx: pip install 'turngate[upstream]'.

async with Upstream("http://127.0.0.1:8000", version="step-1") as engine:
    client.serve(engine)
    async with engine.hold(client, version="step-2"):
        ...  # load the new weights into the engine

It is tested with vLLM. It was never run with SGLang: tests compare its requests and answers with the source of SGLang
0.5.23.
"""

from .tokens import Template
from .upstream import Upstream

__all__ = ["Template", "Upstream"]
