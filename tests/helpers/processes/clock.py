"""A clock set by tests, for code measuring time."""


class Clock:
    """A monotonic clock standing still until a test moves it.

    Attributes:
        now: Time in seconds.
    """

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
