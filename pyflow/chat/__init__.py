"""Chat templates."""

from pyflow.chat.template import ChatTemplate, Message, check_messages

__all__ = ["ChatTemplate", "Message", "check_messages"]
