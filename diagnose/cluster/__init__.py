"""Over many nodes: names, launchers, fleet."""
