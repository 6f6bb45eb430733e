"""Links between members that share a stage (csrc/bindings/model/bind_link.cpp)."""

from collections.abc import Sequence

class Link:
    """How members that share a stage exchange what they compute. They make the same calls.

    LinkError: another member does not answer, has ended, or does something else.
    """

    @staticmethod
    def threads(size: int) -> list[Link]:
        """Of members in this process."""
    @staticmethod
    def shared(fd: int, number: int, size: int, offset: int = 0) -> Link:
        """Over a file in memory that all members map: `shared_nbytes(size)` zeros from offset on,
        which is a multiple of a page."""
    @staticmethod
    def shared_nbytes(size: int) -> int: ...
    @staticmethod
    def sockets(fds: Sequence[int], number: int) -> Link:
        """Over connected sockets, which it closes: fds[m] to member m; its own is not used."""
    @property
    def number(self) -> int:
        """Which member this is."""
    @property
    def size(self) -> int:
        """How many there are."""
    @property
    def gathers(self) -> tuple[int, int]:
        """Rounds of a model's steps so far, and the bytes that others have sent in them."""
    def time_rounds(self, nbytes: int, n: int, pause_s: float) -> list[float]:
        """Seconds of each of n rounds after pauses of work, nbytes of each member."""
    sends_early: bool
    """Whether members send the first half of columns while they compute the second; links over
    sockets find out in `meet`."""
    def set_deadline(self, ms: int) -> None:
        """How long others may be late in a step."""
    def meet(self, plan: bytes) -> None:
        """The first call: LinkError unless all members bring the same bytes. Waits for them."""
    def say(self, text: bytes | bytearray) -> None:
        """Member 0 tells all others, which hear it."""
    def hear(self) -> bytes:
        """Waits for what member 0 says."""
    def agree(self, answer: bool) -> bool:
        """Member 0's answer, for all."""
    def abort(self) -> None:
        """Ends all calls, now and from now on, by LinkError. From any thread."""
