"""A Flower grid in memory: real messages, as the bytes that Flower stores and sends, delivered in any order."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from flwr.app import Error
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedbeyond.flower.app import Context, FlowerMessage, Grid, RecordDict

RUN, SERVER = 7, 1


def travelled(message: FlowerMessage, number: str = "") -> FlowerMessage:
    """A message as it is after a journey as bytes."""
    pieces = {key: piece.deflate() for key, piece in get_all_nested_objects(message).items()}
    number = number or message.object_id
    arrived = inflate_object_from_contents(message.object_id, pieces)
    arrived.metadata.__dict__["_message_id"] = number
    return arrived


@dataclass
class Nodes(Grid):
    """Nodes in this process, each an app with a config of its own; what they answer comes late and shuffled."""

    apps: dict[int, tuple[Any, dict[str, Any]]]
    seed: int = 0
    names: dict[int, str] = field(default_factory=dict)  # under which their keys are registered
    silent: set[int] = field(default_factory=set)  # never answer
    keeps_deadlines: bool = False  # otherwise nodes have time, however short the server's patience is in a test
    waiting: dict[str, FlowerMessage] = field(default_factory=dict)
    heard: list[FlowerMessage] = field(default_factory=list)  # all that was sent
    replied: list[bytes] = field(default_factory=list)  # all that left nodes

    def __post_init__(self) -> None:
        self.chance = Random(self.seed)
        # in whose name messages are written
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, SERVER, 1

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    run = property(lambda self: None)

    def create_message(self, *args: Any, **options: Any) -> FlowerMessage:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.apps)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, name=self.names.get(node, "")) for node in self.apps]

    def push_messages(self, messages: Iterable[FlowerMessage]) -> Iterable[str]:
        sent = [travelled(message) for message in messages]
        for message in sent if not self.keeps_deadlines else ():
            message.metadata.__dict__["_ttl"] = 3600.0
        for message in self.chance.sample(sent, len(sent)):
            self.heard.append(message)
            if message.metadata.dst_node_id in self.silent:
                continue
            app, config = self.apps[message.metadata.dst_node_id]
            context = Context(RUN, message.metadata.dst_node_id, config, RecordDict(), {})
            try:
                reply = app(message, context)
            except Exception as error:  # as Flower's runtime does
                reply = FlowerMessage(Error(2, str(error)), reply_to=message)
            self.replied += [piece.deflate() for piece in get_all_nested_objects(reply).values()]
            self.waiting[message.metadata.message_id] = travelled(reply)
        return [message.metadata.message_id for message in sent]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[FlowerMessage]:
        """Some of what has come."""
        come = [number for number in message_ids if number in self.waiting]
        some = self.chance.sample(come, self.chance.randint(min(1, len(come)), len(come)))
        return [self.waiting.pop(number) for number in some]

    def send_and_receive(
        self, messages: Iterable[FlowerMessage], *, timeout: float | None = None
    ) -> Iterable[FlowerMessage]:
        raise NotImplementedError
