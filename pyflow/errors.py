"""The errors that pyflow raises; the extension raises the same ones.

A message says what, where, what was expected, what was found, and what to try.
"""


class PyflowError(Exception):
    """Anything that pyflow refuses or cannot do."""


class FormatError(PyflowError, ValueError):
    """A file breaks its format."""


class SpecError(FormatError):
    """A model description breaks the grammar of such files, or contradicts itself."""


class ShapeError(PyflowError, ValueError):
    """Two things that must agree in shape do not."""


class UnsupportedError(PyflowError, NotImplementedError):
    """Well formed, but this build cannot do it."""


class VariableError(UnsupportedError):
    """An environment variable has a value that does not exist or that this CPU cannot run."""


class ResourceError(PyflowError, RuntimeError):
    """Memory, cells or threads have run out; nothing has been changed."""


class DeviceError(PyflowError, RuntimeError):
    """A device, or its driver, has failed or cannot be used."""


class LinkError(PyflowError):
    """Another member of a group does not answer, has ended, or does something else."""


class ConstraintError(PyflowError, ValueError):
    """A schema or grammar that texts cannot be held to; it names the part that is refused."""


class MatcherError(PyflowError, RuntimeError):
    """A constraint became too complex for a text on its way: that text ends."""


class CancelledError(PyflowError):
    """A run was asked to stop before it was done."""


class LostRankError(PyflowError):
    """A rank of a cluster has died or does not answer."""


class SessionError(PyflowError):
    """A session could not be saved at the end; the text itself is complete."""


class GenerationWarning(UserWarning):
    """A model's files ask for a sampling method that is not supported, or for tokens that the
    vocabulary lacks, or have no place for a system message; or the speculator beside it does not
    fit."""


class FilesWarning(UserWarning):
    """Files beside each other disagree, or are not there; it says which were left aside."""


class SessionWarning(UserWarning):
    """A saved session cannot be used. Only time depends on it."""


class PlacementWarning(UserWarning):
    """Memory or threads are not where `numa` asks for them. Only time depends on it."""
