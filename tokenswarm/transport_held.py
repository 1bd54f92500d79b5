"""The connection that one session holds for itself from turn to turn (load.sticky_connection).

Balancers that work on connections send all requests of one to the same server, and a real user's
client keeps its connection. The one subtle rule: it is held however long the user thinks, while
idle connections of the others are given up early; only the server can end it before the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenswarm.transport_connection import Connection


class Held:
    """At most one connection; empty before the first turn, after a failure, and once taken."""

    def __init__(self) -> None:
        self._connection: Connection | None = None

    def take(self) -> Connection | None:
        """The connection, for the next turn; None when there is none that can be used."""
        connection, self._connection = self._connection, None
        if connection is None or connection.still_open():
            return connection
        connection.close()
        return None

    def keep(self, connection: Connection) -> None:
        """Hold a connection until the next turn."""
        self.close()
        self._connection = connection

    def close(self) -> None:
        """The session is over."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
