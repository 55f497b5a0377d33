"""A breaker per node: it stops sending to a node that fails, and tries it again. Pure."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Breaker:
    """Opens after failures in a row; then lets single requests through to try the node.

    Only what the node did wrong counts: refused or broken connections, silence, 5xx.
    A client's error never does.

    Attributes:
        failures_to_open: in a row.
        open_s: how long nothing is sent.
    """

    failures_to_open: int = 5
    open_s: float = 10.0
    _failures: int = 0
    _open_until_s: float = 0.0
    _is_open: bool = False
    _trial_until_s: float = 0.0
    _about: set[int] = field(default_factory=set)

    def allows(self, now_s: float) -> bool:
        """Whether a request may be sent."""
        return not self._is_open or (now_s >= self._open_until_s and now_s >= self._trial_until_s)

    @property
    def is_open(self) -> bool:
        """Whether failures have opened it and no success has closed it again."""
        return self._is_open

    def sent(self, now_s: float) -> None:
        """A request goes out: through an open breaker it is the one trial of this period."""
        if self._is_open:
            self._trial_until_s = now_s + self.open_s

    def succeeded(self) -> None:
        """The node answered."""
        self._failures, self._is_open, self._trial_until_s = 0, False, 0.0
        self._about.clear()

    def failed(self, now_s: float, about: int | None = None) -> None:
        """The node did not.

        Args:
            now_s: monotonic.
            about: names the request whose own fault it may be: sent again and again, it
                counts once.
        """
        if about is not None:
            if about in self._about:
                return
            self._about.add(about)
        self._failures += 1
        if self._is_open or self._failures >= self.failures_to_open:
            self._is_open = True
            self._open_until_s = now_s + self.open_s
            self._trial_until_s = 0.0
