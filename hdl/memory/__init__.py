"""Every RAM of the project: one wrapper per kind of port, emitted as a replaceable macro."""
