"""Which links a transfer crosses: inside a host, out of one and into another, from a replica's host memory or disk."""

from __future__ import annotations

from collections.abc import Sequence

from kvist.config.cluster_config import ClusterConfig
from kvist.kvcache.connector import KVPlace, KVSource

GIGA = 1e9


class Topology:
    """Numbers the links and finds paths. A host's network has two directions, its inside one switch."""

    def __init__(self, config: ClusterConfig) -> None:
        self.nodes: list[int] = []  # by replica: the host that it starts on
        num_placed = 0
        for group in config.groups:
            for _ in range(group.count):
                self.nodes.append(num_placed // config.links.devices_per_node)
                num_placed += group.num_devices
        self._num_nodes = max(self.nodes) + 1
        links = config.links
        self.names: list[str] = []
        self.bytes_per_s: list[float] = []
        for label, rate in (
            ("inside host", links.intra_node_gb_per_s),
            ("out of host", links.inter_node_gb_per_s),
            ("into host", links.inter_node_gb_per_s),
        ):
            self._add(f"{label}", rate, self._num_nodes)
        self._add("host memory of replica", links.host_gb_per_s, len(self.nodes))
        self._add("disk of replica", links.disk_gb_per_s, len(self.nodes))

    def _add(self, label: str, gb_per_s: float, count: int) -> None:
        self.names += [f"{label} {number}" for number in range(count)]
        self.bytes_per_s += [gb_per_s * GIGA] * count

    def between(self, source: int, target: int) -> Sequence[int]:
        """From one replica's device to another's."""
        first, last = self.nodes[source], self.nodes[target]
        if first == last:
            return (first,)
        return (self._num_nodes + first, 2 * self._num_nodes + last)

    def from_host(self, replica_id: int) -> Sequence[int]:
        return (3 * self._num_nodes + replica_id,)

    def path(self, source: KVSource, target: int) -> Sequence[int]:
        """From any place to a replica's device."""
        if source.place is KVPlace.DEVICE and source.replica_id is not None:
            return self.between(source.replica_id, target)
        if source.place is KVPlace.SHARED_POOL:
            return (2 * self._num_nodes + self.nodes[target],)
        if source.place is KVPlace.DISK:
            return (3 * self._num_nodes + len(self.nodes) + target, *self.from_host(target))
        return self.from_host(target)
