"""Train through `turngate serve`, with HTTP in place of NATS. It needs httpx and websockets: pip install
'turngate[front]'.

async with Front("https://front.example:8420", token) as front:
    ids = await front.submit_group(request, n=4)
    async with await front.serve(policy):
        async for result in front.results():
            ...
"""

from .client import Cancelled, Front, FrontError, Rollout
from .feed import Feed
from .serving import Serving

__all__ = ["Cancelled", "Feed", "Front", "FrontError", "Rollout", "Serving"]
