"""What both kinds of tokenizers share: their interface, settings, types of tokens."""
