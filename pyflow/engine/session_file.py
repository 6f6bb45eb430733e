"""Files that keep a text and its cells from one process to the next."""

from __future__ import annotations

import warnings
from pathlib import Path

from pyflow.engine.cached_text import CachedText
from pyflow.engine.context import CacheType
from pyflow.engine.model_files import ModelFiles
from pyflow.engine.saved_text import SavedText, open_text, save_text
from pyflow.errors import FormatError, PyflowError, SessionWarning, UnsupportedError


class SessionFile:
    """A file to begin from and to write at the end.

    What is there and cannot be used, for it is damaged or of another model, is a SessionWarning:
    the text is then computed, and the file stays as it is.
    """

    def __init__(self, path: str | Path, model: ModelFiles, cache_type: CacheType) -> None:
        """PyflowError: a folder, or a file in a folder that does not exist."""
        self.path = Path(path)
        self.notes: dict[str, str] = {}
        """What is kept beside the text."""
        self._keeps = True
        self._saved: SavedText | None = None
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise PyflowError(f"{path}: expected the name of a file in a folder that exists")
        if self.path.exists() or self.path.is_symlink():
            try:
                self._saved = open_text(self.path, model, cache_type)
                self.notes = self._saved.notes
            except (FormatError, UnsupportedError) as error:
                self._refuse(error)

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
        except FormatError as error:
            self.notes = {}
            self._refuse(error)
        self._saved = None

    def save(self, cached: CachedText) -> None:
        """Writes the text of a sequence. PyflowError: it cannot be written."""
        if not self._keeps:
            return
        try:
            save_text(self.path, cached, self.notes)
        except OSError as error:
            raise PyflowError(f"{self.path}: cannot be written: {error.strerror}") from None

    def _refuse(self, error: PyflowError) -> None:
        self._keeps = False
        warnings.warn(
            f"{error}; the session is neither used nor written: delete the file to begin another",
            SessionWarning,
            stacklevel=2,
        )
