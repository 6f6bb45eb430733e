"""Chat templates."""

from pyflow.chat.checkpoint import from_checkpoint
from pyflow.chat.template import ChatTemplate, Message, check_messages

__all__ = ["ChatTemplate", "Message", "check_messages", "from_checkpoint"]
