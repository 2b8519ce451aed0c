"""Run rounds: the loop, the engines that carry requests to sites, the gate, aggregation."""
