"""Chat templates."""

from pyflow.chat.checkpoint import from_checkpoint
from pyflow.chat.template import ChatTemplate

__all__ = ["ChatTemplate", "from_checkpoint"]
