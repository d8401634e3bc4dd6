"""Sends this rank's heartbeats."""

from megatape.reliability.watch.heartbeat import BACKGROUND_GROUP, Heartbeat, ThreadProgress
from megatape.reliability.watch.messages import WatchMessages
from megatape.reliability.watch.pace import Pace
from megatape.utils.pytorch.torch_internals import count_collectives


class HeartbeatSender:
    """Sends heartbeats with this rank's phase and number of collectives.

    Args:
        messages: Messages to the other ranks.
        pace: This rank's pace, which knows its phase.
        process: Host and process id.

    Attributes:
        num_started: Heartbeats so far, including one being sent.
    """

    def __init__(self, messages: WatchMessages, pace: Pace, process: str) -> None:
        self.num_started = 0
        self._messages = messages
        self._pace = pace
        self._process = process

    def send(self) -> None:
        """Send a heartbeat.

        Raises:
            StoreEnded: The store has ended.
        """
        self.num_started += 1
        num_collectives, num_in_background = count_collectives(BACKGROUND_GROUP)
        phase = self._pace.phase
        background = ThreadProgress(num_collectives=num_in_background)
        background_phase = self._pace.background
        if background_phase is not None:
            background = ThreadProgress(background_phase.name, background_phase.timeout, num_in_background)
        heartbeat = Heartbeat(
            main=ThreadProgress(phase.name, phase.timeout, num_collectives),
            background=background,
            process=self._process,
            number=self.num_started,
            busy_share=self._pace.busy_share,
        )
        self._messages.send_heartbeat(heartbeat)
