"""End a process together with the one that started it, however that one ends."""

import os
import threading


def end_with_parent(pipe: int) -> None:
    """Exit at once when the other end of a pipe is closed; only the parent, which never writes, holds that end.

    The system closes it when the parent dies, also by SIGKILL.
    """

    def wait() -> None:
        while os.read(pipe, 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, name="end-with-parent", daemon=True).start()
