"""Files that keep a text and its cells from one process to the next."""

from __future__ import annotations

import warnings
from pathlib import Path

from pyflow.closing import Closing
from pyflow.engine.cached_text import CachedText
from pyflow.engine.context import CacheType
from pyflow.engine.held_file import HeldFile
from pyflow.engine.model_files import ModelFiles
from pyflow.engine.saved_text import SavedText, open_text, save_text
from pyflow.errors import FormatError, PyflowError, SessionError, SessionWarning, UnsupportedError


class SessionFile(Closing):
    """A file to begin from and to write at the end; no other session uses it until it is closed.

    What is there and cannot be used, for it is damaged or of another model, is a SessionWarning:
    the text is then computed, and the file stays as it is.
    """

    def __init__(self, path: str | Path, model: ModelFiles, cache_type: CacheType) -> None:
        """PyflowError: no file can be written there, or another session holds it."""
        self.path = Path(path)
        self.notes: dict[str, str] = {}
        """What is kept beside the text."""
        self.names: list[int] = []
        """Of the cells of the text to begin from (engine/origins.py)."""
        self._saved: SavedText | None = None
        self._held: HeldFile | None = HeldFile(self.path)
        """None: the file is not written."""
        if self._held.is_empty:
            return
        try:
            self._saved = open_text(self.path, model, cache_type)
            self.notes = self._saved.notes
        except (FormatError, UnsupportedError) as error:
            self._refuse(error)
        except BaseException:
            self.close()
            raise

    @property
    def n_tokens(self) -> int:
        """Of the text to begin from."""
        return 0 if self._saved is None else len(self._saved.tokens)

    def restore(self, cached: CachedText) -> None:
        """Puts the saved text, if there is one, into an empty sequence."""
        if self._saved is None or self.n_tokens > cached.context.n_ctx:
            return
        try:
            self._saved.restore(cached)
            self.names = self._saved.names
        except (FormatError, UnsupportedError) as error:
            self.notes = {}
            self._refuse(error)
        self._saved = None

    def save(self, cached: CachedText) -> None:
        """Writes the text of a sequence. SessionError: it cannot be written."""
        if self._held is None:
            return
        try:
            save_text(self.path, cached, self.notes)
        except OSError as error:
            raise SessionError(
                f"{self.path}: the session cannot be written: {error.strerror}"
            ) from None
        except PyflowError as error:  # the file changed meanwhile
            raise SessionError(str(error)) from None

    def close(self) -> None:
        """Lets other sessions use the file; idempotent."""
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def _refuse(self, error: PyflowError) -> None:
        self.close()
        warnings.warn(
            f"{error}; the session is neither used nor written: delete the file to begin another",
            SessionWarning,
            stacklevel=2,
        )
