"""What crosses the wire, as plain data, as messages and as bytes."""
