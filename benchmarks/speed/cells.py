"""What is measured, and what each runner needs: small enough that all of it takes some 35 round_log."""

from task import Cell

PEERS = ("plain", "ours", "pfl", "flower", "nvflare")
SMALL = {"steps": 2, "batch": 16}

CELLS = {
    cell.name: cell
    for cell in [
        Cell("empty-4k", steps=0, batch=2, network="stack", width=14, rounds=10),
        Cell("empty-11.7m", steps=0, batch=2, network="stack", width=764, rounds=5),
        Cell("feddg", clients=3, steps=20, batch=32, rounds=5, turns=3),
        Cell("many", clients=100, asked=10, rounds=5, **SMALL),
        Cell("folder", clients=3, steps=8, batch=16, pixels=96, rounds=5, files=True, turns=2),
        *(Cell(f"clients-{count}", clients=count, rounds=5, **SMALL) for count in (3, 10, 30, 100)),
        # an even number of clients: of an odd one, pfl's two processes would not draw the same users in the next round
        *(Cell(f"cores-{count}", clients=4, rounds=5, turns=4, group="cores", cores=count) for count in (1, 2)),
    ]
}

ABOUT = {
    "empty-4k": "empty round, 4 thousand parameters",
    "empty-11.7m": "empty round, 11.7 million parameters",
    "feddg": "3 clients, convnet, 32 px, 20 steps of 32 images",
    "many": "100 clients, 10 in a round, 2 steps of 16 images",
    "folder": "3 clients, JPEG files of 96 px, 8 steps of 16 images",
    "clients-3": "3 clients, 2 steps of 16 images",
    "clients-10": "10 clients, 2 steps of 16 images",
    "clients-30": "30 clients, 2 steps of 16 images",
    "clients-100": "100 clients, 2 steps of 16 images",
    "cores-1": "4 clients, 20 steps of 32 images, one core",
    "cores-2": "4 clients, 20 steps of 32 images, two cores",
}
