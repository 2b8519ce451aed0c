"""What a site of NVFlare runs: receive the model, train it, send it back."""

from pathlib import Path

import nvflare.client as flare
import task
from nvflare.apis.fl_constant import FLMetaKey


def main() -> None:
    cell, _ = task.given()
    flare.init()
    client, net = int(Path(flare.get_site_name()).name.removeprefix("site-")) - 1, task.scratch(cell)
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        net.load_state_dict(received.params)
        task.train(net, cell, client, received.current_round)
        meta = {FLMetaKey.NUM_STEPS_CURRENT_ROUND: cell.size}
        flare.send(flare.FLModel(params=net.state_dict(), meta=meta))


if __name__ == "__main__":
    main()
