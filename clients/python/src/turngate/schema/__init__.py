"""The messages of the protocol."""

from .messages_generated import *  # noqa: F403
from .messages_generated import __all__ as __all__
