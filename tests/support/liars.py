"""A federation of nodes in memory in which one site, or the guest, lies."""

import json
from dataclasses import replace

from fedbeyond.experiment import runner
from fedbeyond.flower import app as flower
from fedbeyond.flower import enrolment
from support.grids import Nodes

SITES, GUEST, LIAR = ("cartoon", "painting", "photo"), "sketch", "photo"
DROP = object()


def set_to(path, value):
    """A lie: the note at a path, `value` instead of what the site would say; `DROP`: missing."""

    def lie(reply):
        record = json.loads(reply.text)
        *above, last = path.split(".")
        node = record["notes"]
        for key in above:
            node = node[key]
        if value is DROP:
            del node[last]
        else:
            node[last] = value
        return replace(reply, received=json.dumps(record))

    return lie


def federation(folder, lies, liar=LIAR):
    """Nodes of the built-in data; the liar's replies to a subject are changed by `lies[subject]`."""

    def answer(context, message):
        reply, lie = flower.at_site(context, message), lies.get(message.subject)
        return lie(reply) if lie and context.node_config["site"] == liar else reply

    app, grid = flower.client_app(answer), {}
    for place, site in enumerate((*SITES, GUEST)):
        own = {"site": site, "data": "styles(share=0.1)", "folder": str(folder / site), "secret": ""}
        grid[100 - place] = (app, own | {"role": "guest" if site == GUEST else "train"})
    return Nodes(grid)


def started(config, grid, home, **options):
    transport = flower.FlowerTransport(grid, 5.0)
    return runner.run(enrolment.prepare(config, transport, SITES, (GUEST,), home=home, **options), home)
